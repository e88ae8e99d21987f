"""Transport to few atoms, and between any two laws of a few thousand points: linear programs.

The programs are solved by the network simplex method of POT. Its answer is not taken on trust: a plan
gives an upper bound, potentials with f(x) + g(y) ≤ c(x, y)^p a lower bound ∫f dμ + ∫g dν.
"""

import os
import warnings
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import coo_matrix

from tokenfield.measure.coupling.dyadic_cells import cell_starts, group_min, halved, merged
from tokenfield.measure.coupling.plan import (
    MASS_TOLERANCE,
    Cost,
    DiscreteLaw,
    Plan,
    completed,
    cumulated,
    monotone,
)

# tolerances
#: A plan and potentials whose values agree to this fraction of W^p are optimal.
OPTIMALITY_TOLERANCE = 1e-10
#: The simplex method may lose tokens of less mass than this in all; they are added again.
LOST_MASS_TOLERANCE = 1e-9

# limits of the work
#: Pivots of one linear program: in effect as many as it takes.
MAX_PIVOTS = 10**9
#: Repetitions of `by_program` on reduced costs, and the arcs it keeps for each point.
MAX_REPETITIONS, ARCS_PER_POINT = 4, 12
#: Tokens that one program of `to_few_atoms` shares out, and its repetitions.
ACTIVE_TOKENS, MAX_SHARINGS = 2000, 30


class Bounds(NamedTuple):
    """A coupling, and a proven lower bound of W_p."""

    plan: Plan
    lower: float


class Program(NamedTuple):
    """A solved linear program: flows along the arcs, potentials of both sides."""

    plan: Plan
    f: np.ndarray
    g: np.ndarray


def to_two_atoms(mu: DiscreteLaw, nu: DiscreteLaw, cost: Cost) -> Plan:
    """The optimal coupling with a law of two atoms.

    Tokens are sorted by c(x, y_0)^p − c(x, y_1)^p; the first of them go to y_0, up to its weight.

    Args:
        mu: the tokens, points (n, d) and weights (n,).
        nu: the atoms, points (2, d) and weights (2,).
        cost: c and p.

    Returns: the plan.
    """
    order = np.argsort(cost.power(mu.x, nu.x[0]) - cost.power(mu.x, nu.x[1]), kind="stable")
    plan = monotone(cumulated(mu.w[order]), cumulated(nu.w))
    return Plan(order[plan.i], plan.j, plan.mass)


def by_program(mu: DiscreteLaw, nu: DiscreteLaw, cost: Cost) -> Bounds:
    """One linear program over all pairs, then again over the pairs that matter until it is optimal.

    The repetition works on the costs reduced by the potentials, which are small where mass moves: the
    digits that the simplex method loses on costs of very different size come back.

    Args:
        mu: points (n, d) and weights (n,).
        nu: points (m, d) and weights (m,); n·m costs are held at once.
        cost: c and p.

    Returns: the best plan found, and a proven lower bound of W_p.
    """
    matrix = cost.matrix(mu.x, nu.x)
    scale = max(float(matrix.max()), np.finfo(float).tiny)
    solved = dense_program(mu.w, nu.w, matrix / scale)
    f, g = solved.f * scale, solved.g * scale
    best, lower = solved.plan, max(_to_nearest(matrix, mu.w), _to_nearest(matrix.T, nu.w))
    for _ in range(MAX_REPETITIONS):
        f, g, total = _feasible(mu, nu, matrix, f, g)
        lower = max(lower, total)
        value = _value(matrix, best)
        if value - lower <= OPTIMALITY_TOLERANCE * value:
            break
        reduced = matrix - f[:, None] - g[None]
        limit = np.partition(reduced.ravel(), k := min(reduced.size - 1, ARCS_PER_POINT * sum(matrix.shape)))[
            k
        ]
        chosen = reduced <= limit
        chosen[best.i, best.j] = True
        i, j = np.nonzero(chosen)
        again = sparse_program(mu.w, nu.w, i, j, reduced[i, j])
        if again is None:
            break
        f, g = f + again.f, g + again.g
        if _value(matrix, again.plan) < value:
            best = again.plan
    return Bounds(best, cost.root(lower))


