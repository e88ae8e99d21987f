"""The one head whose eigenspaces and Π the lab can show, asked of a model or of the manifest of a stored run.

The theory of concentration is about the matrices of attention that do not change with depth and that nothing
but noise disturbs. Other models are shown as well, without eigenspaces, and the page says why.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tokenfield.models.base import Model
from tokenfield.models.weights import AttentionWeights

NOT_STORED = "the matrices of this run are not known"


class KnownHead(NamedTuple):
    """Matrices and β of attention, None where there are none; `missing` says why there are no matrices."""

    weights: AttentionWeights | None
    beta: float | None
    missing: str = ""


def head_of(model: Model) -> KnownHead:
    """What a model declares: the weights of its only term beside noise, and its β if it has one."""
    moving = [term for term in model.terms if not term.noisy]
    if model.reads_time:
        return KnownHead(None, None, "the model changes with depth")
    if model.space.raw:
        return KnownHead(None, None, "scores read the lengths of the tokens")
    if len(moving) != 1:
        return KnownHead(None, None, "more than attention moves the tokens")
    weights, beta = (getattr(moving[0], name, None) for name in ("weights", "beta"))
    missing = "the model has no attention matrices" if weights is None else ""
    return KnownHead(weights, None if beta is None else float(beta), missing)


def head_of_stored(inputs: Mapping[str, Any]) -> KnownHead:
    """The same from the inputs of a stored run, as far as they are listed: large matrices are a hash only."""
    try:
        model = inputs["model"]
        while "model" in model:  # in a space, or mirrored
            model = model["model"]
        if "parts" in model:
            (model,) = [part for part in model["parts"] if part["kind"] != "Noise"]
        matrices = model["weights"]
        weights = AttentionWeights(matrices["B"], matrices["V"], matrices.get("score_bias"))
        return KnownHead(weights, float(model["beta"]) if "beta" in model else None)
    except (KeyError, TypeError, ValueError):
        return KnownHead(None, None, NOT_STORED)
