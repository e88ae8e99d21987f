"""How many tokens a temperature needs: n tokens against the continuum (the paper leaves this open).

A query reads the tokens in a cap of radius β^{−1/2}, some N = n/β^{(d−1)/2} of them. For n independent
uniform tokens what it reads is off from the continuum's A_d(β)u by, root mean square and to leading order,

    √(a_d/N) · β^{−1/2},    a_2 = √π/2,    a_3 = 1,

(the variance of a weighted mean of the cap). So the continuum is seen once n ≫ β^{(d−1)/2}; equispaced tokens
need as many, but then are off by far less.
"""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

import tokenfield as tkf
from tokenfield.papers import declared
from tokenfield.papers.low_temperature import worked
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, near
from tokenfield.sweeps.dataset import trajectory

CAP = "theory §2.5: tokens in a cap of radius β^(−1/2)"
#: Error of what is read, in units of β^{−1/2}, at which the continuum counts as seen.
SEEN = 0.25
AMPLITUDE = {2: np.sqrt(np.pi) / 2, 3: 1.0}
KINDS = ("iid", "quadrature")


def law(kind: str, d: int, n: int, key: int) -> tkf.Tokens:
    """n uniform tokens, independent or quadrature.

    Args:
        kind: "iid" or "quadrature".
        d: dimension of the surrounding space, 2 or 3.
        n: how many.
        key: seed of iid tokens.
    """
    if kind == "iid":
        return tkf.initial.uniform(n, d, key)
    return tkf.initial.circle_density(np.ones_like, n) if d == 2 else tkf.initial.sphere_density(_one, n)


def _one(x: np.ndarray) -> np.ndarray:
    return np.ones(len(x))


@eqx.filter_jit
def _read(model: tkf.SoftmaxAttention, queries: jax.Array, tokens: tkf.Tokens) -> jax.Array:
    return model.output(queries, tokens)


def error(tokens: tkf.Tokens, beta: float, queries: np.ndarray) -> float:
    """Root mean square over the queries of |what is read − A_d(β)u|, in units of β^{−1/2}.

    Args:
        tokens: the law that is read.
        beta: inverse temperature.
        queries: unit rows u, (queries, d).
    """
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(tokens.d), beta)
    read = np.asarray(_read(model, jnp.asarray(queries), tokens))
    exact = (1 - tkf.theory.laplace_gap(beta, tokens.d)) * queries
    return float(np.sqrt(beta * np.mean(np.sum((read - exact) ** 2, axis=1))))


def crossover(ns: np.ndarray, errors: np.ndarray) -> float:
    """The n from which the error stays below `SEEN`, between the sizes by logarithms."""
    above = np.flatnonzero(errors > SEEN)
    if not above.size or above[-1] + 1 == len(ns):
        return np.nan
    k = above[-1]
    logs = np.log(np.maximum(errors[k : k + 2], 1e-12))
    share = (logs[0] - np.log(SEEN)) / (logs[0] - logs[1])
    return float(np.exp(np.log(ns[k]) + share * np.log(ns[k + 1] / ns[k])))


def _sizes(quick: bool) -> tuple[list[int], int]:
    """Numbers of tokens of the runs, and how many draws of iid ones."""
    return ([16, 64, 256], 2) if quick else ([16, 32, 64, 128, 256, 512], 16)


def grids(quick: bool) -> dict[str, dict[str, Any]]:
    """Runs of the worked case on the circle over (law, β), and those that stand for the continuum."""
    betas = [10.0, 100.0, 1000.0] if quick else [10.0, 100.0, 1000.0, 10000.0]
    ns, draws = _sizes(quick)
    ts, end = np.array([0.0, 4.0]), {"snapshots": [-1], "summation": "direct"}
    tilted = {"law": "circle_density", "cos": [worked.TILT[0]], "sin": [worked.TILT[1]]}
    laws = [tilted | {"n": n, "key": 1000 * draw + n} for draw in range(draws) for n in ns]
    laws += [tilted | {"n": n} for n in ns]
    runs = worked.grid(worked.CIRCLE, betas, {}, ts, **end)
    continuum = declared.atoms(worked.circle_tokens(1024, 0.8))
    return {
        "runs": runs | {"sweep": {"initial": laws} | runs["sweep"]},
        "continuum": worked.grid(worked.CIRCLE, betas, continuum, ts, **end),
    }


