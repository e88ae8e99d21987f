"""How close the tokens come to Π♯ρ0, and when, as the temperature falls.

Clusters shrink like e^{−ct} until they are as narrow as β^{−1/2}; from then on a token sees only its own
cluster, and the escape begins (theory §2.6). So the least distance and its time should go like

    t* = log β/(2c) + const,    W(t*) = const · β^{−r/(2c)},

r the rate of W; on the circle of the worked case r = c = ¼: t* ~ 2 log β and W ~ β^{−1/2}.
"""

from dataclasses import dataclass

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tokenfield import figures
from tokenfield.diagnostics.rates import Fit, fit_rate
from tokenfield.papers.low_temperature import worked
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, at_most, near
from tokenfield.theory.concentration import concentration_rates, laplace_envelope

MECHANISM = "theory §2.6: clusters of width e^(−ct) meet β^(−1/2)"


@dataclass(frozen=True, eq=False)
class Bottoms:
    """Least W2 to Π♯ρ0 and its time, by β; the laws fitted to them."""

    betas: np.ndarray
    times: np.ndarray
    least: np.ndarray

    @property
    def exponent(self) -> Fit:
        """W(t*) = A β^power."""
        return fit_rate(self.betas, self.least, model="power")

    @property
    def over_envelope(self) -> Fit:
        """The same of W(t*)/√(log(β+1)/β)."""
        return fit_rate(self.betas, self.least / laplace_envelope(self.betas), model="power")

    @property
    def slope(self) -> Fit:
        """t* = −rate·log β + const, as the law e^{t*} = A e^{−rate·log β}."""
        return fit_rate(np.log(self.betas), np.exp(self.times), model="exponential")


def bottoms(betas: np.ndarray, n: int, progress: Progress, span: tuple[float, float] = (0, 1)) -> Bottoms:
    """One run of the worked case per β, to a little after the bottom is expected."""
    tokens, found = worked.circle_tokens(n), []
    c = concentration_rates(worked.CIRCLE).approach
    # the longest of the runs, so that all share the times
    ts = np.linspace(0, np.log(np.max(betas)) / (2 * c) + 5, 101)
    for k, beta in enumerate(betas):
        progress(span[0] + (span[1] - span[0]) * k / len(betas), f"β = {beta:.3g}")
        found.append(worked.bottom(ts, worked.limit_curve(worked.CIRCLE, float(beta), tokens, ts)))
    times, least = np.array(found).T
    return Bottoms(betas, times, least)


def exponent_checks(found: Bottoms) -> list[Check]:
    """Exponents against the mechanism, and against the theorem's envelope."""
    rates = concentration_rates(worked.CIRCLE)
    return [
        near("exponent of least W2 in β", found.exponent.power, -rates.rate / (2 * rates.approach),
             f"{MECHANISM}: −r/(2c)", absolute=0.05),
        near("slope of its time t* in log β", -found.slope.rate, 1 / (2 * rates.approach),
             f"{MECHANISM}: 1/(2c)", relative=0.1),
    ]  # fmt: skip


def run(quick: bool, progress: Progress) -> Result:
    """The recipe."""
    betas = np.logspace(2, 4, 9) if quick else np.logspace(1.5, 5, 15)
    found = bottoms(betas, 800 if quick else 2400, progress)
    below = at_most("exponent in β of least W2 over √(log(β+1)/β)", found.over_envelope.power, 0.0,
                    f"{worked.PAPER}: least W2 at t ~ log β, Laplace gap √(log(β+1)/β)")  # fmt: skip
    rows = [{"beta": b, "least W2": w, "at t": t, "sqrt(log(beta+1)/beta)": float(laplace_envelope(b))}
            for b, w, t in zip(found.betas, found.least, found.times, strict=True)]  # fmt: skip
    data = xr.Dataset({"least": ("beta", found.least), "when": ("beta", found.times)}, {"beta": found.betas})
    return Result([*exponent_checks(found), below], rows, data, figure(found))


RECIPE = Recipe(
    "scaling", "least W2 to Π♯ρ0 over t, and its time t*, against β: exponents beside the theorem's", run
)


@matplotlib.rc_context(figures.STYLE)
def figure(found: Bottoms) -> Figure:
    """Least distance and its time against β."""
    drawing = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = drawing.subplots(1, 2)
    draw_least(left, found)
    draw_times(right, found)
    return drawing


def _interval(low: float, high: float) -> str:
    return f"[{low:.3f}, {high:.3f}]"


def draw_least(ax: Axes, found: Bottoms) -> None:
    """Least W2 with its power law and the theorem's envelope."""
    fit = found.exponent
    ax.loglog(found.betas, found.least, "o", color=figures.PALETTE[0], label="measured")
    text = f"fit: β^{fit.power:.3f}, 95% {_interval(*fit.power_interval)}"
    ax.loglog(found.betas, fit.predict(found.betas), color=figures.PALETTE[0], linewidth=1, label=text)
    envelope = laplace_envelope(found.betas)
    ax.loglog(found.betas, envelope, color="0", linestyle=(0, (3, 2)), linewidth=1.2,
              label="√(log(β+1)/β), theorem's order")  # fmt: skip
    ax.set(xlabel="β", ylabel="least W2 to Π♯ρ0")
    ax.legend(loc="lower left", fontsize=9)


def draw_times(ax: Axes, found: Bottoms) -> None:
    """t* with its slope and the predicted one."""
    fit = found.slope
    slope = 1 / (2 * concentration_rates(worked.CIRCLE).approach)
    low, high = (-fit.interval[1], -fit.interval[0])
    logs = np.log(found.betas)
    ax.semilogx(found.betas, found.times, "o", color=figures.PALETTE[1], label="measured")
    line = np.log(fit.predict(logs))
    text = f"fit: {-fit.rate:.3f} log β + const, 95% {_interval(low, high)}"
    ax.semilogx(found.betas, line, color=figures.PALETTE[1], linewidth=1, label=text)
    ax.semilogx(found.betas, np.mean(found.times) + slope * (logs - logs.mean()), color="0",
                linestyle=(0, (3, 2)), linewidth=1.2, label=f"slope {slope:g}, predicted")  # fmt: skip
    ax.set(xlabel="β", ylabel="time t* of the least W2")
    ax.legend(loc="upper left", fontsize=9)
