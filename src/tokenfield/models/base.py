"""Models: a sum of terms in a space (theory §1, §6).

A model says what moves a token at x among the other tokens (`output`, before projection); its space
(spaces.py) says what becomes of that. Terms add up: `attention + mlp + Noise(kappa)`. A new term is a class
with `d` and `output`; it declares what it reads (declarations.py), and everything that cannot do with that
refuses.
"""

from abc import abstractmethod
from typing import TYPE_CHECKING

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from tokenfield.errors import InputError, require, require_kind
from tokenfield.laws.tokens import Tokens
from tokenfield.models.declarations import Declarations, LinearOutput
from tokenfield.models.spaces import Space
from tokenfield.sums.base import Sums
from tokenfield.sums.direct import DIRECT
from tokenfield.sums.profile import Scored

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenfield.models.gaussian import GaussianLaw, GaussianOutput
    from tokenfield.models.kernels import Kernel
    from tokenfield.models.weights import Head


class Model(Declarations):
    """A velocity field made by the tokens themselves."""

    @abstractmethod
    def output(
        self,
        x: Float[Array, "m d"],
        tokens: Tokens,
        sums: Sums = DIRECT,
        rows: Int[Array, "m"] | None = None,
    ) -> Float[Array, "m d"]:
        """Output of the layer at the points x, before projection to the tangent space.

        Args:
            x: points (m, d), on the sphere unless the space is raw.
            tokens: the tokens that are read.
            sums: how sums over them are computed.
            rows: places of the points in the order of the tokens, for models that read the order.
        """

    def velocity(self, tokens: Tokens, summation: str | Sums = "auto") -> Float[Array, "n d"]:
        """Velocity of every token, (n, d): tangent on the sphere, y' in a free space; at time 0.

        Args:
            tokens: the law, rows in order.
            summation: how sums are computed, as in `simulate`: a name, or the sums themselves.
        """
        require_kind(tokens, Tokens, "tokens")
        require(tokens.d == self.d, "tokens", f"have the dimension {self.d} of the model", tokens.d)
        if isinstance(summation, Sums):
            return self.slope(self.space.state(tokens), tokens.weights, summation)
        from tokenfield.sums.choice import sums_for  # choosing needs every kind of sums, models need none

        return self.slope(self.space.state(tokens), tokens.weights, sums_for(self, tokens, summation))

    def slope(
        self,
        y: Float[Array, "n d"],
        weights: Float[Array, "n"],
        sums: Sums = DIRECT,
        t: Float[Array, ""] | float = 0.0,
    ) -> Float[Array, "n d"]:
        """y' of tokens at the rows y of the model's space.

        Args:
            y: rows (n, d), any length on the sphere, whose field has degree 0.
            weights: of the tokens (n,).
            sums: how sums over them are computed.
            t: the time.
        """
        return self.space.slope(y, self.output_at(y, weights, sums), t)

    def output_at(
        self, y: Float[Array, "n d"], weights: Float[Array, "n"], sums: Sums = DIRECT
    ) -> Float[Array, "n d"]:
        """Output of the layer at the tokens themselves.

        Args:
            y: tokens (n, d) as rows of the model's space.
            weights: of the tokens (n,).
            sums: how sums over them are computed.
        """
        seen = self.space.seen(y, weights)
        return self.output(seen.points, seen, sums, self.rows(len(y)))

    def sublayers(
        self,
        y: Float[Array, "n d"],
        weights: Float[Array, "n"],
        sums: Sums,
        t: Float[Array, ""] | float,
        step: Float[Array, ""] | float,
        space: Space | None = None,
    ) -> Float[Array, "n d"]:
        """The tokens after one layer whose terms act one after the other.

        Args:
            y: rows (n, d) of the model's space.
            weights: of the tokens (n,).
            sums: how sums over them are computed.
            t: the time.
            step: of the layer.
            space: another one than the model's own, for models inside of others.
        """
        space, unit = self.space if space is None else space, self.log_time_unit
        for term in self.terms:
            seen = space.seen(y, weights)
            output = self.of_term(term, seen.points, seen, sums, self.rows(len(y)))
            y = space.layer(y, in_unit(term, unit) * output, t, step)
        return y

    def of_term(
        self, term: "Term", x: Array, tokens: Tokens, sums: Sums, rows: Array | None
    ) -> Float[Array, "m d"]:
        """The share of one term in the output.

        Args:
            term: one of `terms`.
            x: points (m, d).
            tokens: the tokens that are read.
            sums: how sums over them are computed.
            rows: places of the points in the order of the tokens.
        """
        return term.output(x, tokens, sums, rows)

    def rows(self, n: int) -> Int[Array, "n"] | None:
        """Places of n tokens in their order, if the model reads it."""
        return jnp.arange(n) if self.reads_order else None

    def check(self, tokens: Tokens) -> None:
        """Refuse tokens that the model is not made for."""
        require(tokens.d == self.d, "tokens", f"have the dimension {self.d} of the model", tokens.d)
        for term in self.terms:
            if term is not self:
                term.check(tokens)

    def __add__(self, other: "Model") -> "Model":
        """The model with more terms: attention, MLP, drift or noise."""
        if not isinstance(other, Model):
            return NotImplemented
        return added(self, other)


