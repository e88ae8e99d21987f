"""Models that a file can say but that need more than a plain call of their class."""

from typing import Annotated

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array
from numpy.typing import ArrayLike
from pydantic import Field

from tokenfield.models.attention import InteractionFlow
from tokenfield.models.l2 import L2Attention
from tokenfield.models.weights import AttentionWeights
from tokenfield.registry import MATRIX, Member, Setting, register
from tokenfield.sums.base import Mask


class Power(eqx.Module):
    """φ(s) = s^p/p."""

    p: int = eqx.field(static=True)

    def __call__(self, s: Array) -> Array:
        """The value at one number."""
        return s**self.p / self.p


@register("model", "interaction", settings={"power": Annotated[int, Field(ge=1)]}, climbs=True)
def power_interaction(weights: AttentionWeights, power: int) -> InteractionFlow:
    """The interaction flow with φ(s) = s^power/power and A = B of [weights]."""
    return InteractionFlow(Power(power), weights.B)


@register(
    "model",
    "l2",
    settings={"beta": float, "K": Setting(MATRIX, None), "mask": Setting(Member("mask"), None)},
)
def l2_attention(
    weights: AttentionWeights, beta: float, K: ArrayLike | None = None, mask: Mask | None = None
) -> L2Attention:
    """L2 attention with QᵀK = B of [weights]; K is the identity if left out.

    Args:
        weights: B and V.
        beta: inverse temperature.
        K: key matrix (d, d), invertible.
        mask: who sees whom.
    """
    keys = jnp.eye(weights.d) if K is None else jnp.asarray(K)
    Q = jnp.swapaxes(weights.B @ jnp.linalg.inv(keys), -1, -2)
    return L2Attention(Q, jnp.broadcast_to(keys, Q.shape), weights.V, beta, mask)
