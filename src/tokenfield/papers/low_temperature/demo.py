"""The headline: `concentration`, `scaling` and `terminal` on the circle, in about a minute."""

import tempfile
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

import tokenfield as tkf
from tokenfield.papers.low_temperature import concentration, scaling, terminal, worked
from tokenfield.papers.recipe import Check, Progress, swept

TITLE = f"worked case of {worked.PAPER} on the circle: V = diag(1, ½), B = diag(½, 2)"
#: Nine temperatures carry the exponents; those shown are among them.
BETAS = (10.0, *np.logspace(2, 4, 9).tolist())
SHOWN = (10.0, 100.0, 1000.0, 10000.0, np.inf)
ENDS = (10.0, 100.0, 1000.0)


def demo(progress: Progress, n: int = 800) -> tuple[list[Check], Figure]:
    """Measured against predicted, and the figure."""
    tokens = worked.circle_tokens(n)
    grid = worked.limit_grid(worked.CIRCLE, BETAS, tokens, np.linspace(0, 24, 97))
    cases = [terminal.TerminalCase(f"β = {beta:g}", (0.5, 2), (1, 0.5), beta, n, 50) for beta in ENDS]
    declared = {"circle": grid, "to the end": terminal.grid(cases)}
    with tempfile.TemporaryDirectory() as place:
        done = swept(declared, Path(place), 0, lambda done, what: progress(0.9 * done, what))
    data, ended = done["circle"], terminal.ended(cases, done["to the end"])
    found = concentration.curves(worked.CIRCLE, tokens, data)
    bottoms = scaling.bottoms(worked.CIRCLE, data.isel(beta=slice(1, None)))
    checks = concentration.sharp_checks(concentration.CASES[:2], progress, (0.94, 1))
    checks += [concentration.cold_rate(found), *scaling.exponent_checks(bottoms)]
    checks += [terminal.checks(each)[0] for each in ended]
    checks += terminal.checks(ended[-1])[1:]
    return checks, figure(found, bottoms, ended[-1])


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(found: concentration.Curves, bottoms: scaling.Bottoms, ended: terminal.Ended) -> Figure:
    """The tokens in each phase above; W2 over time; least W2 and its time against β below.

    Args:
        found: W2 over time, by β.
        bottoms: least W2 and its time, by β.
        ended: the run whose tokens are drawn.
    """
    drawing = Figure(figsize=(10, 9.6), layout="constrained")
    above, middle, below = drawing.subfigures(3, 1, squeeze=False, height_ratios=(1, 1.5, 1.25))[:, 0]
    side = (np.asarray(ended.run.x[0, :, 1]) > 0).astype(int)
    shown = [("start", 0.0)] + [(phase.name, (phase.start + phase.stop) / 2) for phase in ended.phases.found]
    for ax, (name, t) in zip(np.atleast_1d(above.subplots(1, len(shown))), shown, strict=True):
        k = int(np.argmin(np.abs(ended.phases.ts - t)))
        title = f"{name}, t = {ended.phases.ts[k]:.3g}"
        tkf.figures.snapshot(ended.run.tokens(k), ax=ax, colour=side, title=title)
        ax.title.set_fontsize(11)
    above.supxlabel(f"tokens at {ended.case.name}; {worked.KEY}", fontsize=10)
    rows = [found.betas.index(beta) for beta in SHOWN]
    part = concentration.Curves(2, found.weights, found.ts, SHOWN, found.W[rows])
    ax = middle.subplots()
    concentration.draw_curves(ax, part)
    ax.set_title("", loc="left")
    left, right = below.subplots(1, 2)
    scaling.draw_least(left, bottoms)
    scaling.draw_times(right, bottoms)
    return drawing
