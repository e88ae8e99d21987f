"""What a point of the circle reads from a density: velocities u = ⟨τ, X⟩ from masses or Fourier coefficients.

A term of the model says its heads and kernel. For heads that are multiples of the identity a reading is a
convolution, diagonal in c_k with the Fourier coefficients of the kernel's profile. Other heads are matrices
on the grid, or on large grids the sums of sums/circle.py themselves, with the nodes as tokens. What does not
depend on the law (MLP, drift, zero temperature, a fixed context) is computed once.
"""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tokenfield.geometry.circle import angles, points
from tokenfield.laws.tokens import Tokens
from tokenfield.models.base import Model, Term
from tokenfield.sums.base import Sums
from tokenfield.sums.circle import CircleSums
from tokenfield.sums.direct import DIRECT

#: Up to this many nodes, heads that are no multiples of I are matrices; beyond, near-linear sums.
LARGEST_MATRIX = 4096

#: (coefficients c_k, masses at the nodes) → velocity at the queries.
Reading = Callable[[Array, Array], Array]


class Velocity(eqx.Module):
    """u for a whole model: the readings of its terms, each with the factor of its time unit."""

    readings: tuple[Reading, ...]
    factors: tuple[Array, ...]

    def __call__(self, c: Array, masses: Float[Array, "N"]) -> Float[Array, "N"]:
        """u at the queries of the grid, from the coefficients c_k and the masses at the nodes."""
        return sum(  # pyright: ignore[reportReturnType]
            factor * reading(c, masses) for reading, factor in zip(self.readings, self.factors, strict=True)
        )


