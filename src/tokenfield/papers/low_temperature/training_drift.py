"""How the limit law moves while B and V drift from symmetric to trained-like random matrices.

Along B(s) = (1−s)I + sG, V(s) = (1−s)V0 + sG' (V0 symmetric, G and G' Gaussian) the dominant eigenvalue of
V Bᵀ stays real for a while and the limit law moves smoothly. Where two real eigenvalues meet they turn into a
pair and the tokens begin to circulate: a phase transition, at which the gap closes like |s − s*|^{1/2}; where
another eigenvalue or pair overtakes, it closes like |s − s*|.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from tokenfield import figures
from tokenfield import weights as ensembles
from tokenfield.diagnostics.phases import angle_to
from tokenfield.diagnostics.rates import fit_rate
from tokenfield.diagnostics.transport import coupled_distance
from tokenfield.papers import declared
from tokenfield.papers.low_temperature import worked
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, at_most, near
from tokenfield.theory.spectral import limit
from tokenfield.trajectory import Trajectory
from tokenfield.weights import AttentionWeights

SPECTRUM = (1.0, 0.7, 0.4, 0.1, -0.2, -0.5)
KEY, DIMENSION = 0, len(SPECTRUM)
ORBITS = "theory §2.8: orbits of e^(Dτ)"
BRANCH = "perturbation theory: merging eigenvalues part like a square root, crossing ones linearly"


def weights_at(s: float) -> AttentionWeights:
    """B and V at a point of the path."""
    B = (1 - s) * np.eye(DIMENSION) + s * np.asarray(ensembles.gaussian(DIMENSION, 100 + KEY))
    V = (1 - s) * np.asarray(ensembles.with_spectrum(SPECTRUM, KEY))
    return AttentionWeights(B, V + s * np.asarray(ensembles.gaussian(DIMENSION, 200 + KEY)))


@dataclass(frozen=True)
class Transition:
    """Where the kind of the limit changes, and whether two real eigenvalues merge there (or cross others)."""

    s: float
    merging: bool
    fixed_below: bool


def transition(low: float, high: float) -> Transition:
    """The change of kind between two points, by bisection."""
    kind = limit(weights_at(low)).kind
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if limit(weights_at(middle)).kind == kind else (low, middle)
    s = (low + high) / 2
    turning = limit(weights_at(s + 1e-6 * (1 if kind == "fixed" else -1)))
    # a pair born by merging turns slowly at first, like the root of the distance
    return Transition(s, abs(np.imag(turning.eigenvalue)) < 0.05, kind == "fixed")


def grids(quick: bool) -> dict[str, dict[str, Any]]:
    """Zero-temperature runs at points of the path, each until long after its gap has done its work."""
    tokens = worked.sphere_tokens(256 if quick else 2048, DIMENSION)
    points = np.linspace(0.05, 0.95, 7 if quick else 13)
    cases = [{"weights": declared.attention(weights_at(s)), "times.at": [0.0, _long(s)]} for s in points]
    return {
        "path": {
            "model": {"kind": "zero-temperature"},
            "initial": declared.atoms(tokens),
            "solver": declared.adaptive(worked.SOLVER),
            "run": {"measure": [], "snapshots": [0, -1], "summation": "direct"},
            "sweep": declared.together(cases),
        }
    }


def run(quick: bool, progress: Progress, found: Mapping[str, xr.Dataset]) -> Result:
    """The recipe."""
    path = np.linspace(0, 1, 101 if quick else 401)
    progress(0.0, "spectra along the path")
    limits = [limit(weights_at(s)) for s in path]
    values = np.array([np.sort_complex(np.linalg.eigvals(np.asarray(weights_at(s).D)))[::-1] for s in path])
    changes = [transition(path[k], path[k + 1]) for k, (a, b) in enumerate(itertools.pairwise(limits))
               if a.kind != b.kind]  # fmt: skip
    checks = [_closing(change) for change in changes]
    progress(0.5, "where the runs ended")
    ended = declared.runs(found["path"])
    checks += [
        _simulated(s, each) for s, each in zip(np.linspace(0.05, 0.95, len(ended)), ended, strict=True)
    ]
    progress(0.6, "how the law moves")
    moved = np.array([_moved(s) for s in path])
    skew = np.array([_skew(s) for s in path])
    gaps = np.array([found.gap for found in limits])
    rotating = np.array([found.kind == "rotating" for found in limits])
    rows = [{"s": s, "kind": found.kind, "real part": float(np.real(found.eigenvalue)), "gap": found.gap,
             "asymmetry": a, "speed of the law": m}
            for s, found, a, m in zip(path, limits, skew, moved, strict=True)]  # fmt: skip
    data = xr.Dataset(
        {"real": (("s", "index"), values.real), "imaginary": (("s", "index"), values.imag),
         "gap": ("s", gaps), "rotating": ("s", rotating), "speed": ("s", moved), "asymmetry": ("s", skew)},
        {"s": path},
    )  # fmt: skip
    return Result(checks, rows, data, figure(path, values, gaps, rotating, moved, skew, changes))


RECIPE = Recipe(
    "training-drift",
    "how the limit law moves as B, V drift from symmetric to random; crossings as transitions",
    run,
    grids,
)


def _closing(change: Transition) -> Check:
    """Exponent with which the gap, or the frequency of a new pair, vanishes at the transition, fixed side."""
    away = np.logspace(-6, -3.5, 11)
    gaps = [limit(weights_at(change.s + (-a if change.fixed_below else a))).gap for a in away]
    power = fit_rate(away, gaps, model="power").power
    kind = "merging" if change.merging else "crossing"
    name = f"exponent of the gap at s = {change.s:.4f}, {kind}"
    return near(name, power, 0.5 if change.merging else 1.0, BRANCH, absolute=0.03)


def _long(s: float) -> float:
    """Many times the slowest time of the flow."""
    weights = weights_at(s)
    return 25 * float(np.linalg.norm(np.asarray(weights.B), 2)) / limit(weights).gap


def _simulated(s: float, found: Trajectory) -> Check:
    """Whether the zero-temperature flow ends where the limit says."""
    where = limit(weights_at(s))
    tokens, end = found.tokens(0), found.tokens(-1)
    if where.kind == "rotating":
        off = float(np.sqrt(end.weights @ angle_to(end, where.basis) ** 2))
        return at_most(f"s = {s:.2f}, rotating: rms angle to the circle in the end", off, 1e-3, ORBITS)
    off = coupled_distance(end.x, where.push(tokens).x, tokens.weights)
    return at_most(f"s = {s:.2f}, {where.kind}: W2 to Π♯ρ0 in the end", off, 1e-3, ORBITS)


def _moved(s: float, step: float = 1e-4) -> float:
    """|ṗ|: how fast the atom of the limit law moves along the path; NaN where there is no such atom."""
    here, there = limit(weights_at(s)), limit(weights_at(min(s + step, 1.0)))
    if here.kind != "fixed" or there.kind != "fixed" or s + step > 1:
        return np.nan
    chord = abs(float(here.basis[:, 0] @ there.basis[:, 0]))
    return float(np.arccos(min(chord, 1.0)) / step)


def _skew(s: float) -> float:
    D = np.asarray(weights_at(s).D)
    return float(np.linalg.norm(D - D.T) / np.linalg.norm(D))


@matplotlib.rc_context(figures.STYLE)
def figure(
    path: np.ndarray,
    values: np.ndarray,
    gaps: np.ndarray,
    rotating: np.ndarray,
    moved: np.ndarray,
    skew: np.ndarray,
    changes: list[Transition],
) -> Figure:
    """Spectrum, gap, speed of the law and asymmetry along the path; rotating stretches shaded."""
    drawing = Figure(figsize=(9, 8.5), layout="constrained")
    spectrum, gap, speed = drawing.subplots(3, 1, sharex=True, height_ratios=(1.5, 1, 1))
    real = np.abs(np.imag(values)) < 1e-9
    at = np.broadcast_to(path[:, None], values.shape)
    spectrum.plot(at[real], np.real(values)[real], "o", markersize=3, color=figures.PALETTE[0], label="real")
    spectrum.plot(
        at[~real], np.real(values)[~real], "s", markersize=3, color=figures.PALETTE[1], label="pair"
    )
    spectrum.set_ylabel("real parts of the\neigenvalues of V Bᵀ")
    spectrum.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    gap.semilogy(path, gaps, color="0.1")
    gap.set_ylabel("gap below the\ndominant real part")
    speed.semilogy(path, moved, color=figures.PALETTE[2], label="speed of the\nlimit law")
    speed.semilogy(path[1:], skew[1:], color="0.4", linestyle=(0, (3, 2)), label="‖D − Dᵀ‖/‖D‖")
    speed.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    speed.set(xlabel="s, from symmetric (0) to random (1)", ylabel="speed, asymmetry")
    edges = [path[0], *(change.s for change in changes), path[-1]]
    for ax in (spectrum, gap, speed):
        for low, high in itertools.pairwise(edges):
            if np.mean(rotating[(path > low) & (path < high)]) > 0.5:
                ax.axvspan(low, high, color="0.92", linewidth=0, zorder=0)
    spectrum.set_title("shaded: a complex pair dominates, tokens circulate", loc="left", fontsize=11)
    return drawing
