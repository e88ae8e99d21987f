"""The verb: compute what is missing of a declared sweep, watch it, and return it as one dataset."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from tokenfield.errors import InputError
from tokenfield.store import as_path
from tokenfield.sweep import grid as grids
from tokenfield.sweep.cells import FAILED, Cells, DamagedError, locked, read_manifest, write_manifest
from tokenfield.sweep.dataset import collected
from tokenfield.sweep.executors import LOST, Cluster, Here, executor_of
from tokenfield.sweep.grid import Batch, Grid
from tokenfield.sweep.outcome import failure
from tokenfield.sweep.watch import Told, Watch
from tokenfield.sweep.work import Report, Task

if TYPE_CHECKING:
    from distributed import Client

Say = Callable[[str], None]


def sweep(
    config: str | Path | Mapping[str, Any] | Grid,
    executor: "int | str | Client | None" = None,
    *,
    store: str | Path | None = None,
    retry_failed: bool = False,
    progress: bool | Told = False,
    say: Say = lambda sentence: None,
) -> xr.Dataset:
    """Compute every cell of a sweep that is not there yet and return all of them as one dataset.

    Arguments:
        config: a TOML file or the same as a dictionary (docs/sweeps.md).
        executor: None for a worker process on every core; a number of workers, 0 for this process; a dask
            `Client`, or the address of a scheduler.
        store: directory of the sweep; out/NAME if left out. An interrupted sweep goes on there.
        retry_failed: compute the cells that failed once more.
        progress: show a bar; or a function to be told the number of cells that are there, and of all.
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
    return collected(root, grid, read_manifest(root), {report.id: report.sentence for report in unwritten})


def _grid(config: Any) -> Grid:
    if isinstance(config, Grid):
        return config
    return (
        grids.declare(config, "sweep")
        if isinstance(config, Mapping)
        else grids.read(as_path(config, "config"))
    )


def task_of(grid: Grid, root: Path, batch: Batch, expendable: bool) -> Task:
    """A batch as it is sent to a worker."""
    cells = tuple((cell.id, cell.settings) for cell in batch.cells)
    return Task(str(root.resolve()), batch.number, grid.kind, cells, batch.size, grid.time_limit, expendable)


def _compute_missing(
    grid: Grid, cells: Cells, executor: Any, progress: bool | Told, say: Say
) -> list[Report]:
    """Run the batches that lack a cell; the reports of cells that could not be written."""
    there = cells.states()
    todo = [batch for batch in grid.batches if any(cell.id not in there for cell in batch.cells)]
    if not todo:
        return []
    unwritten: list[Report] = []
    with executor_of(executor) as workers, workers.losses():
        tasks = [task_of(grid, cells.root, batch, workers.expendable) for batch in todo]
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
    if answer is LOST:
        return [_look(cells, id) for id, _ in task.cells]
    if not isinstance(answer, Exception):
        return answer
    sentence = f"its worker died, again and again: {str(answer).partition('. ')[0]}"
    missing = {
        id: (task.kind, settings, failure(sentence)) for id, settings in task.cells if not cells.has(id)
    }
    refused = cells.write(missing)
    return [Report(id, "unwritten" if id in refused else "failed", sentence, 0.0) for id in missing]


def _look(cells: Cells, id: str) -> Report:
    """What became of a cell whose report was lost, from the disk."""
    if cells.path(id).exists():
        return Report(id, "done", "", 0.0)
    try:
        sentence = cells.read(id, FAILED).outcome.status
    except (OSError, DamagedError):
        return Report(id, "unwritten", "its worker died before it could say why it was not written", 0.0)
    return Report(id, "failed", sentence, 0.0)


def _say_where(workers: Here | Cluster, say: Say) -> None:
    if isinstance(workers, Cluster):
        say(f"{workers.count} workers at {workers.address}; dashboard: {workers.dashboard}")


def _check_shared(workers: Cluster, cells: Cells) -> None:
    """Workers write the cells themselves: they must see the directory."""
    # a worker that dies at this moment has nothing to say
    seen: Any = workers.client.run(_sees, str(cells.root.resolve()), on_error="ignore")
    blind = [address for address, there in seen.items() if not there]
    if blind:
        raise InputError(
            f"`store` must be a directory that all workers share, but {cells.root.resolve()} is not there"
            f" for {len(blind)} of {len(seen)} workers"
        )


def _sees(root: str) -> bool:
    return (Path(root) / "manifest.json").exists()
