"""What one head reads at a point x from the law μ: a vector that the head multiplies by V.

| rule | reading at x (B one head's matrix) |
|---|---|
| softmax | ∫y e^{β⟨Bᵀx,y⟩}dμ / ∫e^{β⟨Bᵀx,y⟩}dμ; β = ∞ is the hardmax |
| unnormalised | ∫y e^{β⟨Bᵀx,y⟩}dμ · e^{−L}, L the logarithm of the time unit |
| hardmax | mean of the tokens present that maximise ⟨Bᵀx, ·⟩ |
| zero temperature | Bᵀx/|Bᵀx|, the maximiser over the whole sphere |
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from tokenfield.attention.direct import TIE, Direct
from tokenfield.tokens import Tokens

Points = Float[Array, "m d"]
Matrix = Float[Array, "d d"]


def softmax(q: Points, tokens: Tokens, sums: Direct, symmetric: bool) -> Points:
    """Softmax mean of the tokens at the queries q = βBᵀx, β finite."""
    return sums.exponential(q, tokens, symmetric).mean


def unnormalised(q: Points, log_unit: Array, tokens: Tokens, sums: Direct, symmetric: bool) -> Points:
    """e^{−log_unit} Σ_j w_j e^{⟨q,y_j⟩} y_j at the queries q = βBᵀx, β finite."""
    total = sums.exponential(q, tokens, symmetric)
    return jnp.exp(total.log_mass - log_unit)[:, None] * total.mean


def hardmax(B: Matrix, x: Points, tokens: Tokens, sums: Direct) -> Points:
    """Mean of the tokens present with the greatest score; ties are averaged by weight."""
    return sums.hardmax(x @ B, tokens).mean


def saturated(B: Matrix, norm: Array, x: Points, tokens: Tokens, sums: Direct) -> Points:
    """Limit β → ∞ of `unnormalised` in the unit e^{β·norm}: only scores equal to `norm` are left."""
    found = sums.hardmax(x @ B, tokens)
    reached = found.top >= norm * (1 - TIE)
    return jnp.where(reached, found.mass, 0.0)[:, None] * found.mean


def zero_temperature(B: Matrix, x: Points) -> Points:
    """Bᵀx/|Bᵀx|; where Bᵀx = 0 every key ties and their mean over the sphere is 0."""
    q = x @ B
    square = jnp.sum(q * q, axis=1, keepdims=True)
    positive = square > 0
    return jnp.where(positive, q / jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)
