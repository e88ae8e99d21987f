"""Wasserstein distances between laws of tokens: exact where possible, otherwise an interval.

    W_p(μ, ν) = (min over couplings π of ∬ c(x, y)^p dπ)^{1/p},

c the angle between x and y or their chord. A coupling proves an upper bound; potentials with
f(x) + g(y) ≤ c(x, y)^p prove the lower bound ∫f dμ + ∫g dν. What is returned says how it was found.

Weights are rounded numbers, so W_p^p is known to some 1e-15 of its greatest value, no better.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike
from scipy.spatial import KDTree

from tokenfield.errors import as_number, require
from tokenfield.laws.tokens import Continuum, Tokens, as_tokens
from tokenfield.measure.coupling import atoms, chord_nodes, circle, multiscale
from tokenfield.measure.coupling.plan import MASS_TOLERANCE, Cost, DiscreteLaw, Plan, as_discrete_law

# sizes up to which a method is used
#: Pairs of tokens of one linear program over all of them.
MAX_PROGRAM_PAIRS = 25_000_000
#: Atoms of the smaller law, and entries of the cost matrix, where tokens are shared out among atoms.
MAX_ATOMS, MAX_ATOM_ENTRIES = 1024, 70_000_000
#: There must be more than this many tokens for each atom then.
MIN_TOKENS_PER_ATOM = 20
#: Dimension in which trees find nearest points quickly.
MAX_TREE_DIMENSION = 8
#: Order p: c^p of greater powers spans more than a double resolves.
MAX_P = 16

# tolerances
#: A bracket narrower than this fraction counts as exact.
EXACT_TOLERANCE = 1e-9
#: A coupling in the order given replaces the one found only if it is shorter by more than this fraction.
BETTER_TOLERANCE = 1e-12
#: Bounds of W^p may contradict each other by this fraction of its greatest value, which is rounding; the
#: interval between them is the answer if they do by more. Beyond `DEFECT_THRESHOLD` it is a defect.
ROUNDING_TOLERANCE, DEFECT_THRESHOLD = 1e-14, 1e-11


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
    """W_p between two laws on one sphere.

    Exact on the circle with the angle, and with the chord where no mass has to move far; exact for up to
    25 million pairs of tokens, and up to 70 million where one law has at most 1024 atoms (c^p of large p and
    weights below 1e-12 may leave a narrow interval). Beyond that the answer is an interval. On the circle
    with the chord, where a million tokens take seconds, it is some millionths wide for p ≥ 2, ten times that
    for p = 1 and a thousandth for p between; more if little mass moves far and the rest by chance alone (a
    hundredth, at worst some hundredths). On other spheres, where the problem is solved scale by scale, it is
    usually a millionth wide, and 10⁵ tokens take a minute or two (p = 1: longer). Runs on the host: not for
    use under jit.

    Args:
        mu: a law, weights (n,) and unit rows (n, d); a density counts as the tokens at its nodes, at its last
            time.
        nu: another, weights (m,) and unit rows (m, d).
        p: order of the distance, 1 ≤ p ≤ 16.
        cost: c, the angle ("geodesic") or |x − y| ("chordal").

    Returns: the best number, the interval that holds W_p, and how they were found.
    """
    mu, nu = as_tokens(mu, "mu"), as_tokens(nu, "nu")
    ground = _checked(mu, nu, p, cost)
    first = as_discrete_law(np.asarray(mu.x), np.asarray(mu.weights))
    second = as_discrete_law(np.asarray(nu.x), np.asarray(nu.weights))
    found = _between(first, second, ground)
    open_ = not found.method.startswith("exact")
    if open_ and mu.n == nu.n and np.array_equal(mu.weights, nu.weights):
        upper = ground.mean(ground.distance(np.asarray(mu.x), np.asarray(nu.x)), np.asarray(mu.weights))
        if upper < found.upper * (1 - BETTER_TOLERANCE):
            found = _bracket(upper, found.lower, "tokens coupled in the order given")
    return found


def coupled_distance(
    x: ArrayLike | Array,
    y: ArrayLike | Array,
    weights: ArrayLike | Array | None = None,
    p: float = 2,
    cost: str = "geodesic",
) -> float:
    """(Σ w_i c(x_i, y_i)^p)^{1/p}: the cost of moving each x_i to its own y_i, an upper bound of W_p.

    Args:
        x: unit rows (n, d).
        y: unit rows (n, d).
        weights: of both, (n,), summing to 1; equal if left out.
        p: order of the distance, 1 ≤ p ≤ 16.
        cost: c, the angle ("geodesic") or |x − y| ("chordal").
    """
    ground = _ground(p, cost)
    mu, nu = Tokens(x, weights), Tokens(y, weights)
    require(mu.x.shape == nu.x.shape, "y", f"have the shape of x, {mu.x.shape}", f"of shape {nu.x.shape}")
    return ground.mean(ground.distance(np.asarray(mu.x), np.asarray(nu.x)), np.asarray(mu.weights))


def _between(
    mu: DiscreteLaw,
    nu: DiscreteLaw,
    cost: Cost,
    pairs: int = MAX_PROGRAM_PAIRS,
    coarse: int = multiscale.COARSEST_LEVEL,
) -> Transport:
    """The first method that applies, from the cheapest to the most expensive."""
    if len(mu.w) < len(nu.w):
        mu, nu = nu, mu
    n, m = len(mu.w), len(nu.w)
    if n == m and np.array_equal(mu.x, nu.x) and np.sum(np.abs(mu.w - nu.w)) <= MASS_TOLERANCE:
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
    bounds, method = _by_programs(mu, nu, cost, pairs, coarse)
    upper = min(cost.of_plan(bounds.plan, mu, nu), known.upper)
    # chords are shorter than arcs, so that |∫x dμ − ∫y dν| ≤ W1 ≤ W_p
    means = float(np.linalg.norm(mu.w @ mu.x - nu.w @ nu.x))
    lower = max(bounds.lower, known.lower, means)
    over = (lower**cost.p - upper**cost.p) / cost.diameter**cost.p
    if over > DEFECT_THRESHOLD:
        raise RuntimeError(f"a defect of tokenfield: W ≥ {lower} and W ≤ {upper} were both found ({method})")
    if over > ROUNDING_TOLERANCE:  # neither is certain
        lower, upper = upper, lower
    return _bracket(upper, lower, method)


def _by_programs(
    mu: DiscreteLaw, nu: DiscreteLaw, cost: Cost, pairs: int, coarse: int
) -> tuple[atoms.Bounds, str]:
    """A coupling and a lower bound by linear programs, and which ones; μ has at least as many points as ν."""
    n, m = len(mu.w), len(nu.w)
    if n > MIN_TOKENS_PER_ATOM * m and m <= MAX_ATOMS and n * m <= MAX_ATOM_ENTRIES:
        return atoms.to_few_atoms(mu, nu, cost), f"tokens shared out among {m} atoms"
    if n * m <= pairs:
        return atoms.by_program(mu, nu, cost), "linear program over all pairs"
    if mu.x.shape[1] == 2:
        bounds, method = chord_nodes.by_nodes(mu, nu, cost), "linear program over nodes of the circle"
    else:
        bounds, method = multiscale.by_scales(mu, nu, cost, coarse), "linear programs scale by scale"
    lower = max(bounds.lower, _to_nearest(mu, nu, cost), _to_nearest(nu, mu, cost))
    return bounds._replace(lower=lower), method


def _to_nearest(mu: DiscreteLaw, nu: DiscreteLaw, cost: Cost) -> float:
    """A lower bound: no token of μ moves less than to the nearest point of ν.

    Where laws nearly agree this is W_p itself, to the last digit, while potentials drown in rounding.
    """
    if mu.x.shape[1] > MAX_TREE_DIMENSION:
        return 0.0
    nearest = KDTree(nu.x).query(mu.x)[1]
    return cost.mean(cost.distance(mu.x, nu.x[nearest]), mu.w)


def _on_the_circle(mu: DiscreteLaw, nu: DiscreteLaw, cost: Cost) -> Transport:
    if cost.name == "geodesic":
        plan = circle.geodesic_plan(mu, nu, cost.p)
        return _exact(plan, mu, nu, cost, "cyclic order on the circle")
    plan, lower = circle.chordal_plan(mu, nu, cost)
    return _bracket(cost.of_plan(plan, mu, nu), lower, "cyclic order on the circle")


def _exact(plan: Plan, mu: DiscreteLaw, nu: DiscreteLaw, cost: Cost, method: str) -> Transport:
    value = cost.of_plan(plan, mu, nu)
    return Transport(value, value, value, f"exact: {method}")


def _bracket(upper: float, lower: float, method: str) -> Transport:
    """Both bounds as a result; rounding may not turn them round."""
    lower = min(lower, upper)
    if upper - lower <= EXACT_TOLERANCE * upper:
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
    require(1 <= p <= MAX_P, "p", f"lie between 1 and {MAX_P}", p)
    known = isinstance(cost, str) and cost in ("geodesic", "chordal")
    require(known, "cost", 'be "geodesic" or "chordal"', repr(cost))
    return Cost(cost, p)
