"""Causal closed forms against the printed digits of theory §6.1 and against runs token by token."""

import mpmath
import numpy as np
import pytest
from scipy import integrate

import tokenfield as tkf
from tokenfield import theory


def causal_run(x0, ts, beta, V=None, B=None, weights=None, slope=0.0, window=None):
    """Causal softmax attention by loops over the tokens each one sees; (times, n, d)."""
    n, d = x0.shape
    V, B = np.eye(d) if V is None else V, np.eye(d) if B is None else B
    w = np.ones(n) if weights is None else weights

    def velocity(_, flat):
        x = flat.reshape(n, d)
        v = np.zeros((n, d))
        for i in range(n):
            mean, mass = np.zeros(d), 0.0
            for j in range(i + 1):
                if window is None or i - j < window:
                    k = w[j] * np.exp(beta * (x[i] @ B @ x[j]) - slope * (i - j))
                    mean, mass = mean + k * x[j], mass + k
            v[i] = V @ mean / mass
            v[i] -= (v[i] @ x[i]) * x[i]
        return v.ravel()

    run = integrate.solve_ivp(velocity, (0, ts[-1]), x0.ravel(), "DOP853", ts, rtol=1e-12, atol=1e-14)
    return run.y.T.reshape(len(ts), n, d)


def tok(n, d, s):
    """The test tokens of theory §6."""
    i, k = np.arange(1, n + 1)[:, None], np.arange(1, d + 1)
    x = np.cos(s * i * np.sqrt(k + 1) + k)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("beta", [2.0, -2.0])
def test_the_first_token_sees_only_itself(beta):
    p, q = np.arange(1, 4)[:, None], np.arange(1, 4)
    V, B = np.diag([1, 0.85, 0.7]) + 0.2 * np.sin(p * q), np.eye(3) + 0.3 * np.cos(p * (q + 1))
    x, ts = tok(4, 3, 1), np.array([0.5, 2.0])
    expected = causal_run(x, ts, beta, V, B)[:, 0]
    np.testing.assert_allclose(theory.causal_first_token(x[0], V, ts), expected, atol=1e-10)
    still = theory.causal_first_token(x[0], np.eye(3), ts)
    np.testing.assert_allclose(still, np.stack([x[0]] * 2), atol=1e-15)


@pytest.mark.parametrize("beta", [2.0, 0.0, -2.0])
def test_the_second_token_arrives_in_its_time(beta):
    """Two causal tokens in the plane that start at right angles, moved for the predicted time."""
    time = theory.causal_second_token(0.0, 0.9, beta)
    x = causal_run(np.eye(2), [time], beta)[0]
    np.testing.assert_allclose(x[0], [1, 0], atol=1e-14)
    assert x[0] @ x[1] == pytest.approx(0.9, abs=1e-9)


def test_the_constant_of_the_second_token():
    """Printed C = 30.577829823 at β = 2, ρ0 = 0."""
    assert theory.causal_second_token_constant(0.0, 2.0) == pytest.approx(30.577829823, abs=5e-10)


@pytest.mark.parametrize(("rho0", "beta"), [(0.0, 2.0), (-0.6, 3.0), (0.5, -4.0), (-0.9, 0.0)])
def test_the_constant_is_the_limit_of_the_times(rho0, beta):
    """(1−ρ)e^{t(ρ)} at 1−ρ = 10^{−12}, the integral in many digits."""
    with mpmath.workdps(30):
        end = 1 - mpmath.mpf(10) ** -12
        split = [rho0, *(1 - mpmath.mpf(10) ** -k for k in (1, 3, 5, 7, 9)), end]
        t = mpmath.quad(lambda r: (1 + mpmath.e ** (beta * (1 - r))) / (1 - r * r), split)
        expected = float((1 - end) * mpmath.e**t)
    assert theory.causal_second_token_constant(rho0, beta) == pytest.approx(expected, rel=1e-10)


def test_the_fan_of_equal_tokens():
    """Rates −(1−1/i) for every n; the slowest, −1/2, has u_i ∝ i−1."""
    for n in (2, 5, 12):
        fan = theory.causal_fan(n)
        np.testing.assert_allclose(fan.rates, -(1 - 1 / np.arange(1, n + 1)), rtol=1e-14)
        np.testing.assert_allclose(fan.vectors[:, 1], np.arange(n), rtol=1e-12)
        assert not fan.defective


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"weights": [0.1, 0.4, 0.2, 0.05, 0.25]},
        {"slope": 0.7},
        {"slope": -0.4, "weights": [3.0, 1.0, 2.0, 2.0, 1.0]},
        {"window": 3},
        {"window": 2, "slope": 0.5},
        {"window": 1},
        {"strict": True},
        {"strict": True, "window": 3},
    ],
)
def test_the_fan_is_an_eigenvalue_problem(case):
    """M rebuilt by loops; every column is an eigenvector of its rate, and they span unless defective."""
    n, fan = 5, theory.causal_fan(5, **case)
    w, slope = case.get("weights", np.ones(n)), case.get("slope", 0.0)
    M = np.zeros((n, n))
    for i in range(n):
        seen = [j for j in range(i + 1) if i - j < case.get("window", n)]
        if case.get("strict") and i > 0:
            seen.remove(i)
        total = sum(w[j] * np.exp(-slope * (i - j)) for j in seen)
        for j in seen:
            M[i, j] += w[j] * np.exp(-slope * (i - j)) / total
            M[i, i] -= w[j] * np.exp(-slope * (i - j)) / total
    np.testing.assert_allclose(fan.matrix, M, atol=1e-15)
    np.testing.assert_allclose(fan.rates, np.diag(M), atol=1e-15)
    np.testing.assert_allclose(M @ fan.vectors, fan.vectors * fan.rates, atol=1e-12)
    rank = np.linalg.matrix_rank(fan.vectors)
    assert (rank < n) == fan.defective
    distinct = np.unique(np.round(np.diag(M), 12))
    counted = sum(n - np.linalg.matrix_rank(M - r * np.eye(n), tol=1e-10) for r in distinct)
    assert rank == counted


