"""Anchors: tokens that read fixed keys z_a and not each other (cross-attention; theory §6.1.7).

Softmax attention with V = B climbs the potential

    Φ(x) = β^{−1} log Σ_a w_a e^{β⟨x, Bz_a⟩}

of each token for itself. One anchor z (B = I): tan(θ/2) = tan(θ_0/2)e^{−t} for the angle θ to it. Two anchors
at ±a on the circle: θ' = −sin θ cos a + cos θ sin a·tanh(β sin θ sin a), θ the angle to the middle. Tokens
meet in the middle up to β_c = cos a/sin²a, and near the anchors at ±θ* beyond it (a pitchfork).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import optimize, special

from tokenfield.errors import as_number, require
from tokenfield.laws.tokens import as_real
from tokenfield.theory.inputs import finite, times
from tokenfield.theory.integration import solve


def anchor_potential(
    x: ArrayLike,
    anchors: ArrayLike,
    beta: float,
    weights: ArrayLike | None = None,
    B: ArrayLike | None = None,
) -> Float[np.ndarray, "n"]:
    """Φ(x) = β^{−1} log Σ_a w_a e^{β⟨x, Bz_a⟩}, whose ascent is softmax attention to anchors with V = B.

    Args:
        x: tokens (n, d).
        anchors: fixed keys z (m, d).
        beta: inverse temperature, finite and not 0.
        weights: of the anchors (m,), non-negative with sum 1; equal ones if None.
        B: score matrix (d, d); I if None.

    Returns:
        The potential at each token (n,).
    """
    x, z = np.asarray(as_real(x, "x")), np.asarray(as_real(anchors, "anchors"))
    beta = finite(beta, "beta")
    require(beta != 0, "beta", "not be 0, where nothing is left of the potential", beta)
    fits = x.ndim == 2 and z.ndim == 2 and x.shape[1] == z.shape[1] and len(z) > 0
    require(fits, "anchors", "have shape (m, d) beside tokens (n, d)", f"{z.shape} beside {x.shape}")
    w = np.full(len(z), 1 / len(z)) if weights is None else np.asarray(as_real(weights, "weights"))
    require(w.shape == (len(z),), "weights", f"have shape ({len(z)},)", f"of shape {w.shape}")
    keys = z if B is None else z @ np.asarray(as_real(B, "B")).T
    return np.asarray(special.logsumexp(beta * (x @ keys.T), b=w, axis=1)) / beta


def one_anchor(theta0: ArrayLike, ts: ArrayLike) -> Float[np.ndarray, "times *angles"]:
    """Angles to one anchor, tan(θ/2) = tan(θ_0/2)e^{−t}, from theta0 in [0, π]; V = B = I, any d and β."""
    theta0 = np.asarray(as_real(theta0, "theta0"))
    inside = bool(np.all((theta0 >= 0) & (theta0 <= np.pi)))
    require(inside, "theta0", "lie in [0, π]", theta0)
    decay = np.exp(-times(ts)).reshape(-1, *[1] * theta0.ndim)
    # the half angle by its sine and cosine: tan is infinite at π, where a token stays
    return 2 * np.arctan2(np.sin(theta0 / 2) * decay, np.where(theta0 == np.pi, 0.0, np.cos(theta0 / 2)))


class TwoAnchors(NamedTuple):
    """Tokens on the circle between two anchors of equal weight at the angles ±a.

    `critical_beta`: β_c = cos a/sin²a. `angle`: θ*, where tokens of positive angle end; 0 up to β_c.
    `rate`: their linear rate there, 0 at β_c itself.
    """

    a: float
    beta: float
    critical_beta: float
    angle: float
    rate: float

    def potential(self, theta: ArrayLike) -> Float[np.ndarray, "..."]:
        """Φ(θ) = cos θ cos a + β^{−1}log cosh(β sin θ sin a), of the shape of theta."""
        theta = np.asarray(as_real(theta, "theta"))
        z = np.abs(self.beta * np.sin(theta) * np.sin(self.a))
        log_cosh = z + np.log1p(np.exp(-2 * z)) - np.log(2)
        return np.cos(theta) * np.cos(self.a) + log_cosh / self.beta

    def velocity(self, theta: ArrayLike) -> Float[np.ndarray, "..."]:
        """θ' = Φ'(θ), of the shape of theta."""
        theta = np.asarray(as_real(theta, "theta"))
        pull = np.tanh(self.beta * np.sin(theta) * np.sin(self.a))
        return -np.sin(theta) * np.cos(self.a) + np.cos(theta) * np.sin(self.a) * pull

    def path(self, theta0: float, ts: ArrayLike) -> Float[np.ndarray, "times"]:
        """θ(t) at increasing times from theta0 at t = 0, by DOP853."""
        start, ts = finite(theta0, "theta0"), times(ts)
        if ts[-1] == 0:
            return np.array([start])
        case = f"a = {self.a:g}, beta = {self.beta:g}"
        return solve(lambda _, y: self.velocity(y), ts, [start], 1e-12, 1e-14, case)[:, 0]


def anchors(a: float, beta: float) -> TwoAnchors:
    """Where tokens end between two anchors ±a on the circle (softmax, V = B = I), and at which rate.

    Beyond β_c = cos a/sin²a: tan θ* = tan a·tanh(β sin θ* sin a).

    Args:
        a: angle of the anchors to their middle, in (0, π/2].
        beta: inverse temperature, positive.

    Returns:
        β_c, θ* and the rate, with potential and paths as methods.
    """
    a, beta = as_number(a, "a"), finite(beta, "beta")
    require(0 < a <= np.pi / 2, "a", "lie in (0, π/2]", a)
    require(beta > 0, "beta", "be positive", beta)
    s, c = np.sin(a), max(np.cos(a), 0.0)
    critical = c / s**2
    angle = 0.0
    if beta > critical:
        # θ'/sin θ falls from β sin²a − cos a > 0 at the middle to below 0 at the anchor
        pull = lambda t: np.cos(t) * s * np.tanh(beta * np.sin(t) * s) - np.sin(t) * c  # noqa: E731
        if pull(1e-9) > 0:
            angle = float(optimize.brentq(pull, 1e-9, a, xtol=1e-15))  # pyright: ignore[reportArgumentType]
    z = beta * np.sin(angle) * s
    sech2 = 1 / np.cosh(np.minimum(z, 350.0)) ** 2
    rate = np.cos(angle) * c + np.sin(angle) * s * np.tanh(z) - beta * (s * np.cos(angle)) ** 2 * sech2
    return TwoAnchors(a, beta, float(critical), angle, float(rate))
