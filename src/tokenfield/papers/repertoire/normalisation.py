"""Placements of LayerNorm on one picture (2510.22026; theory §6.2): how each of them slows the collapse down.

n equiangular tokens stay equiangular, so that every scheme is a curve of ρ, their common inner product, and
r, their common length. Post-LN collapses like e^{−2t}, Pre- and Peri-LN like t^{−2}, LN-scaling like t^{−1};
without normalisation tokens decouple and do not collapse. Pre-LN, Peri-LN and LN-scaling run along one curve
ρ(r). Lines are the scalar equations of `theory.equiangular_norm`, dots are runs of tokens.
"""

from collections.abc import Callable
from typing import NamedTuple

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import tokenfield as tkf
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, Row, near
from tokenfield.theory.normalisation import Scheme

N, D, BETA, RHO, ALPHA, SWITCH = 6, 8, 1.0, 0.1, 0.5, 1.0
SCALAR = "theory §6.2: the scalar equations of equiangular tokens"
TERMINAL = "theory §6.2.2: terminal rates"
COMMON = "theory §6.2.1: dρ/dr = 2g/(ra) for the three of them"
#: Layers of the middle picture, and their step; α of nGPT is the same number. LN-scaling has the step 1:
#: A/√layer is the network only then.
LAYERS, STEP = 30, 0.1


class Placement(NamedTuple):
    """One scheme: its name for a person, how its model is made from attention, and its settings."""

    title: str
    made: Callable[[tkf.SoftmaxAttention], tkf.Model]
    settings: dict[str, float]
    free: bool


SCHEMES: dict[Scheme, Placement] = {
    "post": Placement("Post-LN", lambda m: m, {}, False),
    "ngpt": Placement(f"nGPT, α = {ALPHA:g}", lambda m: tkf.NGPT(m, ALPHA), {"alpha": ALPHA}, False),
    "mix": Placement(f"Mix-LN, τ = {SWITCH:g}", lambda m: tkf.MixNorm(m, SWITCH), {"switch": SWITCH}, True),
    "peri": Placement("Peri-LN", tkf.PeriNorm, {}, True),
    "pre": Placement("Pre-LN", tkf.PreNorm, {}, True),
    "scaled": Placement("LN-scaling", tkf.ScaledNorm, {}, True),
    "none": Placement("none", tkf.NoNorm, {}, True),
}
#: 1−ρ falls like t to minus this.
POWERS: dict[Scheme, float] = {"pre": 2.0, "peri": 2.0, "scaled": 1.0}


class Dots(NamedTuple):
    """A run: times, mean inner product of different directions, mean length."""

    ts: np.ndarray
    rho: np.ndarray
    r: np.ndarray


def tokens(free: bool) -> tkf.Tokens:
    """Equiangular tokens of length 1, lengths given where they move."""
    x = tkf.initial.equiangular(N, D, RHO).x
    return tkf.Tokens(x, radii=np.ones(N) if free else None)


def flow(scheme: Scheme, ts: np.ndarray) -> Dots:
    """The tokens themselves under a scheme."""
    model = SCHEMES[scheme].made(tkf.SoftmaxAttention(tkf.AttentionWeights.identity(D), BETA))
    return _dots(tkf.simulate(model, tokens(SCHEMES[scheme].free), ts, tkf.Adaptive(rtol=1e-10, atol=1e-12)))


def layers(scheme: Scheme) -> Dots:
    """The network of a scheme; one layer of nGPT is a step of 1 with α = η."""
    attention = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(D), BETA)
    model = tkf.NGPT(attention, STEP) if scheme == "ngpt" else SCHEMES[scheme].made(attention)
    step = 1.0 if scheme in ("ngpt", "scaled") else STEP
    ts = step * np.arange(0, LAYERS + 1, 3)
    return _dots(tkf.simulate(model, tokens(SCHEMES[scheme].free), ts, tkf.Layers(step)))


