"""The steps of the concentration theorem against brute force, quadrature and plain NumPy flows."""

import mpmath
import numpy as np
import pytest
from scipy import integrate
from scipy.stats import ortho_group

import tokenfield as tkf
from tokenfield import theory
from tokenfield.theory.laplace_bound import log_peak
from tokenfield.theory.proof import growth, worst_law_distance

WORKED = tkf.AttentionWeights(np.diag([0.5, 2.0]), np.diag([1.0, 0.5]))
SPHERE = tkf.AttentionWeights(np.diag([0.5, 2.0, 1.0]), np.diag([1.0, 0.5, 0.2]))


def circle(n):
    theta = (np.arange(n) + 0.5) * 2 * np.pi / n
    return theta, np.stack([np.cos(theta), np.sin(theta)], axis=1)


def symmetric_head(d, seed):
    """A random head with a symmetric V Bᵀ."""
    rng = np.random.default_rng(seed)
    turn = ortho_group.rvs(d, random_state=seed)
    B = ortho_group.rvs(d, random_state=seed + 1) @ np.diag(rng.uniform(0.5, 2, d)) @ turn
    S = rng.normal(size=(d, d))
    return tkf.AttentionWeights(B, (S + S.T) / 2 @ np.linalg.inv(B).T)


# --- (b) Laplace


