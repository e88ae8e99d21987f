"""The divergence of a velocity field on the sphere, exactly: derivatives of the sums, not differences.

For X = P_x a(x), a the output of the layer with the law held fixed,

    div X = Σ_e ⟨e, ∂_e a⟩ − (d − 1)⟨x, a⟩   over an orthonormal basis e of the tangent space.

The derivatives are JAX's, through whatever sums compute a: direct ones, Fourier series or harmonics.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tokenfield.geometry import sphere
from tokenfield.laws.tokens import Tokens
from tokenfield.models.base import Model
from tokenfield.sums.base import Sums
from tokenfield.sums.direct import DIRECT


def velocity_and_divergence(
    model: Model, x: Float[Array, "m d"], tokens: Tokens, sums: Sums = DIRECT
) -> tuple[Float[Array, "m d"], Float[Array, "m"]]:
    """P_x a, (m, d), and its divergence, (m,), at the points x in the field of the tokens.

    Args:
        model: the flow, without noise.
        x: points of the sphere, (m, d).
        tokens: the law that is read.
        sums: how sums over it are computed; they must not take the points for the tokens themselves
            (`Direct(symmetric=True)` does).
    """

    def along(e: Array) -> tuple[Array, Array]:
        a, slope = jax.jvp(lambda x: model.output(x, tokens, sums), (x,), (e,))
        return a, jnp.sum(e * slope, axis=1)

    # the layer itself is computed once, its derivatives side by side
    a, slopes = jax.vmap(along, in_axes=2, out_axes=(None, 0))(sphere.frame(x))
    height = jnp.sum(x * a, axis=1)
    return a - height[:, None] * x, jnp.sum(slopes, axis=0) - (x.shape[1] - 1) * height
