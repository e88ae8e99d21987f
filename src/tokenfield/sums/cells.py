"""Exponential sums over merged tokens (d = 2, 3): for clouds that have gathered, wherever they look.

The sphere is cut into cells so small that scores vary little inside one: h·|A| = `width` for cells of side
h. A key in a cell is replaced by its weights on a few Chebyshev nodes of the cell, which keeps the *relative*
accuracy of every exponential, also where all of them are tiny. Queries are treated alike: sums are made at
the nodes of the cells that hold tokens and interpolated inside. With K occupied cells of P nodes this
costs (K P)² pairs and O(n P) besides; late in a run K is a handful.

Cells are squares of the cube around the sphere: the face is the coordinate of greatest modulus, the chart the
other coordinates divided by it.
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int
from scipy import special

from tokenfield.laws.tokens import Tokens
from tokenfield.registry import register
from tokenfield.sums.base import (
    SECONDS_PER_CALL,
    ExponentialSum,
    Function,
    HardmaxSum,
    PointwiseSum,
    Queries,
    Sums,
)
from tokenfield.sums.direct import DIRECT, weighted_exponential
from tokenfield.sums.radial import chebyshev_nodes, lagrange

#: Cell sides times |A| that a plan may choose from.
WIDTHS = (2.0, 0.5, 0.05, 1e-3)
#: Greatest side of a cell: there the curvature of the chart costs no accuracy.
LARGEST_SIDE = 0.1
#: Tokens whose shares of nodes are added up at a time.
CHUNK = 2**15
#: Seconds for one token at one node, and for one pair of nodes (two passes), on two cores.
SECONDS_PER_SHARE, SECONDS_PER_NODE_PAIR = 4e-8, 3e-9


@register("sums", "merged")
class CellSums(Sums):
    """Sums over at most `cells` occupied cells of width `width`/|A|, `order` nodes a side."""

    tolerance: float = eqx.field(static=True)
    width: float = eqx.field(static=True)
    order: int = eqx.field(static=True)
    cells: int = eqx.field(static=True)

    name: ClassVar[str] = "merged"
    dimensions: ClassVar[tuple[int, ...]] = (2, 3)

    def seconds(self, heads: int, n: int, d: int) -> float:
        """Estimated cost of one evaluation.

        Args:
            heads: number of heads.
            n: number of tokens.
            d: dimension.
        """
        nodes = self.order ** (d - 1)
        pairs = (self.cells * nodes) ** 2
        one = SECONDS_PER_CALL + SECONDS_PER_SHARE * n * nodes + SECONDS_PER_NODE_PAIR * pairs
        return heads * one

    @staticmethod
    def least_seconds(heads: int, n: int, d: int) -> float:
        """What such sums cost at the very least: to look at the tokens for them is not free.

        Args:
            heads: number of heads.
            n: number of tokens.
            d: dimension.
        """
        return heads * (SECONDS_PER_CALL + SECONDS_PER_SHARE * n * 2 ** (d - 1))

    def exponential(self, queries: Queries, keys: Tokens) -> ExponentialSum:
        """Sums of w_j e^{s_ij}; all NaN if the tokens occupy more cells than planned.

        Interpolated between nodes at the tokens themselves; at few or other points summed at each.
        """
        A, x, tokens = queries.A, queries.x, keys
        side = self.width / jnp.maximum(lax.stop_gradient(jnp.linalg.norm(A, 2)), self.width / LARGEST_SIDE)
        places = _places(tokens.x, side, self.cells)
        nodes = _node_points(places, side, self.order)
        shares = self._shares(places, tokens)
        occupied = places.occupied[:, None] & jnp.ones(nodes.shape[1], bool)
        flat = nodes.reshape(-1, tokens.d), shares.reshape(-1, tokens.d + 1), occupied.reshape(-1)
        if len(x) > len(flat[0]) and x is tokens.x:
            at_nodes = weighted_exponential(Queries(A, flat[0], queries.bias).q, *flat)
            found = self._interpolated(queries, places, nodes, at_nodes)
        else:
            found = weighted_exponential(queries.q, *flat)
        error = jnp.full(len(x), truncation(self.width, self.order))
        found = ExponentialSum(found.log_mass, found.mean, error)
        return jax.tree.map(lambda a: jnp.where(places.fit, a, jnp.nan), found)

    def hardmax(self, queries: Queries, keys: Tokens) -> HardmaxSum:
        """Direct."""
        return DIRECT.hardmax(queries, keys)

    def pointwise(self, f: Function, queries: Queries, keys: Tokens) -> PointwiseSum:
        """Direct: cells keep the relative accuracy of exponentials only."""
        return DIRECT.pointwise(f, queries, keys)

    def state(self) -> dict[str, Any]:
        """The plan itself."""
        return {"kind": self.name, **vars(self)}

    def _shares(self, places: "_Places", tokens: Tokens) -> Float[Array, "K P v"]:
        """Sum over the tokens of a cell of their Lagrange weights at its nodes times w (y, 1)."""
        values = tokens.weights[:, None] * jnp.concatenate([tokens.x, jnp.ones((tokens.n, 1))], axis=1)
        count = _chunks(tokens.n)
        start = jnp.zeros((self.cells, self.order ** (tokens.d - 1), tokens.d + 1))

        def add(total: Array, chunk: tuple[Array, Array, Array]) -> tuple[Array, None]:
            cell, place, value = chunk
            share = _basis(place, self.order)[:, :, None] * value[:, None, :]
            return total.at[cell].add(share, mode="drop"), None

        chunks = jax.tree.map(lambda a: _split(a, count), (places.cell, places.place, values))
        return lax.scan(add, start, chunks)[0]

    def _interpolated(
        self, queries: Queries, seen: "_Places", nodes: Array, found: ExponentialSum
    ) -> ExponentialSum:
        """From the nodes of each cell to the points inside it.

        Divided by e^{⟨Aᵀx, ŷ⟩}, ŷ the mean at the first node of the cell, the sums hardly vary in a cell.
        """
        K, P, d = nodes.shape
        x, at_nodes = queries.x, Queries(queries.A, nodes.reshape(-1, d), queries.bias).q.reshape(K, P, d)
        log_mass, mean = found.log_mass.reshape(K, P), found.mean.reshape(K, P, d)
        reference = lax.stop_gradient(mean[:, 0])
        flat = log_mass - jnp.einsum("kpd,kd->kp", at_nodes, reference)
        level = lax.stop_gradient(jnp.max(flat, axis=1))
        mass = jnp.exp(flat - level[:, None])
        values = jnp.concatenate([mass[:, :, None] * mean, mass[:, :, None]], axis=2)

        def read(chunk: tuple[Array, Array, Array]) -> tuple[Array, Array]:
            cell, place, query = chunk
            value = jnp.einsum("np,npv->nv", _basis(place, self.order), values[cell])
            shift = jnp.sum(query * reference[cell], axis=1) + level[cell]
            return shift + jnp.log(value[:, -1]), value[:, :-1] / value[:, -1:]

        chunks = jax.tree.map(lambda a: _split(a, _chunks(len(x))), (seen.cell, seen.place, queries.q))
        log_mass, mean = lax.map(read, chunks)
        return ExponentialSum(log_mass.reshape(-1)[: len(x)], mean.reshape(-1, d)[: len(x)], found.error[:1])


class _Places(NamedTuple):
    """Where points lie: which of the occupied cells (n,), where inside it (n, d−1) in [−1, 1], the cells'
    faces and corners, and whether the cells fit the plan.
    """

    cell: Int[Array, "n"]
    place: Float[Array, "n e"]
    corner: Int[Array, "K d"]
    fit: Array

    @property
    def occupied(self) -> Array:
        """Cells that hold a point."""
        return self.corner[:, 0] >= 0


def _places(x: Float[Array, "n d"], side: Array, cells: int) -> _Places:
    d = x.shape[1]
    face, chart = _chart(x)
    scaled = (chart + 1) / side
    corner = lax.stop_gradient(jnp.floor(scaled)).astype(jnp.int64)
    across = jnp.asarray(2 / side + 2).astype(jnp.int64)
    label = face.astype(jnp.int64)
    for k in range(d - 1):
        label = label * across + corner[:, k]
    _, first, cell = jnp.unique(label, return_index=True, return_inverse=True, size=cells + 1, fill_value=-1)
    known = jnp.concatenate([face[:, None], corner], axis=1)[first]
    # padding repeats the first point: its label is not its own
    count = 1 + jnp.sum(jnp.diff(jnp.sort(label)) != 0)
    known = jnp.where(jnp.arange(cells + 1)[:, None] < count, known, -1)
    return _Places(cell, 2 * (scaled - corner) - 1, known[:cells], count <= cells)


def _chart(x: Float[Array, "n d"]) -> tuple[Int[Array, "n"], Float[Array, "n e"]]:
    """Face of the cube, 2·axis + (1 if negative), and the other coordinates over the one of the axis."""
    d = x.shape[1]
    axis = jnp.argmax(jnp.abs(lax.stop_gradient(x)), axis=1)
    along = jnp.take_along_axis(x, axis[:, None], axis=1)
    others = (axis[:, None] + 1 + jnp.arange(d - 1)) % d
    face = 2 * axis + (along[:, 0] < 0)
    return face, jnp.take_along_axis(x, others, axis=1) / jnp.abs(along)


def _node_points(places: _Places, side: Array, order: int) -> Float[Array, "K P d"]:
    """The nodes of the cells, on the sphere."""
    d = places.corner.shape[1]
    face, corner = places.corner[:, 0], places.corner[:, 1:]
    grids = np.meshgrid(*[(chebyshev_nodes(order) + 1) / 2] * (d - 1), indexing="ij")
    inside = np.stack([g.ravel() for g in grids], axis=1)
    chart = (corner[:, None, :] + inside) * side - 1
    sign = jnp.where(face % 2 == 1, -1.0, 1.0)[:, None, None]
    points = jnp.concatenate([jnp.broadcast_to(sign, (*chart.shape[:2], 1)), chart], axis=2)
    points = points / jnp.linalg.norm(points, axis=2, keepdims=True)
    # the chart's first coordinate is that of the face's axis, the others follow in turn
    back = (jnp.arange(d) - jnp.maximum(face, 0)[:, None] // 2) % d
    return jnp.take_along_axis(points, back[:, None, :], axis=2)


def _basis(place: Float[Array, "n e"], order: int) -> Float[Array, "n P"]:
    """Lagrange polynomials of a cell's nodes."""
    basis = lagrange(place[:, 0], order)
    for k in range(1, place.shape[1]):
        basis = (basis[:, :, None] * lagrange(place[:, k], order)[:, None, :]).reshape(len(place), -1)
    return basis


