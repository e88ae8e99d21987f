"""Deep random networks at zero temperature: the law that tokens approach, and how fast (theory §6.8).

Layers x ← N(x + ηG_l x) with independent Gaussian G_l take every token to ±p_L, the top left singular vector
of the product; + where ⟨v_1, x⟩ > 0. The distance to that law falls like e^{−(λ_1−λ_2)L} for laws away from
the hyperplane v_1^⊥, and for W2 with half that rate for laws with mass around it: a token at a distance s
from it is farther from ±p_L by the factor 1/s.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import tokenfield as tkf
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, Row, at_most, near

OSELEDETS = "theory §6.8, Oseledets: tokens approach ±p_L like e^{−(λ_1−λ_2)L}"
#: η, depth, and tokens of the law 1 + ½cos θ.
STEP, LAYERS, TOKENS = 0.3, 100, 2000
#: Layers between saved times, and between which slopes are taken, away from and around the hyperplane.
EVERY, FAR, AROUND = 5, (30, 100), (15, 40)


class Networks(NamedTuple):
    """Distances W2 (network, depth) to the nearest law on ±p_L, and what each network makes of the mass.

    `far`: of the tokens more than half a radian away from the hyperplane; `whole`: of all tokens. `angles`:
    of v_1, (network,). `masses`: at +p_L in the end. `gap`, `gap_error`: λ_1 − λ_2 by QR iteration over many
    layers.
    """

    depths: np.ndarray
    far: np.ndarray
    whole: np.ndarray
    angles: np.ndarray
    masses: np.ndarray
    gap: float
    gap_error: float


def draw(key: jax.Array) -> tkf.ZeroTemperature:
    """G with independent N(0, 1) entries, B = I, in the plane."""
    return tkf.ZeroTemperature(tkf.AttentionWeights(jnp.eye(2), jax.random.normal(key, (2, 2))))


def density(theta: np.ndarray) -> np.ndarray:
    """1 + ½cos θ."""
    return 1 + 0.5 * np.cos(theta)


def networks(count: int, layers: int) -> Networks:
    """Run tokens through several networks; `layers` are multiplied for the exponents."""
    law = tkf.initial.circle_density(density, TOKENS)
    known = [
        tkf.theory.lyapunov(tkf.RandomLayers(draw, STEP, k), "network", 2 * LAYERS) for k in range(count)
    ]
    normals = np.stack([each.normals[:, 0] for each in known])
    depths = np.arange(0, LAYERS + 1, EVERY)

    def states(key: jax.Array, x: jax.Array) -> jax.Array | np.ndarray:
        model = tkf.RandomLayers(draw, STEP, key)
        return tkf.simulate(model, tkf.Tokens(x), STEP * jnp.asarray(depths), tkf.Layers(STEP), "direct").x

    # v_1 itself goes along: it is at p_L
    start = np.concatenate([np.tile(np.asarray(law.x), (count, 1, 1)), normals[:, None]], axis=1)
    x = np.asarray(jax.jit(jax.vmap(states))(jnp.arange(count), jnp.asarray(start)))
    tokens, p, weights = x[:, :, :-1], x[:, :, -1:], np.asarray(law.weights)
    side = np.where(np.sum(tokens * p, axis=3, keepdims=True) >= 0, 1.0, -1.0)
    angle = 2 * np.arcsin(np.minimum(np.linalg.norm(tokens - side * p, axis=3) / 2, 1.0))
    away = weights * (np.abs(np.einsum("knd,kd->kn", start[:, :-1], normals)) > np.sin(0.5))
    away /= away.sum(axis=1, keepdims=True)
    far = np.sqrt(np.einsum("ktn,kn->kt", angle**2, away))
    whole = np.sqrt(angle**2 @ weights)
    masses = (side[:, -1, :, 0] > 0) @ weights
    long = tkf.theory.lyapunov(tkf.RandomLayers(draw, STEP, count), "network", layers)
    angles = np.arctan2(normals[:, 1], normals[:, 0])
    return Networks(depths, far, whole, angles, masses, long.gap, long.gap_error)


def slopes(found: Networks, values: np.ndarray, window: tuple[int, int]) -> tuple[float, float]:
    """Mean over networks of the slope of log W2 per layer between two depths, and its standard error.

    Args:
        found: the networks.
        values: distances (network, depth).
        window: the two depths.
    """
    first, last = (int(np.searchsorted(found.depths, depth)) for depth in window)
    each = np.log(values[:, last] / values[:, first]) / (window[1] - window[0])
    return float(each.mean()), float(each.std(ddof=1) / np.sqrt(len(each)))


def run(quick: bool, progress: Progress) -> Result:
    """The recipe."""
    progress(0.0, "networks")
    found = networks(40 if quick else 400, 10_000 if quick else 200_000)
    rows: list[Row] = [
        {
            "layer": int(depth),
            "mean log W2, away from the hyperplane": float(np.mean(np.log(found.far[:, k]))),
            "mean log W2, whole law": float(np.mean(np.log(found.whole[:, k]))),
        }
        for k, depth in enumerate(found.depths)
    ]
    data = xr.Dataset(
        {
            "w2_away": (("network", "layer"), found.far),
            "w2_whole": (("network", "layer"), found.whole),
            "angle_of_normal": ("network", found.angles),
            "mass": ("network", found.masses),
        },
        {"layer": found.depths},
        {"gap": found.gap, "gap_error": found.gap_error, "step": STEP},
    )
    return Result(checks(found), rows, data, figure(found))


RECIPE = Recipe(
    "layered-limit",
    "deep random layers at zero temperature: W2 to the law of Oseledets over depth, its slope, its masses",
    run,
)


def checks(found: Networks) -> list[Check]:
    """Slopes against the gap, masses against the half planes they come from."""
    far, far_error = slopes(found, found.far, FAR)
    whole, whole_error = slopes(found, found.whole, AROUND)
    predicted = 0.5 + np.cos(found.angles) / (2 * np.pi)
    variance, count = float(np.var(found.masses)), len(found.masses)
    exact = 1 / (8 * np.pi**2)
    return [
        near(
            "slope of log W2 per layer, law away from the hyperplane",
            far,
            -found.gap,
            f"{OSELEDETS}; four standard errors",
            absolute=4 * np.hypot(far_error, found.gap_error),
        ),
        near(
            "slope of log W2 per layer, law with mass around the hyperplane",
            whole,
            -found.gap / 2,
            f"{OSELEDETS}, s^{{−1}} later at a distance s: half the rate; four standard errors, a twentieth",
            absolute=4 * np.hypot(whole_error, found.gap_error / 2) + 0.05 * found.gap,
        ),
        at_most(
            "greatest error of the mass at +p_L",
            float(np.max(np.abs(found.masses - predicted))),
            2 / TOKENS,
            "theory §6.8: m = ½ + cos φ/2π for f_0 ∝ 1 + ½cos θ; one token on either side",
        ),
        near(
            "variance of the mass over networks",
            variance,
            exact,
            "theory §6.8: 1/8π² for isotropic layers; three standard errors of an arcsine law",
            absolute=3 * exact * np.sqrt(0.5 / count) + exact / count,
        ),
    ]


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(found: Networks) -> Figure:
    """W2 over depth away from the hyperplane and around it; masses over the angle of v_1."""
    drawing = Figure(figsize=(12.5, 4.0), layout="constrained")
    left, middle, right = drawing.subplots(1, 3)
    _draw_fall(left, found, found.far, 1.0, "law away from v₁^⊥")
    _draw_fall(middle, found, found.whole, 0.5, "law with mass around v₁^⊥")
    left.set_ylabel("W2 to the nearest law on ±p")
    phi = np.linspace(-np.pi, np.pi, 200)
    right.plot(phi, 0.5 + np.cos(phi) / (2 * np.pi), color="0.2", label="½ + cos φ/2π")
    right.plot(found.angles, found.masses, "o", markersize=4, color=tkf.figures.PALETTE[0], label="networks")
    right.set(xlabel="angle φ of v₁", ylabel="mass at +p", ylim=(0.3, 0.7), title="f₀ ∝ 1 + ½cos θ")
    right.set_xticks([-np.pi, 0, np.pi], ["−π", "0", "π"])
    right.legend()
    return drawing


def _draw_fall(ax: Axes, found: Networks, values: np.ndarray, share: float, title: str) -> None:
    for row in values[:40]:
        ax.semilogy(found.depths, row, color=tkf.figures.PALETTE[0], linewidth=0.6, alpha=0.35)
    mean = np.exp(np.mean(np.log(values), axis=0))
    ax.semilogy(found.depths, mean, color=tkf.figures.PALETTE[1], linewidth=2, label="mean of log W2")
    window = FAR if share == 1 else AROUND
    at = int(np.searchsorted(found.depths, window[0]))
    reach = found.depths[found.depths <= 1.5 * window[1]]  # beyond, there are no tokens nearer to v_1^⊥
    line = mean[at] * np.exp(-share * found.gap * (reach - window[0]))
    label = "(λ₁ − λ₂)" if share == 1 else "(λ₁ − λ₂)/2"
    ax.semilogy(reach, line, color="0.1", linestyle="--", label=f"slope −{label}")
    ax.set(xlabel="layer L", title=title, ylim=(max(mean.min() / 30, 1e-12), 5))
    ax.legend(loc="lower left")
