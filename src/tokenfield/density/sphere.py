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

from tokenfield.attention.direct import DIRECT
from tokenfield.attention.harmonic import Harmonic
from tokenfield.attention.legendre import scaled_bessel
from tokenfield.density.domain import Domain, Problem, Watch
from tokenfield.density.grid import HarmonicGrid, times_coordinates
from tokenfield.density.march import adaptive, march
from tokenfield.density.resolution import undershoot, verdict
from tokenfield.density.result import DensityTrajectory, conclude
from tokenfield.density.start import start
from tokenfield.errors import InputError, as_number, as_whole, require
from tokenfield.models import (
    InteractionFlow,
    Model,
    Slope,
    SoftmaxAttention,
    UnnormalisedAttention,
    ZeroTemperature,
)
from tokenfield.tokens import Tokens

#: Order of the filter; its rate at the greatest degree is that degree: a wave passes a cell in 1/L.
FILTER_ORDER = 16
#: Least mass that a softmax mean is taken over, where 1 is all mass in the direction of the query.
LEAST_MASS = 1e-13


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
            field.pack(self._start(field.grid, problem.rho0)), problem.ts, watch,
        )  # fmt: skip
        grid = field.grid
        density = np.stack([np.asarray(grid.values(field.unpack(y)[None])[0]) for y in marched.y])
        masses = density * np.asarray(grid.weights)[:, None]
        tail = np.array([_tail(y, self.degree) for y in marched.y])
        flat = lambda a: a.reshape(len(density), -1)  # noqa: E731
        return conclude(
            self, problem, marched, np.asarray(grid.points).reshape(3, -1).T, flat(density), flat(masses),
            tail, self._verdict(problem.ts, tail, density),
        )  # fmt: skip

    def _start(self, grid: HarmonicGrid, rho0: Any) -> Complex[Array, "m l"]:
        """Moments of the normalised initial density."""
        x = np.asarray(grid.points).reshape(3, -1).T
        values = start(rho0, x, np.repeat(np.asarray(grid.weights), grid.around))
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

    def _verdict(self, ts: np.ndarray, tail: np.ndarray, density: np.ndarray) -> str:
        low = undershoot(density.reshape(len(density), -1))
        missed = (
            f"degrees beyond {2 * self.degree // 3} hold {tail.max():.1e} of the density, and it falls to"
            f" −{low.max():.1e} of its greatest value"
        )
        return verdict(ts, np.maximum(tail, low), self.accuracy, missed)

    def tokens(self, nodes: np.ndarray, masses: np.ndarray) -> Tokens:
        """The points of the grid with their masses."""
        return Tokens(nodes, masses)

    def sample(self, nodes: np.ndarray, masses: np.ndarray, n: int, rng: np.random.Generator) -> Tokens:
        """Tokens uniform in the cells of the grid, which are drawn by their masses."""
        rings = (3 * (self.degree + 1)) // 2 + 1
        _, w = np.polynomial.legendre.leggauss(rings)
        edges = np.concatenate([[-1], np.cumsum(w) - 1])  # they part the Gauss nodes
        around = len(nodes) // rings
        ring, place = np.divmod(rng.choice(len(nodes), n, p=masses), around)
        z = edges[ring] + (edges[ring + 1] - edges[ring]) * rng.uniform(size=n)
        phi = (place + rng.uniform(-0.5, 0.5, n)) * (2 * np.pi / around)
        s = np.sqrt(1 - np.minimum(z * z, 1))
        return Tokens(np.stack([s * np.cos(phi), s * np.sin(phi), np.clip(z, -1, 1)], axis=1))


class Head(eqx.Module):
    """What one head of a model reads at the points of the grid, before projection."""

    @abstractmethod
    def __call__(
        self, grid: HarmonicGrid, moments: Complex[Array, "4 m l"], density: Float[Array, "rings around"]
    ) -> Float[Array, "3 rings around"]:
        """From the moments of ρ, ρx_1, ρx_2, ρx_3, and ρ itself."""


class _Exponential(Head):
    """V times the softmax mean, or the unnormalised sum in the unit e^{−log_unit} of time.

    Sums are scaled by e^{−s}: `multipliers` (l,) for queries of one length s on the grid; else `sums`.
    """

    A: Float[Array, "3 3"]
    V: Float[Array, "3 3"]
    log_unit: Float[Array, ""] | None
    multipliers: Float[Array, "l"] | None
    sums: Harmonic | None

    def __call__(self, grid: HarmonicGrid, moments: Array, density: Array) -> Array:
        if self.multipliers is not None:
            values = grid.values(self.multipliers * moments)
            mass, total, s = values[0], values[1:], jnp.abs(self.A[0, 0])
        else:
            assert self.sums is not None
            x = grid.points.reshape(3, -1).T
            found = self.sums.from_moments(_resized(moments, self.sums.degree), self.A, x)
            mass, s = (a.reshape(grid.shape) for a in (found.mass, found.length))
            total = found.total.T.reshape(3, *grid.shape)
        if self.log_unit is None:
            mean = total / jnp.maximum(mass, LEAST_MASS)
            # a mean over a law lies in the ball; where hardly any mass is seen, rounding may lead out of it
            read = mean / jnp.maximum(1.0, jnp.linalg.norm(mean, axis=0))
        else:
            read = jnp.exp(s - self.log_unit) * total
        return jnp.einsum("ij,jrp->irp", self.V, read)


