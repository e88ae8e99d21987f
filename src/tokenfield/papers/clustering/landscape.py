"""Proposition 2.1: for d ≥ 3 gradient ascent of E_β ends in one cluster, from every start but saddles.

Thousands of random starts at once. For a general matrix A that is not so (theory §3.3): with
A = diag(2, 1, ½) and φ = e^s, atoms at ±e1 are linearly stable if their masses are not too unequal, and many
starts end there.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import xarray as xr
from jax import lax
from jaxtyping import Array, Float
from matplotlib.figure import Figure

import tokenfield as tkf
from tokenfield.geometry.sphere import retract
from tokenfield.papers.clustering import shared
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, Row, at_least, near

MAXIMA = f"{shared.PAPER}, Proposition 2.1"
SECOND = "theory §3.3: the spectrum of two antipodal atoms"
#: Tokens per start, and β of the ascent with A = I.
N, BETA = 6, 1.0
A = np.diag([2.0, 1.0, 0.5])
#: Tokens this close are one cluster.
TOGETHER = 1e-3


class Ends(NamedTuple):
    """Where starts end: (starts, N, d) tokens, and the greatest speed that is left."""

    name: str
    x: np.ndarray
    speed: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        """Number of clusters of every end."""
        gap = np.linalg.norm(self.x[:, :, None] - self.x[:, None], axis=-1) < TOGETHER
        # the first token of each cluster has nobody near before it
        first = ~np.any(np.tril(gap, -1), axis=2)
        return np.sum(first, axis=1)

    @property
    def heavier(self) -> np.ndarray:
        """Share of the tokens of every end that are with the first; at least ½ by exchanging."""
        with_first = np.mean(np.linalg.norm(self.x - self.x[:, :1], axis=2) < TOGETHER, axis=1)
        return np.maximum(with_first, 1 - with_first)


@eqx.filter_jit
def ascend(model: tkf.Model, x: Float[Array, "starts n d"], step: float, steps: int) -> tuple[Array, Array]:
    """Every start carried on by Runge–Kutta steps, and the greatest speed in the end.

    Args:
        model: the flow that climbs.
        x: starts, (starts, n, d).
        step: of the Runge–Kutta formula.
        steps: how many.
    """

    def slope(points: Array) -> Array:
        return model.velocity(tkf.Tokens(retract(points)))

    def move(points: Array) -> Array:
        k1 = slope(points)
        k2 = slope(points + step / 2 * k1)
        k3 = slope(points + step / 2 * k2)
        return retract(points + step / 6 * (k1 + 2 * k2 + 2 * k3 + slope(points + step * k3)))

    def one(points: Array) -> tuple[Array, Array]:
        end = lax.fori_loop(0, steps, lambda _, a: move(a), points)
        return end, jnp.max(jnp.linalg.norm(slope(end), axis=1))

    return jax.vmap(one)(x)


def ends(name: str, model: tkf.Model, starts: int, rate: float, folds: float, key: int) -> Ends:
    """Where random starts end that are followed until they must have left every saddle.

    Args:
        name: of the case.
        model: the flow that climbs.
        starts: how many random starts.
        rate: the fastest rate of the flow; a step is its inverse.
        folds: how long starts are followed, in units of time.
        key: seed of the starts.
    """
    x = np.random.default_rng(key).normal(size=(starts, N, model.d))
    step = 1.0 / rate
    end, speed = ascend(model, retract(jnp.asarray(x)), step, int(np.ceil(folds / step)))
    return Ends(name, np.asarray(end), np.asarray(speed))


def run(quick: bool, progress: Progress) -> Result:
    """The recipe."""
    starts = 400 if quick else 2000
    found = []
    for k, d in enumerate((3, 4, 5)):
        progress(k / 4, f"A = I, d = {d}")
        # clusters form at e^β and antipodal ones part at e^{−β}
        found.append(
            ends(
                f"A = I, d = {d}",
                shared.usa(BETA, d),
                starts,
                float(np.exp(BETA)),
                60 * float(np.exp(BETA)),
                key=d,
            )
        )
    progress(3 / 4, "A = diag(2, 1, ½)")
    # the fastest rate is about φ'(2)·2, the slowest within an eigenspace about φ'(½)
    found.append(ends("A = diag(2, 1, ½)", tkf.InteractionFlow(jnp.exp, A), starts, 15.0, 60.0, key=9))
    data = xr.Dataset(
        {f"ends_{k}": (("start", "token", f"dim_{k}"), each.x) for k, each in enumerate(found)},
        attrs={f"case_{k}": each.name for k, each in enumerate(found)},
    )
    return Result(checks(found), _rows(found), data, figure(found))


RECIPE = Recipe(
    "landscape",
    "gradient ascent from thousands of starts ends at a Dirac for d ≥ 3, A = I; not for other A",
    run,
)


def checks(found: list[Ends]) -> list[Check]:
    """One cluster from every start for A = I; for the other, two stable antipodal ones from many."""
    result = [
        near(
            f"share of starts that end in one cluster, {each.name}",
            float(np.mean(each.counts == 1)),
            1.0,
            MAXIMA,
            absolute=1e-12,
        )
        for each in found[:3]
    ]
    other = found[3]
    two = other.counts == 2
    inner = np.sum(other.x[:, :, None] * other.x[:, None], axis=-1).min(axis=(1, 2))
    off_axis = np.max(np.linalg.norm(np.abs(other.x) - [1.0, 0, 0], axis=2), axis=1)
    stable = [
        tkf.theory.antipodal_spectrum(float(p), jnp.exp, A, [1.0, 0, 0]).stable
        for p in np.unique(other.heavier[two])
    ]
    return [
        *result,
        at_least(
            f"share of starts that end in two clusters, {other.name}",
            float(np.mean(two)),
            0.01,
            f"{SECOND}: stable, so that a neighbourhood ends there",
        ),
        near(
            f"ends of one or two clusters, share, {other.name}",
            float(np.mean(other.counts <= 2)),
            1.0,
            SECOND,
            absolute=1e-12,
        ),
        near(
            "two clusters: greatest inner product + 1",
            float(np.max(inner[two], initial=-1)) + 1,
            0.0,
            f"{SECOND}: antipodal",
            absolute=1e-6,
        ),
        near(
            "all ends: greatest distance from ±e1",
            float(np.max(off_axis)),
            0.0,
            "theory §3.3: A's top eigenvector",
            absolute=1e-5,
        ),
        near(
            "splittings that ended in two clusters, share of them stable", float(np.mean(stable)), 1.0, SECOND
        ),
    ]


def _rows(found: list[Ends]) -> list[Row]:
    return [
        {
            "case": each.name,
            "clusters": int(count),
            "starts": int(np.sum(each.counts == count)),
            "greatest speed left": float(each.speed.max()),
        }
        for each in found
        for count in np.unique(each.counts)
    ]


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(found: list[Ends]) -> Figure:
    """How many clusters starts end in, and the masses of the two clusters with the rate of each splitting."""
    drawing = Figure(figsize=(10.2, 4.3), layout="constrained")
    left, right = drawing.subplots(1, 2, width_ratios=(1, 1.05))
    most = max(2, max(int(each.counts.max()) for each in found))
    base = np.zeros(len(found))
    for count, colour, hatch in zip(
        range(1, most + 1), tkf.figures.PALETTE, ("", "//", "..", "xx"), strict=False
    ):
        share = np.array([np.mean(each.counts == count) for each in found])
        left.barh(
            range(len(found)),
            share,
            left=base,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            label=f"{count} cluster{'s' if count > 1 else ''}",
        )
        base += share
    left.set_yticks(range(len(found)), [each.name for each in found])
    left.invert_yaxis()
    left.set(xlim=(0, 1), xlabel=f"share of {len(found[0].x)} starts, {N} tokens each")
    left.legend(loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=most)
    other = found[3]
    p = np.linspace(0.5, 0.999, 100)
    top = [
        float(np.max(np.append(s.whole.ravel(), s.split)))
        for s in (tkf.theory.antipodal_spectrum(float(q), jnp.exp, A, [1.0, 0, 0]) for q in p)
    ]
    right.plot(p, top, color="0.1", linestyle=(0, (3, 2)), linewidth=1.4, label="greatest rate, theory")
    right.axhline(0, color="0.7", linewidth=0.9)
    seen, counts = np.unique(np.round(other.heavier[other.counts == 2], 9), return_counts=True)
    for q, count in zip(seen, counts, strict=True):
        right.plot(
            q,
            np.interp(q, p, top),
            "o",
            color=tkf.figures.PALETTE[1],
            clip_on=False,
            markersize=4 + 14 * np.sqrt(count / max(1, len(other.x))),
        )
        right.annotate(
            f"{count} starts",
            (q, np.interp(q, p, top)),
            xytext=(8, -4),
            fontsize=10,
            textcoords="offset points",
            va="top",
        )
    right.set(
        xlabel="mass of the heavier of two antipodal clusters",
        ylabel="rate",
        xlim=(0.48, 1.0),
        ylim=(-4, 0.6),
    )
    right.set_title("A = diag(2, 1, ½): negative is stable", loc="left", fontsize=11)
    right.legend(loc="upper left")
    return drawing
