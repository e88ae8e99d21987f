"""The concentration theorem with its own constants, step by step (2605.10931; theory §2.9).

    W_p(μ_t^β, Π♯ρ0) ≤ W_p(μ_t^0, Π♯ρ0) + W_p(μ_t^β, μ_t^0)

(a) Lyapunov: the first term, the zero-temperature flow, falls at least like e^{−(λ1−λ2)t/‖B‖} per token.
(b) Laplace: where the density has the floor m_t, softmax attention is within gap_t of zero temperature.
(c) Floor: m_t ≥ m_0 exp(−∫sup div X), div X ≤ (d−1)‖V‖ + β‖V‖‖B‖E|y−ȳ|², and E|y−ȳ|² by (b) again.
(d) Stability: the second term is at most ∫_0^t e^{L(t−r)}‖V‖gap_r dr, L the one-sided Lipschitz constant.

Nothing is fitted. All distances are geodesic; D must be symmetric and B regular.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import integrate, special

from tokenfield.errors import as_number, require, require_kind
from tokenfield.laws.tokens import Tokens
from tokenfield.models.weights import AttentionWeights
from tokenfield.theory.inputs import times
from tokenfield.theory.laplace_bound import split_moment, worst_moment
from tokenfield.theory.one_sided import OneSidedLipschitz, one_sided_lipschitz
from tokenfield.theory.spectral import Limit, limit

LaplaceStep = Literal["split", "worst"]

#: D counts as symmetric up to this part of its norm.
SYMMETRIC = 1e-10
#: Points of the integral of step (d) between two saved times at least; and steps per unit of 1/L.
STEPS, STEPS_PER_TIME = 8, 40
#: Nodes of the integral over the angle to E, on each side of where the worst law changes its density.
ANGLE_NODES = 120


@dataclass(frozen=True, eq=False)
class ConcentrationBound:
    """The chain of inequalities over the times `ts`; see `concentration_bound`.

    `lyapunov`: bound of W_p(μ_t^0, Π♯ρ0), step (a). `laplace`: of |softmax mean − Bᵀx/|Bᵀx|| for every x,
    step (b), with the floor e^`log_floor` of the density of μ_t^β, step (c). `stability`: of
    W_p(μ_t^β, μ_t^0) for every p ≤ ∞, step (d). `total`: of W_p(μ_t^β, Π♯ρ0). `lipschitz`: L, enclosed.
    `rate`: of the Lyapunov step, (λ1−λ2)/‖B‖. `norm`: ‖V‖. `limit`: E and Π.
    """

    ts: Float[np.ndarray, "times"]
    beta: float
    p: float
    lyapunov: Float[np.ndarray, "times"]
    laplace: Float[np.ndarray, "times"]
    log_floor: Float[np.ndarray, "times"]
    stability: Float[np.ndarray, "times"]
    lipschitz: OneSidedLipschitz
    rate: float
    norm: float
    limit: Limit

    @property
    def total(self) -> Float[np.ndarray, "times"]:
        """Bound of W_p(μ_t^β, Π♯ρ0)."""
        return self.lyapunov + self.stability

    @property
    def floor(self) -> Float[np.ndarray, "times"]:
        """The floor m_t of the density of μ_t^β, 0 where it is below the least double."""
        return np.exp(self.log_floor)

    @property
    def best(self) -> tuple[float, float]:
        """The saved time at which the total is least, and its value there."""
        k = int(np.argmin(self.total))
        return float(self.ts[k]), float(self.total[k])

    def angles(self, tokens: Tokens) -> Float[np.ndarray, "times n"]:
        """Step (a) per token: the greatest angle to E, and so to its own end, that it may have."""
        return token_angles(self.limit, tokens, self.rate, self.ts)


def concentration_bound(
    weights: AttentionWeights,
    floor: float,
    beta: float,
    ts: ArrayLike,
    law: Tokens | None = None,
    ceiling: float = np.inf,
    p: float = 2.0,
    divergence: float | None = None,
    laplace: LaplaceStep = "split",
) -> ConcentrationBound:
    """Every step of the bound of W_p(μ_t^β, Π♯ρ0), for softmax attention with a symmetric D = V Bᵀ.

    Without `law` the Lyapunov step is that of the worst law between floor and ceiling: as much mass as
    possible far from E. Without a ceiling that mass may lie in E^⊥, where it stays, and the step does not
    tend to 0.

    Args:
        weights: one head, B and V (d, d), with B regular and V Bᵀ symmetric.
        floor: m, the least density of ρ0 against the uniform law of mass 1, in (0, 1].
        beta: inverse temperature, positive and finite.
        ts: increasing times from 0 or later, (times,).
        law: ρ0 as (quadrature) tokens, for the Lyapunov step.
        ceiling: the greatest density of ρ0, at least 1; only read without `law`.
        p: of W_p, at least 1 and finite.
        divergence: a bound of the divergence of the field along the flow, where one is known (measured, or
            `lipschitz.divergence` of zero temperature); it takes the place of the one that step (c) derives.
        laplace: "split", the Laplace step as the proof has it, or "worst", the greatest value over all laws
            with this floor.

    Returns:
        The steps and their sum, over the times.
    """
    floor, beta, p = as_number(floor, "floor"), as_number(beta, "beta"), as_number(p, "p")
    require(0 < floor <= 1, "floor", "lie in (0, 1]", floor)
    require(0 < beta < np.inf, "beta", "be positive and finite", beta)
    require(1 <= p < np.inf, "p", "be at least 1 and finite", p)
    require(as_number(ceiling, "ceiling") >= 1, "ceiling", "be at least 1", ceiling)
    require(laplace in ("split", "worst"), "laplace", "be 'split' or 'worst'", repr(laplace))
    known = divergence is None or bool(np.isfinite(as_number(divergence, "divergence")))
    require(known, "divergence", "be a finite number", divergence)
    ts, lipschitz = times(ts), one_sided_lipschitz(weights)
    head = _symmetric_head(weights, beta, split_moment if laplace == "split" else worst_moment)
    where, rate = head.limit, head.rate
    fine = _fine_times(ts, lipschitz.upper)
    logs = head.log_floors(float(np.log(floor)), divergence, fine)
    gap = np.sqrt(head.moment(head.sharpness, head.d, logs))
    saved = np.searchsorted(fine, ts)
    if law is None:
        fall = worst_law_distance(where, (floor, float(ceiling)), p, rate * ts)
    else:
        fall = (token_angles(where, law, rate, ts) ** p @ np.asarray(law.weights)) ** (1 / p)
    return ConcentrationBound(
        ts=ts,
        beta=beta,
        p=p,
        lyapunov=fall,
        laplace=gap[saved],
        log_floor=logs[saved],
        stability=growth(fine, head.norm * gap, lipschitz.upper)[saved],
        lipschitz=lipschitz,
        rate=rate,
        norm=head.norm,
        limit=where,
    )


@dataclass(frozen=True, eq=False)
class _SymmetricHead:
    """What the steps read of a head: the sizes of B and V, E, and which bound the Laplace step takes."""

    limit: Limit
    singular: np.ndarray
    norm: float
    beta: float
    moment: Callable[..., np.ndarray]

    @property
    def d(self) -> int:
        return len(self.singular)

    @property
    def rate(self) -> float:
        return self.limit.gap / float(self.singular[0]) if self.limit.dimension < self.d else 0.0

    @property
    def sharpness(self) -> float:
        """β|Bᵀx| at the worst query."""
        return self.beta * float(self.singular[-1])

    def log_floors(self, start: float, divergence: float | None, ts: np.ndarray) -> np.ndarray:
        """Step (c): log m at some times from 0."""

        def lose(log_floor: float) -> float:
            # E|y − ȳ|² = 1 − |ȳ|² is never more than 1
            second = min(float(self.moment(self.sharpness, self.d, min(log_floor, 0.0))), 1.0)
            return -self.norm * (self.d - 1 + self.beta * float(self.singular[0]) * second)

        found = _solve(lose, start, ts) if divergence is None else start - divergence * ts
        return np.minimum(found, 0.0)  # no density is above 1 everywhere


def token_angles(
    where: Limit, tokens: Tokens, rate: float, ts: Float[np.ndarray, "times"]
) -> Float[np.ndarray, "times n"]:
    """arctan(tan∠(x, E)·e^{−rate·t}): tan² of the angle to E falls at least at twice the rate.

    Args:
        where: E, of a symmetric D.
        tokens: (n, d), where they began.
        rate: (λ1−λ2)/‖B‖.
        ts: times.

    Returns:
        Bounds of the angle of every token to E, which is also the one to its own end Π(x).
    """
    require_kind(tokens, Tokens, "law")
    require(tokens.d == len(where.projector), "law", f"have d = {len(where.projector)}", tokens.d)
    inside = np.linalg.norm(np.asarray(tokens.x) @ where.basis, axis=1)
    across = np.linalg.norm(np.asarray(tokens.x) - np.asarray(tokens.x) @ where.projector.T, axis=1)
    return np.arctan2(across * np.exp(-rate * np.asarray(ts))[:, None], inside)


def worst_law_distance(
    where: Limit, between: tuple[float, float], p: float, faded: Float[np.ndarray, "times"]
) -> Float[np.ndarray, "times"]:
    """The greatest (∫arctan^p(tan φ·e^{−faded})dρ)^{1/p} of the laws with a density between two numbers.

    φ is the angle to E; sin²φ of the uniform law has the Beta((d−k)/2, k/2) law. The worst law has the
    ceiling where φ is greatest, on a part (1−m)/(M−m) of the sphere, and the floor elsewhere.

    Args:
        where: E, of dimension k.
        between: floor m and ceiling M.
        p: at least 1.
        faded: rate times t, at each time.

    Returns:
        The distance at each time.
    """
    (m, M), d, k = between, len(where.projector), where.dimension
    if k == d:
        return np.zeros_like(faded)
    nodes, rule = _gauss()
    share = 0.0 if m == 1 else (1 - m) / (M - m)
    cut = 1 - share
    total = np.zeros_like(faded)
    for low, high, density in ((0.0, cut, m), (cut, 1.0, M)):
        if high <= low:
            continue
        # quadrature in the mass itself, bent so that nodes crowd at E^⊥, where late mass is
        v = (nodes + 1) / 2
        level = high - (high - low) * (1 - v) ** 3
        weight = rule / 2 * 3 * (high - low) * (1 - v) ** 2
        beside = special.betainccinv((d - k) / 2, k / 2, 1 - level)
        inside = special.betaincinv(k / 2, (d - k) / 2, 1 - level)
        angle = np.arctan2(np.sqrt(beside) * np.exp(-faded)[:, None], np.sqrt(inside))
        total = total + density * (angle**p @ weight)
    if np.isinf(M):  # all that is not the floor's lies in E^⊥
        total = total + (1 - m) * (np.pi / 2) ** p
    return total ** (1 / p)


def growth(
    ts: Float[np.ndarray, "times"], push: Float[np.ndarray, "times"], L: float
) -> Float[np.ndarray, "times"]:
    """∫_0^t e^{L(t−r)}push(r)dr for a push that is linear between the times, exactly.

    Args:
        ts: times from 0.
        push: at these times.
        L: rate of growth, of either sign.

    Returns:
        The integral up to each time, 0 at the first.
    """
    found = np.zeros(len(ts))
    for k, h in enumerate(np.diff(ts)):
        # φ1 = (e^{Lh}−1)/(Lh), φ2 = (e^{Lh}−1−Lh)/(Lh)²; their series for small Lh
        z = L * h
        first = np.expm1(z) / z if abs(z) > 1e-4 else 1 + z / 2 + z**2 / 6
        second = (first - 1) / z if abs(z) > 1e-4 else 0.5 + z / 6 + z**2 / 24
        found[k + 1] = np.exp(z) * found[k] + h * (push[k] * (first - second) + push[k + 1] * second)
    return found


def _symmetric_head(
    weights: AttentionWeights, beta: float, moment: Callable[..., np.ndarray]
) -> _SymmetricHead:
    where = limit(weights)
    B, V = (np.asarray(m[0]) for m in weights.stacked())
    D = V @ B.T
    off = float(np.linalg.norm(D - D.T, 2))
    symmetric = off <= SYMMETRIC * float(np.linalg.norm(D, 2))
    require(symmetric, "weights", "have a symmetric V Bᵀ", f"with ‖D − Dᵀ‖ = {off:.3g}")
    sizes = np.linalg.svd(B, compute_uv=False)
    return _SymmetricHead(where, sizes, float(np.linalg.norm(V, 2)), beta, moment)


@cache
def _gauss() -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(ANGLE_NODES)


def _fine_times(ts: np.ndarray, L: float) -> np.ndarray:
    """0 and all saved times, with so many between that a curved gap is linear from one to the next."""
    knots = np.unique(np.concatenate([[0.0], ts]))
    parts = [
        np.linspace(a, b, STEPS + int(STEPS_PER_TIME * max(L, 1.0) * (b - a)), endpoint=False)
        for a, b in itertools.pairwise(knots)
    ]
    return np.concatenate([*parts, knots[-1:]])


def _solve(lose: Callable[[float], float], start: float, ts: np.ndarray) -> np.ndarray:
    """The solution of y' = lose(y) at some times."""
    if len(ts) == 1:
        return np.array([start])
    found = integrate.solve_ivp(
        lambda _, y: [lose(y[0])], (ts[0], ts[-1]), [start], "LSODA", t_eval=ts, rtol=1e-9, atol=1e-12
    )
    return found.y[0]
