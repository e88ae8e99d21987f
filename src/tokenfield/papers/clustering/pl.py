"""Theorem 2.3: on a cap of angle α ≤ π/4 the ratio ∫|v|²dμ/(E_max − E) is at least λ1 (theory §3.7).

Measured on thousands of random laws, and on laws found by making the ratio as small as possible. The smallest
found are two tokens at the angle 2α, with the ratio λ*: conjectured to be the best constant. Consequence: the
deficit of every run in the cap falls at least like e^{−λ1 t}.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import xarray as xr
from jax import lax
from jaxtyping import Array, Float
from matplotlib.figure import Figure

import tokenfield as tkf
from tokenfield.measure.energy import deficit
from tokenfield.papers.clustering import shared
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, at_least, at_most, near

THEOREM = f"{shared.PAPER}, Theorem 2.3 (theory §3.7, constants reconstructed)"
#: Tokens of a random law, and of one that is optimised.
MANY, FEW = 8, 4
#: Steps of a descent.
DESCENT = 500
ANGLES, BETAS, DIMENSIONS = (0.2, 0.5, np.pi / 4), (0.25, 1.0, 4.0), (2, 3, 5)


class PLCase(NamedTuple):
    """A cap and a temperature, with the ratios of random laws and the least one found by optimising."""

    d: int
    angle: float
    beta: float
    ratios: np.ndarray
    least: float

    @property
    def label(self) -> str:
        """In words."""
        return f"d = {self.d}, α = {self.angle:.3g}, β = {self.beta:g}"


def log_ratio(x: Float[Array, "n d"], weights: Float[Array, "n"], beta: Float[Array, ""]) -> Float[Array, ""]:
    """log of ∫|v|²dμ/(E_max − E).

    Args:
        x: tokens, (n, d).
        weights: their weights, (n,).
        beta: inverse temperature.
    """
    tokens = tkf.Tokens(x, weights)
    v = shared.usa(beta, x.shape[1]).velocity(tokens)
    return jnp.log(jnp.sum(tokens.weights * jnp.sum(v * v, axis=1))) - jnp.log(deficit(tokens, beta))


_many = jax.jit(jax.vmap(log_ratio, in_axes=(0, 0, None)))


def on_cap(polar: Float[Array, "*k n"], across: Float[Array, "*k n e"]) -> Float[Array, "*k n d"]:
    """Points at polar angles from the centre of a cap, in the directions across."""
    unit = across / jnp.linalg.norm(across, axis=-1, keepdims=True)
    return jnp.concatenate([jnp.cos(polar)[..., None], jnp.sin(polar)[..., None] * unit], axis=-1)


def sampled(d: int, angle: float, beta: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """Ratios of random laws: some fill the cap, some lie near its rim; weights from even to very uneven.

    Args:
        d: dimension of the surrounding space.
        angle: of the cap.
        beta: inverse temperature.
        count: how many laws.
        rng: source of random numbers.
    """
    power = rng.choice([0.05, 0.3, 1.0], size=(count, 1))
    polar = angle * rng.uniform(size=(count, MANY)) ** power
    x = on_cap(jnp.asarray(polar), jnp.asarray(rng.normal(size=(count, MANY, d - 1))))
    weights = np.stack([rng.dirichlet(np.full(MANY, a)) for a in rng.choice([0.2, 1.0, 5.0], size=count)])
    weights = np.maximum(weights, 1e-12)
    return np.exp(np.asarray(_many(x, jnp.asarray(weights / weights.sum(axis=1, keepdims=True)), beta)))


def placed(z: Float[Array, "n k"], angle: Float[Array, ""]) -> tuple[Array, Array]:
    """Points (n, d) of the cap and weights (n,) from unknowns without bounds, k = d + 1."""
    polar = angle * jnp.sin(z[:, 0]) ** 2  # reaches the rim, where the least ratios lie
    shares = jnp.exp(3 * jnp.tanh(z[:, 1]))  # weights that underflow would mean nothing
    return on_cap(polar, z[:, 2:]), shares / jnp.sum(shares)


def _plain_log_ratio(z: Array, angle: Array, beta: Array) -> Array:
    """`log_ratio` of few tokens written out, which is quicker thousands of times over."""
    x, w = placed(z, angle)
    gap = jnp.sum((x[:, None] - x) ** 2, axis=2) / 2  # 1 − ⟨x,y⟩
    pull = jnp.exp(-beta * gap)
    toward = (pull * w) @ x
    v = toward - jnp.sum(toward * x, axis=1, keepdims=True) * x
    speed = jnp.sum(w * jnp.sum(v * v, axis=1)) * jnp.exp(2 * beta)
    return jnp.log(speed) - jnp.log(jnp.exp(beta) * (w @ (-jnp.expm1(-beta * gap)) @ w) / (2 * beta))


@jax.jit
def _descend(z: Array, angle: Array, beta: Array) -> Array:
    """Unknowns after a descent by Adam's rule, with steps that shrink to nothing."""

    def step(state: tuple[Array, Array, Array], k: Array) -> tuple[tuple[Array, Array, Array], None]:
        z, mean, square = state
        g = jax.grad(_plain_log_ratio)(z, angle, beta)
        mean, square = 0.9 * mean + 0.1 * g, 0.99 * square + 0.01 * g * g
        size = 0.1 * (1 - k / DESCENT) ** 2
        return (z - size * mean / (jnp.sqrt(square) + 1e-12), mean, square), None

    return lax.scan(step, (z, jnp.zeros_like(z), jnp.zeros_like(z)), jnp.arange(DESCENT))[0][0]


