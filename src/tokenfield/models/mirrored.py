"""A model on laws that are their own mirror image, so that rounding cannot break the symmetry."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tokenfield.errors import as_whole, is_traced, require, require_kind
from tokenfield.laws.tokens import Tokens
from tokenfield.models.base import Model
from tokenfield.models.requirements import check_law
from tokenfield.models.spaces import Space
from tokenfield.models.wrapper import Wrapper
from tokenfield.sums.base import Sums
from tokenfield.sums.direct import DIRECT


class Mirrored(Wrapper):
    """Another model on laws that are their own mirror image, carried by one half of the law.

    Tokens stand for ½(μ + Sμ), S the reflection that turns the sign of the coordinate `axis`: `half(tokens,
    axis)` makes such tokens of a symmetric law and `whole` the law of them (laws/symmetry.py). There is no
    other half that rounding could tell from the first, and a token on the mirror stays there in every bit,
    so that unstable symmetric solutions can be followed for ever.
    """

    model: Model
    axis: int = eqx.field(static=True)

    adds_up: ClassVar[bool] = False

    def __init__(self, model: Model, axis: int):
        require_kind(model, Model, "model")
        check_law(model, "a mirrored model")
        self.model, self.axis = model, as_whole(axis, "axis", 0)
        require(axis < model.d, "axis", f"be a coordinate of R^{model.d}", axis)
        if not is_traced(model):
            flip = np.diag(np.where(np.arange(model.d) == axis, -1.0, 1.0))
            kept = model.commutes(flip)
            require(kept, "model", f"commute with the reflection across axis {axis}", "not so")

    def output(
        self, x: Array, tokens: Tokens, sums: Sums = DIRECT, rows: Array | None = None
    ) -> Float[Array, "m d"]:
        """What x reads from both halves, averaged with the mirror image of what its mirror image reads."""
        return self.of_term(self.model, x, tokens, sums, rows)

    def of_term(
        self, term: Model, x: Array, tokens: Tokens, sums: Sums, rows: Array | None
    ) -> Float[Array, "m d"]:
        """What x reads through one term from both halves."""
        sign = jnp.where(jnp.arange(self.d) == self.axis, -1.0, 1.0)
        both = Tokens(jnp.concatenate([tokens.x, tokens.x * sign]), jnp.tile(tokens.weights / 2, 2))
        here, there = jnp.split(term.output(jnp.concatenate([x, x * sign]), both, sums), 2)
        return (here + there * sign) / 2

    def sublayers(
        self,
        y: Array,
        weights: Array,
        sums: Sums,
        t: Array | float,
        step: Array | float,
        space: Space | None = None,
    ) -> Float[Array, "n d"]:
        """Term after term, each with both halves."""
        return Model.sublayers(self, y, weights, sums, t, step, space)

    def commutes(self, turn: Float[np.ndarray, "d d"]) -> bool:
        """Symmetries of a half are not those of the law."""
        return False
