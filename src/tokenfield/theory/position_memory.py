"""Lost in the middle: which initial tokens the last one remembers (2605.09213; theory §6.1.5).

About the uniform law of the circle the wave e^{inθ} at the place s = 1 at time t answers to the initial wave
at σ < 1 by

    G_n(σ) = λe^{λσ}/(e^λ−1)·ψ_{a_n t}(log((e^λ−1)/(e^{λσ}−1))),    ψ_c(y) = √(c/y) I_1(2√(cy)),

λ the slope of ALiBi at the scale of the mean field (without it ψ_{a_n t}(log 1/σ)) and a_n the rate of growth
under full attention. The profile S(σ) = Σ_n ω_n G_n(σ), ω_n = e^{−π²n²/2M²}, is what a Gaussian window of
width π/M sees. It is infinite at σ = 0 (primacy) and rises again towards σ = 1 (recency) while t < t_crit.

Clocks. Ours: x' = P_x(sum of e^{β⟨x,y⟩}y), a_n = n²I_n(β)/β. The paper's: the force is −β sin θ e^{β cos θ},
a_n = n²I_n(β), so that t_ours = β·t_paper.
"""

from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import optimize, special

from tokenfield.errors import as_number, as_whole, require
from tokenfield.laws.tokens import as_real
from tokenfield.theory.growth import growth_rate
from tokenfield.theory.inputs import Flow, finite

Clock = Literal["ours", "paper"]


class PositionProfile(NamedTuple):
    """How much the last token remembers of the initial token at each place.

    `rates` (modes,): a_n, n = 1, 2, …, in the chosen clock. `window` (modes,): ω_n. `slope`: λ.
    """

    rates: Float[np.ndarray, "modes"]
    window: Float[np.ndarray, "modes"]
    slope: float

    @property
    def critical_time(self) -> float:
        """t_crit = 2(1−e^{−λ})Σωa/Σωa²: the profile rises towards σ = 1 iff t < t_crit; 0 without ALiBi."""
        first, second = self.window @ self.rates, self.window @ self.rates**2
        return float(-2 * np.expm1(-self.slope) * first / second)

    def at(self, sigma: ArrayLike, t: float) -> Float[np.ndarray, "..."]:
        """S(σ) at the places sigma in (0, 1], of any shape, at time t ≥ 0."""
        sigma, t = np.asarray(as_real(sigma, "sigma")), as_number(t, "t")
        inside = bool(np.all((sigma > 0) & (sigma <= 1)))
        require(inside, "sigma", "lie in (0, 1]", sigma)
        require(0 <= t < np.inf, "t", "be at least 0 and finite", t)
        if self.slope == 0:
            factor, y = np.ones_like(sigma), -np.log(sigma)
        else:
            lam = self.slope
            factor = lam * np.exp(lam * (sigma - 1)) / -np.expm1(-lam)
            # log of (e^λ−1)/(e^{λσ}−1), without the powers that overflow
            y = lam * (1 - sigma) + np.log(np.expm1(-lam) / np.expm1(-lam * sigma))
        answer = _response(self.rates * t, np.maximum(y, 0.0)[..., None])
        return factor * (answer @ self.window)

    def minimum(self, t: float) -> tuple[float, float]:
        """Place σ and value S(σ) of the least memory, σ = 1 where the profile falls to the end; t > 0."""
        require(as_number(t, "t") > 0, "t", "be positive, or there is nothing to remember yet", t)
        # early on the valley lies at places far below any even grid, so that it is looked for in log σ
        grid = np.log(np.union1d(np.geomspace(1e-300, 1, 700), np.linspace(0.01, 1, 400)))
        k = int(np.argmin(self.at(np.exp(grid), t)))
        low, high = grid[max(k - 1, 0)], grid[min(k + 1, len(grid) - 1)]
        found: Any = optimize.minimize_scalar(
            lambda u: float(self.at(np.exp(u), t)),
            bounds=(low, high),
            method="bounded",
            options={"xatol": 1e-10},
        )
        end = float(self.at(1.0, t))
        return (1.0, end) if end <= found.fun else (float(np.exp(found.x)), float(found.fun))


def lost_in_the_middle(
    beta: float,
    slope: float,
    window: float = 8.0,
    modes: int = 20,
    flow: Flow = "unnormalised",
    clock: Clock = "ours",
) -> PositionProfile:
    """The memory of places of causal attention on the circle with ALiBi, V = B = I (2605.09213).

    Args:
        beta: inverse temperature, positive.
        slope: λ ≥ 0 of ALiBi at the scale of the mean field, where all tokens have length 1 together.
        window: M, for a Gaussian window of width π/M in the angle.
        modes: waves n = 1, …, modes that are summed.
        flow: "unnormalised", divided by the visible weight, as in the paper, or "softmax".
        clock: "ours", or "paper" for times t_paper = t_ours/β.

    Returns:
        Rates and weights of the modes, with the profile, its critical time and its minimum as methods.
    """
    beta, slope, window = finite(beta, "beta"), finite(slope, "slope"), finite(window, "window")
    require(beta > 0, "beta", "be positive", beta)
    require(slope >= 0, "slope", "be at least 0", slope)
    require(window > 0, "window", "be positive", window)
    known = isinstance(clock, str) and clock in ("ours", "paper")
    require(known, "clock", "be 'ours' or 'paper'", repr(clock))
    n = np.arange(1, as_whole(modes, "modes", 1) + 1)
    rates = growth_rate(2, beta, n, flow) * (beta if clock == "paper" else 1.0)
    return PositionProfile(rates, np.exp(-((np.pi * n / window) ** 2) / 2), slope)


def _response(c: np.ndarray, y: np.ndarray) -> np.ndarray:
    """ψ_c(y) = √(c/y) I_1(2√(cy)) = c·Σ_k (cy)^k/(k!(k+1)!), which is c at y = 0."""
    return c * special.hyp0f1(2.0, c * y)
