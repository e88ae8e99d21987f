"""The interaction energy that attention climbs, and how fast (2504.14697; theory §3.1).

    E_β[μ] = (1/2β) ∬ e^{β⟨x,y⟩} dμ dμ,   E_0[μ] = R²/2 (the constant 1/2β left out),

greatest at Diracs. The unnormalised flow with B = V = I is its gradient ascent for W2: dE/dt = ∫|v|²dμ.
β may be negative: then E_β < 0, yet e^{βs}/β still rises with s, so that all of this holds as before.
A general interaction has E_φ[μ] = ½∬φ(⟨Ax,y⟩)dμdμ, A symmetric; φ(s) = e^{βs}/β and A = I is E_β.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from tokenfield.errors import InputError, is_traced, require, require_kind
from tokenfield.geometry import sphere
from tokenfield.laws.tokens import Continuum, Tokens, as_real
from tokenfield.measure.of_run import beta_of
from tokenfield.measure.order import order_parameter
from tokenfield.models.attention import InteractionFlow
from tokenfield.models.base import Model
from tokenfield.registry import register
from tokenfield.runs.trajectory import Trajectory
from tokenfield.sums.base import Queries, Sums
from tokenfield.sums.direct import DIRECT, Direct

#: The pairs of the energy are symmetric.
SYMMETRIC_SUMS = Direct(symmetric=True)
#: Beyond this e^|β| is not a double.
LARGEST_BETA = 700.0


@register("measure", "energy", of="law", needs=("beta",), traceable=True)
def energy(
    tokens: Tokens | Continuum | Trajectory,
    beta: ArrayLike | Array | None = None,
    sums: Sums = SYMMETRIC_SUMS,
) -> Float[Array, "..."]:
    """E_β = (1/2β)∬e^{β⟨x,y⟩}dμdμ of the tokens, negative for β < 0; at β = 0 half the square of R.

    Args:
        tokens: x (n, d) and weights (n,); a density, at its last time; or a run.
        beta: inverse temperature, any real number; refused beyond |β| = 700, where e^|β| overflows a double
            and `log_energy` is meant. Of a run that carries its model, that of the model if left out.
        sums: how the exponential sums over all pairs are made.

    Returns:
        The energy, one number; of a run one for each snapshot.
    """
    if isinstance(tokens, Trajectory):
        known = beta_of(tokens, beta)
        return jnp.asarray(tokens.measure(lambda law: energy(law, known, sums)))
    require(beta is not None, "beta", "be given for tokens, which carry no model", "left out")
    assert beta is not None
    if not isinstance(tokens, Continuum):
        require_kind(tokens, Tokens, "tokens")
    beta = _finite_beta(beta)
    if not is_traced(beta) and float(beta) == 0:
        return order_parameter(tokens) ** 2 / 2
    _check_range(beta, "log_energy")
    return jnp.sign(beta) * jnp.exp(log_energy(tokens, beta, sums))


def log_energy(
    tokens: Tokens | Continuum, beta: ArrayLike | Array, sums: Sums = SYMMETRIC_SUMS
) -> Float[Array, ""]:
    """log|E_β| of the tokens, finite for every β ≠ 0, where E_β itself overflows beyond |β| = 700.

    For β > 0 this is log E_β, which rises along the flow. For β < 0 it is log(−E_β): E_β is negative and
    rises towards e^β/2β, so that log|E_β| *falls*.

    Args:
        tokens: x (n, d) and weights (n,), or a density, at its last time.
        beta: inverse temperature, any real number but 0.
        sums: how the exponential sums over all pairs are made.

    Returns:
        The logarithm, one number.
    """
    if not isinstance(tokens, Continuum):
        require_kind(tokens, Tokens, "tokens")
    beta = _finite_beta(beta)
    if not is_traced(beta):
        require(float(beta) != 0, "beta", "not be 0, where the energy is R²/2", float(beta))
    if isinstance(tokens, Continuum):
        b = float(beta)
        pairs = tokens.pairs(lambda g: np.exp(b * g - abs(b)))
        return jnp.asarray(np.log(pairs / (2 * abs(b))) + abs(b))
    log_mass = sums.exponential(Queries(beta * jnp.eye(tokens.d), tokens.x), tokens).log_mass
    top = jnp.max(log_mass)
    return top + jnp.log(jnp.sum(tokens.weights * jnp.exp(log_mass - top))) - jnp.log(2 * jnp.abs(beta))


def dissipation(
    model: Model, tokens: Tokens, beta: ArrayLike | Array, sums: Sums = SYMMETRIC_SUMS
) -> Float[Array, ""]:
    """dE_β/dt along the model: ∫⟨u, ∇E⟩dμ with u its velocity and ∇E(x) = ∫e^{β⟨x,y⟩}y dμ.

    For the unnormalised flow this is ∫|v|²dμ, for softmax (B = V = I) ∫|v|²/Z dμ: at least 0 for any real β.

    Args:
        model: whose velocity moves the tokens; it may have another β, or none.
        tokens: x (n, d) and weights (n,).
        beta: that of the energy, any real number up to |β| = 700.
        sums: how the exponential sums over all pairs are made.

    Returns:
        The slope of the energy, one number.
    """
    require_kind(model, Model, "model")
    require_kind(tokens, Tokens, "tokens")
    beta = _finite_beta(beta)
    _check_range(beta, "a smaller one")
    total = sums.exponential(Queries(beta * jnp.eye(tokens.d), tokens.x), tokens)
    gradient = jnp.exp(total.log_mass)[:, None] * total.mean
    return jnp.sum(tokens.weights * jnp.sum(model.velocity(tokens) * gradient, axis=1))


def _finite_beta(beta: ArrayLike | Array) -> Array:
    beta = as_real(beta, "beta")
    require(beta.ndim == 0, "beta", "be one number", f"of shape {beta.shape}")
    if not is_traced(beta):
        require(bool(jnp.isfinite(beta)), "beta", "be a finite number", float(beta))
    return beta


def _check_range(beta: Array, instead: str) -> None:
    if not is_traced(beta) and abs(float(beta)) > LARGEST_BETA:
        raise InputError(
            f"`beta` must be at most {LARGEST_BETA:g} in size, but was {float(beta)}; use {instead}"
        )


Phi = Callable[[Array], Array]
#: A vector field on the sphere, rows (n, d) → rows (n, d).
VectorField = Callable[[Array], Array]
#: Rows of pairs of `deficit` that are held at once.
DEFICIT_ROWS_AT_ONCE = 16


def interaction_energy(tokens: Tokens, phi: Phi, A: ArrayLike | Array | None = None) -> Float[Array, ""]:
    """E_φ = ½∬φ(⟨Ax,y⟩)dμdμ, what `InteractionFlow(phi, A)` climbs.

    Args:
        tokens: x (n, d) and weights (n,).
        phi: the interaction φ, a JAX function of one number.
        A: symmetric matrix (d, d); the identity if None.

    Returns:
        The energy, one number.
    """
    return _interaction_energy(tokens, _flow(phi, A, tokens))


def first_variation(
    tokens: Tokens, X: ArrayLike | Array, phi: Phi, A: ArrayLike | Array | None = None
) -> Float[Array, ""]:
    """δE_φ = ∫⟨X, v⟩dμ, the slope of E_φ when the tokens leave with the tangent velocities X.

    Args:
        tokens: x (n, d) and weights (n,).
        X: tangent vectors at the tokens (n, d).
        phi: the interaction φ, a JAX function of one number; e^{βs}/β for E_β, β of either sign.
        A: symmetric matrix (d, d); the identity if None.

    Returns:
        The first variation, one number.
    """
    flow = _flow(phi, A, tokens)
    return jnp.sum(tokens.weights * jnp.sum(_tangent(tokens, X) * flow.velocity(tokens), axis=1))


def second_variation(
    tokens: Tokens, X: ArrayLike | Array, phi: Phi, A: ArrayLike | Array | None = None
) -> Float[Array, ""]:
    """δ²E_φ, the second derivative of E_φ along the geodesics x_s = exp_x(sX), X (n, d) tangent.

    It equals ½∬φ''(G)(⟨AX(x),y⟩+⟨Ax,X(y)⟩)² + ∬φ'(G)[⟨AX(x),X(y)⟩ − |X(x)|²G], G = ⟨Ax,y⟩; computed by JAX
    through the tiled sums of E_φ itself.

    Args:
        tokens: x (n, d) and weights (n,).
        X: tangent vectors at the tokens (n, d).
        phi: the interaction φ, a JAX function of one number; e^{βs}/β for E_β, β of either sign.
        A: symmetric matrix (d, d); the identity if None.

    Returns:
        The second variation, one number.
    """
    flow, X = _flow(phi, A, tokens), _tangent(tokens, X)
    length = jnp.linalg.norm(X, axis=1, keepdims=True)

    def curve(s: Array) -> Array:
        x = jnp.cos(s * length) * tokens.x + s * jnp.sinc(s * length / jnp.pi) * X
        return _interaction_energy(Tokens(x, tokens.weights), flow)

    return _second_derivative(curve)


def second_variation_of_flow(
    tokens: Tokens, field: VectorField, phi: Phi, A: ArrayLike | Array | None = None
) -> Float[Array, ""]:
    """Second derivative of E_φ along the flow x' = X(x) of a tangent field: δ²E_φ + ∫⟨∇_X X, v⟩dμ.

    The flow bends away from geodesics by ∇_X X = P_x DX[X].

    Args:
        tokens: x (n, d) and weights (n,).
        field: the tangent field X, a JAX function of rows (n, d) → (n, d).
        phi: the interaction φ, a JAX function of one number.
        A: symmetric matrix (d, d); the identity if None.

    Returns:
        The second derivative, one number.
    """
    require(callable(field), "field", "be a JAX function of rows (n, d)", repr(field))
    X, bend = jax.jvp(field, (tokens.x,), (_tangent(tokens, field(tokens.x)),))
    straight = second_variation(tokens, X, phi, A)
    return straight + first_variation(tokens, sphere.project(tokens.x, bend), phi, A)


def deficit(tokens: Tokens, beta: ArrayLike | Array) -> Float[Array, ""]:
    """E_max − E_β ≥ 0, to full relative accuracy however close the tokens are to a Dirac.

    (e^β/2β)∬(1 − e^{−β|x−y|²/2})dμdμ, from chords, for any real β up to |β| = 700; at β = 0 it is (1−R²)/2.
    """
    require_kind(tokens, Tokens, "tokens")
    beta = _finite_beta(beta)
    _check_range(beta, "a smaller one")
    return _deficit(tokens, beta)


@jax.jit
def _deficit(tokens: Tokens, beta: Array) -> Array:
    size = jnp.abs(beta)
    small = size < 1e-300
    safe = jnp.where(small, 1.0, size)

    def row(x: Array) -> Array:
        gap = jnp.sum((tokens.x - x) ** 2, axis=1) / 2  # 1 − ⟨x,y⟩
        lost = jnp.where(small, gap, -jnp.expm1(-safe * gap) / safe)
        # e^β(1 − e^{−β gap})/β = e^{β max}(1 − e^{−|β|gap})/|β|, of which nothing overflows: e^{β max} is the
        # greater of e^β and e^{β⟨x,y⟩}
        return jnp.sum(tokens.weights * lost * jnp.exp(jnp.maximum(beta, beta * (1 - gap))))

    rows = lax.map(row, tokens.x, batch_size=DEFICIT_ROWS_AT_ONCE)
    return jnp.sum(tokens.weights * rows) / 2


class _Value(eqx.Module):
    """φ of an array of scores; a module, so that equal φ share a compiled sum."""

    phi: Phi

    def __call__(self, scores: Array) -> Array:
        value = jax.vmap(lambda s: jnp.asarray(self.phi(s), dtype=jnp.float64))
        return value(scores.ravel()).reshape(scores.shape)


def _interaction_energy(tokens: Tokens, flow: InteractionFlow) -> Array:
    sums, _ = DIRECT.pointwise(_Value(flow.phi), Queries(flow.A, tokens.x), tokens)
    return 0.5 * jnp.sum(tokens.weights * sums)


def _second_derivative(curve: Callable[[Array], Array]) -> Array:
    def slope(s: Array) -> Array:
        return jax.jvp(curve, (s,), (jnp.ones(()),))[1]

    return jax.jvp(slope, (jnp.zeros(()),), (jnp.ones(()),))[1]


def _flow(phi: Phi, A: ArrayLike | Array | None, tokens: Tokens) -> InteractionFlow:
    """φ and A, checked."""
    flow = InteractionFlow(phi, jnp.eye(tokens.d) if A is None else A)
    require(
        flow.A.shape == (tokens.d, tokens.d),
        "A",
        f"be one {tokens.d} × {tokens.d} matrix",
        f"of shape {flow.A.shape}",
    )
    return flow


def _tangent(tokens: Tokens, X: ArrayLike | Array) -> Float[Array, "n d"]:
    X = as_real(X, "X")
    require(
        X.shape == tokens.x.shape,
        "X",
        f"have the shape {tokens.x.shape} of the tokens",
        f"of shape {X.shape}",
    )
    if not is_traced(X, tokens):
        radial = float(jnp.max(jnp.abs(jnp.sum(X * tokens.x, axis=1))))
        require(
            bool(radial <= 1e-8 * float(jnp.max(jnp.abs(X)))),
            "X",
            "be tangent to the sphere",
            f"off by {radial:.3g}",
        )
    return sphere.project(tokens.x, X)
