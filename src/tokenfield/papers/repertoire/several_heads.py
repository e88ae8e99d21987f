"""Several heads at zero temperature: attractors, basins, a limit cycle, and where clusters end (theory §6.7).

Four pictures: two heads on the circle with four sinks, whose basins end at sources; the same after a longer
time at finite β, when clusters have left for the dominant eigenspace of ΣV_h; three rank-one heads on the
sphere, whose basins are the eight sectors of their signs; and heads with turned values, under which tokens go
round. Masses are measured by runs of the simulator and predicted by `theory.attractors`.
"""

from typing import NamedTuple

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from scipy.interpolate import CubicSpline

import tokenfield as tkf
from tokenfield.papers.clustering import shared
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, Row, near

EXACT = "theory §6.7: zeros of the field on the circle, sources bound the basins"
SIGNS = "theory §6.7: all signs are self-consistent, basins are sectors with their solid angles"
ROUND = "theory §6.7: the period is the integral of dθ/|θ'|"
ENDS = "theory §6.7: tight clusters move by y' = P_y(ΣV_h)y"
LATE = 40.0
ROWS = np.array([[1.0, 0, 0], [0.5, 1, 0], [0.2, 0.3, 1]])


def turn(angle: float) -> np.ndarray:
    """Rotation of the plane."""
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def two_heads(first: tuple[float, float], second: tuple[float, float]) -> np.ndarray:
    """diag(first), and diag(second) turned by 1.2: (2, 2, 2)."""
    return np.stack([np.diag(first), turn(1.2) @ np.diag(second) @ turn(1.2).T])


def rank_one() -> tkf.AttentionWeights:
    """B_h = V_h = a_ha_hᵀ of the three rows, normalised."""
    a = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
    B = np.einsum("hi,hj->hij", a, a)
    return tkf.AttentionWeights(B, B)


class Basins(NamedTuple):
    """A run from tokens `start` to `end`, attractors, and which of them each token came to, −1 if none."""

    start: np.ndarray
    end: np.ndarray
    predicted: tkf.theory.Attractors
    which: np.ndarray

    @property
    def masses(self) -> np.ndarray:
        """Share of the tokens at each attractor."""
        return np.bincount(self.which[self.which >= 0], minlength=len(self.predicted.x)) / len(self.which)


def basins(weights: tkf.AttentionWeights, tokens: tkf.Tokens) -> Basins:
    """Run the zero-temperature flow and find the attractor next to every token."""
    run = tkf.simulate(tkf.ZeroTemperature(weights), tokens, [0, LATE], tkf.Adaptive(rtol=1e-8, atol=1e-10))
    predicted = tkf.theory.attractors(weights, 0)
    apart = np.linalg.norm(run.x[-1][:, None] - predicted.x[None], axis=2)
    which = np.where(apart.min(axis=1) < 1e-3, apart.argmin(axis=1), -1)
    return Basins(np.asarray(tokens.x), np.asarray(run.x[-1]), predicted, which)


def run(quick: bool, progress: Progress) -> Result:
    """The recipe."""
    n = 400 if quick else 4000
    theta = (np.arange(n) + 0.5) * 2 * np.pi / n
    even = tkf.Tokens(np.stack([np.cos(theta), np.sin(theta)], axis=1))
    four = two_heads((1.0, 0.2), (0.9, 0.1))
    heads = tkf.AttentionWeights(four, four)
    circle = basins(heads, even)
    progress(0.3, "rank-one heads on the sphere")
    sphere = basins(rank_one(), tkf.initial.uniform(1000 if quick else 20_000, 3, 0))
    progress(0.5, "a limit cycle")
    broad = two_heads((1.0, 0.6), (0.9, 0.5))
    turning = tkf.AttentionWeights(broad, turn(1.2) @ broad)
    ts, angle = goes_round(turning)
    progress(0.7, "clusters")
    clusters = last_clusters(heads, 60 if quick else 400)
    checks = [
        *_circle_checks(circle, n),
        *_sphere_checks(sphere),
        near(
            "period of a turn",
            _period(ts, angle),
            tkf.theory.attractors(turning, 0).cycles[0].period,
            ROUND,
            1e-6,
        ),
        near(
            "mean |cos| of tokens at β = 400, t = 30, with the top of ΣV_h",
            float(np.mean(np.abs(clusters.x[-1] @ tkf.theory.terminal(heads).basis))),
            1.0,
            ENDS,
            absolute=1e-6,
        ),
    ]
    data = xr.Dataset(
        {
            "circle_end": (("circle_token", "axis2"), circle.end),
            "sphere_start": (("sphere_token", "axis3"), sphere.start),
            "sphere_end": (("sphere_token", "axis3"), sphere.end),
            "turning_angle": (("time", "turning_token"), angle),
            "cluster_angle": (("cluster_time", "cluster_token"), shared.angles(np.asarray(clusters.x))),
        },
        coords={"time": ts, "cluster_time": clusters.ts},
    )
    rows = [*_rows("circle", circle), *_rows("sphere", sphere)]
    return Result(checks, rows, data, figure(circle, sphere, ts, angle, clusters))


