"""Several heads at zero temperature on the circle, exactly (theory §6.7): θ' = f(θ), f of period π.

The zeros of f at which it falls are sinks, those at which it rises sources; the basin of a sink reaches to
the sources beside it, so that masses are lengths of arcs. Without zeros all tokens go round, with the
period ∫dθ/|f|. Where B_hᵀx = 0 the field jumps; a jump through 0 is a sink or a source as well.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float
from scipy import integrate, optimize

from tokenfield.geometry.circle import points
from tokenfield.theory.head_flow import HeadFlow

#: Angles at which the reading of each head is sampled over half a turn; an offset that avoids the axes.
SAMPLES, OFFSET = 720, 0.0012345678
#: Distance from a jump at which the field beside it is evaluated.
BESIDE = 1e-12
#: Greatest |f| of a field that does not move, and least |f|, relative to the greatest, of one without zeros.
NO_FIELD, TOUCHES_ZERO = 1e-13, 1e-6


@dataclass(frozen=True, eq=False)
class CirclePortrait:
    """Zeros of f in [0, π), those at θ + π left out: `sinks` and `sources`, increasing, as many of each.

    `rates`: −f' at the sinks, infinite at a jump, which is reached in finite time. `period`: of one turn, if
    there are no zeros. `note`: what is in the way of an answer, empty if nothing is.
    """

    sinks: Float[np.ndarray, "m"]
    rates: Float[np.ndarray, "m"]
    sources: Float[np.ndarray, "m"]
    period: float | None
    note: str

    @property
    def masses(self) -> Float[np.ndarray, "m"]:
        """Part of the circle in the basin of each sink, its antipode's not counted."""
        last, sources = len(self.sources) - 1, np.append(self.sources, self.sources[:1] + np.pi)
        after = np.searchsorted(self.sources, self.sinks)
        before = np.where(after > 0, after - 1, last)
        return np.diff(sources)[before] / (2 * np.pi)

    def ends(self, angles: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
        """The angle at which each token ends; one on a source, to rounding, goes up from it."""
        turned = np.concatenate([self.sources, self.sources + np.pi])
        half = np.floor((angles - self.sources[0]) / np.pi)
        inside = angles - half * np.pi  # in [first source, first source + π)
        basin = np.searchsorted(turned, inside, side="right") - 1
        sinks = np.sort(np.concatenate([self.sinks, self.sinks + np.pi]))
        return sinks[np.searchsorted(sinks, turned[basin])] + half * np.pi


def circle_portrait(flow: HeadFlow) -> CirclePortrait:
    """Sinks and sources of heads in d = 2, or the period of a turn."""
    jumps = _jumps(flow)
    grid = _grid(flow, jumps)
    f = angular_speed(flow, grid)
    grid, f = grid[f != 0], f[f != 0]
    if f.size == 0 or np.max(np.abs(f)) < NO_FIELD:
        return _portrait(note="nothing moves: every direction is a fixed point")
    changes = np.flatnonzero(f[:-1] * f[1:] < 0)
    zeros = np.mod([_zero(flow, grid[k], grid[k + 1], jumps) for k in changes], np.pi)
    if zeros.size == 0:
        return _without_zeros(flow, f, jumps)
    sinks = np.sort(zeros[f[changes] > 0])
    rates = [
        np.inf if _near(angle, jumps) else flow.rate(x) for angle, x in zip(sinks, points(sinks), strict=True)
    ]
    return _portrait(sinks, np.array(rates) * flow.scale, np.sort(zeros[f[changes] < 0]))


def angular_speed(flow: HeadFlow, angles: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """f = ⟨F(x), x^⊥⟩ at the angles."""
    x = points(angles)
    F = flow.output(x)
    return F[:, 1] * x[:, 0] - F[:, 0] * x[:, 1]


def _portrait(sinks=(), rates=(), sources=(), period: float | None = None, note: str = "") -> CirclePortrait:
    return CirclePortrait(np.array(sinks), np.array(rates), np.array(sources), period, note)


def _jumps(flow: HeadFlow) -> np.ndarray:
    """Angles in [0, π) at which a head has B_hᵀx = 0."""
    lines = [null[:, 0] for null in flow.null_directions if null.shape[1] == 1]
    return np.unique([np.mod(np.arctan2(line[1], line[0]), np.pi) for line in lines])


def _grid(flow: HeadFlow, jumps: np.ndarray) -> np.ndarray:
    """Angles over half a turn, dense where a nearly singular head turns quickly, and on both sides of jumps.

    x ∝ adj(B)ᵀu reads in the direction ±u, so that uniform u resolve every head, however it stretches.
    """
    uniform = (np.arange(SAMPLES) + OFFSET) * np.pi / SAMPLES
    angles = [uniform, jumps - BESIDE, jumps + BESIDE]
    for B in flow.B:
        adjugate = np.array([[B[1, 1], -B[0, 1]], [-B[1, 0], B[0, 0]]])
        x = points(uniform) @ adjugate
        seen = np.linalg.norm(x, axis=1) > 0
        angles.append(np.arctan2(x[seen, 1], x[seen, 0]))
    grid = np.unique(np.mod(np.concatenate(angles), np.pi))
    inside = [a for a in grid if not any(0 < abs(a - jump) < BESIDE / 2 for jump in jumps)]
    grid = np.setdiff1d(inside, jumps)
    return np.append(grid, grid[0] + np.pi)


def _near(angle: float, jumps: np.ndarray) -> bool:
    return bool(np.any(np.abs(np.sin(angle - jumps)) < 2 * BESIDE))


def _zero(flow: HeadFlow, low: float, high: float, jumps: np.ndarray) -> float:
    """The zero between two angles, or the jump that they enclose."""
    middle = (low + high) / 2
    if high - low <= 3 * BESIDE and _near(middle, jumps):
        return float(jumps[np.argmin(np.abs(np.sin(middle - jumps)))])
    return float(optimize.brentq(lambda a: angular_speed(flow, np.array([a]))[0], low, high, xtol=1e-15))  # pyright: ignore[reportArgumentType]


def _without_zeros(flow: HeadFlow, f: np.ndarray, jumps: np.ndarray) -> CirclePortrait:
    """A field that goes round: its period, if it does not touch 0."""
    if np.min(np.abs(f)) < TOUCHES_ZERO * np.max(np.abs(f)):
        return _portrait(
            note="the field touches 0 without a change of sign: a fixed point that holds one side"
        )
    start = jumps[0] if jumps.size else 0.0
    breaks = np.append(np.unique(np.append(start + np.mod(jumps - start, np.pi), start)), start + np.pi)
    total = 0.0
    for low, high in pairwise(breaks):
        part, _ = integrate.quad(
            lambda a: 1 / abs(angular_speed(flow, np.array([a]))[0]),
            low,
            high,
            epsabs=0,
            epsrel=1e-13,
            limit=1000,
        )
        total += part
    return _portrait(period=2 * total / flow.scale)
