"""Near-linear exponential sums on the sphere (d = 3), by spherical harmonics (theory §5).

With keys y_j and a query of length s and direction u,

    e^{−s} Σ_j c_j e^{s⟨u,y_j⟩} = Σ_lm 4π e^{−s}i_l(s) M_lm Y_lm(u),   M_lm = Σ_j c_j conj Y_lm(y_j),

for c = w and for the three coordinates of w y; l ≤ L ≈ √(2s log 1/tol) is enough. Both sums over points are
two-dimensional NUFFTs on the doubled sphere: with the colatitude continued to a full turn,

    Y_lm = e^{imφ} Σ_p P_lmp e^{ipθ},   |p| ≤ l,

where the P_lmp are Fourier coefficients of normalised Legendre functions, tabulated once. Queries of
different length are treated as on the circle: interpolated on a grid of directions, where the length is
s(u) = 1/|A^{−T}u|, or at each token where A is singular or ill-conditioned.

Real fields travel in pairs, as the real and imaginary part of one complex transform.
"""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax_finufft import nufft1, nufft2
from jaxtyping import Array, Complex, Float

from tokenfield.geometry.harmonics import contract, fold, legendre_fourier, unfold
from tokenfield.laws.tokens import Tokens
from tokenfield.registry import register
from tokenfield.sums.base import SECONDS_PER_CALL, Queries
from tokenfield.sums.expansion import Expansion, Scaled, no_modes_beyond
from tokenfield.sums.profile import Profile

#: Seconds for one token in the NUFFTs and for one point of a grid of (3·degree)² points, on two cores.
SECONDS_PER_TOKEN, SECONDS_PER_SQUARED_DEGREE = 1.5e-6, 5e-7


