"""Example 2.5 (Figure 1): an order parameter as close to 1 as you like does not make tokens synchronise.

Atoms at ±a of mass (1−m)/2 and one at π of mass m, with R_0 > ξ. By symmetry the light atom never moves, the
other two meet at 0: R → 1 − 2m < 1. In the quotient by the reflection a single angle is left,

    a' = −½(1−m)e^{β cos2a}sin2a + m e^{−β cos a}sin a,

whose times are integrals. The limit is unstable: a light atom that is off by 10⁻⁶ leaves at the rate e^{−β}.
"""

from typing import NamedTuple

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from scipy import integrate

import tokenfield as tkf
from tokenfield.papers.clustering import shared
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, at_least, near

EXAMPLE = f"{shared.PAPER}, Example 2.5 (theory §3.9)"
#: ξ of the picture, and β.
SHOWN, BETA = 0.7, 1.0
#: How far the light atom is off in the run that leaves the symmetric limit.
NUDGE = 1e-6
#: Length of an arrow for unit velocity.
ARROW = 0.45


class Even(NamedTuple):
    """A symmetric run: ξ, the light mass m, and the halves over time."""

    xi: float
    light: float
    half: tkf.Trajectory

    @property
    def order(self) -> np.ndarray:
        """R over time."""
        return shared.even_order(self.half)

    @property
    def angle(self) -> np.ndarray:
        """a over time."""
        return shared.angles(np.asarray(self.half.x)[:, 0])


def follow(xi: float, beta: float, ts: np.ndarray) -> Even:
    """The symmetric run of Example 2.5.

    Args:
        xi: ξ of Example 2.5, between 0 and 1.
        beta: inverse temperature.
        ts: saved times, (times,), from 0.
    """
    half = shared.even_run(shared.usa(beta), tkf.theory.three_atoms(xi), ts, 1e-12)
    return Even(xi, (1 - xi) / 4, half)


def meeting_time(xi: float, beta: float, a1: float) -> float:
    """Time in which the angle a falls from its first value to a1, by quadrature.

    Args:
        xi: ξ of Example 2.5, between 0 and 1.
        beta: inverse temperature.
        a1: the angle at the end, less than the first value.
    """
    m, a0 = (1 - xi) / 4, np.arccos((1 + xi) / 2)

    def pace(a: float) -> float:
        own = 0.5 * (1 - m) * np.exp(beta * np.cos(2 * a)) * np.sin(2 * a)
        return 1 / (own - m * np.exp(-beta * np.cos(a)) * np.sin(a))

    return float(integrate.quad(pace, a1, a0, epsabs=0, epsrel=1e-13, limit=200)[0])


def nudged(xi: float, beta: float, ts: np.ndarray) -> tkf.Trajectory:
    """A run from the symmetric limit with the light atom off by `NUDGE`.

    Args:
        xi: ξ of Example 2.5, between 0 and 1.
        beta: inverse temperature.
        ts: saved times, (times,), from 0.
    """
    m = (1 - xi) / 4
    x = [[1.0, 0.0], [-np.cos(NUDGE), np.sin(NUDGE)]]
    return shared.run(shared.usa(beta), tkf.Tokens(x, [1 - m, m]), ts, 1e-12)


def run(quick: bool, progress: Progress) -> Result:
    """The recipe."""
    xis = (0.3, 0.5, 0.7, 0.9) if quick else (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.99)
    ts = np.linspace(0, 6, 61 if quick else 241)
    found = []
    for k, xi in enumerate(xis):
        progress(k / (len(xis) + 1), f"ξ = {xi:g}")
        found.append(follow(xi, BETA, ts))
    progress(len(xis) / (len(xis) + 1), "off the symmetry")
    away = nudged(SHOWN, BETA, np.linspace(0, 80, 161))
    data = xr.Dataset(
        {
            "R": (("xi", "time"), np.stack([each.order for each in found])),
            "a": (("xi", "time"), np.stack([each.angle for each in found])),
            "R_nudged": ("time_nudged", away.measure(tkf.order_parameter)),
        },
        {"xi": list(xis), "time": ts, "time_nudged": np.asarray(away.ts)},
    )
    rows = [
        {
            "xi": each.xi,
            "m": each.light,
            "a0": each.angle[0],
            "R0": each.order[0],
            "R end": each.order[-1],
            "1 - 2m": 1 - 2 * each.light,
        }
        for each in found
    ]
    return Result(checks(found, away), rows, data, figure(found, away))


RECIPE = Recipe(
    "clustering-fig1", "Example 2.5: however large the order parameter, tokens may end in two clusters", run
)


