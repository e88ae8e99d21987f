"""How attention clusters tokens: rates, spectra, inequalities (2504.14697; theory §3).

Everything is for V = I and B = I unless a matrix A is given: the unnormalised flow (USA), with the velocity
v(x) = P_x ∫e^{β⟨x,y⟩}y dμ, is the ascent of E_β[μ] = (1/2β)∬e^{β⟨x,y⟩}dμdμ, and the softmax flow (SA) is v/Z,
Z(x) = ∫e^{β⟨x,y⟩}dμ. A general interaction φ has E_φ = ½∬φ(⟨Ax,y⟩)dμdμ; φ(s) = e^{βs}/β, A = I is E_β.
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

from tokenfield import sphere
from tokenfield.errors import InputError, as_number, as_whole, require
from tokenfield.theory.inputs import (
    LARGEST_EXPONENT,
    Flow,
    arc,
    cap_angle,
    check_exponent,
    check_flow,
    finite,
    fraction,
)
from tokenfield.tokens import Tokens
from tokenfield.weights import as_matrix

#: Rows of pairs that are held at once.
ROWS = 128


# ---- about the uniform law ----


def growth_rate(
    d: int, beta: float, degree: ArrayLike, flow: Flow = "softmax"
) -> Float[np.ndarray, "*degrees"]:
    """Rate at which a spherical harmonic of the given degree l grows on the uniform law of the sphere in R^d.

    Unnormalised: l(l+d−2)λ_l/β with λ_l = Γ(d/2)(2/β)^{d/2−1}I_{l+d/2−1}(β); softmax: the same divided by
    λ_0. β = 0 is the limit. The unnormalised rate grows like e^β and is refused where that is no double:
    there `log_growth_rate` is meant.
    """
    logs = log_growth_rate(d, beta, degree, flow)
    check_exponent(float(np.max(logs)), "use log_growth_rate")
    return np.exp(logs)


def log_growth_rate(
    d: int, beta: float, degree: ArrayLike, flow: Flow = "softmax"
) -> Float[np.ndarray, "*degrees"]:
    """Logarithm of `growth_rate`; finite for every β > 0, −∞ at β = 0 for degrees above 1."""
    as_whole(d, "d", 2)
    beta = finite(beta, "beta")
    check_flow(flow)
    degrees = np.asarray(degree)
    require(degrees.dtype.kind in "iu" and bool(np.all(degrees >= 1)), "degree",
            "be a whole number, at least 1", degree)  # fmt: skip
    logs = _log_softmax_rates(d, beta, int(np.max(degrees)))[degrees - 1]
    return logs if flow == "softmax" else logs + _log_uniform_mass(d, beta)


def fastest_degree(d: int, beta: float) -> int:
    """Degree l whose harmonics grow fastest on the uniform law, the same for both flows.

    The number of clusters that form first on the circle. The rates rise up to it and fall beyond it.
    """
    as_whole(d, "d", 2)
    beta = finite(beta, "beta")
    # ratio of successive rates (1+1/l)(1+1/(l+d−2)) I_{ν+1}/I_ν, ν = l+d/2−1, falls below 1 before √(3β)+2
    return int(np.argmax(_log_softmax_rates(d, beta, int(np.sqrt(3 * beta)) + 2))) + 1


def _log_softmax_rates(d: int, beta: float, top: int) -> np.ndarray:
    """log of l(l+d−2)λ_l/(βλ_0) for l = 1..top, from λ_l/λ_{l−1} = I_{ν+l}/I_{ν+l−1}, ν = d/2−1."""
    degree = np.arange(1, top + 1)
    with np.errstate(divide="ignore"):  # β = 0: all but the first vanish
        steps = np.log(_bessel_ratios(d / 2 - 1, beta, top)) + np.where(degree > 1, np.log(beta), 0.0)
    return np.log(degree * (degree + d - 2.0)) + np.cumsum(steps)


def _bessel_ratios(nu: float, beta: float, count: int) -> np.ndarray:
    """I_{ν+j+1}(β)/(β I_{ν+j}(β)) for j < count, by the recurrence downwards, which forgets its start.

    g_μ = 1/(2(μ+1) + β²g_{μ+1}): an error shrinks by e^{−J²/β} in J steps.
    """
    extra = 20 + int(6.5 * np.sqrt(beta))
    mu = nu + count + extra
    g = 1 / (mu + 0.5 + np.hypot(mu + 1.5, beta))  # a sharp bound of the ratio
    out = np.empty(count)
    for j in range(count + extra - 1, -1, -1):
        g = 1 / (2 * (nu + j + 1) + beta**2 * g)
        if j < count:
            out[j] = g
    return out


def _log_uniform_mass(d: int, beta: float) -> float:
    """log λ_0, λ_0 = ∫e^{β⟨x,y⟩}dσ(y) = Σ_k (β²/4)^k/(k! (d/2)_k): positive terms, nothing cancels."""
    if beta == 0:
        return 0.0
    nu, z = d / 2 - 1, beta**2 / 4
    peak = z / (nu / 2 + np.sqrt(nu**2 / 4 + z))  # where k(ν+k) = z
    k = np.arange(1, int(peak + 9 * np.sqrt(peak + 1)) + 60)
    terms = np.cumsum(np.log(z / (k * (nu + k))))
    return float(np.asarray(special.logsumexp(np.append(terms, 0.0))))


# ---- second variations ----


class Trace(NamedTuple):
    """Both sides of the trace identity: Σ_w δ²E[P_x w], and the double integral it equals."""

    variations: float
    integral: float


def trace_identity(tokens: Tokens, phi: Callable[[Array], Array]) -> Trace:
    """Σ_w δ²E_φ[P_x w] over an orthonormal basis w of R^d, and ∬(1−g)[φ''(g)(1−g²) + φ'(g)(d−2−g)]dμdμ.

    A = I, g = ⟨x,y⟩. δ²E[X] is the second derivative of E_φ along x_s = exp_x(sX(x)), taken here by JAX from
    E_φ itself. The trace is positive for φ = e^{βs}/β, d ≥ 3 and every law but a Dirac, so that only Diracs
    are maxima. `phi`: a JAX function of one number.
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
    return lax.map(lambda row: f(y @ row) @ values, x, batch_size=ROWS)


# ---- spectra of stationary configurations ----


def equispaced_spectrum(n: int, beta: float, flow: Flow = "softmax") -> Float[np.ndarray, "n"]:
    """Rates of the n Fourier modes of n equal tokens equispaced on the circle; mode 0 is the rotation.

    Mode k, an angle perturbation cos(kθ_j), grows at (1/n)Σ_m h'(θ_m)(cos kθ_m − 1), θ_m = 2πm/n, with
    h'(s) = e^{β cos s}(cos s − β sin²s); softmax: divided by Z = (1/n)Σ_m e^{β cos θ_m}.
    """
    n = as_whole(n, "n", 2)
    beta = finite(beta, "beta")
    check_flow(flow)
    theta = 2 * np.pi * np.arange(n) / n
    weight = np.exp(-2 * beta * np.sin(theta / 2) ** 2)  # e^{β(cos θ − 1)}
    slope = weight * (np.cos(theta) - beta * np.sin(theta) ** 2)
    rates = -2 * np.sin(np.outer(np.arange(n), theta) / 2) ** 2 @ slope
    if flow == "softmax":
        return rates / np.sum(weight)
    check_exponent(beta, "take a smaller beta")
    return rates * np.exp(beta) / n


class AntipodalRates(NamedTuple):
    """Rates of two antipodal atoms: `rigid`, how fast they turn towards each other; `split` (2,), how fast
    tokens within the first and the second atom part (negative: they stay together).
    """

    rigid: float
    split: Float[np.ndarray, "2"]


def antipodal_rates(p: float, beta: float, flow: Flow = "softmax") -> AntipodalRates:
    """Rates about pδ_x + qδ_{−x}, q = 1−p, for B = V = I; each comes d−1 times.

    Unnormalised: rigid e^{−β}, split −pe^β+qe^{−β} and −qe^β+pe^{−β}. Softmax: each atom's row divided by its
    Z1 = pe^β+qe^{−β}, Z2 = qe^β+pe^{−β}; rigid e^{−β}(q/Z1+p/Z2).
    """
    p = fraction(p, "p")
    beta = finite(beta, "beta")
    check_flow(flow)
    own, other = np.array([p, 1 - p]), np.array([1 - p, p])
    far = np.exp(-2 * beta)  # in units of e^β
    rigid, split = far * other, -own + far * other
    if flow == "softmax":
        Z = own + far * other
        return AntipodalRates(float(np.sum(rigid / Z)), split / Z)
    check_exponent(beta, "take a smaller beta")
    return AntipodalRates(float(np.exp(-beta)), np.exp(beta) * split)


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
    """
    p = fraction(p, "p")
    matrix, x = np.asarray(as_matrix(A, "A")), np.asarray(axis, dtype=float)
    require(matrix.ndim == 2 and bool(np.all(np.abs(matrix - matrix.T) <= 1e-12 * np.abs(matrix).max())),
            "A", "be one symmetric matrix", A)  # fmt: skip
    require(x.shape == (len(matrix),) and bool(abs(np.linalg.norm(x) - 1) < 1e-6), "axis",
            f"be a vector of norm 1 and length {len(matrix)}", axis)  # fmt: skip
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

    λ1 = 2e^{β(2cos2α−1)}cosα(cosα+cos2α)/(1+cosα) (constants reconstructed). Then the deficit falls at least
    like e^{−λ1 t}; for softmax e^{−β}λ1 takes its place. `pl_bound` says how much of it is lost.
    """
    angle, beta = cap_angle(angle), finite(beta, "beta")
    c, c2 = np.cos(angle), np.cos(2 * angle)
    check_exponent(beta * (2 * c2 - 1), "take a smaller beta")
    return float(2 * np.exp(beta * (2 * c2 - 1)) * c * (c + c2) / (1 + c))


def pl_bound(angle: float, beta: float) -> float:
    """λ*, which no such constant exceeds: the ratio ∫|v|²dμ/(E_max − E) of two tokens at the angle 2α.

    λ* = βe^{2β cos2α}sin²2α/(e^β−e^{β cos2α}), without cancellation; 2e^β at α = 0. Conjectured sharp.
    """
    angle, beta = cap_angle(angle), finite(beta, "beta")
    exponent = beta * np.cos(2 * angle)
    check_exponent(exponent, "take a smaller beta")
    return float(2 * np.cos(angle) ** 2 * np.exp(exponent) / special.exprel(2 * beta * np.sin(angle) ** 2))


def synchronisation_rate(beta: float, d: int) -> float:
    """Rate min(e^β, (d−1)e^{−β}/2) of W2(μ_t, Dirac) for a density positive at the antipode of the limit.

    The unnormalised flow, small |β|. e^β is the contraction of the cluster; mass leaves the antipode at
    e^{−β} in each of d−1 directions, which W2 sees by half.
    """
    as_whole(d, "d", 2)
    beta = as_number(beta, "beta")
    require(abs(beta) <= LARGEST_EXPONENT, "beta", f"have |beta| ≤ {LARGEST_EXPONENT:g}", beta)
    return float(min(np.exp(beta), (d - 1) * np.exp(-beta) / 2))


# ---- two arcs that stay apart ----


def critical_beta(p: float, w: float) -> float:
    """Least β from which arcs of half-width w about 0 and π, with masses p and 1−p, hold their tokens.

    For even laws. What gives way is the edge of the lighter arc, of mass q ≤ ½. A pair of tokens at ±a about
    its centre pulls the edge inwards with K(a) = ½[f(w+a)+f(w−a)], f(s) = e^{β cos s}sin s; a pair at ±b
    about the centre of the heavier arc pulls it out with k(b), the same with −β. The arcs are invariant for
    every even law with these masses if and only if q·min K ≥ p·max k over [0, w], p the heavier mass. Where
    both extremes lie at the edges, a = b = w, that is β_c = log(p/q)/(2cos2w), ½log(p/q) for narrow arcs; if
    p and q are nearly equal (β_c below about ⅓) the worst place is b < w and β_c is larger than that.
    """
    p, w = fraction(p, "p"), arc(w)
    p = max(p, 1 - p)

    def margin(beta: float) -> float:
        """log of q·min K over p·max k."""
        inward = -_greatest(lambda a: -_log_pull(a, w, beta), w)
        return np.log((1 - p) / p) + inward - _greatest(lambda b: _log_pull(b, w, -beta), w)

    high = np.log(p / (1 - p)) / (2 * np.cos(2 * w)) + 1.0
    while margin(high) <= 0:
        high *= 2
    return float(optimize.brentq(margin, 0.0, high, xtol=1e-14, rtol=1e-13))  # pyright: ignore[reportArgumentType]


def edge_velocities(p: float, w: float, beta: float) -> tuple[float, float]:
    """Velocities of the edges θ = w and θ = π+w of the two arcs of Example 2.6 (unnormalised flow).

    The density is uniform on each arc. Negative: the edge moves into its arc; the other two edges mirror it.
    An arc of mass m gives (m/2wβ)(e^{β cos2w} − e^β) at its own edge and (m/2wβ)(e^{−β cos2w} − e^{−β}) at
    the other's.
    """
    p, w, beta = fraction(p, "p"), arc(w), finite(beta, "beta")
    require(beta > 0, "beta", "be positive", beta)
    check_exponent(beta, "take a smaller beta")
    own = (np.exp(beta * np.cos(2 * w)) - np.exp(beta)) / (2 * w * beta)
    other = (np.exp(-beta * np.cos(2 * w)) - np.exp(-beta)) / (2 * w * beta)
    return float(p * own + (1 - p) * other), float((1 - p) * own + p * other)


def _log_pull(a: np.ndarray, w: float, beta: float) -> np.ndarray:
    """log ½[f(w+a)+f(w−a)], f(s) = e^{β cos s}sin s, for 0 ≤ a ≤ w."""
    far, near = beta * np.cos(w + a), beta * np.cos(w - a)
    top = np.maximum(far, near)
    return top + np.log((np.exp(far - top) * np.sin(w + a) + np.exp(near - top) * np.sin(w - a)) / 2)


def _greatest(f: Callable[[np.ndarray], np.ndarray], w: float) -> float:
    """Maximum of a smooth function over [0, w]: the best of a grid, polished between its neighbours."""
    grid = np.linspace(0, w, 257)
    values = f(grid)
    k = int(np.argmax(values))
    if k in (0, len(grid) - 1):
        return float(values[k])
    found = optimize.minimize_scalar(
        lambda a: -float(f(a)), bounds=(grid[k - 1], grid[k + 1]), method="bounded", options={"xatol": 1e-10}
    )
    return -float(found.fun)  # pyright: ignore[reportAttributeAccessIssue]
