"""The verb: compute what is missing of a declared sweep, watch it, and return it as one dataset."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from rich.progress import BarColumn, Progress, TextColumn

from tokenfield.errors import InputError
from tokenfield.store import as_path
from tokenfield.sweep import grid as grids
from tokenfield.sweep.cells import (
    FAILED,
    PROGRESS,
    Cells,
    DamagedError,
    locked,
    open_grid,
    place_json,
    versions_differ,
    write_manifest,
)
from tokenfield.sweep.dataset import collected
from tokenfield.sweep.executors import Cluster, Here, executor_of
from tokenfield.sweep.grid import Batch, Grid
from tokenfield.sweep.outcome import Outcome, failure
from tokenfield.sweep.work import Report, Task, compute

if TYPE_CHECKING:
    from distributed import Client

#: Seconds between two updates of progress.json.
TELL_EVERY = 1.0
Say = Callable[[str], None]


def sweep(
    config: str | Path | Mapping[str, Any] | Grid,
    executor: "int | str | Client | None" = None,
    *,
    store: str | Path | None = None,
    retry_failed: bool = False,
    progress: bool = False,
    say: Say = lambda sentence: None,
) -> xr.Dataset:
    """Compute every cell of a sweep that is not there yet and return all of them as one dataset.

    Arguments:
        config: a TOML file or the same as a dictionary (docs/sweeps.md).
        executor: None for a worker process on every core; a number of workers, 0 for this process; a dask
            `Client`, or the address of a scheduler.
        store: directory of the sweep; out/NAME if left out. An interrupted sweep goes on there.
        retry_failed: compute the cells that failed once more.
        progress: show a bar.
        say: told what a person may want to know, a sentence at a time.

    Cells that fail do not stop the others: they are rows with a sentence in `status`. In a script, call this
    below `if __name__ == "__main__":`, because worker processes import the script.
    """
    grid = _grid(config)
    root = as_path(store, "store") if store is not None else Path("out") / (grid.store or "sweep")
    with locked(root, grid) as cells:
        for sentence in cells.set_aside_damaged():
            say(sentence)
            cells.log(sentence)
        if retry_failed:
            cells.forget_failures()
        unwritten = _compute_missing(grid, cells, executor, progress, say)
        with contextlib.suppress(OSError):
            write_manifest(cells, grid)
    return collected(root, {report.id: report.sentence for report in unwritten})


def rerun(path: str | Path, cell: str, executor: "int | str | Client | None" = 1) -> "Comparison":
    """Compute one cell of a stored sweep again, with its batch, and compare it with what is stored."""
    root = as_path(path, "path")
    grid, manifest = open_grid(root)
    wanted, cells = grid.find(str(cell)), Cells(root)
    if not cells.has(wanted.id):
        raise InputError(f"`cell` must have been computed, but {grid.label(wanted)} was not yet")
    try:
        state = cells.states()[wanted.id]
        stored = cells.read(wanted.id, state).outcome
    except DamagedError as error:
        raise InputError(
            f"`cell` must be whole, but {cells.path(wanted.id)} is damaged: {error}; run the sweep again"
        ) from None
    batch = next(batch for batch in grid.batches if wanted in batch.cells)
    with executor_of(executor) as workers:
        task = _task(grid, root, batch, workers.expendable)
        again = (
            workers.client.submit(compute, task).result() if isinstance(workers, Cluster) else compute(task)
        )
    return Comparison(grid.label(wanted), stored, again[wanted.id], versions_differ(manifest["versions"]))


class Comparison:
    """A cell as it was stored and as it came out again."""

    def __init__(self, label: str, stored: Outcome, again: Outcome, versions: str):
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


def _grid(config: Any) -> Grid:
    if isinstance(config, Grid):
        return config
    return (
        grids.declare(config, "sweep")
        if isinstance(config, Mapping)
        else grids.read(as_path(config, "config"))
    )


def _task(grid: Grid, root: Path, batch: Batch, expendable: bool) -> Task:
    cells = tuple((cell.id, cell.settings) for cell in batch.cells)
    return Task(str(root.resolve()), batch.number, grid.kind, cells, batch.size, grid.time_limit, expendable)


def _compute_missing(grid: Grid, cells: Cells, executor: Any, progress: bool, say: Say) -> list[Report]:
    """Run the batches that lack a cell; the reports of cells that could not be written."""
    there = cells.states()
    todo = [batch for batch in grid.batches if any(cell.id not in there for cell in batch.cells)]
    if not todo:
        return []
    unwritten: list[Report] = []
    with executor_of(executor) as workers:
        tasks = [_task(grid, cells.root, batch, workers.expendable) for batch in todo]
        _say_where(workers, say)
        if isinstance(workers, Cluster):
            _check_shared(workers, cells)
        with Watch(grid, cells, workers, progress) as watch:
            for answer in workers.run(tasks):
                reports = [] if answer is None else _reports(cells, *answer)
                unwritten += [report for report in reports if report.state == "unwritten"]
                watch.update(reports)
    return unwritten


def _reports(cells: Cells, task: Task, answer: list[Report] | Exception) -> list[Report]:
    """What a task reports; if it took its workers down, its cells fail."""
    if not isinstance(answer, Exception):
        return answer
    sentence = f"its worker died, again and again: {type(answer).__name__}: {answer}"
    missing = {
        id: (task.kind, settings, failure(sentence)) for id, settings in task.cells if not cells.has(id)
    }
    refused = cells.write(missing)
    return [Report(id, "unwritten" if id in refused else "failed", sentence, 0.0) for id in missing]


def _say_where(workers: Here | Cluster, say: Say) -> None:
    if isinstance(workers, Cluster):
        say(f"{workers.count} workers at {workers.address}; dashboard: {workers.dashboard}")


def _check_shared(workers: Cluster, cells: Cells) -> None:
    """Workers write the cells themselves: they must see the directory."""
    seen = workers.client.run(_sees, str(cells.root.resolve()))
    blind = [address for address, there in seen.items() if not there]
    if blind:
        raise InputError(
            f"`store` must be a directory that all workers share, but {cells.root.resolve()} is not there"
            f" for {len(blind)} of {len(seen)} workers"
        )


def _sees(root: str) -> bool:
    return (Path(root) / "manifest.json").exists()


class Watch:
    """What people see of a sweep while it runs: a bar, the log, progress.json."""

    def __init__(self, grid: Grid, cells: Cells, workers: Here | Cluster, progress: bool):
        states = cells.states()
        self.cells, self.workers, self.total = cells, workers, len(grid.cells)
        self.failed = sum(state == FAILED for state in states.values())
        self.done = len(states) - self.failed
        self.labels = {cell.id: grid.label(cell) for cell in grid.cells}
        self.new, self.began, self.told = 0, time.monotonic(), 0.0
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[what]}"))
        self.bar = Progress(*columns, disable=not progress)

    def __enter__(self) -> "Watch":
        self.bar.__enter__()
        self.task = self.bar.add_task("sweep", total=self.total, what="starting")
        self.cells.log(f"{_now()} sweep starts: {self.total - self.done - self.failed} cells to do")
        self.update([])
        return self

    def __exit__(self, *exception: Any) -> None:
        self.update([], last=True)
        self.cells.log(f"{_now()} sweep ends: {self.done} done, {self.failed} failed")
        self.bar.__exit__(*exception)

    def update(self, reports: Sequence[Report], last: bool = False) -> None:
        """Take in what became of some cells."""
        for report in reports:
            self.done += report.state == "done"
            self.failed += report.state != "done"
            if report.state != "done":
                label = self.labels[report.id]
                self.cells.log(f"{_now()} {report.id} {report.state}: {label}: {report.sentence}")
        if reports:
            done = sum(report.state == "done" for report in reports)
            seconds = sum(report.seconds for report in reports)
            self.cells.log(f"{_now()} {done} of {len(reports)} cells done in {seconds:.3g} s of work")
        self.new += len(reports)
        now = time.monotonic()
        if last or reports or now - self.told > TELL_EVERY:
            self._tell(now, last)

    def _tell(self, now: float, last: bool) -> None:
        left = self.total - self.done - self.failed
        rate = self.new / max(now - self.began, 1e-9)
        remaining = left / rate if self.new else float("nan")
        running = 0 if last else min(left, self.workers.count)
        what = f"{self.done} done, {self.failed} failed, {running} running, {rate:.3g}/s, {_duration(remaining)} left"
        self.bar.update(self.task, completed=self.done + self.failed, what=what)
        if last or now - self.told > TELL_EVERY:
            self.told = now
            place_json(self.cells.root / PROGRESS, {
                "done": self.done, "failed": self.failed, "running": running, "declared": self.total,
                "cells_per_second": rate, "seconds_left": None if np.isnan(remaining) else remaining,
                "scheduler": self.workers.address, "dashboard": self.workers.dashboard,
            })  # fmt: skip


def _duration(seconds: float) -> str:
    """A time as a person says it."""
    if np.isnan(seconds):
        return "?"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
