"""The cells of a sweep on disk: a directory that survives anything at any moment.

    manifest.json            the declaration, versions and host; sealed, so that a change by hand is seen
    cells/HASH.cell          one finished cell, under the hash of its settings
    cells/HASH.failed        one that failed, with its sentence
    cells/HASH.damaged       one that did not match its checksum and was set aside
    log.txt, progress.json   for people; nothing is read back from them
    .lock                    held (flock) by the sweep that is running; a killed one leaves it free

A cell is written beside its place, synced, and renamed: it is there whole or not at all. What is done is what
`cells/` holds; the manifest's counts are written from it and never trusted. A cell file is one line with the
format and the sha256 of all that follows, one line of JSON (settings, status, names, shapes), and the arrays
as little-endian doubles.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from tokenfield import store
from tokenfield.errors import InputError, RunError
from tokenfield.sweep.grid import Grid, declare, digest_of, fingerprint
from tokenfield.sweep.outcome import Outcome

FORMAT, CELL = "tokenfield sweep 1", b"tokenfield cell 1"
MANIFEST, CELLS, LOG, PROGRESS, LOCK = "manifest.json", "cells", "log.txt", "progress.json", ".lock"
DONE, FAILED, DAMAGED, DRAFT = ".cell", ".failed", ".damaged", ".draft"


class Stored(NamedTuple):
    """A cell as it was read back: what it computed and where it comes from."""

    id: str
    kind: str
    settings: dict[str, Any]
    outcome: Outcome
    versions: dict[str, str]
    host: dict[str, Any]


class DamagedError(Exception):
    """A cell file that is not what was written; the text says in which way."""


@dataclass(frozen=True)
class Cells:
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

    def write(self, found: Mapping[str, tuple[str, dict[str, Any], Outcome]]) -> dict[str, OSError]:
        """Put cells in place, hash → (kind, settings, outcome); what could not be written, and why."""
        refused = {}
        for id, (kind, settings, outcome) in found.items():
            try:
                _place(self.path(id, DONE if outcome.complete else FAILED), encode(kind, settings, outcome))
                if outcome.complete:
                    self.path(id, FAILED).unlink(missing_ok=True)
            except OSError as error:
                refused[id] = error
        with contextlib.suppress(OSError):
            _sync(self.root / CELLS)
        return refused

    def read(self, id: str, state: str = DONE) -> Stored:
        """One cell, checked to be the one that was written."""
        stored = decode(self.path(id, state).read_bytes())
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


def encode(kind: str, settings: dict[str, Any], outcome: Outcome) -> bytes:
    """A cell as bytes."""
    arrays = {name: np.ascontiguousarray(a, dtype="<f8") for name, a in outcome.arrays.items()}
    header = {
        "kind": kind,
        "settings": settings,
        "status": outcome.status,
        "complete": outcome.complete,
        "counts": dict(outcome.counts),
        "seconds": round(outcome.seconds, 6),
        "arrays": [[name, a.shape, outcome.axes[name]] for name, a in arrays.items()],
        "versions": _versions(),
        "host": host(),
    }
    line = json.dumps(header, ensure_ascii=False).encode("utf8")
    content = b"".join([line, b"\n", *(a.tobytes() for a in arrays.values())])
    return b"%s %s\n%s" % (CELL, hashlib.sha256(content).hexdigest().encode(), content)


def decode(raw: bytes) -> Stored:
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
    outcome = Outcome(header["status"], header["complete"], arrays, axes, header["counts"], header["seconds"])
    id = cell_id(header["kind"], header["settings"])
    return Stored(id, header["kind"], header["settings"], outcome, header["versions"], header["host"])


def cell_id(kind: str, settings: dict[str, Any]) -> str:
    """The hash under which a cell is stored."""
    return fingerprint({"kind": kind, "settings": settings})[:32]


# -- the directory as a whole


@contextlib.contextmanager
def locked(root: Path, grid: Grid) -> Iterator[Cells]:
    """The directory made ready for this sweep, and nobody else's while the context lasts."""
    _refuse_foreign(root)
    with _disk(root):
        (root / CELLS).mkdir(parents=True, exist_ok=True)
        file = open(root / LOCK, "a")  # noqa: SIM115 (held until the end)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"`store` must not be in use, but another sweep is running in {root}") from None
        cells = Cells(root)
        _refuse_other(cells, grid)
        with _disk(root):
            cells.remove_drafts()
            write_manifest(cells, grid)
        yield cells
        with contextlib.suppress(OSError):  # the next sweep here removes them too
            cells.remove_drafts()


