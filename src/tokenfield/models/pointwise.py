"""Attention whose weights are plain functions of a score: sigmoid and linear attention (theory §6.6).

    sigmoid   P_x Σ_h V_h n ∫σ(β⟨B_hᵀx, y⟩ + b) y dμ,   for n equal tokens Σ_j σ(β⟨B_hᵀx, x_j⟩ + b) V_h x_j
    linear    P_x Σ_h V_h C B_hᵀx,   C = ∫yyᵀ dμ

Both climb an energy where V = rB is symmetric: n/(2β)∬softplus(β⟨x,y⟩ + b) and ¼∬⟨x,y⟩² for B = V = I. With
b = −log n sigmoid attention is unnormalised attention as n → ∞, up to O(e^{2β}/n).
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from tokenfield.errors import is_traced, require
from tokenfield.laws.tokens import Tokens, as_real
from tokenfield.models.attention import MASKED, WARM, Attention, checked, hiding
from tokenfield.models.gaussian import GaussianLaw, GaussianOutput, linear_reading
from tokenfield.models.kernels import Pointwise
from tokenfield.models.weights import AttentionWeights
from tokenfield.registry import Setting, register
from tokenfield.sums.base import Mask, Queries, Sums


class Sigmoid(Pointwise):
    """σ(score + bias), summed over tokens: `count` equal ones, or as many as there are if it is None."""

    bias: Float[Array, ""]
    count: Float[Array, ""] | None = None

    @property
    def reads_number(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Unless the number is said."""
        return self.count is None

    def factor(self, keys: Tokens) -> Array | float:
        """How many tokens have weight, if nobody said how many there are."""
        return jnp.sum(keys.weights > 0) if self.count is None else 1.0

    def function(self, scores: Array) -> Array:
        """σ, times the number of tokens if that is known."""
        return self._known * jax.nn.sigmoid(scores + self.bias)

    @property
    def primitive(self) -> Callable[[Array], Array]:
        """softplus."""
        return _Softplus(self.bias, self._known)

    @property
    def _known(self) -> Array | float:
        return 1.0 if self.count is None else self.count

    def read(self, queries: Queries, keys: Tokens, sums: Sums) -> Float[Array, "m d"]:
        """Sum over the tokens; under a mask over the visible ones, which is not divided by anything."""
        return self.factor(keys) * self.total(queries, keys, sums)


class _Softplus(eqx.Module):
    """count·log(1 + e^{score + bias}); a module, so that equal kernels share a compiled sum."""

    bias: Array
    count: Array | float

    def __call__(self, scores: Array) -> Array:
        return self.count * jax.nn.softplus(scores + self.bias)


@register(
    "model", "sigmoid", settings={"bias": float, "count": Setting(float | None, None), **WARM}, climbs=True
)
class SigmoidAttention(Attention):
    """Sigmoid attention: P_x Σ_h V_h Σ_j n w_j σ(β⟨B_hᵀx, x_j⟩ + bias) x_j, a sum over tokens, not a mean.

    Without `count` n is the number of tokens with weight, so that the velocity depends on more than their
    law: such a model has no density and its tokens are not merged. With `count` it has both. Under a mask the
    visible tokens are summed.

    Args:
        weights: B, V and score biases of the heads.
        beta: inverse temperature, any finite number.
        bias: b, added to every score; −log n makes the sum an average of about e^{β⟨Bᵀx, x_j⟩}.
        count: n; None for the number of tokens that there are.
        mask: who sees whom (`tkf.masks`); it may only hide tokens.
        context: fixed tokens that are read instead of the moving ones.
    """

    weights: AttentionWeights
    beta: Float[Array, ""]
    bias: Float[Array, ""]
    count: Float[Array, ""] | None
    mask: Mask | None
    context: Tokens | None

    def __init__(
        self,
        weights: AttentionWeights,
        beta: ArrayLike | Array,
        bias: ArrayLike | Array,
        count: ArrayLike | Array | None = None,
        mask: Mask | None = None,
        context: Tokens | None = None,
    ):
        self.weights, mask, self.context = checked(weights, mask, context)
        self.mask = hiding(mask)
        self.beta, self.bias = finite_number(beta, "beta"), finite_number(bias, "bias")
        self.count = None if count is None else finite_number(count, "count")
        if self.count is not None and not is_traced(self.count):
            require(bool(self.count > 0), "count", "be positive, a number of tokens", float(self.count))

    @property
    def scale(self) -> Float[Array, ""]:
        """β."""
        return self.beta

    @property
    def kernel(self) -> Sigmoid:
        """σ(score + bias)."""
        return Sigmoid(self.bias, self.count)


class Linear(Pointwise):
    """The score itself."""

    def function(self, scores: Array) -> Array:
        """The scores."""
        return scores

    @property
    def primitive(self) -> Callable[[Array], Array]:
        """s²/2."""
        return _half_square

    def on_gaussian(self, A: np.ndarray, bias: np.ndarray, law: GaussianLaw) -> GaussianOutput:
        """C q."""
        return linear_reading(A, bias, law)

    def read(self, queries: Queries, keys: Tokens, sums: Sums) -> Float[Array, "m d"]:
        """C q, C the second moment of the keys: no pairs are summed unless there is a mask."""
        if queries.mask is not None:
            return super().read(queries, keys, sums)
        y = keys.points
        return queries.q @ ((keys.weights[:, None] * y).T @ y)


def _half_square(scores: Array) -> Array:
    return scores * scores / 2


@register("model", "linear", settings=MASKED, climbs=True)
class LinearAttention(Attention):
    """Linear attention: P_x Σ_h V_h ∫⟨B_hᵀx, y⟩ y dμ; an inverse temperature would be a factor of B.

    Without normalisation the second moment C of any cloud closes: C' = VCBᵀC + (VCBᵀC)ᵀ (`density.gaussian`).

    Args:
        weights: B, V and score biases of the heads.
        mask: who sees whom (`tkf.masks`); it may only hide tokens. Sums are divided by the visible weight.
        context: fixed tokens that are read instead of the moving ones.
    """

    weights: AttentionWeights
    mask: Mask | None
    context: Tokens | None

    def __init__(self, weights: AttentionWeights, mask: Mask | None = None, context: Tokens | None = None):
        self.weights, mask, self.context = checked(weights, mask, context)
        self.mask = hiding(mask)

    @property
    def kernel(self) -> Linear:
        """The score itself."""
        return Linear()


def finite_number(value: ArrayLike | Array, name: str) -> Float[Array, ""]:
    """The value as one finite number, or a sentence that it is none."""
    number = as_real(value, name)
    require(number.ndim == 0, name, "be one number", f"of shape {number.shape}")
    if not is_traced(number):
        require(bool(jnp.isfinite(number)), name, "be a finite number", float(number))
    return number
