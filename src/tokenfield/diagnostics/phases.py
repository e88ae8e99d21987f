"""The phases of a low-temperature run (2605.10931; theory §2.6–2.7): concentrate, stay, leave, end.

Tokens first follow the zero-temperature flow to the dominant eigenspace E of D = V Bᵀ, towards the law Π♯ρ0.
Once their clusters are narrower than β^{−1/2} a token sees only its own cluster, and clusters move by
y' = P_y V y: they leave E and end in the dominant eigenspace of V. `phases` finds out which of this a run
shows, and says so when it shows none of it.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from tokenfield.density.result import DensityTrajectory
from tokenfield.diagnostics.approach import FLOOR, TOLERANCE, Approach, Run, measure
from tokenfield.diagnostics.clusters import clusters
from tokenfield.diagnostics.rates import FEWEST, fit_rate
from tokenfield.errors import require, require_kind
from tokenfield.tokens import Tokens
from tokenfield.trajectory import Trajectory
from tokenfield.weights import AttentionWeights

Name = Literal["concentration", "metastable", "escape", "terminal"]

#: Metastable means within this factor of the least distance (theory §2.7).
FACTOR = 2.0
#: So many times its least value a falling curve is clear of the level at which it may have stopped falling.
CLEAR = 10.0
#: A curve that is this many times its least value so far rises again.
RISEN = 1.2
#: A curve that misses its exponential by more than this (rms of the logarithm) is said to be none.
MISFIT = 0.1
#: What is said where V is its dominant eigenvalue on all of E.
ALIKE = "; E lies in the dominant eigenspace of V, so no escape is predicted"
#: What is said where clusters of E do not follow y' = P_y V y.
AWAY = "; a cluster p in E need not see itself, since ⟨Bᵀp, p⟩ > 0 fails there, and then does not follow V"
#: What is said of multiples of the identity, and of rotations of the whole space.
WHOLE = "the dominant eigenspaces of D and of V are the whole space: nothing to come near to"
#: Tokens linked by steps of this angle are one cluster; clusters of less mass than this are not counted, and
#: tokens of less than this part of the mean mass link nothing.
ANGLE, STRAY = 0.1, 1e-3
#: A curve within a factor 2 of its least value falls on if it is within `TURNED` of it now, and lost at least
#: `FALLING` of its logarithm in the later half of that time (e^{−t} loses .35, 1/t .29, t^{−1/2} .24).
TURNED, FALLING = 1.001, 0.1


@dataclass(frozen=True)
class Phase:
    """One phase: from `start` to `stop`, in the time of the run.

    `rate`, `interval`: of the exponential that fits the phase's own distance, positive if that is what the
    phase is about: the distance to Π♯ρ0 falls (concentration) or grows (escape), the distance to the dominant
    eigenspace of V falls (terminal). None where too few saved times are clear of the noise, and for a
    metastable phase.
    `to_limit`, `to_end`: root mean square angle to the dominant eigenspaces of D
    and of V at the end of the phase. `clusters`:
    groups of tokens then. `sentence`: the same in words.
    """

    name: Name
    start: float
    stop: float
    rate: float | None
    interval: tuple[float, float] | None
    to_limit: float
    to_end: float
    clusters: int
    sentence: str


@dataclass(frozen=True, eq=False)
class Phases:
    """What `phases` found. `found`: the phases, in order; `note`: what happened, and what did not, in words.

    Over the saved times `ts`: `distance` to the limit law Π♯ρ0 (`method` says how, and whether it is W2 or an
    upper bound of it), and the root mean square angles `to_limit`, `to_end` to the dominant
    eigenspaces of D and of V.
    `minimum`, `minimum_time`: the least distance, and when.
    """

    found: tuple[Phase, ...]
    note: str
    ts: Float[np.ndarray, "times"]
    distance: Float[np.ndarray, "times"]
    to_limit: Float[np.ndarray, "times"]
    to_end: Float[np.ndarray, "times"]
    method: str
    minimum: float
    minimum_time: float

    def get(self, name: Name) -> Phase | None:
        """The phase of that name, or None if the run does not show it."""
        return next((phase for phase in self.found if phase.name == name), None)


def phases(trajectory: Run, weights: AttentionWeights) -> Phases:
    """Concentration, metastable, escape and terminal phase of a run, with times, rates and cluster counts.

    The distance is W2 (geodesic) to Π♯ρ0, ρ0 the first snapshot. If all tokens end on a line this is exact, a
    transport to two atoms; otherwise it is the cost of the coupling x_i(t) ↔ Π(x_i(0)), an upper bound of W2,
    or for a density on fixed nodes `wasserstein`. If D rotates, and there is no limit law, it is the root
    mean square angle to E.

    - concentration: until the distance is within a factor 2 of its least value, if it began above that;
    - metastable: within that factor, if the least value is at most half of what came before (or the run began
      within 0.05 of Π♯ρ0), and if the tokens leave again or rest there: a curve that just falls until the
      run ends is concentration to the end;
    - terminal: from when, after the tokens came near Π♯ρ0 or if they never did, the root mean square
      angle to the dominant eigenspace of V stays below 0.05 and below half the angle of Π♯ρ0 to it;
    - escape: between the two, or to the end of the run. None if V is its dominant eigenvalue on all of E and
      clusters there see themselves: a distance that grows again then swings.

    Where V turns a plane that holds E, clusters pass by Π♯ρ0 again and again: the first approach counts.
    """
    if not isinstance(trajectory, DensityTrajectory):
        require_kind(trajectory, Trajectory, "trajectory")
        bad = np.flatnonzero(~np.all(np.isfinite(trajectory.x), axis=(1, 2)))
        require(bad.size == 0, "trajectory", "hold finite tokens", f"not, at snapshot {bad[:1]}")
    require_kind(weights, AttentionWeights, "weights")
    count = len(trajectory.snapshot_ts)
    require(count >= 2, "trajectory", "hold at least two snapshots", f"with {count}")
    d = trajectory.tokens(0).d
    require(weights.d == d, "weights", f"have the dimension {d} of the tokens", weights.d)
    curves = measure(trajectory, weights)
    found, note = ((), WHOLE) if curves.whole else _find(curves, trajectory)
    least = int(np.argmin(curves.distance))
    return Phases(
        found,
        note + _caveats(curves, trajectory),
        *curves[:5],
        float(curves.distance[least]),
        float(curves.ts[least]),
    )


def cluster_count(tokens: Tokens) -> int:
    """Clusters (single linkage at 0.1) that hold at least a thousandth of the mass."""
    w = np.asarray(tokens.weights)
    heavy = w >= STRAY / tokens.n
    found = clusters(Tokens(np.asarray(tokens.x)[heavy], w[heavy] / w[heavy].sum()), ANGLE)
    return int(np.sum(np.asarray(found.centres.weights) >= STRAY))


def _caveats(curves: Approach, trajectory: Run) -> str:
    """What else a reader of the note has to know."""
    words = ""
    if curves.missed > 0:
        words += f"; a part {curves.missed:.3g} of the mass began where P_E x = 0 and has no way to E"
    broken = str(trajectory.stats.get("symmetry", ""))
    if broken.startswith("by t"):
        words += f"; {broken}: what follows is made by rounding"
    return words


def _find(curves: Approach, trajectory: Run) -> tuple[tuple[Phase, ...], str]:
    """The phases and a note."""
    distance, last = curves.distance, len(curves.ts) - 1
    if np.max(distance) < curves.floor:
        return _in_place(curves, trajectory)
    least = _first_valley(distance, curves.floor) if curves.turns else int(np.argmin(distance))
    before = float(np.max(distance[: least + 1]))
    if distance[least] > before / FACTOR and distance[0] > TOLERANCE:
        return _without_approach(curves, trajectory, least)
    enter, leave = _stretch(distance <= max(FACTOR * distance[least], curves.floor), least)
    end = _settled(curves, enter if curves.apart else leave)
    if curves.apart and end is not None and end <= leave:
        return _close_by(curves, trajectory, least, enter, end)
    found = [_concentration(curves, trajectory, enter)] if enter > 0 else []
    if leave == last:
        return _until_the_end(curves, trajectory, enter, found)
    within = end == leave and np.max(distance[leave:]) > TOLERANCE  # from one place of E to another
    if curves.stays and not within:
        return _swing(curves, trajectory, least)
    if leave > 0:
        found.append(_metastable(curves, trajectory, enter, leave))
    if end is not None and end == leave:
        found.append(_terminal(curves, trajectory, end))
        return tuple(found), _moved_within(curves)
    found.append(_escape(curves, trajectory, leave, last if end is None else end))
    away = "" if curves.sees_itself else AWAY
    if curves.near == 0:
        words = f"the tokens left {curves.target}; V has no dominant eigenspace but the whole space"
        return tuple(found), words + away
    if end is None:
        return tuple(found), (
            f"the tokens left {curves.target} and had not reached the dominant eigenspace of V when the run"
            f" ended: root mean square angle {curves.to_end[-1]:.3g}{away}"
        )
    found.append(_terminal(curves, trajectory, end))
    missing = "" if enter > 0 else f"the run began near {curves.target}; "
    return tuple(found), missing + (
        f"the tokens left {curves.target} and ended in the dominant eigenspace of V{away}"
    )


def _in_place(curves: Approach, trajectory: Run) -> tuple[tuple[Phase, ...], str]:
    """A run that was where it should concentrate all the time: in Π♯ρ0, or in E if D rotates."""
    end = _settled(curves, 0)
    if end is not None and end > 0:
        words = f"the tokens began in {curves.target}, and ended in the dominant eigenspace of V within it"
        return (_terminal(curves, trajectory, end),), words
    if curves.moves:
        return (), f"the tokens began in {curves.target} and stayed in it, moving"
    return (), f"nothing happened: the tokens began in {curves.target} and stayed there"


def _close_by(
    curves: Approach, trajectory: Run, least: int, enter: int, end: int
) -> tuple[tuple[Phase, ...], str]:
    """A run that came to V's eigenspace while its distance to Π♯ρ0 was within a factor 2 of the least."""
    best, there = curves.distance[least], _terminal(curves, trajectory, end)
    if np.max(curves.distance[least:]) <= RISEN * best:
        found = (_concentration(curves, trajectory, end), there) if end > 0 else (there,)
        return found, (
            f"the tokens went to the dominant eigenspace of V; on the way {curves.what} fell to {best:.3g}"
            " and did not grow again"
        )
    found = [_concentration(curves, trajectory, enter)] if enter > 0 else []
    found += [_metastable(curves, trajectory, enter, end)] if end > enter else []
    return (*found, there), (
        f"the tokens came within {best:.3g} of {curves.target} and ended in the dominant eigenspace of V"
        " before the distance had grown by a factor 2"
    )


