"""What `phases` found, in sentences: one for each phase, and a note on the whole run."""

import numpy as np

from tokenfield.measure.approach import Approach, Run
from tokenfield.measure.classification import FALL_LOG, NEAR_FACTOR, Classification, Course, Span
from tokenfield.measure.phase_rates import NoRate, PhaseRate, top_of
from tokenfield.measure.prediction import Prediction

#: A curve that misses its exponential by more (rms of the logarithm) is reported as not exponential.
MISFIT_THRESHOLD = 0.1

#: What is said where V is its dominant eigenvalue on all of E, and where clusters of E need not follow V.
NO_ESCAPE = "; E lies in the dominant eigenspace of V, so no escape is predicted"
LOOKS_AWAY = (
    "; a cluster p in E need not see itself, since ⟨Bᵀp, p⟩ > 0 fails there, and then does not follow V"
)

#: The note on each course a run can take.
NOTES = {
    Course.NO_TARGET: ("the dominant eigenspaces of D and of V are the whole space: nothing to come near to"),
    Course.AT_REST: "nothing happened: the tokens began in {target} and stayed there",
    Course.MOVED_IN_TARGET: "the tokens began in {target} and stayed in it, moving",
    Course.ENDED_IN_TARGET: (
        "the tokens began in {target}, and ended in the dominant eigenspace of V within it"
    ),
    Course.NO_CONCENTRATION: (
        "no concentration at the {count} saved times: {distance} was {first:.3g} at first and {least:.3g} at"
        " best{approach}, less than a factor 2 below what came before{arrived}"
    ),
    Course.STILL_FALLING: "{distance} was still falling when the run ended: concentration only{stay}",
    Course.HAD_NOT_LEFT: "the tokens {rest} and had not left when the run ended{stay}",
    Course.PASSED_STRAIGHT: (
        "the tokens went to the dominant eigenspace of V; on the way {distance} fell to {least:.3g} and did"
        " not grow again"
    ),
    Course.ENDED_CLOSE: (
        "the tokens came within {least:.3g} of {target} and ended in the dominant eigenspace of V before the"
        " distance had grown by a factor 2"
    ),
    Course.SWUNG: (
        "{distance} swings: after t = {time:.4g} it grew again from {least:.3g} to {later:.3g}{stay}"
    ),
    Course.MOVED_IN_END: (
        "the tokens left {target} within the dominant eigenspace of V{circulate}{exchange}"
    ),
    Course.LEFT_WITHOUT_END: (
        "the tokens left {target}; V has no dominant eigenspace but the whole space{away}"
    ),
    Course.LEFT: (
        "the tokens left {target} and had not reached the dominant eigenspace of V when the run ended: root"
        " mean square angle {to_end:.3g}{away}"
    ),
    Course.LEFT_AND_ENDED: (
        "{began}the tokens left {target} and ended in the dominant eigenspace of V{away}"
    ),
}


def note(curves: Approach, found: Classification, run: Run) -> str:
    """What happened and what did not, with what else a reader has to know.

    Args:
        curves: the measured curves of the run.
        found: its phases and course.
        run: the run itself, whose statistics may report a symmetry that rounding broke.
    """
    words = NOTES[found.course].format_map(_numbers(curves, found) | _clauses(curves, found))
    if curves.heads > 1:
        words += "; with several heads E are the lines of their attractors, and V stands for ΣV_h"
    if curves.missed > 0:
        words += f"; a part {curves.missed:.3g} of the mass began where P_E x = 0 and has no way to E"
    broken = str(run.stats.get("symmetry", ""))
    if broken.startswith("by t"):
        words += f"; {broken}: what follows is made by rounding"
    return words


def sentence(curves: Approach, span: Span, rate: PhaseRate, clusters: str) -> str:
    """One phase: when, what its distance did, at which rate, and the clusters at its end.

    Args:
        curves: the measured curves of the run.
        span: the phase.
        rate: its rate, or why it has none.
        clusters: how many clusters there were, in words.
    """
    start, stop = (float(curves.ts[k]) for k in span[1:])
    describe = {
        "concentration": _concentration,
        "metastable": _metastable,
        "escape": _escape,
        "terminal": _terminal,
    }[span.name]
    words = describe(curves, span) + _rate(curves, rate)
    return f"{span.name}, t = {start:.4g} to {stop:.4g}: {words}; {clusters} at its end."


