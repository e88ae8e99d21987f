"""Checkpoints on disk: config.json and safetensors files, read as data and never as code.

Everything that cannot be used is refused in one sentence before any array is computed with. A pickle can run
code when it is read, so pickles are not read at all; a configuration that asks for code is refused.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tokenfield.errors import InputError, as_whole, require

#: File endings of pickles.
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
#: Types of numbers that are weights, by their name in safetensors files.
FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
#: The longest configuration or index that is read, in bytes; real ones have some thousands.
LONGEST_JSON = 50_000_000


@dataclass(frozen=True)
class TrainedCheckpoint:
    """What a directory holds: the settings, and where every tensor is.

    `files`: for each tensor the file that holds it. `prefix`: what stands before every name, "bert." say.
    """

    path: Path
    settings: Mapping[str, Any]
    files: Mapping[str, Path]
    prefix: str = ""

    def __contains__(self, name: str) -> bool:
        """Whether there is a tensor of this name, without the prefix."""
        return any(each in self.files for each in self._spellings(name))

    def take(self, name: str, *shape: int) -> np.ndarray:
        """A tensor in double precision; refused if it is missing, misshapen, not finite or not of floats."""
        found = [each for each in self._spellings(name) if each in self.files]
        if not found:
            raise InputError(f"`path` must hold the tensor {self.prefix}{name}, but {self.path} does not")
        array = _read(self.files[found[0]], found[0], shape)
        require(bool(np.isfinite(array).all()), found[0], "be finite", "NaN or infinite somewhere")
        return array

    def whole(self, name: str, default: int | None = None) -> int:
        """A setting that is a whole number, at least 1."""
        value = self.settings.get(name, default)
        require(value is not None, "config.json", f"say {name}", "silent about it")
        return as_whole(value, name, 1)

    def parameters(self) -> int:
        """How many numbers all floating-point tensors hold, heads on top of the encoder included."""
        total = 0
        for path in sorted(set(self.files.values())):
            with _open(path) as file:
                views = [file.get_slice(name) for name in file.keys() if self.files.get(name) == path]  # noqa: SIM118
                total += sum(math.prod(view.get_shape()) for view in views if view.get_dtype() in FLOATS)
        return total

    def _spellings(self, name: str) -> list[str]:
        """Names under which the tensor may stand: early releases said gamma and beta of a LayerNorm."""
        full = self.prefix + name
        head, _, last = full.rpartition(".")
        old = {"weight": "gamma", "bias": "beta"}.get(last)
        return [full, f"{head}.{old}"] if old and "norm" in head.lower() else [full]


def open_checkpoint(path: str | Path) -> TrainedCheckpoint:
    """The settings of a Hugging Face directory and the places of its tensors; no weights are read yet."""
    path = Path(path)
    if path.suffix in PICKLES:
        _refuse_pickle(path)
    require(path.is_dir(), "path", "be a directory with config.json and model.safetensors", path)
    require((path / "config.json").is_file(), "path", "be a directory with a config.json", path)
    settings = read_json(path / "config.json")
    _refuse_code(settings)
    return TrainedCheckpoint(path, settings, _files(path))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds a table; anything else is refused."""
    require(path.stat().st_size <= LONGEST_JSON, path.name, "be a short file", f"{path.stat().st_size} bytes")
    try:
        found = json.loads(path.read_text(encoding="utf8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"`{path.name}` must be JSON, but {path} is not: {str(error)[:100]}") from None
    require(isinstance(found, dict), path.name, "hold a table of settings", type(found).__name__)
    return found


def strip_prefix(checkpoint: TrainedCheckpoint, prefix: str, known: str) -> TrainedCheckpoint:
    """The checkpoint with the prefix that its tensors have: models with a head on top say "bert." first.

    Args:
        checkpoint: as opened.
        prefix: what may stand before every name.
        known: a name that every such model has, without prefix.
    """
    there = known not in checkpoint and TrainedCheckpoint(checkpoint.path, {}, checkpoint.files, prefix)
    chosen = prefix if there and known in there else ""
    return TrainedCheckpoint(checkpoint.path, checkpoint.settings, checkpoint.files, chosen)


def _refuse_pickle(path: Path) -> None:
    raise InputError(
        f"`path` must hold safetensors, but {path.name} is a pickle, which can run code when it is read:"
        " convert to safetensors"
    )


def _refuse_code(settings: Mapping[str, Any]) -> None:
    for name in ("auto_map", "trust_remote_code", "custom_pipelines"):
        if settings.get(name):
            raise InputError(
                f"`config.json` must describe a model of a known kind, but asks for code by {name};"
                " such code is never executed"
            )


def _files(path: Path) -> dict[str, Path]:
    """For each tensor the file that holds it."""
    whole, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if whole.is_file():
        return dict.fromkeys(_names(whole), whole)
    if index.is_file():
        return _sharded(path, read_json(index))
    pickles = sorted(each for each in path.iterdir() if each.suffix in PICKLES)
    if pickles:
        _refuse_pickle(pickles[0])
    raise InputError(f"`path` must hold model.safetensors, but {path} does not")


def _sharded(path: Path, index: Mapping[str, Any]) -> dict[str, Path]:
    places: dict[str, str] = index.get("weight_map", {})
    usable = isinstance(places, dict) and all(isinstance(each, str) for each in places.values())
    require(usable, "model.safetensors.index.json", "hold a weight_map of file names", type(places).__name__)
    for name in sorted(set(places.values())):
        plain = Path(name).name == name and name.endswith(".safetensors")
        require(plain, "weight_map", "name safetensors files of the same directory", name)
        require((path / name).is_file(), "path", f"hold {name}, which the index names", f"{path} without it")
    held = {name: set(_names(path / name)) for name in set(places.values())}
    lost = sorted(tensor for tensor, name in places.items() if tensor not in held[name])
    require(not lost, "weight_map", "name the file that holds each tensor", f"wrong for {lost[:1]}")
    return {tensor: path / name for tensor, name in places.items()}


def _open(path: Path) -> Any:
    try:
        from safetensors import safe_open
    except ImportError:
        raise InputError(
            "`safetensors` must be installed to read checkpoints: pip install 'tokenfield[encoders]'"
        ) from None
    try:
        return safe_open(str(path), framework="numpy")
    except Exception as error:  # the library has one exception for everything that is wrong with a file
        raise InputError(
            f"`{path.name}` must be a safetensors file, but is not one: {str(error)[:100]}"
        ) from None


def _names(path: Path) -> Iterable[str]:
    with _open(path) as file:
        return list(file.keys())


def _read(path: Path, name: str, shape: tuple[int, ...]) -> np.ndarray:
    with _open(path) as file:
        view = file.get_slice(name)
        kind, there = view.get_dtype(), tuple(view.get_shape())
        must = "have floating-point weights (F64, F32, F16 or BF16), not quantised ones"
        require(kind in FLOATS, name, must, kind)
        require(there == shape, name, f"have shape {shape}", f"of shape {there}")
        return np.asarray(file.get_tensor(name)).astype(np.float64)
