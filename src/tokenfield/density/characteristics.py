"""The method of characteristics: nodes carried by the flow, and the density carried along with them.

Nodes of a quadrature rule move with the velocity of the law that they make; their masses stay, and

    d/dt log ρ(x_t) = −div X(x_t)

gives the density at every node at all times, however concentrated. On the circle and on S² the nodes belong
to panels (panels.py), which are divided where the flow pulls them apart, near E^⊥ or near the antipode of the
limit: those that the last round could not resolve are cut and the run is made again, until two rounds agree.
Then every panel is given more nodes once, and what that changes is the estimate of the error. In other
dimensions nodes are Sobol points, or those of a rule that is given; half of them make the second resolution.
"""

from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tokenfield.density.divergence import velocity_and_divergence
from tokenfield.density.domain import Domain, Problem, Watch
from tokenfield.density.march import Marched, adaptive, march
from tokenfield.density.panels import Panels, even_panels, to_divide
from tokenfield.density.resolution import resolution_warning
from tokenfield.density.result import DensityTrajectory, conclude
from tokenfield.density.start import initial_density
from tokenfield.errors import InputError, as_number, as_whole, require
from tokenfield.laws import initial
from tokenfield.laws.tokens import Tokens
from tokenfield.models.base import Model
from tokenfield.registry import Setting, register
from tokenfield.sums.base import Sums
from tokenfield.sums.choice import policy_for
from tokenfield.sums.direct import DIRECT
from tokenfield.sums.expansion import Expansion

#: Gauss nodes of a panel in each direction; two fewer in the first round, two more in the last.
NODES_PER_DIRECTION = 8
#: Tail of a panel from which on it is cut into four, because there is a step inside.
STEEP_TAIL = 0.03
#: Rounds after which panels are no longer divided.
MAX_ROUNDS = 16