def test_weighted_rates():
    w = np.array([0.1, 0.4, 0.2, 0.05, 0.25])
    np.testing.assert_allclose(theory.causal_fan(5, w).rates, -(1 - w / np.cumsum(w)), atol=1e-15)
    np.testing.assert_allclose(theory.causal_fan(5, 7 * w).matrix, theory.causal_fan(5, w).matrix, atol=1e-15)


def test_alibi_rates():
    """Slowest 1/(1+e^λ): λ = .7 gives .3318122278."""
    rates = theory.causal_fan(9, slope=0.7).rates
    assert np.sort(-rates)[1] == pytest.approx(0.3318122278, abs=5e-11)
    assert rates[1] == pytest.approx(-1 / (1 + np.exp(0.7)), rel=1e-14)


@pytest.mark.parametrize("window", [2, 3, 5])
def test_window_rates(window):
    fan = theory.causal_fan(9, window=window)
    np.testing.assert_allclose(fan.rates, -(1 - 1 / np.minimum(np.arange(1, 10), window)), atol=1e-15)
    assert fan.defective


def test_the_poisson_front():
    """Window 2 at t = 4, i = 2..6, as printed; and e^{Mt} from the same start."""
    printed = [0.1353352832, 0.4060058497, 0.6766764162, 0.8571234605, 0.9473469827]
    u = theory.poisson_front([0.0, 4.0], 6)
    np.testing.assert_array_equal(u[0], [0, 1, 1, 1, 1, 1])
    np.testing.assert_allclose(u[1, 1:], printed, atol=5e-11)
    ts = [0.0, 0.7, 4.0, 30.0]
    start = np.append(0.0, np.ones(59))
    np.testing.assert_allclose(
        theory.poisson_front(ts, 60), theory.causal_fan(60, window=2).evolve(start, ts), atol=1e-13
    )


@pytest.mark.parametrize(("window", "speed"), [(2, 0.5), (3, 1.0), (5, 2.0)])
def test_a_window_makes_a_front(window, speed):
    """The place where u = ½ advances by (w−1)/2 tokens per unit time."""
    n = 400
    fan = theory.causal_fan(n, window=window)
    early, late = fan.evolve(np.append(0.0, np.ones(n - 1)), [40.0, 120.0])
    places = [np.interp(0.5, u, np.arange(n)) for u in (early, late)]
    assert (places[1] - places[0]) / 80 == pytest.approx(speed, rel=2e-3)


def test_strictly_causal_tokens_arrive_with_powers_of_t():
    """u_i falls like t^{i−2}e^{−t}: the last of five like t³."""
    fan = theory.causal_fan(5, strict=True)
    assert fan.defective
    ts = np.arange(1.0, 7.0)
    u = fan.evolve([0, 1, 0, 0, 0], ts)[:, 4] * np.exp(ts)
    # a cubic in t: its third differences are the product ½·⅓·¼ of the p_{i,i−1}, its fourth vanish
    np.testing.assert_allclose(np.diff(u, 3), 1 / 24, rtol=1e-10)
    np.testing.assert_allclose(np.diff(u, 4), 0, atol=1e-11)


@pytest.mark.parametrize("beta", [1.0, 3.0, -3.0])
@pytest.mark.parametrize("case", [{}, {"slope": 0.7}, {"window": 2}])
def test_the_fan_is_the_flow_near_consensus(beta, case):
    """Angles of 10^{−4}: tokens on the circle follow e^{Mt} up to their square, whatever β."""
    n, size = 6, 1e-4
    u0 = size * np.array([0.0, 1.0, -0.5, 0.3, 0.8, -1.0])
    ts = np.array([1.0, 4.0])
    run = causal_run(np.stack([np.cos(u0), np.sin(u0)], axis=1), ts, beta, **case)
    angles = np.arctan2(run[..., 1], run[..., 0])
    np.testing.assert_allclose(angles, theory.causal_fan(n, **case).evolve(u0, ts), atol=10 * size**3)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: theory.causal_first_token(np.eye(2), np.eye(2), [1.0]), "`x0` must be one token"),
        (lambda: theory.causal_second_token(0.5, 0.4, 1.0), "`rho0` must lie in"),
        (lambda: theory.causal_second_token_constant(1.0, 1.0), "`rho0` must lie in"),
        (lambda: theory.causal_second_token_constant(0.0, 501.0), "`beta` must be at most 500 here"),
        (lambda: theory.causal_second_token_constant(0.0, 20.0), r"`beta` must give a constant below e\^500"),
        (lambda: theory.causal_fan(1), "`n` must be a whole number, at least 2"),
        (lambda: theory.causal_fan(3, [1.0, 2.0]), r"`weights` must have shape \(3,\)"),
        (lambda: theory.causal_fan(3, [1.0, 0.0, 1.0]), "`weights` must be positive"),
        (lambda: theory.causal_fan(3, slope=np.inf), "`slope` must be a finite number"),
        (lambda: theory.causal_fan(3, window=0), "`window` must be a whole number, at least 1"),
        (lambda: theory.causal_fan(3, window=1, strict=True), "`window` must be a whole number, at least 2"),
        (lambda: theory.causal_fan(3).evolve([1.0, 2.0], [1.0]), r"`u0` must have shape \(3,\)"),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad()
