"""Lower bounds: where do potentials exceed the cost?

Potentials prove a lower bound of W only if f(x) + g(y) ≤ c(x, y)^p for all pairs. `excess` looks through
all of them, passing over pairs of cells that cannot hold an excess; no n × n array is made.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tokenfield.diagnostics.coupling.cells import cell_starts, children, expand, merged, parents, smallest
from tokenfield.diagnostics.coupling.plan import Cost, Law

#: Points in the smallest cells of the search.
LEAF = 6
#: Pairs reported for each point.
WORST = 10
#: Pairs handled at once.
CHUNK = 4 * 10**6


class Dual(NamedTuple):
    """Potentials of both laws."""

    f: np.ndarray
    g: np.ndarray


class Level(NamedTuple):
    """The cells of one level of the search: centres, radii, greatest potentials, tokens, children."""

    x: np.ndarray
    radius: np.ndarray
    top: np.ndarray
    first: np.ndarray
    child: np.ndarray


class Excess(NamedTuple):
    """f must be lowered by `at` (n,); the pairs (i, j) are the worst ones; `pairs` were looked at."""

    at: np.ndarray
    i: np.ndarray
    j: np.ndarray
    pairs: int


def excess(mu: Law, nu: Law, dual: Dual, cost: Cost, pairs: int, ignored: float) -> Excess:
    """How far f must be lowered at each point until f + g ≤ c^p; both laws in the order of `halved`.

    A pair of cells A, B holds no excess if (c(a, b) − r_A − r_B)^p ≥ max f + max g over them. The other
    pairs are cut further, and the smallest cells are searched point by point. Excess up to `ignored` is
    not looked for but counted in. Beyond the allowed number of pairs it is bounded by that of the cells.
    """
    n, most = len(mu.w), max(len(mu.w), len(nu.w))
    sizes = [2**k for k in range(int(np.log2(most / LEAF)), 6, -2)][::-1] or [1]
    left, right = _levels(mu, dual.f, sizes, cost), _levels(nu, dual.g, sizes, cost)
    worst = [np.zeros(len(level.first)) for level in left]
    looked, found = 0, []
    points, others = _blocks(mu, dual.f, left[-1].first), _blocks(nu, dual.g, right[-1].first)
    stack = [(0, *np.indices((len(left[0].first), len(right[0].first))).reshape(2, -1))]
    while stack:
        depth, i, j = stack.pop()
        a, b = left[depth], right[depth]
        near = np.maximum(cost.distance(a.x[i], b.x[j]) - a.radius[i] - b.radius[j], 0.0)
        bound = a.top[i] + b.top[j] - near**cost.p
        over = bound > ignored
        i, j = i[over], j[over]
        if looked >= pairs:
            np.maximum.at(worst[depth], i, bound[over])
        elif depth == len(left) - 1:
            looked += len(i) * points.index.shape[1] * others.index.shape[1]
            found += _search(points, others, i, j, cost, ignored)
        else:
            looked += len(i)
            k, place = expand(i, a.child)
            m, pair = expand(j[place], b.child)
            k = k[pair]
            stack += [(depth + 1, k[s : s + CHUNK], m[s : s + CHUNK]) for s in range(0, len(k), CHUNK)]
    i, j, over = (np.concatenate(part) for part in zip(*found, strict=True)) if found else _NOTHING
    at = np.zeros(n)
    np.maximum.at(at, i, over)
    for bad, level in zip(worst, left, strict=True):
        at = np.maximum(at, np.repeat(bad, np.diff(np.append(level.first, n))))
    kept = smallest(-over, i, WORST)
    return Excess(at + ignored, i[kept], j[kept], looked)


_NOTHING = (np.zeros(0, int), np.zeros(0, int), np.zeros(0))


def _levels(law: Law, potential: np.ndarray, sizes: list[int], cost: Cost) -> list[Level]:
    scales = [merged(law, cell_starts(len(law.w), size)) for size in sizes]
    levels = []
    for k, scale in enumerate(scales):
        cell = np.searchsorted(scale.first, np.arange(len(law.w)), side="right") - 1
        radius = np.maximum.reduceat(cost.distance(law.x, scale.x[cell]), scale.first) * (1 + 1e-12)
        finer = scales[min(k + 1, len(scales) - 1)]
        child = children(parents(scale, finer), len(scale.first))
        levels.append(Level(scale.x, radius, np.maximum.reduceat(potential, scale.first), scale.first, child))
    return levels


class Blocks(NamedTuple):
    """The smallest cells filled up to one size: tokens (cells, size), points, potentials (−∞ if filled)."""

    index: np.ndarray
    x: np.ndarray
    potential: np.ndarray


def _blocks(law: Law, potential: np.ndarray, first: np.ndarray) -> Blocks:
    last = np.append(first[1:], len(law.w))
    index = first[:, None] + np.arange(np.max(last - first))
    filled = index >= last[:, None]
    index = np.where(filled, first[:, None], index)
    return Blocks(index, law.x[index], np.where(filled, -np.inf, potential[index]))


def _search(points: Blocks, others: Blocks, i: np.ndarray, j: np.ndarray, cost: Cost, ignored: float) -> list:
    """The worst partner of every point of the cells i in the cells j, where there is excess."""
    batch = max(CHUNK // (points.index.shape[1] * others.index.shape[1]), 1)
    found = []
    for s in range(0, len(i), batch):
        a, b = i[s : s + batch], j[s : s + batch]
        fill = np.zeros(batch - len(a), int)  # one shape, one compilation
        a, b, real = np.append(a, fill), np.append(b, fill), np.arange(batch) < len(a)
        excess, partner = _worst(points.x[a], points.potential[a], others.x[b], others.potential[b], *cost)
        excess, partner = np.asarray(excess), np.asarray(partner)
        pair, row = np.nonzero((excess > ignored) & real[:, None])
        column = others.index[b[pair], partner[pair, row]]
        found.append((points.index[a[pair], row], column, excess[pair, row]))
    return found


@partial(jax.jit, static_argnums=(4, 5))
def _worst(x, f, y, g, name, p):
    """Greatest f + g − c^p of each row of each pair of blocks, and the column where it is."""
    difference, total = jnp.zeros(()), jnp.zeros(())
    for k in range(x.shape[-1]):
        difference += (x[:, :, None, k] - y[:, None, :, k]) ** 2
        total += (x[:, :, None, k] + y[:, None, :, k]) ** 2
    chord = jnp.sqrt(difference)
    distance = chord if name == "chordal" else 2 * jnp.arctan2(chord, jnp.sqrt(total))
    excess = f[:, :, None] + g[:, None, :] - (distance * distance if p == 2 else distance**p)
    return jnp.max(excess, axis=2), jnp.argmax(excess, axis=2)
