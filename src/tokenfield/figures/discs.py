"""Discs: what is drawn for a cloud of tokens, so that mass is visible and there are not too many.

A disc takes in the tokens whose centres it covers, and their weight; a tight cluster of half the mass
looks like half the mass.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import KDTree

#: At most this many discs are drawn.
MAX_DISCS = 20_000
#: Radius of a disc that holds all the mass, on a sphere of radius 1.
FULL_RADIUS = 0.16


@dataclass(frozen=True)
class Discs:
    """What is drawn: positions (right, up, towards the viewer), weights and numbers for the colour."""

    at: Float[np.ndarray, "m 3"]
    weights: Float[np.ndarray, "m"]
    values: Float[np.ndarray, "m"]


def radius(weights: Float[np.ndarray, "m"], least: float) -> Float[np.ndarray, "m"]:
    """Radius of a disc: the area grows with the weight, on top of the least that can be seen."""
    return np.sqrt(least**2 + FULL_RADIUS**2 * weights)


def gather(tokens: Discs, least: float) -> Discs:
    """What to draw for the tokens: no disc covers the centre of another, and they are not too many.

    Tokens in one cell of a fine grid are taken together first; this is exact enough for the eye and
    makes the rest quick. Discs that take others in grow, so this is repeated until nothing changes.
    """
    _, cell = np.unique(np.round(tokens.at * (2 / least)), axis=0, return_inverse=True)
    discs = _thin(_merged(tokens, cell.ravel()))
    while True:
        owner = _owners(discs, least)
        if np.array_equal(owner, np.arange(len(owner))):
            return discs
        discs = _merged(discs, owner)


def _owners(discs: Discs, least: float) -> Int[np.ndarray, "m"]:
    """For each disc the one that takes it in: itself, or one at least as heavy that covers its centre."""
    covered = KDTree(discs.at).query_ball_point(discs.at, radius(discs.weights, least))
    owner = np.arange(len(discs.weights))
    free = np.ones(len(owner), bool)
    for i in np.argsort(-discs.weights, kind="stable"):
        if free[i] and len(covered[i]) > 1:
            inside = np.asarray(covered[i])
            inside = inside[free[inside]]
            owner[inside], free[inside] = i, False
    return owner


def _merged(discs: Discs, group: Int[np.ndarray, "m"]) -> Discs:
    """One disc per group, in the order of first members: mean position, summed weight, median value.

    The weighted median is the value of a member, and that of the majority if there is one.
    """
    _, first, group = np.unique(group, return_index=True, return_inverse=True)
    group = np.argsort(np.argsort(first))[group]
    weights = np.bincount(group, discs.weights)
    share = discs.weights + 1e-300  # a group without weight has its plain mean
    at = np.stack([np.bincount(group, share * column) for column in discs.at.T], axis=1)
    order = np.lexsort((discs.values, group))
    half = np.searchsorted(np.cumsum(discs.weights[order]), np.cumsum(weights) - weights / 2)
    last = np.cumsum(np.bincount(group)) - 1
    # rounding, or no weight at all, may lead out of the group
    median = discs.values[order][np.clip(half, np.append(0, last[:-1] + 1), last)]
    return Discs(at / np.bincount(group, share)[:, None], weights, median)


def _thin(discs: Discs) -> Discs:
    """At most MAX_DISCS of them: the heavy ones, and every k-th of the others with k times its weight."""
    if len(discs.weights) <= MAX_DISCS:
        return discs
    heavy = discs.weights > 2 / MAX_DISCS
    light = np.flatnonzero(~heavy)
    stride = -(-len(light) // (MAX_DISCS - int(heavy.sum())))
    kept = np.sort(np.append(np.flatnonzero(heavy), light[::stride]))
    weights = np.where(heavy, discs.weights, stride * discs.weights)
    return Discs(discs.at[kept], weights[kept], discs.values[kept])
