"""Transport on the circle for a convex cost H of the arc length.

An optimal coupling keeps the cyclic order, so that it is known up to one number: the mass α by which
the second law is wound against the first (Delon, Salomon and Sobolevskii 2010). With the quantile
functions F⁻¹, G⁻¹ on the line, G⁻¹(u + 1) = G⁻¹(u) + 2π,

    C(α) = ∫₀¹ H(|F⁻¹(u) − G⁻¹(u + α)|) du

is convex and piecewise linear in α. Its slope is a sum over the jumps of F⁻¹, and its least value is
found by the sign of the slope.
"""

from collections.abc import Callable

import numpy as np
from scipy.optimize import root_scalar

from tokenfield.measure.coupling.plan import Cost, DiscreteLaw, Plan, cumulated, monotone

#: The search for the winding α ends when C is known to this fraction, or α to rounding, or after these steps.
COST_TOLERANCE, WINDING_TOLERANCE, MAX_STEPS = 1e-17, 2e-16, 200

Convex = Callable[[np.ndarray], np.ndarray]


def geodesic_plan(mu: DiscreteLaw, nu: DiscreteLaw, p: float) -> Plan:
    """The optimal coupling for the angle to the power p.

    Args:
        mu: points (n, 2) and weights (n,).
        nu: points (m, 2) and weights (m,).
        p: order of the distance, p ≥ 1.

    Returns: the plan.
    """
    return _plan(mu, nu, (lambda t: t * t) if p == 2 else (lambda t: t**p))


def chordal_plan(mu: DiscreteLaw, nu: DiscreteLaw, cost: Cost) -> tuple[Plan, float]:
    """A coupling for the chordal cost h(t) = (2 sin(t/2))^p, and a lower bound of W_p.

    h is convex only for short arcs. Its convex envelope H follows h up to an arc t* and then the
    tangent that ends at (π, h(π)). The optimal coupling for H is returned with its H-cost, which is a
    lower bound because H ≤ h. Where no mass moves further than t* both agree and the coupling is optimal.

    Args:
        mu: points (n, 2) and weights (n,).
        nu: points (m, 2) and weights (m,).
        cost: the chord, and p.

    Returns: the plan, and the bound.
    """
    envelope, last = _envelope(cost.p)
    plan = _plan(mu, nu, envelope)
    arcs = Cost("geodesic", 1).distance(mu.x[plan.i], nu.x[plan.j])
    if np.max(arcs) <= last:
        return plan, cost.of_plan(plan, mu, nu)
    return plan, cost.root(float(np.sum(plan.mass * envelope(arcs)) / np.sum(plan.mass)))


def _envelope(p: float) -> tuple[Convex, float]:
    """The convex envelope of (2 sin(t/2))^p on [0, π], continued by its tangent, and where that begins."""

    def chord(t):
        return (2 * np.sin(t / 2)) ** p

    def slope(t):
        return p * np.cos(t / 2) * (2 * np.sin(t / 2)) ** (p - 1)

    def miss(t):  # how far below (π, 2^p) the tangent at t ends
        return 2**p - chord(t) - slope(t) * (np.pi - t)

    # the arc of inflexion has (p − 1) cos²(t/2) = sin²(t/2); there the tangent passes above the end
    bend = 2 * np.arctan(np.sqrt(p - 1))
    last = root_scalar(miss, bracket=(0.0, bend), xtol=1e-15).root if p > 1 and miss(bend) < 0 else 0.0
    rise = (2**p - chord(last)) / (np.pi - last)

    def envelope(t):
        return np.where(t <= last, chord(np.minimum(t, last)), chord(last) + rise * (t - last))

    return envelope, last


def _plan(mu: DiscreteLaw, nu: DiscreteLaw, h: Convex) -> Plan:
    """The coupling of least ∫h(arc) for convex, increasing h."""
    (order, angle, mass), (other, image, gain) = _sorted(mu), _sorted(nu)
    alpha = _winding(angle, mass, image, gain, h)
    # where the quantile function of the second law jumps, wound back; in order, even where masses are too
    # small for α to tell them apart
    alpha = alpha % 1.0
    turn = int(np.searchsorted(gain, alpha, side="right"))
    ends = np.concatenate([gain[turn:] - alpha, gain[:turn] + (1 - alpha)])
    plan = monotone(mass, np.append(np.clip(ends, 0.0, 1.0), 1.0))
    return Plan(order[plan.i], other[(plan.j + turn) % len(other)], plan.mass)


def _sorted(law: DiscreteLaw) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Order, angles and cumulated masses of a law on the circle, by angle."""
    angle = np.arctan2(law.x[:, 1], law.x[:, 0])
    order = np.argsort(angle)
    return order, angle[order], cumulated(law.w[order])


def _winding(angle: np.ndarray, mass: np.ndarray, image: np.ndarray, gain: np.ndarray, h: Convex) -> float:
    """The α of least C(α)."""
    following = np.append(angle[1:], angle[0] + 2 * np.pi)
    width = np.diff(mass, prepend=0.0)

    def wound(v: np.ndarray, side) -> np.ndarray:  # G⁻¹(v)
        turns = np.floor(v)
        k = np.searchsorted(gain, v - turns, side=side)
        return np.append(image, image[0] + 2 * np.pi)[k] + 2 * np.pi * turns

    def slope(alpha: float) -> float:
        at = wound(mass + alpha, "right")
        return float(np.sum(h(np.abs(angle - at)) - h(np.abs(following - at))))

    def size(alpha: float) -> float:  # C(α) by one point for each token: its size, for the stopping rule
        return float(np.sum(width * h(np.abs(angle - wound(mass - width / 2 + alpha, "left")))))

    low, high = -2.0, 2.0
    falls, rises = slope(low), slope(high)
    scale = np.inf
    for step in range(MAX_STEPS):
        best = low if -falls < rises else high
        missing = min(-falls, rises) * (high - low)  # C(best) is at most this far from its minimum
        if high - low <= WINDING_TOLERANCE:
            break
        if missing <= COST_TOLERANCE * scale and missing <= COST_TOLERANCE * (scale := size(best)):
            break
        middle = (low + high) / 2
        if step % 3:  # two secants, drawn a little to the middle, then one bisection
            secant = low + (high - low) * falls / (falls - rises)
            middle = min(max(secant + 0.01 * (middle - secant), low), high)
        found = slope(middle)
        if found < 0:
            low, falls = middle, found
        else:
            high, rises = middle, found
    return best
