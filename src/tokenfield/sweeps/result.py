"""CellResult: what one cell computed, with the sentence of how it ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from tokenfield.runs.axes import axes

if TYPE_CHECKING:
    from tokenfield.runs.trajectory import Trajectory


@dataclass(frozen=True)
class CellResult:
    """Arrays by name with the names of their axes; `counts` are whole numbers like steps.

    Everything but `seconds` follows from the settings.
    """

    status: str
    complete: bool
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def checked(self) -> "CellResult":
        """The same, but failed if something that was measured is not a number."""
        bad = [name for name, values in self.arrays.items() if np.isnan(values).any()]
        if self.complete and bad:
            sentence = f"{self.status}, but {', '.join(bad)} came out as NaN"
            return replace(self, complete=False, status=sentence)
        return self


def failure(sentence: str, seconds: float = 0.0) -> CellResult:
    """A cell of which there is nothing but the reason."""
    return CellResult(" ".join(sentence.split())[:500], False, seconds=seconds)


def result_of(run: "Trajectory", with_tokens: bool, counts: Mapping[str, int], seconds: float) -> CellResult:
    """The arrays of a trajectory; what it did not reach is not there.

    Args:
        run: the trajectory, whole or cut short.
        with_tokens: whether its snapshots, (snapshots, n, d), are kept.
        counts: steps and the like.
        seconds: how long it took.

    Returns:
        The result of the cell.
    """
    arrays = {"time": np.asarray(run.ts)} | {k: np.asarray(v) for k, v in run.measured.items()}
    names = {"time": ("time",)} | {k: axes(k, np.ndim(v)) for k, v in run.measured.items()}
    if with_tokens:
        arrays |= {
            "snapshot": np.asarray(run.snapshot_ts),
            "x": np.asarray(run.x),
            "token_weights": np.asarray(run.weights),
        }
        names |= {"snapshot": ("snapshot",), "x": axes("x", 3), "token_weights": ("token",)}
    return CellResult(run.status, run.complete, arrays, names, counts, seconds)