class Term(Model):
    """One thing that moves tokens; a model by itself, on the sphere."""

    @property
    def terms(self) -> "tuple[Term, ...]":
        """Itself."""
        return (self,)

    @property
    def reads_order(self) -> bool:
        """Not unless it says so."""
        return False

    @property
    def reads_number(self) -> bool:
        """Not unless it says so."""
        return False

    @property
    def noisy(self) -> bool:
        """Not unless it says so."""
        return False

    @property
    def interacts(self) -> bool:
        """Whether the output at a point depends on the other tokens."""
        return False

    @property
    def heads(self) -> "Head | None":
        """Score matrices, values and biases with a leading head axis, if it is made of heads."""
        return None

    @property
    def kernel(self) -> "Kernel | None":
        """What a score weighs, if it is made of heads."""
        return None

    def on_gaussian(self, law: "GaussianLaw") -> "GaussianOutput | None":
        """What it does to tokens of R^d with a Gaussian law, if its output is affine there; else None."""
        return None

    @property
    def energy(self) -> "Callable[[Tokens], Array] | None":
        """The energy that it climbs, for terms that are more than heads with a kernel; None for others."""
        return None

    def check(self, tokens: Tokens) -> None:
        """Refuse tokens of another dimension."""
        require(tokens.d == self.d, "tokens", f"have the dimension {self.d} of the model", tokens.d)


