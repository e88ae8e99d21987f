"""Random layers that all tokens share: Gram matrices, two tokens, wide networks (2601.21942; theory §6.5).

Values V_l with independent entries N(αδ, σ²/η) and step η make, as η → 0, tokens with common noise,

    dx_i = P_{x_i} ∘ (αȳ_i dt + σ dW ȳ_i),   ȳ_i what token i reads before V,

W one d × d matrix of Brownian motions. ∘ is Stratonovich's product with the projection only; ȳ_i is taken
before the increment (Itô), as layers do. The Gram matrix of the tokens obeys an equation of its own.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import special

from tokenfield.errors import as_number, as_whole, require
from tokenfield.laws.tokens import as_real
from tokenfield.theory.inputs import finite

#: |z| beyond which ρ = tanh z is ±1 to rounding and drift and diffusion are constant.
FAR = 20.0
#: Panels of Gauss–Legendre quadrature: their width, nodes and weights, and integrals from −1 to the nodes.
PANEL = 0.1
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
INTEGRALS = np.polynomial.legendre.legval(
    NODES, np.polynomial.legendre.legint(np.eye(16), lbnd=-1)
).T @ np.linalg.inv(np.polynomial.legendre.legvander(NODES, 15))


def gram_drift(G: ArrayLike, C: ArrayLike, d: int, sigma: float = 1.0) -> Float[np.ndarray, "n n"]:
    """Drift of the Gram matrix under common noise without a mean (α = 0).

    σ²[−½(d−1)(C_ii + C_jj)G_ij + C_ij(d − 2 + G_ij²)].

    Args:
        G: inner products of the tokens, (n, n).
        C: inner products of what they read, ȳ_i, (n, n).
        d: dimension of the tokens.
        sigma: strength of the noise.

    Returns:
        (n, n), 0 on the diagonal.
    """
    G, C, sizes, sigma = _gram(G, C, d, sigma)
    drift = -0.5 * (d - 1) * sizes * G + C * (d - 2 + G**2)
    return sigma**2 * np.where(np.eye(len(G)) == 1, 0.0, drift)


def gram_variance(G: ArrayLike, C: ArrayLike, d: int, sigma: float = 1.0) -> Float[np.ndarray, "n n"]:
    """Variance per unit of time of each entry of the Gram matrix: σ²(1 − G_ij²)(C_ii + C_jj − 2C_ijG_ij).

    Args:
        G: inner products of the tokens, (n, n).
        C: inner products of what they read, ȳ_i, (n, n).
        d: dimension of the tokens.
        sigma: strength of the noise.

    Returns:
        (n, n), 0 on the diagonal.
    """
    G, C, sizes, sigma = _gram(G, C, d, sigma)
    variance = (1 - G**2) * (sizes - 2 * C * G)
    return sigma**2 * np.where(np.eye(len(G)) == 1, 0.0, variance)


def _gram(
    G: ArrayLike, C: ArrayLike, d: int, sigma: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    G, C = np.asarray(as_real(G, "G")), np.asarray(as_real(C, "C"))
    require(G.ndim == 2 and G.shape[0] == G.shape[1], "G", "have shape (n, n)", f"of shape {G.shape}")
    require(C.shape == G.shape, "C", f"have the shape {G.shape} of G", f"of shape {C.shape}")
    as_whole(d, "d", 2)
    sizes = np.diag(C)[:, None] + np.diag(C)[None]
    return G, C, sizes, finite(sigma, "sigma")


@dataclass(frozen=True)
class CommonNoisePair:
    """Two tokens under softmax attention (B = I) with common noise, ρ = ⟨x_1, x_2⟩ = tanh z.

    dz = b(z) dt + s(z) dB: `drift` and `diffusion` are b and s².

    Args:
        d: dimension, at least 2.
        beta: inverse temperature, at least 0; infinite: each token reads itself.
        sigma: strength of the noise, positive.
        alpha: mean of the values, V = αI + noise.
    """

    d: int
    beta: float
    sigma: float = 1.0
    alpha: float = 0.0

    def __post_init__(self):
        as_whole(self.d, "d", 2)
        require(as_number(self.beta, "beta") >= 0, "beta", "be at least 0", self.beta)
        require(0 < as_number(self.sigma, "sigma") < np.inf, "sigma", "be positive and finite", self.sigma)
        finite(self.alpha, "alpha")

    def other(self, z: ArrayLike) -> np.ndarray:
        """q = 1/(1 + e^{β(1−ρ)}), the weight with which a token reads the other one."""
        deficit = 2 * special.expit(-2 * np.asarray(z, float))  # 1 − ρ, without cancellation
        if np.isinf(self.beta):
            return np.zeros_like(deficit)
        return special.expit(-self.beta * deficit)

    def drift(self, z: ArrayLike) -> np.ndarray:
        """b = σ²[(d−1)k − ρ − k(1−ρ) + 2ρ(1−k)] + 2αq, k = 2q(1−q)."""
        q, rho = self.other(z), np.tanh(z)
        k = 2 * q * (1 - q)
        noise = (self.d - 1) * k - rho - k * (1 - rho) + 2 * rho * (1 - k)
        return self.sigma**2 * noise + 2 * self.alpha * q

    def diffusion(self, z: ArrayLike) -> np.ndarray:
        """s² = 2σ²(1 − k)."""
        q = self.other(z)
        return 2 * self.sigma**2 * (1 - 2 * q * (1 - q))

    @property
    def meeting_rate(self) -> float:
        """How fast log(1 − ρ) falls near ρ = 1: σ²(d−1) + 2α; 2σ² if each token reads itself."""
        return float(2 * self.drift(np.inf))

    @property
    def opposite_rate(self) -> float:
        """How fast log(1 + ρ) falls near ρ = −1: 2σ² − 2σ²k(d−1) − 4αq; > 0: opposite pairs attract."""
        return float(-2 * self.drift(-np.inf))

    def together(self, rho0: float) -> float:
        """Probability that the tokens end together, ρ → 1; otherwise they end opposite, ρ → −1.

        S(z_0)/S(∞), S' = exp(−∫2b/s²), by quadrature; 1 where opposite tokens do not attract each other, 0
        where close ones do not. If each token reads itself (β = ∞) it is 1 − arccos(ρ_0)/π.
        """
        rho0 = as_number(rho0, "rho0")
        require(-1 < rho0 < 1, "rho0", "lie between −1 and 1", rho0)
        meets, parts = self.meeting_rate > 0, self.opposite_rate > 0
        require(meets or parts, "alpha", "let tokens end together or opposite", self.alpha)
        if not (meets and parts):
            return float(meets)
        z0 = float(np.arctanh(rho0))
        return float(special.expit(self._log_scale(z0, -1) - self._log_scale(z0, 1)))

    def _log_scale(self, z0: float, side: int) -> float:
        """log of ∫exp(−∫_{z_0}2b/s²) from z_0 to ∞ (side 1) or −∞ (side −1), up to one constant for both."""
        end = side * max(FAR, side * z0 + 1)
        panels = np.linspace(z0, end, int(np.ceil(abs(end - z0) / PANEL)) + 1)
        left, width = panels[:-1, None], np.diff(panels)[:, None]
        z = left + width * (NODES + 1) / 2
        slope = -2 * self.drift(z) / self.diffusion(z) * width / 2
        starts = np.concatenate([[0.0], np.cumsum(slope @ WEIGHTS)])
        logs = starts[:-1, None] + slope @ INTEGRALS.T
        inside = np.asarray(special.logsumexp(logs, b=WEIGHTS * np.abs(width) / 2))
        # beyond, drift and diffusion are constant to rounding
        tail = starts[-1] - np.log(abs(2 * self.drift(end) / self.diffusion(end)))
        return float(np.logaddexp(inside, tail))


def antipodal_beta(d: int) -> float:
    """β_c = arcosh√((d−1)/2): under common noise without a mean, opposite tokens attract each other above it.

    Below it all pairs end together. It is 0 in dimensions 2 and 3.
    """
    return float(np.arccosh(np.sqrt(max((as_whole(d, "d", 2) - 1) / 2, 1.0))))
