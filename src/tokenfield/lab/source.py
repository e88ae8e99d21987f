"""What a path holds that the lab can show: a stored run, a TOML file, a cell of a sweep."""

from collections.abc import Sequence
from pathlib import Path

from tokenfield.config import reading as config
from tokenfield.errors import InputError, require
from tokenfield.runs.files import as_path, read_regular
from tokenfield.runs.manifest import read_manifest
from tokenfield.sweeps.cells import CELL, DamagedError, decode

#: The greatest size of a cell of a sweep that the lab opens.
MOST_OPENED_BYTES = 2**28
KINDS_OF_SOURCE = "be a stored run, a TOML file or a cell of a sweep"


def located(where: str, folders: Sequence[Path]) -> Path:
    """The path that a page asks for, refused outside these folders, whether or not something is there."""
    path = _expanded(where).resolve()
    inside = any(path.is_relative_to(folder) for folder in folders)
    require(
        bool(where.strip()) and inside,
        "path",
        f"{KINDS_OF_SOURCE} in the folder that the lab was started in, or in its output folder",
        repr(where),
    )
    return path


def _expanded(where: str) -> Path:
    """What was typed as a path; ~ is the home of whom it names."""
    path = as_path(where.strip(), "path")
    try:
        return path.expanduser()
    except RuntimeError:  # a person who is not known here
        return path


def without_values(sentence: str) -> str:
    """A sentence up to the value that it complains about."""
    return sentence.partition(", but ")[0]


def source(where: str | Path) -> Path | config.Config:
    """A path for a stored run, to be played; a configuration for what is to be computed.

    A cell of a sweep keeps few snapshots or none, so it is computed again from its settings.
    """
    path = _expanded(str(where))
    known = bool(str(where).strip()) and path.exists()
    require(known, "path", KINDS_OF_SOURCE, repr(str(where)))
    if path.is_dir():
        read_manifest(path)
        return path
    content = read_regular(path, "path", MOST_OPENED_BYTES)
    if not content.startswith(CELL):
        return config.read(path)
    try:
        settings = decode(content).settings
    except DamagedError as error:
        raise InputError(f"`path` must be a whole cell of a sweep, but {path} is damaged: {error}") from error
    run = settings.get("run", {})
    return config.parse(settings | {"run": {k: v for k, v in run.items() if k != "snapshots"}})
