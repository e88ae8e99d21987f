"""Mirrored models in other spaces, in sequential layers, and where only a sum of terms will do."""

import numpy as np
import pytest

import tokenfield as tkf
from tests.problems.loops import tok
from tokenfield.models.climbing import energy_of

WEIGHTS = tkf.AttentionWeights(np.diag([1.0, 0.5, 2.0]), np.diag([0.7, 1.0, -0.4]))
#: the reflection across axis 1 keeps all of these
MODELS = {
    "attention": tkf.SoftmaxAttention(WEIGHTS, 2.0),
    "with a drift": tkf.SoftmaxAttention(WEIGHTS, 2.0) + tkf.Drift([0.3, 0.0, -0.2]),
    "ngpt": tkf.NGPT(tkf.SoftmaxAttention(WEIGHTS, 2.0) + tkf.Drift([0.3, 0.0, -0.2]), 0.5),
}
AXIS, HALF = 1, tkf.Tokens(tok(5, 3, 1), [0.1, 0.3, 0.2, 0.25, 0.15])


def whole(tokens):
    """½(μ + Sμ), by hand."""
    sign = np.array([1.0, -1.0, 1.0])
    x, w = np.asarray(tokens.x), np.asarray(tokens.weights)
    return tkf.Tokens(np.concatenate([x, x * sign]), np.concatenate([w, w]) / 2)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "solver", [tkf.Layers(0.5, "parallel"), tkf.Layers(0.5, "sequential"), tkf.Adaptive()]
)
def test_a_half_moves_as_in_the_whole_law(name, solver):
    mirrored = tkf.simulate(tkf.Mirrored(MODELS[name], AXIS), HALF, [0, 1.0], solver).x[-1]
    full = tkf.simulate(MODELS[name], whole(HALF), [0, 1.0], solver).x[-1]
    np.testing.assert_allclose(mirrored, full[:5], atol=1e-8 if solver.order > 1 else 1e-14)


def test_a_half_has_no_density_and_no_energy_of_its_own():
    usa = tkf.UnnormalisedAttention(tkf.AttentionWeights.identity(2), 1.0)
    mirrored = tkf.Mirrored(usa, 1)
    with pytest.raises(
        tkf.InputError, match="^`model` must be the sum of its terms, not mirrored for a density"
    ):
        tkf.density.solve(mirrored, lambda a: 1 + 0.5 * np.sin(a), [0, 0.5], "circle")
    with pytest.raises(tkf.InputError, match="^`model` must climb an energy"):
        energy_of(mirrored, tkf.Tokens(np.eye(2)))