def run(quick: bool, progress: Progress, found: Mapping[str, xr.Dataset]) -> Result:
    """Run the recipe and judge what it finds.

    Args:
        quick: whether the smaller size is wanted.
        progress: called with the share done and what is being done.
        found: datasets of the declared sweeps, by name.
    """
    # rare queries with an empty cap weigh much near the crossover: on the circle many draws, they are cheap
    draws = {2: 16, 3: 4} if quick else {2: 48, 3: 12}
    grid = {
        2: (np.logspace(1, 4, 9), np.unique(np.logspace(0.6, 3.6, 19).astype(int))),
        # 2r²: the sizes that Gauss × uniform quadrature has
        3: (np.logspace(1, 2.5, 9), 2 * np.unique(np.logspace(0.3, 1.82, 17).astype(int)) ** 2),
    }
    maps, checks, needed = {}, [], {}
    for d, (betas, ns) in grid.items():
        queries = np.asarray(tkf.initial.uniform(200, d, 99).x)
        for kind in KINDS:
            progress({2: 0.0, 3: 0.5}[d] + 0.2 * KINDS.index(kind), f"what is read, d = {d}, {kind}")
            maps[d, kind] = _map(kind, d, betas, ns, queries, draws[d] if kind == "iid" else 1)
            needed[d, kind] = np.array([crossover(ns, row) for row in maps[d, kind]])
            checks.append(_slope(d, kind, betas, needed[d, kind]))
        checks.append(_amplitude(d, betas, ns, maps[d, "iid"]))
    progress(0.95, "runs on the circle")
    flow = _compared(found, len(_sizes(quick)[0]))
    rows = [
        {"d": d, "kind": kind, "beta": b, "n needed": n}
        for (d, kind), values in needed.items()
        for b, n in zip(grid[d][0], values, strict=True)
    ]
    return Result(checks, rows, _data(grid, maps, flow), figure(grid, maps, needed, flow))


RECIPE = Recipe(
    "finite-tokens",
    "n tokens against the continuum over (n, β): the crossover n ~ β^((d−1)/2), iid or quadrature",
    run,
    grids,
)


def _map(kind: str, d: int, betas: np.ndarray, ns: np.ndarray, queries: np.ndarray, draws: int) -> np.ndarray:
    """Error by β and n, the root mean square over draws."""
    squares = np.zeros((len(betas), len(ns)))
    for j, n in enumerate(ns):
        for key in range(draws):
            tokens = law(kind, d, int(n), key).padded()
            squares[:, j] += [error(tokens, float(beta), queries) ** 2 for beta in betas]
    return np.sqrt(squares / draws)


def _slope(d: int, kind: str, betas: np.ndarray, needed: np.ndarray) -> Check:
    good = np.isfinite(needed)
    power = tkf.fit_rate(betas[good], needed[good], model="power").power if np.sum(good) >= 8 else np.nan
    return near(f"exponent in β of the n needed, d = {d}, {kind}", power, (d - 1) / 2, CAP, absolute=0.05)


def _amplitude(d: int, betas: np.ndarray, ns: np.ndarray, errors: np.ndarray) -> Check:
    """√N times the error where caps hold many tokens."""
    N = ns[None] / betas[:, None] ** ((d - 1) / 2)
    many = (N > 100) & (betas[:, None] >= 30)
    measured = np.sqrt(np.mean((errors[many] ** 2) * N[many]))
    return near(
        f"√(Nβ) · error of iid tokens, d = {d}",
        measured,
        np.sqrt(AMPLITUDE[d]),
        "variance of the weighted mean of a cap",
        relative=0.05,
    )


def _compared(found: Mapping[str, xr.Dataset], sizes: int) -> xr.DataArray:
    """W2 between n tokens and the continuum at t = 4 of the worked case, over (kind, β, n).

    Of iid tokens the root mean square over the draws.
    """
    runs, betas = found["runs"], found["continuum"].beta.values
    continuum = [each.tokens(-1) for each in declared.runs(found["continuum"])]
    ends = [
        [trajectory(runs.isel(initial=j, beta=k)).tokens(-1) for j in range(runs.sizes["initial"])]
        for k in range(len(betas))
    ]
    values = np.array(
        [[tkf.wasserstein(end, law).value for end in row] for row, law in zip(ends, continuum, strict=True)]
    ).reshape(len(betas), -1, sizes)
    iid = np.sqrt(np.mean(values[:, :-1] ** 2, axis=1))
    return xr.DataArray(
        np.stack([iid, values[:, -1]]),
        {"kind": [0, 1], "beta_run": betas, "n_run": [end.n for end in ends[0][:sizes]]},
        ("kind", "beta_run", "n_run"),
    )


