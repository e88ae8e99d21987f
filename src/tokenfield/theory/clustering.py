"""How attention clusters tokens: spectra, inequalities, rates (2504.14697; theory §3).

Everything is for V = I and B = I unless a matrix A is given: the unnormalised flow (USA), with the velocity
v(x) = P_x ∫e^{β⟨x,y⟩}y dμ, is the ascent of E_β[μ] = (1/2β)∬e^{β⟨x,y⟩}dμdμ, and the softmax flow (SA) is v/Z,
Z(x) = ∫e^{β⟨x,y⟩}dμ. A general interaction φ has E_φ = ½∬φ(⟨Ax,y⟩)dμdμ; φ(s) = e^{βs}/β, A = I is E_β.

β may be negative. φ' = e^{βs} stays positive, so tokens still attract each other and E_β is still greatest at
Diracs; but now far tokens pull harder than near ones. Growth about the uniform law is in growth.py.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from numpy.typing import ArrayLike
from scipy import optimize, special

from tokenfield.errors import InputError, as_number, as_whole, require
from tokenfield.geometry import sphere
from tokenfield.laws.tokens import Tokens
from tokenfield.models.weights import as_matrix
from tokenfield.theory.inputs import (
    LARGEST_EXPONENT,
    Flow,
    cap_angle,
    check_exponent,
    check_flow,
    finite,
    fraction,
)

#: Rows of pairs that are held at once.
ROWS_AT_ONCE = 128


# ---- second variations ----


class Trace(NamedTuple):
    """Both sides of the trace identity: Σ_w δ²E[P_x w], and the double integral it equals."""

    variations: float
    integral: float


def trace_identity(tokens: Tokens, phi: Callable[[Array], Array]) -> Trace:
    """Σ_w δ²E_φ[P_x w] over an orthonormal basis w of R^d, and ∬(1−g)[φ''(g)(1−g²) + φ'(g)(d−2−g)]dμdμ.

    A = I, g = ⟨x,y⟩. δ²E[X] is the second derivative of E_φ along x_s = exp_x(sX(x)), taken here by JAX from
    E_φ itself. `phi`: a JAX function of one number.

    For φ = e^{βs}/β the integrand is (1−g)e^{βg}[β(1−g²) + d−2−g]. For d ≥ 3 the bracket is positive on
    [−1, 1) if β > −½[(d−2) + √((d−2)²−1)] (minimise it over g), for d = 3 if β > −½. Then the trace is
    positive for every law but a Dirac, so that only Diracs are maxima; below, it is negative for some laws.
    """
    x, w = tokens.x, tokens.weights
    first = jax.grad(lambda s: jnp.asarray(phi(s), float))
    second = jax.vmap(jax.grad(first))
    slope, value = jax.vmap(first), jax.vmap(phi)

    def energy(points: Array) -> Array:
        return 0.5 * jnp.sum(w * _pair_sums(value, points, points, w))

    def variation(direction: Array) -> Array:
        X = sphere.project(x, jnp.broadcast_to(direction, x.shape))
        length = jnp.linalg.norm(X, axis=1, keepdims=True)

        def curve(s: Array) -> Array:
            return energy(jnp.cos(s * length) * x + s * jnp.sinc(s * length / jnp.pi) * X)

        return jax.jvp(lambda s: jax.jvp(curve, (s,), (1.0,))[1], (0.0,), (1.0,))[1]

    def integrand(g: Array) -> Array:
        return (1 - g) * (second(g) * (1 - g**2) + slope(g) * (tokens.d - 2 - g))

    variations = sum(float(variation(e)) for e in jnp.eye(tokens.d))
    return Trace(variations, float(jnp.sum(w * _pair_sums(integrand, x, x, w))))


def _pair_sums(f: Callable[[Array], Array], x: Array, y: Array, values: Array) -> Array:
    """Σ_j f(⟨x_i, y_j⟩) values_j, some rows at a time."""
    return lax.map(lambda row: f(y @ row) @ values, x, batch_size=ROWS_AT_ONCE)


# ---- spectra of stationary configurations ----


def equispaced_spectrum(n: int, beta: float, flow: Flow = "softmax") -> Float[np.ndarray, "n"]:
    """Rates of the n Fourier modes of n equal tokens equispaced on the circle; mode 0 is the rotation.

    Mode k, an angle perturbation cos(kθ_j), grows at (1/n)Σ_m h'(θ_m)(cos kθ_m − 1), θ_m = 2πm/n, with
    h'(s) = e^{β cos s}(cos s − β sin²s); softmax: divided by Z = (1/n)Σ_m e^{β cos θ_m}.

    Args:
        n: number of tokens, at least 2.
        beta: inverse temperature, any real number; |β| at most 700 for the unnormalised flow.
        flow: "softmax" or "unnormalised".

    Returns:
        The rates of modes 0 … n−1, (n,).
    """
    n = as_whole(n, "n", 2)
    beta = finite(beta, "beta")
    check_flow(flow)
    theta = 2 * np.pi * np.arange(n) / n
    scores = beta * np.cos(theta)
    top = float(np.max(scores))
    # β(cos θ − 1) without cancellation where the greatest score is β
    weight = np.exp(-2 * beta * np.sin(theta / 2) ** 2 if beta >= 0 else scores - top)
    slope = weight * (np.cos(theta) - beta * np.sin(theta) ** 2)
    rates = -2 * np.sin(np.outer(np.arange(n), theta) / 2) ** 2 @ slope
    if flow == "softmax":
        return rates / np.sum(weight)
    check_exponent(top, "take a smaller |beta|")
    return rates * np.exp(top) / n


class AntipodalRates(NamedTuple):
    """Rates of two antipodal atoms: `rigid`, how fast they turn towards each other; `split` (2,), how fast
    tokens within the first and the second atom part (negative: they stay together).
    """

    rigid: float
    split: Float[np.ndarray, "2"]


def antipodal_rates(p: float, beta: float, flow: Flow = "softmax") -> AntipodalRates:
    """Rates about pδ_x + qδ_{−x}, q = 1−p, for B = V = I; each comes d−1 times.

    Unnormalised: rigid e^{−β}, split −pe^β+qe^{−β} and −qe^β+pe^{−β}. Softmax: each atom's row divided by its
    Z1 = pe^β+qe^{−β}, Z2 = qe^β+pe^{−β}; rigid e^{−β}(q/Z1+p/Z2). The first atom splits if q > pe^{2β}: for
    β < 0 at least one of the two always does.

    Args:
        p: mass of the first atom, between 0 and 1.
        beta: inverse temperature, any real number; |β| at most 700 for the unnormalised flow.
        flow: "softmax" or "unnormalised".

    Returns:
        The rigid rate and the two split rates.
    """
    p = fraction(p, "p")
    beta = finite(beta, "beta")
    check_flow(flow)
    own, other = np.array([p, 1 - p]), np.array([1 - p, p])
    near, far = np.exp(beta - abs(beta)), np.exp(-beta - abs(beta))  # e^{±β} in units of e^|β|
    rigid, split = far * other, far * other - near * own
    if flow == "softmax":
        Z = near * own + far * other
        return AntipodalRates(float(np.sum(rigid / Z)), split / Z)
    check_exponent(abs(beta), "take a smaller |beta|")
    return AntipodalRates(float(np.exp(-beta)), np.exp(abs(beta)) * split)


class AntipodalSpectrum(NamedTuple):
    """Rates of two antipodal atoms under E_φ with a matrix A: `whole` (d−1, 2), the atoms moving as wholes,
    two modes for each eigenvector of A across the axis, greatest first; `split` (2,) as in `AntipodalRates`.
    """

    whole: Float[np.ndarray, "e 2"]
    split: Float[np.ndarray, "2"]

    @property
    def stable(self) -> bool:
        """Whether every rate is negative."""
        return bool(np.max(self.whole) < 0 and np.max(self.split) < 0)


def antipodal_spectrum(
    p: float, phi: Callable[[Array], Array], A: ArrayLike, axis: ArrayLike
) -> AntipodalSpectrum:
    """Rates of the ascent of E_φ about pδ_x + qδ_{−x}, x = `axis` (d,) an eigenvector of the symmetric A.

    With Ax = ax and an eigenvalue α of A across the axis, displacements (u, w) of the two atoms obey
    u' = [pφ'(a)(α−a) + qφ'(−a)a]u + qφ'(−a)αw and the same with the atoms exchanged; tokens within the first
    atom part at (qφ'(−a) − pφ'(a))a. For A ≠ I all may be negative: two clusters can be stable.

    Args:
        p: mass of the atom at x, between 0 and 1.
        phi: the interaction, a JAX function of one number.
        A: symmetric matrix (d, d).
        axis: x (d,), of norm 1.

    Returns:
        The rates of the atoms as wholes (d−1, 2) and of splitting (2,).
    """
    p = fraction(p, "p")
    matrix, x = np.asarray(as_matrix(A, "A")), np.asarray(axis, dtype=float)
    require(
        matrix.ndim == 2 and bool(np.all(np.abs(matrix - matrix.T) <= 1e-12 * np.abs(matrix).max())),
        "A",
        "be one symmetric matrix",
        A,
    )
    require(
        x.shape == (len(matrix),) and bool(abs(np.linalg.norm(x) - 1) < 1e-6),
        "axis",
        f"be a vector of norm 1 and length {len(matrix)}",
        axis,
    )
    a = float(x @ matrix @ x)
    miss = float(np.linalg.norm(matrix @ x - a * x))
    require(
        bool(miss <= 1e-8 * np.linalg.norm(matrix, 2)), "axis", "be an eigenvector of A", f"off by {miss:.3g}"
    )
    slope = jax.grad(lambda s: jnp.asarray(phi(s), float))
    near, far = float(slope(a)), float(slope(-a))
    own, other = np.array([p, 1 - p]), np.array([1 - p, p])
    across = np.asarray(sphere.frame(jnp.asarray(x)))
    alphas = np.linalg.eigvalsh(across.T @ matrix @ across)[::-1]
    whole = []
    for alpha in alphas:
        diagonal = own * near * (alpha - a) + other * far * a
        half, middle = (diagonal[0] - diagonal[1]) / 2, np.mean(diagonal)
        root = np.sqrt(half**2 + np.prod(other) * (far * alpha) ** 2)
        whole.append([middle + root, middle - root])
    return AntipodalSpectrum(np.array(whole), (other * far - own * near) * a)


# ---- inequalities on caps ----


class Cap(NamedTuple):
    """The points within `angle` of `centre` (d,)."""

    centre: Float[np.ndarray, "d"]
    angle: float


def enclosing_cap(tokens: Tokens) -> Cap:
    """The smallest cap that holds every token of positive weight; refused unless an open hemisphere does.

    Caps with angle < π/2 are forward invariant; with angle ≤ π/4 `pl_constant` holds on them. The centre is
    the direction of the point of the convex hull nearest to 0, whose norm is the cosine of the angle.
    """
    x = np.asarray(tokens.x)[np.asarray(tokens.weights) > 0]
    used = [0]
    while True:
        # nearest point of the hull of those used, by non-negative least squares |Σλx|² + (Σλ−1)²
        u, _ = optimize.nnls(np.vstack([x[used].T, np.ones(len(used))]), np.append(np.zeros(tokens.d), 1.0))
        nearest = u @ x[used] / np.sum(u)
        norm = float(np.linalg.norm(nearest))
        if norm <= 1e-12:
            raise InputError("`tokens` must lie in an open hemisphere, but were spread over more than that")
        centre = nearest / norm
        heights = x @ centre
        lowest = int(np.argmin(heights))
        if heights[lowest] >= norm - 1e-14 or lowest in used:
            return Cap(centre, float(jnp.max(sphere.distance(jnp.asarray(x), jnp.asarray(centre)))))
        used.append(lowest)


def pl_constant(angle: float, beta: float) -> float:
    """λ1 with ∫|v|²dμ ≥ λ1(E_max − E) for every law on a cap of the given angle α ≤ π/4 (unnormalised flow).

    λ1 = (k_min²/k_max)·2cosα(cosα+cos2α)/(1+cosα) (constants reconstructed), with the least and the greatest
    e^{βg} over g in [cos2α, 1]: k_min²/k_max = e^{β(2cos2α−1)} for β ≥ 0 and e^{β(2−cos2α)} for β < 0.

    Proof for either sign: let c = m/R, u = ⟨c,x⟩, X = P_x c. Then ∫⟨v,X⟩ = ½∬e^{βg}⟨c,x+y⟩(1−g) is at least
    k_min R∫(1−u²) = k_min R‖X‖², E_max − E ≤ k_max(1−R²)/2, ∫(1−u²) ≥ (1+u_min)(1−R), Ru_min ≥ cos2α and
    R ≥ cosα.

    Then the deficit falls at least like e^{−λ1 t}. For softmax divide λ1 by the greatest Z on the cap: e^β
    for β ≥ 0, e^{β cos2α} for β < 0. `pl_bound` says how much of it is lost.
    """
    angle, beta = cap_angle(angle), finite(beta, "beta")
    c, c2 = np.cos(angle), np.cos(2 * angle)
    exponent = beta * (2 * c2 - 1 if beta >= 0 else 2 - c2)
    check_exponent(exponent, "take a smaller beta")
    return float(2 * np.exp(exponent) * c * (c + c2) / (1 + c))


def pl_bound(angle: float, beta: float) -> float:
    """λ*, which no such constant exceeds: the least ratio ∫|v|²dμ/(E_max − E) of two tokens in the cap.

    Two tokens at the angle 2α have βe^{2β cos2α}sin²2α/(e^β−e^{β cos2α}) (computed without cancellation), and
    2e^β as they meet. For β ≥ 0 the ratio falls with α: λ* is that of the widest pair, conjectured sharp. For
    β < 0 its logarithm is concave in sin²α, so that λ* is the lesser of the two ends.
    """
    angle, beta = cap_angle(angle), finite(beta, "beta")
    exponent = beta * np.cos(2 * angle)
    check_exponent(exponent, "take a smaller beta")
    pair = 2 * np.cos(angle) ** 2 * np.exp(exponent) / special.exprel(2 * beta * np.sin(angle) ** 2)
    return float(pair if beta >= 0 else min(pair, 2 * np.exp(beta)))


def synchronisation_rate(beta: float, d: int) -> float:
    """Rate min(e^β, (d−1)e^{−β}/2) of W2(μ_t, Dirac) for a density positive at the antipode of the limit.

    The unnormalised flow, small |β| of either sign (Theorem 2.4). e^β is the contraction of the cluster; mass
    leaves the antipode at e^{−β} in each of d−1 directions, which W2 sees by half.
    """
    as_whole(d, "d", 2)
    beta = as_number(beta, "beta")
    require(abs(beta) <= LARGEST_EXPONENT, "beta", f"have |beta| ≤ {LARGEST_EXPONENT:g}", beta)
    return float(min(np.exp(beta), (d - 1) * np.exp(-beta) / 2))
