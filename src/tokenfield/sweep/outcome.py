"""Outcome: what one cell computed, with the sentence of how it ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np


@dataclass(frozen=True)
class Outcome:
    """Arrays by name with the names of their axes; `counts` are whole numbers like steps.

    Everything but `seconds` follows from the settings.
    """

    status: str
    complete: bool
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def checked(self) -> "Outcome":
        """The same, but failed if something that was measured is not a number."""
        bad = [name for name, values in self.arrays.items() if np.isnan(values).any()]
        if self.complete and bad:
            sentence = f"{self.status}, but {', '.join(bad)} came out as NaN"
            return replace(self, complete=False, status=sentence)
        return self


def failure(sentence: str, seconds: float = 0.0) -> Outcome:
    """A cell of which there is nothing but the reason."""
    return Outcome(" ".join(sentence.split())[:500], False, seconds=seconds)
