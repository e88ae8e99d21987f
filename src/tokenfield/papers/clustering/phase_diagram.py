"""The phase diagram: which share of pairs of tokens has met, over β and time, for many small systems at once.

n tokens drawn uniformly on the circle, softmax flow; a pair has met when ⟨x,y⟩ ≥ 1 − 10⁻³. At small β all
meet by t ≈ 10; at large β the share stops at a plateau of several clusters, for times exponential in β. The
curve is the equiangular system (d ≥ n, ρ_0 = 0): tokens in many dimensions follow it, those of the circle do
not.

Systems lie along the last axis, so that one compiled loop over the tokens serves 128 of them; they are
independent and shared among threads. Tokens that have come within 10⁻⁴ go on as one heavier token (its
equation is the same up to the square of that), so that late times cost little, and a system whose tokens have
all met is not carried on.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import xarray as xr
from jax import lax
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from tokenfield import figures
from tokenfield.papers.clustering import shared
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, near
from tokenfield.theory.reductions import equiangular, lorentz

#: Tokens per system; how close a pair is that has met; step of the Runge–Kutta formula; steps per saved time.
N, MET, STEP, STRIDE = 32, 1e-3, 0.1, 2
LAST = 30.0
#: Systems that are carried together, and saved times between two looks for finished systems.
TOGETHER, BLOCK = 128, 10
#: Tokens closer than this go on as one; numbers of rows that are compiled.
CLOSE, SIZES = 1e-4, (2, 4, 8, 16, 32)
#: Dimension of the second panel: pairs of its random tokens are nearly orthogonal.
HIGH = 1024


class Diagram(NamedTuple):
    """Share of pairs that have met, (betas, times)."""

    betas: np.ndarray
    ts: np.ndarray
    share: np.ndarray


def velocity(
    theta: Float[Array, "n systems"], mass: Float[Array, "n systems"], beta: Float[Array, "systems"]
) -> Float[Array, "n systems"]:
    """Softmax flow on the circle in angles: Σ_j e^{β cos s}sin s / Σ_j e^{β cos s}, s = θ_j − θ_i."""
    c, s = jnp.cos(theta), jnp.sin(theta)

    def add(j: Array, sums: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        # without the barrier the exponential would be computed three times
        pull = lax.optimization_barrier(mass[j] * jnp.exp(beta * (c * c[j] + s * s[j] - 1)))
        return sums[0] + pull * c[j], sums[1] + pull * s[j], sums[2] + pull

    zero = jnp.zeros_like(theta)
    along, across, mass = lax.fori_loop(0, len(theta), add, (zero, zero, zero))
    return (c * across - s * along) / mass


def met(theta: Float[Array, "n systems"], mass: Float[Array, "n systems"]) -> Float[Array, "systems"]:
    """Share of the pairs of every system that have met; `mass`: how many tokens go together."""
    c, s, n = jnp.cos(theta), jnp.sin(theta), jnp.sum(mass, axis=0)

    def add(j: Array, count: Array) -> Array:
        return count + mass[j] * jnp.sum(mass * (c * c[j] + s * s[j] >= 1 - MET), axis=0)

    count = lax.fori_loop(0, len(theta), add, jnp.zeros(theta.shape[1]))
    return (count - n) / (n * (n - 1))


@partial(jax.jit, static_argnames=("saves", "stride"))
def advance(
    theta: Array, mass: Array, beta: Array, step: Array, saves: int, stride: int
) -> tuple[Array, Array]:
    """Carry systems over `saves` times of `stride` steps each: where they end, and their shares."""

    def move(_: Array, a: Array) -> Array:
        k1 = velocity(a, mass, beta)
        k2 = velocity(a + step / 2 * k1, mass, beta)
        k3 = velocity(a + step / 2 * k2, mass, beta)
        return a + step / 6 * (k1 + 2 * k2 + 2 * k3 + velocity(a + step * k3, mass, beta))

    def save(a: Array, _: None) -> tuple[Array, Array]:
        a = lax.fori_loop(0, stride, move, a)
        return a, met(a, mass)

    return lax.scan(save, theta, None, length=saves)


def shares(
    theta0: Float[np.ndarray, "n systems"],
    betas: np.ndarray,
    saves: int,
    step: float = STEP,
    stride: int = STRIDE,
    merge: bool = True,
    progress: Callable[[float], None] = lambda done: None,
) -> Diagram:
    """Share of pairs that have met at the times 0, stride·step, …, for every β from the same systems.

    With `merge`, tokens that are together go on as one, and systems of one cluster do not go on.
    """
    systems, total = theta0.shape[1], np.zeros((len(betas), saves + 1))
    total[:, 0] = np.sum(np.asarray(met(jnp.asarray(theta0), jnp.ones(theta0.shape))))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for row, beta in enumerate(betas):
            groups, done = [(theta0, np.ones(theta0.shape))], 0
            for first in range(0, saves, BLOCK):
                count = min(BLOCK, saves - first)
                carry = partial(_carry, beta=float(beta), step=step, saves=count, stride=stride)
                parts = list(pool.map(carry, [chunk for group in groups for chunk in _chunks(*group)]))
                seen = np.sum([np.sum(part[2], axis=1) for part in parts], axis=0) if parts else 0.0
                total[row, first + 1 : first + 1 + count] = done + seen
                if merge:
                    groups = _regroup([part[:2] for part in parts])
                    done = systems - sum(theta.shape[1] for theta, _ in groups)
                else:
                    groups = [(part[0], part[1]) for part in parts]
            progress((row + 1) / len(betas))
    return Diagram(np.asarray(betas), stride * step * np.arange(saves + 1), total / systems)


#: Angles and masses of systems with the same number of rows, (rows, systems) each.
Group = tuple[np.ndarray, np.ndarray]


def _chunks(theta: np.ndarray, mass: np.ndarray) -> list[Group]:
    cuts = range(0, theta.shape[1], TOGETHER)
    return [(theta[:, k : k + TOGETHER], mass[:, k : k + TOGETHER]) for k in cuts]


def _carry(
    group: Group, beta: float, step: float, saves: int, stride: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One chunk, padded to the size that is compiled: angles, masses, and shares (saves, systems)."""
    theta, mass = group
    room = ((0, 0), (0, TOGETHER - theta.shape[1]))
    padded = jnp.asarray(np.pad(theta, room)), jnp.asarray(np.pad(mass, room, constant_values=1.0))
    end, seen = advance(*padded, jnp.full(TOGETHER, beta), jnp.asarray(step), saves, stride)
    return np.asarray(end)[:, : theta.shape[1]], mass, np.asarray(seen)[:, : theta.shape[1]]


