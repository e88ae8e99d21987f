"""Placements of LayerNorm against the printed digits of theory §6.2 and against tokens moved one by one."""

import numpy as np
import pytest
from scipy import integrate, optimize

import tokenfield as tkf
from tests.problems.placements import FLOW_DIGITS, LAYER_DIGITS
from tokenfield import theory

SCHEMES = ("post", "pre", "mix", "peri", "ngpt", "scaled", "none")


def orbit(scheme, ts, n=6, beta=1.0, rho0=0.1, r0=1.0, alpha=0.5, switch=1.0):
    tau = switch if scheme == "mix" else None
    return theory.equiangular_norm(scheme, n, beta, rho0, r0, ts, alpha, tau)


def directions(n, rho0):
    return np.linalg.cholesky(np.full((n, n), rho0) + (1 - rho0) * np.eye(n))


def attention(y, beta):
    """Softmax mean of the rows y, token by token."""
    out = np.zeros_like(y)
    for i in range(len(y)):
        weights = [np.exp(beta * (y[i] @ y[j])) for j in range(len(y))]
        for j in range(len(y)):
            out[i] += weights[j] / sum(weights) * y[j]
    return out


@pytest.mark.parametrize("scheme", SCHEMES)
def test_reference_numbers(scheme):
    rho, r = orbit(scheme, [0.0, 3.0])
    assert rho[0] == pytest.approx(0.1, abs=1e-15) and r[0] == 1
    assert rho[1] == pytest.approx(FLOW_DIGITS[scheme][0], abs=6e-13)
    assert r[1] == pytest.approx(FLOW_DIGITS[scheme][1], abs=6e-13)


def token_slope(scheme, n, beta, alpha):
    """x' of n tokens in R^n written with the tokens themselves: no ρ, no r but |x|."""

    def slope(t, flat):
        x = flat.reshape(n, n)
        r = np.linalg.norm(x, axis=1, keepdims=True)
        theta = x / r
        A = attention(x if scheme == "none" else theta, beta)
        size = np.linalg.norm(A, axis=1, keepdims=True)
        across = A - np.sum(A * theta, axis=1, keepdims=True) * theta
        return {
            "post": r * across,  # the length stays
            "ngpt": alpha * r * across / size,
            "pre": A,
            "peri": A / size,
            "scaled": A / np.sqrt(1 + t),
            "none": A,
        }[scheme].ravel()

    return slope


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s != "mix"])
@pytest.mark.parametrize(("n", "beta", "rho0", "r0"), [(4, 3.0, -0.2, 0.5), (5, -2.0, 0.1, 2.0)])
def test_flows_are_those_of_the_tokens(scheme, n, beta, rho0, r0):
    ts = np.array([0.4, 1.5])
    x0 = r0 * directions(n, rho0)
    slope = token_slope(scheme, n, beta, 0.7)
    run = integrate.solve_ivp(slope, (0, 1.5), x0.ravel(), "DOP853", ts, rtol=1e-11, atol=1e-13).y.T
    rho, r = orbit(scheme, ts, n, beta, rho0, r0, alpha=0.7)
    for k, x in enumerate(run.reshape(2, n, n)):
        norms = np.linalg.norm(x, axis=1)
        np.testing.assert_allclose(norms, r[k], rtol=1e-8)
        assert x[0] @ x[1] / (norms[0] * norms[1]) == pytest.approx(rho[k], rel=1e-7)


def test_mix_is_post_and_then_pre():
    rho, r = orbit("mix", [0.5, 1.0, 2.5])
    half, one = orbit("post", [0.5, 1.0]).rho
    after = orbit("pre", [1.5], rho0=one)
    np.testing.assert_allclose(rho, [half, one, after.rho[0]], rtol=1e-12)
    np.testing.assert_allclose(r, [1, 1, after.r[0]], rtol=1e-12)
    np.testing.assert_allclose(orbit("mix", [3.0], switch=0.0), orbit("pre", [3.0]), rtol=1e-14)
    np.testing.assert_allclose(orbit("mix", [3.0], switch=5.0), orbit("post", [3.0]), rtol=1e-14)


