"""A model round another one: spaces (norms.py), mirrors, the time of the equation (chosen.py)."""

from typing import Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tokenfield.laws.tokens import Tokens
from tokenfield.models.base import Model, Term
from tokenfield.models.spaces import Space
from tokenfield.sums.base import Sums
from tokenfield.sums.direct import DIRECT


class Wrapper(Model):
    """A model that does what another one does, but for what a subclass says: spaces, mirrors."""

    model: eqx.AbstractVar[Model]

    @property
    def space(self) -> Space:
        """That of the model inside."""
        return self.model.space

    @property
    def d(self) -> int:
        """That of the model inside."""
        return self.model.d

    @property
    def terms(self) -> tuple[Term, ...]:
        """Those of the model inside."""
        return self.model.terms

    @property
    def smooth(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the model inside is."""
        return self.model.smooth

    def output(
        self, x: Array, tokens: Tokens, sums: Sums = DIRECT, rows: Array | None = None
    ) -> Float[Array, "m d"]:
        """That of the model inside."""
        return self.model.output(x, tokens, sums, rows)

    def sublayers(
        self,
        y: Array,
        weights: Array,
        sums: Sums,
        t: Array | float,
        step: Array | float,
        space: Space | None = None,
    ) -> Float[Array, "n d"]:
        """Those of the model inside, in the space of this one."""
        return self.model.sublayers(y, weights, sums, t, step, self.space if space is None else space)

    @property
    def reads_order(self) -> bool:
        """Whether the model inside does."""
        return self.model.reads_order

    @property
    def reads_number(self) -> bool:
        """Whether the model inside does."""
        return self.model.reads_number

    @property
    def reads_time(self) -> bool:
        """Whether the space or the model inside does."""
        return self.space.reads_time or self.model.reads_time

    @property
    def jumps(self) -> tuple[float, ...]:
        """Those of the space and of the model inside."""
        return (*self.space.jumps, *self.model.jumps)

    def next_jump(self, t: Float[Array, ""]) -> Float[Array, ""]:
        """The first of the space's and of the model's."""
        return jnp.minimum(Model.next_jump(self, t), self.model.next_jump(t))

    def at(self, t: Float[Array, ""] | float) -> Self:
        """With the model inside at that time."""
        if not self.model.reads_time:
            return self
        return eqx.tree_at(lambda m: m.model, self, self.model.at(t))

    def during(self, start: Float[Array, ""]) -> Self:
        """With the model inside during that step."""
        if not self.model.reads_time:
            return self
        return eqx.tree_at(lambda m: m.model, self, self.model.during(start))

    @property
    def log_time_unit(self) -> Float[Array, ""]:
        """That of the model inside."""
        return self.model.log_time_unit

    def commutes(self, turn: Float[np.ndarray, "d d"]) -> bool:
        """Whether the model inside does."""
        return self.model.commutes(turn)

    def check(self, tokens: Tokens) -> None:
        """As the model inside."""
        self.model.check(tokens)
