"""Causal attention (arXiv 2411.04990): the fan at the end, the front of a window, Rényi centres.

Near consensus the angle of token i to the first one obeys a triangular linear system, whatever β: the slowest
mode has angles that grow linearly with the index and closes at rate 1/2. With a window of two tokens the news
of token 1 is a Poisson process. At low temperature tokens gather around Rényi centres.
"""

from typing import NamedTuple

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import tokenfield as tkf
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, at_most, near

LINEAR = "theory §6.1.3, derived: linearised at consensus"
COUNT = "theory §6.1.6, derived: geometric sum"
PARKING = "Rényi 1958, kinetics at a finite number of tokens"
#: Initial width of the fans, so small that squares are below rounding.
WIDTH = 1e-4
BETAS = (1.0, 3.0)
#: Angle between centres, tokens, and in how many samples they are counted.
DELTA, TOKENS = 0.5, 200


class Fan(NamedTuple):
    """Angles over time (times, n) of a run, and those predicted."""

    ts: np.ndarray
    angles: np.ndarray
    predicted: np.ndarray


def closing(beta: float, n: int, window: int | None = None) -> Fan:
    """Tokens on the circle at small angles to the first one, under a causal mask.

    Args:
        beta: inverse temperature.
        n: number of tokens.
        window: tokens that each sees; all before it if None.
    """
    mask = tkf.masks.causal() if window is None else tkf.masks.window(window)
    index = np.arange(n)
    uneven = index / n * (1 + 0.5 * np.sin(1.0 + 2.0 * index))
    u = WIDTH * (uneven if window is None else np.where(index > 0, 1.0, 0.0))
    ts = np.linspace(0, 16, 33)
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), beta, mask)
    tokens = tkf.Tokens(np.stack([np.cos(u), np.sin(u)], axis=1))
    run = tkf.simulate(model, tokens, ts, tkf.Adaptive(1e-11, 1e-14, "dopri8"))
    angles = np.arctan2(run.x[..., 1], run.x[..., 0])
    return Fan(ts, angles, tkf.theory.causal_fan(n, window=window).evolve(u, ts))


def counted(samples: int, key: int = 0) -> np.ndarray:
    """Numbers (samples, 2) of centres and strong centres of uniform tokens on the circle."""
    angles = np.random.default_rng(key).uniform(0, 2 * np.pi, (samples, TOKENS))
    points = np.stack([np.cos(angles), np.sin(angles)], axis=2)
    return np.array([[len(part) for part in tkf.theory.renyi_centres(x, DELTA)] for x in points])


