"""Random layers for 512 systems at once: n = 64 tokens, d = 16, 100 layers, softmax with β = 2 and B = I.

Every system has its own key, so that each draws 100 value matrices of its own. Compared with the same program
with one value matrix for all layers, and with the same loop in NumPy (batched products, matrices drawn by
NumPy's generator), timed on a part of the layers and scaled. Both agree to 1e-10 on the same matrices.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import tokenfield as tkf
from report import Row, race

SYSTEMS, N, D, LAYERS, STEP, BETA = 512, 64, 16, 100, 0.1, 2.0
#: Layers that NumPy is timed on, and rounds of the race.
SHORT, ROUNDS = 10, 5
#: Systems in one vmap: what they work on stays in the cache.
TOGETHER = 64
AGREE = 1e-10


def attention(V: jax.Array) -> tkf.SoftmaxAttention:
    return tkf.SoftmaxAttention(tkf.AttentionWeights(jnp.eye(D), V), BETA)


def draw(key: jax.Array) -> tkf.SoftmaxAttention:
    return attention(jax.random.normal(key, (D, D)) / np.sqrt(D))


def end(model: tkf.Model, x: jax.Array) -> jax.Array:
    return tkf.simulate(model, tkf.Tokens(x), jnp.array([0.0, STEP * LAYERS]), tkf.Layers(STEP), "direct").x[
        -1
    ]


def loop(x: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    """The layers in NumPy: tokens (systems, n, d), matrices (layers, systems, d, d)."""
    for V in matrices:
        p = np.exp(BETA * (x @ x.transpose(0, 2, 1) - 1))
        y = x + STEP * (p / p.sum(axis=2, keepdims=True)) @ x @ V.transpose(0, 2, 1)
        x = y / np.linalg.norm(y, axis=2, keepdims=True)
    return x


def rows() -> list[Row]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SYSTEMS, N, D))
    x /= np.linalg.norm(x, axis=2, keepdims=True)
    keys, fixed = jnp.arange(SYSTEMS), jnp.asarray(rng.normal(size=(SYSTEMS, D, D)) / np.sqrt(D))
    random = _batched(lambda key, x: end(tkf.RandomLayers(draw, STEP, key), x))
    same = _batched(lambda V, x: end(attention(V), x))
    _check(random(keys, x), x)
    competitors = {
        "random": lambda: jax.block_until_ready(random(keys, x)),
        "fixed": lambda: jax.block_until_ready(same(fixed, x)),
        "NumPy": lambda: loop(x, rng.normal(size=(SHORT, SYSTEMS, D, D)) / np.sqrt(D)),
    }
    times = race(competitors, ROUNDS)
    ours, numpy = times["random"].best, times["NumPy"].best * LAYERS / SHORT
    against, faster = ours / times["fixed"].best, numpy / ours
    case = f"n = {N}, d = {D}, {SYSTEMS} systems, {LAYERS} layers"
    return [
        Row("random layers", f"{case}, tokenfield", f"{ours:.2f} s"),
        Row("random layers", "time against fixed weights", f"{against:.2f} ×", "≤ 1.5 ×", against <= 1.5),
        Row("random layers", "speed against NumPy (a part, scaled)", f"{faster:.1f} ×", "≥ 5 ×", faster >= 5),
    ]


def _batched(one: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    return jax.jit(lambda *given: jax.lax.map(lambda each: one(*each), given, batch_size=TOGETHER))


def _check(found: jax.Array, x: np.ndarray) -> None:
    some = (0, SYSTEMS - 1)
    matrices = [
        [np.asarray(draw(jax.random.fold_in(jax.random.key(k), layer)).weights.V) for k in some]
        for layer in range(LAYERS)
    ]
    off = float(np.abs(np.asarray(found)[list(some)] - loop(x[list(some)], np.array(matrices))).max())
    if not off <= AGREE:
        raise RuntimeError(f"random layers and NumPy must agree to {AGREE}, but differ by {off:.3g}")
