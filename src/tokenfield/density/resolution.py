"""How much of a density its resolution may have missed, and the sentence that says so."""

import numpy as np
from jaxtyping import Float

#: Share of the L² norm in the top third of a series, and depth of an undershoot relative to the greatest
#: density, from which a spectral run counts as under-resolved.
SPECTRAL_TAIL = 1e-6
#: Where so much of it is in the top third, going on in time is of no use: the run ends there.
UNRESOLVABLE_TAIL = 0.5


def undershoot(density: Float[np.ndarray, "times nodes"]) -> Float[np.ndarray, "times"]:
    """How far below 0 the density falls at each time, relative to its greatest value."""
    return np.maximum(-density.min(axis=1), 0.0) / density.max(axis=1)


def resolution_warning(
    ts: Float[np.ndarray, "times"], tail: Float[np.ndarray, "times"], limit: float, shortfall: str
) -> str:
    """The end of a status sentence: from when on the resolution was too coarse; empty if it never was.

    Args:
        ts: times, (times,).
        tail: how much of the density the resolution may have missed at each, (times,).
        limit: the greatest tail that counts as resolved.
        shortfall: what was missed, in words.
    """
    late = np.flatnonzero(tail > limit)
    if late.size == 0:
        return ""
    return f"; under-resolved from t = {ts[late[0]]:.4g}: {shortfall} (allowed {limit:g})"
