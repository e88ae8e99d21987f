"""Random matrices for B and V; each takes an integer key and gives the same matrix for the same key."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from tokenfield.errors import as_whole, require
from tokenfield.laws.tokens import as_real


def gaussian(d: int, key: int, heads: int | None = None) -> Float[Array, "*heads d d"]:
    """Matrix with independent N(0, 1/d) entries (Ginibre); spectral radius near 1.

    Args:
        d: dimension, at least 2.
        key: an integer; the same key gives the same matrix.
        heads: how many matrices, (heads, d, d); one (d, d) if left out.
    """
    return jnp.asarray(_normals(d, key, heads) / np.sqrt(d))


def goe(d: int, key: int, heads: int | None = None) -> Float[Array, "*heads d d"]:
    """Symmetric Gaussian matrix, invariant under rotations; spectrum near [−2, 2] for large d.

    Args:
        d: dimension, at least 2.
        key: an integer; the same key gives the same matrix.
        heads: how many matrices, (heads, d, d); one (d, d) if left out.
    """
    g = _normals(d, key, heads)
    return jnp.asarray((g + np.swapaxes(g, -1, -2)) / np.sqrt(2 * d))


def wishart(d: int, key: int, heads: int | None = None) -> Float[Array, "*heads d d"]:
    """Symmetric positive definite G Gᵀ/d; trace near d.

    Args:
        d: dimension, at least 2.
        key: an integer; the same key gives the same matrix.
        heads: how many matrices, (heads, d, d); one (d, d) if left out.
    """
    g = _normals(d, key, heads)
    return jnp.asarray(g @ np.swapaxes(g, -1, -2) / d)


def with_spectrum(spectrum: ArrayLike, key: int, heads: int | None = None) -> Float[Array, "*heads d d"]:
    """Symmetric matrix O diag(spectrum) Oᵀ with uniformly random (Haar) eigenvectors.

    Args:
        spectrum: the d ≥ 2 eigenvalues.
        key: an integer; the same key gives the same matrix.
        heads: how many matrices, (heads, d, d); one (d, d) if left out.
    """
    values = np.asarray(as_real(spectrum, "spectrum"))
    require(
        values.ndim == 1 and values.size >= 2,
        "spectrum",
        "be a list of d ≥ 2 eigenvalues",
        f"of shape {values.shape}",
    )
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
