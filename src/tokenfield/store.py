"""A run on disk: a directory that survives kill -9 at any moment.

    manifest.json     inputs, versions, how many records are written, status; replaced atomically
    data.zarr/        arrays of full length, opened by xarray; records beyond the written count are NaN
    checkpoint.npz    state to go on from; replaced atomically

The directory appears by one rename, complete and empty of records. Then for each batch: rows, then
checkpoint, then the count in the manifest. A reader trusts only the count.
"""

import contextlib
import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
import zarr.codecs

from tokenfield.errors import InputError, RunError, require

FORMAT = "tokenfield run 1"
MANIFEST, DATA, CHECKPOINT = "manifest.json", "data.zarr", "checkpoint.npz"
#: Bytes below which several records share a file.
CHUNK_BYTES = 2**18
#: What computes the numbers; the other versions are kept for the record.
COMPUTES = ("tokenfield", "jax", "jaxlib", "jax-finufft", "diffrax")
VERSIONED = (*COMPUTES, "equinox", "numpy", "zarr", "xarray")


def as_path(value: Any, name: str) -> Path:
    """The value as a path, or a sentence that it is none."""
    require(isinstance(value, str | Path), name, "be a path", repr(value))
    return Path(value)


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


def create(path: Path, layout: Layout, fixed: Mapping[str, Any], manifest: dict[str, Any]) -> None:
    """Make the directory with empty arrays, in one step; refuse one that holds something already.

    `fixed` are arrays known from the start, name → (values, axis names).
    """
    refuse_occupied(path)
    _refuse_unstorable(manifest, "")
    with _disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}"
        try:
            _write_draft(draft, layout, fixed, manifest)
            os.rename(draft, path)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest, checked to be one of ours."""
    if not path.exists():
        raise InputError(f"`path` must be a stored run, but {path} does not exist")
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf8"))
    except FileNotFoundError:
        raise InputError(f"`path` must be a stored run, but {path} has no {MANIFEST}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(
            f"`path` must be a stored run, but {path / MANIFEST} is unreadable: {error}"
        ) from error
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise InputError(f"`path` must be a stored run of format {FORMAT!r}, but {path} has {found!r}")
    for name, right in FACTS.items():
        if not right(manifest.get(name, OPTIONAL.get(name))):
            said = repr(manifest[name])[:60] if name in manifest else "missing"
            raise InputError(
                f"`path` must be a stored run, but in {path / MANIFEST} the entry `{name}` is {said}"
            )
    return manifest


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_table_of(right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(right(v) for v in value.values())


#: What the entries of a manifest must be, and the values of those that may be missing.
FACTS: dict[str, Callable[[Any], bool]] = {
    "inputs": lambda v: isinstance(v, dict),
    "versions": _is_table_of(lambda v: isinstance(v, str)),
    "reached": _is_count,
    "written": _is_table_of(_is_count),
    "status": lambda v: isinstance(v, str),
    "complete": lambda v: isinstance(v, bool),
    "stats": lambda v: isinstance(v, dict),
}
OPTIONAL: dict[str, Any] = {"status": "", "complete": False, "stats": {}}


def read_data(path: Path, written: Mapping[str, int], fixed: Iterable[str]) -> xr.Dataset:
    """The arrays, checked to be there (`check_data`)."""
    check_data(path, written, fixed)
    with _damage(path):  # read here, not by dask: whatever client a sweep or the user has is not asked
        return xr.open_zarr(path / DATA, consolidated=False, chunks=None).load()


def read_rows(path: Path, name: str, first: int, last: int) -> np.ndarray:
    """Records first, ..., last − 1 of one array, without reading the others."""
    with _damage(path):
        array = zarr.open_group(path / DATA, mode="r")[name]
        assert isinstance(array, zarr.Array)
        return np.asarray(array[first:last])


def check_data(path: Path, written: Mapping[str, int], fixed: Iterable[str]) -> None:
    """Refuse a store without `written[name]` records of each array and the whole of the fixed ones.

    A lost file would be read as NaN.
    """
    with _damage(path):
        arrays = dict(zarr.open_group(path / DATA, mode="r").arrays())
    for name in (*fixed, *written):
        if name not in arrays:
            raise InputError(f"`path` must be a whole stored run, but {path / DATA} has lost `{name}`")
        array = arrays[name]
        count = written.get(name, array.shape[0])
        if count > array.shape[0]:
            raise InputError(
                f"`path` must be a whole stored run, but in {path} `{name}` has"
                f" {array.shape[0]} records, not {count}"
            )
        needed = -(-count // array.chunks[0])
        rest = ["0"] * (array.ndim - 1)  # other axes are never split
        lost = sum(not (path / DATA / name / "c").joinpath(str(k), *rest).exists() for k in range(needed))
        if lost:
            raise InputError(
                f"`path` must be a whole stored run, but {path} has lost {lost} of {needed} files of `{name}`"
            )


class Writer:
    """Adds records to a store that exists; holds a lock so that only one process does."""

    def __init__(self, path: Path):
        self.path = path
        read_manifest(path)  # a lock file is left only in a store
        with _disk(path):
            self._lock = open(path / ".lock", "w")  # noqa: SIM115 (held until close)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise InputError(f"`path` must not be in use, but another process is writing to {path}") from None
        try:
            self.manifest = read_manifest(path)  # as it is now that nobody else writes
            with _damage(path):
                self._group = zarr.open_group(path / DATA, mode="r+")
        except BaseException:
            self._lock.close()
            raise

    def rows(self, name: str, first: int, values: np.ndarray) -> None:
        """Put records first, first + 1, ... of one array on disk."""
        # also where all values are the filling: a file that is not there means damage
        with _disk(self.path), zarr.config.set({"array.write_empty_chunks": True}):
            array = self._group[name]
            assert isinstance(array, zarr.Array)
            array[first : first + len(values)] = values

    def commit(self, checkpoint: Mapping[str, np.ndarray] | None, **facts: Any) -> None:
        """Make what was written count: the checkpoint first, then the manifest's facts."""
        with _disk(self.path):
            if checkpoint is not None:
                with _replacing(self.path / CHECKPOINT) as file:
                    np.savez(file, allow_pickle=False, **checkpoint)
            self.manifest |= facts
            _write_json(self.path / MANIFEST, self.manifest)

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()


