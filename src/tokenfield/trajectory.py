"""Trajectory: what a run saved, how it ended, what it cost, and the inputs that made it."""

import hashlib
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from tokenfield import store
from tokenfield.errors import require
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
        return Tokens(self.x[as_index(k, len(self.x), "snapshots")], self.weights)

    def measure(self, fn: Callable[[Tokens], Any]) -> np.ndarray:
        """fn of every saved snapshot, stacked along a leading time axis."""
        require(len(self.snapshot_ts) > 0, "trajectory", "hold snapshots to be measured", "without any")
        return measured(fn, (self.tokens(k) for k in range(len(self.snapshot_ts))))

    def dataset(self) -> xr.Dataset:
        """The same as an xarray Dataset with the axes time, snapshot, token, dim."""
        variables = {"x": (axes("x", 3), self.x), "weights": (("token",), self.weights)}
        for name, values in self.measured.items():
            variables[name] = (axes(name, np.ndim(values)), values)
        coords = {"time": ("time", self.ts), "snapshot": ("snapshot", self.snapshot_ts)}
        return xr.Dataset({k: (a, np.asarray(v)) for k, (a, v) in variables.items()}, coords)

    def save(self, path: str | Path) -> None:
        """Write the trajectory as a new store directory (zarr and a manifest); `load` reads it back."""
        path = store.as_path(path, "path")
        records = {"x": np.asarray(self.x)} | {k: np.asarray(v) for k, v in self.measured.items()}
        layout = store.Layout({k: (v.shape, axes(k, v.ndim)) for k, v in records.items()})
        manifest = {"inputs": plain(self.inputs), "reached": 0, "written": dict.fromkeys(records, 0)}
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
    path = store.as_path(path, "path")
    manifest = store.read_manifest(path)
    # the snapshots are always there, if only with 0 records
    written: dict[str, int] = {"x": 0} | manifest["written"]
    data = store.read_data(path, written, FIXED)
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


#: The arrays of a store that are known before the first step.
FIXED = ("time", "snapshot", "weights")


def as_index(k: Any, count: int, of: str) -> int:
    """k as an index of `count` things; −1 is the last."""
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
    """Values and axes of the `FIXED` arrays."""
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
    """The value as JSON-able data: modules by their class and fields, large arrays by their hash.

    Functions are told apart by name and program. What has no such form is left as it is.
    """
    if isinstance(value, eqx.Module):
        fields = {k: plain(v) for k, v in vars(value).items()}
        return {"kind": type(value).__name__} | fields | (_program(value) if callable(value) else {})
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain(v) for v in value]
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        array = np.asarray(value)
        return _jsonable(array.tolist()) if array.size <= LISTED_ENTRIES else fingerprint(array)
    if isinstance(value, PurePath):
        return str(value)
    if callable(value):
        named = value if hasattr(value, "__qualname__") else type(value)
        return {"function": f"{named.__module__}.{named.__qualname__}"} | _program(value)
    return _jsonable(value)


def _program(fn: Callable[..., Any]) -> dict[str, str]:
    """Hash of what a JAX function of one number computes; nothing for other functions."""
    try:
        closed = jax.make_jaxpr(fn)(0.5)
        text = re.sub(r"0x[0-9a-f]+", "", str(closed))  # addresses differ from process to process
        content = [text.encode("utf8"), *(np.asarray(c).tobytes() for c in closed.consts)]
    except Exception:  # whatever the function says to a number that it is not meant for
        return {}
    return {"sha256": hashlib.sha256(b"".join(content)).hexdigest()}


def fingerprint(array: np.ndarray) -> dict[str, Any]:
    """Shape and hash of an array."""
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return {"shape": list(array.shape), "sha256": digest}


def _jsonable(value: Any) -> Any:
    """Infinity has no place in JSON; it is written as text."""
    if isinstance(value, list):
        return [_jsonable(v) for v in value]
    return repr(value) if isinstance(value, float) and not np.isfinite(value) else value
