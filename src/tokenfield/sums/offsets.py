"""Exponential sums whose keys have a number of their own: Σ_j w_j e^{s_ij + c_j}, and the mean they weigh.

L2 attention has c_j = −(β/2)|Ky_j|², Sinkhorn's has the logarithm of its scaling. Sums that are made for one
dimension (expansions, cells) take keys of the weights w_j e^{c_j}, which is exact as long as e^{c_j} neither
overflows nor underflows against the largest. Sums for any dimension get c_j as one more coordinate,

    s_ij + c_j = ⟨(q_i, 1), (y_j, c_j)⟩,

so that the true maximum of each row is taken out and no offset is too large.
"""

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from tokenfield.laws.tokens import Tokens
from tokenfield.sums.base import ExponentialSum, Queries, Sums
from tokenfield.sums.direct import DIRECT

#: Offsets that differ by less than this can be put into the weights of the keys.
LARGEST_WEIGHT_EXPONENT = 300.0


def exponential_with_offsets(
    sums: Sums, queries: Queries, keys: Tokens, offsets: Float[Array, "n"]
) -> ExponentialSum:
    """Sums of w_j e^{s_ij + c_j}.

    Args:
        sums: how they are computed.
        queries: the questions at m points.
        keys: the tokens that are read.
        offsets: c (n,), finite; those of tokens without weight do not matter.
    """
    present = keys.weights > 0
    top = lax.stop_gradient(jnp.max(jnp.where(present, offsets, -jnp.inf)))
    lowered = jnp.where(present, offsets - top, 0.0)
    if sums.dimensions is not None:
        weighted = eqx.tree_at(lambda t: t.weights, keys, keys.weights * jnp.exp(lowered))
        found = sums.exponential(queries, weighted)
        return found._replace(log_mass=found.log_mass + top)
    # one below 0, so that no key, not even one at the origin, has length 0
    found = _any_dimension(sums).exponential(_raised(queries), _with_coordinate(keys, lowered - 1.0))
    return ExponentialSum(found.log_mass + top + 1.0, found.mean[:, :-1], found.error)


def _any_dimension(sums: Sums) -> Sums:
    """The same sums; but scores with offsets are not symmetric, even where those without are."""
    return DIRECT if getattr(sums, "symmetric", False) else sums


def _raised(queries: Queries) -> Queries:
    """The query (q, 1)."""
    d = queries.x.shape[1]
    bias = jnp.zeros(d) if queries.bias is None else queries.bias
    return Queries(
        jnp.pad(queries.A, ((0, 1), (0, 1))),
        jnp.pad(queries.x, ((0, 0), (0, 1))),
        jnp.append(bias, 1.0),
        queries.mask,
        queries.rows,
    )


def _with_coordinate(keys: Tokens, last: Array) -> Tokens:
    """The keys (y, c)."""
    y = jnp.concatenate([keys.points, last[:, None]], axis=1)
    return Tokens.normalised(y, keys.weights)
