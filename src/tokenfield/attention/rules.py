"""What one head reads at a point x from the law μ: a vector that the head multiplies by V.

| rule | reading at x (B one head's matrix) |
|---|---|
| softmax | ∫y e^{β⟨Bᵀx,y⟩}dμ / ∫e^{β⟨Bᵀx,y⟩}dμ; β = ∞ is the hardmax |
| unnormalised | ∫y e^{β⟨Bᵀx,y⟩}dμ · e^{−L}, L the logarithm of the time unit |
| hardmax | mean of the tokens present that maximise ⟨Bᵀx, ·⟩ |
| zero temperature | Bᵀx/|Bᵀx|, the maximiser over the whole sphere |
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from tokenfield.attention.direct import TIE, Sums
from tokenfield.tokens import Tokens

Points = Float[Array, "m d"]
Matrix = Float[Array, "d d"]


def softmax(A: Matrix, x: Points, tokens: Tokens, sums: Sums) -> Points:
    """Softmax mean of the tokens, A = βB with β finite."""
    return sums.exponential(A, x, tokens).mean


def unnormalised(A: Matrix, log_unit: Array, x: Points, tokens: Tokens, sums: Sums) -> Points:
    """e^{−log_unit} Σ_j w_j e^{⟨Aᵀx,y_j⟩} y_j, A = βB with β finite."""
    total = sums.exponential(A, x, tokens)
    return jnp.exp(total.log_mass - log_unit)[:, None] * total.mean


def hardmax(B: Matrix, x: Points, tokens: Tokens, sums: Sums) -> Points:
    """Mean of the tokens present with the greatest score; ties are averaged by weight."""
    return sums.hardmax(x @ B, tokens).mean


def saturated(B: Matrix, norm: Array, x: Points, tokens: Tokens, sums: Sums) -> Points:
    """Limit β → ∞ of `unnormalised` in the unit e^{β·norm}: only scores equal to `norm` are left."""
    found = sums.hardmax(x @ B, tokens)
    reached = found.top >= norm * (1 - TIE)
    return jnp.where(reached, found.mass, 0.0)[:, None] * found.mean


def zero_temperature(B: Matrix, x: Points) -> Points:
    """Bᵀx/|Bᵀx|; where Bᵀx = 0 every key ties and their mean over the sphere is 0."""
    q = x @ B
    scale = lax.stop_gradient(jnp.max(jnp.abs(q), axis=1, keepdims=True))
    positive = scale > 0
    q = q / jnp.where(positive, scale, 1.0)  # the square of a small B would vanish
    square = jnp.sum(q * q, axis=1, keepdims=True)
    return jnp.where(positive, q / jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)