def _dots(run: tkf.Trajectory) -> Dots:
    G = np.einsum("tid,tjd->tij", run.x, run.x)
    rho = G[:, ~np.eye(N, dtype=bool)].mean(axis=1)
    r = np.ones(len(rho)) if run.radii is None else np.asarray(run.radii).mean(axis=1)
    return Dots(np.asarray(run.ts), rho, r)


def scalar(scheme: Scheme, ts: np.ndarray) -> tkf.theory.EquiangularOrbit:
    """The scalar equations."""
    return tkf.theory.equiangular_norm(scheme, N, BETA, RHO, 1.0, ts, **SCHEMES[scheme].settings)


def scalar_layers(scheme: Scheme) -> tkf.theory.EquiangularOrbit:
    """The scalar recursion, one entry for each layer."""
    settings = {"alpha": STEP} if scheme == "ngpt" else SCHEMES[scheme].settings
    step = 1.0 if scheme == "scaled" else STEP
    return tkf.theory.equiangular_norm_layers(scheme, N, BETA, RHO, 1.0, LAYERS, step, **settings)


def run(quick: bool, progress: Progress) -> Result:
    """The recipe."""
    chosen: list[Scheme] = ["post", "pre", "peri"] if quick else list(SCHEMES)
    ts = np.array([0, 0.3, 1, 3, 10, 30.0])
    flows, nets = {}, {}
    for k, scheme in enumerate(chosen):
        progress(k / len(chosen), SCHEMES[scheme].title)
        times = ts[ts <= 3] if scheme == "none" else ts  # r grows like e^t
        flows[scheme], nets[scheme] = flow(scheme, times), layers(scheme)
    checks = [check for scheme in chosen for check in _checks(scheme, flows[scheme], nets[scheme])]
    checks += [check for scheme in POWERS for check in _terminal(scheme)]
    checks += [_exponential("post", 2.0), _exponential("ngpt", 2 * ALPHA)]
    data = xr.Dataset()
    for part, found in (("flow", flows), ("layers", nets)):
        for scheme, dots in found.items():
            for name, values in dots._asdict().items():
                data[f"{part}_{scheme}_{name}"] = (f"{part}_{scheme}_time", values)
    rows = [_row(scheme) for scheme in SCHEMES]
    return Result(checks, rows, data, figure(flows, nets))


RECIPE = Recipe("normalisation", "where LayerNorm stands, and how it slows the collapse of tokens", run)


def _checks(scheme: Scheme, dots: Dots, net: Dots) -> list[Check]:
    title = SCHEMES[scheme].title
    at = int(np.searchsorted(dots.ts, 3.0))
    orbit, recursion = scalar(scheme, dots.ts[dots.ts <= 3]), scalar_layers(scheme)
    result = [
        near(f"{title}: ρ(3) of tokens", dots.rho[at], orbit.rho[-1], SCALAR, absolute=1e-8),
        near(f"{title}: ρ after {LAYERS} layers", net.rho[-1], recursion.rho[-1], SCALAR, absolute=1e-10),
    ]
    if SCHEMES[scheme].free:
        result.append(near(f"{title}: r(3) of tokens", dots.r[at], orbit.r[-1], SCALAR, relative=1e-8))
    if scheme in POWERS and scheme != "pre":
        place = np.interp(dots.r[1:4], *_curve("pre"))
        worst = float(np.max(np.abs(dots.rho[1:4] - place)))
        result.append(
            near(f"{title}: distance of tokens from Pre-LN's curve ρ(r)", worst, 0.0, COMMON, absolute=1e-5)
        )
    return result


def _curve(scheme: Scheme) -> tuple[np.ndarray, np.ndarray]:
    """r and ρ along the orbit."""
    orbit = scalar(scheme, np.linspace(0, 30, 3001))
    return orbit.r, orbit.rho


