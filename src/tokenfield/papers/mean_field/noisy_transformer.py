"""Noise against attention: the bifurcation diagram of stationary laws (arXiv 2604.16288, 2606.05140).

Unnormalised attention (B = V = I) with noise of strength 1/κ. The uniform law is stable for κ < κ_1 = β/λ_1;
there a branch of clustered laws leaves it, forwards for β < β_* (the order parameter grows from 0) and
backwards for β > β_* (it jumps: between the fold and κ_1 both laws are stable).
"""

from typing import NamedTuple

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import tokenfield as tkf
from tokenfield.density.stationary import Branch, Interaction
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, at_least, at_most, near

CLOSED = "theory §4: κ_l = β/λ_l"
TRANSITION = "2606.05140, theory §4: I_{d/2+1}/I_{d/2}(β_*) = 1/d"
DIMENSIONS = (2, 3, 8)
#: Inverse temperatures of the branches, in units of β_*.
SHARES = (0.0, 0.5, 1.0, 1.25, 1.5)


class BifurcationDiagram(NamedTuple):
    """What was found in one dimension: β_*, branches by β, and folds over the grid `betas`."""

    beta: float
    branches: dict[float, Branch]
    betas: np.ndarray
    folds: np.ndarray


def diagram(d: int, quick: bool) -> BifurcationDiagram:
    """Branches at a few β, and the fold over a grid of β > β_*."""
    interaction = Interaction(d, 48 if quick else 80)
    found = tkf.density.stationary.transition_beta(interaction)
    step = 0.15 if quick else 0.03
    branches = {}
    for share in SHARES:
        beta = share * found
        critical = float(tkf.theory.critical_kappa(d, beta))
        branches[beta] = tkf.density.stationary.branch(
            interaction, beta, to=1.6 * critical, step=step, most=600
        )
    betas = np.linspace(found, 1.7 * found, 5 if quick else 15)[1:]
    folds = np.array([_fold(interaction, beta, step) for beta in betas])
    return BifurcationDiagram(found, branches, betas, folds)


def _fold(interaction: Interaction, beta: float, step: float) -> float:
    to = 0.999 * float(tkf.theory.critical_kappa(interaction.d, beta))
    folds = tkf.density.stationary.branch(interaction, beta, to=to * 1.02, step=step, most=600).folds
    return folds[0][0] if folds else np.nan


def run(quick: bool, progress: Progress) -> Result:
    """The recipe."""
    found, checks = {}, []
    for k, d in enumerate(DIMENSIONS):
        progress(k / 4, f"branches, d = {d}")
        found[d] = diagram(d, quick)
        checks += _checks(d, found[d])
    progress(0.75, "both laws are stable, d = 3")
    checks += _bistability(3, found[3])
    rows = [
        {
            "d": d,
            "beta": beta,
            "kappa": s.kappa,
            "order": s.order,
            "free_energy": s.free_energy,
            "unstable_directions": s.unstable,
        }
        for d in DIMENSIONS
        for beta, branch in found[d].branches.items()
        for s in branch.states
    ]
    data = xr.Dataset(
        {f"fold_{d}": (f"beta_{d}", found[d].folds) for d in DIMENSIONS},
        {f"beta_{d}": found[d].betas for d in DIMENSIONS},
        {f"beta_star_{d}": found[d].beta for d in DIMENSIONS},
    )
    return Result(checks, rows, data, figure(found))


RECIPE = Recipe(
    "noisy-transformer",
    "stationary laws of attention with noise over κ: branches, folds, κ_l and β_*, in d = 2, 3, 8",
    run,
)


def _checks(d: int, found: BifurcationDiagram) -> list[Check]:
    interaction = Interaction(d, 48)
    exact = tkf.theory.transition_beta(d)
    kappas = tkf.density.stationary.critical_kappas(interaction, 1.0, 3)
    worst = np.max(np.abs(kappas / tkf.theory.critical_kappa(d, 1.0, [1, 2, 3]) - 1))
    small = tkf.density.stationary.critical_kappas(interaction, 1e-3)[0]
    zero = found.branches[0.0].states[1:]
    off = max(abs(s.order - tkf.theory.noisy_order(s.kappa, d)) for s in zero)
    below, above = found.branches[SHARES[1] * found.beta], found.branches[SHARES[4] * found.beta]
    fold = above.folds[0][0] if above.folds else np.nan
    return [
        near(f"β_* from the branch, d = {d}", found.beta, exact, TRANSITION, absolute=1e-5),
        at_most(f"relative error of κ_1, κ_2, κ_3 at β = 1, d = {d}", worst, 1e-6, CLOSED),
        near(f"κ_1 at β = 0.001, d = {d}", small, d, "theory §4: κ_1 → d as β → 0", relative=1e-6),
        at_most(
            f"error of R on the branch at β = 0, d = {d}",
            off,
            1e-9,
            "theory §4: R = I_{d/2}(κR)/I_{d/2−1}(κR)",
        ),
        at_least(
            f"least κ/κ_1 on the branch at β = β_*/2, d = {d}",
            below.kappa.min() / below.kappa[0],
            1 - 1e-9,
            "2606.05140: continuous below β_*",
        ),
        at_most(
            f"κ/κ_1 of the fold at β = 1.5β_*, d = {d}",
            fold / above.kappa[0],
            0.999,
            "2606.05140: discontinuous above β_*",
        ),
    ]


