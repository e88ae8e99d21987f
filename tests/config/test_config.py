"""Configuration files: every example builds, every mistake is a sentence that names the setting."""

import copy
import pickle
import tomllib
from pathlib import Path

import numpy as np
import pytest

import tokenfield as tkf
from tokenfield import registry
from tokenfield.config import reading as config
from tokenfield.config.choices import section_of
from tokenfield.sums.direct import DIRECT
from tokenfield.sweeps.grid import read as read_sweep

ROOT = Path(__file__).parents[2]
GOOD = {
    "weights": {"V": {"diag": [1.0, 0.5]}, "B": [[0.5, 0.0], [0.0, 2.0]]},
    "model": {"kind": "softmax", "beta": 2.0},
    "initial": {"law": "uniform", "n": 5, "d": 2, "key": 0},
    "times": {"stop": 1.0, "count": 3},
}


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda p: p.stem)
def test_every_example_builds(path):
    grids = {"sweep": ("simulate", 7 * 4 * 5), "mean_field": ("density", 3 * 7)}
    if path.stem in grids:  # not a run
        grid = read_sweep(path)
        assert (grid.kind, len(grid.cells)) == grids[path.stem]
        return
    arguments = config.read(path).arguments()
    assert arguments["tokens"].n > 1
    assert arguments["settings"]["model"]["kind"]


def test_settings_become_the_arguments_of_simulate():
    arguments = config.parse(GOOD).arguments()
    np.testing.assert_array_equal(arguments["model"].weights.D, [[0.5, 0], [0, 1]])
    np.testing.assert_array_equal(arguments["tokens"].x, tkf.initial.uniform(5, 2, 0).x)
    np.testing.assert_array_equal(arguments["ts"], [0, 0.5, 1])
    run = tkf.simulate(**arguments)
    assert set(run.measured) == {"order_parameter"}


def test_the_distance_to_the_limit_law_may_be_measured():
    """V Bᵀ = diag(½, 1): Π sends the upper half of the circle to e2, the lower one to −e2."""
    arguments = config.parse(GOOD | {"run": {"measure": ["limit_distance"]}}).arguments()
    run = tkf.simulate(**arguments)
    x0 = np.asarray(arguments["tokens"].x)
    to_go = np.arccos(np.sign(x0[:, 1]) * np.asarray(run.x)[..., 1])
    np.testing.assert_allclose(run.measured["limit_distance"], np.sqrt(np.mean(to_go**2, axis=1)), rtol=1e-9)


@pytest.mark.parametrize(
    ("section", "value", "check"),
    [
        (
            "model",
            {"kind": "unnormalised", "beta": 1.0},
            lambda a: isinstance(a["model"], tkf.UnnormalisedAttention),
        ),
        ("model", {"kind": "softmax", "beta": float("inf")}, lambda a: a["model"].infinite),
        ("model", {"kind": "hardmax"}, lambda a: isinstance(a["model"], tkf.HardmaxAttention)),
        ("model", {"kind": "zero-temperature"}, lambda a: isinstance(a["model"], tkf.ZeroTemperature)),
        ("model", {"kind": "interaction", "power": 2}, lambda a: isinstance(a["model"], tkf.InteractionFlow)),
        ("initial", {"law": "equiangular", "n": 2, "d": 2, "rho": 0.5}, lambda a: a["tokens"].n == 2),
        (
            "initial",
            {"law": "cap", "n": 4, "centre": [0, 1.0], "angle": 0.1, "key": 0},
            lambda a: a["tokens"].n == 4,
        ),
        (
            "initial",
            {"law": "von_mises_fisher", "n": 4, "mean": [0, 1.0], "kappa": 3.0, "key": 0},
            lambda a: a["tokens"].n == 4,
        ),
        (
            "initial",
            {"law": "poisson", "n": 8, "w": [0.3, 0.0]},
            lambda a: float(tkf.order_parameter(a["tokens"])) == pytest.approx(0.3, abs=1e-3),
        ),
        (
            "initial",
            {"law": "circle_density", "n": 64, "cos": [0.4], "sin": [0, 0.2]},
            lambda a: float(a["tokens"].moments().mean[0]) == pytest.approx(0.2),
        ),
        (
            "initial",
            {"law": "atoms", "x": [[1.0, 0.0], [0.0, 1.0]], "weights": [0.1, 0.9]},
            lambda a: float(a["tokens"].weights[0]) == pytest.approx(0.1),
        ),
        (
            "initial",
            {"law": "mixture", "masses": [0.5, 0.5], "parts": [GOOD["initial"], GOOD["initial"]]},
            lambda a: a["tokens"].n == 10,
        ),
        ("weights", {"identity": 2}, lambda a: np.array_equal(a["model"].weights.D, np.eye(2))),
        (
            "weights",
            {"Q": [[1.0, 0.0]], "K": [[0.0, 1.0]], "V": {"identity": 2}},
            lambda a: np.array_equal(a["model"].weights.B, [[0, 1], [0, 0]]),
        ),
        (
            "weights",
            {"B": {"goe": 2, "key": 3}, "V": {"spectrum": [1.0, 2.0], "key": 1}},
            lambda a: np.array_equal(a["model"].weights.B, tkf.ensembles.goe(2, 3)),
        ),
        (
            "weights",
            {"B": {"gaussian": 2, "heads": 3}, "V": {"wishart": 2, "heads": 3}},
            lambda a: a["model"].weights.heads == 3,
        ),
        ("times", {"at": [0, 1.0, 7.0]}, lambda a: list(a["ts"]) == [0, 1, 7]),
        (
            "times",
            {"spacing": "log", "first": 0.1, "stop": 10.0, "count": 4},
            lambda a: np.allclose(a["ts"], [0, 0.1, 1, 10]),
        ),
        ("solver", {"kind": "rk4", "step": 0.1}, lambda a: isinstance(a["solver"], tkf.RungeKutta4)),
        ("solver", {"kind": "layers", "step": 0.1}, lambda a: isinstance(a["solver"], tkf.Layers)),
        ("solver", {"kind": "adaptive", "method": "dopri8"}, lambda a: a["solver"].method == "dopri8"),
        (
            "run",
            {"measure": ["energy", "mean"], "merge_angle": 0.1},
            lambda a: set(a["measure"]) == {"energy", "mean"},
        ),
    ],
)
def test_every_kind_of_setting(section, value, check):
    assert check(config.parse(GOOD | {section: value}).arguments())