def test_initial_speeds():
    """ρ'(0): Post .361949551440, Peri .685596130548, by one-sided differences of the orbit."""
    h = 1e-3
    for scheme, printed in (("post", 0.361949551440), ("peri", 0.685596130548)):
        f = orbit(scheme, h * np.arange(5)).rho
        slope = (-25 * f[0] + 48 * f[1] - 36 * f[2] + 16 * f[3] - 3 * f[4]) / (12 * h)
        assert slope == pytest.approx(printed, rel=1e-10)


def test_pre_peri_and_scaled_run_along_one_curve():
    """ρ at the time at which r = 2 is .693192413 for the three of them."""
    for scheme in ("pre", "peri", "scaled"):
        time = optimize.brentq(lambda t, s=scheme: orbit(s, [t]).r[0] - 2, 0.1, 9, xtol=1e-12)
        assert orbit(scheme, [time]).rho[0] == pytest.approx(0.693192413, abs=5e-10)


def test_zero_beta_in_closed_form():
    """Theory §6.2.1: ρ = .906792949434, r = 3.107397929368(5); and the general flow, and rest at the lower end."""
    rho, r = theory.pre_norm_at_zero_beta([0.0, 3.0], 6, 0.1)
    assert (rho[0], r[0]) == (pytest.approx(0.1), 1)
    assert rho[1] == pytest.approx(0.906792949434, abs=5e-13)
    assert r[1] == pytest.approx(3.1073979293685, abs=5e-14)
    ts = [1e-6, 0.3, 2.0, 1e4]
    for n, rho0, r0 in ((6, 0.1, 1.0), (4, -0.3, 0.2), (9, 0.99, 5.0)):
        found, general = theory.pre_norm_at_zero_beta(ts, n, rho0, r0), orbit("pre", ts, n, 0.0, rho0, r0)
        np.testing.assert_allclose(found, general, rtol=1e-11)
        kept = (1 - found.rho[:3]) * found.r[:3] ** 2  # at 10⁴ 1−ρ has few digits left
        np.testing.assert_allclose(kept, (1 - rho0) * r0**2, rtol=1e-12)
    np.testing.assert_array_equal(theory.pre_norm_at_zero_beta([0.0, 7.0], 3, -0.5).r, [1, 1])


@pytest.mark.parametrize("scheme", ["pre", "peri", "scaled"])
def test_the_free_schemes_share_a_terminal_constant(scheme):
    """(1−ρ)r² → 1.06663 for n = 16, β = 1, ρ0 = .1, r0 = 1."""
    rho, r = orbit(scheme, [1e3 if scheme != "scaled" else 1e6], n=16)
    assert (1 - rho[0]) * r[0] ** 2 == pytest.approx(1.06663, abs=5e-6)


def test_terminal_rates():
    """Post e^{−2t}, nGPT e^{−2αt}; pre and peri t^{−2}, scaled t^{−1}, as powers."""
    for scheme, rate in (("post", 2.0), ("ngpt", 1.0)):
        early, late = 1 - orbit(scheme, [8.0, 10.0]).rho
        assert np.log(early / late) / 2 == pytest.approx(rate, rel=1e-3)
    for scheme, power in (("pre", 2.0), ("peri", 2.0), ("scaled", 1.0)):
        early, late = 1 - orbit(scheme, [1e4, 1e5] if scheme != "scaled" else [1e7, 1e8]).rho
        assert np.log10(early / late) == pytest.approx(power, rel=1e-3)


def test_without_normalisation_tokens_decouple():
    """ρ = .682432178555 from t ≈ 3 on and r grows like e^t for ever, far beyond where e^{βr²} is a double."""
    rho, r = orbit("none", [3.0, 10.0, 300.0])
    np.testing.assert_allclose(rho, 0.682432178555, atol=6e-13)
    assert np.log(r[2] / r[1]) == pytest.approx(290, rel=1e-10)


@pytest.mark.parametrize("scheme", LAYER_DIGITS)
def test_layers_reference_numbers(scheme):
    """30 layers, η = α = .1."""
    rho, r = theory.equiangular_norm_layers(scheme, 6, 1.0, 0.1, 1.0, 30, 0.1, alpha=0.1)
    assert len(rho) == len(r) == 31
    assert rho[-1] == pytest.approx(LAYER_DIGITS[scheme][0], abs=6e-13)
    assert r[-1] == pytest.approx(LAYER_DIGITS[scheme][1], abs=6e-13)


