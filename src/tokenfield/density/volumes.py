"""Finite volumes on the circle: averages over cells, piecewise linear with limited slopes, upwind fluxes.

The velocity at the edges is the exact one of the discrete law. Steps of third order are made of Euler steps,
each of which keeps ρ ≥ 0. Order 2, robust for jumps and clusters.
"""

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from tokenfield.density.circle_reading import Velocity, velocity
from tokenfield.density.march import Advanced
from tokenfield.models.base import Model

#: Part of the greatest step that keeps positivity: a stage may be faster than the one the step was made for.
COURANT_NUMBER = 0.4
#: 1/3 in so few digits that 1 − 1/3 is a double as well: else each step would round the mass to one side.
ROUNDED_THIRD = round(2**40 / 3) / 2**40


def cells_of(model: Model, count: int) -> "FiniteVolumes":
    """The scheme of cells for a model."""
    return FiniteVolumes(velocity(model, count, count, on_edges=True))


class FiniteVolumes(eqx.Module):
    """Limited slopes, upwind fluxes."""

    velocity: Velocity

    def fluxes(self, rho: Array) -> tuple[Array, Array]:
        """Fluxes at the left edges, and the greatest speed of an edge."""
        size = rho.shape[0]
        # from averages over cells to series at their left edges
        turn = jnp.exp(-1j * jnp.arange(size // 2) * (jnp.pi / size))
        u = self.velocity(jnp.fft.rfft(rho / size)[: size // 2] * turn, rho / size)
        left = jnp.roll(rho, 1)
        slope = _limited(rho - left, jnp.roll(rho, -1) - rho)
        from_left = left + jnp.roll(slope, 1) / 2
        flux = jnp.where(u > 0, u * from_left, u * (rho - slope / 2))
        return flux, jnp.max(jnp.abs(u))


def _limited(back: Array, ahead: Array) -> Array:
    """Van Leer's monotonised central slope: never makes a new extremum, never leaves ρ ≥ 0."""
    central = (back + ahead) / 2
    least = jnp.minimum(jnp.abs(central), 2 * jnp.minimum(jnp.abs(back), jnp.abs(ahead)))
    return jnp.where(back * ahead > 0, jnp.sign(central) * least, 0.0)


@eqx.filter_jit
def advance_cells(cells: FiniteVolumes, rho: Array, t0: Array, t1: Array) -> Advanced:
    """Third-order steps (Shu and Osher) made of Euler steps, each of which keeps ρ ≥ 0.

    Args:
        cells: slopes, fluxes and velocities.
        rho: averages over the cells, (cells,).
        t0: time at which they are given.
        t1: time to be reached.
    """
    h = 2 * jnp.pi / rho.shape[0]

    def body(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        t, rho, steps = carry

        def stage(k: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
            new, dt = state
            flux, speed = cells.fluxes(new)
            longest = jnp.minimum(COURANT_NUMBER * h / jnp.maximum(speed, 1e-300), t1 - t)
            dt = jnp.where(k == 0, longest, dt)
            kept = jnp.array([0.0, 0.75, ROUNDED_THIRD])[k]
            return kept * rho + (1 - kept) * (new - dt / h * (jnp.roll(flux, -1) - flux)), dt

        new, dt = lax.fori_loop(0, 3, stage, (rho, t1 - t))
        return jnp.where(t + dt >= t1, t1, t + dt), new, steps + 1

    def going(carry: tuple[Array, Array, Array]) -> Array:
        return (carry[0] < t1) & jnp.all(jnp.isfinite(carry[1]))

    t, rho, steps = lax.while_loop(going, body, (t0, rho, jnp.zeros((), int)))
    return Advanced(rho, jnp.zeros(()), steps, t >= t1)
