"""The model of a stored run: the one that made it wherever data can say so, and none, not a wrong one, elsewhere."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokenfield as tkf
from tests.problems.loops import tok
from tokenfield.models.base import Term
from tokenfield.runs.plain import large_arrays, plain
from tokenfield.runs.rebuilding import rebuilt

RNG = np.random.default_rng(0)
WEIGHTS = tkf.AttentionWeights(RNG.normal(size=(3, 3)), RNG.normal(size=(3, 3)))
HEADS = tkf.AttentionWeights(RNG.normal(size=(2, 3, 3)), RNG.normal(size=(2, 3, 3)), RNG.normal(size=(2, 3)))
SYMMETRIC = tkf.AttentionWeights(np.diag([1.0, 0.3, 0.7]), np.eye(3))
SA = tkf.SoftmaxAttention(WEIGHTS, 1.7)
MLP = tkf.MLP(
    RNG.normal(size=(4, 3)), RNG.normal(size=4), RNG.normal(size=(3, 4)), RNG.normal(size=3), "relu"
)
TOKENS = tkf.Tokens(tok(5, 3, 1), RNG.dirichlet(np.ones(5)))
OFFSETS = np.where(np.tri(5, dtype=bool), RNG.normal(size=(5, 5)), -np.inf)

DESCRIBED = {
    "softmax": SA,
    "softmax at infinity": tkf.SoftmaxAttention(WEIGHTS, np.inf),
    "heads with biases": tkf.SoftmaxAttention(HEADS, 0.3),
    "unnormalised": tkf.UnnormalisedAttention(WEIGHTS, -0.5),
    "cold": tkf.UnnormalisedAttention(WEIGHTS, 1e4),
    "hardmax": tkf.HardmaxAttention(HEADS),
    "zero temperature": tkf.ZeroTemperature(WEIGHTS),
    "anchors": tkf.SoftmaxAttention(WEIGHTS, 2.0, context=TOKENS),
    "mlp": MLP,
    "drift": tkf.Drift([0.1, 1e-300, -1 / 3]),
    "sum": SA + MLP + tkf.Drift([0.1, 0.2, 0.3]),
    "noise": SA + tkf.Noise(1 / 3),
    "pre": tkf.PreNorm(SA + MLP),
    "peri": tkf.PeriNorm(SA),
    "scaled": tkf.ScaledNorm(SA),
    "mix": tkf.MixNorm(SA, 0.3),
    "ngpt": tkf.NGPT(SA, 0.1),
    "none": tkf.NoNorm(SA),
    "depth": tkf.Depth([SA, tkf.ZeroTemperature(WEIGHTS), SA + MLP], 0.1),
    "depth, again": tkf.Depth([SA], 1 / 3, repeat=True),
    "pre of depth": tkf.PreNorm(tkf.Depth([SA, SA + MLP], 0.1)),
    "mirrored": tkf.Mirrored(tkf.SoftmaxAttention(SYMMETRIC, 2.0), 1),
    **{
        f"mask {name}": tkf.SoftmaxAttention(WEIGHTS, 2.0, mask)
        for name, mask in {
            "causal": tkf.masks.causal(),
            "strict": tkf.masks.strict(),
            "prefix": tkf.masks.prefix(2),
            "window": tkf.masks.window(3),
            "alibi": tkf.masks.alibi(0.7),
            "blocks": tkf.masks.blocks([2, 3]),
            "matrix": tkf.masks.matrix(np.tri(5, dtype=bool)),
            "numbers": tkf.masks.matrix(OFFSETS),
            "rope": tkf.masks.rope([0.4]),
            "both": tkf.masks.rope([0.4]) & tkf.masks.alibi(0.1),
            "three": tkf.masks.rope([0.4]) & tkf.masks.blocks([1, 4]) & tkf.masks.causal(),
        }.items()
    },
}


def same(a, b):
    """Equal in kind and settings, and in every bit of every number."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.asarray(left).dtype == np.asarray(right).dtype
        assert np.array_equal(left, right)


def through_a_store(model):
    """The model from its description as a store would give it back."""
    return rebuilt(json.loads(json.dumps(plain(model))))


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_described_model_comes_back(name):
    model = DESCRIBED[name]
    again = through_a_store(model)
    same(again, model)
    assert plain(again) == plain(model)
    if not model.noisy:
        assert np.array_equal(again.velocity(TOKENS), model.velocity(TOKENS), equal_nan=True)


