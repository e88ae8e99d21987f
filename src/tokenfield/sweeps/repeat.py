"""One cell of a sweep once more, compared with what is stored."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tokenfield.errors import InputError
from tokenfield.runs.files import as_path
from tokenfield.sweeps.cells import CellStore, DamagedError, versions_differ
from tokenfield.sweeps.directory import open_grid
from tokenfield.sweeps.executors import Cluster, executor_of
from tokenfield.sweeps.result import CellResult
from tokenfield.sweeps.work import compute, task_of

if TYPE_CHECKING:
    from distributed import Client


class Comparison:
    """A cell as it was stored and as it came out again."""

    def __init__(self, label: str, stored: CellResult, again: CellResult, versions: str):
        self.label, self.stored, self.again, self.versions = label, stored, again, versions

    @property
    def differences(self) -> dict[str, float]:
        """Greatest difference of each array that is not the same to the bit; infinite if of another shape."""
        names = {**self.stored.arrays, **self.again.arrays}
        return {name: gap for name in names if (gap := self._gap(name)) is not None}

    @property
    def identical(self) -> bool:
        """Whether everything is the same to the bit."""
        same = (self.stored.status, self.stored.counts) == (self.again.status, self.again.counts)
        return same and not self.differences

    @property
    def sentence(self) -> str:
        """What came out."""
        other = f"; versions differ: {self.versions}" if self.versions else ""
        if self.identical:
            return f"{self.label}: the same to the bit{other}"
        gaps = ", ".join(f"{name} by {gap:.3g}" for name, gap in self.differences.items())
        status = "" if self.stored.status == self.again.status else f" now: {self.again.status}"
        return f"{self.label}: differs{' in ' + gaps if gaps else ''}{status}{other}"

    def _gap(self, name: str) -> float | None:
        a, b = self.stored.arrays.get(name), self.again.arrays.get(name)
        if a is None or b is None or a.shape != b.shape:
            return np.inf
        if a.tobytes() == np.ascontiguousarray(b).tobytes():
            return None
        return float(np.nanmax(np.abs(a - b), initial=0.0))


def rerun(path: str | Path, cell: str, executor: "int | str | Client | None" = 1) -> Comparison:
    """Compute one cell of a stored sweep again, with its batch, and compare it with what is stored.

    Args:
        path: the directory of the sweep.
        cell: its number, or at least four letters of its hash.
        executor: as for `sweep`; one worker process by default, as a sweep would have.

    Returns:
        What is the same and what differs.
    """
    root = as_path(path, "path")
    grid, manifest = open_grid(root)
    wanted, cells = grid.find(str(cell)), CellStore(root)
    if not cells.has(wanted.id):
        raise InputError(f"`cell` must have been computed, but {grid.label(wanted)} was not yet")
    if wanted.config is None:
        raise InputError(
            f"`path` must be a sweep that a file declares, but {root} is one of objects, which are not on"
            " disk"
        )
    try:
        state = cells.states()[wanted.id]
        stored = cells.read(wanted.id, state).result
    except DamagedError as error:
        raise InputError(
            f"`cell` must be whole, but {cells.path(wanted.id)} is damaged: {error}; run the sweep again"
        ) from None
    batch = next(batch for batch in grid.batches if wanted in batch.cells)
    with executor_of(executor) as workers, workers.losses():
        task = task_of(grid, root, batch, workers.expendable)
        again = (
            workers.client.submit(compute, task).result() if isinstance(workers, Cluster) else compute(task)
        )
    return Comparison(grid.label(wanted), stored, again[wanted.id], versions_differ(manifest["versions"]))
