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
from tokenfield.sweep.cells import Cells, in_words
from tokenfield.sweep.kinds import KINDS
from tokenfield.sweep.outcome import Outcome, failure

#: Seconds beyond its limit after which a batch that does not look at the clock is ended with its worker.
GRACE = 60.0


class Task(NamedTuple):
    """A batch: all its cells (hash, settings), also those that are there already."""

    root: str
    number: int
    kind: str
    cells: tuple[tuple[str, dict[str, Any]], ...]
    size: int
    time_limit: float | None
    #: Whether the process may be ended with a batch that hangs.
    expendable: bool


class Report(NamedTuple):
    """What became of one cell: done, failed, or unwritten."""

    id: str
    state: str
    sentence: str
    seconds: float


def work(task: Task) -> list[Report]:
    """Compute a batch and put the cells that are missing in place."""
    cells = Cells(Path(task.root))
    missing = {id: settings for id, settings in task.cells if not cells.has(id)}
    if not missing:
        return []
    refusal = _no_room(task, missing)
    if refusal:
        return [Report(id, "unwritten", refusal, 0.0) for id in missing]
    cells.log(f"{_now()} pid {os.getpid()} computes batch {task.number}: {' '.join(missing)}")
    with _watched(task, cells, missing):
        outcomes = compute(task)
    found = {id: (task.kind, settings, outcomes[id]) for id, settings in missing.items()}
    refused = cells.write(found)
    reports = []
    for id in missing:
        outcome = outcomes[id]
        state = "unwritten" if id in refused else "done" if outcome.complete else "failed"
        sentence = f"could not be written: {in_words([refused[id]])}" if id in refused else outcome.status
        reports.append(Report(id, state, sentence, outcome.seconds))
    return reports


def compute(task: Task) -> dict[str, Outcome]:
    """All cells of a batch; trouble with one is its outcome."""
    kind = KINDS[task.kind]
    began = time.monotonic()
    try:
        if task.size > 1:
            outcomes = kind.together([s for _, s in task.cells], task.size, task.time_limit)
        else:
            outcomes = [kind.alone(task.cells[0][1], task.time_limit)]
    except (InputError, RunError) as error:
        outcomes = [failure(str(error), time.monotonic() - began)] * len(task.cells)
    except Exception as error:  # whatever JAX has to say of memory, or a kind of its settings
        sentence = f"{type(error).__name__}: {error}"
        outcomes = [failure(sentence, time.monotonic() - began)] * len(task.cells)
    return {id: outcome.checked() for (id, _), outcome in zip(task.cells, outcomes, strict=True)}


def _no_room(task: Task, missing: dict[str, Any]) -> str:
    """Why nothing could be written, if that is known before any work."""
    directory = Path(task.root) / "cells"
    needed = sum(KINDS[task.kind].records(settings) for settings in missing.values())
    try:
        if not os.access(directory, os.W_OK):
            raise PermissionError(errno.EACCES, "the directory is read-only")
        if shutil.disk_usage(directory).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        return f"was not computed, it could not be written: {error.strerror or error}"
    return ""


@contextlib.contextmanager
def _watched(task: Task, cells: Cells, missing: dict[str, Any]) -> Iterator[None]:
    """End the process if a batch with a time limit hangs; its cells fail first, so nobody tries again."""
    if task.time_limit is None or not task.expendable:
        yield
        return
    limit = task.time_limit

    def end() -> None:
        late = failure(
            f"did not end within {GRACE:g} s of its time limit of {limit:g} s; its worker was ended"
        )
        cells.write({id: (task.kind, settings, late) for id, settings in missing.items()})
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
