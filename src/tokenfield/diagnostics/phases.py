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
from tokenfield.diagnostics.clusters import clusters
from tokenfield.diagnostics.rates import FEWEST, fit_rate
from tokenfield.diagnostics.transport import limit_distance, wasserstein
from tokenfield.errors import require, require_kind
from tokenfield.theory.spectral import Limit, dominant, limit
from tokenfield.tokens import Tokens
from tokenfield.trajectory import Trajectory
from tokenfield.weights import AttentionWeights

Name = Literal["concentration", "metastable", "escape", "terminal"]

#: Metastable means within this factor of the least distance (theory §2.7).
FACTOR = 2.0
#: Root mean square angle to the dominant eigenspace of V below which the run is terminal.
TOLERANCE = 0.05
#: Angles below this, or below ten times the solver's tolerance, are noise; they have no rate.
FLOOR = 1e-6
#: So many times its least value a falling curve is clear of the level at which it may have stopped falling.
CLEAR = 10.0
#: What is said where V's dominant eigenspace holds that of D.
ALIKE = "; the dominant eigenspace of V holds that of D, so no escape is predicted"
#: What is said of multiples of the identity, and of rotations of the whole space.
WHOLE = "the dominant eigenspaces of D and of V are the whole space: nothing to come near to"
#: Tokens linked by steps of this angle are one cluster; clusters of less mass than this are not counted, and
#: tokens of less than this part of the mean mass link nothing.
ANGLE, STRAY = 0.1, 1e-3
#: A curve within a factor 2 of its least value falls on if it is within `TURNED` of it now, and lost at least
#: `FALLING` of its logarithm in the later half of that time (e^{−t} loses .35, 1/t .29, t^{−1/2} .24).
TURNED, FALLING = 1.05, 0.1


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


#: A run of tokens or of a density.
Run = Trajectory | DensityTrajectory


class _Curves(NamedTuple):
    """What is measured over time; `floor`: where noise begins; `target`: that to which `distance` is one.

    `ends`: whether there is an end to come to, that is whether V is not a multiple of the identity.
    `algebraic`: whether D is defective, so that the approach has no exponential rate.
    """

    ts: np.ndarray
    distance: np.ndarray
    to_limit: np.ndarray
    to_end: np.ndarray
    floor: float
    target: str
    ends: bool
    algebraic: bool


def phases(trajectory: Run, weights: AttentionWeights) -> Phases:
    """Concentration, metastable, escape and terminal phase of a run, with times, rates and cluster counts.

    The distance is W2 (geodesic) to Π♯ρ0, ρ0 the first snapshot. If E is a line this is exact, a transport to
    two atoms; otherwise it is the cost of the coupling x_i(t) ↔ Π(x_i(0)), an upper bound of W2, or for a
    density on fixed nodes `wasserstein`. If D rotates, and there is no limit law, it is the root mean square
    angle to E.

    - concentration: until the distance is within a factor 2 of its least value, if it began above that;
    - metastable: within that factor, if the least value is at most half of what came before (or the run began
      within 0.05 of Π♯ρ0), and if the tokens leave again or rest there: a curve that just falls until the
      run ends is concentration to the end;
    - terminal: from when, after the tokens left Π♯ρ0 or if they never came near it, the root mean square
      angle to the dominant eigenspace of V stays below 0.05;
    - escape: between the two, or to the end of the run. None if the dominant eigenspace of V holds that of D:
      a distance that grows again then swings.
    """
    if not isinstance(trajectory, DensityTrajectory):
        require_kind(trajectory, Trajectory, "trajectory")
    require_kind(weights, AttentionWeights, "weights")
    count = len(trajectory.snapshot_ts)
    require(count >= 2, "trajectory", "hold at least two snapshots", f"with {count}")
    d = trajectory.tokens(0).d
    require(weights.d == d, "weights", f"have the dimension {d} of the tokens", weights.d)
    of_D, of_V = limit(weights), dominant(np.asarray(weights.stacked()[1][0]))
    curves, method = _measure(trajectory, of_D, of_V)
    whole = of_D.kind != "algebraic" and of_D.dimension == of_V.dimension == d
    found, note = ((), WHOLE) if whole else _find(curves, trajectory, of_D, of_V)
    least = int(np.argmin(curves.distance))
    return Phases(found, note, *curves[:4], method, float(curves.distance[least]), float(curves.ts[least]))


