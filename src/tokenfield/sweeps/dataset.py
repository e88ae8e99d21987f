"""A sweep as one labelled dataset, complete or not, and as files for other programs."""

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from tokenfield.errors import InputError, RunError, require
from tokenfield.runs.files import as_path
from tokenfield.runs.trajectory import Trajectory
from tokenfield.sweeps.axes import Axis
from tokenfield.sweeps.cells import DONE, FAILED, CellStore, DamagedError, StoredCell
from tokenfield.sweeps.directory import is_sweep, open_grid
from tokenfield.sweeps.grid import Grid
from tokenfield.sweeps.keys import keys_of

#: Values of `state`.
MISSING, COMPLETE, FAILURE = 0, 1, 2
ENDINGS = (".nc", ".csv", ".parquet")


def open_sweep(path: str | Path) -> xr.Dataset:
    """The cells of a sweep as one dataset, at any time: the swept axes as coordinates, NaN where none is yet.

    Beside what was measured: `state` (0 missing, 1 done, 2 failed), `status` (a sentence), `cell` (its hash),
    `steps` and `rejected`, or `resolved` (1 or 0) for densities. The attributes hold all it takes to
    repeat the sweep.
    """
    root = as_path(path, "path")
    if not root.exists():
        raise InputError(f"`path` must be a sweep, but {root} does not exist")
    if not is_sweep(root):
        raise InputError(f"`path` must be a sweep, but {root} is none")
    return collected(root, *open_grid(root), {})


def collected(
    root: Path, grid: Grid, manifest: Mapping[str, Any], unwritten: Mapping[str, str]
) -> xr.Dataset:
    """The cells of a sweep as one dataset.

    Args:
        root: the directory of the sweep.
        grid: its declaration.
        manifest: the manifest that is stored there.
        unwritten: hash → sentence, of cells that could not be stored.

    Returns:
        The dataset, with NaN where there is nothing yet.
    """
    stored, sentences = _read(CellStore(root), grid)
    sentences |= unwritten
    variables = _arrays(grid, stored)
    dims, shape = tuple(axis.name for axis in grid.axes), grid.shape
    state, status = np.zeros(shape, np.int8), np.full(shape, "not computed yet", object)
    ids, counts = np.full(shape, "", object), {}
    for cell in grid.cells:
        ids[cell.where] = cell.id
        found = stored.get(cell.id)
        if found is not None:
            state[cell.where] = COMPLETE if found.result.complete else FAILURE
            status[cell.where] = found.result.status
            for name, count in found.result.counts.items():
                counts.setdefault(name, np.full(shape, np.nan))[cell.where] = count
        elif cell.id in sentences:
            state[cell.where], status[cell.where] = FAILURE, sentences[cell.id]
    facts = {"state": state, "status": status.astype(str), "cell": ids.astype(str)} | counts
    variables |= {name: (dims, values) for name, values in facts.items()}
    return xr.Dataset(variables, _coordinates(grid.axes), _attributes(grid, manifest, stored))


def _read(cells: CellStore, grid: Grid) -> tuple[dict[str, StoredCell], dict[str, str]]:
    """All cells that can be read, and a sentence for each that cannot."""
    states = cells.states()
    stored, sentences = {}, {}
    for cell in grid.cells:
        if cell.id not in states:
            continue
        try:
            stored[cell.id] = cells.read(cell.id, states[cell.id])
        except DamagedError as error:
            name = cells.path(cell.id, states[cell.id]).name
            sentences[cell.id] = f"{name} is damaged ({error}); run the sweep again to compute it anew"
    return stored, sentences


