"""The observer: sees all tokens of a run and keeps of each time a `Frame`.

A frame has up to 8,000 tokens to draw and the numbers of the curves; what does not change during the run is
in the `Stage`.
"""

from collections.abc import Callable

import numpy as np

import tokenfield as tkf
from tokenfield.lab.frame import CLUSTER_COLOURS, MAX_CURVE_POINTS, Frame, Stage
from tokenfield.lab.head import NOT_STORED
from tokenfield.measure.clusters import CLUSTER_ANGLE, linked
from tokenfield.measure.limit_law import limit_distance

#: Most tokens shown; most numbers of one frame; tokens of the dearer measurements (energy; clusters, d > 3).
MAX_SHOWN_TOKENS, MAX_NUMBERS_PER_FRAME, MAX_PAIRWISE_TOKENS = 8000, 250_000, 500
#: A group of linked tokens counts as a cluster if it holds this much of the mass, and the root mean square
#: angle to its mean is below that.
MIN_CLUSTER_MASS, MAX_CLUSTER_SPREAD = 0.02, 0.3


class Observer:
    """Turns the tokens of one run, time after time, into frames; of tokens with lengths the directions.

    Args:
        tokens: the initial law, n tokens.
        weights: matrices of the one head whose eigenspaces and Π are shown; None: there are none to show.
        beta: inverse temperature of the energy; None or infinite: there is no energy to show.
        missing: why there are no weights.
        free: whether tokens have lengths of their own, about which the rates of the theory say nothing.
    """

    def __init__(
        self,
        tokens: tkf.Tokens,
        weights: tkf.AttentionWeights | None,
        beta: float | None,
        missing: str = NOT_STORED,
        free: bool = False,
    ):
        self.shown = _shown_tokens(tokens.n, tokens.d)
        w = np.asarray(tokens.weights)[self.shown]
        self.law = tkf.Tokens(np.asarray(tokens.x)[self.shown], w / w.sum())
        self.beta, self.free = beta, free
        self.sample = _sample_of(len(self.shown), MAX_PAIRWISE_TOKENS)
        self.of_D: tkf.theory.Limit | None = None
        self.of_V: tkf.theory.Limit | None = None
        self.distance_to_limit: Callable[[tkf.Tokens], float] | None = None
        self.stage = self._make_stage(tokens.n, weights, missing)
        self.previous: tuple[float, np.ndarray] | None = None
        self.colour = np.full(len(self.shown), CLUSTER_COLOURS)

    def frame(self, t: float, tokens: tkf.Tokens, measured: bool = True) -> Frame:
        """The next frame, of all tokens of the run.

        Args:
            t: its time, not before that of the frame before.
            tokens: all n tokens of the run.
            measured: whether the frame has its points on the curves.
        """
        return self.observe(t, np.asarray(tokens.x)[self.shown], measured)

    def observe(self, t: float, x: np.ndarray, measured: bool = True) -> Frame:
        """The next frame, of the shown tokens only.

        Args:
            t: its time, not before that of the frame before.
            x: directions of the shown tokens, (m, d).
            measured: whether the frame has its points on the curves.
        """
        speed = np.zeros(len(x))
        if self.previous is not None and t > self.previous[0]:
            chord = np.linalg.norm(x - self.previous[1], axis=1)
            speed = 2 * np.arcsin(np.minimum(chord / 2, 1.0)) / (t - self.previous[0])
        self.previous = (t, x)
        curves = self._measure(x) if measured else {}
        colour = self.colour.astype(np.int8)
        return Frame(float(t), x.astype(np.float32), speed.astype(np.float32), colour, curves)

    # -- what stays

    def _make_stage(self, n: int, weights: tkf.AttentionWeights | None, missing: str) -> Stage:
        m, d = len(self.shown), self.law.d
        notes = [] if m == n else [f"{m:,} of {n:,} tokens are shown, and the curves are theirs"]
        if len(self.sample) < m:
            notes.append(f"the energy is that of {len(self.sample):,} of them")
        if self.free:
            notes.append("tokens have lengths of their own: their directions are shown")
        facts: dict = {}
        if weights is None:
            notes.append(f"{missing}: no eigenspaces, no Π")
        else:
            try:
                facts = self._spectra(weights, notes)
            except tkf.InputError as error:
                notes.append(f"no eigenspaces, no Π: {error}")
        return Stage(n, d, np.asarray(self.law.weights), np.asarray(self.law.x), **facts, notes=tuple(notes))

    def _spectra(self, weights: tkf.AttentionWeights, notes: list[str]) -> dict:
        of_D, of_V = tkf.theory.limit(weights), tkf.theory.dominant(np.asarray(weights.stacked()[1][0]))
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
            self.distance_to_limit = limit_distance(of_D, self.law)
            way = "exact" if of_D.dimension == 1 else "an upper bound: each token coupled with its own end"
            notes.append(f"W2 to Π♯ρ0 is {way}")
            if not self.free:
                facts["rate"] = self._rate(weights, notes)
        return facts

    def _rate(self, weights: tkf.AttentionWeights, notes: list[str]) -> float | None:
        try:
            return tkf.theory.concentration_rates(weights).rate
        except tkf.InputError as error:
            notes.append(f"no predicted rate: {error}")
            return None

    # -- what moves

    def _measure(self, x: np.ndarray) -> dict[str, float]:
        law = tkf.Tokens(x, self.law.weights)
        return {
            "distance": self._distance(law),
            "to_limit": _angle(law, self.of_D),
            "to_end": _angle(law, self.of_V),
            "order": float(np.linalg.norm(np.asarray(law.weights) @ x)),
            "energy": self._energy(x),
            "clusters": float(self._clusters(x)),
        }

    def _distance(self, law: tkf.Tokens) -> float:
        if self.of_D is None or self.stage.kind == "all":
            return np.nan
        if self.distance_to_limit is None:
            return _angle(law, self.of_D)
        return self.distance_to_limit(law)

    def _energy(self, x: np.ndarray) -> float:
        """E_β as a share of its greatest value, e^β/2β."""
        if self.beta is None or not 0 <= self.beta < np.inf:
            return np.nan
        sample, w = x[self.sample], np.asarray(self.law.weights)[self.sample]
        w = w / w.sum()
        if self.beta == 0:
            return float(np.linalg.norm(w @ sample) ** 2)
        # few enough for all pairs at once, and nothing to compile
        return float(w @ np.exp(self.beta * (sample @ sample.T - 1)) @ w)

    def _clusters(self, x: np.ndarray) -> int:
        """How many clusters there are; renews `colour`, so that a cluster keeps its colour while it can."""
        seen = np.arange(len(x)) if x.shape[1] <= 3 else self.sample
        labels = linked(x[seen], 2 * np.sin(CLUSTER_ANGLE / 2))
        w = np.asarray(self.law.weights)[seen]
        mass = np.bincount(labels, w) / w.sum()
        mean = np.stack([np.bincount(labels, w * c) for c in x[seen].T], axis=1) / (mass * w.sum())[:, None]
        # 1 − |mean| is half the mean square angle of a narrow group
        narrow = (mass >= MIN_CLUSTER_MASS) & (1 - np.linalg.norm(mean, axis=1) <= MAX_CLUSTER_SPREAD**2 / 2)
        colour = np.full(len(x), CLUSTER_COLOURS)
        colour[seen] = _inherit_colours(labels, mass, narrow, self.colour[seen], w)
        self.colour = colour
        return int(narrow.sum())


