"""Where a density lives and how it is carried along: what every domain of `density.solve` has in common.

A domain carries its own resolution, scheme and tolerance. To add one: a subclass of `Domain` in a file of
its own with

    name                         the string that stands for it in `solve`, with a line in `solve.DOMAINS`
    moving                       True if the nodes differ from time to time (a property or a class variable)
    for_model(model)             the domain with sensible settings, for a user who wrote only the string
    run(problem, watch)          the work: problem → DensityTrajectory (result.py)
    tokens, moments, sample      what the nodes and masses of that result mean on the sphere

Domains that follow an ODE for a state vector (coefficients, cell averages) use `march` (march.py), which
steps, shows progress and finds trouble; an implicit diagonal diffusion is built into it.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import equinox as eqx
import numpy as np

from tokenfield.laws.tokens import Moments, Tokens
from tokenfield.models.base import Model

if TYPE_CHECKING:
    from tokenfield.density.result import DensityTrajectory

#: Rows of pairs that are held at once.
PAIR_ROWS_AT_ONCE = 256

#: Told how far a run is, the time reached and the steps so far; says why it is to stop there, if it is.
Watch = Callable[[float, int], str]


class Problem(NamedTuple):
    """∂_t μ = diffusion·Δμ − div(μ X[μ]), X the velocity of `model` (its noise taken out), from `rho0` on.

    `rho0`: a function of the places of the domain, positive; the domain normalises it.
    """

    model: Model
    diffusion: float
    rho0: Any
    ts: np.ndarray


class Domain(eqx.Module):
    """A kind of density: its nodes, its scheme, its meaning as tokens."""

    name: ClassVar[str]

    @property
    def moving(self) -> bool:
        """Whether the nodes differ from time to time, so that the result has a leading time axis there."""
        return False

    @classmethod
    @abstractmethod
    def for_model(cls, model: Model) -> Self:
        """Sensible settings for this model."""

    @abstractmethod
    def run(self, problem: Problem, watch: Watch) -> "DensityTrajectory":
        """Carry ρ0 through the times; refuse with a sentence what the domain cannot do, before any work."""

    @abstractmethod
    def tokens(self, nodes: np.ndarray, masses: np.ndarray) -> Tokens:
        """The nodes with their masses (non-negative, sum 1) as tokens."""

    def moments(self, nodes: np.ndarray, masses: np.ndarray) -> Moments:
        """∫x dμ and ∫xxᵀ dμ, also where masses are negative."""
        x = np.asarray(self.tokens(nodes, np.full(len(masses), 1 / len(masses))).x)
        weighted = masses[:, None] * x
        return Moments(weighted.sum(axis=0), weighted.T @ x)  # pyright: ignore[reportArgumentType]

    def pairs(self, nodes: np.ndarray, masses: np.ndarray, f: Callable[[np.ndarray], np.ndarray]) -> float:
        """∬f(⟨x,y⟩)dμdμ, some rows at a time.

        Args:
            nodes: places of the domain, (nodes,) or (nodes, d).
            masses: shares of the mass, (nodes,), which may be negative.
            f: function of an array of scalar products.
        """
        x = np.asarray(self.tokens(nodes, np.full(len(masses), 1 / len(masses))).x)
        rows = (slice(i, i + PAIR_ROWS_AT_ONCE) for i in range(0, len(x), PAIR_ROWS_AT_ONCE))
        return float(sum(masses[part] @ (f(x[part] @ x.T) @ masses) for part in rows))

    @abstractmethod
    def sample(self, nodes: np.ndarray, masses: np.ndarray, n: int, rng: np.random.Generator) -> Tokens:
        """Independent tokens with the law of the nodes and masses.

        Args:
            nodes: places of the domain, (nodes,) or (nodes, d).
            masses: shares of the mass, (nodes,), not negative, sum 1.
            n: how many tokens.
            rng: source of random numbers.
        """
