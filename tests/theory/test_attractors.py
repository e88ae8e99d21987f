"""Attractors of several heads at zero temperature against the digits of theory §6.7 and against other routes."""

import numpy as np
import pytest
from scipy import integrate, optimize

import tokenfield as tkf
from tokenfield import theory
from tokenfield.theory.head_flow import HeadFlow
from tokenfield.theory.sign_heads import SignHeads


def turn(angle, d=2):
    R = np.eye(d)
    R[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return R


def S(angle, first, second):
    return turn(angle) @ np.diag([first, second]) @ turn(angle).T


def heads(B, V=None):
    return tkf.AttentionWeights(np.array(B), np.array(B if V is None else V))


FOUR = heads([np.diag([1.0, 0.2]), S(1.2, 0.9, 0.1)])
BROAD = [np.diag([1.0, 0.6]), S(1.2, 0.9, 0.5)]
TURNING = heads(BROAD, [turn(1.2) @ B for B in BROAD])
ROWS = np.array([[1.0, 0, 0], [0.5, 1, 0], [0.2, 0.3, 1]])
ROWS = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
RANK_ONE = heads([np.outer(a, a) for a in ROWS])
#: Nearly of rank one: several attractors in d = 3 that no signs decide.
NARROW = heads([np.outer(a, a) + 0.05 * np.eye(3) for a in ROWS])


def angles(x):
    return np.mod(np.arctan2(x[:, 1], x[:, 0]), 2 * np.pi)


def uniform(n, d, seed):
    x = np.random.default_rng(seed).normal(size=(n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def field(weights, x):
    """P_x F at one point, head by head."""
    total = np.zeros(len(x))
    for B, V in zip(np.asarray(weights.stacked()[0]), np.asarray(weights.stacked()[1]), strict=True):
        total = total + V @ (B.T @ x) / np.linalg.norm(B.T @ x)
    return total - (x @ total) * x


def test_four_sinks_have_the_digits_of_theory():
    found = theory.attractors(FOUR, 0)
    sinks = np.array([0.5754508397, 2.2132138405])
    np.testing.assert_allclose(angles(found.x), [*sinks, *(sinks + np.pi)], atol=1e-10)
    np.testing.assert_allclose(found.rates, [1.4917390913, 0.8646181379] * 2, atol=6e-11)
    np.testing.assert_allclose(found.masses, [0.3321991617, 0.1678008383] * 2, atol=6e-11)
    np.testing.assert_array_equal(found.mass_intervals, np.stack([found.masses] * 2, axis=1))
    sources = np.mod([1.6612988915, -0.4259700000], np.pi)
    np.testing.assert_allclose(angles(found.sources), [*sources, *(sources + np.pi)], atol=1e-10)
    assert found.settled and found.cycles == () and found.unsettled == 0


def test_two_sinks_have_the_digits_of_theory():
    found = theory.attractors(heads(BROAD), 0)
    np.testing.assert_allclose(angles(found.x), [0.5924142607, 0.5924142607 + np.pi], atol=1e-10)
    np.testing.assert_allclose(found.rates, 0.7767588964, atol=6e-11)
    np.testing.assert_allclose(found.masses, 0.5, atol=1e-14)


def test_a_limit_cycle_has_the_period_of_theory():
    found = theory.attractors(TURNING, 0)
    (cycle,) = found.cycles
    assert cycle.period == pytest.approx(4.447008189954, abs=1e-12)
    assert (cycle.mass, cycle.exact) == (1.0, True)
    assert not found.settled and found.x.shape == (0, 2) and "4.447008" in found.note


@pytest.mark.slow
def test_rates_on_the_circle_are_those_of_a_run():
    """A token that begins .01 from a sink comes nearer by e^{−rate t}."""
    found = theory.attractors(FOUR, 0)
    start = angles(found.x) + 0.01
    tokens = tkf.Tokens(np.stack([np.cos(start), np.sin(start)], axis=1))
    run = tkf.simulate(tkf.ZeroTemperature(FOUR), tokens, [0, 3.0, 5.0], tkf.Adaptive(rtol=1e-11, atol=1e-13))
    apart = np.linalg.norm(run.x - found.x, axis=2)
    np.testing.assert_allclose(np.log(apart[1] / apart[2]) / 2, found.rates, rtol=1e-3)


def test_tokens_on_the_circle_end_where_their_runs_do():
    """Two tokens close to every source, one on each side, and others."""
    found = theory.attractors(FOUR, 0)
    start = np.concatenate([angles(found.sources) + 1e-3, angles(found.sources) - 1e-3, np.arange(8) * 0.7])
    tokens = tkf.Tokens(np.stack([np.cos(start), np.sin(start)], axis=1))
    run = tkf.simulate(tkf.ZeroTemperature(FOUR), tokens, [0, 40.0], tkf.Adaptive(rtol=1e-9, atol=1e-12))
    np.testing.assert_allclose(found.push(tokens).x, run.x[-1], atol=1e-6)


@pytest.mark.parametrize("thin", [0.0, 1e-9])
def test_jumps_on_the_circle_are_seen(thin):
    """Rank-one heads, and heads that are nearly so: signs decide both, a = (1, 0) and (.5, 1)."""
    a, b = np.array([1.0, 0.0]), np.array([0.5, 1.0]) / np.sqrt(1.25)
    found = theory.attractors(
        heads([np.outer(a, a) + thin * np.eye(2), np.outer(b, b) + thin * np.eye(2)]), 0
    )
    pulls = np.array([a + b, b - a])  # both are self-consistent
    np.testing.assert_allclose(angles(found.x[:2]), angles(pulls), atol=1e-7)
    np.testing.assert_allclose(found.rates[:2], np.linalg.norm(pulls, axis=1), rtol=1e-6)
    corner = np.arccos(a @ b)  # between the lines on which a sign changes
    np.testing.assert_allclose(
        found.masses[:2], [(np.pi - corner) / (2 * np.pi), corner / (2 * np.pi)], atol=1e-7
    )


def test_a_jump_can_hold_tokens():
    """V = −B: tokens are pushed to the line where the sign changes, and reach it in finite time."""
    a = np.diag([1.0, 0.0])
    found = theory.attractors(heads([a, a], [-a, -a]), 0)
    np.testing.assert_allclose(found.x, [[0, 1], [0, -1]], atol=1e-15)
    assert np.all(np.isinf(found.rates)) and found.settled


def test_rank_one_heads_have_the_digits_of_theory():
    found = theory.attractors(RANK_ONE, 0)
    expected = {
        (1, 1, 1): 0.204273797006,
        (1, 1, -1): 0.119518011819,
        (1, -1, 1): 0.075849814292,
        (1, -1, -1): 0.100358376882,
    }
    assert found.settled and len(found.x) == 8
    for x, rate, mass in zip(found.x, found.rates, found.masses, strict=True):
        signs = np.sign(ROWS @ x)
        pull = signs @ ROWS
        np.testing.assert_allclose(x, pull / np.linalg.norm(pull), atol=1e-14)
        assert rate == pytest.approx(np.linalg.norm(pull), rel=1e-13)
        assert mass == pytest.approx(expected[tuple(signs * signs[0])], abs=6e-13)


@pytest.mark.parametrize(("count", "d", "seed"), [(6, 3, 1), (5, 4, 2)])
def test_signs_are_crossed_as_the_flow_does(count, d, seed):
    """Not all signs are self-consistent: ends of great-circle arcs against integration of the field."""
    a = np.random.default_rng(seed).normal(size=(count, d))
    weights = heads([np.outer(row, row) for row in a])
    flow = HeadFlow.of(weights)
    signs = SignHeads.of(flow)
    x = uniform(400, d, 5)
    ends, settled = signs.ends(x)
    assert settled.all()
    np.testing.assert_allclose(flow.follow(x, 100.0), ends, atol=1e-6)
    found = theory.attractors(weights, 0, starts=400)
    assert found.settled and len(found.x) == len(signs.attractors()) < 2**count
    assert found.masses.sum() == pytest.approx(1, abs=1e-12)


def test_sectors_of_the_sphere_are_measured():
    """Solid angles of all sectors of 6 planes against 10⁵ random points, and they fill the sphere."""
    a = np.random.default_rng(4).normal(size=(6, 3))
    signs, masses = SignHeads.of(HeadFlow.of(heads([np.outer(row, row) for row in a]))).sector_masses()
    assert len(masses) == 32 and masses.sum() == pytest.approx(1, abs=1e-13)  # n² − n + 2 sectors
    normals = SignHeads.of(HeadFlow.of(heads([np.outer(row, row) for row in a]))).b
    drawn = np.where(uniform(100_000, 3, 6) @ normals.T > 0, 1.0, -1.0)
    for row, mass in zip(signs, masses, strict=True):
        share = np.mean(np.all(drawn == row, axis=1))
        assert abs(share - mass) < 4.5 * np.sqrt(mass * (1 - mass) / 1e5)


def test_attractors_are_the_local_maxima_of_the_potential():
    """V_h = B_h: ascent of Φ = Σ|B_hᵀx|; its maxima found by another optimiser, and every start goes uphill."""
    found = theory.attractors(NARROW, 1, starts=300)
    B = np.asarray(NARROW.stacked()[0])

    def point(angles):
        return np.array(
            [np.cos(angles[0]), np.sin(angles[0]) * np.cos(angles[1]), np.sin(angles[0]) * np.sin(angles[1])]
        )

    def descent(angles):
        return -np.sum(np.linalg.norm(B @ point(angles), axis=1))

    starts = np.random.default_rng(3).uniform(0, np.pi, size=(40, 2))
    maxima = [point(optimize.minimize(descent, start, tol=1e-7).x) for start in starts]
    for y in maxima:
        assert np.min(np.linalg.norm(found.x - y, axis=1)) < 1e-5
    assert found.settled and len(found.x) == 6 == 2 * len(
        {tuple(np.sign(ROWS @ y) * np.sign(y[1])) for y in maxima}
    )
    for x in found.x:
        assert np.linalg.norm(field(NARROW, x)) < 1e-13


def test_rates_in_higher_dimension_are_eigenvalues_of_differences():
    found = theory.attractors(NARROW, 1, starts=100)
    x, rate = found.x[0], found.rates[0]
    tangent = np.linalg.svd(x[None])[2][1:]
    h = 1e-5

    def along(u):
        ends = [(x + s * h * u) / np.linalg.norm(x + s * h * u) for s in (1, -1)]
        return (field(NARROW, ends[0]) - field(NARROW, ends[1])) / (2 * h)

    slope = np.array([[v @ along(u) for u in tangent] for v in tangent])
    assert rate == pytest.approx(-np.max(np.linalg.eigvals(slope).real), rel=1e-7)


def test_masses_lie_in_their_intervals():
    """Of the rank-one heads by starts, where the exact masses are known; and intervals shrink."""
    tilted = heads([np.outer(a, a) + 1e-6 * np.eye(3) for a in ROWS])
    exact = np.sort(theory.attractors(RANK_ONE, 0).masses)
    for starts, width in ((100, 0.11), (1500, 0.03)):
        found = theory.attractors(tilted, 3, starts=starts)
        order = np.argsort(found.masses)
        low, high = found.mass_intervals[order].T
        assert np.all((low - 5e-3 < exact) & (exact < high + 5e-3)) and np.max(high - low) < width
    assert found.masses.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("seed", [0, 1])
def test_one_head_agrees_with_its_limit(seed):
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    weights = tkf.AttentionWeights(np.diag([0.5, 2.0, 1.0, 0.7]) @ Q, (Q @ np.diag([1.5, 0.5, 0.8, 0.2])).T)
    where = theory.limit(weights)
    found = theory.attractors(weights, seed, starts=200)
    if where.kind == "rotating":
        assert found.cycles[0].period == pytest.approx(where.period.t, rel=1e-8)
        return
    p = where.basis[:, 0]
    assert found.settled and len(found.x) == 2
    assert abs(found.x[0] @ p) == pytest.approx(1, abs=1e-12)
    assert found.rates[0] == pytest.approx(where.gap / np.linalg.norm(np.asarray(weights.B).T @ p), rel=1e-9)
    tokens = tkf.Tokens(uniform(50, 4, 7))
    np.testing.assert_allclose(found.push(tokens).x, where.push(tokens).x, atol=1e-9)


@pytest.mark.slow
def test_one_rotating_head_has_the_period_of_its_limit():
    weights = tkf.AttentionWeights(
        np.diag([1.0, 2.0, 0.5]), np.array([[0, 1.0, 0], [-1, 0.3, 0], [0.2, 0, -1]])
    )
    (cycle,) = theory.attractors(weights, 0, starts=20).cycles
    assert cycle.period == pytest.approx(theory.limit(weights).period.t, rel=1e-9)
    assert cycle.mass == 1 and not cycle.exact


def test_a_cycle_in_three_dimensions_is_measured():
    """The turning heads of the circle with a third axis that dies out; a run comes back after one period."""
    B = [np.diag([1.0, 0.6, 0.3]), turn(1.2, 3) @ np.diag([0.9, 0.5, 0.3]) @ turn(1.2, 3).T]
    weights = heads(B, [turn(1.2, 3) @ each for each in B])
    found = theory.attractors(weights, 0, starts=20)
    (cycle,) = found.cycles
    assert cycle.period == pytest.approx(4.447008189954, abs=1e-9)
    assert not found.settled and not cycle.exact and cycle.mass == 1
    run = integrate.solve_ivp(
        lambda t, y: field(weights, y), (0, cycle.period), cycle.x[0], rtol=1e-10, atol=1e-12
    )
    np.testing.assert_allclose(run.y[:, -1], cycle.x[0], atol=1e-7)


def test_what_does_not_settle_is_said():
    still = theory.attractors(heads([np.eye(3)] * 2), 0, starts=10)
    assert not still.settled and still.unsettled == 1 and "not isolated" in still.note
    assert theory.attractors(heads([np.eye(2)] * 2), 0).note.startswith("nothing moves")
    sliding = heads([np.outer(a, a) for a in ROWS], [-np.outer(a, a) for a in ROWS])
    found = theory.attractors(sliding, 0, starts=10)
    assert not found.settled and found.unsettled == 1 and "not settled" in found.note


@pytest.mark.slow
def test_tokens_end_where_their_runs_do():
    tokens = tkf.Tokens(np.concatenate([uniform(30, 3, 8), [theory.attractors(NARROW, 1, 50).x[0]]]))
    run = tkf.simulate(tkf.ZeroTemperature(NARROW), tokens, [0, 40.0], tkf.Adaptive(rtol=1e-9, atol=1e-12))
    found = theory.attractors(NARROW, 1, starts=50).push(tokens)
    np.testing.assert_allclose(found.x, run.x[-1], atol=1e-6)
    np.testing.assert_array_equal(found.weights, tokens.weights)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_sizes_do_not_overflow(size):
    plain, scaled = theory.attractors(FOUR, 0), theory.attractors(heads(size * FOUR.B, FOUR.V), 0)
    np.testing.assert_allclose(scaled.x, plain.x, atol=1e-12)
    np.testing.assert_allclose(scaled.rates, plain.rates, rtol=1e-10)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: theory.attractors(1, 0), "`weights` must be an AttentionWeights"),
        (lambda: theory.attractors(FOUR, -1), "`key` must be a whole number"),
        (lambda: theory.attractors(NARROW, 0, 0), "`starts` must be a whole number, at least 1"),
        (
            lambda: theory.attractors(tkf.AttentionWeights(np.eye(2), np.eye(2), np.ones(2)), 0),
            "`weights` must have no score_bias",
        ),
        (lambda: theory.attractors(TURNING, 0).push(tkf.Tokens(np.eye(2))), "all tokens go round"),
        (lambda: theory.attractors(FOUR, 0).push(tkf.Tokens(np.eye(3))), "`tokens` must have d = 2"),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match=sentence):
        bad()