def _until_the_end(
    curves: Approach, trajectory: Run, enter: int, found: list[Phase]
) -> tuple[tuple[Phase, ...], str]:
    """A run that came near its target and was still there when it ended."""
    distance, last = curves.distance, len(curves.ts) - 1
    alike = ALIKE if curves.stays else ""
    if enter > 0 and distance[last] > curves.floor and falling(curves.ts, distance, enter):
        words = f"{curves.what} was still falling when the run ended: concentration only"
        return (_concentration(curves, trajectory, last),), words + alike
    stay = _metastable(curves, trajectory, enter, last)
    far = float(np.max(distance[enter:]))
    rest = f"stay within {far:.2g} of {curves.target}"
    if curves.kind == "rotating" and curves.moves:
        rest = "circulate in E"
    return (*found, stay), f"the tokens {rest} and had not left when the run ended{alike}"


def _moved_within(curves: Approach) -> str:
    """What is said where tokens leave Π♯ρ0 for other places of V's eigenspace."""
    circulate = ", where they circulate" if curves.turns and curves.moves else ": no escape from it"
    words = f"the tokens left {curves.target} within the dominant eigenspace of V{circulate}"
    if curves.is_bound:
        words += "; the distance is an upper bound, they may only have changed places"
    return words


def _swing(curves: Approach, trajectory: Run, least: int) -> tuple[tuple[Phase, ...], str]:
    """A distance that grows again where theory has no escape."""
    found = (_concentration(curves, trajectory, least),) if least > 0 else ()
    return found, (
        f"{curves.what} swings: after t = {curves.ts[least]:.4g} it grew again from"
        f" {curves.distance[least]:.3g} to {np.max(curves.distance[least:]):.3g}{ALIKE}"
    )


