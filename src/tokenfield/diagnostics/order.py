"""The order parameter R = |∫x dμ|: 1 for a Dirac, 0 for a balanced law."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from tokenfield.errors import require_kind
from tokenfield.tokens import Continuum, Tokens


def order_parameter(tokens: Tokens | Continuum) -> Float[Array, ""]:
    """R = |Σ w_i x_i|; of a density at its last time."""
    if not isinstance(tokens, Continuum):
        require_kind(tokens, Tokens, "tokens")
    return jnp.linalg.norm(jnp.asarray(tokens.moments().mean))