def checks(found: list[Even], away: tkf.Trajectory) -> list[Check]:
    """R at the start and in the end, times and rate of the meeting, and the instability of the limit."""
    result = []
    for each in found:
        m, c = each.light, (1 + each.xi) / 2
        ts = np.asarray(each.half.ts)
        k = int(np.argmin(np.abs(each.angle - each.angle[0] / 3)))
        late = (each.angle < 1e-3) & (each.angle > 1e-6)
        slope = np.polyfit(ts[late], np.log(each.angle[late]), 1)[0] if np.sum(late) > 2 else np.nan
        result += [
            near(f"R at the start, ξ = {each.xi:g}", each.order[0], (1 - m) * c - m, EXAMPLE, absolute=1e-12),
            at_least(f"the same, above ξ = {each.xi:g}", each.order[0], each.xi, EXAMPLE),
            near(f"R in the end, ξ = {each.xi:g}", each.order[-1], 1 - 2 * m, EXAMPLE, absolute=1e-5),
            near(
                f"time at which a = {each.angle[k]:.3g}, ξ = {each.xi:g}",
                ts[k],
                meeting_time(each.xi, BETA, float(each.angle[k])),
                "quadrature of the reduced equation",
                relative=1e-8,
            ),
            near(
                f"rate of the meeting, ξ = {each.xi:g}",
                slope,
                float(tkf.theory.antipodal_rates(1 - m, BETA, "unnormalised").split[0]),
                "theory §3.5: −pe^β + qe^(−β)",
                relative=1e-4,
            ),
        ]
    off = _parting(away)
    early = (off < 1e-3) & (off > 0)
    rate = np.polyfit(np.asarray(away.ts)[early], np.log(off[early]), 1)[0]
    rigid = tkf.theory.antipodal_rates(1 - (1 - SHOWN) / 4, BETA, "unnormalised").rigid
    end = float(tkf.order_parameter(away.tokens(-1)))
    return [
        *result,
        near("rate at which the nudged atom leaves", rate, rigid, "theory §3.5: e^(−β)", relative=1e-4),
        near(
            "R of the nudged run in the end",
            end,
            1.0,
            f"{shared.PAPER}: two atoms that are not antipodal lie in a cap, Theorem 2.3",
            absolute=1e-6,
        ),
    ]


def _parting(away: tkf.Trajectory) -> np.ndarray:
    """π minus the angle between the two atoms."""
    theta = shared.angles(np.asarray(away.x))
    return np.abs((theta[:, 1] - theta[:, 0]) % (2 * np.pi) - np.pi)


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(found: list[Even], away: tkf.Trajectory) -> Figure:
    """Above the atoms at three times, with their velocities and the mean; below R over time."""
    drawing = Figure(figsize=(9.6, 7.0), layout="constrained")
    above, below = drawing.subfigures(2, 1, squeeze=False, height_ratios=(1, 0.95))[:, 0]
    shown = next(each for each in found if each.xi == SHOWN)
    ts = np.asarray(shown.half.ts)
    for ax, t in zip(above.subplots(1, 3), (0.0, 0.4, 6.0), strict=True):
        k = int(np.argmin(np.abs(ts - t)))
        _draw_state(ax, shared.evened(shown.half, k), shown.xi, f"t = {ts[k]:.3g}")
    above.suptitle(
        f"ξ = {SHOWN:g}, β = {BETA:g}: radii of discs ∝ mass, diamond: mean, dashed: |m| = ξ", fontsize=11
    )
    left, right = below.subplots(1, 2, sharey=True, width_ratios=(1, 1))
    for each, colour, dash in zip(found, tkf.figures.PALETTE, tkf.figures.DASHES, strict=False):
        left.plot(ts, each.order, color=colour, linestyle=dash, label=f"{each.xi:g}")
        left.plot(
            ts[-1],
            1 - 2 * each.light,
            "o",
            color=colour,
            markersize=6,
            clip_on=False,
            markerfacecolor="white",
        )
    left.set(xlabel="t", ylabel="R", xlim=(0, 6), ylim=(0, 1.02))
    left.set_title("symmetric; circles: predicted end 1 − 2m", loc="left", fontsize=11)
    left.legend(title="ξ", ncols=4, loc="lower right", fontsize=9.5, columnspacing=1.2, handlelength=1.8)
    right.plot(np.asarray(away.ts), away.measure(tkf.order_parameter), color=tkf.figures.PALETTE[1])
    right.axhline(1 - 2 * shown.light, color="0.45", linestyle=(0, (3, 2)), linewidth=1.2)
    right.set(xlabel="t", xlim=(0, 80))
    right.set_title(f"ξ = {SHOWN:g}, light atom off by 10⁻⁶", loc="left", fontsize=11)
    right.annotate(
        "symmetric limit 1 − 2m",
        (78, 1 - 2 * shown.light - 0.02),
        ha="right",
        va="top",
        fontsize=10,
        color="0.35",
    )
    return drawing


def _draw_state(ax: Axes, law: tkf.Tokens, xi: float, title: str) -> None:
    shared.draw_circle(ax, title)
    # a half has the light atom twice, and tokens on the axis twice
    atoms = law.merge(1e-3).tokens
    shared.draw_atoms(ax, atoms)
    shared.draw_arrows(ax, np.asarray(law.x), np.asarray(shared.usa(BETA).velocity(law)), ARROW)
    ax.add_patch(Circle((0, 0), xi, facecolor="none", edgecolor="0.4", linewidth=0.9, linestyle=(0, (4, 3))))
    shared.draw_mean(ax, np.asarray(law.moments().mean))
    ax.set_xlabel(f"R = {float(tkf.order_parameter(law)):.4f}")
