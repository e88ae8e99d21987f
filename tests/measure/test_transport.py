"""Wasserstein distances against brute force, closed forms, and the axioms of a distance."""

import time
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import tokenfield as tkf
from tokenfield.measure import limit_law, transport
from tokenfield.measure.coupling import atoms, chord_nodes, circle, multiscale
from tokenfield.measure.coupling.certificate import Dual, excess
from tokenfield.measure.coupling.dyadic_cells import halved
from tokenfield.measure.coupling.plan import (
    Cost,
    DiscreteLaw,
    Plan,
    as_discrete_law,
    completed,
    cumulated,
    monotone,
)
from tokenfield.measure.transport import coupled_distance

COSTS = ["geodesic", "chordal"]


def points(n, d, rng, shift=0.0):
    x = rng.normal(size=(n, d))
    x[:, 0] += shift
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def on_circle(angle, weights=None):
    return tkf.Tokens(np.stack([np.cos(angle), np.sin(angle)], axis=1), weights)


def brute_force(x, y, p, cost):
    """Equal atoms, as many on both sides: the best permutation. Angles by arccos, not by chords."""
    angle = np.arccos(np.clip(x @ y.T, -1, 1))
    matrix = (angle if cost == "geodesic" else 2 * np.sin(angle / 2)) ** p
    rows, columns = linear_sum_assignment(matrix)
    return matrix[rows, columns].mean() ** (1 / p)


def multiplicities(n, total, rng):
    """n whole numbers ≥ 1 of the given sum."""
    return 1 + rng.multinomial(total - n, np.ones(n) / n)


def close_in(found, expected):
    assert found.value == pytest.approx(expected, rel=1e-7, abs=1e-7)  # arccos of 1 − 1e-16 is 1e-8
    assert found.lower - 1e-7 <= expected <= found.upper + 1e-7
    assert found.lower <= found.value <= found.upper


@pytest.mark.parametrize("d", [2, 3, 8])
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_agrees_with_brute_force(d, cost, p, weighted):
    rng = np.random.default_rng([d, p, weighted, cost == "chordal"])
    for _ in range(12):
        n, m = rng.integers(1, 9, size=2)
        total = int(rng.integers(max(n, m), 25)) if weighted else int(n)
        m = m if weighted else n
        a, b = multiplicities(n, total, rng), multiplicities(m, total, rng)
        x, y = points(n, d, rng, rng.normal()), points(m, d, rng)
        found = tkf.wasserstein(tkf.Tokens(x, a / total), tkf.Tokens(y, b / total), p, cost)
        close_in(found, brute_force(np.repeat(x, a, axis=0), np.repeat(y, b, axis=0), p, cost))
        assert found.method.startswith("exact")


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("p", [1.5, 4])
def test_other_powers(d, cost, p):
    rng = np.random.default_rng([d, 7])
    for _ in range(5):
        x, y = points(7, d, rng), points(7, d, rng)
        close_in(tkf.wasserstein(tkf.Tokens(x), tkf.Tokens(y), p, cost), brute_force(x, y, p, cost))


