"""The interaction energy that attention climbs, and how fast (2504.14697; theory §3.1).

    E_β[μ] = (1/2β) ∬ e^{β⟨x,y⟩} dμ dμ,   E_0[μ] = R²/2 (the constant 1/2β left out),

greatest at Diracs. The unnormalised flow with B = V = I is its gradient ascent for W2: dE/dt = ∫|v|²dμ.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from tokenfield.attention.direct import Direct, Sums
from tokenfield.diagnostics.order import order_parameter
from tokenfield.errors import InputError, is_traced, require
from tokenfield.models import Model
from tokenfield.tokens import Tokens, as_real

#: The pairs of the energy are symmetric.
PAIRS = Direct(symmetric=True)
#: Beyond this e^β is not a double.
LARGEST_BETA = 700.0


def energy(tokens: Tokens, beta: ArrayLike | Array, sums: Sums = PAIRS) -> Float[Array, ""]:
    """E_β of the tokens; at β = 0 half the square of the order parameter.

    Refused where e^β overflows a double: there `log_energy` is meant.
    """
    beta = _finite_beta(beta)
    if not is_traced(beta) and float(beta) == 0:
        return order_parameter(tokens) ** 2 / 2
    _check_range(beta, "log_energy")
    return jnp.exp(log_energy(tokens, beta, sums))


def log_energy(tokens: Tokens, beta: ArrayLike | Array, sums: Sums = PAIRS) -> Float[Array, ""]:
    """log E_β of the tokens for β > 0; finite for every β, since E_β itself overflows beyond 700."""
    beta = _finite_beta(beta)
    if not is_traced(beta):
        require(float(beta) > 0, "beta", "be positive", float(beta))
    log_mass = sums.exponential(beta * jnp.eye(tokens.d), tokens.x, tokens).log_mass
    top = jnp.max(log_mass)
    return top + jnp.log(jnp.sum(tokens.weights * jnp.exp(log_mass - top))) - jnp.log(2 * beta)


def dissipation(
    model: Model, tokens: Tokens, beta: ArrayLike | Array, sums: Sums = PAIRS
) -> Float[Array, ""]:
    """dE_β/dt along the model: ∫⟨u, ∇E⟩dμ with u its velocity and ∇E(x) = ∫e^{β⟨x,y⟩}y dμ.

    For the unnormalised flow this is ∫|v|²dμ, for softmax (B = V = I) ∫|v|²/Z dμ.
    """
    beta = _finite_beta(beta)
    _check_range(beta, "a smaller one")
    total = sums.exponential(beta * jnp.eye(tokens.d), tokens.x, tokens)
    gradient = jnp.exp(total.log_mass)[:, None] * total.mean
    return jnp.sum(tokens.weights * jnp.sum(model.velocity(tokens) * gradient, axis=1))


def _finite_beta(beta: ArrayLike | Array) -> Array:
    beta = as_real(beta, "beta")
    require(beta.ndim == 0, "beta", "be one number", f"of shape {beta.shape}")
    if not is_traced(beta):
        require(bool(0 <= beta < np.inf), "beta", "be at least 0 and finite", float(beta))
    return beta


def _check_range(beta: Array, instead: str) -> None:
    if not is_traced(beta) and float(beta) > LARGEST_BETA:
        raise InputError(f"`beta` must be at most {LARGEST_BETA:g}, but was {float(beta)}; use {instead}")
