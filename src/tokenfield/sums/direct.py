"""Exact attention sums over all pairs, in tiles: any dimension, memory O(n · tile), no n × n array.

The sums are those of base.py. Exponential sums shift the scores by their bound |q_i| (keys have norm 1, or
the greatest length in a free space), which needs no second pass. If no key lies near the direction of q_i,
all terms underflow; such tiles are found from their sums and done again with the true maximum, as are all
tiles under a mask that adds numbers of either sign. Tiles of which the mask shows nothing are left out. Tile
sizes were measured, see benchmarks/.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from tokenfield.laws.tokens import Tokens
from tokenfield.registry import register
from tokenfield.sums.base import ExponentialSum, Function, HardmaxSum, Mask, PointwiseSum, Queries, Sums

#: Scores that differ by less than this times |q| count as equal in the hardmax.
TIE = 1e-12
#: Sums below this lost digits to underflow (the smallest double is 1e-308) and are done again.
UNDERFLOW = 1e-200
#: Rounding error of one operation.
ROUNDING = 2.0**-52
#: Up to this many queries and keys one tile holds everything and the maximum costs nothing extra.
ONE_TILE = 512
#: Seconds for one pair, on two cores.
SECONDS_PER_PAIR = 1.2e-9
#: From this dimension on the tiles of keys are larger.
WIDE_DIMENSION = 32


@register("sums", "direct", direct=True)
class Direct(Sums):
    """The exact sums; the reference for every faster one.

    `symmetric` promises that exponential sums are read at the tokens themselves, that A is a multiple of I
    and that there is neither bias nor mask: each exponential then serves two rows.
    """

    symmetric: bool = eqx.field(default=False, static=True)

    name: ClassVar[str] = "direct"
    exact: ClassVar[bool] = True
    tolerance: ClassVar[float] = 0.0

    @staticmethod
    def seconds(heads: int, n: int) -> float:
        """Estimated cost of one evaluation at n tokens."""
        return heads * SECONDS_PER_PAIR * n**2

    def exponential(self, queries: Queries, keys: Tokens) -> ExponentialSum:
        """Sums over all pairs."""
        return _exponential(queries, keys, self.symmetric)

    def hardmax(self, queries: Queries, keys: Tokens) -> HardmaxSum:
        """Maximum over all pairs."""
        return _hardmax(queries, keys)

    def pointwise(self, f: Function, queries: Queries, keys: Tokens) -> PointwiseSum:
        """Sums over all pairs."""
        return _pointwise(f, queries, keys)


#: For queries and keys that have nothing to do with each other.
DIRECT = Direct()


# Compiled here, once for each shape, so that calls outside of jit are quick as well.


@partial(jax.jit, static_argnames="symmetric")
def _exponential(queries: Queries, tokens: Tokens, symmetric: bool) -> ExponentialSum:
    asked, mask = asked_of(queries), queries.mask
    if mask is not None and not mask.bounded:
        return _over_query_tiles(partial(_exponential_careful, mask=mask), asked, tokens, mask)
    if mask is None and len(asked.q) <= ONE_TILE and tokens.n <= ONE_TILE:
        return _exponential_careful(asked, keys_of(tokens, tokens.n))
    bound = lax.stop_gradient(jnp.linalg.norm(asked.q, axis=1) * _longest(tokens))
    if not symmetric or mask is not None:
        return _over_query_tiles(partial(_exponential_tile, mask=mask), (asked, bound), tokens, mask)
    mass, total = _symmetric_sums(asked.q, jnp.max(bound), tokens)
    return lax.cond(
        jnp.all(mass > UNDERFLOW),  # every token sees itself, so only tiny weights lead elsewhere
        lambda: shifted(jnp.max(bound), mass, total),
        lambda: _over_query_tiles(_exponential_tile, (asked, bound), tokens),
    )


def weighted_exponential(
    q: Float[Array, "m d"],
    y: Float[Array, "k d"],
    values: Float[Array, "k v"],
    present: Bool[Array, "k"],
) -> ExponentialSum:
    """Sums over keys whose mass and mass times position are given apart, shifted by the true maximum.

    For keys that stand for others (cells.py) and may have negative mass.

    Args:
        q: query vectors (m, d).
        y: keys (k, d) as they enter the scores.
        values: (k, d + 1), mass times position, then the mass.
        present: (k,) which keys count at all.
    """
    count = present.astype(float)
    keys = Keys(y, count, jnp.where(present[:, None], values, 0.0), None)
    size = tile_size(len(y), 500)
    w, v = split((keys.w, keys.v), size, "constant")
    tiled = Keys(split(keys.y, size), w, v, None)
    return _query_tiles(lambda asked: _exponential_careful(asked, tiled), Asked(q, None))


@jax.jit
def _hardmax(queries: Queries, tokens: Tokens) -> HardmaxSum:
    tile = partial(_hardmax_tile, mask=queries.mask)
    return _over_query_tiles(tile, asked_of(queries), tokens, queries.mask)


@eqx.filter_jit
def _pointwise(f: Function, queries: Queries, tokens: Tokens) -> PointwiseSum:
    mask = queries.mask

    def tile(asked: "Asked", keys: "Keys") -> PointwiseSum:
        return PointwiseSum(*_sums(partial(_weights, f, asked, mask=mask), asked, keys, mask))

    return _over_query_tiles(tile, asked_of(queries), tokens, mask)


def _weights(f: Function, asked: "Asked", key: "Keys", mask: Mask | None) -> Array:
    """f of the scores, 0 where the key is hidden."""
    scores = asked.q @ key.y.T
    if mask is None:
        return f(scores)
    seen = jnp.isfinite(_offset(mask, asked, key))
    return jnp.where(seen, f(jnp.where(seen, scores, 0.0)), 0.0)


class Asked(NamedTuple):
    """Query vectors (m, d) and the places of those who ask (m,), None where nobody's place matters."""

    q: Float[Array, "m d"]
    rows: Int[Array, "m"] | None


