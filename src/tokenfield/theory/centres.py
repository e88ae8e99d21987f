"""Rényi centres: the tokens that causal attention gathers the others around (2411.04990; theory §6.1.6).

Tokens arrive in their order. A *centre* is farther than δ from all earlier centres, a *strong centre* from
all earlier tokens (so that it is a centre as well); distances are angles. The paper takes δ = 4/√β. For
independent uniform tokens the expected number of strong centres is a geometric sum; that of centres is random
sequential adsorption, on the circle Rényi's parking problem: cars of length δ on a ring of length 2π.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from numpy.polynomial import Chebyshev
from numpy.typing import ArrayLike
from scipy import integrate, special

from tokenfield.errors import as_number, as_whole, require
from tokenfield.laws.tokens import as_real

#: Cars that fit on a ring beyond which it is as good as infinite: the error is below 1e-13.
LONG_RING = 16.0
#: Cars that must fit for the kinetics of the infinite line to hold on the ring, up to 3e-6.
LEAST_RING = 8.0
#: Degree of the polynomials, one for each unit of length, of the recursion for short rings.
DEGREE = 24


class RenyiCentres(NamedTuple):
    """Places in the order, from 0, of the centres and of the strong centres among them."""

    centres: Int[np.ndarray, "m"]
    strong: Int[np.ndarray, "k"]


def renyi_centres(x: ArrayLike, delta: float) -> RenyiCentres:
    """Centres and strong centres of tokens in their order.

    Args:
        x: tokens (n, d) of norm 1, the first one to come first.
        delta: angle that centres keep from each other, between 0 and π.

    Returns:
        Their places in the order; the first token is always a strong centre.
    """
    x, reach = np.asarray(as_real(x, "x")), 2 * np.sin(_angle(delta) / 2)
    right = x.ndim == 2 and len(x) > 0
    require(right, "x", "have shape (n, d) with n ≥ 1", f"of shape {x.shape}")
    centres: list[int] = []
    for i, token in enumerate(x):
        if np.all(((x[centres] - token) ** 2).sum(axis=1) > reach**2):
            centres.append(i)
    strong = [i for i in centres if np.all(((x[:i] - x[i]) ** 2).sum(axis=1) > reach**2)]
    return RenyiCentres(np.array(centres), np.array(strong))


def cap_measure(delta: float, d: int) -> float:
    """Share v of the sphere in R^d within the angle delta of a point: δ/π on the circle, sin²(δ/2) on S²."""
    half = (as_whole(d, "d", 2) - 1) / 2
    return float(special.betainc(half, half, np.sin(_angle(delta) / 2) ** 2))


def expected_strong_centres(delta: float, n: int | None = None, d: int = 2) -> float:
    """Expected number of strong centres of n independent uniform tokens, Σ_{i<n}(1−v)^i = (1−(1−v)^n)/v.

    Args:
        delta: angle, between 0 and π.
        n: number of tokens; None for the limit 1/v.
        d: dimension of the surrounding space.

    Returns:
        The expectation.
    """
    v = cap_measure(delta, d)
    return 1 / v if n is None else float(-np.expm1(as_whole(n, "n", 1) * np.log1p(-v)) / v)


def expected_centres(delta: float, n: int | None = None) -> float:
    """Expected number of centres of independent uniform tokens on the circle.

    Without n it is the jamming limit of infinitely many tokens: Rényi's constant times L = 2π/δ if δ is
    small, 1 + m(L−1) with m(x+1) = 1 + (2/x)∫_0^x m on a short ring. With n it is the number at a Poisson
    number of tokens of mean n, c(nδ/2π)·L with c(τ) = ∫_0^τ exp(−2∫_0^t(1−e^{−u})/u du)dt; a fixed number
    differs by about L²/3n². Jamming is only reached like 1/n.

    Args:
        delta: angle, between 0 and π; with n at most π/4, where the ring is infinite up to 3e-6.
        n: number of tokens, None for infinitely many.

    Returns:
        The expectation.
    """
    ring = 2 * np.pi / _angle(delta)
    if n is None:
        return renyi_constant() * ring if ring > LONG_RING else _short_ring(ring)
    require(ring >= LEAST_RING, "delta", "be at most π/4 for a finite number of tokens", delta)
    return _coverage(as_whole(n, "n", 1) / ring) * ring


def renyi_constant() -> float:
    """Share .7475979… of a long line that is covered when no further car of length 1 fits (Rényi 1958).

    ∫_0^∞ exp(−2 Ein(t))dt with Ein(t) = ∫_0^t(1−e^{−u})/u du = E_1(t) + log t + γ; what is left beyond T,
    e^{−2γ}/T up to e^{−T}, is added.
    """
    far = 40.0
    return float(_coverage(far) + np.exp(-2 * np.euler_gamma) / far)


def _coverage(tau: float) -> float:
    """Share of an infinite line that is covered after τ attempts per car length."""

    def free(t: float) -> float:  # share of the places where a car still fits
        return float(np.exp(-2 * (special.exp1(t) + np.log(t) + np.euler_gamma))) if t > 0 else 1.0

    ends = [0.0, *(t for t in (1.0, 8.0) if t < tau), tau]
    parts = [integrate.quad(free, a, b, epsabs=1e-15, epsrel=1e-13, limit=200)[0] for a, b in pairwise(ends)]
    return float(sum(parts))


def _short_ring(ring: float) -> float:
    """1 + m(ring − 1) for the mean number m(x) of cars that jam an interval of length x, unit by unit.

    m = 0 on [0, 1), 1 on [1, 2); A(x) = ∫_0^x m gives the next unit, m(x+1) = 1 + 2A(x)/x, as a polynomial.
    """
    length, unit = ring - 1, 1
    if length < 1:
        return 1.0
    m = Chebyshev([1.0], domain=[1, 2])
    area = m.integ(lbnd=1)
    while length > unit + 1:
        unit += 1
        m = Chebyshev.interpolate(lambda x, A=area: 1 + 2 * A(x - 1) / (x - 1), DEGREE, [unit, unit + 1])
        area = m.integ(lbnd=unit, k=[area(unit)])
    return float(1 + m(length))


def _angle(delta: float) -> float:
    delta = as_number(delta, "delta")
    require(0 < delta < np.pi, "delta", "lie between 0 and π", delta)
    return delta
