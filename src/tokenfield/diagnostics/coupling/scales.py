"""Transport between many points: exact on a coarse partition, then refined scale by scale.

Both laws are cut into cells by halving, and a cell is represented by its mean direction. The coarse
problem is a linear program over all pairs. Going down, an arc between two cells becomes the arcs
between their parts; potentials are extended by f(x) = min_y c(x, y)^p − g(y) along the arcs, only the
arcs of least reduced cost c^p − f − g are kept, and a sparse linear program is solved on those.

The result is proven afterwards: `_excess` looks for pairs of points with f + g > c^p, passing over all
pairs of cells that cannot hold one. Lowering f by the excess gives a true lower bound of W; arcs with
excess join the program, and where none is left the coupling is optimal.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tokenfield.diagnostics.coupling.atoms import OPTIMAL, Bounds, dense_program, dual_value, sparse_program
from tokenfield.diagnostics.coupling.plan import Cost, Law, Plan, cumulated, monotone

#: The coarsest partition has 2^COARSE cells, each finer one 4 times as many.
COARSE = 11
#: Arcs kept for each point, those of least reduced cost.
ARCS = 10
#: How often arcs are added to the last program.
ROUNDS = 8
#: The proof ends when W^p is known to this fraction.
NARROW = 1e-6
#: Points in the smallest cells of the search for excess, which gives up beyond this many pairs.
LEAF, PAIRS = 6, 2 * 10**10
#: Pairs handled at once.
CHUNK = 4 * 10**6


class Scale(NamedTuple):
    """A law at one resolution: its cells' points and weights, and the first token of each cell."""

    x: np.ndarray
    w: np.ndarray
    first: np.ndarray


class Dual(NamedTuple):
    """Potentials of both laws."""

    f: np.ndarray
    g: np.ndarray


def by_scales(mu: Law, nu: Law, cost: Cost, coarse: int = COARSE, pairs: int = PAIRS) -> Bounds:
    """A coupling of two large laws and a lower bound of W_p, equal to rounding where all goes well."""
    order, other = _halved(mu.x), _halved(nu.x)
    mu, nu = Law(mu.x[order], mu.w[order]), Law(nu.x[other], nu.w[other])
    sizes = [2**k for k in range(coarse, 40, 2) if k == coarse or 2**k <= max(len(mu.w), len(nu.w)) / 3]
    mus, nus = _scales(mu, sizes), _scales(nu, sizes)
    matrix = cost.matrix(mus[0].x, nus[0].x)
    solved = dense_program(mus[0].w, nus[0].w, matrix)
    plan, dual = solved.plan, Dual(solved.f, solved.g)
    reduced = matrix - dual.f[:, None] - dual.g
    i, j = np.nonzero(reduced <= _limit(reduced.ravel(), sum(matrix.shape)))
    i, j = _least(i, j, reduced[i, j], plan)
    for k in range(1, len(mus)):
        plan, dual, i, j = _refine(mus[k - 1], nus[k - 1], mus[k], nus[k], plan, dual, i, j, cost)
    plan, lower = _prove(mu, nu, mus, nus, plan, dual, i, j, cost, pairs)
    return Bounds(Plan(order[plan.i], other[plan.j], plan.mass), cost.root(lower))


def _halved(x: np.ndarray, least: int = 2) -> np.ndarray:
    """An order of the points in which every dyadic part is a cell: halved along its widest coordinate."""
    order = np.arange(len(x))
    parts = [(0, len(x))]
    while parts:
        start, end = parts.pop()
        if end - start <= least:
            continue
        inside = order[start:end]
        axis = np.argmax(np.ptp(x[inside], axis=0))
        middle = (end - start) // 2
        order[start:end] = inside[np.argpartition(x[inside, axis], middle)]
        parts += [(start, start + middle), (start + middle, end)]
    return order


def _starts(n: int, cells: int) -> np.ndarray:
    """First token of each cell, as the halving places them; not more cells than tokens."""
    starts = np.array([0, n])
    while 2 * (len(starts) - 1) <= cells and 2 * (len(starts) - 1) <= n:
        middles = starts[:-1] + np.diff(starts) // 2
        starts = np.sort(np.concatenate([starts, middles]))
    return starts[:-1]


def _scales(law: Law, sizes: list[int]) -> list[Scale]:
    """The law at every resolution, the last one itself."""
    n = len(law.w)
    return [_merged(law, _starts(n, size)) if size < n / 2 else _full(law) for size in sizes] + [_full(law)]


def _full(law: Law) -> Scale:
    return Scale(law.x, law.w, np.arange(len(law.w)))


def _merged(law: Law, first: np.ndarray) -> Scale:
    """Each cell at its mean direction, or at its first token if it has none."""
    mean = np.add.reduceat(law.w[:, None] * law.x, first)
    weight = np.add.reduceat(law.w, first)
    length = np.linalg.norm(mean, axis=1, keepdims=True)
    x = np.where(length > 1e-3 * weight[:, None], mean / np.maximum(length, 1e-300), law.x[first])
    return Scale(x, weight, first)


