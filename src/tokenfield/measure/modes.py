"""Clusters of tokens by the modes of their kernel density, found by mean shift."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from tokenfield.errors import RunError, as_number, require, require_kind
from tokenfield.geometry import sphere
from tokenfield.laws.tokens import Tokens
from tokenfield.measure.clusters import Clusters, by_first, linked, masses
from tokenfield.sums.base import Queries
from tokenfield.sums.direct import DIRECT

#: Steps of the ascent; more are reported as a failure.
MAX_STEPS = 10_000

# lengths, in bandwidths
#: A point that moves by less has come to rest.
REST_STEP = 1e-9
#: Points closer than this go on as one; ends closer than that are one mode.
MERGE_DISTANCE, MODE_DISTANCE = 1e-6, 1e-3
#: Longest Newton step, and the step by which a point is moved off a saddle.
MAX_NEWTON_STEP, SADDLE_STEP = 0.1, 1e-2

# curvatures of the log density, divided by β
#: Above this a resting point is at a saddle; below that the density is concave enough for a Newton step.
SADDLE_CURVATURE, CONCAVE_CURVATURE = 1e-6, -1e-9
#: Fewest points of one compiled step.
MIN_PADDED = 64


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
        saddle = curvature > SADDLE_CURVATURE
        if not np.any(saddle):
            break
        nudged = ends + np.where(saddle[:, None], SADDLE_STEP * width * direction, 0.0)
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
    active = np.ones(len(x), dtype=bool)
    for step in range(MAX_STEPS):
        new = _step(tokens, x[active], beta, newton=step % 4 > 0).to
        resting = np.linalg.norm(new - x[active], axis=1) <= REST_STEP * width
        x = x.copy()
        x[active], active[active] = new, ~resting
        if step in (1, 3, 6) or step % 10 == 9:
            cells = np.round(x / (MERGE_DISTANCE * width))
            _, first, merged = np.unique(cells, axis=0, return_index=True, return_inverse=True)
            x, active, group = x[first], active[first], merged.ravel()[group]
        if not np.any(active):
            merged = linked(x, MODE_DISTANCE * width)
            return x[np.unique(merged, return_index=True)[1]], merged[group]
    raise RunError(f"mean shift at beta = {beta:g} did not come to rest in {MAX_STEPS} steps")


class _Step(NamedTuple):
    """Where points go (m, d); of a Newton step also the greatest curvature of the log density where they
    were, divided by β, (m,), and its direction (m, d).
    """

    to: np.ndarray
    curvature: np.ndarray
    direction: np.ndarray


def _step(tokens: Tokens, x: np.ndarray, beta: float, newton: bool = True) -> _Step:
    """One step of all points, padded to few different sizes, so that few are compiled."""
    size = MIN_PADDED
    while size < len(x):
        size *= 4 if size < 1024 else 2
    padded = jnp.asarray(np.concatenate([x, np.repeat(x[:1], size - len(x), axis=0)]))
    return _Step(*(np.asarray(a)[: len(x)] for a in _shift(tokens, padded, beta, newton)))


@jax.jit
def _shift(tokens: Tokens, x: Array, beta: Array, newton: Array) -> tuple[Array, Array, Array]:
    """Mean shift: the direction of the softmax mean m(x); a point that sees 0 stays.

    That is slow near a flat mode. Where the log density is concave a Newton step for P_x m(x) = 0 takes its
    place, at most a tenth of the bandwidth long, so that it does not leave the hill.
    """

    def mean(points: Array) -> Array:
        return DIRECT.exponential(Queries(beta * jnp.eye(tokens.d), points), tokens).mean

    m, frame = mean(x), sphere.frame(x)
    size = jnp.linalg.norm(m, axis=1, keepdims=True)
    shifted = jnp.where(size > 0, m / jnp.where(size > 0, size, 1.0), x)

    def newton_step() -> tuple[Array, Array, Array]:
        columns = lax.map(lambda e: jax.jvp(mean, (x,), (frame @ e,))[1], jnp.eye(tokens.d - 1))
        radial = jnp.sum(m * x, axis=1)[:, None, None]
        bend = jnp.einsum("nde,fnd->nef", frame, columns) - radial * jnp.eye(tokens.d - 1)
        values, vectors = jnp.linalg.eigh(bend)
        concave, axes = values[:, -1:] < CONCAVE_CURVATURE, frame @ vectors
        slope = jnp.einsum("nde,nd->ne", axes, m) / jnp.where(concave, -values, 1.0)
        move = jnp.einsum("nde,ne->nd", axes, slope)
        length = jnp.linalg.norm(move, axis=1, keepdims=True)
        move = move * jnp.minimum(1.0, MAX_NEWTON_STEP * beta**-0.5 / jnp.where(length > 0, length, 1.0))
        return jnp.where(concave, sphere.retract(x + move), shifted), values[:, -1], axes[:, :, -1]

    return lax.cond(newton, newton_step, lambda: (shifted, jnp.zeros(len(x)), jnp.zeros_like(x)))
