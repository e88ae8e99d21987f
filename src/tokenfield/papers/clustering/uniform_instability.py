"""The uniform law is unstable: harmonics of every degree grow on it, each at its own rate (theory §3.4).

Quadrature tokens of the uniform law with weights 1 + small harmonics of all degrees at once; as long as these
are small, each grows by itself. Rates are l(l+d−2)λ_l/β for the unnormalised flow and this over λ_0 for
softmax. The fastest degree, about √β, says how many clusters form first.
"""

from collections.abc import Mapping
from typing import NamedTuple

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy import special

import tokenfield as tkf
from tokenfield.laws.tokens import Tokens
from tokenfield.models.base import Model
from tokenfield.papers import declared
from tokenfield.papers.clustering import shared
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, Row, near
from tokenfield.sweeps.grid import Grid
from tokenfield.sweeps.objects import declare_runs
from tokenfield.theory.growth import growth_rate
from tokenfield.theory.inputs import Flow

RATES = "theory §3.4: l(l+d−2)λ_l/β, over λ_0 for softmax"
#: Size of the harmonics at the start.
SMALL = 1e-6


class Growth(NamedTuple):
    """Measured rates of the degrees 1, 2, … in R^d at β, for one flow."""

    d: int
    beta: float
    flow: Flow
    rates: np.ndarray

    @property
    def degrees(self) -> np.ndarray:
        """1, 2, …"""
        return np.arange(1, len(self.rates) + 1)

    @property
    def predicted(self) -> np.ndarray:
        """The rates of theory §3.4."""
        return tkf.theory.growth_rate(self.d, self.beta, self.degrees, self.flow)


def harmonics(x: np.ndarray, top: int) -> np.ndarray:
    """Zonal harmonics of degree 1 … top at the points x, about e1, (top, n)."""
    height, lam = np.clip(x[:, 0], -1, 1), (x.shape[1] - 2) / 2
    if lam == 0:
        return np.stack([np.cos(degree * np.arccos(height)) for degree in range(1, top + 1)])
    return np.stack(
        [
            special.eval_gegenbauer(degree, lam, height) / special.eval_gegenbauer(degree, lam, 1.0)
            for degree in range(1, top + 1)
        ]
    )


def _top(d: int, beta: float) -> int:
    """The highest degree that is measured."""
    return 2 * tkf.theory.fastest_degree(d, beta) + 2


def case(d: int, beta: float, flow: Flow, n: int) -> tuple[Model, Tokens, np.ndarray]:
    """Harmonics on the uniform law, and a third of the fastest e-folding time.

    Args:
        d: dimension.
        beta: inverse temperature.
        flow: which of the two flows.
        n: about how many tokens.

    Returns:
        The model, the tokens (n, d), and the two times.
    """
    top = _top(d, beta)
    flat = (
        tkf.initial.circle_density(np.ones_like, n)
        if d == 2
        else tkf.initial.sphere_density(lambda x: np.ones(len(x)), n, d)
    )
    shapes = harmonics(np.asarray(flat.x), top)
    weights = np.asarray(flat.weights) * (1 + SMALL * shapes.sum(axis=0))
    last = 0.3 / float(np.max(growth_rate(d, beta, np.arange(1, top + 1), flow)))
    model = shared.softmax(beta, d) if flow == "softmax" else shared.usa(beta, d)
    return model, Tokens(flat.x, weights / weights.sum()), np.array([0.0, last])
    last = 0.3 / float(np.max(tkf.theory.growth_rate(d, beta, np.arange(1, top + 1), flow)))
    return {
        "weights": {"identity": d},
        "model": {"kind": flow, "beta": beta},
        "initial": declared.atoms(tkf.Tokens(flat.x, weights / weights.sum())),
        "times.at": [0.0, last],
    }


def measured(d: int, beta: float, flow: Flow, run: tkf.Trajectory) -> Growth:
    """How fast the harmonics grew.

    Args:
        d: dimension of the surrounding space.
        beta: inverse temperature.
        flow: "softmax" or "unnormalised".
        run: from the perturbed uniform law, at two times.
    """
    top = _top(d, beta)
    size = [harmonics(np.asarray(run.tokens(k).x), top) @ np.asarray(run.weights) for k in (0, 1)]
    return Growth(d, beta, flow, np.log(size[1] / size[0]) / float(run.snapshot_ts[-1]))


def _cases(quick: bool) -> list[tuple[int, float, Flow]]:
    flows: tuple[Flow, ...] = ("softmax", "unnormalised")
    betas = {2: (1.0, 5.0, 20.0, 50.0, 100.0), 3: (5.0,) if quick else (1.0, 5.0, 12.0)}
    return [(d, beta, flow) for d in betas for beta in betas[d] for flow in flows]


