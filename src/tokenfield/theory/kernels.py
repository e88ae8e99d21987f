"""Reductions for other kernels than softmax: equiangular tokens, scalar heads, leaders (theory §6.6).

n tokens with the common inner product ρ that read each other with weights f(⟨x,y⟩)/n and V = I keep it:

    ρ' = (2/n) f(ρ)(1 − ρ)(1 + (n−1)ρ).

f = e^{βs} is unnormalised attention, f(s) = s linear attention, f(s) = nσ(βs + b) sigmoid attention.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from tokenfield.errors import as_number, as_whole, require
from tokenfield.laws.tokens import as_real
from tokenfield.theory.inputs import common_product, finite, times
from tokenfield.theory.integration import other_weight, solve


def equiangular_kernel(
    ts: ArrayLike, n: int, weight: Callable[[float], float], rho0: float
) -> Float[np.ndarray, "times"]:
    """Common inner product ρ(t) of n equiangular tokens that read each other with weights f(⟨x,y⟩)/n, V = I.

    Args:
        ts: increasing times (times,), the first at 0 or later.
        n: number of tokens, at least 2.
        weight: f, a function of one score; for sigmoid attention s ↦ nσ(βs + b).
        rho0: ρ at t = 0, in [−1/(n−1), 1).

    Returns:
        ρ at the times (times,).
    """
    ts, n = times(ts), as_whole(n, "n", 2)
    require(callable(weight), "weight", "be a function of one number", repr(weight))
    return _from_rate(ts, n, rho0, lambda rho: weight(rho) / n)


def equiangular_heads(
    ts: ArrayLike, n: int, beta: float, scores: ArrayLike, values: ArrayLike, rho0: float
) -> Float[np.ndarray, "times"]:
    """Common inner product ρ(t) of n equiangular tokens under softmax heads B_h = b_h I, V_h = v_h I.

    ρ' = Σ_h v_h times that of one head with βb_h; negative v_h repel.

    Args:
        ts: increasing times (times,), the first at 0 or later.
        n: number of tokens, at least 2.
        beta: inverse temperature, any real number.
        scores: b (heads,).
        values: v (heads,).
        rho0: ρ at t = 0, in [−1/(n−1), 1).

    Returns:
        ρ at the times (times,).
    """
    ts, n, beta = times(ts), as_whole(n, "n", 2), finite(beta, "beta")
    b, v = np.asarray(as_real(scores, "scores")), np.asarray(as_real(values, "values"))
    require(b.ndim == 1 and b.size > 0, "scores", "have shape (heads,)", f"of shape {b.shape}")
    require(v.shape == b.shape, "values", f"have the shape {b.shape} of the scores", f"of shape {v.shape}")
    return _from_rate(ts, n, rho0, lambda rho: float(v @ other_weight(n, beta * b * (1 - rho))))


def _from_rate(
    ts: np.ndarray, n: int, rho0: float, share: Callable[[float], float]
) -> Float[np.ndarray, "times"]:
    """ρ with ρ' = 2·share(ρ)(1−ρ)(1+(n−1)ρ), share the weight of another token, as u = −log(1−ρ)."""
    rho0 = common_product(rho0, n)

    def slope(_: float, u: np.ndarray) -> np.ndarray:
        gap = float(np.exp(-u[0]))
        return np.array([2 * share(1 - gap) * (n - (n - 1) * gap)])

    if ts[-1] == 0:
        return np.full(len(ts), rho0)
    return -np.expm1(-solve(slope, ts, [-np.log1p(-rho0)], 1e-13, 1e-14, f"n = {n}")[:, 0])


def linear_equiangular_time(rho0: float, rho1: float, n: int) -> float:
    """Time that n equiangular tokens take from rho0 to rho1 under linear attention with B = V = I.

    t = (n/2)[log ρ − n^{−1}log(1−ρ) − ((n−1)/n)log(1+(n−1)ρ)] between the two; at ρ = 0 tokens are at rest.

    Args:
        rho0: common inner product at the start, in (0, rho1].
        rho1: common inner product at the end, in (0, 1).
        n: number of tokens, at least 2.

    Returns:
        The time t.
    """
    n = as_whole(n, "n", 2)
    require(0 < as_number(rho1, "rho1") < 1, "rho1", "lie between 0 and 1", rho1)
    require(0 < as_number(rho0, "rho0") <= rho1, "rho0", f"lie in (0, rho1 = {rho1:g}]", rho0)

    def clock(rho: float) -> float:
        return n / 2 * (np.log(rho) - np.log1p(-rho) / n - (n - 1) / n * np.log1p((n - 1) * rho))

    return float(clock(rho1) - clock(rho0))


def leader_orbit(x0: ArrayLike, leader: ArrayLike, alpha: float, layers: int) -> Float[np.ndarray, "k d"]:
    """A token that follows one leader through hardmax layers in R^d: x_k = v + (1+α)^{−k}(x_0 − v).

    The layer is x ← x + α/(1+α)(v − x), v the token that maximises ⟨Bᵀx, ·⟩, as long as that stays the same
    (2407.01602). `NoNorm` of hardmax attention and −x as an MLP, with `Layers(α/(1+α))`, is this network.

    Args:
        x0: the token at first (d,).
        leader: v (d,), which does not move.
        alpha: step α, positive.
        layers: how many layers, at least 0.

    Returns:
        The token after 0, …, `layers` layers (layers + 1, d).
    """
    x0, v = np.asarray(as_real(x0, "x0")), np.asarray(as_real(leader, "leader"))
    require(x0.ndim == 1, "x0", "be one token of shape (d,)", f"of shape {x0.shape}")
    require(v.shape == x0.shape, "leader", f"have the shape {x0.shape} of x0", f"of shape {v.shape}")
    require(as_number(alpha, "alpha") > 0, "alpha", "be positive", alpha)
    k = np.arange(as_whole(layers, "layers", 0) + 1)[:, None]
    return v + (1 + alpha) ** -k.astype(float) * (x0 - v)