def _bistability(d: int, found: BifurcationDiagram) -> list[Check]:
    """Between the fold and κ_1 the equation itself keeps an ordered law and forgets a small one."""
    beta = SHARES[4] * found.beta
    branch = found.branches[beta]
    kappa = (branch.folds[0][0] + branch.kappa[0]) / 2
    model = tkf.UnnormalisedAttention(tkf.AttentionWeights.identity(d), beta) + tkf.Noise(kappa)
    upper = min((s for s in branch.states[1:] if s.unstable == 0), key=lambda s: abs(s.kappa - kappa))
    ordered = tkf.density.stationary.solve(
        Interaction(d, len(upper.coefficients)), kappa, beta, upper.coefficients
    )
    place = tkf.density.Zonal(np.eye(d)[0], 48, "spectral", 1e-8)
    ends = [
        float(tkf.order_parameter(tkf.density.solve(model, rho0, [0.0, 60.0], place)))
        for rho0 in (lambda t: 1 + 0.1 * t, lambda t: np.exp(8 * t))
    ]
    source = f"stationary law by Newton's method at κ = {kappa:.4g}, d = {d}"
    return [
        at_most(
            f"R at t = 60 from a nearly uniform law, κ between fold and κ_1, d = {d}",
            ends[0],
            1e-2,
            "theory §4: the uniform law is stable below κ_1",
        ),
        near(
            f"R at t = 60 from a clustered law at the same κ, d = {d}",
            ends[1],
            ordered.order,
            source,
            absolute=1e-4,
        ),
    ]


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(found: dict[int, BifurcationDiagram]) -> Figure:
    """R over κ/κ_1 for several β, and below it where laws live in the plane of β and κ."""
    drawing = Figure(figsize=(11, 7.2), layout="constrained")
    axes = drawing.subplots(2, len(found), squeeze=False)
    for column, (d, one) in enumerate(found.items()):
        _branches(axes[0, column], d, one)
        _plane(axes[1, column], d, one)
    axes[0, 0].set_ylabel("order parameter R")
    axes[1, 0].set_ylabel("κ")
    axes[0, 0].legend(loc="lower right", fontsize=8, title="— stable, ··· unstable", title_fontsize=8)
    axes[1, 0].legend(loc="upper right", fontsize=8)
    return drawing


def _branches(ax: Axes, d: int, one: BifurcationDiagram) -> None:
    for branch, share, colour in zip(one.branches.values(), SHARES, tkf.figures.PALETTE, strict=False):
        x = branch.kappa / branch.kappa[0]
        loose = ~branch.stable
        joined = loose | np.roll(loose, 1)  # up to the first stable state, so that no gap is left
        for kept, dash, label in ((branch.stable, "-", f"β = {share:g} β*"), (joined, ":", None)):
            ax.plot(
                np.where(kept, x, np.nan),
                np.where(kept, branch.order, np.nan),
                linestyle=dash,
                color=colour,
                label=label,
            )
        for turn, order in branch.folds:
            ax.plot(turn / branch.kappa[0], order, "o", color=colour, markersize=4)
    ax.axhline(0, color="black", linewidth=0.8)
    ax.axvline(1, color="#777777", linewidth=0.8, linestyle="--")
    ax.set(title=f"d = {d}, β* = {one.beta:.4f}", xlabel="κ/κ₁", xlim=(0.8, 1.6), ylim=(-0.02, 1))


def _plane(ax: Axes, d: int, one: BifurcationDiagram) -> None:
    grid = np.linspace(0.02, 1.7 * one.beta, 200)
    for degree, colour in zip((1, 2, 3), tkf.figures.PALETTE, strict=False):
        ax.plot(
            grid,
            [float(tkf.theory.critical_kappa(d, b, degree)) for b in grid],
            color=colour,
            label=f"κ_{degree}",
        )
    ax.plot(one.betas, one.folds, "o:", color="black", markersize=4, label="fold")
    ax.axvline(one.beta, color="#777777", linestyle="--", linewidth=0.8)
    top = 1.5 * float(tkf.theory.critical_kappa(d, one.beta, 3))
    ax.annotate("β*", (one.beta, top), xytext=(3, -12), textcoords="offset points", fontsize=9)
    ax.set(xlabel="β", yscale="log", ylim=(0.7 * np.nanmin(one.folds), top))
