"""Transport between many points: exact on a coarse partition, then refined scale by scale.

Both laws are cut into cells by halving, and a cell is represented by its mean direction. The coarse
problem is a linear program over all pairs. Going down, an arc between two cells becomes the arcs
between their parts; potentials are extended by f(x) = min_y c(x, y)^p − g(y) along the arcs, only the
arcs of least reduced cost c^p − f − g are kept, and a sparse linear program is solved on those. On
reduced costs that are nearly right already the simplex method is quick.

The result is certified afterwards: pairs with f + g > c^p are searched for. Lowering f by the excess gives
a true lower bound of W; the pairs join the program, and where none is left the coupling is optimal.
"""

from typing import NamedTuple

import numpy as np

from tokenfield.measure.coupling.atoms import Bounds, dense_program, dual_value, sparse_program
from tokenfield.measure.coupling.certificate import Dual, excess
from tokenfield.measure.coupling.dyadic_cells import (
    Scale,
    at_scales,
    children,
    expand,
    group_min,
    halved,
    parents,
    smallest,
)
from tokenfield.measure.coupling.plan import Cost, DiscreteLaw, Plan, split

#: The work ends when W^p is known to this fraction.
GAP_TOLERANCE = 1e-6
#: The coarsest partition has 2^COARSEST_LEVEL cells, each finer one 4 times as many.
COARSEST_LEVEL = 11
#: Arcs kept for each point, those of least reduced cost.
ARCS_PER_POINT = 10

# limits of the work
#: How often arcs are added to a program.
MAX_ROUNDS = 8
#: Larger laws are not solved at their finest scale, only bounded.
MAX_SOLVED_POINTS = 200_000
#: Pairs that the search for certificates may look at in all.
MAX_SEARCHED_PAIRS = 2 * 10**10


class ScaleSolution(NamedTuple):
    """A coupling at one scale with its potentials and the arcs (i, j) of its program."""

    plan: Plan
    dual: Dual
    i: np.ndarray
    j: np.ndarray


def by_scales(
    mu: DiscreteLaw,
    nu: DiscreteLaw,
    cost: Cost,
    coarse: int = COARSEST_LEVEL,
    pairs: int = MAX_SEARCHED_PAIRS,
) -> Bounds:
    """A coupling of two large laws and a lower bound of W_p, usually a millionth apart.

    Args:
        mu: points (n, d) and weights (n,).
        nu: points (m, d) and weights (m,).
        cost: c and p.
        coarse: the coarsest partition has 2^coarse cells.
        pairs: how many pairs the search for a certificate may look at.

    Returns: the plan, and the proven lower bound.
    """
    order, other = halved(mu.x), halved(nu.x)
    mu, nu = DiscreteLaw(mu.x[order], mu.w[order]), DiscreteLaw(nu.x[other], nu.w[other])
    most = max(len(mu.w), len(nu.w))
    sizes = [2**k for k in range(coarse, 40, 2) if k == coarse or 2**k <= min(most / 3, MAX_SOLVED_POINTS)]
    mus, nus = at_scales(mu, sizes), at_scales(nu, sizes)
    solution, lower = _coarsest(mus[0], nus[0], cost)
    lower = cost.root(lower) - _moved(mu, mus[0], cost) - _moved(nu, nus[0], cost)
    for k in range(1, len(mus)):
        rounds = (
            MAX_ROUNDS if len(mus[k].w) <= MAX_SOLVED_POINTS and len(nus[k].w) <= MAX_SOLVED_POINTS else 0
        )
        solution = _refine(mus[k - 1], nus[k - 1], mus[k], nus[k], solution, cost, rounds)
    plan, proven = _certify(mu, nu, solution, cost, pairs, rounds)
    return Bounds(Plan(order[plan.i], other[plan.j], plan.mass), max(lower, cost.root(proven)))


def _coarsest(mu: Scale, nu: Scale, cost: Cost) -> tuple[ScaleSolution, float]:
    """One program over all pairs of cells, and the lower bound of its W^p."""
    matrix = cost.matrix(mu.x, nu.x)
    solved = dense_program(mu.w, nu.w, matrix)
    g = np.min(matrix - solved.f[:, None], axis=0)
    f = np.min(matrix - g, axis=1)
    reduced = matrix - f[:, None] - g
    i, j = np.nonzero(reduced <= _limit(reduced.ravel(), sum(matrix.shape)))
    i, j = _least(i, j, reduced[i, j], solved.plan)
    return ScaleSolution(solved.plan, Dual(f, g), i, j), dual_value(mu.w, f, nu.w, g)


def _moved(law: DiscreteLaw, scale: Scale, cost: Cost) -> float:
    """What it costs to move every token to its cell's point, at least W_p between the two laws."""
    cell = np.searchsorted(scale.first, np.arange(len(law.w)), side="right") - 1
    return cost.mean(cost.distance(law.x, scale.x[cell]), law.w)


