"""Concentrate, stay, leave, end: the phases of the worked case, found automatically, and their look on S².

Clusters leave E like e^{vt} once they are narrow, and only as long as they see nothing but themselves: a
cluster that has gone φ from E looks at what lies nearer to E, at φ/4 here, and finds the tokens that arrive
late. Their mass m is tiny, but counts e^{βφ²/2} times. At β = 10⁴ both clusters stand still for some time at
φ = .05, that is with log(1/m) = 13; 2,000 tokens and 6,000 show it alike, and fewer tokens near ±e1 (a
grading of .98) hide it. The growth compared with v is therefore the greatest of the escape, not its mean.
"""

import itertools
from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import tokenfield as tkf
from tokenfield.measure.phases import Phases
from tokenfield.papers import declared
from tokenfield.papers.low_temperature import worked
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, Row, near

NAMES = ("concentration", "metastable", "escape", "terminal")
SHADES = ("#0072B2", "#E69F00", "#D55E00", "#009E73")


def grids(quick: bool) -> dict[str, dict[str, Any]]:
    """Runs over β on the circle, and one on the sphere."""
    betas = (10.0, 100.0, 1000.0) if quick else (10.0, 100.0, 1000.0, 10000.0)
    circle, sphere = (
        worked.circle_tokens(600 if quick else 2000),
        worked.sphere_tokens(1250 if quick else 10_000),
    )
    return {
        "circle": worked.run_grid(worked.CIRCLE, betas, circle, np.linspace(0, 50, 201)),
        "sphere": worked.run_grid(worked.SPHERE, [50.0 if quick else 200.0], sphere, np.linspace(0, 40, 161)),
    }


def run(quick: bool, progress: Progress, swept: Mapping[str, xr.Dataset]) -> Result:
    """Run the recipe and judge what it finds.

    Args:
        quick: whether the smaller size is wanted.
        progress: called with the share done and what is being done.
        swept: datasets of the declared sweeps, by name.
    """
    found, betas = {}, swept["circle"].beta.values.tolist()
    for k, (beta, each) in enumerate(zip(betas, declared.runs(swept["circle"]), strict=True)):
        progress(k / (len(betas) + 1), f"phases on the circle, {worked.label(beta)}")
        found[beta] = tkf.phases(each, worked.CIRCLE)
    progress(len(betas) / (len(betas) + 1), "phases on the sphere")
    warm, (sphere,) = float(swept["sphere"].beta[0]), declared.runs(swept["sphere"])
    seen = tkf.phases(sphere, worked.SPHERE)
    rows = [row for beta, each in found.items() for row in _rows(beta, 2, each)] + _rows(warm, 3, seen)
    return Result(checks(found, seen, warm), rows, _data(found, seen), figure(found, sphere, seen, warm))


RECIPE = Recipe(
    "metastability",
    "the phases of runs whose V and V Bᵀ disagree, found automatically; snapshots of each on S²",
    run,
    grids,
)


def checks(found: dict[float, Phases], seen: Phases, warm: float) -> list[Check]:
    """Four phases each; rates of the coldest; how much later the bottom comes per factor 10 in β.

    Args:
        found: β → phases on the circle.
        seen: phases on the sphere.
        warm: β of the run on the sphere.
    """
    rates, leave = tkf.theory.concentration_rates(worked.CIRCLE), worked.leaving_rate(worked.CIRCLE)
    result = [
        near(
            f"phases found, d = {d}, β = {beta:g}",
            sum(each.get(name) is not None for name in NAMES),
            4,
            "theory §2.7",
        )
        for d, beta, each in [*((2, b, e) for b, e in found.items()), (3, warm, seen)]
    ]
    betas = sorted(found)
    cold = found[betas[-1]]
    result += [
        near(
            f"rate of concentration, β = {betas[-1]:g}",
            _rate(cold.get("concentration")),
            rates.rate,
            "theory §2.3: c",
            relative=0.05,
        ),
        near(
            f"greatest growth in the escape, β = {betas[-1]:g}",
            _growth(cold),
            leave,
            "theory §2.6: top of V − ⟨p, Vp⟩",
            relative=0.1,
        ),
    ]
    for low, high in itertools.pairwise(betas):
        later = found[high].minimum_time - found[low].minimum_time
        result.append(
            near(
                f"bottom later from β = {low:g} to {high:g}",
                later,
                np.log(high / low) / (2 * rates.approach),
                "theory §2.6: clusters of width e^(−ct) meet β^(−1/2)",
                relative=0.1,
            )
        )
    return result