def _arrays(grid: Grid, stored: Mapping[str, StoredCell]) -> dict[str, Any]:
    """Each array over all cells, padded with NaN. Equal times become one coordinate."""
    dims = tuple(axis.name for axis in grid.axes)
    sizes: dict[str, tuple[int, ...]] = {}
    names: dict[str, tuple[str, ...]] = {}
    for found in stored.values():
        for name, values in found.result.arrays.items():
            size = sizes.get(name, (0,) * values.ndim)
            sizes[name] = tuple(max(a, b) for a, b in zip(size, values.shape, strict=True))
            names[name] = found.result.axes[name]
    arrays = {name: np.full((*grid.shape, *size), np.nan) for name, size in sizes.items()}
    for cell in grid.cells:
        if cell.id in stored:
            for name, values in stored[cell.id].result.arrays.items():
                arrays[name][(*cell.where, *(slice(s) for s in values.shape))] = values
    shared = {name: _shared(arrays[name], len(dims)) for name in ("time", "snapshot") if name in arrays}
    made: dict[str, Any] = {}
    for name, values in arrays.items():
        if shared.get(name) is not None:
            made[name] = ((name,), shared[name])
        else:
            # times that differ from cell to cell cannot be a coordinate; then records are counted
            inner = [
                f"{axis}_index" if axis in shared and shared[axis] is None else axis for axis in names[name]
            ]
            made[f"{name}s" if name in shared else name] = ((*dims, *inner), values)
    return made


def _shared(values: np.ndarray, leading: int) -> np.ndarray | None:
    """The one row that all cells have, as far as they got; None if they differ."""
    rows = values.reshape(-1, values.shape[-1]) if leading else values[None]
    full = rows[~np.isnan(rows).any(axis=1)]
    if not len(full):
        return None
    same = np.isnan(rows) | (rows == full[0])
    return full[0] if same.all() else None


def _coordinates(axes: tuple[Axis, ...]) -> dict[str, Any]:
    coordinates = {}
    for axis in axes:
        for k, name in enumerate(axis.coordinates):
            coordinates[name] = (axis.name, _labels([point[k] for point in axis.points]))
    return coordinates


def _labels(values: list[Any]) -> np.ndarray:
    """Numbers as numbers, infinity included; anything else as text."""
    number = [isinstance(v, int | float) and not isinstance(v, bool) for v in values]
    infinite = [v in ("inf", "-inf") for v in values]
    if all(a or b for a, b in zip(number, infinite, strict=True)) and any(number):
        array = np.array([float(v) for v in values])
        whole = all(isinstance(v, int) for v in values)
        return array.astype(np.int64) if whole else array
    return np.array([v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values])


def _attributes(grid: Grid, manifest: Mapping[str, Any], stored: Mapping[str, StoredCell]) -> dict[str, str]:
    """Where the numbers come from, as text."""
    hosts = {json.dumps(found.host, ensure_ascii=False) for found in stored.values()}
    facts = {
        "format": manifest["format"],
        "declaration": json.dumps(manifest["declaration"], ensure_ascii=False),
        "versions": json.dumps(manifest["versions"]),
        "hosts": f"[{', '.join(sorted(hosts))}]",
    }
    whole = grid.maker.whole
    keys = {} if whole is None else {id: keys_of(whole, found.settings) for id, found in stored.items()}
    return facts | {"keys": json.dumps({id: each for id, each in keys.items() if each}, sort_keys=True)}


def trajectory(cell: xr.Dataset) -> Trajectory:
    """One cell of a sweep of `simulate`, as `dataset.isel(...)` or `sel` gives it, as the run it was.

    The tokens are those at the times that `run.snapshots` kept; all diagnostics take it.
    """
    require(
        isinstance(cell, xr.Dataset) and "state" in cell,
        "cell",
        "be a cell of a sweep's dataset",
        type(cell).__name__,
    )
    require(
        cell.state.ndim == 0, "cell", "be one cell", f"a grid over {', '.join(map(str, cell.state.dims))}"
    )
    require("x" in cell, "cell", "hold tokens (`run.snapshots` says at which times)", "without any")
    # cells of several sizes, dimensions and lengths stand in one array, padded with NaN
    x, there = cell.x.values, np.isfinite(cell.x.values)
    x = x[np.ix_(*(there.any(axis=axes) for axes in ((1, 2), (0, 2), (0, 1))))]
    measured = {
        str(name): values.values[np.isfinite(values.values).reshape(len(values), -1).any(axis=1)]
        for name, values in cell.data_vars.items()
        if values.ndim and values.dims[0] in ("time", "time_index") and name != "times"
    }
    snapshots = _times(cell, "snapshot")[: len(x)]
    ts = _times(cell, "time")[: max(map(len, measured.values()))] if measured else snapshots
    return Trajectory(
        ts=ts,
        x=x,
        weights=cell.token_weights.values[: x.shape[1]],
        snapshot_ts=snapshots,
        measured=measured,
        stats={},
        inputs={},
        status=str(cell.status.values),
        complete=int(cell.state) == COMPLETE,
    )


