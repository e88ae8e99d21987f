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
from tokenfield.diagnostics.transport import coupled_to, wasserstein
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
#: Angles below this are rounding or the solver's tolerance; they have no rate.
FLOOR = 1e-6
#: So many times its least value a falling curve is clear of the level at which it may have stopped falling.
CLEAR = 10.0
#: Tokens linked by steps of this angle are one cluster; clusters of less mass than this are not counted.
ANGLE, STRAY = 0.1, 1e-3
#: A falling curve passes its last factor 2 in log 2/rate; one that stays there this many times as long rests.
REST = 3.0


@dataclass(frozen=True)
class Phase:
    """One phase: from `start` to `stop`, in the time of the run.

    `rate`, `interval`: of the exponential that fits the phase's own distance, positive if that is what the
    phase is about: the distance to Π♯ρ0 falls (concentration) or grows (escape), the distance to the dominant
    eigenspace of V falls (terminal). None where there are too few saved times, and for a metastable phase.
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
    ts: np.ndarray
    distance: np.ndarray
    to_limit: np.ndarray
    to_end: np.ndarray


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
    - terminal: from when the root mean square angle to the dominant eigenspace of V stays below 0.05;
    - escape: between the two, or to the end of the run.
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
    found, note = _find(curves, trajectory, _contains(of_V, of_D))
    least = int(np.argmin(curves.distance))
    return Phases(found, note, *curves, method, float(curves.distance[least]), float(curves.ts[least]))


def angle_to(tokens: Tokens, basis: Float[np.ndarray, "d k"]) -> Float[np.ndarray, "n"]:
    """Angle of every token to the subspace with that orthonormal basis."""
    x = np.asarray(tokens.x)
    inside = x @ basis
    return np.arctan2(np.linalg.norm(x - inside @ basis.T, axis=1), np.linalg.norm(inside, axis=1))


def cluster_count(tokens: Tokens) -> int:
    """Clusters (single linkage at 0.1) that hold at least a thousandth of the mass."""
    return int(np.sum(np.asarray(clusters(tokens, ANGLE).centres.weights) >= STRAY))


def _rms_angle(tokens: Tokens, basis: np.ndarray) -> float:
    return float(np.sqrt(np.asarray(tokens.weights) @ angle_to(tokens, basis) ** 2))


def _measure(trajectory: Run, of_D: Limit, of_V: Limit) -> tuple[_Curves, str]:
    to_limit = trajectory.measure(lambda tokens: _rms_angle(tokens, of_D.basis))
    to_end = trajectory.measure(lambda tokens: _rms_angle(tokens, of_V.basis))
    ts = np.asarray(trajectory.snapshot_ts)
    if of_D.kind == "rotating":
        return _Curves(
            ts, to_limit, to_limit, to_end
        ), "root mean square angle to E: D rotates, there is no limit law"
    end = of_D.push(trajectory.tokens(0))
    if of_D.dimension == 1:
        distance = trajectory.measure(lambda tokens: wasserstein(tokens, end).value)
        return _Curves(ts, distance, to_limit, to_end), "W2 to Π♯ρ0, exact (two atoms)"
    if isinstance(trajectory, DensityTrajectory) and not trajectory.domain.moving:
        found = [wasserstein(trajectory.tokens(k), end) for k in range(len(ts))]
        return _Curves(
            ts, np.array([w.value for w in found]), to_limit, to_end
        ), f"W2 to Π♯ρ0: {found[-1].method}"
    distance = trajectory.measure(coupled_to(end))
    return _Curves(
        ts, distance, to_limit, to_end
    ), "upper bound of W2 to Π♯ρ0: tokens coupled with their own ends"


def _contains(large: Limit, small: Limit) -> bool:
    """Whether the eigenspace of `large` holds that of `small`, to 1e-6."""
    beside = small.basis - large.basis @ (large.basis.T @ small.basis)
    return bool(np.linalg.norm(beside, 2) < FLOOR)


def _find(curves: _Curves, trajectory: Run, same: bool) -> tuple[tuple[Phase, ...], str]:
    """The phases and a note; `same` if V's dominant eigenspace holds that of D, so that none need leave."""
    ts, distance = curves.ts, curves.distance
    last = len(ts) - 1
    if np.max(distance) < FLOOR:
        return (), "nothing happened: the tokens began in the limit law Π♯ρ0 and stayed there"
    least = int(np.argmin(distance))
    before = float(np.max(distance[: least + 1]))
    near = distance[least] <= before / FACTOR or distance[0] <= TOLERANCE
    if not near:
        return _without_approach(curves, trajectory, before)
    inside = distance <= max(FACTOR * distance[least], FLOOR)
    enter, leave = _stretch(inside, least)
    found = []
    rate = _rate(ts, np.maximum(distance, FLOOR), 0, enter)[0] if enter else None
    falls = leave == last and enter > 0 and not _rests(ts, distance, enter, rate)
    if falls:
        enter = last
    if enter > 0:
        found.append(_concentration(curves, trajectory, enter))
    if falls:
        words = "the distance to Π♯ρ0 was still falling when the run ended: concentration only"
        return tuple(found), words + _coincidence(same)
    found.append(_metastable(curves, trajectory, enter, leave))
    if leave == last:
        return tuple(found), "the tokens rest at Π♯ρ0 and had not left when the run ended" + _coincidence(
            same
        )
    end = _settled(curves.to_end, leave)
    if end is not None and end == leave:
        found.append(_terminal(curves, trajectory, end))
        return tuple(found), "the tokens left Π♯ρ0 within the dominant eigenspace of V: no escape from it"
    found.append(_escape(curves, trajectory, leave, last if end is None else end))
    if end is None:
        return tuple(found), (
            "the tokens left Π♯ρ0 and had not reached the dominant eigenspace of V when the run ended:"
            f" root mean square angle {curves.to_end[-1]:.3g}"
        )
    found.append(_terminal(curves, trajectory, end))
    missing = "" if found[0].name == "concentration" else "the run began near Π♯ρ0; "
    return tuple(found), missing + "the tokens left Π♯ρ0 and ended in the dominant eigenspace of V"


