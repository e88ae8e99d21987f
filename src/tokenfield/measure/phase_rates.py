"""The exponential rate of each phase: which points of which curve are fitted, and when there is no rate.

Concentration and escape are fitted to the distance to Π♯ρ0, the terminal phase to the angle to V's end space.
"""

from enum import Enum
from typing import NamedTuple

import numpy as np

from tokenfield.measure.approach import Approach
from tokenfield.measure.classification import NEAR_FACTOR, Span
from tokenfield.measure.rates import MIN_POINTS, fit_rate

#: So many times its least value a falling curve is clear of the level at which it may have stopped falling.
CLEAR_FACTOR = 10.0


class NoRate(Enum):
    """Why a phase has no rate."""

    METASTABLE = "a metastable phase has none"
    FEW_TIMES = "too few saved times above the noise"
    DEFECTIVE = "D is defective, the approach is like 1/t"
    SMALL_GROWTH = "the distance grew by less than a factor 2"


class PhaseRate(NamedTuple):
    """Rate of a phase, its 95% interval and the rms misfit of log values; None with the reason `missing`."""

    value: float | None
    interval: tuple[float, float] | None
    misfit: float
    missing: NoRate | None


def phase_rate(curves: Approach, span: Span) -> PhaseRate:
    """The rate of a phase, positive if the curve does what the phase is about."""
    if span.name == "concentration":
        return _concentration(curves, span)
    if span.name == "escape":
        return _escape(curves, span)
    return _terminal(curves, span) if span.name == "terminal" else _none(NoRate.METASTABLE)


def top_of(curves: Approach, stop: int) -> int:
    """Number of the time of the greatest distance up to `stop`; what is below the floor counts as there."""
    return int(np.argmax(np.maximum(curves.distance[: stop + 1], curves.floor)))


def _concentration(curves: Approach, span: Span) -> PhaseRate:
    if curves.kind == "algebraic":
        return _none(NoRate.DEFECTIVE)
    logs = np.log(np.maximum(curves.distance[: span.stop + 1], curves.floor))
    top = top_of(curves, span.stop)
    # the first quarter of the way, in the logarithm, still depends on ρ0
    start = top + int(np.argmax(logs[top:] <= logs[top] + (logs[-1] - logs[top]) / 4))
    if span.stop + 1 - start < MIN_POINTS:
        start = top
    return _fitted(curves, curves.distance, start, span.stop)


def _escape(curves: Approach, span: Span) -> PhaseRate:
    # growth is exponential only while clusters are near E: up to a third of the way, or half of it in the
    # logarithm where the escape begins far out
    part = curves.distance[span.start : span.stop + 1]
    if part[0] > part.max() / NEAR_FACTOR:
        return _none(NoRate.SMALL_GROWTH)
    far = np.flatnonzero(part > max(part.max() / 3, np.sqrt(part[0] * part.max())))
    near = span.start + int(far[0] if far.size else span.stop - span.start)
    return _fitted(curves, curves.distance, span.start, near, sign=-1)


def _terminal(curves: Approach, span: Span) -> PhaseRate:
    # at first the tokens that came last weigh most, in the end the solver's tolerance: the later half of the
    # points before the curve comes near its least value counts
    angle = curves.to_end[span.start :]
    low = np.flatnonzero(angle <= max(curves.floor, CLEAR_FACTOR * np.min(angle)))
    count = int(low[0]) if low.size else len(angle)
    half = span.start + (count // 2 if count >= 2 * MIN_POINTS else 0)
    return _fitted(curves, curves.to_end, half, span.start + count - 1)


def _fitted(curves: Approach, values: np.ndarray, start: int, stop: int, sign: int = 1) -> PhaseRate:
    """The exponential through the points above the floor, start to stop inclusive; sign −1: its growth."""
    t, v = curves.ts[start : stop + 1], values[start : stop + 1]
    keep = v > curves.floor
    if np.sum(keep) < MIN_POINTS:
        return _none(NoRate.FEW_TIMES)
    fit = fit_rate(t[keep], v[keep], model="exponential")
    low, high = sorted(sign * end for end in fit.interval)
    return PhaseRate(sign * fit.rate, (low, high), fit.misfit, None)


def _none(reason: NoRate) -> PhaseRate:
    return PhaseRate(None, None, 0.0, reason)
