"""The numbers of theory §7.7 on a real encoder, which is fetched only where .ci/run asks for it."""

import importlib.util
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tokenfield as tkf
from tests.encoders.coinciding import measured_multiplier

pytest.importorskip("safetensors")
SCRIPT = Path(__file__).parents[2] / "examples" / "convert_rxnmapper.py"


def script():
    spec = importlib.util.spec_from_file_location("convert_rxnmapper", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    if "TOKENFIELD_FETCH_ENCODERS" not in os.environ:
        pytest.skip("fetches rxnmapper with pip: set TOKENFIELD_FETCH_ENCODERS=1, as .ci/run does")
    folder = tmp_path_factory.mktemp("rxnmapper")
    command = ["-m", "pip", "download", "--quiet", "--no-deps", "rxnmapper==0.4.3", "--dest", str(folder)]
    subprocess.run([sys.executable, *command], check=True, timeout=300)
    return tkf.encoders.load(script().convert(next(folder.glob("*.whl")), folder))


def test_a_pickle_that_asks_for_anything_else_is_refused():
    with pytest.raises(pickle.UnpicklingError, match="not a part of tensors"):
        script().TensorUnpickler(io.BytesIO(pickle.dumps(os.getcwd))).load()


def test_spectra_are_those_of_the_theory(encoder):
    layer = encoder.layers[0]
    assert encoder.shared
    assert encoder.parameters == 877_598
    assert np.isclose(layer.beta, 45.2548340, rtol=1e-8)
    V = np.linalg.eigvals(np.sum(np.asarray(layer.weights.V), axis=0))
    D = np.linalg.eigvals(np.sum(np.asarray(layer.weights.D), axis=0))
    top = V[np.argmax(V.real)]
    assert np.isclose(complex(top.real, abs(top.imag)), 0.7793644 + 0.2658636j, rtol=1e-4)
    sizes = np.sort(np.abs(1 + V))[::-1]
    assert np.allclose(sizes[[0, 2]], [2.30729, 2.24153], rtol=1e-4)
    heights = np.sort(D.real)[::-1]
    assert np.isclose(heights[0], 1.4060169, rtol=1e-4)
    assert np.isclose(heights[0] - heights[1], 0.5172989, rtol=1e-4)
    assert np.isclose(np.linalg.norm(layer.drift), 0.2559948, rtol=1e-4)


def test_collapse_multiplier_without_mlp(encoder):
    assert abs(tkf.encoders.collapse(encoder.layers[0], drop=["mlp"]).multiplier - 0.7665) < 0.005


def test_the_full_block_has_two_orbits_of_one_token(encoder):
    """§7.7 has .987, which belongs to an orbit that never settles; most starts end in a fixed point instead.

    Its multiplier is measured with tokens 1e-7 apart, run through the real block with its softmax.
    """
    layer = encoder.layers[0]
    starts = np.random.default_rng(1).normal(size=(3, layer.d))
    fixed, _, wandering = (tkf.encoders.collapse(layer, start=layer.norm2(x)) for x in starts)
    assert wandering.orbit == "not settled"
    assert abs(wandering.multiplier - 0.987) < 0.01
    assert fixed.orbit == "fixed"
    assert np.isclose(measured_multiplier(layer, fixed.x), fixed.multiplier, rtol=1e-3)
