"""How ordered a law is: its order parameter R = |∫x dμ|, and how many directions it fills."""

import jax.numpy as jnp
from jax.scipy.special import entr
from jaxtyping import Array, Float

from tokenfield.errors import require_kind
from tokenfield.laws.tokens import Continuum, Tokens
from tokenfield.registry import register
from tokenfield.runs.trajectory import Trajectory


@register("measure", "order_parameter", of="law", traceable=True)
def order_parameter(tokens: Tokens | Continuum | Trajectory) -> Float[Array, "..."]:
    """R = |Σ w_i x_i|, 1 for a Dirac and 0 for a balanced law.

    Of a density at its last time; of a run one number for each snapshot.
    """
    if isinstance(tokens, Trajectory):
        return jnp.asarray(tokens.measure(order_parameter))
    if not isinstance(tokens, Continuum):
        require_kind(tokens, Tokens, "tokens")
    return jnp.linalg.norm(jnp.asarray(tokens.moments().mean))


@register("measure", "effective_rank", of="law", traceable=True)
def effective_rank(tokens: Tokens | Continuum | Trajectory) -> Float[Array, "..."]:
    """exp(−Σ p_k log p_k), p_k the eigenvalues of Σ w_i x_i x_iᵀ divided by their sum: e to their entropy.

    From 1, all tokens on one line (at x and −x as well), to d, their second moment the same in all
    directions; k if it is the same in the directions of a k-dimensional space and 0 in the others. The moment
    is about the origin, not about the mean, and of the directions x_i, whatever the lengths of tokens in free
    spaces. Of a density at its last time; of a run one number for each snapshot.
    """
    if isinstance(tokens, Trajectory):
        return jnp.asarray(tokens.measure(effective_rank))
    if not isinstance(tokens, Continuum):
        require_kind(tokens, Tokens, "tokens")
    values = jnp.maximum(jnp.linalg.eigvalsh(jnp.asarray(tokens.moments().second)), 0.0)
    return jnp.exp(jnp.sum(entr(values / jnp.sum(values))))
