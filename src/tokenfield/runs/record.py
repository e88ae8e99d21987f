"""The record of a run in progress: snapshots and measurements, in memory and, if asked, on disk."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokenfield.errors import InputError, require
from tokenfield.laws.tokens import Tokens
from tokenfield.models.base import Model
from tokenfield.runs import store
from tokenfield.runs.axes import FIXED, axes
from tokenfield.runs.checkpoint import CHUNKS, Checkpoint, read_checkpoint
from tokenfield.runs.contents import contents_of, read_data
from tokenfield.runs.manifest import ENDINGS
from tokenfield.runs.plain import large_arrays, plain
from tokenfield.runs.threads import thread_counts
from tokenfield.runs.times import kept_indices
from tokenfield.runs.trajectory import Trajectory, as_numbers, fixed_arrays, load

Measure = Callable[[Tokens], Any]
#: Seconds between two writes to disk, so that many small records do not cost a sync each.
WRITE_EVERY = 0.2


#: Names in a store that a measurement cannot have, because something else is called so.
TAKEN = ("x", "radii", *FIXED, "token", "dim", "zarr.json")


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
        require(
            not odd,
            "measure",
            "use names of at most 60 letters, without / and not beginning with a dot or __",
            repr(name),
        )
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
        #: what a snapshot holds
        self.snapshot = ("x",) if tokens.radii is None else ("x", "radii")
        self.rows: dict[str, list[np.ndarray]] = {name: [] for name in (*self.snapshot, *measure)}
        self._writer: store.Writer | None = None
        self._on_disk = dict.fromkeys(self.rows, 0)
        self._written_at = 0.0
        self._first: dict[str, np.ndarray] = {}
        self._first = self._evaluate(tokens)
        #: how many threads computed each part of the run
        self.threads = [thread_counts()]
        #: the run as it was stored, if it needs nothing more
        self.finished: Trajectory | None = None

    def _evaluate(self, tokens: Tokens) -> dict[str, np.ndarray]:
        return {name: self._numbers(name, fn(tokens)) for name, fn in self.measure.items()}

    def _numbers(self, name: str, value: Any) -> np.ndarray:
        """What a function measured, as an array of the shape it had at the first time."""
        array = as_numbers(value, f"measure[{name!r}]")
        shape = self._first[name].shape if self._first else array.shape
        require(
            array.shape == shape,
            f"measure[{name!r}]",
            f"return the shape {shape} at every time",
            f"returning {array.shape}",
        )
        return array.astype(np.float64)

    def add(self, tokens: Tokens) -> None:
        """Record the tokens at the next time."""
        values = self._first if self.reached == 0 else self._evaluate(tokens)
        if self.reached in self.kept:
            for name in self.snapshot:
                self.rows[name].append(np.asarray(getattr(tokens, name)))
        for name, value in values.items():
            self.rows[name].append(value)
        self.reached += 1

    # -- on disk

    def create(self, path: Path, tokens: Tokens, settings: Mapping[str, Any] | None, model: Model) -> None:
        """Start a new store for this run.

        Args:
            path: the new directory.
            tokens: the initial law.
            settings: plain data to keep beside the inputs.
            model: what moves the tokens; its large arrays are kept as well.
        """
        layout = store.Layout()
        for name in self.snapshot:
            shape = np.shape(getattr(tokens, name))
            layout[name] = ((len(self.kept), *shape), axes(name, 1 + len(shape)))
        for name, value in self._first.items():
            layout[name] = ((len(self.ts), *value.shape), axes(name, 1 + value.ndim))
        fixed = fixed_arrays(self.ts, self.ts[self.kept], self.weights)
        manifest = {
            "inputs": self.inputs,
            "settings": plain(settings),
            "reached": 0,
            "written": self._on_disk,
            "threads": self.threads,
        }
        store.create(path, layout, fixed, manifest, large_arrays(model))
        self._writer = store.Writer(path)

    def reopen(self, path: Path) -> Checkpoint | None:
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
        checkpoint = read_checkpoint(path, self._writer.run)
        if checkpoint is None and manifest["reached"] > 0:
            raise InputError(
                f"`resume` must continue a run that was stored while running, but {path} has no checkpoint"
            )
        self._take_rows(path, checkpoint)
        before = manifest.get("threads", [])
        self.threads = before if before[-1:] == self.threads else [*before, *self.threads]
        manifest["threads"] = self.threads
        for stale in ENDINGS:  # how the run ended is open again
            manifest.pop(stale, None)
        return checkpoint

    def _take_rows(self, path: Path, checkpoint: Checkpoint | None) -> None:
        """The rows that the checkpoint stands on; they were on disk before it, whatever the manifest says."""
        if checkpoint is not None:
            self.reached = int(checkpoint.take("reached", (), np.int64))
            checkpoint.require(0 <= self.reached <= len(self.ts), f"has `reached` = {self.reached}")
        snapshots = dict.fromkeys(self.snapshot, int(np.sum(self.kept < self.reached)))
        self._on_disk = dict.fromkeys(self.rows, self.reached) | snapshots
        assert self._writer is not None
        contents = contents_of(self._writer.manifest)
        assert contents.chunks is not None
        hashes = {} if checkpoint is None else checkpoint.json(CHUNKS)
        contents = contents._replace(written=self._on_disk, chunks={**contents.chunks, **hashes})
        data = read_data(path, contents)
        self.rows = {name: list(data[name].values[:count]) for name, count in self._on_disk.items()}
        self._refuse_other_measures(path, self.rows)
        for name, rows in self.rows.items():
            self._writer.take_in(name, rows)

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

    def trajectory(
        self, status: str, complete: bool, stats: dict[str, Any], model: Model | None = None
    ) -> Trajectory:
        """What has been recorded, as a result.

        Args:
            status: how the run ended.
            complete: whether it reached its last time.
            stats: what it cost.
            model: what made it.
        """
        stacked = {
            name: np.stack(rows) if rows else np.empty((0, *self._shape(name)))
            for name, rows in self.rows.items()
        }
        radii = stacked.pop("radii", None)
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
            radii=radii,
            model=model,
        )

    def _shape(self, name: str) -> tuple[int, ...]:
        if name in self.snapshot:
            n = len(self.weights)
            return (n, self.inputs["tokens"]["d"]) if name == "x" else (n,)
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
