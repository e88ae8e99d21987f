"""Lyapunov exponents of random layers that are known in closed form (theory §6.5.3, §6.8).

Exponents are those of the product of matrices, λ_1 ≥ λ_2 ≥ …; on the sphere tokens see differences of them.
`theory.lyapunov` measures them for any layers.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import optimize, special, stats

from tokenfield.errors import as_number, as_whole, require
from tokenfield.laws.tokens import as_real
from tokenfield.models.weights import as_matrix


def gaussian_layers(d: int) -> Float[np.ndarray, "d"]:
    """Exponents per layer of products of matrices with independent N(0, 1/d) entries (Newman, 1986).

    λ_k = ½[log(2/d) + ψ((d−k+1)/2)]: a column of a Gaussian matrix, seen across k − 1 others, is a vector of
    d − k + 1 independent normal numbers.
    """
    d = as_whole(d, "d", 2)
    return 0.5 * (np.log(2 / d) + special.digamma((d - np.arange(d)) / 2))


def residual_gaussian_layers(d: int, step: float) -> float:
    """λ_1 per layer of products of I + ηG, G with independent N(0, 1) entries.

    |x + ηGx|²/η² has the noncentral χ² law with d degrees of freedom and parameter 1/η², a χ² law with d + 2J
    of them, J Poisson with mean 1/2η²: λ_1 = log η + ½log 2 + ½E ψ(d/2 + J). In the plane ½E_1(1/2η²).
    """
    d = as_whole(d, "d", 2)
    step = as_number(step, "step")
    require(1e-4 <= step < np.inf, "step", "be at least 1e-4 and finite", step)
    mean = 1 / (2 * step**2)
    if d == 2:
        return float(special.exp1(mean) / 2)
    spread = 12 * np.sqrt(mean) + 60  # beyond, Poisson weights are below rounding
    J = np.arange(max(0, int(mean - spread)), int(mean + spread) + 1)
    # log(mean) inside the expectation: the logarithms nearly cancel for small steps
    return float(0.5 * stats.poisson.pmf(J, mean) @ (special.digamma(d / 2 + J) - np.log(mean)))


def isotropic_flow(d: int, sigma: float = 1.0) -> Float[np.ndarray, "d"]:
    """Exponents per unit of time of dX = σ dW X (Itô), W a d × d matrix of Brownian motions.

    λ_k = σ²(d − 2k)/2. Tokens on the sphere see λ_k − λ_1 = −(k−1)σ² and end at ±p.

    Args:
        d: dimension, at least 2.
        sigma: strength of the noise.
    """
    d = as_whole(d, "d", 2)
    return _strength(sigma) ** 2 * (d - 2 * np.arange(1, d + 1)) / 2


class BinghamExponents(NamedTuple):
    """`first`: λ_1; `total`: the sum of all exponents; `gap`: λ_1 − λ_2, which is known in the plane only."""

    first: float
    total: float
    gap: float | None


def bingham_layers(V: ArrayLike, sigma: float) -> BinghamExponents:
    """Exponents per unit of time of dX = V X dt + σ dW X (Itô), V symmetric.

    The direction of a token has the stationary law of Bingham, ∝ e^{⟨x,Vx⟩/σ²}; λ_1 = E⟨x,Vx⟩ + σ²(d−2)/2 and
    Σλ = tr V − σ²d/2.

    Args:
        V: the symmetric mean of the layers, (d, d).
        sigma: strength of the noise, positive.
    """
    matrix, variance = np.asarray(as_matrix(V, "V")), _strength(sigma) ** 2
    require(matrix.ndim == 2, "V", "be one matrix", f"of shape {matrix.shape}")
    off = np.max(np.abs(matrix - matrix.T))
    require(bool(off <= 1e-12 * np.max(np.abs(matrix))), "V", "be symmetric", f"off by {off:g}")
    values, d = np.linalg.eigvalsh(matrix), len(matrix)
    first = float(values @ bingham_moments(values / variance) + variance * (d - 2) / 2)
    total = float(values.sum() - variance * d / 2)
    return BinghamExponents(first, total, 2 * first - total if d == 2 else None)


def bingham_moments(exponents: ArrayLike) -> Float[np.ndarray, "d"]:
    """E x_i² of the law ∝ e^{Σ s_i x_i²} on the sphere, (d,).

    With c(s) = ∫e^{Σ s_i x_i²} ∝ (1/2πi)∮ e^z Π(z − s_i)^{−1/2} dz round all s_i, E x_i² = ∂_i log c. The
    trapezoidal rule with N nodes on a parabola (Weideman and Trefethen, 2007) has errors e^{−2πN/3}.
    """
    s = np.asarray(as_real(exponents, "exponents"))
    require(s.ndim == 1 and s.size >= 2, "exponents", "be a list of d ≥ 2 numbers", f"of shape {s.shape}")
    s = s - s.max()
    # the vertex of the parabola, πN/12, stays near the saddle of the integrand, so that little cancels
    saddle = optimize.brentq(lambda z: 0.5 * np.sum(1 / (z - s)) - 1, 0.5 * (1 - 1e-9), s.size)
    N = max(32, int(np.ceil(12 * saddle / np.pi)))  # pyright: ignore[reportOperatorIssue]
    u = (np.arange(-N, N) + 0.5) * 3 / N
    vertex = np.pi * N / 12
    z, slope = vertex * (1 + 1j * u) ** 2, 1 + 1j * u
    from_each = z[:, None] - s
    integrand = np.exp(z - vertex - 0.5 * np.sum(np.log(from_each / vertex), axis=1)) * slope
    return np.real(integrand @ (0.5 / from_each)) / np.real(np.sum(integrand))


def _strength(sigma: float) -> float:
    sigma = as_number(sigma, "sigma")
    require(0 < sigma < np.inf, "sigma", "be positive and finite", sigma)
    return sigma
