"""Cases that can be solved exactly, or reduced to one number (theory §4).

Each function returns what a simulation with the same inputs must give; they use SciPy's integrators
and closed forms, nothing of the simulator.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import integrate, linalg, special

from tokenfield.errors import as_number, as_whole, require
from tokenfield.laws.tokens import as_real
from tokenfield.theory.inputs import Flow, check_flow, common_product, finite, fraction, times
from tokenfield.theory.integration import other_weight, solve

#: Exponents up to here are far from overflow; their negatives and the squares of these from underflow.
LARGEST_RATE_EXPONENT, LARGEST_LINEAR_EXPONENT = 500.0, 300.0


def equiangular(
    ts: ArrayLike,
    n: int,
    beta: float | Callable[[float], float],
    rho0: float,
    flow: Flow = "softmax",
) -> Float[np.ndarray, "times"]:
    """Common inner product ρ(t) of n equiangular tokens under B = V = I, ρ(0) = rho0.

    Softmax: ρ' = 2e^{βρ}(1−ρ)((n−1)ρ+1)/(e^β+(n−1)e^{βρ}); unnormalised: ρ' = (2/n)e^{βρ}(1−ρ)((n−1)ρ+1), for
    any real β. Integrated as u = −log(1−ρ), which resolves the approach to 1.

    Args:
        ts: increasing times (times,), the first at 0 or later.
        n: number of tokens, at least 2; they fit into R^d for d ≥ n.
        beta: inverse temperature, any real number, or a smooth function of t that gives one. At a jump start
            again from the value there.
        rho0: ρ at t = 0, in [−1/(n−1), 1); the lower end is at rest.
        flow: "softmax" or "unnormalised"; the latter needs |β| ≤ 500.

    Returns:
        ρ at the times (times,).
    """
    ts = times(ts)
    check_flow(flow)
    n, rho0 = as_whole(n, "n", 2), common_product(rho0, n)
    inverse_temperature = _beta_of_time(beta, flow)
    inverse_temperature(0.0)

    def slope(t: float, u: np.ndarray) -> np.ndarray:
        gap, b = np.exp(-u), inverse_temperature(t)  # 1 − ρ
        common = 2 * (n - (n - 1) * gap)
        if flow == "softmax":
            return common * other_weight(n, b * gap)
        return common * np.exp(b * (1 - gap)) / n

    if ts[-1] == 0:
        return np.full(len(ts), rho0)
    case = "this beta" if callable(beta) else f"beta = {beta:g}"
    return -np.expm1(-solve(slope, ts, [-np.log1p(-rho0)], 1e-13, 1e-14, case)[:, 0])


def _beta_of_time(beta: float | Callable[[float], float], flow: Flow) -> Callable[[float], float]:
    """β as a function of t whose values are checked."""
    if callable(beta):
        return lambda t: _checked_beta(beta(t), flow)
    constant = _checked_beta(beta, flow)
    return lambda t: constant


def _checked_beta(beta: float, flow: Flow) -> float:
    beta, most = finite(beta, "beta"), LARGEST_RATE_EXPONENT
    if flow == "unnormalised":  # tokens meet within times of e^{−β}
        small = abs(beta) <= most
        require(
            small, "beta", f"be at most {most:g} in size for the unnormalised flow, or e^|β| overflows", beta
        )
    return beta


def two_tokens(rho0: float, rho1: float, beta: float) -> float:
    """Time that two softmax tokens (B = V = I) take from inner product rho0 to rho1.

    t = ∫(1+e^{β(1−ρ)})/(2(1−ρ²))dρ; exponential in β > 0 when rho0 is small, and between half of and all of
    the time at β = 0 for β < 0.

    Args:
        rho0: inner product at the start, in (−1, rho1].
        rho1: inner product at the end, in (−1, 1).
        beta: inverse temperature, any real number up to 500/(1−rho0).

    Returns:
        The time t.
    """
    require(-1 < as_number(rho1, "rho1") < 1, "rho1", "lie in (−1, 1)", rho1)
    require(-1 < as_number(rho0, "rho0") <= rho1, "rho0", f"lie in (−1, rho1 = {rho1:g}]", rho0)
    most = LARGEST_RATE_EXPONENT / (1 - rho0)
    finite(beta, "beta")
    require(beta <= most, "beta", f"be at most {most:g} here, or the time overflows", beta)

    def pace(rho: float) -> float:
        return (1 + np.exp(beta * (1 - rho))) / (2 * (1 - rho**2))

    return float(integrate.quad(pace, rho0, rho1, epsabs=0, epsrel=1e-13, limit=500)[0])


def poisson_order(ts: ArrayLike, r0: float, d: int) -> Float[np.ndarray, "times"]:
    """Order parameter R(t) of the Poisson law of radius r0 in R^d under the flow with β = 0.

    The family is invariant: r' = ½(1−r²)h_d(r) and R = h_d(r). d = 2 in closed form.

    Args:
        ts: increasing times (times,), the first at 0 or later.
        r0: radius of the law at t = 0, in [0, 1).
        d: dimension of the surrounding space, d ≥ 2.

    Returns:
        R at the times (times,).
    """
    ts = times(ts)
    as_whole(d, "d", 2)
    require(0 <= as_number(r0, "r0") < 1, "r0", "lie in [0, 1)", r0)
    if d == 2:
        return np.zeros_like(ts) if r0 == 0 else (1 + (r0**-2 - 1) * np.exp(-ts)) ** -0.5
    if ts[-1] == 0:
        return np.full(len(ts), float(poisson_radius_order(r0, d)))
    radius = solve(
        lambda _, r: 0.5 * (1 - r**2) * _radius_order(r, d), ts, [r0], 1e-12, 1e-14, f"r0 = {r0:g}"
    )
    return _radius_order(radius[:, 0], d)


def poisson_radius_order(r: ArrayLike, d: int) -> Float[np.ndarray, "..."]:
    """R = h_d(r) = (2(d−1)/d) r ₂F₁(1, 1−d/2; 1+d/2; r²) of the Poisson law of radius r; d = 2: R = r."""
    as_whole(d, "d", 2)
    r = np.asarray(as_real(r, "r"))
    require(bool(np.all((r >= 0) & (r <= 1))), "r", "lie in [0, 1]", r)
    return _radius_order(r, d)


def _radius_order(r: np.ndarray, d: int) -> np.ndarray:
    return (2 * (d - 1) / d) * r * special.hyp2f1(1, 1 - d / 2, 1 + d / 2, r**2)


def lorentz(x0: ArrayLike, weights: ArrayLike, ts: ArrayLike) -> Float[np.ndarray, "times n d"]:
    """Tokens under x' = P_x m (β = 0, B = V = I) by the Lorentz boost that solves it for any law.

    g' = [[0, mᵀ], [m, 0]] g, Y = g (1, x0), x = Y_{1:}/Y_0, with m the mean of the moved tokens.

    Args:
        x0: tokens at t = 0 (n, d), rows of norm 1.
        weights: (n,), at least 0 and of sum 1.
        ts: increasing times (times,), the first at 0 or later.

    Returns:
        The tokens (times, n, d).
    """
    ts, x0, weights = times(ts), _points(x0), np.asarray(as_real(weights, "weights"))
    require(
        weights.shape == (len(x0),),
        "weights",
        f"have shape ({len(x0)},), one per token",
        f"of shape {weights.shape}",
    )
    law = bool(np.all(weights >= 0)) and abs(weights.sum() - 1) <= 1e-6
    require(law, "weights", "be at least 0 and sum to 1", weights)
    size = x0.shape[1] + 1
    lifted = np.concatenate([np.ones((len(x0), 1)), x0], axis=1)

    def tokens(g: np.ndarray) -> np.ndarray:
        y = lifted @ g.reshape(size, size).T
        return y[:, 1:] / y[:, :1]

    def slope(_: float, g: np.ndarray) -> np.ndarray:
        m = weights @ tokens(g)
        boost = np.zeros((size, size))
        boost[0, 1:] = boost[1:, 0] = m
        return (boost @ g.reshape(size, size)).ravel()

    if ts[-1] == 0:
        return np.stack([x0] * len(ts))
    return np.stack([tokens(g) for g in solve(slope, ts, np.eye(size).ravel(), 1e-12, 1e-12, "these tokens")])


def zero_temperature(x0: ArrayLike, V: ArrayLike, ts: ArrayLike) -> Float[np.ndarray, "times n d"]:
    """Tokens of the zero-temperature flow with B = I: x(t) = e^{Vt}x0/|e^{Vt}x0|, one head.

    Args:
        x0: tokens at t = 0 (n, d), rows of norm 1.
        V: value matrix (d, d).
        ts: increasing times (times,), the first at 0 or later.

    Returns:
        The tokens (times, n, d).
    """
    ts, x0 = times(ts), _points(x0)
    V, d = np.asarray(as_real(V, "V")), x0.shape[1]
    require(
        V.shape == (d, d) and bool(np.all(np.isfinite(V))),
        "V",
        f"be a finite matrix of shape ({d}, {d})",
        f"of shape {V.shape}",
    )
    # the largest real part is taken out, so that nothing overflows at long times
    V = V - np.max(np.linalg.eigvals(V).real) * np.eye(d)
    return np.stack([_linear_orbit(x0, V, t) for t in ts])


def equiangular_layer(n: float, gamma: float, rho: float) -> float:
    """Inner product of n equiangular tokens after one layer of attention with β = γ log n, B = V = I.

    The layer is x ← a/|a| with a the softmax mean, without the token itself added. `n` may be as large as a
    double; `long_context_limit` is where the values go as n → ∞.

    Args:
        n: number of tokens, at least 2; may be a float.
        gamma: β/log n, any real number.
        rho: inner product before the layer, in (−1/(n−1), 1).

    Returns:
        The inner product after the layer.
    """
    require(2 <= as_number(n, "n") < np.inf, "n", "be at least 2 and finite", n)
    require(-1 / (n - 1) < as_number(rho, "rho") < 1, "rho", f"lie in ({-1 / (n - 1):.6g}, 1)", rho)
    gamma = finite(gamma, "gamma")
    own = special.expit(gamma * np.log(n) * (1 - rho) - np.log(n - 1))  # softmax weight of the token itself
    other = (1 - own) / (n - 1)
    # a_i = (own − other) x_i + other Σx
    single, along = (own - other) ** 2, (1 + (n - 1) * rho) * other * (2 * (own - other) + n * other)
    return float((single * rho + along) / (single + along))


def long_context_limit(gamma: float, rho: float) -> float:
    """Limit n → ∞ of `equiangular_layer`, 0 < ρ < 1: 1, 4ρ/(1+3ρ), ρ for γ <, =, > 1/(1−ρ) (2510.05554).

    The token's own softmax weight tends to 0, ½, 1: it sees only the others, both alike, or only itself. γ
    may be negative: the limit is 1.
    """
    gamma, rho = finite(gamma, "gamma"), fraction(rho, "rho")
    pull = gamma * (1 - rho)
    if abs(pull - 1) <= 4 * np.finfo(float).eps:
        return 4 * rho / (1 + 3 * rho)
    return 1.0 if pull < 1 else rho


def _linear_orbit(x: np.ndarray, V: np.ndarray, t: float) -> np.ndarray:
    """e^{Vt}x/|e^{Vt}x| in steps so short that no token, in whatever eigenspace, underflows."""
    steps = max(1, int(np.ceil(np.linalg.norm(V, 2) * t / LARGEST_LINEAR_EXPONENT)))
    step = linalg.expm(V * (t / steps)).T
    for _ in range(steps):
        before, moved = x, x @ step
        x = moved / np.linalg.norm(moved, axis=1, keepdims=True)
        if np.array_equal(x, before):  # at rest
            break
    return x


def _points(x0: ArrayLike) -> np.ndarray:
    x0 = np.asarray(as_real(x0, "x0"))
    right = x0.ndim == 2 and len(x0) > 0 and x0.shape[1] > 1
    require(right, "x0", "have shape (n, d) with n ≥ 1 and d ≥ 2", f"of shape {x0.shape}")
    norms = np.linalg.norm(x0, axis=1)
    off = norms[~(np.abs(norms - 1) <= 1e-6)]
    require(off.size == 0, "x0", "have rows of norm 1", f"with rows of norm {off[:1]}")
    return x0
