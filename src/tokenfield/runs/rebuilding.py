"""A model from its description in a store: data, never code.

Only classes of tokenfield are made, by name from the list below, and only from numbers; large arrays are
looked up by their hash, and checked against it. Functions (φ, schedules, random layers) cannot be made again:
there is no model then.
"""

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from tokenfield.laws.tokens import Tokens
from tokenfield.models import attention, common_noise, depth, masks, mirrored, norms, terms
from tokenfield.models.base import Model, Sum
from tokenfield.models.weights import AttentionWeights

#: What a store may describe.
KNOWN: dict[str, type[eqx.Module]] = {
    kind.__name__: kind
    for kind in (
        AttentionWeights,
        Tokens,
        Sum,
        attention.SoftmaxAttention,
        attention.UnnormalisedAttention,
        attention.HardmaxAttention,
        attention.ZeroTemperature,
        terms.MLP,
        terms.Drift,
        terms.Noise,
        common_noise.CommonNoise,
        masks.Causal,
        masks.Alibi,
        masks.BlockCausal,
        masks.MatrixMask,
        masks.Rope,
        masks.Both,
        norms.PreNorm,
        norms.PeriNorm,
        norms.ScaledNorm,
        norms.MixNorm,
        norms.NGPT,
        norms.NoNorm,
        depth.Depth,
        mirrored.Mirrored,
    )
}
#: Fields that follow from the others.
DERIVED = ("kind", "infinite")
#: Fields whose lists are not arrays of numbers.
LISTS = ("parts", "models", "block")


class _UnknownError(Exception):
    """Something that cannot be made again."""


def rebuilt(description: Any, arrays: Mapping[str, np.ndarray] = MappingProxyType({})) -> Model | None:
    """The model that `plain` described, or None if it cannot be made again; `arrays`: hash → array."""
    try:
        made = _made(description, "", arrays)
    except (_UnknownError, KeyError, TypeError, ValueError):
        return None
    return made if isinstance(made, Model) else None


def _made(value: Any, name: str, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, dict):
        if "kind" not in value:
            return _by_hash(value, arrays)
        kind = KNOWN[value["kind"]]
        fields = {k: _made(v, k, arrays) for k, v in value.items() if k not in DERIVED}
        if kind in (masks.MatrixMask, masks.Alibi, masks.Rope, masks.Causal, masks.BlockCausal, masks.Both):
            return kind(**{k: _array(k, v) for k, v in fields.items()})
        made = kind(**fields)
        if isinstance(made, Tokens):  # which divides by norms once more: the bits of the run are wanted
            bits = jnp.asarray(fields["x"]), jnp.asarray(fields["weights"])
            made = eqx.tree_at(lambda tokens: (tokens.x, tokens.weights), made, bits)
        return made
    if isinstance(value, list):
        if name in LISTS:
            return tuple(_made(v, "", arrays) for v in value)
        return np.array(_numbers(value), float)
    return _numbers(value) if isinstance(value, str) and value in ("inf", "-inf", "nan") else value


def _by_hash(description: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """A large array; a function, which has a hash as well, is not among them."""
    found = arrays.get(description.get("sha256", ""))
    if found is None or list(found.shape) != description.get("shape"):
        raise _UnknownError("an array that is not there")
    if hashlib.sha256(np.ascontiguousarray(found).tobytes()).hexdigest() != description["sha256"]:
        raise _UnknownError("an array that was changed")
    return found


def _array(name: str, value: Any) -> Any:
    """Fields of masks that are arrays, not settings."""
    return np.asarray(value, float) if name in ("slope", "offsets", "frequencies") else value


def _numbers(value: Any) -> Any:
    """Infinity is written as text."""
    if isinstance(value, list):
        return [_numbers(v) for v in value]
    if isinstance(value, str):
        return float(value)
    return value
