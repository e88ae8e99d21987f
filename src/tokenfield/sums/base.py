"""What every kind of sums has in common: the questions that are asked, and the three sums that answer them.

A head asks at the points x_i with the query q_i = Aᵀx_i + b; the score of the key y_j is

    s_ij = ⟨q_i, y_j⟩ + mask_ij.

Models are made of three sums over the keys, with weights w_j:

    exponential:  Z_i = Σ_j w_j e^{s_ij}  and  Σ_j w_j e^{s_ij} y_j / Z_i
    hardmax:      the maximum of ⟨q_i, y_j⟩ over visible keys with w_j > 0, and the mean of the keys at it,
                  weighted by w_j e^{mask_ij}: the limit of the exponential sums for long queries
    pointwise:    Σ_j w_j f(s_ij)  and  Σ_j w_j f(s_ij) y_j  for a function f of one score
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeAlias

import equinox as eqx
from jaxtyping import Array, Bool, Float, Int

from tokenfield.errors import InputError
from tokenfield.laws.tokens import Tokens

#: Least and greatest of some places in the order.
Places: TypeAlias = tuple[Int[Array, ""], Int[Array, ""]]


class Mask(eqx.Module):
    """Who sees whom: an offset of every score that depends on the places of query and key in the order.

    A new mask is a subclass with one method `offset`; rows and columns count from 0. What else it declares
    makes sums quicker: tiles that nobody sees are left out, and a `fading` mask has near-linear sums.
    """

    #: Whether offsets are 0 (visible) or −∞ (hidden) only, so that any kernel can be masked.
    hides_only: ClassVar[bool] = True

    @abstractmethod
    def offset(self, i: Int[Array, "m 1"], j: Int[Array, "1 k"]) -> Float[Array, "m k"]:
        """Offset of the score of key j at query i: 0, a number, or −∞ where j is hidden."""

    @property
    def bounded(self) -> bool:
        """Whether no offset is above 0, so that |q| bounds every score."""
        return self.hides_only

    @property
    def fading(self) -> Float[Array, ""] | float | None:
        """λ if token i sees every token j < i, with the offset −λ(i−j), and none after it; None otherwise.

        Sums over the tokens before can then be carried from one token to the next.
        """
        return None

    def may_see(self, rows: Places, keys: Places) -> Bool[Array, ""] | bool:
        """Whether a query between two rows may see a key between two places; False only if none does."""
        return True

    def visible_weight(self, weights: Float[Array, "n"], rows: Int[Array, "m"]) -> Float[Array, "m"] | None:
        """Σ_j w_j over the keys that each row sees, where that is quick; None: all pairs are looked at."""
        return None

    def rotate(self, vectors: Float[Array, "m d"], place: Int[Array, "m"]) -> Float[Array, "m d"]:
        """Queries or keys as they enter the scores; rotary embeddings turn them, other masks do nothing."""
        return vectors

    def check(self, n: int, d: int) -> None:
        """Refuse numbers of tokens or dimensions that the mask is not made for."""


class Queries(eqx.Module):
    """The questions of one head at m points: q = Aᵀx + bias, which tokens ask (`rows`), and whom they see.

    `A` (d, d) is the score matrix with the temperature, βB for a head; `x` (m, d); `bias` (d,) or None;
    `rows` (m,): places of the points in the order of the tokens, needed where there is a mask.
    """

    A: Float[Array, "d d"]
    x: Float[Array, "m d"]
    bias: Float[Array, "d"] | None = None
    mask: Mask | None = None
    rows: Int[Array, "m"] | None = None

    def __check_init__(self):
        if self.mask is not None and self.rows is None:
            raise InputError(
                "`rows` must be given where there is a mask: only a token, not any point of the sphere, has a"
                " place in the order; densities cannot follow masks"
            )

    @property
    def q(self) -> Float[Array, "m d"]:
        """The query vectors."""
        turned = self.x @ self.A
        turned = turned if self.bias is None else turned + self.bias
        return turned if self.mask is None else self.mask.rotate(turned, self.rows)  # pyright: ignore[reportArgumentType]


class ExponentialSum(NamedTuple):
    """log Z (m,), the softmax mean (m, d), and an estimate of the relative error of Z in each row (m,).

    Where no key is visible, log Z is −∞ and the mean is 0.
    """

    log_mass: Float[Array, "m"]
    mean: Float[Array, "m d"]
    error: Float[Array, "m"]


class HardmaxSum(NamedTuple):
    """Greatest score (m,), the weight that reaches it (m,), and the mean over that weight (m, d)."""

    top: Float[Array, "m"]
    mass: Float[Array, "m"]
    mean: Float[Array, "m d"]


class PointwiseSum(NamedTuple):
    """Σ_j w_j f(s_ij) (m,) and Σ_j w_j f(s_ij) y_j (m, d)."""

    mass: Float[Array, "m"]
    total: Float[Array, "m d"]


#: Seconds of the fixed part of one evaluation, on two cores; costs are estimates from constants measured once
#: (benchmarks/fast_sums.py). Nothing is timed during a run, so that a resumed run makes the same choices.
SECONDS_PER_CALL = 2e-3

#: A function of an array of scores, entry by entry.
Function = Callable[[Array], Array]


class Sums(eqx.Module):
    """A way to compute the three sums. Kinds differ in cost and in the error that they keep."""

    #: Name in files, in `summation=...` and in what a run reports.
    name: ClassVar[str]
    #: Dimensions d that it can do; None for all.
    dimensions: ClassVar[tuple[int, ...] | None] = None
    #: Whether there is no error but rounding; other sums are audited at every step.
    exact: ClassVar[bool] = False
    #: Relative error that exponential sums keep, or else report; exact ones have rounding errors only.
    tolerance: eqx.AbstractVar[float]

    @abstractmethod
    def exponential(self, queries: Queries, keys: Tokens) -> ExponentialSum:
        """Sums of w_j e^{s_ij}."""

    @abstractmethod
    def hardmax(self, queries: Queries, keys: Tokens) -> HardmaxSum:
        """Maximum of the scores over the keys of positive weight, ties averaged."""

    @abstractmethod
    def pointwise(self, f: Function, queries: Queries, keys: Tokens) -> PointwiseSum:
        """Sums of w_j f(s_ij) and of w_j f(s_ij) y_j.

        Args:
            f: a function of an array of scores, entry by entry.
            queries: the questions at m points.
            keys: the tokens that are read.
        """

    def state(self) -> dict[str, Any]:
        """What a stored run needs to take up these sums again, beside the model: plain data."""
        return {"kind": self.name}