def _without_approach(curves: Approach, trajectory: Run, least: int) -> tuple[tuple[Phase, ...], str]:
    """A run that never came near its target; it may still have ended in V's eigenspace."""
    best = f"{curves.distance[least]:.3g} at best" + " on the first approach" * curves.turns
    words = (
        f"no concentration at the {len(curves.ts)} saved times: {curves.what} was {curves.distance[0]:.3g} at"
        f" first and {best}, less than a factor 2 below what came before"
    )
    end = _settled(curves, 0)
    if end is None:
        return (), words
    return (_terminal(curves, trajectory, end),), words + "; the tokens ended in the dominant eigenspace of V"


def _first_valley(distance: np.ndarray, floor: float) -> int:
    """Index of the least value before the curve first rises clear of it."""
    low = np.minimum.accumulate(distance)
    risen = np.flatnonzero(distance > np.maximum(RISEN * low, floor))
    return int(np.argmin(distance[: risen[0] + 1] if risen.size else distance))


def _stretch(inside: np.ndarray, middle: int) -> tuple[int, int]:
    """First and last index of the run of True around `middle`."""
    outside = np.flatnonzero(~inside)
    below, above = outside[outside < middle], outside[outside > middle]
    return (int(below[-1]) + 1 if below.size else 0), (int(above[0]) - 1 if above.size else len(inside) - 1)


