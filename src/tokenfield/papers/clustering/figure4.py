"""Figure 4: the order parameter is not monotone, although the energy is (theory §3.12, reconstruction).

R² and its slope for three densities on the circle at β = 0.1 (unnormalised flow). Measured from quadrature
tokens; predicted from the Fourier moments z_k, which the flow couples by Bessel coefficients. A is even, and
its run keeps that: R² falls until the mean has crossed the centre, and rises on the other side.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import xarray as xr
from jax import lax
from jaxtyping import Array, Float
from matplotlib.figure import Figure
from scipy.interpolate import CubicSpline

import tokenfield as tkf
from tokenfield.papers.clustering import shared
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, at_least, near
from tokenfield.theory.examples import Profile

MOMENTS = "theory §3.12: the Fourier moments"
BETA = 0.1
#: Between two saved times.
STEP = 0.1


@dataclass(frozen=True)
class ProfileCase:
    """A profile, how many tokens and Fourier modes stand for it, and until when each is followed."""

    name: Profile
    n: int
    modes: int
    #: last time of the moments, whose number the narrowing density limits
    known: float
    last: float


CASES = (
    ProfileCase("A", 200, 100, 3.6, 12.0),
    ProfileCase("B", 400, 60, 1.2, 12.0),
    ProfileCase("C", 400, 400, 6.0, 12.0),
)


@dataclass(frozen=True, eq=False)
class Curve:
    """R² and its slope of the tokens over time, and the same of the moments, as far as these go."""

    case: ProfileCase
    ts: np.ndarray
    square: np.ndarray
    slope: np.ndarray
    moments: np.ndarray
    predicted: np.ndarray

    @property
    def known(self) -> int:
        """How many of the times the moments cover."""
        return len(self.moments)


@jax.jit
def square_and_slope(x: Float[Array, "times n d"], weights: Float[Array, "n"]) -> Float[Array, "times 2"]:
    """R² and d/dt R² = 2⟨m, ∫v dμ⟩ of every snapshot."""

    def at(points: Array) -> Array:
        tokens = tkf.Tokens(points, weights)
        mean = tokens.moments().mean
        return jnp.stack([mean @ mean, 2 * mean @ (weights @ shared.usa(BETA).velocity(tokens))])

    return lax.map(at, x)


def follow(case: ProfileCase, n: int) -> Curve:
    """Tokens and moments of one profile."""
    ts = np.linspace(0, case.last, int(case.last / STEP) + 1)
    tokens = tkf.initial.circle_density(tkf.theory.profile(case.name), n)
    if case.name == "A":
        halves = shared.even_run(shared.usa(BETA), tokens, ts, 1e-9)
        x = np.stack([tkf.symmetry.whole(halves.tokens(k), shared.MIRROR).x for k in range(len(ts))])
        weights = tkf.symmetry.whole(halves.tokens(0), shared.MIRROR).weights
    else:
        run = shared.run(shared.usa(BETA), tokens, ts, 1e-9)
        x, weights = np.asarray(run.x), run.weights
    seen = np.asarray(square_and_slope(jnp.asarray(x), jnp.asarray(weights)))
    z0 = tkf.theory.circle_moments(tkf.theory.profile(case.name), case.modes)
    z = tkf.theory.fourier_moments(ts[ts <= case.known + 1e-9], z0, BETA, rtol=1e-8)
    return Curve(case, ts, seen[:, 0], seen[:, 1], np.abs(z[:, 1]) ** 2, tkf.theory.order_slope(z, BETA))


def turns(ts: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Times at which a slope changes its sign, by a cubic spline."""
    return np.atleast_1d(CubicSpline(ts, slope).roots(extrapolate=False))


def run(quick: bool, progress: Progress) -> Result:
    """The recipe."""
    found = []
    for k, case in enumerate(CASES):
        progress(k / len(CASES), f"profile {case.name}")
        found.append(follow(case, case.n if quick else 2 * case.n))
    variables = {}
    for each in found:
        name = each.case.name
        variables |= {
            f"R2_{name}": ("time", each.square),
            f"slope_{name}": ("time", each.slope),
            f"R2_moments_{name}": (f"known_{name}", each.moments),
        }
    rows = [
        {"profile": each.case.name, "turn": k + 1, "measured": float(t), "by moments": float(s)}
        for each in found
        for k, (t, s) in enumerate(
            zip(turns(each.ts, each.slope), turns(each.ts[: each.known], each.predicted), strict=False)
        )
    ]
    return Result(checks(found), rows, xr.Dataset(variables, {"time": found[0].ts}), figure(found))


