"""Masks: which tokens a token sees, by their places in the order (2411.04990; theory §6.1).

    masks.causal()            j ≤ i, itself included
    masks.strict()            j < i; the first token sees nothing and stays
    masks.prefix(p)           causal, and the first p tokens see each other
    masks.window(w)           the last w tokens, itself included
    masks.alibi(slope)        causal, with −slope·(i−j) added to the score (not multiplied by β)
    masks.blocks(sizes)       causal between blocks of tokens, full inside a block
    masks.matrix(M)           any: M[i, j] true where i sees j, or numbers to be added to the scores
    masks.rope(frequencies)   rotary embedding: the k-th pair of coordinates turns by ω_k·place in the scores

Masks combine with `&`: `masks.rope(ω) & masks.causal()`. Unnormalised attention under a mask divides by the
visible weight. A masked flow depends on the order of the tokens: it is no flow of laws.
"""

from collections.abc import Sequence
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from tokenfield.errors import as_number, as_whole, is_traced, require, require_kind
from tokenfield.laws.tokens import as_real
from tokenfield.registry import register
from tokenfield.sums.base import Mask, Places


def _hide(visible: Bool[Array, "m k"]) -> Float[Array, "m k"]:
    return jnp.where(visible, 0.0, -jnp.inf)


def _weight_before(weights: Float[Array, "n"], count: Int[Array, "m"]) -> Float[Array, "m"]:
    """Sum of the first `count` weights."""
    sums = jnp.concatenate([jnp.zeros(1), jnp.cumsum(weights)])
    return sums[jnp.clip(count, 0, len(weights))]


class OrderMask(Mask):
    """A mask that can be combined with others by `&`."""

    def __and__(self, other: "OrderMask") -> "OrderMask":
        """Both at once: offsets add up, rotations follow each other."""
        if not isinstance(other, OrderMask):
            return NotImplemented
        return Both(self, other)


class Causal(OrderMask):
    """Token i sees the tokens j ≤ i − `behind`, the last `width` of them if that is given, and the first
    `prefix` tokens see each other.
    """

    behind: int = eqx.field(default=0, static=True)
    prefix: int = eqx.field(default=0, static=True)
    width: int | None = eqx.field(default=None, static=True)

    def offset(self, i: Int[Array, "m 1"], j: Int[Array, "1 k"]) -> Float[Array, "m k"]:
        """0 where i sees j."""
        visible = j <= i - self.behind
        if self.width is not None:
            visible &= j > i - self.width
        return _hide(visible | ((i < self.prefix) & (j < self.prefix)))

    @property
    def fading(self) -> float | None:
        """0 without prefix and window: all tokens before are seen alike."""
        return 0.0 if self.prefix == 0 and self.width is None else None

    def may_see(self, rows: Places, keys: Places) -> Bool[Array, ""]:
        """Not keys behind all rows, nor before every window."""
        inside = keys[0] <= rows[1] - self.behind
        if self.width is not None:
            inside &= keys[1] > rows[0] - self.width
        return inside | ((rows[0] < self.prefix) & (keys[0] < self.prefix))

    def visible_weight(self, weights: Float[Array, "n"], rows: Int[Array, "m"]) -> Float[Array, "m"] | None:
        """Partial sums of the weights; a window takes all pairs."""
        if self.width is not None:
            return None
        count = rows + 1 - self.behind
        inside = jnp.maximum(count, self.prefix)
        return _weight_before(weights, jnp.where(rows < self.prefix, inside, count))


class Alibi(OrderMask):
    """Causal, with −slope·(i−j) added to the scores."""

    slope: Float[Array, ""]
    hides_only: ClassVar[bool] = False

    def offset(self, i: Int[Array, "m 1"], j: Int[Array, "1 k"]) -> Float[Array, "m k"]:
        """−slope·(i−j) where i sees j."""
        return jnp.where(j <= i, -self.slope * (i - j), -jnp.inf)

    @property
    def bounded(self) -> bool:
        """The slope is not negative."""
        return True

    @property
    def fading(self) -> Float[Array, ""]:
        """The slope."""
        return self.slope

    def may_see(self, rows: Places, keys: Places) -> Bool[Array, ""]:
        """Not keys behind all rows."""
        return keys[0] <= rows[1]

    def visible_weight(self, weights: Float[Array, "n"], rows: Int[Array, "m"]) -> Float[Array, "m"]:
        """Partial sums of the weights."""
        return _weight_before(weights, rows + 1)


