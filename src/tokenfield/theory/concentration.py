"""How fast tokens concentrate at zero temperature, and how far a finite one is from that (2605.10931).

`concentration_rates` says how fast the law gets to its limit (spectral.py), and `laplace_gap` how far a
finite temperature is from zero temperature for the uniform law.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from tokenfield.errors import InputError, as_number, as_whole, require
from tokenfield.laws.tokens import as_real
from tokenfield.models.weights import AttentionWeights
from tokenfield.theory.spectral import EIGENVALUE_TOLERANCE, Limit, limit

#: Terms of the continued fraction of `laplace_gap`; the slowest case, s near 10 in the plane, needs 60.
CONTINUED_FRACTION_TERMS = 100
#: From this s on `laplace_gap` is (d − 1)/(2s) to rounding, for d up to 1e4.
LARGEST_FINITE_S = 1e20


@dataclass(frozen=True)
class ConcentrationRates:
    """Exponents of the approach to the limit law; see `concentration_rates`.

    `approach`: c. `escape`: κ. `dimension`: k = dim E. `saddles`: for each lower eigenspace, downwards, the
    rate at which mass leaves its neighbourhood; the first is kκ. `p`: of W_p. `rate`: of W_p. `tied`:
    whether the least exponent occurs twice; then W_p has an extra power of t if |Bᵀe| is constant there.
    """

    approach: float
    escape: float
    dimension: int
    saddles: tuple[float, ...]
    p: float
    rate: float
    tied: bool


def concentration_rates(
    weights: AttentionWeights, p: float = 2.0, tolerance: float = EIGENVALUE_TOLERANCE
) -> ConcentrationRates:
    """Sharp exponential rate of W_p(μ_t, Π♯ρ0) under the zero-temperature flow, ρ0 > 0 and continuous.

    Eigenspaces E_1 = E, E_2, … of D with eigenvalues λ1 > λ2 > …, dimensions k_j, and slowness
    b_j = max |Bᵀe| over unit e in E_j: near E_j one unit of τ takes b_j units of t at the slowest place.

    - A token near E approaches it at c = (λ1−λ2)/b_1.
    - A token at distance ε from the complement of E sits near E_2 first, and leaves it at κ = (λ1−λ2)/b_2.
    - Mass leaves the neighbourhood of E_j at the sum of the unstable rates there,
      K_j = Σ_{i<j} k_i(λ_i−λ_j)/b_j; K_2 = k_1 κ.

    A token may spend τ_j near each E_j; the mass of such tokens times (distance)^p is
    exp(−p(λ1−λ2)τ_1 − Σ_{j≥2} K_j b_j τ_j) under t = Σ b_j τ_j, and a linear function is least at a corner:

        rate of W_p = min(c, K_2/p, K_3/p, …).

    The deeper K_j matter only if some b_j is large: for B = I they grow with j. When two of the terms tie
    and |Bᵀe| is constant on their eigenspaces, W_p has an extra factor t^{1/p} (B = I, k = p = 1 always ties:
    on the circle W_1 ≈ (2/π)(gt+1)e^{−gt}, g = λ1−λ2). If |Bᵀe| is not constant on the slowest eigenspace,
    W_p has a factor t^{−m/(2p)}, m the number of directions in which |Bᵀe| falls off from its maximum: fit
    t^q e^{−rt} there, a pure exponential is off by q/t.

    D need not be symmetric: real eigenvalues that are not defective, and below the dominant one single
    complex pairs (their b is the mean of |Bᵀx| over the turn), are covered; others are refused.

    Args:
        weights: one head, B and V (d, d).
        p: of W_p, at least 1 and finite.
        tolerance: real parts of eigenvalues closer than this, relative to ‖D‖, count as one.

    Returns:
        The rate of W_p and the exponents it is made of.
    """
    p = as_number(p, "p")
    require(1 <= p < np.inf, "p", "be at least 1 and finite", p)
    top = limit(weights, tolerance)
    require(
        top.kind == "fixed",
        "weights",
        "have a limit of kind 'fixed' to have exponential rates",
        f"'{top.kind}' ({top.note})",
    )
    levels = [top]
    while levels[-1].lower is not None:
        levels.append(levels[-1].lower)
    B = np.asarray(weights.stacked()[0][0])
    slow = [_slowness(level, B) for level in levels]
    real = [float(np.real(level.eigenvalue)) for level in levels]
    size = [level.dimension for level in levels]
    saddles = tuple(
        _ratio(sum(size[i] * (real[i] - real[j]) for i in range(j)), slow[j]) for j in range(1, len(levels))
    )
    approach = top.gap / slow[0]
    exponents = np.sort([approach, *(s / p for s in saddles)])
    tied = len(exponents) > 1 and exponents[1] < np.inf and exponents[1] - exponents[0] <= 1e-9 * exponents[1]
    escape = saddles[0] / size[0] if saddles else np.inf
    return ConcentrationRates(
        float(approach),
        escape,
        size[0],
        saddles,
        p,
        float(exponents[0]),
        bool(tied and np.isfinite(exponents[0])),
    )


def laplace_gap(beta: ArrayLike, d: int, norm: ArrayLike = 1.0) -> Float[np.ndarray, "..."]:
    """|softmax mean − Bᵀx/|Bᵀx|| for the uniform law on the sphere of R^d; `norm` is |Bᵀx|.

    Exactly 1 − I_{d/2}(s)/I_{d/2−1}(s) with s = β|Bᵀx|, which is (d−1)/(2s) + O(s^{−2}): better than the
    √(log(β+1)/β) of the theorem (`laplace_envelope`). Greatest over x at the smallest singular value of B.
    Full relative accuracy from β = 0 (gap 1) to infinity (gap 0), by a continued fraction for the ratio whose
    leading terms cancel on paper. β < 0 is refused: its limit β → −∞ is −Bᵀx/|Bᵀx|, so that the gap is that
    of |β| and −B.

    Args:
        beta: inverse temperatures, at least 0, infinity included; any shape.
        d: dimension of the surrounding space, d ≥ 2.
        norm: |Bᵀx|, at least 0; of a shape that fits that of `beta`.

    Returns:
        The gap between 0 and 1, of the common shape.
    """
    as_whole(d, "d", 2)
    beta, norm = _temperature(beta), _at_least_zero(norm, "norm", "be at least 0")
    try:
        beta, norm = np.broadcast_arrays(beta, norm)
    except ValueError:
        raise InputError(
            f"`norm` must fit the shape of beta, {beta.shape}, but was of shape {norm.shape}"
        ) from None
    require(not np.any(np.isinf(beta) & (norm == 0)), "beta", "be finite where `norm` is 0", "infinite")
    require(not np.any(np.isinf(norm) & (beta == 0)), "norm", "be finite where `beta` is 0", "infinite")
    with np.errstate(over="ignore"):
        s = beta * norm
    # A = s/(d + s − r), r = (d+1)s/(d+1+2s − (d+3)s/(d+2+2s − …)); then 1 − A = (d − r)/(d + s − r)
    near = np.minimum(s, LARGEST_FINITE_S)
    r = np.zeros_like(near)
    for n in range(CONTINUED_FRACTION_TERMS, 0, -1):
        r = (d + 2 * n - 1) * near / (d + n + 2 * near - r)
    return np.where(
        s > LARGEST_FINITE_S, (d - 1) / 2 / np.maximum(s, LARGEST_FINITE_S), (d - r) / (d + near - r)
    )


def laplace_envelope(beta: ArrayLike) -> Float[np.ndarray, "..."]:
    """√(log(β+1)/β), the β-dependence of the theorem's Laplace principle; 1 at β = 0, 0 at infinity."""
    beta = _temperature(beta)
    inside = np.where((beta > 0) & (beta < np.inf), beta, 1.0)
    return np.where(beta == 0, 1.0, np.where(np.isinf(beta), 0.0, np.sqrt(np.log1p(inside) / inside)))


def _slowness(level: Limit, B: np.ndarray) -> float:
    """Time t that one unit of τ takes near the level's eigenspace, at its slowest place."""
    if level.kind == "fixed":
        return float(np.linalg.norm(B.T @ level.basis, 2))
    if level.period is None or level.period.t is None:
        raise InputError(
            "`weights` must have a D whose lower eigenvalues are not defective and whose complex pairs are"
            f" single, but was {level.note}; a smaller `tolerance` tells close eigenvalues apart"
        )
    return level.period.t / level.period.tau


def _ratio(rate: float, slow: float) -> float:
    return rate / slow if slow > 0 else np.inf


def _temperature(beta: ArrayLike) -> np.ndarray:
    return _at_least_zero(beta, "beta", "be at least 0 (a negative one is |beta| with −B)")


def _at_least_zero(value: ArrayLike, name: str, must: str) -> np.ndarray:
    array = np.asarray(as_real(np.asarray(value), name))
    require(bool(np.all(array >= 0)), name, must, array[~(array >= 0)][:1])
    return array
