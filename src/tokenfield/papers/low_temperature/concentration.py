"""W2(μ_t^β, Π♯ρ0) against t for many temperatures, and the sharp rate of the zero-temperature flow."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import tokenfield as tkf
from tokenfield.measure.rates import BoundFit
from tokenfield.papers.low_temperature import worked
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, at_least, near


@dataclass(frozen=True)
class RateCase:
    """D = diag(spectrum), B = diag(B); between the times of `window` the curve is t^power e^{−rate·t}."""

    spectrum: tuple[float, ...]
    B: tuple[float, ...]
    p: int
    window: tuple[float, float]
    power: float = 0.0

    @property
    def weights(self) -> tkf.AttentionWeights:
        """B and V with V Bᵀ = D."""
        return tkf.AttentionWeights(np.diag(self.B), np.diag(np.divide(self.spectrum, self.B)))

    @property
    def name(self) -> str:
        """Which rate of which matrices."""
        D, B = (", ".join(f"{v:g}" for v in diagonal) for diagonal in (self.spectrum, self.B))
        return f"W{self.p}, D = diag({D}), B = diag({B})"


#: Both sides of the crossover c = kκ/p; k = 2; |Bᵀe| not constant on E; a deep saddle that decides.
CASES = (
    RateCase((1.0, 0.5), (2.0, 0.5), 2, (24, 36)),
    RateCase((1.0, 0.5), (2.0, 0.5), 1, (30, 45)),
    RateCase((1.0, 0.5), (0.5, 2.0), 2, (44, 66)),
    RateCase((1.0, 0.5), (0.5, 2.0), 1, (30, 45)),
    RateCase((1.0, 0.6, 0.3), (1.0, 1.0, 1.0), 2, (20, 40)),
    RateCase((1.0, 1.0, 0.4), (1.0, 1.0, 3.0), 1, (20, 40)),
    RateCase((1.0, 1.0, 0.4), (2.0, 2.0, 1.0), 2, (20, 40)),
    RateCase((1.0, 1.0, 0.4), (2.0, 1.0, 0.5), 2, (30, 50), power=-0.25),
    RateCase((1.0, 0.6, 0.2), (1.0, 1.0, 20.0), 1, (150, 250)),
)


def graded_tokens(d: int, deep: float, step: float = 0.7) -> tkf.Tokens:
    """Quadrature of the uniform law on the positive orthant, crowded towards every coordinate plane.

    With a_i = log(x_i/x_d) the area is Π x_i da, and equispaced a converge like e^{−π²/step}. Diagonal
    matrices keep the orthant, and by symmetry it stands for the sphere.

    Args:
        d: dimension of the surrounding space.
        deep: how many e-folds towards the coordinate planes tokens reach.
        step: between two logarithms.
    """
    a = np.arange(-deep, 20, step)
    logs = np.stack(np.meshgrid(*[a] * (d - 1), [0.0], indexing="ij"), -1).reshape(-1, d)
    logs = logs - logs.max(axis=1, keepdims=True)
    x = np.exp(logs)
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    mass = np.exp(np.sum(logs - np.log(norm), axis=1))
    keep = mass > 1e-30 * mass.max()
    return tkf.Tokens((x / norm)[keep], mass[keep] / mass[keep].sum())


def sharp_rate(case: RateCase) -> float:
    """Decay rate of W_p under the zero-temperature flow, from the simulator.

    Fixed steps: small components, which grow by many powers of ten, then keep their relative accuracy.
    """
    d = len(case.spectrum)
    tokens = graded_tokens(d, 60.0 if d == 2 else 30.0)
    ts = np.concatenate([[0.0], np.linspace(*case.window, 17)])
    run = tkf.simulate(tkf.ZeroTemperature(case.weights), tokens, ts, tkf.RungeKutta4(0.1))
    values = worked.distances(run, tkf.theory.limit(case.weights), case.p)[1:]
    return tkf.fit_rate(ts[1:], values * ts[1:] ** -case.power, model="exponential").rate


def sharp_checks(cases: tuple[RateCase, ...], progress: Progress, span: tuple[float, float]) -> list[Check]:
    """Measured against min(c, K_j/p) to 1%.

    Args:
        cases: matrices, order p and the window of times of each.
        progress: called with the share done and what is being done.
        span: shares of the progress at the beginning and at the end.
    """
    checks = []
    for k, case in enumerate(cases):
        progress(span[0] + (span[1] - span[0]) * k / len(cases), case.name)
        predicted = tkf.theory.concentration_rates(case.weights, case.p).rate
        source = "theory §2.3: min(c, K_j/p), sharp"
        checks.append(near(f"rate of {case.name}", sharp_rate(case), predicted, source, relative=0.01))
    return checks


@dataclass(frozen=True, eq=False)
class Curves:
    """W2 to the limit law by β (∞ for zero temperature) over `ts`, on the sphere of R^d."""

    d: int
    weights: tkf.AttentionWeights
    ts: np.ndarray
    betas: tuple[float, ...]
    W: np.ndarray


def curves(weights: tkf.AttentionWeights, tokens: tkf.Tokens, found: xr.Dataset) -> Curves:
    """Those of a sweep over β (`worked.limit_grid`), and one at zero temperature.

    Args:
        weights: B and V.
        tokens: the initial law, for the run at zero temperature.
        found: dataset of the sweep.
    """
    ts, betas = found.time.values, found.beta.values
    zero = worked.distances(worked.run(weights, np.inf, tokens, ts), tkf.theory.limit(weights))
    W = found.limit_distance.transpose("beta", "time").values
    return Curves(tokens.d, weights, ts, (*betas.tolist(), np.inf), np.concatenate([W, zero[None]]))


def usable(found: Curves) -> np.ndarray:
    """W with NaN where the theorem's e^{Ct} no longer describes it: after a third of the way out again."""
    W = found.W.copy()
    for row in W:
        low = int(np.argmin(row))
        late = np.flatnonzero((np.arange(len(row)) > low) & (row > max(0.3, row[low])))
        row[late] = np.nan
    return W


