"""How close the tokens come to Π♯ρ0, and when, as the temperature falls.

Clusters shrink like e^{−ct} until, at t1 = log β/(2c), they are as narrow as β^{−1/2}; from then on a token
sees only its own cluster, and clusters leave E like e^{vt} (theory §2.6). W itself falls like e^{−rt}, r ≤ c.
It is least where both meet, e^{−c t1 + v(t* − t1)} = e^{−r t*}:

    t* = s·log β + const,   W(t*) = const·β^{−rs},   s = (c + v)/((r + v)·2c).

On the circle of the worked case r = c = ¼: t* ~ 2 log β and W ~ β^{−1/2}. The second weights were chosen,
and the prediction for them written down, before they were run. So was a third case, with r < c, which is not
here: with V = diag(1, .8), B = diag(1, 1.5) terms in e^{−(c−r)t} die slowly. From half decade to half decade
of β, 10² to 10^4.5, the slope of t* is 4.59, 4.39, 4.30, 4.25, 4.23 (predicted 4.17) and the exponent −.20,
−.31, −.36, −.38, −.40 (−.42): it converges to what was predicted. The mass near ±e1 decides there; the last
step needs more than 2,400 tokens (6,000 were used).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import tokenfield as tkf
from tokenfield.measure.rates import Fit
from tokenfield.papers.low_temperature import worked
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, at_most, near

MECHANISM = "theory §2.6: clusters of width e^(−ct) meet β^(−1/2), and leave"
CASES = {
    "V = diag(1, .5), B = diag(.5, 2)": worked.CIRCLE,
    "V = diag(1, .4), B = diag(.4, 2)": tkf.AttentionWeights(np.diag([0.4, 2.0]), np.diag([1.0, 0.4])),
}


def predicted(weights: tkf.AttentionWeights) -> tuple[float, float]:
    """Exponent of the least W2 in β, and slope of its time in log β."""
    rates, leaving = tkf.theory.concentration_rates(weights, 2), worked.leaving_rate(weights)
    slope = (rates.approach + leaving) / ((rates.rate + leaving) * 2 * rates.approach)
    return -rates.rate * slope, slope


@dataclass(frozen=True, eq=False)
class Bottoms:
    """Least W2 to Π♯ρ0 and its time, by β; the laws fitted to them."""

    weights: tkf.AttentionWeights
    betas: np.ndarray
    times: np.ndarray
    least: np.ndarray

    @property
    def exponent(self) -> Fit:
        """W(t*) = A β^power."""
        return tkf.fit_rate(self.betas, self.least, model="power")

    @property
    def over_envelope(self) -> Fit:
        """The same of W(t*)/√(log(β+1)/β)."""
        return tkf.fit_rate(self.betas, self.least / tkf.theory.laplace_envelope(self.betas), model="power")

    @property
    def slope(self) -> Fit:
        """t* = −rate·log β + const, as the law e^{t*} = A e^{−rate·log β}."""
        return tkf.fit_rate(np.log(self.betas), np.exp(self.times), model="exponential")


def bottoms(weights: tkf.AttentionWeights, found: xr.Dataset) -> Bottoms:
    """Those of the curves of a sweep over β (`worked.limit_grid`)."""
    W = found.limit_distance.transpose("beta", "time").values
    times, least = np.array([worked.bottom(found.time.values, row) for row in W]).T
    return Bottoms(weights, found.beta.values, times, least)


def exponent_checks(found: Bottoms, name: str = "") -> list[Check]:
    """Exponents against the mechanism; `name` of the weights, where there are several."""
    exponent, slope = predicted(found.weights)
    return [
        near(
            f"exponent of least W2 in β{name}",
            found.exponent.power,
            exponent,
            f"{MECHANISM}: −rs",
            absolute=0.05,
        ),
        near(
            f"slope of its time t* in log β{name}",
            -found.slope.rate,
            slope,
            f"{MECHANISM}: s = (c + v)/((r + v)·2c)",
            relative=0.1,
        ),
    ]


def grids(quick: bool) -> dict[str, dict[str, Any]]:
    """A sweep over β for each of the weights, to a little after the last bottom is expected."""
    betas = np.logspace(2, 4, 9) if quick else np.logspace(1.5, 5, 15)
    tokens = worked.circle_tokens(800 if quick else 2400)
    cases = list(CASES.values())[:1] if quick else list(CASES.values())
    ends = [predicted(weights)[1] * np.log(betas[-1]) + 5 for weights in cases]
    return {
        f"case-{k}": worked.limit_grid(weights, betas, tokens, np.linspace(0, end, 101))
        for k, (weights, end) in enumerate(zip(cases, ends, strict=True))
    }


def run(quick: bool, progress: Progress, swept: Mapping[str, xr.Dataset]) -> Result:
    """Run the recipe and judge what it finds.

    Args:
        quick: whether the smaller size is wanted.
        progress: called with the share done and what is being done.
        swept: datasets of the declared sweeps, by name.
    """
    found, checks, rows = {}, [], []
    for (name, weights), data in zip(CASES.items(), swept.values(), strict=False):
        each = found[name] = bottoms(weights, data)
        checks += exponent_checks(each, f"; {name}")
        rows += [
            {
                "weights": name,
                "beta": b,
                "least W2": w,
                "at t": t,
                "sqrt(log(beta+1)/beta)": float(tkf.theory.laplace_envelope(b)),
            }
            for b, w, t in zip(each.betas, each.least, each.times, strict=True)
        ]
    first = next(iter(found.values()))
    checks.append(
        at_most(
            "exponent in β of least W2 over √(log(β+1)/β)",
            first.over_envelope.power,
            0.0,
            f"{worked.PAPER}: least W2 at t ~ log β, Laplace gap √(log(β+1)/β)",
        )
    )
    data = xr.Dataset(
        {
            "least": (("weights", "beta"), np.array([each.least for each in found.values()])),
            "when": (("weights", "beta"), np.array([each.times for each in found.values()])),
        },
        {"beta": first.betas},
    )
    return Result(checks, rows, data, figure(found))


RECIPE = Recipe(
    "scaling",
    "least W2 to Π♯ρ0 over t, and its time t*, against β: exponents beside the theorem's",
    run,
    grids,
)


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(found: dict[str, Bottoms]) -> Figure:
    """Least distance and its time against β, a row for each of the weights."""
    drawing = Figure(figsize=(10, 4.2 * len(found)), layout="constrained")
    for (left, right), (name, each) in zip(
        drawing.subplots(len(found), 2, squeeze=False), found.items(), strict=True
    ):
        draw_least(left, each)
        draw_times(right, each)
        left.set_title(name, loc="left")
    return drawing


def _interval(low: float, high: float) -> str:
    return f"[{low:.3f}, {high:.3f}]"


def draw_least(ax: Axes, found: Bottoms) -> None:
    """Least W2 with its power law and the theorem's envelope."""
    fit = found.exponent
    ax.loglog(found.betas, found.least, "o", color=tkf.figures.PALETTE[0], label="measured")
    text = f"fit: β^{fit.power:.3f}, 95% {_interval(*fit.power_interval)}"
    ax.loglog(found.betas, fit.predict(found.betas), color=tkf.figures.PALETTE[0], linewidth=1, label=text)
    envelope = tkf.theory.laplace_envelope(found.betas)
    ax.loglog(
        found.betas,
        envelope,
        color="0",
        linestyle=(0, (3, 2)),
        linewidth=1.2,
        label="√(log(β+1)/β), theorem's order",
    )
    ax.set(xlabel="β", ylabel="least W2 to Π♯ρ0")
    ax.legend(loc="lower left", fontsize=9)


def draw_times(ax: Axes, found: Bottoms) -> None:
    """t* with its slope and the predicted one."""
    fit = found.slope
    slope = predicted(found.weights)[1]
    low, high = (-fit.interval[1], -fit.interval[0])
    logs = np.log(found.betas)
    ax.semilogx(found.betas, found.times, "o", color=tkf.figures.PALETTE[1], label="measured")
    line = np.log(fit.predict(logs))
    text = f"fit: {-fit.rate:.3f} log β + const, 95% {_interval(low, high)}"
    ax.semilogx(found.betas, line, color=tkf.figures.PALETTE[1], linewidth=1, label=text)
    ax.semilogx(
        found.betas,
        np.mean(found.times) + slope * (logs - logs.mean()),
        color="0",
        linestyle=(0, (3, 2)),
        linewidth=1.2,
        label=f"slope {slope:g}, predicted",
    )
    ax.set(xlabel="β", ylabel="time t* of the least W2")
    ax.legend(loc="upper left", fontsize=9)