@pytest.mark.parametrize("name", ["mask numbers", "pre of depth", "noise"])
def test_a_loaded_run_has_its_model(name, tmp_path):
    model = DESCRIBED[name]
    solver = tkf.EulerMaruyama(0.1, 0) if model.noisy else tkf.Layers(0.1)
    run = tkf.simulate(model, TOKENS, [0, 0.2], solver, store=tmp_path / "run")
    same(run.model, model)
    same(tkf.load(tmp_path / "run").model, model)
    run.save(tmp_path / "copy")
    same(tkf.load(tmp_path / "copy").model, model)


class Drift(Term):
    """A contributor's own term, whose name and field are those of one of the library's."""

    a: jax.Array

    @property
    def d(self):
        return 3

    def output(self, x, tokens, sums=None, rows=None):
        return -2 * jnp.broadcast_to(self.a, x.shape)


class CausalMask(tkf.Mask):
    def offset(self, i, j):
        return jnp.where(j <= i, 0.0, -jnp.inf)


class Causal(tkf.Mask):
    """Not causal at all."""

    def offset(self, i, j):
        return jnp.where(j >= i, 0.0, -jnp.inf)


BIG = tkf.AttentionWeights(np.eye(65), np.eye(65))
UNKNOWN = {
    "interaction": tkf.InteractionFlow(jnp.exp, np.eye(3)),
    "schedule": tkf.Schedule(lambda t: tkf.SoftmaxAttention(WEIGHTS, 1 + t)),
    "random": tkf.RandomLayers(lambda key: tkf.Drift(jax.random.normal(key, (3,)))),
    "sum with a function": SA + tkf.InteractionFlow(jnp.exp, np.eye(3)),
    "space around a function": tkf.PreNorm(tkf.InteractionFlow(jnp.exp, np.eye(3))),
    "depth with a function": tkf.Depth([SA, tkf.InteractionFlow(jnp.exp, np.eye(3))]),
    "large weights": tkf.SoftmaxAttention(BIG, 1.0),
    "large mask": tkf.SoftmaxAttention(WEIGHTS, 1.0, tkf.masks.matrix(np.tri(65, dtype=bool))),
    "large context": tkf.SoftmaxAttention(WEIGHTS, 1.0, context=tkf.initial.uniform(1500, 3, 0)),
    "a term of one's own": Drift(jnp.array([1.0, 2, 3])),
    "a sum with it": SA + Drift(jnp.array([1.0, 2, 3])),
    "a mask of one's own": tkf.SoftmaxAttention(WEIGHTS, 1.0, CausalMask()),
    "a mask of a known name": tkf.SoftmaxAttention(WEIGHTS, 1.0, Causal()),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_data_cannot_say_has_no_model(name):
    assert through_a_store(UNKNOWN[name]) is None


def test_a_loaded_run_without_a_model(tmp_path):
    run = tkf.simulate(UNKNOWN["interaction"], TOKENS, [0, 0.2], tkf.Layers(0.1), store=tmp_path / "run")
    assert run.model is UNKNOWN["interaction"] or eqx.tree_equal(run.model, UNKNOWN["interaction"])
    again = tkf.load(tmp_path / "run")
    assert again.model is None and np.array_equal(again.x, run.x)


@pytest.mark.parametrize(
    "description",
    [
        None,
        3,
        [],
        {},
        {"kind": "SoftmaxAttention"},
        {"kind": "os.system", "command": "true"},
        {"kind": "Drift", "a": "abc"},
        {"kind": "Drift", "a": [[1.0]]},
        {"kind": "Drift", "a": [1.0, 2.0], "more": 1},
        {"kind": "Causal"},
        {"kind": ["Drift"], "a": [1.0, 2.0]},
        {"kind": "Depth", "models": [3], "step": 1.0, "repeat": False},
    ],
)
def test_nonsense_in_a_store_is_no_model(description):
    assert rebuilt(description) is None


@pytest.mark.parametrize("name", ["large weights", "large mask", "large context"])
def test_large_arrays_are_found_by_their_hash(name):
    """A store keeps them beside the description; one that was changed is not taken."""
    model = UNKNOWN[name]
    arrays = large_arrays(model)
    found = rebuilt(json.loads(json.dumps(plain(model))), arrays)
    assert eqx.tree_equal(found, model)
    changed = {key: array + 1 for key, array in arrays.items()}
    assert rebuilt(json.loads(json.dumps(plain(model))), changed) is None