def in_use(root: Path) -> bool:
    """Whether a sweep is running there now."""
    try:
        with open(root / LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def write_manifest(cells: Cells, grid: Grid) -> None:
    """The manifest, from the declaration and from what is in `cells/`."""
    states = list(cells.states().values())
    content = {
        "format": FORMAT,
        "declaration": grid.declaration,
        "versions": store.versions(),
        "host": host(),
        "cells": {"declared": len(grid.cells), "done": states.count(DONE), "failed": states.count(FAILED)},
    }
    text = json.dumps(content | {"seal": fingerprint(content)}, indent=1, ensure_ascii=False)
    _place(cells.root / MANIFEST, text.encode("utf8"))


def is_sweep(root: Path) -> bool:
    """Whether a directory looks like a sweep's."""
    return (root / CELLS).is_dir()


def read_manifest(root: Path) -> dict[str, Any]:
    """The manifest, checked to be whole and unchanged."""
    file = root / MANIFEST
    again = "delete it and run the sweep again: its cells are kept, and the manifest is rebuilt"
    try:
        manifest = json.loads(file.read_text(encoding="utf8"))
    except FileNotFoundError:
        raise InputError(f"`path` must be a sweep, but {root} has no {MANIFEST}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"`path` must be a sweep, but {file} is unreadable ({error}); {again}") from None
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise InputError(f"`path` must be a sweep of format {FORMAT!r}, but {root} has {found!r}")
    seal = manifest.pop("seal", None)
    if seal != fingerprint(manifest):
        raise InputError(f"`path` must be a sweep as it was stored, but {file} was changed by hand; {again}")
    return manifest


def open_grid(root: Path) -> tuple[Grid, dict[str, Any]]:
    """The sweep that a directory holds, and its manifest."""
    manifest = read_manifest(root)
    return declare(manifest["declaration"], root.name), manifest


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
            "system": platform.system(), "machine": platform.machine(), "python": platform.python_version(),
            "processor": _processor(), "device": device.device_kind, "platform": device.platform,
            "threads": os.environ.get("NPROC", "all"), "byte_order": sys.byteorder,
        }  # fmt: skip
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


def _refuse_foreign(root: Path) -> None:
    """A directory that holds something, but no sweep, is not touched."""
    if root.exists() and not root.is_dir():
        raise InputError(f"`store` must be a directory, but {root} is a file")
    foreign = root.exists() and not is_sweep(root) and any(e.name != LOCK for e in root.iterdir())
    if foreign:
        raise InputError(f"`store` must be new, empty or a sweep, but {root} holds other files")


def _refuse_other(cells: Cells, grid: Grid) -> None:
    """Only the same sweep is gone on with, by the versions that began it."""
    root = cells.root
    if (root / MANIFEST).exists():
        manifest = read_manifest(root)
        if digest_of(manifest["declaration"]) != grid.digest:
            raise InputError(f"`store` must hold the same sweep, but {root} holds one with other settings")
        then = manifest["versions"]
    else:
        then = _check_unlisted(cells, grid)
    changed = versions_differ(then) if then else ""
    if changed:
        raise InputError(
            f"`store` must be gone on with by the versions that began it, but for {root} these differ:"
            f" {changed}"
        )


def _check_unlisted(cells: Cells, grid: Grid) -> Mapping[str, str] | None:
    """Cells without a manifest: all must belong to the sweep; their versions."""
    declared, versions = {cell.id for cell in grid.cells}, None
    for id, state in cells.states().items():
        if id not in declared:
            raise InputError(
                f"`store` must hold cells of this sweep only, but {cells.path(id, state)} is none of them"
            )
        with contextlib.suppress(DamagedError):
            versions = versions or cells.read(id, state).versions
    return versions


def _place(path: Path, content: bytes) -> None:
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
        _place(path, json.dumps(content, indent=1).encode("utf8"))


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _disk(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"could not write to {root}: {error.strerror or error}; what was finished is kept"
        ) from error


def in_words(errors: Iterable[OSError]) -> str:
    """What the disk said, each thing once."""
    return "; ".join(sorted({error.strerror or str(error) for error in errors}))
