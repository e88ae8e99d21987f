"""Velocity fields on the sphere: what a layer of attention does to every token (theory §1).

A model says what a point x reads from the tokens (`attention`, unprojected, the output of the layer);
`velocity` is its tangential part P_x at the tokens themselves. Heads add up. A new model is a class
with one method `attention`; a new kind of attention head is a class with one method `reader`.
"""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from tokenfield import sphere
from tokenfield.attention import rules
from tokenfield.attention.direct import DIRECT, Sums
from tokenfield.errors import InputError, is_traced, require, require_kind
from tokenfield.tokens import Tokens, as_real
from tokenfield.weights import AttentionWeights, as_matrix

#: Exponents up to here are kept as they are (the square of such a velocity is a double, and so is that of
#: a time it takes); beyond, e^{β‖B‖} becomes the unit of time.
LARGEST_EXPONENT = 300.0


#: What one head with the matrix B reads from the tokens at the points x (m, d): read(B, x, tokens, sums).
Reader = Callable[[Array, Array, Tokens, Sums], Array]


class Model(eqx.Module):
    """A field on the sphere made by the tokens themselves."""

    @property
    @abstractmethod
    def d(self) -> int:
        """Dimension of the tokens it acts on."""

    @abstractmethod
    def attention(self, x: Float[Array, "m d"], tokens: Tokens, sums: Sums = DIRECT) -> Float[Array, "m d"]:
        """Output of the layer at the points x (m, d), before projection to the tangent space."""

    def velocity(self, tokens: Tokens, sums: Sums = DIRECT) -> Float[Array, "n d"]:
        """Tangent velocity of every token, (n, d)."""
        require_kind(tokens, Tokens, "tokens")
        require(tokens.d == self.d, "tokens", f"have the dimension {self.d} of the model", tokens.d)
        return sphere.project(tokens.x, self.attention(tokens.x, tokens, sums))

    @property
    def log_time_unit(self) -> Float[Array, ""]:
        """L such that one unit of this model's time is e^{−L} of the equation's; 0 if not said."""
        return jnp.zeros(())

    @property
    def exponents(self) -> Float[Array, "heads d d"] | None:
        """βB of the heads, if all the model reads are exponential sums e^{⟨βBᵀx,y⟩}; these can be fast."""
        return None

    def commutes(self, turn: Float[np.ndarray, "d d"]) -> bool:
        """Whether turning all tokens by an orthogonal matrix turns their velocities; False if not known."""
        return False

    @property
    def drift(self) -> "Model":
        """The model without its noise."""
        return self

    @property
    def diffusion(self) -> Float[Array, ""]:
        """D in ∂_tμ = DΔμ − div(μX), in the model's own time unit; 0 without noise."""
        return jnp.zeros(())

    def __add__(self, noise: "Noise") -> "Model":
        """The model with noise: `model + Noise(kappa)`."""
        if not isinstance(noise, Noise):
            return NotImplemented
        return self if noise.infinite else Noisy(self, noise)


class Noise(eqx.Module):
    """Brownian motion of every token: dX = velocity dt + √(2/κ) dW on the sphere (theory §4).

    The law of infinitely many tokens then obeys ∂_tμ = κ^{−1}Δμ − div(μX). `kappa` > 0; κ = ∞ is no noise,
    and `model + Noise(inf)` is the model itself.
    """

    kappa: Float[Array, ""]
    infinite: bool = eqx.field(static=True)

    def __init__(self, kappa: ArrayLike | Array):
        kappa = as_real(kappa, "kappa")
        require(kappa.ndim == 0, "kappa", "be one number", f"of shape {kappa.shape}")
        known = not is_traced(kappa)
        if known:
            require(bool(kappa > 0), "kappa", "be positive (infinity is no noise)", float(kappa))
        self.kappa, self.infinite = kappa, known and bool(jnp.isinf(kappa))


