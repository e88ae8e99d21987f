"""Terms beside attention: MLP, drift, noise (2601.21366, 2605.07772; theory §6.3, §7.1, §4).

Tokens do not interact through them. Each is a model by itself and can be added to others.
"""

from collections.abc import Callable
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from tokenfield.errors import is_traced, require
from tokenfield.laws.tokens import Tokens, as_real
from tokenfield.models.base import Term, commute
from tokenfield.models.declarations import LinearOutput
from tokenfield.models.gaussian import GaussianLaw, GaussianOutput
from tokenfield.registry import MATRIX, Setting, register
from tokenfield.sums.base import Sums
from tokenfield.sums.direct import DIRECT

#: Activations by name, with S, S' = σ, for the potential of an MLP that is a gradient.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": lambda z: z * jax.scipy.stats.norm.cdf(z),
    "gelu-tanh": lambda z: jax.nn.gelu(z, approximate=True),
    "relu": jax.nn.relu,
    "identity": lambda z: z,
}
PRIMITIVES: dict[str, Callable[[Array], Array]] = {
    # S = ½[(z²−1)F(z) + zF'(z)], F the normal distribution function
    "gelu": lambda z: 0.5 * ((z * z - 1) * jax.scipy.stats.norm.cdf(z) + z * jax.scipy.stats.norm.pdf(z)),
    "relu": lambda z: 0.5 * jax.nn.relu(z) ** 2,
    "identity": lambda z: 0.5 * z * z,
}

#: Biases may be left out of files.
BIAS = Setting(list[float] | None, None)

Activation = Literal["gelu", "gelu-tanh", "relu", "identity"]