RECIPE = Recipe(
    "several-heads", "basins, rates, cycles and clusters of several heads at zero temperature", run
)


def goes_round(weights: tkf.AttentionWeights) -> tuple[np.ndarray, np.ndarray]:
    """Times (times,) and angles (times, tokens), not wrapped, of tokens that go round."""
    start = np.array([0.0, 2.0, 4.0])
    tokens = tkf.Tokens(np.stack([np.cos(start), np.sin(start)], axis=1))
    ts = np.linspace(0, 14, 281)
    found = tkf.simulate(tkf.ZeroTemperature(weights), tokens, ts, tkf.Adaptive(rtol=1e-10, atol=1e-12))
    return ts, np.unwrap(shared.angles(np.asarray(found.x)), axis=0)


def last_clusters(weights: tkf.AttentionWeights, n: int) -> tkf.Trajectory:
    """Softmax at β = 400 from n equally spaced tokens: concentration, escape, end."""
    theta = (np.arange(n) + 0.5) * 2 * np.pi / n
    tokens = tkf.Tokens(np.stack([np.cos(theta), np.sin(theta)], axis=1))
    ts = np.linspace(0, 30, 121)
    return tkf.simulate(tkf.SoftmaxAttention(weights, 400.0), tokens, ts, tkf.Adaptive(1e-7, 1e-9), "direct")


def _period(ts: np.ndarray, angle: np.ndarray) -> float:
    """Mean time of a turn of the tokens, between the first passage of a place and the third."""
    periods = []
    for path in np.abs(angle - angle[0]).T:
        time = CubicSpline(path, ts)
        periods.append(float(time(6 * np.pi) - time(2 * np.pi)) / 2)
    return float(np.mean(periods))


def _circle_checks(found: Basins, n: int) -> list[Check]:
    result = [near("circle: attractors", len(found.predicted.x), 4, EXACT)]
    for k, (mass, predicted) in enumerate(zip(found.masses, found.predicted.masses, strict=True)):
        name = f"circle: mass at {shared.angles(found.predicted.x[k]):.4f}"
        result.append(near(name, mass, predicted, EXACT, absolute=2 / n))
    return result


def _sphere_checks(found: Basins) -> list[Check]:
    result = [near("sphere: attractors", len(found.predicted.x), 8, SIGNS)]
    for k, (mass, predicted) in enumerate(zip(found.masses, found.predicted.masses, strict=True)):
        error = 4 * np.sqrt(predicted * (1 - predicted) / len(found.which))
        result.append(
            near(f"sphere: mass {_signs(found.predicted.x[k])}", mass, predicted, SIGNS, absolute=error)
        )
    return result


def _signs(x: np.ndarray) -> str:
    return "".join("+" if height > 0 else "−" for height in ROWS @ x)


def _rows(where: str, found: Basins) -> list[Row]:
    return [
        {
            "where": where,
            "attractor": ", ".join(f"{v:.6f}" for v in found.predicted.x[k]),
            "rate": float(found.predicted.rates[k]),
            "mass predicted": float(found.predicted.masses[k]),
            "mass measured": float(found.masses[k]),
        }
        for k in range(len(found.predicted.x))
    ]


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(
    circle: Basins, sphere: Basins, ts: np.ndarray, angle: np.ndarray, clusters: tkf.Trajectory
) -> Figure:
    """Basins on the circle and on the sphere above, angles over time below.

    Args:
        circle: two heads with four sinks.
        sphere: three rank-one heads.
        ts: times (times,).
        angle: angles (times, tokens) of tokens that go round.
        clusters: a run at finite β.
    """
    drawing = Figure(figsize=(10.4, 8.4), layout="constrained")
    grid = drawing.subplots(2, 2, width_ratios=(1, 1.35), height_ratios=(1.1, 1))
    _draw_circle(grid[0, 0], circle)
    _draw_sphere(grid[0, 1], sphere)
    for k, path in enumerate(angle.T):
        grid[1, 0].plot(ts, path / (2 * np.pi), color=tkf.figures.PALETTE[k])
    grid[1, 0].set(xlabel="t", ylabel="turns", title="values turned by 1.2: all tokens go round")
    _draw_clusters(grid[1, 1], circle, clusters)
    return drawing


