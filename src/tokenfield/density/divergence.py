"""The divergence of a velocity field on the sphere, exactly: derivatives of the sums, not differences.

For X = P_x a(x), a the output of the layer with the law held fixed,

    div X = Σ_e ⟨e, ∂_e a⟩ − (d − 1)⟨x, a⟩   over an orthonormal basis e of the tangent space.

The derivatives are JAX's, through whatever sums compute a: direct ones, Fourier series or harmonics.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tokenfield import sphere
from tokenfield.attention.direct import DIRECT, Sums
from tokenfield.models import Model
from tokenfield.tokens import Tokens


def velocity_and_divergence(
    model: Model, x: Float[Array, "m d"], tokens: Tokens, sums: Sums = DIRECT
) -> tuple[Float[Array, "m d"], Float[Array, "m"]]:
    """P_x a and its divergence at the points x, in the field of the tokens.

    `sums` must not take the points for the tokens themselves (`Direct(symmetric=True)` does).
    """

    def along(e: Array) -> tuple[Array, Array]:
        a, slope = jax.jvp(lambda x: model.attention(x, tokens, sums), (x,), (e,))
        return a, jnp.sum(e * slope, axis=1)

    # the layer itself is computed once, its derivatives side by side
    a, slopes = jax.vmap(along, in_axes=2, out_axes=(None, 0))(sphere.frame(x))
    height = jnp.sum(x * a, axis=1)
    return a - height[:, None] * x, jnp.sum(slopes, axis=0) - (x.shape[1] - 1) * height
