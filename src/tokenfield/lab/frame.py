"""Frames: what the lab shows of a run at one time, made from its tokens.

An `Observer` sees all tokens of a run and keeps of each time a `Frame`: up to 8,000 tokens to draw and the
numbers of the curves. What does not change during the run is in its `Stage`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from tokenfield.diagnostics.clusters import linked
from tokenfield.diagnostics.phases import ANGLE
from tokenfield.diagnostics.transport import limit_distance
from tokenfield.errors import InputError
from tokenfield.theory.concentration import concentration_rates
from tokenfield.theory.spectral import Limit, dominant, limit
from tokenfield.tokens import Tokens
from tokenfield.weights import AttentionWeights

#: Most tokens shown; most numbers of one frame; tokens of the dearer measurements (energy; clusters, d > 3).
SHOWN, NUMBERS, FEW = 8000, 250_000, 500
#: A group of linked tokens counts as a cluster if it holds this much of the mass, and the root mean square
#: angle to its mean is below that.
HEAVY, NARROW = 0.02, 0.3
#: Colours for clusters; the last stands for tokens in none.
COLOURS = 7
#: Points of a curve: of more frames only every second, third, ... is measured.
POINTS = 400
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
    the cluster it is in (`COLOURS` if in none), `curves`: name → number, NaN where it has no meaning. Frames
    between two measurements have no curves, and the clusters of the frame before.
    """

    t: float
    x: Float[np.ndarray, "m d"]
    speed: Float[np.ndarray, "m"]
    colour: Int[np.ndarray, "m"]
    curves: dict[str, float] = field(default_factory=dict)


class Observer:
    """Turns the tokens of one run, time after time, into frames."""

    def __init__(self, tokens: Tokens, weights: AttentionWeights | None, beta: float | None):
        self.shown = _choice(tokens.n, tokens.d)
        w = np.asarray(tokens.weights)[self.shown]
        self.law = Tokens(np.asarray(tokens.x)[self.shown], w / w.sum())
        self.beta = beta
        self.few = _choice_of(len(self.shown), FEW)
        self.of_D: Limit | None = None
        self.of_V: Limit | None = None
        self.away: Callable[[Tokens], float] | None = None
        self.stage = self._set(tokens.n, weights)
        self.before: tuple[float, np.ndarray] | None = None
        self.colour = np.full(len(self.shown), COLOURS)

    def frame(self, t: float, tokens: Tokens, measured: bool = True) -> Frame:
        """The next frame, of all tokens of the run."""
        return self.see(t, np.asarray(tokens.x)[self.shown], measured)

    def see(self, t: float, x: np.ndarray, measured: bool = True) -> Frame:
        """The next frame, of the shown tokens only."""
        speed = np.zeros(len(x))
        if self.before is not None and t > self.before[0]:
            chord = np.linalg.norm(x - self.before[1], axis=1)
            speed = 2 * np.arcsin(np.minimum(chord / 2, 1.0)) / (t - self.before[0])
        self.before = (t, x)
        curves = self._measure(x) if measured else {}
        colour = self.colour.astype(np.int8)
        return Frame(float(t), x.astype(np.float32), speed.astype(np.float32), colour, curves)

    # -- what stays

    def _set(self, n: int, weights: AttentionWeights | None) -> Stage:
        m, d = len(self.shown), self.law.d
        notes = [] if m == n else [f"{m:,} of {n:,} tokens are shown, and the curves are theirs"]
        if len(self.few) < m:
            notes.append(f"the energy is that of {len(self.few):,} of them")
        facts: dict = {}
        if weights is None:
            notes.append("the matrices of this run are not known: no eigenspaces, no Π")
        else:
            try:
                facts = self._spectra(weights, notes)
            except InputError as error:
                notes.append(f"no eigenspaces, no Π: {error}")
        return Stage(n, d, np.asarray(self.law.weights), np.asarray(self.law.x), **facts, notes=tuple(notes))

    def _spectra(self, weights: AttentionWeights, notes: list[str]) -> dict:
        of_D, of_V = limit(weights), dominant(np.asarray(weights.stacked()[1][0]))
        self.of_D, self.of_V = of_D, of_V
        whole = of_D.dimension == weights.d
        beside = of_D.basis - of_V.basis @ (of_V.basis.T @ of_D.basis)
        facts = {
            "limit_basis": of_D.basis,
            "end_basis": of_V.basis,
            "kind": of_D.kind if of_D.kind == "rotating" or not whole else "all",
            "period": of_D.period.t if of_D.period is not None else None,
            "same": bool(np.linalg.norm(beside, 2) < 1e-6),
        }
        if of_D.kind == "rotating":
            notes.append("V Bᵀ rotates: there is no limit law; the distance is the angle to the plane E")
        elif whole:
            notes.append("V Bᵀ has one eigenvalue only: Π is the identity and has nothing to concentrate on")
        else:
            facts["target"] = np.asarray(of_D.push(self.law).x)
            self.away = limit_distance(of_D, self.law)
            way = "exact" if of_D.dimension == 1 else "an upper bound: each token coupled with its own end"
            notes.append(f"W2 to Π♯ρ0 is {way}")
            try:
                facts["rate"] = concentration_rates(weights).rate
            except InputError as error:
                notes.append(f"no predicted rate: {error}")
        return facts

    # -- what moves

    def _measure(self, x: np.ndarray) -> dict[str, float]:
        law = Tokens(x, self.law.weights)
        return {
            "distance": self._distance(law),
            "to_limit": _angle(law, self.of_D),
            "to_end": _angle(law, self.of_V),
            "order": float(np.linalg.norm(np.asarray(law.weights) @ x)),
            "energy": self._energy(x),
            "clusters": float(self._clusters(x)),
        }

    def _distance(self, law: Tokens) -> float:
        if self.of_D is None or self.stage.kind == "all":
            return np.nan
        return _angle(law, self.of_D) if self.away is None else self.away(law)

    def _energy(self, x: np.ndarray) -> float:
        """E_β as a share of its greatest value, e^β/2β."""
        if self.beta is None or not np.isfinite(self.beta):
            return np.nan
        few, w = x[self.few], np.asarray(self.law.weights)[self.few]
        w = w / w.sum()
        if self.beta == 0:
            return float(np.linalg.norm(w @ few) ** 2)
        # few enough for all pairs at once, and nothing to compile
        return float(w @ np.exp(self.beta * (few @ few.T - 1)) @ w)

    def _clusters(self, x: np.ndarray) -> int:
        """How many clusters there are; renews `colour`, so that a cluster keeps its colour while it can."""
        seen = np.arange(len(x)) if x.shape[1] <= 3 else self.few
        labels = linked(x[seen], 2 * np.sin(ANGLE / 2))
        w = np.asarray(self.law.weights)[seen]
        mass = np.bincount(labels, w) / w.sum()
        mean = np.stack([np.bincount(labels, w * c) for c in x[seen].T], axis=1) / (mass * w.sum())[:, None]
        # 1 − |mean| is half the mean square angle of a narrow group
        narrow = (mass >= HEAVY) & (1 - np.linalg.norm(mean, axis=1) <= NARROW**2 / 2)
        colour = np.full(len(x), COLOURS)
        colour[seen] = _inherit(labels, mass, narrow, self.colour[seen], w)
        self.colour = colour
        return int(narrow.sum())


