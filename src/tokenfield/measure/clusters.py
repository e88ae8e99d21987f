"""Clusters of tokens by single linkage.

At an angle it joins tokens that a chain of steps of at most that angle connects. In dimension 2 and 3 it
takes near-linear time, however dense the clusters: tokens go into cubes so small that all in one are linked,
and only neighbouring cubes are compared, by their bounding boxes first, by tokens if need be.
"""

from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree
from scipy.spatial.distance import cdist

from tokenfield.errors import as_number, require, require_kind
from tokenfield.laws.tokens import Tokens

#: Tokens linked by steps of this angle are one cluster.
CLUSTER_ANGLE = 0.1
#: Angles below this are lost in the rounding of the tokens.
MIN_ANGLE = 1e-15

# sizes up to which a method is used
#: Dimension in which cubes are quick; beyond, neighbours are found by comparing all pairs, in tiles.
MAX_GRID_DIMENSION = 3
#: IndexPairs of tokens of two cubes that are compared all at once; larger pairs of cubes by trees.
MAX_DIRECT_PAIRS = 256

# batches, which bound the memory
#: IndexPairs of tokens held at once.
BATCH_PAIRS = 4_000_000
#: Tokens whose distances to all others are held at once, in higher dimensions.
BATCH_TOKENS = 256


class Clusters(NamedTuple):
    """`labels` (n,): the cluster of each token, numbered by its first token; `centres`: one weighted token
    for each cluster (mean direction of its tokens, or the mode); `count`: how many.
    """

    labels: Int[np.ndarray, "n"]
    centres: Tokens
    count: int


def clusters(tokens: Tokens, angle: float) -> Clusters:
    """Clusters by single linkage: tokens are linked if their geodesic distance is at most `angle`, in (0, π).

    10⁶ tokens on the circle or on S² take seconds.
    """
    require_kind(tokens, Tokens, "tokens")
    angle = as_number(angle, "angle")
    require(MIN_ANGLE <= angle < np.pi, "angle", f"lie between {MIN_ANGLE:g} and π", angle)
    labels = linked(np.asarray(tokens.x), 2 * np.sin(angle / 2))
    return Clusters(labels, _centres(tokens, labels), int(labels.max()) + 1)


def linked(x: np.ndarray, reach: float) -> np.ndarray:
    """Labels of the components of the graph with an edge where |x − y| ≤ reach."""
    return by_first(_grid_labels(x, reach) if x.shape[1] <= MAX_GRID_DIMENSION else _front_labels(x, reach))


class _Cubes(NamedTuple):
    """Tokens sorted by cube: x (n, d), `order` (n,) their old places, `start` (m+1,) where each cube begins,
    `key` (m,) the cubes' sorted keys, `low` and `high` (m, d) the bounding boxes of their tokens.
    """

    x: np.ndarray
    order: np.ndarray
    start: np.ndarray
    key: np.ndarray
    low: np.ndarray
    high: np.ndarray


def _grid_labels(x: np.ndarray, reach: float) -> np.ndarray:
    """Components for d ≤ 3, by cubes."""
    cubes, multipliers = _cubes(x, reach)
    joined, unsure = _compare_boxes(cubes, multipliers, reach)
    component = _components(len(cubes.key), joined)
    # what boxes leave open: one pair of tokens that is near settles most, then all pairs, then trees
    a, b = _apart(component, unsure)
    near = _square(cubes.x[cubes.start[a]] - cubes.x[cubes.start[b]]) <= reach**2
    component = _join(component, a[near], b[near])
    a, b = _apart(component, (a[~near], b[~near]))
    sizes = np.diff(cubes.start)
    small = sizes[a] * sizes[b] <= MAX_DIRECT_PAIRS
    near = _any_near(cubes, a[small], b[small], reach)
    component = _join(component, a[small][near], b[small][near])
    a, b = _apart(component, (a[~small], b[~small]))
    near = np.array([_near(cubes, i, j, reach) for i, j in zip(a, b, strict=True)], dtype=bool)
    component = _join(component, a[near], b[near])
    labels = np.empty(len(x), dtype=int)
    labels[cubes.order] = np.repeat(component, sizes)
    return labels


def _cubes(x: np.ndarray, reach: float) -> tuple[_Cubes, np.ndarray]:
    """Cubes of diagonal just below `reach`, and the multipliers that make a cube's key of its place.

    The key is linear in the place, modulo 2⁶⁴, so that neighbours differ by fixed numbers; two cubes with one
    key are as good as impossible, and are looked for.
    """
    d = x.shape[1]
    place = np.floor(x * (np.sqrt(d) / reach * (1 + 1e-9))).astype(np.int64)
    rng = np.random.default_rng(0)
    while True:
        multipliers = rng.integers(1 << 40, 1 << 62, size=d).astype(np.uint64) | np.uint64(1)
        multipliers[-1] = 1
        keys = _key(place, multipliers)
        order = np.argsort(keys, kind="stable")
        keys, sorted_place = keys[order], place[order]
        new = np.append(True, keys[1:] != keys[:-1])
        moved = np.append(True, np.any(sorted_place[1:] != sorted_place[:-1], axis=1))
        if np.array_equal(new, moved):
            break
    start = np.flatnonzero(new)
    points = x[order]
    low, high = np.minimum.reduceat(points, start), np.maximum.reduceat(points, start)
    return _Cubes(points, order, np.append(start, len(x)), keys[start], low, high), multipliers


