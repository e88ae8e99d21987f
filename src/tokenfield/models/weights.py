"""The matrices of attention: B = QᵀK scores, V values, D = V Bᵀ, with one head or many.

A token x reads the key y with the score ⟨Qx, Ky⟩ = ⟨Bᵀx, y⟩ and receives V y; heads add up.
A trained model's scores ⟨Qx, Ky⟩/√k on tokens of norm r are the model with β = r²/√k here.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from tokenfield.errors import as_whole, is_traced, require
from tokenfield.laws.tokens import as_real


class Head(eqx.Module):
    """One head as data: scores ⟨Bᵀx + score_bias, y⟩, values V y; with a leading axis, several heads."""

    B: Float[Array, "*heads d d"]
    V: Float[Array, "*heads d d"]
    score_bias: Float[Array, "*heads d"] | None


class AttentionWeights(eqx.Module):
    """The matrices of one head or of several, which add up.

    If only one of the arguments has a head axis, the others are shared by all heads.

    Args:
        B: (d, d) or (heads, d, d), scores β⟨Bᵀx, y⟩.
        V: (d, d) or (heads, d, d), values V y.
        score_bias: (d,) or (heads, d), added to Bᵀx: what biases of queries leave (theory §7.1).
    """

    B: Float[Array, "*heads d d"]
    V: Float[Array, "*heads d d"]
    score_bias: Float[Array, "*heads d"] | None

    def __init__(
        self, B: ArrayLike | Array, V: ArrayLike | Array, score_bias: ArrayLike | Array | None = None
    ):
        B, V = as_matrix(B, "B"), as_matrix(V, "V")
        d = B.shape[-1]
        require(V.shape[-1] == d, "V", f"be {d} × {d} like B", f"of shape {V.shape}")
        if B.ndim == V.ndim == 3:
            require(len(B) == len(V), "V", f"have {len(B)} heads like B", f"with {len(V)}")
        bias = None if score_bias is None else _as_bias(score_bias, d)
        counts = [len(a) for a, rank in ((B, 3), (V, 3), (bias, 2)) if a is not None and a.ndim == rank]
        require(
            len(set(counts)) <= 1, "score_bias", f"have {max(counts, default=1)} heads like B and V", counts
        )
        heads = tuple(counts[:1])
        self.B, self.V = (jnp.broadcast_to(a, (*heads, d, d)) for a in (B, V))
        self.score_bias = None if bias is None else jnp.broadcast_to(bias, (*heads, d))

    @classmethod
    def from_qkv(cls, Q: ArrayLike | Array, K: ArrayLike | Array, V: ArrayLike | Array) -> "AttentionWeights":
        """From query and key matrices of shape (k, d) or (heads, k, d), B = QᵀK without any 1/√k.

        Args:
            Q: query matrices.
            K: key matrices, of the same shape.
            V: value matrices (d, d) or (heads, d, d), with the output projection multiplied in.
        """
        Q, K = as_real(Q, "Q"), as_real(K, "K")
        require(Q.ndim in (2, 3), "Q", "have shape (k, d) or (heads, k, d)", f"of shape {Q.shape}")
        require(K.shape == Q.shape, "K", f"have the shape {Q.shape} of Q", f"of shape {K.shape}")
        return cls(jnp.swapaxes(Q, -1, -2) @ K, V)

    @classmethod
    def identity(cls, d: int) -> "AttentionWeights":
        """B = V = I, the model of the clustering papers."""
        as_whole(d, "d", 2)
        return cls(jnp.eye(d), jnp.eye(d))

    @property
    def d(self) -> int:
        """Dimension of the tokens."""
        return self.B.shape[-1]

    @property
    def heads(self) -> int:
        """Number of heads."""
        return len(self.B) if self.B.ndim == 3 else 1

    @property
    def D(self) -> Float[Array, "*heads d d"]:
        """V Bᵀ, one per head: its dominant eigenspace is where tokens concentrate (2605.10931)."""
        return self.V @ jnp.swapaxes(self.B, -1, -2)

    def layer_scaled(self, gamma: ArrayLike | Array) -> "AttentionWeights":
        """LayerScale (theory §6.2): V → diag(γ)V in every head, γ of shape (d,)."""
        gain = as_real(gamma, "gamma")
        require(gain.shape == (self.d,), "gamma", f"have shape ({self.d},)", f"of shape {gain.shape}")
        if not is_traced(gain):
            require(bool(np.isfinite(np.asarray(gain)).all()), "gamma", "be finite", "not finite")
        return AttentionWeights(self.B, gain[:, None] * self.V, self.score_bias)

    def stacked(self) -> tuple[Float[Array, "heads d d"], Float[Array, "heads d d"]]:
        """B and V with a head axis, also for one head; for those who know no score bias."""
        known = self.score_bias is None
        require(known, "weights", "have no score_bias here: this is known without one only", "with one")
        every = self.every_head()
        return every.B, every.V

    def every_head(self) -> Head:
        """All heads with a head axis, also if there is only one."""
        B, V = (a.reshape(self.heads, self.d, self.d) for a in (self.B, self.V))
        bias = None if self.score_bias is None else self.score_bias.reshape(self.heads, self.d)
        return Head(B, V, bias)


def plain_heads(
    weights: AttentionWeights,
) -> list[tuple[Float[np.ndarray, "d d"], Float[np.ndarray, "d d"], Float[np.ndarray, "d"]]]:
    """B, V and score bias (0 if there is none) of every head as NumPy arrays, for use outside of JAX."""
    d = weights.d
    B, V = (np.asarray(a).reshape(-1, d, d) for a in (weights.B, weights.V))
    bias = np.zeros((len(B), d)) if weights.score_bias is None else np.asarray(weights.score_bias)
    return list(zip(B, V, bias.reshape(-1, d), strict=True))


def _as_bias(value: ArrayLike | Array, d: int) -> Array:
    bias = as_real(value, "score_bias")
    right = bias.ndim in (1, 2) and bias.shape[-1] == d
    require(right, "score_bias", f"have shape ({d},) or (heads, {d})", f"of shape {bias.shape}")
    if not is_traced(bias):
        require(bool(np.isfinite(np.asarray(bias)).all()), "score_bias", "be finite", "not finite")
    return bias


def as_matrix(value: ArrayLike | Array, name: str) -> Float[Array, "*heads d d"]:
    """The value as a square matrix, or one per head; anything else is refused by name."""
    array = as_real(value, name)
    square = array.ndim in (2, 3) and array.shape[-1] == array.shape[-2] >= 2 and array.shape[0] > 0
    require(square, name, "have shape (d, d) or (heads, d, d) with d ≥ 2", f"of shape {array.shape}")
    if not is_traced(array):
        require(bool(np.isfinite(np.asarray(array)).all()), name, "be finite", "not finite")
    return array
