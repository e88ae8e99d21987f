"""The arrays of a stored run as its manifest says they must be: read, or only looked through."""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
import zarr

from tokenfield.errors import InputError
from tokenfield.runs.axes import FIXED
from tokenfield.runs.files import MOST_DATA_BYTES, require_regular
from tokenfield.runs.manifest import FORMAT
from tokenfield.runs.seal import array_hash, chunk_hashes

DATA, WEIGHTS = "data.zarr", "weights.npz"


class Contents(NamedTuple):
    """What a store must hold.

    `written`: name → number of records; `chunks`: name → hashes of the chunks of its records, one hash for
    arrays known from the start; `files`: name of a file → its hash. Stores of 0.1 have no hashes (None).
    """

    written: Mapping[str, int]
    chunks: Mapping[str, list[str]] | None
    files: Mapping[str, str]


def contents_of(manifest: Mapping[str, Any]) -> Contents:
    """What a store must hold by its manifest; the snapshots are always there, if only with 0 records."""
    sealed = manifest["format"] == FORMAT
    return Contents(
        {"x": 0} | manifest["written"],
        manifest.get("chunks", {}) if sealed else None,
        manifest.get("files", {}) if sealed else {},
    )


def check_data(path: Path, contents: Contents) -> None:
    """Refuse a store that has lost a file that counts, or whose arrays are described otherwise.

    A lost file would be read as NaN.
    """
    for name, right in contents.files.items():
        file = path / DATA / name
        if not file.exists():
            continue  # which is said below, by the name of the array
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != right:
            raise _changed(file)
    with damage(path / DATA):
        arrays = dict(zarr.open_group(path / DATA, mode="r").arrays())
    for name in (*FIXED, *contents.written):
        if name not in arrays:
            raise InputError(f"`path` must be a whole stored run, but {path / DATA} has lost `{name}`")
        array = arrays[name]
        count = contents.written.get(name, array.shape[0])
        if count > array.shape[0]:
            raise InputError(
                f"`path` must be a whole stored run, but in {path} `{name}` has"
                f" {array.shape[0]} records, not {count}"
            )
        needed = -(-count // array.chunks[0])
        lost = sum(not _chunk_file(path, array, name, k).is_file() for k in range(needed))
        if lost:
            raise InputError(
                f"`path` must be a whole stored run, but {path} has lost {lost} of {needed} files of `{name}`"
            )


def read_data(path: Path, contents: Contents) -> xr.Dataset:
    """The arrays, checked to be there (`check_data`) and to be what was written."""
    check_data(path, contents)
    with damage(path / DATA):  # read here, not by dask: whatever client a sweep or the user has is not asked
        data = xr.open_zarr(path / DATA, consolidated=False, chunks=None).load()
        group = zarr.open_group(path / DATA, mode="r")
    for name in (*FIXED, *contents.written):
        values = data[name].values[: contents.written.get(name)]
        _compare(path, contents, group, name, 0, values)
    return data


def read_rows(path: Path, contents: Contents, name: str, first: int, last: int) -> np.ndarray:
    """Records of one array, checked, without reading the others.

    Args:
        path: the store.
        contents: what it must hold.
        name: of the array.
        first: number of the first record.
        last: number after the last one.
    """
    with damage(path / DATA):
        group = zarr.open_group(path / DATA, mode="r")
        array = _array(group, name)
        count = contents.written.get(name, array.shape[0])
        records = count if name in FIXED else array.chunks[0]
        # whole chunks, because those are what has a hash
        start, stop = first // max(records, 1) * records, min(-(-last // max(records, 1)) * records, count)
        values = np.asarray(array[start:stop])
    _compare(path, contents, group, name, start, values)
    return values[first - start : last - start]


def verify(path: Path, contents: Contents) -> int:
    """Read every chunk that counts, one at a time, and refuse the first that is not what was written.

    Returns:
        The number of chunks.
    """
    check_data(path, contents)
    chunks = 0
    group = zarr.open_group(path / DATA, mode="r")
    for name in (*FIXED, *contents.written):
        array = _array(group, name)
        count = contents.written.get(name, array.shape[0])
        records = array.shape[0] if name in FIXED else array.chunks[0]
        for first in range(0, count, max(records, 1)):
            with damage(_chunk_file(path, array, name, first // records)):
                read_rows(path, contents, name, first, min(first + records, count))
            chunks += 1
    weights = path / WEIGHTS
    if weights.exists() and any(array_hash(a) != key for key, a in read_weights(path, strict=True).items()):
        raise _changed(weights)
    return chunks


def read_weights(path: Path, strict: bool = False) -> dict[str, np.ndarray]:
    """Arrays of the model by their hash; those that are damaged are left out, or refused if strict."""
    file = path / WEIGHTS
    if not file.exists():
        return {}
    try:
        require_regular(file, "path", MOST_DATA_BYTES)
        with np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except Exception:  # whatever a damaged file leads to: the run itself can be read without
        if strict:
            raise _changed(file) from None
        return {}


@contextlib.contextmanager
def damage(what: Path) -> Iterator[None]:
    """Turn trouble with stored arrays into one sentence."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # zarr raises many kinds, by codec and by metadata
        raise InputError(f"`path` must be a whole stored run, but {what} is damaged: {error}") from error


def _compare(
    path: Path, contents: Contents, group: zarr.Group, name: str, first: int, values: np.ndarray
) -> None:
    """Refuse records, beginning with a chunk, that are not those that were written there."""
    if contents.chunks is None:
        return
    array = _array(group, name)
    records = array.shape[0] if name in FIXED else array.chunks[0]
    right = contents.chunks.get(name, [])
    for k, found in enumerate(chunk_hashes(values, max(records, 1)), first // max(records, 1)):
        if k >= len(right) or right[k] != found:
            raise _changed(_chunk_file(path, array, name, k))


def _array(group: zarr.Group, name: str) -> zarr.Array:
    array = group[name]
    assert isinstance(array, zarr.Array)
    return array


def _chunk_file(path: Path, array: zarr.Array, name: str, k: int) -> Path:
    """The file of a chunk; axes other than the first are never split."""
    return (path / DATA / name / "c").joinpath(str(k), *["0"] * (array.ndim - 1))


def _changed(file: Path) -> InputError:
    return InputError(
        f"`path` must be a stored run as it was written, but {file} was changed, or belongs to another place"
    )
