"""Where several heads take the tokens at zero temperature (theory §6.7): attractors, their basins and rates.

    x' = P_x Σ_h V_h B_hᵀx/|B_hᵀx|

ΣV_hB_hᵀ does not decide: there may be many attractors, and closed orbits. On the circle sinks and sources
are the zeros of one function, and everything is exact; rank-one heads are solved by their signs; otherwise
tokens are followed until they rest, and fixed points are polished by Newton's method. For one head `limit`
says more.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

from tokenfield.errors import InputError, as_whole, require, require_kind
from tokenfield.geometry.circle import points
from tokenfield.laws.tokens import Tokens
from tokenfield.models.weights import AttentionWeights
from tokenfield.theory.head_circle import CirclePortrait, circle_portrait
from tokenfield.theory.head_ends import HeadEnds, follow_to_ends, on_orbit
from tokenfield.theory.head_flow import HeadFlow
from tokenfield.theory.sign_heads import SignHeads

#: Speed in units of Σ‖V_h‖ below which a token rests, wherever it is.
RESTING = 1e-11
#: Points closer than this are one attractor.
SAME_POINT = 1e-6
CONFIDENCE = 0.95


class Cycle(NamedTuple):
    """A closed orbit with its `period` in the time of the flow.

    `mass`: part of the uniform law that ends on it, in `mass_interval`. `x` (points, d): along one turn.
    `exact`: whether the period comes from a quadrature; else it was measured from the flow.
    """

    period: float
    mass: float
    mass_interval: tuple[float, float]
    x: Float[np.ndarray, "points d"]
    exact: bool


@dataclass(frozen=True, eq=False)
class Attractors:
    """Where the tokens of a law end, and which part of the uniform law ends where.

    `x` (m, d): attracting fixed points, unit rows, each with its antipode: on the circle by angle from 0,
    elsewhere those of greater mass first. `rates` (m,): at which a token comes to rest there, the gap of
    PJP − λP; infinite where the field jumps and it takes a finite time. `masses` (m,): of the uniform law in
    each basin. `mass_intervals` (m, 2): they hold the masses with 95% confidence each; both ends are the mass
    where it is exact. `cycles`: closed orbits. `unsettled`: part of the starts that ended neither at a fixed
    point nor on a closed orbit. `sources` (k, d): on the circle, the unstable fixed points between basins;
    elsewhere none are listed. `note`: what was done and found, in words.
    """

    x: Float[np.ndarray, "m d"]
    rates: Float[np.ndarray, "m"]
    masses: Float[np.ndarray, "m"]
    mass_intervals: Float[np.ndarray, "m 2"]
    cycles: tuple[Cycle, ...]
    unsettled: float
    sources: Float[np.ndarray, "k d"]
    note: str
    weights: AttentionWeights = field(repr=False)

    @property
    def settled(self) -> bool:
        """Whether every start ended at one of the fixed points `x`."""
        return self.unsettled == 0 and not self.cycles and len(self.x) > 0

    def push(self, tokens: Tokens) -> Tokens:
        """The limit law: every token moved to its own attractor, in the same order.

        Refused, with the reason, if some token does not come to rest.
        """
        return ends(self.weights, tokens)


def attractors(weights: AttentionWeights, key: int, starts: int = 1000) -> Attractors:
    """Attractors of the zero-temperature flow of several heads, with rates and the masses of their basins.

    Exact on the circle, and where all heads have rank one, the planes on which they change sign have normals
    in a space of dimension 3 at most, and all signs are self-consistent. Otherwise masses come from random
    starts, and attractors of small mass may be missed: one of mass m with the probability (1−2m)^starts.

    Args:
        weights: B and V of the heads, (heads, d, d) or (d, d).
        key: seed of the random starts.
        starts: how many random starts are followed, at least 1; where the answer is exact none is.

    Returns:
        Attractors, closed orbits, and what did not settle.
    """
    require_kind(weights, AttentionWeights, "weights")
    key, starts = as_whole(key, "key", 0), as_whole(starts, "starts", 1)
    flow = HeadFlow.of(weights)
    if flow.d == 2:
        return _on_the_circle(flow, weights)
    heads = SignHeads.of(flow)
    found = _by_sectors(flow, heads, weights) if heads is not None else None
    if found is not None:
        return found
    x = np.random.default_rng(key).normal(size=(starts, flow.d))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return _by_starts(flow, heads, x, weights)


def ends(weights: AttentionWeights, tokens: Tokens) -> Tokens:
    """Every token moved to the fixed point where the zero-temperature flow of the heads takes it.

    One that begins at an unstable fixed point stays. Refused, with the reason, if some token does not rest.
    """
    require_kind(weights, AttentionWeights, "weights")
    require_kind(tokens, Tokens, "tokens")
    require(tokens.d == weights.d, "tokens", f"have d = {weights.d}", tokens.d)
    flow, x = HeadFlow.of(weights), np.asarray(tokens.x)
    began = flow.at_rest(x, RESTING)[:, None]
    if flow.d == 2:
        return Tokens(np.where(began, x, _circle_ends(circle_portrait(flow), x)), tokens.weights)
    found = _ends(flow, SignHeads.of(flow), x)
    moving = ~(found.settled | flow.at_rest(found.x, RESTING) | began[:, 0])
    if np.any(moving):
        part = float(np.sum(np.asarray(tokens.weights)[moving]))
        raise InputError(
            f"`weights` must take every token to a fixed point to have a limit law, but a part {part:.3g} of"
            " the mass goes round, or had not settled; `theory.attractors` says which"
        )
    return Tokens(np.where(began, x, found.x), tokens.weights)


def _ends(flow: HeadFlow, heads: SignHeads | None, x: np.ndarray) -> HeadEnds:
    """Where tokens end; heads of rank one need no integration."""
    return follow_to_ends(flow, x) if heads is None else HeadEnds(*heads.ends(x), [])


def circulates(weights: AttentionWeights) -> bool:
    """Whether on the circle all tokens go round for ever."""
    return circle_portrait(HeadFlow.of(weights)).period is not None


def _circle_ends(portrait: CirclePortrait, x: np.ndarray) -> np.ndarray:
    if portrait.period is not None:
        raise InputError(
            "`weights` must have fixed points for a limit law, but all tokens go round with the period"
            f" {portrait.period:.9g}"
        )
    require(
        not portrait.note, "weights", "have isolated fixed points for a limit law", f"not: {portrait.note}"
    )
    angles = portrait.ends(np.arctan2(x[:, 1], x[:, 0]))
    return points(angles)


def _on_the_circle(flow: HeadFlow, weights: AttentionWeights) -> Attractors:
    portrait = circle_portrait(flow)
    cycles = ()
    if portrait.period is not None:
        turn = points(np.linspace(0, 2 * np.pi, 400, endpoint=False))
        cycles = (Cycle(portrait.period, 1.0, (1.0, 1.0), turn, True),)
    masses = np.tile(portrait.masses, 2) if len(portrait.sinks) else np.zeros(0)
    note = portrait.note or (
        f"exact: all tokens go round, one turn takes {portrait.period:.9g}"
        if cycles
        else f"exact: {len(masses)} sinks between as many sources"
    )
    return Attractors(
        x=points(np.concatenate([portrait.sinks, portrait.sinks + np.pi])),
        rates=np.tile(portrait.rates, 2),
        masses=masses,
        mass_intervals=np.stack([masses, masses], axis=1),
        cycles=cycles,
        unsettled=1.0 if portrait.note else 0.0,
        sources=points(np.concatenate([portrait.sources, portrait.sources + np.pi])),
        note=note,
        weights=weights,
    )


def _by_sectors(flow: HeadFlow, heads: SignHeads, weights: AttentionWeights) -> Attractors | None:
    """Rank-one heads all of whose sectors keep their tokens; None if some do not, or cannot be measured."""
    sectors = heads.sector_masses()
    if sectors is None or not np.all(heads.consistent(sectors[0])):
        return None
    order = np.argsort(-sectors[1], kind="stable")
    signs, masses = sectors[0][order], sectors[1][order]
    pull = signs @ heads.u
    size = np.linalg.norm(pull, axis=1)
    return Attractors(
        x=pull / size[:, None],
        rates=size * flow.scale,
        masses=masses,
        mass_intervals=np.stack([masses, masses], axis=1),
        cycles=(),
        unsettled=0.0,
        sources=np.zeros((0, flow.d)),
        note=f"exact: all {len(masses)} signs of the heads are self-consistent, masses are solid angles",
        weights=weights,
    )


def _by_starts(
    flow: HeadFlow, heads: SignHeads | None, starts: np.ndarray, weights: AttentionWeights
) -> Attractors:
    """From random starts. A start counts for its antipode too: basins come in pairs of equal mass."""
    n = len(starts)
    found = _ends(flow, heads, starts)
    listed = heads.attractors() if heads is not None else None
    pairs, counts = _count(found.x[found.settled], np.zeros((0, flow.d)) if listed is None else listed)
    cycles, left = _cycles(found), n - int(np.sum(found.settled)) - sum(count for _, count in found.orbits)
    order = np.argsort(-counts, kind="stable")
    x = np.stack([pairs[order], -pairs[order]], axis=1).reshape(-1, flow.d)
    masses = np.repeat(counts[order] / (2 * n), 2)
    bounds = [_interval(int(count), n) for count in counts[order]]
    return Attractors(
        x=x,
        rates=np.array([flow.rate(point) * flow.scale for point in x]),
        masses=masses,
        mass_intervals=np.repeat(np.array(bounds).reshape(-1, 2) / 2, 2, axis=0),
        cycles=cycles,
        unsettled=left / n,
        sources=np.zeros((0, flow.d)),
        note=_describe(flow, found, len(x), len(cycles)),
        weights=weights,
    )


def _describe(flow: HeadFlow, found: HeadEnds, points: int, cycles: int) -> str:
    moving = found.x[~found.settled]
    resting = int(np.sum(flow.at_rest(moving, RESTING)))
    left = len(moving) - sum(count for _, count in found.orbits) - resting
    words = [f"{len(found.x)} random starts", f"{points} attracting fixed points"]
    if cycles:
        words.append(f"{cycles} closed orbit{'s' * (cycles > 1)}")
    if resting:
        words.append(f"not settled: {resting} starts rest at points that are not isolated attractors")
    if left:
        words.append(f"not settled: {left} starts neither came to rest nor closed an orbit")
    return "; ".join(words)


def _count(x: np.ndarray, listed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct points up to their sign, the listed ones first, and how many rows of x are each."""
    pairs: list[np.ndarray] = []
    for point in np.concatenate([listed, x]):
        if not any(min(np.linalg.norm(point - p), np.linalg.norm(point + p)) < SAME_POINT for p in pairs):
            pairs.append(point)
    kept = np.array(pairs).reshape(-1, x.shape[1])
    nearest = np.argmax(np.abs(x @ kept.T), axis=1) if len(kept) and len(x) else np.zeros(0, int)
    return kept, np.bincount(nearest, minlength=len(kept))


def _cycles(ends: HeadEnds) -> tuple[Cycle, ...]:
    """The closed orbits with their masses; one that is not its own antipode comes with it."""
    found, n = [], len(ends.x)
    for orbit, count in ends.orbits:
        alone = bool(on_orbit(orbit, -orbit.x[:1])[0])
        share = np.array([count / n, *_interval(count, n)]) / (1 if alone else 2)
        for x in (orbit.x,) if alone else (orbit.x, -orbit.x):
            found.append(Cycle(orbit.period, float(share[0]), (float(share[1]), float(share[2])), x, False))
    return tuple(found)


def _interval(count: int, n: int) -> tuple[float, float]:
    """Clopper and Pearson's interval of a probability from `count` of n draws."""
    tail = (1 - CONFIDENCE) / 2
    low = stats.beta.ppf(tail, count, n - count + 1) if count > 0 else 0.0
    high = stats.beta.ppf(1 - tail, count + 1, n - count) if count < n else 1.0
    return float(low), float(high)