def _inherit(
    labels: np.ndarray, mass: np.ndarray, narrow: np.ndarray, old: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """A colour for every token: heavy clusters first take the colour that most of them had, if it is free."""
    had = np.zeros((len(mass), COLOURS + 1))
    np.add.at(had, (labels, old), weights)
    given, free = np.full(len(mass), COLOURS), set(range(COLOURS))
    for k in np.argsort(-mass, kind="stable"):
        if not free:
            break
        if narrow[k]:
            wished = [c for c in np.argsort(-had[k]) if c in free and had[k, c] > 0]
            given[k] = wished[0] if wished else min(free)
            free.discard(given[k])
    return given[labels]


def _angle(law: Tokens, space: Limit | None) -> float:
    """Root mean square angle to an eigenspace."""
    if space is None:
        return np.nan
    x = np.asarray(law.x)
    inside = x @ space.basis
    angle = np.arctan2(np.linalg.norm(x - inside @ space.basis.T, axis=1), np.linalg.norm(inside, axis=1))
    return float(np.sqrt(np.asarray(law.weights) @ angle**2))


def is_measured(k: int, count: int) -> bool:
    """Whether the k-th of `count` frames has its point on the curves: the last has, and few enough others."""
    return k % -(-count // POINTS) == 0 or k == count - 1


def _choice(n: int, d: int) -> np.ndarray:
    return _choice_of(n, min(SHOWN, NUMBERS // d))


def _choice_of(n: int, most: int) -> np.ndarray:
    """Some of n tokens, the same for the same n: by chance, since every k-th may follow a grid."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).choice(n, most, replace=False))