def _target(curves: Approach) -> str:
    return "E" if curves.kind == "rotating" else "Π♯ρ0"


def _distance(curves: Approach) -> str:
    return f"the distance to {_target(curves)}" + " (an upper bound)" * curves.is_bound


def _numbers(curves: Approach, found: Classification) -> dict[str, object]:
    """What the notes count and measure."""
    return {
        "target": _target(curves),
        "distance": _distance(curves),
        "count": len(curves.ts),
        "first": curves.distance[0],
        "least": curves.distance[found.least],
        "time": curves.ts[found.least],
        "later": np.max(curves.distance[found.least :]),
        "to_end": curves.to_end[-1],
    }


def _clauses(curves: Approach, found: Classification) -> dict[str, object]:
    """What the notes add where it is so."""
    circulates = curves.prediction is Prediction.CIRCULATE
    concentrated = any(span.name == "concentration" for span in found.spans)
    return {
        "approach": " on the first approach" * circulates,
        "arrived": "; the tokens ended in the dominant eigenspace of V" * (len(found.spans) > 0),
        "stay": NO_ESCAPE * (curves.prediction is Prediction.STAY),
        "rest": _rest(curves, found),
        "circulate": ", where they circulate" if circulates and curves.moves else ": no escape from it",
        "exchange": "; the distance is an upper bound, they may only have changed places" * curves.is_bound,
        "away": LOOKS_AWAY * (not curves.sees_itself),
        "began": "" if concentrated else f"the run began near {_target(curves)}; ",
    }


def _rest(curves: Approach, found: Classification) -> str:
    """What tokens do that have not left."""
    if curves.kind == "rotating" and curves.moves:
        return "circulate in E"
    enter = found.spans[-1].start if found.spans else 0
    return f"stay within {float(np.max(curves.distance[enter:])):.2g} of {_target(curves)}"


def _concentration(curves: Approach, span: Span) -> str:
    top, distance = top_of(curves, span.stop), curves.distance
    words = f"{_distance(curves)} fell from {distance[top]:.3g} to {distance[span.stop]:.3g}"
    high, low = (np.log(max(distance[k], curves.floor)) for k in (top, 0))
    return words + f", after a rise from {distance[0]:.3g}" * bool(high > low + FALL_LOG)


def _metastable(curves: Approach, span: Span) -> str:
    part = curves.distance[span.start : span.stop + 1]
    if NEAR_FACTOR * part.min() < curves.floor:
        return f"the distance stayed below {curves.floor:.3g}"
    least = curves.ts[span.start + int(np.argmin(part))]
    return f"the distance stayed between {part.min():.3g}, at t = {least:.4g}, and {part.max():.3g}"


def _escape(curves: Approach, span: Span) -> str:
    first, last = curves.distance[span.start], curves.distance[span.stop]
    return f"{_distance(curves)} grew from {first:.3g} to {last:.3g}"


def _terminal(curves: Approach, span: Span) -> str:
    angle = curves.to_end[span.start : span.stop + 1]
    words = f"the root mean square angle to the dominant eigenspace of V was {angle[0]:.3g}"
    return words + f" at first and {angle[-1]:.3g} in the end" * (len(angle) > 1)


def _rate(curves: Approach, rate: PhaseRate) -> str:
    if rate.missing is NoRate.FEW_TIMES:
        return f", with too few saved times in between and above {curves.floor:.2g} for a rate"
    if rate.missing is NoRate.DEFECTIVE:
        return ", without an exponential rate: D is defective, and a token approaches like 1/t"
    if rate.missing is NoRate.SMALL_GROWTH:
        return ", by less than a factor 2, which is no growth from near E and has no rate"
    if rate.value is None or rate.interval is None:
        return ""
    words = f", at the rate {rate.value:.3g} ({rate.interval[0]:.3g} to {rate.interval[1]:.3g})"
    if rate.misfit > MISFIT_THRESHOLD:
        words += (
            f" on average: the curve is not exponential, its logarithm misses a line by {rate.misfit:.2g}"
            " (root mean square)"
        )
    return words