def _refine(mu, nu, fine_mu, fine_nu, plan, dual, i, j, cost):
    """Plan, potentials and arcs of the next finer scale."""
    up, vp = _parents(mu, fine_mu), _parents(nu, fine_nu)
    down, across = _children(up, len(mu.w)), _children(vp, len(nu.w))
    # f(x) = min over the arcs (cell of x, y) of c(x, y)^p − g(y); likewise g
    k, arc = _expand(i, down)
    f = _group_min(cost.power(fine_mu.x[k], nu.x[j[arc]]) - dual.g[j[arc]], k, len(fine_mu.w))
    k, arc = _expand(j, across)
    g = _group_min(cost.power(fine_nu.x[k], mu.x[i[arc]]) - dual.f[i[arc]], k, len(fine_nu.w))
    plan = _split(plan, up, vp, fine_mu.w, fine_nu.w)
    k, arc = _expand(i, down)
    m, pair = _expand(j[arc], across)
    wide = k[pair], m
    costs = cost.power(fine_mu.x[k[pair]], fine_nu.x[m])
    reduced = costs - f[wide[0]] - g[wide[1]]
    near = reduced <= _limit(reduced, len(f) + len(g))
    i, j = _least(wide[0][near], wide[1][near], reduced[near], plan)
    dual = Dual(f, g)
    for _ in range(ROUNDS):
        solved = _improve(fine_mu, fine_nu, dual, i, j, cost)
        if solved is None:
            break
        plan, dual = solved
        reduced = costs - dual.f[wide[0]] - dual.g[wide[1]]
        bad = reduced < -1e-6 * np.sum(cost.power(fine_mu.x[plan.i], fine_nu.x[plan.j]) * plan.mass)
        if not np.any(bad):
            break
        i, j = _joined(i, j, wide[0][bad], wide[1][bad])
    return plan, dual, i, j


def _improve(mu, nu, dual: Dual, i: np.ndarray, j: np.ndarray, cost: Cost) -> tuple[Plan, Dual] | None:
    """The program on the arcs, solved for the costs reduced by the potentials."""
    solved = sparse_program(mu.w, nu.w, i, j, cost.power(mu.x[i], nu.x[j]) - dual.f[i] - dual.g[j])
    return None if solved is None else (solved.plan, Dual(dual.f + solved.f, dual.g + solved.g))


