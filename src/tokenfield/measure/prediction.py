"""What theory predicts for clusters that have come to the dominant eigenspace E of D = V Bᵀ (theory §2.6).

A cluster p in E that sees itself, ⟨Bᵀp, p⟩ > 0, moves by y' = P_y V y. That flow ends in the dominant
eigenspace of V, called the end space here, so that clusters stay, circulate or leave by where Π♯ρ0 lies.
"""

from collections.abc import Sequence
from enum import Enum

import numpy as np
from jaxtyping import Float

from tokenfield.models.weights import AttentionWeights
from tokenfield.theory.spectral import Limit

#: Where Π♯ρ0 lies: E, or the line of each attractor.
Spaces = Sequence[Float[np.ndarray, "d k"]]

#: Angles below this, or below ten times the solver's tolerance, are noise; they have no rate.
NOISE_ANGLE = 1e-6
#: Singular values of the nilpotent part below this fraction of the greatest are rounding.
RANK_TOLERANCE = 1e-6


class Prediction(Enum):
    """What becomes of clusters at Π♯ρ0.

    `STAY`: V is its dominant eigenvalue, a real one, on all of E, and clusters there see themselves: no
    escape. `LEAVE`: Π♯ρ0 lies outside the end space of V, and clusters go there. `CIRCULATE`: V turns a plane
    that holds Π♯ρ0, and clusters pass by it again and again. `OPEN`: Π♯ρ0 lies in the end space, but nothing
    is known to hold the clusters where they are.
    """

    STAY = "stay"
    LEAVE = "leave"
    CIRCULATE = "circulate"
    OPEN = "open"


def predict(weights: AttentionWeights, spaces: Spaces, of_V: Limit, separation: float) -> Prediction:
    """Which case holds for clusters at Π♯ρ0.

    Args:
        weights: the heads, B and V of shape (d, d) or (heads, d, d).
        spaces: orthonormal bases (d, k) of E, or of the line of each attractor of several heads.
        of_V: dominant eigenspace of V, of ΣV_h with several heads.
        separation: root mean square angle of Π♯ρ0 to the end space of V.

    Returns: the case; `STAY` where several apply, since a cluster at rest neither leaves nor turns.
    """
    if sees_itself(weights, spaces) and all(_is_eigenspace(weights, of_V, basis) for basis in spaces):
        return Prediction.STAY
    if separation > NOISE_ANGLE:
        return Prediction.LEAVE
    return Prediction.CIRCULATE if of_V.kind == "rotating" else Prediction.OPEN


def sees_itself(weights: AttentionWeights, spaces: Spaces) -> bool:
    """Whether ⟨B_hᵀp, p⟩ > 0 for every head and every p in E, so that a cluster there attends to itself."""
    heads = np.asarray(weights.stacked()[0])
    lowest = [np.linalg.eigvalsh(basis.T @ (B + B.T) @ basis)[0] for basis in spaces for B in heads]
    return bool(min(lowest) > 0)


def end_space(of_V: Limit) -> Float[np.ndarray, "d k"]:
    """Orthonormal basis of the space in which y' = P_y V y ends: of a defective V, its eigenvectors there."""
    if of_V.index == 1:
        return of_V.basis
    step = of_V.nilpotent / np.linalg.norm(of_V.nilpotent, 2)
    left, sizes, _ = np.linalg.svd(np.linalg.matrix_power(step, of_V.index - 1))
    return left[:, sizes > RANK_TOLERANCE * sizes[0]]


def _is_eigenspace(weights: AttentionWeights, of_V: Limit, basis: np.ndarray) -> bool:
    """Whether V is its dominant eigenvalue, a real one, on a space."""
    V = np.sum(np.asarray(weights.stacked()[1]), axis=0)
    off = V @ basis - np.real(of_V.eigenvalue) * basis
    return bool(np.linalg.norm(off, 2) <= NOISE_ANGLE * max(np.linalg.norm(V, 2), np.finfo(float).tiny))
