"""Other kernels side by side: sigmoid, linear, L2 and Sinkhorn attention, and repulsion (theory §6.6).

Equiangular tokens reduce each kernel to one equation for their inner product. Sigmoid attention with the bias
−log n becomes unnormalised attention as n → ∞. Sinkhorn attention climbs half the value of an entropic
transport problem. Tokens that repel each other, V = −I, descend E_β to a universal optimum (Cohn and Kumar).
"""

from typing import NamedTuple

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import special

import tokenfield as tkf
from tokenfield.models.climbing import energy_of
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, at_most, near

REDUCED = "theory §6.6, derived: reduction to one inner product"
N, RHO, BETA = 6, 0.1, 1.0
SOLVER = tkf.Adaptive(1e-9, 1e-10)


def _kernels() -> dict[str, tuple[tkf.Model, np.ndarray]]:
    """Name → model in R^6 and the reduction of n = 6 equiangular tokens at `TIMES`."""
    identity, n = tkf.AttentionWeights.identity(N), N
    theory = tkf.theory
    sigmoid = theory.equiangular_kernel(TIMES, n, lambda s: n * special.expit(BETA * s - np.log(n)), RHO)
    softmax = theory.equiangular(TIMES, n, BETA, RHO)
    return {
        "softmax": (tkf.SoftmaxAttention(identity, BETA), softmax),
        "unnormalised": (
            tkf.UnnormalisedAttention(identity, BETA),
            theory.equiangular(TIMES, n, BETA, RHO, "unnormalised"),
        ),
        "sigmoid, bias −log n": (tkf.SigmoidAttention(identity, BETA, -np.log(n)), sigmoid),
        "linear": (
            tkf.LinearAttention(identity),
            theory.equiangular_kernel(TIMES, n, lambda s: s, RHO),
        ),
        "L2, Q = K = 1": (tkf.L2Attention(np.eye(n), np.eye(n), np.eye(n), BETA), softmax),
        "Sinkhorn": (tkf.SinkhornAttention(identity, BETA), softmax),
    }


TIMES = np.linspace(0, 5, 26)


class EquiangularCurves(NamedTuple):
    """ρ of the simulator and of the reduction by kernel, (times,) each."""

    found: dict[str, np.ndarray]
    reduced: dict[str, np.ndarray]


def curves(quick: bool) -> EquiangularCurves:
    """Inner product of equiangular tokens under every kernel; quickly under those that are new here."""
    found, reduced = {}, {}
    start = tkf.initial.equiangular(N, N, RHO)
    for name, (model, expected) in _kernels().items():
        if quick and name in ("unnormalised", "L2, Q = K = 1"):
            continue
        run = tkf.simulate(model, start, TIMES, SOLVER)
        found[name] = np.einsum("td,td->t", run.x[:, 0], run.x[:, 1])
        reduced[name] = expected
    return EquiangularCurves(found, reduced)


def sigmoid_gaps(counts: np.ndarray) -> np.ndarray:
    """Difference of sigmoid and unnormalised attention, ρ(.5) from .1 at β = 1, by number of tokens."""
    gaps = []
    for n in counts:
        n = int(n)
        sigmoid = tkf.theory.equiangular_kernel(
            [0.5], n, lambda s, n=n: n * special.expit(s - np.log(n)), 0.1
        )
        gaps.append(tkf.theory.equiangular([0.5], n, 1.0, 0.1, "unnormalised")[0] - sigmoid[0])
    return np.array(gaps)