class BlockCausal(OrderMask):
    """Token i sees every token of its own block and of earlier ones; `block` (n,) numbers them."""

    block: tuple[int, ...] = eqx.field(static=True)

    def offset(self, i: Int[Array, "m 1"], j: Int[Array, "1 k"]) -> Float[Array, "m k"]:
        """0 where i sees j."""
        block = jnp.asarray(np.array(self.block))
        return _hide(block.at[j].get(mode="clip") <= block.at[i].get(mode="clip"))

    def may_see(self, rows: Places, keys: Places) -> Bool[Array, ""]:
        """Not keys of later blocks."""
        block = jnp.asarray(np.array(self.block))
        return block.at[keys[0]].get(mode="clip") <= block.at[rows[1]].get(mode="clip")

    def visible_weight(self, weights: Float[Array, "n"], rows: Int[Array, "m"]) -> Float[Array, "m"]:
        """Partial sums of the weights, up to the end of the row's block."""
        block = np.array(self.block)
        end = np.searchsorted(block, block, side="right")
        return _weight_before(weights, jnp.asarray(end)[rows])

    def check(self, n: int, d: int) -> None:
        """Every token belongs to a block."""
        require(len(self.block) == n, "mask", f"have blocks of {n} tokens in all", len(self.block))


class MatrixMask(OrderMask):
    """Any offsets, (n, n); the only mask that takes n² numbers."""

    offsets: Float[Array, "n n"]
    only_hides: bool = eqx.field(static=True)

    @property
    def hides_only(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether all offsets are 0 or −∞."""
        return self.only_hides

    def offset(self, i: Int[Array, "m 1"], j: Int[Array, "1 k"]) -> Float[Array, "m k"]:
        """The entries of the matrix."""
        return self.offsets.at[i, j].get(mode="clip")

    def check(self, n: int, d: int) -> None:
        """One row and column for each token."""
        require(len(self.offsets) == n, "mask", f"be a matrix for {n} tokens", f"one for {len(self.offsets)}")


class Rope(OrderMask):
    """Rotary embedding: everybody is visible, scores are ⟨R_i q_i, R_j y_j⟩, values are not rotated."""

    frequencies: Float[Array, "pairs"]

    def offset(self, i: Int[Array, "m 1"], j: Int[Array, "1 k"]) -> Float[Array, "m k"]:
        """0."""
        return jnp.zeros((i.shape[0], j.shape[1]))

    def rotate(self, vectors: Float[Array, "m d"], place: Int[Array, "m"]) -> Float[Array, "m d"]:
        """The pair of coordinates (2k, 2k + 1) turned by ω_k·place."""
        angle = place[:, None] * self.frequencies
        c, s = jnp.cos(angle), jnp.sin(angle)
        count = 2 * len(self.frequencies)
        a, b = vectors[:, 0:count:2], vectors[:, 1:count:2]
        turned = jnp.stack([c * a - s * b, s * a + c * b], axis=2).reshape(len(vectors), count)
        return jnp.concatenate([turned, vectors[:, count:]], axis=1)

    def check(self, n: int, d: int) -> None:
        """No more pairs than there are."""
        pairs = len(self.frequencies)
        require(
            2 * pairs <= d, "frequencies", f"be at most {d // 2}, one for each pair of coordinates", pairs
        )


class Both(OrderMask):
    """Two masks at once."""

    first: OrderMask
    second: OrderMask

    @property
    def hides_only(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether both only hide."""
        return self.first.hides_only and self.second.hides_only

    @property
    def bounded(self) -> bool:
        """Whether both are."""
        return self.first.bounded and self.second.bounded

    def may_see(self, rows: Places, keys: Places) -> Bool[Array, ""] | bool:
        """What both may see."""
        return self.first.may_see(rows, keys) & self.second.may_see(rows, keys)

    def offset(self, i: Int[Array, "m 1"], j: Int[Array, "1 k"]) -> Float[Array, "m k"]:
        """The sum of the offsets."""
        return self.first.offset(i, j) + self.second.offset(i, j)

    def rotate(self, vectors: Float[Array, "m d"], place: Int[Array, "m"]) -> Float[Array, "m d"]:
        """One rotation after the other."""
        return self.second.rotate(self.first.rotate(vectors, place), place)

    def check(self, n: int, d: int) -> None:
        """Both."""
        self.first.check(n, d)
        self.second.check(n, d)


@register("mask", "causal")
def causal() -> Causal:
    """Token i sees the tokens j ≤ i, itself included."""
    return Causal()


@register("mask", "strict")
def strict() -> Causal:
    """Token i sees the tokens j < i; the first token sees nothing, so that it stays where it is."""
    return Causal(behind=1)


@register("mask", "prefix")
def prefix(p: int) -> Causal:
    """The first p tokens see each other, the others all tokens before them and themselves."""
    return Causal(prefix=as_whole(p, "p", 0))


@register("mask", "window")
def window(w: int) -> Causal:
    """Token i sees the last w tokens, i − w + 1 to i."""
    return Causal(width=as_whole(w, "w", 1))


@register("mask", "alibi", settings={"slope": float})
def alibi(slope: float | Array) -> Alibi:
    """Causal, with −slope·(i−j) added to the score β⟨Bᵀx_i, x_j⟩."""
    if not is_traced(slope):
        require(0 <= as_number(slope, "slope") < np.inf, "slope", "be at least 0 and finite", slope)
    return Alibi(as_real(slope, "slope"))


@register("mask", "blocks", settings={"sizes": list[int]})
def blocks(sizes: Sequence[int]) -> BlockCausal:
    """Blocks of so many tokens each: a token sees its own block and those before it.

    With a quadrature cloud in each block this is the mean field of causal attention, exactly.
    """
    counts = [as_whole(size, "sizes", 1) for size in sizes]
    require(len(counts) > 0, "sizes", "hold at least one size", counts)
    return BlockCausal(tuple(np.repeat(np.arange(len(counts)), counts).tolist()))


@register("mask", "matrix", settings={"M": list[list[float]]})
def matrix(M: ArrayLike | Array) -> MatrixMask:
    """Any mask: M (n, n) of truth values (i sees j), or of numbers added to the scores, −∞ to hide.

    Every token must see at least one, itself if nobody else.
    """
    array = np.asarray(M)
    square = array.ndim == 2 and array.shape[0] == array.shape[1]
    require(square, "M", "be a square matrix", f"of shape {array.shape}")
    if array.dtype == np.bool_:
        offsets = np.where(array, 0.0, -np.inf)
    else:
        offsets = np.asarray(as_real(array, "M"))
        usable = not np.isnan(offsets).any() and not np.isposinf(offsets).any()
        require(usable, "M", "hold numbers or −infinity", "NaN or +infinity somewhere")
    blind = np.flatnonzero(np.isneginf(offsets).all(axis=1))
    must = "let every token see at least one; put M[i, i] = True for one that should see only itself"
    require(len(blind) == 0, "M", must, f"without any for token {blind[0] if len(blind) else ''}")
    only_hides = bool(np.isin(offsets, (0.0, -np.inf)).all())
    return MatrixMask(jnp.asarray(offsets), only_hides)


@register("mask", "rope", settings={"frequencies": list[float]})
def rope(frequencies: ArrayLike | Array) -> Rope:
    """Rotary embedding with one frequency for each pair of coordinates."""
    omega = as_real(frequencies, "frequencies")
    require(omega.ndim == 1 and len(omega) > 0, "frequencies", "be a list of numbers", f"{omega.shape}")
    return Rope(omega)


def as_mask(mask: object) -> Mask | None:
    """The mask, or None; anything else is refused."""
    if mask is not None:
        require_kind(mask, Mask, "mask")
    return mask  # pyright: ignore[reportReturnType]
