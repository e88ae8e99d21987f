"""The recipes of the wider repertoire, quickly: every verdict holds, and their parts against closed forms."""

import json

import numpy as np
import pytest

from tokenfield.papers import catalogue, recipe
from tokenfield.papers.repertoire import mlp, normalisation, several_heads

NAMES = ("several-heads", "normalisation", "mlp")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_quick_run_agrees_with_theory(name, tmp_path):
    outcome = recipe.reproduce(catalogue.find(name), tmp_path, True, lambda done, what: None)
    assert [check.name for check in outcome.checks if not check.passed] == []
    assert {path.name for path in outcome.path.iterdir()} >= set(recipe.FILES)
    written = json.loads((outcome.path / recipe.VERDICT).read_text(encoding="utf8"))
    assert len(written["checks"]) == len(outcome.checks) > 5


def test_recipes_are_listed():
    assert set(NAMES) <= {each.name for each in catalogue.recipes("repertoire")}


def test_a_period_is_read_off_known_angles():
    """θ' = 1 + .5cosθ goes round in 2π/√(1−.25)."""
    from scipy import integrate

    ts = np.linspace(0, 26, 521)
    slope = lambda t, a: 1 + 0.5 * np.cos(a)  # noqa: E731
    angle = integrate.solve_ivp(slope, (0, 26), [0.0, 2.0], "DOP853", ts, rtol=1e-11, atol=1e-12).y.T
    assert several_heads._period(ts, angle) == pytest.approx(2 * np.pi / np.sqrt(0.75), rel=1e-6)


def test_the_map_of_the_sphere_keeps_areas():
    """Lambert's map: 1 − cos of the distance from the pole is half the squared radius; antipodes side by side."""
    x = np.random.default_rng(0).normal(size=(50, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    height = x @ np.ones(3) / np.sqrt(3)
    place = several_heads._lambert(x) - np.where(height >= 0, -1.05, 1.05)[:, None] * [1, 0]
    np.testing.assert_allclose(np.sum(place**2, axis=1), 1 - np.abs(height), atol=1e-14)


def test_energy_checks_use_simpson():
    """Power 3t² gives the energy t³, which Simpson's rule integrates exactly."""
    ts = np.linspace(0, 2, 11)
    checks = mlp._energy_checks(mlp.EnergyCurve(ts, ts**3, 3 * ts**2))
    assert checks[2].measured == pytest.approx(8) and checks[2].predicted == pytest.approx(8)


def test_the_placements_are_those_of_theory():
    assert set(normalisation.SCHEMES) == {"post", "pre", "mix", "peri", "ngpt", "scaled", "none"}
