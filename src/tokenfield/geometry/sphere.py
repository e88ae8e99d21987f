"""Geometry of the unit sphere S = {x in R^d : |x| = 1}, as plain functions of rows.

Every function acts on the last axis, so one point (d,) and many points (n, d) are treated alike.
Angles are computed from chords, not from arccos, which loses half the digits near 0 and π.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

#: |x + y| up to which y counts as −x: the rounding of two unit vectors.
LARGEST_ANTIPODAL_CHORD = 1e-15


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
    """Tangent vector at x whose geodesic reaches y in unit time (any one of them if y = −x).

    Near −x only x + y, not y − x, keeps the digits of the direction.
    """
    angle = distance(x, y)[..., None]
    far = angle > jnp.pi / 2
    near_log = project(x, y - x) / jnp.sinc(jnp.where(far, 0.0, angle) / jnp.pi)
    v = project(x, x + y)
    length = _safe_norm(v)
    opposite = length <= LARGEST_ANTIPODAL_CHORD
    direction = jnp.where(opposite, _tangent(x), v / jnp.where(opposite, 1.0, length))
    return jnp.where(far, angle * direction, near_log)


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
    h = _mirror(x)
    return jnp.eye(x.shape[-1])[:, 1:] - 2 * h[..., :, None] * h[..., None, 1:]


def _mirror(x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    """Unit normal of the reflection that swaps x and ±e_1."""
    sign = jnp.where(x[..., :1] >= 0, 1.0, -1.0)
    return retract(x.at[..., :1].add(sign))


def _tangent(x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    """A unit tangent vector at x, the first column of `frame`."""
    h = _mirror(x)
    return jnp.eye(x.shape[-1])[1] - 2 * h * h[..., 1:2]


def _safe_norm(v: Float[Array, "*n d"]) -> Float[Array, "*n 1"]:
    """|v| with a finite gradient at v = 0."""
    square = jnp.sum(v * v, axis=-1, keepdims=True)
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)
