"""Quadrature tokens of a density, crowded towards a hyperplane or towards points.

The zero-temperature flow pulls tokens apart at E^⊥, and the mass that is late is the mass near it: equal
tokens leave one alone there, which then sees only itself and stays, with the mass 1/n. Nodes of an exact rule
in u are moved by a smooth map

    θ = u − (a/m) sin(mu),   dθ/du = 1 − a cos(mu),

which has its crowded places at the multiples of 2π/m and keeps the accuracy of the rule; near such a place
there are 1/(1 − a) times as many tokens per angle as on average. On the circle the rule is that of equispaced
u, on S² rings at Gauss nodes cos u about the pole.
"""

import numpy as np
from numpy.typing import ArrayLike

from tokenfield.errors import as_number, as_whole, require
from tokenfield.laws.quadrature import Density, density_values, unit_direction, weighted_tokens
from tokenfield.laws.tokens import Tokens, as_real

#: How much tokens crowd unless told otherwise, on the circle and on S².
CIRCLE_GRADING, SPHERE_GRADING = 0.9999, 0.98
#: Two rows are opposite if their sum is shorter than this.
OPPOSITE = 1e-9


def graded(f: Density, n: int, towards: ArrayLike, grading: float | None = None) -> Tokens:
    """About n quadrature tokens of a density on the circle or on S², crowded where the flow pulls them apart.

    Args:
        f: the density, a function of points (m, d) that gives (m,); need not be normalised.
        n: how many tokens on the circle, about how many on S²; at least 2 and 8.
        towards: where tokens crowd. A vector (d,) of norm 1 is the normal of a hyperplane: tokens crowd near
            what is orthogonal to it, a great circle of S², two points of the circle. Rows (1, d) are a point,
            rows (2, d) two opposite points. d is 2 or 3.
        grading: a in [0, 1); tokens are 1/(1−a) times as dense there as on average. By default .9999 on the
            circle and .98 on S².

    Returns:
        Tokens with weights ∝ f, spectrally accurate for smooth f.
    """
    places = np.asarray(as_real(towards, "towards"))
    plane = places.ndim == 1
    pole = unit_direction(places if plane else _rows(places)[0], "towards")
    d = pole.size
    require(d in (2, 3), "towards", "have dimension 2 or 3", f"of dimension {d}")
    n = as_whole(n, "n", 2 if d == 2 else 8)
    usual = CIRCLE_GRADING if d == 2 else SPHERE_GRADING
    a = usual if grading is None else as_number(grading, "grading")
    require(0 <= a < 1, "grading", "lie in [0, 1)", a)
    one = not plane and len(places) == 1
    x, w = _circle(n, pole, plane, one, a) if d == 2 else _sphere(n, pole, plane, one, a)
    return weighted_tokens(x, w, density_values(f, x, "f"))


def _rows(places: np.ndarray) -> np.ndarray:
    right = places.ndim == 2 and len(places) in (1, 2)
    must = "be a normal (d,), one point (1, d) or two opposite points (2, d)"
    require(right, "towards", must, f"of shape {places.shape}")
    opposite = len(places) == 1 or float(np.linalg.norm(places.sum(axis=0))) <= OPPOSITE
    require(opposite, "towards", "have opposite rows if there are two", places.tolist())
    return places


def _bent(u: np.ndarray, m: int, a: float) -> tuple[np.ndarray, np.ndarray]:
    """θ(u) and dθ/du, crowded at the multiples of 2π/m; for a < 0 in between."""
    return u - a / m * np.sin(m * u), 1 - a * np.cos(m * u)


def _circle(n: int, pole: np.ndarray, plane: bool, one: bool, a: float) -> tuple[np.ndarray, np.ndarray]:
    theta, w = _bent((np.arange(n) + 0.5) * 2 * np.pi / n, 1 if one else 2, a)
    # the frame begins where tokens crowd; the plane's points are a quarter turn before its normal
    first = np.array([pole[1], -pole[0]]) if plane else pole
    second = np.array([-first[1], first[0]])
    return np.cos(theta)[:, None] * first + np.sin(theta)[:, None] * second, w


def _sphere(n: int, pole: np.ndarray, plane: bool, one: bool, a: float) -> tuple[np.ndarray, np.ndarray]:
    """Rings about the pole, every other one turned by half a step."""
    around = int(np.sqrt(2 * n))
    rings = n // around
    nodes, rule = np.polynomial.legendre.leggauss(rings)
    u = np.arccos(nodes)
    chi, slope = _bent(u, 1 if one else 2, -a if plane else a)
    w = rule * slope * np.sin(chi) / np.sin(u)
    phi = (np.arange(around) + 0.5 * (np.arange(rings)[:, None] % 2)) * 2 * np.pi / around
    across = _across(pole)
    ring = np.cos(phi)[..., None] * across[0] + np.sin(phi)[..., None] * across[1]
    x = np.sin(chi)[:, None, None] * ring + np.cos(chi)[:, None, None] * pole
    return x.reshape(-1, 3), np.repeat(w, around)


def _across(pole: np.ndarray) -> np.ndarray:
    """Two unit vectors orthogonal to the pole and to each other; coordinate axes if it is one."""
    others = np.delete(np.eye(3), int(np.argmax(np.abs(pole))), axis=0)
    first = others[0] - (others[0] @ pole) * pole
    first /= np.linalg.norm(first)
    second = others[1] - (others[1] @ pole) * pole - (others[1] @ first) * first
    return np.stack([first, second / np.linalg.norm(second)])
