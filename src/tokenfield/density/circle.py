"""Densities on the circle (d = 2), x = (cos θ, sin θ): ∂_t ρ = D ρ'' − (ρu)', u = ⟨τ, X[ρ]⟩.

Two schemes:

- spectral: Fourier coefficients c_k = ∫e^{−ikθ}dμ, products on a grid half as fine again (no aliasing).
  Errors fall faster than every power of 1/modes while ρ is smooth; the diffusion is implicit;
- volume: averages over cells, piecewise linear with limited slopes, upwind fluxes with the exact velocity
  of the discrete law at the edges, third-order steps that keep positivity. Never negative, order 2, robust
  for jumps and clusters.

What a point reads is in circle_reading.py, the cells are in volumes.py.
"""

from dataclasses import replace
from typing import ClassVar, Literal, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tokenfield.density.circle_reading import Velocity, velocity
from tokenfield.density.domain import Domain, Problem, Watch
from tokenfield.density.march import Advanced, adaptive, march
from tokenfield.density.resolution import SPECTRAL_TAIL, UNRESOLVABLE_TAIL, resolution_warning, undershoot
from tokenfield.density.result import DensityTrajectory, conclude
from tokenfield.density.start import initial_density
from tokenfield.density.volumes import advance_cells, cells_of
from tokenfield.errors import as_number, as_whole, require
from tokenfield.geometry.circle import angles, fast_size, points
from tokenfield.laws.tokens import Tokens
from tokenfield.models.base import Model
from tokenfield.registry import register

#: Share of the mass in structures of the width of a cell from which a run of cells counts as under-resolved.
MAX_VOLUME_TAIL = 0.1

Scheme = Literal["auto", "spectral", "volume"]


