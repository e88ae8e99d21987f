"""Clusters against SciPy's hierarchical clustering, modes against closed forms, merge trees by hand."""

import time

import numpy as np
import pytest
from scipy import optimize
from scipy.cluster import hierarchy

import tokenfield as tkf
from tests.marks import mostly_slow
from tokenfield import theory
from tokenfield.measure import clusters as module
from tokenfield.measure.clusters import clusters
from tokenfield.measure.merge_tree import track
from tokenfield.measure.modes import modes
from tokenfield.runs.trajectory import Trajectory

ANGLES = [1e-5, 0.01, 0.06, 0.3, 1.0, 2.5]


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def clouds(n, d, rng):
    """Even, loose clusters, dense ones, and points on a line (chains)."""
    x = unit(rng.normal(size=(n, d)))
    pick = x[:12][rng.integers(0, 12, n)]
    t = rng.uniform(0, 2, n)
    line = np.concatenate([np.cos(t)[:, None], np.sin(t)[:, None], np.zeros((n, d - 2))], axis=1)
    return {
        "even": x,
        "loose": unit(pick + 0.1 * rng.normal(size=(n, d))),
        "dense": unit(pick + 1e-6 * rng.normal(size=(n, d))),
        "line": unit(line + 1e-4 * rng.normal(size=(n, d))),
        "equal": pick,
    }


def same_partition(a, b):
    pairs = np.unique(np.stack([a, b], axis=1), axis=0)
    return len(pairs) == len(np.unique(a)) == len(np.unique(b))


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize("kind", ["even", "loose", "dense", "line", "equal"])
def test_clusters_are_those_of_hierarchical_clustering(kind, d):
    x = clouds(400, d, np.random.default_rng(d))[kind]
    tree = hierarchy.linkage(x, "single")
    for angle in ANGLES:
        found = clusters(tkf.Tokens(x), angle)
        expected = hierarchy.fcluster(tree, 2 * np.sin(angle / 2), "distance")
        assert same_partition(found.labels, expected)
        assert found.count == len(np.unique(expected))


@pytest.mark.parametrize("d", [2, 3])
def test_cubes_with_many_tokens_by_the_front_route(d):
    """Crowded cubes take the trees and the all-pairs route; both routes to the same components."""
    rng = np.random.default_rng(d)
    for key in range(6):
        x = unit(
            rng.normal(size=(12, d))[rng.integers(0, 12, 3000)]
            + rng.choice([0.02, 0.3]) * rng.normal(size=(3000, d))
        )
        for angle in (0.004, 0.02, 0.1, 0.35):
            reach = 2 * np.sin(angle / 2)
            a, b = module._grid_labels(x, reach), module._front_labels(x, reach)
            assert same_partition(a, b), (key, angle)


def test_two_crowds_just_apart_and_just_linked():
    """Two arcs of 2,000 tokens whose ends are 0.1 apart: the answer turns exactly there."""
    t = np.concatenate([np.linspace(0, 1, 2000), np.linspace(1.1, 2, 2000)])
    tokens = tkf.Tokens(np.stack([np.cos(t), np.sin(t)], axis=1))
    assert clusters(tokens, 0.1 - 1e-12).count == 2
    assert clusters(tokens, 0.1 + 1e-12).count == 1


def test_labels_and_centres():
    x = [[1.0, 0.0], [0.0, 1.0], [np.cos(0.1), np.sin(0.1)], [0.0, -1.0]]
    found = clusters(tkf.Tokens(x, [0.5, 0.2, 0.3, 0.0]), 0.2)
    assert found.labels.tolist() == [0, 1, 0, 2]
    assert found.count == 3
    np.testing.assert_allclose(found.centres.weights, [0.8, 0.2, 0.0])
    mean = 0.5 * np.array(x[0]) + 0.3 * np.array(x[2])
    np.testing.assert_allclose(found.centres.x, [mean / np.linalg.norm(mean), x[1], x[3]], atol=1e-15)
    whole = clusters(tkf.Tokens([[1.0, 0.0], [-1.0, 0.0]]), 3.1415926)
    assert whole.count == 2
    balanced = clusters(tkf.initial.circle_density(np.ones_like, 64), 0.2)
    assert balanced.count == 1
    assert float(np.linalg.norm(balanced.centres.x)) == pytest.approx(1)


