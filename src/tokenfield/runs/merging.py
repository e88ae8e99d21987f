"""Merging: tokens that have come close go on as one weighted token; what is saved tells them apart again."""

import numpy as np

from tokenfield.laws.tokens import Tokens
from tokenfield.runs.checkpoint import Checkpoint


class Merging:
    """Which row of the state each token is, and what merging has cost.

    `angle`: tokens closer than this are merged; None: never.
    """

    def __init__(self, n: int, angle: float | None):
        self.angle = angle
        #: which row of the state each token is, and how many rows are tokens (the rest is padding)
        self.group, self.active = np.arange(n), n
        #: sum of the W2 distances introduced
        self.distance = 0.0

    def merged(self, x: np.ndarray, weights: np.ndarray) -> Tokens | None:
        """The tokens after merging, padded to one of few sizes; None if there is nothing to merge."""
        assert self.angle is not None
        found = Tokens(x[: self.active], weights[: self.active]).merge(self.angle)
        if found.tokens.n == self.active:
            return None
        self.distance += found.distance
        self.group, self.active = np.asarray(found.group)[self.group], found.tokens.n
        return found.tokens.padded(len(x))

    def state(self) -> dict[str, object]:
        """What a checkpoint keeps."""
        return {"active": self.active, "merge_distance": self.distance, "group": self.group}

    def restore(self, saved: Checkpoint, n: int, rows: int) -> None:
        """Take up what `state` told of.

        Args:
            saved: the checkpoint.
            n: tokens of the run.
            rows: of its state, padding included.
        """
        self.active = int(saved.take("active", (), np.int64))
        self.distance = float(saved.take("merge_distance", (), np.float64))
        self.group = saved.take("group", (n,), np.int64)
        inside = self.group.min() >= 0 and self.group.max() < self.active <= rows
        saved.require(bool(inside), "has a `group` that points nowhere")
