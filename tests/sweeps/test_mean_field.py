"""Sweeps of `density.solve`: what a file declares is what a direct call computes."""

import copy
import itertools

import numpy as np
import pytest
from typer.testing import CliRunner

import tokenfield as tkf
from tokenfield import cli, density, theory
from tokenfield.geometry import gegenbauer
from tokenfield.sweeps import dataset, grid, mean_field
from tokenfield.sweeps.repeat import rerun

BETA, KAPPA = [1.0, 2.0], [2.0, 8.0]
TS = [0.0, 0.25, 0.5, 1.0]
MODES = 32
#: Four cells that share one small program; those with little noise need more modes than there are.
SMALL = {
    "weights": {"identity": 2},
    "model": {"kind": "unnormalised"},
    "density": {"domain": "circle", "modes": MODES},
    "initial": {"law": "circle_density", "cos": [0.3], "sin": [0.0, 0.2]},
    "times": {"at": TS},
    "run": {
        "measure": ["order_parameter", "energy", "free_energy", "mean", "minimum", "tail"],
        "snapshots": [0, -1],
    },
    "sweep": {"model": {"beta": BETA}, "noise": {"kappa": KAPPA}},
}
TOML = """
[weights]
identity = 2
[model]
kind = "unnormalised"
[density]
domain = "circle"
modes = 32
[initial]
law = "circle_density"
cos = [0.3]
sin = [0.0, 0.2]
[times]
at = [0.0, 0.25, 0.5, 1.0]
[run]
measure = ["order_parameter"]
[sweep]
model.beta = [1.0, 2.0]
noise.kappa = [2.0, 8.0]
"""


def small(**sections):
    """`SMALL` with some sections replaced, or left out if None."""
    return {k: v for k, v in (copy.deepcopy(SMALL) | sections).items() if v is not None}