@register(
    "domain",
    "characteristics",
    settings={"n": Setting(int), "rule": None},  # n has to be said: what suffices depends on the dimension
    size=lambda settings: 4 * settings.n,
)
class Characteristics(Domain):
    """Nodes that move with the flow; d = 2 and 3 with panels, other d with Sobol points or a given `rule`.

    `n`: about how many nodes to begin with; `accuracy`: error wanted in the first two moments, for which
    panels are divided up to `most` nodes; `tolerance`: error of a step at any node. `rule`: tokens that stand
    for the uniform law, used as they are. ρ0 is a function of points (m, d).
    """

    n: int = 512
    accuracy: float = 1e-6
    most: int = 200_000
    tolerance: float = 1e-8
    rule: Tokens | None = None

    name: ClassVar[str] = "characteristics"
    moving: ClassVar[bool] = True

    def __check_init__(self):
        as_whole(self.n, "n", 16)
        as_whole(self.most, "most", self.n)
        for name, value in (("accuracy", self.accuracy), ("tolerance", self.tolerance)):
            require(0 < as_number(value, name) < 1, name, "lie between 0 and 1", value)
        if self.rule is not None:
            require(isinstance(self.rule, Tokens), "rule", "be Tokens", type(self.rule).__name__)

    @classmethod
    def for_model(cls, model: Model) -> Self:
        """More nodes in higher dimension."""
        return cls(n={2: 256, 3: 2048}.get(model.d, 2**13))

    def run(self, problem: Problem, watch: Watch) -> DensityTrajectory:
        """Rounds of runs, until two agree to `accuracy`."""
        _refuse(problem)
        d = problem.model.d
        if self.rule is not None:
            require(self.rule.d == d, "rule", f"have the dimension {d} of the model", self.rule.d)
            last, error = self._flow(problem, *_law(problem, self.rule.x, self.rule.weights), watch), None
            rounds = 1
        elif d > 3:
            rules = [initial.sphere_density(lambda x: 1.0, n, d) for n in (self.n // 2, self.n)]
            first, last = (self._flow(problem, *_law(problem, r.x, r.weights), watch) for r in rules)
            error, rounds = _difference(first, last), 2
        else:
            last, error, rounds = self._refined(problem, watch)
        return self._result(problem, last, error, rounds)

    def _refined(self, problem: Problem, watch: Watch) -> "tuple[_Flowed, np.ndarray, int]":
        """The last of some rounds, how much it differs from the one before, and their number."""
        panels = even_panels(problem.model.d, self.n, NODES_PER_DIRECTION).with_order(NODES_PER_DIRECTION - 2)
        allowed, rounds = self.accuracy / 4, 1
        last = self._flow(problem, *_law(problem, panels.points(), panels.weights()), watch)
        parts = _parts(panels, last, allowed)
        while True:
            panels, before, rounds = panels.divided(parts, NODES_PER_DIRECTION), last, rounds + 1
            last = self._flow(problem, *_law(problem, panels.points(), panels.weights()), watch)
            error = _difference(before, last)
            whole = panels.n <= self.most and _parts(panels, last, allowed).max() == 1
            if (error.max() <= self.accuracy or whole) and last.marched.complete:
                # rounds that divide few panels agree too well, and one that finds none to divide need not
                # agree with a coarse one before it: more nodes in every panel have the last word
                finer = panels.with_order(NODES_PER_DIRECTION + 2)
                checked = self._flow(problem, *_law(problem, finer.points(), finer.weights()), watch)
                error, rounds = _difference(last, checked), rounds + 1
                if error.max() <= self.accuracy:
                    return checked, error, rounds
                allowed /= 4
            if not last.marched.complete or rounds >= MAX_ROUNDS:
                return last, error, rounds
            parts = _parts(panels, last, allowed)
            while parts.max() == 1 and allowed > 1e-3 * self.accuracy:
                allowed /= 4  # the tails promised too much
                parts = _parts(panels, last, allowed)
            if (
                parts.max() == 1
                or panels.n + np.sum(np.prod(parts, axis=1) - 1) * NODES_PER_DIRECTION**panels.k > self.most
            ):
                return last, error, rounds

    def _flow(self, problem: Problem, x: np.ndarray, density: np.ndarray, masses: np.ndarray, watch: Watch):
        """One run with given nodes; rows of mass 0 are added, so that few programs are compiled."""
        n, size = len(x), _padded(len(x))
        rows = np.minimum(np.arange(size), n - 1)
        weights = jnp.asarray(np.where(np.arange(size) < n, masses[rows], 0.0))
        with np.errstate(divide="ignore"):
            state = np.concatenate([x, np.maximum(np.log(density), -700.0)[:, None]], axis=1)[rows]
        sums = _sums(problem.model, Tokens(state[:, :-1], weights), 0.1 * self.tolerance)
        marched = self._march(problem, weights, sums, state, watch)
        if not marched.complete and sums is not DIRECT:
            marched = self._march(problem, weights, DIRECT, state, watch)
        y = marched.y[:, :n]
        unit = y[..., :-1] / np.linalg.norm(y[..., :-1], axis=-1, keepdims=True)
        return _Flowed(unit, np.exp(np.minimum(y[..., -1], 700.0)), masses, marched, density)

    def _march(
        self, problem: Problem, weights: Array, sums: Sums, state: np.ndarray, watch: Watch
    ) -> Marched:
        advance = adaptive(_Flow(problem.model, weights, sums), self.tolerance, norm=_largest)
        return march(advance, jnp.asarray(state), problem.ts, watch)

    def _result(
        self, problem: Problem, last: "_Flowed", error: np.ndarray | None, rounds: int
    ) -> DensityTrajectory:
        marched, warning = last.marched, ""
        if error is None:
            error = np.full(len(last.x), np.nan)
            note = "; one set of nodes, so no estimate of its error"
            marched = marched._replace(status=marched.status + note)
        else:
            shortfall = f"two resolutions differ by {error.max():.1e}"
            warning = resolution_warning(problem.ts, error, self.accuracy, shortfall)
        return conclude(
            self,
            problem,
            marched,
            last.x,
            last.density,
            np.broadcast_to(last.masses, last.density.shape),
            error[: len(last.x)],
            warning,
            rounds=rounds,
        )

    def tokens(self, nodes: np.ndarray, masses: np.ndarray) -> Tokens:
        """The nodes with their masses."""
        return Tokens(nodes, masses)

    def sample(self, nodes: np.ndarray, masses: np.ndarray, n: int, rng: np.random.Generator) -> Tokens:
        """Nodes drawn by their masses; they are as close together as the quadrature is fine.

        Args:
            nodes: points, (nodes, d).
            masses: shares of the mass, (nodes,), not negative, sum 1.
            n: how many tokens.
            rng: source of random numbers.
        """
        return Tokens(nodes[rng.choice(len(nodes), n, p=masses)])


class _Flowed(NamedTuple):
    """A round: nodes (times, n, d), densities (times, n), masses (n,), the march, ρ0 at the nodes (n,)."""

    x: np.ndarray
    density: np.ndarray
    masses: np.ndarray
    marched: Marched
    start: np.ndarray

    def moments(self) -> np.ndarray:
        """First and second moments at each time, (times, d + d²)."""
        weighted = self.masses[:, None] * self.x
        second = np.einsum("tnd,tne->tde", weighted, self.x)
        return np.concatenate([weighted.sum(axis=1), second.reshape(len(second), -1)], axis=1)


class _Flow(eqx.Module):
    """Rows (x, log ρ) → (velocity, −divergence)."""

    model: Model
    weights: Float[Array, "n"]
    sums: Sums

    def __call__(self, y: Float[Array, "n d1"]) -> Float[Array, "n d1"]:
        """Constant along rays, like the field of the solvers."""
        tokens = Tokens(y[:, :-1], self.weights)
        velocity, divergence = velocity_and_divergence(self.model, tokens.x, tokens, self.sums)
        return jnp.concatenate([velocity, -divergence[:, None]], axis=1)


def _largest(error: Float[Array, "n d1"]) -> Float[Array, ""]:
    """Greatest error of any node, in place or in log ρ."""
    return jnp.sqrt(jnp.max(jnp.sum(error * error, axis=-1)))


def _refuse(problem: Problem) -> None:
    if problem.diffusion > 0:
        raise InputError(
            "`domain` must not be characteristics for a model with noise, whose law is not carried by a flow;"
            " use an Eulerian domain (circle, sphere, zonal) or simulate tokens"
        )
    require(callable(problem.rho0), "rho0", "be a function of points (m, d)", repr(problem.rho0))


def _law(problem: Problem, x: Any, weights: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes, the normalised ρ0 there, and the masses, for a rule of the uniform law."""
    x, weights = np.asarray(x), np.asarray(weights)
    density = initial_density(problem.rho0, x, weights)
    return x, density, weights * density


def _parts(panels: Panels, flowed: _Flowed, allowed: float) -> np.ndarray:
    """Into how many parts each panel is to be cut in each direction.

    The error of Gauss's rule is the square of the tail. What counts is mass: where there is none, the flow
    may do what it will. ρ0 itself has to be resolved as well.
    """
    # one time after the other, to save memory
    places = np.max([panels.tails(x) for x in flowed.x], axis=0)
    relative = flowed.start[:, None] / flowed.start.max()
    share = panels.masses(flowed.masses) * (places**2).max(axis=1)
    share += flowed.start.max() * panels.masses(panels.weights()) * (panels.tails(relative) ** 2).max(axis=1)
    marked = to_divide(share, allowed)
    tails = np.maximum(places, panels.tails(relative))
    along = tails >= 0.1 * tails.max(axis=1, keepdims=True)
    return np.where(marked[:, None] & along, np.where(tails > STEEP_TAIL, 4, 2), 1)


def _difference(a: _Flowed, b: _Flowed) -> np.ndarray:
    """Greatest difference of the first two moments, at each time that both reached."""
    reached = min(len(a.x), len(b.x))
    return np.abs(a.moments()[:reached] - b.moments()[:reached]).max(axis=1)


def _padded(n: int) -> int:
    """n rounded up to a power of two, at least 512: below that, sums cost nothing."""
    return max(512, 2 ** int(np.ceil(np.log2(n))))


def _sums(model: Model, tokens: Tokens, tolerance: float) -> Sums:
    """Fast sums where they pay, else direct ones; both have derivatives."""
    sums = policy_for(model, tokens, "auto", max(tolerance, 1e-12)).sums
    return sums if isinstance(sums, Expansion) else DIRECT
