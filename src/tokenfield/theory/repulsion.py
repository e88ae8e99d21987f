"""Repulsion, V = −I, and states of two opposite groups (theory §6.6; Cohn and Kumar; 2511.11553, 2604.26085).

Repelled tokens descend E_β. e^{βs} is completely monotone in |x−y|², so that the universal optima, of which
these are the smallest, have the least energy of all codes of their size, for every β > 0. The rates of an
n-gon are those of `equispaced_spectrum` with the sign turned.
"""

from itertools import permutations, product
from typing import Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from tokenfield.errors import as_whole, require
from tokenfield.laws.tokens import as_real
from tokenfield.theory.inputs import finite, fraction
from tokenfield.theory.integration import other_weight

Code = Literal["tetrahedron", "octahedron", "icosahedron", "600-cell"]
GOLDEN = (1 + 5**0.5) / 2


def optimal_code(name: str) -> Float[np.ndarray, "n d"]:
    """Unit vectors of a "tetrahedron", "octahedron", "icosahedron" (in R³) or "600-cell" (120 in R⁴)."""
    known = isinstance(name, str) and name in get_args(Code)
    require(known, "name", f"be one of {', '.join(get_args(Code))}", repr(name))
    makers = {
        "tetrahedron": lambda: np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]], float),
        "octahedron": lambda: np.concatenate([np.eye(3), -np.eye(3)]),
        "icosahedron": _icosahedron,
        "600-cell": _cell_600,
    }
    points = makers[name]()
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def _icosahedron() -> np.ndarray:
    corners = [(0.0, a, b * GOLDEN) for a, b in product((1, -1), repeat=2)]
    return np.array([np.roll(corner, k) for corner in corners for k in range(3)])


def _cell_600() -> np.ndarray:
    """±e_i; (±½)⁴; even permutations of ½(0, ±1/φ, ±1, ±φ)."""
    axes = np.concatenate([np.eye(4), -np.eye(4)])
    cube = np.array(list(product((0.5, -0.5), repeat=4)))
    even = [p for p in permutations(range(4)) if round(np.linalg.det(np.eye(4)[list(p)])) == 1]
    base = [np.array([0, a / GOLDEN, b, c * GOLDEN]) / 2 for a, b, c in product((1, -1), repeat=3)]
    return np.concatenate([axes, cube, np.array([v[list(p)] for p in even for v in base])])


def simplex_rate(n: int, beta: float) -> float:
    """Rate 2nq at which repelled equiangular tokens (softmax, V = −I) approach the simplex, ρ = −1/(n−1).

    q is the softmax weight of another token there.
    """
    n = as_whole(n, "n", 2)
    return float(2 * n * other_weight(n, finite(beta, "beta") * n / (n - 1)))


class BipartiteRates(NamedTuple):
    """Rates about two opposite groups; negative ones are stable.

    `across` (d−1, 2): the two modes along each other eigenvector, the greater first; the vectors in their
    order, without that of the groups. `within` (2,): how fast tokens of the first and second group part.
    """

    across: Float[np.ndarray, "modes 2"]
    within: Float[np.ndarray, "2"]


def bipartite_rates(eigenvalues: ArrayLike, k: int, p: float, beta: float) -> BipartiteRates:
    """Rates of softmax attention with V = B = D symmetric about pδ_e + (1−p)δ_{−e}, e an eigenvector of D.

    Modes along e_l: eigenvalues of λ_l P − λ_k diag(c), P the 2×2 softmax matrix, c = s∘(Ps), s = (1, −1);
    within a group −λ_k c. Negative λ_k can make two groups stable that attraction would join.

    Args:
        eigenvalues: λ of D (d,).
        k: which of them is e's, counted from 0.
        p: mass of the first group, between 0 and 1.
        beta: inverse temperature, any real number.

    Returns:
        The rates across and within.
    """
    rates, p, beta = np.asarray(as_real(eigenvalues, "eigenvalues")), fraction(p, "p"), finite(beta, "beta")
    require(rates.ndim == 1 and rates.size > 1, "eigenvalues", "have shape (d,)", f"of shape {rates.shape}")
    k = as_whole(k, "k", 0)
    require(k < rates.size, "k", f"be less than {rates.size}", k)
    s = np.array([1.0, -1.0])
    scores = beta * rates[k] * np.outer(s, s)
    weight = np.array([p, 1 - p]) * np.exp(scores - scores.max(axis=1, keepdims=True))
    P = weight / weight.sum(axis=1, keepdims=True)
    c = s * (P @ s)
    others = np.delete(rates, k)
    # P is similar to a symmetric matrix, so that the modes are real
    modes = [np.sort(np.linalg.eigvals(rate * P - rates[k] * np.diag(c)).real)[::-1] for rate in others]
    return BipartiteRates(np.array(modes), -rates[k] * c)
