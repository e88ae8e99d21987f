"""What every benchmark shares: a row of the table, timing side by side, facts about the machine."""

import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import jax
import numpy as np

HEADER = ("topic", "case", "measured", "required", "verdict")


@dataclass(frozen=True)
class Row:
    """One line of the table; `passed` is None where nothing is required or nothing could be measured."""

    topic: str
    case: str
    measured: str
    required: str = ""
    passed: bool | None = None

    def cells(self) -> tuple[str, ...]:
        """The line as text."""
        verdict = {None: "", True: "pass", False: "FAIL"}[self.passed]
        return (self.topic, self.case, self.measured, self.required, verdict)


@dataclass(frozen=True)
class Times:
    """Wall-clock seconds of the rounds of one competitor."""

    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        """Least time: what the machine can do when nobody disturbs it."""
        return min(self.seconds)

    @property
    def middle(self) -> float:
        """Median time."""
        return median(self.seconds)


def race(competitors: dict[str, Callable[[], object]], rounds: int) -> dict[str, Times]:
    """Time the competitors in turn, round by round, so that a noisy machine hurts all alike."""
    for run in competitors.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in competitors}
    for _ in range(rounds):
        for name, run in competitors.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: Times(tuple(s)) for name, s in seconds.items()}


def peak() -> float:
    """Peak resident memory of this process in MB."""
    status = Path("/proc/self/status")
    if status.exists():  # on Linux ru_maxrss of a child starts at the peak of its parent
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 1e6 if sys.platform == "darwin" else most * 1024 / 1e6  # bytes there, kilobytes here


def machine() -> str:
    """Cores and versions; nothing that names the machine or its user."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores, jax {jax.__version__}, numpy {np.__version__}, float64"
