"""The phase diagram of 2,048 systems × 90 values of β (d = 2, n = 32, t ≤ 30) against the same loop in NumPy.

The same Runge–Kutta steps on the same systems in double precision; NumPy is timed on a part and scaled by the
number of systems. As the recipe runs it, ours is a sweep with a worker on every core (their start included),
and merges tokens that are together.
"""

import tempfile
import time
from pathlib import Path

import numpy as np

import tokenfield as tkf
from report import Row
from tokenfield.papers.clustering import phase_diagram, staircase
from tokenfield.sweeps import pairs

SYSTEMS, BETAS = 2048, np.linspace(0.1, 9, 90)
SAVES = round(phase_diagram.LAST / (phase_diagram.STRIDE * phase_diagram.STEP))
#: What NumPy is timed on: systems at a time, values of β, saved times.
PART, FEW, SHORT = 128, 3, 5
CASE = "phase diagram, n = 32, 2048 systems × 90 β, t ≤ 30"


def rows() -> list[Row]:
    theta0 = pairs.start(SYSTEMS, 0, phase_diagram.N)
    phase_diagram.shares(theta0[:, :PART], BETAS[:1], SAVES)  # compiles
    numpy = _numpy_seconds(theta0[:, :PART])
    alike = _seconds(lambda: phase_diagram.shares(theta0[:, : 2 * PART], BETAS[::30], SAVES, merge=False))
    alike *= SYSTEMS / (2 * PART) * 30
    whole = _seconds(_swept)
    climbed = _seconds(lambda: staircase.climb(9.0, 200))
    return [
        Row("phase diagram", f"{CASE}, tokenfield", f"{whole:.0f} s"),
        Row("phase diagram", f"{CASE}, NumPy (a part, scaled)", f"{numpy:.0f} s"),
        Row("phase diagram", "speed against NumPy, none merged (a part)", f"{numpy / alike:.1f} ×"),
        Row("phase diagram", "speed against NumPy", f"{numpy / whole:.1f} ×", "≥ 5 ×", numpy / whole >= 5),
        Row("staircase", "β = 9, n = 200, to the last merger", f"{climbed:.0f} s", "< 120 s", climbed < 120),
    ]


def _swept() -> None:
    with tempfile.TemporaryDirectory() as place:
        data = tkf.sweep(phase_diagram.grid(BETAS, SYSTEMS), store=Path(place) / "sweep")
        assert (data.state == 1).all()


def _seconds(run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _numpy_seconds(theta0: np.ndarray) -> float:
    """Seconds of NumPy for everything, from a part of it."""
    betas = BETAS[:: len(BETAS) // FEW]
    seconds = _seconds(lambda: [_numpy_shares(theta0.T, beta, SHORT) for beta in betas])
    return seconds * (SYSTEMS / len(theta0.T)) * (len(BETAS) / len(betas)) * (SAVES / SHORT)


def _numpy_shares(theta: np.ndarray, beta: float, saves: int) -> np.ndarray:
    """The loop as one writes it in NumPy: all pairs of all systems at once."""
    h, found = phase_diagram.STEP, []
    for _ in range(saves):
        for _ in range(phase_diagram.STRIDE):
            k1 = _numpy_velocity(theta, beta)
            k2 = _numpy_velocity(theta + h / 2 * k1, beta)
            k3 = _numpy_velocity(theta + h / 2 * k2, beta)
            theta = theta + h / 6 * (k1 + 2 * k2 + 2 * k3 + _numpy_velocity(theta + h * k3, beta))
        x = np.stack([np.cos(theta), np.sin(theta)], axis=-1)
        met = x @ np.swapaxes(x, 1, 2) >= 1 - pairs.MET
        found.append(np.mean(met))
    return np.array(found)


def _numpy_velocity(theta: np.ndarray, beta: float) -> np.ndarray:
    """Softmax through unit vectors and matrix products, which is quicker than sines of differences."""
    x = np.stack([np.cos(theta), np.sin(theta)], axis=-1)
    pull = np.exp(beta * (x @ np.swapaxes(x, 1, 2) - 1))
    mean = pull @ x / pull.sum(axis=2, keepdims=True)
    return x[..., 0] * mean[..., 1] - x[..., 1] * mean[..., 0]
