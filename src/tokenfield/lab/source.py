"""What a path holds that the lab can show: a stored run, a TOML file, a cell of a sweep."""

from pathlib import Path

from tokenfield import config
from tokenfield.errors import InputError, require
from tokenfield.store import read_manifest
from tokenfield.sweep.cells import CELL, DamagedError, decode


def source(where: str | Path) -> Path | config.Config:
    """A path for a stored run, to be played; a configuration for what is to be computed.

    A cell of a sweep keeps few snapshots or none, so it is computed again from its settings.
    """
    path = Path(str(where).strip()).expanduser()
    known = bool(str(where).strip()) and path.exists()
    require(known, "path", "be a stored run, a TOML file or a cell of a sweep", repr(str(where)))
    if path.is_dir():
        read_manifest(path)
        return path
    with open(path, "rb") as file:
        if file.read(len(CELL)) != CELL:
            return config.read(path)
    try:
        settings = decode(path.read_bytes()).settings
    except DamagedError as error:
        raise InputError(f"`path` must be a whole cell of a sweep, but {path} is damaged: {error}") from error
    run = settings.get("run", {})
    return config.parse(settings | {"run": {k: v for k, v in run.items() if k != "snapshots"}})
