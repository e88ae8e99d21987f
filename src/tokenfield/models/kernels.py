"""Kernels: what a score weighs, and so what a head reads from the tokens (theory §1).

| kernel | reading at a query with the scores s_j |
|---|---|
| softmax | Σ w_j e^{s_j} y_j / Σ w_j e^{s_j} |
| exponential | e^{−L} Σ w_j e^{s_j} y_j, L the logarithm of the time unit |
| pointwise f | Σ w_j f(s_j) y_j, for φ', sigmoid, linear attention |
| hardmax | mean of the keys present with the greatest score |
| saturated | limit β → ∞ of the exponential kernel: only scores that reach the bound are left |
| nearest | q/|q|, the maximiser over the whole sphere: it reads no tokens |

A kernel knows its function of a score and, through its profile, its Fourier and Funk–Hecke multipliers. Sums
and densities ask for these; nobody asks which kernel it is. A new kernel with fast sums is a subclass of
`Pointwise` with one method.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from tokenfield.laws.tokens import Tokens
from tokenfield.models.gaussian import GaussianLaw, GaussianOutput, softmax_reading
from tokenfield.sums.base import Queries, Sums
from tokenfield.sums.direct import TIE, visible_weight
from tokenfield.sums.profile import EXPONENTIAL, FunctionProfile, Profile


class Kernel(eqx.Module):
    """What a score weighs. Subclasses declare what they are, and read."""

    #: Whether readings are divided by the sum of the weights, so that they are means of keys.
    normalised: ClassVar[bool] = False
    #: Whether the reading depends on the tokens at all.
    interacts: ClassVar[bool] = True
    #: Whether the reading is a smooth function of the query, so that densities can follow it.
    smooth: ClassVar[bool] = True
    #: Whether a mask may add numbers to the scores, not only hide keys.
    takes_offsets: ClassVar[bool] = True
    #: Whether the reading depends on how many tokens there are, not only on their law.
    reads_number: ClassVar[bool] = False

    def factor(self, keys: Tokens) -> Array | float:
        """What sums over these keys are multiplied by: 1 unless the number of tokens counts."""
        return 1.0

    @property
    def profile(self) -> Profile | None:
        """Weight as a function of length and cosine of the query; None where sums cannot be sped up."""
        return None

    @property
    def log_unit(self) -> Float[Array, ""]:
        """L such that readings are e^{−L} times those of the equation."""
        return jnp.zeros(())

    @property
    def primitive(self) -> Callable[[Array], Array] | None:
        """F with F' the weight of a score, entry by entry, for energies; None where there is none."""
        return None

    def on_gaussian(self, A: np.ndarray, bias: np.ndarray, law: GaussianLaw) -> GaussianOutput | None:
        """The reading of tokens of R^d with a Gaussian law, if it is affine in the token; else None.

        Args:
            A: score matrix (d, d).
            bias: of the queries (d,).
            law: of queries and keys.
        """
        return None

    @abstractmethod
    def read(self, queries: Queries, keys: Tokens, sums: Sums) -> Float[Array, "m d"]:
        """What a head reads at each query, (m, d).

        Args:
            queries: the questions of the head at m points.
            keys: the tokens that are read.
            sums: how sums over them are computed.
        """

    def weight(self, score: Array, top: Array | float) -> Array:
        """Weight of a score, divided by e^{top} if the kernel is normalised and by the time unit if not."""
        raise NotImplementedError


class Softmax(Kernel):
    """Mean of the keys weighted by e^{score}."""

    normalised: ClassVar[bool] = True

    @property
    def profile(self) -> Profile:
        """The exponential."""
        return EXPONENTIAL

    def read(self, queries: Queries, keys: Tokens, sums: Sums) -> Float[Array, "m d"]:
        """Softmax mean."""
        return sums.exponential(queries, keys).mean

    def on_gaussian(self, A: np.ndarray, bias: np.ndarray, law: GaussianLaw) -> GaussianOutput:
        """The tilted mean."""
        return softmax_reading(A, bias, law)

    def weight(self, score: Array, top: Array | float) -> Array:
        """e^{score − top}."""
        return jnp.exp(score - top)


class Exponential(Kernel):
    """Sum of the keys weighted by e^{score − L}; under a mask divided by the visible weight."""

    log_time_unit: Float[Array, ""]

    @property
    def profile(self) -> Profile:
        """The exponential."""
        return EXPONENTIAL

    @property
    def log_unit(self) -> Float[Array, ""]:
        """L."""
        return self.log_time_unit

    @property
    def primitive(self) -> Callable[[Array], Array]:
        """The exponential is its own."""
        return jnp.exp

    def read(self, queries: Queries, keys: Tokens, sums: Sums) -> Float[Array, "m d"]:
        """Exponential sum in the time unit e^{−L}."""
        found = sums.exponential(queries, keys)
        total = jnp.exp(found.log_mass - self.log_time_unit)[:, None] * found.mean
        return _per_visible_weight(total, queries, keys)

    def weight(self, score: Array, top: Array | float) -> Array:
        """e^{score − L}."""
        return jnp.exp(score - self.log_time_unit)


