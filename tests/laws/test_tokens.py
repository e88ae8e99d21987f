"""Tokens: what is accepted, moments, push-forward, merging."""

import numpy as np
import pytest

import tokenfield as tkf
from tests.marks import mostly_slow
from tokenfield.geometry import sphere
from tokenfield.laws.tokens import POWERS_OF_FOUR_UP_TO, _rows


def test_equal_weights_by_default_and_double_precision():
    tokens = tkf.Tokens(np.eye(3, dtype=np.float32))
    assert tokens.x.dtype == tokens.weights.dtype == np.float64
    np.testing.assert_allclose(tokens.weights, 1 / 3)


def test_single_precision_input_is_corrected_to_rounding():
    x = np.float32(tkf.initial.uniform(50, 3, 0).x)
    np.testing.assert_allclose(np.linalg.norm(tkf.Tokens(x).x, axis=1), 1, atol=3e-16)


@pytest.mark.parametrize(
    ("x", "weights", "sentence"),
    [
        ([1.0, 0.0], None, r"`x` must have shape \(n, d\) with n ≥ 1 and d ≥ 2, but was of shape \(2,\)"),
        (np.zeros((0, 3)), None, r"`x` must have shape \(n, d\)"),
        ([[1.0, 0.0], [0.0, 0.0]], None, r"`x` must have rows of norm 1, but row 1 has norm 0 \(1 of 2"),
        ([[1.0, 0.0], [np.nan, 0.0]], None, "`x` must have rows of norm 1, but row 1 has norm nan"),
        ([[2.0, 0.0]], None, "`x` must have rows of norm 1, but row 0 has norm 2"),
        ([["a", "b"]], None, "`x` must be an array of real numbers"),
        ([[1j, 0]], None, "`x` must be an array of real numbers, but was of type complex128"),
        (np.eye(2), [0.5, 0.6], "`weights` must sum to 1, but was summing to 1.1"),
        (np.eye(2), [1.5, -0.5], "`weights` must be at least 0, but was -0.5"),
        (np.eye(2), [np.nan, 1.0], "`weights` must be finite, but was"),
        (np.eye(2), [1.0], r"`weights` must have shape \(2,\), one per token, but was of shape \(1,\)"),
    ],
)
def test_bad_input_is_one_sentence(x, weights, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        tkf.Tokens(x, weights)


def test_moments_of_a_known_law():
    tokens = tkf.Tokens([[1.0, 0.0], [0.0, 1.0]], [0.25, 0.75])
    np.testing.assert_allclose(tokens.moments().mean, [0.25, 0.75])
    np.testing.assert_allclose(tokens.moments().second, np.diag([0.25, 0.75]))


def test_push_moves_points_and_keeps_weights():
    tokens = tkf.Tokens(np.eye(2), [0.3, 0.7])
    pushed = tokens.push(lambda x: -x)
    np.testing.assert_array_equal(pushed.x, -np.eye(2))
    np.testing.assert_array_equal(pushed.weights, tokens.weights)


def circle(angles, weights=None):
    angles = np.asarray(angles)
    return tkf.Tokens(np.stack([np.cos(angles), np.sin(angles)], axis=1), weights)


def test_merge_reports_the_transport_it_introduced():
    """Two pairs at angle 2a: each token moves by a, so W2 is a."""
    a = 0.01
    merged = circle([-a, a, 2 - a, 2 + a]).merge(0.03)
    assert merged.tokens.n == 2
    np.testing.assert_allclose(np.sort(merged.tokens.weights), 0.5)
    np.testing.assert_allclose(merged.tokens.x, circle([0.0, 2.0]).x, atol=1e-15)
    np.testing.assert_array_equal(merged.group, [0, 0, 1, 1])
    assert merged.distance == pytest.approx(a, rel=1e-12)


def test_merge_goes_to_the_weighted_mean():
    merged = circle([0.0, 0.02], [0.75, 0.25]).merge(0.1)
    angle = float(sphere.distance(merged.tokens.x[0], circle([0.0]).x[0]))
    assert angle == pytest.approx(0.005, rel=1e-3)
    assert merged.distance == pytest.approx(np.sqrt(0.75 * 0.005**2 + 0.25 * 0.015**2), rel=1e-3)


@pytest.mark.parametrize("d", mostly_slow([2, 3, 6], [3]))
@pytest.mark.parametrize("angle", [1e-3, 0.1, 0.5])
def test_after_merging_no_two_tokens_are_closer(d, angle):
    tokens = tkf.initial.mixture(
        [tkf.initial.uniform(300, d, 0), tkf.initial.von_mises_fisher(300, np.eye(d)[0], 500.0, 1)],
        [0.5, 0.5],
    )
    merged = tokens.merge(angle)
    gaps = np.asarray(sphere.distance(merged.tokens.x[:, None], merged.tokens.x[None]))
    assert gaps[~np.eye(len(gaps), dtype=bool)].min(initial=np.pi) >= angle * (1 - 1e-9)
    weights = np.bincount(merged.group, tokens.weights)
    np.testing.assert_allclose(weights, merged.tokens.weights, rtol=1e-12)
    moved = np.asarray(sphere.distance(tokens.x, merged.tokens.x[merged.group]))
    assert merged.distance == pytest.approx(np.sqrt(np.sum(tokens.weights * moved**2)), rel=1e-12)


def test_merge_does_not_collapse_a_long_chain():
    """Single linkage would make one token of a dense circle; merging must stay local."""
    tokens = tkf.initial.circle_density(np.ones_like, 2000)
    merged = tokens.merge(0.05)
    assert merged.tokens.n > 60
    assert merged.distance < 0.05


def test_merge_handles_tokens_of_weight_zero_and_exact_duplicates():
    merged = circle([0.0, 0.0, 0.001, 1.0, 1.0005], [0.5, 0.5, 0.0, 0.0, 0.0]).merge(0.01)
    assert merged.tokens.n == 2
    np.testing.assert_allclose(merged.tokens.weights, [1.0, 0.0])
    assert merged.distance == 0


@pytest.mark.parametrize("angle", [0.0, -1.0, np.nan, 2.0])
def test_merge_refuses_odd_angles(angle):
    with pytest.raises(tkf.InputError, match="`angle` must lie between 0 and π/2, but was"):
        tkf.Tokens(np.eye(2)).merge(angle)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda t: t.merge("a"), "`angle` must be a number, but was 'a'"),
        (lambda t: t.merge(None), "`angle` must be a number, but was None"),
        (lambda t: t.push(None), "`f` must be a map of rows, but was None"),
        (
            lambda t: t.push(lambda x: x[:1]),
            r"`f` must give 2 rows for 2 tokens, but was giving the shape \(1, 2\)",
        ),
        (
            lambda t: t.push(lambda x: x[0]),
            r"`f` must give 2 rows for 2 tokens, but was giving the shape \(2,\)",
        ),
        (lambda t: t.push(lambda x: "a"), r"`f\(x\)` must be an array of real numbers"),
        (lambda t: t.push(lambda x: 2 * x), "`x` must have rows of norm 1"),
    ],
)
def test_bad_moves_are_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad(tkf.Tokens(np.eye(2)))


# -- filling


def test_filling_keeps_the_law():
    tokens = tkf.initial.uniform(37, 3, 0)
    assert tokens.padded().n == 64 and tokens.padded(50).n == 50
    for a, b in zip(tokens.moments(), tokens.padded().moments(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-15)


def test_filled_tokens_are_few_sizes_and_little_too_many():
    """Direct sums over tokens of weight 0 cost as much as over others."""
    counts = np.unique(np.geomspace(1, 2e6, 3000).astype(int)).tolist()
    sizes = [_rows(count) for count in counts]
    assert all(count <= size for count, size in zip(counts, sizes, strict=True))
    assert all(
        size <= 1.25 * count + 1
        for count, size in zip(counts, sizes, strict=True)
        if count > POWERS_OF_FOUR_UP_TO
    )
    assert len(set(sizes)) < 40