def direct(beta, kappa):
    """The run of a cell, without any file."""
    model = tkf.UnnormalisedAttention(tkf.AttentionWeights.identity(2), beta) + tkf.Noise(kappa)
    rho0 = lambda theta: 1 + 0.3 * np.cos(theta) + 0.2 * np.sin(2 * theta)  # noqa: E731
    return model, density.solve(model, rho0, TS, density.Circle(MODES))


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The sweep and where it is."""
    path = tmp_path_factory.mktemp("mean_field") / "sweep"
    return path, tkf.sweep(SMALL, 0, store=path)


def same(values, expected):
    assert np.asarray(values).tobytes() == np.ascontiguousarray(expected).tobytes()


def test_a_grid_over_beta_and_kappa_is_the_direct_calls_to_the_bit(swept):
    _, data = swept
    assert (data.state == dataset.COMPLETE).all()
    assert data.order_parameter.dims == ("beta", "kappa", "time")
    for beta, kappa in itertools.product(BETA, KAPPA):
        model, run = direct(beta, kappa)
        cell = data.sel(beta=beta, kappa=kappa)
        same(cell.time, run.ts)
        same(cell.snapshot, run.ts[[0, -1]])
        same(cell.rho, run.density[[0, -1]])
        same(cell.masses, run.masses[[0, -1]])
        same(cell.nodes.isel(coordinate=0), [run.nodes, run.nodes])
        same(cell.minimum, run.minimum)
        same(cell["tail"], run.tail)
        same(cell.free_energy, tkf.free_energy(run, model))
        same(cell["mean"], [run.moments(k).mean for k in range(len(TS))])
        same(cell.order_parameter[-1], tkf.order_parameter(run))
        same(cell.energy[-1], tkf.energy(run, beta))
        assert str(cell.status.values) == run.status
        assert (int(cell.steps), int(cell.resolved)) == (run.stats["steps"], run.resolved)


def test_what_is_measured_at_every_time(swept):
    """Sums over the nodes, and the coefficients of the initial density: R = ½·0.3."""
    _, data = swept
    np.testing.assert_allclose(data.order_parameter.isel(time=0), 0.15, atol=1e-14)
    cell = data.sel(beta=2.0, kappa=2.0).isel(snapshot=-1, time=-1)
    theta, masses = cell.nodes.values[:, 0], cell.masses.values
    x = np.stack([np.cos(theta), np.sin(theta)], axis=1)
    np.testing.assert_allclose(cell["mean"], masses @ x, atol=1e-14)
    np.testing.assert_allclose(cell.energy, masses @ np.exp(2 * x @ x.T) @ masses / 4, rtol=1e-13)
    assert (np.diff(data.free_energy, axis=-1) < 0).all()  # what noise and attention descend together


def test_a_cell_that_is_under_resolved_is_done_and_says_so(swept):
    _, data = swept
    held = data["tail"].max("time") <= density.resolution.SPECTRAL_TAIL
    assert held.any()
    assert not held.all()
    np.testing.assert_array_equal(data.resolved, held)
    for cell, fine in zip(data.status.values.ravel(), held.values.ravel(), strict=True):
        assert ("under-resolved from t = " in cell) == (not fine)


def test_a_cell_that_takes_too_long_is_a_row_with_what_it_reached(tmp_path):
    late = small(sweep=SMALL["sweep"] | {"time_limit": 1e-9})
    data = tkf.sweep(late, 0, store=tmp_path / "late")
    assert (data.state == dataset.FAILURE).all()
    assert set(data.status.values.ravel()) >= {"stopped at t = 0.5: the time limit of 1e-09 s is used up"}
    assert np.isfinite(data.order_parameter.values[..., :3]).all()
    assert data.order_parameter.shape[-1] == 3


def test_a_cell_is_repeated_and_shown(swept, tmp_path, monkeypatch):
    path, data = swept
    assert rerun(path, "2", 0).identical
    run = CliRunner()
    shown = run.invoke(cli.app, ["info", str(path)])
    assert "beta (2), kappa (2)" in shown.output
    table = tmp_path / "r.csv"
    assert run.invoke(cli.app, ["collect", str(path), "--to", str(table)]).exit_code == 0
    lines = table.read_text().splitlines()
    assert len(lines) == 1 + 4 * len(TS)
    assert "mean_1" in lines[0]
    assert "rho" not in lines[0]
    file = tmp_path / "small.toml"
    file.write_text(TOML)
    monkeypatch.chdir(tmp_path)
    dry = run.invoke(cli.app, ["sweep", str(file), "--dry-run", "--quiet"])
    assert "4 cells in 4 tasks" in dry.output
    assert "from 4 cells" in dry.output
    done = run.invoke(cli.app, ["sweep", str(file), "--workers", "0", "--quiet"])
    assert done.exit_code == 0
    count = int((data.resolved == 0).sum())
    assert f"under-resolved: {count} of them; `status` says from when on" in done.output
    same(tkf.open_sweep(tmp_path / "out" / "small").order_parameter, data.order_parameter)


def test_settings_left_out_are_those_of_the_domain():
    plain = grid.declare(small(density={"domain": "circle"}, run=None))
    said = {"domain": "circle", "modes": 512, "scheme": "auto", "tolerance": 1e-10}
    spelled = grid.declare(small(density=said, run={"measure": ["order_parameter"], "snapshots": []}))
    assert [c.id for c in plain.cells] == [c.id for c in spelled.cells]
    assert mean_field.MeanField(**plain.cells[0].settings).arguments()["domain"] == density.Circle()


def test_a_domain_may_be_the_axis():
    sweep = {"density": [{"domain": "circle"}, {"domain": "characteristics", "n": 64}]}
    found = grid.declare(small(density=None, sweep=sweep, model={"kind": "softmax", "beta": 1.0}, run=None))
    assert found.kind == "density"
    assert found.axes[0].name == "density"


def test_only_what_is_random_is_seeded():
    random = small(weights={"V": {"goe": 2}, "B": {"identity": 2}}, initial={"law": "uniform"}, run=None)
    cells = grid.declare(random | {"sweep": SMALL["sweep"] | {"seeds": 2}}).cells
    assert len({c.settings["weights"]["V"]["key"] for c in cells}) == 2
    assert all(c.settings["initial"] == {"law": "uniform"} for c in cells)
    with pytest.raises(tkf.InputError, match="`sweep.seeds` must have something random"):
        grid.declare(small(sweep=SMALL["sweep"] | {"seeds": 2}))


SPHERE = {"domain": "sphere", "degree": 8}
ZONAL = {"domain": "zonal", "axis": [0.0, 1.0]}
BAD = {
    "no domain": ({"density": {"modes": 32}}, "`density.domain` must be given, but is missing"),
    "domain": (
        {"density": {"domain": "torus"}},
        "`density.domain` must be one of 'circle', 'sphere', 'zonal', 'characteristics'",
    ),
    "other domain's": (
        {"density": {"domain": "circle", "degree": 9}},
        "`density.degree` is not a known setting; known here: domain, modes",
    ),
    "spelling": (
        {"density": {"domain": "circle", "mode": 9}},
        "`density.mode` is not a known setting; did you mean `modes`",
    ),
    "odd": ({"density": {"domain": "circle", "modes": 33}}, "`modes` must be even, but was 33"),
    "scheme": (
        {"density": {"domain": "circle", "scheme": "fast"}},
        "`density.scheme` must be 'auto', 'spectral' or 'volume'",
    ),
    "no axis": ({"density": {"domain": "zonal"}}, "`density.axis` must be given"),
    "no n": ({"density": {"domain": "characteristics"}}, "`density.n` must be given"),
    "dimension": ({"density": SPHERE, "initial": {"law": "uniform"}}, "`model` must have the dimension 3"),
    "law's dimension": (
        {"initial": {"law": "poisson", "w": [0.1, 0.0, 0.0]}},
        "`initial` must have the dimension 2 of the model, but was 3",
    ),
    "law": ({"initial": {"law": "cap"}}, "`initial.law` must be one of 'uniform', 'circle_density'"),
    "tokens": ({"initial": {"law": "uniform", "n": 8}}, "`initial.n` is not a known setting"),
    "law elsewhere": (
        {"density": ZONAL},
        "`initial.law` must be one of uniform, poisson, zonal_density on the domain 'zonal', but was 'circle_density'",
    ),
    "off the axis": (
        {"density": ZONAL, "initial": {"law": "poisson", "w": [0.5, 0.0]}},
        "`initial.w` must be on the axis",
    ),
    "outside": (
        {"initial": {"law": "poisson", "w": [1.5, 0.0]}},
        "`initial` must hold a w inside the unit ball, but holds one of norm 1.5",
    ),
    "negative": (
        {"initial": {"law": "circle_density", "cos": [1.5]}},
        "`initial` must be a density, at least 0 everywhere, but was -0.4",
    ),
    "code": (
        {"initial": {"law": "circle_density", "cos": ["exp(1)"]}},
        "`initial.cos.0` must be a valid number",
    ),
    "times": ({"times": {"at": [0.0, 1.0, 0.5]}}, "`times` must be increasing"),
    "snapshots": ({"run": {"snapshots": [4]}}, "`snapshots` must be indices of the 4 times"),
    "measure": (
        {"run": {"measure": ["limit_distance"]}},
        "`run.measure.0` must be 'order_parameter', 'effective_rank', 'energy', 'free_energy'",
    ),
    "no energy": (
        {"model": {"kind": "zero-temperature"}, "sweep": {"noise": {"kappa": [1.0]}}},
        "`run.measure` must not name 'energy' for 'zero-temperature'",
    ),
    "no descent": (
        {"model": {"kind": "softmax"}},
        "`run.measure` must not name 'free_energy' for 'softmax', which climbs no energy",
    ),
    "no symmetry": (
        {"weights": {"V": {"diag": [1.0, 2.0]}, "B": {"identity": 2}}},
        "`model` must be unnormalised attention with V = B symmetric",
    ),
    "solver": ({"solver": {"kind": "adaptive"}}, "`solver` is not a known setting"),
    "swept solver": (
        {"sweep": {"solver": {"rtol": [1e-6]}}},
        "`sweep.solver.rtol` must be a setting of weights, model, noise, density",
    ),
    "noise and cells": (
        {"density": {"domain": "circle", "scheme": "volume"}},
        '`scheme` must be "spectral" for a model with noise',
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_declared_is_one_sentence(case):
    changes, sentence = BAD[case]
    with pytest.raises(tkf.InputError) as error:
        grid.declare(small(**changes))
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize("d", [2, 3, 5])
def test_the_poisson_law_is_the_same_on_every_domain(d):
    """R against the closed form; points against heights and angles."""
    axis = np.ones(d) / np.sqrt(d)
    law = {"law": "poisson", "w": (0.4 * axis).tolist()}

    def rho0(domain):
        config = small(weights={"identity": d}, density=domain, initial=law, noise={"kappa": 1.0}, sweep=None)
        config["model"]["beta"] = 1.0
        return mean_field.MeanField(**config).arguments()["rho0"]

    zonal = rho0({"domain": "zonal", "axis": axis.tolist()})
    nodes, weights = gegenbauer.gauss(d, 200)
    np.testing.assert_allclose(weights @ zonal(nodes), 1, rtol=1e-12)
    order = theory.poisson_radius_order(0.4, d)
    np.testing.assert_allclose((weights * nodes) @ zonal(nodes), order, rtol=1e-12)
    x = tkf.initial.uniform(50, d, 0).x
    at_points = rho0({"domain": "characteristics", "n": 64})(np.asarray(x))
    np.testing.assert_allclose(at_points, zonal(np.asarray(x) @ axis), rtol=1e-12)
    if d == 2:
        angles = np.arctan2(x[:, 1], x[:, 0])
        np.testing.assert_allclose(rho0({"domain": "circle"})(np.asarray(angles)), at_points, rtol=1e-12)


@pytest.mark.slow
def test_domains_of_one_law_agree(tmp_path):
    """One law on S² by three domains."""
    config = small(
        weights={"identity": 3},
        model={"kind": "softmax", "beta": 1.0},
        density=None,
        initial={"law": "poisson", "w": [0.0, 0.0, 0.3]},
        run={"measure": ["order_parameter", "energy"], "snapshots": [-1]},
    )
    domains = [
        SPHERE | {"degree": 24},
        {"domain": "zonal", "axis": [0.0, 0.0, 1.0], "degree": 32},
        {"domain": "characteristics", "n": 128, "accuracy": 1e-5},
    ]
    config["sweep"] = {"density": domains}
    data = tkf.sweep(config, 0, store=tmp_path / "domains")
    assert (data.resolved == 1).all()
    assert data.nodes.dims == ("density", "snapshot", "node", "coordinate")
    for name in ("order_parameter", "energy"):
        np.testing.assert_allclose(data[name], data[name][[1, 1, 1]], atol=1e-4)  # what the domains promise
