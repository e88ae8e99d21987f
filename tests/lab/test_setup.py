"""Controls become configurations, and every bad value a sentence."""

from dataclasses import replace

import numpy as np
import pytest

from tokenfield.config import reading as config
from tokenfield.errors import InputError
from tokenfield.lab.panel import beta_of, numbers
from tokenfield.lab.presets import PRESETS
from tokenfield.lab.scene import parse_axes
from tokenfield.lab.setup import LAWS, MODELS, Setup, fitted
from tokenfield.lab.source import source
from tokenfield.solvers.ode import Layers, RungeKutta4
from tokenfield.sweeps.cells import encode
from tokenfield.sweeps.result import CellResult
from tokenfield.theory.examples import profile
from tokenfield.theory.spectral import limit

SMALL = Setup(n=12)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_what_they_are_named_after(name):
    run = PRESETS[name].setup.config()
    arguments = run.arguments()
    tokens, weights = arguments["tokens"], run.weights.build()
    found = limit(weights)
    match name:
        case "rotating":
            assert found.kind == "rotating"
        case "Example 2.5":  # theory §3.9: R_0 = (1−m)cos a − m with m = (1−ξ)/4, cos a = (1+ξ)/2
            assert np.linalg.norm(tokens.moments().mean) == pytest.approx(0.925 * 0.85 - 0.075, abs=1e-12)
        case "Example 2.6":  # theory §3.10
            assert np.linalg.norm(tokens.moments().mean) == pytest.approx(0.3897981434, abs=1e-9)
        case "non-monotone R":
            theta = np.arctan2(*np.asarray(tokens.x).T[::-1])
            density = profile("C")(theta) * 2 * np.pi / tokens.n
            np.testing.assert_allclose(np.asarray(tokens.weights), density, atol=1e-12)
        case "two clusters that last":
            V = np.asarray(weights.V)
            assert abs(found.basis[0, 0]) == pytest.approx(1)
            assert np.argmax(np.diag(V)) == 0
        case "concentration, then escape" | "the same on the circle":
            assert abs(found.basis[1, 0]) == pytest.approx(1)  # E is e2, V's direction e1
            assert np.argmax(np.diag(np.asarray(weights.V))) == 0


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("d", [2, 3, 5])
def test_every_law_is_one_of_the_dimension_or_is_refused(law, d):
    setup = replace(
        SMALL,
        law=law,
        number=LAWS[law].good,
        d=d,
        V_spectrum=fitted(SMALL.V_spectrum, d),
        B_spectrum=fitted(SMALL.B_spectrum, d),
    )
    if LAWS[law].dimension not in (None, d):
        with pytest.raises(InputError, match=f"`dimension` must be 2 for the law '{law}', but was {d}"):
            setup.config()
        return
    assert setup.config().arguments()["tokens"].d == d


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("beta", [2.0, np.inf])
def test_every_model_comes_with_a_solver_that_can_do_it(model, log, beta):
    arguments = replace(SMALL, model=model, log=log, beta=beta, step=0.3, frames=21).config().arguments()
    arguments["solver"].check(np.asarray(arguments["ts"]), 36)
    assert isinstance(arguments["solver"], Layers) == (model == "layers")
    rough = model == "hardmax" or (model in ("softmax", "unnormalised") and beta == np.inf)
    assert isinstance(arguments["solver"], RungeKutta4) == rough


def test_many_tokens_take_more_pictures_and_longer_steps_beyond_the_circle():
    few, many = SMALL.config(), replace(SMALL, n=20_001).config()
    assert (len(few.arguments()["ts"]), few.solver.rtol) == (301, 1e-6)
    assert (many.times.count, many.solver.rtol) == (1000, 1e-4)
    # where errors may grow for long, steps stay as they are
    circle = replace(PRESETS["the same on the circle"].setup, n=100_000)
    assert circle.config().solver.rtol == replace(SMALL, n=20_001, log=True).config().solver.rtol == 1e-6