def velocity(model: Model, modes: int, size: int, on_edges: bool) -> Velocity:
    """The velocity of a model on a grid.

    Args:
        model: without noise.
        modes: number of Fourier modes, c_k for k < modes // 2.
        size: points of the grid.
        on_edges: queries at the left edges of cells, keys in their middles; else both at 2πj/size.
    """
    unit = model.log_time_unit
    terms = [term for term in model.terms if not term.noisy]
    readings = tuple(_reading(term, modes // 2, size, on_edges) for term in terms)
    return Velocity(readings, tuple(jnp.exp(term.log_time_unit - unit) for term in terms))


def _reading(term: Term, count: int, size: int, on_edges: bool) -> Reading:
    if not term.interacts:
        return Fixed.of(term, size, on_edges)
    return convolution(term, count) or _on_grid(term, size, on_edges)


class Fixed(eqx.Module):
    """Velocities that do not depend on the law."""

    u: Float[Array, "size"]

    @classmethod
    def of(cls, term: Term, size: int, on_edges: bool) -> "Fixed":
        """From the output of the term at the queries.

        Args:
            term: one that does not read the law.
            size: points of the grid.
            on_edges: queries at the left edges of cells; else at 2πj/size.
        """
        y, x = (jnp.asarray(points(a)) for a in _grids(size, on_edges))
        return cls(_across(x, term.output(x, Tokens(y))))

    def __call__(self, c: Array, masses: Array) -> Array:
        """u at the queries."""
        return self.u


class Convolution(eqx.Module):
    """Velocities for heads that are multiples of I, from the coefficients c_k, k ≥ 0.

    With keys e^{iθ} and the multipliers m_k of the kernel, the head reads S = Σ_k m_k c_{k−1}e^{ikψ}; turned
    back by the query, T = e^{−iψ}S, its parts along the query and across it are real series. Heads with
    V = (a real multiple of I) need only the part across.
    """

    #: (heads, K): multipliers of the mass, of the part along the query and of the part across it.
    mass: Float[Array, "heads K"]
    along: Float[Array, "heads K"]
    across: Float[Array, "heads K"]
    #: V S = turn·S + mirror·S̄ as complex numbers; (heads,).
    turn: Array
    mirror: Array
    normalised: bool = eqx.field(static=True)
    scalar: bool = eqx.field(static=True)

    def __call__(self, c: Array, masses: Array) -> Float[Array, "size"]:
        """u at the angles 2πj/size."""
        size = masses.shape[0]
        tables = [-1j * self.across] + [self.mass] * self.normalised + [self.along] * (not self.scalar)
        values = jnp.fft.irfft(jnp.stack(tables) * c, size, norm="forward")
        across = values[0]
        along = values[-1]
        if self.normalised:
            # a mean of keys is no longer than 1: where no key is near, rounding would say otherwise
            scale = 1 / jnp.maximum(values[1], jnp.hypot(across, along) if not self.scalar else abs(across))
            across, along = across * scale, along * scale
        if self.scalar:
            return jnp.sum(self.turn.real[:, None] * across, axis=0)
        psi = jnp.arange(size) * (2 * jnp.pi / size)
        T = along + 1j * across
        read = self.turn[:, None] * T + self.mirror[:, None] * jnp.conj(T) * jnp.exp(-2j * psi)
        return jnp.sum(read.imag, axis=0)


def convolution(term: Term, count: int) -> Convolution | None:
    """The multipliers of a term whose heads are multiples of I, up to k = count − 1; None for others."""
    heads, kernel = term.heads, term.kernel
    if heads is None or kernel is None or kernel.profile is None or heads.score_bias is not None:
        return None
    A, V = np.asarray(heads.B), np.asarray(heads.V)
    if np.abs(A - A[:, :1, :1] * np.eye(2)).max() > 1e-13 * np.abs(A).max():
        return None
    strengths = A[:, 0, 0]
    m = kernel.profile.fourier(strengths, count)
    if not kernel.normalised:
        scale = np.abs(strengths) if kernel.profile.scaled else np.zeros(len(A))
        m = m * np.exp(scale - float(kernel.log_unit))[:, None]
    turn = 0.5 * (V[:, 0, 0] + V[:, 1, 1] + 1j * (V[:, 1, 0] - V[:, 0, 1]))
    mirror = 0.5 * (V[:, 0, 0] - V[:, 1, 1] + 1j * (V[:, 1, 0] + V[:, 0, 1]))
    scalar = bool(np.all(mirror == 0) and np.all(turn.imag == 0))
    before = np.concatenate([m[:, 1:2], m[:, : count - 1]], axis=1)  # m_{−1} = m_1
    after = m[:, 1 : count + 1]
    return Convolution(
        jnp.asarray(m[:, :count]),
        jnp.asarray((after + before) / 2),
        jnp.asarray((after - before) / 2),
        jnp.asarray(turn),
        jnp.asarray(mirror),
        normalised=kernel.normalised,
        scalar=scalar,
    )


class Dense(eqx.Module):
    """Velocities by matrices: u = Σ_h (pull_h m)/(mass_h m) for masses m at the nodes of one grid.

    Every term is positive, so that Z keeps its digits where the query points away from all keys.
    """

    #: weight(s_ij)⟨τ_i, V y_j⟩, and the same without the last factor (normalised kernels only).
    pull: Float[Array, "heads queries nodes"]
    mass: Float[Array, "heads queries nodes"] | None

    def __call__(self, c: Array, masses: Array) -> Array:
        """u at the queries."""
        pull = self.pull @ masses
        if self.mass is None:
            return jnp.sum(pull, axis=0)
        total = self.mass @ masses
        return jnp.sum(jnp.where(total > 0, pull / jnp.where(total > 0, total, 1.0), 0.0), axis=0)


class Summed(eqx.Module):
    """Velocities of any term by its own sums, with the nodes as tokens."""

    term: Term
    sums: Sums
    on_edges: bool = eqx.field(static=True)

    def __call__(self, c: Array, masses: Array) -> Array:
        """u at the queries."""
        y, x = (jnp.asarray(points(a)) for a in _grids(len(masses), self.on_edges))
        return _across(x, self.term.output(x, Tokens(y, masses), self.sums))


def _across(x: Array, output: Array) -> Array:
    """The part of vectors at points x of the circle along the tangent τ."""
    return x[:, 0] * output[:, 1] - x[:, 1] * output[:, 0]


def _grids(size: int, on_edges: bool) -> tuple[np.ndarray, np.ndarray]:
    """Places of the keys and of the queries: one grid, or the middles and the left edges of cells."""
    edges = np.arange(size) * (2 * np.pi / size)
    return (angles(size), edges) if on_edges else (edges, edges)


def _on_grid(term: Term, size: int, on_edges: bool) -> Dense | Summed:
    """Velocities for heads of any form."""
    heads, kernel, scored = term.heads, term.kernel, term.scored
    if size > LARGEST_MATRIX or heads is None or kernel is None or scored is None:
        # as many fallback rows as queries: every query may point away from the keys
        fast = DIRECT if scored is None else CircleSums.plan(scored, 1e-9, fallback_rows=size)
        return Summed(term, fast, on_edges)
    y, x = (points(a) for a in _grids(size, on_edges))
    across = np.stack([-x[:, 1], x[:, 0]], axis=1)
    q = x @ np.asarray(heads.B)
    if heads.score_bias is not None:
        q = q + np.asarray(heads.score_bias)[:, None, :]
    scores = q @ y.T
    top = scores.max(axis=2, keepdims=True)
    weight = np.asarray(kernel.weight(jnp.asarray(scores), jnp.asarray(top)))
    pull = weight * ((across @ np.asarray(heads.V)) @ y.T)
    if kernel.normalised:
        return Dense(jnp.asarray(pull), jnp.asarray(weight))
    return Dense(jnp.asarray(pull.sum(axis=0, keepdims=True)), None)