@register(
    "term",
    "mlp",
    settings={"W1": MATRIX, "b1": BIAS, "W2": MATRIX, "b2": BIAS},
)
class MLP(Term):
    """W2 σ(W1 x + b1) + b2, the same for every token.

    Args:
        W1: (k, d), one row for each neuron.
        b1: (k,), or None for 0.
        W2: (d, k).
        b2: (d,), or None for 0.
        activation: "gelu" (exact, with the normal distribution function), "gelu-tanh" (the approximation),
            "relu" or "identity".
    """

    W1: Float[Array, "k d"]
    b1: Float[Array, "k"]
    W2: Float[Array, "d k"]
    b2: Float[Array, "d"]
    activation: Activation = eqx.field(static=True)

    def __init__(
        self,
        W1: ArrayLike | Array,
        b1: ArrayLike | Array | None,
        W2: ArrayLike | Array,
        b2: ArrayLike | Array | None,
        activation: Activation = "gelu",
    ):
        W1, W2 = as_real(W1, "W1"), as_real(W2, "W2")
        require(W1.ndim == 2 and W1.shape[1] >= 2, "W1", "have shape (k, d)", f"of shape {W1.shape}")
        k, d = W1.shape
        require(W2.shape == (d, k), "W2", f"have shape ({d}, {k}), the transpose of W1's", f"{W2.shape}")
        b1 = jnp.zeros(k) if b1 is None else as_real(b1, "b1")
        b2 = jnp.zeros(d) if b2 is None else as_real(b2, "b2")
        require(b1.shape == (k,), "b1", f"have shape ({k},)", f"of shape {b1.shape}")
        require(b2.shape == (d,), "b2", f"have shape ({d},)", f"of shape {b2.shape}")
        for name, array in (("W1", W1), ("b1", b1), ("W2", W2), ("b2", b2)):
            if not is_traced(array):
                require(bool(jnp.all(jnp.isfinite(array))), name, "be finite", "not finite")
        known = isinstance(activation, str) and activation in ACTIVATIONS
        require(known, "activation", f"be one of {', '.join(ACTIVATIONS)}", repr(activation))
        self.W1, self.b1, self.W2, self.b2, self.activation = W1, b1, W2, b2, activation

    @property
    def d(self) -> int:
        """Dimension of the tokens it acts on."""
        return self.W1.shape[1]

    @property
    def smooth(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """ReLU has kinks, but its velocity is continuous, which is enough for a density."""
        return True

    def output(
        self, x: Array, tokens: Tokens, sums: Sums = DIRECT, rows: Array | None = None
    ) -> Float[Array, "m d"]:
        """W2 σ(W1 x + b1) + b2."""
        return ACTIVATIONS[self.activation](x @ self.W1.T + self.b1) @ self.W2.T + self.b2

    @property
    def linear(self) -> LinearOutput | None:
        """W2 W1, for the identity as activation and no biases."""
        if self.activation != "identity":
            return None
        return LinearOutput(self.W2 @ self.W1, jnp.max(jnp.abs(self.W2 @ self.b1 + self.b2)))

    def commutes(self, turn: Float[np.ndarray, "d d"]) -> bool:
        """Only an activation that is the identity can be looked through."""
        if self.activation != "identity":
            return False
        linear, fixed = np.asarray(self.W2 @ self.W1), np.asarray(self.W2 @ self.b1 + self.b2)
        return commute(linear, turn) and _is_fixed(fixed, turn)

    def on_gaussian(self, law: GaussianLaw) -> GaussianOutput | None:
        """An affine map if the activation is the identity."""
        if self.activation != "identity":
            return None
        W1, b1, W2, b2 = (np.asarray(a) for a in (self.W1, self.b1, self.W2, self.b2))
        return GaussianOutput(W2 @ (W1 @ law.mean + b1) + b2, W2 @ W1 @ law.covariance)

    @property
    def gains(self) -> Float[np.ndarray, "k"] | None:
        """a with W2 = W1ᵀ diag(a), which makes the term a gradient; None if there is none."""
        W1, W2 = np.asarray(self.W1), np.asarray(self.W2)
        squares = np.sum(W1 * W1, axis=1)
        a = np.sum(W2.T * W1, axis=1) / np.where(squares > 0, squares, 1.0)
        gap = np.abs(W2 - W1.T * a).max()
        return a if gap <= 1e-12 * max(np.abs(W2).max(), 1e-300) else None

    @property
    def is_gradient(self) -> bool:
        """Whether there is a potential."""
        return self.gains is not None and self.activation in PRIMITIVES

    def potential(self, x: Float[Array, "m d"]) -> Float[Array, "m"]:
        """Φ = Σ_k a_k S(⟨w_k, x⟩ + b_k) + ⟨b2, x⟩, S' = σ, whose gradient the term is.

        Refused unless W2 = W1ᵀ diag(a).
        """
        a = self.gains
        require(self.is_gradient, "MLP", "be a gradient, W2 = W1ᵀ diag(a), with a known primitive", "not one")
        return PRIMITIVES[self.activation](x @ self.W1.T + self.b1) @ jnp.asarray(a) + x @ self.b2


@register("term", "drift", settings={"a": list[float]})
class Drift(Term):
    """A constant vector a (d,) that pulls every token; what biases of a layer leave (theory §7.1)."""

    a: Float[Array, "d"]

    def __init__(self, a: ArrayLike | Array):
        a = as_real(a, "a")
        require(a.ndim == 1 and a.size >= 2, "a", "be a vector of length d ≥ 2", f"of shape {a.shape}")
        if not is_traced(a):
            require(bool(jnp.all(jnp.isfinite(a))), "a", "be finite", "not finite")
        self.a = a

    @property
    def d(self) -> int:
        """Dimension of the tokens it acts on."""
        return self.a.shape[0]

    def output(
        self, x: Array, tokens: Tokens, sums: Sums = DIRECT, rows: Array | None = None
    ) -> Float[Array, "m d"]:
        """a everywhere."""
        return jnp.broadcast_to(self.a, x.shape)

    def commutes(self, turn: Float[np.ndarray, "d d"]) -> bool:
        """Whether the vector stays when it is turned."""
        return _is_fixed(np.asarray(self.a), turn)

    def on_gaussian(self, law: GaussianLaw) -> GaussianOutput:
        """a for every token."""
        return GaussianOutput(np.asarray(self.a), np.zeros_like(law.covariance))

    def potential(self, x: Float[Array, "m d"]) -> Float[Array, "m"]:
        """⟨a, x⟩, whose gradient the term is."""
        return x @ self.a


class Noise(Term):
    """Brownian motion of every token: dX = velocity dt + √(2/κ) dW on the sphere (theory §4).

    The law of infinitely many tokens then obeys ∂_tμ = κ^{−1}Δμ − div(μX). `kappa` > 0; κ = ∞ is no noise,
    and `model + Noise(inf)` is the model itself.
    """

    kappa: Float[Array, ""]
    infinite: bool = eqx.field(static=True)

    #: Noise acts in every dimension.
    d: ClassVar[int] = 0
    noisy: ClassVar[bool] = True

    def __init__(self, kappa: ArrayLike | Array):
        kappa = as_real(kappa, "kappa")
        require(kappa.ndim == 0, "kappa", "be one number", f"of shape {kappa.shape}")
        known = not is_traced(kappa)
        if known:
            require(bool(kappa > 0), "kappa", "be positive (infinity is no noise)", float(kappa))
        self.kappa, self.infinite = kappa, known and bool(jnp.isinf(kappa))

    def check(self, tokens: Tokens) -> None:
        """Any tokens will do."""

    def output(
        self, x: Array, tokens: Tokens, sums: Sums = DIRECT, rows: Array | None = None
    ) -> Float[Array, "m d"]:
        """Noise has no drift."""
        return jnp.zeros_like(x)

    @property
    def diffusion(self) -> Float[Array, ""]:
        """1/κ, in the time of the equation."""
        return 1 / self.kappa


def _is_fixed(vector: np.ndarray, turn: np.ndarray) -> bool:
    return bool(np.max(np.abs(turn @ vector - vector)) <= 1e-12 * max(np.max(np.abs(vector)), 1e-300))
