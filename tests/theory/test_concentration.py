"""The rates against exact orbits, the Laplace gap in many digits."""

import itertools

import mpmath
import numpy as np
import pytest
from scipy import integrate, linalg
from scipy.stats import ortho_group

import tokenfield as tkf
from tokenfield import theory

WORKED = tkf.AttentionWeights(np.diag([0.5, 2.0]), np.diag([1.0, 0.5]))

#: A quarter turn.
J = np.array([[0.0, -1.0], [1.0, 0.0]])


def weights(D, B):
    """Attention weights with the given D = V Bᵀ."""
    B = np.asarray(B, dtype=float)
    return tkf.AttentionWeights(B, np.asarray(D) @ np.linalg.inv(B).T)


# --- rates of the zero-temperature flow


def distance_decay(orbit, ends, mass, B, ts, p, step):
    """Σ w angle(x(t), end)^p over tokens, x(τ) = orbit(tokens, τ), t = ∫|Bᵀx|dτ by Simpson's rule.

    For symmetric D this is W_p^p exactly: the end of a token is the point of E nearest to it, at all times.
    Otherwise it is that up to a constant.
    """
    tau = np.arange(0, 1.02 * ts[-1] / np.linalg.svd(B)[1][-1] + 2 * step, step)
    total = np.zeros(len(ts))
    for part in np.array_split(np.arange(len(mass)), max(1, len(mass) * len(tau) // 10**6)):
        x = orbit(part, tau)
        t = integrate.cumulative_simpson(np.linalg.norm(x @ B, axis=2), dx=step, axis=1, initial=0)
        angle = 2 * np.arcsin(np.minimum(np.linalg.norm(x - ends[part][:, None], axis=2) / 2, 1))
        for ti, ai, wi in zip(t, np.log(np.maximum(angle, 1e-300)), mass[part], strict=True):
            total += wi * np.exp(p * np.interp(ts, ti, ai))
    return total / np.sum(mass)


def uniform_law(d, deep, h):
    """Quadrature of the uniform law on the positive orthant, graded towards every coordinate plane.

    With a_i = log(x_i/x_d) the area is Π x_i da, and the trapezoid rule is accurate to e^{−π²/h}.
    """
    a = np.arange(-deep, 20, h)
    logs = np.stack(np.meshgrid(*[a] * (d - 1), [0.0], indexing="ij"), -1).reshape(-1, d)
    top = logs.max(axis=1, keepdims=True)
    logs = logs - top - np.log(np.sum(np.exp(2 * (logs - top)), axis=1, keepdims=True)) / 2
    mass = np.exp(np.sum(logs, axis=1))
    keep = mass > 1e-30 * mass.max()
    return logs[keep], mass[keep]


def decay(spectrum, B, p, ts, deep, k, S=None, h=0.7, step=0.1):
    """W_p^p for D = S diag(spectrum) S⁻¹; the initial law is uniform in the coordinates S⁻¹x."""
    d, S = len(spectrum), np.eye(len(spectrum)) if S is None else S
    logs, mass = uniform_law(d, deep, h)
    same = np.array_equal(B, np.diag(np.diag(B))) and np.array_equal(S, np.eye(d))
    signs = [np.ones(d)] if same else [np.array((*s, 1)) for s in itertools.product((1, -1), repeat=d - 1)]
    total = np.zeros(len(ts))
    for sign in signs:
        y = np.exp(logs[:, :k] - logs[:, :k].max(axis=1, keepdims=True)) * sign[:k] @ S[:, :k].T
        ends = y / np.linalg.norm(y, axis=1, keepdims=True)

        def orbit(part, tau, sign=sign):
            z = logs[part][:, None] + np.asarray(spectrum) * tau[:, None]
            x = np.exp(z - z.max(axis=2, keepdims=True)) * sign @ S.T
            return x / np.linalg.norm(x, axis=2, keepdims=True)

        total += distance_decay(orbit, ends, mass, B, ts, p, step) / len(signs)
    return total


def measured_rate(power, p, ts):
    return -np.polyfit(ts, np.log(power) / p, 1)[0]


SKEW = np.array([[0.7, 0.9], [-0.4, 1.5]])
OBLIQUE = np.array([[1.0, 0.8], [0.3, 1.0]])


@pytest.mark.parametrize(
    ("spectrum", "B", "p", "S", "expected"),
    [
        ((1.0, 0.5), np.diag([2.0, 0.5]), 2, None, 0.25),  # the worked case: c = ¼ against κ/2 = ½
        ((1.0, 0.5), np.diag([0.5, 2.0]), 2, None, 0.125),  # the other side: c = 1, κ/2 = ⅛
        ((1.0, 0.5), np.diag([0.5, 2.0]), 1, None, 0.25),
        ((1.0, 0.5), np.eye(2), 2, None, 0.25),
        ((1.0, -0.2), SKEW, 2, None, 0.6 / np.hypot(0.4, 1.5)),
        ((1.0, -0.2), SKEW.T[::-1], 1, None, 1.2 / np.hypot(0.9, 1.5)),
        ((-1.0, -2.0), SKEW, 2, OBLIQUE, None),  # D not symmetric: b_j from the columns of S
        ((-1.0, -2.0), SKEW.T, 1, OBLIQUE[:, ::-1], None),
    ],
)
def test_rate_on_the_circle_is_that_of_exact_orbits(spectrum, B, p, S, expected):
    D = np.diag(spectrum) if S is None else S @ np.diag(spectrum) @ np.linalg.inv(S)
    found = theory.concentration_rates(weights(D, B), p)
    if expected is None:
        b = np.linalg.norm(B.T @ S, axis=0) / np.linalg.norm(S, axis=0)
        expected = min((spectrum[0] - spectrum[1]) / b[0], (spectrum[0] - spectrum[1]) / b[1] / p)
    assert found.rate == pytest.approx(expected, rel=1e-12)
    assert not found.tied
    ts = np.linspace(8, 12, 9) / found.rate / p**0.5
    measured = measured_rate(decay(spectrum, B, p, ts, 60, 1, S, step=0.05), p, ts)
    assert measured == pytest.approx(found.rate, rel=0.002)


def test_time_change_agrees_with_direct_integration():
    """The helper of these tests against x' = P_x D x/|Bᵀx| itself, on 40 tokens of the circle."""
    spectrum, ts = np.array([1.0, -0.2]), np.array([0.5, 1.0, 2.0, 4.0])
    angles = np.linspace(0.05, np.pi - 0.07, 40)
    x0 = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    ends = np.sign(x0[:, :1]) * [1.0, 0.0]

    def orbit(part, tau):
        x = x0[part][:, None] * np.exp(spectrum * tau[:, None])
        return x / np.linalg.norm(x, axis=2, keepdims=True)

    def slope(_, flat):
        x = flat.reshape(-1, 2)
        v = spectrum * x / np.linalg.norm(x @ SKEW, axis=1, keepdims=True)
        return (v - np.sum(v * x, 1, keepdims=True) * x).ravel()

    run = integrate.solve_ivp(slope, (0, 4), x0.ravel(), "DOP853", ts, rtol=1e-11, atol=1e-12)
    moved = run.y.T.reshape(len(ts), 40, 2)
    angle = 2 * np.arcsin(np.linalg.norm(moved - ends, axis=2) / 2)
    routes = distance_decay(orbit, ends, np.ones(40), SKEW, ts, 2, 0.01)
    np.testing.assert_allclose(routes, np.mean(angle**2, axis=1), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spectrum", "k", "B", "p", "expected", "window", "power"),
    [
        # c = .4, κ = .4: p = 2 is escape-limited
        ((1.0, 0.6, 0.3), 1, np.eye(3), 2, 0.2, (20, 40), 0),
        # k = 2, both sides of the crossover: c = .6, kκ = .4; c = .3, kκ = 1.2
        ((1.0, 1.0, 0.4), 2, np.diag([1.0, 1.0, 3.0]), 1, 0.4, (20, 40), 0),
        ((1.0, 1.0, 0.4), 2, np.diag([2.0, 2.0, 1.0]), 2, 0.3, (20, 40), 0),
        # k = 2 and |Bᵀp| not constant on E: the slowest p counts, with t^{−1/(2p)}
        ((1.0, 1.0, 0.4), 2, np.diag([2.0, 1.0, 0.5]), 2, 0.3, (30, 50), -0.25),
        # two-dimensional λ2-eigenspace: κ from the slowest e2, with t^{−1/(2p)}
        ((1.0, 0.5, 0.5), 1, np.diag([1.0, 1.0, 3.0]), 1, 1 / 6, (40, 80), -0.5),
        # a deep saddle: min(c, κ/p) = .4 would be wrong, mass sits near e3 and leaves at (.8+.4)/20
        ((1.0, 0.6, 0.2), 1, np.diag([1.0, 1.0, 20.0]), 1, 0.06, (150, 250), 0),
    ],
)
def test_rate_on_the_sphere_is_that_of_exact_orbits(spectrum, k, B, p, expected, window, power):
    R = ortho_group.rvs(3, random_state=0)
    turned = weights(R @ np.diag(spectrum) @ R.T, R @ B @ R.T)
    found = theory.concentration_rates(turned, p)
    assert found.dimension == k
    assert found.rate == pytest.approx(expected, rel=1e-10)
    ts = np.linspace(*window, 11)
    measured = measured_rate(decay(spectrum, B, p, ts, 30, k) * ts ** (-power * p), p, ts)
    assert measured == pytest.approx(expected, rel=0.01)


@pytest.mark.slow
def test_rate_with_a_rotating_saddle():
    """λ2 a complex pair: mass near its circle leaves at the rate per turn, over the mean of |Bᵀx|."""
    S = np.eye(3) + 0.3 * np.random.default_rng(2).normal(size=(3, 3))
    gap, omega, p = 0.5, 1.3, 2
    D = S @ linalg.block_diag([[gap]], [[0.0, -omega], [omega, 0.0]]) @ np.linalg.inv(S)
    B = np.asarray(tkf.ensembles.gaussian(3, 5)) + np.eye(3)
    found = theory.concentration_rates(weights(D, B), p)
    turn = np.linspace(0, 2 * np.pi, 4000, endpoint=False)
    x = np.stack([np.cos(turn), np.sin(turn)], 1) @ S[:, 1:].T
    mean = np.mean(np.linalg.norm(x @ B, axis=1) / np.linalg.norm(x, axis=1))
    assert found.escape == pytest.approx(gap / mean, rel=1e-8)
    assert found.rate == found.escape / p < found.approach

    a, phase = np.meshgrid(np.arange(-40, 20, 0.7), np.linspace(0, 2 * np.pi, 24, endpoint=False))
    a, phase = a.ravel(), phase.ravel()
    mass = np.exp(a) / (1 + np.exp(2 * a)) ** 1.5  # uniform in S⁻¹x, one half
    ends = np.tile(S[:, 0] / np.linalg.norm(S[:, 0]), (len(a), 1))

    def orbit(part, tau):
        log = a[part][:, None] + gap * tau
        turned = phase[part][:, None] + omega * tau
        top = np.maximum(log, 0)
        y = np.stack([np.exp(log - top), np.cos(turned) * np.exp(-top), np.sin(turned) * np.exp(-top)], 2)
        x = y @ S.T
        return x / np.linalg.norm(x, axis=2, keepdims=True)

    ts = np.linspace(8, 12, 21) / found.rate / 2
    measured = measured_rate(distance_decay(orbit, ends, mass, B, ts, p, 0.05), p, ts)
    assert measured == pytest.approx(found.rate, rel=0.01)


def test_tied_rates_give_an_extra_power_of_t():
    """B = I, k = p = 1: W_1 = (2/π)∫₀^a log(1/s)/(1−s²)ds with a = e^{−gt}, that is (2/π)(gt+1)e^{−gt}."""
    found = theory.concentration_rates(weights(np.diag([1.0, 0.5]), np.eye(2)), 1)
    assert found.tied and found.rate == 0.5
    ts = np.array([10.0, 20.0, 30.0])
    measured = decay((1.0, 0.5), np.eye(2), 1, ts, 60, 1, step=0.02)
    np.testing.assert_allclose(measured, 2 / np.pi * (0.5 * ts + 1) * np.exp(-0.5 * ts), rtol=2e-3)
    # p = 2 at its own crossover c = κ/2: W_2² e^{2ct}/t tends to a constant, an extra t^{1/2}
    B = np.diag([1.0, 0.5])
    assert theory.concentration_rates(weights(np.diag([1.0, 0.5]), B), 2).tied
    ts = np.linspace(20, 40, 5)
    line = decay((1.0, 0.5), B, 2, ts, 90, 1, step=0.02) * np.exp(2 * 0.5 * ts)
    assert np.ptp(np.diff(line)) < 0.02 * np.mean(np.diff(line)) and np.mean(np.diff(line)) > 0


def test_an_infinite_rate_ties_with_nothing():
    found = theory.concentration_rates(tkf.AttentionWeights(np.diag([1.0, 0.0]), np.eye(2)))
    assert found.saddles == (np.inf,) and found.rate == 1 and not found.tied


def test_rates_in_numbers():
    found = theory.concentration_rates(WORKED, 2)
    assert (found.approach, found.escape, found.dimension, found.rate) == (0.25, 1.0, 1, 0.25)
    whole = theory.concentration_rates(tkf.AttentionWeights.identity(3), 2)
    assert (whole.approach, whole.escape, whole.saddles, whole.rate) == (np.inf, np.inf, (), np.inf)
    # a saddle in the kernel of Bᵀ is left at once
    gone = theory.concentration_rates(tkf.AttentionWeights(np.diag([1.0, 0.0]), np.eye(2)), 2)
    assert gone.escape == np.inf and gone.rate == gone.approach == 1.0


# --- Laplace principle


@pytest.mark.parametrize("d", [2, 3, 7, 100, 1000])
def test_laplace_gap_in_many_digits(d):
    betas = [1e-6, 0.3, 1.0, 5.0, 12.0, 40.0, 1e3, 1e5, 1e8]
    with mpmath.workdps(60):
        half = mpmath.mpf(d) / 2
        expected = [float(1 - mpmath.besseli(half, b) / mpmath.besseli(half - 1, b)) for b in betas]
    np.testing.assert_allclose(theory.laplace_gap(betas, d), expected, rtol=1e-14)


def test_laplace_gap_limits_and_scaling():
    assert theory.laplace_gap(0.0, 3) == 1.0
    assert theory.laplace_gap(np.inf, 3) == 0.0
    assert theory.laplace_gap(8.0, 3, 0.5) == theory.laplace_gap(4.0, 3)
    assert theory.laplace_gap(1e6, 5, 2.0) == pytest.approx(4 / 4e6, rel=1e-5)
    for s in (1e15, 1e19, 1e21, 1e200, 1e307):  # (d − 1)/(2s)
        assert theory.laplace_gap(s, 4) == pytest.approx(1.5 / s, rel=1e-14)
    assert theory.laplace_gap(1e200, 4, 1e200) == 0.0
    # d = 3: coth s − 1/s
    assert theory.laplace_gap(2.0, 3) == pytest.approx(1 - 1 / np.tanh(2) + 0.5, rel=1e-14)


def test_laplace_gap_is_that_of_the_softmax_velocity():
    """Quadrature tokens on the circle under B = diag(.5, 2): the mean seen by each query."""
    beta, B = 40.0, np.diag([0.5, 2.0])
    angles = np.arange(2000) * 2 * np.pi / 2000
    y = np.stack([np.cos(angles), np.sin(angles)], 1)
    q = y[::97] @ B
    scores = np.exp(beta * (q @ y.T - np.linalg.norm(q, axis=1, keepdims=True)))
    mean = scores @ y / scores.sum(1, keepdims=True)
    size = np.linalg.norm(q, axis=1)
    gap = np.linalg.norm(mean - q / size[:, None], axis=1)
    np.testing.assert_allclose(theory.laplace_gap(beta, 2, size), gap, rtol=1e-10)


def test_envelope():
    assert theory.laplace_envelope(0.0) == 1.0 and theory.laplace_envelope(np.inf) == 0.0
    np.testing.assert_allclose(
        theory.laplace_envelope([1e-12, 10.0]), [1.0, np.sqrt(np.log(11) / 10)], rtol=1e-11
    )
    betas = np.logspace(0, 8, 30)
    ratio = theory.laplace_gap(betas, 3) / theory.laplace_envelope(betas)
    assert np.all(np.diff(ratio) < 0)  # O(1/β) against √(log β/β)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: theory.laplace_gap(0.0, 3, np.inf), "`norm` must be finite where `beta` is 0"),
        (lambda: theory.laplace_gap([1.0, 2], 3, [1.0, 2, 3]), r"`norm` must fit the shape of beta, \(2,\)"),
        (lambda: theory.concentration_rates(WORKED, 0.5), "`p` must be at least 1 and finite"),
        (lambda: theory.concentration_rates(WORKED, np.inf), "`p` must be at least 1 and finite"),
        (
            lambda: theory.concentration_rates(weights(J, np.eye(2))),
            "`weights` must have a limit of kind 'fixed'",
        ),
        (
            lambda: theory.concentration_rates(weights(linalg.block_diag([[2.0]], J, J), np.eye(5))),
            "`weights` must have a D whose lower eigenvalues",
        ),
        (lambda: theory.laplace_gap(-1.0, 3), "`beta` must be at least 0"),
        (lambda: theory.laplace_gap(1.0, 1), "`d` must be a whole number, at least 2"),
        (lambda: theory.laplace_gap(np.inf, 3, 0.0), "`beta` must be finite where `norm` is 0"),
        (lambda: theory.laplace_envelope(np.nan), "`beta` must be at least 0"),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad()