@pytest.mark.parametrize("d", [2, 3, 8])
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("p", [1, 2])
def test_scales_contain_brute_force(d, cost, p):
    """The method for many tokens, made to start from 16 cells, on problems that can be solved at once."""
    rng = np.random.default_rng([d, p])
    for n, m, shift in ((60, 60, 0.0), (100, 50, 1.0)):
        x, y = points(n, d, rng), points(m, d, rng, shift)
        mu, nu = as_discrete_law(x, np.full(n, 1 / n)), as_discrete_law(y, np.full(m, 1 / m))
        bounds = multiscale.by_scales(mu, nu, Cost(cost, p), coarse=4)
        upper = Cost(cost, p).of_plan(bounds.plan, mu, nu)
        exact = brute_force(x, np.repeat(y, n // m, axis=0), p, cost)
        assert bounds.lower - 1e-9 <= exact <= upper + 1e-9
        assert upper - bounds.lower <= 1e-5 * upper
        np.testing.assert_allclose(np.bincount(bounds.plan.i, bounds.plan.mass), mu.w, atol=1e-14)
        np.testing.assert_allclose(np.bincount(bounds.plan.j, bounds.plan.mass), nu.w, atol=1e-14)


def test_scales_stay_true_when_the_search_is_cut_short():
    rng = np.random.default_rng(3)
    x, y = points(300, 3, rng), points(300, 3, rng, 0.5)
    mu, nu = as_discrete_law(x, np.full(300, 1 / 300)), as_discrete_law(y, np.full(300, 1 / 300))
    cost, exact = Cost("geodesic", 2), brute_force(x, y, 2, "geodesic")
    for pairs in (0, 5_000):
        bounds = multiscale.by_scales(mu, nu, cost, coarse=4, pairs=pairs)
        assert bounds.lower <= exact <= cost.of_plan(bounds.plan, mu, nu) + 1e-9


@pytest.mark.parametrize("cost", [Cost("geodesic", 1), Cost("geodesic", 2), Cost("chordal", 2)])
@pytest.mark.parametrize("d", [2, 3, 8])
def test_excess_of_potentials(cost, d):
    """Against the full matrix: found to the end if allowed, never underestimated if not."""
    rng = np.random.default_rng([d, 30])
    x, y = points(2000, d, rng), points(1300, d, rng)
    mu, nu = (
        DiscreteLaw(x := x[halved(x)], np.full(2000, 1 / 2000)),
        DiscreteLaw(y := y[halved(y)], np.full(1300, 1 / 1300)),
    )
    f = 0.3 * x[:, 0] + 0.01 * rng.normal(size=2000)
    matrix = cost.matrix(x, y)
    g = np.min(matrix - f[:, None], axis=0) + 0.01 * rng.normal(size=1300)
    true = np.max(f[:, None] + g - matrix, axis=1)
    found = excess(mu, nu, Dual(f, g), cost, 10**10, 1e-4)
    np.testing.assert_allclose(found.at, np.where(true > 1e-4, true, 0) + 1e-4, atol=1e-12)
    np.testing.assert_allclose(f[found.i] + g[found.j] - matrix[found.i, found.j] > 1e-4, True)
    for pairs in (0, 10_000, 1_000_000):
        assert np.all(excess(mu, nu, Dual(f, g), cost, pairs, 1e-4).at >= true)


def test_the_interval_on_the_circle_contains_brute_force():
    """The envelope of the chordal cost alone: a lower bound and a coupling, sharp for short moves."""
    rng = np.random.default_rng(5)
    sharp = 0
    for k in range(40):
        x = np.asarray(on_circle(rng.normal(size=8) / 2.0 ** (k % 4)).x)
        y = np.asarray(on_circle(rng.normal(size=8) / 2.0 ** (k % 3)).x)
        mu, nu = as_discrete_law(x, np.full(8, 1 / 8)), as_discrete_law(y, np.full(8, 1 / 8))
        p = 1 + k % 3
        plan, lower = circle.chordal_plan(mu, nu, Cost("chordal", p))
        upper = Cost("chordal", p).of_plan(plan, mu, nu)
        exact = brute_force(x, y, p, "chordal")
        assert lower - 1e-8 <= exact <= upper + 1e-8
        sharp += upper == lower
    assert 5 < sharp < 35


def circle_laws(rng, n=400):
    """Pairs of laws on the circle: near, far, noise alone, heavy weights beside light ones."""
    a, b = rng.uniform(-np.pi, np.pi, n), rng.vonmises(2.0, 3.0, n)
    skew = rng.dirichlet(np.full(n, 0.1))
    for angle, u, image, v in (
        (a, None, b, None),
        (a, skew, b, skew[::-1]),
        (b, None, b + 0.02 * rng.normal(size=n), None),
        (a, None, rng.uniform(-np.pi, np.pi, n), None),
        (b, skew, np.array([-1.0, 0.5, 3.0]), np.array([0.2, 0.5, 0.3])),
    ):
        mu, nu = on_circle(angle, u), on_circle(image, v)
        yield (
            as_discrete_law(np.asarray(mu.x), np.asarray(mu.weights)),
            as_discrete_law(np.asarray(nu.x), np.asarray(nu.weights)),
        )


@pytest.mark.parametrize("p", [1, 1.3, 2, 3, 6])
def test_nodes_of_the_circle_contain_the_program(p):
    """The method for many tokens and the chord, on problems that one program solves."""
    cost = Cost("chordal", p)
    for mu, nu in circle_laws(np.random.default_rng(14)):
        program = atoms.by_program(mu, nu, cost)
        exact = cost.of_plan(program.plan, mu, nu)
        assert program.lower == pytest.approx(exact, rel=1e-5)  # W^6 of a short way is 1e-11
        for count in (16, 64, 256):
            bounds = chord_nodes.by_nodes(mu, nu, cost, count)
            upper = cost.of_plan(bounds.plan, mu, nu)
            assert bounds.lower * (1 - 1e-12) <= exact <= upper * (1 + 1e-12)
            np.testing.assert_allclose(np.bincount(bounds.plan.i, bounds.plan.mass), mu.w, atol=1e-13)
            np.testing.assert_allclose(np.bincount(bounds.plan.j, bounds.plan.mass), nu.w, atol=1e-13)


def test_half_the_mass_where_the_angle_jumps():
    """Half the mass at angle π, the rest and the other law about 0: the means are .92 apart."""
    rng = np.random.default_rng(0)
    angle = np.append(np.pi, rng.uniform(-1, 1, 5999))
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    x[0] = (-1, 0)
    w = np.append(0.5, np.full(5999, 0.5 / 5999))
    image = rng.uniform(-1, 1, 6000)
    found = tkf.wasserstein(tkf.Tokens(x, w), on_circle(image), 1, "chordal")
    across = np.cos(image / 2).mean()  # half the chord from π
    assert 0.92 < found.lower <= found.upper < across + 0.05  # half the mass goes there, the rest stays near


def test_laws_that_differ_by_rounding_on_the_nodes():
    x = np.array([[0.0, -1.0]])
    bounds = chord_nodes.by_nodes(
        DiscreteLaw(x, np.ones(1)), DiscreteLaw(x, np.array([1 - 1.1e-16])), Cost("chordal", 1), 3
    )
    assert (
        bounds.lower == 0
        and Cost("chordal", 1).of_plan(bounds.plan, DiscreteLaw(x, np.ones(1)), DiscreteLaw(x, np.ones(1)))
        == 0
    )


def test_nodes_lose_what_interpolation_adds():
    """An atom at a node, one amid two nodes: (h(t − δ/2) + h(t + δ/2))/2 is more than W² = h(t).

    δ²/4 max h'' = δ²/2 is taken off, twice what was added to the shortest moves.
    """
    cost, step = Cost("chordal", 2), 2 * np.pi / 64
    for cells in (1.5, 5.5, 15.5):
        laws = [on_circle(np.array([k * step - np.pi])) for k in (3, 3 + cells)]
        mu, nu = (as_discrete_law(np.asarray(law.x), np.ones(1)) for law in laws)
        h = [2 - 2 * np.cos(s * step) for s in (cells - 0.5, cells, cells + 0.5)]
        between = (h[0] + h[2]) / 2
        lower = chord_nodes.by_nodes(mu, nu, cost, 64).lower
        assert lower**2 == pytest.approx(between - step**2 / 2, abs=1e-12)
        assert lower**2 < h[1] < between


def test_nodes_narrow_the_interval_by_the_square():
    """Smooth laws far from each other: four times as narrow with twice the nodes."""
    t = (np.arange(3000) + 0.5) * 2 * np.pi / 3000
    x = np.stack([np.cos(t), np.sin(t)], axis=1)
    mu, nu = DiscreteLaw(x, (1 + 0.8 * np.cos(t)) / 3000), DiscreteLaw(x, (1 - 0.9 * np.cos(t - 0.4)) / 3000)
    for p in (1, 2):
        cost = Cost("chordal", p)
        widths = []
        for count in (128, 256, 512):
            bounds = chord_nodes.by_nodes(mu, nu, cost, count)
            widths.append(cost.of_plan(bounds.plan, mu, nu) - bounds.lower)
        orders = np.log2(np.array(widths[:-1]) / widths[1:])
        assert np.all(orders > (0.9 if p == 1 else 1.8))
        assert widths[-1] < (2e-3 if p == 1 else 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("p", [1, 2])
def test_a_million_tokens_and_the_chord(p):
    """Mass that moves far: a narrow interval, which contains the value of equal quantiles of the laws."""
    n = 10**6
    rng = np.random.default_rng(15)
    a, b = rng.vonmises(0, 2, n), rng.vonmises(np.pi, 1, n)
    start = time.perf_counter()
    found = tkf.wasserstein(on_circle(a), on_circle(b), p, "chordal")
    assert time.perf_counter() - start < 120
    assert found.upper - found.lower < 1e-4 * found.value
    few = [np.sort(angle % (2 * np.pi))[n // 4000 :: n // 2000] for angle in (a, b)]
    moved = 2 * np.pi / 2000  # at most this far, and mostly less, to one of 2000 equal parts
    coarse = brute_force(*(np.asarray(on_circle(angle).x) for angle in few), p, "chordal")
    assert found.value == pytest.approx(coarse, abs=2 * moved)


@pytest.mark.parametrize("size", [1e-1, 1e-3, 1e-9])
def test_clusters_that_fill_their_atoms(size):
    """Masses that match: every token goes to its own atom, and no rounding to another one."""
    rng = np.random.default_rng(16)
    home = rng.integers(0, 3, 30_000)
    x = np.eye(3)[home] + size * rng.normal(size=(30_000, 3)) / 3
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    centres = tkf.Tokens(np.eye(3), np.bincount(home) / 30_000)
    found = tkf.wasserstein(tkf.Tokens(x), centres)
    assert found.method.startswith("exact")
    assert found.value == pytest.approx(coupled_distance(x, np.eye(3)[home]), rel=1e-9)


def test_slivers_go_with_the_greatest_part():
    plan = Plan(np.array([0, 0, 1, 2, 2]), np.array([0, 1, 1, 0, 1]), np.array([0.3, 1e-16, 0.2, 0.25, 0.25]))
    clean = atoms._without_slivers(plan, 3)
    np.testing.assert_array_equal(clean.i, [0, 1, 2, 2])
    np.testing.assert_array_equal(clean.j, [0, 1, 0, 1])
    np.testing.assert_allclose(clean.mass, [0.3 + 1e-16, 0.2, 0.25, 0.25], rtol=1e-15)
    dust = Plan(np.array([0, 1]), np.array([1, 0]), np.array([1e-20, 1.0]))  # whole tokens stay
    np.testing.assert_array_equal(atoms._without_slivers(dust, 2).mass, dust.mass)


def spread(rng, n, centre, width):
    x = np.asarray(centre) + width * rng.normal(size=(n, len(centre)))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_light_tokens_are_not_lost():
    """A thousand tokens of 5e-16 at the antipode of the others: no token may go less far than to the nearest."""
    rng = np.random.default_rng(0)
    near, far = spread(rng, 100, (1.0, 0, 0), 0.3), spread(rng, 1000, (-1.0, 0, 0), 0.01)
    mu = tkf.Tokens(
        np.concatenate([near, far]), np.append(np.full(100, (1 - 5e-13) / 100), np.full(1000, 5e-16))
    )
    nu = tkf.Tokens(near + 1e-8 * rng.normal(size=near.shape))
    found = tkf.wasserstein(mu, nu, 2, "chordal")
    chord = np.linalg.norm(np.asarray(mu.x)[:, None] - np.asarray(nu.x), axis=-1)
    assert found.upper >= np.sqrt(np.asarray(mu.weights) @ chord.min(axis=1) ** 2)
    assert found.upper - found.lower < 1e-2 * found.value


@pytest.mark.parametrize("p", [1, 2, 16])
def test_a_token_of_no_weight_to_speak_of_is_not_lost(p):
    """1e-18 at (−.8, −.6, 0), nowhere nearer than arccos(−.6) to the others; those agree."""
    points = np.array([[1.0, 0, 0], [0, 1, 0], [np.cos(0.5), np.sin(0.5), 0]])
    mu = tkf.Tokens(np.append(points, [[-0.8, -0.6, 0]], axis=0), [0.25, 0.5, 0.25, 1e-18])
    found = tkf.wasserstein(mu, tkf.Tokens(points, [0.25, 0.5, 0.25]), p)
    least = (1e-18 * np.arccos(-0.6) ** p) ** (1 / p)
    assert found.lower <= least * (1 + 1e-9) and found.upper >= least


@pytest.mark.parametrize("light", [1e-10, 1e-15, 2e-16])
def test_light_tokens_do_not_widen_the_interval(light):
    rng = np.random.default_rng(0)
    w = np.append(np.full(3000, (1 - 3000 * light) / 3000), np.full(3000, light))
    laws = [
        tkf.Tokens(np.concatenate([spread(rng, 3000, (s, 0, 0), 0.5), spread(rng, 3000, (0, 0, 0), 1.0)]), w)
        for s in (1.0, 1.5)
    ]
    found = tkf.wasserstein(*laws)
    assert "scale by scale" in found.method and found.upper - found.lower < 1e-6 * found.value


def test_plans_are_completed():
    rng = np.random.default_rng(1)
    a, b = rng.dirichlet(np.ones(30)), rng.dirichlet(np.ones(20))
    a[:3] = b[4:6] = 1e-15
    a, b = a / a.sum(), b / b.sum()
    whole = monotone(cumulated(a), cumulated(b))
    kept = (whole.i > 2) & (whole.j != 4)
    mass = whole.mass * (1 + 1e-13 * rng.normal(size=len(kept)))
    plan = completed(Plan(whole.i[kept], whole.j[kept], mass[kept]), a, b)
    np.testing.assert_allclose(np.bincount(plan.i, plan.mass, minlength=30), a, atol=1e-17)
    np.testing.assert_allclose(np.bincount(plan.j, plan.mass, minlength=20), b, atol=1e-17)
    assert np.all(plan.mass >= 0)


def test_many_small_differences_of_mass_are_seen():
    """3.9e-15 more on every point of one arc, less on those of another: 1.95e-10 goes a quarter turn."""
    n = 10**5
    arc = np.linspace(-0.01, 0.01, n // 2)
    tokens = on_circle(np.append(arc, np.pi / 2 + arc))
    other = tkf.Tokens(tokens.x, np.full(n, 1 / n) + 3.9e-15 * np.repeat([1, -1], n // 2))
    assert tkf.wasserstein(tokens, other, 1).value == pytest.approx(1.95e-10 * np.pi / 2, rel=0.02)


def test_single_points_are_not_rounded_twice():
    for key in range(200):
        rng = np.random.default_rng(key)
        x = spread(rng, 1, np.zeros(8), 1.0)
        mu, nu = tkf.Tokens(x), tkf.Tokens(spread(rng, 1, x[0], 1e-10))
        exact = np.linalg.norm(np.asarray(mu.x, np.longdouble) - np.asarray(nu.x, np.longdouble))
        assert tkf.wasserstein(mu, nu, 1, "chordal").value == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("p", [1, 2])
def test_closed_forms_on_the_circle(p):
    """A law on a short arc turned by a small angle; quantile functions t ↦ t and t ↦ t²."""
    n = 10**5
    rng = np.random.default_rng(0)
    angle, w = rng.uniform(-0.5, 0.5, n), rng.dirichlet(np.ones(n))
    turned = tkf.wasserstein(on_circle(angle, w), on_circle(angle + 0.01, w), p)
    assert turned.value == pytest.approx(0.01, rel=1e-12)
    t = (np.arange(n) + 0.5) / n
    # ∫|t − t²|^p dt = 1/6 and 1/30 on an arc of length 1: the line is optimal
    expected = {1: 1 / 6, 2: np.sqrt(1 / 30)}[p]
    assert tkf.wasserstein(on_circle(t), on_circle(t**2), p).value == pytest.approx(expected, abs=2 / n**2)


def test_winding_round_the_circle():
    """Uniform against uniform turned by any angle: the nearest turn counts, not the line."""
    n = 12
    t = 2 * np.pi * np.arange(n) / n
    for k in range(-n, n):
        for p in (1, 2, 3):
            found = tkf.wasserstein(on_circle(t), on_circle(t + 2 * np.pi * (k + 0.3) / n), p)
            assert found.value == pytest.approx(0.3 * 2 * np.pi / n, rel=1e-12)


@pytest.mark.parametrize(("cost", "p"), [("geodesic", 1), ("geodesic", 2), ("chordal", 2)])  # convex for ½
def test_dust_on_the_circle(cost, p):
    """Weights far below rounding: a density turned by ½ moves by ½, however narrow; and a problem by hand."""

    def law(angles, w):
        w = np.asarray(w)
        return tkf.Tokens(np.stack([np.cos(angles), np.sin(angles)], axis=1), w / w.sum())

    move = 0.5 if cost == "geodesic" else 2 * np.sin(0.25)
    found = tkf.wasserstein(law([0.0, 1.0], [0.5, 0.5]), law([-3.0, 0.5], [1e-20, 1.0]), p, cost)
    assert found.value == pytest.approx(move, rel=1e-9)
    t = (np.arange(400) + 0.5) * 2 * np.pi / 400 - np.pi
    for k in (40, 60, 100, 300, 1000):
        w = np.exp(k * (np.cos(t) - 1))
        mu, nu = law(t, w), law(t + 0.5, w)
        back = tkf.wasserstein(nu, mu, p, cost)
        found = tkf.wasserstein(mu, nu, p, cost)
        assert found.value == pytest.approx(move, rel=1e-6) and back.value == pytest.approx(move, rel=1e-6)


def test_order_one_on_the_circle_by_the_weighted_median():
    """W1 = min over α of ∫|F − G − α| dt, the other known formula."""
    rng = np.random.default_rng(8)
    a, b = rng.uniform(-np.pi, np.pi, 40), rng.vonmises(0.3, 1.0, 70)
    u, v = rng.dirichlet(np.ones(40)), rng.dirichlet(np.ones(70))
    edges = np.sort(np.concatenate([a, b, [-np.pi, np.pi]]))
    middle, width = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    gap = (a <= middle[:, None]) @ u - (b <= middle[:, None]) @ v
    expected = min(np.sum(width * np.abs(gap - alpha)) for alpha in gap)
    assert tkf.wasserstein(on_circle(a, u), on_circle(b, v), 1).value == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("p", [1, 2])
def test_a_million_tokens_on_the_circle(p):
    n = 10**6
    rng = np.random.default_rng(1)
    angle, w = rng.uniform(-0.5, 0.5, n), rng.dirichlet(np.ones(n))
    mu, nu = on_circle(angle, w), on_circle(angle + 1e-3, w)
    start = time.perf_counter()
    assert tkf.wasserstein(mu, nu, p).value == pytest.approx(1e-3, rel=1e-11)
    assert time.perf_counter() - start < 60


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("p", [1, 2])
def test_two_and_few_atoms_against_the_program(cost, p):
    rng = np.random.default_rng(11)
    ground = Cost(cost, p)
    mu = as_discrete_law(points(1500, 3, rng), rng.dirichlet(np.ones(1500)))
    for k in (2, 3, 9):
        nu = as_discrete_law(points(k, 3, rng), rng.dirichlet(np.ones(k)))
        program = atoms.by_program(mu, nu, ground)
        expected = ground.of_plan(program.plan, mu, nu)
        assert program.lower == pytest.approx(expected, rel=1e-9)
        if k == 2:
            plan = atoms.to_two_atoms(mu, nu, ground)
        else:
            plan, lower = atoms.to_few_atoms(mu, nu, ground, active=100)
            assert lower == pytest.approx(expected, rel=1e-9)
        assert ground.of_plan(plan, mu, nu) == pytest.approx(expected, rel=1e-10)
        np.testing.assert_allclose(np.bincount(plan.i, plan.mass), mu.w, atol=1e-14)
        np.testing.assert_allclose(np.bincount(plan.j, plan.mass), nu.w, atol=1e-14)


def test_one_atom_and_poles():
    """The uniform law to a pole: ∫θ² sinθ/2 dθ = (π² − 4)/2; to two poles half as far."""
    n = 200_000
    z = 1 - 2 * (np.arange(n) + 0.5) / n
    turn = np.arange(n) * np.pi * (3 - np.sqrt(5))
    r = np.sqrt(1 - z**2)
    sphere = tkf.Tokens(np.stack([r * np.cos(turn), r * np.sin(turn), z], axis=1))
    pole, poles = tkf.Tokens([[0.0, 0, 1]]), tkf.Tokens([[0.0, 0, 1], [0, 0, -1]])
    assert tkf.wasserstein(sphere, pole).value == pytest.approx(np.sqrt((np.pi**2 - 4) / 2), abs=1e-8)
    assert tkf.wasserstein(pole, sphere, 2, "chordal").value == pytest.approx(np.sqrt(2), abs=1e-8)
    assert tkf.wasserstein(sphere, poles).value == pytest.approx(np.sqrt(np.pi - 2), abs=1e-8)
    assert tkf.wasserstein(sphere, poles, 2, "chordal").value == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("cost", COSTS)
def test_axioms(d, cost):
    rng = np.random.default_rng([d, 21])
    a, b, c = (tkf.Tokens(points(n, d, rng), rng.dirichlet(np.ones(n))) for n in (9, 13, 17))
    rotation = np.linalg.qr(rng.normal(size=(d, d)))[0]
    for p in (1, 2):
        ab, bc, ac = (tkf.wasserstein(*pair, p, cost).value for pair in ((a, b), (b, c), (a, c)))
        assert ac <= ab + bc + 1e-12
        assert tkf.wasserstein(b, a, p, cost).value == pytest.approx(ab, rel=1e-12)
        turned = tkf.wasserstein(
            tkf.Tokens(a.x @ rotation, a.weights), tkf.Tokens(b.x @ rotation, b.weights), p, cost
        )
        assert turned.value == pytest.approx(ab, rel=1e-9)
    values = [tkf.wasserstein(a, b, p, cost).value for p in (1, 1.5, 2, 3, 5)]
    assert np.all(np.diff(values) > 0)
    assert tkf.wasserstein(a, b, 2, "chordal").value < tkf.wasserstein(a, b, 2, "geodesic").value


@pytest.mark.parametrize("d", [2, 3, 8])
@pytest.mark.parametrize("n", [1, 2, 3, 200])
@pytest.mark.parametrize("cost", COSTS)
def test_equal_laws_are_at_distance_zero(d, n, cost):
    rng = np.random.default_rng(4)
    mu = tkf.Tokens(points(n, d, rng), rng.dirichlet(np.ones(n)))
    order = rng.permutation(n)
    split = tkf.Tokens(np.repeat(mu.x, 2, axis=0), np.repeat(mu.weights, 2) / 2)
    none = tkf.Tokens(np.concatenate([mu.x, -mu.x]), np.concatenate([mu.weights, 0 * mu.weights]))
    for other in (mu, tkf.Tokens(mu.x[order], mu.weights[order]), split, none):
        for p in (1, 2):
            assert tkf.wasserstein(mu, other, p, cost).value <= 1e-15


@pytest.mark.parametrize("d", [2, 3, 8])
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("size", [1e-6, 1e-9])
def test_tiny_distances_keep_their_digits(d, cost, size):
    """Well separated tokens moved a little: each goes to its own image."""
    rng = np.random.default_rng(9)
    x = points(30, d, rng)
    step = size * rng.uniform(0.5, 1, 30)[:, None]
    y = np.asarray(tkf.sphere.exp(x, step * tkf.sphere.frame(jnp.asarray(x))[:, :, 0]))
    order = rng.permutation(30)
    w = rng.dirichlet(np.ones(30))
    for p in (1, 2):
        expected = np.sum(w * step[:, 0] ** p) ** (1 / p)
        found = tkf.wasserstein(tkf.Tokens(x, w), tkf.Tokens(y[order], w[order]), p, cost)
        assert found.value == pytest.approx(expected, rel=1e-5 * 1e-9 / size)
        assert coupled_distance(x, y, w, p, cost) == pytest.approx(expected, rel=1e-5 * 1e-9 / size)


@pytest.mark.parametrize("turn", [0.0, np.pi, 1.3])
def test_tiny_turns_across_the_cut_of_the_angle(turn):
    """Partial sums k/10 and (k + 3)/10 − 3/10 differ by rounding: no sliver may travel to the next token."""
    t = turn + 2 * np.pi * np.arange(10) / 10 - 0.5e-9
    for p in (1, 2, 3):
        found = tkf.wasserstein(on_circle(t), on_circle(t[::-1] + 1e-9), p)
        assert found.value == pytest.approx(1e-9, rel=1e-5)


def test_many_tokens_at_a_tiny_distance():
    """The program's potentials know W² to 1e-16 only; nearest points know it to the last digit."""
    rng = np.random.default_rng(10)
    x = points(2500, 3, rng)
    y = points(2500, 3, rng) * 1e-8 + x
    y = (y / np.linalg.norm(y, axis=1, keepdims=True))[rng.permutation(2500)]
    w = np.full(2500, 1 / 2500)
    found = transport._between(
        as_discrete_law(x, w), as_discrete_law(y, w), Cost("geodesic", 2), pairs=1000, coarse=8
    )
    assert found.method.startswith("exact")
    # E|tangential part|² = 2/3 of the square of the step
    assert found.value == pytest.approx(1e-8 * np.sqrt(2 / 3), rel=0.02)


def test_synchronous_coupling_is_an_upper_bound():
    rng = np.random.default_rng(2)
    x, y, w = points(50, 3, rng), points(50, 3, rng), rng.dirichlet(np.ones(50))
    angle = np.arccos(np.sum(x * y, axis=1))
    assert coupled_distance(x, y, w, 2) == pytest.approx(np.sqrt(np.sum(w * angle**2)), rel=1e-12)
    assert tkf.wasserstein(tkf.Tokens(x, w), tkf.Tokens(y, w)).upper <= coupled_distance(x, y, w, 2)


def test_many_tokens_give_a_narrow_interval():
    """Above the limit of one program the method says so, and the interval holds the value of one program."""
    rng = np.random.default_rng(6)
    mu = as_discrete_law(points(900, 3, rng), np.full(900, 1 / 900))
    nu = as_discrete_law(points(700, 3, rng, 1.0), rng.dirichlet(np.ones(700)))
    exact = transport._between(mu, nu, Cost("geodesic", 2))
    assert exact.method == "exact: linear program over all pairs"
    found = transport._between(mu, nu, Cost("geodesic", 2), pairs=1000, coarse=6)
    assert "linear programs scale by scale" in found.method
    assert found.lower <= exact.value * (1 + 1e-12) and exact.value <= found.upper * (1 + 1e-12)
    assert found.upper - found.lower <= 1e-5 * found.upper


@pytest.mark.slow
def test_twenty_thousand_tokens():
    """A cap and the same cap turned away, in another order."""
    rng = np.random.default_rng(12)
    x = points(20_000, 3, rng, 8.0)
    c, s = np.cos(0.7), np.sin(0.7)
    y = x @ np.array([[c, s, 0], [-s, c, 0], [0, 0, 1.0]])
    found = tkf.wasserstein(tkf.Tokens(x), tkf.Tokens(y[rng.permutation(20_000)]), 2, "chordal")
    # mean difference ≤ W2 ≤ synchronous coupling
    assert np.linalg.norm(x.mean(0) - y.mean(0)) <= found.lower
    assert found.upper <= coupled_distance(x, y, None, 2, "chordal")
    assert found.upper - found.lower <= 1e-5 * found.upper


@pytest.mark.slow
def test_sinkhorn_of_another_library_is_on_both_sides():
    """The plan of ott-jax has the right marginals, so it costs at least W2; its dual is at most W2."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # jaxopt, which ott-jax imports, says that it is old
        from ott.geometry import geometry
        from ott.problems.linear import linear_problem
        from ott.solvers.linear import sinkhorn
    mu, nu = tkf.initial.von_mises_fisher(300, [1.0, 0.0, 0.0], 2.0, 1), tkf.initial.uniform(200, 3, 2)
    cost = jnp.arccos(jnp.clip(mu.x @ nu.x.T, -1, 1)) ** 2
    problem = linear_problem.LinearProblem(geometry.Geometry(cost, epsilon=3e-3), mu.weights, nu.weights)
    found = sinkhorn.Sinkhorn(threshold=1e-9, max_iterations=20_000)(problem)
    for axis, weights in ((1, mu.weights), (0, nu.weights)):
        np.testing.assert_allclose(found.matrix.sum(axis=axis), weights, atol=1e-10)
    exact = tkf.wasserstein(mu, nu).value
    assert found.dual_cost**0.5 <= exact <= found.primal_cost**0.5 + 1e-9
    assert exact == pytest.approx(float(found.primal_cost) ** 0.5, rel=5e-3)


def test_bad_input_is_one_sentence():
    mu, nu = tkf.initial.uniform(4, 3, 0), tkf.initial.uniform(5, 3, 1)
    for call, sentence in [
        (
            lambda: tkf.wasserstein(mu, tkf.initial.uniform(4, 2, 0)),
            "`nu` must lie in the same dimension as mu, 3, but was 2",
        ),
        (lambda: tkf.wasserstein(mu, nu, 0.5), "`p` must lie between 1 and 16, but was 0.5"),
        (lambda: tkf.wasserstein(mu, nu, np.inf), "`p` must lie between 1 and 16, but was inf"),
        (lambda: tkf.wasserstein(mu, nu, np.nan), "`p` must lie between 1 and 16, but was nan"),
        (lambda: tkf.wasserstein(mu, nu, "2"), "`p` must be a number, but was '2'"),
        (
            lambda: tkf.wasserstein(mu, nu, 2, np.ones(2)),
            '`cost` must be "geodesic" or "chordal", but was array([1., 1.])',
        ),
        (
            lambda: tkf.wasserstein(mu, nu, 2, "euclidean"),
            '`cost` must be "geodesic" or "chordal", but was \'euclidean\'',
        ),
        (lambda: tkf.wasserstein(mu, np.eye(3)), "`nu` must be Tokens, but was ndarray"),
        (
            lambda: coupled_distance(mu.x, nu.x),
            "`y` must have the shape of x, (4, 3), but was of shape (5, 3)",
        ),
    ]:
        with pytest.raises(tkf.InputError) as error:
            call()
        assert str(error.value) == sentence


def test_the_limit_law_on_a_line_has_two_atoms(monkeypatch):
    """An oblique projection rounds each end differently: still a transport to two atoms, not to many."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    D = turn @ np.array([[1.0, 0.7, -0.3], [0.0, 0.4, 0.2], [0.0, 0.0, 0.1]]) @ turn.T
    where = tkf.theory.limit(tkf.AttentionWeights(np.eye(3), D))
    start = tkf.initial.uniform(2000, 3, 0)
    found = tkf.limit_distance(where, start)(start)
    assert found <= coupled_distance(start.x, where.push(start).x) + 1e-12
    seen = []
    known = transport.Transport(found, found, found, "")
    monkeypatch.setattr(limit_law, "wasserstein", lambda mu, nu, p: seen.append(nu) or known)
    tkf.limit_distance(where, start)(start)
    assert len(as_discrete_law(np.asarray(seen[0].x), np.asarray(seen[0].weights)).w) == 2
