"""The free energy of a noisy law: what diffusion and attention descend together.

    F[μ] = κ^{−1}∫ρ log ρ dσ − E[μ],    dF/dt = −∫|κ^{−1}∇log ρ − X|² dμ ≤ 0,

E the energy that the model climbs: E_β for unnormalised attention with B = V = I, E_φ for an interaction,
with the potentials of an MLP that is a gradient and of a drift added.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from tokenfield.density.result import DensityTrajectory
from tokenfield.errors import require, require_kind
from tokenfield.laws.tokens import Continuum
from tokenfield.models.base import Model
from tokenfield.models.climbing import Climbed, climbed
from tokenfield.registry import register


@register("measure", "free_energy", of="density run", needs=("climbs",))
def free_energy(trajectory: DensityTrajectory, model: Model) -> Float[np.ndarray, "times"]:
    """F at every time of the run, in the time unit of the model; without noise it is −E.

    The model is the one of the run, with its noise. Models that climb no energy are refused.
    """
    require_kind(trajectory, DensityTrajectory, "trajectory")
    require_kind(model, Model, "model")
    parts = check_climbs(model.drift)
    log_density = np.log(np.maximum(trajectory.density, 1e-300))
    entropy = np.sum(trajectory.masses * log_density, axis=1)
    energy = np.array([_energy(parts, trajectory, k) for k in range(len(trajectory.ts))])
    return float(model.diffusion) * entropy - energy


def check_climbs(drift: Model) -> list[Climbed]:
    """What a model, its noise left out, climbs; refused if that is no energy."""
    found = climbed(drift)
    must = (
        "be unnormalised attention with V = B symmetric, an interaction flow, or these with gradients: they"
    )
    require(found is not None, "model", f"{must} climb an energy", type(drift).__name__)
    assert found is not None
    return found


def _energy(parts: list[Climbed], law: DensityTrajectory, k: int) -> float:
    return float(sum(_part(part, law, k) for part in parts))


def _part(part: Climbed, law: DensityTrajectory, k: int) -> float:
    if part.potential is not None:
        tokens = _as_tokens(law, k)
        return float(jnp.sum(tokens.weights * part.potential(tokens.x)))
    if part.of_products is not None:
        return law.pairs(part.of_products, k) / 2
    assert part.of_tokens is not None
    return float(part.of_tokens(_as_tokens(law, k)))


def _as_tokens(law: DensityTrajectory, k: int):
    zonal = law.domain.name == "zonal"
    require(not zonal, "trajectory", "not be zonal where A is not I: take another domain", "zonal")
    assert isinstance(law, Continuum)
    return law.tokens(k)
