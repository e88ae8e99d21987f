"""Wasserstein distances between laws of tokens: exact where possible, otherwise an interval.

    W_p(μ, ν) = (min over couplings π of ∬ c(x, y)^p dπ)^{1/p},

c the angle between x and y or their chord. A coupling proves an upper bound; potentials with
f(x) + g(y) ≤ c(x, y)^p prove the lower bound ∫f dμ + ∫g dν. What is returned says how it was found.

Weights are rounded numbers, so W_p^p is known to some 1e-15 of its greatest value, no better.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike
from scipy.spatial import KDTree

from tokenfield.diagnostics.coupling import atoms, circle, nodes, scales
from tokenfield.diagnostics.coupling.plan import SAME_MASS, Cost, Law, Plan, as_law
from tokenfield.errors import as_number, require
from tokenfield.theory.spectral import Limit
from tokenfield.tokens import Continuum, Tokens, as_tokens

#: Up to this many pairs of tokens one linear program over all of them is solved.
PAIRS = 25_000_000
#: Up to this many atoms, and entries of the cost matrix, tokens are shared out among atoms.
FEW, ENTRIES = 1024, 70_000_000
#: Up to this dimension trees find nearest points quickly.
TREE_DIMENSION = 8
#: A bracket narrower than this fraction counts as exact.
EXACT = 1e-9
#: Bounds of W^p may contradict each other by this part of its greatest value, which is rounding; the interval
#: between them is the answer if they do by more. Beyond `DEFECT` it is no rounding.
ROUNDING, DEFECT = 1e-14, 1e-11
#: c^p of greater powers spans more than a double resolves.
LARGEST_P = 16


class Transport(NamedTuple):
    """A Wasserstein distance: `lower` ≤ W ≤ `upper`, `value` the best number, `method` how it was found.

    A method that begins with "exact" has proven its value to rounding; `value` is then the cost of an
    optimal coupling. Otherwise `value` is the middle of the interval.
    """

    value: float
    lower: float
    upper: float
    method: str


def wasserstein(
    mu: Tokens | Continuum, nu: Tokens | Continuum, p: float = 2, cost: str = "geodesic"
) -> Transport:
    """W_p between two laws on one sphere, for c the angle ("geodesic") or |x − y| ("chordal").

    Exact on the circle with the angle, and with the chord where no mass has to move far; exact for up to
    25 million pairs of tokens, and up to 70 million where one law has at most 1024 atoms (c^p of large p and
    weights below 1e-12 may leave a narrow interval). Beyond that the answer is an interval. On the circle
    with the chord, where a million tokens take seconds, it is some millionths wide for p ≥ 2, ten times that
    for p = 1 and a thousandth for p between; more if little mass moves far and the rest by chance alone (a
    hundredth, at worst some hundredths). On other spheres, where the problem is solved scale by scale, it is
    usually a millionth wide, and 10⁵ tokens take a minute or two (p = 1: longer). A density counts as the
    tokens at its nodes, at its last time. Runs on the host: not for use under jit.
    """
    mu, nu = as_tokens(mu, "mu"), as_tokens(nu, "nu")
    ground = _checked(mu, nu, p, cost)
    first = as_law(np.asarray(mu.x), np.asarray(mu.weights))
    second = as_law(np.asarray(nu.x), np.asarray(nu.weights))
    found = _between(first, second, ground)
    open_ = not found.method.startswith("exact")
    if open_ and mu.n == nu.n and np.array_equal(mu.weights, nu.weights):
        upper = ground.mean(ground.distance(np.asarray(mu.x), np.asarray(nu.x)), np.asarray(mu.weights))
        if upper < found.upper * (1 - 1e-12):  # better than by rounding
            found = _bracket(upper, found.lower, "tokens coupled in the order given")
    return found


def coupled_distance(
    x: ArrayLike | Array,
    y: ArrayLike | Array,
    weights: ArrayLike | Array | None = None,
    p: float = 2,
    cost: str = "geodesic",
) -> float:
    """(Σ w_i c(x_i, y_i)^p)^{1/p}: the cost of moving each x_i to its own y_i, an upper bound of W_p."""
    ground = _ground(p, cost)
    mu, nu = Tokens(x, weights), Tokens(y, weights)
    require(mu.x.shape == nu.x.shape, "y", f"have the shape of x, {mu.x.shape}", f"of shape {nu.x.shape}")
    return ground.mean(ground.distance(np.asarray(mu.x), np.asarray(nu.x)), np.asarray(mu.weights))


@dataclass(frozen=True, eq=False)
class LimitDistance:
    """Of later tokens their distance to the limit law `end`; `exact`: whether it is W_p, not only a bound."""

    end: Tokens
    p: float
    exact: bool

    def __call__(self, tokens: Tokens) -> float:
        """The distance."""
        if self.exact:
            return wasserstein(tokens, self.end, self.p).value
        return coupled_distance(tokens.x, self.end.x, tokens.weights, self.p)


def limit_distance(where: Limit, start: Tokens, p: float = 2) -> LimitDistance:
    """The distance to the limit law Π♯ρ0 of the law `start`, as a function of later tokens.

    If all tokens end on a line this is W_p, exactly: a transport to two atoms. Otherwise it is the cost of
    moving every token to Π of where it began, an upper bound of W_p, and W_p while every token is nearest to
    its own end.
    """
    end = where.push(start)
    x = np.asarray(end.x)
    # where E is larger, a defective D may still leave only one direction
    line = where.basis[:, 0] if where.dimension == 1 else x[0]
    height = x @ line
    on_line = np.abs(height) > 1 - 1e-12
    if where.dimension > 1 and not np.all(on_line):
        return LimitDistance(end, p, False)
    # rounding of Π would make as many atoms as tokens; exceptional tokens end elsewhere
    ends = np.where(on_line[:, None], np.sign(height)[:, None] * line, x)
    return LimitDistance(Tokens(ends, start.weights), p, True)


def _between(mu: Law, nu: Law, cost: Cost, pairs: int = PAIRS, coarse: int = scales.COARSE) -> Transport:
    """The first method that applies, from cheap to dear."""
    if len(mu.w) < len(nu.w):
        mu, nu = nu, mu
    n, m = len(mu.w), len(nu.w)
    if n == m and np.array_equal(mu.x, nu.x) and np.sum(np.abs(mu.w - nu.w)) <= SAME_MASS:
        return Transport(0.0, 0.0, 0.0, "exact: the laws are equal")
    if m == 1:
        return _exact(Plan(np.arange(n), np.zeros(n, int), mu.w), mu, nu, cost, "one atom")
    known = Transport(0.0, 0.0, np.inf, "")
    if mu.x.shape[1] == 2:
        known = _on_the_circle(mu, nu, cost)
        if known.method.startswith("exact"):
            return known
    if m == 2:
        plan = atoms.to_two_atoms(mu, nu, cost)
        return _exact(plan, mu, nu, cost, "two atoms, tokens sorted by difference of costs")
    if n > 20 * m and m <= FEW and n * m <= ENTRIES:
        bounds, method = atoms.to_few_atoms(mu, nu, cost), f"tokens shared out among {m} atoms"
    elif n * m <= pairs:
        bounds, method = atoms.by_program(mu, nu, cost), "linear program over all pairs"
    else:
        known = known._replace(lower=max(known.lower, _to_nearest(mu, nu, cost), _to_nearest(nu, mu, cost)))
        if mu.x.shape[1] == 2:
            bounds, method = nodes.by_nodes(mu, nu, cost), "linear program over nodes of the circle"
        else:
            bounds, method = scales.by_scales(mu, nu, cost, coarse), "linear programs scale by scale"
    upper = min(cost.of_plan(bounds.plan, mu, nu), known.upper)
    # chords are shorter than arcs, so that |∫x dμ − ∫y dν| ≤ W1 ≤ W_p
    means = float(np.linalg.norm(mu.w @ mu.x - nu.w @ nu.x))
    lower = max(bounds.lower, known.lower, means)
    over = (lower**cost.p - upper**cost.p) / cost.diameter**cost.p
    if over > DEFECT:
        raise RuntimeError(f"a defect of tokenfield: W ≥ {lower} and W ≤ {upper} were both found ({method})")
    if over > ROUNDING:  # neither is certain
        lower, upper = upper, lower
    return _bracket(upper, lower, method)


def _to_nearest(mu: Law, nu: Law, cost: Cost) -> float:
    """A lower bound: no token of μ moves less than to the nearest point of ν.

    Where laws nearly agree this is W_p itself, to the last digit, while potentials drown in rounding.
    """
    if mu.x.shape[1] > TREE_DIMENSION:
        return 0.0
    nearest = KDTree(nu.x).query(mu.x)[1]
    return cost.mean(cost.distance(mu.x, nu.x[nearest]), mu.w)


def _on_the_circle(mu: Law, nu: Law, cost: Cost) -> Transport:
    if cost.name == "geodesic":
        plan = circle.geodesic_plan(mu, nu, cost.p)
        return _exact(plan, mu, nu, cost, "cyclic order on the circle")
    plan, lower = circle.chordal_plan(mu, nu, cost)
    return _bracket(cost.of_plan(plan, mu, nu), lower, "cyclic order on the circle")


def _exact(plan: Plan, mu: Law, nu: Law, cost: Cost, method: str) -> Transport:
    value = cost.of_plan(plan, mu, nu)
    return Transport(value, value, value, f"exact: {method}")


def _bracket(upper: float, lower: float, method: str) -> Transport:
    """Both bounds as a result; rounding may not turn them round."""
    lower = min(lower, upper)
    if upper - lower <= EXACT * upper:
        return Transport(upper, lower, upper, f"exact: {method}")
    return Transport((lower + upper) / 2, lower, upper, f"interval of width {upper - lower:.1e}: {method}")


def _checked(mu: Tokens, nu: Tokens, p: float, cost: str) -> Cost:
    for law, name in ((mu, "mu"), (nu, "nu")):
        finite = np.all(np.isfinite(law.x)) and np.all(np.isfinite(law.weights))
        require(bool(finite), name, "have finite points and weights", "not")
    require(mu.d == nu.d, "nu", f"lie in the same dimension as mu, {mu.d}", nu.d)
    return _ground(p, cost)


def _ground(p: float, cost: str) -> Cost:
    p = as_number(p, "p")
    require(1 <= p <= LARGEST_P, "p", f"lie between 1 and {LARGEST_P}", p)
    known = isinstance(cost, str) and cost in ("geodesic", "chordal")
    require(known, "cost", 'be "geodesic" or "chordal"', repr(cost))
    return Cost(cost, p)
