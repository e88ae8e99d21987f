"""The phase diagram: which share of pairs of tokens has met, over β and time, for many small systems at once.

n tokens drawn uniformly on the circle, softmax flow; a pair has met when ⟨x,y⟩ ≥ 1 − 10⁻³. At small β all
meet by t ≈ 10; at large β the share stops at a plateau of several clusters, for times exponential in β. The
curve is the equiangular system (d ≥ n, ρ_0 = 0): tokens in many dimensions follow it, those of the circle do
not.

All systems at one β are one cell of a sweep (`sweep/pairs.py`).
"""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import xarray as xr
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

import tokenfield as tkf
from tokenfield.papers.clustering import shared
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, near
from tokenfield.sweeps import pairs
from tokenfield.sweeps.pairs import MET

#: Tokens per system; step of the Runge–Kutta formula; steps per saved time.
N, STEP, STRIDE = 32, 0.1, 2
LAST = 30.0
#: Dimension of the second panel: pairs of its random tokens are nearly orthogonal.
HIGH = 1024


class MeetingDiagram(NamedTuple):
    """Share of pairs that have met, (betas, times)."""

    betas: np.ndarray
    ts: np.ndarray
    share: np.ndarray


def shares(
    theta0: Float[np.ndarray, "n systems"],
    betas: np.ndarray,
    saves: int,
    step: float = STEP,
    stride: int = STRIDE,
    merge: bool = True,
) -> MeetingDiagram:
    """What cells of the sweep compute, for given systems: the share of pairs that have met, by β.

    Args:
        theta0: angles at the start, (n, systems).
        betas: inverse temperatures, (betas,).
        saves: saved times after 0.
        step: of the Runge–Kutta formula.
        stride: steps per saved time.
        merge: whether tokens that are together go on as one.
    """
    with ThreadPoolExecutor(pairs.threads()) as pool:
        rows = [
            np.concatenate(list(pairs.parts(pool, theta0, float(beta), saves, step, stride, merge)))
            for beta in betas
        ]
    return MeetingDiagram(np.asarray(betas), stride * step * np.arange(saves + 1), np.stack(rows))


def any_dimension(
    x: Float[np.ndarray, "systems n d"],
    betas: np.ndarray,
    saves: int,
    step: float = STEP,
    stride: int = STRIDE,
) -> MeetingDiagram:
    """The same for tokens in R^d, by their inner products G, which do not ask what d is.

    With the softmax weights P of the rows, G' = PG + (PG)ᵀ − (r_i + r_j)G, r_i = Σ_j P_ij G_ij.

    Args:
        x: tokens at the start, (systems, n, d).
        betas: inverse temperatures, (betas,).
        saves: saved times after 0.
        step: of the Runge–Kutta formula.
        stride: steps per saved time.
    """
    G = np.repeat((x @ np.swapaxes(x, 1, 2))[None], len(betas), axis=0)
    off = ~np.eye(x.shape[1], dtype=bool)

    def slope(G: np.ndarray) -> np.ndarray:
        P = np.exp(betas[:, None, None, None] * (G - 1))
        P /= P.sum(axis=-1, keepdims=True)
        pulled = P @ G
        r = np.sum(P * G, axis=-1)
        return pulled + np.swapaxes(pulled, -1, -2) - (r[..., None] + r[..., None, :]) * G

    share = [np.mean(G[..., off] >= 1 - MET, axis=(1, 2))]
    for _ in range(saves):
        for _ in range(stride):
            k1 = slope(G)
            k2 = slope(G + step / 2 * k1)
            k3 = slope(G + step / 2 * k2)
            G = G + step / 6 * (k1 + 2 * k2 + 2 * k3 + slope(G + step * k3))
        share.append(np.mean(G[..., off] >= 1 - MET, axis=(1, 2)))
    return MeetingDiagram(betas, stride * step * np.arange(saves + 1), np.stack(share, axis=1))


