"""The surface C1 √(log(β+1)/β) e^{Ct} + C2 e^{−ct} over β and t: its fit to data, and the least one above.

It is the right-hand side of the low-temperature theorem; `fit_bound` compares it with measurements.
"""

import itertools

import numpy as np
from jaxtyping import Float
from scipy import optimize

from tokenfield.theory.concentration import laplace_envelope

#: Exponents and logarithms of amplitudes beyond these leave the range of doubles.
MAX_EXPONENT, MAX_LOG_AMPLITUDE = 600.0, 650.0

Vector = Float[np.ndarray, "k"]
Surface = Float[np.ndarray, "betas times"]


def terms(betas: Vector, ts: Vector, C: float, c: float) -> tuple[Surface, Surface]:
    """Both terms, without C1 and C2.

    Args:
        betas: (betas,), infinity allowed.
        ts: (times,).
        C: rate at which the first grows.
        c: rate at which the second falls.

    Returns: √(log(β+1)/β) e^{Ct} and e^{−ct}, each (betas, times).
    """
    grow = laplace_envelope(betas)[:, None] * np.exp(C * ts)
    return grow, np.broadcast_to(np.exp(-c * ts), grow.shape)


def fit_surface(
    betas: Vector, ts: Vector, W: Surface, known: np.ndarray
) -> tuple[tuple[float, float, float, float], float]:
    """Least squares in log W over log C1, log C2, C, c, the best of several starts.

    Args:
        betas: (betas,), infinity allowed.
        ts: (times,), best in units of their length.
        W: measurements, (betas, times).
        known: where there are any, (betas, times).

    Returns: C1, C2, C and c, and the root mean square of the residuals of log W.
    """
    with np.errstate(divide="ignore"):
        envelope = np.log(laplace_envelope(betas))[:, None]  # −∞ at β = ∞: no first term
    target = np.log(W[known])

    def miss(q: np.ndarray) -> np.ndarray:
        surface = np.logaddexp(q[0] + envelope + q[2] * ts, q[1] - q[3] * ts)
        return surface[known] - target

    # e^{Ct} shall stay within range, and e^{−ct} be seen at two times or more
    steepest = MAX_EXPONENT / np.min(np.diff(np.unique(ts)))
    largest = np.array([MAX_LOG_AMPLITUDE, MAX_LOG_AMPLITUDE, MAX_EXPONENT, steepest])
    bounds = (np.array([-MAX_LOG_AMPLITUDE, -MAX_LOG_AMPLITUDE, 0, 0]), largest)
    middle = float(np.median(target))
    starts = itertools.product((middle, middle - 3), (0.3, 3.0, 12.0), np.geomspace(0.3, 0.01 * steepest, 4))
    solved = [
        optimize.least_squares(miss, [first, middle + 1, C, c], bounds=bounds, x_scale="jac")
        for first, C, c in starts
    ]
    best = min(solved, key=lambda s: s.cost)
    first, second, C, c = (float(v) for v in best.x)
    misfit = float(np.sqrt(2 * best.cost / len(target)))
    return (float(np.exp(first)), float(np.exp(second)), C, c), misfit


def least_above(grow: Vector, fall: Vector, W: Vector) -> tuple[float, float]:
    """The least C1, C2 ≥ 0 with C1·grow + C2·fall ≥ W everywhere, in the mean of the quotient.

    A linear programme in two unknowns, whose coefficients may differ by more powers of ten than solvers bear:
    the best is at a corner, where two neighbours of the lower left hull of (grow, fall)/W touch the bound, or
    one of the unknowns is 0.

    Args:
        grow: first term at each measurement, (k,).
        fall: second term at each measurement, (k,).
        W: the measurements, (k,), positive.

    Returns: C1 and C2.
    """
    a = np.stack([grow / W, fall / W], axis=1)
    scale = a.max(axis=0)
    a = a / scale
    hull = _lower_left(a)
    det = hull[:-1, 0] * hull[1:, 1] - hull[:-1, 1] * hull[1:, 0]
    corners = np.stack([np.diff(hull[:, 1]), -np.diff(hull[:, 0])], axis=1) / det[:, None]
    low = a.min(axis=0)
    alone = [np.eye(2)[k] / low[k] for k in range(2) if low[k] > 0]
    corners = np.maximum(np.concatenate([corners, np.array(alone).reshape(-1, 2)]), 0)
    corners = corners / np.min(corners @ a.T, axis=1, keepdims=True)  # what rounding left below 1
    best = corners[np.argmin(corners @ a.mean(axis=0))]
    C1, C2 = best / scale
    return float(C1), float(C2)


def _lower_left(points: np.ndarray) -> np.ndarray:
    """Corners of the hull of the points that face (−, −), from the top to the right."""
    hull: list[np.ndarray] = []
    for p in points[np.lexsort((points[:, 1], points[:, 0]))]:
        if hull and p[1] >= hull[-1][1]:
            continue
        while len(hull) > 1 and np.linalg.det([hull[-1] - hull[-2], p - hull[-2]]) <= 0:
            hull.pop()
        hull.append(p)
    return np.array(hull)