class Keys(NamedTuple):
    """Keys in tiles: y (tiles, tile, d) as they enter scores, w (tiles, tile), v = w (position, 1), where the
    sum of the weights is one more column, and places in the order (tiles, tile) under a mask. Padding has
    weight 0.
    """

    y: Array
    w: Array
    v: Array
    place: Array | None


def asked_of(queries: Queries) -> Asked:
    """The query vectors with their places."""
    return Asked(queries.q, queries.rows if queries.mask is not None else None)


def keys_of(tokens: Tokens, size: int, mask: Mask | None = None) -> Keys:
    """The tokens as keys in tiles.

    Args:
        tokens: what is read.
        size: keys of a tile.
        mask: turns keys and needs their places.
    """
    return keys_at(tokens.points, tokens.weights, size, mask)


def keys_at(y: Float[Array, "n d"], w: Float[Array, "n"], size: int, mask: Mask | None = None) -> Keys:
    """Points with weights as keys in tiles; weights need not sum to 1.

    Args:
        y: points (n, d).
        w: weights (n,).
        size: keys of a tile.
        mask: turns keys and needs their places.
    """
    v = w[:, None] * jnp.concatenate([y, jnp.ones_like(w)[:, None]], axis=1)
    place = None
    if mask is not None:
        place = jnp.arange(len(y))
        y = mask.rotate(y, place)
    w, v = split((w, v), size, "constant")
    return Keys(split(y, size), w, v, split(place, size))


def _longest(tokens: Tokens) -> Array | float:
    """Greatest length of a key: 1 on the sphere."""
    return 1.0 if tokens.radii is None else jnp.max(tokens.radii)


def _offset(mask: Mask, asked: Asked, key: Keys) -> Array:
    assert asked.rows is not None and key.place is not None
    return mask.offset(asked.rows[:, None], key.place[None, :])


def _scores(asked: Asked, key: Keys, mask: Mask | None) -> Array:
    """Scores of a tile; −∞ for hidden keys and for those without weight."""
    scores = asked.q @ key.y.T
    if mask is not None:
        scores = scores + _offset(mask, asked, key)
    return jnp.where(key.w > 0, scores, -jnp.inf)


