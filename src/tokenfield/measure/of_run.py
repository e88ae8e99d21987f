"""What a run says of its own model, so that nobody has to give weights or β a second time."""

import numpy as np
from numpy.typing import ArrayLike

from tokenfield.density.result import DensityTrajectory
from tokenfield.errors import InputError, require, require_kind
from tokenfield.models.base import Model, Term
from tokenfield.models.requirements import check_law
from tokenfield.models.weights import AttentionWeights
from tokenfield.runs.trajectory import Trajectory

#: Matrices that differ by less than this, relative, are the same.
SAME_WEIGHTS = 1e-9


def weights_of(run: Trajectory | DensityTrajectory, weights: AttentionWeights | None) -> AttentionWeights:
    """The attention weights of a run: those of its model, or given ones that do not contradict it."""
    if weights is not None:
        require_kind(weights, AttentionWeights, "weights")
    model = model_of(run)
    if model is None:
        must = "be given: this run does not carry the model that made it"
        require(weights is not None, "weights", must, "left out")
        assert weights is not None
        return weights
    check_law(model.drift, "the phases of §2.7")
    own = getattr(_attention(model), "weights", None)
    if weights is None:
        require(own is not None, "weights", "be given for a model without one attention term", "left out")
        assert own is not None
        return own
    if own is not None and not _same(own, weights):
        raise InputError(
            "`weights` must be those of the run's own model, but were others; leave them out, or measure a"
            " run that was made with them"
        )
    return weights


def beta_of(run: Trajectory | DensityTrajectory, beta: ArrayLike | None) -> ArrayLike:
    """β of a run: that of its model, or a given one."""
    if beta is not None:
        return beta
    model = model_of(run)
    own = None if model is None else getattr(_attention(model), "beta", None)
    require(own is not None, "beta", "be given: the run carries no model with one beta", "left out")
    assert own is not None
    return own


def model_of(run: Trajectory | DensityTrajectory) -> Model | None:
    """The model that made a run, if the run carries it."""
    return getattr(run, "model", None)


def _attention(model: Model) -> Term | None:
    """The only term of the model that is made of heads."""
    found = [term for term in model.terms if term.heads is not None]
    return found[0] if len(found) == 1 else None


def _same(a: AttentionWeights, b: AttentionWeights) -> bool:
    for mine, other in ((a.B, b.B), (a.V, b.V)):
        x, y = np.asarray(mine), np.asarray(other)
        if x.shape != y.shape or np.abs(x - y).max() > SAME_WEIGHTS * max(np.abs(x).max(), 1e-300):
            return False
    return True
