"""The state that a stored run goes on from: arrays with a seal, and the run that they belong to."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tokenfield.errors import InputError
from tokenfield.runs.files import MOST_DATA_BYTES, require_regular
from tokenfield.runs.seal import SEAL, named_hash

CHECKPOINT = "checkpoint.npz"
#: Entries of the file beside the state: the run it belongs to, and the hashes of the chunks it stands on.
RUN, CHUNKS = "run", "chunks"


class Checkpoint(dict[str, np.ndarray]):
    """The arrays to go on from; what is missing or of another shape is one sentence."""

    def __init__(self, file: Path, arrays: Mapping[str, np.ndarray]):
        super().__init__(arrays)
        self.file = file

    def take(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """One array; refused if it is missing or another.

        Args:
            name: of the array.
            shape: that it must have.
            dtype: that it must have.
        """
        found = self.get(name)
        self.require(found is not None, f"lacks `{name}`")
        assert found is not None
        right = found.shape == shape and found.dtype == dtype
        self.require(right, f"has `{name}` of shape {found.shape}, {found.dtype}, not {shape}, {dtype}")
        return found

    def json(self, name: str) -> Any:
        """One entry of plain data, kept as text."""
        self.require(name in self, f"lacks `{name}`")
        try:
            return json.loads(str(self[name]))
        except ValueError:
            raise InputError(
                f"`path` must hold a usable checkpoint, but {self.file} has a damaged `{name}`"
            ) from None

    def require(self, holds: bool, trouble: str) -> None:
        """Raise unless the condition holds."""
        if not holds:
            raise InputError(f"`path` must hold a usable checkpoint, but {self.file} {trouble}")


def sealed_arrays(
    state: Mapping[str, np.ndarray], run: str, chunks: Mapping[str, list[str]]
) -> dict[str, np.ndarray]:
    """The content of a checkpoint's file.

    Args:
        state: the arrays to go on from.
        run: hash of the inputs of the run.
        chunks: for each array the hashes of the chunks written so far.

    Returns:
        The arrays with a seal.
    """
    arrays = {**state, RUN: np.asarray(run), CHUNKS: np.asarray(json.dumps(dict(chunks)))}
    return {**arrays, SEAL: np.asarray(named_hash(arrays))}


def read_checkpoint(path: Path, run: str) -> Checkpoint | None:
    """The last checkpoint of a store, None if the run never reached one.

    Args:
        path: the store.
        run: hash of the inputs of the run, to which the checkpoint must belong.
    """
    file = path / CHECKPOINT
    if not file.exists():
        return None
    try:
        require_regular(file, "path", MOST_DATA_BYTES)
        with np.load(file, allow_pickle=False) as arrays:
            found = Checkpoint(file, dict(arrays))
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"`path` must hold a usable checkpoint, but {file} is damaged: {error}") from error
    seal = found.pop(SEAL, None)
    found.require(str(seal) == named_hash(found), "was changed by hand")
    found.require(str(found.get(RUN)) == run, "belongs to another run")
    return found
