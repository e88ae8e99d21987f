"""Near-linear causal sums on the circle: moments of all tokens before, carried along the order (theory §6.1).

Token i reads w_j e^{−λ(i−j)} e^{s cos(ψ_i−θ_j)}, j ≤ i. With the Fourier coefficients g_k of e^{s(cos θ−1)}
and sums over the tokens before place p,

    a_k = Σ_{j<p} v_j e^{−λ(p−j)} cos kθ_j,   b_k = Σ_{j<p} v_j e^{−λ(p−j)} sin kθ_j,

v_j = w_j (y_j, 1), these tokens add e^{−λ(i−p)} Σ_{k∈Z} g_k (a_k cos kψ_i + b_k sin kψ_i). Tokens are
taken in chunks: moments are carried from chunk to chunk, and what tokens of one chunk see of each other is
summed directly under the mask. The cost is O(n·(band + chunk)). No term is larger than its weight, so that
nothing overflows, and errors are relative to the weight that is visible, not to 1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from tokenfield.laws.tokens import Tokens
from tokenfield.sums.base import Mask, Queries
from tokenfield.sums.direct import ROUNDING, split
from tokenfield.sums.radial import Radial

#: Tokens of a chunk are as many as there are modes, but not fewer or more than these.
CHUNKS = (64, 512)
#: Seconds for one token: for each pair in a chunk, for each mode and length of queries.
SECONDS_PER_PAIR = 1.5e-9
SECONDS_PER_MODE = 2.5e-9


class PrefixSum(NamedTuple):
    """Lengths s (m,), e^{−s} times the sums of w (m,) and of w y (m, d) under the mask, the error of these
    sums (m,), and which rows see anybody (m,).
    """

    length: Float[Array, "m"]
    mass: Float[Array, "m"]
    total: Float[Array, "m d"]
    error: Float[Array, "m"]
    seen: Bool[Array, "m"]


class Chunk(NamedTuple):
    """Tokens of a chunk, transposed: y (2, c), v = w (y, 1) (3, c), and their first place."""

    y: Float[Array, "2 c"]
    v: Float[Array, "3 c"]
    start: Int[Array, ""]


class Asking(NamedTuple):
    """Some queries: directions u (c, 2), lengths s (c,) and places (c,)."""

    u: Float[Array, "c 2"]
    s: Float[Array, "c"]
    rows: Int[Array, "c"]


def chunk_size(n: int, band: int) -> int:
    """Tokens of a chunk."""
    return int(min(n, np.clip(band, *CHUNKS)))


def seconds(n: int, band: int, nodes: int) -> float:
    """Estimated cost of one evaluation.

    Args:
        n: number of tokens.
        band: greatest degree of the expansion.
        nodes: lengths of queries that are interpolated between.
    """
    return n * (SECONDS_PER_PAIR * chunk_size(n, band) + SECONDS_PER_MODE * band * (1 + nodes))


def prefix_sums(
    queries: Queries, keys: Tokens, multipliers: Float[Array, "R K1"], radial: Radial, absolute: float
) -> PrefixSum:
    """Sums under a mask that fades (`Mask.fading`).

    Args:
        queries: at all tokens in their order, which is quick, or at others in number; all of them in another
            order gives NaN.
        keys: the tokens in their order.
        multipliers: g_k(s_r) (R, K + 1) at the nodes of `radial`.
        radial: interpolation in the lengths of queries.
        absolute: error of the expansion of a law of mass 1.
    """
    mask, rows = queries.mask, queries.rows
    assert mask is not None and rows is not None
    n, band = keys.n, multipliers.shape[1] - 1
    size = chunk_size(n, band)
    chunks = _chunks(keys, size)
    before = _carried(chunks, mask, band)
    absolute = absolute + ROUNDING * (len(chunks.start) + band)
    asking = _asking(queries, rows)

    @jax.checkpoint
    def evaluate(asking: Asking, before: Array, chunk: Chunk) -> tuple[Array, Array]:
        return _evaluate(asking, before, chunk, mask, multipliers, radial, absolute)

    # the queries of a chunk share its tables; a few queries elsewhere are taken one by one
    def in_order() -> tuple[Array, Array]:
        found = lax.map(lambda tile: evaluate(*tile), (split(asking, size), before, chunks))
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:n], found)

    def anywhere() -> tuple[Array, Array]:
        def one(query: Asking) -> tuple[Array, Array]:
            at = query.rows // size
            here = jax.tree.map(lambda a: a[at], (before, chunks))
            found = evaluate(jax.tree.map(lambda a: a[None], query), *here)
            return jax.tree.map(lambda a: a[0], found)

        return lax.map(one, asking)

    sums, error = in_order() if len(rows) == n else anywhere()
    if len(rows) == n:
        sums = jnp.where(jnp.all(rows == jnp.arange(n)), sums, jnp.nan)
    present = mask.visible_weight((keys.weights > 0).astype(float), rows)
    assert present is not None
    return PrefixSum(asking.s, sums[:, 2], sums[:, :2], error, present > 0)


def _chunks(keys: Tokens, size: int) -> Chunk:
    """The tokens in chunks (chunks, ...); padding has no weight."""
    v = keys.weights[:, None] * jnp.concatenate([keys.x, jnp.ones((keys.n, 1))], axis=1)
    y, v = split(keys.x, size), split(v, size, "constant")
    return Chunk(jnp.swapaxes(y, 1, 2), jnp.swapaxes(v, 1, 2), jnp.arange(len(y)) * size)


def _carried(chunks: Chunk, mask: Mask, band: int) -> Float[Array, "chunks 3 modes"]:
    """Moments (chunks, 3, 2(K + 1)) of all tokens before each chunk, cosines first."""
    size = chunks.y.shape[2]
    assert mask.fading is not None
    # weights of a chunk's tokens, and of what came before it, at the place where the next chunk starts
    fade = jnp.exp(-mask.fading * jnp.arange(size, 0, -1))

    def step(before: Array, chunk: Chunk) -> tuple[Array, Array]:
        return fade[0] * before + (chunk.v * fade) @ _powers(chunk.y, band).T, before

    return lax.scan(jax.checkpoint(step), jnp.zeros((3, 2 * (band + 1))), chunks)[1]


def _asking(queries: Queries, rows: Int[Array, "m"]) -> Asking:
    q = queries.q
    square = jnp.sum(q * q, axis=1)
    s = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)
    # a query of length 0 weighs all keys alike, whatever its direction
    u = jnp.where(square[:, None] > 0, q / jnp.where(square > 0, s, 1.0)[:, None], jnp.array([1.0, 0.0]))
    return Asking(u, s, rows)


def _evaluate(
    asking: Asking,
    before: Float[Array, "3 modes"],
    chunk: Chunk,
    mask: Mask,
    multipliers: Float[Array, "R K1"],
    radial: Radial,
    absolute: float,
) -> tuple[Float[Array, "c 3"], Float[Array, "c"]]:
    """The sums of v for queries whose places lie in one chunk, scaled by e^{−s}, and the error of each."""
    assert mask.fading is not None
    count, band = multipliers.shape[0], multipliers.shape[1] - 1
    twice = multipliers * jnp.where(jnp.arange(band + 1) == 0, 1.0, 2.0)  # k and −k
    modes = jnp.concatenate([twice, twice], axis=1)[:, None, :] * before
    at_nodes = modes.reshape(3 * count, -1) @ _powers(asking.u.T, band)
    fade = jnp.exp(-mask.fading * (asking.rows - chunk.start))
    between = radial.coefficients(asking.s)
    earlier = fade[:, None] * jnp.einsum("rvc,cr->cv", at_nodes.reshape(count, 3, -1), between)
    places = chunk.start + jnp.arange(chunk.y.shape[1])
    offset = mask.offset(asking.rows[:, None], places[None, :])
    score = asking.s[:, None] * (asking.u @ chunk.y - 1.0)
    sums = earlier + jnp.exp(score + offset) @ chunk.v.T
    error = absolute * fade * before[2, 0] + ROUNDING * (1 + asking.s) * jnp.abs(sums[:, 2])
    return sums, lax.stop_gradient(error)


def _powers(u: Float[Array, "2 c"], band: int) -> Float[Array, "modes c"]:
    """cos kψ, then sin kψ, k = 0, …, band, of directions u: products, which are quicker than cosines."""

    def turn(power: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        c, s = power
        return (c * u[0] - s * u[1], c * u[1] + s * u[0]), power

    start = jnp.ones_like(u[0]), jnp.zeros_like(u[0])
    return jnp.concatenate(lax.scan(turn, start, None, length=band + 1)[1])
