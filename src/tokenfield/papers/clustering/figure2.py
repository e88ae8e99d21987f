"""Example 2.6 (Figure 2): two arcs that hold their tokens at large β, and synchronise at small β.

An even density, mass p uniform on |θ| ≤ w and q = 1−p on |θ−π| ≤ w. For β above β_c(p, w) both arcs are
invariant and each ends in its own atom, R → p − q. The same density synchronises when β is small.
"""

from typing import NamedTuple

import jax.numpy as jnp
import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Wedge
from scipy import optimize

import tokenfield as tkf
from tokenfield.papers.clustering import shared
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, at_most, near

EXAMPLE = f"{shared.PAPER}, Example 2.6 (theory §3.10)"
P, W = 0.7, np.pi / 8
#: Two temperatures that hold the arcs, two that do not.
HOLD, SYNCHRONISE = (4.0, 0.7), (0.1, 0.3)
#: Height of the band that a density of 1 is drawn with, and the greatest.
HEIGHT, HIGHEST = 0.16, 0.42


class Arcs(NamedTuple):
    """An even run of the two arcs: β, and the halves over time, first the arc about 0, then that about π."""

    beta: float
    half: tkf.Trajectory

    @property
    def order(self) -> np.ndarray:
        """R over time."""
        return shared.even_order(self.half)

    @property
    def widths(self) -> np.ndarray:
        """Half-widths of the two arcs over time, (times, 2)."""
        theta = np.abs(shared.angles(np.asarray(self.half.x)))
        first = theta.shape[1] // 2
        return np.stack([theta[:, :first].max(axis=1), np.pi - theta[:, first:].min(axis=1)], axis=1)


def follow(beta: float, n: int, ts: np.ndarray) -> Arcs:
    """The even run of the two arcs.

    Args:
        beta: inverse temperature.
        n: tokens on each arc.
        ts: saved times, (times,), from 0.
    """
    return Arcs(beta, shared.even_run(shared.usa(beta), tkf.theory.two_arcs(n, P, W), ts, 1e-9))


def measured_critical_beta() -> float:
    """β at which the lighter arc's edge stands still for the worst law: all mass at the edges, ±w and π±w.

    From the velocities of the model itself.
    """
    edge = np.array([W, -W, np.pi - W, np.pi + W])
    law = tkf.Tokens(np.stack([np.cos(edge), np.sin(edge)], axis=1), [P / 2, P / 2, (1 - P) / 2, (1 - P) / 2])

    def outward(beta: float) -> float:
        return float(shared.usa(beta).velocity(law)[2] @ np.array([np.sin(W), np.cos(W)]))

    found = optimize.brentq(outward, 0.05, 4.0, xtol=1e-12)
    return float(found)  # pyright: ignore[reportArgumentType]


def edge_speeds(beta: float, n: int = 64) -> tuple[float, float]:
    """Velocities of the edges w and π + w under the two arcs, as the model reads them."""
    edge = np.array([W, np.pi + W])
    x = np.stack([np.cos(edge), np.sin(edge)], axis=1)
    read = np.asarray(shared.usa(beta).output(jnp.asarray(x), tkf.theory.two_arcs(n, P, W)))
    speeds = np.sum(read * np.stack([-x[:, 1], x[:, 0]], axis=1), axis=1)
    return float(speeds[0]), float(speeds[1])


def run(quick: bool, progress: Progress) -> Result:
    """The recipe."""
    n, ts = (32, tkf.log_times(1e-3, 60.0, 90)) if quick else (128, tkf.log_times(1e-3, 60.0, 240))
    found = []
    for k, beta in enumerate((*HOLD, *SYNCHRONISE)):
        progress(k / 4, f"β = {beta:g}")
        found.append(follow(beta, n, ts))
    data = xr.Dataset(
        {
            "R": (("beta", "time"), np.stack([each.order for each in found])),
            "half_width": (("beta", "time", "arc"), np.stack([each.widths for each in found])),
        },
        {"beta": [each.beta for each in found], "time": ts},
    )
    rows = [
        {
            "beta": each.beta,
            "R0": each.order[0],
            "R end": each.order[-1],
            "greatest half-width of first arc / w": each.widths[:, 0].max() / W,
            "of second arc / w": each.widths[:, 1].max() / W,
        }
        for each in found
    ]
    return Result(checks(found), rows, data, figure(found))


RECIPE = Recipe(
    "clustering-fig2",
    "Example 2.6: two arcs that keep their tokens at large β, and synchronise at small β",
    run,
)


def checks(found: list[Arcs]) -> list[Check]:
    """Start, edges, threshold, ends, and the rates at which the arcs close."""
    speeds, expected = edge_speeds(4.0), tkf.theory.edge_velocities(P, W, 4.0)
    result = [
        near("R at the start", found[0].order[0], (2 * P - 1) * np.sin(W) / W, EXAMPLE, absolute=1e-10),
        near("velocity of the edge w, β = 4", speeds[0], expected[0], "theory §3.10", relative=1e-10),
        near("velocity of the edge π+w, β = 4", speeds[1], expected[1], "theory §3.10", relative=1e-10),
        near(
            "β at which the worst law lets the edge go",
            measured_critical_beta(),
            tkf.theory.critical_beta(P, W),
            "theory §3.10: log(p/q)/(2cos2w)",
            relative=1e-9,
        ),
    ]
    for each in found:
        label = f"β = {each.beta:g}"
        if each.beta in HOLD:
            rates = tkf.theory.antipodal_rates(P, each.beta, "unnormalised").split
            result += [
                near(f"R in the end, {label} > β_c", each.order[-1], 2 * P - 1, EXAMPLE, absolute=1e-6),
                at_most(f"greatest half-width of an arc / w, {label}", each.widths.max() / W, 1.0, EXAMPLE),
            ]
            result += [
                near(
                    f"rate at which the {name} arc closes, {label}",
                    closing_rate(each, arc),
                    rates[arc],
                    "theory §3.5: −pe^β + qe^(−β) and the same with p, q exchanged",
                    relative=1e-2,
                )
                for arc, name in enumerate(("heavy", "light"))
            ]
        else:
            result.append(
                near(
                    f"R in the end, {label}",
                    each.order[-1],
                    1.0,
                    f"{shared.PAPER}, Theorem 2.4",
                    absolute=1e-6,
                )
            )
    return result


