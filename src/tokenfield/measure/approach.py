"""How near a run is to where it should concentrate, E of D = V Bᵀ, and to where it should end, that of V.

`measure` makes the curves that `phases` judges, over the saved times of a run, and notes what is known of
the places they are about. Distances are angles: W2 to Π♯ρ0, root mean square angles to E and to where
y' = P_y V y ends.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from tokenfield.density.result import DensityTrajectory
from tokenfield.measure.prediction import NOISE_ANGLE, Prediction, end_space, predict, sees_itself
from tokenfield.measure.target import Target, rms_angle, target_of
from tokenfield.measure.transport import coupled_distance, wasserstein
from tokenfield.models.weights import AttentionWeights
from tokenfield.runs.trajectory import Trajectory
from tokenfield.theory.spectral import Kind, dominant

#: Root mean square angle to V's end space below which a run is terminal, if Π♯ρ0 is at least twice as far
#: from there.
END_ANGLE = 0.05

#: A run of tokens or of a density.
Run = Trajectory | DensityTrajectory


@dataclass(frozen=True, eq=False)
class Approach:
    """Curves over the times `ts` of a run, and what is known of the places they are about.

    `distance` to Π♯ρ0, or to E if D rotates; `method`: how it was found. `to_limit`, `to_end`: root mean
    square angles to E and to V's end space. `floor`: where noise begins. `end_angle`: the angle to V's end
    space that counts as being there, None if that is the whole space. `prediction`: what V does with clusters
    at Π♯ρ0; `sees_itself`: whether clusters of E attend to themselves. `kind`: of D. `missed`: mass of the
    tokens that began where P_E x = 0. `whole`: whether E and V's eigenspace are both the whole space.
    `moves`: whether tokens still moved between the last two times. `heads`: with more than one, E are the
    lines of the attractors of `theory.attractors`, and V stands for ΣV_h.
    """

    ts: Float[np.ndarray, "times"]
    distance: Float[np.ndarray, "times"]
    to_limit: Float[np.ndarray, "times"]
    to_end: Float[np.ndarray, "times"]
    method: str
    floor: float
    end_angle: float | None
    prediction: Prediction
    sees_itself: bool
    kind: Kind
    missed: float
    whole: bool
    moves: bool
    heads: int

    @property
    def is_bound(self) -> bool:
        """Whether the distance is only bounded from above."""
        return self.method.startswith("upper bound")


def measure(run: Run, weights: AttentionWeights) -> Approach:
    """The curves of a run of at least two snapshots, and what theory says of its weights."""
    start = run.tokens(0)
    target, of_V = target_of(weights, start), dominant(np.sum(np.asarray(weights.stacked()[1]), axis=0))
    end = end_space(of_V)
    to_limit = run.measure(target.rms_angle)
    distance, method = _distance(run, target, to_limit)
    apart = target.separation(end)
    return Approach(
        ts=np.asarray(run.snapshot_ts),
        distance=distance,
        to_limit=to_limit,
        to_end=run.measure(lambda tokens: rms_angle(tokens, end)),
        method=method,
        floor=_floor(run),
        end_angle=_end_angle(apart) if end.shape[1] < len(end) else None,
        prediction=predict(weights, target.spaces, of_V, apart),
        sees_itself=sees_itself(weights, target.spaces),
        kind=target.kind,
        missed=target.missed,
        whole=target.kind != "algebraic" and target.whole and of_V.dimension == len(end),
        moves=_last_move(run) > 10 * _floor(run),
        heads=weights.heads,
    )


def _end_angle(apart: float) -> float:
    """The angle that counts as being in the end space; half the way there from Π♯ρ0 if that is less."""
    return min(END_ANGLE, apart / 2) if apart > NOISE_ANGLE else END_ANGLE


def _last_move(run: Run) -> float:
    """Root mean square angle by which the tokens moved between the last two times; 0 if nodes do not move."""
    before, now = run.tokens(-2), run.tokens(-1)
    return coupled_distance(before.x, now.x, now.weights) if before.n == now.n else 0.0


def _floor(run: Run) -> float:
    solver = run.inputs.get("solver")
    tolerance = solver.get("rtol", 0.0) if isinstance(solver, dict) else 0.0
    return max(NOISE_ANGLE, 10 * float(tolerance))


def _distance(run: Run, target: Target, to_limit: np.ndarray) -> tuple[np.ndarray, str]:
    """The distance over time, and what it is."""
    to_law = target.to_law
    if to_law is None:
        return to_limit, "root mean square angle to E: D rotates, there is no limit law"
    if to_law.exact:
        return run.measure(to_law), "W2 to Π♯ρ0, exact (few atoms)"
    if isinstance(run, DensityTrajectory) and not run.domain.moving:
        found = [wasserstein(run.tokens(k), to_law.end) for k in range(len(to_limit))]
        return np.array([w.value for w in found]), f"W2 to Π♯ρ0: {found[-1].method}"
    return run.measure(to_law), "upper bound of W2 to Π♯ρ0: tokens coupled with their ends"
