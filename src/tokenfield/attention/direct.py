"""Exact attention sums over all pairs, in tiles: any dimension, memory O(n · tile), no n × n array.

For queries q_i = Aᵀx_i, keys y_j and weights w_j the three sums are

    exponential:  Z_i = Σ_j w_j e^{⟨q_i, y_j⟩}  and  Σ_j w_j e^{⟨q_i, y_j⟩} y_j / Z_i
    hardmax:      the maximum of ⟨q_i, y_j⟩ over tokens with w_j > 0, and the mean of those that reach it
    kernel:       Σ_j w_j f(⟨q_i, y_j⟩)  and  Σ_j w_j f(⟨q_i, y_j⟩) y_j

Exponential sums shift the scores by their bound |q_i| (keys have norm 1), which needs no second pass.
If no key lies near the direction of q_i, all terms underflow; such tiles are found from their sums and
done again with the true maximum. Tile sizes were measured, see benchmarks/.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from tokenfield.tokens import Tokens

#: Scores that differ by less than this times |q| count as equal in the hardmax.
TIE = 1e-12
#: Sums below this lost digits to underflow (the smallest double is 1e-308) and are done again.
SMALL = 1e-200
#: Rounding error of one operation.
ROUNDING = 2.0**-52
#: Up to this many queries and keys one tile holds everything and the maximum costs nothing extra.
ONE_TILE = 512
#: From this dimension on the tiles of keys are larger.
WIDE = 32


class ExponentialSum(NamedTuple):
    """log Z (m,), the softmax mean (m, d), and an estimate of the relative error of Z in each row (m,)."""

    log_mass: Float[Array, "m"]
    mean: Float[Array, "m d"]
    error: Float[Array, "m"]


class HardmaxSum(NamedTuple):
    """Greatest score (m,), the weight that reaches it (m,), and the mean over that weight (m, d)."""

    top: Float[Array, "m"]
    mass: Float[Array, "m"]
    mean: Float[Array, "m d"]


class Sums(eqx.Module):
    """The sums that models are made of. Subclasses differ in how they do exponential ones."""

    #: Relative error that exponential sums keep, or else say; exact ones have rounding errors only.
    tolerance: eqx.AbstractVar[float]

    @abstractmethod
    def exponential(self, A: Float[Array, "d d"], x: Float[Array, "m d"], tokens: Tokens) -> ExponentialSum:
        """Sums of w_j e^{⟨Aᵀx, y_j⟩} at the points x; for a head A = βB."""

    def hardmax(self, queries: Float[Array, "m d"], tokens: Tokens) -> HardmaxSum:
        """Maximum of ⟨q, y_j⟩ over the tokens present, ties averaged; queries are Bᵀx."""
        return _hardmax(queries, tokens)

    def kernel(
        self, f: Callable[[Array], Array], queries: Float[Array, "m d"], tokens: Tokens
    ) -> tuple[Float[Array, "m"], Float[Array, "m d"]]:
        """Sums of w_j f(⟨q, y_j⟩) and of w_j f(⟨q, y_j⟩) y_j for an elementwise f; queries are A x."""
        return _kernel(f, queries, tokens)


class Direct(Sums):
    """The exact sums; the reference for every faster one.

    `symmetric` promises that exponential sums are read at the tokens themselves and that A is a multiple
    of I: each exponential then serves two rows.
    """

    symmetric: bool = eqx.field(default=False, static=True)

    tolerance: ClassVar[float] = 0.0

    def exponential(self, A: Float[Array, "d d"], x: Float[Array, "m d"], tokens: Tokens) -> ExponentialSum:
        """Sums over all pairs."""
        return _exponential(x @ A, tokens, self.symmetric)


#: For queries and keys that have nothing to do with each other.
DIRECT = Direct()


# Compiled here, once for each shape, so that calls outside of jit are quick as well.


@partial(jax.jit, static_argnames="symmetric")
def _exponential(queries: Array, tokens: Tokens, symmetric: bool) -> ExponentialSum:
    if queries.shape[0] <= ONE_TILE and tokens.n <= ONE_TILE:
        return _exponential_careful(queries, _keys(tokens, tokens.n))
    bound = lax.stop_gradient(jnp.linalg.norm(queries, axis=1))
    if not symmetric:
        return _over_query_tiles(_exponential_tile, (queries, bound), tokens)
    mass, total = _symmetric_sums(queries, jnp.max(bound), tokens)
    return lax.cond(
        jnp.all(mass > SMALL),  # every token sees itself, so only tiny weights lead elsewhere
        lambda: _exact(jnp.max(bound), mass, total),
        lambda: _over_query_tiles(_exponential_tile, (queries, bound), tokens),
    )


def weighted_exponential(
    queries: Float[Array, "m d"],
    y: Float[Array, "k d"],
    values: Float[Array, "k v"],
    present: Bool[Array, "k"],
) -> ExponentialSum:
    """Sums over keys y whose mass and mass times position are given apart: columns (position, mass).

    Shifted by the true maximum; for keys that stand for others (merged.py) and may have negative mass.
    """
    keys = _Keys(y, present.astype(float), jnp.where(present[:, None], values, 0.0))
    size = _tile_size(len(y), 500)
    tiled = _Keys(_tiled(keys.y, size), *_tiled((keys.w, keys.v), size, "constant"))
    return _query_tiles(lambda q: _exponential_careful(q, tiled), queries)


@jax.jit
def _hardmax(queries: Array, tokens: Tokens) -> HardmaxSum:
    return _over_query_tiles(_hardmax_tile, queries, tokens)


@eqx.filter_jit
def _kernel(f: Callable[[Array], Array], queries: Array, tokens: Tokens) -> tuple[Array, Array]:
    def tile(q: Array, keys: "_Keys") -> tuple[Array, Array]:
        return _sums(lambda key: f(q @ key.y.T), q, keys)

    return _over_query_tiles(tile, queries, tokens)


class _Keys(NamedTuple):
    """Keys in tiles: y (tiles, tile, d), w (tiles, tile), and v = w (y, 1), where the sum of the weights
    rides along as one more column. Padding has weight 0.
    """

    y: Array
    w: Array
    v: Array


def _keys(tokens: Tokens, size: int) -> _Keys:
    y, w = tokens.x, tokens.weights
    v = w[:, None] * jnp.concatenate([y, jnp.ones_like(w)[:, None]], axis=1)
    return _Keys(_tiled(y, size), *_tiled((w, v), size, "constant"))


def _sums(factors: Callable[[_Keys], Array], q: Array, keys: _Keys) -> tuple[Array, Array]:
    """Σ_j p_ij w_j and Σ_j p_ij w_j y_j, p = factors(key) for each tile of keys."""
    total = _fold(lambda acc, key: acc + factors(key) @ key.v, jnp.zeros((len(q), q.shape[1] + 1)), keys)
    return total[:, -1], total[:, :-1]


def _exponential_tile(query: tuple[Array, Array], keys: _Keys) -> ExponentialSum:
    q, bound = query
    mass, total = _sums(lambda key: jnp.exp(q @ key.y.T - bound[:, None]), q, keys)
    return lax.cond(
        jnp.all(mass > SMALL),
        lambda: _exact(bound, mass, total),
        lambda: _exponential_careful(q, keys),
    )


def _exact(shift: Array, mass: Array, total: Array) -> ExponentialSum:
    """The result from sums of e^{score − shift}; a score of size s carries a rounding error of s·1e-16."""
    log_mass = shift + jnp.log(mass)
    error = lax.stop_gradient(ROUNDING * (1 + jnp.abs(shift) + jnp.zeros_like(mass)))
    return ExponentialSum(log_mass, total / mass[:, None], error)


def _exponential_careful(q: Array, keys: _Keys) -> ExponentialSum:
    """The same sums shifted by the true maximum of each row, found first."""
    top = lax.stop_gradient(_tops(q, keys))

    def factors(key: _Keys) -> Array:
        # a token of weight 0 may lie above the maximum: its exponential must not overflow
        return jnp.exp(jnp.where(key.w > 0, q @ key.y.T - top[:, None], 0.0))

    mass, total = _sums(factors, q, keys)
    return _exact(top, mass, total)


def _symmetric_sums(q: Array, bound: Array, tokens: Tokens) -> tuple[Array, Array]:
    """Σ_j p_ij w_j and Σ_j p_ij w_j y_j for p_ij = p_ji = e^{⟨q_i, y_j⟩ − bound}, each pair of tiles once."""
    size = _tile_size(tokens.n, 1000)
    keys, queries = _keys(tokens, size), _tiled(q, size)

    @jax.checkpoint
    def both(i: Array, j: Array) -> tuple[Array, Array]:
        p = jnp.exp(queries[i] @ keys.y[j].T - bound)
        return p @ keys.v[j], jnp.where(i == j, 0.0, p.T @ keys.v[i])

    def add(total: Array, pair: tuple[Array, Array]) -> tuple[Array, None]:
        i, j = pair
        to_i, to_j = both(i, j)
        return total.at[i].add(to_i).at[j].add(to_j), None

    total = lax.scan(add, jnp.zeros_like(keys.v), jnp.triu_indices(len(queries)))[0]
    total = total.reshape(-1, total.shape[2])[: tokens.n]
    return total[:, -1], total[:, :-1]


def _hardmax_tile(q: Array, keys: _Keys) -> HardmaxSum:
    top = _tops(q, keys)
    level = top - TIE * jnp.linalg.norm(q, axis=1)

    mass, total = _sums(lambda key: jnp.where(q @ key.y.T >= level[:, None], 1.0, 0.0), q, keys)
    return HardmaxSum(top, mass, total / mass[:, None])


def _tops(q: Array, keys: _Keys) -> Array:
    """Greatest score of each query over the keys of positive weight."""

    def raise_(top: Array, key: _Keys) -> Array:
        scores = jnp.where(key.w > 0, q @ key.y.T, -jnp.inf)
        return jnp.maximum(top, jnp.max(scores, axis=1))

    return _fold(raise_, jnp.full(q.shape[0], -jnp.inf), keys)


def _fold(add: Callable[[Any, _Keys], Any], start: Any, keys: _Keys) -> Any:
    """Run `add` over the key tiles; gradients recompute each tile instead of storing it."""
    if keys.y.shape[0] == 1:
        return add(start, _Keys(*(a[0] for a in keys)))
    return lax.scan(jax.checkpoint(lambda acc, key: (add(acc, key), None)), start, keys)[0]


def _over_query_tiles(tile: Callable[[Any, _Keys], Any], queries: Any, tokens: Tokens) -> Any:
    """Apply `tile` to each tile of queries against all keys and join the results."""
    keys = _keys(tokens, _tile_size(tokens.n, 500 if tokens.d < WIDE else 1000))
    return _query_tiles(lambda q: tile(q, keys), queries)


def _query_tiles(f: Callable[[Any], Any], queries: Any) -> Any:
    m = len(jax.tree.leaves(queries)[0])
    tiles = _tiled(queries, _tile_size(m, 1000))
    out = lax.map(jax.checkpoint(f), tiles)
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:m], out)


def _tile_size(n: int, wanted: int) -> int:
    """A size near the wanted one that splits n evenly, so that little is padded."""
    return -(-n // max(1, round(n / wanted)))


def _tiled(arrays: Any, size: int, mode: str = "edge") -> Any:
    """Split the first axis into tiles, padded with copies, where every function is defined, or with zeros."""

    def split(a: Array) -> Array:
        missing = -a.shape[0] % size
        padded = jnp.pad(a, [(0, missing)] + [(0, 0)] * (a.ndim - 1), mode=mode)
        return padded.reshape(-1, size, *a.shape[1:])

    return jax.tree.map(split, arrays)
