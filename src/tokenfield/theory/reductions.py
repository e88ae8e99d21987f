"""Cases that can be solved exactly, or reduced to one number (theory §4).

Each function returns what a simulation with the same inputs must give; they use SciPy's integrators
and closed forms, nothing of the simulator.
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import integrate, linalg, special

from tokenfield.errors import as_whole, require
from tokenfield.theory.inputs import Flow, check_flow, finite, fraction, times
from tokenfield.tokens import as_real


def equiangular(
    ts: ArrayLike, n: int, beta: float, rho0: float, flow: Flow = "softmax"
) -> Float[np.ndarray, "times"]:
    """Common inner product ρ(t) of n equiangular tokens under B = V = I, ρ(0) = rho0.

    Softmax: ρ' = 2e^{βρ}(1−ρ)((n−1)ρ+1)/(e^β+(n−1)e^{βρ}); unnormalised: ρ' = (2/n)e^{βρ}(1−ρ)((n−1)ρ+1).
    Integrated as u = −log(1−ρ), which resolves the approach to 1.
    """
    ts = times(ts)
    check_flow(flow)
    require(n >= 2, "n", "be at least 2", n)
    require(-1 / (n - 1) <= rho0 < 1, "rho0", f"lie in [{-1 / (n - 1):.6g}, 1)", rho0)

    def slope(_: float, u: np.ndarray) -> np.ndarray:
        gap = np.exp(-u)  # 1 − ρ
        common = 2 * (n - (n - 1) * gap)
        if flow == "softmax":
            return common * np.exp(-beta * gap) / (1 + (n - 1) * np.exp(-beta * gap))
        return common * np.exp(beta * (1 - gap)) / n

    u0 = [-np.log1p(-rho0)]
    if ts[-1] == 0:
        return np.full(len(ts), float(rho0))
    solved = integrate.solve_ivp(slope, (0.0, ts[-1]), u0, "DOP853", ts, rtol=1e-13, atol=1e-14)
    return -np.expm1(-solved.y[0])


def two_tokens(rho0: float, rho1: float, beta: float) -> float:
    """Time that two softmax tokens (B = V = I) take from inner product rho0 to rho1.

    t = ∫(1+e^{β(1−ρ)})/(2(1−ρ²))dρ; the time is exponential in β when rho0 is small.
    """
    require(-1 < rho0 <= rho1 < 1, "rho0", f"lie in (−1, rho1 = {rho1:g}]", rho0)

    def pace(rho: float) -> float:
        return (1 + np.exp(beta * (1 - rho))) / (2 * (1 - rho**2))

    return float(integrate.quad(pace, rho0, rho1, epsabs=0, epsrel=1e-13, limit=500)[0])


def poisson_order(ts: ArrayLike, r0: float, d: int) -> Float[np.ndarray, "times"]:
    """Order parameter R(t) of the Poisson law of radius r0 in R^d under the flow with β = 0.

    The family is invariant: r' = ½(1−r²)h_d(r) and R = h_d(r). d = 2 in closed form.
    """
    ts = times(ts)
    require(0 <= r0 < 1, "r0", "lie in [0, 1)", r0)
    if d == 2:
        return np.zeros_like(ts) if r0 == 0 else (1 + (r0**-2 - 1) * np.exp(-ts)) ** -0.5
    if ts[-1] == 0:
        return np.full(len(ts), float(poisson_radius_order(r0, d)))
    solved = integrate.solve_ivp(
        lambda _, r: 0.5 * (1 - r**2) * poisson_radius_order(r, d),
        (0.0, ts[-1]), [r0], "DOP853", ts, rtol=1e-12, atol=1e-14,
    )  # fmt: skip
    return poisson_radius_order(solved.y[0], d)


def poisson_radius_order(r: ArrayLike, d: int) -> Float[np.ndarray, "..."]:
    """R = h_d(r) = (2(d−1)/d) r ₂F₁(1, 1−d/2; 1+d/2; r²) of the Poisson law of radius r; d = 2: R = r."""
    require(d >= 2, "d", "be at least 2", d)
    r = np.asarray(r, dtype=float)
    return (2 * (d - 1) / d) * r * special.hyp2f1(1, 1 - d / 2, 1 + d / 2, r**2)


def lorentz(x0: ArrayLike, weights: ArrayLike, ts: ArrayLike) -> Float[np.ndarray, "times n d"]:
    """Tokens under x' = P_x m (β = 0, B = V = I) by the Lorentz boost that solves it for any law.

    g' = [[0, mᵀ], [m, 0]] g, Y = g (1, x0), x = Y_{1:}/Y_0, with m the mean of the moved tokens.
    """
    ts, x0, weights = times(ts), np.asarray(x0, dtype=float), np.asarray(weights, dtype=float)
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
    solved = integrate.solve_ivp(
        slope, (0.0, ts[-1]), np.eye(size).ravel(), "DOP853", ts, rtol=1e-12, atol=1e-12
    )
    return np.stack([tokens(g) for g in solved.y.T])


def zero_temperature(x0: ArrayLike, V: ArrayLike, ts: ArrayLike) -> Float[np.ndarray, "times n d"]:
    """Tokens of the zero-temperature flow with B = I: x(t) = e^{Vt}x0/|e^{Vt}x0|, one head."""
    ts, x0 = times(ts), np.asarray(x0, dtype=float)
    V = np.asarray(as_real(np.asarray(V), "V"))
    # the largest real part is taken out, so that nothing overflows at long times
    V = V - np.max(np.linalg.eigvals(V).real) * np.eye(len(V))
    moved = np.stack([x0 @ linalg.expm(V * t).T for t in ts])
    return moved / np.linalg.norm(moved, axis=2, keepdims=True)


def pre_norm(
    ts: ArrayLike, n: int, beta: float, rho0: float, r0: float
) -> tuple[Float[np.ndarray, "times"], Float[np.ndarray, "times"]]:
    """Inner product ρ(t) and norm r(t) of n equiangular tokens under pre-norm softmax attention (B = V = I).

    Tokens x = rθ read their directions: θ' = P_θA/r, r' = ⟨θ,A⟩, A the softmax mean of the θ's. So ρ has the
    slope of `equiangular` divided by r, and r' = (e^β+(n−1)e^{βρ}ρ)/(e^β+(n−1)e^{βρ}). Since r grows like t,
    1−ρ falls like t^{−2}, where post-norm tokens have e^{−2t} (2510.22026).
    """
    ts = times(ts)
    n = as_whole(n, "n", 2)
    beta = finite(beta, "beta")
    require(-1 / (n - 1) <= rho0 < 1, "rho0", f"lie in [{-1 / (n - 1):.6g}, 1)", rho0)
    require(0 < r0 < np.inf, "r0", "be positive", r0)

    def slope(_: float, state: np.ndarray) -> np.ndarray:
        gap, r = np.exp(-state[0]), state[1]  # 1 − ρ
        others = (n - 1) * np.exp(-beta * gap)
        turn = 2 * (n - (n - 1) * gap) * (others / (n - 1)) / (1 + others) / r
        return np.array([turn, 1 - gap * others / (1 + others)])

    start = [-np.log1p(-rho0), float(r0)]
    if ts[-1] == 0:
        return np.full(len(ts), float(rho0)), np.full(len(ts), float(r0))
    solved = integrate.solve_ivp(slope, (0.0, ts[-1]), start, "DOP853", ts, rtol=1e-13, atol=1e-14)
    return -np.expm1(-solved.y[0]), solved.y[1]


def equiangular_layer(n: float, gamma: float, rho: float) -> float:
    """Inner product of n equiangular tokens after one layer of attention with β = γ log n, B = V = I.

    The layer is x ← a/|a| with a the softmax mean, without the token itself added. `n` may be as large as a
    double; `long_context_limit` is where the values go as n → ∞.
    """
    require(2 <= n < np.inf, "n", "be at least 2 and finite", n)
    require(-1 / (n - 1) < rho < 1, "rho", f"lie in ({-1 / (n - 1):.6g}, 1)", rho)
    gamma = finite(gamma, "gamma")
    own = special.expit(gamma * np.log(n) * (1 - rho) - np.log(n - 1))  # softmax weight of the token itself
    other = (1 - own) / (n - 1)
    # a_i = (own − other) x_i + other Σx
    single, along = (own - other) ** 2, (1 + (n - 1) * rho) * other * (2 * (own - other) + n * other)
    return float((single * rho + along) / (single + along))


def long_context_limit(gamma: float, rho: float) -> float:
    """Limit n → ∞ of `equiangular_layer`, 0 < ρ < 1: 1, 4ρ/(1+3ρ), ρ for γ <, =, > 1/(1−ρ) (2510.05554).

    The token's own softmax weight tends to 0, ½, 1: it sees only the others, both alike, or only itself.
    """
    gamma, rho = finite(gamma, "gamma"), fraction(rho, "rho")
    pull = gamma * (1 - rho)
    if abs(pull - 1) <= 4 * np.finfo(float).eps:
        return 4 * rho / (1 + 3 * rho)
    return 1.0 if pull < 1 else rho
