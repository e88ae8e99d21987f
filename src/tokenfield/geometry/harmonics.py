"""Spherical harmonics on the doubled sphere: what the fast sums and the densities on S² have in common.

With the colatitude continued to a full turn, Y_lm = e^{imφ} Σ_p P_lmp e^{ipθ}, |p| ≤ l: Fourier series with
coefficients that are tabulated once. Real fields need 0 ≤ m only.
"""

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from scipy import special

from tokenfield.geometry.circle import fast_size


def contract(subscripts: str, numbers: Array, table: Array) -> Array:
    """einsum of complex numbers with a real table, which is not made complex.

    Args:
        subscripts: those of `einsum` for the two arrays.
        numbers: complex array.
        table: real array.

    Returns:
        The complex array that `einsum(subscripts, numbers, table)` is.
    """
    return lax.complex(*(jnp.einsum(subscripts, part, table) for part in (numbers.real, numbers.imag)))


def fold(modes: Array, L: int) -> Array:
    """Σ over ±p of modes (..., m, p) against cosine (m even) or sine (m odd) series, for p ≥ 0."""
    plus, minus = modes[..., L:], modes[..., L::-1]
    sign = jnp.where(jnp.arange(modes.shape[-2]) % 2 == 0, 1.0, -1.0)[:, None]
    # Σ_j c e^{−ipθ} → Σ_j c 2cos pθ, or Σ_j c 2 sin pθ = i (plus − minus)
    factor = jnp.where(jnp.arange(modes.shape[-2]) % 2 == 0, 1.0 + 0j, 1j)[:, None]
    return factor * (plus + sign * minus)


def unfold(series: Array, L: int) -> Array:
    """Modes for −L ≤ p ≤ L of Σ_p≥0 a_p 2cos pθ (m even) or a_p 2 sin pθ (m odd)."""
    even = (jnp.arange(series.shape[-2]) % 2 == 0)[:, None]
    plus = jnp.where(even, 1.0 + 0j, -1j) * series
    minus = jnp.where(even, 1.0 + 0j, 1j) * series
    middle = plus[..., :1] + minus[..., :1]
    return jnp.concatenate([minus[..., :0:-1], middle, plus[..., 1:]], axis=-1)


def legendre(degree: int, theta: Float[np.ndarray, "j"]) -> Iterator[Float[np.ndarray, "l j"]]:
    """P̄_lm(cos θ) for m = 0, 1, ...: rows l = m, ..., L. Orthonormal on the sphere with e^{imφ}.

    By the recurrence in l, stable upwards. Colatitudes beyond π continue odd m oddly.
    """
    x, y = np.cos(theta), np.sin(theta)
    top = np.full(len(theta), np.sqrt(1 / (4 * np.pi)))
    for m in range(degree + 1):
        rows = np.zeros((degree + 1 - m, len(theta)))
        rows[0] = top
        if m < degree:
            rows[1] = np.sqrt(2 * m + 3) * x * top
        for k in range(2, degree + 1 - m):
            n = m + k  # the degree
            a = np.sqrt((4 * n * n - 1) / (n * n - m * m))
            b = np.sqrt(((n - 1) ** 2 - m * m) / (4 * (n - 1) ** 2 - 1))
            rows[k] = a * (x * rows[k - 1] - b * rows[k - 2])
        yield rows
        top = -np.sqrt((2 * m + 3) / (2 * m + 2)) * y * top


def legendre_fourier(degree: int) -> Float[np.ndarray, "L1 L1 L1"]:
    """a[m, l, p] with P̄_lm(cos θ) = Σ_{p≥0} a[m,l,p]·2cos pθ (m even) or ·2 sin pθ (m odd)."""
    L = degree
    count = fast_size(2 * L + 2)
    table = np.zeros((L + 1, L + 1, L + 1))
    for m, rows in enumerate(legendre(L, np.arange(count) * (2 * np.pi / count))):
        modes = np.fft.rfft(rows, axis=1)[:, : L + 1] / count
        series = modes.real if m % 2 == 0 else -modes.imag
        series[:, 0] /= 2
        table[m, m:] = series
    return table


def legendre_values(degree: int, theta: Float[np.ndarray, "j"]) -> Float[np.ndarray, "L1 L1 j"]:
    """P̄_lm(cos θ_j) at [m, l, j], 0 for l < m."""
    table = np.zeros((degree + 1, degree + 1, len(theta)))
    for m, rows in enumerate(legendre(degree, theta)):
        table[m, m:] = rows
    return table


def scaled_bessel(degree: np.ndarray, s: np.ndarray) -> np.ndarray:
    """4π e^{−s} i_l(s), i_l the modified spherical Bessel function √(π/2s) I_{l+1/2}(s)."""
    safe = np.maximum(s, 1e-300)
    values = np.sqrt(np.pi / (2 * safe)) * special.ive(degree + 0.5, safe)
    return 4 * np.pi * np.where(s > 0, values, np.where(degree == 0, 1.0, 0.0))
