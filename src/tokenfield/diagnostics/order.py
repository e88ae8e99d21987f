"""The order parameter R = |∫x dμ|: 1 for a Dirac, 0 for a balanced law."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from tokenfield.tokens import Tokens


def order_parameter(tokens: Tokens) -> Float[Array, ""]:
    """R = |Σ w_i x_i|."""
    return jnp.linalg.norm(tokens.moments().mean)