def to_few_atoms(mu: DiscreteLaw, nu: DiscreteLaw, cost: Cost, active: int = ACTIVE_TOKENS) -> Bounds:
    """Many tokens, few atoms: a program over the undecided tokens only.

    With prices g of the atoms a token goes where c^p − g is least. Tokens for which the second best
    atom is much worse are settled; the program shares out the rest and gives better prices. The
    lower bound ∫min_j(c^p − g_j) dμ + ∫g dν says when nothing is left to gain. The first prices are
    those of the tokens merged into fewer, in the same way.

    Args:
        mu: the tokens, points (n, d) and weights (n,).
        nu: the atoms, points (m, d) and weights (m,), m much less than n.
        cost: c and p.
        active: tokens that the first program shares out; doubled where that is too few.

    Returns: the best plan found, and a proven lower bound of W_p.
    """
    plan, lower, _ = _shared_out(mu, nu, cost, active)
    return Bounds(plan, cost.root(lower))


def _shared_out(mu: DiscreteLaw, nu: DiscreteLaw, cost: Cost, active: int) -> tuple[Plan, float, np.ndarray]:
    """Plan, lower bound of W^p and prices."""
    matrix = cost.matrix(mu.x, nu.x)
    if len(mu.w) <= active:
        solved = dense_program(mu.w, nu.w, matrix)
        return solved.plan, dual_value(mu.w, np.min(matrix - solved.g, axis=1), nu.w, solved.g), solved.g
    order = halved(mu.x)
    cells = merged(DiscreteLaw(mu.x[order], mu.w[order]), cell_starts(len(order), len(order) // 4))
    g = _shared_out(DiscreteLaw(cells.x, cells.w), nu, cost, active)[2]
    best, value, lower = None, np.inf, _to_nearest(matrix, mu.w)
    for _ in range(MAX_SHARINGS):
        reduced = matrix - g
        two = np.partition(reduced, 1, axis=1)[:, :2]
        lower = max(lower, dual_value(mu.w, two[:, 0], nu.w, g))
        if active > 2 * len(mu.w) or (best is not None and value - lower <= OPTIMALITY_TOLERANCE * value):
            break
        order = np.argsort(two[:, 1] - two[:, 0])
        solved = _share(mu.w, nu.w, reduced, order[:active], order[active:])
        if solved is None:
            active *= 2
            continue
        plan, g = solved[0], g + solved[1]
        if _value(matrix, plan) < value:
            best, value = plan, _value(matrix, plan)
        else:
            active *= 2
    if best is None:
        best = dense_program(mu.w, nu.w, matrix).plan
    return best, lower, g


def _share(
    a: np.ndarray, b: np.ndarray, reduced: np.ndarray, free: np.ndarray, settled: np.ndarray
) -> tuple[Plan, np.ndarray] | None:
    """A plan that sends settled tokens to their best atom and shares out the free ones by a program.

    With it comes the change of the prices; None if more was settled on an atom than it holds.
    """
    home = np.argmin(reduced[settled], axis=1)
    left = _remainder(b, a[settled], home)
    if np.any(left < -MASS_TOLERANCE):
        return None
    left = np.maximum(left, 0.0)
    solved = dense_program(a[free], left * (a[free].sum() / left.sum()), reduced[free])
    shared = _without_slivers(solved.plan, len(free))
    plan = Plan(
        np.concatenate([settled, free[shared.i]]),
        np.concatenate([home, shared.j]),
        np.concatenate([a[settled], shared.mass]),
    )
    return plan, solved.g


def _remainder(whole: np.ndarray, parts: np.ndarray, group: np.ndarray) -> np.ndarray:
    """What the parts leave of each mass, summed in long doubles: a million of them round by 1e-14 else."""
    left = whole.astype(np.longdouble)
    np.subtract.at(left, group, parts)
    return left.astype(np.float64)


def _without_slivers(plan: Plan, n: int) -> Plan:
    """The plan without parts of tokens that are rounding; they go with the greatest part of their token."""
    greatest = np.zeros(n)
    np.maximum.at(greatest, plan.i, plan.mass)
    kept = (plan.mass > MASS_TOLERANCE) | (plan.mass == greatest[plan.i])
    lost = np.bincount(plan.i[~kept], plan.mass[~kept], minlength=n)
    i, j, mass = plan.i[kept], plan.j[kept], plan.mass[kept]
    return Plan(i, j, mass + np.where(mass == greatest[i], lost[i], 0.0))


def dense_program(a: np.ndarray, b: np.ndarray, matrix: np.ndarray) -> Program:
    """The linear program over all pairs; the plan is feasible even if the potentials are poor.

    The simplex method gets the points in a random order: on points sorted in space it needs many more pivots
    (on the circle sixty times the time).

    Args:
        a: masses to send, (n,).
        b: masses to receive, (m,), of the same sum.
        matrix: cost of every pair, (n, m).

    Returns: the plan and its potentials.
    """
    rows, columns = _shuffled(len(a)), _shuffled(len(b))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # optimality is judged by the potentials
        flow, log = _pot().emd(
            a[rows],
            b[columns],
            matrix[np.ix_(rows, columns)],
            numItermax=MAX_PIVOTS,
            log=True,
            center_dual=False,
        )
    i, j = np.nonzero(flow)
    f, g = np.empty(len(a)), np.empty(len(b))
    f[rows], g[columns] = log["u"], log["v"]
    return Program(completed(Plan(rows[i], columns[j], flow[i, j]), a, b), f, g)


def sparse_program(
    a: np.ndarray, b: np.ndarray, i: np.ndarray, j: np.ndarray, costs: np.ndarray
) -> Program | None:
    """The linear program over some arcs alone.

    Args:
        a: masses to send, (n,).
        b: masses to receive, (m,), of the same sum.
        i: where each arc begins, (arcs,).
        j: where it ends, (arcs,).
        costs: of each arc, (arcs,).

    Returns: the plan and its potentials, or None if the arcs do not carry the masses.
    """
    scale = max(float(np.abs(costs).max()), np.finfo(float).tiny)
    arcs = coo_matrix((costs / scale, (i, j)), shape=(len(a), len(b)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flow, log = _pot().emd(a, b, arcs, numItermax=MAX_PIVOTS, log=True, center_dual=False)
    carried = flow.data > 0
    plan = Plan(flow.row[carried], flow.col[carried], flow.data[carried])
    if log["warning"] is not None or abs(plan.mass.sum() - 1) > LOST_MASS_TOLERANCE:
        return None
    f, g = _priced(plan, i, j, costs, log["u"] * scale, log["v"] * scale)
    return Program(completed(plan, a, b), f, g)


def _priced(
    plan: Plan, i: np.ndarray, j: np.ndarray, costs: np.ndarray, f: np.ndarray, g: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Potentials of points that the simplex method has lost: as great as their arcs allow."""
    kept = np.bincount(plan.i, minlength=len(f)) > 0
    known = kept[i]
    allowed = group_min(costs[known] - f[i[known]], j[known], len(g))
    g = np.where((np.bincount(plan.j, minlength=len(g)) == 0) & np.isfinite(allowed), allowed, g)
    allowed = group_min(costs - g[j], i, len(f))
    return np.where(~kept & np.isfinite(allowed), allowed, f), g


def _shuffled(n: int) -> np.ndarray:
    return np.random.default_rng(n).permutation(n)


def _feasible(
    mu: DiscreteLaw, nu: DiscreteLaw, matrix: np.ndarray, f: np.ndarray, g: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Potentials raised and lowered until f + g ≤ c^p everywhere, with their value."""
    g = np.min(matrix - f[:, None], axis=0)
    f = np.min(matrix - g[None], axis=1)
    return f, g, dual_value(mu.w, f, nu.w, g)


def dual_value(a: np.ndarray, f: np.ndarray, b: np.ndarray, g: np.ndarray) -> float:
    """∫f dμ + ∫g dν less its rounding.

    Args:
        a: weights of μ, (n,).
        f: potential at its points, (n,).
        b: weights of ν, (m,).
        g: potential at its points, (m,).

    Returns: a lower bound of W_p^p if f(x) + g(y) ≤ c(x, y)^p for all pairs.
    """
    middle = (np.max(f) + np.min(f)) / 2  # a constant moved from f to g keeps the terms small
    f, g = a * (f - middle), b * (g + middle)
    rounding = 4 * np.finfo(float).eps * (np.sum(np.abs(f)) + np.sum(np.abs(g)))
    return float(np.sum(f) + np.sum(g) - rounding)


def _to_nearest(matrix: np.ndarray, w: np.ndarray) -> float:
    """The cost if every point of the rows went to the nearest of the columns, less its rounding.

    Where laws nearly agree this is W^p to the last digit, while potentials drown in rounding.
    """
    return float(np.sum(w * np.min(matrix, axis=1))) * (1 - 1e-14)


def _value(matrix: np.ndarray, plan: Plan) -> float:
    return float(np.sum(matrix[plan.i, plan.j] * plan.mass) / np.sum(plan.mass))


@cache
def _pot() -> Any:
    """POT, imported when first needed and without the array libraries it would load beside itself."""
    names = [f"POT_BACKEND_DISABLE_{name}" for name in ("PYTORCH", "JAX", "TENSORFLOW", "CUPY")]
    added = [name for name in names if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "1"))
    try:
        import ot
    finally:
        for name in added:
            del os.environ[name]
    return ot
