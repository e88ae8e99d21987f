"""How far a softmax mean may be from its maximiser if only a floor of the density is known (theory §2.9b).

A law μ on the sphere of R^d has the floor m if μ ≥ m·(uniform law). At a query with the direction
u = Bᵀx/|Bᵀx| and the sharpness s = β|Bᵀx| the softmax mean ȳ weighs y by e^{s⟨u,y⟩}, which is a Gaussian
e^{−s|y−u|²/2} around u, and

    |ȳ − u|² ≤ E|y − u|²,   E|y − ȳ|² ≤ E|y − u|².

`split_moment` bounds the right side as the proof does; `worst_moment` is its greatest value over all laws
with that floor. Both take log m, since a floor along a flow soon underflows, and both fall as s grows: the
query with the least |Bᵀx| is the worst.
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import special

from tokenfield.theory.concentration import laplace_gap

#: Two points of the sphere are at most this far apart, squared.
DIAMETER_SQUARED = 4.0
#: From this s/d² on, two terms of the expansion of the Bessel function for large s are exact to rounding.
LARGE_SHARPNESS = 1e8


def log_peak(s: ArrayLike, d: int) -> Float[np.ndarray, "..."]:
    """log κ_d(s), κ_d(s) = ∫e^{s⟨u,y⟩−s}dσ(y) = Γ(d/2)(2/s)^{d/2−1}I_{d/2−1}(s)e^{−s}, σ uniform, s > 0."""
    s, order = np.asarray(s, float), d / 2 - 1
    # Hankel's expansion where SciPy's Bessel function gives up; its next term is rounding
    large = s > LARGE_SHARPNESS * d**2
    inside = np.where(large, 1.0, s)
    with np.errstate(divide="ignore"):
        value = np.log(special.ive(order, inside))
    value = np.where(large, -np.log(2 * np.pi * s) / 2 - (4 * order**2 - 1) / (8 * s), value)
    common = special.gammaln(d / 2) + order * np.log(2 / s) + value
    return np.where(np.isfinite(value), common, _log_small_peak(np.minimum(s, d), d))


def _log_small_peak(s: np.ndarray, d: int) -> np.ndarray:
    """Where the Bessel function underflows: s is small against d, and its power series is short."""
    term = total = np.ones_like(s)
    for k in range(1, 60):
        term = term * (s / 2) ** 2 / (k * (d / 2 + k - 1))
        total = total + term
    return np.log(total) - s


def split_moment(s: ArrayLike, d: int, log_floor: ArrayLike) -> Float[np.ndarray, "..."]:
    """The bound of E|y − u|² that the proof has, (2/s)(1 + log(2s/(m κ_d(s)))).

    Within the radius a, a² = (2/s)log(2s/(mκ)), |y − u| is at most a; beyond it the weight is at most
    e^{−sa²/2}, against a total of at least mκ, and |y − u|² ≤ 4 leaves 2/s. This needs a² ≥ 0, for which
    2s ≥ m is enough; for warmer queries, and where it is worse than that, the bound is 4. It falls in s: with
    A = I_{d/2}/I_{d/2−1}, which grows, −log κ = ∫_0^s(1 − A) ≥ s(1 − A), and s²/2 times the derivative is
    s(1 − A) − log(2s/(mκ)) ≤ −log(2s/m).

    Args:
        s: β|Bᵀx|, positive; any shape.
        d: dimension of the surrounding space, at least 2.
        log_floor: log m ≤ 0, of a shape that fits.

    Returns:
        A bound between 0 and 4, of the common shape.
    """
    s, log_floor = np.broadcast_arrays(np.asarray(s, float), np.asarray(log_floor, float))
    inside = 1 + np.log(2 * s) - log_floor - log_peak(s, d)
    return np.where(np.log(2 * s) < log_floor, DIAMETER_SQUARED, np.minimum(2 / s * inside, DIAMETER_SQUARED))


def worst_moment(s: ArrayLike, d: int, log_floor: ArrayLike) -> Float[np.ndarray, "..."]:
    """The greatest E|y − u|² of all laws with the floor m, in closed form [derived for this project].

    μ = mσ + (1−m)ν, and a quotient of two functions that are linear in ν is greatest at a point mass. At one
    with |y − u|² = q it is stationary where q = E + 2/s, which is solved by Lambert's W:

        E = (2/s)(g + W((1−m)e^{−1−g}/(m κ_d(s)))),   g = s(1 − A_d(s)),

    unless that q is beyond the antipode, where q = 4 is taken. m = 1 gives 2(1 − A), which is exact. As s
    grows E falls, for every law: its derivative is −2·(variance of ⟨u, y⟩).

    Args:
        s: β|Bᵀx|, positive; any shape.
        d: dimension of the surrounding space, at least 2.
        log_floor: log m ≤ 0, of a shape that fits.

    Returns:
        The greatest value, between 0 and 4, of the common shape.
    """
    s, log_floor = np.broadcast_arrays(np.asarray(s, float), np.asarray(log_floor, float))
    gap = laplace_gap(s, d)
    # the odds of the point mass against the floor, without their factor e^{−sq/2}
    with np.errstate(divide="ignore"):
        odds = np.log(-np.expm1(log_floor)) - log_floor - log_peak(s, d)
    z = odds - 1 - s * gap
    # W(e^z) is Wright's omega function of z, which does not overflow; it wants no infinite argument
    lambert = np.where(np.isneginf(z), 0.0, special.wrightomega(np.where(np.isneginf(z), 0.0, z)))
    inner = 2 * gap + 2 / s * lambert
    share = special.expit(odds - s * DIAMETER_SQUARED / 2)
    antipode = 2 * gap * (1 - share) + DIAMETER_SQUARED * share
    return np.where(inner + 2 / s > DIAMETER_SQUARED, antipode, inner)
