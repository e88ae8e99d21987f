"""Tokens: weighted points on the sphere, the law μ = Σ w_i δ_{x_i}. The one state type.

Rows are in order (masks read it); in free spaces (Pre-LN and its relatives) every token also has a length.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike
from scipy.spatial import KDTree

from tokenfield.errors import InputError, as_number, is_traced, require
from tokenfield.geometry import sphere

#: How far from norm 1, or from total weight 1, an input may be; it is then corrected to rounding.
UNIT_TOLERANCE = 1e-6
#: Tokens up to which `padded` goes to a power of four.
POWERS_OF_FOUR_UP_TO = 4**7


class Moments(NamedTuple):
    """First and second moment of a law: ∫x dμ of shape (d,) and ∫xxᵀ dμ of shape (d, d)."""

    mean: Float[Array, "d"]
    second: Float[Array, "d d"]


class Tokens(eqx.Module):
    """n weighted tokens in order, at unit directions in R^d, with lengths of their own in free spaces.

    Norms of rows and the sum of weights may be off by 1e-6 (single precision input) and are then corrected to
    rounding.

    Args:
        x: directions (n, d), rows of norm 1.
        weights: (n,), non-negative with sum 1; equal if left out.
        radii: lengths (n,), positive; None on the sphere, where models read directions only.
    """

    x: Float[Array, "n d"]
    weights: Float[Array, "n"]
    radii: Float[Array, "n"] | None

    def __init__(
        self,
        x: ArrayLike | Array,
        weights: ArrayLike | Array | None = None,
        radii: ArrayLike | Array | None = None,
    ):
        x = as_real(x, "x")
        right = x.ndim == 2 and x.shape[0] > 0 and x.shape[1] > 1
        require(right, "x", "have shape (n, d) with n ≥ 1 and d ≥ 2", f"of shape {x.shape}")
        n = x.shape[0]
        w = np.full(n, 1.0 / n) if weights is None else as_real(weights, "weights")
        require(w.shape == (n,), "weights", f"have shape ({n},), one per token", f"of shape {w.shape}")
        self.x = sphere.retract(x) if is_traced(x) else jnp.asarray(_unit(np.asarray(x)))
        self.weights = (
            jnp.asarray(w) / jnp.sum(w) if is_traced(w) else jnp.asarray(_normalised(np.asarray(w)))
        )
        self.radii = None if radii is None else _lengths(radii, n)

    @classmethod
    def normalised(cls, y: ArrayLike | Array, weights: ArrayLike | Array | None = None) -> "Tokens":
        """Tokens at any points y (n, d) but 0: directions y/|y| and lengths |y|.

        Models on the sphere read the directions only; free spaces read both.
        """
        y = as_real(y, "y")
        require(y.ndim == 2, "y", "have shape (n, d)", f"of shape {y.shape}")
        radii = jnp.linalg.norm(y, axis=1)
        if not is_traced(y):
            usable = np.isfinite(np.asarray(radii)) & (np.asarray(radii) > 0)
            row = int(np.argmin(usable))
            require(bool(usable.all()), "y", "have finite rows other than 0", f"{y[row]} in row {row}")
        return cls(y / radii[:, None], weights, radii)

    @property
    def n(self) -> int:
        """Number of tokens."""
        return self.x.shape[0]

    @property
    def d(self) -> int:
        """Dimension of the surrounding space; the sphere has dimension d − 1."""
        return self.x.shape[1]

    @property
    def points(self) -> Float[Array, "n d"]:
        """Where the tokens are: their directions times their lengths, if they have any."""
        return self.x if self.radii is None else self.x * self.radii[:, None]

    def push(self, f: Callable[[Array], Array]) -> "Tokens":
        """Push-forward f♯μ under a map of rows (n, d) → (n, d) that stays on the sphere."""
        require(callable(f), "f", "be a map of rows", repr(f))
        moved = as_real(f(self.x), "f(x)")
        require(
            moved.ndim == 2 and len(moved) == self.n,
            "f",
            f"give {self.n} rows for {self.n} tokens",
            f"giving the shape {moved.shape}",
        )
        return Tokens(moved, self.weights, self.radii)

    def moments(self) -> Moments:
        """Mean ∫x dμ and second moment ∫xxᵀ dμ."""
        weighted = self.weights[:, None] * self.x
        return Moments(jnp.sum(weighted, axis=0), weighted.T @ self.x)

    def merge(self, angle: float) -> "Merged":
        """Replace tokens closer than `angle` by one token at their mean direction with their weight.

        No two of the tokens that remain are closer than `angle`. The report says which token went
        where and how much transport that was. Runs on the host: not for use under jit.
        """
        require(0 < as_number(angle, "angle") < np.pi / 2, "angle", "lie between 0 and π/2", angle)
        require(self.radii is None, "tokens", "have no lengths to be merged", "tokens with radii")
        x, weights = np.asarray(self.x), np.asarray(self.weights)
        group = np.arange(self.n)
        while True:
            leader = _leaders(x, 2 * np.sin(angle / 2))
            if np.array_equal(leader, np.arange(len(x))):
                break
            _, index = np.unique(leader, return_inverse=True)
            x, weights = _means(x, weights, index, leader)
            group = index[group]
        moved = np.asarray(sphere.distance(self.x, jnp.asarray(x[group])))
        distance = float(np.sqrt(np.sum(np.asarray(self.weights) * moved**2)))
        return Merged(Tokens(x, weights), jnp.asarray(group), distance)

    def padded(self, most: int | None = None) -> "Tokens":
        """The same law with tokens of weight 0 up to one of few sizes, each compiled once; at most `most`."""
        size = _rows(self.n)
        extra = (size if most is None else min(size, most)) - self.n
        x = jnp.concatenate([self.x, jnp.broadcast_to(self.x[:1], (extra, self.d))])
        return Tokens(x, jnp.concatenate([self.weights, jnp.zeros(extra)]))


class Continuum(eqx.Module):
    """A law that is not made of tokens but can be read as some: diagnostics take either."""

    @abstractmethod
    def tokens(self, k: int = -1) -> Tokens:
        """The law at the k-th of its times as weighted tokens, by default at the last."""

    @abstractmethod
    def moments(self, k: int = -1) -> Moments:
        """∫x dμ and ∫xxᵀ dμ at the k-th of its times, by default at the last."""

    @abstractmethod
    def pairs(self, f: Callable[[np.ndarray], np.ndarray], k: int = -1) -> float:
        """∬f(⟨x,y⟩)dμdμ at the k-th of its times, by default at the last."""


def as_tokens(law: Tokens | Continuum, name: str) -> Tokens:
    """The law as tokens, a density at its last time; anything else is refused by name."""
    if isinstance(law, Continuum):
        return law.tokens()
    require(isinstance(law, Tokens), name, "be Tokens", type(law).__name__)
    return law


class Merged(NamedTuple):
    """What `Tokens.merge` did.

    `tokens`: the merged law; `group` (n,): which merged token each old token became; `distance`: the
    geodesic W2 cost of moving every token there, an upper bound of W2 between the two laws.
    """

    tokens: Tokens
    group: Int[Array, "n"]
    distance: float


def as_real(value: ArrayLike | Array, name: str) -> Float[Array, "..."]:
    """The value as a float64 JAX array; text, complex numbers and ragged lists are refused by name."""
    try:
        array = jnp.asarray(value) if is_traced(value) else np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"`{name}` must be an array of real numbers, but was {value!r}") from error
    require(array.dtype.kind in "fiu", name, "be an array of real numbers", f"of type {array.dtype}")
    return jnp.asarray(array, dtype=jnp.float64)


def _rows(count: int) -> int:
    """A power of four; where direct sums take longer than to compile them, at most a quarter too many."""
    if count <= POWERS_OF_FOUR_UP_TO:
        return 4 ** int(np.ceil(np.log(count) / np.log(4) - 1e-9))
    unit = 2 ** (count.bit_length() - 3)
    return -(-count // unit) * unit


def _unit(x: np.ndarray) -> np.ndarray:
    """The rows on the sphere, if they are near it. On the host: small runs compile one program less."""
    norms = np.linalg.norm(x, axis=1)
    wrong = np.flatnonzero(~(np.abs(norms - 1) <= UNIT_TOLERANCE))
    if wrong.size:
        row = wrong[0]
        raise InputError(
            f"`x` must have rows of norm 1, but row {row} has norm {norms[row]:.9g}"
            f" ({wrong.size} of {len(x)} rows are off); divide each row by its norm first"
        )
    return x / norms[:, None]


def _normalised(w: np.ndarray) -> np.ndarray:
    """The weights with sum 1, if they are weights."""
    require(bool(np.all(np.isfinite(w))), "weights", "be finite", w[~np.isfinite(w)][:1])
    require(bool(np.all(w >= 0)), "weights", "be at least 0", w.min())
    total = w.sum()
    require(abs(total - 1) <= UNIT_TOLERANCE, "weights", "sum to 1", f"summing to {total:.9g}")
    return w / total


def _lengths(radii: ArrayLike | Array, n: int) -> Array:
    """The lengths of tokens in a free space, if they are lengths."""
    r = as_real(radii, "radii")
    require(r.shape == (n,), "radii", f"have shape ({n},), one per token", f"of shape {r.shape}")
    if not is_traced(r):
        usable = np.isfinite(np.asarray(r)) & (np.asarray(r) > 0)
        require(bool(usable.all()), "radii", "be positive and finite", np.asarray(r)[~usable][:1])
    return r


def _leaders(x: np.ndarray, radius: float) -> np.ndarray:
    """For each point the index of a leader within `radius`; leaders lead themselves.

    Points are taken in order: the first without a leader leads all such points around it.
    """
    leader = np.full(len(x), -1)
    tree = KDTree(x)
    nearest, _ = tree.query(x, k=2, distance_upper_bound=radius)
    alone = ~np.isfinite(nearest[:, 1]) if len(x) > 1 else np.ones(1, bool)
    leader[alone] = np.flatnonzero(alone)
    for i in np.flatnonzero(~alone):
        if leader[i] < 0:
            near = np.asarray(tree.query_ball_point(x[i], radius))
            leader[near[leader[near] < 0]] = i
    return leader


def _means(
    x: np.ndarray, weights: np.ndarray, index: np.ndarray, leader: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Weighted mean direction and weight of each group; a group of weight 0 stays at its leader."""
    total = np.bincount(index, weights)
    share = np.where(total[index] > 0, weights, leader == np.arange(len(x)))
    mean = np.stack([np.bincount(index, share * column) for column in x.T], axis=1)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True), total
