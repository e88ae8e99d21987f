"""Queries of different length: interpolation of a kernel's profile, e^{−s(1−⟨u,y⟩)} or another, in s.

A query q = s u reads keys y through e^{s⟨u,y⟩}. Expansions in Fourier modes or spherical harmonics are
diagonal for one s; for s in a range they are made at a few nodes s_r and interpolated,

    e^{−sz} = Σ_r c_r(s) e^{−s_r z}   for every z = 1 − ⟨u,y⟩ in [0, 2],

by Chebyshev polynomials in log(1 + s). Two dozen nodes give all digits for a range of one decade, and
s = 0 (a singular B) may belong to the range.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from tokenfield.errors import InputError
from tokenfield.sums.profile import Profile

#: Nodes that no range needs: 0 to 10^12 takes fewer.
MOST_NODES = 400


class Radial(eqx.Module):
    """Interpolation in s on [low, high]; `nodes` (R,)."""

    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)
    count: int = eqx.field(static=True)

    @classmethod
    def plan(cls, profile: Profile, low: float, high: float, tolerance: float) -> "Radial":
        """As few nodes as keep the error below the tolerance, or at rounding; found by trying.

        Args:
            profile: the kernel's weight as a function of length and cosine.
            low: least length of a query.
            high: greatest length of a query.
            tolerance: error allowed, relative to the greatest value of the profile.
        """
        if high - low <= 1e-14 * high:
            return cls(low, high, 1)
        gap = np.concatenate([[0.0], np.geomspace(1e-3 / (1 + high), 2, 300)])
        s = np.expm1(np.linspace(np.log1p(low), np.log1p(high), 300))
        exact, scale = profile.values(s[:, None], gap), profile.amplitude(high)
        for count in range(4, MOST_NODES, 2):
            radial = cls(low, high, count)
            found = radial.coefficients(s, np) @ profile.values(radial.nodes[:, None], gap)
            if np.abs(found - exact).max() <= max(tolerance, radial.rounding) * scale:
                return radial
        raise InputError(
            f"`summation` must be 'direct' for this kernel: no interpolation over query lengths {low:g} to"
            f" {high:g} meets the tolerance {tolerance:g}"
        )

    @property
    def rounding(self) -> float:
        """Error below which no interpolation gets."""
        return 1e-15 * self.count

    @property
    def nodes(self) -> Float[np.ndarray, "R"]:
        """The lengths s_r at which expansions are made."""
        if self.count == 1:
            return np.array([self.high])
        middle, half = self._interval()
        return np.expm1(middle + half * np.cos(_angles(self.count)))

    def coefficients(self, s: Array | np.ndarray, xp=jnp) -> Array:
        """c_r(s), shape (*s.shape, R)."""
        if self.count == 1:
            return xp.ones((*s.shape, 1))
        middle, half = self._interval()
        # rounding may leave s just outside of the range
        place = xp.clip((xp.log1p(s) - middle) / half, -1.0, 1.0)
        return lagrange(place, self.count, xp)

    def sum(self, f: Callable[[Array], Array], nodes: Array, s: Float[Array, "m"]) -> Array:
        """Σ_r c_r(s) f(nodes[r]), one node at a time to save memory.

        Args:
            f: of one node, of shape (..., m).
            nodes: (R, ...).
            s: lengths (m,).
        """
        weights = self.coefficients(s).T
        like = jax.eval_shape(f, nodes[0])
        step = jax.checkpoint(lambda total, node: (total + node[1] * f(node[0]), None))
        return lax.scan(step, jnp.zeros(like.shape, like.dtype), (nodes, weights))[0]

    def _interval(self) -> tuple[float, float]:
        a, b = np.log1p(self.low), np.log1p(self.high)
        return (a + b) / 2, (b - a) / 2


def lagrange(place: Array | np.ndarray, count: int, xp=jnp) -> Array:
    """Lagrange polynomials of Chebyshev nodes: shape (*place.shape, count).

    Summed from Chebyshev polynomials by their recurrence, which has a derivative everywhere.

    Args:
        place: places in [−1, 1].
        count: number of nodes.
        xp: numpy, or jax.numpy.
    """
    k = np.arange(count)
    at_nodes = (2 - (k == 0))[:, None] / count * np.cos(np.outer(k, _angles(count)))
    rows = [xp.ones_like(place), place]
    for _ in range(2, count):
        rows.append(2 * place * rows[-1] - rows[-2])
    return xp.stack(rows[:count], axis=-1) @ at_nodes


def chebyshev_nodes(count: int) -> Float[np.ndarray, "count"]:
    """The nodes of `lagrange` in [−1, 1]."""
    return np.cos(_angles(count))


def _angles(count: int) -> np.ndarray:
    return (2 * np.arange(count) + 1) * (np.pi / (2 * count))
