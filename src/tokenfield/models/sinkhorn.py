"""Sinkhorn attention: the score matrix scaled to row and column sums 1 (theory §6.6).

    weights of keys: w_j e^{β⟨Bx_i, x_j⟩ + f_i + f_j},   Σ_j of them = 1 for every i,   B symmetric

Given the potentials f of the keys, a query reads a softmax whose keys have the offsets f_j, and its own
potential is minus the logarithm of the mass. The potentials are the fixed point of f ← ½(f − log Σ_j w_j
e^{β⟨Bx_i,x_j⟩ + f_j}); its derivative has eigenvalues in [0, ½] where βB ≥ 0, and below 1 otherwise, and two
steps are combined as in Anderson's method. The flow with V = rβB climbs r times half the optimal value of

    sup over π with marginals μ of ∫β⟨Bx,y⟩dπ − KL(π|μ⊗μ),    which is −2∫f dμ.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.sparse.linalg
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from tokenfield.errors import is_traced, require
from tokenfield.laws.tokens import Tokens
from tokenfield.models.attention import checked, sum_over_heads
from tokenfield.models.climbing import multiple_of_symmetric
from tokenfield.models.gaussian import GaussianLaw, GaussianOutput, over_heads, sinkhorn_reading
from tokenfield.models.offset_attention import OffsetAttention
from tokenfield.models.pointwise import finite_number
from tokenfield.models.weights import AttentionWeights, Head, plain_heads
from tokenfield.registry import register
from tokenfield.sums.base import Queries, Sums
from tokenfield.sums.direct import DIRECT
from tokenfield.sums.offsets import LARGEST_WEIGHT_EXPONENT, exponential_with_offsets
from tokenfield.sums.profile import EXPONENTIAL, Scored

#: Row sums are 1 to this; rounding of large scores is allowed on top.
ROW_SUM_ERROR = 1e-13
#: Rounding of a score, relative to the greatest.
SCORE_ROUNDING = 8 * 2.0**-52
#: Steps after which the scaling counts as failed, and readings are not a number.
MOST_SCALINGS = 2000


@register("model", "sinkhorn", settings={"beta": float}, climbs=True)
class SinkhornAttention(OffsetAttention):
    """P_x Σ_h V_h ∫y e^{β⟨B_h x,y⟩ + f_h(x) + f_h(y)}dμ, with potentials f_h that make all masses 1.

    Two tokens, or equiangular ones, move as under softmax attention.

    Args:
        weights: B and V of the heads, B symmetric, without score biases.
        beta: inverse temperature, any finite number.
    """

    weights: AttentionWeights
    beta: Float[Array, ""]

    mask = None
    context = None

    def __init__(self, weights: AttentionWeights, beta: ArrayLike | Array):
        self.weights, _, _ = checked(weights, None, None)
        self.beta = finite_number(beta, "beta")
        require(weights.score_bias is None, "weights", "have no score_bias in Sinkhorn attention", "with one")
        if not is_traced(weights.B):
            B = np.asarray(weights.B)
            gap = float(np.abs(B - np.swapaxes(B, -1, -2)).max())
            symmetric = gap <= 1e-12 * float(np.abs(B).max())
            require(symmetric, "weights", "have a symmetric B in Sinkhorn attention", f"off by {gap:.3g}")

    def output(
        self, x: Array, tokens: Tokens, sums: Sums = DIRECT, rows: Array | None = None
    ) -> Float[Array, "m d"]:
        """Sum over the heads of V_h times the mean that the head reads at x."""

        def one(head: Head) -> Array:
            f = potentials(head.B, tokens, sums)
            return exponential_with_offsets(sums, Queries(head.B, x), tokens, f).mean @ head.V.T

        return sum_over_heads(one, self.scored_heads)

    def on_gaussian(self, law: GaussianLaw) -> GaussianOutput:
        """The readings of all heads."""
        beta = float(self.beta)
        return over_heads((V, sinkhorn_reading(beta * B, law)) for B, V, _ in plain_heads(self.weights))

    @property
    def scored(self) -> Scored | None:
        """As softmax attention, where the potentials fit into the weights of keys on the sphere."""
        if is_traced(self.weights, self.beta):
            return None
        A = self.scored_heads.B
        norm = float(np.linalg.norm(np.asarray(A), 2, axis=(1, 2)).max())
        return Scored(EXPONENTIAL, A) if 2 * norm <= LARGEST_WEIGHT_EXPONENT else None

    @property
    def energy(self) -> Callable[[Tokens], Array] | None:
        """Σ_h r_h·(−∫f_h dμ) where V_h = r_h βB_h; half of ⟨m, V m⟩ at β = 0."""
        heads = self.scored_heads
        A, V = np.asarray(heads.B), np.asarray(heads.V)
        if not np.any(A):
            symmetric = np.array_equal(V, np.swapaxes(V, 1, 2))
            return (lambda tokens: _quadratic(V, tokens)) if symmetric else None
        ratios = [multiple_of_symmetric(v, a) if np.any(a) else None for v, a in zip(V, A, strict=True)]
        if any(ratio is None for ratio in ratios):
            return None

        def of_tokens(tokens: Tokens) -> Array:
            means = [jnp.sum(tokens.weights * potentials(jnp.asarray(a), tokens, DIRECT)) for a in A]
            return -jnp.asarray(ratios) @ jnp.stack(means)

        return of_tokens


def _quadratic(V: np.ndarray, tokens: Tokens) -> Array:
    mean = tokens.moments().mean
    return 0.5 * mean @ jnp.asarray(V.sum(axis=0)) @ mean


class _Scaling(NamedTuple):
    """Potentials, their excess (logarithms of the row sums), both of the step before, and its number."""

    f: Float[Array, "n"]
    excess: Float[Array, "n"]
    f_before: Float[Array, "n"]
    excess_before: Float[Array, "n"]
    step: Int[Array, ""]


@eqx.filter_custom_jvp
def potentials(A: Float[Array, "d d"], tokens: Tokens, sums: Sums) -> Float[Array, "n"]:
    """f (n,) with Σ_j w_j e^{⟨Ax_i,x_j⟩ + f_i + f_j} = 1 for every token; not a number where there is none.

    Derivatives are those of the solution, by the implicit function theorem.

    Args:
        A: symmetric, βB of a head.
        tokens: the law.
        sums: how sums over it are computed.
    """
    return _scaled(A, tokens, sums)


@eqx.filter_jit  # compiled once for each shape, so that calls outside of jit are quick as well
def _scaled(A: Array, tokens: Tokens, sums: Sums) -> Array:
    largest = jnp.linalg.norm(A, 2) * jnp.max(jnp.sum(tokens.points**2, axis=1))
    allowed = ROW_SUM_ERROR + SCORE_ROUNDING * largest
    zero = jnp.zeros(tokens.n)
    begin = _Scaling(zero, _excess(zero, A, tokens, sums), zero, zero, jnp.zeros((), int))

    def step(state: _Scaling) -> _Scaling:
        f = _next_potentials(state, tokens.weights)
        return _Scaling(f, _excess(f, A, tokens, sums), state.f, state.excess, state.step + 1)

    end = lax.while_loop(lambda state: _goes_on(state, allowed), step, begin)
    return jnp.where(jnp.max(jnp.abs(end.excess)) <= 10 * allowed, end.f, jnp.nan)


@potentials.def_jvp
def _implicit_derivative(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """(1 + P)f' = −(derivative of the excess at f), P the matrix of weights: eigenvalues in (0, 2]."""
    f = potentials(*primals)
    _, moved = eqx.filter_jvp(lambda *args: _excess(f, *args), primals, tangents)

    def along(direction: Array) -> Array:
        return jax.jvp(lambda f: _excess(f, *primals), (f,), (direction,))[1]

    # bicgstab alone has no derivative in reverse mode
    return f, -lax.custom_linear_solve(along, moved, _solved, _solved)


def _solved(matrix: Callable[[Array], Array], right: Array) -> Array:
    return jax.scipy.sparse.linalg.bicgstab(matrix, right, tol=1e-13, maxiter=500)[0]


def _excess(f: Array, A: Array, tokens: Tokens, sums: Sums) -> Float[Array, "n"]:
    """Logarithms of the row sums."""
    return f + exponential_with_offsets(sums, Queries(A, tokens.points), tokens, f).log_mass


def _goes_on(state: _Scaling, allowed: Array) -> Bool[Array, ""]:
    worst = jnp.max(jnp.abs(state.excess))
    return (worst > allowed) & (state.step < MOST_SCALINGS)


def _next_potentials(state: _Scaling, weights: Float[Array, "n"]) -> Float[Array, "n"]:
    """f − ½ excess, moved on along the last two steps so that the excess would be least if it were linear."""
    plain, plain_before = state.f - 0.5 * state.excess, state.f_before - 0.5 * state.excess_before
    change = state.excess - state.excess_before
    square = jnp.sum(weights * change**2)
    share = jnp.sum(weights * change * state.excess) / jnp.where(square > 0, square, 1.0)
    return plain - jnp.where(state.step > 0, share, 0.0) * (plain - plain_before)
