"""Exact sums over tokens that are spread over several devices: no device ever holds all keys.

Every device keeps its block of queries and passes its block of keys on to the next; after k passes each query
has met every key. Exponential sums are merged online: with the greatest score m seen so far,

    m' = max(m, scores),    total ← total · e^{m − m'} + Σ_j e^{score_j − m'} w_j (y_j, 1),

so that nothing overflows and one round is enough. On k devices a round takes 1/k of the pairs of `Direct` and
sends n/k keys k times from each device, while it computes: (d + 2) numbers for every n/k · pairs.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from tokenfield.errors import as_whole, require
from tokenfield.laws.tokens import Tokens
from tokenfield.sums.base import ExponentialSum, Function, HardmaxSum, PointwiseSum, Queries
from tokenfield.sums.direct import TIE, Direct, Keys, fold, keys_at, shifted, split, tile_size

#: Name of the axis of devices.
AXIS = "devices"

#: Takes in one tile of keys: (what a tile of queries has so far, the queries, keys) → what it has then.
Visit = Callable[[Any, Any, Keys], Any]


class Ring(Direct):
    """The sums of `Direct` with tokens spread over the devices of a mesh; any number of them."""

    mesh: Mesh = eqx.field(static=True, kw_only=True)

    name: ClassVar[str] = "ring"

    def exponential(self, queries: Queries, keys: Tokens) -> ExponentialSum:
        """Sums over all pairs."""
        q = queries.q
        start = (jnp.full(len(q), -jnp.inf), jnp.zeros((len(q), keys.d + 1)))
        top, total = self._round(_absorb, q, start, keys)
        return shifted(top, total[:, -1], total[:, :-1])

    def hardmax(self, queries: Queries, keys: Tokens) -> HardmaxSum:
        """Maximum and the tokens that reach it, in two rounds."""
        q = queries.q
        top = self._round(_raise, q, jnp.full(len(q), -jnp.inf), keys)
        level = top - TIE * jnp.linalg.norm(q, axis=1)
        total = self._round(_reach, (q, level), jnp.zeros((len(q), keys.d + 1)), keys)
        return HardmaxSum(top, total[:, -1], total[:, :-1] / total[:, -1:])

    def pointwise(self, f: Function, queries: Queries, keys: Tokens) -> PointwiseSum:
        """Sums of w_j f(s_ij) and of w_j f(s_ij) y_j."""
        q = queries.q
        total = self._round(_Add(f), q, jnp.zeros((len(q), keys.d + 1)), keys)
        return PointwiseSum(total[:, -1], total[:, :-1])

    @eqx.filter_jit
    def _round(self, visit: Visit, queries: Any, start: Any, tokens: Tokens) -> Any:
        """Let every query meet every key; leading axes are padded to whole blocks and cut again."""
        count, m = self.mesh.size, len(jax.tree.leaves(start)[0])
        over = PartitionSpec(AXIS)

        def local(queries: Any, start: Any, y: Array, w: Array) -> Any:
            return _pass_round(visit, queries, start, y, w, count)

        spread = jax.shard_map(
            local, mesh=self.mesh, in_specs=(over, over, over, over), out_specs=over, check_vma=False
        )
        found = spread(
            _padded(queries, count),
            _padded(start, count),
            _padded(tokens.points, count),
            _padded(tokens.weights, count, "constant"),
        )
        return jax.tree.map(lambda a: a[:m], found)


def _pass_round(visit: Visit, queries: Any, start: Any, y: Array, w: Array, count: int) -> Any:
    """What one device does: its queries against the keys that come by."""
    m = len(jax.tree.leaves(start)[0])
    tile = tile_size(m, 1000)
    tiles = split((queries, start), tile)
    keys = keys_at(y, w, tile_size(len(y), 500))
    onward = [(k, (k + 1) % count) for k in range(count)]

    @jax.checkpoint
    def meet(found: Any, keys: Keys) -> Any:
        def one(at: Any) -> Any:
            q, acc = at
            return fold(lambda acc, key: visit(acc, q, key), acc, keys)

        return lax.map(one, (tiles[0], found))

    def step(carry: Any, _: None) -> tuple[Any, None]:
        keys, found = carry
        coming = lax.ppermute(keys, AXIS, onward)  # on its way while these are met
        return (coming, meet(found, keys)), None

    (_, found), _ = lax.scan(step, (keys, tiles[1]), None, length=count)
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:m], found)


def _absorb(found: tuple[Array, Array], q: Array, key: Keys) -> tuple[Array, Array]:
    top, total = found
    scores = jnp.where(key.w > 0, q @ key.y.T, -jnp.inf)
    higher = lax.stop_gradient(jnp.maximum(top, jnp.max(scores, axis=1)))
    shift = jnp.where(jnp.isfinite(higher), higher, 0.0)  # before the first key that has weight
    # masked twice: exp of a masked score must not reach a gradient
    p = jnp.where(key.w > 0, jnp.exp(jnp.where(key.w > 0, scores, 0.0) - shift[:, None]), 0.0)
    return higher, total * jnp.exp(top - shift)[:, None] + p @ key.v


class _Add(eqx.Module):
    """Adds the values of a function; a module, so that equal functions share a program."""

    f: Callable[[Array], Array]

    def __call__(self, total: Array, q: Array, key: Keys) -> Array:
        return total + self.f(q @ key.y.T) @ key.v


def _raise(top: Array, q: Array, key: Keys) -> Array:
    return jnp.maximum(top, jnp.max(jnp.where(key.w > 0, q @ key.y.T, -jnp.inf), axis=1))


def _reach(total: Array, query: tuple[Array, Array], key: Keys) -> Array:
    q, level = query
    return total + jnp.where(q @ key.y.T >= level[:, None], 1.0, 0.0) @ key.v


def _padded(arrays: Any, count: int, mode: str = "edge") -> Any:
    def pad(a: Array) -> Array:
        missing = -len(a) % count
        return jnp.pad(a, [(0, missing)] + [(0, 0)] * (a.ndim - 1), mode=mode) if missing else a

    return jax.tree.map(pad, arrays)


# -- where the arrays of a run live


def mesh_of(devices: int) -> Mesh:
    """The first so many devices, over all processes (`jax.distributed`)."""
    there = jax.devices()
    as_whole(devices, "devices", 1)
    require(devices <= len(there), "devices", f"be at most the {len(there)} that JAX sees", devices)
    return Mesh(np.array(there[:devices]), (AXIS,))


def spread_tokens(y: Array, weights: Array, mesh: Mesh) -> tuple[Array, Array]:
    """Rows and weights in equal blocks over the devices; the last is padded with weight 0.

    Args:
        y: tokens (n, d).
        weights: (n,).
        mesh: the devices.
    """
    y, weights = _padded(y, mesh.size), _padded(weights, mesh.size, "constant")
    return place((y, weights), mesh, len(y))


def place(tree: Any, mesh: Mesh, rows: int) -> Any:
    """Arrays with an axis of so many rows in blocks over the devices, all others on each of them.

    Args:
        tree: arrays.
        mesh: the devices.
        rows: length of the axis that is cut, the first or the second.
    """

    def put(leaf: Any) -> Array:
        array = np.asarray(leaf)
        at = next((k for k, size in enumerate(array.shape[:2]) if size == rows), None)
        spec = PartitionSpec() if at is None else PartitionSpec(*[None] * at, AXIS)
        return jax.make_array_from_callback(array.shape, NamedSharding(mesh, spec), lambda i: array[i])

    return jax.tree.map(put, tree)


def gathered(array: Array) -> np.ndarray:
    """The whole array on this host, also if other hosts hold parts of it."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))
