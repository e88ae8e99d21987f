"""The record of a run in progress: snapshots and measurements, in memory and, if asked, on disk."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokenfield import store
from tokenfield.errors import InputError, require
from tokenfield.tokens import Tokens
from tokenfield.trajectory import FIXED, Trajectory, as_numbers, axes, fixed_arrays, load, plain

Measure = Callable[[Tokens], Any]
#: Seconds between two writes to disk, so that many small records do not cost a sync each.
WRITE_EVERY = 0.2


#: Names in a store that a measurement cannot have, because something else is called so.
TAKEN = ("x", *FIXED, "token", "dim", "zarr.json")


def checked_measures(measure: Mapping[str, Measure] | None) -> dict[str, Measure]:
    """The functions by name, refused unless each name can be one in a store."""
    if measure is None:
        return {}
    require(isinstance(measure, Mapping), "measure", "map names to functions of the tokens", repr(measure))
    for name, fn in measure.items():
        text = isinstance(name, str) and bool(name)
        require(text, "measure", "use names of at least one letter", repr(name))
        require(name not in TAKEN, "measure", f"not use the names {', '.join(TAKEN)}", repr(name))
        odd = name.startswith((".", "__")) or "/" in name or not name.isprintable() or len(name) > 60
        require(not odd, "measure",
                "use names of at most 60 letters, without / and not beginning with a dot or __",
                repr(name))  # fmt: skip
        require(callable(fn), f"measure[{name!r}]", "be a function of the tokens", repr(fn))
    return dict(measure)


class Record:
    """Collects what a run saves at each time of `ts`; `reached` counts the times recorded so far."""

    def __init__(
        self,
        ts: np.ndarray,
        tokens: Tokens,
        snapshots: Sequence[int] | None,
        measure: Mapping[str, Measure],
        inputs: dict[str, Any],
    ):
        self.ts, self.weights, self.inputs, self.measure = ts, np.asarray(tokens.weights), inputs, measure
        self.kept = kept_indices(snapshots, len(ts))
        self.reached = 0
        self.rows: dict[str, list[np.ndarray]] = {name: [] for name in ("x", *measure)}
        self._writer: store.Writer | None = None
        self._on_disk = dict.fromkeys(self.rows, 0)
        self._written_at = 0.0
        self._first: dict[str, np.ndarray] = {}
        self._first = self._evaluate(tokens)
        #: the run as it was stored, if it needs nothing more
        self.finished: Trajectory | None = None

    def _evaluate(self, tokens: Tokens) -> dict[str, np.ndarray]:
        return {name: self._numbers(name, fn(tokens)) for name, fn in self.measure.items()}

    def _numbers(self, name: str, value: Any) -> np.ndarray:
        """What a function measured, as an array of the shape it had at the first time."""
        array = as_numbers(value, f"measure[{name!r}]")
        shape = self._first[name].shape if self._first else array.shape
        require(array.shape == shape, f"measure[{name!r}]", f"return the shape {shape} at every time",
                f"returning {array.shape}")  # fmt: skip
        return array.astype(np.float64)

    def add(self, tokens: Tokens) -> None:
        """Record the tokens at the next time."""
        values = self._first if self.reached == 0 else self._evaluate(tokens)
        if self.reached in self.kept:
            self.rows["x"].append(np.asarray(tokens.x))
        for name, value in values.items():
            self.rows[name].append(value)
        self.reached += 1

    # -- on disk

    def create(self, path: Path, tokens: Tokens, settings: Mapping[str, Any] | None) -> None:
        """Start a new store for this run."""
        layout = store.Layout(x=((len(self.kept), *tokens.x.shape), axes("x", 3)))
        for name, value in self._first.items():
            layout[name] = ((len(self.ts), *value.shape), axes(name, 1 + value.ndim))
        fixed = fixed_arrays(self.ts, self.ts[self.kept], self.weights)
        manifest = {
            "inputs": self.inputs,
            "settings": plain(settings),
            "reached": 0,
            "written": self._on_disk,
        }
        store.create(path, layout, fixed, manifest)
        self._writer = store.Writer(path)

    def reopen(self, path: Path) -> store.Checkpoint | None:
        """Go on with a store that this very run began; its checkpoint, if it got that far.

        If the run is complete, it is in `finished` and there is nothing to go on with.
        """
        self._writer = store.Writer(path)  # locked before anything is read
        manifest = self._writer.manifest
        self._refuse_other(path, manifest["inputs"])
        if manifest.get("complete"):
            self.finished = load(path)
            self._refuse_other_measures(path, self.finished.measured)
            return None
        _refuse_other_versions(path, manifest["versions"])
        checkpoint = store.read_checkpoint(path)
        if checkpoint is None and manifest["reached"] > 0:
            raise InputError(
                f"`resume` must continue a run that was stored while running, but {path} has no checkpoint"
            )
        self._take_rows(path, checkpoint)
        for stale in store.OPTIONAL:  # how the run ended is open again
            manifest.pop(stale, None)
        return checkpoint

    def _take_rows(self, path: Path, checkpoint: store.Checkpoint | None) -> None:
        """The rows that the checkpoint stands on; they were on disk before it, whatever the manifest says."""
        if checkpoint is not None:
            self.reached = int(checkpoint.take("reached", (), np.int64))
            checkpoint.require(0 <= self.reached <= len(self.ts), f"has `reached` = {self.reached}")
        self._on_disk = dict.fromkeys(self.rows, self.reached) | {"x": int(np.sum(self.kept < self.reached))}
        data = store.read_data(path, self._on_disk, FIXED)
        self.rows = {name: list(data[name].values[:count]) for name, count in self._on_disk.items()}
        self._refuse_other_measures(path, self.rows)

    def _refuse_other(self, path: Path, stored: dict[str, Any]) -> None:
        mine = json.loads(json.dumps(self.inputs, default=str))  # as a store would give it back
        if stored != mine:
            changed = [k for k in mine if k not in stored or stored[k] != mine[k]]
            raise InputError(
                f"`resume` must continue the same run, but {path} holds one with other"
                f" {', '.join(changed) or 'inputs'}"
            )

    def _refuse_other_measures(self, path: Path, stored: Mapping[str, Any]) -> None:
        """Functions have no text to compare; what they say of the initial tokens has to be the same."""
        for name, value in self._first.items():
            rows = stored[name]
            if len(rows) and not np.array_equal(rows[0], value, equal_nan=True):
                raise InputError(
                    f"`resume` must continue the same run, but {path} holds one whose measurement"
                    f" {name!r} began with another value"
                )

    def flush(
        self, checkpoint: Callable[[], dict[str, np.ndarray]], last: bool = False, **facts: Any
    ) -> None:
        """Write what is new, then the checkpoint to go on from; at most a few times a second."""
        due = last or time.monotonic() - self._written_at >= WRITE_EVERY
        if self._writer is None or not due:
            return
        for name, rows in self.rows.items():
            first = self._on_disk[name]
            if len(rows) > first:
                self._writer.rows(name, first, np.stack(rows[first:]))
        self._on_disk = {name: len(rows) for name, rows in self.rows.items()}
        self._writer.commit(checkpoint(), reached=self.reached, written=self._on_disk, **facts)
        self._written_at = time.monotonic()

    def close(self) -> None:
        """Release the store."""
        if self._writer is not None:
            self._writer.close()

    def trajectory(self, status: str, complete: bool, stats: dict[str, Any]) -> Trajectory:
        """What has been recorded, as a result."""
        stacked = {
            name: np.stack(rows) if rows else np.empty((0, *self._shape(name)))
            for name, rows in self.rows.items()
        }
        return Trajectory(
            ts=self.ts[: self.reached],
            x=stacked.pop("x"),
            weights=self.weights,
            snapshot_ts=self.ts[self.kept[self.kept < self.reached]],
            measured=stacked,
            stats=stats,
            inputs=self.inputs,
            status=status,
            complete=complete,
        )

    def _shape(self, name: str) -> tuple[int, ...]:
        if name == "x":
            return (len(self.weights), self.inputs["tokens"]["d"])
        return self._first[name].shape


def _refuse_other_versions(path: Path, began: Mapping[str, str]) -> None:
    """Other versions may round otherwise; then the run would not be the one that was begun."""
    now = store.versions()
    changed = [name for name in store.COMPUTES if began.get(name) != now[name]]
    if changed:
        raise InputError(
            f"`resume` must run with the versions that began {path}, but that was"
            f" {', '.join(f'{name} {began.get(name)}' for name in changed)} and this is"
            f" {', '.join(f'{name} {now[name]}' for name in changed)}"
        )


def kept_indices(snapshots: Sequence[int] | None, count: int) -> np.ndarray:
    """Which of `count` times keep a snapshot, sorted; all if not said."""
    if snapshots is None:
        return np.arange(count)
    try:
        indices = np.asarray(snapshots).reshape(-1)
    except ValueError:  # a ragged list
        indices = np.asarray([None])
    whole = indices.size == 0 or indices.dtype.kind in "iu"
    require(whole, "snapshots", "be a list of indices into ts", repr(snapshots))
    indices = indices.astype(int)
    wrong = indices[(indices >= count) | (indices < -count)]
    require(wrong.size == 0, "snapshots", f"be indices of the {count} times", wrong[:1])
    return np.unique(indices % count)


def describe(**inputs: Any) -> dict[str, Any]:
    """The inputs of a run as plain data, to be stored and compared."""
    return {name: plain(value) for name, value in inputs.items()}
