"""The gnomonic chart of an open hemisphere, where attention becomes a consensus system (theory §3.11).

z = x/⟨x,w0⟩ is the point where the ray through x meets the plane ⟨z,w0⟩ = 1; the chart writes it in an
orthonormal basis of w0's complement, u = Fᵀz with z = w0 + Fu. Great circles become straight lines, and

    z_x' = ⟨x,w0⟩⁻¹ ∫ e^{β⟨x,y⟩}⟨y,w0⟩(z_y − z_x)dμ(y):

every token moves towards a weighted mean of the others, so that the convex hull of the z's shrinks.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from tokenfield.errors import InputError, is_traced, require
from tokenfield.geometry import sphere
from tokenfield.laws.tokens import as_real
from tokenfield.theory.clustering import ROWS_AT_ONCE
from tokenfield.theory.inputs import Flow, check_exponent, check_flow, finite


def gnomonic(x: ArrayLike | Array, w0: ArrayLike | Array) -> Float[Array, "n e"]:
    """Chart coordinates u (n, d−1) of points x (n, d) with ⟨x, w0⟩ > 0, `w0` (d,) the hemisphere's centre."""
    x, w0 = as_real(x, "x"), _centre(w0)
    require(x.ndim == 2 and x.shape[1] == len(w0), "x", f"have shape (n, {len(w0)})", f"of shape {x.shape}")
    height = x @ w0
    if not is_traced(height) and float(jnp.min(height)) <= 0:
        row = int(jnp.argmin(height))
        raise InputError(
            "`x` must lie in the open hemisphere about w0,"
            f" but row {row} has ⟨x,w0⟩ = {float(height[row]):.3g}"
        )
    return (x @ sphere.frame(w0)) / height[:, None]


def from_gnomonic(u: ArrayLike | Array, w0: ArrayLike | Array) -> Float[Array, "n d"]:
    """The points x (n, d) of the sphere with the chart coordinates u (n, d−1)."""
    u, w0 = as_real(u, "u"), _centre(w0)
    require(
        u.ndim == 2 and u.shape[1] == len(w0) - 1,
        "u",
        f"have shape (n, {len(w0) - 1})",
        f"of shape {u.shape}",
    )
    return sphere.retract(w0 + u @ sphere.frame(w0).T)


def consensus(
    u: ArrayLike | Array, weights: ArrayLike | Array, beta: float, flow: Flow = "softmax"
) -> Float[Array, "n e"]:
    """u' of weighted tokens in the chart: the velocity of the attention flow (B = V = I) seen there.

    With |z|² = 1+|u|²: u_i' = |z_i| Σ_j w_j e^{β g_ij}(u_j − u_i)/|z_j|, g_ij = (1+⟨u_i,u_j⟩)/(|z_i||z_j|);
    softmax divides by Σ_j w_j e^{β g_ij}. It does not depend on w0. The weights are positive for any real β,
    so that the hull shrinks under β < 0 as well.

    Args:
        u: chart coordinates (n, d−1).
        weights: of the tokens (n,).
        beta: inverse temperature, any real number; |β| at most 700 for the unnormalised flow.
        flow: "softmax" or "unnormalised".

    Returns:
        u' (n, d−1).
    """
    u, w = as_real(u, "u"), as_real(weights, "weights")
    require(u.ndim == 2, "u", "have shape (n, d−1)", f"of shape {u.shape}")
    require(w.shape == u.shape[:1], "weights", f"have shape ({len(u)},)", f"of shape {w.shape}")
    beta = finite(beta, "beta")
    check_flow(flow)
    if flow == "unnormalised":
        check_exponent(abs(beta), "take a smaller |beta|")
    norm = jnp.sqrt(1 + jnp.sum(u * u, axis=1))

    def row(here: tuple[Array, Array]) -> Array:
        at, length = here
        scores = beta * (1 + u @ at) / (norm * length)
        top = jnp.max(jnp.where(w > 0, scores, -jnp.inf))
        pull = w * jnp.exp(jnp.minimum(scores - top, 0.0))  # a token of weight 0 may lie above: no overflow
        moved = length * ((pull / norm) @ (u - at))
        return moved / jnp.sum(pull) if flow == "softmax" else moved * jnp.exp(top)

    return lax.map(row, (u, norm), batch_size=ROWS_AT_ONCE)


def _centre(w0: ArrayLike | Array) -> Array:
    w0 = as_real(w0, "w0")
    require(w0.ndim == 1 and w0.size >= 2, "w0", "be a vector of length d ≥ 2", f"of shape {w0.shape}")
    norm = float(jnp.linalg.norm(w0))
    require(abs(norm - 1) <= 1e-6, "w0", "have norm 1", f"of norm {norm:.9g}")
    return w0 / norm
