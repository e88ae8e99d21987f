"""Densities on S² by spherical harmonics: ∂_tρ = DΔρ − div(ρX) for the moments M_lm of ρ.

The velocity at the points of a grid comes from the moments of ρ and of ρ·x, as in the fast sums: multiplied
by Bessel functions and transformed back where every query has the length β (B a multiple of I), by a
two-dimensional NUFFT at the directions of the queries otherwise. The flux ρX is formed on the grid and its
divergence is taken exactly (grid.py). Diffusion is diagonal and implicit.

Steep densities need more degrees than there are. A filter damps the highest of them, of order 16 in l/L, so
that what cannot be resolved does not pile up; what it leaves in the upper third is reported (`tail`), as are
values below 0 (`minimum`). Concentration beyond any grid is for characteristics.py.
"""

from abc import abstractmethod
from typing import Any, ClassVar, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float

from tokenfield.density.domain import Domain, Problem, Watch
from tokenfield.density.grid import HarmonicGrid, times_coordinates
from tokenfield.density.march import adaptive, march
from tokenfield.density.resolution import resolution_warning, undershoot
from tokenfield.density.result import DensityTrajectory, conclude
from tokenfield.density.start import initial_density
from tokenfield.errors import as_number, as_whole, require
from tokenfield.laws.tokens import Tokens
from tokenfield.models.base import Model, Term
from tokenfield.registry import register
from tokenfield.sums.base import Queries
from tokenfield.sums.direct import DIRECT
from tokenfield.sums.harmonic import HarmonicSums
from tokenfield.sums.profile import Scored

#: Order of the filter; its rate at the greatest degree is that degree: a wave passes a cell in 1/L.
FILTER_ORDER = 16
#: Least mass that a softmax mean is taken over, where 1 is all mass in the direction of the query.
SMALLEST_MASS = 1e-13


