"""The certificate of a lower bound: where do potentials exceed the cost?

Potentials prove a lower bound of W only if f(x) + g(y) ≤ c(x, y)^p for all pairs. `excess` looks through
all of them, passing over pairs of cells that cannot hold an excess; no n × n array is made.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tokenfield.measure.coupling.dyadic_cells import cell_starts, children, expand, merged, parents, smallest
from tokenfield.measure.coupling.plan import Cost, DiscreteLaw

#: Points in the smallest cells of the search.
LEAF_SIZE = 6
#: Pairs reported for each point.
REPORTED_PAIRS = 10
#: Pairs handled in one batch, which bounds the memory.
BATCH_PAIRS = 4 * 10**6


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


def excess(mu: DiscreteLaw, nu: DiscreteLaw, dual: Dual, cost: Cost, pairs: int, ignored: float) -> Excess:
    """How far f must be lowered at each point until f + g ≤ c^p.

    A pair of cells A, B holds no excess if (c(a, b) − r_A − r_B)^p ≥ max f + max g over them. The other
    pairs are cut further, and the smallest cells are searched point by point.

    Args:
        mu: points (n, d) in the order of `halved`, and weights (n,).
        nu: points (m, d) in the order of `halved`, and weights (m,).
        dual: potentials f (n,) and g (m,).
        cost: c and p.
        pairs: how many pairs may be looked at; beyond them the excess is bounded by that of the cells.
        ignored: excess up to this is not looked for but counted in.

    Returns: the excess at each point of μ, at least `ignored`, and the worst pairs.
    """
    n, most = len(mu.w), max(len(mu.w), len(nu.w))
    sizes = [2**k for k in range(int(np.log2(most / LEAF_SIZE)), 6, -2)][::-1] or [1]
    left, right = _levels(mu, dual.f, sizes, cost), _levels(nu, dual.g, sizes, cost)
    worst = [np.zeros(len(level.first)) for level in left]
    searched, found = 0, []
    points, others = _blocks(mu, dual.f, left[-1].first), _blocks(nu, dual.g, right[-1].first)
    stack = [(0, *np.indices((len(left[0].first), len(right[0].first))).reshape(2, -1))]
    while stack:
        depth, i, j = stack.pop()
        a, b = left[depth], right[depth]
        near = np.maximum(cost.distance(a.x[i], b.x[j]) - a.radius[i] - b.radius[j], 0.0)
        bound = a.top[i] + b.top[j] - near**cost.p
        over = bound > ignored
        i, j = i[over], j[over]
        if searched >= pairs:
            np.maximum.at(worst[depth], i, bound[over])
        elif depth == len(left) - 1:
            searched += len(i) * points.index.shape[1] * others.index.shape[1]
            found += _search(points, others, i, j, cost, ignored)
        else:
            searched += len(i)
            stack += [(depth + 1, *batch) for batch in _parts(i, j, a.child, b.child)]
    i, j, over = (np.concatenate(part) for part in zip(*found, strict=True)) if found else _NOTHING
    at = np.zeros(n)
    np.maximum.at(at, i, over)
    for bad, level in zip(worst, left, strict=True):
        at = np.maximum(at, np.repeat(bad, np.diff(np.append(level.first, n))))
    kept = smallest(-over, i, REPORTED_PAIRS)
    return Excess(at + ignored, i[kept], j[kept], searched)


def _parts(
    i: np.ndarray, j: np.ndarray, child: np.ndarray, other: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of the children of pairs of cells, in batches."""
    k, place = expand(i, child)
    m, pair = expand(j[place], other)
    k = k[pair]
    return [(k[s : s + BATCH_PAIRS], m[s : s + BATCH_PAIRS]) for s in range(0, len(k), BATCH_PAIRS)]


_NOTHING = (np.zeros(0, int), np.zeros(0, int), np.zeros(0))


def _levels(law: DiscreteLaw, potential: np.ndarray, sizes: list[int], cost: Cost) -> list[Level]:
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
    """The smallest cells padded to one size: tokens (cells, size), points, potentials (−∞ if padding)."""

    index: np.ndarray
    x: np.ndarray
    potential: np.ndarray


def _blocks(law: DiscreteLaw, potential: np.ndarray, first: np.ndarray) -> Blocks:
    last = np.append(first[1:], len(law.w))
    index = first[:, None] + np.arange(np.max(last - first))
    padding = index >= last[:, None]
    index = np.where(padding, first[:, None], index)
    return Blocks(index, law.x[index], np.where(padding, -np.inf, potential[index]))


def _search(points: Blocks, others: Blocks, i: np.ndarray, j: np.ndarray, cost: Cost, ignored: float) -> list:
    """The worst partner of every point of the cells i in the cells j, where there is excess."""
    batch = max(BATCH_PAIRS // (points.index.shape[1] * others.index.shape[1]), 1)
    found = []
    for s in range(0, len(i), batch):
        a, b = i[s : s + batch], j[s : s + batch]
        padding = np.zeros(batch - len(a), int)  # one shape, one compilation
        a, b, real = np.append(a, padding), np.append(b, padding), np.arange(batch) < len(a)
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
