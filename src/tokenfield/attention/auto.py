"""Which sums a run uses, by name or by cost, and what it takes when they fail.

| name | sums | cost |
|---|---|---|
| direct | all pairs | n² |
| circle | Fourier series, d = 2 | n |
| harmonic | spherical harmonics, d = 3 | n, and the tables of degree √β |
| merged | over occupied cells, d = 2, 3 | n, and the square of the number of cells |
| auto | the cheapest of these that keeps the tolerance, looked up again during the run |

The cost model has constants measured once (benchmarks/fast_sums.py); nothing is timed during a run, so
that a resumed run makes the same choices.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tokenfield.attention import harmonic, merged
from tokenfield.attention.circle import Circle
from tokenfield.attention.direct import DIRECT, Direct, Sums
from tokenfield.attention.fast import Fast, lengths
from tokenfield.attention.harmonic import Harmonic
from tokenfield.attention.merged import Merged
from tokenfield.errors import InputError, is_traced, require
from tokenfield.tokens import Tokens

SUMMATIONS = ("auto", "direct", "circle", "harmonic", "merged")
#: Seconds on two cores: a pair of the direct sums; a token of the NUFFTs on the circle and on the sphere;
#: a token in one merged node; a pair of merged nodes (two passes). And the fixed part of a call.
PAIR, CIRCLE, HARMONIC, NODE, NODE_PAIR = 1.2e-9, 5e-7, 1.5e-6, 4e-8, 3e-9
CALL = 2e-3
#: Other sums are taken only if they are cheaper by this factor.
WORTH = 1.5
#: Seconds of a direct evaluation below which other sums are not worth the time to compile them.
SMALL = 0.05
#: Pairs that queries pointing away from the keys may cost in one evaluation.
SPARE_PAIRS = 1e9


class Switchboard:
    """The sums of one run: `sums` now in use, with the reasons to change them.

    `heads` (heads, d, d) are the matrices βB of the model, None if it has no exponential sums to speed up.
    """

    def __init__(self, summation: str, heads: np.ndarray | None, tokens: Tokens, tolerance: float):
        known = ", ".join(repr(name) for name in SUMMATIONS)
        require(
            isinstance(summation, str) and summation in SUMMATIONS, "summation", f"be one of {known}",
            repr(summation),
        )  # fmt: skip
        self.summation, self.heads, self.tolerance = summation, heads, tolerance
        self.n, self.d = tokens.n, tokens.d
        self._check(tokens)
        self._expansion: Fast | None = None
        self.sums: Sums = self._named(tokens) if summation != "auto" else self._cheapest(tokens)

    def _check(self, tokens: Tokens) -> None:
        dimension = {"circle": (2,), "harmonic": (3,), "merged": (2, 3)}.get(self.summation)
        if dimension is None:
            return
        wanted = " or ".join(str(d) for d in dimension)
        if self.d not in dimension:
            raise InputError(
                f"`summation` must not be {self.summation!r} in d = {self.d}; it is for d = {wanted}"
            )
        if self.heads is None:
            raise InputError(
                f"`summation` must be 'auto' or 'direct' for this model, but was {self.summation!r}:"
                " only softmax and unnormalised attention at finite beta have fast sums"
            )
        if self.summation == "merged" and is_traced(tokens):
            raise InputError(
                "`summation` must not be 'merged' under jit or vmap: its cells follow from the tokens"
            )
        if self.summation == "harmonic" and self._expansion_cost() == np.inf:
            raise InputError(
                f"`summation` must not be 'harmonic' where β‖B‖ = {self._norm():g}: it takes harmonics beyond"
                f" degree {harmonic.LARGEST_DEGREE}; use 'auto', or a larger summation_tolerance"
            )

    # -- choices

    def _named(self, tokens: Tokens) -> Sums:
        if self.summation == "direct":
            return self._direct()
        return self._merged(tokens)[1] if self.summation == "merged" else self.expansion

    def _cheapest(self, tokens: Tokens) -> Sums:
        """Without looking at where the tokens are: the expansion if it pays, else the direct sums."""
        worth = self._direct_cost() >= SMALL and self._expansion_cost() * WORTH < self._direct_cost()
        return self.expansion if worth else self._direct()

    @property
    def settled(self) -> bool:
        """Whether the sums can never change: asked for by name, or the direct ones of a small problem."""
        small = isinstance(self.sums, Direct) and self._direct_cost() < SMALL
        return self.summation != "auto" or self.heads is None or small

    def reconsider(self, tokens: Tokens) -> bool:
        """Look for cheaper sums at the present tokens; whether there was a change. Only for "auto"."""
        self.n = tokens.n  # merged tokens are fewer
        if self.settled:
            return False
        before, now = self.sums, self._cost(self.sums)
        if self._direct_cost() < max(SMALL, now / WORTH):
            self.sums = self._direct()
            return not isinstance(before, Direct)
        if min(self._expansion_cost(), self._merged_least()) * WORTH > now:
            return False
        if not isinstance(before, Fast) and self._expansion_cost() * WORTH < now and self._works(tokens):
            self.sums, now = self.expansion, self._expansion_cost()
        cost, cells = self._merged(tokens)
        if cost * WORTH < now:
            self.sums = cells
        return self.sums is not before

    def fall_back(self, tokens: Tokens) -> bool:
        """Sums for tokens at which the present ones missed the tolerance; False if there are none."""
        if self.summation != "auto" or isinstance(self.sums, Direct):
            return False
        self.n = tokens.n
        cost, cells = self._merged(tokens)
        same = isinstance(self.sums, Merged) and vars(cells) == vars(self.sums)
        self.sums = cells if cost < self._direct_cost() and not same else self._direct()
        return True

    def _works(self, tokens: Tokens) -> bool:
        return all(_keeps(self.expansion, jnp.asarray(A), tokens) for A in self._heads())

    # -- the candidates and what they cost

    def _direct(self) -> Direct:
        if self.heads is None:
            return DIRECT
        scaled = self.heads[:, :1, :1] * np.eye(self.d)
        return Direct(symmetric=np.array_equal(scaled, self.heads))

    def _direct_cost(self) -> float:
        return len(self._heads()) * PAIR * self.n**2

    @property
    def expansion(self) -> Fast:
        """Circle or harmonic sums for the heads, planned once."""
        if self._expansion is None:
            kind = Circle if self.d == 2 else Harmonic
            self._expansion = kind.plan(self._heads(), self.tolerance, far=self._far(), spare=self._spare())
        return self._expansion

    def _expansion_cost(self) -> float:
        if self.heads is None or self.d > 3:
            return np.inf
        low, high = lengths(self._heads())
        if self.d == 2:
            return len(self.heads) * (CALL + CIRCLE * self.n)
        degree = Harmonic.band(high, Fast.precision(self.tolerance))
        if degree > harmonic.LARGEST_DEGREE:
            return np.inf
        spread = 1 if low == high else 20
        # grids of (3·degree)² points, for every length
        return len(self.heads) * (10 * CALL + HARMONIC * self.n + spread * 5e-7 * degree**2)

    def _far(self) -> Sums:
        """Sums for queries that point away from the keys: over cells of the whole circle if they are few."""
        if self.d == 2:
            cells = merged.plan_everywhere(self._norm(), self.tolerance)
            if cells.cells * cells.order < self.n:
                return cells
        return DIRECT

    def _spare(self) -> int:
        far = self._far()
        keys = far.cells * far.order if isinstance(far, Merged) else self.n
        return int(np.clip(SPARE_PAIRS / keys, 16, max(16, self.n // 8)))

    def _merged(self, tokens: Tokens) -> tuple[float, Merged]:
        """The cheapest cells for the present tokens, and their cost."""
        options = merged.plans(np.asarray(tokens.x), self._norm(), self.tolerance)
        return min(((self._merged_cost(plan), plan) for plan in options), key=lambda pair: pair[0])

    def _merged_cost(self, plan: Merged) -> float:
        nodes = plan.order ** (self.d - 1)
        one = CALL + NODE * self.n * nodes + NODE_PAIR * (plan.cells * nodes) ** 2
        return len(self._heads()) * one

    def _merged_least(self) -> float:
        """What merged sums cost at the very least: to look at the tokens for them is not free."""
        return np.inf if self.d > 3 else len(self._heads()) * (CALL + NODE * self.n * 2 ** (self.d - 1))

    def _cost(self, sums: Sums) -> float:
        if isinstance(sums, Merged):
            return self._merged_cost(sums)
        return self._expansion_cost() if isinstance(sums, Fast) else self._direct_cost()

    def _heads(self) -> np.ndarray:
        return np.ones((1, self.d, self.d)) if self.heads is None else self.heads

    def _norm(self) -> float:
        return lengths(self._heads())[1]

    # -- to be stored with a run

    def describe(self) -> dict[str, Any]:
        """The sums in use as plain data."""
        if isinstance(self.sums, Merged):
            return {"kind": "merged", **vars(self.sums)}
        return {"kind": "expansion" if isinstance(self.sums, Fast) else "direct"}

    def restore(self, description: dict[str, Any]) -> None:
        """Take up the sums that `describe` told of."""
        kind = description.pop("kind")
        if kind == "merged":
            self.sums = Merged(**description)
        else:
            self.sums = self.expansion if kind == "expansion" else self._direct()


@jax.jit
def _keeps(sums: Fast, A: jax.Array, tokens: Tokens) -> jax.Array:
    """Whether every row meets the tolerance."""
    return jnp.all(jnp.isfinite(sums.exponential(A, tokens.x, tokens).log_mass))