def angle_to(tokens: Tokens, basis: Float[np.ndarray, "d k"]) -> Float[np.ndarray, "n"]:
    """Angle of every token to the subspace with that orthonormal basis."""
    x = np.asarray(tokens.x)
    inside = x @ basis
    return np.arctan2(np.linalg.norm(x - inside @ basis.T, axis=1), np.linalg.norm(inside, axis=1))


def cluster_count(tokens: Tokens) -> int:
    """Clusters (single linkage at 0.1) that hold at least a thousandth of the mass."""
    w = np.asarray(tokens.weights)
    heavy = w >= STRAY / tokens.n
    found = clusters(Tokens(np.asarray(tokens.x)[heavy], w[heavy] / w[heavy].sum()), ANGLE)
    return int(np.sum(np.asarray(found.centres.weights) >= STRAY))


def _rms_angle(tokens: Tokens, basis: np.ndarray) -> float:
    return float(np.sqrt(np.asarray(tokens.weights) @ angle_to(tokens, basis) ** 2))


def _measure(trajectory: Run, of_D: Limit, of_V: Limit) -> tuple[_Curves, str]:
    to_limit = trajectory.measure(lambda tokens: _rms_angle(tokens, of_D.basis))
    to_end = trajectory.measure(lambda tokens: _rms_angle(tokens, of_V.basis))
    distance, method = _distance(trajectory, of_D, to_limit)
    target = "E" if of_D.kind == "rotating" else "Π♯ρ0"
    ts, ends = np.asarray(trajectory.snapshot_ts), of_V.dimension < len(of_V.basis)
    measured = (ts, distance, to_limit, to_end)
    return _Curves(*measured, _floor(trajectory), target, ends, of_D.kind == "algebraic"), method


def _floor(trajectory: Run) -> float:
    solver = trajectory.inputs.get("solver")
    tolerance = solver.get("rtol", 0.0) if isinstance(solver, dict) else 0.0
    return max(FLOOR, 10 * float(tolerance))


def _distance(trajectory: Run, of_D: Limit, to_limit: np.ndarray) -> tuple[np.ndarray, str]:
    """The distance over time, and what it is."""
    if of_D.kind == "rotating":
        return to_limit, "root mean square angle to E: D rotates, there is no limit law"
    start = trajectory.tokens(0)
    if of_D.dimension > 1 and isinstance(trajectory, DensityTrajectory) and not trajectory.domain.moving:
        end = of_D.push(start)
        found = [wasserstein(trajectory.tokens(k), end) for k in range(len(to_limit))]
        return np.array([w.value for w in found]), f"W2 to Π♯ρ0: {found[-1].method}"
    method = "upper bound of W2 to Π♯ρ0: tokens coupled with their ends"
    if of_D.dimension == 1:
        method = "W2 to Π♯ρ0, exact (few atoms)"
    return trajectory.measure(limit_distance(of_D, start)), method


def _contains(large: Limit, small: Limit) -> bool:
    """Whether the eigenspace of `large` holds that of `small`, to 1e-6."""
    beside = small.basis - large.basis @ (large.basis.T @ small.basis)
    return bool(np.linalg.norm(beside, 2) < FLOOR)


