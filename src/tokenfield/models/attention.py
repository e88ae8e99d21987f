"""Attention: heads that read the tokens through a kernel (theory §1).

    output at x = Σ_h V_h read(queries A_hᵀx + b_h),    A_h = βB_h

A model of this file says which kernel it has and how scores are scaled; `Attention` does the rest: heads,
masks, a context of fixed tokens, what sums and densities may ask. A new kind of attention is a subclass with
`kernel` and, if scores have a temperature, `scale`.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from tokenfield.errors import InputError, is_traced, require, require_kind
from tokenfield.laws.tokens import Tokens, as_real
from tokenfield.models.base import Term, commute
from tokenfield.models.declarations import LinearOutput
from tokenfield.models.gaussian import GaussianLaw, GaussianOutput, over_heads
from tokenfield.models.kernels import Exponential, Hardmax, Kernel, Nearest, Saturated, Slope, Softmax
from tokenfield.models.masks import as_mask
from tokenfield.models.weights import AttentionWeights, Head, as_matrix, plain_heads
from tokenfield.registry import Member, register
from tokenfield.sums.base import Mask, Queries, Sums
from tokenfield.sums.direct import DIRECT
from tokenfield.sums.profile import Scored

#: Exponents up to here are kept as they are (the square of such a velocity is a double, and so is that of
#: a time it takes); beyond, e^{β‖B‖} becomes the unit of time.
LARGEST_EXPONENT = 300.0

#: Settings in files: who sees whom, and the temperature; a context cannot be written there.
MASKED = {"mask": Member("mask"), "context": None}
WARM = {"beta": float, **MASKED}


class Attention(Term):
    """Heads with one kernel. Subclasses have the fields `weights`, `mask` and `context`.

    `mask`: who sees whom (masks.py), None: everybody. `context`: fixed tokens that are read instead of the
    moving ones (cross-attention, anchors).
    """

    weights: eqx.AbstractVar[AttentionWeights]
    mask: eqx.AbstractVar[Mask | None]
    context: eqx.AbstractVar[Tokens | None]

    @property
    @abstractmethod
    def kernel(self) -> Kernel:
        """What a score weighs."""

    @property
    def scale(self) -> Float[Array, ""] | float:
        """What scores are multiplied by: β, or 1 where the kernel has no temperature."""
        return 1.0

    @property
    def d(self) -> int:
        """Dimension of the tokens it acts on."""
        return self.weights.d

    @property
    def heads(self) -> Head:
        """The heads with a leading axis, scores scaled: A = βB, b = βc."""
        head = self.weights.every_head()
        bias = None if head.score_bias is None else self.scale * head.score_bias
        return Head(self.scale * head.B, head.V, bias)

    def output(
        self, x: Array, tokens: Tokens, sums: Sums = DIRECT, rows: Array | None = None
    ) -> Float[Array, "m d"]:
        """Sum over the heads of V_h times what the head reads at x."""
        kernel, keys = self.kernel, self.keys(tokens)
        if self.context is not None:
            sums = DIRECT  # other sums are made for the moving tokens and for the heads that read them

        def one(head: Head) -> Array:
            queries = Queries(head.B, x, head.score_bias, self.mask, rows)
            return kernel.read(queries, keys, sums) @ head.V.T

        return sum_over_heads(one, self.heads)

    def keys(self, tokens: Tokens) -> Tokens:
        """The tokens that are read: the context if there is one."""
        return tokens if self.context is None else self.context

    def on_gaussian(self, law: GaussianLaw) -> GaussianOutput | None:
        """The readings of all heads, if the kernel's are affine and every token reads all tokens."""
        if self.mask is not None or self.context is not None:
            return None
        kernel, scale = self.kernel, float(self.scale)
        found = [
            (V, kernel.on_gaussian(scale * B, scale * bias, law)) for B, V, bias in plain_heads(self.weights)
        ]
        known = [(V, reading) for V, reading in found if reading is not None]
        return over_heads(known) if len(known) == len(found) else None

    # -- what it declares

    @property
    def smooth(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the kernel is."""
        return self.kernel.smooth

    @property
    def reads_order(self) -> bool:
        """Whether there is a mask."""
        return self.mask is not None

    @property
    def interacts(self) -> bool:
        """Whether moving tokens are read."""
        return self.kernel.interacts and self.context is None

    @property
    def reads_number(self) -> bool:
        """Whether the kernel does."""
        return self.kernel.reads_number and self.interacts

    @property
    def log_time_unit(self) -> Float[Array, ""]:
        """That of the kernel."""
        return self.kernel.log_unit

    @property
    def scored(self) -> Scored | None:
        """The heads, if the kernel has a profile and every token reads all tokens, or all before it."""
        profile, mask = self.kernel.profile, self.mask
        if profile is None or not self.interacts:
            return None
        if mask is not None and (mask.fading is None or not profile.scaled):
            return None
        head = self.heads
        return Scored(profile, head.B, head.score_bias, mask)

    def commutes(self, turn: Float[np.ndarray, "d d"]) -> bool:
        """Whether the matrix commutes with B and V of every head; False with biases or a context."""
        head = self.weights.every_head()
        if head.score_bias is not None or self.context is not None:
            return False
        return all(commute(np.asarray(matrices), turn) for matrices in (head.B, head.V))

    def check(self, tokens: Tokens) -> None:
        """Refuse tokens of another dimension or number than weights, context and mask are made for."""
        super().check(tokens)
        if self.mask is not None:
            self.mask.check(tokens.n, tokens.d)


@register("model", "softmax", settings=WARM)
class SoftmaxAttention(Attention):
    """Softmax attention (SA): P_x Σ_h V_h ∫y e^{β⟨B_hᵀx,y⟩}dμ / ∫e^{β⟨B_hᵀx,y⟩}dμ.

    Args:
        weights: B, V and score biases of the heads.
        beta: inverse temperature, any finite number or infinity; β = 0 reads the mean of all tokens, β = ∞ is
            the hardmax over the tokens present.
        mask: who sees whom (`tkf.masks`).
        context: fixed tokens that are read instead of the moving ones.
    """

    weights: AttentionWeights
    beta: Float[Array, ""]
    mask: Mask | None
    context: Tokens | None
    infinite: bool = eqx.field(static=True)

    def __init__(
        self,
        weights: AttentionWeights,
        beta: ArrayLike | Array,
        mask: Mask | None = None,
        context: Tokens | None = None,
    ):
        self.weights, self.mask, self.context = checked(weights, mask, context)
        self.beta, self.infinite = _temperature(beta)

    @property
    def scale(self) -> Float[Array, ""] | float:
        """β; the hardmax does not depend on it."""
        return 1.0 if self.infinite else self.beta

    @property
    def kernel(self) -> Kernel:
        """Softmax, hardmax at β = ∞."""
        return Hardmax() if self.infinite else Softmax()


@register("model", "unnormalised", settings=WARM, climbs=True)
class UnnormalisedAttention(Attention):
    """Unnormalised attention (USA): e^{−L} P_x Σ_h V_h ∫y e^{β⟨B_hᵀx,y⟩}dμ.

    L = 0, the plain equation, as long as |β|‖B‖ ≤ 300 (largest spectral norm of a head). Beyond that
    the exponentials would overflow; then L = |β|‖B‖ and time is counted in units of e^{−L}: the
    velocities are e^{−L} times those of the equation. `log_time_unit` is L. Derivatives hold L fixed.
    Under a mask sums are divided by the visible weight.

    Args:
        weights: B, V and score biases of the heads.
        beta: inverse temperature, any finite number or infinity.
        mask: who sees whom (`tkf.masks`).
        context: fixed tokens that are read instead of the moving ones.
    """

    weights: AttentionWeights
    beta: Float[Array, ""]
    mask: Mask | None
    context: Tokens | None
    infinite: bool = eqx.field(static=True)

    def __init__(
        self,
        weights: AttentionWeights,
        beta: ArrayLike | Array,
        mask: Mask | None = None,
        context: Tokens | None = None,
    ):
        self.weights, self.mask, self.context = checked(weights, mask, context)
        self.beta, self.infinite = _temperature(beta)

    @property
    def scale(self) -> Float[Array, ""] | float:
        """β; at infinity only the order of scores matters."""
        return 1.0 if self.infinite else self.beta

    @property
    def kernel(self) -> Kernel:
        """Exponential in the model's time unit."""
        if self.infinite:
            return Saturated(_spectral_norm(lax.stop_gradient(self.weights.every_head().B)))
        A = lax.stop_gradient(self.heads.B)
        # the Frobenius norm is never below ‖B‖, and costs nothing
        beyond = jnp.max(jnp.linalg.norm(A, axis=(1, 2))) > LARGEST_EXPONENT
        exponent = lax.cond(beyond, _spectral_norm, _zero, A)
        return Exponential(jnp.where(exponent > LARGEST_EXPONENT, exponent, 0.0))


@register("model", "hardmax", settings=MASKED)
class HardmaxAttention(Attention):
    """P_x Σ_h V_h ȳ_h, ȳ_h the mean of the tokens present that maximise ⟨B_hᵀx, ·⟩, ties averaged.

    The limit β → ∞ of softmax at a fixed number of tokens; not the zero-temperature flow. The velocity jumps
    where the maximiser changes; where it points back from both sides of a jump tokens slide along it, and
    `Adaptive` then takes very short steps. `Layers` and `RungeKutta4` go on at their own pace.
    """

    weights: AttentionWeights
    mask: Mask | None
    context: Tokens | None

    def __init__(self, weights: AttentionWeights, mask: Mask | None = None, context: Tokens | None = None):
        self.weights, self.mask, self.context = checked(weights, mask, context)

    @property
    def kernel(self) -> Kernel:
        """Mean of the tokens with the greatest score."""
        return Hardmax()


@register("model", "zero-temperature")
class ZeroTemperature(Attention):
    """P_x Σ_h V_h B_hᵀx/|B_hᵀx|: the maximiser over the whole sphere, so that tokens do not interact.

    The limit of softmax with n → ∞ (full support) first and then β → ∞ (2605.10931). Where B_hᵀx = 0
    all keys tie and the head reads 0.
    """

    weights: AttentionWeights

    mask = None
    context = None

    def __init__(self, weights: AttentionWeights):
        self.weights, _, _ = checked(weights, None, None)

    @property
    def linear(self) -> LinearOutput | None:
        """Σ V_h B_hᵀ/c_h where every B_h is c_h times an orthogonal matrix, so that |B_hᵀx| = c_h."""
        head = self.weights.every_head()
        if head.score_bias is not None:
            return None
        size = jnp.linalg.norm(head.B, axis=(1, 2), keepdims=True) / jnp.sqrt(self.d)
        turn = head.B / jnp.where(size > 0, size, 1.0)
        defect = jnp.max(jnp.abs(turn @ jnp.swapaxes(turn, 1, 2) - jnp.eye(self.d)))
        return LinearOutput(jnp.sum(head.V @ jnp.swapaxes(turn, 1, 2), axis=0), defect)

    @property
    def kernel(self) -> Kernel:
        """Direction of the query."""
        return Nearest()


class InteractionFlow(Attention):
    """P_x Σ_h ∫φ'(⟨A_h x,y⟩) A_h y dμ, the ascent of E_φ = ½∬φ(⟨Ax,y⟩)dμdμ (2504.14697).

    φ(s) = e^{βs}/β and A = I is `UnnormalisedAttention`.

    Args:
        phi: a smooth JAX function of one number.
        A: symmetric, (d, d) or (heads, d, d).
        mask: who sees whom (`tkf.masks`); sums are then divided by the visible weight.
    """

    phi: Callable[[Array], Array]
    A: Float[Array, "*heads d d"]
    mask: Mask | None

    context = None

    def __init__(self, phi: Callable[[Array], Array], A: ArrayLike | Array, mask: Mask | None = None):
        require(callable(phi), "phi", "be a JAX function of one number", repr(phi))
        _refuse_untraceable(phi)
        self.phi, self.mask = phi, hiding(as_mask(mask))
        self.A = as_matrix(A, "A")
        if not is_traced(self.A):
            gap = float(jnp.max(jnp.abs(self.A - jnp.swapaxes(self.A, -1, -2))))
            scale = float(jnp.max(jnp.abs(self.A)))
            require(gap <= 1e-12 * scale, "A", "be symmetric", f"off by {gap:.3g}")

    @property
    def weights(self) -> AttentionWeights:  # pyright: ignore[reportIncompatibleVariableOverride]
        """B = V = A."""
        return AttentionWeights(self.A, self.A)

    @property
    def kernel(self) -> Kernel:
        """φ'."""
        return Slope(self.phi)


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


def sum_over_heads(one: Callable[[Any], Array], heads: Any) -> Array:
    """Sum of a function of one head over heads, trees of arrays with a leading axis."""
    count = len(jax.tree.leaves(heads)[0])
    first = jax.tree.map(lambda a: a[0], heads)
    if count == 1:
        return one(first)
    shape = jax.eval_shape(one, first)
    return lax.scan(lambda total, head: (total + one(head), None), jnp.zeros(shape.shape), heads)[0]


def checked(
    weights: AttentionWeights, mask: Mask | None, context: Tokens | None
) -> tuple[AttentionWeights, Mask | None, Tokens | None]:
    """The arguments that every attention has, or a sentence about the one that does not fit.

    Args:
        weights: of the heads.
        mask: who sees whom.
        context: fixed tokens to be read.
    """
    require_kind(weights, AttentionWeights, "weights")
    mask = as_mask(mask)
    if context is not None:
        require_kind(context, Tokens, "context")
        require(
            context.d == weights.d, "context", f"have the dimension {weights.d} of the weights", context.d
        )
        require(mask is None, "mask", "be left out where there is a context, whose tokens all see", "a mask")
    return weights, mask, context


def hiding(mask: Mask | None) -> Mask | None:
    """A mask for a kernel that has no exponent to add numbers to."""
    only_hides = mask is None or mask.hides_only
    require(only_hides, "mask", "only hide tokens: this kernel has no exponent to add numbers to", "another")
    return mask


def _temperature(beta: ArrayLike | Array) -> tuple[Array, bool]:
    """β as an array, and whether it is known to be infinite (a traced β is taken as finite)."""
    beta = as_real(beta, "beta")
    require(beta.ndim == 0, "beta", "be one number", f"of shape {beta.shape}")
    if is_traced(beta):
        return beta, False
    require(bool(beta > -jnp.inf), "beta", "be a finite number or infinity", float(beta))
    return beta, bool(jnp.isinf(beta))