_descend_all = jax.jit(jax.vmap(_descend, in_axes=(0, None, None)))


def optimised(d: int, angle: float, beta: float, starts: int, rng: np.random.Generator) -> float:
    """The least ratio of four weighted tokens that descents from many random starts find.

    Args:
        d: dimension of the surrounding space.
        angle: of the cap.
        beta: inverse temperature.
        starts: how many descents.
        rng: source of random numbers.
    """
    drawn = jnp.asarray(rng.normal(size=(starts, FEW, d + 1)))
    ends = _descend_all(drawn, jnp.asarray(angle), jnp.asarray(beta))
    x, w = jax.vmap(placed, in_axes=(0, None))(ends, jnp.asarray(angle))
    return float(np.exp(np.min(np.asarray(_many(x, w, beta)))))


def run(quick: bool, progress: Progress) -> Result:
    """The recipe."""
    count, starts = (150, 48) if quick else (4000, 200)
    rng, found = np.random.default_rng(0), []
    cases = [(d, a, b) for d in DIMENSIONS for a in ANGLES for b in BETAS]
    for k, (d, angle, beta) in enumerate(cases):
        progress(0.9 * k / len(cases), f"d = {d}, α = {angle:.3g}, β = {beta:g}")
        ratios = sampled(d, angle, beta, count, rng)
        found.append(PLCase(d, angle, beta, ratios, optimised(d, angle, beta, starts, rng)))
    progress(0.9, "a run in a cap")
    ts, gaps = decay()
    data = xr.Dataset(
        {
            "ratio": (("case", "sample"), np.stack([c.ratios for c in found])),
            "least": ("case", [c.least for c in found]),
            "lambda1": ("case", [tkf.theory.pl_constant(c.angle, c.beta) for c in found]),
            "bound": ("case", [tkf.theory.pl_bound(c.angle, c.beta) for c in found]),
            "deficit": ("time", gaps),
        },
        {
            "d": ("case", [c.d for c in found]),
            "angle": ("case", [c.angle for c in found]),
            "beta": ("case", [c.beta for c in found]),
            "time": ts,
        },
    )
    rows = [
        {
            "d": c.d,
            "angle": c.angle,
            "beta": c.beta,
            "least of random": float(c.ratios.min()),
            "least of optimised": c.least,
            "lambda1": tkf.theory.pl_constant(c.angle, c.beta),
            "lambda*": tkf.theory.pl_bound(c.angle, c.beta),
        }
        for c in found
    ]
    return Result(checks(found, ts, gaps), rows, data, figure(found, ts, gaps))


RECIPE = Recipe(
    "pl", "Theorem 2.3: the PL ratio of random and of optimised laws in caps against λ1 and λ*", run
)


def decay() -> tuple[np.ndarray, np.ndarray]:
    """The deficit over time of tokens on the rim of the cap of angle π/4 in R³, β = 1."""
    rng = np.random.default_rng(3)
    x = on_cap(jnp.full(MANY, np.pi / 4), jnp.asarray(rng.normal(size=(MANY, 2))))
    ts = np.linspace(0, 3, 61)
    run = shared.run(shared.usa(1.0, 3), tkf.Tokens(x, rng.dirichlet(np.ones(MANY))), ts)
    return ts, run.measure(lambda tokens: deficit(tokens, 1.0))


