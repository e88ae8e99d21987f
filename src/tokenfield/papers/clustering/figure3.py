"""Figure 3: a run in the gnomonic chart of a hemisphere, where attention is consensus (theory §3.11).

z = x/⟨x,w0⟩ turns great circles into lines, and every token moves towards a weighted mean of the others: the
convex hull of the z's shrinks. In the end the tokens are one cluster, whose width falls at the rate e^β.
"""

from itertools import pairwise

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from scipy import integrate
from scipy.spatial import ConvexHull

import tokenfield as tkf
from tokenfield.papers.clustering import shared
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, at_most, near

CHART = f"{shared.PAPER}, Figure 3 (theory §3.11)"
BETA = 1.0
#: Centre of the hemisphere, and how far from it tokens begin.
CENTRE, ANGLE = np.array([0.0, 0.0, 1.0]), 1.1
#: Times whose hulls are drawn.
HULLS = (0.0, 0.3, 0.6, 0.9, 1.2, 1.5)
LAST = 6.0


def start(n: int) -> tkf.Tokens:
    """Tokens uniform on the cap, with unequal weights."""
    weights = np.random.default_rng(1).dirichlet(np.full(n, 2.0))
    return tkf.Tokens(tkf.initial.cap(n, CENTRE, ANGLE, key=5).x, weights)


def charted(trajectory: tkf.Trajectory) -> np.ndarray:
    """Every snapshot in the chart, (times, n, 2)."""
    return np.stack([np.asarray(tkf.theory.gnomonic(x, CENTRE)) for x in np.asarray(trajectory.x)])


def consensus_run(u0: np.ndarray, weights: np.ndarray, ts: np.ndarray) -> np.ndarray:
    """The consensus system of theory §3.11 in the chart, by SciPy: nothing of the simulator.

    Args:
        u0: places in the chart at the start, (n, 2).
        weights: of the tokens, (n,).
        ts: saved times, (times,), from 0.
    """
    n, e = u0.shape

    def slope(_: float, flat: np.ndarray) -> np.ndarray:
        u = flat.reshape(n, e)
        height = 1 / np.sqrt(1 + np.sum(u * u, axis=1))  # ⟨x,w0⟩
        g = (1 + u @ u.T) * np.outer(height, height)
        pull = np.exp(BETA * g) * (weights * height)
        return ((pull @ u - pull.sum(axis=1)[:, None] * u) / height[:, None]).ravel()

    solved = integrate.solve_ivp(slope, (0, ts[-1]), u0.ravel(), "DOP853", ts, rtol=1e-10, atol=1e-12)
    return solved.y.T.reshape(len(ts), n, e)


def worst_escape(u: np.ndarray) -> float:
    """How far any token gets outside of the hull of the snapshot before, in the chart."""
    worst = -np.inf
    for before, after in pairwise(u):
        if np.ptp(before, axis=0).max() < 1e-5:
            break  # the hull is as thin as rounding
        faces = ConvexHull(before).equations
        worst = max(worst, float(np.max(after @ faces[:, :2].T + faces[:, 2])))
    return worst


def run(quick: bool, progress: Progress) -> Result:
    """The recipe."""
    tokens = start(24 if quick else 60)
    ts = np.linspace(0, LAST, 121)
    progress(0.1, "tokens on the sphere")
    run = shared.run(shared.usa(BETA, 3), tokens, ts)
    u = charted(run)
    progress(0.7, "consensus in the chart")
    early = ts <= 2
    plane = consensus_run(u[0], np.asarray(tokens.weights), ts[early])
    diameter = np.array([np.max(np.linalg.norm(a[:, None] - a, axis=2)) for a in u])
    found = checks(ts, u, plane, diameter)
    data = xr.Dataset(
        {
            "u": (("time", "token", "plane"), u),
            "diameter": ("time", diameter),
            "weights": ("token", np.asarray(tokens.weights)),
        },
        {"time": ts},
    )
    rows = [{"t": t, "diameter in the chart": d} for t, d in zip(ts, diameter, strict=True)]
    return Result(found, rows, data, figure(run, u, diameter))


RECIPE = Recipe(
    "clustering-fig3", "a run in the gnomonic chart: attention as consensus, nested convex hulls", run
)


