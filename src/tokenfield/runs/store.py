"""A run on disk: a directory that survives kill -9 at any moment.

    weights.npz       large arrays of the model, by their hash; only if it has any
    manifest.json     inputs, versions, how many records are written, status, hashes; replaced atomically
    data.zarr/        arrays of full length, opened by xarray; records beyond the written count are NaN
    checkpoint.npz    state to go on from; replaced atomically

The directory appears by one rename, complete and empty of records. Then for each batch: rows, then
checkpoint, then the count in the manifest. A reader trusts only the count.
"""

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import zarr
import zarr.codecs

from tokenfield.errors import InputError, RunError, require
from tokenfield.runs.checkpoint import CHECKPOINT, sealed_arrays
from tokenfield.runs.contents import DATA, WEIGHTS, damage
from tokenfield.runs.lock import DirectoryLock
from tokenfield.runs.manifest import FORMAT, MANIFEST, read_manifest
from tokenfield.runs.seal import GrowingHashes, array_hash, data_hash, sealed

#: Bytes below which several records share a file.
CHUNK_BYTES = 2**18
#: What computes the numbers; the other versions are kept for the record.
COMPUTES = ("tokenfield", "jax", "jaxlib", "jax-finufft", "diffrax")
VERSIONED = (*COMPUTES, "equinox", "numpy", "zarr", "xarray")


def make_directory(path: Path, name: str) -> None:
    """Make a directory, and those above it, if it is not there; refuse one that cannot be written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        writable = os.access(path, os.W_OK)
    except OSError as error:
        raise InputError(
            f"`{name}` must be a directory that can be made, but was {path} ({error.strerror})"
        ) from error
    require(writable, name, "be a directory that can be written to", path)


class Layout(dict[str, tuple[tuple[int, ...], tuple[str, ...]]]):
    """For each array its full shape and the names of its axes; the first axis counts records."""


def create(
    path: Path,
    layout: Layout,
    fixed: Mapping[str, Any],
    manifest: dict[str, Any],
    weights: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Make the directory with empty arrays, in one step; refuse one that holds something already.

    Args:
        path: the new directory.
        layout: arrays that are written record by record.
        fixed: arrays known from the start, name → (values, axis names).
        manifest: what is known of the run, plain data.
        weights: arrays of the model that the manifest describes by their hash, hash → array.
    """
    refuse_occupied(path)
    _refuse_unstorable(manifest, "")
    with _disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}"
        try:
            _write_draft(draft, layout, fixed, manifest)
            if weights:
                np.savez_compressed(draft / WEIGHTS, **dict(weights))  # pyright: ignore[reportArgumentType]
            os.rename(draft, path)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise


class Writer:
    """Adds records to a store that exists; holds a lock so that only one process does."""

    def __init__(self, path: Path):
        self.path = path
        read_manifest(path)  # a lock file is left only in a store
        with _disk(path):
            self._lock = DirectoryLock(path, "path", "another process is writing to")
        try:
            self.manifest = read_manifest(path)  # as it is now that nobody else writes
            if self.manifest["format"] != FORMAT:
                raise InputError(f"`path` must be a store of format {FORMAT!r} to be gone on with: {path}")
            self.run = data_hash(self.manifest["inputs"])
            with damage(path / DATA):
                self._group = zarr.open_group(path / DATA, mode="r+")
            self._hashes: dict[str, GrowingHashes] = {}
        except BaseException:
            self._lock.release()
            raise

    def rows(self, name: str, first: int, values: np.ndarray) -> None:
        """Put records of one array on disk.

        Args:
            name: of the array.
            first: number of the first record.
            values: the records, along the first axis.
        """
        self._lock.require_held()
        # also where all values are the filling: a file that is not there means damage
        with self._writing(), zarr.config.set({"array.write_empty_chunks": True}):
            self._array(name)[first : first + len(values)] = values
        self.take_in(name, values)

    def take_in(self, name: str, values: np.ndarray | Sequence[np.ndarray]) -> None:
        """Count records that are on disk already, in their order."""
        with damage(self.path / DATA):
            records = self._array(name).chunks[0]
        self._hashes.setdefault(name, GrowingHashes(records)).add(values)

    def _array(self, name: str) -> zarr.Array:
        array = self._group[name]
        assert isinstance(array, zarr.Array)
        return array

    def commit(self, checkpoint: Mapping[str, np.ndarray] | None, **facts: Any) -> None:
        """Make what was written count: the checkpoint first, then the manifest's facts."""
        self._lock.require_held()
        chunks = {name: hashes.listed() for name, hashes in self._hashes.items()}
        with self._writing():
            if checkpoint is not None:
                with _replacing(self.path / CHECKPOINT) as file:
                    np.savez(file, **sealed_arrays(checkpoint, self.run, chunks))  # pyright: ignore[reportArgumentType]
            self.manifest = sealed(self.manifest | facts | {"chunks": self.manifest["chunks"] | chunks})
            self._lock.require_held()
            _write_json(self.path / MANIFEST, self.manifest)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn trouble with the disk into one sentence; if the directory is gone, into that one."""
        try:
            with _disk(self.path):
                yield
        except (RunError, KeyError):  # zarr looks an array up in a directory that is not there
            self._lock.require_held()
            raise

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()


def versions() -> dict[str, str]:
    """Versions of what computed the numbers."""
    return {name: version(name) for name in VERSIONED}


def refuse_occupied(path: Path) -> None:
    """A new run needs a new or an empty directory."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        holds = "a stored run" if (path / MANIFEST).exists() else "other files"
        raise InputError(f"`path` must be new or an empty directory, but {path} holds {holds}")


def _write_draft(draft: Path, layout: Layout, fixed: Mapping[str, Any], manifest: dict[str, Any]) -> None:
    group = zarr.create_group(draft / DATA)
    codec = zarr.codecs.ZstdCodec(level=1, checksum=True)
    for name, (shape, axes) in layout.items():
        record = 8 * int(np.prod(shape[1:]))
        chunk = max(1, min(shape[0], CHUNK_BYTES // max(record, 1)))
        group.create_array(
            name,
            shape=shape,
            chunks=(chunk, *(max(s, 1) for s in shape[1:])),
            dtype="float64",
            fill_value=np.nan,
            dimension_names=axes,
            compressors=codec,
        )
    for name, (values, axes) in fixed.items():
        group.create_array(name, data=values, fill_value=np.nan, dimension_names=axes, compressors=codec)
    hashes = {
        "files": {
            file.relative_to(draft / DATA).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted((draft / DATA).rglob("zarr.json"))
        },
        "chunks": {name: [array_hash(values)] if len(values) else [] for name, (values, _) in fixed.items()},
    }
    content = {"format": FORMAT, "versions": versions()} | manifest | hashes
    # through JSON and back: a seal is of what will be read
    _write_json(draft / MANIFEST, sealed(json.loads(json.dumps(content, ensure_ascii=False))))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with _replacing(path) as file:
        file.write(json.dumps(content, indent=1, ensure_ascii=False).encode("utf8"))


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Any]:
    """Write a new version of a file beside it and put it in place only when it is safe on disk."""
    draft = path.with_name(f".{path.name}.draft")
    with open(draft, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def _refuse_unstorable(value: Any, name: str) -> None:
    """Refuse, by its name, what JSON cannot hold."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _refuse_unstorable(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for k, inner in enumerate(value):
            _refuse_unstorable(inner, f"{name}[{k}]")
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise InputError(
            f"`{name}` must be numbers, text, lists or tables to be stored, but was of type"
            f" {type(value).__name__}"
        )


@contextlib.contextmanager
def _disk(path: Path) -> Iterator[None]:
    """Turn trouble with the disk into one sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"could not write to {path}: {error.strerror or error}; what was finished is kept"
        ) from error