def grids(quick: bool) -> dict[str, Grid]:
    """A run for every dimension, β and flow."""
    cases = [case(*each, 256 if each[0] == 2 else (800 if quick else 1800)) for each in _cases(quick)]
    models, tokens, ts = (list(each) for each in zip(*cases, strict=True))
    solver = shared.solver_of(1e-12)
    return {
        "growth": declare_runs(
            models, tokens, ts, solver, (), snapshots=[0, -1], summation="direct", together=True
        )
    }


def run(quick: bool, progress: Progress, swept: Mapping[str, xr.Dataset]) -> Result:
    """Run the recipe and judge what it finds.

    Args:
        quick: whether the smaller size is wanted.
        progress: called with the share done and what is being done.
        swept: datasets of the declared sweeps, by name.
    """
    progress(0.0, "harmonics")
    runs = declared.runs(swept["growth"])
    found = [measured(*each, run) for each, run in zip(_cases(quick), runs, strict=True)]
    variables = {f"rate_{k}": (f"degree_{k}", each.rates) for k, each in enumerate(found)}
    notes = {f"case_{k}": f"d = {g.d}, beta = {g.beta:g}, {g.flow}" for k, g in enumerate(found)}
    return Result(checks(found), _rows(found), xr.Dataset(variables, attrs=notes), figure(found))


RECIPE = Recipe(
    "uniform-instability",
    "growth of harmonics of every degree on the uniform law, and the fastest one",
    run,
    grids,
)


def checks(found: list[Growth]) -> list[Check]:
    """All degrees of every case, and which is the fastest."""
    result = []
    for each in found:
        label = f"d = {each.d}, β = {each.beta:g}, {each.flow}"
        # degrees that grow a thousand times slower than the fastest drown in its square
        gap = np.abs(each.rates - each.predicted) / each.predicted.max()
        result.append(
            near(
                f"rates of degrees 1 to {len(each.rates)}, greatest error / fastest, {label}",
                float(gap.max()),
                0.0,
                RATES,
                absolute=1e-4,
            )
        )
        if each.flow == "softmax":
            result.append(
                near(
                    f"fastest degree, d = {each.d}, β = {each.beta:g}",
                    int(np.argmax(each.rates)) + 1,
                    tkf.theory.fastest_degree(each.d, each.beta),
                    RATES,
                )
            )
    return result


def _rows(found: list[Growth]) -> list[Row]:
    return [
        {
            "d": g.d,
            "beta": g.beta,
            "flow": g.flow,
            "degree": int(degree),
            "measured": rate,
            "predicted": expected,
        }
        for g in found
        for degree, rate, expected in zip(g.degrees, g.rates, g.predicted, strict=True)
    ]


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(found: list[Growth]) -> Figure:
    """Rates over degree for the circle and the sphere, and the fastest degree over β."""
    drawing = Figure(figsize=(11.0, 4.3), layout="constrained")
    panels = drawing.subplots(1, 3)
    for ax, d in zip(panels, (2, 3), strict=False):
        chosen = [g for g in found if g.d == d and g.flow == "softmax"]
        for g, colour, dash in zip(chosen, tkf.figures.PALETTE, tkf.figures.DASHES, strict=False):
            fine = np.arange(1, len(g.rates) + 1)
            ax.plot(fine, g.predicted, color=colour, linestyle=dash, linewidth=1.3)
            ax.plot(g.degrees, g.rates, "o", color=colour, markersize=4.5, label=f"β = {g.beta:g}")
        ax.set(xlabel="degree", xlim=(0, None), ylim=(0, 1.05))
        ax.set_title(f"d = {d}, softmax: tokens (dots), theory (lines)", loc="left", fontsize=10.5)
        ax.legend(loc="upper center", ncols=3, handlelength=1.0, columnspacing=1.2)
    panels[0].set_ylabel("rate of growth")
    betas = np.logspace(-0.5, 2.3, 300)
    right = panels[2]
    for d, colour in ((2, tkf.figures.PALETTE[0]), (3, tkf.figures.PALETTE[1])):
        right.step(
            betas,
            [tkf.theory.fastest_degree(d, float(b)) for b in betas],
            color=colour,
            linewidth=1.3,
            label=f"theory, d = {d}",
        )
        seen = [g for g in found if g.d == d and g.flow == "softmax"]
        right.plot(
            [g.beta for g in seen],
            [int(np.argmax(g.rates)) + 1 for g in seen],
            "o",
            color=colour,
            markersize=6,
        )
    right.set(xscale="log", xlabel="β", ylim=(0, None))
    right.yaxis.set_major_locator(MaxNLocator(integer=True))
    right.set_title("fastest degree", loc="left", fontsize=10.5)
    right.legend(loc="upper left")
    return drawing
