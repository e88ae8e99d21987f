"""What a height reads from a zonal law, for models that keep the symmetry about the axis.

With x = cos φ e + sin φ ω keys are averaged over their direction ω across the axis once, when the matrices
are made; for B = I the result is diagonal in the zonal harmonics (Funk–Hecke), with the eigenvalues λ_l of
theory §3.4.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tokenfield.density.gegenbauer import gauss, harmonics
from tokenfield.errors import require
from tokenfield.models import (
    InteractionFlow,
    Model,
    Slope,
    SoftmaxAttention,
    UnnormalisedAttention,
    ZeroTemperature,
)


class Heads(NamedTuple):
    """The model in numbers: each head's score a tt' + b ss'ω, and V = (along, across).

    `weight(score, top)`: what a score counts, `top` the bound of the scores of the query; `normalised`:
    whether readings are divided by the sum of the weights; `sharpness`: 1/width of the kernel.
    """

    score: Float[np.ndarray, "heads 2"]
    value: Float[np.ndarray, "heads 2"]
    weight: Callable[[Array, Array], Array]
    normalised: bool
    sharpness: float


def zonal_heads(model: Model, axis: np.ndarray) -> Heads:
    """The heads of a model whose matrices are a eeᵀ + b(I − eeᵀ); others are refused with a sentence."""
    if isinstance(model, InteractionFlow):
        A = _both(np.asarray(model.A), axis, "A")
        return Heads(A, A, Kernel(Slope(model.phi)), normalised=False, sharpness=4.0)
    infinite = getattr(model, "infinite", False)
    kind = type(model).__name__ + " at beta = inf" * infinite
    known = isinstance(model, SoftmaxAttention | UnnormalisedAttention | ZeroTemperature) and not infinite
    require(known, "model", "be softmax or unnormalised attention at finite beta, an interaction flow or the"
            " zero-temperature flow", kind)  # fmt: skip
    assert isinstance(model, SoftmaxAttention | UnnormalisedAttention | ZeroTemperature)
    B, V = (_both(np.asarray(m), axis, name) for m, name in zip(model.weights.stacked(), "BV", strict=True))
    if isinstance(model, ZeroTemperature):
        return Heads(B, V, Nearest(), normalised=False, sharpness=1.0)
    score = float(model.beta) * B
    sharpness = np.sqrt(1 + np.abs(score).max())
    if isinstance(model, SoftmaxAttention):
        return Heads(score, V, Exponential(None), normalised=True, sharpness=sharpness)
    return Heads(score, V, Exponential(float(model.log_time_unit)), normalised=False, sharpness=sharpness)


class Exponential(eqx.Module):
    """e^{score − top}, or e^{score − unit} where readings are not normalised."""

    unit: float | None

    def __call__(self, score: Array, top: Array) -> Array:
        """The weight of a score."""
        return jnp.exp(score - (top if self.unit is None else self.unit))


class Kernel(eqx.Module):
    """φ'(score)."""

    slope: Slope

    def __call__(self, score: Array, top: Array) -> Array:
        """The weight of a score."""
        return self.slope(score)


class Nearest(eqx.Module):
    """The zero-temperature flow reads the direction of the query itself, whatever the keys."""

    def __call__(self, score: Array, top: Array) -> Array:
        """Never asked: see `Between`."""
        raise NotImplementedError


def _both(matrices: np.ndarray, axis: np.ndarray, name: str) -> np.ndarray:
    """The two eigenvalues (heads, 2) of matrices a eeᵀ + b(I − eeᵀ)."""
    d = len(axis)
    matrices = matrices.reshape(-1, d, d)
    a = np.einsum("i,hij,j->h", axis, matrices, axis)
    b = (np.trace(matrices, axis1=1, axis2=2) - a) / (d - 1)
    line = np.outer(axis, axis)
    expected = a[:, None, None] * line + b[:, None, None] * (np.eye(d) - line)
    off = float(np.abs(matrices - expected).max())
    require(off <= 1e-12 * np.abs(matrices).max(), name,
            "keep the symmetry about the axis, a·eeᵀ + b·(I − eeᵀ)", f"off by {off:.3g}")  # fmt: skip
    return np.stack([a, b], axis=1)


