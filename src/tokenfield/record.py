"""The record of a run in progress: snapshots and measurements, in memory and, if asked, on disk."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokenfield import store
from tokenfield.errors import InputError, require
from tokenfield.tokens import Tokens
from tokenfield.trajectory import Trajectory, axes, fixed_arrays, plain

Measure = Callable[[Tokens], Any]
#: Seconds between two writes to disk, so that many small records do not cost a sync each.
WRITE_EVERY = 0.2


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
        self._first = self._evaluate(tokens)

    def _evaluate(self, tokens: Tokens) -> dict[str, np.ndarray]:
        return {name: np.asarray(fn(tokens), dtype=np.float64) for name, fn in self.measure.items()}

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
        manifest = {"inputs": self.inputs, "settings": settings, "reached": 0, "written": self._on_disk}
        store.create(path, layout, fixed, manifest)
        self._writer = store.Writer(path)

    def reopen(self, path: Path) -> dict[str, np.ndarray] | None:
        """Go on with a store that this very run began; its checkpoint, if it got that far."""
        writer = store.Writer(path)  # locked before anything is read
        if writer.manifest["inputs"] != self.inputs:
            writer.close()
            changed = [k for k in self.inputs if writer.manifest["inputs"].get(k) != self.inputs[k]]
            raise InputError(
                f"`resume` must continue the same run, but {path} holds one with other"
                f" {', '.join(changed) or 'inputs'}"
            )
        checkpoint = store.read_checkpoint(path)
        if checkpoint is not None:
            self._take_over(path, int(checkpoint["reached"]))
        self._writer = writer
        return checkpoint

    def _take_over(self, path: Path, reached: int) -> None:
        """The rows that the checkpoint stands on; they were on disk before it, whatever the manifest says."""
        self.reached = reached
        self._on_disk = dict.fromkeys(self.rows, reached) | {"x": int(np.sum(self.kept < reached))}
        data = store.read_data(path, self._on_disk)
        self.rows = {name: list(data[name].values[:count]) for name, count in self._on_disk.items()}

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


def kept_indices(snapshots: Sequence[int] | None, count: int) -> np.ndarray:
    """Which of `count` times keep a snapshot, sorted; all if not said."""
    if snapshots is None:
        return np.arange(count)
    indices = np.asarray(snapshots).reshape(-1)
    whole = indices.size == 0 or indices.dtype.kind in "iu"
    require(whole, "snapshots", "be a list of indices into ts", repr(snapshots))
    indices = indices.astype(int)
    wrong = indices[(indices >= count) | (indices < -count)]
    require(wrong.size == 0, "snapshots", f"be indices of the {count} times", wrong[:1])
    return np.unique(indices % count)


def describe(**inputs: Any) -> dict[str, Any]:
    """The inputs of a run as plain data, to be stored and compared."""
    return {name: plain(value) for name, value in inputs.items()}