def test_a_density_on_the_sphere():
    settings = GOOD | {
        "weights": {"identity": 3},
        "initial": {
            "law": "sphere_density",
            "n": 200,
            "linear": [0, 0, 0.9],
            "quadratic": {"diag": [0.5, 0, 0]},
        },
    }
    mean = config.parse(settings).arguments()["tokens"].moments().mean
    np.testing.assert_allclose(mean, [0, 0, 0.3 / (1 + 0.5 / 3)], atol=1e-12)


def wrong(path, value):
    def change(settings):
        *parents, last = path.split(".")
        for key in parents:
            settings = settings[key]
        if value is None:
            del settings[last]
        else:
            settings[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (wrong("solvr", {}), "`solvr` is not a known setting; did you mean `solver`?"),
        (wrong("model.betta", 1), "`model.betta` is not a known setting; did you mean `beta`?"),
        (
            wrong("weights.B", {"diagonal": [1]}),
            "`weights.B.diagonal` is not a known setting; did you mean `diag`?",
        ),
        (wrong("times.zzz", 1), "`times.zzz` is not a known setting; known here: at, start, stop"),
        (wrong("model.kind", "softmx"), "`model.kind` must be one of 'softmax', 'unnormalised'"),
        (wrong("model.kind", None), "`model.kind` must be given, but is missing"),
        (wrong("model.beta", None), "`model.beta` must be given, but is missing"),
        (wrong("model.beta", "hot"), "`model.beta` must be a valid number"),
        (wrong("model.beta", -np.inf), "`beta` must be a finite number or infinity"),
        (wrong("initial.n", 0), "`n` must be a whole number, at least 1, but was 0"),
        (wrong("initial.n", 2.5), "`initial.n` must be a valid integer"),
        (
            wrong("weights.V", None),
            "`weights` must hold identity alone, or B and V, or Q, K and V, but holds B",
        ),
        (wrong("weights.V", {"diag": [1.0], "goe": 2}), "`weights.V` must hold exactly one of rows, diag"),
        (wrong("weights.V", [[1.0, "a"], [0, 1]]), "`rows` must be an array of real numbers"),
        (wrong("times.at", [0, 1]), "`times` must hold either at or stop, but holds both"),
        (wrong("times.spacing", "log"), "`times` must hold first exactly if spacing is 'log'"),
        (
            wrong("run", {"measure": ["energi"]}),
            "`run.measure.0` must be 'order_parameter', 'effective_rank', 'energy', 'mean' or 'limit_distance'",
        ),
        (
            wrong("run", {"summation": "fast"}),
            "`run.summation` must be 'auto', 'direct', 'circle', 'harmonic' or 'merged', but was 'fast'",
        ),
        (wrong("times", None), "`times` must be given, but is missing"),
        (
            wrong("times", {"spacing": "log", "first": 0.1, "stop": 10.0, "count": 2}),
            "`times` must hold a count of at least 3 if spacing is 'log', but holds 2",
        ),
        (
            wrong("weights.V", {"diag": [1.0, 2.0], "heads": 2}),
            "`weights.V` must hold heads only beside gaussian, goe, wishart, spectrum, but holds it beside diag",
        ),
        (wrong("weights.V", {"identity": 2, "heads": 2}), "`weights.V` must hold heads only beside"),
        (
            wrong("weights.B", {"rows": [[1.0, 0.0], [0.0, 1.0]], "heads": 2}),
            "`weights.B` must hold heads only",
        ),
        (wrong("weights.V", {"identity": -1}), "`identity` must be a whole number, at least 2, but was -1"),
        (wrong("weights", {"identity": -1}), "`identity` must be a whole number, at least 2, but was -1"),
    ],
)
def test_mistakes_are_one_sentence(change, sentence):
    settings = copy.deepcopy(GOOD)
    change(settings)
    with pytest.raises(tkf.InputError) as caught:
        config.parse(settings).arguments()
    assert str(caught.value).startswith(sentence)


