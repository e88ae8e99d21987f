"""Noise against attention: where the uniform law gives way, and how (2604.16288, 2606.05140; theory §4).

Tokens obey dx = v dt + √(2/κ) dW, v the unnormalised velocity for B = V = I; their law obeys
∂_tμ = κ^{−1}Δμ − div(μv). Diffusion damps a harmonic of degree l at l(l+d−2)/κ, attention feeds it at
l(l+d−2)λ_l/β: the uniform law is stable for κ < κ_1.
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import optimize, special

from tokenfield.errors import as_whole, require
from tokenfield.theory.growth import growth_rate
from tokenfield.theory.inputs import finite


def critical_kappa(d: int, beta: float, degree: ArrayLike = 1) -> Float[np.ndarray, "*degrees"]:
    """κ_l = β/λ_l, from which harmonics of degree l grow on the uniform law.

    For l = 1 it tends to d as β → 0. It is infinite, no κ makes them grow, for l > 1 at β = 0 and for even l
    under β < 0; for odd l it is that of |β|.

    Args:
        d: dimension of the surrounding space, d ≥ 2.
        beta: inverse temperature, any real number.
        degree: degrees l ≥ 1, one or an array of any shape.

    Returns:
        κ_l, of the shape of `degree`.
    """
    rate = np.maximum(growth_rate(d, beta, degree, "unnormalised"), 0.0)
    degrees = np.asarray(degree, dtype=float)
    with np.errstate(divide="ignore"):
        return degrees * (degrees + d - 2) / rate


def transition_beta(d: int) -> float:
    """β_*, at which I_{d/2+1}(β)/I_{d/2}(β) = 1/d: the transition at κ_1 is continuous below it.

    2.4469183 for d = 2, 1.8161545 for d = 3. Above β_* the branch leaves backwards and the order parameter
    jumps. For β < 0 the ratio is negative, and the transition continuous.
    """
    d = as_whole(d, "d", 2)
    gap = lambda beta: special.ive(d / 2 + 1, beta) / special.ive(d / 2, beta) - 1 / d  # noqa: E731
    # the ratio lies between β/(d+2+β) and β/(d+2): the root lies in this interval
    low, high = (d + 2) / d, (d + 2) / (d - 1)
    return float(optimize.brentq(gap, low * (1 - 1e-9), high, xtol=1e-14))  # pyright: ignore[reportArgumentType]


def noisy_order(kappa: float, d: int) -> float:
    """R of the stationary law at β = 0: R = I_{d/2}(κR)/I_{d/2−1}(κR) for κ > d, else 0."""
    d = as_whole(d, "d", 2)
    kappa = finite(kappa, "kappa")
    require(kappa > 0, "kappa", "be positive", kappa)
    if kappa <= d:
        return 0.0
    gap = lambda R: special.ive(d / 2, kappa * R) / special.ive(d / 2 - 1, kappa * R) - R  # noqa: E731
    # I_{d/2}/I_{d/2−1}(z) ≥ z/d − z³/(d²(d+2)): the root lies above that of the bound
    low = 0.9 * d * np.sqrt((d + 2) * (kappa / d - 1) / kappa**3)
    return float(optimize.brentq(gap, low, 1.0, xtol=1e-15))  # pyright: ignore[reportArgumentType]
