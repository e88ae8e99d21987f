"""An encoder: embeddings and layers; its hidden states and attention in double precision."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from tokenfield.encoders.layer import EncoderLayer
from tokenfield.encoders.layer_norm import LayerNorm
from tokenfield.errors import require


class Embedding(eqx.Module):
    """Words and places, added, normalised, and for ALBERT mapped to the width of the layers.

    `first`: place of the first token (RoBERTa counts from the padding id + 1).
    """

    words: Float[Array, "ids e"]
    places: Float[Array, "places e"]
    norm: LayerNorm
    matrix: Float[Array, "d e"] | None
    shift: Float[Array, "d"] | None
    first: int = eqx.field(static=True)

    @property
    def longest(self) -> int:
        """Most tokens that there are places for."""
        return len(self.places) - self.first

    def __call__(self, ids: Int[Array, "n"]) -> Float[Array, "n d"]:
        """The input of the first layer."""
        places = self.places[self.first : self.first + len(ids)]
        x = self.norm(self.words[ids] + places)
        return x if self.matrix is None or self.shift is None else x @ self.matrix.T + self.shift


class Encoder(eqx.Module):
    """A trained encoder. `shared`: whether all layers are one and the same (ALBERT); `kind`: model_type."""

    embedding: Embedding
    layers: tuple[EncoderLayer, ...]
    kind: str = eqx.field(static=True)
    shared: bool = eqx.field(static=True)
    parameters: int = eqx.field(static=True)

    def tokens(self, ids: Sequence[int] | Int[Array, "n"]) -> Float[Array, "n d"]:
        """The input of the first layer for a list of ids, without special tokens added."""
        return self.embedding(jnp.asarray(self.as_ids(ids)))

    def hidden_states(self, ids: Sequence[int] | Int[Array, "n"]) -> Float[Array, "states n d"]:
        """The tokens before the first and after every layer, (layers + 1, n, d)."""
        states = [self.tokens(ids)]
        for layer in self.layers:
            states.append(_block(layer, states[-1]))
        return jnp.stack(states)

    def attention(self, ids: Sequence[int] | Int[Array, "n"]) -> Float[Array, "layers heads n n"]:
        """Weight of every key for every query in every head of every layer."""
        states = self.hidden_states(ids)
        return jnp.stack(
            [layer.attention.pattern(x) for layer, x in zip(self.layers, states[:-1], strict=True)]
        )

    def as_ids(self, ids: Sequence[int] | Array) -> np.ndarray:
        """The ids as an array, or a sentence about what is wrong with them."""
        array, count = np.asarray(ids), len(self.embedding.words)
        listed = array.ndim == 1 and array.size > 0 and array.dtype.kind in "iu"
        require(listed, "ids", "be a list of at least one whole number", repr(ids))
        wrong = array[(array < 0) | (array >= count)]
        require(wrong.size == 0, "ids", f"be from 0 to {count - 1}", wrong[:1])
        most = self.embedding.longest
        require(array.size <= most, "ids", f"be at most {most}", f"{array.size} of them")
        return array


@jax.jit
def _block(layer: EncoderLayer, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return layer.block(x)