def _coincidence(same: bool) -> str:
    return "; the dominant eigenspace of V holds that of D, so no escape is predicted" if same else ""


def _without_approach(curves: _Curves, trajectory: Run, before: float) -> tuple[tuple[Phase, ...], str]:
    """A run that never came near Π♯ρ0; it may still have ended in V's eigenspace."""
    words = (
        f"no concentration: the distance to Π♯ρ0 fell from {before:.3g} to {np.min(curves.distance):.3g} at"
        " best, less than a factor 2"
    )
    end = _settled(curves.to_end, 0)
    if end is None:
        return (), words
    return (_terminal(curves, trajectory, end),), words + "; the tokens ended in the dominant eigenspace of V"


def _stretch(inside: np.ndarray, middle: int) -> tuple[int, int]:
    """First and last index of the run of True around `middle`."""
    outside = np.flatnonzero(~inside)
    below, above = outside[outside < middle], outside[outside > middle]
    return (int(below[-1]) + 1 if below.size else 0), (int(above[0]) - 1 if above.size else len(inside) - 1)


def _rests(ts: np.ndarray, distance: np.ndarray, enter: int, rate: float | None) -> bool:
    """Whether the last factor 2 took longer than a curve that keeps falling would take."""
    if np.min(distance) < FLOOR:
        return True
    rate = np.log(distance[0] / distance[enter]) / (ts[enter] - ts[0]) if rate is None else rate
    return bool((ts[-1] - ts[enter]) * rate > REST * np.log(FACTOR))


def _settled(to_end: np.ndarray, after: int) -> int | None:
    """First index from which the tokens stay within the tolerance of V's eigenspace."""
    outside = np.flatnonzero(to_end > TOLERANCE)
    start = max(int(outside[-1]) + 1 if outside.size else 0, after)
    return start if start < len(to_end) else None


def _rate(
    ts: np.ndarray, values: np.ndarray, start: int, stop: int
) -> tuple[float | None, tuple[float, float] | None]:
    """Decay rate of the exponential through the points above the floor, start to stop inclusive."""
    t, v = ts[start : stop + 1], values[start : stop + 1]
    keep = v > FLOOR
    if np.sum(keep) < FEWEST:
        return None, None
    fit = fit_rate(t[keep], v[keep], model="exponential")
    return fit.rate, fit.interval


def _concentration(curves: _Curves, trajectory: Run, stop: int) -> Phase:
    # the first quarter of the way, in the logarithm, still depends on ρ0
    logs = np.log(np.maximum(curves.distance[: stop + 1], FLOOR))
    start = int(np.argmax(logs <= logs[0] + (logs[-1] - logs[0]) / 4))
    if stop + 1 - start < FEWEST:
        start = 0
    rate, interval = _rate(curves.ts, curves.distance, start, stop)
    words = f"the distance to Π♯ρ0 fell from {curves.distance[0]:.3g} to {curves.distance[stop]:.3g}"
    return _phase("concentration", curves, trajectory, (0, stop), rate, interval, words)


def _metastable(curves: _Curves, trajectory: Run, start: int, stop: int) -> Phase:
    part = curves.distance[start : stop + 1]
    least = curves.ts[start + int(np.argmin(part))]
    words = f"the distance stayed within a factor 2 of its least value {part.min():.3g} at t = {least:.4g}"
    return _phase("metastable", curves, trajectory, (start, stop), None, None, words)


def _escape(curves: _Curves, trajectory: Run, start: int, stop: int) -> Phase:
    # growth is exponential only while clusters are near E: up to a third of the way
    part = curves.distance[start : stop + 1]
    far = np.flatnonzero(part > part.max() / 3)
    rate, interval = _rate(curves.ts, curves.distance, start, start + int(far[0]))
    growth = None if rate is None else -rate
    turned = None if interval is None else (-interval[1], -interval[0])
    words = f"the distance grew from {part[0]:.3g} to {part[-1]:.3g}"
    return _phase("escape", curves, trajectory, (start, stop), growth, turned, words)


def _terminal(curves: _Curves, trajectory: Run, start: int) -> Phase:
    last = len(curves.ts) - 1
    # at first the tokens that came last weigh most, in the end the solver's tolerance: the later half of the
    # points before the curve comes near its least value counts
    angle = curves.to_end[start:]
    low = np.flatnonzero(angle <= max(FLOOR, CLEAR * np.min(angle)))
    count = int(low[0]) if low.size else len(angle)
    half = start + (count // 2 if count >= 2 * FEWEST else 0)
    rate, interval = _rate(curves.ts, curves.to_end, half, start + count - 1)
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
    elif name != "metastable":
        words += ", with too few saved times in between for a rate"
    number = cluster_count(trajectory.tokens(span[1]))
    count = f"{number} cluster" + "s" * (number != 1)
    sentence = f"{name}, t = {start:.4g} to {stop:.4g}: {words}; {count} at its end."
    to_limit, to_end = float(curves.to_limit[span[1]]), float(curves.to_end[span[1]])
    return Phase(name, start, stop, rate, interval, to_limit, to_end, number, sentence)