def checks(ts: np.ndarray, u: np.ndarray, plane: np.ndarray, diameter: np.ndarray) -> list[Check]:
    """Tokens on the sphere against consensus in the plane; nested hulls; the rate of the last contraction.

    Args:
        ts: saved times, (times,), from 0.
        u: places in the chart, (times, n, 2).
        plane: the same by the consensus system, at the first of the times.
        diameter: of the hull, (times,).
    """
    late = (diameter < 1e-3) & (diameter > 1e-7)
    rate = -np.polyfit(ts[late], np.log(diameter[late]), 1)[0]
    return [
        near(
            "sphere against the consensus system, greatest gap",
            float(np.max(np.abs(plane - u[: len(plane)]))),
            0.0,
            CHART,
            absolute=1e-7,
        ),
        at_most(
            "how far a token leaves the hull of the snapshot before",
            worst_escape(u),
            1e-9,
            f"{CHART}: not at all, but for rounding",
        ),
        at_most("growth of the diameter between snapshots", float(np.max(np.diff(diameter))), 0.0, CHART),
        near(
            "rate at which the diameter falls in the end",
            rate,
            np.exp(BETA),
            "theory §3.5 with q = 0: −e^β",
            relative=1e-3,
        ),
    ]


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(run: tkf.Trajectory, u: np.ndarray, diameter: np.ndarray) -> Figure:
    """Paths on the sphere, the same paths in the chart with the hulls, and the diameter of the hull.

    Args:
        run: tokens on the sphere.
        u: places in the chart, (times, n, 2).
        diameter: of the hull, (times,).
    """
    drawing = Figure(figsize=(11.4, 4.3), layout="constrained")
    left, middle, right = drawing.subplots(1, 3, width_ratios=(1, 1.12, 0.95))
    ts, weights = np.asarray(run.ts), np.asarray(run.weights)
    tkf.figures.snapshot(run.tokens(0), ax=left, title="on the sphere, t = 0", view=(30.0, 55.0))
    paths = _seen(np.asarray(run.x), (30.0, 55.0))
    left.plot(paths[:, :, 0], paths[:, :, 1], color=tkf.figures.PALETTE[1], linewidth=0.8, zorder=3.5)
    middle.plot(u[:, :, 0], u[:, :, 1], color=tkf.figures.PALETTE[1], linewidth=0.8, zorder=2)
    middle.scatter(*u[0].T, s=1500 * weights, color=tkf.figures.PALETTE[0], alpha=0.85, linewidth=0, zorder=3)
    for k, t in enumerate(HULLS):
        here = u[int(np.argmin(np.abs(ts - t)))]
        hull = here[np.append(ConvexHull(here).vertices, ConvexHull(here).vertices[0])]
        shade = 0.12 + 0.55 * k / len(HULLS)
        middle.plot(*hull.T, color=str(shade), linewidth=1.4, label=f"{t:g}", zorder=4)
    middle.set(aspect="equal", title="in the chart, with hulls", xlabel="u₁", ylabel="u₂")
    middle.legend(
        title="hull at t",
        fontsize=9,
        title_fontsize=9,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        handlelength=1.4,
    )
    right.semilogy(ts, diameter, color=tkf.figures.PALETTE[0], label="diameter of the hull")
    k = int(np.argmin(np.abs(ts - 3.0)))
    later = ts >= 3.0
    right.plot(
        ts[later],
        2.5 * diameter[k] * np.exp(-np.exp(BETA) * (ts[later] - ts[k])),
        color="0.1",
        linestyle=(0, (3, 2)),
        linewidth=1.2,
        label="slope e^β, predicted",
    )
    right.set(xlabel="t", ylim=(1e-7, None))
    right.legend(loc="lower left")
    return drawing


def _seen(x: np.ndarray, view: tuple[float, float]) -> np.ndarray:
    """Points (..., 3) as a viewer at (azimuth, elevation) in degrees sees them: right and up."""
    (ca, ce), (sa, se) = np.cos(np.radians(view)), np.sin(np.radians(view))
    return x @ np.array([[-sa, -se * ca], [ca, -se * sa], [0.0, ce]])
