"""The examples of 2504.14697 as tokens or densities (theory §3.6, 3.9, 3.10, 3.12; reconstructions)."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from scipy import special

from tokenfield.errors import as_whole, require
from tokenfield.laws.tokens import Tokens
from tokenfield.theory.inputs import arc, check_exponent, finite, fraction

Profile = Literal["A", "B", "C"]


def near_dirac(eps: float, d: int = 2) -> Tokens:
    """Example 2.2: (1−ε)δ_x + εδ_{−x}, x = e_1, at rest though it is no maximum.

    Its geodesic W2 distance to δ_x is π√ε: no Łojasiewicz inequality holds in a W2 ball about a Dirac.
    """
    eps = fraction(eps, "eps")
    x = np.zeros((2, as_whole(d, "d", 2)))
    x[:, 0] = [1, -1]
    return Tokens(x, [1 - eps, eps])


def near_dirac_deficit(eps: float, beta: float) -> float:
    """E_max − E of `near_dirac`: ε(1−ε)(e^β−e^{−β})/β, even in β; 2ε(1−ε) at β = 0."""
    eps, beta = fraction(eps, "eps"), finite(beta, "beta")
    check_exponent(abs(beta), "take a smaller |beta|")
    return float(eps * (1 - eps) * (2 if beta == 0 else 2 * np.sinh(beta) / beta))


def three_atoms(xi: float) -> Tokens:
    """Example 2.5 (Figure 1): atoms at ±a of mass (1−m)/2 and at π of mass m on the circle, m = (1−ξ)/4,
    cos a = (1+ξ)/2.

    R_0 = (1−m)cos a − m exceeds ξ, and yet the limit is (1−m)δ_0 + mδ_π, R = 1−2m: a large order parameter
    does not make tokens synchronise. The symmetric limit is unstable: rounding leaves it near t = 35e^β.
    """
    xi = fraction(xi, "xi")
    m, c = (1 - xi) / 4, (1 + xi) / 2
    s = np.sqrt((1 - c) * (1 + c))
    return Tokens([[c, s], [c, -s], [-1.0, 0.0]], [(1 - m) / 2, (1 - m) / 2, m])


def two_arcs(n: int, p: float, w: float) -> Tokens:
    """Example 2.6 (Figure 2): mass p uniform on |θ| ≤ w and 1−p on |θ−π| ≤ w, as 2n Gauss–Legendre tokens.

    For β > `critical_beta(p, w)` both arcs keep their tokens and R → |p−q|; at small β they synchronise. The
    points are symmetric about the axis in every bit: token i of an arc mirrors token n−1−i.

    Args:
        n: tokens in each arc, at least 1.
        p: mass of the arc about 0, between 0 and 1.
        w: half-width of both arcs, between 0 and π/4.

    Returns:
        The tokens, those of the arc about 0 first.
    """
    as_whole(n, "n", 1)
    p, w = fraction(p, "p"), arc(w)
    nodes, weights = np.polynomial.legendre.leggauss(n)
    theta = w * (nodes - nodes[::-1]) / 2
    points = np.stack(
        [(np.cos(theta) + np.cos(theta[::-1])) / 2, (np.sin(theta) - np.sin(theta[::-1])) / 2], axis=1
    )
    share = (weights + weights[::-1]) / 4
    return Tokens(np.concatenate([points, -points]), np.concatenate([p * share, (1 - p) * share]))


def profile(name: Profile) -> Callable[[np.ndarray], np.ndarray]:
    """Densities on the circle whose R² is not monotone at β = 0.1 (Figure 4), functions of θ with integral 1.

    A: 2πf = 1+.008cosθ+.56cos2θ+.56cos3θ; B: 2πf = 1+.006cosθ+.003sinθ+.56cos2θ+.56cos3θ;
    C: .499·VonMises(0, 50) + .501·VonMises(π−10⁻⁴, 5).
    """
    require(name in ("A", "B", "C"), "name", "be 'A', 'B' or 'C'", repr(name))

    def density(theta: np.ndarray) -> np.ndarray:
        theta = np.asarray(theta, dtype=float)
        if name == "C":
            return 0.499 * _von_mises(theta, 50.0) + 0.501 * _von_mises(theta - (np.pi - 1e-4), 5.0)
        tilt = 0.008 * np.cos(theta) if name == "A" else 0.006 * np.cos(theta) + 0.003 * np.sin(theta)
        return (1 + tilt + 0.56 * np.cos(2 * theta) + 0.56 * np.cos(3 * theta)) / (2 * np.pi)

    return density


def _von_mises(theta: np.ndarray, kappa: float) -> np.ndarray:
    return np.exp(-2 * kappa * np.sin(theta / 2) ** 2) / (2 * np.pi * special.ive(0, kappa))
