"""The manifest of a stored run: what it is, how far it got, and the hashes of all that counts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenfield.errors import InputError
from tokenfield.runs.axes import SNAPSHOT
from tokenfield.runs.files import MOST_MANIFEST_BYTES, read_regular
from tokenfield.runs.seal import is_sealed

MANIFEST = "manifest.json"
#: How a store is laid out; the one before has no seals and can only be read.
FORMAT, UNSEALED = "tokenfield run 2", "tokenfield run 1"


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest, checked to be one of ours, as it was written."""
    file = path / MANIFEST
    if not path.exists():
        raise InputError(f"`path` must be a stored run, but {path} does not exist")
    try:
        manifest = json.loads(read_regular(file, "path", MOST_MANIFEST_BYTES).decode("utf8"))
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"`path` must be a stored run, but {path} has no {MANIFEST}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"`path` must be a stored run, but {file} is unreadable: {error}") from error
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found not in (FORMAT, UNSEALED):
        raise InputError(
            f"`path` must be a stored run of format {FORMAT!r}, but {path} has {repr(found)[:60]}"
        )
    for name, right in FACTS.items():
        if not right(manifest.get(name, OPTIONAL.get(name))):
            said = repr(manifest[name])[:60] if name in manifest else "missing"
            raise InputError(f"`path` must be a stored run, but in {file} the entry `{name}` is {said}")
    if found == FORMAT and not is_sealed(manifest):
        raise InputError(f"`path` must be a stored run as it was written, but {file} was changed by hand")
    _refuse_disagreement(file, manifest)
    return manifest


def _refuse_disagreement(file: Path, manifest: dict[str, Any]) -> None:
    """Every measurement is written at each time reached, every snapshot with all its parts."""
    reached, written = manifest["reached"], manifest["written"]
    snapshots = {written[name] for name in SNAPSHOT if name in written}
    wrong = [name for name, count in written.items() if name not in SNAPSHOT and count != reached]
    wrong += [
        name for name in SNAPSHOT if name in written and (len(snapshots) > 1 or written[name] > reached)
    ]
    if wrong:
        raise InputError(
            f"`path` must be a stored run whose counts agree, but in {file} {reached} times are reached and"
            f" {written[wrong[0]]} records of `{wrong[0]}` are written"
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_table_of(right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(right(v) for v in value.values())


def _is_list_of_text(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


#: What the entries of a manifest must be, and the values of those that may be missing.
FACTS: dict[str, Callable[[Any], bool]] = {
    "inputs": lambda v: isinstance(v, dict),
    "versions": _is_table_of(_is_text),
    "reached": _is_count,
    "written": _is_table_of(_is_count),
    "status": _is_text,
    "complete": lambda v: isinstance(v, bool),
    "stats": lambda v: isinstance(v, dict),
    "files": _is_table_of(_is_text),
    "chunks": _is_table_of(_is_list_of_text),
    "threads": lambda v: isinstance(v, list) and all(_is_table_of(_is_count)(each) for each in v),
}
#: How a run ended; gone while it goes on.
ENDINGS: dict[str, Any] = {"status": "", "complete": False, "stats": {}}
OPTIONAL: dict[str, Any] = ENDINGS | {"files": {}, "chunks": {}, "threads": []}
