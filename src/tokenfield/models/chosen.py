"""One of several models by number, and models in the time of the equation: what layers of depth.py are."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from tokenfield.errors import is_traced
from tokenfield.laws.tokens import Tokens
from tokenfield.models.base import Model, Term, joined
from tokenfield.models.declarations import LinearOutput
from tokenfield.models.spaces import Space
from tokenfield.models.wrapper import Wrapper
from tokenfield.sums.base import Sums
from tokenfield.sums.direct import DIRECT
from tokenfield.sums.profile import Scored


def choose(models: tuple[Model, ...], index: Int[Array, ""]) -> Model:
    """The model with this number: entries of stacked arrays if all are of one kind, else a switch."""
    if not is_traced(index):
        return models[int(index)]
    arrays, kinds = zip(*(eqx.partition(model, eqx.is_array) for model in models), strict=True)
    shapes = [[leaf.shape for leaf in jax.tree.leaves(part)] for part in arrays]
    alike = all(s == shapes[0] for s in shapes) and all(
        jax.tree.structure(a) == jax.tree.structure(arrays[0]) and eqx.tree_equal(kind, kinds[0])
        for a, kind in zip(arrays, kinds, strict=True)
    )
    if not alike:
        return Chosen(tuple(in_plain_time(model) for model in models), index)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves)[index], *arrays)
    return in_plain_time(eqx.combine(stacked, kinds[0]))


def in_plain_time(model: Model) -> Model:
    """The model in the time of the equation.

    Only a model whose unit of time is being computed can have one that changes; others were checked.
    """
    unit = model.log_time_unit if isinstance(model, Model) else None
    return PlainTime(model) if is_traced(unit) else model


class PlainTime(Wrapper):
    """A model in the time of the equation, whatever unit it would take: units must not change on the way."""

    model: Model

    @property
    def log_time_unit(self) -> Float[Array, ""]:
        """0."""
        return jnp.zeros(())

    @property
    def linear(self) -> LinearOutput | None:
        """That of the model inside, which has no unit of time of its own then."""
        return self.model.linear

    @property
    def scored(self) -> Scored | None:
        """Those of the model inside: audits look at the heads that act."""
        return self.model.scored

    def output(
        self, x: Array, tokens: Tokens, sums: Sums = DIRECT, rows: Array | None = None
    ) -> Float[Array, "m d"]:
        """e^L times that of the model."""
        return jnp.exp(self.model.log_time_unit) * self.model.output(x, tokens, sums, rows)

    def sublayers(
        self,
        y: Array,
        weights: Array,
        sums: Sums,
        t: Array | float,
        step: Array | float,
        space: Space | None = None,
    ) -> Float[Array, "n d"]:
        """Term after term, each in the time of the equation."""
        return Model.sublayers(self, y, weights, sums, t, step, space)


class Chosen(Model):
    """One of several models of different kinds, by number; all in the time of the equation."""

    models: tuple[Model, ...]
    index: Int[Array, ""]

    @property
    def d(self) -> int:
        """That of all."""
        return self.models[0].d

    @property
    def terms(self) -> tuple[Term, ...]:
        """Those of the first, which stands for all."""
        return self.models[0].terms

    @property
    def reads_order(self) -> bool:
        """Whether any does."""
        return any(model.reads_order for model in self.models)

    @property
    def reads_number(self) -> bool:
        """Whether any does."""
        return any(model.reads_number for model in self.models)

    @property
    def space(self) -> Space:
        """That of the one that was chosen; all are of one kind, with numbers of their own."""
        return jax.tree.map(lambda *leaves: jnp.stack(leaves)[self.index], *(m.space for m in self.models))

    @property
    def scored(self) -> Scored | None:
        """The heads of all, so that audits look at every layer."""
        return joined([model.scored for model in self.models])

    def output(
        self, x: Array, tokens: Tokens, sums: Sums = DIRECT, rows: Array | None = None
    ) -> Float[Array, "m d"]:
        """That of the one that was chosen."""
        return lax.switch(self.index, [lambda m=m: m.output(x, tokens, sums, rows) for m in self.models])

    def sublayers(
        self,
        y: Array,
        weights: Array,
        sums: Sums,
        t: Array | float,
        step: Array | float,
        space: Space | None = None,
    ) -> Float[Array, "n d"]:
        """Those of the one that was chosen."""
        space = self.space if space is None else space
        ways = [lambda m=m: m.sublayers(y, weights, sums, t, step, space) for m in self.models]
        return lax.switch(self.index, ways)
