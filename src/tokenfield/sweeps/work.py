"""One task of a sweep: compute a batch of cells and put them in place. Runs in a worker process.

Everything a task has to say is on disk before it returns; its report is only for the progress bar. A task
that is run again, because its worker was lost, finds what is there and does nothing twice.
"""

import contextlib
import errno
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tokenfield.errors import InputError, RunError
from tokenfield.registry import foreign_modules, import_modules
from tokenfield.sweeps.cells import CellStore, in_words
from tokenfield.sweeps.grid import Batch, Grid
from tokenfield.sweeps.protocol import Kind
from tokenfield.sweeps.result import CellResult, failure

#: Seconds beyond its limit after which a batch that does not look at the clock is ended with its worker.
GRACE = 60.0


class Task(NamedTuple):
    """A batch: all its cells (hash, parsed settings), also those that are there already.

    `kind` names the kind of cell, `maker` computes it. `modules` are those outside tokenfield that register
    what the settings name. `expendable`: whether the process may be ended with a batch that hangs.
    """

    root: str
    number: int
    kind: str
    maker: Kind
    cells: tuple[tuple[str, Any], ...]
    size: int
    time_limit: float | None
    expendable: bool
    modules: tuple[str, ...] = ()


def task_of(grid: Grid, root: Path | str, batch: Batch, expendable: bool) -> Task:
    """A batch as it is sent to a worker.

    Args:
        grid: the sweep.
        root: its directory.
        batch: cells that are computed together.
        expendable: whether the process may be ended with a batch that hangs.

    Returns:
        The task.
    """
    cells = tuple((cell.id, cell.config) for cell in batch.cells)
    place = str(Path(root).resolve()) if root else ""
    limits = (batch.size, grid.time_limit, expendable)
    return Task(place, batch.number, grid.kind, grid.maker, cells, *limits, foreign_modules())


class Report(NamedTuple):
    """What became of one cell: done, failed, or unwritten."""

    id: str
    state: str
    sentence: str
    seconds: float


def work(task: Task) -> list[Report]:
    """Compute a batch and put the cells that are missing in place."""
    import_modules(task.modules)
    cells = CellStore(Path(task.root))
    missing = {id: config for id, config in task.cells if not cells.has(id)}
    if not missing:
        return []
    refusal = _no_room(task, missing)
    if refusal:
        return [Report(id, "unwritten", refusal, 0.0) for id in missing]
    cells.log(f"{_now()} pid {os.getpid()} computes batch {task.number}: {' '.join(missing)}")
    with _watched(task, cells, missing):
        results = compute(task)
    found = {id: (task.kind, task.maker.describe(config), results[id]) for id, config in missing.items()}
    refused = cells.write(found)
    reports = []
    for id in missing:
        result = results[id]
        state = "unwritten" if id in refused else "done" if result.complete else "failed"
        sentence = f"could not be written: {in_words([refused[id]])}" if id in refused else result.status
        reports.append(Report(id, state, sentence, result.seconds))
    return reports


def compute(task: Task) -> dict[str, CellResult]:
    """All cells of a batch; trouble with one is its result."""
    began = time.monotonic()
    try:
        if task.size > 1:
            results = task.maker.run_batch([c for _, c in task.cells], task.size, task.time_limit)
        else:
            results = [task.maker.run_one(task.cells[0][1], task.time_limit)]
    except (InputError, RunError) as error:
        results = [failure(str(error), time.monotonic() - began)] * len(task.cells)
    except Exception as error:  # whatever JAX has to say of memory, or a kind of its settings
        sentence = f"{type(error).__name__}: {error}"
        results = [failure(sentence, time.monotonic() - began)] * len(task.cells)
    return {id: result.checked() for (id, _), result in zip(task.cells, results, strict=True)}


def _no_room(task: Task, missing: dict[str, Any]) -> str:
    """Why nothing could be written, if that is known before any work."""
    directory = Path(task.root) / "cells"
    needed = sum(task.maker.estimated_bytes(config) for config in missing.values())
    try:
        if not os.access(directory, os.W_OK):
            raise PermissionError(errno.EACCES, "the directory is read-only")
        if shutil.disk_usage(directory).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        return f"was not computed, it could not be written: {error.strerror or error}"
    return ""


@contextlib.contextmanager
def _watched(task: Task, cells: CellStore, missing: dict[str, Any]) -> Iterator[None]:
    """End the process if a batch with a time limit hangs; its cells fail first, so nobody tries again."""
    if task.time_limit is None or not task.expendable:
        yield
        return
    limit = task.time_limit

    def end() -> None:
        late = failure(
            f"did not end within {GRACE:g} s of its time limit of {limit:g} s; its worker was ended"
        )
        cells.write({id: (task.kind, task.maker.describe(config), late) for id, config in missing.items()})
        os._exit(1)

    timer = threading.Timer(limit * len(task.cells) + GRACE, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