def bound(found: Curves) -> BoundFit:
    """The constants of the theorem, fitted to all these curves."""
    return tkf.fit_bound(found.betas, found.ts, usable(found))


def _bound_check(found: Curves) -> Check:
    """Whether the theorem's bound holds uniformly in β.

    c is the sharp rate and C the rate at which clusters leave E, both from theory. C2 is then fixed by zero
    temperature and C1 by the smallest β: the colder runs, which had no say, must stay below.
    """
    rates, leave = tkf.theory.concentration_rates(found.weights), worked.leaving_rate(found.weights)
    W, betas = usable(found), np.array(found.betas)
    grow = tkf.theory.laplace_envelope(betas)[:, None] * np.exp(leave * found.ts)
    fall = np.exp(-rates.rate * found.ts)
    C2 = np.max(W[-1] / fall)
    C1 = np.nanmax((W[0] - C2 * fall) / grow[0])
    ratio = np.nanmin((max(C1, 0.0) * grow + C2 * fall)[1:-1] / W[1:-1])
    name = f"least bound/W over colder runs, C1 from β = {betas[0]:g}, d = {found.d}"
    source = f"{worked.PAPER}: W ≤ C1 √(log(β+1)/β) e^(Ct) + C2 e^(−ct)"
    return at_least(name, float(ratio), 1.0, source)


def cold_rate(found: Curves) -> Check:
    """Decay rate at the largest finite β, while W falls from 0.5 to three times its least value."""
    row = found.W[-2]
    low = int(np.argmin(row))
    inside = (np.arange(len(row)) < low) & (row < 0.5) & (row > 3 * row[low])
    rate = tkf.fit_rate(found.ts[inside], row[inside], model="exponential").rate
    predicted = tkf.theory.concentration_rates(found.weights).rate
    name = f"decay rate at β = {found.betas[-2]:g}, d = {found.d}"
    return near(name, rate, predicted, "theory §2.3, as β → ∞", relative=0.1)


#: Tokens on the sphere at β = 10⁴.
COLD = 10_000


def _tokens(quick: bool) -> tuple[tkf.Tokens, tkf.Tokens]:
    """Those on the circle and on the sphere."""
    return worked.circle_tokens(800 if quick else 2000), worked.graded_sphere_tokens(1250 if quick else 5000)


def grids(quick: bool) -> dict[str, dict[str, Any]]:
    """The sweeps on the circle and on the sphere; there the coldest needs more tokens than the others."""
    circle, sphere = _tokens(quick)
    ts, warm = np.linspace(0, 24, 97), (10.0, 100.0, 1000.0)
    found = {
        "circle": worked.limit_grid(worked.CIRCLE, warm if quick else (*warm, 1e4), circle, ts),
        "sphere": worked.limit_grid(worked.SPHERE, warm[:2] if quick else warm, sphere, ts),
    }
    if not quick:
        cold = worked.graded_sphere_tokens(COLD)
        found["cold sphere"] = worked.limit_grid(worked.SPHERE, [1e4], cold, ts)
    return found