class Noisy(Model):
    """A model and noise: what `model + Noise(kappa)` makes. It reads what the model reads.

    Noise is counted in the time of the equation, like the velocity: in a time unit e^{−L} it is e^{−L}/κ.
    """

    model: Model
    noise: Noise

    def __init__(self, model: Model, noise: Noise):
        require_kind(model, Model, "model")
        require_kind(noise, Noise, "noise")
        require(not isinstance(model, Noisy), "model", "have no noise yet", "noisy already")
        self.model, self.noise = model, noise

    @property
    def d(self) -> int:
        """Dimension of the tokens it acts on."""
        return self.model.d

    def attention(self, x: Float[Array, "m d"], tokens: Tokens, sums: Sums = DIRECT) -> Float[Array, "m d"]:
        """Output of the layer, without noise."""
        return self.model.attention(x, tokens, sums)

    @property
    def log_time_unit(self) -> Float[Array, ""]:
        """That of the model."""
        return self.model.log_time_unit

    @property
    def exponents(self) -> Float[Array, "heads d d"] | None:
        """Those of the model."""
        return self.model.exponents

    @property
    def drift(self) -> Model:
        """The model without its noise."""
        return self.model

    @property
    def diffusion(self) -> Float[Array, ""]:
        """e^{−L}/κ."""
        return jnp.exp(-self.model.log_time_unit) / self.noise.kappa


class AttentionModel(Model):
    """Σ_h V_h read_h(x): models made of attention heads, which differ in how a head reads."""

    weights: eqx.AbstractVar[AttentionWeights]

    @abstractmethod
    def reader(self) -> Reader:
        """How one head reads; what the heads have in common is computed here, once."""

    @property
    def d(self) -> int:
        """Dimension of the tokens it acts on."""
        return self.weights.d

    def attention(self, x: Float[Array, "m d"], tokens: Tokens, sums: Sums = DIRECT) -> Float[Array, "m d"]:
        """Sum over the heads of V_h times what the head reads at x."""

        read = self.reader()
        return _sum_over_heads(lambda B, V: read(B, x, tokens, sums) @ V.T, self.weights.stacked())

    def commutes(self, turn: Float[np.ndarray, "d d"]) -> bool:
        """Whether the matrix commutes with B and V of every head."""
        return all(_commute(np.asarray(matrices), turn) for matrices in self.weights.stacked())


class SoftmaxAttention(AttentionModel):
    """Softmax attention (SA): P_x Σ_h V_h ∫y e^{β⟨B_hᵀx,y⟩}dμ / ∫e^{β⟨B_hᵀx,y⟩}dμ.

    `beta` ≥ 0; β = 0 reads the mean of all tokens, β = ∞ is the hardmax over the tokens present.
    """

    weights: AttentionWeights
    beta: Float[Array, ""]
    infinite: bool = eqx.field(static=True)

    def __init__(self, weights: AttentionWeights, beta: ArrayLike | Array):
        self.weights = _checked(weights)
        self.beta, self.infinite = _temperature(beta)

    @property
    def exponents(self) -> Float[Array, "heads d d"] | None:
        """βB of the heads; at β = ∞ there are no exponentials."""
        return None if self.infinite else self.beta * self.weights.stacked()[0]

    def reader(self) -> Reader:
        """Softmax mean of the tokens."""
        if self.infinite:
            return rules.hardmax
        return lambda B, x, tokens, sums: rules.softmax(self.beta * B, x, tokens, sums)