def _key(place: np.ndarray, multipliers: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.asarray(np.sum(place.astype(np.uint64) * multipliers, axis=-1, dtype=np.uint64))


IndexPairs = tuple[np.ndarray, np.ndarray]


def _compare_boxes(cubes: _Cubes, multipliers: np.ndarray, reach: float) -> tuple[IndexPairs, IndexPairs]:
    """IndexPairs of neighbouring cubes that are linked for certain, and those that their boxes leave open."""
    d, m = cubes.x.shape[1], len(cubes.key)
    joined, unsure = [], []
    here = np.arange(m)
    # half of the neighbours; those along the last axis have keys next to each other
    for offset in product(range(3), *[range(-2, 3)] * (d - 2)):
        if offset < (0,) * (d - 1):
            continue
        lowest = cubes.key + _key(np.array([*offset, -2]), multipliers)
        place = np.searchsorted(cubes.key, lowest)
        for step in range(5):
            there = (place + step) % m
            near = cubes.key[there] - lowest <= 4  # wraps around like the keys
            a, b = here[near], there[near]
            if offset == (0,) * (d - 1):
                a, b = a[a < b], b[a < b]
            gap = np.maximum(np.maximum(cubes.low[a] - cubes.high[b], cubes.low[b] - cubes.high[a]), 0.0)
            span = np.maximum(cubes.high[a], cubes.high[b]) - np.minimum(cubes.low[a], cubes.low[b])
            certain = _square(span) <= reach**2
            possible = (_square(gap) <= reach**2) & ~certain
            joined.append((a[certain], b[certain]))
            unsure.append((a[possible], b[possible]))
    return _stack(joined), _stack(unsure)


def _stack(parts: list[IndexPairs]) -> IndexPairs:
    return np.concatenate([a for a, _ in parts]), np.concatenate([b for _, b in parts])


def _any_near(cubes: _Cubes, a: np.ndarray, b: np.ndarray, reach: float) -> np.ndarray:
    """For each pair of small cubes whether any two of their tokens are near; all pairs, some at a time."""
    sizes = np.diff(cubes.start)
    out = np.zeros(len(a), dtype=bool)
    total = np.cumsum(sizes[a] * sizes[b])
    cuts = np.searchsorted(total, np.arange(BATCH_PAIRS, total[-1] if len(total) else 0, BATCH_PAIRS))
    for part in np.split(np.arange(len(a)), cuts):
        if part.size == 0:
            continue
        i, j = a[part], b[part]
        number = sizes[i] * sizes[j]
        pair = np.repeat(np.arange(len(part)), number)
        inner = np.arange(len(pair)) - np.repeat(np.cumsum(number) - number, number)
        p = cubes.start[i][pair] + inner // sizes[j][pair]
        q = cubes.start[j][pair] + inner % sizes[j][pair]
        near = _square(cubes.x[p] - cubes.x[q]) <= reach**2
        out[part[np.unique(pair[near])]] = True
    return out


def _near(cubes: _Cubes, i: int, j: int, reach: float) -> bool:
    """Whether any two tokens of two cubes are near; only those near the other's box are looked at."""
    p, q = (cubes.x[cubes.start[k] : cubes.start[k + 1]] for k in (i, j))
    p = p[_outside(p, cubes.low[j], cubes.high[j]) <= reach**2]
    q = q[_outside(q, cubes.low[i], cubes.high[i]) <= reach**2]
    if len(p) == 0 or len(q) == 0:
        return False
    if len(p) < len(q):
        p, q = q, p
    nearest, _ = KDTree(p).query(q, distance_upper_bound=reach * (1 + 1e-9))
    return bool(np.min(nearest) <= reach)


def _outside(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Squared distance to a box."""
    return _square(np.maximum(np.maximum(low - x, x - high), 0.0))


def _front_labels(x: np.ndarray, reach: float) -> np.ndarray:
    """Components in any dimension: the front of each cluster meets all tokens not yet in one."""
    labels, free = np.full(len(x), -1), np.arange(len(x))
    front, count = np.zeros(0, dtype=int), 0
    while len(free) or len(front):
        if len(front) == 0:
            front, free, count = free[:1], free[1:], count + 1
            labels[front] = count - 1
        now, front = front[:BATCH_TOKENS], front[BATCH_TOKENS:]
        near = np.any(cdist(x[now], x[free]) <= reach, axis=0)
        labels[free[near]] = count - 1
        front, free = np.append(front, free[near]), free[~near]
    return labels


def _components(size: int, edges: IndexPairs) -> np.ndarray:
    graph = coo_array((np.ones(len(edges[0]), dtype=bool), edges), shape=(size, size))
    return connected_components(graph, directed=False)[1]


def _join(component: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Components after linking further pairs."""
    if len(a) == 0:
        return component
    return _components(int(component.max()) + 1, (component[a], component[b]))[component]


def _apart(component: np.ndarray, pairs: IndexPairs) -> IndexPairs:
    """The pairs not yet in one component."""
    a, b = pairs
    open_ = component[a] != component[b]
    return a[open_], b[open_]


def _square(z: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->i", z, z)


def by_first(labels: np.ndarray) -> np.ndarray:
    """The same partition, numbered in the order of first members."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=int)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def masses(tokens: Tokens, labels: np.ndarray) -> np.ndarray:
    """Weight of each cluster."""
    return np.bincount(labels, np.asarray(tokens.weights))


def _centres(tokens: Tokens, labels: np.ndarray) -> Tokens:
    """Mean direction of each cluster; its first token where the mean vanishes or has no weight."""
    x, w = np.asarray(tokens.x), np.asarray(tokens.weights)
    mean = np.stack([np.bincount(labels, w * column) for column in x.T], axis=1)
    size = np.linalg.norm(mean, axis=1, keepdims=True)
    mass = masses(tokens, labels)
    first = x[np.unique(labels, return_index=True)[1]]
    fine = size > 1e-12 * mass[:, None]
    return Tokens(np.where(fine, mean / np.where(fine, size, 1.0), first), mass)