def falling(ts: np.ndarray, distance: np.ndarray, enter: int) -> bool:
    """Whether a curve that is within a factor 2 of its least value from `enter` on falls to its end."""
    if distance[-1] > TURNED * np.min(distance):
        return False
    if enter == len(ts) - 1:  # by more than a factor 2 since the time before
        return True
    middle = np.exp(np.interp((ts[enter] + ts[-1]) / 2, ts, np.log(np.maximum(distance, FLOOR))))
    return bool(np.log(middle / max(distance[-1], FLOOR)) > FALLING)


def _settled(curves: Approach, after: int) -> int | None:
    """First index from which the tokens stay near V's eigenspace."""
    outside = np.flatnonzero(curves.to_end > curves.near)
    start = max(int(outside[-1]) + 1 if outside.size else 0, after)
    return start if curves.near > 0 and start < len(curves.ts) else None


class _Rate(NamedTuple):
    """Rate of a phase and its interval, None if it has none, and what is said of it."""

    value: float | None
    interval: tuple[float, float] | None
    words: str


def _rate(curves: Approach, values: np.ndarray, start: int, stop: int, sign: int = 1) -> _Rate:
    """The exponential through the points above the floor, start to stop inclusive; sign −1: its growth."""
    t, v = curves.ts[start : stop + 1], values[start : stop + 1]
    keep = v > curves.floor
    if np.sum(keep) < FEWEST:
        return _no_rate(f"with too few saved times in between and above {curves.floor:.2g} for a rate")
    fit = fit_rate(t[keep], v[keep], model="exponential")
    low, high = sorted(sign * end for end in fit.interval)
    words = f", at the rate {sign * fit.rate:.3g} ({low:.3g} to {high:.3g})"
    if fit.misfit > MISFIT:
        words += f" in the mean: it is no exponential, which misses it by {fit.misfit:.2g} in the logarithm"
    return _Rate(sign * fit.rate, (low, high), words)