def equiangular_times(betas: np.ndarray) -> np.ndarray:
    """Time at which n orthogonal tokens, d ≥ n, have met: ρ = 1 − 10⁻³; infinite after t = 60."""
    ts = np.linspace(0, 2 * LAST, 2401)
    found = []
    for beta in betas:
        rho = tkf.theory.equiangular(ts, N, float(beta), 0.0)
        k = int(np.searchsorted(rho, 1 - MET))
        found.append(np.interp(1 - MET, rho[k - 1 : k + 1], ts[k - 1 : k + 1]) if 0 < k < len(ts) else np.inf)
    return np.array(found)


def half_times(diagram: MeetingDiagram) -> np.ndarray:
    """When half of the pairs have met, for every β."""
    found = []
    for row in diagram.share:
        k = int(np.argmax(row >= 0.5))
        found.append(np.interp(0.5, row[k - 1 : k + 1], diagram.ts[k - 1 : k + 1]) if k > 0 else np.inf)
    return np.array(found)


def random_tokens(systems: int, d: int, key: int) -> np.ndarray:
    """Uniform tokens on the sphere of R^d, (systems, n, d).

    Args:
        systems: how many systems.
        d: dimension of the surrounding space.
        key: seed.
    """
    x = np.random.default_rng(key).normal(size=(systems, N, d))
    return x / np.linalg.norm(x, axis=2, keepdims=True)


def grid(betas: np.ndarray, systems: int) -> dict[str, Any]:
    """The sweep over β."""
    carried = {"n": N, "systems": systems, "key": 0, "stop": LAST, "step": STEP, "stride": STRIDE}
    return {"pairs": carried, "sweep": {"pairs": {"beta": betas.tolist()}}}


def grids(quick: bool) -> dict[str, dict[str, Any]]:
    """The diagram in two dimensions."""
    return {"circle": grid(np.linspace(0.3, 9, 16), 128) if quick else grid(np.linspace(0.1, 9, 90), 2048)}


def run(quick: bool, progress: Progress, swept: Mapping[str, xr.Dataset]) -> Result:
    """Run the recipe and judge what it finds.

    Args:
        quick: whether the smaller size is wanted.
        progress: called with the share done and what is being done.
        swept: datasets of the declared sweeps, by name.
    """
    found = swept["circle"]
    systems = int(json.loads(found.attrs["declaration"])["pairs"]["systems"])
    betas, saves = found.beta.values, round(LAST / (STRIDE * STEP))
    flat = MeetingDiagram(betas, found.time.values, found.share.transpose("beta", "time").values)
    progress(0.0, f"d = {HIGH}")
    cold = np.arange(0.5, 9.1, 0.5 if quick else 0.25)
    high = any_dimension(random_tokens(1 if quick else 4, HIGH, key=1), cold, saves)
    progress(0.75, "β = 0 exactly")
    boosted = exact_at_zero(pairs.start(systems, 0, N)[:, :32])
    data = xr.Dataset(
        {
            "share": (("beta", "time"), flat.share),
            "share_high": (("beta_high", "time"), high.share),
            "equiangular": ("beta", equiangular_times(betas)),
        },
        {"beta": betas, "time": flat.ts, "beta_high": cold},
    )
    rows = [
        {"beta": b, "half met, d = 2": h, "equiangular": e, "share at the end": s}
        for b, h, e, s in zip(
            betas, half_times(flat), equiangular_times(betas), flat.share[:, -1], strict=True
        )
    ]
    return Result(checks(flat, high, boosted, systems), rows, data, figure(flat, high, systems))


RECIPE = Recipe(
    "phase-diagram",
    "share of pairs that have met over β and time, many small systems, equiangular curve",
    run,
    grids,
)


