"""The verb: compute what is missing of a declared sweep, watch it, and return it as one dataset."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from tokenfield.errors import InputError, require
from tokenfield.runs.files import as_path
from tokenfield.runs.lock import DirectoryLock
from tokenfield.solvers.ode import Adaptive
from tokenfield.sweeps import grid as grids
from tokenfield.sweeps.cells import FAILED, CellStore, DamagedError
from tokenfield.sweeps.dataset import collected
from tokenfield.sweeps.directory import locked, read_manifest, write_manifest
from tokenfield.sweeps.executors import LOST, Cluster, Here, executor_of
from tokenfield.sweeps.grid import Grid
from tokenfield.sweeps.objects import Measures, declare_runs, is_objects
from tokenfield.sweeps.result import failure
from tokenfield.sweeps.watch import Told, Watch
from tokenfield.sweeps.work import Report, Task, task_of

if TYPE_CHECKING:
    from distributed import Client

Say = Callable[[str], None]


def sweep(
    config: Any,
    executor: "int | str | Client | None" = None,
    *,
    tokens: Any = None,
    ts: Any = None,
    solver: Any = Adaptive(),  # noqa: B008 (frozen)
    measure: Measures = ("order_parameter",),
    snapshots: Sequence[int] | None = (),
    together: bool = False,
    store: str | Path | None = None,
    retry_failed: bool = False,
    progress: bool | Told = False,
    say: Say = lambda sentence: None,
) -> xr.Dataset:
    """Compute every cell of a sweep that is not there yet and return all of them as one dataset.

    Args:
        config: a TOML file or the same as a dictionary (docs/sweeps.md); or a model, a list of models or a
            mapping label → model; or a grid, as `declare_runs` gives it.
        executor: None for a worker process on every core; a number of workers, 0 for this process; a dask
            `Client`, or the address of a scheduler.
        tokens, ts, solver, measure, snapshots, together: for models, as `declare_runs` takes them: one object
            each, or lists that are axes.
        store: directory of the sweep; out/NAME if left out. An interrupted sweep goes on there.
        retry_failed: compute the cells that failed once more.
        progress: show a bar; or a function to be told the number of cells that are there, and of all.
        say: told what a person may want to know, a sentence at a time.

    Returns:
        The cells over the axes of the sweep. Cells that fail do not stop the others: they are rows with a
        sentence in `status`.

    In a script, call this below `if __name__ == "__main__":`, because worker processes import the script.
    """
    if is_objects(config):
        require(tokens is not None and ts is not None, "tokens and ts", "come with a model", "left out")
        config = declare_runs(config, tokens, ts, solver, measure, snapshots=snapshots, together=together)
    else:
        require(
            tokens is None and ts is None, "config", "be a model beside tokens and ts", type(config).__name__
        )
    grid = _grid(config)
    root = as_path(store, "store") if store is not None else Path("out") / (grid.store or "sweep")
    with locked(root, grid) as (cells, lock):
        for sentence in cells.set_aside_damaged():
            say(sentence)
            cells.log(sentence)
        if retry_failed:
            cells.forget_failures()
        unwritten = _compute_missing(grid, cells, lock, executor, progress, say)
        lock.require_held()
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


def _compute_missing(
    grid: Grid, cells: CellStore, lock: DirectoryLock, executor: Any, progress: bool | Told, say: Say
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
                lock.require_held()
                reports = [] if answer is None else _reports(cells, *answer)
                unwritten += [report for report in reports if report.state == "unwritten"]
                watch.update(reports)
    return unwritten


def _reports(cells: CellStore, task: Task, answer: list[Report] | Exception) -> list[Report]:
    """What a task reports; if it took its workers down, its cells fail."""
    if answer is LOST:
        return [_look(cells, id) for id, _ in task.cells]
    if not isinstance(answer, Exception):
        return answer
    sentence = f"its worker died, again and again: {str(answer).partition('. ')[0]}"
    missing = {
        id: (task.kind, task.maker.describe(config), failure(sentence))
        for id, config in task.cells
        if not cells.has(id)
    }
    refused = cells.write(missing)
    return [Report(id, "unwritten" if id in refused else "failed", sentence, 0.0) for id in missing]


def _look(cells: CellStore, id: str) -> Report:
    """What became of a cell whose report was lost, from the disk."""
    if cells.path(id).exists():
        return Report(id, "done", "", 0.0)
    try:
        sentence = cells.read(id, FAILED).result.status
    except (OSError, DamagedError):
        return Report(id, "unwritten", "its worker died before it could say why it was not written", 0.0)
    return Report(id, "failed", sentence, 0.0)


def _say_where(workers: Here | Cluster, say: Say) -> None:
    if isinstance(workers, Cluster):
        say(f"{workers.count} workers at {workers.address}; dashboard: {workers.dashboard}")


def _check_shared(workers: Cluster, cells: CellStore) -> None:
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
