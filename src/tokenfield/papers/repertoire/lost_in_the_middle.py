"""Lost in the middle (arXiv 2605.09213): what the last token remembers of each place.

The closed form is compared with a run of the nonlinear mean field: L blocks on the circle about the uniform
law, a small wave in one of them at the start, and what of it has reached the last block at time t, times L.
ALiBi makes recent tokens remembered too, as long as t < t_crit; between lies the middle that is lost.
"""

from typing import NamedTuple

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import tokenfield as tkf
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, at_most, near

THEOREM = "2605.09213, closed form; derivation redone in theory §6.1.5"
BLOCKS = "theory §6.1.4, derived: e^(aCt) of L blocks"
#: Size of the wave, of which squares are below the tolerance.
SIZE = 1e-6
BETA, SLOPE, WINDOW = 1.0, 1.0, 8.0
#: Times in the clock of the paper; at β = 1 both clocks agree.
TIMES = (0.5, 1.0, 2.0, 4.0)


class Memory(NamedTuple):
    """What the last of L blocks remembers of a wave in each place: measured, of the blocks, in the limit."""

    sigma: np.ndarray
    measured: np.ndarray
    blocks: np.ndarray
    limit: np.ndarray


def remembered(degree: int, t: float, count: int, places: np.ndarray) -> Memory:
    """The answer of the last block to a wave in one block, by the nonlinear mean field.

    Args:
        degree: wave number l.
        t: time.
        count: number of blocks L.
        places: blocks (places,) that have the wave at the start, one after the other.
    """
    model = tkf.UnnormalisedAttention(tkf.AttentionWeights.identity(2), BETA)
    measured, blocks = [], []
    for place in places:
        h0 = np.zeros(count)
        h0[place] = 1.0
        laws = [lambda theta, a=a: 1 + 2 * SIZE * a * np.cos(degree * theta) for a in h0]
        found = tkf.density.causal(model, laws, [0.0, t], SLOPE, modes=32, tolerance=1e-13)
        measured.append(count * found.moment(degree)[-1, -1].real / SIZE)
        grown = tkf.theory.causal_growth(h0, [t], BETA, degree, flow="unnormalised", slope=SLOPE)
        blocks.append(count * grown[0, -1])
    sigma = (places + 0.5) / count
    alone = tkf.theory.lost_in_the_middle(BETA, SLOPE, 1e9, degree)
    one = alone._replace(rates=alone.rates[-1:], window=np.ones(1))
    return Memory(sigma, np.array(measured), np.array(blocks), one.at(sigma, t))


def run(quick: bool, progress: Progress) -> Result:
    """The recipe."""
    count = 40 if quick else 160
    places = np.linspace(0.1 * count, 0.9 * count, 5 if quick else 17).astype(int)
    profile = tkf.theory.lost_in_the_middle(BETA, SLOPE, WINDOW, clock="paper")
    progress(0.1, "the mean field")
    memory = remembered(1, 1.0, count, places)
    progress(0.9, "profiles")
    sigma = np.linspace(0.01, 1, 200)
    curves = {t: profile.at(sigma, t) for t in TIMES}
    checks = _checks(profile, memory, count)
    rows = [
        {
            "t": t,
            "least_at": profile.minimum(t)[0],
            "least": profile.minimum(t)[1],
            "end": float(profile.at(1.0, t)),
        }
        for t in TIMES
    ]
    data = xr.Dataset(
        {
            "profile": (("t", "sigma"), np.stack(list(curves.values()))),
            "measured": ("place", memory.measured),
            "blocks": ("place", memory.blocks),
            "limit": ("place", memory.limit),
        },
        {"t": list(TIMES), "sigma": sigma, "place": memory.sigma},
    )
    return Result(checks, rows, data, figure(profile, curves, sigma, memory))


RECIPE = Recipe(
    "lost-in-the-middle",
    "which initial tokens the last one remembers: primacy, recency until t_crit, and the lost middle",
    run,
)


def _checks(profile: tkf.theory.PositionProfile, memory: Memory, count: int) -> list[Check]:
    off = np.max(np.abs(memory.measured / memory.blocks - 1))
    h, t = 1e-5, profile.critical_time
    slopes = [(profile.at(1.0, f * t) - profile.at(1 - h, f * t)) / h for f in (0.99, 1.01)]
    crossing = float(t * (0.99 + 0.02 * slopes[0] / (slopes[0] - slopes[1])))
    away = np.max(np.abs(memory.blocks / memory.limit - 1)) * count
    return [
        at_most("nonlinear mean field against e^(aCt), relative", off, 1e-4, BLOCKS),
        at_most(f"L times the relative distance of {count} blocks to the limit", away, 3.0, THEOREM),
        near(
            "time at which the slope at σ = 1 vanishes, by differences", crossing, t, THEOREM, relative=1e-3
        ),
        near(
            "place of the least memory at t = 1", profile.minimum(1.0)[0], 0.2592755, THEOREM, absolute=1e-6
        ),
    ]


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(
    profile: tkf.theory.PositionProfile, curves: dict[float, np.ndarray], sigma: np.ndarray, memory: Memory
) -> Figure:
    """Profiles over the place at several times, and one wave against the nonlinear mean field.

    Args:
        profile: the closed form.
        curves: S(σ) by time.
        sigma: places (places,).
        memory: the comparison with the mean field.
    """
    drawing = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = drawing.subplots(1, 2)
    for k, (t, values) in enumerate(curves.items()):
        place, least = profile.minimum(t)
        left.plot(sigma, values / least, color=tkf.figures.PALETTE[k], label=f"t = {t:g}")
        left.plot(place, 1.0, "o", color=tkf.figures.PALETTE[k], markersize=5)
    left.set(
        title=f"memory over its least value, t_crit = {profile.critical_time:.3f}",
        xlabel="place σ of the initial token",
        ylabel="S(σ) / min S",
        ylim=(0.9, 2.6),
    )
    left.legend(fontsize=8)
    _compare(right, memory)
    return drawing


def _compare(ax: Axes, memory: Memory) -> None:
    fine = np.linspace(0.02, 1, 200)
    one = tkf.theory.lost_in_the_middle(BETA, SLOPE, 1e9, 1)
    ax.plot(fine, one.at(fine, 1.0), color="black", linewidth=1, label="closed form, n → ∞")
    ax.plot(memory.sigma, memory.blocks, "x", color=tkf.figures.PALETTE[1], label="blocks, linear")
    ax.plot(
        memory.sigma, memory.measured, "o", fillstyle="none", color=tkf.figures.PALETTE[0], label="mean field"
    )
    ax.set(title="one wave, l = 1, t = 1", xlabel="place σ of the wave", ylabel="answer of the last block")
    ax.legend(fontsize=8)
