"""Noise that all tokens share: random layers in the limit of small steps (2601.21942; theory §6.5).

Layers with values V_l = αI + (σ/√η)W_l, W_l with independent N(0, 1) entries, and step η tend to

    dx_i = P_{x_i} ∘ (αȳ_i dt + σ dW ȳ_i)

as η → 0, ȳ_i what heads read before V and W one d × d matrix of Brownian motions, the same for all tokens.
∘ is Stratonovich's product with the projection alone: what is read is taken before the increment (Itô), as a
layer reads before it moves tokens. A product of Stratonovich with ȳ as well would be another equation.
"""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from tokenfield.errors import is_traced, require, require_kind
from tokenfield.laws.tokens import Tokens, as_real
from tokenfield.models.base import Model, Term
from tokenfield.sums.base import Sums
from tokenfield.sums.direct import DIRECT
from tokenfield.sums.profile import Scored


def _as_read(model: Model) -> Model:
    require_kind(model, Model, "read")
    require(not model.space.free, "read", "live on the sphere", type(model.space).__name__)
    require(not model.noisy, "read", "have no noise of its own", "noisy")
    require(not model.reads_time, "read", "not change with time", type(model).__name__)
    unit = model.log_time_unit
    if not is_traced(unit):
        must = "need no time unit of its own (β‖B‖ at most 300)"
        require(float(unit) == 0, "read", must, f"e^{float(unit):g}")
    return model


class CommonNoise(Term):
    """σ dW A_i for every token, A_i the output of another model there and W one matrix of Brownian motions.

    `SoftmaxAttention(weights, beta) + CommonNoise(SoftmaxAttention(weights, beta), sigma)` with weights B and
    V = I is the limit of random layers with mean I. Runs need `EulerMaruyama(step, key)`.

    Args:
        read: what the noise is applied to, on the sphere.
        sigma: strength of the noise, positive.
    """

    read: Model = eqx.field(converter=_as_read)
    sigma: Float[Array, ""]

    noisy: ClassVar[bool] = True
    common_noise: ClassVar[bool] = True

    def __init__(self, read: Model, sigma: ArrayLike | Array):
        sigma = as_real(sigma, "sigma")
        require(sigma.ndim == 0, "sigma", "be one number", f"of shape {sigma.shape}")
        if not is_traced(sigma):
            require(bool(0 < sigma < np.inf), "sigma", "be positive and finite", float(sigma))
        self.read, self.sigma = read, sigma

    @property
    def d(self) -> int:
        """Dimension of the tokens it acts on."""
        return self.read.d

    def output(
        self, x: Array, tokens: Tokens, sums: Sums = DIRECT, rows: Array | None = None
    ) -> Float[Array, "m d"]:
        """Noise has no drift."""
        return jnp.zeros_like(x)

    def noise_shape(self, n: int) -> tuple[int, int]:
        """One matrix."""
        return (self.d, self.d)

    def noise(
        self, y: Array, weights: Array, sums: Sums, h: Array | float, normal: Array
    ) -> Float[Array, "n d"]:
        """√h σ W A."""
        return jnp.sqrt(h) * self.sigma * self.read.output_at(y, weights, sums) @ normal.T

    @property
    def interacts(self) -> bool:
        """Whether what is read depends on the other tokens."""
        return any(term.interacts for term in self.read.terms)

    @property
    def smooth(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether what is read is."""
        return self.read.smooth

    @property
    def reads_order(self) -> bool:
        """Whether what is read does."""
        return self.read.reads_order

    @property
    def scored(self) -> Scored | None:
        """The heads that are read."""
        return self.read.scored

    def check(self, tokens: Tokens) -> None:
        """As what is read."""
        self.read.check(tokens)
