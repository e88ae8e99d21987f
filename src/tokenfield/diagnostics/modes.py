"""Clusters of tokens by the modes of their kernel density, found by mean shift."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from tokenfield import sphere
from tokenfield.attention.direct import DIRECT
from tokenfield.diagnostics.clusters import Clusters, by_first, linked, masses
from tokenfield.errors import RunError, as_number, require, require_kind
from tokenfield.tokens import Tokens

#: Steps at most; and in bandwidths the step that is rest, how close points go on as one, and how close ends
#: are one mode.
STEPS, STILL, TOGETHER, SAME = 10_000, 1e-9, 1e-6, 1e-3
#: Longest Newton step, in bandwidths.
LEAP = 0.1


def modes(tokens: Tokens, beta: float) -> Clusters:
    """Clusters by the modes of the kernel density Σ_j w_j e^{β⟨x,x_j⟩}, of bandwidth β^{−1/2}.

    Each token climbs by mean shift, x ← the direction of the softmax mean (B = V = I), to the mode it belongs
    to; `centres` are the modes with the weight of their tokens. A token that comes to rest at a saddle is
    sent on along the steepest direction. Takes time like n² per step.
    """
    require_kind(tokens, Tokens, "tokens")
    beta = as_number(beta, "beta")
    require(0 < beta < np.inf, "beta", "be positive and finite", beta)
    width = beta**-0.5
    ends, group = _climb(tokens, np.asarray(tokens.x), beta)
    for _ in range(2 * tokens.d + 2):
        _, curvature, direction = _step(tokens, ends, beta)
        saddle = curvature > 1e-6
        if not np.any(saddle):
            break
        nudged = ends + np.where(saddle[:, None], 1e-2 * width * direction, 0.0)
        ends, regroup = _climb(tokens, nudged, beta)
        group = regroup[group]
    else:
        raise RunError(f"mean shift at beta = {beta:g} went from saddle to saddle")
    labels = by_first(group)
    first = np.unique(labels, return_index=True)[1]
    return Clusters(labels, Tokens(ends[group[first]], masses(tokens, labels)), len(first))


def _climb(tokens: Tokens, x: np.ndarray, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """Where mean shift takes the points x: distinct ends, and the end of each point.

    Points that have come within a small part of the bandwidth of each other go on as one.
    """
    width, group = beta**-0.5, np.arange(len(x))
    going = np.ones(len(x), dtype=bool)
    for step in range(STEPS):
        new = _step(tokens, x[going], beta, newton=step % 4 > 0).to
        still = np.linalg.norm(new - x[going], axis=1) <= STILL * width
        x = x.copy()
        x[going], going[going] = new, ~still
        if step in (1, 3, 6) or step % 10 == 9:
            cells = np.round(x / (TOGETHER * width))
            _, first, merged = np.unique(cells, axis=0, return_index=True, return_inverse=True)
            x, going, group = x[first], going[first], merged.ravel()[group]
        if not np.any(going):
            merged = linked(x, SAME * width)
            return x[np.unique(merged, return_index=True)[1]], merged[group]
    raise RunError(f"mean shift at beta = {beta:g} did not come to rest in {STEPS} steps")


class _Step(NamedTuple):
    """Where points go (m, d); of a Newton step also the greatest curvature of the log density where they
    were, divided by β, (m,), and its direction (m, d).
    """

    to: np.ndarray
    curvature: np.ndarray
    direction: np.ndarray


def _step(tokens: Tokens, x: np.ndarray, beta: float, newton: bool = True) -> _Step:
    """One step of all points, padded to few different sizes, so that few are compiled."""
    room = 64
    while room < len(x):
        room *= 4 if room < 1024 else 2
    padded = jnp.asarray(np.concatenate([x, np.repeat(x[:1], room - len(x), axis=0)]))
    return _Step(*(np.asarray(a)[: len(x)] for a in _shift(tokens, padded, beta, newton)))


@jax.jit
def _shift(tokens: Tokens, x: Array, beta: Array, newton: Array) -> tuple[Array, Array, Array]:
    """Mean shift: the direction of the softmax mean m(x); a point that sees 0 stays.

    That is slow near a flat mode. Where the log density is concave a Newton step for P_x m(x) = 0 takes its
    place, at most a tenth of the bandwidth long, so that it does not leave the hill.
    """

    def mean(points: Array) -> Array:
        return DIRECT.exponential(beta * jnp.eye(tokens.d), points, tokens).mean

    m, frame = mean(x), sphere.frame(x)
    size = jnp.linalg.norm(m, axis=1, keepdims=True)
    shifted = jnp.where(size > 0, m / jnp.where(size > 0, size, 1.0), x)

    def leap() -> tuple[Array, Array, Array]:
        columns = lax.map(lambda e: jax.jvp(mean, (x,), (frame @ e,))[1], jnp.eye(tokens.d - 1))
        radial = jnp.sum(m * x, axis=1)[:, None, None]
        bend = jnp.einsum("nde,fnd->nef", frame, columns) - radial * jnp.eye(tokens.d - 1)
        values, vectors = jnp.linalg.eigh(bend)
        concave, axes = values[:, -1:] < -1e-9, frame @ vectors
        slope = jnp.einsum("nde,nd->ne", axes, m) / jnp.where(concave, -values, 1.0)
        move = jnp.einsum("nde,ne->nd", axes, slope)
        length = jnp.linalg.norm(move, axis=1, keepdims=True)
        move = move * jnp.minimum(1.0, LEAP * beta**-0.5 / jnp.where(length > 0, length, 1.0))
        return jnp.where(concave, sphere.retract(x + move), shifted), values[:, -1], axes[:, :, -1]

    return lax.cond(newton, leap, lambda: (shifted, jnp.zeros(len(x)), jnp.zeros_like(x)))