class Sum(Model):
    """Several terms on the sphere: what `a + b` makes."""

    parts: tuple[Term, ...]

    def __init__(self, parts: tuple[Term, ...]):
        dims = sorted({part.d for part in parts if part.d > 0})
        require(len(dims) == 1, "terms", "have one dimension", dims)
        require(sum(part.noisy for part in parts) <= 1, "terms", "have noise at most once", "noisy twice")
        moving = [part for part in parts if not part.noisy]
        require(len(moving) > 0, "terms", "hold more than noise", "noise only")
        self.parts = parts

    @property
    def d(self) -> int:
        """Dimension of the tokens it acts on."""
        return next(part.d for part in self.parts if part.d > 0)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The parts."""
        return self.parts

    @property
    def smooth(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether every term is."""
        return all(part.smooth for part in self.parts)

    @property
    def common_noise(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether one of the parts has it."""
        return any(part.common_noise for part in self.parts)

    def noise_shape(self, n: int) -> tuple[int, int]:
        """That of the noise among the parts."""
        shared = [part for part in self.parts if part.common_noise]
        return shared[0].noise_shape(n) if shared else (n, self.d)

    def noise(
        self, y: Array, weights: Array, sums: Sums, h: Array | float, normal: Array
    ) -> Float[Array, "n d"]:
        """That of the noise among the parts, which counts in the time of the equation."""
        for part in self.parts:
            if part.common_noise:
                return part.noise(y, weights, sums, jnp.exp(-self.log_time_unit) * h, normal)
        return super().noise(y, weights, sums, h, normal)

    def output(
        self, x: Array, tokens: Tokens, sums: Sums = DIRECT, rows: Array | None = None
    ) -> Float[Array, "m d"]:
        """The sum of the outputs, in the slowest time unit of any term."""
        moving = [part for part in self.parts if not part.noisy]
        if len(moving) == 1:
            return moving[0].output(x, tokens, sums, rows)
        unit = self.log_time_unit
        return sum(  # pyright: ignore[reportReturnType]
            in_unit(part, unit) * part.output(x, tokens, sums, rows) for part in moving
        )

    @property
    def log_time_unit(self) -> Float[Array, ""]:
        """The greatest of the terms."""
        units = [part.log_time_unit for part in self.parts if not part.noisy]
        return units[0] if len(units) == 1 else jnp.max(jnp.stack(units))

    @property
    def scored(self) -> Scored | None:
        """The heads of all interacting terms, if they share one kernel."""
        return joined([part.scored for part in self.parts if part.interacts])

    @property
    def linear(self) -> LinearOutput | None:
        """The sum of the matrices, if every term has one."""
        found = [part.linear for part in self.parts]
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            return None
        return LinearOutput(sum(each.matrix for each in known), sum(each.defect for each in known))  # pyright: ignore[reportArgumentType]

    def commutes(self, turn: Float[np.ndarray, "d d"]) -> bool:
        """Whether every term does; noise does."""
        return all(part.noisy or part.commutes(turn) for part in self.parts)

    @property
    def drift(self) -> Model:
        """The terms without noise."""
        moving = tuple(part for part in self.parts if not part.noisy)
        return moving[0] if len(moving) == 1 else Sum(moving)

    @property
    def diffusion(self) -> Float[Array, ""]:
        """That of the noise, in the time unit of the sum: noise is counted in the time of the equation."""
        found = [part.diffusion for part in self.parts if part.noisy]
        return jnp.exp(-self.log_time_unit) * found[0] if found else jnp.zeros(())


def added(a: Model, b: Model) -> Model:
    """a + b: the terms of both in the space of a."""
    plain = isinstance(b, Term | Sum)
    require(plain, "term", "be a term or a sum of terms; spaces and depth go round the sum", type(b).__name__)
    if b.noisy and all(getattr(part, "infinite", False) for part in b.terms):
        return a
    if isinstance(a, Term | Sum):
        return Sum((*a.terms, *b.terms))
    wrapped = getattr(a, "with_term", None)
    if wrapped is None:
        raise InputError(
            f"`model` must be a term, a sum or a model in a space to be added to, but was {type(a).__name__};"
            " add terms to the models inside"
        )
    return wrapped(b)


def joined(found: list[Scored | None]) -> Scored | None:
    """Heads of several models as one; None if there are none, if one cannot be fast, or if kernels or masks
    differ.
    """
    if not found or any(one is None for one in found):
        return None
    known: list[Scored] = [one for one in found if one is not None]
    first, mask = known[0].profile, known[0].mask
    same = (eqx.tree_equal((one.profile, one.mask), (first, mask)) is True for one in known[1:])
    if not all(same):
        return None
    A = jnp.concatenate([one.A for one in known])
    if all(one.bias is None for one in known):
        return Scored(first, A, None, mask)
    biases = [jnp.zeros(one.A.shape[:2]) if one.bias is None else one.bias for one in known]
    return Scored(first, A, jnp.concatenate(biases), mask)


def in_unit(part: Model, unit: Float[Array, ""]) -> Float[Array, ""]:
    """What a part's output is multiplied by where time is counted in units of e^{−unit}; units may be ∞."""
    own = part.log_time_unit
    return jnp.exp(jnp.where(own == unit, 0.0, own - unit))


def commute(matrices: np.ndarray, turn: np.ndarray) -> bool:
    """Whether the matrices commute with an orthogonal one, to rounding."""
    gap = np.max(np.abs(matrices @ turn - turn @ matrices))
    return bool(gap <= 1e-12 * np.max(np.abs(matrices)))