def closing_rate(each: Arcs, arc: int) -> float:
    """Slope of the logarithm of an arc's half-width while it is narrow and above the tolerance.

    The other arc, which it feels a little, must not be wide either.
    """
    widths, ts = each.widths, np.asarray(each.half.ts)
    late = (widths[:, arc] < 0.02) & (widths[:, arc] > 1e-6) & (widths[:, 1 - arc] < 0.3)
    return float(np.polyfit(ts[late], np.log(widths[late, arc]), 1)[0]) if np.sum(late) > 1 else np.nan


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(found: list[Arcs]) -> Figure:
    """The density around the circle at three times for large and small β; R and the half-widths below."""
    drawing = Figure(figsize=(9.6, 9.6), layout="constrained")
    above, below = drawing.subfigures(2, 1, squeeze=False, height_ratios=(1.75, 1))[:, 0]
    grid = above.subplots(2, 3)
    for row, beta, times in zip(grid, (4.0, 0.1), ((0.0, 0.06, 1.0), (0.0, 4.0, 9.0)), strict=True):
        each = next(e for e in found if e.beta == beta)
        ts = np.asarray(each.half.ts)
        for ax, t in zip(row, times, strict=True):
            k = int(np.argmin(np.abs(ts - t)))
            _draw_state(ax, each, k, f"β = {beta:g}, t = {ts[k]:.2g}")
    left, right = below.subplots(1, 2)
    for each, colour, dash in zip(found, tkf.figures.PALETTE, tkf.figures.DASHES, strict=False):
        ts = np.asarray(each.half.ts)[1:]
        left.semilogx(ts, each.order[1:], color=colour, linestyle=dash, label=f"β = {each.beta:g}")
        right.loglog(ts, np.maximum(each.widths[1:, 1], 1e-9) / W, color=colour, linestyle=dash)
    left.axhline(2 * P - 1, color="0.45", linestyle=(0, (3, 2)), linewidth=1.0)
    left.set(xlabel="t", ylabel="R", ylim=(0, 1.03))
    left.legend(loc="upper left")
    left.annotate("p − q", (0.0011, 2 * P - 1.03), va="top", color="0.35", fontsize=10)
    right.axhline(1, color="0.45", linestyle=(0, (3, 2)), linewidth=1.0)
    right.set(xlabel="t", ylim=(1e-6, 20))
    right.set_ylabel("half-width of the light arc / w")
    return drawing


def _draw_state(ax: Axes, each: Arcs, k: int, title: str) -> None:
    """The density as a band around the circle, the arcs as sectors, arrows where tokens move."""
    shared.draw_circle(ax, title)
    degrees = np.degrees(W)
    for centre in (0, 180):
        ax.add_patch(Wedge((0, 0), 1.0, centre - degrees, centre + degrees, facecolor="0.92", zorder=0))
    x, w = np.asarray(each.half.x), np.asarray(each.half.weights)
    first = len(w) // 2
    for arc, colour in (
        (slice(0, first), tkf.figures.PALETTE[0]),
        (slice(first, None), tkf.figures.PALETTE[2]),
    ):
        theta, share = shared.angles(x[k, arc]), w[arc] / 2
        order = np.argsort(theta)
        theta, share = theta[order], share[order]
        # mass between neighbours over their distance: the density that characteristics carry
        density = (share[1:] + share[:-1]) / 2 / np.maximum(np.diff(theta), 1e-12)
        middle = (theta[1:] + theta[:-1]) / 2
        height = 1 + np.clip(HEIGHT * density, 0.03, HIGHEST)
        axis = 0.0 if theta[0] < np.pi / 2 else np.pi  # even laws go on beyond the axis
        ends = np.linspace(min(theta[0], axis), max(theta[-1], axis), 300)
        outer = np.interp(ends, middle, height)
        for side in (1, -1):
            angle = np.concatenate([ends, ends[::-1]]) * side
            radius = np.concatenate([outer, np.ones_like(ends)])
            ax.fill(radius * np.cos(angle), radius * np.sin(angle), color=colour, linewidth=1.5, alpha=0.85)
    law = shared.evened(each.half, k)
    velocity = np.asarray(shared.usa(each.beta).velocity(law))
    edges = _edges(law)
    shared.draw_arrows(ax, 0.94 * np.asarray(law.x)[edges], velocity[edges], 0.04 if each.beta > 1 else 0.4)
    shared.draw_mean(ax, np.asarray(law.moments().mean))
    ax.set_xlabel(f"R = {each.order[k]:.4f}")


def _edges(law: tkf.Tokens) -> np.ndarray:
    """The outermost tokens of both arcs, upper and lower."""
    n = law.n // 4
    theta = np.abs(shared.angles(np.asarray(law.x)))[: 2 * n]
    first, second = int(np.argmax(theta[:n])), n + int(np.argmin(theta[n:]))
    return np.array([first, second, first + 2 * n, second + 2 * n])
