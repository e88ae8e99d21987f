"""Two arcs of the circle that face each other: when do they keep their tokens? (2504.14697, Example 2.6).

Mass p lies on |θ| ≤ w, q = 1−p on |θ−π| ≤ w; unnormalised flow, B = V = I (theory §3.10).
"""

from collections.abc import Callable

import numpy as np
from scipy import optimize, special

from tokenfield.theory.inputs import arc, check_exponent, finite, fraction


def critical_beta(p: float, w: float) -> float:
    """Least β from which arcs of half-width w about 0 and π, with masses p and 1−p, hold their tokens.

    For even laws. What gives way is the edge of the lighter arc, of mass q ≤ ½. A pair of tokens at ±a about
    its centre pulls the edge inwards with K(a) = ½[f(w+a)+f(w−a)], f(s) = e^{β cos s}sin s; a pair at ±b
    about the centre of the heavier arc pulls it out with k(b), the same with −β. The arcs are invariant for
    every even law with these masses if and only if q·min K ≥ p·max k over [0, w], p the heavier mass. Where
    both extremes lie at the edges, a = b = w, that is β_c = log(p/q)/(2cos2w), ½log(p/q) for narrow arcs; if
    p and q are nearly equal (β_c below about ⅓) the worst place is b < w and β_c is larger than that. It is
    never negative: under β < 0 the far arc pulls harder than the own one.
    """
    p, w = fraction(p, "p"), arc(w)
    p = max(p, 1 - p)

    def margin(beta: float) -> float:
        """log of q·min K over p·max k."""
        inward = -_greatest(lambda a: -_log_pull(a, w, beta), w)
        return np.log((1 - p) / p) + inward - _greatest(lambda b: _log_pull(b, w, -beta), w)

    high = np.log(p / (1 - p)) / (2 * np.cos(2 * w)) + 1.0
    while margin(high) <= 0:
        high *= 2
    return float(optimize.brentq(margin, 0.0, high, xtol=1e-14, rtol=1e-13))  # pyright: ignore[reportArgumentType]


def edge_velocities(p: float, w: float, beta: float) -> tuple[float, float]:
    """Velocities of the edges θ = w and θ = π+w of two arcs with uniform densities.

    An arc of mass m gives −(m/2w)∫_c^1 e^{βs}ds = (m/2wβ)(e^{βc} − e^β), c = cos2w, at its own edge and
    (m/2w)∫_c^1 e^{−βs}ds at the other's: both for any real β, (m/2w)(c−1) and (m/2w)(1−c) at β = 0.

    Args:
        p: mass of the arc about 0, between 0 and 1; the other has 1−p.
        w: half-width of both arcs, between 0 and π/4.
        beta: inverse temperature, any real number up to |β| = 700.

    Returns:
        The two velocities. Negative: the edge moves into its arc; the other two edges mirror it.
    """
    p, w, beta = fraction(p, "p"), arc(w), finite(beta, "beta")
    check_exponent(abs(beta), "take a smaller |beta|")
    width = 2 * np.sin(w) ** 2  # 1 − cos2w
    own = -np.exp(beta) * special.exprel(-beta * width) * width / (2 * w)
    other = np.exp(-beta) * special.exprel(beta * width) * width / (2 * w)
    return float(p * own + (1 - p) * other), float((1 - p) * own + p * other)


def _log_pull(a: np.ndarray, w: float, beta: float) -> np.ndarray:
    """log ½[f(w+a)+f(w−a)], f(s) = e^{β cos s}sin s, for 0 ≤ a ≤ w."""
    far, near = beta * np.cos(w + a), beta * np.cos(w - a)
    top = np.maximum(far, near)
    return top + np.log((np.exp(far - top) * np.sin(w + a) + np.exp(near - top) * np.sin(w - a)) / 2)


def _greatest(f: Callable[[np.ndarray], np.ndarray], w: float) -> float:
    """Maximum of a smooth function over [0, w]: the best of a grid, polished between its neighbours."""
    grid = np.linspace(0, w, 257)
    values = f(grid)
    k = int(np.argmax(values))
    if k in (0, len(grid) - 1):
        return float(values[k])
    found = optimize.minimize_scalar(
        lambda a: -float(f(a)), bounds=(grid[k - 1], grid[k + 1]), method="bounded", options={"xatol": 1e-10}
    )
    return -float(found.fun)  # pyright: ignore[reportAttributeAccessIssue]
