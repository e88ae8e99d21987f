"""The cells of a sweep on disk, each one file that is there whole or not at all.

    cells/HASH.cell          one finished cell, under the hash of its settings
    cells/HASH.failed        one that failed, with its sentence
    cells/HASH.damaged       one that did not match its checksum and was set aside
    log.txt                  for people; nothing is read back from it

A cell is written beside its place, synced, and renamed. What is done is what `cells/` holds. A cell file is
one line with the format and the sha256 of all that follows, one line of JSON (settings, status, names,
shapes), and the arrays as little-endian doubles. It holds data only, never code.
"""

import contextlib
import hashlib
import json
import os
import platform
import shutil
import sys
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from tokenfield.errors import InputError
from tokenfield.runs import store
from tokenfield.runs.files import MOST_DATA_BYTES, read_regular
from tokenfield.sweeps.grid import cell_id
from tokenfield.sweeps.result import CellResult

CELL = b"tokenfield cell 1"
CELLS, LOG = "cells", "log.txt"
DONE, FAILED, DAMAGED, DRAFT = ".cell", ".failed", ".damaged", ".draft"


class StoredCell(NamedTuple):
    """A cell as it was read back: what it computed and where it comes from."""

    id: str
    kind: str
    settings: dict[str, Any]
    result: CellResult
    versions: dict[str, str]
    host: dict[str, Any]


class DamagedError(Exception):
    """A cell file that is not what was written; the text says in which way."""


@dataclass(frozen=True)
class CellStore:
    """The cells under a sweep's directory."""

    root: Path

    def path(self, id: str, state: str = DONE) -> Path:
        """File of a cell."""
        return self.root / CELLS / f"{id}{state}"

    def states(self) -> dict[str, str]:
        """Which cells are there, done or failed, by a look at the directory."""
        found: dict[str, str] = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self.root / CELLS) as entries:
            for entry in entries:
                id, state = os.path.splitext(entry.name)
                if state == DONE or (state == FAILED and id not in found):
                    found[id] = state
        return found

    def has(self, id: str) -> bool:
        """Whether a cell is there, done or failed."""
        return self.path(id).exists() or self.path(id, FAILED).exists()

    def write(self, found: Mapping[str, tuple[str, dict[str, Any], CellResult]]) -> dict[str, OSError]:
        """Put cells in place, hash → (kind, settings, result); what could not be written, and why."""
        refused = {}
        for id, (kind, settings, result) in found.items():
            try:
                place(self.path(id, DONE if result.complete else FAILED), encode(kind, settings, result))
                if result.complete:
                    self.path(id, FAILED).unlink(missing_ok=True)
            except OSError as error:
                refused[id] = error
        with contextlib.suppress(OSError):
            _sync_directory(self.root / CELLS)
        return refused

    def read(self, id: str, state: str = DONE) -> StoredCell:
        """One cell, checked to be the one that was written."""
        try:
            stored = decode(read_regular(self.path(id, state), "path", MOST_DATA_BYTES))
        except (InputError, OSError) as error:
            raise DamagedError(f"it is no file that can be read: {error}") from None
        if stored.id != id:
            raise DamagedError(f"it holds the cell {stored.id}")
        return stored

    def forget_failures(self) -> int:
        """Remove the cells that failed, so that they are computed again; how many there were."""
        failed = [id for id, state in self.states().items() if state == FAILED]
        for id in failed:
            self.path(id, FAILED).unlink()
        return len(failed)

    def set_aside_damaged(self) -> list[str]:
        """Move every damaged file out of the way; a sentence for each."""
        sentences = []
        for id, state in self.states().items():
            try:
                self.read(id, state)
            except DamagedError as error:
                if self.path(id, DAMAGED).is_dir():  # which nothing can take the place of
                    shutil.rmtree(self.path(id, DAMAGED))
                os.replace(self.path(id, state), self.path(id, DAMAGED))
                sentences.append(
                    f"{self.path(id, state)} is damaged ({error}); it was set aside as {id}{DAMAGED} and the"
                    " cell is computed again"
                )
        return sentences

    def remove_drafts(self) -> None:
        """Remove what a process that was killed inside a write left behind."""
        for draft in [*self.root.glob(f".*{DRAFT}"), *(self.root / CELLS).glob(f".*{DRAFT}")]:
            draft.unlink(missing_ok=True)

    def log(self, line: str) -> None:
        """Add a line to the log, unless that fails: the log is not worth a sweep."""
        with contextlib.suppress(OSError), open(self.root / LOG, "a", encoding="utf8") as file:
            file.write(line + "\n")