@pytest.mark.parametrize("d", [2, 3, 8, 300])
def test_peak_in_many_digits(d):
    for s in (1e-3, 1.0, 40.0, 1e4, 1e15):
        with mpmath.workdps(60):
            order, exact_s = mpmath.mpf(d) / 2 - 1, mpmath.mpf(s)
            peak = mpmath.gamma(order + 1) * (2 / exact_s) ** order * mpmath.besseli(order, exact_s)
            exact = mpmath.log(peak) - exact_s
        assert float(log_peak(s, d)) == pytest.approx(float(exact), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize("s, m", [(0.3, 0.4), (5.0, 0.7), (60.0, 0.01), (2000.0, 0.5), (3.0, 1e-9)])
def test_worst_moment_is_the_best_point_mass(d, s, m):
    """Brute force over where the mass that is not the floor's lies, with the uniform part by quadrature."""

    def over_uniform(f):
        weight = integrate.quad(
            lambda a: f(2 - 2 * np.cos(a)) * np.sin(a) ** (d - 2),
            0,
            np.pi,
            points=[3 / np.sqrt(s + 9)],
            limit=200,
            epsabs=0,
        )[0]
        return weight / integrate.quad(lambda a: np.sin(a) ** (d - 2), 0, np.pi)[0]

    peak, second = over_uniform(lambda q: np.exp(-s * q / 2)), over_uniform(lambda q: q * np.exp(-s * q / 2))
    q = np.linspace(0, 4, 400_001)
    point = (1 - m) * np.exp(-s * q / 2)
    brute = np.max((m * second + point * q) / (m * peak + point))
    assert float(theory.worst_moment(s, d, np.log(m))) == pytest.approx(brute, rel=1e-6)
    assert float(theory.split_moment(s, d, np.log(m))) >= brute


def test_uniform_law_and_cold_limit_of_the_moments():
    s = np.array([0.2, 3.0, 500.0])
    np.testing.assert_allclose(theory.worst_moment(s, 3, 0.0), 2 * theory.laplace_gap(s, 3), rtol=1e-13)
    # both are of the order (log s)/s: their quotient tends to (d+1)/(d−1) = 3 on the circle
    cold = np.array([1e20, 1e80, 1e200])
    ratio = theory.split_moment(cold, 2, np.log(0.7)) / theory.worst_moment(cold, 2, np.log(0.7))
    assert np.all(np.diff(np.abs(ratio - 3)) < 0) and abs(ratio[-1] - 3) < 0.1


def test_moments_hold_for_laws_drawn_at_random_and_fall_with_s():
    theta, y = circle(4000)
    rng, sharp = np.random.default_rng(0), np.geomspace(0.05, 800, 60)
    for _ in range(20):
        m = rng.uniform(0.05, 0.9)
        bumps = np.exp(rng.uniform(0, 60) * (np.cos(theta - rng.uniform(0, 2 * np.pi)) - 1))
        law = m / len(theta) + (1 - m) * bumps / bumps.sum()
        weight = law * np.exp(sharp[:, None] * (y[:, 0] - 1))
        weight /= weight.sum(axis=1, keepdims=True)
        second = weight @ (2 - 2 * y[:, 0])
        gap = np.linalg.norm(weight @ y - [1, 0], axis=1)
        worst, split = (f(sharp, 2, np.log(m)) for f in (theory.worst_moment, theory.split_moment))
        assert np.all(gap**2 <= second) and np.all(second <= worst * (1 + 1e-12)) and np.all(worst <= split)
        assert np.all(np.diff(worst) <= 0) and np.all(np.diff(split) <= 0)


# --- (d) one-sided Lipschitz constant


def by_differences(weights, x, step=1e-5):
    """The greatest eigenvalue of the symmetric part of ∇X_0, by differences of the field along geodesics."""
    B, V = np.asarray(weights.B), np.asarray(weights.V)

    def field(y):
        read = V @ (B.T @ y) / np.linalg.norm(B.T @ y)
        return read - y * (y @ read)

    tangents = np.linalg.svd(x[None])[2][1:]
    moved = [np.cos(h) * x + np.sin(h) * t for t in tangents for h in (step, -step)]
    gradient = np.array(
        [(field(a) - field(b)) @ tangents.T for a, b in zip(moved[::2], moved[1::2], strict=True)]
    )
    gradient /= 2 * step
    return np.linalg.eigvalsh((gradient + gradient.T) / 2)[-1]


def test_worked_case_has_the_constant_one():
    found = theory.one_sided_lipschitz(WORKED)
    assert found.lower == pytest.approx(1.0, abs=1e-9) and 1.0 <= found.upper < 1.001
    assert abs(found.where[0]) == pytest.approx(1.0) and found.divergence == found.upper


@pytest.mark.parametrize("d, seed", [(2, 0), (2, 1), (3, 2), (4, 3)])
def test_enclosure_holds_what_brute_force_finds(d, seed):
    rng = np.random.default_rng(seed)
    head = tkf.AttentionWeights(
        np.eye(d) + 0.3 * rng.normal(size=(d, d)), np.eye(d) + 0.4 * rng.normal(size=(d, d))
    )
    found = theory.one_sided_lipschitz(head, 1e-2, most_cells=20_000)
    assert by_differences(head, found.where) == pytest.approx(found.lower, rel=1e-6)
    x = rng.normal(size=(1500, d))
    brute = max(by_differences(head, row) for row in x / np.linalg.norm(x, axis=1, keepdims=True))
    assert brute <= found.lower + 1e-6 and found.lower <= found.upper
    assert brute > found.lower - 0.05 * abs(found.lower)  # the ascent did not invent its value
    if d == 2:
        assert found.upper - found.lower <= 1.1e-2 * np.linalg.norm(np.asarray(head.V), 2)


def test_distance_of_two_tokens_grows_no_faster():
    """Zero temperature, plain Runge–Kutta: every pair, far apart or near."""
    B, V = np.asarray(SPHERE.B), np.asarray(SPHERE.V)
    x = np.random.default_rng(3).normal(size=(60, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    x[30:] = x[:30] + 1e-3 * x[30:]
    x /= np.linalg.norm(x, axis=1, keepdims=True)

    def field(y):
        read = y @ B / np.linalg.norm(y @ B, axis=1, keepdims=True) @ V.T
        return read - y * np.sum(y * read, axis=1, keepdims=True)

    def apart(y):
        chord = np.linalg.norm(y[:, None] - y[None], axis=2)
        return 2 * np.arcsin(np.minimum(chord / 2, 1))

    L, first = theory.one_sided_lipschitz(SPHERE).upper, apart(x)
    for k in range(1, 101):
        x = plain_step(field, x, 0.02)
        assert np.all(apart(x) <= np.exp(L * 0.02 * k) * first + 1e-9)


def plain_step(field, x, h):
    k1 = field(x)
    k2 = field(x + h / 2 * k1)
    k3 = field(x + h / 2 * k2)
    k4 = field(x + h * k3)
    x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


# --- the chain


@pytest.mark.parametrize("beta, gap", [(100.0, 0.87), (1000.0, 0.30), (1e4, 0.10)])
def test_first_measurement_of_the_theory(beta, gap):
    """Theory §2.9: 1 + .3cos θ, t = 10, floor with the divergence of zero temperature, which is L = 1."""
    found = theory.concentration_bound(WORKED, 0.7, beta, np.linspace(0, 10, 11), divergence=1.0)
    assert found.laplace[-1] == pytest.approx(gap, rel=0.02)

    def push(r):
        s = beta * 0.5
        kappa = float(mpmath.besseli(0, s) * mpmath.exp(-s))
        return np.exp(10 - r) * np.sqrt(2 / s * (1 + np.log(2 * s / (0.7 * np.exp(-r) * kappa))))

    # L.upper is a little above 1, by 1e-4
    assert found.stability[-1] == pytest.approx(integrate.quad(push, 0, 10)[0], rel=2e-3)


def test_integral_of_the_stability_step():
    ts = np.linspace(0, 3, 7)
    push = 1 + np.abs(ts - 1)
    for L in (-2.0, 0.0, 1e-6, 1.5):
        exact = [
            integrate.quad(lambda r, t=t, L=L: np.exp(L * (t - r)) * (1 + abs(r - 1)), 0, t, points=[1.0])[0]
            for t in ts
        ]
        np.testing.assert_allclose(growth(ts, push, L), exact, rtol=1e-7, atol=1e-12)


def test_floor_follows_its_own_equation():
    """−log m of "split" obeys ℓ' = a + bℓ, in closed form, until E|y−ȳ|² ≤ 1 takes over."""
    beta, m = 1e4, 0.7
    ts = np.linspace(0, 0.4, 5)
    found = theory.concentration_bound(WORKED, m, beta, ts)
    s, b = 0.5 * beta, 2 * 1.0 * 2.0 / 0.5
    a = 1.0 + b * (1 + np.log(2 * s) - float(log_peak(s, 2)))
    exact = (-np.log(m) + a / b) * np.exp(b * ts) - a / b
    np.testing.assert_allclose(-found.log_floor, exact, rtol=1e-6)
    late = theory.concentration_bound(WORKED, m, 10.0, [20.0, 21.0])
    assert np.diff(late.log_floor) == pytest.approx(-(1 + 10 * 2.0))


@pytest.mark.parametrize("d, k", [(2, 1), (3, 1), (4, 2)])
def test_worst_law_is_what_sorting_finds(d, k):
    """The greatest integral with a density between two numbers: ceiling on the greatest values, by sorting."""
    spectrum = np.where(np.arange(d) < k, 2.0, 1.0)
    where = theory.limit(tkf.AttentionWeights(np.eye(d), np.diag(spectrum)))
    x = np.random.default_rng(0).normal(size=(100_000, d))
    tangent = np.linalg.norm(x[:, k:], axis=1) / np.linalg.norm(x[:, :k], axis=1)
    m, M = 0.6, 1.5
    values = np.sort(np.arctan(tangent * np.exp(-1.2)) ** 2)[::-1]
    top = round(len(values) * (1 - m) / (M - m))
    brute = np.sqrt((M * values[:top].sum() + m * values[top:].sum()) / len(values))
    assert worst_law_distance(where, (m, M), 2, np.array([1.2]))[0] == pytest.approx(brute, rel=0.02)
    free = worst_law_distance(where, (m, np.inf), 2, np.array([50.0]))[0]
    assert free == pytest.approx(np.sqrt(0.4) * np.pi / 2, rel=1e-3)
    uniform = worst_law_distance(where, (1.0, 1.0), 2, np.array([1.2]))[0]
    assert uniform == pytest.approx(np.sqrt(values.mean()), rel=0.02)


@pytest.mark.parametrize("d", [2, 3, 5])
def test_lyapunov_step_bounds_every_orbit(d):
    """Orbits e^{Dτ}x0 with t = ∫|Bᵀx|dτ, where D and B do not commute."""
    head = symmetric_head(d, 10 + d)
    B, D = np.asarray(head.B), np.asarray(head.D)
    values, vectors = np.linalg.eigh((D + D.T) / 2)
    x0 = np.random.default_rng(d).normal(size=(40, d))
    tokens = tkf.Tokens(x0 / np.linalg.norm(x0, axis=1, keepdims=True))
    tau = np.linspace(0, 4, 4001)
    x = np.asarray(tokens.x) @ vectors * np.exp((values - values[-1]) * tau[:, None, None])
    x = x @ vectors.T / np.linalg.norm(x, axis=2, keepdims=True)
    t = integrate.cumulative_simpson(np.linalg.norm(x @ B, axis=2), dx=tau[1], axis=0, initial=0)
    ts = np.linspace(0, t[-1].min(), 9)
    found = theory.concentration_bound(head, 1.0, 1.0, ts, law=tokens)
    angle = np.arccos(np.minimum(np.abs(x @ vectors[:, -1]), 1))
    measured = np.stack([np.interp(ts, t[:, i], angle[:, i]) for i in range(40)], axis=1)
    bounds = found.angles(tokens)
    assert np.all(measured <= bounds * (1 + 1e-6) + 1e-6)
    np.testing.assert_allclose(bounds[0], measured[0], atol=1e-6)
    np.testing.assert_allclose(found.lyapunov, np.sqrt(np.mean(bounds**2, axis=1)))


def test_chain_bounds_a_plain_softmax_flow():
    """1 + .3cos θ at β = 100 by a NumPy loop: gap, floor, coupling and W2 to the limit, each below its bound."""
    n, beta, h, m = 400, 100.0, 0.02, 0.7
    theta, x = circle(n)
    w = (1 + 0.3 * np.cos(theta)) / n
    B, V = np.asarray(WORKED.B), np.asarray(WORKED.V)
    aim = lambda y: y @ B / np.linalg.norm(y @ B, axis=1, keepdims=True)  # noqa: E731
    cross = lambda y, read: read - y * np.sum(y * read, axis=1, keepdims=True)  # noqa: E731

    def means(y):
        score = beta * (y @ B) @ y.T
        kernel = w * np.exp(score - score.max(axis=1, keepdims=True))
        return kernel @ y / kernel.sum(axis=1, keepdims=True)

    cold, warm = x, x
    for _ in range(50):
        cold = plain_step(lambda y: cross(y, aim(y) @ V.T), cold, h)
        warm = plain_step(lambda y: cross(y, means(y) @ V.T), warm, h)
    found = theory.concentration_bound(WORKED, m, beta, [0.0, 1.0], law=tkf.Tokens(x, w))
    gap = np.linalg.norm(means(warm) - aim(warm), axis=1).max()
    angle = np.unwrap(np.arctan2(warm[:, 1], warm[:, 0]))
    density = 2 * np.pi * w[1:-1] / ((angle[2:] - angle[:-2]) / 2)
    apart = np.sqrt(w @ np.arccos(np.clip(np.sum(cold * warm, axis=1), -1, 1)) ** 2)
    to_limit = np.sqrt(w @ np.arccos(np.abs(cold[:, 1])) ** 2)
    assert gap <= found.laplace[1] and density.min() >= found.floor[1]
    assert apart <= found.stability[1] and to_limit <= found.lyapunov[1]
    assert apart > 0.001 and to_limit > 0.3 * found.lyapunov[1]
    assert found.total[1] == found.lyapunov[1] + found.stability[1] and found.best[1] == min(found.total)


def test_a_bound_that_is_uniform_over_laws_is_no_better_than_that_of_a_law():
    _, x = circle(3000)
    law = tkf.Tokens(x, (1 + 0.3 * x[:, 0]) / len(x))
    own, any_law = (
        theory.concentration_bound(WORKED, 0.7, 50.0, [0.0, 2.0], law=given, ceiling=1.3).lyapunov
        for given in (law, None)
    )
    assert np.all(own < any_law) and np.all(any_law < 1.2 * own)


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"floor": 0.0}, "`floor` must lie in \\(0, 1\\], but was 0.0"),
        ({"beta": np.inf}, "`beta` must be positive and finite"),
        ({"ceiling": 0.5}, "`ceiling` must be at least 1"),
        ({"laplace": "best"}, "`laplace` must be 'split' or 'worst'"),
        ({"divergence": np.nan}, "`divergence` must be a finite number"),
        (
            {"weights": tkf.AttentionWeights(np.diag([1.0, 0.0]), np.eye(2))},
            "`weights` must have a regular B",
        ),
        ({"weights": tkf.AttentionWeights([[1.0, 1], [0, 1]], np.diag([2.0, 1]))}, "have a symmetric V Bᵀ"),
        ({"law": tkf.Tokens(np.eye(3))}, "`law` must have d = 2"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(change, sentence):
    given = {"weights": WORKED, "floor": 0.5, "beta": 10.0, "ts": [0.0, 1.0]} | change
    with pytest.raises(tkf.InputError, match=sentence):
        theory.concentration_bound(**given)
