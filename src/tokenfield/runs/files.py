"""Files that a person names: regular ones up to a stated size, so that no reader hangs or swells."""

import os
import stat
from pathlib import Path
from typing import Any

from tokenfield.errors import InputError, require

#: The greatest size of a TOML file, of a manifest, and of a cell or checkpoint.
MOST_TOML_BYTES, MOST_MANIFEST_BYTES, MOST_DATA_BYTES = 2**20, 2**26, 2**33
#: The longest name of a file or directory that file systems take.
LONGEST_NAME = 255


def as_path(value: Any, name: str) -> Path:
    """The value as a path, or a sentence that it is none."""
    require(isinstance(value, str | Path), name, "be a path", repr(value))
    require("\0" not in str(value), name, "be a path without the character NUL", repr(str(value)))
    path = Path(value)
    longest = max((len(os.fsencode(part)) for part in path.parts), default=0)
    require(longest <= LONGEST_NAME, name, f"be a path of names of at most {LONGEST_NAME} letters", longest)
    return path


def read_regular(path: Path, name: str, most: int) -> bytes:
    """The content of a file; what is no regular file, or too large, is refused before it is read.

    Args:
        path: of the file.
        name: of the argument that it came from.
        most: the greatest number of bytes.

    Returns:
        All its bytes; `OSError` if it is not there or may not be read.
    """
    require_regular(path, name, most)
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(os.open(path, flags), "rb") as file:
        # looked at once more: what is open now may not be what was looked at before
        regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        content = file.read(most + 1) if regular else b""
    if not regular or len(content) > most:
        raise InputError(f"`{name}` must be a regular file of at most {most} bytes, but {path} is not")
    return content


def require_regular(path: Path, name: str, most: int) -> None:
    """Refuse what is no regular file, or is too large; `OSError` if there is nothing.

    Args:
        path: of the file.
        name: of the argument that it came from.
        most: the greatest number of bytes.
    """
    found = os.stat(path)
    if stat.S_ISDIR(found.st_mode):
        raise InputError(f"`{name}` must be a regular file, but {path} is a directory")
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"`{name}` must be a regular file, but {path} is a device, a pipe or a socket")
    if found.st_size > most:
        raise InputError(f"`{name}` must be a file of at most {most} bytes, but {path} has {found.st_size}")
