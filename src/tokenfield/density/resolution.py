"""How much of a density its resolution may have missed, and the sentence that says so."""

import numpy as np
from jaxtyping import Float

#: Share of the L² norm in the top third of a series, and depth of an undershoot relative to the greatest
#: density, from which a spectral run counts as under-resolved.
SPECTRAL_TAIL = 1e-6
#: Where nearly all is in the top third, steps in time would not help.
HOPELESS = 0.5


def undershoot(density: Float[np.ndarray, "times nodes"]) -> Float[np.ndarray, "times"]:
    """How far below 0 the density falls at each time, relative to its greatest value."""
    return np.maximum(-density.min(axis=1), 0.0) / density.max(axis=1)


def verdict(ts: np.ndarray, tail: Float[np.ndarray, "times"], limit: float, what: str) -> str:
    """Empty while the tail is within the limit; else from when on it is not, with `what` for the rest."""
    late = np.flatnonzero(tail > limit)
    return f"; under-resolved from t = {ts[late[0]]:.4g}: {what} (allowed {limit:g})" if late.size else ""
