"""Spaces: where tokens live, and how a layer's output A moves them (2510.22026; theory §6.2).

A token is y = rθ, θ a unit vector. The output A of the layer is computed at the directions θ (at y itself
without normalisation) and moves the token by

| space | y' | layer with step η |
|---|---|---|
| Post-LN, the sphere | P_θ A | θ ← N(θ + ηA) |
| Pre-LN | A | y ← y + ηA |
| Peri-LN | A/‖A‖ | y ← y + ηA/‖A‖ |
| LN-scaling | A/√(1+t) | y ← y + ηA/√(1+t) |
| Mix-LN | rP_θ A until τ, then A | Post-LN until τ, then Pre-LN |
| nGPT | αP_θ A/‖A‖ | θ ← N(θ + ηα(A/‖A‖ − θ)) |
| none | A(y) | y ← y + ηA(y) |

N(y) = y/|y|. On the sphere the field is extended with degree 0, so that steps may leave it for a moment.
"""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from tokenfield.geometry import sphere
from tokenfield.laws.tokens import Tokens


class Space(eqx.Module):
    """How a layer's output moves tokens. Subclasses declare what they are, and say `slope`."""

    #: Whether tokens have lengths of their own.
    free: ClassVar[bool] = True
    #: Whether terms see the tokens themselves, not only their directions.
    raw: ClassVar[bool] = False
    #: Whether the equation changes with time.
    reads_time: ClassVar[bool] = False
    #: Whether outputs are divided by their length, so that a time unit of the model drops out.
    normalises: ClassVar[bool] = False
    #: Whether tokens move by exactly the tangential part of the output, as the mean-field equation has it.
    projects: ClassVar[bool] = False

    @abstractmethod
    def slope(
        self, y: Float[Array, "n d"], output: Float[Array, "n d"], t: Float[Array, ""] | float
    ) -> Float[Array, "n d"]:
        """y' of the tokens.

        Args:
            y: tokens (n, d).
            output: of the layer there (n, d).
            t: the time.
        """

    def layer(
        self,
        y: Float[Array, "n d"],
        output: Float[Array, "n d"],
        t: Float[Array, ""] | float,
        step: Float[Array, ""] | float,
    ) -> Float[Array, "n d"]:
        """Where one layer takes the tokens.

        Args:
            y: tokens (n, d).
            output: of the layer there (n, d).
            t: the time at which the layer begins.
            step: η.
        """
        return self.retract(y + step * self.slope(y, output, t))

    def retract(self, y: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """Back to where tokens live after a step; free tokens are there already."""
        return y

    def scale(self, y: Float[Array, "n d"]) -> Float[Array, "n 1"] | float:
        """What errors of tokens at y are relative to: their lengths, but at least 1."""
        return jnp.maximum(_length(y), 1.0) if self.free else 1.0

    def seen(self, y: Float[Array, "n d"], weights: Float[Array, "n"]) -> Tokens:
        """The tokens as the terms see them."""
        if not self.raw:
            return Tokens(sphere.retract(y) if self.free else y, weights)  # normalises
        return Tokens(sphere.retract(y), weights, _length(y)[:, 0])

    def state(self, tokens: Tokens) -> Float[Array, "n d"]:
        """The tokens as rows y; without lengths they begin at length 1."""
        return tokens.points if self.free else tokens.x

    def tokens(self, y: Float[Array, "n d"], weights: Float[Array, "n"]) -> Tokens:
        """Rows y as tokens."""
        if not self.free:
            return Tokens(y, weights)
        return Tokens(sphere.retract(y), weights, _length(y)[:, 0])

    @property
    def jumps(self) -> tuple[float, ...]:
        """Times at which the equation changes at once."""
        return ()


class UnitSphere(Space):
    """Post-LN: tokens on the unit sphere."""

    free: ClassVar[bool] = False
    projects: ClassVar[bool] = True

    def slope(self, y: Array, output: Array, t: Array | float) -> Array:
        """The tangential part of the output."""
        return sphere.project(sphere.retract(y), output)

    def layer(self, y: Array, output: Array, t: Array | float, step: Array | float) -> Array:
        """N(θ + ηA)."""
        return sphere.retract(y + step * output)

    def retract(self, y: Array) -> Array:
        """Nearest point of the sphere."""
        return sphere.retract(y)


class PreSpace(Space):
    """Pre-LN: y' = A(y/|y|)."""

    def slope(self, y: Array, output: Array, t: Array | float) -> Array:
        """The output itself."""
        return output


class RawSpace(PreSpace):
    """No normalisation: y' = A(y), scores on the tokens themselves."""

    raw: ClassVar[bool] = True


class PeriSpace(Space):
    """Peri-LN: y' = A/‖A‖."""

    normalises: ClassVar[bool] = True

    def slope(self, y: Array, output: Array, t: Array | float) -> Array:
        """The direction of the output."""
        return direction(output)


class ScaledSpace(Space):
    """LN-scaling: y' = A/√(1+t)."""

    reads_time: ClassVar[bool] = True

    def slope(self, y: Array, output: Array, t: Array | float) -> Array:
        """The output, weaker with depth."""
        return output / jnp.sqrt(1 + jnp.asarray(t))


class MixSpace(Space):
    """Mix-LN: Post-LN until the time `switch`, at the length the token has, then Pre-LN."""

    switch: float = eqx.field(static=True)

    reads_time: ClassVar[bool] = True

    def slope(self, y: Array, output: Array, t: Array | float) -> Array:
        """Tangential before the switch."""
        post = _length(y) * sphere.project(sphere.retract(y), output)
        return jnp.where(t < self.switch, post, output)

    def layer(self, y: Array, output: Array, t: Array | float, step: Array | float) -> Array:
        """Post-LN keeps the length."""
        post = _length(y) * sphere.retract(sphere.retract(y) + step * output)
        return jnp.where(t < self.switch, post, y + step * output)

    @property
    def jumps(self) -> tuple[float, ...]:
        """The switch."""
        return (self.switch,)


class NormalisedSphere(UnitSphere):
    """nGPT: θ' = αP_θ A/‖A‖ on the sphere."""

    alpha: Float[Array, ""]

    projects: ClassVar[bool] = False
    normalises: ClassVar[bool] = True

    def slope(self, y: Array, output: Array, t: Array | float) -> Array:
        """The tangential part of the output's direction."""
        return self.alpha * sphere.project(sphere.retract(y), direction(output))

    def layer(self, y: Array, output: Array, t: Array | float, step: Array | float) -> Array:
        """N(θ + ηα(A/‖A‖ − θ))."""
        x = sphere.retract(y)
        return sphere.retract(x + step * self.alpha * (direction(output) - x))


#: Where tokens live unless a model says otherwise.
SPHERE = UnitSphere()


def direction(output: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """A/‖A‖; 0 where A is 0."""
    scale = lax.stop_gradient(jnp.max(jnp.abs(output), axis=-1, keepdims=True))
    positive = scale > 0
    scaled = output / jnp.where(positive, scale, 1.0)  # the square of a small output would vanish
    square = jnp.sum(scaled * scaled, axis=-1, keepdims=True)
    return jnp.where(positive, scaled / jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)


def _length(y: Float[Array, "n d"]) -> Float[Array, "n 1"]:
    return jnp.linalg.norm(y, axis=-1, keepdims=True)
