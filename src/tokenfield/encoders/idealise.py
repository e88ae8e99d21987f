"""The ladder from a trained encoder to the theory: parts left out one by one, each rung runs (theory §7).

"mlp" leaves out the MLP (both norms stay), "biases" every bias, "gain" puts rms(G)·I for the gain of every
norm; with all three gone the encoder is softmax attention on the sphere, a layer a step of size 1.
"antisymmetric" then leaves only the symmetric parts of B and V. `attention` replaces the softmax.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from tokenfield.encoders.encoder import Encoder
from tokenfield.encoders.layer import EncoderLayer, Rule, SelfAttention
from tokenfield.encoders.layer_norm import LayerNorm, centred
from tokenfield.errors import require, require_kind

Part = Literal["mlp", "biases", "gain", "antisymmetric"]


def idealise(encoder: Encoder, drop: Sequence[Part] = (), attention: Rule = "softmax") -> Encoder:
    """The encoder with parts left out; it runs like any other.

    Args:
        encoder: a trained one.
        drop: what to leave out: "mlp", "biases", "gain", and once those are gone "antisymmetric".
        attention: "softmax", "hardmax" (over the tokens present), "zero temperature" (over the whole sphere)
            or "average".
    """
    require_kind(encoder, Encoder, "encoder")
    known = attention in get_args(Rule)
    require(known, "attention", f"be one of {', '.join(get_args(Rule))}", repr(attention))
    layers = [without(layer, drop) for layer in encoder.layers]
    layers = [eqx.tree_at(lambda m: m.attention, each, _ruled(each.attention, attention)) for each in layers]
    norm = _plain_norm(encoder.embedding.norm, drop)
    embedding = eqx.tree_at(lambda m: m.norm, encoder.embedding, norm)
    return Encoder(embedding, tuple(layers), encoder.kind, encoder.shared, encoder.parameters)


def without(layer: EncoderLayer, drop: Sequence[Part]) -> EncoderLayer:
    """One layer with parts left out."""
    listed = not isinstance(drop, str) and all(each in get_args(Part) for each in drop)
    require(listed, "drop", f"be a list of {', '.join(get_args(Part))}", repr(drop))
    mlp = None if "mlp" in drop else layer.mlp
    heads = layer.attention
    if "biases" in drop:
        heads = _zero(heads, ("q", "p", "v", "o"))
        mlp = None if mlp is None else _zero(mlp, ("b1", "b2"))
    norms = (_plain_norm(each, drop) for each in (layer.norm1, layer.norm2, layer.source))
    changed = EncoderLayer(heads, mlp, *norms)
    if "antisymmetric" not in drop:
        return changed
    ready = {"mlp", "biases", "gain"} <= set(drop)
    require(ready, "drop", "hold mlp, biases and gain beside antisymmetric", list(drop))
    return eqx.tree_at(lambda m: m.attention, changed, _symmetric(heads))


def _zero(part, names: Sequence[str]):
    values = [jnp.zeros_like(getattr(part, name)) for name in names]
    return eqx.tree_at(lambda m: [getattr(m, name) for name in names], part, values)


def _plain_norm(norm: LayerNorm, drop: Sequence[Part]) -> LayerNorm:
    gain = jnp.full_like(norm.gain, norm.flat_gain) if "gain" in drop else norm.gain
    bias = jnp.zeros_like(norm.bias) if "biases" in drop else norm.bias
    return LayerNorm(gain, bias, norm.eps)


def _ruled(heads: SelfAttention, rule: Rule) -> SelfAttention:
    parts = (heads.Q, heads.K, heads.V, heads.O, heads.q, heads.p, heads.v, heads.o)
    return SelfAttention(*parts, scale=heads.scale, rule=rule)


def _symmetric(heads: SelfAttention) -> SelfAttention:
    """½(B + Bᵀ) and ½(V + Vᵀ) on 1^⊥ as heads of twice the rank, so that factors stay factors."""

    def swap(matrix: Float[Array, "h a b"]) -> Float[Array, "h b a"]:
        return jnp.swapaxes(matrix, 1, 2)

    Q, K, V, up = centred(heads.Q), centred(heads.K), centred(heads.V), swap(centred(swap(heads.O)))
    both = jnp.concatenate
    none = jnp.zeros((len(Q), 2 * Q.shape[1]))
    return SelfAttention(
        both([Q, K], axis=1) / 2,
        both([K, Q], axis=1),
        both([V, swap(up)], axis=1),
        both([up, swap(V)], axis=2) / 2,
        *(none, none, none),
        heads.o,
        scale=heads.scale,
        rule=heads.rule,
    )