def _no_rate(why: str) -> _Rate:
    return _Rate(None, None, f", {why}")


def _concentration(curves: Approach, trajectory: Run, stop: int) -> Phase:
    logs = np.log(np.maximum(curves.distance[: stop + 1], curves.floor))
    top = int(np.argmax(logs))
    # the first quarter of the way, in the logarithm, still depends on ρ0
    start = top + int(np.argmax(logs[top:] <= logs[top] + (logs[-1] - logs[top]) / 4))
    if stop + 1 - start < FEWEST:
        start = top
    rose = f", after a rise from {curves.distance[0]:.3g}" if logs[top] > logs[0] + FALLING else ""
    words = f"{curves.what} fell from {curves.distance[top]:.3g} to {curves.distance[stop]:.3g}{rose}"
    if curves.kind == "algebraic":
        rate = _no_rate("without an exponential rate: D is defective, and a token approaches like 1/t")
    else:
        rate = _rate(curves, curves.distance, start, stop)
    return _phase("concentration", curves, trajectory, (0, stop), words, rate)


def _metastable(curves: Approach, trajectory: Run, start: int, stop: int) -> Phase:
    part = curves.distance[start : stop + 1]
    least = curves.ts[start + int(np.argmin(part))]
    words = f"the distance stayed between {part.min():.3g}, at t = {least:.4g}, and {part.max():.3g}"
    if FACTOR * part.min() < curves.floor:
        words = f"the distance stayed below {curves.floor:.3g}"
    return _phase("metastable", curves, trajectory, (start, stop), words, _Rate(None, None, ""))


def _escape(curves: Approach, trajectory: Run, start: int, stop: int) -> Phase:
    # growth is exponential only while clusters are near E: up to a third of the way, or half of it in the
    # logarithm where the escape begins far out
    part = curves.distance[start : stop + 1]
    far = np.flatnonzero(part > max(part.max() / 3, np.sqrt(part[0] * part.max())))
    near = start + int(far[0] if far.size else stop - start)
    rate = _rate(curves, curves.distance, start, near, -1)
    if part[0] > part.max() / FACTOR:
        rate = _no_rate("by less than a factor 2, which is no growth from near E and has no rate")
    words = f"{curves.what} grew from {part[0]:.3g} to {part[-1]:.3g}"
    return _phase("escape", curves, trajectory, (start, stop), words, rate)


def _terminal(curves: Approach, trajectory: Run, start: int) -> Phase:
    last = len(curves.ts) - 1
    # at first the tokens that came last weigh most, in the end the solver's tolerance: the later half of the
    # points before the curve comes near its least value counts
    angle = curves.to_end[start:]
    low = np.flatnonzero(angle <= max(curves.floor, CLEAR * np.min(angle)))
    count = int(low[0]) if low.size else len(angle)
    half = start + (count // 2 if count >= 2 * FEWEST else 0)
    rate = _rate(curves, curves.to_end, half, start + count - 1)
    words = f"the root mean square angle to the dominant eigenspace of V was {angle[0]:.3g}"
    if start < last:
        words += f" at first and {angle[-1]:.3g} in the end"
    return _phase("terminal", curves, trajectory, (start, last), words, rate)


def _phase(
    name: Name, curves: Approach, trajectory: Run, span: tuple[int, int], words: str, rate: _Rate
) -> Phase:
    start, stop = (float(curves.ts[k]) for k in span)
    number = cluster_count(trajectory.tokens(span[1]))
    count = f"{number} cluster" + "s" * (number != 1)
    sentence = (
        f"{name}, t = {start:.4g} to {stop:.4g}: {words}{rate.words}; {count} (linked by steps below {ANGLE})"
        " at its end."
    )
    to_limit, to_end = float(curves.to_limit[span[1]]), float(curves.to_end[span[1]])
    return Phase(name, start, stop, rate.value, rate.interval, to_limit, to_end, number, sentence)