class Between(eqx.Module):
    """What keys at the angles φ' pull at a query at φ, averaged over the directions across the axis."""

    score: Float[Array, "heads 2"]
    value: Float[Array, "heads 2"]
    weight: Callable[[Array, Array], Array]
    omega: Float[Array, "W"]
    share: Float[Array, "W"]
    normalised: bool = eqx.field(static=True)

    @classmethod
    def of(cls, heads: Heads, d: int) -> "Between":
        """With as many directions as the kernel needs."""
        strongest = float(np.abs(heads.score[:, 1]).max()) / np.sqrt(d)
        count = 16 + int(6 * np.sqrt(strongest)) + int(min(strongest, 60.0)) if d > 2 else 2
        omega, share = gauss(d - 1, count)
        score, value = jnp.asarray(heads.score), jnp.asarray(heads.value)
        return cls(score, value, heads.weight, jnp.asarray(omega), jnp.asarray(share), heads.normalised)

    def matrices(self, phi: Float[Array, "m"], keys: Float[Array, "n"]) -> tuple[Array, Array]:
        """Pull and weight (heads, m, n) of keys on queries."""
        c, s, C, S = jnp.cos(phi), jnp.sin(phi), jnp.cos(keys), jnp.sin(keys)

        def head(score: Array, value: Array) -> tuple[Array, Array]:
            along, across = score
            top = jnp.hypot(along * c, across * s)[:, None]
            if isinstance(self.weight, Nearest):
                pull = (-value[0] * along * s * c + value[1] * across * s * c)[:, None] / top
                return pull * jnp.ones_like(C), jnp.ones((len(c), len(C)))

            def one(
                total: tuple[Array, Array], direction: tuple[Array, Array]
            ) -> tuple[tuple[Array, Array], None]:
                omega, share = direction
                level = along * c[:, None] * C + across * s[:, None] * S * omega
                w = share * self.weight(level, top)
                pull = w * (-value[0] * s[:, None] * C + value[1] * c[:, None] * S * omega)
                return (total[0] + pull, total[1] + w), None

            zero = jnp.zeros((len(c), len(C)))
            return jax.lax.scan(one, (zero, zero), (self.omega, self.share))[0]

        return jax.lax.map(lambda pair: head(*pair), (self.score, self.value))

    def velocity(self, phi: Array, keys: Array, masses: Array) -> Array:
        """u at φ for masses at the angles `keys`."""
        pull, weight = self.matrices(phi, keys)
        read = pull @ masses
        return jnp.sum(read / (weight @ masses) if self.normalised else read, axis=0)


class Spectral(eqx.Module):
    """dc_l/dt without diffusion; matrices from coefficients to nodes and back."""

    pull: Float[Array, "heads Q L"]
    weight: Float[Array, "heads Q L"] | None
    density: Float[Array, "Q L"]
    back: Float[Array, "L Q"]

    def __call__(self, c: Float[Array, "L"]) -> Float[Array, "L"]:
        """The change of the coefficients."""
        read = self.pull @ c
        if self.weight is not None:
            total = self.weight @ c
            read = read / jnp.maximum(total, jnp.abs(read))  # a mean of keys is no longer than 1
        return self.back @ (jnp.sum(read, axis=0) * (self.density @ c))


def spectral_field(heads: Heads, d: int, degree: int) -> Spectral:
    """The right-hand side in coefficients."""
    t, w = gauss(d, 3 * degree // 2 + 1)
    w = np.where(w < 1e-150, 0.0, w)  # no share of any integral, but slow: products would be subnormal
    p, dp = harmonics(d, degree, t)
    phi = jnp.asarray(np.arccos(t))
    pull, weight = eqx.filter_jit(Between.matrices)(Between.of(heads, d), phi, phi)
    from_coefficients = jnp.asarray(w[:, None] * p)
    back = (dp * (-np.sqrt(1 - t**2) * w)[:, None]).T
    kept = weight @ from_coefficients if heads.normalised else None
    return Spectral(pull @ from_coefficients, kept, jnp.asarray(p), jnp.asarray(back))


class Carried(eqx.Module):
    """Nodes (φ, log ρ) and their change (u, −div X), div X = u' + (d−2)cot φ u."""

    between: Between
    masses: Float[Array, "n"]
    d: int = eqx.field(static=True)

    def __call__(self, y: Float[Array, "2 n"]) -> Float[Array, "2 n"]:
        """Velocity of every node and of its log ρ."""
        phi = y[0]
        u, slope = jax.jvp(
            lambda q: self.between.velocity(q, phi, self.masses), (phi,), (jnp.ones_like(phi),)
        )
        return jnp.stack([u, -(slope + (self.d - 2) * u / jnp.tan(phi))])
