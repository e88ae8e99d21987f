"""Trajectory: what a run saved, how it ended, what it cost, and the inputs that made it."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from tokenfield import store
from tokenfield.tokens import Tokens

#: Arrays with more entries than this are described by shape and hash instead of being listed.
LISTED_ENTRIES = 4096


class Trajectory(eqx.Module):
    """The saved part of a run.

    `ts` (times,): when functions were measured; `x` (snapshots, n, d): the tokens at `snapshot_ts`;
    `weights` (n,); `measured`: name → array with a leading time axis; `status`: a sentence;
    `complete`: whether the last time was reached; `stats`: steps, rejected, evaluations, seconds, ...;
    `inputs`: the model, solver and settings as plain data.
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

    def tokens(self, k: int) -> Tokens:
        """The k-th saved snapshot; −1 is the last."""
        return Tokens(self.x[k], self.weights)

    def measure(self, fn: Callable[[Tokens], Any]) -> np.ndarray:
        """fn of every saved snapshot, stacked along a leading time axis."""
        return np.stack([np.asarray(fn(self.tokens(k))) for k in range(len(self.snapshot_ts))])

    def dataset(self) -> xr.Dataset:
        """The same as an xarray Dataset with the axes time, snapshot, token, dim."""
        variables = {"x": (axes("x", 3), self.x), "weights": (("token",), self.weights)}
        for name, values in self.measured.items():
            variables[name] = (axes(name, np.ndim(values)), values)
        coords = {"time": ("time", self.ts), "snapshot": ("snapshot", self.snapshot_ts)}
        return xr.Dataset({k: (a, np.asarray(v)) for k, (a, v) in variables.items()}, coords)

    def save(self, path: str | Path) -> None:
        """Write the trajectory as a new store directory (zarr and a manifest); `load` reads it back."""
        path = Path(path)
        records = {"x": np.asarray(self.x)} | {k: np.asarray(v) for k, v in self.measured.items()}
        layout = store.Layout({k: (v.shape, axes(k, v.ndim)) for k, v in records.items()})
        manifest = {"inputs": self.inputs, "reached": 0, "written": dict.fromkeys(records, 0)}
        store.create(path, layout, fixed_arrays(self.ts, self.snapshot_ts, self.weights), manifest)
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
    path = Path(path)
    manifest = store.read_manifest(path)
    written: dict[str, int] = manifest["written"]
    data = store.read_data(path, written)
    measured = {name: data[name].values[:count] for name, count in written.items() if name != "x"}
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
    )


def fixed_arrays(ts: Any, snapshot_ts: Any, weights: Any) -> Mapping[str, Any]:
    """The arrays of a store that are known before the first step."""
    return {
        "time": (np.asarray(ts), ("time",)),
        "snapshot": (np.asarray(snapshot_ts), ("snapshot",)),
        "weights": (np.asarray(weights), ("token",)),
    }


def axes(name: str, rank: int) -> tuple[str, ...]:
    """Names of the axes of a stored array."""
    if name == "x":
        return ("snapshot", "token", "dim")
    return ("time", *(f"{name}_{i}" for i in range(1, rank)))


def plain(value: Any) -> Any:
    """The value as JSON-able data: modules by their class and fields, large arrays by their hash."""
    if isinstance(value, eqx.Module):
        fields = {k: plain(v) for k, v in vars(value).items()}
        return {"kind": type(value).__name__} | fields
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        array = np.asarray(value)
        return _jsonable(array.tolist()) if array.size <= LISTED_ENTRIES else fingerprint(array)
    if callable(value):
        return f"{value.__module__}.{value.__qualname__}"
    return _jsonable(value)


def fingerprint(array: np.ndarray) -> dict[str, Any]:
    """Shape and hash of an array."""
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return {"shape": list(array.shape), "sha256": digest}


def _jsonable(value: Any) -> Any:
    """Infinity has no place in JSON; it is written as text."""
    if isinstance(value, list):
        return [_jsonable(v) for v in value]
    return repr(value) if isinstance(value, float) and not np.isfinite(value) else value
