"""The Laplace principle: how far softmax attention at β is from the maximiser over the sphere.

The gap is |∫ y e^{β⟨u,y⟩} dμ / ∫ e^{β⟨u,y⟩} dμ − u| at a query direction u. The theorem bounds it by
a multiple of √(log(β+1)/β). On the circle,
θ from u, the mean sees a Gaussian of width β^{−1/2}, and for a density f

- smooth, or with a kink at u: √(s² + ¼)/β, s the mean of the two slopes of log f at u;
- with a jump at u, from f− to f+: (f+ − f−)/(f+ + f−) · √(2/(πβ));
- zero around u: the gap tends to the distance from u to the support, which the theorem excludes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import matplotlib
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import tokenfield as tkf
from tokenfield.papers.low_temperature import worked
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, at_most, near

EXPANSION = "Laplace's method at a query (papers/low_temperature/laplace.py)"


@dataclass(frozen=True)
class Density:
    """f(θ), and the law amplitude·β^power its gap follows at θ = 0."""

    name: str
    f: Callable[[np.ndarray], np.ndarray]
    power: float
    amplitude: float
    allowed: bool = True


DENSITIES = (
    Density("smooth, 1 + ⅕ sin θ", lambda t: 1 + 0.2 * np.sin(t), -1.0, np.sqrt(0.2**2 + 0.25)),
    Density("kink, 1 + 2 max(sin θ, 0)", lambda t: 1 + 2 * np.maximum(np.sin(t), 0), -1.0, np.sqrt(1.25)),
    Density(
        "jump, 1 + ½ sign(sin θ)", lambda t: 1 + 0.5 * np.sign(np.sin(t)), -0.5, 0.5 * np.sqrt(2 / np.pi)
    ),
    Density(
        "hole, 1 outside (−0.3, 0.6)",
        lambda t: 1.0 * ((t > 0.6) & (t < 2 * np.pi - 0.3)),
        0.0,
        2 * np.sin(0.15),
        allowed=False,
    ),
)


def gap(tokens: tkf.Tokens, u: np.ndarray, betas: np.ndarray) -> np.ndarray:
    """|softmax mean − u| for B = V = I, as the models compute it.

    Args:
        tokens: the law that is read.
        u: direction of the query, (d,).
        betas: inverse temperatures, (betas,).
    """
    weights, x = tkf.AttentionWeights.identity(tokens.d), jnp.asarray(u)[None]
    read = [tkf.SoftmaxAttention(weights, float(beta)).output(x, tokens)[0] for beta in betas]
    return np.linalg.norm(np.asarray(read) - u, axis=1)


def run(quick: bool, progress: Progress) -> Result:
    """The recipe."""
    betas = np.logspace(1, 5, 17)
    n = 40_000 if quick else 400_000
    found = {}
    for k, density in enumerate(DENSITIES):
        progress(k / 8, density.name)
        found[density.name] = gap(tkf.initial.circle_density(density.f, n), np.array([1.0, 0.0]), betas)
    checks = [check for density in DENSITIES for check in _checks(density, betas, found[density.name])]
    warm = betas[betas <= 1000]
    uniform = {}
    for k, d in enumerate((2, 3, 8)):
        progress(0.5 + k / 8, f"uniform law, d = {d}")
        uniform[d] = _uniform(d, warm)
        off = np.max(np.abs(uniform[d] / tkf.theory.laplace_gap(warm, d) - 1))
        checks.append(
            at_most(
                f"error of the gap of the uniform law, d = {d}",
                off,
                1e-8,
                "theory §2.4: exactly 1 − I_{d/2}(β)/I_{d/2−1}(β)",
            )
        )
    rows = [
        {"density": name, "beta": b, "gap": g, "theorem": float(tkf.theory.laplace_envelope(b))}
        for name, values in found.items()
        for b, g in zip(betas, values, strict=True)
    ]
    data = xr.Dataset(
        {f"gap_{k}": ("beta", v) for k, v in enumerate(found.values())},
        {"beta": betas},
        {f"gap_{k}": name for k, name in enumerate(found)},
    )
    return Result(checks, rows, data, figure(betas, found, warm, uniform))


RECIPE = Recipe(
    "laplace",
    "the Laplace gap against β for smooth, kinked and discontinuous densities, beside the theorem's",
    run,
)


def _checks(density: Density, betas: np.ndarray, found: np.ndarray) -> list[Check]:
    cold = betas >= 1000
    fit = tkf.fit_rate(betas[cold], found[cold], model="power")
    last = density.amplitude * betas[-1] ** density.power
    checks = [
        near(f"exponent in β, {density.name}", fit.power, density.power, EXPANSION, absolute=0.02),
        near(f"gap at β = {betas[-1]:g}, {density.name}", found[-1], last, EXPANSION, relative=0.02),
    ]
    if density.allowed:
        worse = tkf.fit_rate(
            betas[cold], found[cold] / tkf.theory.laplace_envelope(betas[cold]), model="power"
        ).power
        checks.append(
            at_most(
                f"exponent of gap over theorem's, {density.name}",
                worse,
                0.0,
                f"{worked.PAPER}: gap ≤ const·√(log(β+1)/β)",
            )
        )
    return checks


def _uniform(d: int, betas: np.ndarray) -> np.ndarray:
    """The gap of the uniform law, from quadrature that is exact for functions of the height ⟨u, y⟩."""
    u = np.eye(d)[0]
    tokens = (
        tkf.initial.circle_density(np.ones_like, 2000)
        if d == 2
        else tkf.initial.zonal_density(np.ones_like, u, 6000)
    )
    return gap(tokens, u, betas)


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(
    betas: np.ndarray, found: dict[str, np.ndarray], warm: np.ndarray, uniform: dict[int, np.ndarray]
) -> Figure:
    """Gaps against β on the circle, and of the uniform law in several dimensions.

    Args:
        betas: inverse temperatures on the circle, (betas,).
        found: name of a density → gaps, (betas,).
        warm: inverse temperatures of the uniform law, (warm,).
        uniform: dimension → gaps of the uniform law, (warm,).
    """
    drawing = Figure(figsize=(9, 7.6), layout="constrained")
    above, below = drawing.subfigures(2, 1, squeeze=False, height_ratios=(1.2, 1))[:, 0]
    theorem = {"√(log(β+1)/β), theorem's order": tkf.theory.laplace_envelope(betas)}
    ax = above.subplots()
    tkf.figures.curves(betas, found, "β", "gap", "xy", theorem, ax=ax)
    ax.set_title("circle, at the smooth point, kink, jump, hole", loc="left")
    ax = below.subplots()
    exact = {f"exact, d = {d}": tkf.theory.laplace_gap(warm, d) for d in uniform}
    tkf.figures.curves(warm, {f"d = {d}": v for d, v in uniform.items()}, "β", "gap", "xy", exact, ax=ax)
    ax.set_title("uniform law", loc="left")
    return drawing
