"""How cold the heads of an encoder are on its own tokens (theory §7.2).

With s = β|Bᵀu + c| a head's keys are weighed like e^{s cosθ}. The sphere of tokens has dimension d − 2:
a head is cold if s ≫ d/2. With fewer than about s^{(d−2)/2} tokens a colder head tends to the hardmax
over the tokens present, not to zero temperature.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import entr
from jaxtyping import Array, Float

from tokenfield.encoders.encoder import Encoder
from tokenfield.encoders.layer import EncoderLayer
from tokenfield.errors import require_kind


class Temperature(NamedTuple):
    """One number per layer and head, each array (layers, heads), medians or means over the tokens.

    `s`: median of β|Bᵀu + c|. `relative`: s/(d/2). `entropy`: mean, of the weights of keys, at most log n.
    `top`: mean weight of the heaviest key. `hardmax`, `average`, `zero_temperature`: mean cosine of what the
    head puts out with what these rules would. `log10_tokens`: log₁₀ of the number of tokens that the
    continuum would take, s^{(d−2)/2}.
    """

    s: Float[np.ndarray, "layers heads"]
    relative: Float[np.ndarray, "layers heads"]
    entropy: Float[np.ndarray, "layers heads"]
    top: Float[np.ndarray, "layers heads"]
    hardmax: Float[np.ndarray, "layers heads"]
    average: Float[np.ndarray, "layers heads"]
    zero_temperature: Float[np.ndarray, "layers heads"]
    log10_tokens: Float[np.ndarray, "layers heads"]


def temperature(encoder: Encoder, ids: Sequence[int]) -> Temperature:
    """How cold every head is on the tokens of one text, given by its ids."""
    require_kind(encoder, Encoder, "encoder")
    states = encoder.hidden_states(ids)
    rows = [_of_layer(layer, x) for layer, x in zip(encoder.layers, states[:-1], strict=True)]
    return Temperature(*(np.stack([np.asarray(row[k]) for row in rows]) for k in range(8)))


def _of_layer(layer: EncoderLayer, x: Float[Array, "n d"]) -> tuple[Array, ...]:
    u, d = layer.fold(x), layer.d
    left, right, up, down = layer.factors
    field = jnp.einsum("hkd,hnk->hnd", right, jnp.einsum("hkd,nd->hnk", left, u))
    field = field + layer.score_bias[:, None]
    s = layer.beta * jnp.linalg.norm(field, axis=-1)
    pattern = layer.attention.pattern(x)
    scores = jnp.einsum("hnd,md->hnm", field, u)
    best = u[jnp.argmax(scores, axis=-1)]
    mean = jnp.broadcast_to(jnp.mean(u, axis=0), field.shape)
    cold = field / jnp.linalg.norm(field, axis=-1, keepdims=True)

    def put_out(read: Float[Array, "h n d"]) -> Float[Array, "h n d"]:
        return jnp.einsum("hdk,hnk->hnd", up, jnp.einsum("hkd,hnd->hnk", down, read))

    real = put_out(jnp.einsum("hnm,md->hnd", pattern, u))
    cosines = [jnp.mean(_cosine(real, put_out(read)), axis=1) for read in (best, mean, cold)]
    middle = jnp.median(s, axis=1)
    entropy = jnp.mean(jnp.sum(entr(pattern), axis=-1), axis=1)
    top = jnp.mean(jnp.max(pattern, axis=-1), axis=1)
    return middle, middle / (d / 2), entropy, top, *cosines, (d - 2) / 2 * jnp.log10(middle)


def _cosine(a: Array, b: Array) -> Array:
    return jnp.sum(a * b, axis=-1) / (jnp.linalg.norm(a, axis=-1) * jnp.linalg.norm(b, axis=-1))
