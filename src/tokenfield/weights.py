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
from tokenfield.tokens import as_real


class AttentionWeights(eqx.Module):
    """B and V of shape (d, d), or (heads, d, d) for several heads.

    If only one of them has a head axis, the other is shared by all heads.
    """

    B: Float[Array, "*heads d d"]
    V: Float[Array, "*heads d d"]

    def __init__(self, B: ArrayLike | Array, V: ArrayLike | Array):
        B, V = as_matrix(B, "B"), as_matrix(V, "V")
        require(B.shape[-1] == V.shape[-1], "V", f"be {B.shape[-1]} × {B.shape[-1]} like B",
                f"of shape {V.shape}")  # fmt: skip
        if B.ndim == V.ndim == 3:
            require(len(B) == len(V), "V", f"have {len(B)} heads like B", f"with {len(V)}")
        shape = B.shape if B.ndim == 3 else V.shape
        self.B, self.V = jnp.broadcast_to(B, shape), jnp.broadcast_to(V, shape)

    @classmethod
    def from_qkv(cls, Q: ArrayLike | Array, K: ArrayLike | Array, V: ArrayLike | Array) -> "AttentionWeights":
        """From query and key matrices of shape (k, d) or (heads, k, d), B = QᵀK without any 1/√k."""
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

    def stacked(self) -> tuple[Float[Array, "heads d d"], Float[Array, "heads d d"]]:
        """B and V with a head axis, also for one head."""
        shape = (self.heads, self.d, self.d)
        return self.B.reshape(shape), self.V.reshape(shape)


def gaussian(d: int, key: int, heads: int | None = None) -> Float[Array, "*heads d d"]:
    """Matrix with independent N(0, 1/d) entries (Ginibre); spectral radius near 1."""
    return jnp.asarray(_normals(d, key, heads) / np.sqrt(d))


def goe(d: int, key: int, heads: int | None = None) -> Float[Array, "*heads d d"]:
    """Symmetric Gaussian matrix, invariant under rotations; spectrum near [−2, 2] for large d."""
    g = _normals(d, key, heads)
    return jnp.asarray((g + np.swapaxes(g, -1, -2)) / np.sqrt(2 * d))


def wishart(d: int, key: int, heads: int | None = None) -> Float[Array, "*heads d d"]:
    """Symmetric positive definite G Gᵀ/d; trace near d."""
    g = _normals(d, key, heads)
    return jnp.asarray(g @ np.swapaxes(g, -1, -2) / d)


def with_spectrum(spectrum: ArrayLike, key: int, heads: int | None = None) -> Float[Array, "*heads d d"]:
    """Symmetric matrix O diag(spectrum) Oᵀ with uniformly random (Haar) eigenvectors."""
    values = np.asarray(as_real(spectrum, "spectrum"))
    require(values.ndim == 1 and values.size >= 2, "spectrum", "be a list of d ≥ 2 eigenvalues",
            f"of shape {values.shape}")  # fmt: skip
    q, r = np.linalg.qr(_normals(values.size, key, heads))
    # the signs of R make the QR factor Haar distributed
    q = q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]
    return jnp.asarray((q * values) @ np.swapaxes(q, -1, -2))


def _normals(d: int, key: int, heads: int | None) -> np.ndarray:
    as_whole(d, "d", 2)
    as_whole(key, "key", 0)
    if heads is not None:
        as_whole(heads, "heads", 1)
    shape = (d, d) if heads is None else (heads, d, d)
    return np.random.default_rng(key).normal(size=shape)


def as_matrix(value: ArrayLike | Array, name: str) -> Float[Array, "*heads d d"]:
    """The value as a square matrix, or one per head; anything else is refused by name."""
    array = as_real(value, name)
    square = array.ndim in (2, 3) and array.shape[-1] == array.shape[-2] >= 2 and array.shape[0] > 0
    require(square, name, "have shape (d, d) or (heads, d, d) with d ≥ 2", f"of shape {array.shape}")
    if not is_traced(array):
        require(bool(np.isfinite(np.asarray(array)).all()), name, "be finite", "not finite")
    return array
