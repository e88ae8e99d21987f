"""The phases of a low-temperature run (2605.10931; theory §2.6–2.7): concentrate, stay, leave, end.

Tokens first follow the zero-temperature flow to the dominant eigenspace E of D = V Bᵀ, towards the law Π♯ρ0.
Once their clusters are narrower than β^{−1/2} a token sees only its own cluster, and clusters move by
y' = P_y V y: they leave E and end in the dominant eigenspace of V. `phases` finds out which of this a run
shows, and says so when it shows none of it.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from tokenfield.density.result import DensityTrajectory
from tokenfield.errors import require, require_kind
from tokenfield.laws.tokens import Tokens
from tokenfield.measure.approach import Approach, Run, measure
from tokenfield.measure.classification import Name, Span, classify
from tokenfield.measure.clusters import CLUSTER_ANGLE, clusters
from tokenfield.measure.of_run import weights_of
from tokenfield.measure.phase_rates import phase_rate
from tokenfield.measure.words import note, sentence
from tokenfield.models.weights import AttentionWeights
from tokenfield.runs.trajectory import Trajectory

#: Clusters of less mass than this are not counted, and tokens of less than this part of the mean mass link
#: nothing.
NEGLIGIBLE_MASS = 1e-3


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


def phases(trajectory: Run, weights: AttentionWeights | None = None) -> Phases:
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

    Of several heads (theory §6.7) Π takes every token to its own attractor of the zero-temperature flow, E
    are the lines of these attractors, and V stands for ΣV_h; refused if in d ≥ 3 some token does not come to
    rest.

    Where V turns a plane that holds E, clusters pass by Π♯ρ0 again and again: the first approach counts.
    """
    if not isinstance(trajectory, DensityTrajectory):
        require_kind(trajectory, Trajectory, "trajectory")
        bad = np.flatnonzero(~np.all(np.isfinite(trajectory.x), axis=(1, 2)))
        require(bad.size == 0, "trajectory", "hold finite tokens", f"not, at snapshot {bad[:1]}")
    weights = weights_of(trajectory, weights)
    count = len(trajectory.snapshot_ts)
    require(count >= 2, "trajectory", "hold at least two snapshots", f"with {count}")
    d = trajectory.tokens(0).d
    require(weights.d == d, "weights", f"have the dimension {d} of the tokens", weights.d)
    curves = measure(trajectory, weights)
    found = classify(curves)
    least = int(np.argmin(curves.distance))
    return Phases(
        found=tuple(_phase(curves, trajectory, span) for span in found.spans),
        note=note(curves, found, trajectory),
        ts=curves.ts,
        distance=curves.distance,
        to_limit=curves.to_limit,
        to_end=curves.to_end,
        method=curves.method,
        minimum=float(curves.distance[least]),
        minimum_time=float(curves.ts[least]),
    )


def cluster_count(tokens: Tokens) -> int:
    """Clusters (single linkage at 0.1) that hold at least a thousandth of the mass."""
    w = np.asarray(tokens.weights)
    heavy = w >= NEGLIGIBLE_MASS / tokens.n
    found = clusters(Tokens(np.asarray(tokens.x)[heavy], w[heavy] / w[heavy].sum()), CLUSTER_ANGLE)
    return int(np.sum(np.asarray(found.centres.weights) >= NEGLIGIBLE_MASS))


def _phase(curves: Approach, trajectory: Run, span: Span) -> Phase:
    rate, number = phase_rate(curves, span), cluster_count(trajectory.tokens(span.stop))
    counted = f"{number} cluster{'s' * (number != 1)} (linked by steps below {CLUSTER_ANGLE})"
    return Phase(
        name=span.name,
        start=float(curves.ts[span.start]),
        stop=float(curves.ts[span.stop]),
        rate=rate.value,
        interval=rate.interval,
        to_limit=float(curves.to_limit[span.stop]),
        to_end=float(curves.to_end[span.stop]),
        clusters=number,
        sentence=sentence(curves, span, rate, counted),
    )
