"""Random layers: whether two tokens end together or opposite, and Lyapunov spectra (2601.21942; theory §6.5).

Values are drawn anew in every layer and shared by all tokens. In the limit of small steps two tokens follow
an equation for ρ = tanh z with noise; below β_c = arcosh√((d−1)/2) they always end together, above it
opposite pairs attract each other as well, and the probability to end together is a quotient of integrals.
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

TOGETHER = "theory §6.5.2: S(z_0)/S(∞) by quadrature; error bars and undecided pairs allowed"
NEWMAN = "theory §6.8, Newman: λ_k = ½[log(2/d) + ψ((d−k+1)/2)]; four standard errors"
RESIDUAL = "theory §6.8: λ_1 = log η + ½log 2 + ½E ψ(d/2 + J); four standard errors"
#: Inner product of the pairs at first, and when they are looked at.
RHO, LAST = -0.5, 24.0
#: |z| beyond which a pair counts as decided.
DECIDED = 8.0


class PairEnds(NamedTuple):
    """Shares of pairs that ended together and opposite, over `betas`, of `count` pairs each."""

    d: int
    betas: np.ndarray
    together: np.ndarray
    opposite: np.ndarray
    count: int

    @property
    def predicted(self) -> np.ndarray:
        """Probabilities to end together."""
        return np.array([tkf.theory.CommonNoisePair(self.d, float(b)).together(RHO) for b in self.betas])


class Spectra(NamedTuple):
    """Exponents of Gaussian layers in dimension `d`, and λ_1 of I + ηG over `steps` in several dimensions."""

    d: int
    gaussian: tkf.theory.LyapunovSpectrum
    steps: np.ndarray
    residual: dict[int, list[tkf.theory.LyapunovSpectrum]]


def attention(beta: jax.Array | float, V: jax.Array) -> tkf.SoftmaxAttention:
    """Softmax attention with B = I."""
    return tkf.SoftmaxAttention(tkf.AttentionWeights(jnp.eye(len(V)), V), beta)


def pairs(d: int, betas: np.ndarray, count: int, step: float, layers: bool) -> PairEnds:
    """Many pairs at several β, each with noise of its own.

    Args:
        d: dimension.
        betas: inverse temperatures.
        count: pairs for each of them.
        step: of the noise, or of a layer.
        layers: random layers with a small step, not their limit.
    """
    start = tkf.Tokens(
        np.eye(2, d)[[0, 0]] * [[1.0], [RHO]] + np.eye(2, d)[[1, 1]] * [[0.0], [np.sqrt(1 - RHO**2)]]
    )

    def end(beta: jax.Array, key: jax.Array) -> jax.Array:
        if layers:
            draw = lambda k: attention(beta, jax.random.normal(k, (d, d)) / np.sqrt(step))  # noqa: E731
            model, solver = tkf.RandomLayers(draw, step, key), tkf.Layers(step)
        else:
            model, solver = tkf.CommonNoise(attention(beta, jnp.eye(d)), 1.0), tkf.EulerMaruyama(step, key)
        x = tkf.simulate(model, start, [0.0, LAST], solver, "direct").x[-1]
        return jnp.log(jnp.sum((x[0] + x[1]) ** 2) / jnp.sum((x[0] - x[1]) ** 2)) / 2

    keys = jnp.arange(len(betas) * count).reshape(len(betas), count)
    z = np.asarray(jax.jit(jax.vmap(jax.vmap(end, (None, 0))))(jnp.asarray(betas), keys))
    z = np.where(np.isnan(z), np.inf, z)  # tokens that are one to the last bit
    return PairEnds(d, betas, np.mean(z > DECIDED, axis=1), np.mean(z < -DECIDED, axis=1), count)


def _value(d: int, key: jax.Array) -> tkf.ZeroTemperature:
    return tkf.ZeroTemperature(tkf.AttentionWeights(jnp.eye(d), jax.random.normal(key, (d, d))))


def spectra(quick: bool) -> Spectra:
    """Exponents by QR iteration."""
    d, count = 8, 1000 if quick else 40_000
    # I + ηG with a huge η is ηG
    huge = 1e9
    layers = tkf.RandomLayers(lambda key: _value(d, key), huge / np.sqrt(d), 1)
    found = tkf.theory.lyapunov(layers, "network", count)
    steps = np.array([0.5]) if quick else np.array([0.2, 0.5, 1.0])
    residual = {}
    for d2 in (4,) if quick else (2, 4, 8):
        draw = lambda key, d2=d2: _value(d2, key)  # noqa: E731
        residual[d2] = [
            tkf.theory.lyapunov(tkf.RandomLayers(draw, float(step), 2), "network", count) for step in steps
        ]
    return Spectra(d, found, steps, residual)


def run(quick: bool, progress: Progress) -> Result:
    """The recipe."""
    d, count, step = 8, 100 if quick else 2000, 0.02 if quick else 0.01
    betas = np.array([0.6, 2.2]) if quick else np.linspace(0.4, 4.0, 13)
    progress(0.0, "pairs with common noise")
    found = {"common noise": pairs(d, betas, count, step, layers=False)}
    progress(0.4, "pairs through random layers")
    found["random layers"] = pairs(d, betas, count, step, layers=True)
    progress(0.7, "Lyapunov spectra")
    known = spectra(quick)
    checks = [check for name, ends in found.items() for check in _end_checks(name, ends)]
    table: list[Row] = [
        {
            "pairs": name,
            "beta": float(beta),
            "together": float(ends.together[k]),
            "opposite": float(ends.opposite[k]),
            "predicted": float(ends.predicted[k]),
        }
        for name, ends in found.items()
        for k, beta in enumerate(betas)
    ]
    first = found["common noise"]
    data = xr.Dataset(
        {
            "together_noise": ("beta", first.together),
            "opposite_noise": ("beta", first.opposite),
            "together_layers": ("beta", found["random layers"].together),
            "opposite_layers": ("beta", found["random layers"].opposite),
            "predicted": ("beta", first.predicted),
            "exponents": ("k", known.gaussian.exponents - np.log(1e9)),
            "exponent_errors": ("k", known.gaussian.errors),
        },
        {"beta": betas},
        {"d": d, "critical_beta": tkf.theory.antipodal_beta(d)},
    )
    return Result(checks + _spectrum_checks(known), table, data, figure(found, known))


RECIPE = Recipe(
    "random-layers",
    "random values shared by all tokens: who ends together over β, the transition at β_c, Lyapunov spectra",
    run,
)


def _end_checks(name: str, ends: PairEnds) -> list[Check]:
    result = []
    for k, beta in enumerate(ends.betas):
        p = ends.predicted[k]
        left = 1 - ends.together[k] - ends.opposite[k]
        # pairs that are still on their way may go either way
        allowed = 4 * np.sqrt(max(p * (1 - p), 1 / ends.count) / ends.count) + left + 0.01
        label = f"share that ends together, {name}, d = {ends.d}, β = {beta:.3g}"
        result.append(near(label, float(ends.together[k]), float(p), TOGETHER, absolute=float(allowed)))
    below = ends.betas < tkf.theory.antipodal_beta(ends.d) - 0.3
    worst = float(np.max(ends.opposite[below], initial=0.0))
    source = "theory §6.5.2: below β_c opposite pairs do not attract; some linger there"
    return [*result, at_most(f"share of opposite pairs below β_c, {name}, d = {ends.d}", worst, 0.02, source)]


def _spectrum_checks(known: Spectra) -> list[Check]:
    measured, errors = known.gaussian.exponents - np.log(1e9), known.gaussian.errors
    result = [
        near(
            f"λ_{k + 1} of Gaussian layers, d = {known.d}", measured[k], value, NEWMAN, absolute=4 * errors[k]
        )
        for k, value in enumerate(tkf.theory.gaussian_layers(known.d))
    ]
    for d, each in known.residual.items():
        for step, one in zip(known.steps, each, strict=True):
            value = tkf.theory.residual_gaussian_layers(d, float(step))
            label = f"λ_1 of I + ηG, d = {d}, η = {step:g}"
            result.append(near(label, one.exponents[0], value, RESIDUAL, absolute=4 * one.errors[0]))
    return result


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(found: dict[str, PairEnds], known: Spectra) -> Figure:
    """Shares over β with the predicted curve; exponents of Gaussian layers; λ_1 of residual ones."""
    drawing = Figure(figsize=(12.5, 4.0), layout="constrained")
    left, middle, right = drawing.subplots(1, 3, width_ratios=(1.3, 1, 1))
    _draw_ends(left, found)
    k = np.arange(1, known.d + 1)
    middle.plot(k, tkf.theory.gaussian_layers(known.d), color="0.2", label="Newman")
    measured = known.gaussian.exponents - np.log(1e9)
    middle.errorbar(
        k, measured, 2 * known.gaussian.errors, fmt="o", color=tkf.figures.PALETTE[0], label="measured"
    )
    middle.set(xlabel="k", ylabel="λ_k per layer", title=f"entries N(0, 1/d), d = {known.d}")
    middle.legend()
    eta = np.linspace(0.05, 1.1, 60)
    for colour, (d, each) in zip(tkf.figures.PALETTE, known.residual.items(), strict=False):
        values = [tkf.theory.residual_gaussian_layers(d, float(step)) for step in eta]
        right.plot(eta, values, color=colour, label=f"d = {d}")
        tops, errors = [s.exponents[0] for s in each], [2 * s.errors[0] for s in each]
        right.errorbar(known.steps, tops, errors, fmt="o", color=colour)
    right.set(xlabel="η", ylabel="λ₁ per layer", title="layers I + ηG")
    right.legend()
    return drawing


def _draw_ends(ax: Axes, found: dict[str, PairEnds]) -> None:
    d = next(iter(found.values())).d
    grid = np.linspace(0.01, max(float(e.betas[-1]) for e in found.values()) + 0.2, 300)
    curve = [tkf.theory.CommonNoisePair(d, float(beta)).together(RHO) for beta in grid]
    ax.plot(grid, curve, color="0.2", label="together, predicted")
    ax.plot(grid, 1 - np.array(curve), color="0.2", linestyle="--", label="opposite, predicted")
    for (name, ends), marker, colour in zip(found.items(), "os", tkf.figures.PALETTE, strict=False):
        bar = 2 * np.sqrt(np.maximum(ends.together * (1 - ends.together), 1e-9) / ends.count)
        ax.errorbar(ends.betas, ends.together, bar, fmt=marker, color=colour, label=name)
        ax.plot(ends.betas, ends.opposite, marker, color=colour, fillstyle="none")
    critical = tkf.theory.antipodal_beta(d)
    ax.axvline(critical, color="0.6", linewidth=0.9, linestyle=":")
    ax.annotate("β_c", (critical, 0.9), xytext=(6, 0), textcoords="offset points", color="0.4")
    ax.set(
        xlabel="β", ylabel="share of pairs", ylim=(-0.03, 1.03), title=f"pairs from ρ = −{-RHO:g}, d = {d}"
    )
    ax.legend(loc="center left", fontsize=8)
