"""What the near-linear sums have in common: a tolerance that is kept or reported, never silently missed.

An expansion gives sums scaled by e^{−s} with an absolute error that does not depend on the query; the softmax
mean then has that error divided by e^{−s}Z. Rows for which this exceeds the tolerance, because their queries
point away from the keys, are found and summed by fallback sums. If there are more of them than fit, their
rows are NaN: the run then takes other sums (policy.py), and nothing wrong gets into the result.

Sums of other kernels (pointwise ones) have an absolute error relative to the greatest value of the kernel.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from tokenfield.geometry.circle import fast_size
from tokenfield.laws.tokens import Tokens
from tokenfield.sums.base import ExponentialSum, Function, HardmaxSum, PointwiseSum, Queries, Sums
from tokenfield.sums.direct import DIRECT, UNDERFLOW
from tokenfield.sums.profile import EXPONENTIAL, Profile, Scored
from tokenfield.sums.radial import Radial

#: Least number of rows that the fallback does at a time.
SMALLEST_FALLBACK = 64
#: An audit forgives so many times the rounding error of the direct sum.
FORGIVEN_ROUNDINGS = 4.0
#: Queries compared with the exact sum in an audit.
AUDITED_ROWS = 16


class Scaled(NamedTuple):
    """Lengths s (m,), e^{−s}Σw_j e^{⟨q,y_j⟩} (m,), the same sum of w_j y_j (m, d), the absolute error of
    these sums, and under a mask which rows see anybody (m,).

    For profiles that are not scaled, the sums themselves.
    """

    length: Float[Array, "m"]
    mass: Float[Array, "m"]
    total: Float[Array, "m d"]
    error: Float[Array, "m"] | float
    seen: Bool[Array, "m"] | None = None


class Expansion(Sums):
    """Sums of one kernel by an expansion, to a relative `tolerance`; hardmax is direct."""

    tolerance: float = eqx.field(kw_only=True, static=True)
    profile: Profile = eqx.field(kw_only=True, default=EXPONENTIAL)
    radial: Radial = eqx.field(kw_only=True)
    #: Greatest value of the profile; errors are relative to it.
    amplitude: float = eqx.field(kw_only=True, default=1.0, static=True)
    #: Points on a turn of the grid of query directions; 0: lengths are interpolated at each token.
    grid: int = eqx.field(kw_only=True, static=True)
    #: Sums for the rows whose queries point away from the keys, and how many of those fit.
    fallback: Sums = eqx.field(kw_only=True, default=DIRECT)
    fallback_rows: int = eqx.field(kw_only=True, default=1024, static=True)

    #: Points on a turn beyond which lengths are interpolated at each token instead.
    largest_grid: ClassVar[int]
    #: Bands beyond which the tables would not fit.
    largest_band: ClassVar[int]
    #: Whether masks that fade (`Mask.fading`) can be followed; sums under other masks are direct.
    follows_order: ClassVar[bool] = False

    @classmethod
    def plan(cls, scored: Scored, tolerance: float, **options: Any) -> Self:
        """Tables for some heads.

        Args:
            scored: the kernel's profile, matrices A = βB (heads, d, d) and biases.
            tolerance: relative error of the sums.
            options: `fallback` and `fallback_rows`.
        """
        heads, profile = np.asarray(scored.A), scored.profile
        low, high = lengths(scored)
        precision = cls.precision(tolerance)
        radial = Radial.plan(profile, low, high, precision)
        band, grid = cls.band(profile, high, precision), 0
        if radial.count > 1 and scored.bias is None:
            resolved = lambda A, size: cls.resolved(profile, A, size, precision)  # noqa: E731
            grid = grid_size(heads, 2 * band + 9, cls.largest_grid, resolved)
        return cls(
            tolerance=tolerance,
            profile=profile,
            radial=radial,
            amplitude=profile.amplitude(high),
            grid=grid,
            **cls.tables(profile, band, radial.nodes),
            **options,
        )

    @classmethod
    def seconds(cls, scored: Scored, n: int, tolerance: float) -> float:
        """Estimated cost of one evaluation; infinite where the tables would be too large.

        Args:
            scored: the heads.
            n: number of tokens.
            tolerance: relative error of the sums.
        """
        low, high = lengths(scored)
        band = cls.band(scored.profile, high, cls.precision(tolerance))
        if not 0 < band <= cls.largest_band and high > 0:
            return np.inf
        if scored.mask is not None and not cls.follows_order:
            return np.inf
        nodes = 1 if low == high else 20
        return len(scored.A) * cls.head_seconds(n, band, nodes, scored.mask is not None)

    @staticmethod
    @abstractmethod
    def head_seconds(n: int, band: int, nodes: int, ordered: bool = False) -> float:
        """Estimated cost for one head.

        Args:
            n: number of tokens.
            band: greatest degree of the expansion.
            nodes: lengths of queries that are interpolated between.
            ordered: whether there is a mask.
        """

    @staticmethod
    @abstractmethod
    def band(profile: Profile, s: float, tolerance: float) -> int:
        """Greatest degree of the expansion that queries need; 0 if none suffices.

        Args:
            profile: of the kernel.
            s: the greatest length of a query.
            tolerance: of the truncated rest, relative to the greatest value.
        """

    @staticmethod
    @abstractmethod
    def tables(profile: Profile, band: int, nodes: Float[np.ndarray, "R"]) -> dict[str, Array]:
        """What is computed once: the fields of the class that hold tables.

        Args:
            profile: of the kernel.
            band: greatest degree.
            nodes: lengths of queries (R,).
        """

    @staticmethod
    @abstractmethod
    def resolved(profile: Profile, A: np.ndarray, size: int, tolerance: float) -> bool:
        """Whether a grid of query directions is fine enough for one head, wherever a key is.

        Args:
            profile: of the kernel.
            A: score matrix (d, d).
            size: points on a turn.
            tolerance: of the error, relative to the greatest value.
        """

    @abstractmethod
    def expansion(self, queries: Queries, keys: Tokens) -> Scaled:
        """The scaled sums, with their absolute error: `absolute` without a mask."""

    @staticmethod
    def precision(tolerance: float) -> float:
        """Absolute precision of the parts of an expansion, where 1 is the sum at a Dirac.

        Far below the tolerance, so that queries far from the keys, whose sums are small, keep it as well.
        """
        return float(np.clip(1e-5 * tolerance, 2e-15, 1e-6))

    @property
    def eps(self) -> float:
        """Precision asked from the NUFFTs."""
        return self.precision(self.tolerance)

    @property
    def absolute(self) -> float:
        """Estimate of the absolute error of an expansion: truncation, interpolation, two NUFFTs, rounding."""
        return 5 * self.eps + 1e-14 + self.radial.rounding

    def hardmax(self, queries: Queries, keys: Tokens) -> HardmaxSum:
        """Direct."""
        return DIRECT.hardmax(queries, keys)

    def pointwise(self, f: Function, queries: Queries, keys: Tokens) -> PointwiseSum:
        """By the expansion if it was planned for f, else direct."""
        if queries.mask is not None or not _same_function(getattr(self.profile, "f", None), f):
            return DIRECT.pointwise(f, queries, keys)
        finite, queries, keys = _finite(queries, keys)
        found = self.expansion(queries, keys)
        return PointwiseSum(*(jnp.where(finite, a, jnp.nan) for a in (found.mass, found.total)))

    def exponential(self, queries: Queries, keys: Tokens) -> ExponentialSum:
        """Sums of w_j e^{s_ij}; `error` is the estimate for each row, NaN rows are beyond it."""
        if not self.profile.scaled or not self._follows(queries):
            return DIRECT.exponential(queries, keys)
        finite, queries, keys = _finite(queries, keys)
        length, mass, total, absolute, seen = self.expansion(queries, keys)
        mass = jnp.where(finite, mass, jnp.nan)
        error = lax.stop_gradient(absolute / jnp.maximum(mass, 1e-300))
        far = (error > self.tolerance) | (mass < UNDERFLOW)  # not where it is NaN
        nobody = jnp.zeros_like(far) if seen is None else ~seen & finite
        far &= ~nobody
        safe = jnp.where(far | nobody, 1.0, mass)
        log_mass = jnp.where(nobody, -jnp.inf, length + jnp.log(safe))
        mean = jnp.where(nobody[:, None], 0.0, total / safe[:, None])
        found = ExponentialSum(log_mass, mean, jnp.where(nobody, 0.0, error))
        # a few sizes of the second pass, each sixteen times the last, so that few far queries cost little
        sizes = [0, *(min(SMALLEST_FALLBACK * 16**k, self.fallback_rows) for k in range(self._tiers()))]
        tier = jnp.searchsorted(jnp.array(sizes), jnp.sum(far))
        again = [lambda size=size: self._again(queries, keys, found, far, size) for size in sizes[1:]]
        return lax.switch(tier, [lambda: found, *again, again[-1]])

    def _follows(self, queries: Queries) -> bool:
        mask = queries.mask
        return mask is None or (self.follows_order and mask.fading is not None)

    def _tiers(self) -> int:
        ratio = self.fallback_rows / SMALLEST_FALLBACK
        return 1 + max(0, int(np.ceil(np.log(ratio) / np.log(16))))

    def _again(
        self, queries: Queries, keys: Tokens, found: ExponentialSum, far: Array, size: int
    ) -> ExponentialSum:
        """The rows marked as far by the fallback sums; NaN where they are more than `size`."""
        rows = jnp.nonzero(far, size=min(size, len(far)), fill_value=len(far))[0]
        places = None if queries.rows is None else queries.rows.at[rows].get(mode="clip")
        x = queries.x.at[rows].get(mode="clip")
        some = Queries(queries.A, x, queries.bias, queries.mask, places)
        fallback = self.fallback if queries.mask is None else DIRECT
        exact = fallback.exponential(some, keys)

        def put(all_rows: Array, new: Array) -> Array:
            marked = far.reshape(-1, *[1] * (all_rows.ndim - 1))
            return jnp.where(marked, jnp.nan, all_rows).at[rows].set(new, mode="drop")

        return jax.tree.map(put, found, exact)

    def state(self) -> dict[str, Any]:
        """Planned again from the model."""
        return {"kind": "expansion"}


def _same_function(f: Any, g: Any) -> bool:
    """Whether two functions have the same program; their numbers, if they have any, belong to one model."""
    without_arrays = lambda tree: eqx.filter(tree, eqx.is_array, inverse=True)  # noqa: E731
    return eqx.tree_equal(without_arrays(f), without_arrays(g)) is True


def _finite(queries: Queries, keys: Tokens) -> tuple[Array, Queries, Tokens]:
    """Whether all is finite, and queries and keys that are.

    The NUFFT library must not see NaN as a place: it would write outside of its arrays.
    """
    finite = jnp.all(jnp.isfinite(queries.q)) & jnp.all(jnp.isfinite(keys.x))
    safe = jax.tree.map(lambda a: jnp.where(finite, a, jnp.zeros_like(a)), (queries, keys))
    return finite, *safe


def audit(sums: Sums, scored: Scored, keys: Tokens, turn: Array) -> Float[Array, ""]:
    """Greatest error at a sample of tokens against the exact sum, beyond its rounding, for one head.

    Args:
        sums: the sums to be checked.
        scored: profile, A (d, d), bias (d,) and mask of the head.
        keys: the tokens, which are also where the sums are read.
        turn: number of the audit; it rotates the sample through all tokens.
    """
    count = min(AUDITED_ROWS, keys.n)
    # a golden-section stride visits all tokens evenly, whatever their order
    at = ((turn * count + jnp.arange(count)) * 0.6180339887498949 % 1.0 * keys.n).astype(int)
    queries = Queries(scored.A, keys.x[at], scored.bias, scored.mask, at)
    if scored.profile.scaled:
        fast, exact = sums.exponential(queries, keys), DIRECT.exponential(queries, keys)
        mean = jnp.linalg.norm(fast.mean - exact.mean, axis=1)
        nobody = jnp.isneginf(fast.log_mass) & jnp.isneginf(exact.log_mass)
        error = jnp.maximum(mean, jnp.where(nobody, 0.0, jnp.abs(fast.log_mass - exact.log_mass)))
        return jnp.max(jnp.maximum(error - FORGIVEN_ROUNDINGS * exact.error, 0.0))
    f = scored.profile.f  # pyright: ignore[reportAttributeAccessIssue] (profiles that are not scaled have it)
    fast, exact = sums.pointwise(f, queries, keys), DIRECT.pointwise(f, queries, keys)
    scale = getattr(sums, "amplitude", 1.0)
    return jnp.max(jnp.linalg.norm(fast.total - exact.total, axis=1)) / scale


def lengths(scored: Scored) -> tuple[float, float]:
    """Least and greatest |Aᵀx + b| over the sphere and over the heads (bounds, if there are biases)."""
    heads = np.asarray(scored.A)
    values = np.linalg.svd(heads, compute_uv=False)
    low, high = float(values.min()), float(values.max())
    if scored.bias is not None:
        shift = float(np.linalg.norm(np.asarray(scored.bias), axis=1).max())
        return max(low - shift, 0.0), high + shift
    return (high, high) if high - low <= 1e-13 * high else (low, high)


def grid_size(
    heads: np.ndarray, least: int, largest: int, resolved: Callable[[np.ndarray, int], bool]
) -> int:
    """Points on a turn of a grid that resolves the sums of every head; 0 if they would be too many.

    Args:
        heads: matrices A (heads, d, d).
        least: size to begin with.
        largest: size beyond which there is no grid.
        resolved: (A, size) → whether the grid is fine enough.
    """
    size = fast_size(least)
    while size <= largest:
        if all(resolved(A, size) for A in heads):
            return size
        size = fast_size(size + size // 8)
    return 0


def no_modes_beyond(values: np.ndarray, size: int, tolerance: float) -> bool:
    """Whether periodic rows, sampled finer than `size`, have no Fourier modes that `size` points would miss.

    Modes fall geometrically, so the greatest tells of their sum, with a margin.

    Args:
        values: samples (rows, fine) of periodic functions over one turn.
        size: points of the coarser grid.
        tolerance: error allowed, relative to 1.
    """
    modes = np.abs(np.fft.rfft(values, axis=1)) / values.shape[1]
    return bool(modes[:, size // 2 - 1 :].max() <= max(tolerance / 30, 1e-16))