class _Zonal(Head):
    """c ∫φ'(c⟨x,y⟩) y dμ for A = c I, by the theorem of Funk and Hecke: `multipliers` (l,)."""

    multipliers: Float[Array, "l"]

    def __call__(self, grid: HarmonicGrid, moments: Array, density: Array) -> Array:
        return grid.values(self.multipliers * moments[1:])


class _Summed(Head):
    """Whatever a model reads, by direct sums over the grid: the square of its size."""

    model: Model

    def __call__(self, grid: HarmonicGrid, moments: Array, density: Array) -> Array:
        x = grid.points.reshape(3, -1).T
        tokens = Tokens(x, (grid.weights[:, None] * density).ravel())
        return self.model.attention(x, tokens, DIRECT).T.reshape(3, *grid.shape)


class _Field(eqx.Module):
    """The slope of the packed moments by the flow, without diffusion."""

    grid: HarmonicGrid
    heads: tuple[Head, ...]
    degree: int = eqx.field(static=True)

    @classmethod
    def plan(cls, model: Model, degree: int, tolerance: float) -> "_Field":
        """Tables; the flux has one degree more than the density."""
        return cls(HarmonicGrid.plan(degree + 1), heads(model, degree + 1, tolerance), degree)

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
        read = sum(head(self.grid, moments, density) for head in self.heads)
        velocity = read - jnp.sum(x * read, axis=0) * x
        return -self.pack(self.grid.divergence(density * velocity))


def heads(model: Model, degree: int, tolerance: float) -> tuple[Head, ...]:
    """How each head of the model reads on a grid of this degree, with this relative error at most."""
    if isinstance(model, SoftmaxAttention | UnnormalisedAttention) and not model.infinite:
        unit = model.log_time_unit if isinstance(model, UnnormalisedAttention) else None
        B, V = model.weights.stacked()
        return tuple(
            _Exponential(A, v, unit, _multipliers(np.asarray(A), degree), _harmonic(np.asarray(A), tolerance))
            for A, v in zip(model.beta * B, V, strict=True)
        )
    if isinstance(model, InteractionFlow):
        listed = model.A.reshape(-1, 3, 3)
        if all(_is_scalar(np.asarray(A)) for A in listed):
            return tuple(_Zonal(_funk_hecke(model.phi, float(A[0, 0]), degree)) for A in listed)
        return (_Summed(model),)
    if isinstance(model, ZeroTemperature):
        return (_Summed(model),)
    raise InputError(
        "`model` must be softmax or unnormalised attention at finite beta, an InteractionFlow or"
        f" ZeroTemperature, but was {type(model).__name__}"
    )


def _is_scalar(A: np.ndarray) -> bool:
    return bool(np.array_equal(A, A[0, 0] * np.eye(3)))


def _multipliers(A: np.ndarray, degree: int) -> Array | None:
    """e^{−s}i_l(s) for A = ±s I, with the sign (±1)^l."""
    if not _is_scalar(A):
        return None
    l = np.arange(degree + 1)  # noqa: E741
    values = scaled_bessel(l, np.array(abs(A[0, 0]))) / (4 * np.pi)
    return jnp.asarray(values * np.where(A[0, 0] < 0, (-1.0) ** l, 1.0))


def _harmonic(A: np.ndarray, tolerance: float) -> Harmonic | None:
    return None if _is_scalar(A) else Harmonic.plan(A[None], tolerance)


def _funk_hecke(phi: Any, c: float, degree: int) -> Array:
    """c·½∫φ'(ct)P_l(t)dt for l ≤ degree, by Gauss's rule."""
    t, w = np.polynomial.legendre.leggauss(2 * degree + 64)
    slope = Slope(phi)(jnp.asarray(c * t))
    return jnp.asarray(c / 2 * (w * np.asarray(slope)) @ np.polynomial.legendre.legvander(t, degree))


def _resized(moments: Complex[Array, "c m l"], degree: int) -> Complex[Array, "c m2 l2"]:
    """Moments up to another degree, cut off or filled with 0."""
    more = max(0, degree + 1 - moments.shape[1])
    return jnp.pad(moments, ((0, 0), (0, more), (0, more)))[:, : degree + 1, : degree + 1]


def _tail(y: np.ndarray, degree: int) -> float:
    """Share of the L² norm in the degrees beyond two thirds."""
    squares = (y**2).sum(axis=(0, 1))
    return float(np.sqrt(squares[2 * degree // 3 + 1 :].sum() / squares.sum()))
