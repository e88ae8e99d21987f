"""How fast the zero-temperature flow can pull tokens apart: its one-sided Lipschitz constant (theory §2.9d).

X_0(x) = P_x D x/|Bᵀx| with D = V Bᵀ. With M = B Bᵀ, n = |Bᵀx| and unit vectors ξ ⊥ x,

    ⟨ξ, ∇_ξ X_0⟩ = (⟨ξ, Dξ⟩ − ⟨x, Dx⟩)/n − ⟨ξ, Dx⟩⟨x, Mξ⟩/n³,        L = max over x and ξ.

Distances of two tokens, and of two laws in every W_p (geodesic), grow at most like e^{Lt}. The maximum over ξ
is an eigenvalue. That over x is found by ascent, which gives a lower bound, and enclosed from above: the
sphere is cut into cells, and none holds more than the value at its centre plus its radius times a bound of
the slope.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import optimize

from tokenfield.errors import as_number, require, require_kind
from tokenfield.models.weights import AttentionWeights

#: How far apart, relative to ‖V‖, the two bounds of L may stay unless told otherwise.
ENCLOSURE_TOLERANCE = 1e-4
#: Cells that are looked at in one round at most, before the enclosure is left as it is.
MOST_CELLS = 60_000
#: Starting points of the ascent, and how many points of the sphere they are chosen from.
ASCENTS, CANDIDATES = 6, 2000
#: |Bᵀx| below this part of ‖B‖ is 0 to rounding.
SINGULAR = 1e-12


@dataclass(frozen=True, eq=False)
class OneSidedLipschitz:
    """L of the zero-temperature field lies between `lower` and `upper`, up to rounding.

    `lower` is attained: two tokens near `where` (d,), apart in the tangent direction `direction` (d,), part
    at that rate. `upper` is certified. `cells`: how many were looked at.
    """

    lower: float
    upper: float
    where: Float[np.ndarray, "d"]
    direction: Float[np.ndarray, "d"]
    cells: int

    @property
    def divergence(self) -> float:
        """What the divergence of the field does not exceed: d − 1 times `upper`, sharp on the circle."""
        return (len(self.where) - 1) * self.upper


def one_sided_lipschitz(
    weights: AttentionWeights, tolerance: float = ENCLOSURE_TOLERANCE, most_cells: int = MOST_CELLS
) -> OneSidedLipschitz:
    """The one-sided Lipschitz constant L of the zero-temperature field of one head, enclosed.

    The effort of the upper bound grows like a power d − 1: it reaches the tolerance on the circle and mostly
    on S², and is left wider, but valid, where the cells run out.

    Args:
        weights: one head, B and V (d, d), B regular; D need not be symmetric.
        tolerance: how far apart the bounds may stay, relative to ‖V‖.
        most_cells: how many cells of the sphere one round may look at.

    Returns:
        Both bounds, and where the lower one is attained.
    """
    D, M, size = _matrices(weights)
    tolerance = as_number(tolerance, "tolerance")
    require(0 < tolerance < 1, "tolerance", "lie between 0 and 1", tolerance)
    where = _ascend(D, M)
    lower, direction = _top(D, M, where)
    upper, cells, centre = _enclose(D, M, lower, tolerance * size, most_cells)
    at_centre, along = _top(D, M, centre)
    if at_centre > lower:  # the cells found a better place than the ascent did
        lower, where, direction = at_centre, centre, along
    return OneSidedLipschitz(lower, max(upper, lower), where, direction, cells)


def stretching(D: np.ndarray, M: np.ndarray, x: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "m"]:
    """The greatest ⟨ξ, ∇_ξ X_0⟩ over unit tangents ξ at each x.

    Args:
        D: V Bᵀ, (d, d).
        M: B Bᵀ, (d, d).
        x: unit rows.

    Returns:
        One rate for each row.
    """
    return np.linalg.eigvalsh(_symmetric_gradient(D, M, x))[:, -1]


def _symmetric_gradient(D: np.ndarray, M: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The symmetric part of ∇X_0 in the tangent space, and far below zero along x, where no ξ lies."""
    n = np.sqrt(np.einsum("mi,ij,mj->m", x, M, x))[:, None, None]
    outer = (x @ D.T)[:, :, None] * (x @ M)[:, None, :]
    full = D / n - outer / n**3
    across = np.eye(len(D)) - x[:, :, None] * x[:, None, :]
    inside = across @ full @ across
    sideways = np.einsum("mi,ij,mj->m", x, D, x)[:, None, None] / n
    symmetric = (inside + np.swapaxes(inside, 1, 2)) / 2 - sideways * across
    below = 2 * np.linalg.norm(symmetric, axis=(1, 2), keepdims=True) + 1
    return symmetric - below * (x[:, :, None] * x[:, None, :])