def test_clusters_do_not_depend_on_order_or_rotation():
    rng = np.random.default_rng(0)
    x = clouds(500, 3, rng)["loose"]
    order, turn = rng.permutation(500), np.linalg.qr(rng.normal(size=(3, 3)))[0]
    a = clusters(tkf.Tokens(x), 0.07).labels
    b = clusters(tkf.Tokens(x[order] @ turn), 0.07).labels
    assert same_partition(a[order], b)


@pytest.mark.slow
def test_a_million_tokens_take_seconds():
    rng = np.random.default_rng(0)
    tokens = tkf.Tokens(unit(rng.normal(size=(10**6, 3))))
    for angle in (1e-3, 1e-2, 0.3):
        start = time.perf_counter()
        clusters(tokens, angle)
        assert time.perf_counter() - start < 30


# ---- modes ----


@pytest.mark.slow
def test_modes_of_separate_clusters():
    rng = np.random.default_rng(1)
    centres = unit(np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [-1, -1, -1]]))
    pick = rng.integers(0, 4, 300)
    tokens = tkf.Tokens(unit(centres[pick] + 0.05 * rng.normal(size=(300, 3))), rng.dirichlet(np.ones(300)))
    found = modes(tokens, 20.0)
    assert found.count == 4
    assert same_partition(found.labels, pick)
    np.testing.assert_allclose(found.centres.weights, np.bincount(found.labels, np.asarray(tokens.weights)))
    x, w = np.asarray(tokens.x), np.asarray(tokens.weights)
    for mode in np.asarray(found.centres.x):  # the density is greatest there: its gradient is radial
        gradient = (w * np.exp(20 * x @ mode)) @ x
        assert np.linalg.norm(gradient - (gradient @ mode) * mode) < 1e-7 * np.linalg.norm(gradient)


@pytest.mark.parametrize(("d", "beta"), mostly_slow([(2, 40.0), (3, 15.0), (4, 6.0)], [(3, 15.0)]))
def test_modes_are_where_plain_mean_shift_ends(d, beta):
    """Twenty thousand plain steps in NumPy, no Newton, no merging on the way."""
    rng = np.random.default_rng(d)
    x, w = unit(rng.normal(size=(60, d))), rng.dirichlet(np.ones(60))
    y = x
    for _ in range(20_000):
        y, before = unit((w * np.exp(beta * (y @ x.T - 1))) @ x), y
        if np.max(np.abs(y - before)) < 1e-13:
            break
    found = modes(tkf.Tokens(x, w), beta)
    np.testing.assert_allclose(np.asarray(found.centres.x)[found.labels], y, atol=1e-5)
    assert found.count > 1


@pytest.mark.parametrize("angle", [0.5, 1.2, 2.4])
def test_two_tokens_have_two_modes_from_the_critical_temperature(angle):
    """Two equal tokens at an angle a: the middle is a mode iff β sin²(a/2) ≤ cos(a/2)."""
    critical = np.cos(angle / 2) / np.sin(angle / 2) ** 2
    tokens = tkf.Tokens([[1.0, 0.0], [np.cos(angle), np.sin(angle)]])
    one, two = modes(tokens, 0.9 * critical), modes(tokens, 1.1 * critical)
    assert (one.count, two.count) == (1, 2)
    np.testing.assert_allclose(one.centres.x[0], [np.cos(angle / 2), np.sin(angle / 2)], atol=1e-6)

    def slope(t):  # of the density along the arc
        b = 1.1 * critical
        return -np.exp(b * np.cos(t)) * np.sin(t) + np.exp(b * np.cos(angle - t)) * np.sin(angle - t)

    mode = optimize.brentq(slope, -1e-9, 0.95 * angle / 2)
    assert np.arctan2(*np.asarray(two.centres.x)[0][::-1]) == pytest.approx(mode, abs=1e-6)


def test_a_token_on_a_saddle_moves_on():
    """Two clusters and a light token exactly between them: a minimum of the density along the arc, no mode."""
    x = [[1.0, 0.0], [0.0, 1.0], [np.sqrt(0.5), np.sqrt(0.5)]]
    found = modes(tkf.Tokens(x, [0.4999, 0.4999, 0.0002]), 12.0)
    assert found.count == 2
    assert found.labels[0] != found.labels[1]


