"""Polynomials of the height and spherical harmonics against SciPy's, and against quadrature."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special

from tokenfield.geometry import circle, gegenbauer, harmonics


@pytest.mark.parametrize("d", [2, 3, 6])
def test_height_polynomials_are_orthonormal_gegenbauer_polynomials(d):
    """Proportional to C_l^{(d/2−1)} (Chebyshev in the plane), with ∫p_l² = 1 under (1−t²)^{(d−3)/2}."""
    t = np.linspace(-0.95, 0.95, 7)
    p, slope = gegenbauer.harmonics(d, 5, t)
    assert p.shape == slope.shape == (7, 6)
    for degree in range(6):

        def f(s, k=degree):
            return special.eval_gegenbauer(k, d / 2 - 1, s) if d > 2 else special.eval_chebyt(k, s)

        def weight(a):
            return np.sin(a) ** (d - 2)

        mass = integrate.quad(weight, 0, np.pi)[0]
        square = integrate.quad(lambda a: weight(a) * f(np.cos(a)) ** 2, 0, np.pi, epsabs=1e-13)[0] / mass
        np.testing.assert_allclose(p[:, degree], f(t) / np.sqrt(square), rtol=1e-10, atol=1e-12)
        h = 1e-5
        above, below = (gegenbauer.harmonics(d, 5, t + s)[0][:, degree] for s in (h, -h))
        np.testing.assert_allclose(slope[:, degree], (above - below) / (2 * h), atol=1e-6)


@pytest.mark.parametrize("d", [1, 2, 3, 9])
def test_gauss_nodes_integrate_polynomials(d):
    """∫t^{2k} = Π (2j−1)/(d+2j−2) over j ≤ k, the moments of a coordinate of a uniform unit vector."""
    nodes, weights = gegenbauer.gauss(d, 5)
    for k in range(5):
        expected = np.prod([(2 * j - 1) / (d + 2 * j - 2) for j in range(1, k + 1)])
        assert weights @ nodes ** (2 * k) == pytest.approx(expected, rel=1e-12)
        assert weights @ nodes ** (2 * k + 1) == pytest.approx(0, abs=1e-15)


def test_legendre_functions_are_those_of_scipy():
    theta = np.array([0.1, 0.9, 2.0, 3.0])
    table = harmonics.legendre_values(6, theta)
    for m in range(7):
        for degree in range(m, 7):
            expected = special.sph_harm_y(degree, m, theta, 0.0).real
            np.testing.assert_allclose(table[m, degree], expected, atol=1e-13)
    assert np.all(table[3, :3] == 0)


def test_legendre_functions_are_their_fourier_series():
    theta = np.array([0.3, 1.4, 2.8])
    a, values = harmonics.legendre_fourier(5), harmonics.legendre_values(5, theta)
    p = np.arange(6)
    for m in range(6):
        waves = 2 * (np.cos if m % 2 == 0 else np.sin)(np.outer(p, theta))
        np.testing.assert_allclose(a[m] @ waves, values[m], atol=1e-13)


def test_scaled_bessel():
    """4π e^{−s} i_l(s) = 2π∫e^{s(t−1)}P_l(t)dt."""
    t, w = special.roots_legendre(60)
    s = np.array([0.0, 0.4, 7.0])
    for degree in (0, 1, 4):
        expected = 2 * np.pi * np.exp(np.outer(s, t - 1)) @ (w * special.eval_legendre(degree, t))
        np.testing.assert_allclose(harmonics.scaled_bessel(np.array(degree), s), expected, atol=1e-12)


def test_contract_is_einsum():
    rng = np.random.default_rng(0)
    numbers, table = rng.normal(size=(3, 4)) + 1j * rng.normal(size=(3, 4)), rng.normal(size=(4, 5))
    found = harmonics.contract("ab,bc->ac", jnp.asarray(numbers), jnp.asarray(table))
    np.testing.assert_allclose(found, numbers @ table, rtol=1e-13)


def test_circle_nodes_and_sizes():
    np.testing.assert_allclose(circle.angles(4), np.pi * np.array([0.25, 0.75, 1.25, 1.75]))
    np.testing.assert_allclose(circle.points(np.array([0.0, np.pi / 2])), np.eye(2), atol=1e-15)
    for least in (1, 7, 101, 4099):
        size = circle.fast_size(least)
        assert size % 2 == 0 and least <= size <= 1.2 * least + 2
        for prime in (2, 3, 5, 7, 11):
            while size % prime == 0:
                size //= prime
        assert size == 1
