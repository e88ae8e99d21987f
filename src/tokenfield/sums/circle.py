"""Near-linear exponential sums on the circle (d = 2), by Fourier series (theory §5).

With keys e^{iθ_j} and a query of length s and angle ψ,

    e^{−s} Σ_j w_j e^{s cos(ψ−θ_j)} = Σ_k e^{−s}I_k(s) M_k e^{ikψ},   M_k = Σ_j w_j e^{−ikθ_j},

and Σ_j w_j e^{s cos(ψ−θ_j)} e^{iθ_j} has the coefficients M_{k−1}. The moments are one type-1 NUFFT of the
keys; |k| ≤ K ≈ √(2s log 1/tol) is enough. If every query has the same length (B a multiple of an
orthogonal matrix) one type-2 NUFFT ends it. Otherwise lengths are interpolated (radial.py):

- on a grid of query directions, where the length is s(ψ) = 1/|A^{−T}(cos ψ, sin ψ)| for a head A = βB;
  then Fourier coefficients in ψ, then one type-2 NUFFT at the tokens' directions;
- or, where A is singular or so ill-conditioned that s(ψ) needs too fine a grid, at each token: a type-2
  NUFFT for every node s_r.

Under a causal mask, with or without ALiBi, moments are carried along the order instead (prefix.py).
"""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax_finufft import nufft1, nufft2
from jaxtyping import Array, Float

from tokenfield.laws.tokens import Tokens
from tokenfield.registry import register
from tokenfield.sums import prefix
from tokenfield.sums.base import SECONDS_PER_CALL, Queries
from tokenfield.sums.expansion import Expansion, Scaled, no_modes_beyond
from tokenfield.sums.profile import Profile

#: Seconds for one token in the two NUFFTs, on two cores.
SECONDS_PER_TOKEN = 5e-7


@register("sums", "circle")
class CircleSums(Expansion):
    """Fourier sums for the heads they were planned for; `multipliers` (R, K + 1) are g_k(s_r)."""

    multipliers: Float[Array, "R K1"] = eqx.field(kw_only=True)

    name: ClassVar[str] = "circle"
    dimensions: ClassVar[tuple[int, ...]] = (2,)
    follows_order: ClassVar[bool] = True
    largest_grid: ClassVar[int] = 2**15
    largest_band: ClassVar[int] = 2**15

    @staticmethod
    def head_seconds(n: int, band: int, nodes: int, ordered: bool = False) -> float:
        """Two NUFFTs of the tokens; moments carried along the order under a mask."""
        return SECONDS_PER_CALL + (prefix.seconds(n, band, nodes) if ordered else SECONDS_PER_TOKEN * n)

    @staticmethod
    def band(profile: Profile, s: float, tolerance: float) -> int:
        """K such that Σ_{|k|>K} |g_k(s)| ≤ tolerance, relative to the greatest value."""
        guess = profile.modes_enough(s, tolerance)
        if guess == 0:
            return 0
        modes = np.abs(profile.fourier(np.array([s]), guess)[0])
        tail = 2 * np.cumsum(modes[::-1])[::-1]
        within = np.flatnonzero(tail <= tolerance * profile.amplitude(s))
        return int(within[0]) if within.size else guess

    @staticmethod
    def tables(profile: Profile, band: int, nodes: Float[np.ndarray, "R"]) -> dict[str, Array]:
        """Fourier coefficients of the profile: Bessel functions for the exponential."""
        return {"multipliers": jnp.asarray(profile.fourier(nodes, band))}

    @staticmethod
    def resolved(profile: Profile, A: np.ndarray, size: int, tolerance: float) -> bool:
        """Whether the sum over one key, wherever it is, has no Fourier mode beyond size/2."""
        if np.linalg.cond(A) > 1e8:
            return False
        fine = 2 * size
        psi = np.arange(fine) * (2 * np.pi / fine)
        u = np.stack([np.cos(psi), np.sin(psi)])
        s = 1 / np.linalg.norm(np.linalg.solve(A.T, u), axis=0)
        keys = np.linspace(0, 2 * np.pi, 24, endpoint=False) + np.arctan2(*np.linalg.svd(A)[2][0, ::-1])
        values = profile.values(s, 2 * np.sin((psi - keys[:, None]) / 2) ** 2)
        return no_modes_beyond(values / profile.amplitude(float(s.max())), size, tolerance)

    def expansion(self, queries: Queries, keys: Tokens) -> Scaled:
        """Scaled sums at the directions of the queries."""
        if queries.mask is not None:
            return Scaled(*prefix.prefix_sums(queries, keys, self.multipliers, self.radial, self.absolute))
        q = queries.q
        s, psi = jnp.linalg.norm(q, axis=1), jnp.arctan2(q[:, 1], q[:, 0])
        coefficients = self._coefficients(keys)
        if self.radial.count == 1:
            values = self._at(coefficients[0], psi)
        elif self.grid:
            values = self._at(self._through_grid(coefficients, queries.A), psi)
        else:
            values = self.radial.sum(lambda c: self._at(c, psi), coefficients, s)
        total = jnp.stack([values[1].real, values[1].imag], axis=1)
        return Scaled(s, values[0].real, total, self.absolute)

    def _coefficients(self, tokens: Tokens) -> Array:
        """Fourier coefficients (R, 2, 2K + 1) of the mass and of the sum of e^{iθ}, for every node s_r."""
        band = self.multipliers.shape[1] - 1
        theta = jnp.arctan2(tokens.x[:, 1], tokens.x[:, 0])
        strengths = tokens.weights.astype(complex)
        moments = nufft1((2 * band + 3,), strengths, theta, iflag=-1, eps=self.eps)  # |k| ≤ K + 1
        both = jnp.stack([moments[1:-1], moments[:-2]])
        even = jnp.concatenate([self.multipliers[:, :0:-1], self.multipliers], axis=1)
        return even[:, None, :] * both

    def _through_grid(self, coefficients: Array, A: Array) -> Array:
        """Coefficients (2, G) in ψ of the sums with the length s(ψ) that belongs to each direction."""
        G = self.grid
        band = self.multipliers.shape[1] - 1
        psi = jnp.arange(G) * (2 * jnp.pi / G)
        s = 1 / jnp.linalg.norm(jnp.linalg.solve(A.T, jnp.stack([jnp.cos(psi), jnp.sin(psi)])), axis=0)
        padded = jnp.pad(coefficients, ((0, 0), (0, 0), (0, G - 2 * band - 1)))
        values = jnp.fft.ifft(jnp.roll(padded, -band, axis=-1), axis=-1)
        values = jnp.einsum("rcg,gr->cg", values, self.radial.coefficients(s))
        return jnp.fft.fftshift(jnp.fft.fft(values, axis=-1), axes=-1)

    def _at(self, coefficients: Array, psi: Array) -> Array:
        return nufft2(coefficients, psi, iflag=1, eps=self.eps)