def _sums(
    factors: Callable[[Keys], Array], asked: Asked, keys: Keys, mask: Mask | None = None
) -> tuple[Array, Array]:
    """Σ_j p_ij w_j and Σ_j p_ij w_j y_j, p = factors(key) for each tile of keys that the mask shows."""
    start = jnp.zeros((len(asked.q), keys.v.shape[-1]))
    total = _fold_visible(lambda acc, key: acc + factors(key) @ key.v, start, asked, keys, mask)
    return total[:, -1], total[:, :-1]


def _fold_visible(
    add: Callable[[Any, Keys], Any], start: Any, asked: Asked, keys: Keys, mask: Mask | None
) -> Any:
    """`fold` over the tiles of which the mask shows anything."""
    if mask is None:
        return fold(add, start, keys)
    assert asked.rows is not None
    rows = jnp.min(asked.rows), jnp.max(asked.rows)

    def add_visible(acc: Any, key: Keys) -> Any:
        assert key.place is not None
        shown = mask.may_see(rows, (key.place[0], key.place[-1]))
        return lax.cond(shown, add, lambda acc, _: acc, acc, key)

    return fold(add_visible, start, keys)


def _exponential_tile(query: tuple[Asked, Array], keys: Keys, mask: Mask | None = None) -> ExponentialSum:
    asked, bound = query
    mass, total = _sums(lambda key: _visible_exp(asked, key, bound, mask), asked, keys, mask)
    return lax.cond(
        jnp.all(mass > UNDERFLOW),
        lambda: shifted(bound, mass, total),
        lambda: _exponential_careful(asked, keys, mask),
    )


def _visible_exp(asked: Asked, key: Keys, bound: Array, mask: Mask | None) -> Array:
    """e^{score − bound} of a tile, 0 where a key is hidden."""
    scores = asked.q @ key.y.T - bound[:, None]
    # e^{−∞} is 0, and so is its gradient: the offset is a constant where it hides
    return jnp.exp(scores if mask is None else scores + _offset(mask, asked, key))


def shifted(shift: Array, mass: Array, total: Array) -> ExponentialSum:
    """The result from sums of e^{score − shift}; a score of size s carries a rounding error of s·1e-16.

    Args:
        shift: (m,) or one number.
        mass: Σ_j w_j e^{score − shift}, (m,).
        total: the same sum of w_j y_j, (m, d).
    """
    log_mass = shift + jnp.log(mass)
    error = lax.stop_gradient(ROUNDING * (1 + jnp.abs(shift) + jnp.zeros_like(mass)))
    return ExponentialSum(log_mass, total / mass[:, None], error)


def _exponential_careful(asked: Asked, keys: Keys, mask: Mask | None = None) -> ExponentialSum:
    """The same sums shifted by the true maximum of each row, found first."""
    top = lax.stop_gradient(_tops(lambda key: _scores(asked, key, mask), asked, keys, mask))
    if mask is None:

        def factors(key: Keys) -> Array:
            # a token of weight 0 may lie above the maximum: its exponential must not overflow
            return jnp.exp(jnp.where(key.w > 0, asked.q @ key.y.T - top[:, None], 0.0))

        return shifted(top, *_sums(factors, asked, keys))
    nobody = ~jnp.isfinite(top)  # a row that sees no key
    level = jnp.where(nobody, 0.0, top)

    def visible(key: Keys) -> Array:
        scores = _scores(asked, key, mask)
        seen = jnp.isfinite(scores)
        # masked twice: exp of a hidden score must not reach a gradient
        return jnp.where(seen, jnp.exp(jnp.where(seen, scores, 0.0) - level[:, None]), 0.0)

    mass, total = _sums(visible, asked, keys, mask)
    found = shifted(level, jnp.where(nobody, 1.0, mass), total)
    return found._replace(log_mass=jnp.where(nobody, -jnp.inf, found.log_mass))


