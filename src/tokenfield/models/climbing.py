"""Energies that models climb (2504.14697; theory §3.1, §6.3).

A term of heads with V_h = r_h A_h, A_h symmetric, and an unnormalised kernel f = F' climbs

    E[μ] = Σ_h (r_h/2) ∬F(⟨A_h x, y⟩)dμdμ,    its velocity is the gradient of the first variation of E.

For B = V = I and the exponential this is E_β. An MLP with W2 = W1ᵀ diag(a) and a drift climb ∫Φ dμ. A model
whose terms all climb something climbs the sum. Heads under a mask, normalised kernels and V ≠ rB climb none.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from tokenfield.errors import InputError
from tokenfield.laws.tokens import Tokens
from tokenfield.models.base import Model, Term
from tokenfield.models.kernels import Kernel
from tokenfield.sums.base import Queries
from tokenfield.sums.direct import DIRECT


class Climbed(NamedTuple):
    """One part of the energy: a potential, or a function of tokens.

    `potential`: Φ with E = ∫Φ dμ, a function of rows. `of_tokens`: E as a function of tokens; where A is a
    multiple of I also `of_products`: F with E = ½∬F(⟨x,y⟩)dμdμ, a function of an array.
    """

    of_products: Callable[[np.ndarray], np.ndarray] | None = None
    of_tokens: Callable[[Tokens], Array] | None = None
    potential: Callable[[Array], Array] | None = None


def climbed(model: Model) -> list[Climbed] | None:
    """What a model climbs, term by term; None if some term climbs no energy, or in another time unit."""
    if not model.adds_up or model.reads_time or not model.space.projects or float(model.log_time_unit) != 0:
        return None
    parts: list[Climbed] = []
    for term in model.terms:
        if term.noisy:
            continue
        found = _of_term(term)
        if found is None:
            return None
        parts += found
    return parts


def energy_of(model: Model, tokens: Tokens) -> Array:
    """The energy that a model climbs, at some tokens; refused if there is none."""
    parts = climbed(model)
    if parts is None:
        raise InputError(f"`model` must climb an energy, but was {type(model).__name__}, which climbs none")
    return jnp.sum(jnp.stack([_at_tokens(part, tokens) for part in parts]))


def _at_tokens(part: Climbed, tokens: Tokens) -> Array:
    if part.potential is not None:
        return jnp.sum(tokens.weights * part.potential(tokens.x))
    if part.of_tokens is not None:
        return part.of_tokens(tokens)
    raise AssertionError("a part of an energy is a potential or a function of tokens")


def _of_term(term: Term) -> list[Climbed] | None:
    potential = getattr(term, "potential", None)
    if potential is not None:
        gradient = getattr(term, "is_gradient", True)
        return [Climbed(potential=potential)] if gradient else None
    if term.energy is not None:
        return [Climbed(of_tokens=term.energy)]
    heads, kernel = term.heads, term.kernel
    if heads is None or kernel is None or term.reads_order or heads.score_bias is not None:
        return None
    if not term.interacts or kernel.primitive is None:
        return None
    parts = [_of_head(np.asarray(A), np.asarray(V), kernel) for A, V in zip(heads.B, heads.V, strict=True)]
    return None if any(part is None for part in parts) else [p for p in parts if p is not None]


def _of_head(A: np.ndarray, V: np.ndarray, kernel: Kernel) -> Climbed | None:
    primitive = kernel.primitive
    assert primitive is not None
    if not np.any(A):  # β = 0: one weight for all
        return None if np.any(V != V.T) else _quadratic(V, kernel)
    ratio = multiple_of_symmetric(V, A)
    if ratio is None:
        return None

    def of_tokens(tokens: Tokens) -> Array:
        found = DIRECT.pointwise(primitive, Queries(jnp.asarray(A), tokens.x), tokens)
        return ratio / 2 * kernel.factor(tokens) * jnp.sum(tokens.weights * found.mass)

    scale = float(A[0, 0])
    if kernel.reads_number or not np.array_equal(A, scale * np.eye(len(A))):
        return Climbed(of_tokens=of_tokens)
    products = lambda g: ratio * np.asarray(primitive(jnp.asarray(scale * g)))  # noqa: E731
    return Climbed(of_products=products, of_tokens=of_tokens)


def multiple_of_symmetric(V: np.ndarray, A: np.ndarray) -> float | None:
    """r with V = rA and A symmetric, to rounding; None if there is none."""
    ratio = float(np.sum(V * A) / np.sum(A * A))
    close = np.abs(V - ratio * A).max() <= 1e-12 * np.abs(V).max()
    return ratio if close and np.abs(A - A.T).max() <= 1e-12 * np.abs(A).max() else None


def _quadratic(V: np.ndarray, kernel: Kernel) -> Climbed:
    """½⟨m, V m⟩ times the weight of the score 0."""
    weight = float(kernel.weight(jnp.zeros(()), 0.0))

    def of_tokens(tokens: Tokens) -> Array:
        mean = tokens.moments().mean
        return weight / 2 * kernel.factor(tokens) * (mean @ jnp.asarray(V) @ mean)

    scalar = np.array_equal(V, V[0, 0] * np.eye(len(V))) and not kernel.reads_number
    products = (lambda g: weight * V[0, 0] * g) if scalar else None
    return Climbed(of_products=products, of_tokens=of_tokens)
