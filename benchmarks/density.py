"""Right-hand sides of the mean-field equation: on the circle against FFTs, zonal laws in high dimension."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import tokenfield as tkf
from report import Row, race
from tokenfield.density import circle, heights

MODES, MANY = 4096, 10_000
DEGREE = 96


def rows() -> list[Row]:
    found = []
    for kind in (tkf.UnnormalisedAttention, tkf.SoftmaxAttention):
        field = circle.spectral_field(kind(tkf.AttentionWeights.identity(2), 5.0), MODES)
        y = jnp.zeros((2, MODES // 2)).at[0, 0].set(1.0).at[0, 1].set(0.1)
        times = race(
            {"fields": _repeated(field, y), "transforms": _repeated(_Pair(), jnp.ones(MODES, complex))}, 3
        )
        ratio = times["fields"].best / times["transforms"].best
        case = f"circle, {MODES} modes, {kind.__name__}: {MANY} right-hand sides / {MANY} FFT pairs"
        found.append(Row("density", case, f"{ratio:.1f}", "< 20", ratio < 20))
    fields = {}
    for d in (3, 1000):
        model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(d), 5.0)
        field = heights.spectral_field(heights.zonal_model(model, np.eye(d)[0]), d, DEGREE)
        fields[str(d)] = _repeated(field, jnp.zeros(DEGREE + 1).at[0].set(1.0).at[1].set(0.1))
    times = race(fields, 3)
    ratio = times["1000"].best / times["3"].best
    found.append(
        Row("density", f"zonal, degree {DEGREE}: d = 1000 / d = 3", f"{ratio:.2f}", "< 2", ratio < 2)
    )
    return found


class _Pair(eqx.Module):
    """A transform there and back, scaled so that repetition changes nothing."""

    def __call__(self, z: jax.Array) -> jax.Array:
        return jnp.fft.ifft(jnp.fft.fft(z))


def _repeated(field: Callable[[jax.Array], jax.Array], y: jax.Array) -> Callable[[], object]:
    """MANY evaluations in one compiled loop, each fed by the one before."""
    run = eqx.filter_jit(lambda f, y: lax.fori_loop(0, MANY, lambda _, z: y + 1e-9 * f(z), y))
    return lambda: jax.block_until_ready(run(field, y))