def _find(curves: _Curves, trajectory: Run, of_D: Limit, of_V: Limit) -> tuple[tuple[Phase, ...], str]:
    """The phases and a note."""
    distance, target, last = curves.distance, curves.target, len(curves.ts) - 1
    if np.max(distance) < curves.floor:
        return (), f"nothing happened: the tokens began in {_place(curves)} and stayed there"
    least = int(np.argmin(distance))
    before = float(np.max(distance[: least + 1]))
    if distance[least] > before / FACTOR and distance[0] > TOLERANCE:
        return _without_approach(curves, trajectory, before)
    same = _contains(of_V, of_D)
    alike = ALIKE if same else ""
    enter, leave = _stretch(distance <= max(FACTOR * distance[least], curves.floor), least)
    if leave == last and enter > 0 and distance[last] > curves.floor and falling(curves.ts, distance, enter):
        words = f"the distance to {target} was still falling when the run ended: concentration only"
        return (_concentration(curves, trajectory, last),), words + alike
    end = _settled(curves, leave)
    within = end == leave and np.max(distance[leave:]) > TOLERANCE  # from one place of E to another
    if leave < last and same and not within:
        return _swing(curves, trajectory, enter, leave, before)
    found = [_concentration(curves, trajectory, enter)] if enter > 0 else []
    if leave > 0:
        found.append(_metastable(curves, trajectory, enter, leave))
    if leave == last:
        rest = "circulate in E" if of_D.kind == "rotating" else f"stay near {target}"
        return tuple(found), f"the tokens {rest} and had not left when the run ended{alike}"
    if end is not None and end == leave:
        found.append(_terminal(curves, trajectory, end))
        words = f"the tokens left {target} within the dominant eigenspace of V: no escape from it"
        return tuple(found), words
    found.append(_escape(curves, trajectory, leave, last if end is None else end))
    if end is None:
        return tuple(found), (
            f"the tokens left {target} and had not reached the dominant eigenspace of V when the run ended:"
            f" root mean square angle {curves.to_end[-1]:.3g}"
        )
    found.append(_terminal(curves, trajectory, end))
    missing = "" if enter > 0 else f"the run began near {target}; "
    return tuple(found), missing + f"the tokens left {target} and ended in the dominant eigenspace of V"


def _place(curves: _Curves) -> str:
    return "E, where they circulate," if curves.target == "E" else f"the limit law {curves.target}"


def _swing(
    curves: _Curves, trajectory: Run, enter: int, leave: int, before: float
) -> tuple[tuple[Phase, ...], str]:
    """A distance that grows again where theory has no escape."""
    distance, last = curves.distance, len(curves.ts) - 1
    stop = last if distance[last] <= before / FACTOR else enter
    found = (_concentration(curves, trajectory, stop),) if stop > 0 else ()
    return found, (
        f"the distance to {curves.target} swings: after t = {curves.ts[leave]:.4g} it grew again from"
        f" {distance[leave]:.3g} to {np.max(distance[leave:]):.3g}{ALIKE}"
    )


def _without_approach(curves: _Curves, trajectory: Run, before: float) -> tuple[tuple[Phase, ...], str]:
    """A run that never came near its target; it may still have ended in V's eigenspace."""
    words = (
        f"no concentration: the distance to {curves.target} fell from {before:.3g} to"
        f" {np.min(curves.distance):.3g} at best, less than a factor 2"
    )
    end = _settled(curves, 0)
    if end is None:
        return (), words
    return (_terminal(curves, trajectory, end),), words + "; the tokens ended in the dominant eigenspace of V"


def _stretch(inside: np.ndarray, middle: int) -> tuple[int, int]:
    """First and last index of the run of True around `middle`."""
    outside = np.flatnonzero(~inside)
    below, above = outside[outside < middle], outside[outside > middle]
    return (int(below[-1]) + 1 if below.size else 0), (int(above[0]) - 1 if above.size else len(inside) - 1)


def falling(ts: np.ndarray, distance: np.ndarray, enter: int) -> bool:
    """Whether a curve that is within a factor 2 of its least value from `enter` on falls to its end."""
    if distance[-1] > TURNED * np.min(distance):
        return False
    middle = np.exp(np.interp((ts[enter] + ts[-1]) / 2, ts, np.log(np.maximum(distance, FLOOR))))
    return bool(np.log(middle / max(distance[-1], FLOOR)) > FALLING)


def _settled(curves: _Curves, after: int) -> int | None:
    """First index from which the tokens stay within the tolerance of V's eigenspace."""
    outside = np.flatnonzero(curves.to_end > TOLERANCE)
    start = max(int(outside[-1]) + 1 if outside.size else 0, after)
    return start if curves.ends and start < len(curves.ts) else None


def _rate(
    curves: _Curves, values: np.ndarray, start: int, stop: int
) -> tuple[float | None, tuple[float, float] | None]:
    """Decay rate of the exponential through the points above the floor, start to stop inclusive."""
    t, v = curves.ts[start : stop + 1], values[start : stop + 1]
    keep = v > curves.floor
    if np.sum(keep) < FEWEST:
        return None, None
    fit = fit_rate(t[keep], v[keep], model="exponential")
    return fit.rate, fit.interval


