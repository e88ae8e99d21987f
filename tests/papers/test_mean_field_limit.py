"""The parts of the recipe mean-field-limit; the recipe itself runs with all others."""

import numpy as np
import pytest
from pydantic import TypeAdapter

import tokenfield as tkf
from tokenfield.config.laws import InitialSettings
from tokenfield.papers.low_temperature import worked
from tokenfield.papers.mean_field import limit


def test_slopes_are_exponents():
    ns = np.array([10.0, 100.0, 1000.0])
    assert limit._slope(ns, 3 * ns**-0.25) == pytest.approx(-0.25)


def test_quantiles_follow_a_known_flow():
    """The zero-temperature flow with B = I has closed orbits: the interpolated law is the pushed one."""
    V, m = np.diag([0.6, 0.1]), 200
    theta = (np.arange(m) + 0.5) * 2 * np.pi / m - np.pi
    x = np.stack([np.cos(theta), np.sin(theta)], axis=1)
    points = tkf.theory.zero_temperature(x, V, [0.0, 1.0])
    reference = limit.Reference(np.zeros((2, 6)), points, np.full((2, m), 1 / m), 0.0)
    found = limit._quantiles(reference, 1, 500)
    start = limit._quantiles(reference, 0, 500)
    exact = tkf.theory.zero_temperature(start.x, V, [0.0, 1.0])[1]
    np.testing.assert_allclose(found.x, exact, atol=1e-7)
    mass = worked.density(np.asarray(start.x))
    np.testing.assert_allclose(found.weights, mass / mass.sum(), rtol=1e-12)


@pytest.mark.parametrize("d", [2, 3])
def test_independent_tokens_have_the_initial_law(d):
    """Their mean against ∫x dρ0: tilt/d for 1 + ⟨tilt, x⟩; the same of quadrature tokens."""
    for key, off in ((1, 0.02), (None, 1e-12)):
        tokens = TypeAdapter(InitialSettings).validate_python(limit.law(d, 20_000, key)).build()
        mean = np.asarray(tokens.moments().mean)
        assert key is None or tokens.n == 20_000
        np.testing.assert_allclose(mean, np.array([0.3, 0.2, 0.1])[:d] / d, atol=off)


def test_independent_tokens_of_the_poisson_law():
    tokens = limit._boosted(20_000, 1)[0]
    exact = tkf.theory.poisson_order([0.0], limit.RADIUS, 5)[0] * limit.AXIS
    assert np.abs(np.asarray(tokens.moments().mean) - exact).max() < 0.02