class Pointwise(Kernel):
    """Sum of the keys weighted by a smooth function of the score; under a mask divided by the visible weight.

    A subclass gives `function`; expansions on the circle and on S² and densities follow from it.
    """

    takes_offsets: ClassVar[bool] = False

    @abstractmethod
    def function(self, scores: Array) -> Array:
        """The weight of each entry of an array of scores."""

    @property
    def profile(self) -> Profile:
        """By quadrature."""
        return FunctionProfile(_Function(self))

    def read(self, queries: Queries, keys: Tokens, sums: Sums) -> Float[Array, "m d"]:
        """Sum over the keys."""
        return _per_visible_weight(self.total(queries, keys, sums), queries, keys)

    def total(self, queries: Queries, keys: Tokens, sums: Sums) -> Float[Array, "m d"]:
        """Σ_j w_j f(s_j) y_j over the visible keys.

        Args:
            queries: the questions of the head at m points.
            keys: the tokens that are read.
            sums: how sums over them are computed.
        """
        return sums.pointwise(_Function(self), queries, keys).total

    def weight(self, score: Array, top: Array | float) -> Array:
        """f(score)."""
        return self.function(score)


class _Function(eqx.Module):
    """The function of a pointwise kernel; a module, so that equal kernels share a compiled sum."""

    kernel: Pointwise

    def __call__(self, scores: Array) -> Array:
        return self.kernel.function(scores)


class Slope(Pointwise):
    """φ', the kernel of the flow that climbs E_φ."""

    phi: Callable[[Array], Array]

    @property
    def primitive(self) -> Callable[[Array], Array]:
        """φ."""
        return _Values(self.phi)

    def function(self, scores: Array) -> Array:
        """φ' of each entry."""
        slope = jax.grad(lambda s: jnp.asarray(self.phi(s), dtype=jnp.float64))
        return jax.vmap(slope)(scores.ravel()).reshape(scores.shape)


class _Values(eqx.Module):
    """φ of an array of scores; a module, so that equal φ share a compiled sum."""

    phi: Callable[[Array], Array]

    def __call__(self, scores: Array) -> Array:
        value = jax.vmap(lambda s: jnp.asarray(self.phi(s), dtype=jnp.float64))
        return value(scores.ravel()).reshape(scores.shape)


class Hardmax(Kernel):
    """Mean of the keys present with the greatest score; ties are averaged by weight."""

    normalised: ClassVar[bool] = True
    smooth: ClassVar[bool] = False

    def read(self, queries: Queries, keys: Tokens, sums: Sums) -> Float[Array, "m d"]:
        """Mean of the maximisers."""
        return sums.hardmax(queries, keys).mean


class Saturated(Kernel):
    """Limit β → ∞ of the exponential kernel in the unit e^{β·norm}: only scores equal to `norm` are left."""

    norm: Float[Array, ""]
    smooth: ClassVar[bool] = False

    @property
    def log_unit(self) -> Float[Array, ""]:
        """Infinite."""
        return jnp.asarray(jnp.inf)

    def read(self, queries: Queries, keys: Tokens, sums: Sums) -> Float[Array, "m d"]:
        """Keys that reach the bound."""
        found = sums.hardmax(queries, keys)
        reached = found.top >= self.norm * (1 - TIE)
        total = jnp.where(reached, found.mass, 0.0)[:, None] * found.mean
        return _per_visible_weight(total, queries, keys)


class Nearest(Kernel):
    """q/|q|; where q = 0 every key ties and their mean over the sphere is 0."""

    interacts: ClassVar[bool] = False

    def read(self, queries: Queries, keys: Tokens, sums: Sums) -> Float[Array, "m d"]:
        """Direction of the query."""
        q = queries.q
        scale = lax.stop_gradient(jnp.max(jnp.abs(q), axis=1, keepdims=True))
        positive = scale > 0
        q = q / jnp.where(positive, scale, 1.0)  # the square of a small B would vanish
        square = jnp.sum(q * q, axis=1, keepdims=True)
        return jnp.where(positive, q / jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)


def _per_visible_weight(total: Array, queries: Queries, keys: Tokens) -> Array:
    """Unnormalised readings under a mask are means over what is visible; nothing is visible: 0."""
    if queries.mask is None:
        return total
    seen = visible_weight(queries, keys)
    return jnp.where(seen > 0, 1 / jnp.where(seen > 0, seen, 1.0), 0.0)[:, None] * total
