"""Sums for a model and tokens: what a user's `summation=...` means.

Values must be known to plan fast sums. Under jit and vmap "auto" is direct; under grad, where values are
known, fast sums asked for by name are planned for a neighbourhood of the heads.
"""

from typing import TYPE_CHECKING

import jax
import numpy as np
from jax import lax

from tokenfield.errors import is_traced, require
from tokenfield.laws.tokens import Tokens
from tokenfield.sums.base import Sums
from tokenfield.sums.policy import SummationPolicy
from tokenfield.sums.profile import Scored
from tokenfield.sums.ring import Ring

if TYPE_CHECKING:
    from tokenfield.models.base import Model

#: Fast sums that are differentiated in βB are planned for a neighbourhood of it, relative.
NEIGHBOURHOOD = 1e-3
#: Relative error of sums that nobody asked a tolerance for.
DEFAULT_TOLERANCE = 1e-9


def policy_for(
    model: "Model", tokens: Tokens, summation: str, tolerance: float, ring: Ring | None = None
) -> SummationPolicy:
    """The sums of a run.

    Args:
        model: whose heads are summed.
        tokens: the initial law.
        summation: a name of `SUMMATIONS`.
        tolerance: relative error allowed in the sums.
        ring: sums over several devices.
    """
    known = lax.stop_gradient(tokens)  # under grad, unlike jit, the values are there
    return SummationPolicy(summation, known_heads(model, summation, tokens), known, tolerance, ring)


def sums_for(model: "Model", tokens: Tokens, summation: str = "auto") -> Sums:
    """The sums for one evaluation of the velocity.

    Args:
        model: whose heads are summed.
        tokens: the law.
        summation: a name of `SUMMATIONS`.
    """
    model.check(tokens)
    return policy_for(model, tokens, summation, DEFAULT_TOLERANCE).sums


def known_heads(model: "Model", summation: str, tokens: Tokens) -> Scored | None:
    """The heads that fast sums may be planned for, where there is something to gain and values are known.

    Args:
        model: whose heads they are.
        summation: a name of `SUMMATIONS`.
        tokens: the law.
    """
    if summation == "auto" and is_traced(model, tokens):
        return None  # nobody could change the sums during the run
    if summation == "direct" and is_traced(model):
        return None
    with jax.ensure_compile_time_eval():  # a model that is not traced has values inside jit, too
        scored = model.scored
        if scored is None:
            return None
        A, bias = lax.stop_gradient((scored.A, scored.bias))
    must = "be 'direct' where the kernel holds a number that is traced by jit, vmap or grad"
    require(not is_traced(scored.profile), "summation", must, repr(summation))
    must = "be 'direct' where B or beta are traced by jit or vmap"
    require(not is_traced(A, bias), "summation", must, repr(summation))
    A, bias = np.asarray(A), None if bias is None else np.asarray(bias)
    if is_traced(model):
        A = np.concatenate([(1 - NEIGHBOURHOOD) * A, (1 + NEIGHBOURHOOD) * A])
        bias = (
            None if bias is None else np.concatenate([(1 - NEIGHBOURHOOD) * bias, (1 + NEIGHBOURHOOD) * bias])
        )
    return Scored(scored.profile, A, bias, scored.mask)