def token_layer(scheme, x, beta, step, layer, alpha):
    r = np.linalg.norm(x, axis=1, keepdims=True)
    theta = x / r
    A = attention(x if scheme == "none" else theta, beta)
    unit = A / np.linalg.norm(A, axis=1, keepdims=True)
    if scheme in ("post", "ngpt"):
        moved = theta + step * A if scheme == "post" else theta + alpha * (unit - theta)
        return r * moved / np.linalg.norm(moved, axis=1, keepdims=True)
    return x + step * {"pre": A, "peri": unit, "scaled": A / np.sqrt(layer), "none": A}[scheme]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("n", "beta", "rho0", "r0"), [(4, 3.0, -0.2, 0.5), (5, -2.0, 0.1, 2.0)])
def test_layers_are_those_of_the_tokens(scheme, n, beta, rho0, r0):
    """Seven layers of n tokens in R^n; "mix" is post for three of them."""
    switch = 0.9 if scheme == "mix" else None
    rho, r = theory.equiangular_norm_layers(scheme, n, beta, rho0, r0, 7, 0.3, 0.4, switch)
    x = r0 * directions(n, rho0)
    for layer in range(1, 8):
        now = ("post" if layer <= 3 else "pre") if scheme == "mix" else scheme
        x = token_layer(now, x, beta, 0.3, layer, 0.4)
        norms = np.linalg.norm(x, axis=1)
        np.testing.assert_allclose(norms, r[layer], rtol=1e-10)
        assert x[0] @ x[1] / (norms[0] * norms[1]) == pytest.approx(rho[layer], rel=1e-9)


def test_layers_contract_at_their_terminal_rates():
    """1−ρ per layer: Post (1+η)^{−2}, nGPT (1−α)², Pre (r/(r+η))²."""
    for scheme, factor in (("post", 1.3**-2), ("ngpt", 0.6**2)):
        rho, _ = theory.equiangular_norm_layers(scheme, 6, 1.0, 0.1, 1.0, 16, 0.3, alpha=0.4)
        assert (1 - rho[-1]) / (1 - rho[-2]) == pytest.approx(factor, rel=1e-2)
    rho, r = theory.equiangular_norm_layers("pre", 6, 1.0, 0.1, 1.0, 4000, 0.3)
    assert (1 - rho[-1]) / (1 - rho[-2]) == pytest.approx((r[-2] / (r[-2] + 0.3)) ** 2, rel=1e-8)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: orbit("sandwich", [1.0]), "`scheme` must be one of post, pre, mix"),
        (lambda: orbit("pre", [1.0], n=1), "`n` must be a whole number, at least 2"),
        (lambda: orbit("pre", [1.0], beta=np.inf), "`beta` must be a finite number"),
        (lambda: orbit("pre", [1.0], r0=0.0), "`r0` must be positive"),
        (lambda: orbit("pre", [1.0], rho0=1.0), "`rho0` must lie in"),
        (lambda: orbit("peri", [1.0], n=3, rho0=-0.5), "`rho0` must be greater than −1/"),
        (lambda: orbit("ngpt", [1.0], alpha=0.0), "`alpha` must be positive"),
        (lambda: theory.equiangular_norm("mix", 6, 1.0, 0.1, 1.0, [1.0]), "`switch` must be a time"),
        (
            lambda: theory.equiangular_norm("pre", 6, 1.0, 0.1, 1.0, [1.0], switch=1.0),
            "`switch` must be None for 'pre'",
        ),
        (
            lambda: theory.equiangular_norm_layers("pre", 6, 1.0, 0.1, 1.0, -1),
            "`layers` must be a whole number, at least 0",
        ),
        (
            lambda: theory.equiangular_norm_layers("ngpt", 6, 1.0, 0.1, 1.0, 1, alpha=1.5),
            "`alpha` must be at most 1 for layers",
        ),
        (lambda: theory.pre_norm_at_zero_beta([1.0], 6, 0.1, -1.0), "`r0` must be positive"),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad()
