"""A model on laws that are their own mirror image, so that rounding cannot break the symmetry."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tokenfield.attention.direct import DIRECT, Sums
from tokenfield.errors import as_whole, is_traced, require, require_kind
from tokenfield.models import Model
from tokenfield.tokens import Tokens


class Mirrored(Model):
    """Another model on laws that are their own mirror image, carried by one half of the law.

    Tokens stand for ½(μ + Sμ), S the reflection that turns the sign of the coordinate `axis`: `half(tokens,
    axis)` makes such tokens of a symmetric law and `whole` the law of them (symmetry.py). There is no
    other half that rounding could tell from the first, and a token on the mirror stays there in every bit,
    so that unstable symmetric solutions can be followed for ever.
    """

    model: Model
    axis: int = eqx.field(static=True)

    def __init__(self, model: Model, axis: int):
        require_kind(model, Model, "model")
        self.model, self.axis = model, as_whole(axis, "axis", 0)
        require(axis < model.d, "axis", f"be a coordinate of R^{model.d}", axis)
        if not is_traced(model):
            flip = np.diag(np.where(np.arange(model.d) == axis, -1.0, 1.0))
            require(
                model.commutes(flip), "model", f"commute with the reflection across axis {axis}", "not so"
            )

    @property
    def d(self) -> int:
        """Dimension of the tokens it acts on."""
        return self.model.d

    @property
    def log_time_unit(self) -> Float[Array, ""]:
        """That of the model itself."""
        return self.model.log_time_unit

    def attention(self, x: Float[Array, "m d"], tokens: Tokens, sums: Sums = DIRECT) -> Float[Array, "m d"]:
        """What x reads from both halves, averaged with the mirror image of what its mirror image reads."""
        sign = jnp.where(jnp.arange(self.d) == self.axis, -1.0, 1.0)
        both = Tokens(jnp.concatenate([tokens.x, tokens.x * sign]), jnp.tile(tokens.weights / 2, 2))
        here, there = jnp.split(self.model.attention(jnp.concatenate([x, x * sign]), both, sums), 2)
        return (here + there * sign) / 2
