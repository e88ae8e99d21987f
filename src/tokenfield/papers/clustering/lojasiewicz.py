"""Example 2.2: no Łojasiewicz inequality near a Dirac, however small the W2 ball around it (theory §3.6).

Two atoms of masses 1−ε and ε at the angle θ have ∫|v|²dμ = ε(1−ε)e^{2β cosθ}sin²θ and the deficit
E_max − E = ε(1−ε)(e^β − e^{β cosθ})/β. At θ = π the velocity vanishes and the deficit does not, at a distance
W2 = π√ε as small as you like. Near π the light atom waits: θ' = −e^{β cosθ}sinθ, whatever ε is.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import xarray as xr
from jaxtyping import Array, Float
from matplotlib.figure import Figure
from scipy import integrate

import tokenfield as tkf
from tokenfield.measure.energy import deficit
from tokenfield.papers import declared
from tokenfield.papers.clustering import shared
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, near
from tokenfield.solvers.ode import Adaptive
from tokenfield.sweeps.grid import Grid
from tokenfield.sweeps.objects import declare_runs

EXAMPLE = f"{shared.PAPER}, Example 2.2 (theory §3.6)"
BETA = 1.0
EPSILONS = (0.1, 0.01, 1e-3, 1e-4)
#: Mass of the atom that is waited for.
LIGHT = 0.1


def pair(theta: Float[Array, ""], eps: Float[Array, ""]) -> tkf.Tokens:
    """Atoms of masses 1−ε at e1 and ε at the angle θ from it."""
    x = jnp.stack([jnp.array([1.0, 0.0]), jnp.stack([jnp.cos(theta), jnp.sin(theta)])])
    return tkf.Tokens(x, jnp.stack([1 - eps, eps]))


@jax.jit
def speed_and_deficit(theta: Float[Array, "angles"], eps: Float[Array, ""]) -> Float[Array, "2 angles"]:
    """‖v‖ and E_max − E of the pair for every angle."""

    def at(angle: Array) -> Array:
        tokens = pair(angle, eps)
        v = shared.usa(BETA).velocity(tokens)
        return jnp.stack([jnp.sqrt(jnp.sum(tokens.weights * jnp.sum(v * v, axis=1))), deficit(tokens, BETA)])

    return jax.vmap(at, out_axes=1)(theta)


def waiting_time(off: float) -> float:
    """Time in which the light atom comes from π − off to π/2.

    With y = log tan((π−θ)/2), y' = e^{β cosθ} and cosθ = tanh y: an integral of a smooth function.
    """
    start = np.log(np.tan(off / 2))
    return float(integrate.quad(lambda y: np.exp(-BETA * np.tanh(y)), start, 0.0, epsrel=1e-12, limit=200)[0])


def _offs(quick: bool) -> np.ndarray:
    return np.array([1e-2, 1e-4, 1e-6]) if quick else np.logspace(-1, -8, 8)


def grids(quick: bool) -> dict[str, Grid]:
    """Runs of the two atoms, by how far the light one is from the antipode.

    Near the antipode an error of a step is compared with `off`, not with 1; near π/2 times are dense.
    """
    offs = [float(off) for off in _offs(quick)]
    return {
        "waits": declare_runs(
            shared.usa(BETA),
            [pair(jnp.asarray(np.pi - off), jnp.asarray(LIGHT)) for off in offs],
            [np.array([0.0, *(waiting_time(off) + np.linspace(-1, 1, 81))]) for off in offs],
            [Adaptive(rtol=min(1e-10, 1e-6 * off), atol=min(1e-12, 1e-8 * off)) for off in offs],
            measure=(),
            snapshots=None,
            summation="direct",
            together=True,
        )
    }


def measured_wait(run: tkf.Trajectory) -> float:
    """The same from a run of the two atoms, whose angle passes π/2."""
    ts, x = np.asarray(run.ts), np.asarray(run.x)
    cosine = np.sum(x[:, 0] * x[:, 1], axis=1)
    k = int(np.argmax(cosine > 0))
    # a cubic through four points of the inner product
    fit = np.polyfit(cosine[k - 2 : k + 2], ts[k - 2 : k + 2], 3)
    return float(np.polyval(fit, 0.0))


def run(quick: bool, progress: Progress, found: Mapping[str, xr.Dataset]) -> Result:
    """Run the recipe and judge what it finds.

    Args:
        quick: whether the smaller size is wanted.
        progress: called with the share done and what is being done.
        found: datasets of the declared sweeps, by name.
    """
    theta = np.linspace(0.01, np.pi, 80 if quick else 400)
    curves = []
    for k, eps in enumerate(EPSILONS):
        progress(k / len(EPSILONS), f"ε = {eps:g}")
        curves.append(np.asarray(speed_and_deficit(jnp.asarray(theta), jnp.asarray(eps))))
    offs, waits = _offs(quick), [measured_wait(each) for each in declared.runs(found["waits"])]
    seen = np.stack(curves)
    data = xr.Dataset(
        {
            "speed": (("eps", "theta"), seen[:, 0]),
            "deficit": (("eps", "theta"), seen[:, 1]),
            "wait": ("off", np.array(waits)),
        },
        {"eps": list(EPSILONS), "theta": theta, "off": offs},
    )
    rows = [
        {
            "eps": eps,
            "W2 to the Dirac": np.pi * np.sqrt(eps),
            "speed at π": float(c[0, -1]),
            "deficit at π": float(c[1, -1]),
        }
        for eps, c in zip(EPSILONS, curves, strict=True)
    ]
    checked = checks(theta, seen, offs, np.array(waits))
    return Result(checked, rows, data, figure(theta, seen, offs, np.array(waits)))


RECIPE = Recipe(
    "lojasiewicz",
    "Example 2.2: no Łojasiewicz inequality near a Dirac, deficit against speed",
    run,
    grids,
)


def checks(theta: np.ndarray, seen: np.ndarray, offs: np.ndarray, waits: np.ndarray) -> list[Check]:
    """Speed, deficit and distance of Example 2.2; speed at every angle; how long the light atom waits.

    Args:
        theta: angles of the light atom, (angles,).
        seen: speed and deficit, (masses, 2, angles).
        offs: distances from the antipode at the start, (offs,).
        waits: measured waiting times, (offs,).
    """
    result = []
    for eps, (speed, gap) in zip(EPSILONS, seen, strict=True):
        example = tkf.theory.near_dirac(eps)
        far = tkf.wasserstein(example, tkf.Tokens(example.x[:1])).value
        push = np.exp(BETA * np.cos(theta)) * np.sin(theta)
        formula = np.sqrt(eps * (1 - eps)) * np.abs(push)
        result += [
            near(f"speed at θ = π, ε = {eps:g}", speed[-1], 0.0, EXAMPLE, absolute=1e-15),
            near(
                f"deficit at θ = π, ε = {eps:g}",
                gap[-1],
                tkf.theory.near_dirac_deficit(eps, BETA),
                EXAMPLE,
                relative=1e-10,
            ),
            near(f"W2 to the Dirac, ε = {eps:g}", far, np.pi * np.sqrt(eps), EXAMPLE, relative=1e-9),
            near(
                f"speed at all angles, greatest gap, ε = {eps:g}",
                float(np.max(np.abs(speed - formula))),
                0.0,
                "two atoms: √(ε(1−ε)) e^(β cosθ) sinθ",
                absolute=1e-12,
            ),
        ]
    return result + [
        near(
            f"waiting time, off by {off:.0e}",
            wait,
            waiting_time(float(off)),
            "quadrature of θ' = −e^(β cosθ) sinθ",
            relative=1e-8,
        )
        for off, wait in zip(offs, waits, strict=True)
    ]


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(theta: np.ndarray, seen: np.ndarray, offs: np.ndarray, waits: np.ndarray) -> Figure:
    """Deficit against speed as θ goes from 0 to π, and how long the light atom waits.

    Args:
        theta: angles of the light atom, (angles,).
        seen: speed and deficit, (masses, 2, angles).
        offs: distances from the antipode at the start, (offs,).
        waits: measured waiting times, (offs,).
    """
    drawing = Figure(figsize=(10.4, 4.9), layout="constrained")
    left, right = drawing.subplots(1, 2)
    for eps, (speed, gap), colour, dash in zip(
        EPSILONS, seen, tkf.figures.PALETTE, tkf.figures.DASHES, strict=False
    ):
        left.loglog(
            np.maximum(speed, 1e-6),
            gap,
            color=colour,
            linestyle=dash,
            label=f"ε = {eps:g}\nW2 ≤ {np.pi * np.sqrt(eps):.2g}",
        )
        left.plot(1.2e-6, gap[-1], "<", color=colour, markersize=7, clip_on=False)
    reach = np.array([1e-6, 2.0])
    left.plot(
        reach,
        reach**2 / tkf.theory.pl_constant(np.pi / 4, BETA),
        color="0.1",
        linestyle=(0, (3, 2)),
        linewidth=1.2,
        label="‖v‖² = λ1 · deficit,\non caps of angle π/4",
    )
    left.set(xlabel="‖v‖", ylabel="E_max − E", xlim=(1e-6, 2), ylim=(1e-9, 3))
    left.set_title("two atoms, θ from 0 to π (triangles: θ = π, ‖v‖ = 0)", loc="left", fontsize=11)
    handles, labels = left.get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower left", ncols=5, fontsize=9.5, columnspacing=1.4)
    right.semilogx(offs, waits, "o", color=tkf.figures.PALETTE[0], markersize=7, label="run")
    fine = np.logspace(np.log10(offs.min()), np.log10(offs.max()), 60)
    right.semilogx(
        fine,
        [waiting_time(o) for o in fine],
        color="0.1",
        linestyle=(0, (3, 2)),
        linewidth=1.2,
        label="quadrature; slope e^β per e-fold",
    )
    right.set(xlabel="π − θ at the start", ylabel="time until θ = π/2", ylim=(0, None))
    right.legend(loc="lower left")
    return drawing
