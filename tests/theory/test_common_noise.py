"""Closed forms of random layers that tokens share (theory §6.5)."""

import numpy as np
import pytest
from scipy import integrate

from tokenfield import theory
from tokenfield.errors import InputError


@pytest.mark.parametrize(
    ("d", "expected"),
    [(4, 0.658478948), (8, 1.238944365), (16, 1.665463276), (64, 2.410108261), (512, 3.463778473)],
)
def test_opposite_tokens_attract_above_the_critical_beta(d, expected):
    found = theory.antipodal_beta(d)
    assert found == pytest.approx(expected, abs=1e-9)
    rates = [theory.CommonNoisePair(d, found + shift).opposite_rate for shift in (-1e-6, 0, 1e-6)]
    assert rates[0] < 0 < rates[2] and abs(rates[1]) < 1e-12
    assert theory.CommonNoisePair(d, found - 1e-6).together(-0.9) == 1
    assert theory.antipodal_beta(2) == theory.antipodal_beta(3) == 0


@pytest.mark.parametrize(
    ("d", "beta", "rho", "expected"),
    # the last digit of the second is 2, not 1 as printed in theory §6.5: by mpmath with 25 digits
    [(8, 2.0, -0.5, 0.714107477898), (16, 2.0, -0.9, 0.627408856372), (16, 1.6, -0.9, 1.0)],
)
def test_probability_to_end_together(d, beta, rho, expected):
    assert theory.CommonNoisePair(d, beta).together(rho) == pytest.approx(expected, abs=6e-13)


@pytest.mark.parametrize(
    ("d", "beta", "alpha", "rho"), [(5, 3.0, 0.0, 0.3), (12, 2.2, 0.1, -0.8), (3, 0.5, 0.05, -0.2)]
)
def test_probability_by_shooting(d, beta, alpha, rho):
    """u'' s²/2 + b u' = 0 with u(−∞) = 0, u(∞) = 1, by DOP853 from both ends with e^{±} asymptotics."""
    pair = theory.CommonNoisePair(d, beta, 1.0, alpha)

    def slope(z, u):
        return [u[1], -2 * pair.drift(z) / pair.diffusion(z) * u[1]]

    start = 2 * abs(float(pair.drift(-15.0) / pair.diffusion(-15.0)))
    points = [np.arctanh(rho), 25.0]
    low = integrate.solve_ivp(
        slope, (-15, 25), [1 / start, 1.0], "DOP853", t_eval=points, rtol=1e-12, atol=1e-14
    ).y[0]
    assert pair.together(rho) == pytest.approx(low[0] / low[1], abs=1e-9)


def test_each_reads_itself():
    """β = ∞: 1 − arccos(ρ_0)/π in every dimension, dz = σ² tanh z dt + √2 σ dB."""
    for d in (2, 5, 40):
        pair = theory.CommonNoisePair(d, np.inf, 1.3)
        z = np.linspace(-3, 3, 7)
        np.testing.assert_allclose(pair.drift(z), 1.69 * np.tanh(z), atol=1e-14)
        np.testing.assert_allclose(pair.diffusion(z), 2 * 1.69)
        for rho in (-0.9, 0.3, 0.99):
            assert pair.together(rho) == pytest.approx(1 - np.arccos(rho) / np.pi, abs=1e-13)
    assert theory.CommonNoisePair(7, 1e6).together(-0.5) == pytest.approx(1 / 3, abs=1e-3)


def test_rates_near_the_ends():
    """σ²(d−1) at 1; at −1 σ²(2k(d−1) − 2) + 4αq with k = 1/2cosh²β, q = 1/(1 + e^{2β})."""
    pair = theory.CommonNoisePair(9, 1.4, 0.8, 0.3)
    assert pair.meeting_rate == pytest.approx(0.64 * 8 + 0.6)
    k, q = 1 / (2 * np.cosh(1.4) ** 2), 1 / (1 + np.exp(2.8))
    assert -pair.opposite_rate == pytest.approx(0.64 * (2 * k * 8 - 2) + 1.2 * q)
    assert theory.CommonNoisePair(9, np.inf).meeting_rate == 2