def _refine(
    mu: Scale, nu: Scale, fine: Scale, other: Scale, solution: ScaleSolution, cost: Cost, rounds: int
) -> ScaleSolution:
    """The solution at the next finer scale, its program solved at most `rounds` times.

    Arcs that join are taken from those between all parts of cells with an arc.
    """
    i, j = solution.i, solution.j
    up, across = parents(mu, fine), parents(nu, other)
    down, along = children(up, len(mu.w)), children(across, len(nu.w))
    k, arc = expand(i, down)
    f = group_min(cost.power(fine.x[k], nu.x[j[arc]]) - solution.dual.g[j[arc]], k, len(fine.w))
    m, arc = expand(j, along)
    g = group_min(cost.power(other.x[m], mu.x[i[arc]]) - solution.dual.f[i[arc]], m, len(other.w))
    plan, dual = split(solution.plan, fine.w, other.w), Dual(f, g)
    k, arc = expand(i, down)
    m, pair = expand(j[arc], along)
    k = k[pair]
    costs = cost.power(fine.x[k], other.x[m])
    reduced = costs - f[k] - g[m]
    near = reduced <= _limit(reduced, len(f) + len(g))
    i, j = _least(k[near], m[near], reduced[near], plan)
    for _ in range(rounds):
        solved = _improve(fine, other, dual, i, j, cost)
        if solved is None:
            break
        plan, dual = solved
        bad = costs - dual.f[k] - dual.g[m] < -GAP_TOLERANCE * _value(fine, other, plan, cost)
        if not np.any(bad):
            break
        i, j = _joined(i, j, k[bad], m[bad])
    return ScaleSolution(plan, dual, i, j)


def _improve(
    mu: Scale | DiscreteLaw, nu: Scale | DiscreteLaw, dual: Dual, i: np.ndarray, j: np.ndarray, cost: Cost
) -> tuple[Plan, Dual] | None:
    """The program on the arcs, solved for the costs reduced by the potentials."""
    solved = sparse_program(mu.w, nu.w, i, j, cost.power(mu.x[i], nu.x[j]) - dual.f[i] - dual.g[j])
    return None if solved is None else (solved.plan, Dual(dual.f + solved.f, dual.g + solved.g))


def _certify(
    mu: DiscreteLaw, nu: DiscreteLaw, solution: ScaleSolution, cost: Cost, pairs: int, rounds: int
) -> tuple[Plan, float]:
    """Add arcs until the plan is optimal or the work is too much; the best plan and lower bound of W^p."""
    plan, dual, i, j = solution
    best, value, lower = plan, _value(mu, nu, plan, cost), 0.0
    while True:
        found = excess(mu, nu, dual, cost, pairs, GAP_TOLERANCE / 100 * value)
        lower = max(lower, dual_value(mu.w, dual.f - found.at, nu.w, dual.g))
        pairs, rounds = pairs - found.pairs, rounds - 1
        if value - lower <= GAP_TOLERANCE * value or rounds <= 0 or pairs < found.pairs or len(found.i) == 0:
            return best, lower
        i, j = _joined(i, j, found.i, found.j)
        solved = _improve(mu, nu, dual, i, j, cost)
        if solved is None:
            return best, lower
        plan, dual = solved
        if _value(mu, nu, plan, cost) < value:
            best, value = plan, _value(mu, nu, plan, cost)


def _value(mu: Scale | DiscreteLaw, nu: Scale | DiscreteLaw, plan: Plan, cost: Cost) -> float:
    return float(np.sum(cost.power(mu.x[plan.i], nu.x[plan.j]) * plan.mass) / np.sum(plan.mass))


def _joined(
    i: np.ndarray, j: np.ndarray, more_i: np.ndarray, more_j: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Both lists of arcs, each arc once."""
    width = max(int(np.max(j)), int(np.max(more_j))) + 1
    arcs = np.unique(np.concatenate([i, more_i]) * width + np.concatenate([j, more_j]))
    return arcs // width, arcs % width


def _least(i: np.ndarray, j: np.ndarray, reduced: np.ndarray, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """The arcs of least reduced cost at every point of either side, and those of the plan."""
    kept = smallest(reduced, i, ARCS_PER_POINT) | smallest(reduced, j, ARCS_PER_POINT)
    return _joined(i[kept], j[kept], plan.i, plan.j)


def _limit(reduced: np.ndarray, points: int) -> float:
    """A reduced cost that enough arcs stay below; it spares sorting all of them."""
    k = 2 * ARCS_PER_POINT * points
    return float(np.partition(reduced, k)[k]) if k < len(reduced) else np.inf
