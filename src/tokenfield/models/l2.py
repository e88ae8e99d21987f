"""L2 attention: a token reads what is near it, weights e^{−(β/2)|Qx − Ky|²} (theory §6.6).

Divided by e^{−(β/2)|Qx|²}, which drops out of the mean, this is softmax attention with B = QᵀK whose keys
have the offset −(β/2)|Ky|²; for Q = K orthogonal on the sphere it is softmax attention itself.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from tokenfield.errors import is_traced
from tokenfield.laws.tokens import Tokens, as_real
from tokenfield.models.attention import checked, sum_over_heads
from tokenfield.models.base import commute
from tokenfield.models.gaussian import GaussianLaw, GaussianOutput, l2_reading, over_heads
from tokenfield.models.offset_attention import OffsetAttention
from tokenfield.models.pointwise import finite_number
from tokenfield.models.weights import AttentionWeights, Head, plain_heads
from tokenfield.sums.base import Mask, Queries, Sums
from tokenfield.sums.direct import DIRECT
from tokenfield.sums.offsets import LARGEST_WEIGHT_EXPONENT, exponential_with_offsets
from tokenfield.sums.profile import EXPONENTIAL, Scored


class L2Attention(OffsetAttention):
    """P_x Σ_h V_h ∫y e^{−(β/2)|Q_h x − K_h y|²}dμ / ∫e^{−(β/2)|Q_h x − K_h y|²}dμ.

    Args:
        Q: query matrices (k, d) or (heads, k, d).
        K: key matrices, of the same shape.
        V: value matrices (d, d) or (heads, d, d).
        beta: inverse temperature, any finite number; e^{−|Qx − Ky|²} has β = 2.
        mask: who sees whom (`tkf.masks`).
        context: fixed tokens that are read instead of the moving ones.
    """

    weights: AttentionWeights
    K: Float[Array, "heads k d"]
    beta: Float[Array, ""]
    mask: Mask | None
    context: Tokens | None

    def __init__(
        self,
        Q: ArrayLike | Array,
        K: ArrayLike | Array,
        V: ArrayLike | Array,
        beta: ArrayLike | Array,
        mask: Mask | None = None,
        context: Tokens | None = None,
    ):
        weights = AttentionWeights.from_qkv(Q, K, V)
        self.weights, self.mask, self.context = checked(weights, mask, context)
        K = as_real(K, "K")
        self.K = jnp.broadcast_to(K, (weights.heads, *K.shape[-2:]))
        self.beta = finite_number(beta, "beta")

    def output(
        self, x: Array, tokens: Tokens, sums: Sums = DIRECT, rows: Array | None = None
    ) -> Float[Array, "m d"]:
        """Sum over the heads of V_h times the mean that the head reads at x."""
        keys = self.keys(tokens)
        sums = DIRECT if self.context is not None else sums

        def one(part: tuple[Head, Array]) -> Array:
            head, K = part
            offsets = -0.5 * self.beta * jnp.sum((keys.points @ K.T) ** 2, axis=1)
            queries = Queries(head.B, x, None, self.mask, rows)
            return exponential_with_offsets(sums, queries, keys, offsets).mean @ head.V.T

        return sum_over_heads(one, (self.scored_heads, self.K))

    def on_gaussian(self, law: GaussianLaw) -> GaussianOutput | None:
        """The readings of all heads, unless there is a mask or a context; β must not be negative."""
        if self.mask is not None or self.context is not None or float(self.beta) < 0:
            return None
        beta, heads = float(self.beta), plain_heads(self.weights)
        return over_heads(
            (V, l2_reading(beta * B, beta * K.T @ K, law))
            for (B, V, _), K in zip(heads, np.asarray(self.K), strict=True)
        )

    @property
    def scored(self) -> Scored | None:
        """As softmax attention, where the offsets fit into the weights of keys on the sphere."""
        if self.mask is not None or not self.interacts or is_traced(self.K, self.beta):
            return None
        squares = np.linalg.eigvalsh(np.asarray(jnp.swapaxes(self.K, 1, 2) @ self.K))
        spread = abs(float(self.beta)) / 2 * float(np.max(squares[:, -1] - squares[:, 0]))
        return Scored(EXPONENTIAL, self.scored_heads.B) if spread <= LARGEST_WEIGHT_EXPONENT else None

    def commutes(self, turn: Float[np.ndarray, "d d"]) -> bool:
        """Whether the matrix commutes with B, V and KᵀK of every head; False with a context."""
        return super().commutes(turn) and commute(np.asarray(jnp.swapaxes(self.K, 1, 2) @ self.K), turn)
