"""The mean field of causal attention on the circle: a law μ_s for every place s in [0, 1] (theory §6.1).

    ∂_t μ_s = −div(μ_s X_s),   X_s(x) = the velocity of full attention to the laws of all places u ≤ s

With L equal blocks, tokens of block k read the mean (1/k)Σ_{j≤k} μ_j, which is exactly what tokens do under
`masks.blocks` with a cloud in each block: `block_tokens` makes such clouds, `causal` solves the equation for
densities by Fourier series. ALiBi at the scale of the mean field weighs block j by e^{−λ(s_k−s_j)}.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from tokenfield.density.circle_reading import Velocity, velocity
from tokenfield.density.march import adaptive, march
from tokenfield.density.resolution import SPECTRAL_TAIL, UNRESOLVABLE_TAIL, resolution_warning, undershoot
from tokenfield.density.start import initial_density
from tokenfield.errors import RunError, as_number, as_whole, require, require_increasing, require_kind
from tokenfield.geometry.circle import fast_size, points
from tokenfield.laws.tokens import Tokens
from tokenfield.models.base import Model
from tokenfield.models.masks import BlockCausal, blocks
from tokenfield.models.requirements import check_density
from tokenfield.runs.times import as_times

#: A positive function of an array of angles; need not be normalised.
AngleDensity = Callable[[np.ndarray], np.ndarray]


class CausalDensity(eqx.Module):
    """Laws of the blocks over time.

    `ts` (times,); `nodes` (modes,): angles; `density` (times, L, modes): ρ_k relative to the uniform law;
    `tail` (times,): how much of a density the modes may have missed; `status`: how the run ended.
    """

    ts: Float[np.ndarray, "times"]
    nodes: Float[np.ndarray, "modes"]
    density: Float[np.ndarray, "times L modes"]
    tail: Float[np.ndarray, "times"]
    status: str = eqx.field(static=True)
    resolved: bool = eqx.field(static=True)

    def moment(self, degree: int) -> Float[np.ndarray, "times L"]:
        """∫e^{−ilθ}dμ_k of the wave number l, complex, for every time and block."""
        wave = np.exp(-1j * as_whole(degree, "degree", 0) * self.nodes)
        return self.density @ wave / len(self.nodes)

    def tokens(self, block: int, k: int = -1) -> Tokens:
        """The law of a block at the k-th time as weighted tokens at the nodes; undershoots are left out."""
        masses = np.maximum(self.density[k, block], 0.0)
        return Tokens(points(self.nodes), masses / masses.sum())


class BlockField(eqx.Module):
    """dc_k/dt of the packed coefficients (L, 2, K) of all blocks; products on a grid of `size` points."""

    velocity: Velocity
    averages: Float[Array, "L L"]
    size: int = eqx.field(static=True)

    def __call__(self, y: Float[Array, "L 2 K"]) -> Float[Array, "L 2 K"]:
        """The change of the coefficients."""
        c = y[:, 0] + 1j * y[:, 1]
        rho = jnp.fft.irfft(c, self.size, norm="forward")
        u = jax.vmap(self.velocity)(self.averages @ c, self.averages @ rho / self.size)
        flux = jnp.fft.rfft(rho * u, norm="forward")[:, : c.shape[1]]
        rate = -1j * jnp.arange(c.shape[1]) * flux
        return jnp.stack([rate.real, rate.imag], axis=1)


def causal(
    model: Model,
    rho0: Sequence[AngleDensity],
    ts: ArrayLike,
    slope: float = 0.0,
    modes: int = 256,
    tolerance: float = 1e-10,
) -> CausalDensity:
    """Follow the densities of L equal blocks on the circle under causal attention.

    Args:
        model: the velocity of full attention, without a mask: softmax, unnormalised (divided by the visible
            weight) and others, d = 2.
        rho0: one positive function of angles for each block, the first block first.
        ts: increasing times (times,); or one final time, counted from 0.
        slope: λ ≥ 0 of ALiBi, where all blocks have length 1 together.
        modes: even number of Fourier modes of each block.
        tolerance: L² error allowed in a time step.

    Returns:
        The densities at the times; `resolved` is False where the modes did not suffice.
    """
    require_kind(model, Model, "model")
    check_density(model)
    require(model.d == 2, "model", "act in dimension 2 on the circle", model.d)
    require(not model.noisy, "model", "have no noise here", "noisy")
    times = np.asarray(as_times(ts))
    require_increasing(times, "ts")
    modes = as_whole(modes, "modes", 8)
    require(modes % 2 == 0, "modes", "be even", modes)
    theta = np.arange(modes) * (2 * np.pi / modes)
    laws = [initial_density(f, theta, np.full(modes, 1 / modes)) for f in _densities(rho0)]
    c = np.fft.rfft(np.stack(laws), norm="forward")[:, : modes // 2]
    size = fast_size(3 * modes // 2)
    read = velocity(model, modes, size, on_edges=False)
    field = BlockField(read, jnp.asarray(_averages(len(laws), slope)), size)
    healthy = lambda y: bool(_tail(y[None], modes)[0][0] <= UNRESOLVABLE_TAIL)  # noqa: E731
    y0 = jnp.stack([jnp.real(c), jnp.imag(c)], axis=1)
    marched = march(adaptive(field, tolerance), y0, times, lambda t, steps: "", healthy)
    tail, density = _tail(marched.y, modes)
    shortfall = f"the finest of {modes} modes carry up to {tail.max():.1e} of a density"
    warning = resolution_warning(times, tail, SPECTRAL_TAIL, shortfall)
    found = CausalDensity(times[: len(tail)], theta, density, tail, marched.status + warning, not warning)
    if not marched.complete:
        raise RunError(found.status, found)
    return found


def block_tokens(rho0: Sequence[AngleDensity], n: int) -> tuple[Tokens, BlockCausal]:
    """Tokens and mask of the mean field of causal attention on the circle: a quadrature cloud in each block.

    Args:
        rho0: one positive function of angles for each block, the first block first.
        n: equispaced tokens of a block, with weights ∝ ρ; all blocks have the same weight.

    Returns:
        The tokens, block after block, and `masks.blocks` for them.
    """
    n = as_whole(n, "n", 1)
    theta = (np.arange(n) + 0.5) * (2 * np.pi / n)
    laws = [initial_density(f, theta, np.full(n, 1 / n)) for f in _densities(rho0)]
    weights = np.concatenate(laws) / (n * len(laws))
    return Tokens(np.tile(points(theta), (len(laws), 1)), weights), blocks([n] * len(laws))


def _densities(rho0: Any) -> list[AngleDensity]:
    listed = isinstance(rho0, (list, tuple)) and len(rho0) > 0 and all(callable(f) for f in rho0)
    require(listed, "rho0", "be a list of functions of angles, one for each block", repr(rho0))
    return list(rho0)


def _averages(count: int, slope: float) -> Float[np.ndarray, "L L"]:
    """Shares of the blocks up to each one in what it reads."""
    require(0 <= as_number(slope, "slope") < np.inf, "slope", "be at least 0 and finite", slope)
    behind = np.arange(count)[:, None] - np.arange(count)
    share = np.where(behind >= 0, np.exp(-slope * np.maximum(behind, 0) / count), 0.0)
    return share / share.sum(axis=1, keepdims=True)


def _tail(y: np.ndarray, modes: int) -> tuple[np.ndarray, np.ndarray]:
    """What the modes of any block may have missed at each time, and the densities at the nodes."""
    c = y[:, :, 0] + 1j * y[:, :, 1]
    density = np.fft.irfft(np.pad(c, ((0, 0), (0, 0), (0, 1))), modes, norm="forward")
    size = np.abs(c) * np.where(np.arange(c.shape[2]) > 0, np.sqrt(2), 1.0)
    tail = np.linalg.norm(size[:, :, modes // 3 :], axis=2) / np.linalg.norm(size, axis=2)
    below = undershoot(density.reshape(-1, modes)).reshape(tail.shape)
    return np.maximum(tail, below).max(axis=1), density
