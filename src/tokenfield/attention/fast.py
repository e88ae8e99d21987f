"""What the fast sums have in common: a tolerance that is kept or said, never silently missed.

An expansion gives e^{−s}Z with an absolute error that does not depend on the query; the softmax mean then
has that error divided by e^{−s}Z. Queries for which this exceeds the tolerance, because they point away
from the keys, are found and summed directly. If there are more of them than fit, their rows are NaN: the
run then takes other sums (auto.py), and nothing wrong gets into the result.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from scipy import fft

from tokenfield.attention.direct import DIRECT, ExponentialSum, Sums
from tokenfield.attention.radial import Radial
from tokenfield.tokens import Tokens

#: Least number of queries done again at a time.
FIRST_TIER = 64
#: An audit forgives so many times the rounding error of the direct sum.
ROUNDINGS = 4.0
#: Queries compared with the exact sum in an audit.
AUDITED = 16


class Scaled(NamedTuple):
    """Lengths s (m,), e^{−s}Σw_j e^{⟨q,y_j⟩} (m,) and the same sum of w_j y_j (m, d)."""

    length: Float[Array, "m"]
    mass: Float[Array, "m"]
    total: Float[Array, "m d"]


class Fast(Sums):
    """Exponential sums by an expansion, to a relative `tolerance`; other sums are direct."""

    tolerance: float = eqx.field(kw_only=True, static=True)
    radial: Radial = eqx.field(kw_only=True)
    #: Points on a turn of the grid of query directions; 0: lengths are interpolated at each token.
    grid: int = eqx.field(kw_only=True, static=True)
    #: Sums that do again the queries that point away from the keys, and how many of those fit.
    far: Sums = eqx.field(kw_only=True, default=DIRECT)
    spare: int = eqx.field(kw_only=True, default=1024, static=True)

    #: Points on a turn beyond which lengths are interpolated at each token instead.
    largest_grid: ClassVar[int]

    @classmethod
    def plan(cls, heads: np.ndarray, tolerance: float, **options: Any) -> Self:
        """Tables for the matrices A = βB (heads, d, d) and a relative tolerance."""
        low, high = lengths(heads)
        precision = cls.precision(tolerance)
        radial = Radial.plan(low, high, precision)
        band, grid = cls.band(high, precision), 0
        if radial.count > 1:
            resolved = lambda A, size: cls.resolved(A, size, precision)  # noqa: E731
            grid = grid_size(heads, 2 * band + 9, cls.largest_grid, resolved)
        tables = cls.tables(band, radial.nodes)
        return cls(tolerance=tolerance, radial=radial, grid=grid, **tables, **options)

    @staticmethod
    @abstractmethod
    def band(s: float, tolerance: float) -> int:
        """Greatest degree of the expansion that queries of length s need."""

    @staticmethod
    @abstractmethod
    def tables(band: int, nodes: Float[np.ndarray, "R"]) -> dict[str, Array]:
        """The fields of the class that hold functions of degree up to `band` at the lengths `nodes`."""

    @staticmethod
    @abstractmethod
    def resolved(A: np.ndarray, size: int, tolerance: float) -> bool:
        """Whether a grid with `size` points on a turn resolves the sum over one key, wherever it is."""

    @abstractmethod
    def expansion(self, A: Array, x: Array, tokens: Tokens) -> Scaled:
        """Scaled sums at x with an absolute error below `absolute`."""

    @staticmethod
    def precision(tolerance: float) -> float:
        """Absolute precision of the parts of an expansion, where 1 is the sum at a Dirac."""
        return float(np.clip(1e-5 * tolerance, 2e-15, 1e-6))

    @property
    def eps(self) -> float:
        """Precision asked from the NUFFTs."""
        return self.precision(self.tolerance)

    @property
    def absolute(self) -> float:
        """Estimate of the absolute error of an expansion: truncation, interpolation, two NUFFTs, rounding."""
        return 5 * self.eps + 1e-14 + self.radial.rounding

    def exponential(self, A: Float[Array, "d d"], x: Float[Array, "m d"], tokens: Tokens) -> ExponentialSum:
        """Sums of w_j e^{⟨Aᵀx, y_j⟩}; `error` is the estimate for each row, NaN rows are beyond it."""
        finite = jnp.all(jnp.isfinite(x @ A)) & jnp.all(jnp.isfinite(tokens.x))
        # the NUFFT library must not see NaN as a place: it would write outside of its arrays
        x, tokens = jax.tree.map(lambda a: jnp.where(finite, a, 0.0), (x, tokens))
        length, mass, total = self.expansion(jnp.where(finite, A, 0.0), x, tokens)
        mass = jnp.where(finite, mass, jnp.nan)
        error = lax.stop_gradient(self.absolute / jnp.maximum(mass, 1e-300))
        far = error > self.tolerance  # not where it is NaN
        safe = jnp.where(far, 1.0, mass)
        found = ExponentialSum(length + jnp.log(safe), total / safe[:, None], error)
        # a few sizes of the second pass, each sixteen times the last, so that few far queries cost little
        sizes = [0, *(min(FIRST_TIER * 16**k, self.spare) for k in range(_tiers(self.spare)))]
        tier = jnp.searchsorted(jnp.array(sizes), jnp.sum(far))
        again = [lambda size=size: self._again(A, x, tokens, found, far, size) for size in sizes[1:]]
        return lax.switch(tier, [lambda: found, *again, again[-1]])

    def _again(
        self, A: Array, x: Array, tokens: Tokens, found: ExponentialSum, far: Array, size: int
    ) -> ExponentialSum:
        """The rows marked as far, summed by other sums; NaN where they are more than `size`."""
        rows = jnp.nonzero(far, size=min(size, len(far)), fill_value=len(far))[0]
        exact = self.far.exponential(A, x.at[rows].get(mode="clip"), tokens)

        def put(all_rows: Array, new: Array) -> Array:
            marked = far.reshape(-1, *[1] * (all_rows.ndim - 1))
            return jnp.where(marked, jnp.nan, all_rows).at[rows].set(new, mode="drop")

        return jax.tree.map(put, found, exact)


def _tiers(spare: int) -> int:
    return 1 + max(0, int(np.ceil(np.log(spare / FIRST_TIER) / np.log(16))))


def audit(sums: Sums, A: Array, tokens: Tokens, turn: Array) -> Float[Array, ""]:
    """Greatest error at a sample of tokens against the exact sum, beyond its rounding; `turn` rotates it."""
    count = min(AUDITED, tokens.n)
    # a golden-section stride visits all tokens evenly, whatever their order
    at = ((turn * count + jnp.arange(count)) * 0.6180339887498949 % 1.0 * tokens.n).astype(int)
    x = tokens.x[at]
    fast, exact = sums.exponential(A, x, tokens), DIRECT.exponential(A, x, tokens)
    mean = jnp.linalg.norm(fast.mean - exact.mean, axis=1)
    error = jnp.maximum(mean, jnp.abs(fast.log_mass - exact.log_mass))
    return jnp.max(jnp.maximum(error - ROUNDINGS * exact.error, 0.0))


def lengths(heads: np.ndarray) -> tuple[float, float]:
    """Least and greatest |Aᵀx| over the sphere and over the heads."""
    values = np.linalg.svd(heads, compute_uv=False)
    low, high = float(values.min()), float(values.max())
    return (high, high) if high - low <= 1e-13 * high else (low, high)


def fast_size(least: int) -> int:
    """An even size not below the given one for which FFTs are quick."""
    return 2 * int(fft.next_fast_len(-(-least // 2)))  # pyright: ignore[reportArgumentType] (it is an int)


def grid_size(
    heads: np.ndarray, least: int, largest: int, resolved: Callable[[np.ndarray, int], bool]
) -> int:
    """Points on a turn of a grid that resolves the sums of every head; 0 if they would be too many."""
    size = fast_size(least)
    while size <= largest:
        if all(resolved(A, size) for A in heads):
            return size
        size = fast_size(size + size // 8)
    return 0


def no_modes_beyond(values: np.ndarray, size: int, tolerance: float) -> bool:
    """Whether periodic rows, sampled finer than `size`, have no Fourier modes that `size` points would miss.

    Modes fall geometrically, so the greatest tells of their sum, with a margin.
    """
    modes = np.abs(np.fft.rfft(values, axis=1)) / values.shape[1]
    return bool(modes[:, size // 2 - 1 :].max() <= max(tolerance / 30, 1e-16))