def test_modes_at_low_temperature_are_the_tokens_and_at_high_temperature_one():
    tokens = tkf.initial.uniform(12, 4, 0)
    assert modes(tokens, 1e4).count == 12
    assert modes(tokens, 1e-2).count == 1
    mean = np.asarray(tokens.moments().mean)
    close = np.asarray(modes(tokens, 1e-6).centres.x[0])
    np.testing.assert_allclose(close, mean / np.linalg.norm(mean), atol=1e-5)


# ---- merge trees ----


def trajectory(angles, ts, weights=None):
    """Tokens on the circle at given angles (snapshots, n)."""
    angles = np.asarray(angles, dtype=float)
    n = angles.shape[1]
    w = np.full(n, 1 / n) if weights is None else np.asarray(weights)
    x = np.stack([np.cos(angles), np.sin(angles)], axis=2)
    return Trajectory(np.asarray(ts), x, w, np.asarray(ts), {}, {}, {}, "made by hand", True)


def test_a_merge_tree_by_hand():
    tree = track(
        trajectory(
            [[0, 1, 2, 3], [0, 0.05, 2, 3], [0, 0.05, 2, 2.05], [0, 0.05, 0.1, 0.1]],
            [0.0, 1.0, 2.5, 4.0],
            [0.1, 0.2, 0.3, 0.4],
        ),
        0.1,
    )
    assert tree.counts.tolist() == [4, 3, 2, 1]
    assert [(m.after, m.time, m.parts, m.into) for m in tree.merges] == [
        (0.0, 1.0, (0, 1), 4),
        (1.0, 2.5, (2, 3), 5),
        (2.5, 4.0, (4, 5), 6),
    ]
    np.testing.assert_array_equal(tree.born, [0, 0, 0, 0, 1.0, 2.5, 4.0])
    np.testing.assert_array_equal(tree.died, [1.0, 1.0, 2.5, 2.5, 4.0, 4.0, np.inf])
    np.testing.assert_allclose(tree.weights, [0.1, 0.2, 0.3, 0.4, 0.3, 0.7, 1.0])
    assert tree.nodes.tolist() == [[0, 1, 2, 3], [4, 4, 2, 3], [4, 4, 5, 5], [6, 6, 6, 6]]
    assert tree.links.tolist() == [[0, 4], [1, 4], [2, 5], [3, 5], [4, 6], [5, 6]]


def test_a_split_makes_new_nodes_and_no_merge():
    tree = track(trajectory([[0, 0.05, 2], [0, 0.5, 2]], [0.0, 1.0]), 0.1)
    assert tree.merges == []
    assert tree.counts.tolist() == [2, 3]
    assert sorted(map(tuple, tree.links.tolist())) == [(0, 2), (0, 3)]
    np.testing.assert_array_equal(tree.died, [1.0, np.inf, np.inf, np.inf])


def test_two_tokens_merge_when_the_exact_solution_says():
    beta, angle = 3.0, 0.4
    due = theory.two_tokens(0.2, np.cos(angle), beta)
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), beta)
    start = tkf.Tokens([[1.0, 0.0], [0.2, np.sqrt(1 - 0.04)]])
    run = tkf.simulate(model, start, [0.0, due * (1 - 1e-4), due * (1 + 1e-4), due * 2])
    tree = track(run, angle)
    assert tree.counts.tolist() == [2, 2, 1, 1]
    (merge,) = tree.merges
    assert merge.after < due < merge.time


def test_bad_input_is_one_sentence():
    tokens = tkf.initial.uniform(4, 3, 0)
    for angle in (0.0, 4.0, float("nan")):
        with pytest.raises(tkf.InputError, match="^`angle` must lie between 1e-15 and π"):
            clusters(tokens, angle)
    with pytest.raises(tkf.InputError, match="^`beta` must be positive and finite"):
        modes(tokens, np.inf)
    with pytest.raises(tkf.InputError, match="^`angle` must be a number"):
        clusters(tokens, "wide")
