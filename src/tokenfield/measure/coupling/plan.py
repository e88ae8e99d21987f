"""Costs on the sphere, laws as plain arrays, and couplings as lists of moved masses.

Distances come from chords, so that tiny ones keep their digits. Masses are compared to `MASS_TOLERANCE`:
weights are rounded numbers themselves, and two cumulated sums closer than that are taken as equal.
"""

from typing import NamedTuple

import numpy as np

#: Cumulated masses closer than this are the same mass.
MASS_TOLERANCE = 4e-15
#: A point that misses at most this fraction of its mass counts as complete; more was lost and is added again.
MISSING_FRACTION = 1e-3


class DiscreteLaw(NamedTuple):
    """Different points x (n, d) of the sphere with positive weights w (n,) of sum 1."""

    x: np.ndarray
    w: np.ndarray


class Plan(NamedTuple):
    """A coupling of two laws: the mass `mass[k]` goes from point `i[k]` to point `j[k]`."""

    i: np.ndarray
    j: np.ndarray
    mass: np.ndarray


class Cost(NamedTuple):
    """The cost c(x, y)^p, c the angle ("geodesic") or the chord ("chordal")."""

    name: str
    p: float

    @property
    def diameter(self) -> float:
        """The greatest distance, that of antipodes."""
        return np.pi if self.name == "geodesic" else 2.0

    def distance(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """c(x, y) along the last axis; the other axes broadcast."""
        chord = _length(x, y, np.subtract)
        return chord if self.name == "chordal" else 2 * np.arctan2(chord, _length(x, y, np.add))

    def power(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """c(x, y)^p along the last axis."""
        return self.distance(x, y) ** self.p

    def matrix(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """c(x_i, y_j)^p for all pairs."""
        return self.power(x[:, None], y[None])

    def mean(self, distances: np.ndarray, mass: np.ndarray) -> float:
        """(Σ m c^p / Σ m)^{1/p}, without underflow of c^p."""
        top = float(np.max(distances))
        if top == 0:
            return 0.0
        return top * float(np.sum(mass * (distances / top) ** self.p) / np.sum(mass)) ** (1 / self.p)

    def root(self, total: float) -> float:
        """W from W^p; a negative total, which is rounding or an empty bound, gives 0."""
        return max(total, 0.0) ** (1 / self.p)

    def of_plan(self, plan: Plan, mu: DiscreteLaw, nu: DiscreteLaw) -> float:
        """(Σ m c(x_i, y_j)^p)^{1/p} of a coupling, an upper bound of W_p.

        Args:
            plan: the coupling of μ and ν.
            mu: points (n, d) and weights (n,).
            nu: points (m, d) and weights (m,).
        """
        return self.mean(self.distance(mu.x[plan.i], nu.x[plan.j]), plan.mass)


def as_discrete_law(x: np.ndarray, w: np.ndarray) -> DiscreteLaw:
    """Equal points become one, in lexicographic order; points without weight are left out."""
    x, w = x[w > 0] + 0.0, w[w > 0]  # + 0.0 turns −0.0 into 0.0
    order = np.lexsort(x.T)
    x, w = x[order], w[order]
    first = np.flatnonzero(np.concatenate([[True], np.any(x[1:] != x[:-1], axis=1)]))
    return DiscreteLaw(x[first], np.add.reduceat(w, first))


def cumulated(w: np.ndarray) -> np.ndarray:
    """Partial sums of the weights, the last one 1; summed in long doubles."""
    total = np.cumsum(w, dtype=np.longdouble)
    return np.asarray(total / total[-1], dtype=np.float64)


def monotone(first: np.ndarray, second: np.ndarray) -> Plan:
    """Coupling in order of two lists of masses, given by their partial sums that end at 1.

    Partial sums that agree up to `MASS_TOLERANCE` are made equal, so that no sliver of rounding is moved.
    """
    second = _snapped(second, np.append(0.0, first))
    edges = np.union1d(first, second)
    mass = np.diff(edges, prepend=0.0)
    i, j = np.searchsorted(first, edges), np.searchsorted(second, edges)
    real = (mass > 0) & (i < len(first)) & (j < len(second))
    return Plan(i[real], j[real], mass[real])


def completed(plan: Plan, a: np.ndarray, b: np.ndarray) -> Plan:
    """The plan with exactly these masses on both sides, where it has them but for rounding.

    Simplex methods lose the lightest tokens. What a point gives or takes too much of is scaled down, and
    what is missing then is coupled in order.

    Args:
        plan: the coupling.
        a: masses to send, (n,).
        b: masses to receive, (m,), of the same sum.
    """
    mass = plan.mass * _at_most(a, np.bincount(plan.i, plan.mass, minlength=len(a)))[plan.i]
    mass = mass * _at_most(b, np.bincount(plan.j, mass, minlength=len(b)))[plan.j]
    unsent = np.maximum(a - np.bincount(plan.i, mass, minlength=len(a)), 0.0)
    unmet = np.maximum(b - np.bincount(plan.j, mass, minlength=len(b)), 0.0)
    if np.all(unsent <= MISSING_FRACTION * a) and np.all(unmet <= MISSING_FRACTION * b):
        return Plan(plan.i, plan.j, mass)
    missing = max(unsent.sum(), unmet.sum())
    # rounding may hide what is missing on one side
    unsent, unmet = (part if part.sum() > 0 else whole for part, whole in ((unsent, a), (unmet, b)))
    i, j = np.flatnonzero(unsent), np.flatnonzero(unmet)
    more = monotone(cumulated(unsent[i]), cumulated(unmet[j]))
    return Plan(
        np.concatenate([plan.i, i[more.i]]),
        np.concatenate([plan.j, j[more.j]]),
        np.concatenate([mass, more.mass * missing]),
    )


def _at_most(allowed: np.ndarray, used: np.ndarray) -> np.ndarray:
    """By which factor what is used must shrink."""
    return np.divide(allowed, used, out=np.ones_like(allowed), where=used > allowed)


def split(plan: Plan, a: np.ndarray, b: np.ndarray) -> Plan:
    """A plan between cells as a plan between their parts, taken in order: feasible, not optimal.

    Args:
        plan: the coupling of the cells.
        a: masses of the parts of the sending cells, (n,), cell after cell.
        b: masses of the parts of the receiving cells, (m,), cell after cell.

    Returns: the coupling of the parts.
    """
    by_row = np.argsort(plan.i, kind="stable")
    rows = monotone(cumulated(a), cumulated(plan.mass[by_row]))
    column = plan.j[by_row][rows.j]
    by_column = np.argsort(column, kind="stable")
    columns = monotone(cumulated(b), cumulated(rows.mass[by_column]))
    return Plan(rows.i[by_column][columns.j], columns.i, columns.mass)


def _snapped(values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    right = np.minimum(np.searchsorted(grid, values), len(grid) - 1)
    left = np.maximum(right - 1, 0)
    near = np.where(values - grid[left] < grid[right] - values, left, right)
    return np.where(np.abs(values - grid[near]) <= MASS_TOLERANCE, grid[near], values)


def _length(x: np.ndarray, y: np.ndarray, combine: np.ufunc) -> np.ndarray:
    """|x ± y| along the last axis, one coordinate at a time: no (n, m, d) array is made."""
    square = combine(x[..., 0], y[..., 0]) ** 2
    for k in range(1, x.shape[-1]):
        square += combine(x[..., k], y[..., k]) ** 2
    return np.sqrt(square)
