"""Which sums a run uses. Today every name leads to the direct sums; the fast ones come here."""

from tokenfield.attention.direct import DIRECT, Direct
from tokenfield.errors import require

SUMMATIONS = {"auto": DIRECT, "direct": DIRECT}


def choose(summation: str) -> Direct:
    """The sums behind a name."""
    known = ", ".join(repr(name) for name in SUMMATIONS)
    there = isinstance(summation, str) and summation in SUMMATIONS
    require(there, "summation", f"be one of {known}", repr(summation))
    return SUMMATIONS[summation]
