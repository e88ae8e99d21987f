"""What a sweep will cost, from a measured sample of its batches; nothing is stored."""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tokenfield.sweeps.cells import encode
from tokenfield.sweeps.grid import Grid
from tokenfield.sweeps.work import compute, task_of

#: Batches that are tried, seconds that may take, and the share of it that one cell may have.
SAMPLE, BUDGET, ONE = 5, 20.0, 0.4


class Estimate(NamedTuple):
    """Seconds of work and bytes on disk of all cells; `cells` were measured, `cut` of them not to the end."""

    seconds: float
    bytes: float
    least: float
    most: float
    cells: int
    cut: int

    @property
    def sentence(self) -> str:
        """The estimate in words."""
        more = f"; {self.cut} of them were cut short, so it takes longer" if self.cut else ""
        return (
            f"about {_time(self.seconds)} of work on one core and {_size(self.bytes)} on disk, from"
            f" {self.cells} cells that took {_time(self.least)} to {_time(self.most)} each{more}"
        )


def estimate(grid: Grid, progress: Callable[[float, str], None] = lambda done, what: None) -> Estimate:
    """Compute some batches spread over the sweep, each twice: the second time without compiling."""
    spread = np.unique(np.linspace(0, len(grid.batches) - 1, SAMPLE).round().astype(int))
    began = time.monotonic()
    each, sizes, cut = [], [], 0
    for count, k in enumerate(spread):
        progress(count / len(spread), f"measuring {count + 1} of {len(spread)} samples")
        batch = grid.batches[k]
        limit = min(grid.time_limit or np.inf, ONE * BUDGET / len(batch.cells))
        task = task_of(grid, "", batch, expendable=False)._replace(time_limit=limit)
        start = time.monotonic()
        results = list(compute(task).values())
        if time.monotonic() - start < BUDGET:
            results = list(compute(task).values())
        each += [result.seconds for result in results]
        sizes += [
            len(encode(grid.kind, cell.settings, found))
            for cell, found in zip(batch.cells, results, strict=True)
        ]
        cut += sum("time limit" in result.status for result in results)
        if time.monotonic() - began > BUDGET:
            break
    blocks = -(-np.array(sizes) // 4096) * 4096  # a file takes whole blocks
    total = len(grid.cells)
    return Estimate(
        float(np.mean(each)) * total, float(np.mean(blocks)) * total, min(each), max(each), len(each), cut
    )


def _time(seconds: float) -> str:
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{1000 * seconds:.3g} ms"


def _size(count: float) -> str:
    for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= length:
            return f"{count / length:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"
