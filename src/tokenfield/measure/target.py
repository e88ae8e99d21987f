"""Where a law concentrates at zero temperature, as the phases of a run need it: for one head or for several.

One head has the dominant eigenspace E of D = V Bᵀ and the map Π onto it. Several heads have attractors
(theory §6.7); each token has its own, and E stands for their lines.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from tokenfield.laws.tokens import Tokens
from tokenfield.measure.limit_law import LimitDistance, limit_distance
from tokenfield.models.weights import AttentionWeights
from tokenfield.theory.attractors import circulates
from tokenfield.theory.spectral import Kind, limit

#: Lines whose directions agree to this are one.
SAME_LINE = 1e-9


@dataclass(frozen=True, eq=False)
class Target:
    """Where tokens concentrate.

    `kind`: as of `theory.limit`; "rotating" if there is no limit law. `spaces`: orthonormal bases (d, k), of
    E, or of the line of each attractor that some token goes to. `to_law`: distance to Π♯ρ0, None if rotating.
    `missed`: mass of the tokens that began where P_E x = 0.
    """

    kind: Kind
    spaces: tuple[Float[np.ndarray, "d k"], ...]
    to_law: LimitDistance | None
    missed: float

    @property
    def whole(self) -> bool:
        """Whether it is the whole space."""
        return self.spaces[0].shape[0] == self.spaces[0].shape[1]

    def rms_angle(self, tokens: Tokens) -> float:
        """Root mean square of the angles of the tokens to the nearest of the spaces."""
        nearest = np.min([angle_to(tokens, basis) for basis in self.spaces], axis=0)
        return float(np.sqrt(np.asarray(tokens.weights) @ nearest**2))

    def separation(self, end: Float[np.ndarray, "d k"]) -> float:
        """How far the limit law, or E if there is none, lies from the space with the basis `end`."""
        if self.to_law is not None:
            return rms_angle(self.to_law.end, end)
        beside = self.spaces[0] - end @ (end.T @ self.spaces[0])
        return float(np.arcsin(min(np.linalg.norm(beside, 2), 1.0)))


def target_of(weights: AttentionWeights, start: Tokens) -> Target:
    """The target of a law under some weights; refused if several heads leave tokens unsettled."""
    if weights.heads > 1:
        return _of_heads(weights, start)
    where = limit(weights)
    to_law = None if where.kind == "rotating" else limit_distance(where, start)
    missed = float(np.sum(np.asarray(start.weights)[where.exceptional(start)]))
    return Target(where.kind, (where.basis,), to_law, missed)


def _of_heads(weights: AttentionWeights, start: Tokens) -> Target:
    if weights.d == 2 and circulates(weights):
        return Target("rotating", (np.eye(2),), None, 0.0)
    to_law = limit_distance(weights, start)
    found: list[np.ndarray] = []
    for x in np.unique(np.asarray(to_law.end.x), axis=0):
        if not any(abs(abs(x @ line) - 1) < SAME_LINE for line in found):
            found.append(x)
    return Target("fixed", tuple(x[:, None] for x in found), to_law, 0.0)


def angle_to(tokens: Tokens, basis: Float[np.ndarray, "d k"]) -> Float[np.ndarray, "n"]:
    """Angle of every token to the subspace with that orthonormal basis."""
    x = np.asarray(tokens.x)
    inside = x @ basis
    return np.arctan2(np.linalg.norm(x - inside @ basis.T, axis=1), np.linalg.norm(inside, axis=1))


def rms_angle(tokens: Tokens, basis: Float[np.ndarray, "d k"]) -> float:
    """Root mean square of the angles of the tokens to a subspace."""
    return float(np.sqrt(np.asarray(tokens.weights) @ angle_to(tokens, basis) ** 2))