def sinkhorn_energy(count: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Times (2·count + 1), energy of a Sinkhorn run, and its relative gap to the integral of ∫|v|²dμ."""
    model = tkf.SinkhornAttention(tkf.AttentionWeights.identity(3), 5.0)
    ts = np.linspace(0, 6, 2 * count + 1)
    run = tkf.simulate(model, tkf.initial.uniform(12, 3, 1), ts, SOLVER)
    laws = [run.tokens(k) for k in range(len(ts))]
    energy = np.array([float(energy_of(model, law)) for law in laws])
    speed = np.array([float(np.mean(np.sum(np.asarray(model.velocity(law)) ** 2, axis=1))) for law in laws])
    h = ts[1] - ts[0]
    simpson = h / 3 * (speed[0] + speed[-1] + 4 * speed[1:-1:2].sum() + 2 * speed[2:-1:2].sum())
    return ts, energy, abs(energy[-1] - energy[0] - simpson) / simpson


def repelled(n: int, d: int, key: int, t: float) -> tuple[np.ndarray, np.ndarray]:
    """Times, and E_2 of n random tokens of the sphere of R^d that repel each other up to t.

    Args:
        n: number of tokens.
        d: dimension.
        key: seed.
        t: last time.
    """
    model = tkf.SoftmaxAttention(tkf.AttentionWeights(np.eye(d), -np.eye(d)), 2.0)
    ts = np.concatenate([[0.0], np.geomspace(0.1, t, 40)])
    run = tkf.simulate(model, tkf.initial.uniform(n, d, key), ts, SOLVER)
    return ts, np.array([float(tkf.energy(run.tokens(k), 2.0)) for k in range(len(ts))])


CODES = {"tetrahedron": 4, "octahedron": 6, "icosahedron": 12}


def run(quick: bool, progress: Progress) -> Result:
    """The recipe."""
    progress(0.0, "equiangular tokens")
    found = curves(quick)
    progress(0.4, "sigmoid, Sinkhorn")
    counts = np.array([10.0**k for k in range(1, 7)])
    gaps, climbing = sigmoid_gaps(counts), sinkhorn_energy(30 if quick else 60)
    progress(0.6, "repulsion")
    names = ("icosahedron",) if quick else tuple(CODES)
    falls = {name: repelled(CODES[name], 3, 3, 300.0) for name in names}
    checks = [*_checks(found, counts, gaps, climbing[2]), *_optima(falls)]
    rows = [
        {"kernel": name, "t": t, "rho": rho, "reduction": exact}
        for name in found.found
        for t, rho, exact in zip(TIMES, found.found[name], found.reduced[name], strict=True)
    ]
    data = xr.Dataset(
        {
            "rho": (("kernel", "time"), np.array(list(found.found.values()))),
            "reduction": (("kernel", "time"), np.array(list(found.reduced.values()))),
            "sigmoid_gap": ("count", gaps),
            "sinkhorn_energy": ("step", climbing[1]),
        },
        {"kernel": np.arange(len(found.found)), "time": TIMES, "count": counts, "step": climbing[0]},
        {"kernels": "; ".join(found.found)},
    )
    return Result(checks, rows, data, figure(found, counts, gaps, climbing, falls))


RECIPE = Recipe(
    "kernels",
    "sigmoid, linear, L2 and Sinkhorn attention side by side, and repulsion to universal optima",
    run,
)


def _checks(found: EquiangularCurves, counts: np.ndarray, gaps: np.ndarray, identity: float) -> list[Check]:
    checks = [
        at_most(
            f"greatest difference of ρ from its reduction, {name}",
            np.abs(found.found[name] - found.reduced[name]).max(),
            1e-7,
            REDUCED,
        )
        for name in found.found
    ]
    slope = np.polyfit(np.log(counts[2:]), np.log(gaps[2:]), 1)[0]
    time = tkf.theory.linear_equiangular_time(RHO, 0.9, N)
    at = tkf.theory.equiangular_kernel([time], N, lambda s: s, RHO)[0]
    return [
        *checks,
        near(
            "exponent of n in unnormalised − sigmoid", slope, -1, "theory §6.6.3: O(e^{2β}/n)", absolute=0.01
        ),
        near("ρ of linear attention at its closed time for .9", at, 0.9, "theory §6.6.2", absolute=1e-9),
        at_most(
            "relative gap of ½J to ∫∫|v|²dμdt, Sinkhorn", identity, 1e-5, "theory §6.6.4: d(½J)/dt = ∫|v|²dμ"
        ),
    ]


def _optima(falls: dict[str, tuple[np.ndarray, np.ndarray]]) -> list[Check]:
    return [
        near(
            f"E_2 of {CODES[name]} random tokens at t = 300 under repulsion",
            energy[-1],
            float(tkf.energy(tkf.Tokens(tkf.theory.optimal_code(name)), 2.0)),
            f"theorem of Cohn and Kumar: the {name} is optimal (that tokens reach it is measured)",
            absolute=1e-9,
        )
        for name, (_, energy) in falls.items()
    ]


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(
    found: EquiangularCurves,
    counts: np.ndarray,
    gaps: np.ndarray,
    climbing: tuple[np.ndarray, np.ndarray, float],
    falls: dict[str, tuple[np.ndarray, np.ndarray]],
) -> Figure:
    """Four panels: equiangular curves, sigmoid → unnormalised, Sinkhorn's energy, repulsion.

    Args:
        found: curves of every kernel.
        counts: numbers of tokens.
        gaps: difference of sigmoid and unnormalised attention for each.
        climbing: times and energy of the Sinkhorn run.
        falls: times and energy of repelled tokens, by name of the optimum.
    """
    drawing = Figure(figsize=(10, 7), layout="constrained")
    (rho, sigmoid), (energy, repulsion) = drawing.subplots(2, 2)
    _equiangular(rho, found)
    sigmoid.loglog(counts, gaps, "o-", color=tkf.figures.PALETTE[0], label="ρ(½), difference")
    sigmoid.loglog(counts, gaps[-1] * counts[-1] / counts, ":", color="black", label="1/n")
    sigmoid.set(xlabel="n", title="unnormalised − sigmoid, bias −log n")
    sigmoid.legend(fontsize=8)
    energy.plot(climbing[0], climbing[1], color=tkf.figures.PALETTE[1])
    energy.set(xlabel="t", ylabel="½J", title="Sinkhorn attention climbs ½J")
    for (name, (ts, values)), colour in zip(falls.items(), tkf.figures.PALETTE, strict=False):
        least = float(tkf.energy(tkf.Tokens(tkf.theory.optimal_code(name)), 2.0))
        repulsion.loglog(ts[1:], np.maximum(values[1:] - least, 1e-16), color=colour, label=name)
    repulsion.set(xlabel="t", ylabel="E₂ − least energy", title="repulsion, V = −1, random starts")
    repulsion.legend(fontsize=8)
    return drawing


def _equiangular(ax: Axes, found: EquiangularCurves) -> None:
    """Lines are reductions, dots the simulator; kernels with one reduction share a line."""
    shared, marks = "softmax, L2, Sinkhorn", {"L2, Q = K = 1": "s", "Sinkhorn": "x"}
    colours = iter(tkf.figures.PALETTE)
    first = next(colours)
    for k, (name, rho) in enumerate(found.found.items()):
        colour = first if name == "softmax" or name in marks else next(colours)
        if name not in marks:
            label = shared if name == "softmax" else name
            ax.plot(TIMES, found.reduced[name], color=colour, label=label)
        ax.plot(TIMES[k % 3 :: 3], rho[k % 3 :: 3], marks.get(name, "o"), color=colour, markersize=4)
    ax.set(xlabel="t", ylabel="inner product ρ", title="6 equiangular tokens, β = 1 (dots: simulator)")
    ax.legend(loc="lower right", fontsize=8)
