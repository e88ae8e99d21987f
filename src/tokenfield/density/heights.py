"""What a height reads from a zonal law, for models that keep the symmetry about the axis.

With x = cos φ e + sin φ ω keys are averaged over their direction ω across the axis once, when the matrices
are made; for B = I the result is diagonal in the zonal harmonics (Funk–Hecke), with the eigenvalues λ_l of
theory §3.4. Terms that do not read the law (zero temperature, drift along the axis) are functions of φ.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tokenfield.errors import InputError, require
from tokenfield.geometry.gegenbauer import gauss, harmonics
from tokenfield.laws.tokens import Tokens
from tokenfield.models.base import Model, Term
from tokenfield.models.kernels import Kernel


class ZonalModel(eqx.Module):
    """A model that keeps the symmetry about an axis, term by term; each with the factor of its time unit."""

    reading: "tuple[PairTerm | OwnTerm, ...]"
    factors: tuple[Array, ...]

    def velocity(self, phi: Float[Array, "m"], keys: Float[Array, "n"], masses: Float[Array, "n"]) -> Array:
        """u at the angles φ.

        Args:
            phi: angles from the axis, (m,).
            keys: angles of the law, (n,).
            masses: its masses there, (n,).
        """
        parts = zip(self.reading, self.factors, strict=True)
        return sum(factor * part.velocity(phi, keys, masses) for part, factor in parts)  # pyright: ignore[reportReturnType]

    @property
    def sharpness(self) -> float:
        """1/width of the sharpest kernel: what the nodes have to resolve."""
        return max(part.sharpness for part in self.reading)


def zonal_model(model: Model, axis: np.ndarray) -> ZonalModel:
    """The terms of a model whose matrices are a eeᵀ + b(I − eeᵀ); others are refused with a sentence."""
    unit, d = model.log_time_unit, len(axis)
    terms = [term for term in model.terms if not term.noisy]
    reading = tuple(PairTerm.of(term, axis) if term.interacts else OwnTerm.of(term, axis) for term in terms)
    require(d >= 2, "axis", "have at least two coordinates", d)
    return ZonalModel(reading, tuple(jnp.exp(term.log_time_unit - unit) for term in terms))


def _both(matrices: np.ndarray, axis: np.ndarray, name: str) -> np.ndarray:
    """The two eigenvalues (heads, 2) of matrices a eeᵀ + b(I − eeᵀ)."""
    d = len(axis)
    matrices = matrices.reshape(-1, d, d)
    a = np.einsum("i,hij,j->h", axis, matrices, axis)
    b = (np.trace(matrices, axis1=1, axis2=2) - a) / (d - 1)
    line = np.outer(axis, axis)
    expected = a[:, None, None] * line + b[:, None, None] * (np.eye(d) - line)
    off = float(np.abs(matrices - expected).max())
    kept = off <= 1e-12 * np.abs(matrices).max()
    require(kept, name, "keep the symmetry about the axis, a·eeᵀ + b·(I − eeᵀ)", f"off by {off:.3g}")
    return np.stack([a, b], axis=1)


class OwnTerm(eqx.Module):
    """A term that does not read the law: its velocity along a meridian."""

    term: Term
    axis: Float[Array, "d"]
    across: Float[Array, "d"]

    sharpness: ClassVar[float] = 1.0

    @classmethod
    def of(cls, term: Term, axis: np.ndarray) -> "OwnTerm":
        """Refused unless the term commutes with turns about the axis."""
        d = len(axis)
        across = np.linalg.svd(axis[None])[2][1:]
        turn = np.linalg.qr(np.random.default_rng(0).normal(size=(d - 1, d - 1)))[0]
        about = np.outer(axis, axis) + across.T @ turn @ across
        if not term.commutes(about):
            raise InputError(
                f"`model` must keep the symmetry about the axis of a zonal domain, but {type(term).__name__}"
                " does not commute with turns about it"
            )
        return cls(term, jnp.asarray(axis), jnp.asarray(across[0]))

    def velocity(self, phi: Array, keys: Array, masses: Array) -> Array:
        """u at the angles φ, whatever the law.

        Args:
            phi: angles from the axis, (m,).
            keys: angles of the law, not read.
            masses: its masses, not read.
        """
        c, s = jnp.cos(phi)[:, None], jnp.sin(phi)[:, None]
        output = self.term.output(c * self.axis + s * self.across, Tokens(self.axis[None]))
        return jnp.sum(output * (c * self.across - s * self.axis), axis=1)


class PairTerm(eqx.Module):
    """What keys at the angles φ' pull at a query at φ, averaged over the directions across the axis.

    Each head scores a tt' + b ss'ω and has V = (along, across).
    """

    score: Float[Array, "heads 2"]
    value: Float[Array, "heads 2"]
    kernel: Kernel
    omega: Float[Array, "W"]
    share: Float[Array, "W"]
    d: int = eqx.field(static=True)

    @classmethod
    def of(cls, term: Term, axis: np.ndarray) -> "PairTerm":
        """With as many directions as the kernel needs."""
        heads, kernel, d = term.heads, term.kernel, len(axis)
        if heads is None or kernel is None or heads.score_bias is not None:
            raise InputError(
                "`model` must be made of heads without score biases on a zonal domain, but"
                f" {type(term).__name__} is not"
            )
        score, value = (_both(np.asarray(m), axis, name) for m, name in ((heads.B, "B"), (heads.V, "V")))
        strongest = float(np.abs(score[:, 1]).max()) / np.sqrt(d)
        count = 16 + int(6 * np.sqrt(strongest)) + int(min(strongest, 60.0)) if d > 2 else 2
        omega, share = (jnp.asarray(a) for a in gauss(d - 1, count))
        return cls(jnp.asarray(score), jnp.asarray(value), kernel, omega, share, d)

    @property
    def sharpness(self) -> float:
        """Of an exponential, from its scores; other kernels are taken to be smooth."""
        profile = self.kernel.profile
        scaled = profile is not None and profile.scaled
        return float(np.sqrt(1 + np.abs(np.asarray(self.score)).max())) if scaled else 4.0

    def matrices(self, phi: Float[Array, "m"], keys: Float[Array, "n"]) -> tuple[Array, Array]:
        """Pull and weight (heads, m, n) of keys on queries."""
        c, s, C, S = jnp.cos(phi), jnp.sin(phi), jnp.cos(keys), jnp.sin(keys)

        def head(score: Array, value: Array) -> tuple[Array, Array]:
            along, across = score
            top = jnp.hypot(along * c, across * s)[:, None]

            def one(
                total: tuple[Array, Array], direction: tuple[Array, Array]
            ) -> tuple[tuple[Array, Array], None]:
                omega, share = direction
                level = along * c[:, None] * C + across * s[:, None] * S * omega
                w = share * self.kernel.weight(level, top)
                pull = w * (-value[0] * s[:, None] * C + value[1] * c[:, None] * S * omega)
                return (total[0] + pull, total[1] + w), None

            zero = jnp.zeros((len(c), len(C)))
            return jax.lax.scan(one, (zero, zero), (self.omega, self.share))[0]

        return jax.lax.map(lambda pair: head(*pair), (self.score, self.value))

    def velocity(self, phi: Array, keys: Array, masses: Array) -> Array:
        """u at the angles φ.

        Args:
            phi: angles from the axis, (m,).
            keys: angles of the law, (n,).
            masses: its masses there, (n,).
        """
        pull, weight = self.matrices(phi, keys)
        read = pull @ masses
        return jnp.sum(read / (weight @ masses) if self.kernel.normalised else read, axis=0)


class Tabulated(eqx.Module):
    """A reading at fixed nodes as matrices from coefficients: `pull`, and `weight` of normalised kernels."""

    pull: Float[Array, "heads Q L"]
    weight: Float[Array, "heads Q L"] | None

    def __call__(self, c: Float[Array, "L"]) -> Float[Array, "Q"]:
        """u at the nodes."""
        read = self.pull @ c
        if self.weight is not None:
            total = self.weight @ c
            read = read / jnp.maximum(total, jnp.abs(read))  # a mean of keys is no longer than 1
        return jnp.sum(read, axis=0)


class ZonalField(eqx.Module):
    """dc_l/dt without diffusion; matrices from coefficients to nodes and back."""

    reading: tuple[Tabulated, ...]
    factors: tuple[Array, ...]
    #: Velocity of the terms that do not read the law.
    own: Float[Array, "Q"]
    density: Float[Array, "Q L"]
    back: Float[Array, "L Q"]

    def __call__(self, c: Float[Array, "L"]) -> Float[Array, "L"]:
        """The change of the coefficients."""
        parts = zip(self.reading, self.factors, strict=True)
        u = sum((factor * part(c) for part, factor in parts), self.own)
        return self.back @ (u * (self.density @ c))


def spectral_field(model: ZonalModel, d: int, degree: int) -> ZonalField:
    """The right-hand side in coefficients.

    Args:
        model: the terms about the axis.
        d: dimension of the surrounding space.
        degree: greatest degree of the polynomials.
    """
    t, w = gauss(d, 3 * degree // 2 + 1)
    w = np.where(w < 1e-150, 0.0, w)  # no share of any integral, but slow: products would be subnormal
    p, dp = harmonics(d, degree, t)
    phi = jnp.asarray(np.arccos(t))
    from_coefficients = jnp.asarray(w[:, None] * p)
    back = (dp * (-np.sqrt(1 - t**2) * w)[:, None]).T
    tables, factors, own = [], [], jnp.zeros(len(t))
    for part, factor in zip(model.reading, model.factors, strict=True):
        if isinstance(part, OwnTerm):
            own = own + factor * part.velocity(phi, phi, jnp.asarray(w))
            continue
        pull, weight = eqx.filter_jit(PairTerm.matrices)(part, phi, phi)
        kept = weight @ from_coefficients if part.kernel.normalised else None
        tables.append(Tabulated(pull @ from_coefficients, kept))
        factors.append(factor)
    return ZonalField(tuple(tables), tuple(factors), own, jnp.asarray(p), jnp.asarray(back))


class CarriedNodes(eqx.Module):
    """Nodes (φ, log ρ) and their change (u, −div X), div X = u' + (d−2)cot φ u."""

    model: ZonalModel
    masses: Float[Array, "n"]
    d: int = eqx.field(static=True)

    def __call__(self, y: Float[Array, "2 n"]) -> Float[Array, "2 n"]:
        """Velocity of every node and of its log ρ."""
        phi = y[0]
        u, slope = jax.jvp(lambda q: self.model.velocity(q, phi, self.masses), (phi,), (jnp.ones_like(phi),))
        return jnp.stack([u, -(slope + (self.d - 2) * u / jnp.tan(phi))])
