"""The mean-field flow on the circle as a system for its Fourier moments (theory §3.12).

z_k = ∫e^{ikθ}dμ, z_{−k} = z̄_k, z_0 = 1, R = |z_1|. Unnormalised flow with B = V = I:

    z_n' = (n/2) Σ_{k≥1} c_k (z_k z_{n−k} − z̄_k z_{n+k}),   c_k = 2kI_k(β)/β.

The c_k are the sine coefficients of e^{β cos s}sin s, for any real β; c_k(−β) = (−1)^{k+1}c_k(β).
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Complex, Float
from numpy.typing import ArrayLike
from scipy import integrate, special

from tokenfield.errors import InputError, as_whole, require
from tokenfield.theory.inputs import check_exponent, finite, times

#: The last moments must stay below this: beyond them everything is taken as 0.
LARGEST_LAST_MOMENT = 1e-8
#: Harmonics of the interaction below this, relative to the first, are left out.
SMALLEST_HARMONIC = 1e-17


def circle_moments(density: Callable[[np.ndarray], ArrayLike], modes: int) -> Complex[np.ndarray, "k"]:
    """z_0 … z_modes of a density on the circle, normalised to z_0 = 1; by the trapezoidal rule."""
    modes = as_whole(modes, "modes", 1)
    size = 8 * modes + 64
    values = np.asarray(density(2 * np.pi * np.arange(size) / size), dtype=float)
    z = np.conj(np.fft.rfft(values))[: modes + 1]
    return z / z[0].real


def moment_slope(z: Complex[np.ndarray, "k"], beta: float) -> Complex[np.ndarray, "k"]:
    """z_n' (N+1,) for the moments z_0 … z_N of a law, any real β; moments beyond N count as 0."""
    return _slope(np.asarray(z, dtype=complex), _interaction(finite(beta, "beta"), len(z) - 1))


def fourier_moments(
    ts: ArrayLike, z0: Complex[np.ndarray, "k"], beta: float, rtol: float = 1e-11
) -> Complex[np.ndarray, "times k"]:
    """The moments z_0 … z_N at the times ts, from z0 at time 0.

    A cluster of width s has moments up to N ≈ 6/s: refused if the last ones grew beyond 1e-8, since what lies
    beyond them is then missing.

    Args:
        ts: increasing times (times,), the first at 0 or later.
        z0: moments z_0 … z_N at time 0 (N+1,), z_0 = 1.
        beta: inverse temperature, any real number up to |β| = 700.
        rtol: relative tolerance of the integration.

    Returns:
        The moments (times, N+1).
    """
    ts, z0 = times(ts), np.asarray(z0, dtype=complex)
    require(
        z0.ndim == 1 and len(z0) >= 2 and abs(z0[0] - 1) < 1e-12,
        "z0",
        "be moments z_0 … z_N with z_0 = 1 and N ≥ 1",
        z0,
    )
    c = _interaction(finite(beta, "beta"), len(z0) - 1)
    if ts[-1] == 0:
        return np.stack([z0] * len(ts))
    solved = integrate.solve_ivp(
        lambda _, z: _slope(z, c), (0.0, ts[-1]), z0, "DOP853", ts, rtol=rtol, atol=1e-15
    )
    out = solved.y.T
    last = float(np.max(np.abs(out[:, -max(1, len(z0) // 50) :])))
    if last > LARGEST_LAST_MOMENT:
        raise InputError(f"`z0` must have more moments: the last of these {len(z0) - 1} grew to {last:.2g}")
    return out


def order_slope(z: Complex[np.ndarray, "*times k"], beta: float) -> Float[np.ndarray, "*times"]:
    """d/dt R² = 2 Re(z̄_1 z_1') of a law with these moments."""
    z = np.asarray(z, dtype=complex)
    rows = z.reshape(-1, z.shape[-1])
    slopes = [2 * (np.conj(row[1]) * moment_slope(row, beta)[1]).real for row in rows]
    return np.array(slopes).reshape(z.shape[:-1])


def _interaction(beta: float, modes: int) -> Float[np.ndarray, "k"]:
    """c_1, c_2, … as far as they matter; β = 0 leaves c_1 = 1."""
    if beta == 0:
        return np.ones(1)
    check_exponent(abs(beta), "take a smaller |beta|")
    k = np.arange(1, modes + 1)
    c = 2 * k * special.iv(k, beta) / beta
    return c[np.abs(c) > SMALLEST_HARMONIC * c[0]]


def _slope(z: np.ndarray, c: np.ndarray) -> np.ndarray:
    n, K = len(z) - 1, len(c)
    padded = np.concatenate([np.conj(z[K:0:-1]), z, np.zeros(K)])  # z_{−K} … z_{N+K}
    weighted = c * z[1 : K + 1]
    kernel = np.concatenate([-np.conj(weighted[::-1]), [0], weighted])  # z_{n−k} for k = −K … K
    return 0.5 * np.arange(n + 1) * np.convolve(padded, kernel, "valid")