@register("sums", "harmonic")
class HarmonicSums(Expansion):
    """Sums by spherical harmonics for the heads they were planned for.

    `legendre` (m, l, p): P_lmp for 0 ≤ m ≤ l ≤ L and p ≥ 0, up to the factor below; for even m the
    functions are even in θ, cosine series, for odd m odd, sine series.
    `multipliers` (R, L + 1): G_l(s_r), 4πe^{−s}i_l(s) for the exponential.
    """

    legendre: Float[Array, "L1 L1 L1"] = eqx.field(kw_only=True)
    multipliers: Float[Array, "R L1"] = eqx.field(kw_only=True)

    name: ClassVar[str] = "harmonic"
    dimensions: ClassVar[tuple[int, ...]] = (3,)
    largest_grid: ClassVar[int] = 2048
    #: The tables of this degree take half a gigabyte.
    largest_band: ClassVar[int] = 400

    @staticmethod
    def head_seconds(n: int, band: int, nodes: int, ordered: bool = False) -> float:
        """NUFFTs of the tokens, and a grid for every length of queries."""
        return 10 * SECONDS_PER_CALL + SECONDS_PER_TOKEN * n + nodes * SECONDS_PER_SQUARED_DEGREE * band**2

    @staticmethod
    def band(profile: Profile, s: float, tolerance: float) -> int:
        """L such that Σ_{l>L} (2l + 1)|G_l(s)|/4π ≤ tolerance, relative to the greatest value."""
        guess = profile.modes_enough(s, tolerance)
        if guess == 0:
            return 0
        degrees = np.arange(guess + 1)
        terms = (2 * degrees + 1) * np.abs(profile.funk_hecke(np.array([s]), guess)[0]) / (4 * np.pi)
        tail = np.cumsum(terms[::-1])[::-1]
        within = np.flatnonzero(tail <= tolerance * profile.amplitude(s))
        return int(within[0]) if within.size else guess

    @staticmethod
    def tables(profile: Profile, band: int, nodes: Float[np.ndarray, "R"]) -> dict[str, Array]:
        """Legendre functions, and the multipliers of the profile."""
        multipliers = profile.funk_hecke(nodes, band)
        return {"legendre": jnp.asarray(legendre_fourier(band)), "multipliers": jnp.asarray(multipliers)}

    @staticmethod
    def resolved(profile: Profile, A: np.ndarray, size: int, tolerance: float) -> bool:
        """Whether sums over one key have no mode beyond size/2 along meridians and parallels."""
        if np.linalg.cond(A) > 1e6:
            return False
        fine = 2 * size
        turn, few = np.arange(fine) * (2 * np.pi / fine), np.arange(12) * (np.pi / 12)
        meridians, parallels = np.meshgrid(turn, few), np.meshgrid(few, turn, indexing="ij")
        theta, phi = (np.concatenate([a, b]) for a, b in zip(meridians, parallels, strict=True))
        u = np.stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)])
        s = 1 / np.linalg.norm(np.linalg.solve(A.T, u.reshape(3, -1)), axis=0).reshape(theta.shape)
        scale = profile.amplitude(float(s.max()))
        axes = np.linalg.svd(A)[2]  # directions in which queries are longest and shortest
        keys = np.concatenate([axes, axes[[0, 1, 2]] + axes[[1, 2, 0]], [[0, 0, 1.0], [0.6, 0, 0.8]]])
        keys /= np.linalg.norm(keys, axis=1, keepdims=True)
        for key in keys:
            values = profile.values(s, np.sum((u - key[:, None, None]) ** 2, axis=0) / 2)
            if not no_modes_beyond(values / scale, size, tolerance):
                return False
        return True

    @property
    def degree(self) -> int:
        """L."""
        return self.multipliers.shape[1] - 1

    def expansion(self, queries: Queries, keys: Tokens) -> Scaled:
        """Scaled sums at the directions of the queries."""
        return self.from_moments(self._moments(keys), queries)

    def from_moments(self, moments: Complex[Array, "4 m l"], queries: Queries) -> Scaled:
        """The sums for keys of which only the moments M_lm of w, w y_1, w y_2, w y_3 are known."""
        q = queries.q
        s = jnp.linalg.norm(q, axis=1)
        theta, phi = _angles(q)
        by_node = self.multipliers[:, None, None, :] * moments
        if self.radial.count == 1:
            values = self._at(self._series(by_node)[0], theta, phi)
        elif self.grid:
            values = self._at(self._through_grid(by_node, queries.A), theta, phi)
        else:
            values = self.radial.sum(lambda m: self._at(self._series(m[None])[0], theta, phi), by_node, s)
        total = jnp.stack([values[0].imag, values[1].real, values[1].imag], axis=1)
        return Scaled(s, values[0].real, total, self.absolute)

    def _moments(self, tokens: Tokens) -> Array:
        """M_lm (4, m, l) of w, w y_1, w y_2, w y_3 for m ≥ 0."""
        L = self.degree
        theta, phi = _angles(tokens.x)
        strengths = tokens.weights * jnp.stack(
            [1.0 + 1j * tokens.x[:, 0], tokens.x[:, 1] + 1j * tokens.x[:, 2]]
        )
        modes = nufft1((2 * L + 1, 2 * L + 1), strengths, theta, phi, iflag=-1, eps=self.eps)
        mirrored = jnp.conj(modes[:, ::-1, ::-1])
        fields = jnp.stack([(modes + mirrored) / 2, (modes - mirrored) / 2j], axis=1)
        fields = jnp.swapaxes(fields.reshape(4, *modes.shape[1:])[:, :, L:], 1, 2)  # (4, m ≥ 0, p)
        return contract("cmp,mlp->cml", fold(fields, L), self.legendre)

    def _series(self, by_node: Array) -> Array:
        """Fourier modes (R, 2, p, m), |p|, |m| ≤ L, on the doubled sphere of two pairs of fields Σ M_lm Y_lm.

        All nodes at once: the table of Legendre functions is read from memory only one time.
        """
        half = unfold(contract("rcml,mlp->rcmp", by_node, self.legendre), self.degree)  # m ≥ 0
        whole = jnp.concatenate([jnp.conj(half[:, :, :0:-1, ::-1]), half], axis=2)
        return jnp.swapaxes(whole[:, 0::2] + 1j * whole[:, 1::2], 2, 3)

    def _through_grid(self, by_node: Array, A: Array) -> Array:
        """Modes (2, G, G) of the fields with the length s(u) that belongs to each direction.

        Only colatitudes up to π are computed: beyond, the doubled sphere has every point again.
        """
        G = self.grid
        s = 1 / jnp.linalg.norm(jnp.linalg.solve(A.T, _directions(G).reshape(3, -1)), axis=0)

        def values(series: Array) -> Array:
            upper = _synthesis(series, G, axis=1)[:, : G // 2 + 1]
            return _synthesis(upper, G, axis=2).reshape(2, -1)

        upper = self.radial.sum(values, self._series(by_node), s).reshape(2, G // 2 + 1, G)
        lower = jnp.roll(upper[:, -2:0:-1], G // 2, axis=2)  # (2π − θ, φ + π) is (θ, φ)
        return jnp.fft.fftshift(jnp.fft.fft2(jnp.concatenate([upper, lower], axis=1)), axes=(1, 2))

    def _at(self, modes: Array, theta: Array, phi: Array) -> Array:
        return nufft2(modes, theta, phi, iflag=1, eps=self.eps)


def _angles(x: Array) -> tuple[Array, Array]:
    """Colatitude from the third axis, and longitude."""
    across = jnp.hypot(x[:, 0], x[:, 1])
    return jnp.arctan2(across, x[:, 2]), jnp.arctan2(x[:, 1], x[:, 0])


def _synthesis(modes: Array, G: int, axis: int) -> Array:
    """Values at G points of a turn, divided by G, of Fourier series whose middle mode is the constant."""
    size = modes.shape[axis]
    width = [(0, G - size if k == axis else 0) for k in range(modes.ndim)]
    return jnp.fft.ifft(jnp.roll(jnp.pad(modes, width), -(size // 2), axis=axis), axis=axis)


def _directions(G: int) -> Array:
    """Points (3, G/2 + 1, G) of the sphere, colatitude first, G even."""
    turn = jnp.arange(G) * (2 * jnp.pi / G)
    theta, phi = jnp.meshgrid(turn[: G // 2 + 1], turn, indexing="ij")
    return jnp.stack([jnp.sin(theta) * jnp.cos(phi), jnp.sin(theta) * jnp.sin(phi), jnp.cos(theta)])
