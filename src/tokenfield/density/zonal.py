"""Laws that depend on the height ⟨x, e⟩ only, on the sphere of any R^d: one-dimensional cost.

With x = cos φ e + sin φ ω the law is one of φ in [0, π] and u = ⟨∂x/∂φ, X⟩ its velocity (heights.py). Two
schemes:

- spectral: coefficients c_l = ∫p_l dμ of ρ = Σ c_l p_l in Gegenbauer polynomials, which obey
  dc_l/dt = ∫p_l' t' dμ − D l(l+d−2)c_l, t' = −sin φ u; the diffusion is implicit;
- characteristics: Gauss nodes in φ carried by u with their masses, log ρ by −div X. Never negative, and
  the only choice where ρ spans more digits than a double has: in high dimension nearly always.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Literal, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import special

from tokenfield.density.domain import Domain, Problem, Watch
from tokenfield.density.heights import CarriedNodes, ZonalModel, spectral_field, zonal_model
from tokenfield.density.march import adaptive, march
from tokenfield.density.resolution import SPECTRAL_TAIL, UNRESOLVABLE_TAIL, resolution_warning, undershoot
from tokenfield.density.result import DensityTrajectory, conclude
from tokenfield.density.start import initial_density
from tokenfield.errors import as_number, as_whole, require
from tokenfield.geometry.gegenbauer import gauss, harmonics
from tokenfield.laws.tokens import Moments, Tokens, as_real
from tokenfield.models.base import Model
from tokenfield.registry import register

#: Directions across the axis over which pairs are averaged.
PAIR_DIRECTIONS = 64
#: Numbers that `tokens` makes at most; more are refused.
MAX_TOKEN_NUMBERS = 50_000_000
#: Marginal densities below this times the greatest are left out of the interval of the nodes.
NEGLIGIBLE_MARGINAL = 1e-17

Scheme = Literal["auto", "spectral", "characteristics"]


@register(
    "domain",
    "zonal",
    settings={"axis": list[float], "degree": int, "tolerance": float},
    places="of_heights",
    size=lambda settings: 3 * settings.degree // 2 + 1,
)
class Zonal(Domain):
    """Laws of the height over the axis `axis` (d,) of norm 1; ρ0 is a function of heights in [−1, 1].

    `degree`: greatest degree of the polynomials, and number of nodes carried. `scheme`: "spectral",
    "characteristics", or "auto": spectral, and characteristics if that turns out under-resolved (not with
    noise, which has none). `tolerance`: error allowed in a time step.
    """

    axis: Float[np.ndarray, "d"] = eqx.field(converter=lambda v: _unit(v))
    degree: int = eqx.field(default=96, converter=lambda v: as_whole(v, "degree", 4))
    scheme: Scheme = "auto"
    tolerance: float = eqx.field(default=1e-10, converter=lambda v: as_number(v, "tolerance"))

    name: ClassVar[str] = "zonal"

    def __check_init__(self):
        known = self.scheme in ("auto", "spectral", "characteristics")
        require(known, "scheme", 'be "auto", "spectral" or "characteristics"', repr(self.scheme))
        require(1e-13 <= self.tolerance <= 1e-2, "tolerance", "lie in [1e-13, 1e-2]", self.tolerance)

    @classmethod
    def for_model(cls, model: Model) -> Self:
        """The first axis, degree 96."""
        return cls(np.eye(model.d)[0])

    @property
    def d(self) -> int:
        """Dimension of the surrounding space."""
        return len(self.axis)

    @property
    def moving(self) -> bool:
        """Whether the nodes differ from time to time."""
        return self.scheme == "characteristics"

    def run(self, problem: Problem, watch: Watch) -> DensityTrajectory:
        """Spectral or by characteristics."""
        model = problem.model
        require(model.d == self.d, "model", f"act in the dimension {self.d} of the axis", model.d)
        zonal = zonal_model(model, self.axis)
        noisy = problem.diffusion > 0
        require(
            not (noisy and self.scheme == "characteristics"),
            "scheme",
            'be "spectral" for a model with noise, which has no characteristics',
            self.scheme,
        )
        if self.scheme == "characteristics":
            return self._characteristics(problem, zonal, watch)
        result = self._spectral(problem, zonal, watch, stop=self.scheme == "auto" and not noisy)
        if self.scheme == "spectral" or noisy or result.resolved:
            return replace(result, domain=replace(self, scheme="spectral"))
        return replace(self, scheme="characteristics")._characteristics(problem, zonal, watch)

    def tokens(self, nodes: np.ndarray, masses: np.ndarray) -> Tokens:
        """Each height as the 2(d−1) points of a cross-polytope across the axis."""
        around = 2 * (self.d - 1)
        size = len(nodes) * around * self.d
        require(
            size <= MAX_TOKEN_NUMBERS,
            "d",
            "leave tokens that fit in memory (use .sample(n, key) instead)",
            f"{self.d}, which makes {size} numbers",
        )
        across = np.linalg.svd(self.axis[None])[2][1:]
        cross = np.concatenate([across, -across])
        radius = np.sqrt(np.maximum(1 - nodes**2, 0.0))
        x = nodes[:, None, None] * self.axis + radius[:, None, None] * cross
        return Tokens(x.reshape(-1, self.d), np.repeat(masses / around, around))

    def moments(self, nodes: np.ndarray, masses: np.ndarray) -> Moments:
        """Along the axis, and equal in all directions across it."""
        along, across = masses @ nodes**2, masses @ (1 - nodes**2) / (self.d - 1)
        line = np.outer(self.axis, self.axis)
        second = along * line + across * (np.eye(self.d) - line)
        return Moments(jnp.asarray((masses @ nodes) * self.axis), jnp.asarray(second))

    def pairs(self, nodes: np.ndarray, masses: np.ndarray, f: Callable[[np.ndarray], np.ndarray]) -> float:
        """∬f(⟨x,y⟩)dμdμ, averaged over the directions across the axis: a cross-polytope is too coarse.

        Args:
            nodes: heights, (nodes,).
            masses: shares of the mass, (nodes,), which may be negative.
            f: function of an array of scalar products.
        """
        radius = np.sqrt(np.maximum(1 - nodes**2, 0.0))
        along, across = np.outer(nodes, nodes), np.outer(radius, radius)
        directions = zip(*gauss(self.d - 1, PAIR_DIRECTIONS), strict=True)
        return float(
            sum(share * (masses @ f(along + across * omega) @ masses) for omega, share in directions)
        )

    def sample(self, nodes: np.ndarray, masses: np.ndarray, n: int, rng: np.random.Generator) -> Tokens:
        """An angle from the axis between the neighbours of a node, then a direction across the axis.

        Args:
            nodes: heights, (nodes,).
            masses: shares of the mass, (nodes,), not negative, sum 1.
            n: how many tokens.
            rng: source of random numbers.
        """
        order = np.argsort(nodes)
        phi, share = np.arccos(np.clip(nodes[order], -1, 1)), masses[order]
        between = (phi[1:] + phi[:-1]) / 2
        first = min(2 * phi[0] - between[0], np.pi)
        last = max(2 * phi[-1] - between[-1], 0.0)
        edges = np.concatenate([[first], between, [last]])
        cell = rng.choice(len(phi), n, p=share)
        drawn = edges[cell] + rng.uniform(size=n) * (edges[cell + 1] - edges[cell])
        across = rng.normal(size=(n, self.d))
        across -= np.outer(across @ self.axis, self.axis)
        across /= np.linalg.norm(across, axis=1, keepdims=True)
        return Tokens(np.cos(drawn)[:, None] * self.axis + np.sin(drawn)[:, None] * across)

    # -- spectral

    def _spectral(self, problem: Problem, zonal: ZonalModel, watch: Watch, stop: bool) -> DensityTrajectory:
        t, w = gauss(self.d, 3 * self.degree // 2 + 1)
        p, _ = harmonics(self.d, self.degree, t)
        rho = initial_density(problem.rho0, t, w)
        y0 = p.T @ (w * rho)
        decay = None
        if problem.diffusion > 0:
            l = np.arange(self.degree + 1)  # noqa: E741
            decay = jnp.asarray(problem.diffusion * l * (l + self.d - 2))
        field = spectral_field(zonal, self.d, self.degree)
        limit = SPECTRAL_TAIL if stop else UNRESOLVABLE_TAIL
        healthy = lambda y: bool(self._tail(y[None], p)[0][0] <= limit)  # noqa: E731
        marched = march(adaptive(field, self.tolerance, decay), jnp.asarray(y0), problem.ts, watch, healthy)
        tail, density = self._tail(marched.y, p)
        shortfall = f"the highest degrees up to {self.degree} carry up to {tail.max():.1e} of the density"
        warning = resolution_warning(problem.ts, tail, SPECTRAL_TAIL, shortfall)
        return conclude(self, problem, marched, t, density, density * w, tail, warning)

    def _tail(self, y: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the degrees may have missed at each time, and the density at the nodes."""
        density = y @ p.T
        top = np.linalg.norm(y[:, 2 * self.degree // 3 :], axis=1) / np.linalg.norm(y, axis=1)
        return np.maximum(top, undershoot(density)), density

    # -- characteristics

    def _characteristics(self, problem: Problem, zonal: ZonalModel, watch: Watch) -> DensityTrajectory:
        labels, phi, masses, log_rho = self._nodes(problem.rho0)
        carried = CarriedNodes(zonal, jnp.asarray(masses), self.d)
        y0 = jnp.stack([jnp.asarray(phi), jnp.asarray(log_rho)])
        marched = march(adaptive(carried, self.tolerance), y0, problem.ts, watch)
        angle, logs = marched.y[:, 0], marched.y[:, 1]
        tail = self._node_tail(angle, masses, labels, zonal.sharpness)
        shortfall = f"what {self.degree} nodes do not see may be {tail.max():.1e} of an integral"
        warning = resolution_warning(problem.ts, tail, SPECTRAL_TAIL, shortfall)
        with np.errstate(over="ignore"):  # relative to the uniform law no double may hold it
            density = np.exp(logs)
        shares = np.broadcast_to(masses, density.shape)
        return conclude(self, problem, marched, np.cos(angle), density, shares, tail, warning)

    def _node_tail(
        self, angle: np.ndarray, masses: np.ndarray, labels: np.ndarray, sharpness: float
    ) -> np.ndarray:
        """Top third of the Legendre series, in the label of the nodes, of functions as sharp as the kernel.

        A flow that draws neighbouring nodes far apart makes the integrand steep in the label.
        """
        p, _ = harmonics(3, self.degree - 1, labels)
        both = np.stack([np.cos(sharpness * angle), np.sin(sharpness * angle)]) * masses
        size = np.abs(both @ p)
        top = np.linalg.norm(size[..., 2 * self.degree // 3 :], axis=-1)
        return np.max(top, axis=0) / np.max(np.linalg.norm(size, axis=-1), axis=0)

    def _nodes(
        self, rho0: Callable[[np.ndarray], ArrayLike]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Labels, angles, masses and log ρ at Gauss–Legendre nodes of the interval that holds the mass."""
        fine = (np.arange(20_000) + 0.5) * (np.pi / 20_000)
        # one kind of check for all domains; what it scales by is not needed here
        values = initial_density(rho0, np.cos(fine), np.full(len(fine), 1 / len(fine)))
        with np.errstate(divide="ignore"):
            marginal = np.log(values) + (self.d - 2) * np.log(np.sin(fine))
        inside = np.flatnonzero(marginal > marginal.max() + np.log(NEGLIGIBLE_MARGINAL))
        low, high = fine[inside[0]] - fine[0], fine[inside[-1]] + fine[0]
        z, weights = np.polynomial.legendre.leggauss(self.degree)
        phi = (low + high) / 2 + (high - low) / 2 * z
        values = np.asarray(rho0(np.cos(phi)), float) * np.ones(self.degree)
        kept = values > 0
        z, phi, weights, values = z[kept], phi[kept], weights[kept], values[kept]
        log_share = np.log(values) + (self.d - 2) * np.log(np.sin(phi)) + np.log(weights)
        log_total = special.logsumexp(log_share)
        # ∫ sin^{d−2} over [0, π] is what the uniform law divides by
        log_area = special.gammaln((self.d - 1) / 2) - special.gammaln(self.d / 2) + 0.5 * np.log(np.pi)
        log_mass = log_total + np.log((high - low) / 2) - log_area
        return z, phi, np.exp(log_share - log_total), np.log(values) - log_mass


def _unit(axis: ArrayLike) -> np.ndarray:
    array = np.asarray(as_real(axis, "axis"))
    require(
        array.ndim == 1 and array.size >= 2, "axis", "be a vector of length d ≥ 2", f"of shape {array.shape}"
    )
    norm = float(np.linalg.norm(array))
    require(abs(norm - 1) <= 1e-6, "axis", "have norm 1", f"of norm {norm:.9g}")
    return array / norm
