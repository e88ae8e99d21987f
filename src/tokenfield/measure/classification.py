"""Which phases a run shows, as spans of its saved times, and which of the possible courses it took.

`classify` judges a whole run by its curves and by what theory predicts. `phase_so_far` names the phase at the
last of some times, while the end of the run is not known. Both use the same thresholds (theory §2.7).
"""

from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from tokenfield.measure.approach import END_ANGLE, Approach
from tokenfield.measure.prediction import NOISE_ANGLE, Prediction

Name = Literal["concentration", "metastable", "escape", "terminal"]

#: Metastable means within this factor of the least distance.
NEAR_FACTOR = 2.0
#: A curve that is this many times its least value so far rises again.
RISE_FACTOR = 1.2
#: A curve near its least value falls on if it is within `TURN_FACTOR` of it now, and lost at least `FALL_LOG`
#: of its logarithm in the later half of that time (e^{−t} loses .35, 1/t .29, t^{−1/2} .24).
TURN_FACTOR, FALL_LOG = 1.001, 0.1


class Course(Enum):
    """What a run did, from its first saved time to its last; the target is Π♯ρ0, or E if D rotates."""

    #: E and the dominant eigenspace of V are both the whole space.
    NO_TARGET = "no target"
    #: All the time in the target: at rest, moving within it, or ending in V's end space.
    AT_REST = "at rest"
    MOVED_IN_TARGET = "moved in target"
    ENDED_IN_TARGET = "ended in target"
    #: Never near the target.
    NO_CONCENTRATION = "no concentration"
    #: Near the target, and still falling towards it or resting there when the run ended.
    STILL_FALLING = "still falling"
    HAD_NOT_LEFT = "had not left"
    #: In V's end space while the distance to the target was near its least: without a rise, or with one.
    PASSED_STRAIGHT = "passed straight"
    ENDED_CLOSE = "ended close"
    #: The distance grew again although clusters should stay.
    SWUNG = "swung"
    #: Left the target: for another place of V's end space; where V has no smaller end space; not there yet.
    MOVED_IN_END = "moved in end"
    LEFT_WITHOUT_END = "left without end"
    LEFT = "left"
    LEFT_AND_ENDED = "left and ended"


class Span(NamedTuple):
    """A phase from the saved time number `start` to number `stop`, both included."""

    name: Name
    start: int
    stop: int


@dataclass(frozen=True)
class Classification:
    """The course of a run, its phases in order, and the number of the saved time of least distance."""

    course: Course
    spans: tuple[Span, ...]
    least: int


def classify(curves: Approach) -> Classification:
    """The phases of a whole run.

    It is near its target while the distance is within a factor 2 of its least value, around the time of that
    value. Where clusters circulate they pass by Π♯ρ0 again and again: the first approach counts.
    """
    distance, last = curves.distance, len(curves.ts) - 1
    if curves.whole:
        return Classification(Course.NO_TARGET, (), int(np.argmin(distance)))
    if np.max(distance) < curves.floor:
        return _in_target(curves)
    circulates = curves.prediction is Prediction.CIRCULATE
    least = first_valley(distance, curves.floor) if circulates else int(np.argmin(distance))
    if not came_near(distance, least):
        return _never_near(curves, least)
    enter, leave = _stretch(distance <= max(NEAR_FACTOR * distance[least], curves.floor), least)
    end = _settled(curves, enter if curves.prediction is Prediction.LEAVE else leave)
    if curves.prediction is Prediction.LEAVE and end is not None and end <= leave:
        return _ended_near(curves, least, enter, end)
    if leave == last:
        return _had_not_left(curves, least, enter)
    within = end == leave and np.max(distance[leave:]) > END_ANGLE  # from one place of E to another
    if curves.prediction is Prediction.STAY and not within:
        return Classification(Course.SWUNG, _spans(("concentration", 0, least)), least)
    return _left(curves, least, (enter, leave), end)


def phase_so_far(
    ts: Float[np.ndarray, "times"],
    distance: Float[np.ndarray, "times"],
    to_end: Float[np.ndarray, "times"],
    inside: bool,
) -> Name | Literal["no concentration"]:
    """The phase at the last of the times, judged by what came before it.

    Args:
        ts: saved times so far, (times,), at least two.
        distance: to Π♯ρ0, or to E if D rotates, (times,).
        to_end: root mean square angle to the dominant eigenspace of V, (times,).
        inside: whether that eigenspace holds E, so that being in it is no news.

    Returns: the name of the phase, "no concentration" for a distance that grows and was never near.
    """
    least, arrived = int(np.argmin(distance)), to_end[-1] < END_ANGLE
    if came_near(distance, least):
        if distance[-1] > max(NEAR_FACTOR * distance[least], NOISE_ANGLE):
            return "terminal" if arrived else "escape"
        return "metastable" if _rests(ts, distance) else "concentration"
    if distance[-1] <= TURN_FACTOR * distance[least]:
        return "concentration"
    return "terminal" if arrived and not inside else "no concentration"


def came_near(distance: Float[np.ndarray, "times"], least: int) -> bool:
    """Whether the distance at `least` is at most half of what came before, or the run began near by."""
    before = float(np.max(distance[: least + 1]))
    return bool(distance[least] <= before / NEAR_FACTOR or distance[0] <= END_ANGLE)