def _terminal(scheme: Scheme) -> list[Check]:
    """The power, by the scalar equations at late times, and the constant (1−ρ)r² with n = 16."""
    late = np.array([1e4, 1e5]) if scheme != "scaled" else np.array([1e7, 1e8])
    gap = 1 - scalar(scheme, late).rho
    title = SCHEMES[scheme].title
    end = tkf.theory.equiangular_norm(scheme, 16, BETA, RHO, 1.0, [1e3 if scheme != "scaled" else 1e6])
    constant = float((1 - end.rho[0]) * end.r[0] ** 2)
    return [
        near(
            f"{title}: power of t", float(np.log10(gap[0] / gap[1])), POWERS[scheme], TERMINAL, relative=1e-3
        ),
        near(f"{title}: (1−ρ)r² in the end, n = 16", constant, 1.06663, TERMINAL, absolute=6e-6),
    ]


def _exponential(scheme: Scheme, rate: float) -> Check:
    gap = 1 - scalar(scheme, np.array([8.0, 10.0])).rho
    return near(
        f"{SCHEMES[scheme].title}: rate of e^(−rate t)",
        float(np.log(gap[0] / gap[1]) / 2),
        rate,
        TERMINAL,
        relative=1e-3,
    )


def _row(scheme: Scheme) -> Row:
    orbit, recursion = scalar(scheme, np.array([3.0])), scalar_layers(scheme)
    return {
        "scheme": SCHEMES[scheme].title,
        "rho(3)": float(orbit.rho[0]),
        "r(3)": float(orbit.r[0]),
        f"rho after {LAYERS} layers": float(recursion.rho[-1]),
        f"r after {LAYERS} layers": float(recursion.r[-1]),
    }


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(flows: dict[Scheme, Dots], nets: dict[Scheme, Dots]) -> Figure:
    """1−ρ over time and over layers, and ρ against r; lines by the equations, dots by tokens."""
    drawing = Figure(figsize=(12.6, 4.6), layout="constrained")
    left, middle, right = drawing.subplots(1, 3)
    ts = np.concatenate([[0], np.geomspace(1e-2, 1e3, 300)])
    for k, (scheme, placement) in enumerate(SCHEMES.items()):
        look = {"color": tkf.figures.PALETTE[k if k < 6 else 7], "linestyle": tkf.figures.DASHES[k]}
        shown = ts[ts < 300] if scheme == "none" else ts  # r grows like e^t
        gap = 1 - scalar(scheme, shown).rho
        left.loglog(shown[1:], np.where(gap > 1e-9, gap, np.nan)[1:], label=placement.title, **look)
        middle.semilogy(np.arange(LAYERS + 1), 1 - scalar_layers(scheme).rho, **look)
        if placement.free:
            orbit = scalar(scheme, np.linspace(0, 200 if scheme != "none" else 2, 4001))
            right.plot(orbit.r, orbit.rho, **look)
        _draw_dots((left, middle, right), flows.get(scheme), nets.get(scheme), placement.free, look["color"])
    for power, place in ((2, (90, 7e-4)), (1, (60, 3e-2))):
        left.annotate(f"$t^{{-{power}}}$", place, color="0.3")
    left.set(xlabel="t", ylabel="1 − ρ", ylim=(1e-7, 1.3), title="flows")
    middle.set(xlabel="layer", ylabel="1 − ρ", title=f"layers, η = α = {STEP:g} (LN-scaling: η = 1)")
    right.set(xlabel="r", ylabel="ρ", xlim=(0.9, 8), ylim=(0, 1), title="Pre, Peri, LN-scaling: one curve")
    left.legend(fontsize=9, loc="lower left")
    return drawing


def _draw_dots(
    axes: tuple[Axes, Axes, Axes], dots: Dots | None, net: Dots | None, free: bool, colour: str
) -> None:
    if dots is None or net is None:
        return
    left, middle, right = axes
    seen = (dots.ts > 0) & (1 - dots.rho > 1e-9)
    left.loglog(dots.ts[seen], 1 - dots.rho[seen], "o", color=colour, markersize=5)
    middle.semilogy(3 * np.arange(len(net.rho)), 1 - net.rho, "o", color=colour, markersize=4)
    if free:
        right.plot(dots.r, dots.rho, "o", color=colour, markersize=5)