class UnnormalisedAttention(AttentionModel):
    """Unnormalised attention (USA): e^{−L} P_x Σ_h V_h ∫y e^{β⟨B_hᵀx,y⟩}dμ.

    L = 0, the plain equation, as long as β‖B‖ ≤ 300 (largest spectral norm of a head). Beyond that
    the exponentials would overflow; then L = β‖B‖ and time is counted in units of e^{−L}: the
    velocities are e^{−L} times those of the equation. `log_time_unit` is L. Derivatives hold L fixed.
    """

    weights: AttentionWeights
    beta: Float[Array, ""]
    infinite: bool = eqx.field(static=True)

    def __init__(self, weights: AttentionWeights, beta: ArrayLike | Array):
        self.weights = _checked(weights)
        self.beta, self.infinite = _temperature(beta)

    @property
    def exponents(self) -> Float[Array, "heads d d"] | None:
        """βB of the heads; at β = ∞ there are no exponentials."""
        return None if self.infinite else self.beta * self.weights.stacked()[0]

    @property
    def log_time_unit(self) -> Float[Array, ""]:
        """L = β‖B‖ if that exceeds 300, else 0."""
        if self.infinite:
            return jnp.asarray(jnp.inf)
        A = lax.stop_gradient(self.beta * self.weights.stacked()[0])
        # the Frobenius norm is never below ‖B‖, and costs nothing
        beyond = jnp.max(jnp.linalg.norm(A, axis=(1, 2))) > LARGEST_EXPONENT
        exponent = lax.cond(beyond, _spectral_norm, _zero, A)
        return jnp.where(exponent > LARGEST_EXPONENT, exponent, 0.0)

    def reader(self) -> Reader:
        """Exponential sum over the tokens, in the model's time unit."""
        if self.infinite:
            norm = _spectral_norm(lax.stop_gradient(self.weights.stacked()[0]))
            return lambda B, x, tokens, sums: rules.saturated(B, norm, x, tokens, sums)
        unit = self.log_time_unit
        return lambda B, x, tokens, sums: rules.unnormalised(self.beta * B, unit, x, tokens, sums)


class HardmaxAttention(AttentionModel):
    """P_x Σ_h V_h ȳ_h, ȳ_h the mean of the tokens present that maximise ⟨B_hᵀx, ·⟩, ties averaged.

    The limit β → ∞ of softmax at a fixed number of tokens; not the zero-temperature flow. The velocity jumps
    where the maximiser changes; where it points back from both sides of a jump tokens slide along it, and
    `Adaptive` then takes very short steps. `Layers` and `RungeKutta4` go on at their own pace.
    """

    weights: AttentionWeights

    def __init__(self, weights: AttentionWeights):
        self.weights = _checked(weights)

    def reader(self) -> Reader:
        """Mean of the tokens with the greatest score."""
        return rules.hardmax


class ZeroTemperature(AttentionModel):
    """P_x Σ_h V_h B_hᵀx/|B_hᵀx|: the maximiser over the whole sphere, so that tokens do not interact.

    The limit of softmax with n → ∞ (full support) first and then β → ∞ (2605.10931). Where B_hᵀx = 0
    all keys tie and the head reads 0.
    """

    weights: AttentionWeights

    def __init__(self, weights: AttentionWeights):
        self.weights = _checked(weights)

    def reader(self) -> Reader:
        """Direction of Bᵀx."""
        return lambda B, x, tokens, sums: rules.zero_temperature(B, x)


