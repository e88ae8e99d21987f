"""How the limit law moves while B and V drift from symmetric to trained-like random matrices.

Along B(s) = (1−s)I + sG, V(s) = (1−s)V0 + sG' (V0 symmetric, G and G' Gaussian) the dominant eigenvalue of
V Bᵀ stays real for a while and the limit law moves smoothly. Where two real eigenvalues merge they turn into
a pair and the tokens begin to circulate: a phase transition, at which the gap closes like |s − s*|^{1/2}.
Where another eigenvalue crosses the dominant pair, the gap closes like |s − s*|, and the law jumps.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import tokenfield as tkf
from tokenfield.measure.limit_law import limit_distance
from tokenfield.measure.target import rms_angle
from tokenfield.models.attention import ZeroTemperature
from tokenfield.papers import declared
from tokenfield.papers.low_temperature import worked
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, Row, at_most, near
from tokenfield.sweeps.grid import Grid
from tokenfield.sweeps.objects import declare_runs

SPECTRUM = (1.0, 0.7, 0.4, 0.1, -0.2, -0.5)
DIMENSION = len(SPECTRUM)
ORBITS = "theory §2.8: orbits of e^(Dτ)"
BRANCH = "perturbation theory: merging eigenvalues part like a square root, crossing ones linearly"


@dataclass(frozen=True)
class Path:
    """From symmetric matrices (s = 0) to random ones (s = 1), drawn with `key`."""

    key: int

    def weights(self, s: float) -> tkf.AttentionWeights:
        """B and V at a point of the path."""
        B = (1 - s) * np.eye(DIMENSION) + s * np.asarray(tkf.ensembles.gaussian(DIMENSION, 100 + self.key))
        V = (1 - s) * np.asarray(tkf.ensembles.with_spectrum(SPECTRUM, self.key))
        return tkf.AttentionWeights(B, V + s * np.asarray(tkf.ensembles.gaussian(DIMENSION, 200 + self.key)))

    def limit(self, s: float) -> tkf.theory.Limit:
        """The limit at a point of the path."""
        return tkf.theory.limit(self.weights(s))


#: On the first eigenvalues merge three times; on the second they merge, then one crosses the pair.
PATHS = (Path(0), Path(2))


@dataclass(frozen=True)
class Transition:
    """Where the kind of the limit changes, and whether two real eigenvalues merge there (or cross others)."""

    s: float
    merging: bool
    fixed_below: bool


def transition(path: Path, low: float, high: float) -> Transition:
    """The change of kind between two points, by bisection.

    Args:
        path: of the matrices.
        low: a point before the change.
        high: a point after it.
    """
    kind = path.limit(low).kind
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if path.limit(middle).kind == kind else (low, middle)
    s = (low + high) / 2
    turning = path.limit(s + 1e-6 * (1 if kind == "fixed" else -1))
    # a pair born by merging turns slowly at first, like the root of the distance
    return Transition(s, abs(np.imag(turning.eigenvalue)) < 0.05, kind == "fixed")


@dataclass(frozen=True, eq=False)
class SpectralDrift:
    """What was found along a path, at the points `s`; `eigenvalues` (points, d)."""

    path: Path
    s: np.ndarray
    limits: list[tkf.theory.Limit]
    eigenvalues: np.ndarray
    speed: np.ndarray
    asymmetry: np.ndarray
    transitions: list[Transition]

    @property
    def gaps(self) -> np.ndarray:
        """Below the dominant real part."""
        return np.array([each.gap for each in self.limits])

    @property
    def rotating(self) -> np.ndarray:
        """Whether a pair dominates."""
        return np.array([each.kind == "rotating" for each in self.limits])


def drift(path: Path, points: np.ndarray) -> SpectralDrift:
    """Spectrum, limit, its speed and its transitions along a path."""
    limits = [path.limit(s) for s in points]
    values = [np.linalg.eigvals(np.asarray(path.weights(s).D)) for s in points]
    return SpectralDrift(
        path,
        points,
        limits,
        np.array([np.sort_complex(each)[::-1] for each in values]),
        np.array([_speed(path, s) for s in points]),
        np.array([_asymmetry(path, s) for s in points]),
        [
            transition(path, points[k], points[k + 1])
            for k, (a, b) in enumerate(itertools.pairwise(limits))
            if a.kind != b.kind
        ],
    )


def _speed(path: Path, s: float, step: float = 1e-4) -> float:
    """|ṗ|: how fast the atom of the limit law moves along the path; NaN where there is no such atom."""
    here, there = path.limit(s), path.limit(min(s + step, 1.0))
    if here.kind != "fixed" or there.kind != "fixed" or s + step > 1:
        return np.nan
    chord = abs(float(here.basis[:, 0] @ there.basis[:, 0]))
    return float(np.arccos(min(chord, 1.0)) / step)


def _asymmetry(path: Path, s: float) -> float:
    D = np.asarray(path.weights(s).D)
    return float(np.linalg.norm(D - D.T) / np.linalg.norm(D))


def _simulated(quick: bool) -> list[tuple[Path, float]]:
    """Where tokens are run."""
    return [(path, float(s)) for path in PATHS for s in np.linspace(0.05, 0.95, 7 if quick else 13)]


def grids(quick: bool) -> dict[str, Grid]:
    """Zero-temperature runs at points of the paths, each until long after its gap has done its work."""
    tokens = worked.sphere_tokens(256 if quick else 2048, DIMENSION)
    places = _simulated(quick)
    return {
        "path": declare_runs(
            [ZeroTemperature(path.weights(s)) for path, s in places],
            tokens,
            [np.array([0.0, _long(path, s)]) for path, s in places],
            worked.SOLVER,
            measure=(),
            snapshots=[0, -1],
            summation="direct",
            together=True,
        )
    }


def _long(path: Path, s: float) -> float:
    """Many times the slowest time of the flow."""
    return 25 * float(np.linalg.norm(np.asarray(path.weights(s).B), 2)) / path.limit(s).gap


def run(quick: bool, progress: Progress, found: Mapping[str, xr.Dataset]) -> Result:
    """Run the recipe and judge what it finds.

    Args:
        quick: whether the smaller size is wanted.
        progress: called with the share done and what is being done.
        found: datasets of the declared sweeps, by name.
    """
    points = np.linspace(0, 1, 101 if quick else 401)
    drifts = []
    for k, path in enumerate(PATHS):
        progress(k / 3, f"spectra along path {k + 1}")
        drifts.append(drift(path, points))
    progress(2 / 3, "where the runs ended")
    checks = [_closing(each.path, change) for each in drifts for change in each.transitions]
    ended = declared.runs(found["path"])
    checks += [_ended(path, s, each) for (path, s), each in zip(_simulated(quick), ended, strict=True)]
    rows = [row for each in drifts for row in _rows(each)]
    return Result(checks, rows, _data(drifts), figure(drifts))


RECIPE = Recipe(
    "training-drift",
    "how the limit law moves as B, V drift from symmetric to random; crossings as transitions",
    run,
    grids,
)


def _name(path: Path) -> str:
    return f"path {PATHS.index(path) + 1}"


def _closing(path: Path, change: Transition) -> Check:
    """Exponent with which the gap, or the frequency of a new pair, vanishes at the transition, fixed side."""
    away = np.logspace(-6, -3.5, 11)
    gaps = [path.limit(change.s + (-a if change.fixed_below else a)).gap for a in away]
    power = tkf.fit_rate(away, gaps, model="power").power
    kind = "merging" if change.merging else "crossing"
    name = f"exponent of the gap at s = {change.s:.4f}, {kind}, {_name(path)}"
    return near(name, power, 0.5 if change.merging else 1.0, BRANCH, absolute=0.03)


def _ended(path: Path, s: float, found: tkf.Trajectory) -> Check:
    """Whether the zero-temperature flow ends where the limit says."""
    where = path.limit(s)
    tokens, end = found.tokens(0), found.tokens(-1)
    name = f"s = {s:.2f}, {_name(path)}, {where.kind}"
    if where.kind == "rotating":
        off = rms_angle(end, where.basis)
        return at_most(f"{name}: rms angle to the circle in the end", off, 1e-3, ORBITS)
    return at_most(f"{name}: W2 to Π♯ρ0 in the end", limit_distance(where, tokens)(end), 1e-3, ORBITS)


def _rows(found: SpectralDrift) -> list[Row]:
    return [
        {
            "path": _name(found.path),
            "s": s,
            "kind": each.kind,
            "real part": float(np.real(each.eigenvalue)),
            "gap": each.gap,
            "asymmetry": a,
            "speed of the law": v,
        }
        for s, each, a, v in zip(found.s, found.limits, found.asymmetry, found.speed, strict=True)
    ]


def _data(drifts: Sequence[SpectralDrift]) -> xr.Dataset:
    def stack(name: str) -> np.ndarray:
        return np.stack([getattr(each, name) for each in drifts])

    values = stack("eigenvalues")
    curves = {"gap": "gaps", "rotating": "rotating", "speed": "speed", "asymmetry": "asymmetry"}
    return xr.Dataset(
        {
            "real": (("path", "s", "index"), np.real(values)),
            "imaginary": (("path", "s", "index"), np.imag(values)),
        }
        | {name: (("path", "s"), stack(what)) for name, what in curves.items()},
        {"s": drifts[0].s},
    )


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(drifts: Sequence[SpectralDrift]) -> Figure:
    """Spectrum, gap, speed of the law and asymmetry along each path; rotating stretches shaded."""
    drawing = Figure(figsize=(11.5, 8.5), layout="constrained")
    grid = drawing.subplots(3, len(drifts), sharex=True, sharey="row", height_ratios=(1.5, 1, 1))
    for column, each in zip(grid.T, drifts, strict=True):
        _draw(column, each)
    spectrum, gap, speed = grid[:, 0]
    spectrum.set_ylabel("real parts of the\neigenvalues of V Bᵀ")
    gap.set_ylabel("gap below the\ndominant real part")
    speed.set_ylabel("speed, asymmetry")
    for ax in (grid[0, -1], grid[2, -1]):
        ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    drawing.suptitle("shaded: a complex pair dominates, tokens circulate", x=0.02, ha="left", fontsize=11)
    return drawing


def _draw(column: Sequence[Axes], found: SpectralDrift) -> None:
    spectrum, gap, speed = column
    real = np.abs(np.imag(found.eigenvalues)) < 1e-9
    at = np.broadcast_to(found.s[:, None], real.shape)
    for which, mark, colour, name in ((real, "o", 0, "real"), (~real, "s", 1, "pair")):
        spectrum.plot(
            at[which],
            np.real(found.eigenvalues)[which],
            mark,
            markersize=3,
            color=tkf.figures.PALETTE[colour],
            label=name,
        )
    spectrum.set_title(_name(found.path), loc="left")
    gap.semilogy(found.s, found.gaps, color="0.1")
    speed.semilogy(found.s, found.speed, color=tkf.figures.PALETTE[2], label="speed of the\nlimit law")
    speed.semilogy(found.s[1:], found.asymmetry[1:], color="0.4", linestyle=(0, (3, 2)), label="‖D − Dᵀ‖/‖D‖")
    speed.set_xlabel("s, from symmetric (0) to random (1)")
    edges = [found.s[0], *(change.s for change in found.transitions), found.s[-1]]
    for low, high in itertools.pairwise(edges):
        if np.mean(found.rotating[(found.s > low) & (found.s < high)]) > 0.5:
            for ax in column:
                ax.axvspan(low, high, color="0.92", linewidth=0, zorder=0)
