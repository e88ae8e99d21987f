"""The gnomonic chart: a bijection, straight great circles, and attention as consensus."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial import ConvexHull

import tokenfield as tkf
from tokenfield import theory


def hemisphere(n, d, key, angle=1.3):
    rng = np.random.default_rng(key)
    w0 = rng.normal(size=d)
    w0 /= np.linalg.norm(w0)
    tokens = tkf.Tokens(tkf.initial.cap(n, w0, angle, key).x, rng.dirichlet(np.ones(n)))
    return tokens, w0


@pytest.mark.parametrize("d", [2, 3, 7])
def test_the_chart_and_its_inverse(d):
    tokens, w0 = hemisphere(30, d, d)
    u = theory.gnomonic(tokens.x, w0)
    assert u.shape == (30, d - 1)
    np.testing.assert_allclose(theory.from_gnomonic(u, w0), tokens.x, atol=1e-14)
    z = np.asarray(tokens.x) / (np.asarray(tokens.x) @ w0)[:, None]
    np.testing.assert_allclose(
        w0 + np.asarray(u) @ np.asarray(tkf.sphere.frame(jnp.asarray(w0))).T, z, atol=1e-12
    )


def test_great_circles_become_lines():
    tokens, w0 = hemisphere(2, 3, 5)
    x, y = tokens.x
    arc = jnp.stack([tkf.sphere.exp(x, t * tkf.sphere.log(x, y)) for t in (0.0, 0.3, 0.8, 1.0)])
    u = np.asarray(theory.gnomonic(arc, w0))
    assert np.linalg.svd(u - u[0])[1][1] < 1e-13


@pytest.mark.slow
@pytest.mark.parametrize("flow", ["softmax", "unnormalised"])
@pytest.mark.parametrize("d", [2, 3, 5])
def test_consensus_is_the_velocity_seen_in_the_chart(d, flow):
    beta = 2.5
    tokens, w0 = hemisphere(20, d, d)
    kind = {"softmax": tkf.SoftmaxAttention, "unnormalised": tkf.UnnormalisedAttention}[flow]
    velocity = kind(tkf.AttentionWeights.identity(d), beta).velocity(tokens)
    u, pushed = jax.jvp(lambda x: theory.gnomonic(x, w0), (tokens.x,), (velocity,))
    np.testing.assert_allclose(
        theory.consensus(u, tokens.weights, beta, flow), pushed, rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize("flow", ["softmax", "unnormalised"])
@pytest.mark.parametrize("beta", [2.5, -2.5])
def test_consensus_pair_by_pair(beta, flow):
    """u = Fᵀx/⟨x,w0⟩ differentiated by hand along the velocity of each token, β of either sign."""
    tokens, w0 = hemisphere(7, 3, 1)
    x, w, F = np.asarray(tokens.x), np.asarray(tokens.weights), np.asarray(tkf.sphere.frame(jnp.asarray(w0)))
    found = np.asarray(theory.consensus(theory.gnomonic(tokens.x, w0), tokens.weights, beta, flow))
    for i in range(7):
        k = np.array([w[j] * np.exp(beta * x[i] @ x[j]) for j in range(7)])
        v = k @ x / (k.sum() if flow == "softmax" else 1.0)
        v -= (v @ x[i]) * x[i]
        height = x[i] @ w0
        np.testing.assert_allclose(found[i], F.T @ v / height - F.T @ x[i] * (v @ w0) / height**2, rtol=1e-10)


def test_consensus_at_very_negative_beta_reads_the_farthest_token():
    """No overflow: the softmax row of token 0 is all on token 2, and e^{β(g−1)} would be e^{2·10⁴}."""
    u = np.array([[0.0], [1.0], [2.0]])
    moved = np.asarray(theory.consensus(u, np.ones(3) / 3, -1e5))
    assert moved[0, 0] == pytest.approx(2 / np.sqrt(5), rel=1e-12)


@pytest.mark.slow
def test_the_hull_shrinks():
    tokens, w0 = hemisphere(40, 3, 2)
    run = tkf.simulate(
        tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), 2.0), tokens, np.linspace(0, 3, 7)
    )
    hulls = [np.asarray(theory.gnomonic(run.tokens(k).x, w0)) for k in range(7)]
    for before, after in pairwise(hulls):
        faces = ConvexHull(before).equations
        assert np.max(after @ faces[:, :2].T + faces[:, 2]) < 1e-9


def test_bad_input_is_one_sentence():
    with pytest.raises(tkf.InputError, match="^`x` must lie in the open hemisphere about w0, but row 1"):
        theory.gnomonic([[1.0, 0.0], [-0.6, 0.8]], [1.0, 0.0])
    with pytest.raises(tkf.InputError, match="^`w0` must have norm 1"):
        theory.gnomonic([[1.0, 0.0]], [2.0, 0.0])
    with pytest.raises(tkf.InputError, match=r"^`u` must have shape \(n, 1\)"):
        theory.from_gnomonic([[1.0, 0.0]], [1.0, 0.0])
    with pytest.raises(tkf.InputError, match=r"^`weights` must have shape \(1,\)"):
        theory.consensus([[1.0, 0.0]], [0.5, 0.5], 1.0)