class InteractionFlow(Model):
    """P_x Σ_h ∫φ'(⟨A_h x,y⟩) A_h y dμ, the ascent of E_φ = ½∬φ(⟨Ax,y⟩)dμdμ (2504.14697).

    `phi`: a smooth JAX function of one number; `A` symmetric, (d, d) or (heads, d, d).
    φ(s) = e^{βs}/β and A = I is `UnnormalisedAttention`.
    """

    phi: Callable[[Array], Array]
    A: Float[Array, "*heads d d"]

    def __init__(self, phi: Callable[[Array], Array], A: ArrayLike | Array):
        require(callable(phi), "phi", "be a JAX function of one number", repr(phi))
        _refuse_untraceable(phi)
        self.phi = phi
        self.A = as_matrix(A, "A")
        if not is_traced(self.A):
            gap = float(jnp.max(jnp.abs(self.A - jnp.swapaxes(self.A, -1, -2))))
            scale = float(jnp.max(jnp.abs(self.A)))
            require(gap <= 1e-12 * scale, "A", "be symmetric", f"off by {gap:.3g}")

    @property
    def d(self) -> int:
        """Dimension of the tokens it acts on."""
        return self.A.shape[-1]

    def attention(self, x: Float[Array, "m d"], tokens: Tokens, sums: Sums = DIRECT) -> Float[Array, "m d"]:
        """∫φ'(⟨Ax,y⟩) A y dμ at the points x, summed over the heads."""

        def head(A: Array) -> Array:
            return sums.kernel(Slope(self.phi), x @ A, tokens)[1] @ A

        return _sum_over_heads(head, (self.A.reshape(-1, self.d, self.d),))

    def commutes(self, turn: Float[np.ndarray, "d d"]) -> bool:
        """Whether the matrix commutes with A."""
        return _commute(np.asarray(self.A), turn)


class Slope(eqx.Module):
    """φ' of an array of scores; a module, so that equal φ share a compiled sum."""

    phi: Callable[[Array], Array]

    def __call__(self, scores: Array) -> Array:
        """φ' of each entry."""
        slope = jax.grad(lambda s: jnp.asarray(self.phi(s), dtype=jnp.float64))
        return jax.vmap(slope)(scores.ravel()).reshape(scores.shape)


def _commute(matrices: np.ndarray, turn: np.ndarray) -> bool:
    gap = np.max(np.abs(matrices @ turn - turn @ matrices))
    return bool(gap <= 1e-12 * np.max(np.abs(matrices)))


def _zero(matrices: Array) -> Array:
    """0; by name, because a lambda would be compiled again at every call."""
    return jnp.zeros(())


def _spectral_norm(matrices: Float[Array, "heads d d"]) -> Float[Array, ""]:
    """Largest singular value of any head, from BᵀB: ten times as quick as a singular value decomposition."""
    scale = jnp.max(jnp.abs(matrices))
    safe = jnp.where(scale > 0, scale, 1.0)
    scaled = matrices / safe  # squares of 1e200 overflow
    squares = jnp.linalg.eigvalsh(jnp.swapaxes(scaled, 1, 2) @ scaled)
    return safe * jnp.sqrt(jnp.maximum(jnp.max(squares), 0.0))


def _refuse_untraceable(phi: Callable[[Array], Array]) -> None:
    """Find out before a run whether JAX can differentiate φ."""
    try:
        slope = jax.grad(lambda s: jnp.asarray(phi(s), dtype=jnp.float64))
        jax.eval_shape(slope, jax.ShapeDtypeStruct((), jnp.float64))
    except Exception as error:  # whatever the function or JAX says
        reason = str(error).strip().partition("\n")[0]
        raise InputError(
            f"`phi` must be a JAX function of one number that gives one number, but was {phi!r}: {reason}"
        ) from error


def _sum_over_heads(head: Callable[..., Array], matrices: tuple[Array, ...]) -> Array:
    if len(matrices[0]) == 1:
        return head(*(m[0] for m in matrices))
    shape = jax.eval_shape(head, *(m[0] for m in matrices))
    return lax.scan(lambda total, m: (total + head(*m), None), jnp.zeros(shape.shape), matrices)[0]


def _checked(weights: AttentionWeights) -> AttentionWeights:
    require_kind(weights, AttentionWeights, "weights")
    return weights


def _temperature(beta: ArrayLike | Array) -> tuple[Array, bool]:
    """β as an array, and whether it is known to be infinite (a traced β is taken as finite)."""
    beta = as_real(beta, "beta")
    require(beta.ndim == 0, "beta", "be one number", f"of shape {beta.shape}")
    if is_traced(beta):
        return beta, False
    require(bool(beta >= 0), "beta", "be at least 0 (infinity is allowed)", float(beta))
    return beta, bool(jnp.isinf(beta))