RECIPE = Recipe("clustering-fig4", "R² is not monotone: profiles A, B, C and the slope of R²", run)


def checks(found: list[Curve]) -> list[Check]:
    """Slopes at the start, times of the turns, the least R² of B, and where the runs end."""
    result = []
    for each in found:
        name, short = each.case.name, slice(0, each.known)
        result.append(
            near(
                f"slope of R² at the start, {name}", each.slope[0], each.predicted[0], MOMENTS, relative=1e-6
            )
        )
        measured = turns(each.ts[short], each.slope[short])
        predicted = turns(each.ts[short], each.predicted)
        expected = {"A": 1, "B": 1, "C": 2}[name]
        result.append(near(f"turns of R², {name}", len(measured), expected, "theory §3.12"))
        result += [
            near(
                f"turn {k + 1} of {name}",
                measured[k] if k < len(measured) else np.nan,
                t,
                MOMENTS,
                absolute=2e-3,
            )
            for k, t in enumerate(predicted)
        ]
        result.append(
            near(
                f"R² against the moments, greatest gap, {name}",
                float(np.max(np.abs(each.square[short] - each.moments))),
                0.0,
                MOMENTS,
                absolute=1e-6,
            )
        )
    a, b, _ = found
    printed = [(a, "A", 3.3509, 1e-3), (b, "B", 0.4814, 1e-3), (found[2], "C", 1.10, 5e-3)]
    result += [
        near(
            f"first turn of {name}, printed",
            turns(c.ts, c.slope)[0],
            t,
            "theory §3.12, with its corrections",
            absolute=tolerance,
        )
        for c, name, t, tolerance in printed
    ]
    result.append(near("least R² of B", float(b.square.min()), 1.0691e-5, "theory §3.12", absolute=5e-9))
    result.append(at_least("R² of B in the end", float(b.square[-1]), 0.9, "theory §3.12: then R → 1"))
    return result


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(found: list[Curve]) -> Figure:
    """One column per profile: its density, R² (logarithmic), and the slope of R²."""
    drawing = Figure(figsize=(10.5, 8.4), layout="constrained")
    grid = drawing.subplots(3, 3, height_ratios=(0.7, 1, 1))
    theta = np.linspace(-np.pi, np.pi, 400)
    for column, each, colour in zip(grid.T, found, tkf.figures.PALETTE, strict=False):
        top, middle, bottom = column
        top.fill_between(
            theta, tkf.theory.profile(each.case.name)(theta), color=colour, alpha=0.35, linewidth=0
        )
        top.plot(theta, tkf.theory.profile(each.case.name)(theta), color=colour)
        top.set(xlim=(-np.pi, np.pi), ylim=(0, None), xlabel="θ")
        top.set_xticks([-np.pi, 0, np.pi], ["−π", "0", "π"])
        top.set_title(f"profile {each.case.name}", loc="left")
        middle.semilogy(each.ts, each.square, color=colour)
        middle.semilogy(
            each.ts[: each.known], each.moments, color="0.1", linestyle=(0, (2, 3)), linewidth=1.4
        )
        bottom.plot(each.ts, each.slope, color=colour, label="tokens")
        bottom.plot(
            each.ts[: each.known],
            each.predicted,
            color="0.1",
            linestyle=(0, (2, 3)),
            linewidth=1.4,
            label="moments",
        )
        bottom.axhline(0, color="0.6", linewidth=0.8)
        bottom.set_yscale("symlog", linthresh=1e-6, linscale=0.6)
        for t in turns(each.ts, each.slope):
            for ax in (middle, bottom):
                ax.axvline(t, color="0.75", linewidth=0.9, zorder=0)
            middle.annotate(
                f"{t:.2f}",
                (t, 1.0),
                xycoords=("data", "axes fraction"),
                fontsize=9,
                va="top",
                color="0.35",
                xytext=(2, 0),
                textcoords="offset points",
            )
        middle.set(xlim=(0, each.ts[-1]), xlabel="t")
        bottom.set(xlim=(0, each.ts[-1]), ylim=(-1e-4, 2 * float(each.slope.max())), xlabel="t")
    grid[0, 0].set_ylabel("density at t = 0")
    grid[1, 0].set_ylabel("R²")
    grid[2, 0].set_ylabel("d/dt R²")
    grid[2, 0].legend(loc="lower right")
    return drawing
