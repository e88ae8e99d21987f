"""A grid on S² and the spherical harmonic transform between values and moments.

Gauss nodes in the height, equispaced longitudes. Moments are those of the fast sums (attention/harmonic.py):
M_lm = ∫f conj Y_lm dσ over the uniform law σ, 0 ≤ m for real f, and f = 4π Σ M_lm Y_lm.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float

from tokenfield.geometry.circle import fast_size
from tokenfield.geometry.harmonics import contract, legendre_values


class HarmonicGrid(eqx.Module):
    """Transforms of degree up to L on a grid that integrates products of three such functions exactly.

    `table` (m, l, ring): normalised Legendre functions; `weights` (rings,): of a point of each ring, for the
    uniform law; `heights` (rings,).
    """

    table: Float[Array, "m l rings"]
    weights: Float[Array, "rings"]
    heights: Float[Array, "rings"]
    around: int = eqx.field(static=True)

    @classmethod
    def plan(cls, degree: int) -> "HarmonicGrid":
        """Tables for a degree."""
        heights, weights = np.polynomial.legendre.leggauss((3 * degree) // 2 + 1)
        around = fast_size(3 * degree + 1)
        table = legendre_values(degree, np.arccos(heights))
        table, weights, heights = (jnp.asarray(a) for a in (table, weights / (2 * around), heights))
        return cls(table, weights, heights, around)

    @property
    def degree(self) -> int:
        """L."""
        return self.table.shape[0] - 1

    @property
    def shape(self) -> tuple[int, int]:
        """Rings, and points on each."""
        return self.table.shape[2], self.around

    @property
    def points(self) -> Float[Array, "3 rings around"]:
        """Cartesian coordinates."""
        phi = jnp.arange(self.around) * (2 * jnp.pi / self.around)
        z, one = self.heights[:, None], jnp.ones(self.around)
        s = jnp.sqrt(1 - z * z)
        return jnp.stack([s * jnp.cos(phi), s * jnp.sin(phi), z * one])

    def moments(self, values: Float[Array, "c rings around"]) -> Complex[Array, "c m l"]:
        """M_lm of some fields; 0 for l < m."""
        modes = jnp.fft.rfft(values, axis=-1)[..., : self.degree + 1] * self.weights[:, None]
        return contract("cmj,mlj->cml", jnp.swapaxes(modes, 1, 2), self.table)

    def values(self, moments: Complex[Array, "c m l"]) -> Float[Array, "c rings around"]:
        """4π Σ M_lm Y_lm at the points."""
        modes = contract("cml,mlj->cmj", 4 * jnp.pi * moments, self.table)
        return jnp.fft.irfft(jnp.swapaxes(modes, 1, 2), n=self.around, axis=-1, norm="forward")

    def divergence(self, fields: Float[Array, "3 rings around"]) -> Complex[Array, "m l"]:
        """Moments of div F for a tangent field F in Cartesian coordinates: div F = −½ Σ_k x_k ΔF_k.

        From Δ(x_k F_k) = x_k ΔF_k + 2⟨∇x_k, ∇F_k⟩ − 2x_k F_k, summed over k, with Σ x_k F_k = 0. The moment
        of degree 0 is Σ x_k F_k summed over the points, 0 to rounding: mass is kept.
        """
        l = jnp.arange(self.degree + 1)  # noqa: E741
        waves = l * (l + 1) / 2 * self.moments(fields)
        return jnp.sum(jnp.stack([times_coordinates(waves[k])[k] for k in range(3)]), axis=0)


def times_coordinates(moments: Complex[Array, "m l"]) -> Complex[Array, "3 m l"]:
    """Moments of x_1 f, x_2 f, x_3 f from those of a real f, up to the same degree.

    With E± = x_1 ± i x_2: x_3 Y_lm and E± Y_lm are sums of two harmonics of degrees l ± 1 and order m, m ± 1.
    """
    size = moments.shape[0]
    m, l = np.arange(size)[:, None], np.arange(size)[None]  # noqa: E741
    root = lambda a, b: np.sqrt(np.maximum(a, 0.0) / b)  # noqa: E731
    below, above = (2.0 * l - 1) * (2 * l + 1), (2.0 * l + 1) * (2 * l + 3)
    below[:, 0] = 1.0  # there is no degree −1, and `lower` is 0 there
    lower = lambda f: jnp.pad(f, ((0, 0), (1, 0)))[:, :-1]  # noqa: E731 (f_{l−1} at l)
    upper = lambda f: jnp.pad(f, ((0, 0), (0, 1)))[:, 1:]  # noqa: E731
    left = jnp.concatenate([-jnp.conj(moments[1:2]), moments[:-1]])  # order m − 1
    right = jnp.pad(moments, ((0, 1), (0, 0)))[1:]  # order m + 1
    plus = root((l - m + 2) * (l - m + 1), above) * upper(left) - root((l + m) * (l + m - 1), below) * lower(
        left
    )
    minus = root((l - m) * (l - m - 1), below) * lower(right) - root(
        (l + m + 2) * (l + m + 1), above
    ) * upper(right)
    third = root(l * l - m * m, below) * lower(moments) + root((l + 1) ** 2 - m * m, above) * upper(moments)
    inside = l >= m
    return jnp.where(inside, jnp.stack([(plus + minus) / 2, (plus - minus) / 2j, third]), 0.0)