def exact_at_zero(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shares at β = 0 at six times: of the systems carried on, and of the Lorentz boost that solves them."""
    ts = np.arange(6) * 2.0
    exact = []
    for row in theta.T:
        x = tkf.theory.lorentz(np.stack([np.cos(row), np.sin(row)], axis=1), np.full(N, 1 / N), ts)
        g = x @ np.swapaxes(x, 1, 2)
        exact.append(np.mean(g[:, ~np.eye(N, dtype=bool)] >= 1 - MET, axis=1))
    carried = shares(theta, np.zeros(1), 50).share[0, ::10]
    return carried, np.mean(exact, axis=0)


def checks(
    flat: MeetingDiagram, high: MeetingDiagram, boosted: tuple[np.ndarray, np.ndarray], systems: int
) -> list[Check]:
    """Shares at the start and at β = 0; the end at small β; the equiangular curve in high dimension.

    Args:
        flat: the diagram on the circle.
        high: that in high dimension.
        boosted: shares at β = 0, carried and exact, (times,) each.
        systems: how many systems the first diagram has.
    """
    chance = np.arccos(1 - MET) / np.pi
    noise = np.sqrt(chance * (1 - chance) / (systems * N * (N - 1) / 2))
    result = [
        near(
            "share of pairs met at the start, d = 2",
            flat.share[0, 0],
            chance,
            "uniform angles: arccos(1 − 10⁻³)/π, four standard errors",
            absolute=4 * noise,
        ),
        near(
            "share at β = 0 against the Lorentz boost, greatest gap",
            float(np.max(np.abs(boosted[0] - boosted[1]))),
            0.0,
            "theory §4: β = 0",
            absolute=1e-3,
        ),
        near(
            f"share at t = {LAST:g}, β = {flat.betas[0]:g}, d = 2",
            flat.share[0, -1],
            1.0,
            f"{shared.PAPER}, Theorem 2.4 (small β)",
            absolute=0.01,
        ),
    ]
    curve = equiangular_times(high.betas)
    halves = half_times(high)
    shown = [k for k, beta in enumerate(high.betas) if beta in (0.5, 1.0, 2.0, 3.0, 4.0)]
    return result + [
        near(
            f"time at which half of the pairs have met, d = {HIGH}, β = {high.betas[k]:g}",
            halves[k],
            curve[k],
            "theory §4: equiangular tokens, ρ_0 = 0",
            relative=0.05,
        )
        for k in shown
    ]


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(flat: MeetingDiagram, high: MeetingDiagram, systems: int) -> Figure:
    """Time to the right, β upwards, the share as colour; d = 2 and high dimension side by side.

    Args:
        flat: the diagram on the circle.
        high: that in high dimension.
        systems: how many systems the first diagram has.
    """
    drawing = Figure(figsize=(10.6, 4.6), layout="constrained")
    left, right = drawing.subplots(1, 2, sharey=True)
    image = _draw(left, flat, f"d = 2, {systems} systems")
    _draw(right, high, f"d = {HIGH}")
    left.set_ylabel("β")
    bar = drawing.colorbar(image, ax=[left, right], label="share of pairs that have met", pad=0.02)
    bar.outline.set_visible(False)
    right.legend(loc="lower right", frameon=True, framealpha=0.85, edgecolor="none")
    return drawing


def _draw(ax: Axes, diagram: MeetingDiagram, title: str) -> QuadMesh:
    image = ax.pcolormesh(
        diagram.ts,
        diagram.betas,
        diagram.share,
        cmap="viridis",
        vmin=0,
        vmax=1,
        shading="nearest",
        rasterized=True,
    )
    betas = np.linspace(diagram.betas[0], diagram.betas[-1], 60)
    ax.plot(equiangular_times(betas), betas, color="white", linewidth=3.2)
    ax.plot(equiangular_times(betas), betas, color=tkf.figures.PALETTE[1], linewidth=1.8, label="equiangular")
    ax.set(xlim=(0, LAST), ylim=(diagram.betas[0], diagram.betas[-1]), xlabel="t")
    ax.set_title(f"{title}, n = {N}", loc="left")
    return image
