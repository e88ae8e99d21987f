"""The staircase: the energy of a softmax run over exponentially long times climbs in steps, one per merger.

Random tokens on the circle gather in a few clusters by t ≈ 10. Clusters at an angle θ pull at each other with
e^{−β(1−cosθ)}: they wait for times up to e^{2β}, with E ≈ (e^β/2β)Σw_k² for their masses w_k, meet fast, and
the energy rises a step. Between two mergers K clusters are K weighted tokens, whose equation is solved
here by SciPy to predict the next merger.
"""

from typing import NamedTuple

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import integrate

import tokenfield as tkf
from tokenfield.measure.merge_tree import MergeTree, track
from tokenfield.papers.clustering import shared
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, Row, at_least, near

METASTABLE = "E ≈ (e^β/2β)Σw² of the clusters' masses (theory §3.1)"
REDUCED = "clusters as weighted tokens, their equation (theory §1) by SciPy"
#: Clusters are tokens linked at this angle; within a run those closer than the other are one.
LINK, MERGE = 0.05, 1e-4
#: Saved times per decade, and how long a plateau is at least, as a ratio of times.
PER_DECADE, LONG = 12, 4.0


class Climb(NamedTuple):
    """A run to the last merger: β, the run, log(E/E_max) over time, and the tree of its clusters."""

    beta: float
    run: tkf.Trajectory
    log_share: np.ndarray
    tree: MergeTree


class Plateau(NamedTuple):
    """Snapshots first … last during which the clusters stay the same, their masses and first angles."""

    first: int
    last: int
    masses: np.ndarray
    angles: np.ndarray


def climb(beta: float, n: int, key: int = 0) -> Climb:
    """Softmax on the circle from n random tokens until long after clusters at any angle must have met.

    Args:
        beta: inverse temperature.
        n: tokens.
        key: seed of the tokens.
    """
    last = 30 * np.exp(2 * beta)
    ts = tkf.log_times(0.1, last, int(PER_DECADE * np.log10(last / 0.1)))
    run = tkf.simulate(
        shared.softmax(beta),
        tkf.initial.uniform(n, 2, key),
        ts,
        tkf.Adaptive(rtol=1e-8, atol=1e-10),
        "direct",
        measure={"log_energy": lambda tokens: tkf.log_energy(tokens, beta)},
        merge_angle=MERGE,
    )
    share = np.asarray(run.measured["log_energy"]) - (beta - np.log(2 * beta))
    return Climb(beta, run, share, track(run, LINK))


def plateaus(found: Climb) -> list[Plateau]:
    """The long stays between two mergers of clusters further apart than the bandwidth β^{−1/2}.

    Closer ones have not formed yet; and the last cluster is no stay.
    """
    ts, counts = found.tree.ts, found.tree.counts
    cuts = np.flatnonzero(np.any(found.tree.nodes[1:] != found.tree.nodes[:-1], axis=1)) + 1
    result = []
    for first, stop in zip(np.append(0, cuts), np.append(cuts, len(ts)), strict=True):
        last = stop - 1
        if counts[first] > 1 and first > 0 and stop < len(ts) and ts[last] >= LONG * ts[first]:
            here = tkf.clusters(found.run.tokens(int(first)), LINK).centres
            theta = shared.angles(np.asarray(here.x))
            if _least_gap(np.sort(theta)) < found.beta**-0.5:
                continue
            result.append(Plateau(int(first), int(last), np.asarray(here.weights), theta))
    return result


def _least_gap(theta: np.ndarray) -> float:
    """Between neighbours of sorted angles around the circle."""
    return float(np.min(np.append(np.diff(theta), theta[0] + 2 * np.pi - theta[-1])))


def next_merger(theta: np.ndarray, masses: np.ndarray, beta: float, last: float) -> float:
    """Time in which two of some weighted softmax tokens come within `LINK`.

    Args:
        theta: angles, (k,).
        masses: of the clusters, (k,).
        beta: inverse temperature.
        last: time after which nothing is waited for: the result is infinite then.
    """
    theta, order = np.sort(theta), np.argsort(theta)
    w = masses[order]

    def slope(_: float, a: np.ndarray) -> np.ndarray:
        s = a[None] - a[:, None]
        pull = w * np.exp(beta * (np.cos(s) - 1))
        return np.sum(pull * np.sin(s), axis=1) / np.sum(pull, axis=1)

    def gap(_: float, a: np.ndarray) -> float:
        return _least_gap(a) - LINK

    gap.terminal = True  # pyright: ignore[reportFunctionMemberAccess] (SciPy's way)
    solved = integrate.solve_ivp(slope, (0, last), theta, "LSODA", events=gap, rtol=1e-10, atol=1e-12)
    return float(solved.t_events[0][0]) if len(solved.t_events[0]) else np.inf