def falling(ts: Float[np.ndarray, "times"], distance: Float[np.ndarray, "times"], enter: int) -> bool:
    """Whether a curve near its least value falls to its end.

    Args:
        ts: saved times, (times,).
        distance: the curve, (times,).
        enter: number of the time from which it is within a factor 2 of its least value.
    """
    if distance[-1] > TURN_FACTOR * np.min(distance):
        return False
    if enter == len(ts) - 1:  # by more than a factor 2 since the time before
        return True
    middle = np.exp(np.interp((ts[enter] + ts[-1]) / 2, ts, np.log(np.maximum(distance, NOISE_ANGLE))))
    return bool(np.log(middle / max(distance[-1], NOISE_ANGLE)) > FALL_LOG)


def first_valley(distance: Float[np.ndarray, "times"], floor: float) -> int:
    """Number of the time of the least value before the curve first rises clear of it and of the floor."""
    low = np.minimum.accumulate(distance)
    risen = np.flatnonzero(distance > np.maximum(RISE_FACTOR * low, floor))
    return int(np.argmin(distance[: risen[0] + 1] if risen.size else distance))


def _rests(ts: np.ndarray, distance: np.ndarray) -> bool:
    """Whether a distance near its least value has stopped falling."""
    now = distance[-1]
    if now < NOISE_ANGLE:
        return True
    enter = int(np.argmax(distance <= NEAR_FACTOR * now))
    if enter == 0 and now <= TURN_FACTOR * np.min(distance):
        return bool(distance[0] <= END_ANGLE)
    return not falling(ts, distance, enter)


def _in_target(curves: Approach) -> Classification:
    """A run that was where it should concentrate all the time."""
    least, end = int(np.argmin(curves.distance)), _settled(curves, 0)
    if end is not None and end > 0:
        terminal = Span("terminal", end, len(curves.ts) - 1)
        return Classification(Course.ENDED_IN_TARGET, (terminal,), least)
    return Classification(Course.MOVED_IN_TARGET if curves.moves else Course.AT_REST, (), least)


def _never_near(curves: Approach, least: int) -> Classification:
    """A run that never came near its target; it may still have ended in V's end space."""
    end, last = _settled(curves, 0), len(curves.ts) - 1
    spans = () if end is None else (Span("terminal", end, last),)
    return Classification(Course.NO_CONCENTRATION, spans, least)


def _ended_near(curves: Approach, least: int, enter: int, end: int) -> Classification:
    """A run that came to V's end space while its distance to Π♯ρ0 was within a factor 2 of the least."""
    terminal = Span("terminal", end, len(curves.ts) - 1)
    if np.max(curves.distance[least:]) <= RISE_FACTOR * curves.distance[least]:
        spans = (*_spans(("concentration", 0, end)), terminal)
        return Classification(Course.PASSED_STRAIGHT, spans, least)
    spans = (*_spans(("concentration", 0, enter), ("metastable", enter, end)), terminal)
    return Classification(Course.ENDED_CLOSE, spans, least)


def _had_not_left(curves: Approach, least: int, enter: int) -> Classification:
    """A run that came near its target and was still there when it ended."""
    last = len(curves.ts) - 1
    if enter > 0 and curves.distance[last] > curves.floor and falling(curves.ts, curves.distance, enter):
        return Classification(Course.STILL_FALLING, (Span("concentration", 0, last),), least)
    spans = (*_spans(("concentration", 0, enter)), Span("metastable", enter, last))
    return Classification(Course.HAD_NOT_LEFT, spans, least)


def _left(curves: Approach, least: int, near: tuple[int, int], end: int | None) -> Classification:
    """A run that left its target, at the later of the times `near`; `end`: in V's end space from then on."""
    (enter, leave), last = near, len(curves.ts) - 1
    spans = _spans(("concentration", 0, enter))
    if leave > 0:
        spans += (Span("metastable", enter, leave),)
    if end is not None and end == leave:
        return Classification(Course.MOVED_IN_END, (*spans, Span("terminal", end, last)), least)
    spans += (Span("escape", leave, last if end is None else end),)
    if end is not None:
        return Classification(Course.LEFT_AND_ENDED, (*spans, Span("terminal", end, last)), least)
    nowhere = curves.end_angle is None
    return Classification(Course.LEFT_WITHOUT_END if nowhere else Course.LEFT, spans, least)


def _spans(*candidates: tuple[Name, int, int]) -> tuple[Span, ...]:
    """Those that last."""
    return tuple(Span(*each) for each in candidates if each[2] > each[1])


def _stretch(inside: Bool[np.ndarray, "times"], middle: int) -> tuple[int, int]:
    """First and last index of the run of True around `middle`."""
    outside = np.flatnonzero(~inside)
    below, above = outside[outside < middle], outside[outside > middle]
    return (int(below[-1]) + 1 if below.size else 0), (int(above[0]) - 1 if above.size else len(inside) - 1)


def _settled(curves: Approach, after: int) -> int | None:
    """First number of a time, not before `after`, from which the tokens stay in V's end space."""
    if curves.end_angle is None:
        return None
    outside = np.flatnonzero(curves.to_end > curves.end_angle)
    start = max(int(outside[-1]) + 1 if outside.size else 0, after)
    return start if start < len(curves.ts) else None
