"""Orthonormal polynomials of the height t = ⟨x, e⟩ under the uniform law of the sphere in R^d (Gegenbauer).

The height has the density ∝ (1−t²)^{(d−3)/2}; p_l is the zonal harmonic of degree l, with −Δp_l = l(l+d−2)p_l
and t p_l = a_{l+1}p_{l+1} + a_l p_{l−1}, a_l² = l(l+d−3)/((2l+d−2)(2l+d−4)), a_1² = 1/d.
"""

import numpy as np
from jaxtyping import Float
from scipy.linalg import eigvalsh_tridiagonal


def gauss(d: int, count: int) -> tuple[Float[np.ndarray, "count"], Float[np.ndarray, "count"]]:
    """Nodes, rising, and weights of sum 1 that integrate polynomials of degree 2·count − 1 in the height.

    `d`: dimension of the surrounding space; on the sphere of R^1, two points, the nodes are −1 and 1.
    """
    if d == 1:
        return np.array([-1.0, 1.0]), np.array([0.5, 0.5])
    nodes = np.zeros(1)
    if count > 1:
        nodes = np.asarray(eigvalsh_tridiagonal(np.zeros(count), _recurrence(d, count - 1)))
    nodes = (nodes - nodes[::-1]) / 2  # symmetric to the last digit
    # from the polynomials rather than from eigenvectors, which lose the tiny weights of high dimensions
    weights = 1 / np.sum(harmonics(d, count - 1, nodes)[0] ** 2, axis=1)
    return nodes, weights / weights.sum()


def harmonics(
    d: int, degree: int, t: Float[np.ndarray, "m"]
) -> tuple[Float[np.ndarray, "m L"], Float[np.ndarray, "m L"]]:
    """Orthonormal polynomials p_l(t) and their derivatives p_l'(t) for l = 0..degree, by the recurrence.

    Args:
        d: dimension of the surrounding space, d ≥ 2.
        degree: the greatest l, at least 0.
        t: heights (m,), in [−1, 1].

    Returns:
        Values and slopes, each (m, degree + 1).
    """
    a = np.append(0.0, _recurrence(d, degree))
    p, dp = np.zeros((2, degree + 1, len(t)))
    p[0] = 1.0
    for l in range(degree):  # noqa: E741
        below, slope = (p[l - 1], dp[l - 1]) if l else (0.0, 0.0)
        p[l + 1] = (t * p[l] - a[l] * below) / a[l + 1]
        dp[l + 1] = (p[l] + t * dp[l] - a[l] * slope) / a[l + 1]
    return p.T, dp.T


def _recurrence(d: int, count: int) -> np.ndarray:
    """a_1 to a_count."""
    k = np.arange(2, count + 1)
    rest = k * (k + d - 3) / ((2 * k + d - 2) * (2 * k + d - 4))
    return np.sqrt(np.append(1 / d, rest))[:count]
