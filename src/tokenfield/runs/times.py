"""Times at which a run is saved, and which of them keep a snapshot."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike

from tokenfield.errors import as_number, as_whole, is_traced, require
from tokenfield.laws.tokens import as_real


def log_times(first: float, last: float, count: int) -> np.ndarray:
    """0 followed by `count` log-spaced times.

    Args:
        first: the first of them, positive.
        last: the last of them.
        count: how many, at least 2.
    """
    first, last = as_number(first, "first"), as_number(last, "last")
    require(0 < first < np.inf, "first", "be positive and finite", first)
    require(first < last < np.inf, "last", f"be finite and greater than first = {first:g}", last)
    as_whole(count, "count", 2)
    inner = np.geomspace(first, last, count)
    return np.concatenate([[0.0], inner])


def kept_indices(snapshots: Sequence[int] | None, count: int) -> np.ndarray:
    """Which of `count` times keep a snapshot, sorted; all if not said."""
    if snapshots is None:
        return np.arange(count)
    try:
        indices = np.asarray(snapshots).reshape(-1)
    except ValueError:  # a ragged list
        indices = np.asarray([None])
    whole = indices.size == 0 or indices.dtype.kind in "iu"
    require(whole, "snapshots", "be a list of indices into ts", repr(snapshots))
    indices = indices.astype(int)
    wrong = indices[(indices >= count) | (indices < -count)]
    require(wrong.size == 0, "snapshots", f"be indices of the {count} times", wrong[:1])
    return np.unique(indices % count)


def as_times(ts: ArrayLike | Array) -> Array:
    """Times as an array; one number is a final time, counted from 0."""
    times = as_real(ts, "ts")
    if times.ndim > 0:
        return times
    if not is_traced(times):
        require(bool(0 < times < np.inf), "ts", "be a list of times or one positive final time", float(times))
    return jnp.stack([jnp.zeros(()), times])
