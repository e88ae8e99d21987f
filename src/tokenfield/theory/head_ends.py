"""Where tokens end under several heads at zero temperature: at rest, on closed orbits, or neither.

Closed orbits, in d ≥ 3, are found by returns to a plane, and their periods measured.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy import integrate

from tokenfield.theory.head_flow import HeadFlow

#: How long tokens are followed between two looks, in units of 1/Σ‖V_h‖, and how often one looks.
LOOK_TIME, LOOKS = 25.0, 60
#: Looks at which those that still move are tried for closed orbits, and failures before that is given up.
ORBIT_LOOKS, ORBIT_FAILURES = (8, 20, LOOKS - 1), 3
#: Speed below which a token is tried for a fixed point, and how far from it that may be.
SLOW, NEAR = 1e-5, 1e-3
#: A fixed point with a smaller rate than this, in units of Σ‖V_h‖, is not hyperbolic to rounding.
SMALLEST_RATE = 1e-9
#: Returns that a token may take to come back to where it was, and how near that is.
MAX_RETURNS, CLOSED = 40, 1e-8
#: Longest time of one return, in units of 1/Σ‖V_h‖.
LONGEST_RETURN = 300.0
#: Points of the orbit that are kept, and how near to them, between points, a token on it is.
ORBIT_POINTS, ON_ORBIT = 400, 1e-3


class ClosedOrbit(NamedTuple):
    """`period` in the time of the flow, and `x` (points, d) along one turn at equal times."""

    period: float
    x: Float[np.ndarray, "points d"]


class HeadEnds(NamedTuple):
    """Where tokens are in the end (n, d), which of them came to rest, and closed orbits.

    With each orbit, the number of tokens that end on it or on its antipode.
    """

    x: Float[np.ndarray, "n d"]
    settled: Bool[np.ndarray, "n"]
    orbits: list[tuple[ClosedOrbit, int]]


def follow_to_ends(flow: HeadFlow, x: Float[np.ndarray, "n d"]) -> HeadEnds:
    """Follow tokens until they rest at attracting fixed points, or for 1500/Σ‖V_h‖.

    Args:
        flow: the flow.
        x: unit rows (n, d).

    Returns:
        The ends; attracting points to rounding, the same one for all tokens that it takes.
    """
    x, settled = x.copy(), np.zeros(len(x), bool)
    known: list[np.ndarray] = []
    orbits: list[tuple[ClosedOrbit, int]] = []
    moving = np.arange(len(x))
    for look in range(LOOKS):
        if look > 0:
            x[moving] = flow.follow(x[moving], LOOK_TIME)
        for index in moving[flow.at_rest(x[moving], SLOW)]:
            point = _rest_near(flow, x[index], known)
            if point is not None:
                x[index], settled[index] = point, True
        moving = moving[~settled[moving]]
        if look in ORBIT_LOOKS:
            moving = _orbits(flow, x, moving, orbits)
        if moving.size == 0:
            break
    return HeadEnds(x, settled, orbits)


def _rest_near(flow: HeadFlow, x: np.ndarray, known: list[np.ndarray]) -> np.ndarray | None:
    """The attracting fixed point beside a slow token; new ones are added to the known, with antipodes."""
    for point in known:
        if np.linalg.norm(point - x) < NEAR:
            return point
    found = flow.rest_point(x)
    if found is None or found.rate < SMALLEST_RATE or np.linalg.norm(found.x - x) > NEAR:
        return None
    known += [found.x, -found.x]
    return found.x


def _orbits(
    flow: HeadFlow, x: np.ndarray, moving: np.ndarray, orbits: list[tuple[ClosedOrbit, int]]
) -> np.ndarray:
    """Add closed orbits of moving tokens to the list; those that are on none."""
    failures, waiting = 0, []
    for k, (orbit, count) in enumerate(orbits):  # those that have come to an orbit found before
        there = on_orbit(orbit, x[moving]) | on_orbit(orbit, -x[moving])
        orbits[k], moving = (orbit, count + int(np.sum(there))), moving[~there]
    while moving.size and failures < ORBIT_FAILURES:
        orbit = closed_orbit(flow, x[moving[0]])
        if orbit is None:
            failures, waiting, moving = failures + 1, [*waiting, moving[0]], moving[1:]
            continue
        there = on_orbit(orbit, x[moving]) | on_orbit(orbit, -x[moving])
        there[0] = True  # followed there, and may not have been on it yet
        orbits.append((orbit, int(np.sum(there))))
        moving = moving[~there]
    return np.concatenate([np.array(waiting, int), moving])


def closed_orbit(flow: HeadFlow, x: Float[np.ndarray, "d"]) -> ClosedOrbit | None:
    """The closed orbit that a token has come near to, None if it does not come back to where it was.

    It is followed until it crosses the plane through x across its velocity, from the same side as before, at
    a point within 1e-8 of the last one; the time between is the period.
    """
    for _ in range(MAX_RETURNS):
        found = _next_return(flow, x)
        if found is None:
            return None
        time, end = found
        if np.linalg.norm(end - x) < CLOSED:
            return ClosedOrbit(time / flow.scale, _orbit(flow, end, time))
        x = end
    return None


def on_orbit(orbit: ClosedOrbit, x: Float[np.ndarray, "n d"]) -> np.ndarray:
    """Which tokens lie on the orbit."""
    a = orbit.x
    along = np.roll(a, -1, axis=0) - a
    length = np.sum(along**2, axis=1)
    apart = np.full(len(x), np.inf)
    for point, edge, size in zip(a, along, length, strict=True):
        part = np.clip((x - point) @ edge / size, 0, 1)
        apart = np.minimum(apart, np.linalg.norm(x - point - part[:, None] * edge, axis=1))
    return apart < ON_ORBIT


def _slope(flow: HeadFlow):
    return lambda t, y: flow.velocity((y / np.linalg.norm(y))[None])[0]


def _next_return(flow: HeadFlow, x: np.ndarray) -> tuple[float, np.ndarray] | None:
    """Time of the next crossing of the plane through x, upwards, and the point."""
    normal = flow.velocity(x[None])[0]
    if np.linalg.norm(normal) < 1e-6:
        return None

    def height(t: float, y: np.ndarray) -> float:
        return float((y - x) @ normal)

    height.terminal, height.direction = True, 1.0  # pyright: ignore[reportFunctionMemberAccess]
    # the first steps leave the plane, so that the crossing at the start does not count
    left = integrate.solve_ivp(_slope(flow), (0, 0.01), x, "DOP853", rtol=1e-12, atol=1e-13)
    found = integrate.solve_ivp(
        _slope(flow), (0.01, LONGEST_RETURN), left.y[:, -1], "DOP853", events=height, rtol=1e-11, atol=1e-13
    )
    if not found.success or found.status != 1:
        return None
    return float(found.t_events[0][0]), found.y_events[0][0] / np.linalg.norm(found.y_events[0][0])


def _orbit(flow: HeadFlow, x: np.ndarray, time: float) -> np.ndarray:
    ts = np.linspace(0, time, ORBIT_POINTS, endpoint=False)
    y = integrate.solve_ivp(_slope(flow), (0, time), x, "DOP853", ts, rtol=1e-11, atol=1e-13).y.T
    return y / np.linalg.norm(y, axis=1, keepdims=True)