def gathered(beta: float, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A cold causal run: times, angles over time (times, n), and the places of the strong centres."""
    tokens = tkf.initial.uniform(n, 2, 5)
    ts = np.linspace(0, 8, 41)
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), beta, tkf.masks.causal())
    run = tkf.simulate(model, tokens, ts, tkf.Adaptive(1e-8, 1e-10))
    angles = np.arctan2(run.x[..., 1], run.x[..., 0])
    return ts, angles, tkf.theory.renyi_centres(tokens.x, 4 / np.sqrt(beta)).strong


def run(quick: bool, progress: Progress) -> Result:
    """The recipe."""
    n, samples = (12, 400) if quick else (40, 4000)
    progress(0.0, "fans")
    fans = {beta: closing(beta, n) for beta in BETAS}
    progress(0.3, "the front of a window")
    front = closing(BETAS[0], n, 2)
    progress(0.5, "centres")
    counts = counted(samples)
    progress(0.8, "a cold run")
    cold = gathered(200.0, 60 if quick else 200)
    checks = [*(_closes(beta, fan) for beta, fan in fans.items()), *_late(fans), *_front(front)]
    checks += _numbers(counts)
    rows = [
        {"beta": beta, "token": i + 1, "angle": fan.angles[-1, i], "predicted": fan.predicted[-1, i]}
        for beta, fan in fans.items()
        for i in range(n)
    ]
    data = xr.Dataset(
        {
            "angles": (("beta", "t", "token"), np.stack([fan.angles for fan in fans.values()])),
            "front": (("t", "token"), front.angles / WIDTH),
            "centres": ("sample", counts[:, 0]),
            "strong_centres": ("sample", counts[:, 1]),
        },
        {"beta": list(fans), "t": front.ts, "token": np.arange(1, n + 1)},
    )
    return Result(checks, rows, data, figure(fans, front, counts, cold))


RECIPE = Recipe(
    "causal",
    "causal attention: the fan in which tokens arrive, the front of a window, Rényi centres",
    run,
)


def _closes(beta: float, fan: Fan) -> Check:
    off = np.abs(fan.angles - fan.predicted).max() / WIDTH
    return at_most(f"fan against e^(Mt), share of the width, β = {beta:g}", off, 1e-6, LINEAR)


def _late(fans: dict[float, Fan]) -> list[Check]:
    """The slowest mode is left: rate 1/2, and angles that grow like i − 1."""
    checks = []
    for beta, fan in fans.items():
        late = fan.ts >= 12
        rate = -np.polyfit(fan.ts[late], np.log(np.abs(fan.angles[late, 1])), 1)[0]
        checks.append(near(f"rate of the second token, β = {beta:g}", rate, 0.5, LINEAR, absolute=1e-6))
    return checks


def _front(front: Fan) -> list[Check]:
    exact = tkf.theory.poisson_front(front.ts, front.angles.shape[1])
    off = np.abs(front.angles / WIDTH - exact).max()
    return [at_most("front of a window of two against P(Poisson(t/2) ≤ i−2)", off, 1e-6, LINEAR)]


def _numbers(counts: np.ndarray) -> list[Check]:
    mean, error = counts.mean(axis=0), counts.std(axis=0) / np.sqrt(len(counts))
    case = f"δ = {DELTA:g}, {TOKENS} tokens"
    centres = tkf.theory.expected_centres(DELTA, TOKENS)
    strong = tkf.theory.expected_strong_centres(DELTA, TOKENS)
    return [
        near(f"mean number of centres, {case}", mean[0], centres, PARKING, absolute=4 * error[0]),
        near(f"mean number of strong centres, {case}", mean[1], strong, COUNT, absolute=4 * error[1]),
    ]


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(
    fans: dict[float, Fan], front: Fan, counts: np.ndarray, cold: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> Figure:
    """The fan in the shape of its slowest mode, the front, the numbers of centres and a cold run.

    Args:
        fans: runs by β.
        front: the run with a window of two.
        counts: numbers of centres and strong centres (samples, 2).
        cold: times, angles and strong centres of a cold run.
    """
    drawing = Figure(figsize=(11, 7.6), layout="constrained")
    axes = drawing.subplots(2, 2)
    _draw_fan(axes[0, 0], fans)
    _draw_front(axes[0, 1], front)
    _draw_counts(axes[1, 0], counts)
    _draw_cold(axes[1, 1], *cold)
    return drawing


def _draw_fan(ax: Axes, fans: dict[float, Fan]) -> None:
    fan = fans[BETAS[-1]]
    index = np.arange(fan.angles.shape[1])
    for k, t in enumerate((0, 2, 4, 8, 16)):
        at = int(np.argmin(np.abs(fan.ts - t)))
        scale = fan.angles[at, 1]
        ax.plot(index + 1, fan.angles[at] / scale, ".-", color=tkf.figures.PALETTE[k], label=f"t = {t}")
    ax.plot(index + 1, index, "k--", linewidth=1, label="i − 1")
    ax.set(title=f"angles over that of token 2, β = {BETAS[-1]:g}", xlabel="token i", ylabel="u_i / u_2")
    ax.set_ylim(-1, 1.5 * index[-1])
    ax.legend(fontsize=8, loc="upper left")


def _draw_front(ax: Axes, front: Fan) -> None:
    index = np.arange(1, front.angles.shape[1] + 1)
    for k, t in enumerate((0, 4, 8, 16)):
        at = int(np.argmin(np.abs(front.ts - t)))
        ax.plot(
            index, front.angles[at] / WIDTH, "o", color=tkf.figures.PALETTE[k], markersize=4, label=f"t = {t}"
        )
        ax.plot(index, tkf.theory.poisson_front(front.ts, len(index))[at], "k-", linewidth=0.8)
    ax.set(title="window of two: a front (lines: Poisson)", xlabel="token i", ylabel="u_i / u_i(0)")
    ax.legend(fontsize=8)


def _draw_counts(ax: Axes, counts: np.ndarray) -> None:
    bins = np.arange(counts.min(), counts.max() + 2) - 0.5
    expected = (
        tkf.theory.expected_centres(DELTA, TOKENS),
        tkf.theory.expected_strong_centres(DELTA, TOKENS),
    )
    for k, (name, mean) in enumerate(zip(("centres", "strong centres"), expected, strict=True)):
        ax.hist(counts[:, k], bins, density=True, alpha=0.5, color=tkf.figures.PALETTE[k], label=name)
        ax.axvline(mean, color=tkf.figures.PALETTE[k], linestyle="--", linewidth=1.2)
    ax.axvline(
        tkf.theory.expected_centres(DELTA), color="0.3", linestyle=":", label="jamming limit of centres"
    )
    ax.set(
        title=f"{TOKENS} uniform tokens, δ = {DELTA:g} (expected means dashed)",
        xlabel="number",
        ylabel="share of samples",
        ylim=(0, 0.9),
    )
    ax.legend(fontsize=8, frameon=True)


def _draw_cold(ax: Axes, ts: np.ndarray, angles: np.ndarray, strong: np.ndarray) -> None:
    paths = np.where(np.abs(np.diff(angles, axis=0, prepend=angles[:1])) > np.pi, np.nan, angles)
    ax.plot(ts, paths, color=tkf.figures.OTHER, linewidth=0.6)
    ax.plot(ts, paths[:, strong], color=tkf.figures.PALETTE[1], linewidth=1.8)
    ax.plot([], [], color=tkf.figures.PALETTE[1], linewidth=1.8, label="strong centres, δ = 4/√β")
    ax.set(title="a cold causal run, β = 200: tokens gather around centres", xlabel="t", ylabel="angle")
    ax.legend(fontsize=8, loc="upper right", frameon=True)
