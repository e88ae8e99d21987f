"""Low temperature (arXiv 2605.10931, Alcalde, Bungert, Riedl, Roith): concentrate, stay, leave.

The demonstration is the worked case on the circle: V = diag(1, ½), B = diag(½, 2). The zero-temperature
flow carries every token to ±e2, the dominant eigenspace of V Bᵀ = diag(½, 1), at the rate
c = (λ1−λ2)/|Bᵀe2| = ¼. At finite temperature the tokens follow it, stay near ±e2 for a while, and end
at ±e1, the dominant eigenspace of V.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import matplotlib
import numpy as np
from matplotlib.figure import Figure

from tokenfield import figures, initial, sphere
from tokenfield.models import Model, SoftmaxAttention, ZeroTemperature
from tokenfield.simulate import simulate
from tokenfield.solvers import Adaptive
from tokenfield.tokens import Tokens
from tokenfield.trajectory import Trajectory
from tokenfield.weights import AttentionWeights

BETAS = (10.0, 100.0, 1000.0)
RATE = 0.25
TIMES = np.linspace(0, 40, 161)
#: Snapshots drawn: start, concentrating, metastable, escaping, terminal (of β = 100).
SHOWN = (0.0, 4.0, 11.0, 17.0, 40.0)


@dataclass(frozen=True)
class Row:
    """One comparison of the table."""

    quantity: str
    measured: str
    predicted: str
    agrees: bool


@dataclass(frozen=True)
class Demo:
    """Runs by label, their distance to the limit law over time, and the comparisons."""

    title: str
    runs: dict[str, Trajectory]
    distances: dict[str, np.ndarray]
    rows: list[Row]


def demo(n: int = 2000, progress: bool = False) -> Demo:
    """Run the worked case at three temperatures and at zero, and compare with the theory."""
    # not symmetric about an axis: by symmetry the clusters could not leave ±e2
    tokens = initial.circle_density(lambda t: 1 + 0.3 * np.cos(t) + 0.2 * np.sin(t), n)
    weights = AttentionWeights(np.diag([0.5, 2.0]), np.diag([1.0, 0.5]))
    models: dict[str, Model] = {f"β = {b:g}": SoftmaxAttention(weights, b) for b in BETAS}
    models["zero temperature"] = ZeroTemperature(weights)
    runs = {
        label: simulate(model, tokens, TIMES, Adaptive(rtol=1e-7), progress=progress)
        for label, model in models.items()
    }
    distances = {label: run.measure(lambda t: distance_to_limit(t, tokens)) for label, run in runs.items()}
    return Demo("worked case of arXiv 2605.10931 on the circle", runs, distances, _rows(runs, distances))


def distance_to_limit(tokens: Tokens, start: Tokens) -> float:
    """W2 cost of matching every token with Π of where it started, Π(x) = sign(x_2) e2.

    An upper bound of W2(μ_t, Π♯ρ0), and the decay rate of both is the same.
    """
    limit = np.stack([np.zeros(start.n), np.sign(np.asarray(start.x[:, 1]))], axis=1)
    moved = np.asarray(sphere.distance(tokens.x, jnp.asarray(limit)))
    return float(np.sqrt(np.sum(np.asarray(tokens.weights) * moved**2)))


def decay_rate(ts: np.ndarray, values: np.ndarray, start: float, stop: float) -> float:
    """Slope of −log values between two times by least squares."""
    inside = (ts >= start) & (ts <= stop)
    return -float(np.polyfit(ts[inside], np.log(values[inside]), 1)[0])


def _rows(runs: dict[str, Trajectory], distances: dict[str, np.ndarray]) -> list[Row]:
    zero = decay_rate(TIMES, distances["zero temperature"], 15, 30)
    rows = [Row("decay rate, zero temperature", f"{zero:.4f}", f"{RATE}", abs(zero / RATE - 1) < 0.01)]
    cold = decay_rate(TIMES, distances["β = 1000"], 4, 11)
    rows.append(
        Row(
            "decay rate, β = 1000, t from 4 to 11", f"{cold:.3f}", f"{RATE} ± 10%", abs(cold / RATE - 1) < 0.1
        )
    )
    lowest = {b: distances[f"β = {b:g}"].min() for b in BETAS}
    when = {b: TIMES[distances[f"β = {b:g}"].argmin()] for b in BETAS}
    for before, b in zip((None, *BETAS[:-1]), BETAS, strict=True):
        bound = np.sqrt(np.log(b + 1) / b)
        better = before is None or (lowest[b] < lowest[before] and when[b] > when[before])
        rows.append(
            Row(
                f"closest approach, β = {b:g}",
                f"{lowest[b]:.3f} at t = {when[b]:g}",
                f"≲ √(log(β+1)/β) = {bound:.3f}, later as β grows",
                bool(better and lowest[b] < bound),
            )
        )
    for b in BETAS:
        end = np.abs(runs[f"β = {b:g}"].x[-1, :, 0])
        share = float(np.mean(end > np.cos(0.05)))
        rows.append(Row(f"tokens that end at ±e1, β = {b:g}", f"{share:.1%}", "100%", share == 1.0))
    return rows


@matplotlib.rc_context(figures.STYLE)
def demo_figure(result: Demo) -> Figure:
    """Snapshots at β = 100 above, distance to the limit law against time below."""
    run = result.runs["β = 100"]
    figure = Figure(figsize=(10, 6), layout="constrained")
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(1, 1.5))[:, 0]
    side = np.asarray(run.x[0, :, 1] > 0).astype(int)
    names = ("start", "concentrating", "metastable", "leaving", "terminal")
    for t, name, ax in zip(SHOWN, names, above.subplots(1, len(SHOWN)), strict=True):
        index = int(np.argmin(np.abs(run.snapshot_ts - t)))
        figures.snapshot(run.tokens(index), ax=ax, colour=side, title=f"{name}, t = {t:g}")
    predicted = {"e^(−t/4), predicted": 1.6 * np.exp(-RATE * TIMES)}
    figures.curves(TIMES, result.distances, "t", "distance to Π♯ρ0", "y", predicted, ax=below.subplots(1, 1))
    return figure
