"""The MLP as a term beside attention (2601.21366, 2605.07772; theory §6.3): what it does alone, and together.

Four pictures: tokens under an MLP alone, which do not interact, and with softmax attention, which gathers
them; layers whose sublayers act in parallel or one after the other, which differ from the flow, and from each
other, by O(η); the energy E_β + ∫Φ of unnormalised attention with a gradient MLP, which grows by ∫|v|²; and
one ReLU neuron, which draws half of the uniform law to w and leaves the other half where it is.
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

REFERENCE = "theory §6.3.4: DOP853 at 1e-12 for the printed weights"
FIRST_ORDER = "both are explicit steps of one flow: errors are O(η)"
IDENTITY = "theory §6.3.3: d/dt(E_β + ∫Φ) = ∫|v|² for a gradient MLP"
NEURON = "theory §6.3.2: c(t) = [1 + (c_0^{−2} − 1)e^{−2at}]^{−1/2}, c ≤ 0 is frozen"
T, BETA = 1.5, 2.0
#: Pull of the ReLU neuron, and the times at which its tokens are looked at.
PULL, NEURON_TS = 1.0, np.array([0.0, 1.0, 3.0])


class Neuron(NamedTuple):
    """c = ⟨w, x⟩ of tokens (times, n) under one ReLU neuron."""

    c: np.ndarray


class EnergyCurve(NamedTuple):
    """Times, E_β + ∫Φ, and ∫|v|² along a run."""

    ts: np.ndarray
    energy: np.ndarray
    power: np.ndarray


def printed(gradient: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """W1, b1, W2, b2 of theory §6.3.4, with W2 = W1ᵀdiag(a) for the gradient form."""
    h, k = np.arange(1, 5)[:, None], np.arange(1, 4)
    W1, b1 = np.cos(0.9 * h * k + 0.2), 0.1 * np.arange(4) - 0.2
    W2 = W1.T * (0.5 + 0.1 * np.arange(4)) if gradient else 0.5 * np.sin(0.7 * k[:, None] * h[:, 0])
    return W1, b1, W2, 0.05 * k


def sample_tokens(n: int = 5) -> tkf.Tokens:
    """x_ik = cos(i√(k+1) + k), rows normalised: tokens without a random generator."""
    i, k = np.arange(1, n + 1)[:, None], np.arange(1, 4)
    x = np.cos(i * np.sqrt(k + 1) + k)
    return tkf.Tokens(x / np.linalg.norm(x, axis=1, keepdims=True))


def attention() -> tkf.SoftmaxAttention:
    """Softmax with B = V = I."""
    return tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), BETA)


def paths(model: tkf.Model, count: int = 61) -> tkf.Trajectory:
    """The test tokens up to t = 1.5."""
    return tkf.simulate(
        model, sample_tokens(), np.linspace(0, T, count), tkf.Adaptive(rtol=1e-10, atol=1e-12)
    )


def layer_errors(etas: np.ndarray, exact: np.ndarray) -> dict[str, np.ndarray]:
    """Greatest distance of the tokens from the flow, and of both kinds of layers from each other."""
    model = attention() + tkf.MLP(*printed(False))
    ends = {
        kind: np.stack(
            [tkf.simulate(model, sample_tokens(), [0, T], tkf.Layers(eta, kind)).x[-1] for eta in etas]
        )
        for kind in ("parallel", "sequential")
    }
    found = {kind: np.linalg.norm(end - exact, axis=2).max(axis=1) for kind, end in ends.items()}
    return found | {"difference": np.linalg.norm(ends["parallel"] - ends["sequential"], axis=2).max(axis=1)}


def climb() -> EnergyCurve:
    """Unnormalised attention with the gradient form of the printed MLP."""
    term = tkf.MLP(*printed(True))
    model = tkf.UnnormalisedAttention(tkf.AttentionWeights.identity(3), BETA) + term
    ts = np.linspace(0, T, 61)
    run = tkf.simulate(model, sample_tokens(), ts, tkf.Adaptive(rtol=1e-10, atol=1e-12))

    @jax.jit
    def energy_and_power(x: jax.Array) -> jax.Array:
        tokens = tkf.Tokens(x)
        energy = tkf.energy(tokens, BETA) + tokens.weights @ term.potential(x)
        return jnp.stack([energy, jnp.sum(tokens.weights @ model.velocity(tokens) ** 2)])

    found = np.array([energy_and_power(x) for x in run.x])
    return EnergyCurve(ts, found[:, 0], found[:, 1])


def neuron(n: int) -> Neuron:
    """n uniform tokens under a·w·ReLU⟨w, x⟩ with w = e1."""
    w = np.eye(3)[0]
    model = tkf.MLP(w[None], None, PULL * w[:, None], None, "relu")
    run = tkf.simulate(model, tkf.initial.uniform(n, 3, 0), NEURON_TS, tkf.Adaptive(rtol=1e-9, atol=1e-11))
    return Neuron(run.x @ w)


def run(quick: bool, progress: Progress) -> Result:
    """The recipe."""
    alone = paths(tkf.MLP(*printed(False)))
    together = paths(attention() + tkf.MLP(*printed(False)))
    progress(0.3, "layers")
    etas = T / np.array([30, 60] if quick else [8, 15, 30, 60, 120, 240])
    errors = layer_errors(etas, np.asarray(together.x[-1]))
    progress(0.6, "energy and a neuron")
    energy, pulled = climb(), neuron(500 if quick else 20_000)
    checks = [
        *_reference_checks(alone, together),
        *_layer_checks(etas, errors),
        *_energy_checks(energy),
        *_neuron_checks(pulled),
    ]
    data = xr.Dataset(
        {
            "alone": (("time", "token", "axis"), alone.x),
            "together": (("time", "token", "axis"), together.x),
            **{f"error_{kind}": ("eta", values) for kind, values in errors.items()},
            "energy": ("time", energy.energy),
            "power": ("time", energy.power),
            "c": (("neuron_time", "neuron_token"), pulled.c),
        },
        coords={"time": np.asarray(alone.ts), "eta": etas, "neuron_time": NEURON_TS},
    )
    rows: list[Row] = [
        {"eta": float(eta), **{kind: float(values[k]) for kind, values in errors.items()}}
        for k, eta in enumerate(etas)
    ]
    return Result(checks, rows, data, figure(alone, together, etas, errors, energy, pulled))


RECIPE = Recipe(
    "mlp", "an MLP alone and beside attention: layers, energy, and a neuron that freezes half", run
)


def _reference_checks(alone: tkf.Trajectory, together: tkf.Trajectory) -> list[Check]:
    first = np.array([-0.402627907084, -0.912204854539, 0.075980733031])
    last = np.array([0.069150509126, -0.201157031154, 0.977115170236])
    return [
        at_most(
            "MLP alone: token 1 at t = 1.5, distance",
            float(np.linalg.norm(alone.x[-1, 0] - first)),
            1e-8,
            REFERENCE,
        ),
        at_most(
            "with softmax: token 5 at t = 1.5, distance",
            float(np.linalg.norm(together.x[-1, 4] - last)),
            1e-8,
            REFERENCE,
        ),
    ]


def _layer_checks(etas: np.ndarray, errors: dict[str, np.ndarray]) -> list[Check]:
    return [
        near(
            f"order in η of {kind}",
            float(np.log(values[-2] / values[-1]) / np.log(etas[-2] / etas[-1])),
            1.0,
            FIRST_ORDER,
            0.1,
        )
        for kind, values in errors.items()
    ]


def _energy_checks(found: EnergyCurve) -> list[Check]:
    # Simpson's rule over the saved times
    h = found.ts[1] - found.ts[0]
    gained = (
        h
        / 3
        * (found.power[0] + 4 * found.power[1::2].sum() + 2 * found.power[2:-1:2].sum() + found.power[-1])
    )
    return [
        near("E_β + ∫Φ at t = 0", found.energy[0], 0.2268504128844, "theory §6.3.4", absolute=1e-12),
        near("∫|v|² at t = 0", found.power[0], 0.3754597761, "theory §6.3.4", absolute=1e-9),
        near("energy gained by t = 1.5", found.energy[-1] - found.energy[0], gained, IDENTITY, relative=1e-6),
    ]


def _neuron_checks(found: Neuron) -> list[Check]:
    start = found.c[0]
    ahead = start > 0
    expected = (1 + (start[ahead] ** -2 - 1) * np.exp(-2 * PULL * NEURON_TS[-1])) ** -0.5
    moved = np.abs(found.c[-1][~ahead] - start[~ahead])
    share = float(np.mean(np.abs(found.c[-1] - start) < 1e-12))
    return [
        at_most(
            "one neuron: distance from the closed form",
            float(np.max(np.abs(found.c[-1][ahead] - expected))),
            1e-7,
            NEURON,
        ),
        at_most("one neuron: motion where c ≤ 0", float(np.max(moved)), 1e-14, NEURON),
        near(
            "one neuron: share of tokens that never move",
            share,
            0.5,
            NEURON,
            absolute=2 / np.sqrt(len(start)),
        ),
    ]


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(
    alone: tkf.Trajectory,
    together: tkf.Trajectory,
    etas: np.ndarray,
    errors: dict[str, np.ndarray],
    energy: EnergyCurve,
    pulled: Neuron,
) -> Figure:
    """Inner products over time, errors of layers, the energy and its rate, and laws of ⟨w, x⟩.

    Args:
        alone: a run of the MLP.
        together: a run with attention.
        etas: steps (k,).
        errors: of layers (k,), by kind.
        energy: the energy over time.
        pulled: tokens under one neuron.
    """
    drawing = Figure(figsize=(10.4, 7.6), layout="constrained")
    grid = drawing.subplots(2, 2)
    _draw_products(grid[0, 0], alone, together)
    looks = {
        "parallel": "parallel − flow",
        "sequential": "sequential − flow",
        "difference": "parallel − sequential",
    }
    for k, (kind, label) in enumerate(looks.items()):
        grid[0, 1].loglog(
            etas,
            errors[kind],
            "o",
            linestyle=tkf.figures.DASHES[k],
            color=tkf.figures.PALETTE[k],
            label=label,
        )
    grid[0, 1].loglog(
        etas, 0.6 * errors["parallel"][0] * etas / etas[0], color="0.3", linewidth=1, label="slope 1"
    )
    grid[0, 1].set(xlabel="η", ylabel="greatest distance at t = 1.5", title="sublayers, softmax + MLP")
    grid[0, 1].legend(fontsize=9)
    _draw_energy(grid[1, 0], energy)
    _draw_neuron(grid[1, 1], pulled)
    return drawing


def _draw_products(ax: Axes, alone: tkf.Trajectory, together: tkf.Trajectory) -> None:
    """⟨x_i, x_j⟩ of all pairs over time."""
    pairs = np.triu_indices(alone.x.shape[1], 1)
    for k, (run, label) in enumerate(((alone, "MLP alone"), (together, "with softmax, β = 2"))):
        products = np.einsum("tid,tjd->tij", run.x, run.x)[:, pairs[0], pairs[1]]
        lines = ax.plot(
            run.ts, products, color=tkf.figures.PALETTE[k], linestyle=tkf.figures.DASHES[k], linewidth=1.2
        )
        lines[0].set_label(label)
    ax.set(xlabel="t", ylabel="⟨x_i, x_j⟩", ylim=(-1.02, 1.55), title="five tokens, four GELU neurons")
    ax.legend(fontsize=9, loc="upper left")


def _draw_energy(ax: Axes, found: EnergyCurve) -> None:
    slope = np.gradient(found.energy, found.ts)
    ax.plot(found.ts, found.energy, color=tkf.figures.PALETTE[0], label="E_β + ∫Φ")
    ax.plot(
        found.ts, found.power, color=tkf.figures.PALETTE[1], linestyle=tkf.figures.DASHES[1], label="∫|v|²"
    )
    ax.plot(found.ts[1:-1:3], slope[1:-1:3], "o", color="0.2", markersize=4, label="slope of E_β + ∫Φ")
    ax.set(xlabel="t", title="unnormalised attention + gradient MLP")
    ax.legend(fontsize=9)


def _draw_neuron(ax: Axes, found: Neuron) -> None:
    for k, (t, c) in enumerate(zip(NEURON_TS, found.c, strict=True)):
        c = np.sort(c)
        share = np.arange(1, len(c) + 1) / len(c)
        ax.plot(c, share, color=tkf.figures.PALETTE[k], linestyle=tkf.figures.DASHES[k], label=f"t = {t:g}")
    ax.set(
        xlabel="⟨w, x⟩",
        xticks=[-1, 0, 1],
        ylabel="share of tokens below",
        title="one ReLU neuron freezes half of the uniform law",
    )
    ax.legend(fontsize=9, loc="upper left")
