"""Objects as plain data: what a store keeps of a run's inputs, and compares when it is resumed."""

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

import equinox as eqx
import jax
import numpy as np

#: Arrays with more entries than this are described by shape and hash instead of being listed.
LISTED_ENTRIES = 4096


def plain(value: Any) -> Any:
    """The value as JSON-able data: modules by their class and fields, large arrays by their hash.

    Functions are told apart by name and program. What has no such form is left as it is.
    """
    if isinstance(value, eqx.Module):
        fields = {k: plain(v) for k, v in vars(value).items()}
        return {"kind": _kind(type(value))} | fields | (_program(value) if callable(value) else {})
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain(v) for v in value]
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        array = np.asarray(value)
        return _jsonable(array.tolist()) if array.size <= LISTED_ENTRIES else fingerprint(array)
    if isinstance(value, PurePath):
        return str(value)
    if callable(value):
        named = value if hasattr(value, "__qualname__") else type(value)
        return {"function": f"{named.__module__}.{named.__qualname__}"} | _program(value)
    return _jsonable(value)


def _kind(kind: type) -> str:
    """Name of a class in a store: a class of somebody else may be called like one of ours."""
    ours = kind.__module__.partition(".")[0] == __name__.partition(".")[0]
    return kind.__name__ if ours else f"{kind.__module__}.{kind.__qualname__}"


def _program(fn: Callable[..., Any]) -> dict[str, str]:
    """Hash of what a JAX function of one number, or of one random key, computes; nothing for others."""
    for argument in (lambda: 0.5, lambda: jax.random.key(0)):
        try:
            closed = jax.make_jaxpr(fn)(argument())
            text = re.sub(r"0x[0-9a-f]+", "", str(closed))  # addresses differ from process to process
            content = [text.encode("utf8"), *(np.asarray(c).tobytes() for c in closed.consts)]
        except Exception:  # whatever the function says to what it is not meant for
            continue
        return {"sha256": hashlib.sha256(b"".join(content)).hexdigest()}
    return {}


def fingerprint(array: np.ndarray) -> dict[str, Any]:
    """Shape and hash of an array."""
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return {"shape": list(array.shape), "sha256": digest}


def large_arrays(value: Any) -> dict[str, np.ndarray]:
    """The arrays that `plain` describes by their hash, hash → array."""
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(value) if eqx.is_array(leaf)]
    return {fingerprint(a)["sha256"]: a for a in arrays if a.size > LISTED_ENTRIES}


def _jsonable(value: Any) -> Any:
    """Infinity has no place in JSON; it is written as text."""
    if isinstance(value, list):
        return [_jsonable(v) for v in value]
    return repr(value) if isinstance(value, float) and not np.isfinite(value) else value


def describe(**inputs: Any) -> dict[str, Any]:
    """The inputs of a run as plain data, to be stored and compared."""
    return {name: plain(value) for name, value in inputs.items()}