@register("domain", "sphere", size=lambda settings: 9 * (settings.degree + 1) ** 2 // 2)
class Sphere(Domain):
    """Spherical harmonics up to `degree` on S²; `tolerance`: L² error of a step.

    A run counts as resolved while the degrees beyond two thirds hold less than `accuracy` of the L² norm and
    no value falls below −accuracy times the greatest. ρ0 is a function of points (m, 3).
    """

    degree: int = 64
    tolerance: float = 1e-8
    accuracy: float = 1e-4
    filtered: bool = True

    name: ClassVar[str] = "sphere"

    def __check_init__(self):
        as_whole(self.degree, "degree", 4)
        for name, value in (("accuracy", self.accuracy), ("tolerance", self.tolerance)):
            require(0 < as_number(value, name) < 1, name, "lie between 0 and 1", value)

    @classmethod
    def for_model(cls, model: Model) -> Self:
        """Degree 64 for all."""
        return cls()

    def run(self, problem: Problem, watch: Watch) -> DensityTrajectory:
        """March the moments through the times."""
        require(problem.model.d == 3, "model", "have the dimension 3 of the domain", problem.model.d)
        field = _Field.plan(problem.model, self.degree, self.tolerance)
        marched = march(
            adaptive(field, self.tolerance, self._decay(field, problem.diffusion)),
            field.pack(self._start(field.grid, problem.rho0)),
            problem.ts,
            watch,
        )
        grid = field.grid
        density = np.stack([np.asarray(grid.values(field.unpack(y)[None])[0]) for y in marched.y])
        masses = density * np.asarray(grid.weights)[:, None]
        tail = np.array([_tail(y, self.degree) for y in marched.y])
        flat = lambda a: a.reshape(len(density), -1)  # noqa: E731
        return conclude(
            self,
            problem,
            marched,
            np.asarray(grid.points).reshape(3, -1).T,
            flat(density),
            flat(masses),
            tail,
            self._warning(problem.ts, tail, density),
        )

    def _start(self, grid: HarmonicGrid, rho0: Any) -> Complex[Array, "m l"]:
        """Moments of the normalised initial density."""
        x = np.asarray(grid.points).reshape(3, -1).T
        values = initial_density(rho0, x, np.repeat(np.asarray(grid.weights), grid.around))
        moments = grid.moments(jnp.asarray(values.reshape(1, *grid.shape)))[0]
        return moments / (moments[0, 0].real * np.sqrt(4 * np.pi))

    def _decay(self, field: "_Field", diffusion: float) -> Array | None:
        """Eigenvalues of the diffusion and of the filter."""
        if diffusion == 0 and not self.filtered:
            return None
        l = np.arange(field.grid.degree + 1)  # noqa: E741
        rate = diffusion * l * (l + 1.0)
        if self.filtered:
            rate = rate + self.degree * np.minimum(l / self.degree, 1.0) ** FILTER_ORDER
        return jnp.broadcast_to(jnp.asarray(rate), field.shape)

    def _warning(self, ts: np.ndarray, tail: np.ndarray, density: np.ndarray) -> str:
        low = undershoot(density.reshape(len(density), -1))
        shortfall = (
            f"degrees beyond {2 * self.degree // 3} hold {tail.max():.1e} of the density, and it falls to"
            f" −{low.max():.1e} of its greatest value"
        )
        return resolution_warning(ts, np.maximum(tail, low), self.accuracy, shortfall)

    def tokens(self, nodes: np.ndarray, masses: np.ndarray) -> Tokens:
        """The points of the grid with their masses."""
        return Tokens(nodes, masses)

    def sample(self, nodes: np.ndarray, masses: np.ndarray, n: int, rng: np.random.Generator) -> Tokens:
        """Tokens uniform in the cells of the grid, which are drawn by their masses.

        Args:
            nodes: points of the grid, (nodes, 3).
            masses: shares of the mass, (nodes,), not negative, sum 1.
            n: how many tokens.
            rng: source of random numbers.
        """
        rings = (3 * (self.degree + 1)) // 2 + 1
        _, w = np.polynomial.legendre.leggauss(rings)
        edges = np.concatenate([[-1], np.cumsum(w) - 1])  # they part the Gauss nodes
        around = len(nodes) // rings
        ring, place = np.divmod(rng.choice(len(nodes), n, p=masses), around)
        z = edges[ring] + (edges[ring + 1] - edges[ring]) * rng.uniform(size=n)
        phi = (place + rng.uniform(-0.5, 0.5, n)) * (2 * np.pi / around)
        s = np.sqrt(1 - np.minimum(z * z, 1))
        return Tokens(np.stack([s * np.cos(phi), s * np.sin(phi), np.clip(z, -1, 1)], axis=1))


class Reading(eqx.Module):
    """What one part of a model reads at the points of the grid, before projection."""

    @abstractmethod
    def __call__(
        self, grid: HarmonicGrid, moments: Complex[Array, "4 m l"], density: Float[Array, "rings around"]
    ) -> Float[Array, "3 rings around"]:
        """From the moments of ρ, ρx_1, ρx_2, ρx_3, and ρ itself."""


class _Expanded(Reading):
    """V times what a head reads through a kernel with a profile.

    `multipliers` (l,) for queries of one length on the grid (A a multiple of I); else `sums`. Sums of scaled
    profiles are scaled by e^{−s}: `log_factor` − where they are not divided by their mass − is added to s.
    """

    A: Float[Array, "3 3"]
    V: Float[Array, "3 3"]
    bias: Float[Array, "3"] | None
    log_factor: Float[Array, ""] | None
    multipliers: Float[Array, "l"] | None
    sums: HarmonicSums | None
    scaled: bool = eqx.field(static=True)

    def __call__(self, grid: HarmonicGrid, moments: Array, density: Array) -> Array:
        if self.multipliers is not None:
            values = grid.values(self.multipliers * moments)
            mass, total, s = values[0], values[1:], jnp.abs(self.A[0, 0])
        else:
            assert self.sums is not None
            queries = Queries(self.A, grid.points.reshape(3, -1).T, self.bias)
            found = self.sums.from_moments(_resized(moments, self.sums.degree), queries)
            mass, s = (a.reshape(grid.shape) for a in (found.mass, found.length))
            total = found.total.T.reshape(3, *grid.shape)
        if self.log_factor is None:
            mean = total / jnp.maximum(mass, SMALLEST_MASS)
            # a mean over a law lies in the ball; where hardly any mass is seen, rounding may lead out of it
            read = mean / jnp.maximum(1.0, jnp.linalg.norm(mean, axis=0))
        else:
            read = jnp.exp((s if self.scaled else 0.0) + self.log_factor) * total
        return jnp.einsum("ij,jrp->irp", self.V, read)


class _Fixed(Reading):
    """What does not depend on the law, computed once."""

    output: Float[Array, "3 rings around"]

    def __call__(self, grid: HarmonicGrid, moments: Array, density: Array) -> Array:
        return self.output


class _Summed(Reading):
    """Whatever a term reads, by direct sums over the grid: the square of its size."""

    term: Term

    def __call__(self, grid: HarmonicGrid, moments: Array, density: Array) -> Array:
        x = grid.points.reshape(3, -1).T
        tokens = Tokens(x, (grid.weights[:, None] * density).ravel())
        return self.term.output(x, tokens, DIRECT).T.reshape(3, *grid.shape)


class _Field(eqx.Module):
    """The slope of the packed moments by the flow, without diffusion."""

    grid: HarmonicGrid
    readings: tuple[Reading, ...]
    factors: tuple[Array, ...]
    degree: int = eqx.field(static=True)

    @classmethod
    def plan(cls, model: Model, degree: int, tolerance: float) -> "_Field":
        """Tables; the flux has one degree more than the density."""
        grid = HarmonicGrid.plan(degree + 1)
        listed, factors = readings(model, grid, tolerance)
        return cls(grid, listed, factors, degree)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the packed moments."""
        return (2, self.grid.degree + 1, self.grid.degree + 1)

    def pack(self, moments: Complex[Array, "m l"]) -> Float[Array, "2 m l"]:
        """Real and imaginary parts, scaled so that the sum of squares is the L² norm."""
        kept = jnp.arange(self.grid.degree + 1) <= self.degree
        scale = np.sqrt(4 * np.pi) * jnp.where(jnp.arange(self.grid.degree + 1) == 0, 1.0, np.sqrt(2.0))
        scaled = jnp.where(kept, scale[:, None] * moments, 0.0)
        return jnp.stack([scaled.real, scaled.imag])

    def unpack(self, y: Float[Array, "2 m l"]) -> Complex[Array, "m l"]:
        """The moments again."""
        scale = np.sqrt(4 * np.pi) * jnp.where(jnp.arange(self.grid.degree + 1) == 0, 1.0, np.sqrt(2.0))
        return (y[0] + 1j * y[1]) / scale[:, None]

    def __call__(self, y: Float[Array, "2 m l"]) -> Float[Array, "2 m l"]:
        moments, x = self.unpack(y), self.grid.points
        density = self.grid.values(moments[None])[0]
        moments = jnp.concatenate([moments[None], times_coordinates(moments)])
        parts = zip(self.readings, self.factors, strict=True)
        read: Any = sum(factor * part(self.grid, moments, density) for part, factor in parts)
        velocity = read - jnp.sum(x * read, axis=0) * x
        return -self.pack(self.grid.divergence(density * velocity))


def readings(
    model: Model, grid: HarmonicGrid, tolerance: float
) -> tuple[tuple[Reading, ...], tuple[Array, ...]]:
    """How each part of the model reads on a grid, with this relative error at most, and its time unit.

    Args:
        model: without noise.
        grid: where it is read.
        tolerance: of the sums, relative.
    """
    listed, factors = [], []
    for term in model.terms:
        if term.noisy:
            continue
        found = _of_term(term, grid, tolerance)
        listed += found
        factors += [jnp.exp(term.log_time_unit - model.log_time_unit)] * len(found)
    return tuple(listed), tuple(factors)


def _of_term(term: Term, grid: HarmonicGrid, tolerance: float) -> list[Reading]:
    if not term.interacts:
        x = grid.points.reshape(3, -1).T
        return [_Fixed(term.output(x, Tokens(x[:1])).T.reshape(3, *grid.shape))]
    heads, kernel = term.heads, term.kernel
    if heads is None or kernel is None or kernel.profile is None:
        return [_Summed(term)]
    profile, found = kernel.profile, []
    for k, (A, V) in enumerate(zip(heads.B, heads.V, strict=True)):
        bias = None if heads.score_bias is None else heads.score_bias[k]
        scored = Scored(profile, A[None], None if bias is None else bias[None])
        scalar = bias is None and _is_scalar(np.asarray(A))
        s = np.array([float(A[0, 0])])
        multipliers = jnp.asarray(profile.funk_hecke(s, grid.degree)[0] / (4 * np.pi)) if scalar else None
        sums = None if scalar else HarmonicSums.plan(scored, tolerance)
        factor = None if kernel.normalised else -kernel.log_unit
        found.append(_Expanded(A, V, bias, factor, multipliers, sums, profile.scaled))
    return found


def _is_scalar(A: np.ndarray) -> bool:
    return bool(np.array_equal(A, A[0, 0] * np.eye(3)))


def _resized(moments: Complex[Array, "c m l"], degree: int) -> Complex[Array, "c m2 l2"]:
    """Moments up to another degree, cut off or padded with 0."""
    more = max(0, degree + 1 - moments.shape[1])
    return jnp.pad(moments, ((0, 0), (0, more), (0, more)))[:, : degree + 1, : degree + 1]


def _tail(y: np.ndarray, degree: int) -> float:
    """Share of the L² norm in the degrees beyond two thirds."""
    squares = (y**2).sum(axis=(0, 1))
    return float(np.sqrt(squares[2 * degree // 3 + 1 :].sum() / squares.sum()))
