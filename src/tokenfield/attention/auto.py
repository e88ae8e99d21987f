"""Which sums a run uses. Today every name leads to the direct sums; the fast ones come here."""

import numpy as np
from jaxtyping import Array

from tokenfield.attention.direct import Direct
from tokenfield.errors import is_traced, require

SUMMATIONS = ("auto", "direct")


def choose(summation: str, B: Array | None) -> Direct:
    """The sums behind a name, for the matrix B of a model's heads if it has one."""
    known = ", ".join(repr(name) for name in SUMMATIONS)
    require(summation in SUMMATIONS, "summation", f"be one of {known}", repr(summation))
    return Direct(symmetric=B is not None and _multiple_of_identity(B))


def _multiple_of_identity(B: Array) -> bool:
    """Whether every head's scores are symmetric; looked up where B has a value, else taken as not."""
    if is_traced(B):
        return False
    B_ = np.asarray(B)  # NumPy, since JAX would trace even constants under jit
    return np.array_equal(B_[..., :1, :1] * np.eye(B_.shape[-1]), B_)