def encode(kind: str, settings: dict[str, Any], result: CellResult) -> bytes:
    """A cell as bytes.

    Args:
        kind: of the cell.
        settings: as plain data; their hash is the name of the file.
        result: what was computed.

    Returns:
        The content of its file.
    """
    arrays = {name: np.ascontiguousarray(a, dtype="<f8") for name, a in result.arrays.items()}
    header = {
        "kind": kind,
        "settings": settings,
        "status": result.status,
        "complete": result.complete,
        "counts": dict(result.counts),
        "seconds": round(result.seconds, 6),
        "arrays": [[name, a.shape, result.axes[name]] for name, a in arrays.items()],
        "versions": _versions(),
        "host": host(),
    }
    line = json.dumps(header, ensure_ascii=False).encode("utf8")
    content = b"".join([line, b"\n", *(a.tobytes() for a in arrays.values())])
    return b"%s %s\n%s" % (CELL, hashlib.sha256(content).hexdigest().encode(), content)


def decode(raw: bytes) -> StoredCell:
    """The cell that the bytes hold."""
    first, _, content = raw.partition(b"\n")
    format, _, digest = first.rpartition(b" ")
    if format != CELL:
        raise DamagedError(f"it does not begin with {CELL.decode()!r}")
    if hashlib.sha256(content).hexdigest().encode() != digest:
        raise DamagedError("its content does not match its checksum")
    line, _, data = content.partition(b"\n")
    header = json.loads(line)
    arrays, axes, at = {}, {}, 0
    for name, shape, names in header["arrays"]:
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(data, "<f8", count, at).reshape(shape)
        axes[name], at = tuple(names), at + 8 * count
    result = CellResult(
        header["status"], header["complete"], arrays, axes, header["counts"], header["seconds"]
    )
    id = cell_id(header["kind"], header["settings"])
    return StoredCell(id, header["kind"], header["settings"], result, header["versions"], header["host"])


# -- where numbers come from


def versions_differ(then: Mapping[str, str]) -> str:
    """In which versions of what computes the numbers "then" and now differ; empty if in none."""
    now = _versions()
    changed = [name for name in now if then.get(name) != now[name]]
    return ", ".join(f"{name} {then.get(name)} then and {now[name]} now" for name in changed)


def host() -> dict[str, Any]:
    """Facts that numbers may depend on; nothing that names the machine or its user."""
    global _host
    if _host is None:
        device = jax.devices()[0]
        _host = {
            "system": platform.system(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "processor": _processor(),
            "device": device.device_kind,
            "platform": device.platform,
            "threads": os.environ.get("NPROC", "all"),
            "byte_order": sys.byteorder,
        }
    return _host


_host: dict[str, Any] | None = None
_version: dict[str, str] = {}


def _versions() -> dict[str, str]:
    if not _version:  # reading package metadata takes longer than writing a cell
        found = store.versions()
        _version.update({name: found[name] for name in store.COMPUTES})
    return _version


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


# -- files that are there whole or not at all


def place(path: Path, content: bytes) -> None:
    """Write beside the place, sync, rename."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{DRAFT}")
    try:
        with open(draft, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def place_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a small file that only people read; it may be lost."""
    with contextlib.suppress(OSError):
        place(path, json.dumps(content, indent=1).encode("utf8"))


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def in_words(errors: Iterable[OSError]) -> str:
    """What the disk said, each thing once."""
    return "; ".join(sorted({error.strerror or str(error) for error in errors}))