def visible_weight(queries: Queries, keys: Tokens) -> Float[Array, "m"]:
    """Σ_j w_j over the keys that each query sees; 1 without a mask."""
    if queries.mask is None:
        return jnp.ones(len(queries.x))
    assert queries.rows is not None
    quick = queries.mask.visible_weight(keys.weights, queries.rows)
    return _pointwise(jnp.ones_like, queries, keys).mass if quick is None else quick


def _symmetric_sums(q: Array, bound: Array, tokens: Tokens) -> tuple[Array, Array]:
    """Σ_j p_ij w_j and Σ_j p_ij w_j y_j for p_ij = p_ji = e^{⟨q_i, y_j⟩ − bound}, each pair of tiles once."""
    size = tile_size(tokens.n, 1000)
    keys, queries = keys_of(tokens, size), split(q, size)

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


def _hardmax_tile(asked: Asked, keys: Keys, mask: Mask | None) -> HardmaxSum:
    # the limit of large β, which numbers that a mask adds are not multiplied by: they weigh keys that tie
    def scores(key: Keys) -> Array:
        found = _scores(asked, key, None)
        return found if mask is None else jnp.where(jnp.isfinite(_offset(mask, asked, key)), found, -jnp.inf)

    top = _tops(scores, asked, keys, mask)
    level = top - TIE * jnp.linalg.norm(asked.q, axis=1)

    def reach(key: Keys) -> Array:
        reached = (scores(key) >= level[:, None]) & jnp.isfinite(level)[:, None]
        extra = 0.0 if mask is None else jnp.where(reached, _offset(mask, asked, key), 0.0)
        return jnp.where(reached, jnp.exp(extra), 0.0)

    mass, total = _sums(reach, asked, keys, mask)
    return HardmaxSum(top, mass, total / jnp.where(mass > 0, mass, 1.0)[:, None])


def _tops(scores: Callable[[Keys], Array], asked: Asked, keys: Keys, mask: Mask | None = None) -> Array:
    """Greatest score of each query over the visible keys of positive weight."""

    def raise_(top: Array, key: Keys) -> Array:
        return jnp.maximum(top, jnp.max(scores(key), axis=1))

    return _fold_visible(raise_, jnp.full(len(asked.q), -jnp.inf), asked, keys, mask)


def fold(add: Callable[[Any, Keys], Any], start: Any, keys: Keys) -> Any:
    """Run `add` over the key tiles; gradients recompute each tile instead of storing it.

    Args:
        add: (what there is so far, a tile of keys) → what there is then.
        start: what there is at first.
        keys: in tiles.
    """
    if keys.y.shape[0] == 1:
        return add(start, jax.tree.map(lambda a: a[0], keys))
    return lax.scan(jax.checkpoint(lambda acc, key: (add(acc, key), None)), start, keys)[0]


def _over_query_tiles(
    tile: Callable[[Any, Keys], Any], queries: Any, tokens: Tokens, mask: Mask | None = None
) -> Any:
    """Apply `tile` to each tile of queries against all keys and join the results."""
    size = tile_size(tokens.n, 500 if tokens.d < WIDE_DIMENSION else 1000)
    keys = keys_of(tokens, size, mask)
    return _query_tiles(lambda q: tile(q, keys), queries)


def _query_tiles(f: Callable[[Any], Any], queries: Any) -> Any:
    m = len(jax.tree.leaves(queries)[0])
    tiles = split(queries, tile_size(m, 1000))
    out = lax.map(jax.checkpoint(f), tiles)
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:m], out)


def tile_size(n: int, wanted: int) -> int:
    """A size near the wanted one that splits n evenly, so that little is padded."""
    return -(-n // max(1, round(n / wanted)))


def split(arrays: Any, size: int, mode: str = "edge") -> Any:
    """Split the first axis into tiles.

    Args:
        arrays: a tree of arrays with one leading axis.
        size: of a tile.
        mode: padding with copies ("edge"), where every function is defined, or with zeros ("constant").
    """

    def tiles(a: Array) -> Array:
        missing = -a.shape[0] % size
        padded = jnp.pad(a, [(0, missing)] + [(0, 0)] * (a.ndim - 1), mode=mode)
        return padded.reshape(-1, size, *a.shape[1:])

    return jax.tree.map(tiles, arrays)
