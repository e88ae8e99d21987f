"""The terminal phase of several heads: eigenvalues by hand, and runs of tight clusters."""

import numpy as np
import pytest

import tokenfield as tkf
from tokenfield import theory

#: ΣV_h = diag(1, .4) with a corner: eigenvalues 1 and .4, the eigenvector of 1 oblique to that of .4.
V1, V2 = np.array([[0.7, 0.2], [0.1, -0.3]]), np.array([[0.3, 0.3], [-0.1, 0.7]])
#: Turns in the plane of the first two axes, with a third that grows more: real parts .2, .2, .5.
WHIRL = np.array([[0.2, -2.0, 0], [2.0, 0.2, 0], [0, 0, 0.5]])


def two_heads(first, second):
    d = len(first)
    B = np.stack([np.eye(d), np.eye(d) + 0.2 * np.ones((d, d))])
    return tkf.AttentionWeights(B, np.stack([first, second]))


def near(p, width, n=12):
    """Tokens in a tight cluster at p."""
    x = np.asarray(p) / np.linalg.norm(p) + width * np.random.default_rng(0).normal(size=(n, len(p)))
    return tkf.Tokens(x / np.linalg.norm(x, axis=1, keepdims=True))


def test_a_real_dominant_eigenvalue():
    found = theory.terminal(two_heads(V1, V2))
    W = V1 + V2
    values, right = np.linalg.eig(W)
    top = np.argmax(values.real)
    assert found.kind == "fixed" and found.rotation == 0 and found.period is None
    assert found.eigenvalue == pytest.approx(1.0, abs=1e-14) and found.cluster_rate == pytest.approx(1.0)
    assert found.rate == pytest.approx(0.6, abs=1e-14)
    assert abs(found.basis[:, 0] @ right[:, top]) == pytest.approx(1, abs=1e-14)
    np.testing.assert_allclose(found.projector @ W, found.projector, atol=1e-14)  # λ = 1
    np.testing.assert_allclose(found.projector @ right[:, 1 - top], 0, atol=1e-14)


@pytest.mark.parametrize("eta", [0.2, 0.5, 1.0])
def test_layers_choose_by_modulus(eta):
    """λ = .2 ± 2i against .5: |1 + ηλ|² = (1+.2η)² + 4η² is the greater one for every η here."""
    found = theory.terminal(two_heads(WHIRL, np.zeros((3, 3))), eta)
    mu = 1 + eta * complex(0.2, 2)
    assert found.kind == "rotating"
    assert found.eigenvalue == pytest.approx(mu) and found.rotation == pytest.approx(np.angle(mu))
    assert found.rate == pytest.approx(np.log(abs(mu) / (1 + eta / 2)))
    assert found.cluster_rate == pytest.approx(np.log(abs(mu)))
    np.testing.assert_allclose(found.projector, np.diag([1.0, 1, 0]), atol=1e-14)
    flow = theory.terminal(two_heads(WHIRL, np.zeros((3, 3))))
    assert (flow.kind, flow.eigenvalue) == ("fixed", pytest.approx(0.5))
    assert flow.rate == pytest.approx(0.3)


def test_a_rotating_flow():
    found = theory.terminal(two_heads(WHIRL - np.diag([0, 0, 1.0]), np.zeros((3, 3))))
    assert found.kind == "rotating" and found.rotation == pytest.approx(2)
    assert found.period == pytest.approx(np.pi) and found.rate == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("diagonal", "step", "kind"),
    [([-3.0, 0.5], 1.0, "alternating"), ([-3.0, 1.0], 1.0, "alternating"), ([-3.0, 0.5], 0.1, "fixed")],
)
def test_layers_that_change_sign(diagonal, step, kind):
    found = theory.terminal(two_heads(np.diag(diagonal), np.zeros((2, 2))), step)
    assert found.kind == kind
    assert found.cluster_rate == pytest.approx(np.log(np.max(np.abs(1 + step * np.array(diagonal)))))


def test_a_defective_sum_is_algebraic():
    block = np.array([[1.0, 1, 0], [0, 1, 0], [0, 0, 0.5]])
    for step in (None, 0.5):
        found = theory.terminal(two_heads(block, np.zeros((3, 3))), step)
        assert found.kind == "algebraic" and found.basis.shape == (3, 2)


def test_a_run_ends_where_the_sum_of_the_values_says():
    """Two heads, one cluster on each side: the end, the approach e^{−.6t} and the shrinking of theory §2.6."""
    weights = two_heads(V1, V2)
    found = theory.terminal(weights)
    tokens = near([0.3, 1.0], 1e-3)
    tokens = tkf.Tokens(np.concatenate([tokens.x, -tokens.x]))
    ts = np.array([0, 6.0, 9.0, 30.0])
    run = tkf.simulate(tkf.SoftmaxAttention(weights, 200.0), tokens, ts, tkf.Adaptive(rtol=1e-10, atol=1e-13))
    np.testing.assert_allclose(run.x[-1], found.push(tokens).x, atol=3e-7)
    end = np.asarray(found.push(tokens).x)
    angle = np.linalg.norm(run.x[1:3] - end, axis=2).mean(axis=1)
    assert np.log(angle[0] / angle[1]) / 3 == pytest.approx(found.rate, rel=0.02)


@pytest.mark.parametrize("eta", [0.5])
def test_layers_end_in_the_plane_of_largest_modulus_and_shrink(eta):
    weights = two_heads(WHIRL, 0.1 * np.eye(3))
    found = theory.terminal(weights, eta)
    tokens = near([1.0, 0.2, 0.4], 1e-4)
    run = tkf.simulate(tkf.SoftmaxAttention(weights, 2.0), tokens, eta * np.arange(41), tkf.Layers(eta))
    inside = run.x[-1] @ found.basis
    np.testing.assert_allclose(np.linalg.norm(inside, axis=1), 1, atol=1e-5)
    width = np.linalg.norm(run.x - run.x.mean(axis=1, keepdims=True), axis=2).max(axis=1)
    assert np.log(width[20] / width[30]) / 10 == pytest.approx(found.cluster_rate, rel=0.03)
    turned = np.array(
        [np.arccos(np.clip(a @ b, -1, 1)) for a, b in zip(run.x[30:40, 0], run.x[31:41, 0], strict=True)]
    )
    np.testing.assert_allclose(turned, found.rotation, rtol=1e-3)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: theory.terminal(3), "`weights` must be an AttentionWeights"),
        (lambda: theory.terminal(two_heads(V1, V2), 0), "`step` must be positive"),
        (lambda: theory.terminal(two_heads(-np.eye(2), np.zeros((2, 2))), 1), "nilpotent"),
        (lambda: theory.terminal(two_heads(WHIRL, WHIRL), 1.0).push(tkf.Tokens(np.eye(3))), "kind 'fixed'"),
        (
            lambda: theory.terminal(two_heads(np.diag([1, 0.5]), np.zeros((2, 2)))).push(
                tkf.Tokens(np.eye(2))
            ),
            "`tokens` must have a part in the dominant space",
        ),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match=sentence):
        bad()