def _data(grid: dict, maps: dict, flow: xr.DataArray) -> xr.Dataset:
    variables: dict = {"W2_at_4": flow}
    coords = {}
    for d, (betas, ns) in grid.items():
        coords |= {f"beta_d{d}": betas, f"n_d{d}": ns}
        variables |= {f"error_d{d}_{kind}": ((f"beta_d{d}", f"n_d{d}"), maps[d, kind]) for kind in KINDS}
    return xr.Dataset(variables, coords, {"kind": "0 iid, 1 quadrature"})


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(grid: dict, maps: dict, needed: dict, flow: xr.DataArray) -> Figure:
    """The maps; the same error against tokens per cap; n needed against β; W2 of runs against n.

    Args:
        grid: d → (β, n) of the maps.
        maps: (d, kind) → errors, (betas, ns).
        needed: (d, kind) → n needed, (betas,).
        flow: W2 of runs, over (kind, β, n).
    """
    drawing = Figure(figsize=(10.5, 10.8), layout="constrained")
    above, below = drawing.subfigures(2, 1, squeeze=False, height_ratios=(1, 2.4))[:, 0]
    _draw_maps(above, grid, maps, needed)
    panels = below.subplots(2, 2)
    for ax, d in zip(panels[0], (2, 3), strict=True):
        _draw_collapse(ax, d, grid[d][0], grid[d][1], maps)
    _draw_needed(panels[1, 0], grid, needed)
    _draw_runs(panels[1, 1], flow)
    return drawing


def _draw_maps(part: SubFigure, grid: dict, maps: dict, needed: dict) -> None:
    axes = part.subplots(1, len(maps))
    for ax, ((d, kind), values) in zip(axes, maps.items(), strict=True):
        betas, ns = grid[d]
        shown = np.log10(np.clip(values, 1e-3, 10))
        drawn = ax.pcolormesh(ns, betas, shown, cmap="viridis", vmin=-3, vmax=1, rasterized=True)
        ax.plot(needed[d, kind], betas, color="white", linewidth=1.6)
        ax.set(xscale="log", yscale="log", xlabel="n", title=f"d = {d}, {kind}")
        ax.title.set_fontsize(11)
    axes[0].set_ylabel("β")
    bar = part.colorbar(drawn, ax=axes, ticks=[-3, -2, -1, 0, 1], extend="both")
    bar.ax.set_yticklabels([f"{10.0**k:g}" for k in (-3, -2, -1, 0, 1)])
    bar.set_label(f"error · √β; white: {SEEN:g}")


def _draw_needed(ax: Axes, grid: dict, needed: dict) -> None:
    for k, ((d, kind), values) in enumerate(needed.items()):
        betas = grid[d][0]
        ax.loglog(
            betas, values, "os^D"[k], color=tkf.figures.PALETTE[k], markersize=5, label=f"d = {d}, {kind}"
        )
        good = np.isfinite(values)
        centre = np.mean(np.log(values[good])) - (d - 1) / 2 * np.mean(np.log(betas[good]))
        line = centre + (d - 1) / 2 * np.log(betas)
        ax.loglog(betas, np.exp(line), color=tkf.figures.PALETTE[k], linewidth=1, linestyle=(0, (3, 2)))
    ax.set(xlabel="β", ylabel="n needed")
    ax.set_title("dashed: slopes (d − 1)/2", loc="left", fontsize=11)
    ax.legend(fontsize=9)


def _draw_runs(ax: Axes, flow: xr.DataArray) -> None:
    for k, beta in enumerate(flow.beta_run.values):
        for kind, style in ((0, (0, (4, 2))), (1, "-")):
            name = f"β = {beta:g}" if kind else None
            ax.loglog(
                flow.n_run,
                flow[kind, k],
                "o",
                markersize=4,
                linestyle=style,
                color=tkf.figures.PALETTE[k],
                label=name,
            )
    ax.set(xlabel="n", ylabel="W2 to the continuum at t = 4")
    ax.set_xticks(flow.n_run.values, [str(n) for n in flow.n_run.values])
    ax.minorticks_off()
    ax.set_title("runs on the circle; solid: quadrature, dashed: iid (rms)", loc="left", fontsize=11)
    ax.legend(fontsize=9)


def _draw_collapse(ax: Axes, d: int, betas: np.ndarray, ns: np.ndarray, maps: dict) -> None:
    N = ns[None] / betas[:, None] ** ((d - 1) / 2)
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(betas)))
    for k, colour in enumerate(colours):
        name = f"β = {betas[k]:.3g}" if k in (0, len(betas) - 1) else None
        ax.loglog(N[k], maps[d, "iid"][k], color=colour, linewidth=1.2, label=name)
        shown = maps[d, "quadrature"][k] > 1e-6
        ax.loglog(
            N[k][shown], maps[d, "quadrature"][k][shown], color=colour, linewidth=1.2, linestyle=(0, (1, 1.2))
        )
    line = np.logspace(0.5, 4, 5)
    ax.loglog(
        line, np.sqrt(AMPLITUDE[d] / line), color="0", linestyle=(0, (3, 2)), linewidth=1.4, label="√(a/N)"
    )
    ax.set(xlabel=f"tokens per cap, N = n/β^{(d - 1) / 2:g}", ylabel="error · √β", ylim=(1e-4, None))
    ax.set_title(f"d = {d}; solid: iid, dotted: quadrature", loc="left", fontsize=11)
    ax.legend(fontsize=9)