def _rate(phase: object) -> float:
    rate = getattr(phase, "rate", None)
    return np.nan if rate is None else float(rate)


def _growth(found: Phases) -> float:
    """Greatest slope of log W2 in the escape."""
    escape = found.get("escape")
    if escape is None:
        return np.nan
    inside = (found.ts >= escape.start) & (found.ts <= escape.stop)
    return float(np.max(np.gradient(np.log(found.distance), found.ts)[inside]))


def _rows(beta: float, d: int, found: Phases) -> list[Row]:
    return [
        {
            "d": d,
            "beta": beta,
            "phase": phase.name,
            "start": phase.start,
            "stop": phase.stop,
            "rate": phase.rate,
            "rate from": phase.interval and phase.interval[0],
            "rate to": phase.interval and phase.interval[1],
            "angle to E": phase.to_limit,
            "angle to V's": phase.to_end,
            "clusters": phase.clusters,
            "sentence": phase.sentence,
        }
        for phase in found.found
    ]


def _data(found: dict[float, Phases], seen: Phases) -> xr.Dataset:
    first = next(iter(found.values()))
    stack = {
        name: np.stack([getattr(each, name) for each in found.values()]) for name in ("distance", "to_end")
    }
    return xr.Dataset(
        {
            "W2": (("beta", "time"), stack["distance"]),
            "to_V": (("beta", "time"), stack["to_end"]),
            "W2_sphere": ("time_sphere", seen.distance),
            "to_V_sphere": ("time_sphere", seen.to_end),
        },
        {"beta": list(found), "time": first.ts, "time_sphere": seen.ts},
    )


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(found: dict[float, Phases], sphere: tkf.Trajectory, seen: Phases, warm: float) -> Figure:
    """Above the sphere in each phase; below W2 over time on the circle, the phases as coloured bands.

    Args:
        found: β → phases on the circle.
        sphere: the run on the sphere.
        seen: phases on the sphere.
        warm: β of the run on the sphere.
    """
    drawing = Figure(figsize=(10.5, 8.0), layout="constrained")
    above, below = drawing.subfigures(2, 1, squeeze=False, height_ratios=(1, 1.9))[:, 0]
    above.suptitle(f"d = 3, β = {warm:g}", x=0.02, ha="left", fontsize=12)
    side = (np.asarray(sphere.x[0, :, 1]) > 0).astype(int)
    shown = [("start", 0.0)] + [(phase.name, (phase.start + phase.stop) / 2) for phase in seen.found]
    for ax, (name, t) in zip(np.atleast_1d(above.subplots(1, len(shown))), shown, strict=True):
        k = int(np.argmin(np.abs(seen.ts - t)))
        tkf.figures.snapshot(sphere.tokens(k), ax=ax, colour=side, title=f"{name}, t = {seen.ts[k]:.3g}")
        ax.title.set_fontsize(10)
    above.supxlabel(worked.KEY, fontsize=10)
    panels = np.atleast_1d(below.subplots(len(found), 1, sharex=True, sharey=True))
    for ax, (beta, each) in zip(panels, found.items(), strict=True):
        ax.semilogy(each.ts, each.distance, color="0.1")
        for phase in each.found:
            shade = SHADES[NAMES.index(phase.name)]
            ax.axvspan(phase.start, phase.stop, color=shade, alpha=0.22, linewidth=0)
        ax.set(xlim=(each.ts[0], each.ts[-1]))
        ax.set_title(f"d = 2, β = {beta:g}", loc="left", fontsize=11)
    panels[-1].set_xlabel("t")
    below.supylabel("W2 to Π♯ρ0")
    patches = [Patch(color=shade, alpha=0.35, linewidth=0) for shade in SHADES]
    below.legend(patches, NAMES, loc="outside lower center", ncols=4)
    return drawing