def run(quick: bool, progress: Progress) -> Result:
    """The recipe."""
    betas = (9.0,) if quick else (4.0, 9.0)
    found = []
    for k, beta in enumerate(betas):
        progress(k / len(betas), f"β = {beta:g}")
        found.append(climb(beta, 200))
    variables = {}
    for k, each in enumerate(found):
        variables |= {
            f"time_{k}": (f"time_{k}", each.tree.ts),
            f"log_share_of_energy_{k}": (f"time_{k}", each.log_share),
            f"clusters_{k}": (f"time_{k}", each.tree.counts),
            f"angles_{k}": ((f"time_{k}", "token"), shared.angles(np.asarray(each.run.x))),
        }
    data = xr.Dataset(variables, attrs={f"beta_{k}": each.beta for k, each in enumerate(found)})
    checked = [check for each in found for check in checks(each)]
    return Result(checked, [row for each in found for row in _rows(each)], data, figure(found))


RECIPE = Recipe(
    "staircase", "the energy of metastable coarsening, merger by merger, over times like e^(2β)", run
)


def checks(found: Climb) -> list[Check]:
    """The energy never falls; the height of every long step, and when it ends; one cluster in the end."""
    label, ts = f"β = {found.beta:g}", found.tree.ts
    result = [
        at_least(
            f"least change of log E between saved times, {label}",
            float(np.min(np.diff(found.log_share))),
            -1e-9,
            f"{shared.PAPER}: E grows (theory §3.1); rounding and merging allowed",
        ),
        near(
            f"clusters in the end, {label}", int(found.tree.counts[-1]), 1, f"{shared.PAPER}: no other maxima"
        ),
        near(
            f"log E/E_max in the end, {label}", float(found.log_share[-1]), 0.0, "theory §3.1", absolute=1e-9
        ),
    ]
    for step in plateaus(found):
        count = len(step.masses)
        middle = (step.first + step.last) // 2
        waited = next_merger(step.angles, step.masses, found.beta, 10 * ts[-1])
        result += [
            near(
                f"E/E_max with {count} clusters, {label}",
                float(np.exp(found.log_share[middle])),
                float(np.sum(step.masses**2)),
                METASTABLE,
                relative=0.02,
            ),
            near(
                f"log10 of the end of {count} clusters, {label}",
                float(np.log10(ts[step.last] * ts[step.last + 1]) / 2),
                float(np.log10(ts[step.first] + waited)),
                REDUCED,
                absolute=1 / PER_DECADE,
            ),
        ]
    return result


def _rows(found: Climb) -> list[Row]:
    return [
        {
            "beta": found.beta,
            "after": merge.after,
            "by": merge.time,
            "parts": len(merge.parts),
            "mass": float(found.tree.weights[merge.into]),
            "clusters left": int(found.tree.counts[np.searchsorted(found.tree.ts, merge.time)]),
        }
        for merge in found.tree.merges
    ]


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(found: list[Climb]) -> Figure:
    """Above the energy with the predicted steps, below the angles of the tokens, both over log time."""
    count = len(found)
    drawing = Figure(figsize=(max(7.6, 4.6 * count), 6.8), layout="constrained")
    grid = drawing.subplots(2, count, sharex="col", squeeze=False, height_ratios=(1, 1.1))
    for (upper, lower), each in zip(grid.T, found, strict=True):
        _draw_energy(upper, each)
        _draw_paths(lower, each)
    grid[0, 0].set_ylabel("E / E_max")
    grid[1, 0].set_ylabel("angle of the tokens")
    grid[0, 0].legend(loc="upper left", frameon=True, framealpha=1.0, edgecolor="none")
    return drawing


def _draw_energy(ax: Axes, each: Climb) -> None:
    ts = each.tree.ts[1:]
    ax.semilogx(ts, np.exp(each.log_share[1:]), color=tkf.figures.PALETTE[0], label="energy")
    for k, step in enumerate(plateaus(each)):
        level = float(np.sum(step.masses**2))
        ax.plot(
            each.tree.ts[[step.first, step.last]],
            [level, level],
            color="0.1",
            linestyle=(0, (3, 2)),
            linewidth=1.3,
            label="Σw² of the clusters" if k == 0 else None,
        )
    for merge in each.tree.merges:
        if merge.time > 3:
            ax.axvline(np.sqrt(merge.after * merge.time), color="0.85", linewidth=0.9, zorder=0)
    ax.set(ylim=(0, 1.05), title=f"β = {each.beta:g}, n = {each.run.x.shape[1]}")


def _draw_paths(ax: Axes, each: Climb) -> None:
    ts, theta = each.tree.ts[1:], shared.angles(np.asarray(each.run.x)[1:])
    # a path that crosses from π to −π is cut there
    jump = np.abs(np.diff(theta, axis=0, prepend=theta[:1])) > np.pi
    ax.semilogx(ts, np.where(jump, np.nan, theta), color=tkf.figures.PALETTE[0], linewidth=0.6, alpha=0.5)
    for step in plateaus(each):
        middle = np.sqrt(each.tree.ts[step.first] * each.tree.ts[step.last])
        now = tkf.clusters(each.run.tokens((step.first + step.last) // 2), LINK).centres
        for place, mass in zip(shared.angles(np.asarray(now.x)), np.asarray(now.weights), strict=True):
            ax.annotate(f"{mass:.2f}", (middle, place), ha="center", va="bottom", fontsize=9, color="0.2")
    ax.set(ylim=(-np.pi, np.pi), xlabel="t")
    ax.set_yticks([-np.pi, 0, np.pi], ["−π", "0", "π"])
