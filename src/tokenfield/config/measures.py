"""What a file may ask to be measured, and how it becomes a function of the tokens."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Array, Float

from tokenfield.config.choices import RegisteredSection
from tokenfield.errors import InputError
from tokenfield.laws.tokens import Continuum, Tokens
from tokenfield.models.base import Model
from tokenfield.models.weights import AttentionWeights
from tokenfield.registry import entries, find, register

if TYPE_CHECKING:
    from tokenfield.density.result import DensityTrajectory
    from tokenfield.measure.limit_law import LimitDistance


@register("measure", "mean", of="law", traceable=True)
def mean(tokens: Tokens | Continuum) -> Float[Array, "d"]:
    """The mean ∫x dμ."""
    return tokens.moments().mean


@register("measure", "limit_distance", needs=("weights", "start"), prepared=True)
def distance_to_limit(weights: AttentionWeights, start: Tokens) -> "LimitDistance":
    """W2 to Π♯ρ0, the law that the tokens concentrate on, as a function of the tokens."""
    # only runs that ask for it need what finds attractors
    from tokenfield.measure.limit_law import limit_distance

    return limit_distance(weights, start)


@register("measure", "minimum", of="density run")
def minimum(run: "DensityTrajectory", model: Model) -> Float[np.ndarray, "times"]:
    """The least value of the density at every time."""
    return run.minimum


@register("measure", "tail", of="density run")
def tail(run: "DensityTrajectory", model: Model) -> Float[np.ndarray, "times"]:
    """What the resolution may have missed at every time."""
    return run.tail


def check_measures(names: Sequence[str], model: RegisteredSection) -> None:
    """Refuse what cannot be measured of a model: an energy without β, a free energy without an energy."""
    kind = model.entry.name
    for name in names:
        needs = find("measure", name).facts["needs"]
        if "beta" in needs and not hasattr(model, "beta"):
            raise InputError(f"`run.measure` must not name {name!r} for {kind!r}: it has no beta")
        if "climbs" in needs and not model.entry.facts["climbs"]:
            climbing = " and ".join(n for n, each in entries("model").items() if each.facts["climbs"])
            raise InputError(
                f"`run.measure` must not name {name!r} for {kind!r}, which climbs no energy; {climbing} do"
            )


def bind(name: str, context: Mapping[str, Any]) -> Callable[[Tokens | Continuum], Any]:
    """A measure as a function of the tokens alone.

    Args:
        name: of a registered measure.
        context: what measures may need beside the tokens: beta, model, weights, start; values that none of
            the measures asked for needs may be missing.

    Returns:
        The function.
    """
    entry = find("measure", name)
    needed = {need: context[need] for need in entry.facts["needs"]}
    if entry.facts["prepared"]:
        return entry.make(**needed)
    return lambda tokens: entry.make(tokens, **needed)
