"""What a point of the circle reads from a density: velocities u = ⟨τ, X⟩ from masses or Fourier coefficients.

For heads that are multiples of the identity it is a convolution, diagonal in c_k with the multipliers of
attention/circle.py. Other heads are matrices on the grid, or on large grids the sums of attention/circle.py
themselves, with the nodes as tokens.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tokenfield.attention import circle as sums
from tokenfield.attention.direct import DIRECT, Sums
from tokenfield.attention.fast import fast_size
from tokenfield.models import InteractionFlow, Model, Slope, SoftmaxAttention, UnnormalisedAttention
from tokenfield.tokens import Tokens

#: Up to this many nodes, heads that are no multiples of I are matrices; beyond, near-linear sums.
LARGEST_MATRIX = 4096


def angles(size: int) -> Float[np.ndarray, "size"]:
    """The nodes (j + ½)·2π/size, which lie on no axis if 4 divides the size."""
    return (np.arange(size) + 0.5) * (2 * np.pi / size)


def points(theta: np.ndarray) -> np.ndarray:
    """(cos θ, sin θ), one row for each angle."""
    return np.stack([np.cos(theta), np.sin(theta)], axis=1)


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

    def velocity(self, c: Array, size: int) -> Float[Array, "size"]:
        """u at the angles 2πj/size."""
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


def convolution(model: Model, count: int) -> Convolution | None:
    """The multipliers of a model whose heads are multiples of I, up to k = count − 1; None for others."""
    if isinstance(model, SoftmaxAttention | UnnormalisedAttention) and not model.infinite:
        heads, V = np.asarray(model.exponents), np.asarray(model.weights.stacked()[1])
        strengths = heads[:, 0, 0]
        unit = np.zeros(len(heads))
        if isinstance(model, UnnormalisedAttention):
            unit = np.abs(strengths) - float(model.log_time_unit)
        table = np.asarray(sums.Circle.tables(count, np.abs(strengths))["multipliers"])
        # I_k(−s) = (−1)^k I_k(s)
        sign = np.where(strengths[:, None] < 0, (-1.0) ** np.arange(count + 1), 1.0)
        m = sign * table * np.exp(unit)[:, None]
    elif isinstance(model, InteractionFlow):
        heads = V = np.asarray(model.A).reshape(-1, 2, 2)
        m = np.stack([_kernel_modes(model, a, count) for a in heads[:, 0, 0]])
    else:
        return None
    if np.abs(heads - heads[:, :1, :1] * np.eye(2)).max() > 1e-13 * np.abs(heads).max():
        return None
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
        normalised=isinstance(model, SoftmaxAttention),
        scalar=scalar,
    )


def _kernel_modes(model: InteractionFlow, a: float, count: int) -> np.ndarray:
    """Fourier coefficients 0..count of φ'(a cos s)."""
    size = fast_size(4 * count + 16)
    values = Slope(model.phi)(a * jnp.cos(2 * jnp.pi * jnp.arange(size) / size))
    return np.fft.rfft(np.asarray(values), norm="forward").real[: count + 1]


class Dense(eqx.Module):
    """Velocities by matrices: u = Σ_h (pull_h m)/(mass_h m) for masses m at the nodes of one grid.

    Every term is positive, so that Z keeps its digits where the query points away from all keys.
    """

    #: e^{⟨q_i,y_j⟩ − top_i}⟨τ_i, V y_j⟩, and the same without the last factor (softmax only).
    pull: Float[Array, "heads queries nodes"]
    mass: Float[Array, "heads queries nodes"] | None
    on_edges: bool = eqx.field(static=True)

    def __call__(self, masses: Array) -> Array:
        """u at the queries."""
        pull = self.pull @ masses
        if self.mass is None:
            return jnp.sum(pull, axis=0)
        total = self.mass @ masses
        return jnp.sum(jnp.where(total > 0, pull / jnp.where(total > 0, total, 1.0), 0.0), axis=0)


class General(eqx.Module):
    """Velocities of any model by its own sums, with the nodes as tokens."""

    model: Model
    sums: Sums
    on_edges: bool = eqx.field(static=True)

    def __call__(self, masses: Array) -> Array:
        """u at the queries."""
        y, x = (jnp.asarray(points(a)) for a in _grids(len(masses), self.on_edges))
        read = self.model.attention(x, Tokens(y, masses), self.sums)
        return x[:, 0] * read[:, 1] - x[:, 1] * read[:, 0]


def _grids(size: int, on_edges: bool) -> tuple[np.ndarray, np.ndarray]:
    """Places of the keys and of the queries: one grid, or the middles and the left edges of cells."""
    edges = np.arange(size) * (2 * np.pi / size)
    return (angles(size), edges) if on_edges else (edges, edges)


def on_grid(model: Model, size: int, on_edges: bool) -> Dense | General:
    """Velocities for heads of any form."""
    heads = model.exponents
    known = isinstance(model, SoftmaxAttention | UnnormalisedAttention | InteractionFlow)
    if size > LARGEST_MATRIX or not known or getattr(model, "infinite", False):
        # spare: every query may point away from the keys; then its sum is direct
        fast = sums.Circle.plan(np.asarray(heads), 1e-9, spare=size) if heads is not None else DIRECT
        return General(model, fast, on_edges)
    y, x = (points(a) for a in _grids(size, on_edges))
    across = np.stack([-x[:, 1], x[:, 0]], axis=1)
    if isinstance(model, InteractionFlow):
        A = np.asarray(model.A).reshape(-1, 2, 2)
        weight, V = np.asarray(Slope(model.phi)(jnp.asarray((x @ A) @ y.T))), A
    else:
        V = np.asarray(model.weights.stacked()[1])
        scores = (x @ np.asarray(heads)) @ y.T
        top = scores.max(axis=2, keepdims=True)
        unit = 0.0 if isinstance(model, SoftmaxAttention) else top - float(model.log_time_unit)
        weight = np.exp(scores - top + unit)
    pull = weight * ((across @ V) @ y.T)
    if isinstance(model, SoftmaxAttention):
        return Dense(jnp.asarray(pull), jnp.asarray(weight), on_edges)
    return Dense(jnp.asarray(pull.sum(axis=0, keepdims=True)), None, on_edges)


class OnEdges(eqx.Module):
    """A convolution from averages over cells to velocities at their left edges."""

    convolution: Convolution

    def __call__(self, masses: Float[Array, "N"]) -> Float[Array, "N"]:
        """u at the edges 2πj/N."""
        size = masses.shape[0]
        k = jnp.arange(size // 2)
        c = jnp.fft.rfft(masses)[: size // 2] * jnp.exp(-1j * k * (jnp.pi / size))
        return self.convolution.velocity(c, size)