def test_energy_needs_a_temperature():
    settings = GOOD | {"model": {"kind": "hardmax"}, "run": {"measure": ["energy"]}}
    with pytest.raises(tkf.InputError, match="`run.measure` must not name 'energy' for 'hardmax'"):
        config.parse(settings).arguments()


def test_files_that_are_not_toml(tmp_path):
    for content in (b"[model\n", b"\xff\xfe"):
        path = tmp_path / "bad.toml"
        path.write_bytes(content)
        with pytest.raises(tkf.InputError, match="^`config` must be a"):
            config.read(path)
    with pytest.raises(tkf.InputError, match="No such file"):
        config.read(tmp_path / "absent.toml")


def test_settings_in_the_store_rebuild_the_run():
    arguments = config.parse(GOOD).arguments()
    again = config.parse(arguments["settings"]).arguments()
    assert again["settings"] == arguments["settings"]
    assert tomllib.loads("beta = inf")["beta"] == np.inf


@pytest.mark.parametrize("family", [name for name, each in registry.FAMILIES.items() if name != "measure"])
def test_every_entry_has_a_section(family):
    for entry in registry.entries(family).values():
        if family not in ("sums", "preset"):
            section = section_of(entry)
            assert next(iter(section.model_fields)) == entry.tag
            assert section_of(entry) is section


def test_configurations_travel_to_other_processes():
    run = config.parse(GOOD | {"solver": {"kind": "rk4", "step": 0.1}, "run": {"measure": ["energy"]}})
    assert pickle.loads(pickle.dumps(run)) == run  # noqa: S301


@pytest.fixture
def half():
    """A term and a space, of which there are none yet."""

    class Faster(tkf.SoftmaxAttention):
        def attention(self, x, tokens, sums=DIRECT):
            return 2 * super().attention(x, tokens, sums)

    @registry.register("term", "noise")
    def noise(kappa: float):
        return tkf.Noise(kappa)

    @registry.register("space", "hurried", settings={"turn": registry.MATRIX})
    def hurried(model, turn=None):
        return Faster(model.weights, 2 * model.beta if turn is None else float(turn[0, 0]))

    yield
    registry.forget(__name__)


def test_terms_are_added_and_the_space_is_made_of_the_model(half):
    noisy = config.parse(GOOD | {"terms": [{"kind": "noise", "kappa": 3.0}]})
    model = noisy.arguments()["model"]
    assert float(model.diffusion) == pytest.approx(1 / 3) and model.drift.beta == 2
    spaced = config.parse(GOOD | {"space": {"kind": "hurried"}}).arguments()["model"]
    assert float(spaced.beta) == 4
    turned = config.parse(GOOD | {"space": {"kind": "hurried", "turn": {"diag": [7.0, 1.0]}}})
    assert float(turned.arguments()["model"].beta) == 7
    assert config.parse(tomllib.loads(config.text(noisy))) == noisy
    with pytest.raises(tkf.InputError, match="^`terms.1.kapa` is not a known setting; did you mean `kappa`"):
        config.parse(
            GOOD | {"terms": [{"kind": "noise", "kappa": 1.0}, {"kind": "noise", "kappa": 1.0, "kapa": 1.0}]}
        )
    with pytest.raises(
        tkf.InputError, match="^`terms.0.kind` must be one of 'mlp', 'drift', 'noise', but was 'mlq'"
    ):
        config.parse(GOOD | {"terms": [{"kind": "mlq"}]})


def test_a_type_that_no_file_can_hold_is_a_sentence(half):
    @registry.register("term", "odd")
    def odd(tokens: tkf.Tokens):
        pass

    with pytest.raises(
        tkf.InputError, match="^`tokens` of the term 'odd' must have a type that a file can hold"
    ):
        config.parse(GOOD | {"terms": [{"kind": "odd"}]})