def _regroup(parts: list[Group]) -> list[Group]:
    """Systems with their tokens merged, by the number of rows they need; those of one cluster are done."""
    sizes: dict[int, list[Group]] = {}
    for theta, mass in parts:
        theta, mass, count = merged(theta, mass)
        for size in SIZES:
            here = (count > 1) & (count <= size) & (count > size // 2)
            if np.any(here) and size <= len(theta):
                sizes.setdefault(size, []).append((theta[:size, here], mass[:size, here]))
    return [
        (np.concatenate([t for t, _ in groups], axis=1), np.concatenate([m for _, m in groups], axis=1))
        for groups in sizes.values()
    ]


def merged(theta: np.ndarray, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens closer than `CLOSE` to the next as one at their mean, clusters first; and how many there are.

    Rows beyond a system's clusters have the mass 0.
    """
    n, systems = theta.shape
    theta = np.where(mass > 0, theta % (2 * np.pi), np.inf)
    order = np.argsort(theta, axis=0)
    theta, mass = np.take_along_axis(theta, order, 0), np.take_along_axis(mass, order, 0)
    theta = np.where(mass > 0, theta, theta[0])  # empty rows lie with the first and weigh nothing
    new = np.diff(theta, axis=0, prepend=-np.inf) > CLOSE
    new &= mass > 0
    label = np.cumsum(new, axis=0) - 1
    label = np.where(mass > 0, label, 0)
    count = label.max(axis=0) + 1
    # the last cluster may go on beyond 2π: it is the first one then
    last = np.max(np.where(mass > 0, theta, -np.inf), axis=0)
    wraps = (theta[0] + 2 * np.pi - last <= CLOSE) & (count > 1)
    back = wraps & (label == count - 1)
    theta, label, count = np.where(back, theta - 2 * np.pi, theta), np.where(back, 0, label), count - wraps
    place = (label * systems + np.arange(systems)).ravel()
    total = np.bincount(place, mass.ravel(), n * systems).reshape(n, systems)
    mean = np.bincount(place, (mass * theta).ravel(), n * systems).reshape(n, systems)
    return np.divide(mean, total, out=np.zeros_like(mean), where=total > 0), total, count


def any_dimension(
    x: Float[np.ndarray, "systems n d"],
    betas: np.ndarray,
    saves: int,
    step: float = STEP,
    stride: int = STRIDE,
) -> Diagram:
    """The same for tokens in R^d, by their inner products G, which do not ask what d is.

    With the softmax weights P of the rows, G' = PG + (PG)ᵀ − (r_i + r_j)G, r_i = Σ_j P_ij G_ij.
    """
    G = np.repeat((x @ np.swapaxes(x, 1, 2))[None], len(betas), axis=0)
    off = ~np.eye(x.shape[1], dtype=bool)

    def slope(G: np.ndarray) -> np.ndarray:
        P = np.exp(betas[:, None, None, None] * (G - 1))
        P /= P.sum(axis=-1, keepdims=True)
        pulled = P @ G
        r = np.sum(P * G, axis=-1)
        return pulled + np.swapaxes(pulled, -1, -2) - (r[..., None] + r[..., None, :]) * G

    share = [np.mean(G[..., off] >= 1 - MET, axis=(1, 2))]
    for _ in range(saves):
        for _ in range(stride):
            k1 = slope(G)
            k2 = slope(G + step / 2 * k1)
            k3 = slope(G + step / 2 * k2)
            G = G + step / 6 * (k1 + 2 * k2 + 2 * k3 + slope(G + step * k3))
        share.append(np.mean(G[..., off] >= 1 - MET, axis=(1, 2)))
    return Diagram(betas, stride * step * np.arange(saves + 1), np.stack(share, axis=1))


def equiangular_times(betas: np.ndarray) -> np.ndarray:
    """Time at which n orthogonal tokens, d ≥ n, have met: ρ = 1 − 10⁻³; infinite after t = 60."""
    ts = np.linspace(0, 2 * LAST, 2401)
    found = []
    for beta in betas:
        rho = equiangular(ts, N, float(beta), 0.0)
        k = int(np.searchsorted(rho, 1 - MET))
        found.append(np.interp(1 - MET, rho[k - 1 : k + 1], ts[k - 1 : k + 1]) if 0 < k < len(ts) else np.inf)
    return np.array(found)


def half_times(diagram: Diagram) -> np.ndarray:
    """When half of the pairs have met, for every β."""
    found = []
    for row in diagram.share:
        k = int(np.argmax(row >= 0.5))
        found.append(np.interp(0.5, row[k - 1 : k + 1], diagram.ts[k - 1 : k + 1]) if k > 0 else np.inf)
    return np.array(found)


def start(systems: int, key: int = 0) -> np.ndarray:
    """Uniform angles, (n, systems)."""
    return np.random.default_rng(key).uniform(0, 2 * np.pi, size=(N, systems))


def random_tokens(systems: int, d: int, key: int) -> np.ndarray:
    """Uniform tokens on the sphere of R^d, (systems, n, d)."""
    x = np.random.default_rng(key).normal(size=(systems, N, d))
    return x / np.linalg.norm(x, axis=2, keepdims=True)


def run(quick: bool, progress: Progress) -> Result:
    """The recipe."""
    betas = np.linspace(0.3, 9, 16) if quick else np.linspace(0.1, 9, 90)
    theta0 = start(128 if quick else 2048)
    saves = round(LAST / (STRIDE * STEP))
    flat = shares(
        theta0,
        betas,
        saves,
        progress=lambda done: progress(0.8 * done, f"d = 2, {round(done * len(betas))} values of β"),
    )
    progress(0.8, f"d = {HIGH}")
    cold = np.arange(0.5, 9.1, 0.5 if quick else 0.25)
    high = any_dimension(random_tokens(1 if quick else 4, HIGH, key=1), cold, saves)
    progress(0.95, "β = 0 exactly")
    boosted = exact_at_zero(theta0[:, :32])
    data = xr.Dataset(
        {"share": (("beta", "time"), flat.share), "share_high": (("beta_high", "time"), high.share),
         "equiangular": ("beta", equiangular_times(betas))},
        {"beta": betas, "time": flat.ts, "beta_high": cold},
    )  # fmt: skip
    rows = [{"beta": b, "half met, d = 2": h, "equiangular": e, "share at the end": s}
            for b, h, e, s in zip(betas, half_times(flat), equiangular_times(betas), flat.share[:, -1],
                                  strict=True)]  # fmt: skip
    return Result(
        checks(flat, high, boosted, theta0.shape[1]), rows, data, figure(flat, high, theta0.shape[1])
    )


RECIPE = Recipe(
    "phase-diagram",
    "share of pairs that have met over β and time, many small systems, equiangular curve",
    run,
)


def exact_at_zero(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shares at β = 0 at six times: of the systems carried on, and of the Lorentz boost that solves them."""
    ts = np.arange(6) * 2.0
    exact = []
    for row in theta.T:
        x = lorentz(np.stack([np.cos(row), np.sin(row)], axis=1), np.full(N, 1 / N), ts)
        g = x @ np.swapaxes(x, 1, 2)
        exact.append(np.mean(g[:, ~np.eye(N, dtype=bool)] >= 1 - MET, axis=1))
    carried = shares(theta, np.zeros(1), 50).share[0, ::10]
    return carried, np.mean(exact, axis=0)


def checks(flat: Diagram, high: Diagram, boosted: tuple[np.ndarray, np.ndarray], systems: int) -> list[Check]:
    """Shares at the start and at β = 0; the end at small β; the equiangular curve in high dimension."""
    chance = np.arccos(1 - MET) / np.pi
    noise = np.sqrt(chance * (1 - chance) / (systems * N * (N - 1) / 2))
    result = [
        near("share of pairs met at the start, d = 2", flat.share[0, 0], chance,
             "uniform angles: arccos(1 − 10⁻³)/π, four standard errors", absolute=4 * noise),
        near("share at β = 0 against the Lorentz boost, greatest gap",
             float(np.max(np.abs(boosted[0] - boosted[1]))), 0.0, "theory §4: β = 0", absolute=1e-3),
        near(f"share at t = {LAST:g}, β = {flat.betas[0]:g}, d = 2", flat.share[0, -1], 1.0,
             f"{shared.PAPER}, Theorem 2.4 (small β)", absolute=0.01),
    ]  # fmt: skip
    curve = equiangular_times(high.betas)
    halves = half_times(high)
    shown = [k for k, beta in enumerate(high.betas) if beta in (0.5, 1.0, 2.0, 3.0, 4.0)]
    return result + [
        near(f"time at which half of the pairs have met, d = {HIGH}, β = {high.betas[k]:g}", halves[k],
             curve[k], "theory §4: equiangular tokens, ρ_0 = 0", relative=0.05)
        for k in shown
    ]  # fmt: skip


@matplotlib.rc_context(figures.STYLE)
def figure(flat: Diagram, high: Diagram, systems: int) -> Figure:
    """Time to the right, β upwards, the share as colour; d = 2 and high dimension side by side."""
    drawing = Figure(figsize=(10.6, 4.6), layout="constrained")
    left, right = drawing.subplots(1, 2, sharey=True)
    image = _draw(left, flat, f"d = 2, {systems} systems")
    _draw(right, high, f"d = {HIGH}")
    left.set_ylabel("β")
    bar = drawing.colorbar(image, ax=[left, right], label="share of pairs that have met", pad=0.02)
    bar.outline.set_visible(False)
    right.legend(loc="lower right", frameon=True, framealpha=0.85, edgecolor="none")
    return drawing


def _draw(ax: Axes, diagram: Diagram, title: str) -> QuadMesh:
    image = ax.pcolormesh(diagram.ts, diagram.betas, diagram.share, cmap="viridis", vmin=0, vmax=1,
                          shading="nearest", rasterized=True)  # fmt: skip
    betas = np.linspace(diagram.betas[0], diagram.betas[-1], 60)
    ax.plot(equiangular_times(betas), betas, color="white", linewidth=3.2)
    ax.plot(equiangular_times(betas), betas, color=figures.PALETTE[1], linewidth=1.8, label="equiangular")
    ax.set(xlim=(0, LAST), ylim=(diagram.betas[0], diagram.betas[-1]), xlabel="t")
    ax.set_title(f"{title}, n = {N}", loc="left")
    return image
