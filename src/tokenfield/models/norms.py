"""Models in a space other than the sphere: normalisation schemes (2510.22026; theory §6.2).

    PreNorm(model)            y' = A(y/|y|)
    PeriNorm(model)           y' = A/‖A‖
    ScaledNorm(model)         y' = A/√(1+t)
    MixNorm(model, switch)    Post-LN until the time `switch`, then Pre-LN
    NGPT(model, alpha)        on the sphere, αP_θ A/‖A‖
    NoNorm(model)             y' = A(y), scores on the tokens themselves

Without one of them tokens live on the sphere (Post-LN). LayerScale is diag(γ)V in the weights.
"""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from tokenfield.errors import as_number, is_traced, require, require_kind
from tokenfield.laws.tokens import as_real
from tokenfield.models.base import Model
from tokenfield.models.spaces import (
    MixSpace,
    NormalisedSphere,
    PeriSpace,
    PreSpace,
    RawSpace,
    ScaledSpace,
    Space,
)
from tokenfield.models.wrapper import Wrapper
from tokenfield.registry import register
from tokenfield.sums.profile import Scored


class Norm(Wrapper):
    """A model in another space."""

    model: eqx.AbstractVar[Model]

    @property
    def scored(self) -> Scored | None:
        """Fast sums need keys on the sphere."""
        return None if self.space.raw else self.model.scored

    @property
    def log_time_unit(self) -> Float[Array, ""]:
        """That of the model inside; 0 where outputs are normalised."""
        return jnp.zeros(()) if self.space.normalises else self.model.log_time_unit

    def with_term(self, term: Model) -> "Norm":
        """The same space with one more term."""
        return eqx.tree_at(lambda m: m.model, self, _inside(self.model + term))


def _inside(model: Model) -> Model:
    require_kind(model, Model, "model")
    require(not isinstance(model, Norm), "model", "be in no other space yet", type(model).__name__)
    require(not model.noisy, "model", "have no noise: noise is made for the sphere", "noisy")
    return model


def _inside_time(model: Model) -> Model:
    """A model for a space that reads the time, which must be that of the equation."""
    unit = _inside(model).log_time_unit
    if not is_traced(unit):
        must = "need no time unit of its own where the space reads the time (β‖B‖ at most 300)"
        require(float(unit) == 0, "model", must, f"e^{float(unit):g}")
    return model


@register("space", "pre-norm")
class PreNorm(Norm):
    """Pre-LN: every token has a length, y' = A(y/|y|); θ' = P_θA/r, r' = ⟨θ, A⟩."""

    model: Model = eqx.field(converter=_inside)
    space: ClassVar[Space] = PreSpace()


@register("space", "peri-norm")
class PeriNorm(Norm):
    """Peri-LN: y' = A/‖A‖, A the output at y/|y|."""

    model: Model = eqx.field(converter=_inside)
    space: ClassVar[Space] = PeriSpace()


@register("space", "scaled-norm")
class ScaledNorm(Norm):
    """LN-scaling: y' = A/√(1+t), A the output at y/|y|; with `Layers(1)` the layer ℓ is divided by √ℓ."""

    model: Model = eqx.field(converter=_inside_time)
    space: ClassVar[Space] = ScaledSpace()


@register("space", "no-norm")
class NoNorm(Norm):
    """No normalisation: y' = A(y), scores and values of the tokens themselves, whatever their lengths."""

    model: Model = eqx.field(converter=_inside)
    space: ClassVar[Space] = RawSpace()


@register("space", "mix-norm", settings={"switch": float})
class MixNorm(Norm):
    """Mix-LN: Post-LN until the time `switch`, at the length that the token has; then Pre-LN."""

    model: Model = eqx.field(converter=_inside_time)
    switch: float = eqx.field(converter=lambda v: as_number(v, "switch"), static=True)

    @property
    def space(self) -> Space:
        """With a jump at the switch."""
        return MixSpace(self.switch)


@register("space", "ngpt", settings={"alpha": float})
class NGPT(Norm):
    """nGPT: θ' = αP_θ A/‖A‖ on the sphere; as layers θ ← N(θ + ηα(A/‖A‖ − θ)).

    Time is in units of layers: `Layers(1)` takes α as the step of a layer.
    """

    model: Model
    alpha: Float[Array, ""]

    def __init__(self, model: Model, alpha: ArrayLike | Array):
        self.model = _inside(model)
        alpha = as_real(alpha, "alpha")
        require(alpha.ndim == 0, "alpha", "be one number", f"of shape {alpha.shape}")
        if not is_traced(alpha):
            require(bool(0 < alpha < np.inf), "alpha", "be positive and finite", float(alpha))
        self.alpha = alpha

    @property
    def space(self) -> Space:
        """The sphere, with outputs normalised."""
        return NormalisedSphere(self.alpha)
