"""The directory of a sweep, which survives anything at any moment.

    manifest.json            the declaration, versions and host; sealed, so that a change by hand is seen
    cells/                   the cells (cells.py)
    log.txt, progress.json   for people; nothing is read back from them
    .lock                    held by the sweep that is running; a killed one leaves it free

The manifest's counts are written from what `cells/` holds and never trusted.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenfield.errors import InputError, RunError
from tokenfield.runs import store
from tokenfield.runs.files import MOST_MANIFEST_BYTES, read_regular
from tokenfield.runs.lock import LOCK, DirectoryLock
from tokenfield.runs.seal import is_sealed, sealed
from tokenfield.sweeps.cells import (
    CELLS,
    DONE,
    FAILED,
    CellStore,
    DamagedError,
    host,
    place,
    versions_differ,
)
from tokenfield.sweeps.grid import Grid, declare, digest_of
from tokenfield.sweeps.objects import OBJECTS, stored_grid

FORMAT = "tokenfield sweep 1"
MANIFEST, PROGRESS = "manifest.json", "progress.json"


class Locked(NamedTuple):
    """The directory of a sweep while nobody else may write to it."""

    cells: CellStore
    lock: DirectoryLock


@contextlib.contextmanager
def locked(root: Path, grid: Grid) -> Iterator[Locked]:
    """The directory made ready for this sweep, and nobody else's while the context lasts."""
    _refuse_foreign(root)
    with _disk(root):
        (root / CELLS).mkdir(parents=True, exist_ok=True)
        lock = DirectoryLock(root, "store", "another sweep is running in")
    try:
        cells = CellStore(root)
        _refuse_other(cells, grid)
        with _disk(root):
            cells.remove_drafts()
            write_manifest(cells, grid)
        yield Locked(cells, lock)
        with contextlib.suppress(OSError):  # the next sweep here removes them too
            cells.remove_drafts()
    finally:
        lock.release()


def write_manifest(cells: CellStore, grid: Grid) -> None:
    """The manifest, from the declaration and from what is in `cells/`."""
    states = list(cells.states().values())
    content = {
        "format": FORMAT,
        "declaration": grid.declaration,
        "versions": store.versions(),
        "host": host(),
        "cells": {"declared": len(grid.cells), "done": states.count(DONE), "failed": states.count(FAILED)},
    }
    text = json.dumps(sealed(content), indent=1, ensure_ascii=False)
    place(cells.root / MANIFEST, text.encode("utf8"))


def is_sweep(root: Path) -> bool:
    """Whether a directory looks like a sweep's."""
    return (root / CELLS).is_dir()


def read_manifest(root: Path) -> dict[str, Any]:
    """The manifest, checked to be whole and unchanged."""
    file = root / MANIFEST
    again = "delete it and run the sweep again: its cells are kept, and the manifest is rebuilt"
    try:
        manifest = json.loads(read_regular(file, "path", MOST_MANIFEST_BYTES).decode("utf8"))
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"`path` must be a sweep, but {root} has no {MANIFEST}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"`path` must be a sweep, but {file} is unreadable ({error}); {again}") from None
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise InputError(f"`path` must be a sweep of format {FORMAT!r}, but {root} has {found!r}")
    if not is_sealed(manifest):
        raise InputError(f"`path` must be a sweep as it was stored, but {file} was changed by hand; {again}")
    return manifest


def read_progress(root: Path) -> dict[str, Any]:
    """What a running sweep last told of itself; nothing if that cannot be read."""
    try:
        told = json.loads(read_regular(root / PROGRESS, "path", MOST_MANIFEST_BYTES))
    except (InputError, OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def open_grid(root: Path) -> tuple[Grid, dict[str, Any]]:
    """The sweep that a directory holds, and its manifest."""
    manifest = read_manifest(root)
    declared = manifest["declaration"]
    known = stored_grid if OBJECTS in declared else declare
    return known(declared, root.name), manifest


def _refuse_foreign(root: Path) -> None:
    """A directory that holds something, but no sweep, is not touched."""
    if root.exists() and not root.is_dir():
        raise InputError(f"`store` must be a directory, but {root} is a file")
    foreign = root.exists() and not is_sweep(root) and any(e.name != LOCK for e in root.iterdir())
    if foreign:
        raise InputError(f"`store` must be new, empty or a sweep, but {root} holds other files")


def _refuse_other(cells: CellStore, grid: Grid) -> None:
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


def _check_unlisted(cells: CellStore, grid: Grid) -> Mapping[str, str] | None:
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


@contextlib.contextmanager
def _disk(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"could not write to {root}: {error.strerror or error}; what was finished is kept"
        ) from error
