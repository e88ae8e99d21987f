"""What people see of a sweep while it runs: a bar, the log, progress.json."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.progress import BarColumn, Progress, TextColumn

from tokenfield.sweeps.cells import FAILED, CellStore, place_json
from tokenfield.sweeps.directory import PROGRESS
from tokenfield.sweeps.executors import Cluster, Here
from tokenfield.sweeps.grid import Grid
from tokenfield.sweeps.work import Report

#: Seconds between two updates of progress.json.
TELL_EVERY = 1.0
#: Told how many cells are there, done or failed, and how many were declared.
Told = Callable[[int, int], None]


class Watch:
    """What people see of a sweep while it runs: a bar, the log, progress.json."""

    def __init__(self, grid: Grid, cells: CellStore, workers: Here | Cluster, progress: bool | Told):
        states = cells.states()
        self.cells, self.workers, self.total = cells, workers, len(grid.cells)
        self.failed = sum(state == FAILED for state in states.values())
        self.done = len(states) - self.failed
        self.grid, self.per_task = grid, len(grid.cells) / len(grid.batches)
        self.new, self.began, self.told = 0, time.monotonic(), 0.0
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[what]}"))
        self.bar = Progress(*columns, disable=progress is not True)
        self.tell = progress if callable(progress) else None

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
                label = self.grid.label(self.grid.find(report.id))
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
        running = 0 if last else min(left, round(self.workers.count * self.per_task))
        what = (
            f"{self.done} done, {self.failed} failed, {running} running, {rate:.3g}/s,"
            f" {_duration(remaining)} left"
        )
        self.bar.update(self.task, completed=self.done + self.failed, what=what)
        if self.tell is not None:
            self.tell(self.done + self.failed, self.total)
        if last or now - self.told > TELL_EVERY:
            self.told = now
            place_json(
                self.cells.root / PROGRESS,
                {
                    "done": self.done,
                    "failed": self.failed,
                    "running": running,
                    "declared": self.total,
                    "cells_per_second": rate,
                    "seconds_left": None if np.isnan(remaining) else remaining,
                    "scheduler": self.workers.address,
                    "dashboard": self.workers.dashboard,
                },
            )


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