def truncation(width: float, order: int) -> float:
    """Relative error of interpolating over a cell: of the exponential, for queries that see keys across the
    whole sphere, and of the chart, whose singularities lie at distance 1.
    """
    chart = 4 * width * (LARGEST_SIDE / 4) ** order
    return float(4 * special.iv(order, width) * np.exp(width) + chart + 1e-14)


def order_for(width: float, tolerance: float) -> int:
    """Nodes a side that bring the truncation below the tolerance."""
    return next(p for p in range(2, 60) if truncation(width, p) <= max(tolerance, 2e-14) or p == 59)


def plans(x: np.ndarray, norm: float, tolerance: float) -> list["CellSums"]:
    """A plan for each width that holds the points with room to spare.

    Args:
        x: points (n, d).
        norm: the greatest |A|.
        tolerance: relative error of the sums.
    """
    options = []
    for width in WIDTHS:
        occupied = _occupied(x, _side(width, norm))
        cells = 1 << int(np.ceil(np.log2(1.5 * occupied + 4)))  # few sizes: each is compiled
        options.append(CellSums(tolerance, width, order_for(width, tolerance), cells))
    return options


def plan_everywhere(norm: float, tolerance: float) -> "CellSums":
    """Cells for points anywhere on the circle."""
    width = WIDTHS[0]
    return CellSums(tolerance, width, order_for(width, tolerance), int(8 / _side(width, norm)) + 9)


def _side(width: float, norm: float) -> float:
    return min(width / norm, LARGEST_SIDE) if norm > 0 else LARGEST_SIDE


def _occupied(x: np.ndarray, side: float) -> int:
    face, chart = _chart(jnp.asarray(x))
    corner = np.floor((np.asarray(chart) + 1) / side).astype(np.int64)
    across = int(2 / side + 2)
    label = np.asarray(face).astype(np.int64)
    for column in corner.T:
        label = label * across + column
    return len(np.unique(label))


def _chunks(n: int) -> int:
    return -(-n // CHUNK)


def _split(a: Array, count: int) -> Array:
    """Rows in `count` chunks; padding belongs to no cell."""
    missing = -len(a) % count
    fill = np.iinfo(np.int32).max if jnp.issubdtype(a.dtype, jnp.integer) else 0
    padded = jnp.pad(a, [(0, missing)] + [(0, 0)] * (a.ndim - 1), constant_values=fill)
    return padded.reshape(count, -1, *a.shape[1:])
