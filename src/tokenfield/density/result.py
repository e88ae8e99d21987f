"""DensityTrajectory: what a run of the mean-field equation saved; it mirrors `Trajectory`.

Densities are relative to the uniform law σ of the sphere, so that ρ = 1 is uniform in every dimension: on
the circle ρ = 2πf for a density f(θ). Beside ρ at the nodes stand the masses of the nodes, ρ times their
quadrature weights; with them the law is a weighted cloud, and every diagnostic of tokens applies.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from tokenfield.density.domain import Domain, Problem
from tokenfield.density.march import Marched
from tokenfield.errors import as_whole
from tokenfield.laws.tokens import Continuum, Moments, Tokens
from tokenfield.runs.plain import describe
from tokenfield.runs.trajectory import as_index, measured


class DensityTrajectory(Continuum):
    """The densities at the times `ts`, how the run ended, and what made it.

    `nodes`: places in the coordinates of the domain (angles, heights or points), one set for all times or
    one for each; `density` (times, nodes): ρ there; `masses` (times, nodes): their shares of the mass;
    `tail` (times,): how much of the density the resolution may have missed; `status`: a sentence;
    `complete`: whether the last time was reached; `resolved`: whether the resolution held to the end;
    `stats`: steps, seconds, ...; `inputs`: what made the run, as plain data.
    """

    ts: Float[np.ndarray, "times"]
    nodes: Float[np.ndarray, "..."]
    density: Float[np.ndarray, "times nodes"]
    masses: Float[np.ndarray, "times nodes"]
    tail: Float[np.ndarray, "times"]
    domain: Domain
    stats: dict[str, Any]
    inputs: dict[str, Any] = eqx.field(static=True)
    status: str = eqx.field(static=True)
    complete: bool = eqx.field(static=True)
    resolved: bool = eqx.field(static=True)

    @property
    def snapshot_ts(self) -> Float[np.ndarray, "times"]:
        """The times at which the law is known: all of `ts`."""
        return self.ts

    @property
    def mass(self) -> Float[np.ndarray, "times"]:
        """∫dμ at each time; 1 up to rounding."""
        return self.masses.sum(axis=1)

    @property
    def minimum(self) -> Float[np.ndarray, "times"]:
        """Least density at any node at each time; what is below 0 is an undershoot."""
        return self.density.min(axis=1)

    def tokens(self, k: int = -1) -> Tokens:
        """The law at the k-th time as weighted tokens at the nodes, by default at the last.

        Negative masses (see `minimum`) are left out and the others scaled to sum 1.
        """
        k = self._index(k)
        masses = np.maximum(self.masses[k], 0.0)
        return self.domain.tokens(self._nodes(k), masses / masses.sum())

    def moments(self, k: int = -1) -> Moments:
        """∫x dμ and ∫xxᵀ dμ at the k-th time, of the density as it is."""
        k = self._index(k)
        return self.domain.moments(self._nodes(k), self.masses[k])

    def pairs(self, f: Callable[[np.ndarray], np.ndarray], k: int = -1) -> float:
        """∬f(⟨x,y⟩)dμdμ at the k-th time, of the density as it is; f takes arrays."""
        k = self._index(k)
        return self.domain.pairs(self._nodes(k), self.masses[k], f)

    def sample(self, n: int, key: int, k: int = -1) -> Tokens:
        """Independent tokens of equal weight with the law at the k-th time.

        Args:
            n: how many, at least 1.
            key: seed of the random numbers.
            k: index of the time, by default the last.
        """
        k, n = self._index(k), as_whole(n, "n", 1)
        rng = np.random.default_rng(as_whole(key, "key", 0))
        masses = np.maximum(self.masses[k], 0.0)
        return self.domain.sample(self._nodes(k), masses / masses.sum(), n, rng)

    def measure(self, fn: Callable[[Tokens], Any]) -> np.ndarray:
        """fn of the law as tokens at every time, stacked along a leading time axis."""
        return measured(fn, (self.tokens(k) for k in range(len(self.ts))))

    def _nodes(self, k: int) -> np.ndarray:
        return self.nodes[k] if self.domain.moving else self.nodes

    def _index(self, k: int) -> int:
        return as_index(k, len(self.ts), "times")


def conclude(
    domain: Domain,
    problem: Problem,
    marched: Marched,
    nodes: np.ndarray,
    density: Float[np.ndarray, "times nodes"],
    masses: Float[np.ndarray, "times nodes"],
    tail: Float[np.ndarray, "times"],
    warning: str,
    **stats: Any,
) -> DensityTrajectory:
    """The result of a march.

    Args:
        domain: what the nodes mean.
        problem: what was solved, with the times that were asked for.
        marched: how the march ended and what it cost.
        nodes: places in the coordinates of the domain, one set or one for each time.
        density: ρ at the nodes, (times, nodes).
        masses: shares of the mass at the nodes, (times, nodes).
        tail: how much of the density the resolution may have missed, (times,).
        warning: empty if the resolution held (`resolution_warning`).
        **stats: more numbers for the statistics of the run.
    """
    return DensityTrajectory(
        ts=problem.ts[: len(density)],
        nodes=nodes,
        density=density,
        masses=masses,
        tail=tail,
        domain=domain,
        stats=marched.stats | {"nodes": density.shape[1]} | stats,
        inputs=describe(model=problem.model, diffusion=problem.diffusion, domain=domain, ts=problem.ts),
        status=marched.status + warning,
        complete=marched.complete,
        resolved=not warning,
    )