def _draw_circle(ax: Axes, found: Basins) -> None:
    shared.draw_circle(ax, "two heads: four basins")
    colours = tkf.figures.PALETTE
    for k, sink in enumerate(found.predicted.x):
        mine = found.start[found.which == k]
        ax.scatter(*mine.T, s=14, color=colours[k], linewidths=0, zorder=2)
        ax.plot(*sink, "o", markersize=11, color=colours[k], markeredgecolor="black", zorder=4)
        ax.annotate(
            f"{found.masses[k]:.3f}\n({found.predicted.masses[k]:.4f})",
            0.62 * sink,
            ha="center",
            va="center",
            fontsize=9,
        )
    ax.plot(*found.predicted.sources.T, "o", color="white", markeredgecolor="black", markersize=8, zorder=4)
    ax.annotate("mass measured\n(predicted)", (0, 0), ha="center", va="center", fontsize=9, color="0.4")


def _lambert(x: np.ndarray) -> np.ndarray:
    """Both hemispheres side by side by Lambert's equal-area map, the axis (1, 1, 1)/√3 up."""
    axis = np.ones(3) / np.sqrt(3)
    frame = np.linalg.svd(axis[None])[2][1:]
    height = x @ axis
    side = np.where(height >= 0, -1.05, 1.05)
    return (x @ frame.T) / np.sqrt(1 + np.abs(height))[:, None] + np.stack([side, 0 * side], axis=1)


def _draw_sphere(ax: Axes, found: Basins) -> None:
    colours = tkf.figures.PALETTE
    for side in (-1.05, 1.05):
        ax.add_patch(Circle((side, 0), 1, facecolor="none", edgecolor="0.6"))
    _shade(ax, found)
    places = _lambert(found.start)
    for k, sink in enumerate(found.predicted.x):
        ax.scatter(*places[found.which == k].T, s=7, color=colours[k], edgecolors="black", linewidths=0.2)
        place = _lambert(sink[None])[0]
        text = f"{_signs(sink)}\n{found.masses[k]:.3f}\n({found.predicted.masses[k]:.4f})"
        box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.5}
        ax.annotate(text, place, ha="center", va="center", fontsize=8, bbox=box)
    ax.set(xlim=(-2.1, 2.1), ylim=(-1.1, 1.1), aspect="equal", xticks=[], yticks=[])
    ax.set_title("three rank-one heads: the basins are the sectors of their signs")
    ax.spines[:].set_visible(False)


def _shade(ax: Axes, found: Basins) -> None:
    """The predicted basins, pale."""
    x = np.asarray(tkf.initial.uniform(20_000, 3, 1).x)
    nearest = np.argmax(np.asarray(found.predicted.push(tkf.Tokens(x)).x) @ found.predicted.x.T, axis=1)
    for k in range(len(found.predicted.x)):
        colour = tkf.figures.PALETTE[k]
        ax.scatter(*_lambert(x[nearest == k]).T, s=6, color=colour, alpha=0.25, linewidths=0, rasterized=True)


def _draw_clusters(ax: Axes, circle: Basins, clusters: tkf.Trajectory) -> None:
    theta = np.mod(shared.angles(np.asarray(clusters.x)), 2 * np.pi)
    jump = np.abs(np.diff(theta, axis=0, prepend=theta[:1])) > np.pi
    ax.plot(
        clusters.ts, np.where(jump, np.nan, theta), color=tkf.figures.PALETTE[0], linewidth=0.6, alpha=0.6
    )
    for k, sink in enumerate(circle.predicted.x):
        label = "attractors" if k == 0 else None
        ax.axhline(
            float(np.mod(shared.angles(sink), 2 * np.pi)),
            color="0.1",
            linestyle=(0, (3, 2)),
            linewidth=1.1,
            label=label,
        )
    top = tkf.theory.terminal(circle.predicted.weights).basis[:, 0]
    for k, end in enumerate((top, -top)):
        label = "top of ΣV" if k == 0 else None
        ax.axhline(
            float(np.mod(shared.angles(end), 2 * np.pi)),
            color=tkf.figures.PALETTE[1],
            linewidth=1.1,
            label=label,
        )
    ax.set(
        xlabel="t",
        ylabel="angle",
        ylim=(0, 2 * np.pi),
        title="the two heads at β = 400: tokens concentrate, leave, end",
    )
    ax.set_yticks([0, np.pi, 2 * np.pi], ["0", "π", "2π"])
    ax.legend(loc="upper right", frameon=True, framealpha=1.0)