def _concentration(curves: _Curves, trajectory: Run, stop: int) -> Phase:
    # the first quarter of the way, in the logarithm, still depends on ρ0
    logs = np.log(np.maximum(curves.distance[: stop + 1], curves.floor))
    start = int(np.argmax(logs <= logs[0] + (logs[-1] - logs[0]) / 4))
    if stop + 1 - start < FEWEST:
        start = 0
    words = (
        f"the distance to {curves.target} fell from {curves.distance[0]:.3g} to {curves.distance[stop]:.3g}"
    )
    if curves.algebraic:
        words += ", in the end like 1/t: D is defective, there is no exponential rate"
        return _phase("concentration", curves, trajectory, (0, stop), None, None, words)
    rate, interval = _rate(curves, curves.distance, start, stop)
    return _phase("concentration", curves, trajectory, (0, stop), rate, interval, words)


def _metastable(curves: _Curves, trajectory: Run, start: int, stop: int) -> Phase:
    part = curves.distance[start : stop + 1]
    least = curves.ts[start + int(np.argmin(part))]
    words = f"the distance stayed within a factor 2 of its least value {part.min():.3g} at t = {least:.4g}"
    if FACTOR * part.min() < curves.floor:
        words = f"the distance stayed below {curves.floor:.3g}"
    return _phase("metastable", curves, trajectory, (start, stop), None, None, words)


def _escape(curves: _Curves, trajectory: Run, start: int, stop: int) -> Phase:
    # growth is exponential only while clusters are near E: up to a third of the way, or half of it in the
    # logarithm where the escape begins far out
    part = curves.distance[start : stop + 1]
    far = np.flatnonzero(part > max(part.max() / 3, np.sqrt(part[0] * part.max())))
    rate, interval = _rate(curves, curves.distance, start, start + int(far[0] if far.size else stop - start))
    growth = None if rate is None else -rate
    turned = None if interval is None else (-interval[1], -interval[0])
    words = f"the distance grew from {part[0]:.3g} to {part[-1]:.3g}"
    return _phase("escape", curves, trajectory, (start, stop), growth, turned, words)


def _terminal(curves: _Curves, trajectory: Run, start: int) -> Phase:
    last = len(curves.ts) - 1
    # at first the tokens that came last weigh most, in the end the solver's tolerance: the later half of the
    # points before the curve comes near its least value counts
    angle = curves.to_end[start:]
    low = np.flatnonzero(angle <= max(curves.floor, CLEAR * np.min(angle)))
    count = int(low[0]) if low.size else len(angle)
    half = start + (count // 2 if count >= 2 * FEWEST else 0)
    rate, interval = _rate(curves, curves.to_end, half, start + count - 1)
    words = (
        f"the root mean square angle to the dominant eigenspace of V fell from {curves.to_end[start]:.3g}"
        f" to {curves.to_end[-1]:.3g}"
    )
    return _phase("terminal", curves, trajectory, (start, last), rate, interval, words)


def _phase(
    name: Name,
    curves: _Curves,
    trajectory: Run,
    span: tuple[int, int],
    rate: float | None,
    interval: tuple[float, float] | None,
    words: str,
) -> Phase:
    start, stop = (float(curves.ts[k]) for k in span)
    if rate is not None and interval is not None:
        words += f", at the rate {rate:.3g} ({interval[0]:.3g} to {interval[1]:.3g})"
    elif name != "metastable" and not (name == "concentration" and curves.algebraic):
        words += f", with too few saved times in between and above {curves.floor:.2g} for a rate"
    number = cluster_count(trajectory.tokens(span[1]))
    count = f"{number} cluster" + "s" * (number != 1)
    sentence = f"{name}, t = {start:.4g} to {stop:.4g}: {words}; {count} at its end."
    to_limit, to_end = float(curves.to_limit[span[1]]), float(curves.to_end[span[1]])
    return Phase(name, start, stop, rate, interval, to_limit, to_end, number, sentence)