class Checkpoint(dict[str, np.ndarray]):
    """The arrays to go on from; what is missing or of another shape is one sentence."""

    def __init__(self, file: Path, arrays: Mapping[str, np.ndarray]):
        super().__init__(arrays)
        self.file = file

    def take(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """One array, of this shape and type."""
        found = self.get(name)
        self.require(found is not None, f"lacks `{name}`")
        assert found is not None
        right = found.shape == shape and found.dtype == dtype
        self.require(right, f"has `{name}` of shape {found.shape}, {found.dtype}, not {shape}, {dtype}")
        return found

    def json(self, name: str) -> Any:
        """One entry of plain data, kept as text."""
        self.require(name in self, f"lacks `{name}`")
        try:
            return json.loads(str(self[name]))
        except ValueError:
            raise InputError(
                f"`path` must hold a usable checkpoint, but {self.file} has a damaged `{name}`"
            ) from None

    def require(self, holds: bool, trouble: str) -> None:
        """Raise unless the condition holds."""
        if not holds:
            raise InputError(f"`path` must hold a usable checkpoint, but {self.file} {trouble}")


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The last checkpoint, None if the run never reached one."""
    file = path / CHECKPOINT
    if not file.exists():
        return None
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return Checkpoint(file, dict(arrays))
    except Exception as error:
        raise InputError(f"`path` must hold a usable checkpoint, but {file} is damaged: {error}") from error


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
            name, shape=shape, chunks=(chunk, *(max(s, 1) for s in shape[1:])), dtype="float64",
            fill_value=np.nan, dimension_names=axes, compressors=codec,
        )  # fmt: skip
    for name, (values, axes) in fixed.items():
        group.create_array(name, data=values, fill_value=np.nan, dimension_names=axes, compressors=codec)
    _write_json(draft / MANIFEST, {"format": FORMAT, "versions": versions()} | manifest)


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
def _damage(path: Path) -> Iterator[None]:
    """Turn trouble with the stored arrays into one sentence."""
    try:
        yield
    except Exception as error:  # zarr raises many kinds, by codec and by metadata
        raise InputError(
            f"`path` must be a whole stored run, but {path / DATA} is damaged: {error}"
        ) from error


@contextlib.contextmanager
def _disk(path: Path) -> Iterator[None]:
    """Turn trouble with the disk into one sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"could not write to {path}: {error.strerror or error}; what was finished is kept"
        ) from error
