"""Profiles: how much a kernel weighs a key, as a function of the query's length s and the cosine z.

A query s·u weighs the key y by g(s, z), z = ⟨u, y⟩, times a scale that depends on s only. Expansions need the
profile's Fourier coefficients on the circle and its Funk–Hecke multipliers on S²,

    g(s, cos θ) = Σ_k g_k(s) e^{ikθ},        g(s, ⟨u,y⟩) = Σ_lm G_l(s) Y_lm(u) conj Y_lm(y),

which the exponential has in closed form (Bessel functions) and any smooth function by quadrature. To speed
up a new kernel it is enough to give its function: `FunctionProfile(f)`.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import special

from tokenfield.errors import InputError
from tokenfield.geometry.circle import fast_size
from tokenfield.geometry.harmonics import scaled_bessel

if TYPE_CHECKING:
    from tokenfield.sums.base import Mask

#: Modes that are looked at before a function counts as not smooth enough for a Fourier or Legendre series.
MOST_MODES = 8192
#: Modes of a function below this, relative to its greatest value, are rounding.
ROUNDING_MODES = 1e-14
#: Arrays of scores get padding to at least this length before a function of them is compiled.
LEAST_LENGTH = 1 << 14


class Profile(eqx.Module):
    """The weight of a key at the cosine z = 1 − gap, for a query of length s."""

    #: Whether values are e^{−s} times the weight, so that sums have to be scaled back by e^{s}.
    scaled: ClassVar[bool] = False

    @abstractmethod
    def values(self, s: np.ndarray, gap: np.ndarray) -> np.ndarray:
        """g(s, 1 − gap); shapes broadcast."""

    @abstractmethod
    def fourier(self, s: Float[np.ndarray, "R"], count: int) -> Float[np.ndarray, "R K"]:
        """g_0(s), …, g_count(s), real because g is even in θ; s may be negative."""

    @abstractmethod
    def funk_hecke(self, s: Float[np.ndarray, "R"], degree: int) -> Float[np.ndarray, "R L"]:
        """G_0(s), …, G_degree(s) = 2π∫g(s, z)P_l(z)dz; s may be negative."""

    @abstractmethod
    def amplitude(self, s: float) -> float:
        """Greatest |g(s', z)| over |s'| ≤ s: errors of expansions are relative to it."""

    @abstractmethod
    def modes_enough(self, s: float, tolerance: float) -> int:
        """Modes or degrees beyond which nothing exceeds the tolerance; 0 if there are too many."""


class ExponentialProfile(Profile):
    """e^{s(z − 1)}, with g_k = e^{−s}I_k(s) and G_l = 4πe^{−s}i_l(s)."""

    scaled: ClassVar[bool] = True

    def values(self, s: np.ndarray, gap: np.ndarray) -> np.ndarray:
        """e^{−s·gap}."""
        return np.exp(-s * gap)

    def fourier(self, s: Float[np.ndarray, "R"], count: int) -> Float[np.ndarray, "R K"]:
        """e^{−|s|}I_k(s); I_k(−s) = (−1)^k I_k(s)."""
        k = np.arange(count + 1)
        return _signs(s, k) * special.ive(k, np.abs(s)[:, None])

    def funk_hecke(self, s: Float[np.ndarray, "R"], degree: int) -> Float[np.ndarray, "R L"]:
        """4πe^{−|s|}i_l(s)."""
        degrees = np.arange(degree + 1)
        return _signs(s, degrees) * scaled_bessel(degrees, np.abs(s)[:, None])

    def amplitude(self, s: float) -> float:
        """1, at z = 1."""
        return 1.0

    def modes_enough(self, s: float, tolerance: float) -> int:
        """A little more than √(2s log 1/tolerance)."""
        return int(np.sqrt(2 * (s + 1) * np.log(1 / tolerance))) + 60


class FunctionProfile(Profile):
    """f(s z) for any smooth function f of an array of scores; expansions by quadrature."""

    f: Callable[[Array], Array]

    def _of(self, scores: np.ndarray) -> np.ndarray:
        """f of an array, with padding to a few lengths: JAX compiles every operation once for each length."""
        length = max(LEAST_LENGTH, 1 << (scores.size - 1).bit_length())
        padded = np.pad(scores.ravel(), (0, length - scores.size), mode="edge")
        try:
            with jax.ensure_compile_time_eval():  # sums are planned inside jit, too
                values = np.asarray(self.f(jnp.asarray(padded)))
        except jax.errors.TracerArrayConversionError as error:
            raise InputError(
                "`summation` must be 'direct' where the kernel holds a number that is traced by jit, vmap or"
                " grad"
            ) from error
        return values[: scores.size].reshape(scores.shape)

    def values(self, s: np.ndarray, gap: np.ndarray) -> np.ndarray:
        """f(s(1 − gap))."""
        return self._of(s * (1 - gap))

    def fourier(self, s: Float[np.ndarray, "R"], count: int) -> Float[np.ndarray, "R K"]:
        """By the trapezoidal rule, which converges faster than any power for smooth f."""
        size = fast_size(4 * count + 16)
        theta = np.arange(size) * (2 * np.pi / size)
        values = self._of(s[:, None] * np.cos(theta))
        return _without_rounding(np.fft.rfft(values, norm="forward", axis=1).real[:, : count + 1], values)

    def funk_hecke(self, s: Float[np.ndarray, "R"], degree: int) -> Float[np.ndarray, "R L"]:
        """By Gauss's rule."""
        t, w = np.polynomial.legendre.leggauss(2 * degree + 64)
        values = self._of(s[:, None] * t)
        means = (w * values) @ np.polynomial.legendre.legvander(t, degree) / 2
        return 4 * np.pi * _without_rounding(means, values)

    def amplitude(self, s: float) -> float:
        """From samples on [−s, s]."""
        return float(np.abs(self._of(np.linspace(-s, s, 2001))).max()) or 1.0

    def modes_enough(self, s: float, tolerance: float) -> int:
        """Found by doubling: where the last half of the Fourier coefficients is below the tolerance."""
        amplitude, count = self.amplitude(s), 32
        allowed, floor = tolerance * amplitude, ROUNDING_MODES * amplitude
        while count <= MOST_MODES:
            modes = np.abs(self.fourier(np.array([s]), count)[0])
            if np.all(np.isfinite(modes)) and modes[count // 2 :].max() <= max(0.1 * allowed, floor):
                return count
            count *= 2
        return 0


def _without_rounding(modes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Modes (R, K) without their end, from where on they are the rounding of the values they were made of."""
    floor = ROUNDING_MODES * np.abs(values).max(axis=1, keepdims=True)
    above = np.abs(modes) > floor
    last = modes.shape[1] - np.argmax(above[:, ::-1], axis=1)  # after the last mode above the floor
    kept = np.arange(modes.shape[1]) < np.where(above.any(axis=1), last, 0)[:, None]
    return np.where(kept, modes, 0.0)


#: The profile of softmax and of unnormalised attention.
EXPONENTIAL = ExponentialProfile()


class Scored(NamedTuple):
    """The heads that a run's sums are for: profile of the kernel, matrices A = βB (heads, d, d), score
    biases βc (heads, d) or None, and the mask that all of them have, or None.
    """

    profile: Profile
    A: Any
    bias: Any = None
    mask: "Mask | None" = None


def _signs(s: np.ndarray, k: np.ndarray) -> np.ndarray:
    """(−1)^k for negative lengths."""
    return np.where(s[:, None] < 0, (-1.0) ** k, 1.0)
