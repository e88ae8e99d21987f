"""The distance of tokens to the law they concentrate on at zero temperature, Π♯ρ0 (theory §2.2, §6.7)."""

from dataclasses import dataclass

import numpy as np

from tokenfield.errors import require
from tokenfield.laws.tokens import Tokens
from tokenfield.measure.transport import coupled_distance, wasserstein
from tokenfield.models.weights import AttentionWeights
from tokenfield.theory.attractors import Attractors, ends
from tokenfield.theory.spectral import Limit, limit

#: A unit vector whose component along a line is this close to ±1 lies on the line.
LINE_TOLERANCE = 1e-12
#: Ends closer than this are one atom, and so many atoms are few: the transport to them is solved exactly.
SAME_END, MAX_ENDS = 1e-9, 64


@dataclass(frozen=True, eq=False)
class LimitDistance:
    """Of later tokens their distance to the limit law `end`; `exact`: whether it is W_p, not only a bound."""

    end: Tokens
    p: float
    exact: bool

    def __call__(self, tokens: Tokens) -> float:
        """The distance."""
        if self.exact:
            return wasserstein(tokens, self.end, self.p).value
        return coupled_distance(tokens.x, self.end.x, tokens.weights, self.p)


def limit_distance(
    where: Limit | Attractors | AttentionWeights, start: Tokens, p: float = 2
) -> LimitDistance:
    """The distance to the limit law Π♯ρ0 of the law `start`, as a function of later tokens.

    If all tokens end on a line, or several heads take them to few attractors, this is W_p, exactly: a
    transport to these atoms. Otherwise it is the cost of moving every token to Π of where it began, an upper
    bound of W_p, and W_p while every token is nearest to its own end.

    Args:
        where: what says where tokens end: `theory.limit` of one head, with E and the map Π;
            `theory.attractors` of several, whose Π takes every token to its own attractor; or the weights,
            for either of them.
        start: the law ρ0, weights (n,) and unit rows (n, d).
        p: order of the distance, 1 ≤ p ≤ 16.

    Returns: a function of later tokens (n, d) in the same order.
    """
    known = isinstance(where, Limit | Attractors | AttentionWeights)
    must = "be theory.limit or theory.attractors of some weights, or weights"
    require(known, "where", must, type(where).__name__)
    if isinstance(where, AttentionWeights) and where.heads == 1:
        where = limit(where)
    if isinstance(where, Limit):
        return _of_limit(where, start, p)
    return _of_ends(ends(where, start) if isinstance(where, AttentionWeights) else where.push(start), p)


def _of_limit(where: Limit, start: Tokens, p: float) -> LimitDistance:
    end = where.push(start)
    x = np.asarray(end.x)
    # where E is larger, a defective D may still leave only one direction
    line = where.basis[:, 0] if where.dimension == 1 else x[0]
    height = x @ line
    on_line = np.abs(height) > 1 - LINE_TOLERANCE
    if where.dimension > 1 and not np.all(on_line):
        return LimitDistance(end, p, False)
    # rounding of Π would make as many atoms as tokens; exceptional tokens end elsewhere
    atoms = np.where(on_line[:, None], np.sign(height)[:, None] * line, x)
    return LimitDistance(Tokens(atoms, start.weights), p, True)


def _of_ends(end: Tokens, p: float) -> LimitDistance:
    """Ends that differ by rounding made one."""
    x = np.asarray(end.x)
    _, first, group = np.unique(np.round(x / SAME_END), axis=0, return_index=True, return_inverse=True)
    if len(first) > MAX_ENDS:
        return LimitDistance(end, p, False)
    return LimitDistance(Tokens(x[first][group.ravel()], end.weights), p, True)
