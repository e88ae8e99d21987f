"""The Fourier moment system against token sums, characteristics and the printed digits of theory §3.12."""

import numpy as np
import pytest
from scipy import integrate, special

import tokenfield as tkf
from tokenfield import theory

BETA = 0.1


def test_moments_of_von_mises():
    kappa, at = 3.0, 0.8
    z = theory.circle_moments(lambda t: np.exp(kappa * np.cos(t - at)), 12)
    k = np.arange(13)
    np.testing.assert_allclose(
        z, special.iv(k, kappa) / special.iv(0, kappa) * np.exp(1j * k * at), atol=1e-14
    )


@pytest.mark.parametrize("beta", [0.0, 0.1, 3.0, -0.1, -3.0])
def test_moment_slope_is_that_of_the_tokens(beta):
    """z_n' = in∫e^{inθ}v(θ)dμ with v from sums over quadrature tokens."""
    law = lambda t: np.exp(np.cos(t) + 0.5 * np.sin(2 * t))  # noqa: E731
    tokens = tkf.initial.circle_density(law, 400)
    x, w = np.asarray(tokens.x), np.asarray(tokens.weights)
    theta = np.arctan2(x[:, 1], x[:, 0])
    speed = np.array([np.sum(w * np.exp(beta * np.cos(theta - a)) * np.sin(theta - a)) for a in theta])
    n = np.arange(0, 6)
    waves = (x[:, 0] + 1j * x[:, 1]) ** n[:, None]
    expected = 1j * n * (waves @ (w * speed))
    found = theory.moment_slope(theory.circle_moments(law, 60), beta)[:6]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(("name", "slope"), [("A", -3.54223296e-6), ("B", -2.00933562e-6)])
def test_profiles_start_downwards(name, slope):
    z = theory.circle_moments(theory.profile(name), 64)
    assert theory.order_slope(z, BETA) == pytest.approx(slope, abs=5e-15)


def sign_changes(ts, z):
    s = theory.order_slope(z, BETA)
    k = np.flatnonzero(np.sign(s[1:]) != np.sign(s[:-1]))
    return ts[k] + (ts[k + 1] - ts[k]) * s[k] / (s[k] - s[k + 1])


def test_profile_a_turns_up():
    """R² falls until R = 0 at t = 3.3509, and rises. Theory §3.12 printed 3.36; two routes say otherwise."""
    ts = np.linspace(0, 4, 401)
    z = theory.fourier_moments(ts, theory.circle_moments(theory.profile("A"), 120), BETA)
    turn = sign_changes(ts, z)
    np.testing.assert_allclose(turn, [3.3509], atol=5e-5)
    n = 300
    theta = (np.arange(n) + 0.5) * 2 * np.pi / n
    w = theory.profile("A")(theta) / np.sum(theory.profile("A")(theta))

    def slope(_, a):
        s = a[None] - a[:, None]
        return (np.exp(BETA * np.cos(s)) * np.sin(s)) @ w

    paths = integrate.solve_ivp(
        slope, (0, 3.3509), theta, "DOP853", [3.33, 3.3509], rtol=1e-11, atol=1e-13
    ).y.T
    first = np.cos(paths) @ w
    assert first[0] > 2e-5
    assert abs(first[1]) < 1e-6


@pytest.mark.slow
def test_profile_b_has_a_minimum_and_then_synchronises():
    ts = np.linspace(0, 1, 401)
    z = theory.fourier_moments(ts, theory.circle_moments(theory.profile("B"), 60), BETA)
    square = np.abs(z[:, 1]) ** 2
    assert square.min() == pytest.approx(1.0691e-5, abs=5e-10)
    np.testing.assert_allclose(sign_changes(ts, z), [0.4814], atol=1e-4)  # theory §3.12 says ≈ .485
    tokens = tkf.initial.circle_density(theory.profile("B"), 240)
    usa = tkf.UnnormalisedAttention(tkf.AttentionWeights.identity(2), BETA)
    assert float(tkf.order_parameter(tkf.simulate(usa, tokens, [0.0, 40.0]).tokens(-1))) > 0.999


def test_profile_c_goes_up_down_and_up():
    ts = np.linspace(0, 6.4, 641)
    z = theory.fourier_moments(ts, theory.circle_moments(theory.profile("C"), 500), BETA, rtol=1e-8)
    assert theory.order_slope(z[0], BETA) > 0
    np.testing.assert_allclose(sign_changes(ts, z), [1.10, 5.78], atol=0.005)


def test_profile_c_by_characteristics():
    """The same turns from 2,000 quadrature tokens moved by SciPy with the exponential kernel itself."""
    n = 2000
    theta = (np.arange(n) + 0.5) * 2 * np.pi / n
    w = theory.profile("C")(theta)
    w, k = w / w.sum(), np.arange(1, 9)
    c = 2 * k * special.iv(k, BETA) / BETA

    def slope(_, a):
        waves = np.exp(1j * a) ** k[:, None]
        return np.imag((c * (waves @ w)) @ np.conj(waves))

    ts = np.array([0.0, 1.09, 1.11, 5.77, 5.79])
    paths = integrate.solve_ivp(slope, (0, 5.79), theta, "DOP853", ts, rtol=1e-10, atol=1e-12).y.T
    e = np.exp(1j * paths)
    rises = 2 * np.real(
        np.conj(e @ w) * np.array([1j * (row * slope(0, a)) @ w for row, a in zip(e, paths, strict=True)])
    )
    assert (np.sign(rises) == [1, 1, -1, -1, 1]).all()


def test_the_kuramoto_case():
    """β = 0 from the Poisson law: R as in theory §4."""
    z0 = 0.2 ** np.arange(80)
    z = theory.fourier_moments([1.0, 2.0], z0, 0.0)
    np.testing.assert_allclose(np.abs(z[:, 1]), [0.3189649611, 0.4851827523], atol=1e-10)


def test_bad_input_is_one_sentence():
    with pytest.raises(tkf.InputError, match="^`z0` must have more moments"):
        theory.fourier_moments([0.0, 9.0], 0.5 ** np.arange(30), 0.1)
    with pytest.raises(tkf.InputError, match="^`z0` must be moments"):
        theory.fourier_moments([0.0, 1.0], np.array([0.5, 0.2]), 0.1)
    with pytest.raises(tkf.InputError, match="^`beta` must be a finite number"):
        theory.moment_slope(np.array([1.0, 0.2]), np.inf)
    with pytest.raises(tkf.InputError, match="^`beta` must give values below"):
        theory.moment_slope(np.array([1.0, 0.2]), -800.0)
    with pytest.raises(tkf.InputError, match="^`modes` must be a whole number"):
        theory.circle_moments(np.cos, 0)
