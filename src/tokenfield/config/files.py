"""TOML files as plain data, not yet checked."""

import tomllib
from pathlib import Path
from typing import Any

from tokenfield.errors import InputError
from tokenfield.runs.files import MOST_TOML_BYTES, as_path, read_regular


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file says, not yet checked."""
    try:
        return tomllib.loads(read_regular(as_path(path, "config"), "config", MOST_TOML_BYTES).decode("utf8"))
    except InputError:
        raise
    except RecursionError:
        raise InputError(f"`config` must not nest tables and lists so deep, but {path} does") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"`config` must be a TOML file, but {path} is not: {error}") from error
    except (OSError, ValueError) as error:  # bytes that are no text, numbers of thousands of digits
        long = "a number in it is too long" if "digits" in str(error) else "not text"
        reason = getattr(error, "strerror", None) or long
        raise InputError(f"`config` must be a readable TOML file, but {path} is not: {reason}") from error