def _joined(i: np.ndarray, j: np.ndarray, more_i: np.ndarray, more_j: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both lists of arcs, each arc once."""
    width = max(int(np.max(j)), int(np.max(more_j))) + 1
    arcs = np.unique(np.concatenate([i, more_i]) * width + np.concatenate([j, more_j]))
    return arcs // width, arcs % width


def _parents(coarse: Scale, fine: Scale) -> np.ndarray:
    return np.searchsorted(coarse.first, fine.first, side="right") - 1


def _children(parents: np.ndarray, n: int) -> np.ndarray:
    """Where the children of each cell begin, and where the last end: they follow each other."""
    return np.searchsorted(parents, np.arange(n + 1))


def _expand(cells: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All children of the listed cells, and for each the place in the list it came from."""
    count = np.diff(starts)[cells]
    place = np.repeat(np.arange(len(cells)), count)
    ends = np.cumsum(count)
    return starts[cells][place] + np.arange(len(place)) - (ends - count)[place], place


def _group_min(values: np.ndarray, group: np.ndarray, n: int) -> np.ndarray:
    least = np.full(n, np.inf)
    np.minimum.at(least, group, values)
    return least


def _split(plan: Plan, up: np.ndarray, vp: np.ndarray, a: np.ndarray, b: np.ndarray) -> Plan:
    """A plan between cells as a plan between their parts, taken in order: feasible, not optimal."""
    by_row = np.argsort(plan.i, kind="stable")
    rows = monotone(cumulated(a), cumulated(plan.mass[by_row]))
    column = plan.j[by_row][rows.j]
    by_column = np.argsort(column, kind="stable")
    columns = monotone(cumulated(b), cumulated(rows.mass[by_column]))
    return Plan(rows.i[by_column][columns.j], columns.i, columns.mass)


def _least(i: np.ndarray, j: np.ndarray, reduced: np.ndarray, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """The `ARCS` arcs of least reduced cost at every point of either side, and those of the plan."""
    kept = _smallest(i, reduced) | _smallest(j, reduced)
    return _joined(i[kept], j[kept], plan.i, plan.j)


def _limit(reduced: np.ndarray, points: int) -> float:
    """A reduced cost that enough arcs stay below; it spares sorting all of them."""
    k = 2 * ARCS * points
    return float(np.partition(reduced, k)[k]) if k < len(reduced) else np.inf


def _smallest(group: np.ndarray, values: np.ndarray) -> np.ndarray:
    order = np.lexsort((values, group))
    sorted_group = group[order]
    begin = np.flatnonzero(np.concatenate([[True], sorted_group[1:] != sorted_group[:-1]]))
    rank = np.arange(len(group)) - np.repeat(begin, np.diff(np.append(begin, len(group))))
    kept = np.zeros(len(group), bool)
    kept[order[rank < ARCS]] = True
    return kept


def _prove(mu, nu, mus, nus, plan, dual, i, j, cost, pairs):
    """Add arcs until the plan is optimal or the rounds are over; the best plan and lower bound of W^p."""
    lower, value = 0.0, np.inf
    for last in (*[False] * (ROUNDS - 1), True):
        found = float(np.sum(cost.power(mu.x[plan.i], nu.x[plan.j]) * plan.mass) / np.sum(plan.mass))
        if found < value:
            best, value = plan, found
        excess, more_i, more_j = _excess(mu, nu, dual, cost, pairs, NARROW / 100 * value)
        lower = max(lower, dual_value(mu.w, dual.f - excess, nu.w, dual.g))
        if last or value - lower <= NARROW * value or len(more_i) == 0:
            break
        i, j = _joined(i, j, more_i, more_j)
        solved = _improve(mu, nu, dual, i, j, cost)
        if solved is None:
            break
        plan, dual = solved
    return best, lower


class Level(NamedTuple):
    """The cells of one level of the search: centres, radii, greatest potentials, tokens, children."""

    x: np.ndarray
    radius: np.ndarray
    top: np.ndarray
    first: np.ndarray
    child: np.ndarray


def _excess(
    mu: Law, nu: Law, dual: Dual, cost: Cost, pairs: int, ignored: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How far f must be lowered at each point until f + g ≤ c^p, and for each point its worst pairs.

    A pair of cells A, B holds no excess if (c(a, b) − r_A − r_B)^p ≥ max f + max g over them. The other
    pairs are cut further, and the smallest cells are searched point by point. Excess up to `ignored` is
    not looked for but counted in. Beyond the allowed number of pairs it is bounded by that of the cells.
    """
    n, most = len(mu.w), max(len(mu.w), len(nu.w))
    sizes = [2**k for k in range(int(np.log2(most / LEAF)), 6, -2)][::-1] or [1]
    left, right = _levels(mu, dual.f, sizes, cost), _levels(nu, dual.g, sizes, cost)
    worst = [np.zeros(len(level.first)) for level in left]
    at_points, found = np.zeros(n), []
    points, others = _blocks(mu, dual.f, left[-1].first), _blocks(nu, dual.g, right[-1].first)
    stack = [(0, *np.indices((len(left[0].first), len(right[0].first))).reshape(2, -1))]
    while stack:
        depth, i, j = stack.pop()
        a, b = left[depth], right[depth]
        near = np.maximum(cost.distance(a.x[i], b.x[j]) - a.radius[i] - b.radius[j], 0.0)
        excess = a.top[i] + b.top[j] - near**cost.p
        over = excess > ignored
        i, j = i[over], j[over]
        if pairs < 0:
            np.maximum.at(worst[depth], i, excess[over])
        elif depth == len(left) - 1:
            pairs -= len(i) * points.index.shape[1] * others.index.shape[1]
            found += _search(points, others, i, j, cost, ignored)
        else:
            pairs -= len(i)
            k, place = _expand(i, a.child)
            m, pair = _expand(j[place], b.child)
            k = k[pair]
            stack += [(depth + 1, k[s : s + CHUNK], m[s : s + CHUNK]) for s in range(0, len(k), CHUNK)]
    i, j, excess = (np.concatenate(part) for part in zip(*found, strict=True)) if found else _NOTHING
    np.maximum.at(at_points, i, excess)
    for bad, level in zip(worst, left, strict=True):
        at_points = np.maximum(at_points, np.repeat(bad, np.diff(np.append(level.first, n))))
    kept = _smallest(i, -excess)
    return at_points + ignored, i[kept], j[kept]


_NOTHING = (np.zeros(0, int), np.zeros(0, int), np.zeros(0))


def _levels(law: Law, potential: np.ndarray, sizes: list[int], cost: Cost) -> list[Level]:
    scales = [_merged(law, _starts(len(law.w), size)) for size in sizes]
    levels = []
    for k, scale in enumerate(scales):
        cell = np.searchsorted(scale.first, np.arange(len(law.w)), side="right") - 1
        radius = np.maximum.reduceat(cost.distance(law.x, scale.x[cell]), scale.first) * (1 + 1e-12)
        finer = scales[min(k + 1, len(scales) - 1)]
        child = _children(_parents(scale, finer), len(scale.first))
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
