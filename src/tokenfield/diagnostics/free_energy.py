"""The free energy of a noisy law: what diffusion and attention descend together.

    F[μ] = κ^{−1}∫ρ log ρ dσ − E[μ],    dF/dt = −∫|κ^{−1}∇log ρ − X|² dμ ≤ 0,

E the energy that the model climbs: E_β for unnormalised attention with B = V = I, E_φ for an interaction.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tokenfield.density.result import DensityTrajectory
from tokenfield.diagnostics.energy import interaction_energy
from tokenfield.errors import require, require_kind
from tokenfield.models import InteractionFlow, Model, UnnormalisedAttention


def free_energy(trajectory: DensityTrajectory, model: Model) -> Float[np.ndarray, "times"]:
    """F at every time of the run, in the time unit of the model; without noise it is −E.

    The model is the one of the run, with its noise. Models that climb no energy are refused.
    """
    require_kind(trajectory, DensityTrajectory, "trajectory")
    require_kind(model, Model, "model")
    drift = model.drift
    check_climbs(drift)
    log_density = np.log(np.maximum(trajectory.density, 1e-300))
    entropy = np.sum(trajectory.masses * log_density, axis=1)
    climbed = np.array([_energy(drift, trajectory, k) for k in range(len(trajectory.ts))])
    return float(model.diffusion) * entropy - climbed


def check_climbs(drift: Model) -> None:
    """Refuse a model, its noise left out, that climbs no energy."""
    known = isinstance(drift, InteractionFlow)
    if isinstance(drift, UnnormalisedAttention) and not drift.infinite:
        known = _is_one(drift.weights.B) and _is_one(drift.weights.V) and float(drift.log_time_unit) == 0
    require(known, "model", "be unnormalised attention with B = V = I or an interaction flow: they climb an"
            " energy", type(drift).__name__)  # fmt: skip


def _is_one(matrix: Array) -> bool:
    return matrix.ndim == 2 and bool(jnp.all(matrix == jnp.eye(len(matrix))))


def _energy(drift: Model, law: DensityTrajectory, k: int) -> float:
    if isinstance(drift, UnnormalisedAttention):
        beta = float(drift.beta)
        if beta == 0:
            return float(jnp.sum(law.moments(k).mean ** 2)) / 2
        return law.pairs(lambda g: np.exp(beta * g), k) / (2 * beta)
    assert isinstance(drift, InteractionFlow)
    if _is_one(drift.A):
        value = jax.vmap(lambda s: jnp.asarray(drift.phi(s), float))
        return law.pairs(lambda g: np.asarray(value(jnp.asarray(g.ravel()))).reshape(g.shape), k) / 2
    require(law.domain.name != "zonal", "trajectory", "not be zonal where A is not I: take another domain",
            "zonal")  # fmt: skip
    heads = drift.A.reshape(-1, drift.d, drift.d)
    return float(sum(interaction_energy(law.tokens(k), drift.phi, A) for A in heads))
