"""Seals: hashes that what was edited by hand, or put in another file's place, does not match.

They are no signatures: who wants to deceive can seal again. A manifest carries a seal of itself, and the
hashes of everything beside it; the records of an array are hashed by the file they stand in, so that no file
can take the place of another.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

SEAL = "seal"


def data_hash(value: Any) -> str:
    """Hash of plain data, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf8")).hexdigest()


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data with its seal, in place of the one it may have had."""
    bare = {name: value for name, value in content.items() if name != SEAL}
    return bare | {SEAL: data_hash(bare)}


def is_sealed(content: Mapping[str, Any]) -> bool:
    """Whether plain data is what was sealed."""
    return content.get(SEAL) == sealed(content)[SEAL]


def array_hash(*arrays: np.ndarray) -> str:
    """Hash of the values of arrays, one after the other."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def named_hash(arrays: Mapping[str, np.ndarray]) -> str:
    """Hash of arrays with their names, shapes and types."""
    return data_hash({k: [a.dtype.str, list(a.shape), array_hash(a)] for k, a in arrays.items()})


def chunk_hashes(values: np.ndarray, records: int) -> list[str]:
    """Hashes of the chunks of an array, of the records that are there.

    Args:
        values: the records, along the first axis.
        records: in a full chunk.
    """
    return [array_hash(values[k : k + records]) for k in range(0, len(values), records)]


class GrowingHashes:
    """The hashes of the chunks of an array to which records are added; the last one may not be full."""

    def __init__(self, records: int):
        self.records = records
        self._full: list[str] = []
        self._last, self._count = hashlib.sha256(), 0

    def add(self, values: np.ndarray | Sequence[np.ndarray]) -> None:
        """Take in further records, along the first axis."""
        for record in values:
            self._last.update(np.ascontiguousarray(record).tobytes())
            self._count += 1
            if self._count == self.records:
                self._full.append(self._last.hexdigest())
                self._last, self._count = hashlib.sha256(), 0

    def listed(self) -> list[str]:
        """One hash for each chunk."""
        return self._full + ([self._last.hexdigest()] if self._count else [])