def _matrices(weights: AttentionWeights) -> tuple[np.ndarray, np.ndarray, float]:
    """D = V Bᵀ, M = B Bᵀ and ‖V‖ of one head with a regular B."""
    require_kind(weights, AttentionWeights, "weights")
    require(weights.heads == 1, "weights", "have one head", f"with {weights.heads} heads")
    B, V = (np.asarray(m[0]) for m in weights.stacked())
    sizes = np.linalg.svd(B, compute_uv=False)
    regular = bool(sizes[-1] > SINGULAR * sizes[0])
    require(regular, "weights", "have a regular B: the field jumps where Bᵀx = 0", "with a singular B")
    return V @ B.T, B @ B.T, float(np.linalg.norm(V, 2))


def _top(D: np.ndarray, M: np.ndarray, x: np.ndarray) -> tuple[float, np.ndarray]:
    values, vectors = np.linalg.eigh(_symmetric_gradient(D, M, x[None])[0])
    return float(values[-1]), vectors[:, -1]


def _ascend(D: np.ndarray, M: np.ndarray) -> np.ndarray:
    """A place of great stretching: ascent from the best of many points."""
    points = np.random.default_rng(0).normal(size=(CANDIDATES, len(D)))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    starts = points[np.argsort(stretching(D, M, points))[-ASCENTS:]]

    def loss(y: np.ndarray) -> float:
        return -float(stretching(D, M, y[None] / np.linalg.norm(y))[0])

    # without derivatives: an eigenvalue has a kink where two cross
    found = [
        optimize.minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-9}) for start in starts
    ]
    best = min(found, key=lambda each: each.fun).x
    return best / np.linalg.norm(best)


def _enclose(
    D: np.ndarray, M: np.ndarray, lower: float, tolerance: float, most: int
) -> tuple[float, int, np.ndarray]:
    """An upper bound of the stretching, cells looked at, and the best centre of a cell.

    Cells are cubes on the faces x_i = 1 of the cube around the sphere, seen from its centre; x and −x are
    alike. That projection shortens lengths, so that a cell with the half-width h has a radius ≤ h√(d−1).
    """
    d = len(D)
    slope = _slope_bound(D, M)
    face, centre, half = np.arange(d), np.zeros((d, d - 1)), 1.0
    corners = np.stack(np.meshgrid(*[[-0.5, 0.5]] * (d - 1), indexing="ij"), -1).reshape(-1, d - 1)
    settled, seen, best = -np.inf, 0, np.eye(d)[0]
    while True:
        x = _on_sphere(face, centre)
        values = stretching(D, M, x)
        seen += len(x)
        if values.max() > lower:
            lower, best = float(values.max()), x[int(np.argmax(values))]
        bounds = values + slope(x, half * np.sqrt(d - 1))
        open_cells = bounds > lower + tolerance
        settled = max(settled, float(np.max(bounds[~open_cells], initial=-np.inf)))
        if not np.any(open_cells):
            return settled, seen, best
        if np.sum(open_cells) * len(corners) > most:
            return max(settled, float(bounds.max())), seen, best
        face = np.repeat(face[open_cells], len(corners))
        centre = (centre[open_cells][:, None] + half * corners).reshape(-1, d - 1)
        half /= 2


def _on_sphere(face: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """The points of the sphere seen at places (m, d−1) of the faces (m,) of the cube."""
    x = np.empty((len(face), centre.shape[1] + 1))
    for f in range(x.shape[1]):
        x[face == f] = np.insert(centre[face == f], f, 1.0, axis=1)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def _slope_bound(D: np.ndarray, M: np.ndarray) -> Callable[[np.ndarray, float], np.ndarray]:
    """Of centres (m, d) and a radius r: how much the stretching can grow within r of each centre.

    Along a geodesic x' = η with ξ carried along, ξ' = −⟨ξ, η⟩x. With w the width of the spectrum of
    (D + Dᵀ)/2, k the norm of (D − Dᵀ)/2 and b the width of the spectrum of M, off-diagonal entries in
    orthonormal frames are at most o = w/2 + k and b/2, their derivatives at most w + k and b, and
    |n'| ≤ min(‖B‖, b/2n).
    """
    spectrum, squares = np.linalg.eigvalsh((D + D.T) / 2), np.linalg.eigvalsh(M)
    w, b = float(np.ptp(spectrum)), float(np.ptp(squares))
    k = float(np.linalg.norm((D - D.T) / 2, 2))
    o, least, most = w / 2 + k, np.sqrt(squares[0]), np.sqrt(squares[-1])

    def grown(x: np.ndarray, radius: float) -> np.ndarray:
        n = np.maximum(np.sqrt(np.einsum("mi,ij,mj->m", x, M, x)) - most * radius, least)
        change = np.minimum(most, b / (2 * n))
        first = 2 * w / n + w * change / n**2
        second = ((w + k) * b / 2 + o * b) / n**3 + 1.5 * o * b * change / n**4
        return radius * (first + second)

    return grown