@register(
    "domain",
    "circle",
    settings={"modes": int, "tolerance": float},
    places="of_angles",
    size=lambda settings: settings.modes,
)
class Circle(Domain):
    """A density on the circle with `modes` Fourier modes or cells; ρ0 is a function of angles.

    `scheme`: "spectral", "volume", or "auto": spectral, and cells if that turns out under-resolved.
    `tolerance`: L² error allowed in a time step of the spectral scheme.
    """

    modes: int = eqx.field(default=512, converter=lambda v: as_whole(v, "modes", 8))
    scheme: Scheme = "auto"
    tolerance: float = eqx.field(default=1e-10, converter=lambda v: as_number(v, "tolerance"))

    name: ClassVar[str] = "circle"

    def __check_init__(self):
        known = self.scheme in ("auto", "spectral", "volume")
        require(known, "scheme", 'be "auto", "spectral" or "volume"', repr(self.scheme))
        require(1e-13 <= self.tolerance <= 1e-2, "tolerance", "lie in [1e-13, 1e-2]", self.tolerance)
        require(self.modes % 2 == 0, "modes", "be even", self.modes)

    @classmethod
    def for_model(cls, model: Model) -> Self:
        """512 modes; cells if they do not suffice."""
        return cls()

    def run(self, problem: Problem, watch: Watch) -> DensityTrajectory:
        """Spectral or by cells."""
        require(problem.model.d == 2, "model", "act in dimension 2 on the circle", problem.model.d)
        noisy = problem.diffusion > 0
        require(
            not (noisy and self.scheme == "volume"),
            "scheme",
            'be "spectral" for a model with noise, which smooths',
            repr(self.scheme),
        )
        if self.scheme == "volume":
            return self._volume(problem, watch)
        result = self._spectral(problem, watch, stop=self.scheme == "auto" and not noisy)
        if self.scheme == "spectral" or noisy or result.resolved:
            return result
        cells = replace(self, modes=max(self.modes, 2048), scheme="volume")
        return cells._volume(problem, watch)

    def tokens(self, nodes: np.ndarray, masses: np.ndarray) -> Tokens:
        """Tokens at the angles."""
        return Tokens(points(nodes), masses)

    def sample(self, nodes: np.ndarray, masses: np.ndarray, n: int, rng: np.random.Generator) -> Tokens:
        """A cell by its mass, then a place in it.

        Args:
            nodes: angles, (nodes,).
            masses: shares of the mass, (nodes,), not negative, sum 1.
            n: how many tokens.
            rng: source of random numbers.
        """
        cell = rng.choice(len(nodes), n, p=masses)
        return Tokens(points(nodes[cell] + (rng.uniform(size=n) - 0.5) * (2 * np.pi / len(nodes))))

    # -- spectral

    def _spectral(self, problem: Problem, watch: Watch, stop: bool) -> DensityTrajectory:
        theta = angles(self.modes)
        rho = initial_density(problem.rho0, theta, np.full(self.modes, 1 / self.modes))
        coefficients = np.fft.rfft(rho, norm="forward") * np.exp(-1j * _wave(self.modes) * theta[0])
        y0 = _packed(coefficients[: self.modes // 2])
        field = spectral_field(problem.model, self.modes)
        decay = None
        if problem.diffusion > 0:
            decay = problem.diffusion * jnp.arange(self.modes // 2) ** 2 * jnp.ones((2, 1))
        limit = SPECTRAL_TAIL if stop else UNRESOLVABLE_TAIL
        healthy = lambda y: bool(self._tail(y[None])[0][0] <= limit)  # noqa: E731
        marched = march(adaptive(field, self.tolerance, decay), y0, problem.ts, watch, healthy)
        tail, density = self._tail(marched.y)
        shortfall = f"the finest of {self.modes} modes carry up to {tail.max():.1e} of the density"
        warning = resolution_warning(problem.ts, tail, SPECTRAL_TAIL, shortfall)
        return conclude(self, problem, marched, theta, density, density / self.modes, tail, warning)

    def _tail(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the modes may have missed at each time, and the density at the nodes."""
        coefficients = np.pad(y[:, 0] + 1j * y[:, 1], ((0, 0), (0, 1)))
        wave = _wave(self.modes)
        turned = coefficients * np.exp(1j * wave * angles(self.modes)[0])
        density = np.fft.irfft(turned, self.modes, norm="forward")
        size = np.abs(coefficients) * np.where(wave > 0, np.sqrt(2), 1.0)
        top = wave >= self.modes // 3
        tail = np.linalg.norm(size[:, top], axis=1) / np.linalg.norm(size, axis=1)
        return np.maximum(tail, undershoot(density)), density

    # -- cells

    def _volume(self, problem: Problem, watch: Watch) -> DensityTrajectory:
        theta = angles(self.modes)
        rho = initial_density(problem.rho0, theta, np.full(self.modes, 1 / self.modes))
        cells = cells_of(problem.model, self.modes)

        def advance(y: Array, t0: Array, t1: Array, dt: Array) -> Advanced:
            return advance_cells(cells, y, t0, t1)

        marched = march(advance, jnp.asarray(rho), problem.ts, watch)
        density = marched.y
        bend = density - 0.5 * (np.roll(density, 1, axis=1) + np.roll(density, -1, axis=1))
        tail = np.mean(np.abs(bend), axis=1) / 2
        shortfall = f"the finest of {self.modes} cells cut off up to {tail.max():.1e} of the density"
        warning = resolution_warning(problem.ts, tail, MAX_VOLUME_TAIL, shortfall)
        return conclude(self, problem, marched, theta, density, density / self.modes, tail, warning)


def _wave(size: int) -> np.ndarray:
    return np.arange(size // 2 + 1)


def _packed(c: np.ndarray) -> Array:
    """Real and imaginary parts, which is what Diffrax takes."""
    return jnp.stack([jnp.real(c), jnp.imag(c)])


class CircleField(eqx.Module):
    """dc_k/dt = −ik (ρu)_k without diffusion; products on a grid of `size` points."""

    velocity: Velocity
    size: int = eqx.field(static=True)

    def __call__(self, y: Float[Array, "2 K"]) -> Float[Array, "2 K"]:
        """The change of the packed coefficients."""
        c = y[0] + 1j * y[1]
        rho = jnp.fft.irfft(c, self.size, norm="forward")
        flux = jnp.fft.rfft(rho * self.velocity(c, rho / self.size), norm="forward")[: c.shape[0]]
        rate = -1j * jnp.arange(c.shape[0]) * flux
        return jnp.stack([rate.real, rate.imag])


def spectral_field(model: Model, modes: int) -> CircleField:
    """The right-hand side in coefficients for a model."""
    size = fast_size(3 * modes // 2)
    return CircleField(velocity(model, modes, size, on_edges=False), size)