def _inherit_colours(
    labels: np.ndarray, mass: np.ndarray, narrow: np.ndarray, old: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """A colour for every token: heavy clusters first take the colour that most of them had, if it is free."""
    had = np.zeros((len(mass), CLUSTER_COLOURS + 1))
    np.add.at(had, (labels, old), weights)
    given, free = np.full(len(mass), CLUSTER_COLOURS), set(range(CLUSTER_COLOURS))
    for k in np.argsort(-mass, kind="stable"):
        if not free:
            break
        if narrow[k]:
            wished = [c for c in np.argsort(-had[k]) if c in free and had[k, c] > 0]
            given[k] = wished[0] if wished else min(free)
            free.discard(given[k])
    return given[labels]


def _angle(law: tkf.Tokens, space: tkf.theory.Limit | None) -> float:
    """Root mean square angle to an eigenspace."""
    if space is None:
        return np.nan
    x = np.asarray(law.x)
    inside = x @ space.basis
    angle = np.arctan2(np.linalg.norm(x - inside @ space.basis.T, axis=1), np.linalg.norm(inside, axis=1))
    return float(np.sqrt(np.asarray(law.weights) @ angle**2))


def is_measured(k: int, count: int) -> bool:
    """Whether the k-th of `count` frames has its point on the curves: the last has, and few enough others."""
    return k % -(-count // MAX_CURVE_POINTS) == 0 or k == count - 1


def _shown_tokens(n: int, d: int) -> np.ndarray:
    return _sample_of(n, min(MAX_SHOWN_TOKENS, MAX_NUMBERS_PER_FRAME // d))


def _sample_of(n: int, most: int) -> np.ndarray:
    """Some of n tokens, the same for the same n: by chance, since every k-th may follow a grid."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).choice(n, most, replace=False))
