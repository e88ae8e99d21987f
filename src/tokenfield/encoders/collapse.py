"""Whether tokens that coincide stay together under a layer that is iterated (theory §7.4).

If tokens coincide at x, attention weights change only to second order when they part, so that differences
obey the block with its attention output held fixed,

    δ ← ∂/∂x [after_attention(x, A)] δ,   A = attention(x),   along the one-token orbit x ← block(x).

The size of the largest multiplier of this map, per layer, says whether coinciding tokens are stable locally.
Queries and keys drop out. It says nothing about tokens that are far apart.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.sparse.linalg import LinearOperator, eigs

from tokenfield.encoders.idealise import Part, without
from tokenfield.encoders.layer import EncoderLayer
from tokenfield.errors import require_kind

Orbit = Literal["fixed", "periodic", "not settled"]

#: Layers that an orbit gets at most to settle, and over which multipliers are averaged if it has not.
SETTLING, AVERAGED = 3000, 1000
#: Two places of the orbit closer than this, relative to their length, are the same.
SAME_PLACE = 1e-9
#: An orbit that moves by less than this per layer, relative to its length, has come to rest.
AT_REST = 1e-14
#: The longest period that is looked for.
LONGEST_PERIOD = 64


@dataclass(frozen=True, eq=False)
class Collapse:
    """What a layer does to tokens that coincide.

    `multiplier`: by which differences between them grow per layer; below 1 they are stable locally.
    `orbit`: of one token: "fixed", "periodic" or "not settled". `orbit_multiplier`: by which a change of all
    of them together grows per layer. `period`: in layers, None if not settled. `x` (d,): a place on the way.
    """

    multiplier: float
    orbit: Orbit
    orbit_multiplier: float
    period: int | None
    x: Float[np.ndarray, "d"]

    @property
    def sentence(self) -> str:
        """The finding in words."""
        stable = "stable locally" if self.multiplier < 1 else "not stable"
        return f"coinciding tokens are {stable}: differences change by {self.multiplier:.4g} per layer"


def collapse(
    layer: EncoderLayer, drop: Sequence[Part] = (), start: Float[Array, "d"] | None = None
) -> Collapse:
    """The one-token orbit of an iterated layer, and the multipliers of differences along it.

    A layer may have several orbits, each with multipliers of its own, and the start decides which is reached.

    Args:
        layer: of an encoder.
        drop: parts to leave out, as in `idealise`: "mlp", "biases", "gain", "antisymmetric".
        start: (d,), where the orbit begins; a fixed direction without meaning if left out.
    """
    require_kind(layer, EncoderLayer, "layer")
    layer = without(layer, drop)
    if start is None:
        wave = jnp.cos(jnp.arange(1, layer.d + 1) ** 1.5)
        start = layer.norm2(wave)
    x = _settle(layer, jnp.asarray(start, float))
    period, path = _period(layer, x)
    kinds = (_apart, _together)
    if period is None:
        path = _path(layer, x, AVERAGED)
        apart, together = (_averaged(layer, path, derivative) for derivative in kinds)
    else:
        apart, together = (_dominant(layer, path[:period], derivative) for derivative in kinds)
    orbit: Orbit = "not settled" if period is None else "fixed" if period == 1 else "periodic"
    return Collapse(apart, orbit, together, period, np.asarray(x))


def _one(layer: EncoderLayer, x: Array) -> Array:
    return layer.block(x[None])[0]


@jax.jit
def _apart(layer: EncoderLayer, x: Array, change: Array) -> Array:
    """A difference of coinciding tokens, one layer later."""
    output = layer.attention(x[None], layer.source)[0]
    return jax.jvp(lambda y: layer.after_attention(y, output), (x,), (change,))[1]


@jax.jit
def _together(layer: EncoderLayer, x: Array, change: Array) -> Array:
    """A change of the one-token orbit, one layer later."""
    return jax.jvp(lambda y: _one(layer, y), (x,), (change,))[1]


@jax.jit
def _settle(layer: EncoderLayer, start: Array) -> Array:
    """Iterate until the token is at rest, or for the longest time."""

    def moving(state: tuple[Array, Array, Array]) -> Array:
        before, x, count = state
        return (count < SETTLING) & (jnp.linalg.norm(x - before) > AT_REST * jnp.linalg.norm(x))

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        return state[1], _one(layer, state[1]), state[2] + 1

    return jax.lax.while_loop(moving, step, (start, _one(layer, start), jnp.asarray(1)))[1]


@partial(jax.jit, static_argnums=2)
def _path(layer: EncoderLayer, x: Array, length: int) -> Array:
    return jax.lax.scan(lambda y, _: (_one(layer, y), y), x, length=length)[1]


def _period(layer: EncoderLayer, x: Array) -> tuple[int | None, Array]:
    path = _path(layer, x, LONGEST_PERIOD + 1)
    gaps = jnp.linalg.norm(path[1:] - x, axis=1) / jnp.linalg.norm(x)
    same = np.flatnonzero(np.asarray(gaps) < SAME_PLACE)
    return (int(same[0]) + 1 if same.size else None), path


def _dominant(layer: EncoderLayer, path: Array, derivative: Callable[..., Array]) -> float:
    """Modulus of the largest eigenvalue of the product of derivatives, per layer; matrix-free."""

    def product(change: np.ndarray) -> np.ndarray:
        moved = jnp.asarray(change.reshape(-1))
        for x in path:
            moved = derivative(layer, x, moved)
        return np.asarray(moved)

    d = layer.d
    begin = np.cos(np.arange(1, d + 1) ** 1.5)
    operator: Any = LinearOperator
    found = eigs(operator((d, d), matvec=product, dtype=float), k=1, v0=begin, return_eigenvectors=False)
    return float(np.abs(found[0]) ** (1 / len(path)))


def _averaged(layer: EncoderLayer, path: Array, derivative: Callable[..., Array]) -> float:
    """Mean growth per layer along an orbit that has not settled; the first tenth is left to turn."""

    def step(change: Array, x: Array) -> tuple[Array, Array]:
        moved = derivative(layer, x, change)
        size = jnp.linalg.norm(moved)
        return moved / size, jnp.log(size)

    change = jnp.cos(jnp.arange(1, layer.d + 1) ** 1.5)
    growth = jax.lax.scan(step, change / jnp.linalg.norm(change), path)[1]
    return float(jnp.exp(jnp.mean(growth[len(path) // 10 :])))
