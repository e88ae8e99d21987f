"""Growth about the uniform law against the printed digits of theory §3.4, quadrature and perturbed laws."""

import mpmath
import numpy as np
import pytest
from scipy import special

import tokenfield as tkf
from tokenfield import theory


def test_growth_reference_numbers():
    assert theory.growth_rate(2, 5.0, 3, "unnormalised") == pytest.approx(18.5961, abs=5e-5)
    assert theory.growth_rate(2, 5.0, 3) == pytest.approx(0.682678, abs=5e-7)
    assert theory.growth_rate(3, 5.0, 3, "unnormalised") == pytest.approx(9.97809, abs=5e-6)
    assert theory.growth_rate(3, 5.0, 3) == pytest.approx(0.672349, abs=5e-7)
    assert [theory.fastest_degree(2, b) for b in (1, 5, 20, 50, 100)] == [1, 3, 6, 10, 14]


@pytest.mark.parametrize("d", [2, 3, 8, 1000])
@pytest.mark.parametrize("beta", [1e-3, 0.7, 30.0, 1e4])
def test_growth_in_many_digits(d, beta):
    """Bessel functions by mpmath, up to degree 200, where they under- and overflow."""
    degrees = np.array([1, 2, 17, 200])
    logs = theory.log_growth_rate(d, beta, degrees, "unnormalised")
    ratios = theory.log_growth_rate(d, beta, degrees)
    with mpmath.workdps(40):
        nu, b = mpmath.mpf(d) / 2 - 1, mpmath.mpf(beta)

        def lam(k):
            return mpmath.gamma(nu + 1) * (2 / b) ** nu * mpmath.besseli(k + nu, b)

        for k, usa, softmax in zip(degrees.tolist(), logs, ratios, strict=True):
            rate = k * (k + d - 2) * lam(k) / b
            assert abs(usa - mpmath.log(rate)) <= 1e-13 * max(1, abs(mpmath.log(rate)))
            assert abs(softmax - mpmath.log(rate / lam(0))) <= 1e-12 * max(1, abs(mpmath.log(rate / lam(0))))


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize("degree", [1, 3, 4])
@pytest.mark.parametrize("beta", [2.6, -2.6, -0.3])
def test_growth_from_the_funk_hecke_integral(d, degree, beta):
    """λ_l = ∫e^{βt}P_l(t)(1−t²)^{(d−3)/2}dt over the same without e^{βt}P_l, P_l(1) = 1."""
    t, w = special.roots_gegenbauer(60, (d - 2) / 2) if d > 2 else special.roots_chebyt(60)
    poly = special.eval_gegenbauer(degree, (d - 2) / 2, t) if d > 2 else special.eval_chebyt(degree, t)
    top = special.eval_gegenbauer(degree, (d - 2) / 2, 1.0) if d > 2 else 1.0
    lam, mass = (
        np.sum(w * np.exp(beta * t) * poly / top) / np.sum(w),
        np.sum(w * np.exp(beta * t)) / np.sum(w),
    )
    rate = degree * (degree + d - 2) * lam / beta
    assert theory.growth_rate(d, beta, degree, "unnormalised") == pytest.approx(rate, rel=1e-12)
    assert theory.growth_rate(d, beta, degree) == pytest.approx(rate / mass, rel=1e-12)


@pytest.mark.parametrize("flow", ["softmax", "unnormalised"])
@pytest.mark.parametrize("beta", [2.0, -2.0])
@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_growth_of_a_perturbed_law_on_the_circle(degree, beta, flow):
    """z_l' = il∫e^{ilθ}v dμ over z_l for the law 1 + ε cos lθ, the velocities by a sum over the circle."""
    theta, eps = np.linspace(0, 2 * np.pi, 128, endpoint=False), 1e-6
    w = (1 + eps * np.cos(degree * theta)) / len(theta)
    speed = np.zeros(len(theta))
    for i, here in enumerate(theta):
        kernel = w * np.exp(beta * np.cos(theta - here))
        speed[i] = np.sum(kernel * np.sin(theta - here)) / (np.sum(kernel) if flow == "softmax" else 1.0)
    wave = np.exp(1j * degree * theta)
    rate = np.real(1j * degree * np.sum(wave * speed * w) / np.sum(wave * w))
    assert theory.growth_rate(2, beta, degree, flow) == pytest.approx(rate, rel=1e-5)


def test_growth_at_zero_and_the_refusal_at_large_beta():
    np.testing.assert_allclose(theory.growth_rate(5, 0.0, [1, 2, 9]), [0.8, 0, 0], rtol=1e-14)
    np.testing.assert_allclose(theory.growth_rate(5, 0.0, [1, 2], "unnormalised"), [0.8, 0], rtol=1e-14)
    with pytest.raises(tkf.InputError, match=r"^`beta` must give values below e\^700.*use log_growth_rate"):
        theory.growth_rate(2, 1e4, 3, "unnormalised")


@pytest.mark.parametrize("d", [2, 3, 10, 400])
@pytest.mark.parametrize("beta", [0.0, 0.3, 7.0, 40.0, 1e4])
def test_fastest_degree_is_the_best_of_many(d, beta):
    rates = theory.log_growth_rate(d, beta, np.arange(1, 401))
    assert theory.fastest_degree(d, beta) == np.argmax(rates) + 1


@pytest.mark.parametrize("beta", [-0.3, -7.0, -40.0, -1e4])
def test_below_zero_the_fastest_degree_is_the_best_of_the_odd_ones(beta):
    odd = np.arange(1, 402, 2)
    best = odd[np.argmax(theory.log_growth_rate(3, beta, odd))]
    assert theory.fastest_degree(3, beta) == best
    if beta == -7.0:
        np.testing.assert_array_less(theory.growth_rate(3, beta, np.arange(2, 40, 2)), 0)


@pytest.mark.parametrize("beta", [1.7, -1.7])
def test_critical_kappa_balances_diffusion_and_attention(beta):
    """l(l+d−2)/κ_l is the unnormalised rate, by quadrature of ∫e^{βt}P_l(t)dt/2 on the sphere of R^3."""
    t, w = special.roots_legendre(40)
    for degree in (1, 3):
        lam = np.sum(w * np.exp(beta * t) * special.eval_legendre(degree, t)) / 2
        assert theory.critical_kappa(3, beta, degree) == pytest.approx(beta / lam, rel=1e-12)
    even = theory.critical_kappa(3, beta, 2)
    assert even == np.inf if beta < 0 else 0 < even < np.inf


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: theory.growth_rate(1, 1.0, 1), "`d` must be a whole number, at least 2"),
        (lambda: theory.growth_rate(2, np.inf, 1), "`beta` must be a finite number, but was inf"),
        (lambda: theory.growth_rate(2, 1.0, 0), "`degree` must be a whole number, at least 1"),
        (lambda: theory.growth_rate(2, 1.0, 1.5), "`degree` must be a whole number, at least 1"),
        (lambda: theory.growth_rate(2, 1.0, 1, "hard"), "`flow` must be 'softmax' or 'unnormalised'"),
        (lambda: theory.fastest_degree(2, float("nan")), "`beta` must be a finite number"),
        (lambda: theory.log_growth_rate(2, -1.0, [1, 2]), "`degree` must be odd for beta < 0"),
        (lambda: theory.growth_rate(2, -1e4, 3, "unnormalised"), "`beta` must give values below"),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad()
