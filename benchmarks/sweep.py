"""Sweeps: what a tiny cell costs beyond its own work, and what a second worker brings."""

import os
import tempfile
import time
from pathlib import Path

import tokenfield as tkf
from report import Row
from tokenfield.sweeps.cells import CellStore

TINY, LIMIT_MS = 10_000, 3.0
LARGE, LEAST_SPEEDUP = 160, 1.7


def rows() -> list[Row]:
    return [_overhead(), _speedup()]


def _grid(n: int, steps: int, seeds: int) -> dict:
    return {
        "weights": {"identity": 3},
        "model": {"kind": "softmax", "beta": 4.0},
        "initial": {"law": "uniform", "n": n, "d": 3},
        "times": {"stop": float(steps), "count": 3},
        "solver": {"kind": "layers", "step": 1.0},
        "sweep": {"seeds": seeds},
    }


def _swept(grid: dict, workers: int) -> tuple[float, float]:
    """Seconds from the declaration to the dataset, and seconds of work in the cells."""
    with tempfile.TemporaryDirectory() as place:
        start = time.perf_counter()
        data = tkf.sweep(grid, workers, store=Path(place) / "sweep")
        wall = time.perf_counter() - start
        assert (data.state == 1).all()
        cells = CellStore(Path(place) / "sweep")
        return wall, sum(cells.read(str(id)).result.seconds for id in data.cell.values.ravel())


def _overhead() -> Row:
    """One worker, so that nothing of what is not work hides behind another's work."""
    wall, work = _swept(_grid(8, 4, TINY), 1)
    each = 1000 * (wall - work) / TINY
    case = f"{TINY} tiny cells, one worker: all but their {1000 * work / TINY:.2f} ms of work, start included"
    return Row("sweep", case, f"{each:.2f} ms per cell", f"< {LIMIT_MS:g} ms", each < LIMIT_MS)


def _speedup() -> Row:
    """From start to dataset, spawning and compiling included: some ten seconds, however many workers."""
    grid = _grid(1000, 400, LARGE)
    seconds = {workers: _swept(grid, workers)[0] for workers in (1, 2)}
    ratio = seconds[1] / seconds[2]
    case = f"{LARGE} cells of 1000 tokens: one worker {seconds[1]:.0f} s, two {seconds[2]:.0f} s"
    load = f", load before {os.getloadavg()[2]:.1f}"
    return Row("sweep", case + load, f"{ratio:.2f} times", f"≥ {LEAST_SPEEDUP}", ratio >= LEAST_SPEEDUP)


if __name__ == "__main__":
    for row in rows():
        print(row)
