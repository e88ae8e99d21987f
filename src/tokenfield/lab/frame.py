"""Frames: what the lab shows of a run at one time, and what stays the same during the run.

These are plain arrays: the page draws them, and the worker makes them (observer.py).
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

#: Colours for clusters; the last stands for tokens in none.
CLUSTER_COLOURS = 7
#: Points of a curve: of more frames only every second, third, ... is measured.
MAX_CURVE_POINTS = 400
#: The curves, in order.
CURVES = ("distance", "to_limit", "to_end", "order", "energy", "clusters")


@dataclass(frozen=True, eq=False)
class Stage:
    """What stays the same during a run.

    `n`, `d`; `weights` (m,) of the shown tokens; `start` (m, d) where they began; `limit_basis`, `end_basis`:
    orthonormal bases of the dominant eigenspaces of V Bᵀ and of V, None if unknown; `target` (m, d): where Π
    sends each shown token, None if Π has no say; `kind`: "fixed", "algebraic", "rotating", "all" (E is the
    whole space, Π the identity) or "unknown"; `rate`: predicted rate of W2; `period`: of a turn; `same`: V's
    eigenspace holds that of V Bᵀ; `notes`: sentences about what is shown and how it is measured.
    """

    n: int
    d: int
    weights: Float[np.ndarray, "m"]
    start: Float[np.ndarray, "m d"]
    limit_basis: Float[np.ndarray, "d k"] | None = None
    end_basis: Float[np.ndarray, "d k"] | None = None
    target: Float[np.ndarray, "m d"] | None = None
    kind: str = "unknown"
    rate: float | None = None
    period: float | None = None
    same: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Frame:
    """One time: `x` (m, d) the shown tokens, `speed` (m,) of each since the frame before, `colour` (m,) of
    the cluster it is in (`CLUSTER_COLOURS` if in none), `curves`: name → number, NaN where it has no meaning.
    Frames between two measurements have no curves, and the clusters of the frame before.
    """

    t: float
    x: Float[np.ndarray, "m d"]
    speed: Float[np.ndarray, "m"]
    colour: Int[np.ndarray, "m"]
    curves: dict[str, float] = field(default_factory=dict)