def test_matrices_are_turned_spectra():
    run = replace(SMALL, V_angle=30.0, turn=0.5).config()
    V = np.asarray(run.weights.build().V)
    symmetric = (V + V.T) / 2
    np.testing.assert_allclose(np.sort(np.linalg.eigvalsh(symmetric)), [0.3, 0.5, 1.0], atol=1e-12)
    direction = np.array([np.cos(np.pi / 6), np.sin(np.pi / 6), 0])
    np.testing.assert_allclose(symmetric @ direction, direction, atol=1e-12)
    np.testing.assert_allclose((V - V.T)[1, 0], 1.0, atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"n": 0}, "`tokens` must be a whole number, at least 1, but was 0"),
        ({"n": 10**7}, "`tokens` must be at most 1000000"),
        ({"d": 1}, "`dimension` must be"),
        ({"d": 4}, "`eigenvalues of V` must be 4 numbers, one for each dimension, but was 3 numbers"),
        ({"key": -1}, "`seed` must be"),
        ({"stop": 0.0}, "`until t` must be positive and finite"),
        ({"stop": np.nan}, "`until t` must be positive and finite"),
        ({"V_spectrum": (1.0, np.nan, 0.0)}, "`eigenvalues of V` must be finite"),
        ({"law": "cap", "number": 9.0}, "`angle` must lie in"),
        ({"law": "tilted", "number": 2.0}, "tilt towards e1.* must lie between −1 and 1, but was 2.0"),
        ({"model": "warm"}, "`model` must be one of"),
        ({"beta": float("nan")}, "`beta` must be a finite number or infinity"),
    ],
)
def test_bad_values_are_sentences(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        replace(SMALL, **changes).config().arguments()


def test_what_people_type():
    assert numbers("1, .5,2e-1", "x") == (1.0, 0.5, 0.2)
    assert parse_axes("3, 1,2", 5) == [2, 0, 1]
    for bad in ("", "1,,2", "one"):
        with pytest.raises(InputError, match="`x` must be numbers separated by commas"):
            numbers(bad, "x")
    for bad in ("1, 2", "1, 2, 2", "1, 2, 9", "a, b, c"):
        with pytest.raises(InputError, match="`axes` must be three"):
            parse_axes(bad, 5)
    assert beta_of(2.0) == 100 and beta_of(4.0) == 1e4 and beta_of(4.2) == np.inf


@pytest.mark.parametrize("name", PRESETS)
def test_a_configuration_written_is_the_one_read(name, tmp_path):
    run = PRESETS[name].setup.config()
    file = tmp_path / "run.toml"
    file.write_text(config.text(run), encoding="utf8")
    assert config.read(file) == run


def test_infinity_and_odd_text_survive_the_file(tmp_path):
    run = replace(SMALL, beta=np.inf).config()
    file = tmp_path / "run.toml"
    file.write_text(config.text(run), encoding="utf8")
    assert config.read(file) == run


def test_what_a_path_may_hold(tmp_path):
    run = SMALL.config()
    file, cell = tmp_path / "run.toml", tmp_path / "abc.cell"
    file.write_text(config.text(run), encoding="utf8")
    settings = run.model_dump(exclude_none=True) | {"run": {"snapshots": []}}
    outcome = CellResult("done", True, {"R": np.array([0.5, 1.0])}, {"R": ("time",)})
    cell.write_bytes(encode("simulate", settings, outcome))
    assert source(file) == source(f" {cell} ") == run
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no manifest.json"):
        source(tmp_path / "empty")
    for bad in ("", "/nowhere"):
        with pytest.raises(InputError, match="`path` must be a stored run, a TOML file or a cell of a sweep"):
            source(bad)
    cell.write_bytes(cell.read_bytes()[:-1])
    with pytest.raises(InputError, match="must be a whole cell"):
        source(cell)


FILE = {
    "weights": {"V": {"diag": [1.0, 0.5]}, "B": {"diag": [0.5, 2.0]}},
    "model": {"kind": "softmax", "beta": 3.0},
    "initial": {"law": "circle_density", "n": 16, "cos": [0.2, 0.1]},
    "times": {"stop": 2.0, "count": 5},
    "run": {"measure": ["energy"]},
}


def test_controls_change_the_settings_of_a_file_or_take_the_run_over():
    run = config.parse(FILE)
    setup = Setup.of_config(run)
    assert setup.config() == run
    assert (setup.model, setup.beta, setup.n, setup.d, setup.stop, setup.frames) == (
        "softmax",
        3,
        16,
        2,
        2,
        5,
    )
    assert setup.V_spectrum == (1.0, 0.5) and setup.B_spectrum == (0.5, 2.0)
    warmer = replace(setup, beta=1.0, stop=9.0).config()
    assert warmer == config.parse(
        FILE | {"model": {"kind": "softmax", "beta": 1.0}, "times": {"stop": 9.0, "count": 5}}
    )
    hard = replace(setup, model="hardmax")
    assert hard.config() == replace(hard, file=None).config()
    with pytest.raises(InputError, match="`beta` must be a finite number or infinity"):
        replace(setup, beta=float("nan")).config().arguments()
