"""Tokens that read fixed anchors: closed forms against runs with `context` (theory §6.1.7)."""

import numpy as np
import pytest

import tokenfield as tkf
from tokenfield import theory


def circle(theta):
    return np.stack([np.cos(theta), np.sin(theta)], axis=-1)


def run_to_anchors(theta, a, beta, t):
    """Angles at time t of tokens that read anchors at the angles a."""
    anchors = tkf.Tokens(circle(np.asarray(a)))
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), beta, context=anchors)
    run = tkf.simulate(
        model, tkf.Tokens(circle(np.asarray(theta))), [0.0, t], tkf.Adaptive(1e-12, 1e-13, "dopri8")
    )
    return np.arctan2(run.x[-1, :, 1], run.x[-1, :, 0])


def test_printed_numbers():
    """a = .7: β_c = 1.842920267; β = 4: θ* = .658206626, rate .803457594; θ_0 = .2: θ(1) = .363163240."""
    found = theory.anchors(0.7, 4.0)
    assert found.critical_beta == pytest.approx(1.842920267, abs=5e-10)
    assert found.angle == pytest.approx(0.658206626, abs=5e-10)
    assert found.rate == pytest.approx(0.803457594, abs=5e-10)
    assert found.path(0.2, [1.0])[0] == pytest.approx(0.363163240, abs=5e-10)


def test_runs_follow_the_paths():
    """θ_0 = .2 and others: the library's own run reads the anchors as its context."""
    starts = [0.2, -0.4, 2.0, 0.65]
    found = run_to_anchors(starts, [0.7, -0.7], 4.0, 1.0)
    assert found[0] == pytest.approx(0.363163240, abs=5e-10)
    expected = [theory.anchors(0.7, 4.0).path(start, [0.0, 1.0])[-1] for start in starts]
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize(("a", "beta"), [(0.7, 4.0), (0.7, 1.0), (1.2, 0.8), (np.pi / 2, 2.0), (0.3, 1e4)])
def test_the_end_is_a_maximum_of_the_potential(a, beta):
    """Φ by the sum over the anchors; its maximum on a grid, its slope and curvature by differences."""
    found = theory.anchors(a, beta)
    pair = circle(np.array([a, -a]))
    phi = lambda theta: theory.anchor_potential(circle(np.atleast_1d(theta)), pair, beta)  # noqa: E731
    theta = np.linspace(0, np.pi / 2, 4001)
    # two anchors weigh one half each, as does the cosh
    np.testing.assert_allclose(found.potential(theta), phi(theta), atol=1e-13)
    assert theta[np.argmax(phi(theta))] == pytest.approx(found.angle, abs=5e-4)
    assert abs(found.velocity(found.angle)) < 1e-14
    h = 1e-5
    slope = (found.potential(0.3 + h) - found.potential(0.3 - h)) / (2 * h)
    assert found.velocity(0.3) == pytest.approx(slope, abs=1e-8)
    curvature = (found.velocity(found.angle + h) - found.velocity(found.angle - h)) / (2 * h)
    assert found.rate == pytest.approx(-curvature, abs=1e-6)


def test_the_pitchfork():
    critical = theory.anchors(0.7, 1.0).critical_beta
    below, above = theory.anchors(0.7, 0.999 * critical), theory.anchors(0.7, 1.001 * critical)
    assert below.angle == 0 and above.angle > 0.02
    assert below.rate == pytest.approx(1e-3 * np.cos(0.7), rel=1e-9)
    assert above.rate == pytest.approx(2e-3 * np.cos(0.7), rel=0.01)  # twice as steep beyond a pitchfork
    near = theory.anchors(0.7, critical * (1 + 1e-5))
    assert above.angle / near.angle == pytest.approx(10.0, rel=1e-2)  # a square root


@pytest.mark.parametrize("beta", [0.0, 3.0])
def test_one_anchor(beta):
    starts = np.array([0.0, 0.5, 2.0, 3.1])
    np.testing.assert_allclose(
        run_to_anchors(starts, [0.0, 0.0], beta, 1.3), theory.one_anchor(starts, [0.0, 1.3])[1], atol=1e-10
    )
    tan = np.tan(starts / 2) * np.exp(-1.3)
    np.testing.assert_allclose(np.tan(theory.one_anchor(starts, [1.3])[0] / 2), tan, rtol=1e-13)
    assert theory.one_anchor(np.pi, [5.0])[0] == np.pi


def test_attention_to_anchors_climbs_the_potential():
    """V = B, not Bᵀ: the velocity is the tangent gradient of Φ, by differences."""
    d, beta = 3, 2.0
    rng = np.random.default_rng(0)
    B, w = rng.normal(size=(d, d)), np.array([0.2, 0.5, 0.3])
    z, x = (np.asarray(tkf.initial.uniform(n, d, n).x) for n in (3, 4))
    model = tkf.SoftmaxAttention(tkf.AttentionWeights(B, B), beta, context=tkf.Tokens(z, w))
    found = np.asarray(model.velocity(tkf.Tokens(x)))
    h, gradient = 1e-5, np.zeros((4, d))
    for k in range(d):
        ahead, behind = (theory.anchor_potential(x + s * h * np.eye(d)[k], z, beta, w, B) for s in (1, -1))
        gradient[:, k] = (ahead - behind) / (2 * h)
    gradient -= np.sum(gradient * x, axis=1, keepdims=True) * x
    np.testing.assert_allclose(found, gradient, atol=1e-9)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: theory.anchors(0.0, 1.0), r"`a` must lie in \(0, π/2\]"),
        (lambda: theory.anchors(2.0, 1.0), r"`a` must lie in \(0, π/2\]"),
        (lambda: theory.anchors(0.7, 0.0), "`beta` must be positive"),
        (lambda: theory.one_anchor(4.0, [1.0]), r"`theta0` must lie in \[0, π\]"),
        (lambda: theory.anchor_potential(np.eye(2), np.eye(3), 1.0), "`anchors` must have shape"),
        (lambda: theory.anchor_potential(np.eye(2), np.eye(2), 0.0), "`beta` must not be 0"),
        (lambda: theory.anchor_potential(np.eye(2), np.eye(2), 1.0, [1.0]), "`weights` must have shape"),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad()