def test_two_tokens_are_the_gram_matrix_of_two():
    """Itô's formula for z = artanh ρ: b = drift/(1−ρ²) + ρ variance/(1−ρ²)², s² = variance/(1−ρ²)²."""
    d, beta, sigma = 7, 1.7, 0.9
    pair = theory.CommonNoisePair(d, beta, sigma)
    for rho in (-0.95, -0.3, 0.4, 0.99):
        p = 1 / (1 + np.exp(-beta * (1 - rho)))
        A = np.array([[p, 1 - p], [1 - p, p]])
        G = np.array([[1, rho], [rho, 1]])
        C = A @ G @ A.T
        drift, variance = (f(G, C, d, sigma)[0, 1] for f in (theory.gram_drift, theory.gram_variance))
        z, width = np.arctanh(rho), 1 - rho**2
        assert pair.diffusion(z) == pytest.approx(variance / width**2, rel=1e-9)
        assert pair.drift(z) == pytest.approx(drift / width + rho * variance / width**2, rel=1e-9)


# -- wide layers


def test_wide_layers_printed():
    """n = 6, β = 1, ρ0 = .1, α² = .2, 30 layers (theory §6.5.4)."""
    for attention, relu, expected in (
        (0.2, 0.0, 0.984310004429),
        (0.2, 0.2, 0.994152854382),
        (0.0, 0.2, 0.707196758787),
    ):
        found = theory.wide_layers(0.1, 30, 6, 1.0, attention, relu)
        assert found.shape == (31,) and found[-1] == pytest.approx(expected, abs=1e-12)


def test_a_wide_layer_is_a_layer_of_a_wide_network():
    """One layer with d = 2000: attention with random values and then random ReLU neurons, by NumPy."""
    n, d, rho, beta, alpha2 = 4, 2000, 0.3, 2.0, 0.5
    rng = np.random.default_rng(0)
    x = np.zeros((n, d))
    x[:, :n] = np.linalg.cholesky((1 - rho) * np.eye(n) + rho)
    A = np.exp(beta * x @ x.T)
    y = A / A.sum(axis=1, keepdims=True) @ x
    normalised = lambda z: z / np.linalg.norm(z, axis=1, keepdims=True)  # noqa: E731
    x = normalised(x + np.sqrt(alpha2 / d) * y @ rng.normal(size=(d, d)).T)
    hidden = np.maximum(x @ rng.normal(size=(d, d)).T, 0) * np.sqrt(2)  # E σ² = 1
    x = normalised(x + np.sqrt(alpha2 / d) * hidden @ rng.normal(size=(d, d)).T / np.sqrt(d))
    found = np.mean((x @ x.T)[~np.eye(n, dtype=bool)])
    assert found == pytest.approx(theory.wide_layers(rho, 1, n, beta, alpha2, alpha2)[1], abs=0.03)


def test_terminal_factors_are_slopes_at_one():
    """1 − ρ is multiplied by 1/(1+α²) in attention, and by the factor with χ = 1 with ReLU behind it."""
    for relu in (0.0, 0.4):
        found = theory.wide_layers(1 - 1e-9, 1, 5, 1.3, 0.3, relu)
        assert (1 - found[1]) / 1e-9 == pytest.approx(theory.terminal_factor(0.3, relu), rel=1e-4)


def test_relu_alone_gathers_algebraically():
    layers = 20_000
    found = theory.wide_layers(0.1, layers, relu=0.2)[-1]
    assert 1 - found == pytest.approx(theory.relu_deficit(0.2, layers), rel=0.02)


def test_order_and_chaos():
    """χ of the error function against a difference of its kernel; the factor is 1 on the critical line."""
    s = 0.7
    kernel = lambda rho: np.arcsin(2 * s * rho / (1 + 2 * s)) / np.arcsin(2 * s / (1 + 2 * s))  # noqa: E731
    chi = theory.erf_slope(s)
    assert chi == pytest.approx((kernel(1.0001) - kernel(0.9999)) / 0.0002, rel=1e-7) and chi > 1
    critical = theory.critical_attention(0.5, chi)
    assert theory.terminal_factor(critical, 0.5, chi) == pytest.approx(1, abs=1e-15)
    assert theory.terminal_factor(critical / 2, 0.5, chi) > 1
    assert theory.critical_attention(0.5, 1.0) == 0


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: theory.CommonNoisePair(1, 1.0), "`d` must be a whole number, at least 2"),
        (lambda: theory.CommonNoisePair(3, -1.0), "`beta` must be at least 0"),
        (lambda: theory.CommonNoisePair(3, 1.0).together(1.0), "`rho0` must lie between −1 and 1"),
        (lambda: theory.gram_drift(np.eye(2), np.eye(3), 3), "`C` must have the shape"),
        (lambda: theory.wide_layers(0.1, 3, attention=-1.0), "`attention` must be at least 0"),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(InputError) as error:
        bad()
    assert str(error.value).startswith(sentence)
