"""Geometry of the unit sphere S = {x in R^d : |x| = 1}, as plain functions of rows.

Every function acts on the last axis, so one point (d,) and many points (n, d) are treated alike.
Angles are computed from chords, not from arccos, which loses half the digits near 0 and π.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def retract(x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    """Nearest point of the sphere, x/|x|."""
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def project(x: Float[Array, "*n d"], z: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    """Tangential part P_x z = z − ⟨x, z⟩x of z at the point x."""
    return z - jnp.sum(x * z, axis=-1, keepdims=True) * x


def exp(x: Float[Array, "*n d"], v: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    """End of the geodesic that leaves x with the tangent velocity v after unit time."""
    length = _safe_norm(v)
    return retract(jnp.cos(length) * x + jnp.sinc(length / jnp.pi) * v)


def log(x: Float[Array, "*n d"], y: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    """Tangent vector at x whose geodesic reaches y in unit time (any one of them if y = −x)."""
    v = project(x, y - x)
    return v / jnp.sinc(distance(x, y)[..., None] / jnp.pi)


def distance(x: Float[Array, "*n d"], y: Float[Array, "*n d"]) -> Float[Array, "*n"]:
    """Geodesic distance, the angle between x and y in [0, π]."""
    return 2 * jnp.arctan2(chord(x, y), chord(x, -y))


def chord(x: Float[Array, "*n d"], y: Float[Array, "*n d"]) -> Float[Array, "*n"]:
    """Chordal distance |x − y|."""
    return jnp.linalg.norm(x - y, axis=-1)


def frame(x: Float[Array, "*n d"]) -> Float[Array, "*n d e"]:
    """Orthonormal basis of the tangent space at x, as the d − 1 columns of a (d, d−1) matrix.

    The columns are those of the Householder reflection that swaps x and ±e_1, the sign chosen so that
    nothing cancels.
    """
    sign = jnp.where(x[..., :1] >= 0, 1.0, -1.0)
    h = x.at[..., :1].add(sign)
    h = retract(h)
    return jnp.eye(x.shape[-1])[:, 1:] - 2 * h[..., :, None] * h[..., None, 1:]


def _safe_norm(v: Float[Array, "*n d"]) -> Float[Array, "*n 1"]:
    """|v| with a finite gradient at v = 0."""
    square = jnp.sum(v * v, axis=-1, keepdims=True)
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)
