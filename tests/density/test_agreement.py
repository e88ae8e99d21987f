"""Characteristics, the Eulerian solver and tokens: pairwise agreement on S², also where V Bᵀ ≠ I.

Three methods that share little: nodes that move, moments on a fixed grid, and the token simulator.
"""

import itertools

import numpy as np
import pytest

import tokenfield as tkf
from tests.density.test_sphere import tilted
from tokenfield import density
from tokenfield.papers.low_temperature import worked

TURN = np.array([[0.8, -0.6, 0.0], [0.6, 0.8, 0.0], [0.0, 0.0, 0.5]])
CASES = {
    "softmax": tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), 2.0),
    "unnormalised": tkf.UnnormalisedAttention(tkf.AttentionWeights.identity(3), 0.7),
    "V Bᵀ ≠ I": tkf.SoftmaxAttention(
        tkf.AttentionWeights(np.diag([0.5, 1.5, 1.0]), np.diag([1.0, 0.5, 0.2])), 3.0
    ),
    "V turns": tkf.SoftmaxAttention(tkf.AttentionWeights(np.diag([1.0, 0.5, 1.0]), TURN), 2.0),
    "interaction": tkf.InteractionFlow(lambda s: s**3 / 3 + s, np.eye(3)),
}


def agree(nodes, waves, cloud):
    """The first two moments of a density by nodes, by waves, and of tokens, pairwise at every time."""
    assert nodes.resolved
    assert waves.resolved
    for k in range(len(nodes.ts)):
        laws = [nodes.moments(k), waves.moments(k), cloud.tokens(k).moments()]
        for a, b in itertools.combinations(laws, 2):
            assert np.abs(np.asarray(a.mean) - np.asarray(b.mean)).max() < 2e-6
            assert np.abs(np.asarray(a.second) - np.asarray(b.second)).max() < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_three_methods_agree(name):
    model, ts = CASES[name], [0.0, 0.5, 1.0]
    nodes = density.solve(model, tilted, ts, density.Characteristics(n=1024, accuracy=1e-6))
    waves = density.solve(model, tilted, ts, density.Sphere(32))
    cloud = tkf.simulate(model, tkf.initial.sphere_density(tilted, 2000), ts, summation="direct")
    agree(nodes, waves, cloud)


@pytest.mark.slow
def test_three_methods_agree_on_the_circle():
    """The worked case of low temperature, V Bᵀ ≠ I, at β = 4: Fourier modes, nodes and graded tokens."""
    model, ts = tkf.SoftmaxAttention(worked.CIRCLE, 4.0), [0.0, 1.0, 2.0]
    nodes = density.solve(model, worked.density, ts, density.Characteristics(n=256, accuracy=1e-6))
    waves = density.solve(model, lambda t: 1 + 0.3 * np.cos(t) + 0.2 * np.sin(t), ts, "circle")
    cloud = tkf.simulate(model, worked.circle_tokens(1024, 0.8), ts, summation="direct")
    agree(nodes, waves, cloud)