def checks(found: list[PLCase], ts: np.ndarray, gaps: np.ndarray) -> list[Check]:
    """Nothing below λ1; nothing below λ*, and the optimum at λ*, for every case; the run in the cap.

    Args:
        found: the cases.
        ts: times of the run in the cap, (times,).
        gaps: its deficit, (times,).
    """
    over = [float(c.ratios.min()) / tkf.theory.pl_constant(c.angle, c.beta) for c in found]
    above = [min(float(c.ratios.min()), c.least) / tkf.theory.pl_bound(c.angle, c.beta) for c in found]
    bound = gaps[0] * np.exp(-tkf.theory.pl_constant(np.pi / 4, 1.0) * ts)
    late = (gaps < 1e-4) & (gaps > 1e-10)
    rate = -np.polyfit(ts[late], np.log(gaps[late]), 1)[0]
    return [
        at_least("least ratio / λ1 over all samples", min(over), 1.0, THEOREM),
        at_least("least ratio / λ* over all laws", min(above), 1 - 1e-9, "theory §3.7: λ* conjectured sharp"),
        *(
            near(
                f"least optimised ratio / λ*, {c.label}",
                c.least / tkf.theory.pl_bound(c.angle, c.beta),
                1.0,
                "theory §3.7: two tokens at the angle 2α",
                absolute=1e-3,
            )
            for c in found
        ),
        at_most(
            "greatest deficit / its bound D_0 e^(−λ1 t) in a run",
            float(np.max(gaps / bound)),
            1 + 1e-12,
            f"{THEOREM}: consequence",
        ),
        near(
            "rate of the deficit in the end of the run",
            rate,
            2 * np.e,
            "theory §3.7: λ* → 2e^β as α → 0",
            relative=0.01,
        ),
    ]


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(found: list[PLCase], ts: np.ndarray, gaps: np.ndarray) -> Figure:
    """Ratios over λ1 by case, random laws as clouds and the optimised as bars; the deficit of a run.

    Args:
        found: the cases.
        ts: times of the run in the cap, (times,).
        gaps: its deficit, (times,).
    """
    drawing = Figure(figsize=(11.0, 4.8), layout="constrained")
    left, right = drawing.subplots(1, 2, width_ratios=(1.75, 1))
    rng = np.random.default_rng(0)
    for k, c in enumerate(found):
        colour = tkf.figures.PALETTE[DIMENSIONS.index(c.d)]
        unit = tkf.theory.pl_constant(c.angle, c.beta)
        shown = c.ratios[:400] / unit
        left.plot(
            k + rng.uniform(-0.3, 0.3, len(shown)),
            shown,
            ".",
            color=colour,
            markersize=2.5,
            alpha=0.5,
            markeredgewidth=0,
            rasterized=True,
        )
        left.plot(
            [k - 0.42, k + 0.42],
            [tkf.theory.pl_bound(c.angle, c.beta) / unit] * 2,
            color="0.1",
            linewidth=1.2,
            linestyle=(0, (3, 1.5)),
            label="λ*, conjectured" if k == 0 else None,
        )
        left.plot(
            k,
            c.least / unit,
            "v",
            color="0.1",
            markersize=5,
            markerfacecolor=colour,
            label="least, optimised" if k == 0 else None,
        )
    left.axhline(1, color="0.1", linewidth=1.4, label="λ1, proven")
    left.set_yscale("log")
    left.set(ylabel="‖v‖² / (deficit · λ1)", xlim=(-0.7, len(found) - 0.3))
    names = [f"{c.angle:.2g}, {c.beta:g}" for c in found]
    left.set_xticks(range(len(found)), names, rotation=90, fontsize=8)
    left.set_xlabel("α, β;   " + "   ".join(f"d = {d}" for d in DIMENSIONS) + "   from left to right")
    left.legend(loc="upper center", ncols=3, bbox_to_anchor=(0.5, 1.12))
    right.semilogy(ts, gaps, color=tkf.figures.PALETTE[0], label="run, d = 3, α = π/4, β = 1")
    for rate, name, dash in (
        (tkf.theory.pl_constant(np.pi / 4, 1.0), "D₀ e^(−λ1 t)", (0, (3, 2))),
        (tkf.theory.pl_bound(np.pi / 4, 1.0), "D₀ e^(−λ* t)", (0, (1, 2))),
    ):
        right.semilogy(
            ts, gaps[0] * np.exp(-rate * ts), color="0.1", linestyle=dash, linewidth=1.2, label=name
        )
    right.set(xlabel="t", ylabel="E_max − E", ylim=(1e-10, 10))
    right.legend(loc="lower left")
    return drawing
