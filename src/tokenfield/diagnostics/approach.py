"""How near a run is to where it should concentrate, E of D = V Bᵀ, and to where it should end, that of V.

`measure` makes the curves that `phases` judges, and says what theory predicts for clusters that are in E:
they follow y' = P_y V y as long as they see themselves, ⟨Bᵀp, p⟩ > 0 (theory §2.6).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from tokenfield.density.result import DensityTrajectory
from tokenfield.diagnostics.transport import coupled_distance, limit_distance, wasserstein
from tokenfield.theory.spectral import Limit, dominant, limit
from tokenfield.tokens import Tokens
from tokenfield.trajectory import Trajectory
from tokenfield.weights import AttentionWeights

#: Root mean square angle to the dominant eigenspace of V below which the run is terminal, if Π♯ρ0 is at least
#: twice as far from there.
TOLERANCE = 0.05
#: Angles below this, or below ten times the solver's tolerance, are noise; they have no rate.
FLOOR = 1e-6

#: A run of tokens or of a density.
Run = Trajectory | DensityTrajectory


class Approach(NamedTuple):
    """Curves over the times `ts` of a run, and what is known of the places they are about.

    `distance` to Π♯ρ0, or to E if D rotates (`target`); `what`: its name in a sentence, and `method`: how it
    was found. `to_limit`, `to_end`: root mean square angles to E and to where V leads. `floor`: where noise
    begins. `near`: the angle to V's eigenspace that counts as being there, 0 if there is no such place.
    `apart`: whether Π♯ρ0 lies outside of it. `stays`: whether V predicts that clusters of E stay where they
    are; `sees_itself`: whether one sees itself. `turns`: whether V turns a plane that holds Π♯ρ0.
    `kind`: of D. `missed`: mass of the tokens that began where P_E x = 0. `whole`: whether E and V's
    eigenspace are both the whole space. `moves`: whether tokens still moved between the last two times.
    """

    ts: np.ndarray
    distance: np.ndarray
    to_limit: np.ndarray
    to_end: np.ndarray
    method: str
    target: str
    what: str
    floor: float
    near: float
    apart: bool
    stays: bool
    sees_itself: bool
    turns: bool
    kind: str
    missed: float
    whole: bool
    moves: bool

    @property
    def is_bound(self) -> bool:
        """Whether the distance is only bounded from above."""
        return self.method.startswith("upper bound")


def measure(run: Run, weights: AttentionWeights) -> Approach:
    """The curves of a run."""
    B, V = (np.asarray(m[0]) for m in weights.stacked())
    of_D, of_V = limit(weights), dominant(V)
    start, end = run.tokens(0), end_space(of_V)
    to_limit = run.measure(lambda tokens: rms_angle(tokens, of_D.basis))
    distance, method = _distance(run, of_D, to_limit)
    apart = _separation(of_D, start, end)
    space = end.shape[1] < len(end)
    look = of_D.basis.T @ (B + B.T) @ of_D.basis
    sees_itself = bool(np.linalg.eigvalsh(look)[0] > 0)
    target = "E" if of_D.kind == "rotating" else "Π♯ρ0"
    return Approach(
        ts=np.asarray(run.snapshot_ts),
        distance=distance,
        to_limit=to_limit,
        to_end=run.measure(lambda tokens: rms_angle(tokens, end)),
        method=method,
        target=target,
        what=f"the distance to {target}" + " (an upper bound)" * method.startswith("upper bound"),
        floor=_floor(run),
        near=(min(TOLERANCE, apart / 2) if apart > FLOOR else TOLERANCE) if space else 0.0,
        apart=apart > FLOOR,
        stays=sees_itself and _is_eigenspace(V, of_V, of_D.basis),
        sees_itself=sees_itself,
        turns=of_V.kind == "rotating" and apart <= FLOOR,
        kind=of_D.kind,
        missed=float(np.sum(np.asarray(start.weights)[of_D.exceptional(start)])),
        whole=of_D.kind != "algebraic" and of_D.dimension == of_V.dimension == len(end),
        moves=_last_move(run) > 10 * _floor(run),
    )


def angle_to(tokens: Tokens, basis: Float[np.ndarray, "d k"]) -> Float[np.ndarray, "n"]:
    """Angle of every token to the subspace with that orthonormal basis."""
    x = np.asarray(tokens.x)
    inside = x @ basis
    return np.arctan2(np.linalg.norm(x - inside @ basis.T, axis=1), np.linalg.norm(inside, axis=1))


def rms_angle(tokens: Tokens, basis: Float[np.ndarray, "d k"]) -> float:
    """Root mean square of the angles of the tokens to a subspace."""
    return float(np.sqrt(np.asarray(tokens.weights) @ angle_to(tokens, basis) ** 2))


def end_space(of_V: Limit) -> Float[np.ndarray, "d k"]:
    """Orthonormal basis of the space in which y' = P_y V y ends: of a defective V, its eigenvectors there."""
    if of_V.index == 1:
        return of_V.basis
    step = of_V.nilpotent / np.linalg.norm(of_V.nilpotent, 2)
    left, sizes, _ = np.linalg.svd(np.linalg.matrix_power(step, of_V.index - 1))
    return left[:, sizes > 1e-6 * sizes[0]]


def _separation(of_D: Limit, start: Tokens, end: np.ndarray) -> float:
    """How far the limit law, or E if D rotates, lies from the space with the basis `end`."""
    if of_D.kind != "rotating":
        return rms_angle(of_D.push(start), end)
    beside = of_D.basis - end @ (end.T @ of_D.basis)
    return float(np.arcsin(min(np.linalg.norm(beside, 2), 1.0)))


def _is_eigenspace(V: np.ndarray, of_V: Limit, basis: np.ndarray) -> bool:
    """Whether V is its dominant eigenvalue, a real one, on a space."""
    off = V @ basis - np.real(of_V.eigenvalue) * basis
    return bool(np.linalg.norm(off, 2) <= FLOOR * max(np.linalg.norm(V, 2), np.finfo(float).tiny))


def _last_move(run: Run) -> float:
    """Root mean square angle by which the tokens moved between the last two times; 0 if nodes do not move."""
    before, now = run.tokens(-2), run.tokens(-1)
    return coupled_distance(before.x, now.x, now.weights) if before.n == now.n else 0.0


def _floor(run: Run) -> float:
    solver = run.inputs.get("solver")
    tolerance = solver.get("rtol", 0.0) if isinstance(solver, dict) else 0.0
    return max(FLOOR, 10 * float(tolerance))


def _distance(run: Run, of_D: Limit, to_limit: np.ndarray) -> tuple[np.ndarray, str]:
    """The distance over time, and what it is."""
    if of_D.kind == "rotating":
        return to_limit, "root mean square angle to E: D rotates, there is no limit law"
    start = run.tokens(0)
    to_law = limit_distance(of_D, start)
    if to_law.exact:
        return run.measure(to_law), "W2 to Π♯ρ0, exact (few atoms)"
    if isinstance(run, DensityTrajectory) and not run.domain.moving:
        end = of_D.push(start)
        found = [wasserstein(run.tokens(k), end) for k in range(len(to_limit))]
        return np.array([w.value for w in found]), f"W2 to Π♯ρ0: {found[-1].method}"
    return run.measure(to_law), "upper bound of W2 to Π♯ρ0: tokens coupled with their ends"