def _times(cell: xr.Dataset, name: str) -> np.ndarray:
    """Those that all cells share, or the cell's own."""
    return cell[name if name in cell else f"{name}s"].values


# -- files for other programs


def exportable(path: str | Path) -> Path:
    """The path of a file that `export` can write."""
    target = as_path(path, "path")
    if target.suffix not in ENDINGS:
        raise InputError(f"`path` must end with one of {', '.join(ENDINGS)}, but was {target}")
    if target.suffix == ".parquet" and not _parquet():
        raise InputError("`path` must not end with .parquet without the package pyarrow; pip install pyarrow")
    return target


def export(dataset: xr.Dataset, path: str | Path) -> Path:
    """Write a dataset as NetCDF (.nc, everything), or as a table of cells and times (.csv, .parquet)."""
    target = exportable(path)
    draft = target.with_name(f".{target.name}.draft")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".nc":
            dataset.to_netcdf(draft, engine="scipy")
        elif target.suffix == ".csv":
            table(dataset).to_csv(draft, index=False)
        else:
            table(dataset).to_parquet(draft, index=False)
        draft.replace(target)
    except OSError as error:
        raise RunError(f"could not write {target}: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return target


def failures(dataset: xr.Dataset) -> list[str]:
    """The sentences of the cells that are not done, in the order of the grid."""
    return [
        str(status)
        for state, status in zip(dataset.state.values.ravel(), dataset.status.values.ravel(), strict=True)
        if state != COMPLETE
    ]


def table(dataset: xr.Dataset) -> pd.DataFrame:
    """One row for each cell and time; vectors as a column per component; tokens and nodes are left out."""
    flat, tokens = {}, {"x", "token_weights", "rho", "nodes", "masses", "snapshot", "snapshots"}
    axes = set(dataset["state"].dims)
    for name, values in dataset.data_vars.items():
        if name in tokens:
            continue
        inner = [d for d in values.dims if d not in axes and d not in ("time", "time_index")]
        parts = values.stack(component=inner).T if inner else [values]
        for k, part in enumerate(parts):
            part = part.drop_vars([*inner, "component"], errors="ignore")
            flat[f"{name}_{k + 1}" if inner else name] = part
    # one cell and no axes: still a table of one row per time
    rows = xr.Dataset(flat)
    if not rows.sizes:
        return pd.DataFrame({name: [values.item()] for name, values in rows.data_vars.items()})
    return rows.to_dataframe().reset_index().drop(columns="time_index", errors="ignore")


def _parquet() -> bool:
    return importlib.util.find_spec("pyarrow") is not None


def summary(root: Path) -> dict[str, Any]:
    """Counts and failures of a sweep, for people."""
    grid, manifest = open_grid(root)
    cells = CellStore(root)
    states = cells.states()
    mine = [states.get(cell.id) for cell in grid.cells]
    failures = []
    for cell in grid.cells:
        if states.get(cell.id) == FAILED:
            try:
                sentence = cells.read(cell.id, FAILED).result.status
            except DamagedError as error:
                sentence = f"its file is damaged ({error})"
            failures.append((cell.id, grid.label(cell), sentence))
    return {
        "axes": {axis.name: len(axis.points) for axis in grid.axes},
        "declared": len(grid.cells),
        "done": mine.count(DONE),
        "failed": mine.count(FAILED),
        "missing": mine.count(None),
        "failures": failures,
        "versions": manifest["versions"],
        "host": manifest["host"],
    }


def verify(root: Path) -> None:
    """Read every cell of a sweep and refuse the first that is not what was written."""
    _, sentences = _read(CellStore(root), open_grid(root)[0])
    for sentence in sentences.values():
        raise InputError(f"`path` must be a sweep as it was stored, but in {root} {sentence}")
