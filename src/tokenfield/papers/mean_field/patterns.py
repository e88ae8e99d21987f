"""Patterns: from a perturbed uniform law the fastest harmonic wins (arXiv 2410.23228).

On the circle a harmonic e^{ilθ} of a small perturbation grows at the rate of theory §3.4, so that after a
time like log(1/size) the fastest l is left alone: the density is periodic, and l clusters form at its crests,
where the phase of c_l = ∫e^{−ilθ}dμ at the start says: lθ = −arg c_l mod 2π. Density and tokens side by side.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import tokenfield as tkf
from tokenfield.papers import declared
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, at_most, near

GROWTH = "theory §3.4: l(l+d−2)λ_l/(βλ_0)"
PATTERN = "2410.23228: crests of the fastest harmonic"
#: Size of each harmonic of the perturbation, and how many there are.
SIZE, HARMONICS = 1e-9, 16
#: Height of the density at which clusters are read off: they have formed and are still resolved.
HEIGHT = 4.0
#: The last of these in the full size only; times of a run.
BETAS, TIMES = (2.0, 4.5, 8.0, 12.5), 70


class PatternLaw(NamedTuple):
    """A density over time: at angles `nodes`, with the masses of the nodes."""

    ts: np.ndarray
    nodes: np.ndarray
    density: np.ndarray
    masses: np.ndarray


class Pattern(NamedTuple):
    """A run at one β: the law, tokens that followed the same flow, crests measured and predicted."""

    beta: float
    degree: int
    law: PatternLaw
    tokens: np.ndarray
    weights: np.ndarray
    coefficients: np.ndarray
    crests: np.ndarray
    token_crests: np.ndarray
    predicted: np.ndarray


def perturbed(key: int) -> tuple[np.ndarray, np.ndarray]:
    """Degrees 1..HARMONICS and complex amplitudes of one size and random phases."""
    phases = np.random.default_rng(key).uniform(0, 2 * np.pi, HARMONICS)
    return np.arange(1, HARMONICS + 1), SIZE * np.exp(1j * phases)


def grids(quick: bool) -> dict[str, dict[str, Any]]:
    """The perturbed uniform law at every β, as a density and as tokens, until clusters have formed."""
    modes, n = (256, 800) if quick else (512, 4000)
    _, amplitudes = perturbed(7)
    # 1 + 2 Re Σ a_k e^{ikθ}
    law = {
        "law": "circle_density",
        "cos": (2 * np.real(amplitudes)).tolist(),
        "sin": (-2 * np.imag(amplitudes)).tolist(),
    }
    cases = [
        {"model.beta": beta, "times.at": _times(beta).tolist()} for beta in (BETAS[:-1] if quick else BETAS)
    ]
    flow = {"weights": {"identity": 2}, "model": {"kind": "softmax"}, "sweep": declared.together(cases)}
    kept = {"measure": [], "snapshots": list(range(TIMES))}
    # the perturbation is smaller than the usual tolerance
    domain = {"domain": "circle", "modes": modes, "scheme": "spectral", "tolerance": 1e-13}
    solver = declared.adaptive(tkf.Adaptive(rtol=1e-12, atol=1e-13))
    return {
        "density": flow | {"density": domain, "initial": law, "run": kept},
        "tokens": flow | {"solver": solver, "initial": law | {"n": n}, "run": kept},
    }


def _times(beta: float) -> np.ndarray:
    """Until a little after the fastest harmonic is no longer small."""
    rate = float(tkf.theory.growth_rate(2, beta, tkf.theory.fastest_degree(2, beta)))
    return np.linspace(0, 1.15 * np.log(0.5 / SIZE) / rate, TIMES)


def pattern(density: xr.Dataset, cloud: tkf.Trajectory) -> Pattern:
    """What the two runs at one β show until the greatest density is `HEIGHT`."""
    beta = float(density.beta)
    degree, (_, amplitudes) = tkf.theory.fastest_degree(2, beta), perturbed(7)
    k = int(np.argmax(density.rho.values.max(axis=1) >= HEIGHT)) or TIMES - 1
    part = slice(k + 1)
    law = PatternLaw(
        density.times.values[part],
        density.nodes.values[0, :, 0],
        density.rho.values[part],
        density.masses.values[part],
    )
    coefficients = np.stack([_moments(law.nodes, m) for m in law.masses])
    angles = np.mod(np.arctan2(cloud.x[k][:, 1], cloud.x[k][:, 0]), 2 * np.pi)
    predicted = np.sort(
        np.mod((-np.angle(amplitudes[degree - 1]) + 2 * np.pi * np.arange(degree)) / degree, 2 * np.pi)
    )
    from_tokens = _moments(np.asarray(angles), np.asarray(cloud.weights))
    return Pattern(
        beta,
        degree,
        law,
        np.asarray(angles),
        np.asarray(cloud.weights),
        coefficients,
        _crests(coefficients[-1]),
        _crests(from_tokens),
        predicted,
    )


def _moments(theta: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """c_k = ∫e^{−ikθ}dμ, k = 0..2·HARMONICS."""
    return np.exp(-1j * np.outer(np.arange(2 * HARMONICS + 1), theta)) @ masses


def _crests(c: np.ndarray) -> np.ndarray:
    """Maxima above 1 of the density with these coefficients, by a fine grid and a parabola."""
    theta = np.arange(20_000) * (2 * np.pi / 20_000)
    k = np.arange(1, len(c))
    rho = 1 + 2 * np.real(np.exp(1j * np.outer(theta, k)) @ c[1:])
    left, right = np.roll(rho, 1), np.roll(rho, -1)
    at = np.flatnonzero((rho >= left) & (rho > right) & (rho > 1.5))
    shift = 0.5 * (left[at] - right[at]) / (left[at] - 2 * rho[at] + right[at])
    return np.sort(np.mod(theta[at] + shift * theta[1], 2 * np.pi))


def run(quick: bool, progress: Progress, swept: Mapping[str, xr.Dataset]) -> Result:
    """Run the recipe and judge what it finds.

    Args:
        quick: whether the smaller size is wanted.
        progress: called with the share done and what is being done.
        swept: datasets of the declared sweeps, by name.
    """
    progress(0.0, "crests")
    densities, clouds = swept["density"], declared.runs(swept["tokens"])
    found = [pattern(densities.isel(beta_at=k), cloud) for k, cloud in enumerate(clouds)]
    checks = [check for one in found for check in _checks(one)]
    rows = [
        {"beta": one.beta, "clusters": one.degree, "predicted": p, "density": c, "tokens": t}
        for one in found
        if len(one.crests) == len(one.token_crests) == len(one.predicted)
        for p, c, t in zip(one.predicted, one.crests, one.token_crests, strict=True)
    ]
    laws = {f"{one.beta:g}": one.law for one in found}
    data = xr.Dataset(
        {f"density_{b}": ((f"t_{b}", "theta"), law.density) for b, law in laws.items()},
        {"theta": found[0].law.nodes} | {f"t_{b}": law.ts for b, law in laws.items()},
    )
    return Result(checks, rows, data, figure(found))


RECIPE = Recipe(
    "patterns",
    "from a perturbed uniform law the fastest harmonic wins; clusters sit where its phase says",
    run,
    grids,
)


def _checks(one: Pattern) -> list[Check]:
    size = np.abs(one.coefficients)
    linear = (one.law.ts > 0) & (size[:, 1:].max(axis=1) < 1e-7)
    degrees = [1, 2, one.degree]
    rates = [np.polyfit(one.law.ts[linear], np.log(size[linear, degree]), 1)[0] for degree in degrees]
    exact = tkf.theory.growth_rate(2, one.beta, degrees)
    spacing = 2 * np.pi / one.degree
    return [
        at_most(
            f"relative error of the growth rates, l = 1, 2, {one.degree}, β = {one.beta:g}",
            np.max(np.abs(rates / exact - 1)),
            1e-3,
            GROWTH,
        ),
        near(f"clusters of the density, β = {one.beta:g}", len(one.crests), one.degree, PATTERN),
        near(f"clusters of the tokens, β = {one.beta:g}", len(one.token_crests), one.degree, PATTERN),
        at_most(
            f"clusters off their predicted places, share of the spacing, β = {one.beta:g}",
            _apart(one.crests, one.predicted) / spacing,
            0.1,
            PATTERN,
        ),
        at_most(
            f"clusters of tokens off those of the density, share of the spacing, β = {one.beta:g}",
            _apart(one.token_crests, one.crests) / spacing,
            1e-3,
            "the mean-field limit",
        ),
    ]


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    """Greatest angle between partners; NaN if there are not as many."""
    if len(a) != len(b):
        return np.nan
    # the first of one may be the last of the other
    return min(float(np.max(np.abs((np.roll(a, k) - b + np.pi) % (2 * np.pi) - np.pi))) for k in (-1, 0, 1))


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(found: list[Pattern]) -> Figure:
    """For each β: the density over time, its last state with the tokens, and the harmonics as they grow."""
    drawing = Figure(figsize=(11, 3.4 * len(found)), layout="constrained")
    axes = drawing.subplots(len(found), 3, squeeze=False)
    for row, one in zip(axes, found, strict=True):
        _over_time(row[0], one)
        _last(row[1], one)
        _harmonics(row[2], one)
    return drawing


def _over_time(ax: Axes, one: Pattern) -> None:
    late = one.law.ts > 0.7 * one.law.ts[-1]
    ax.pcolormesh(one.law.nodes, one.law.ts[late], one.law.density[late], shading="nearest", rasterized=True)
    for place in one.predicted:
        ax.axvline(place, color="white", linestyle="--", linewidth=0.8)
    ax.set(title=f"β = {one.beta:g}: density (predicted places dashed)", xlabel="θ", ylabel="t")


def _last(ax: Axes, one: Pattern) -> None:
    ax.plot(one.law.nodes, one.law.density[-1], color=tkf.figures.PALETTE[0], label="density")
    edges = np.linspace(0, 2 * np.pi, 101)
    counts, _ = np.histogram(one.tokens, edges, weights=one.weights)
    ax.stairs(counts * 100, edges, color=tkf.figures.PALETTE[1], label="tokens", linewidth=1.0)
    ax.plot(one.predicted, np.full(one.degree, -0.25), "k^", markersize=5, label="predicted")
    ax.set(title=f"t = {one.law.ts[-1]:.4g}: {one.degree} clusters", xlabel="θ", ylabel="ρ")
    ax.set_ylim(-0.6, 1.3 * one.law.density[-1].max())
    ax.legend(fontsize=8, loc="upper center", ncol=3)


def _harmonics(ax: Axes, one: Pattern) -> None:
    for l in range(1, min(HARMONICS, 2 * one.degree) + 1):  # noqa: E741
        best = l == one.degree
        ax.semilogy(
            one.law.ts,
            np.abs(one.coefficients[:, l]),
            linewidth=2 if best else 0.8,
            color=tkf.figures.PALETTE[1] if best else tkf.figures.OTHER,
        )
    rate = float(tkf.theory.growth_rate(2, one.beta, one.degree))
    ax.semilogy(one.law.ts, SIZE * np.exp(rate * one.law.ts), "k--", linewidth=1)
    ax.set(
        title=f"l = {one.degree} thick, its rate dashed",
        xlabel="t",
        ylabel="|c_l|",
        ylim=(1e-9, 2),
    )
