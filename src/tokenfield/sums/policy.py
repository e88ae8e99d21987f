"""Which sums a run uses, by name or by cost, and what it takes when they fail.

| name | sums | cost |
|---|---|---|
| direct | all pairs | n² |
| circle | Fourier series, d = 2 | n |
| harmonic | spherical harmonics, d = 3 | n, and the tables of degree √β |
| merged | over occupied cells, d = 2, 3 | n, and the square of the number of cells |
| direct, on several devices | all pairs, keys passed round a ring | n²/devices |
| auto | the cheapest of these that keeps the tolerance, looked up again during the run |

Each kind says its own cost, dimensions, name and state; this file only compares.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tokenfield.errors import InputError, is_traced, require
from tokenfield.laws.tokens import Tokens
from tokenfield.registry import register
from tokenfield.sums import cells
from tokenfield.sums.base import Queries, Sums
from tokenfield.sums.cells import CellSums
from tokenfield.sums.circle import CircleSums
from tokenfield.sums.direct import DIRECT, Direct
from tokenfield.sums.expansion import Expansion, lengths
from tokenfield.sums.harmonic import HarmonicSums
from tokenfield.sums.profile import Scored
from tokenfield.sums.ring import Ring

EXPANSIONS: tuple[type[Expansion], ...] = (CircleSums, HarmonicSums)
SUMMATIONS = ("auto", Direct.name, *(kind.name for kind in EXPANSIONS), CellSums.name)
#: Other sums are taken only if they are cheaper by this factor.
WORTH_CHANGING = 1.5
#: Seconds of a direct evaluation below which other sums are not worth the time to compile them.
CHEAP_SECONDS = 0.05
#: Pairs that queries pointing away from the keys may cost in one evaluation.
FALLBACK_PAIRS = 1e9


@register("sums", "auto", direct=True)
class SummationPolicy:
    """The sums of one run: `sums` now in use, with the reasons to change them.

    Args:
        summation: one of `SUMMATIONS`.
        scored: the heads of the model, None if it has no sums that can be sped up.
        tokens: the initial tokens.
        tolerance: relative error allowed in the sums.
        ring: sums over several devices, which are then the only ones.
    """

    def __init__(
        self,
        summation: str,
        scored: Scored | None,
        tokens: Tokens,
        tolerance: float,
        ring: Ring | None = None,
    ):
        known = ", ".join(repr(name) for name in SUMMATIONS)
        listed = isinstance(summation, str) and summation in SUMMATIONS
        require(listed, "summation", f"be one of {known}", repr(summation))
        if ring is not None:
            possible = summation in ("auto", "direct")
            require(possible, "summation", "be 'auto' or 'direct' on several devices", repr(summation))
            summation = "direct"
        self.n, self.d = tokens.n, tokens.d
        self.kind = next((kind for kind in EXPANSIONS if self.d in (kind.dimensions or ())), None)
        if scored is not None and scored.mask is not None and not (self.kind and self.kind.follows_order):
            scored = None
        self.summation, self.scored, self.tolerance, self.ring = summation, scored, tolerance, ring
        self.heads = 1 if scored is None else len(scored.A)
        self._check(tokens)
        self._expansion: Expansion | None = None
        self.sums: Sums = self._named(tokens) if summation != "auto" else self._cheapest()

    def _check(self, tokens: Tokens) -> None:
        named = next((k for k in (*EXPANSIONS, CellSums) if k.name == self.summation), None)
        if named is None or named.dimensions is None:
            return
        if self.d not in named.dimensions:
            wanted = " or ".join(str(d) for d in named.dimensions)
            raise InputError(
                f"`summation` must not be {self.summation!r} in d = {self.d}; it is for d = {wanted}"
            )
        smooth = self.scored is not None if named is not CellSums else self._has_cells()
        if not smooth:
            raise InputError(
                f"`summation` must be 'auto' or 'direct' for this model, but was {self.summation!r}: only"
                " attention over all tokens on the sphere with one smooth kernel at finite beta has fast sums"
                " (on the circle, 'circle' also follows causal masks)"
            )
        if named is CellSums and is_traced(tokens):
            raise InputError(
                "`summation` must not be 'merged' under jit or vmap: its cells follow from the tokens"
            )
        if issubclass(named, Expansion) and self._expansion_cost() == np.inf:
            raise InputError(
                f"`summation` must not be {self.summation!r} where β‖B‖ = {self._norm():g}: it takes an"
                f" expansion beyond degree {named.largest_band}; use 'auto', or a larger summation_tolerance"
            )

    # -- choices

    def _named(self, tokens: Tokens) -> Sums:
        if self.summation == Direct.name:
            return self._direct()
        return self._cells(tokens)[1] if self.summation == CellSums.name else self.expansion

    def _cheapest(self) -> Sums:
        """Without looking at where the tokens are: the expansion if it pays, else the direct sums."""
        direct = self._direct_cost()
        worth = direct >= CHEAP_SECONDS and self._expansion_cost() * WORTH_CHANGING < direct
        return self.expansion if worth else self._direct()

    @property
    def settled(self) -> bool:
        """Whether the sums can never change: asked for by name, or the direct ones of a small problem."""
        small = self.sums.exact and self._direct_cost() < CHEAP_SECONDS
        return self.summation != "auto" or self.scored is None or small

    def reconsider(self, tokens: Tokens) -> bool:
        """Look for cheaper sums at the present tokens; whether there was a change. Only for "auto"."""
        self.n = tokens.n  # merged tokens are fewer
        if self.settled:
            return False
        before, now = self.sums, self._cost(self.sums)
        if self._direct_cost() < max(CHEAP_SECONDS, now / WORTH_CHANGING):
            self.sums = self._direct()
            return not before.exact
        if min(self._expansion_cost(), self._least_cells_cost()) * WORTH_CHANGING > now:
            return False
        expanded = isinstance(before, Expansion)
        if not expanded and self._expansion_cost() * WORTH_CHANGING < now and self._works(tokens):
            self.sums, now = self.expansion, self._expansion_cost()
        if self._least_cells_cost() < np.inf:
            cost, found = self._cells(tokens)
            if cost * WORTH_CHANGING < now:
                self.sums = found
        return self.sums is not before

    def fall_back(self, tokens: Tokens) -> bool:
        """Sums for tokens at which the present ones missed the tolerance; False if there are none."""
        if self.summation != "auto" or self.sums.exact:
            return False
        self.n = tokens.n
        before, self.sums = self.sums, self._direct()
        if self._least_cells_cost() < np.inf:
            cost, found = self._cells(tokens)
            if cost < self._direct_cost() and found.state() != before.state():
                self.sums = found
        return True

    def _works(self, tokens: Tokens) -> bool:
        """Whether the expansion keeps the tolerance at every token."""
        if self.scored is None or not self.scored.profile.scaled:
            return True
        heads, bias, mask = jnp.asarray(self.scored.A), self.scored.bias, self.scored.mask
        rows = None if mask is None else jnp.arange(tokens.n)
        biases = [None] * len(heads) if bias is None else list(jnp.asarray(bias))
        asked = (Queries(A, tokens.x, b, mask, rows) for A, b in zip(heads, biases, strict=True))
        return all(_keeps(self.expansion, queries, tokens) for queries in asked)

    # -- the candidates and what they cost

    def _direct(self) -> Sums:
        if self.ring is not None:
            return self.ring
        if self.scored is None or self.scored.bias is not None or self.scored.mask is not None:
            return DIRECT
        A = np.asarray(self.scored.A)
        return Direct(symmetric=np.array_equal(A[:, :1, :1] * np.eye(self.d), A))

    def _direct_cost(self) -> float:
        return Direct.seconds(self.heads, self.n)

    @property
    def expansion(self) -> Expansion:
        """Circle or harmonic sums for the heads, planned once."""
        if self._expansion is None:
            assert self.kind is not None and self.scored is not None
            options = {"fallback": self._fallback(), "fallback_rows": self._fallback_rows()}
            self._expansion = self.kind.plan(self.scored, self.tolerance, **options)
        return self._expansion

    def _expansion_cost(self) -> float:
        if self.scored is None or self.kind is None:
            return np.inf
        return self.kind.seconds(self.scored, self.n, self.tolerance)

    def _fallback(self) -> Sums:
        """Sums for queries that point away from the keys: over cells of the whole circle if they are few."""
        if self.d == 2 and self._has_cells():
            everywhere = cells.plan_everywhere(self._norm(), self.tolerance)
            if everywhere.cells * everywhere.order < self.n:
                return everywhere
        return DIRECT

    def _fallback_rows(self) -> int:
        fallback = self._fallback()
        keys = fallback.cells * fallback.order if isinstance(fallback, CellSums) else self.n
        return int(np.clip(FALLBACK_PAIRS / keys, 16, max(16, self.n // 8)))

    def _cells(self, tokens: Tokens) -> tuple[float, CellSums]:
        """The cheapest cells for the present tokens, and their cost."""
        options = cells.plans(np.asarray(tokens.x), self._norm(), self.tolerance)
        costs = [(plan.seconds(self.heads, self.n, self.d), plan) for plan in options]
        return min(costs, key=lambda pair: pair[0])

    def _least_cells_cost(self) -> float:
        possible = self.d in CellSums.dimensions and self._has_cells()
        return CellSums.least_seconds(self.heads, self.n, self.d) if possible else np.inf

    def _has_cells(self) -> bool:
        """Whether tokens may be merged into cells: exponential kernels that do not ask who comes first."""
        return self.scored is not None and self.scored.profile.scaled and self.scored.mask is None

    def _cost(self, sums: Sums) -> float:
        if isinstance(sums, CellSums):
            return sums.seconds(self.heads, self.n, self.d)
        return self._expansion_cost() if isinstance(sums, Expansion) else self._direct_cost()

    def _norm(self) -> float:
        return 0.0 if self.scored is None else lengths(self.scored)[1]

    # -- to be stored with a run

    def describe(self) -> dict[str, Any]:
        """The sums in use as plain data."""
        return self.sums.state()

    def restore(self, description: dict[str, Any]) -> None:
        """Take up the sums that `describe` told of."""
        kind = description.pop("kind")
        if kind == CellSums.name:
            self.sums = CellSums(**description)
        else:
            self.sums = self.expansion if kind == "expansion" else self._direct()


@eqx.filter_jit
def _keeps(sums: Expansion, queries: Queries, tokens: Tokens) -> jax.Array:
    """Whether every row meets the tolerance."""
    return jnp.all(~jnp.isnan(sums.exponential(queries, tokens).log_mass))
