"""The recipes of CONTRIBUTING.md, executed: each a file of its own, named in files, sweeps and the lab."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tokenfield as tkf
from tokenfield import registry
from tokenfield.config import reading as config
from tokenfield.lab.presets import PRESETS

ROOT = Path(__file__).parent.parent
#: The recipes of CONTRIBUTING.md, each a whole file: (family, name) → its text.
RECIPES = {
    tuple(first.removeprefix("# ").split(": ")): text
    for first, text in re.findall(
        r"```python\n(# \w+: [\w-]+)\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text("utf8"), re.DOTALL
    )
}
#: A preset of the lab beside the law of CONTRIBUTING.md.
PRESET = '''

@register("preset", "twins that stay")
def twins_that_stay():
    """Pairs of opposite tokens: the mean is 0 and stays so."""
    return {
        "weights": {"identity": 3},
        "model": {"kind": "softmax", "beta": 2.0},
        "initial": {"law": "twins", "n": 20, "axis": [0.0, 0.0, 1.0], "key": 1},
        "times": {"stop": 2.0, "count": 5},
    }
'''
MODULE = "from __future__ import annotations\n" + RECIPES["law", "twins"] + PRESET
TOML = """
[weights]
identity = 2
[model]
kind = "softmax"
beta = 3.0
[initial]
law = "twins"
n = 6
axis = [1.0, 0.0]
[times]
stop = 1.0
count = 3
[solver]
kind = "layers"
step = 0.25
"""


@pytest.fixture
def contributed(tmp_path, monkeypatch):
    """The module of a contributor, imported; forgotten after the test."""
    (tmp_path / "contributed_twins.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("contributed_twins")
    sys.modules.pop("contributed_twins", None)
    registry.forget("contributed_twins")


def test_a_file_can_name_it(contributed, tmp_path):
    (tmp_path / "run.toml").write_text(TOML.replace("n = 6", "n = 6\nkey = 4"))
    arguments = config.read(tmp_path / "run.toml").arguments()
    np.testing.assert_array_equal(arguments["tokens"].x, contributed.twins(6, [1.0, 0.0], 4).x)
    run = tkf.simulate(**arguments)
    np.testing.assert_allclose(run.measured["order_parameter"], 0, atol=1e-12)
    settings = arguments["settings"]["initial"]
    assert settings == {"law": "twins", "n": 6, "axis": [1.0, 0.0], "key": 4, "spread": 0.1}
    (tmp_path / "again.toml").write_text(config.text(config.read(tmp_path / "run.toml")))
    assert config.read(tmp_path / "again.toml") == config.read(tmp_path / "run.toml")


def test_mistakes_with_it_are_sentences(contributed, tmp_path):
    (tmp_path / "run.toml").write_text(TOML.replace("axis", "axes"))
    with pytest.raises(tkf.InputError) as error:
        config.read(tmp_path / "run.toml")
    assert "`initial.axes` is not a known setting; did you mean `axis`?" in str(error.value).splitlines()
    assert "`initial.key` must be given, but is missing" in str(error.value).splitlines()


@pytest.mark.parametrize("executor", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_sweep_seeds_it(contributed, executor, tmp_path):
    (tmp_path / "sweep.toml").write_text(TOML + "[sweep]\nseeds = 3\nmodel.beta = [1.0, 5.0]\n")
    data = tkf.sweep(tmp_path / "sweep.toml", executor, store=tmp_path / "s")
    assert data.order_parameter.dims == ("beta", "seed", "time") and (data.state == 1).all()
    np.testing.assert_allclose(data.order_parameter, 0, atol=1e-12)
    keys = {table["initial.key"] for table in json.loads(data.attrs["keys"]).values()}
    assert len(keys) == 3
    assert tkf.open_sweep(tmp_path / "s").identical(data)


@pytest.mark.slow
def test_the_command_line_imports_it(tmp_path):
    """The file of CONTRIBUTING.md, in a process that is only told the name of the module."""
    (tmp_path / "mine.py").write_text(MODULE)
    (text,) = re.findall(
        r"```toml\n(# sweep: twins\n.*?)```", (ROOT / "CONTRIBUTING.md").read_text("utf8"), re.DOTALL
    )
    (tmp_path / "file.toml").write_text(text)
    command = [sys.executable, "-m", "tokenfield"]
    options = ["sweep", "file.toml", "--workers", "0", "--out", "found", "--quiet"]
    ran = subprocess.run(
        [*command, "--import", "mine", *options], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("6 cells in found")
    ran = subprocess.run(
        [*command, "--import", "yours", *options], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 2 and ran.stderr.startswith(
        "tokenfield: `import` must name a module that Python can import, but was 'yours'"
    )
    ran = subprocess.run([*command, "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout.strip()) == (0, tkf.__version__)


def test_the_lab_has_its_preset(contributed):
    assert list(PRESETS)[-1] == "twins that stay"
    preset = PRESETS["twins that stay"]
    assert preset.about == "Pairs of opposite tokens: the mean is 0 and stays so."
    run = preset.setup.config()
    assert (preset.setup.n, preset.setup.d, preset.setup.beta) == (40, 3, 2.0)
    assert run.arguments()["tokens"].n == 40


#: What files say to use each recipe, and settings of the run that go with it.
USED = {
    ("law", "twins"): {"initial": {"law": "twins", "n": 4, "axis": [1.0, 0.0]}},
    ("model", "logistic"): {"model": {"kind": "logistic", "beta": 2.0, "bias": -1.0}},
    ("term", "linear-field"): {"terms": [{"kind": "linear-field", "S": [[0.5, 0.0], [0.0, 0.0]]}]},
    ("solver", "heun"): {"solver": {"kind": "heun", "step": 0.1}},
    ("measure", "spread"): {"run": {"measure": ["spread"]}},
}
BASE = {
    "weights": {"identity": 2},
    "model": {"kind": "softmax", "beta": 2.0},
    "initial": {"law": "uniform", "n": 8, "d": 2},
    "times": {"stop": 1.0, "count": 3},
}


@pytest.fixture(params=sorted(USED), ids=lambda used: " ".join(used))
def recipe(request, tmp_path, monkeypatch):
    """A recipe as a module of its own, with a preset that uses it; forgotten after the test."""
    _, name = request.param
    module = f"recipe_{name.replace('-', '_')}"
    settings = BASE | USED[request.param]
    seeded = settings | {"initial": settings["initial"] | {"key": 3}}
    preset = f'\n\n@register("preset", "my {name}")\ndef preset():\n    """What one sees."""\n    return {seeded!r}\n'
    (tmp_path / f"{module}.py").write_text(RECIPES[request.param] + preset)
    monkeypatch.syspath_prepend(tmp_path)
    yield settings, name, importlib.import_module(module)
    sys.modules.pop(module, None)
    registry.forget(module)


def test_all_five_recipes_are_there():
    assert set(RECIPES) == set(USED)


def test_a_recipe_runs_sweeps_and_is_a_preset(recipe, tmp_path):
    """`simulate`, a seeded sweep and a preset of the lab, with no other edit."""
    settings, name, _ = recipe
    one = settings | {"initial": settings["initial"] | {"key": 3}}
    run = tkf.simulate(**config.parse(one).arguments())
    assert run.complete
    data = tkf.sweep(settings | {"sweep": {"seeds": 2}}, 0, store=tmp_path / "s")
    assert (data.state == 1).all() and data.sizes["seed"] == 2
    again = tkf.simulate(**PRESETS[f"my {name}"].setup.config().arguments())
    np.testing.assert_array_equal(again.x, run.x)


@pytest.fixture
def logistic(tmp_path, monkeypatch):
    """The kernel of CONTRIBUTING.md."""
    (tmp_path / "recipe_logistic.py").write_text(RECIPES["model", "logistic"])
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("recipe_logistic").LogisticAttention
    sys.modules.pop("recipe_logistic", None)
    registry.forget("recipe_logistic")


@pytest.mark.slow
@pytest.mark.parametrize(("d", "summation"), [(2, "circle"), (3, "harmonic")])
def test_the_kernel_has_fast_sums(logistic, d, summation):
    """By loops over all pairs; B is no multiple of the identity."""
    B = np.diag([0.5, 2.0, 1.0][:d])
    model = logistic(tkf.AttentionWeights(B, np.eye(d)), 3.0, -1.0)
    tokens = tkf.initial.uniform(300, d, 0)
    x = np.asarray(tokens.x)
    read = (1 / (1 + np.exp(-(3.0 * x @ B @ x.T - 1.0)))) @ x / 300
    expected = read - np.sum(read * x, axis=1, keepdims=True) * x
    np.testing.assert_allclose(model.velocity(tokens, summation), expected, atol=1e-9)


def test_the_kernel_has_a_mean_field(logistic):
    model = logistic(tkf.AttentionWeights.identity(2), 2.0, 0.5)
    law = tkf.density.solve(model, lambda t: 1 + 0.3 * np.cos(t), [0, 1.0], "circle")
    tokens = tkf.initial.circle_density(lambda t: 1 + 0.3 * np.cos(t), 200)
    run = tkf.simulate(model, tokens, [0, 1.0], tkf.Adaptive(1e-11, 1e-12))
    np.testing.assert_allclose(law.moments().mean, run.tokens(-1).moments().mean, atol=1e-9)
