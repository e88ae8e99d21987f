"""Trajectory: what a run saved, how it ended, what it cost, and the inputs that made it."""

import operator
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from tokenfield.errors import InputError, require
from tokenfield.laws.tokens import Tokens
from tokenfield.models.base import Model
from tokenfield.runs import store
from tokenfield.runs.axes import SNAPSHOT, axes
from tokenfield.runs.contents import contents_of, read_data, read_weights
from tokenfield.runs.files import as_path
from tokenfield.runs.manifest import read_manifest
from tokenfield.runs.plain import large_arrays, plain

if TYPE_CHECKING:
    import xarray as xr


class Trajectory(eqx.Module):
    """The saved part of a run.

    `ts` (times,): when functions were measured; `x` (snapshots, n, d): directions of the tokens at
    `snapshot_ts`; `radii` (snapshots, n): their lengths in a free space, else None; `weights` (n,);
    `model`: what moved them, None where a store could not tell; `measured`: name → array with a leading
    time axis; `status`: a sentence; `complete`: whether the last time was reached; `stats`: steps, rejected,
    evaluations, seconds, ...; `inputs`: the model, solver and settings as plain data.
    """

    ts: Float[Array | np.ndarray, "times"]
    x: Float[Array | np.ndarray, "snapshots n d"]
    weights: Float[Array | np.ndarray, "n"]
    snapshot_ts: Float[Array | np.ndarray, "snapshots"]
    measured: Mapping[str, Float[Array | np.ndarray, "times ..."]]
    stats: dict[str, Any]
    inputs: dict[str, Any] = eqx.field(static=True)
    status: str = eqx.field(static=True)
    complete: bool = eqx.field(static=True)
    radii: Float[Array | np.ndarray, "snapshots n"] | None = None
    model: Model | None = None

    def tokens(self, k: int) -> Tokens:
        """The k-th saved snapshot; −1 is the last."""
        at = as_index(k, len(self.x), "snapshots")
        return Tokens(self.x[at], self.weights, None if self.radii is None else self.radii[at])

    def measure(self, fn: Callable[[Tokens], Any]) -> np.ndarray:
        """fn of every saved snapshot, stacked along a leading time axis."""
        require(len(self.snapshot_ts) > 0, "trajectory", "hold snapshots to be measured", "without any")
        return measured(fn, (self.tokens(k) for k in range(len(self.snapshot_ts))))

    def dataset(self) -> "xr.Dataset":
        """The same as an xarray Dataset with the axes time, snapshot, token, dim."""
        variables: dict[str, Any] = {"x": (axes("x", 3), self.x), "weights": (("token",), self.weights)}
        if self.radii is not None:
            variables["radii"] = (axes("radii", 2), self.radii)
        for name, values in self.measured.items():
            variables[name] = (axes(name, np.ndim(values)), values)
        import xarray as xr  # takes a second

        coords = {"time": ("time", self.ts), "snapshot": ("snapshot", self.snapshot_ts)}
        return xr.Dataset({k: (a, np.asarray(v)) for k, (a, v) in variables.items()}, coords)

    def save(self, path: str | Path) -> None:
        """Write the trajectory as a new store directory (zarr and a manifest); `load` reads it back."""
        path = as_path(path, "path")
        lengths = {} if self.radii is None else {"radii": np.asarray(self.radii)}
        records = {"x": np.asarray(self.x)} | lengths | {k: np.asarray(v) for k, v in self.measured.items()}
        layout = store.Layout({k: (v.shape, axes(k, v.ndim)) for k, v in records.items()})
        manifest = {"inputs": plain(self.inputs), "reached": 0, "written": dict.fromkeys(records, 0)}
        fixed = fixed_arrays(self.ts, self.snapshot_ts, self.weights)
        store.create(path, layout, fixed, manifest, large_arrays(self.model))
        writer = store.Writer(path)
        for name, values in records.items():
            writer.rows(name, 0, values)
        counts = {name: len(values) for name, values in records.items()}
        writer.commit(
            None,
            reached=len(self.ts),
            written=counts,
            status=self.status,
            complete=self.complete,
            stats=plain(self.stats),
        )
        writer.close()


def load(path: str | Path) -> Trajectory:
    """Read a stored run, whole or cut short; of a killed run, what it had finished."""
    from tokenfield.runs.rebuilding import rebuilt  # knows every model; only loading has to

    path = as_path(path, "path")
    manifest = read_manifest(path)
    contents = contents_of(manifest)
    data, written = read_data(path, contents), contents.written
    _refuse_other_snapshots(path, data, manifest["reached"], written["x"])
    measured = {name: data[name].values[:count] for name, count in written.items() if name not in SNAPSHOT}
    return Trajectory(
        ts=data["time"].values[: manifest["reached"]],
        x=data["x"].values[: written["x"]],
        weights=data["weights"].values,
        snapshot_ts=data["snapshot"].values[: written["x"]],
        measured=measured,
        stats=manifest.get("stats", {}),
        inputs=manifest["inputs"],
        status=manifest.get("status", "the run was interrupted; resume it to go on"),
        complete=manifest.get("complete", False),
        radii=data["radii"].values[: written["radii"]] if "radii" in written else None,
        model=rebuilt(manifest["inputs"].get("model"), read_weights(path)),
    )


def _refuse_other_snapshots(path: Path, data: "xr.Dataset", reached: int, written: int) -> None:
    """There is a snapshot for each time of a snapshot that was reached."""
    times, snapshots = data["time"].values[:reached], data["snapshot"].values
    due = int(np.sum(snapshots <= times[-1])) if reached else 0
    if written != due:
        raise InputError(
            f"`path` must be a stored run whose counts agree, but {path} has {written} snapshots where"
            f" {due} are due after {reached} times"
        )


def as_index(k: Any, count: int, of: str) -> int:
    """k as an index; −1 is the last.

    Args:
        k: what the user gave.
        count: how many things there are.
        of: what they are called in a sentence.
    """
    try:
        inside = -count <= operator.index(k) < count
    except TypeError:
        inside = False
    require(inside, "k", f"be an index of the {count} {of}", repr(k))
    return operator.index(k)


def measured(fn: Callable[[Tokens], Any], laws: Iterable[Tokens]) -> np.ndarray:
    """fn of each law, stacked along a leading axis."""
    require(callable(fn), "fn", "be a function of the tokens", repr(fn))
    rows = [as_numbers(fn(law), "fn") for law in laws]
    shapes = sorted({row.shape for row in rows})
    require(len(shapes) == 1, "fn", "return the same shape at every time", f"returning {shapes}")
    return np.stack(rows)


def as_numbers(value: Any, name: str) -> np.ndarray:
    """What a function measured, as an array of real numbers."""
    try:
        array = np.asarray(value)
    except ValueError:  # a ragged list
        array = np.asarray(None)
    require(array.dtype.kind in "biuf", name, "return real numbers", f"returning {value!r}")
    return array


def fixed_arrays(ts: Any, snapshot_ts: Any, weights: Any) -> Mapping[str, Any]:
    """Values and axes of the `FIXED` arrays.

    Args:
        ts: times (times,).
        snapshot_ts: times of snapshots (snapshots,).
        weights: of the tokens (n,).
    """
    return {
        "time": (np.asarray(ts), ("time",)),
        "snapshot": (np.asarray(snapshot_ts), ("snapshot",)),
        "weights": (np.asarray(weights), ("token",)),
    }