def run(quick: bool, progress: Progress, found: Mapping[str, xr.Dataset]) -> Result:
    """Run the recipe and judge what it finds.

    Args:
        quick: whether the smaller size is wanted.
        progress: called with the share done and what is being done.
        found: datasets of the declared sweeps, by name.
    """
    on_circle, on_sphere = _tokens(quick)
    progress(0.0, "zero temperature")
    circle = curves(worked.CIRCLE, on_circle, found["circle"])
    spheres = [found[name] for name in ("sphere", "cold sphere") if name in found]
    sphere = curves(worked.SPHERE, on_sphere, xr.concat(spheres, "beta", join="exact"))
    checks = sharp_checks(CASES[:-1] if quick else CASES, progress, (0.3, 0.98))
    checks += [cold_rate(circle), cold_rate(sphere), _bound_check(circle), _bound_check(sphere)]
    progress(0.98, "drawing")
    return Result(checks, _table(circle, sphere), _data(circle, sphere), figure(circle, sphere, checks))


RECIPE = Recipe(
    "concentration",
    "W2(μ_t, Π♯ρ0) against t from β = 10 to zero temperature, the sharp rate, the theorem's bound",
    run,
    grids,
)


def _table(*all_found: Curves) -> list[dict[str, float]]:
    rows = []
    for found in all_found:
        fit = bound(found)
        for beta, row in zip(found.betas, found.W, strict=True):
            when, least = worked.bottom(found.ts, row)
            rate = tkf.theory.concentration_rates(found.weights).rate
            rows.append(
                {
                    "d": found.d,
                    "beta": beta,
                    "least W2": least,
                    "at t": when,
                    "rate predicted": rate,
                    "C1": fit.C1,
                    "C2": fit.C2,
                    "C": fit.C,
                    "c": fit.c,
                    "median slack": fit.slack.median,
                }
            )
    return rows


def _data(*all_found: Curves) -> xr.Dataset:
    variables, coords = {}, {}
    for found in all_found:
        d = found.d
        variables[f"W2_d{d}"] = ((f"beta_d{d}", f"time_d{d}"), found.W)
        coords |= {f"beta_d{d}": list(found.betas), f"time_d{d}": found.ts}
    return xr.Dataset(variables, coords)


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(circle: Curves, sphere: Curves, checks: list[Check]) -> Figure:
    """The curves on the circle and on the sphere, and the sharp rates measured over predicted.

    Args:
        circle: the curves for d = 2.
        sphere: those for d = 3.
        checks: of all rates.
    """
    drawing = Figure(figsize=(8.5, 9.5), layout="constrained")
    # subfigures: the long names of the last panel shall not narrow the others
    parts = drawing.subfigures(3, 1, squeeze=False, height_ratios=(1, 1, 0.9))[:, 0]
    for part, found in zip(parts, (circle, sphere), strict=False):
        draw_curves(part.subplots(), found)
    _draw_rates(parts[2].subplots(), [check for check in checks if check.name.startswith("rate of")])
    return drawing


def draw_curves(ax: Axes, found: Curves) -> None:
    """W2 over time, the sharp rate, and the fitted bound of the coldest finite β."""
    rate = tkf.theory.concentration_rates(found.weights).rate
    cold = found.betas[-2]
    line = 1.1 * found.W[-1, len(found.ts) // 2] * np.exp(-rate * (found.ts - found.ts[len(found.ts) // 2]))
    limit_line = bound(found).bound([cold], found.ts)[0]
    lines = {
        f"rate {rate:g}, predicted": line,
        f"theorem's bound, fitted,\nat β = {cold:g}": np.where(limit_line < 2, limit_line, np.nan),
    }
    values = {worked.label(beta): row for beta, row in zip(found.betas, found.W, strict=True)}
    tkf.figures.curves(found.ts, values, "t", "W2 to Π♯ρ0", "y", lines, ax=ax)
    ax.set_title("circle (d = 2)" if found.d == 2 else f"sphere (d = {found.d})", loc="left")


def _draw_rates(ax: Axes, checks: list[Check]) -> None:
    names = [check.name.removeprefix("rate of ") for check in checks]
    ratio = [check.measured / check.predicted for check in checks]
    at = np.arange(len(checks))[::-1]
    ax.axvspan(0.99, 1.01, color="0.92")
    ax.axvline(1, color="0.4", linewidth=1)
    ax.plot(ratio, at, "o", color=tkf.figures.PALETTE[0])
    ax.set_yticks(at, names, fontsize=9)
    ax.set(xlim=(0.978, 1.022), ylim=(-0.7, len(checks) - 0.3))
    ax.set_xlabel("zero-temperature rate, measured over predicted (grey: 1%)")
