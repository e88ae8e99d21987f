"""Figures: results in, matplotlib figures and animations out. Nothing here simulates or opens a window.

Tokens are drawn as discs whose area grows with their weight. A disc takes in the tokens whose centres it
covers, and their weight, so that a tight cluster of half the mass looks like half the mass. A sphere is
drawn in orthographic projection, the far side faint; above d = 3 the tokens are projected on the principal
directions of their second moment. Colours are safe for colour-blind readers.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Array, Float, Int
from matplotlib.animation import Animation, FuncAnimation, writers
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import EllipseCollection
from matplotlib.colors import BoundaryNorm, Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from numpy.typing import ArrayLike

from tokenfield.camera import Camera, camera_for
from tokenfield.discs import Discs, gather, radius
from tokenfield.errors import InputError, as_number, require, require_kind
from tokenfield.store import as_path
from tokenfield.tokens import Tokens, as_real
from tokenfield.trajectory import Trajectory

#: The house style, in force while a figure is made and while it is written.
STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.labelsize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.handlelength": 2.75,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.dpi": 200,
    "savefig.dpi": "figure",
    "pdf.fonttype": 42,
    "svg.hashsalt": "tokenfield",
}

#: Okabe and Ito's colours, those that read best on white first.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#F0E442", "#000000")
OTHER = "#999999"
#: Dash patterns, one per line of `curves`, told apart without colour; predictions are finely dashed.
DASHES = ("-", (0, (7, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (6, 1.5, 1, 1.5, 1, 1.5)),
          (0, (12, 3)), (0, (3, 1, 3, 3)), (0, (1, 3)))  # fmt: skip
PREDICTED = (("#000000", (0, (3, 2))), ("#777777", (0, (3, 2))), ("#000000", (0, (2, 4))),
             ("#777777", (0, (2, 4))))  # fmt: skip

#: Endings that `save` writes.
STILLS, FILMS = (".png", ".pdf", ".svg"), (".gif", ".mp4")
#: Beyond this many, discs are pixels, not paths, in PDF and SVG.
RASTER = 2_000


@dataclass(frozen=True)
class _Scale:
    """One number per token and the colours these numbers stand for."""

    values: Float[np.ndarray, "n"]
    colours: Colormap
    norm: Normalize
    names: tuple[str, ...] = ()


@matplotlib.rc_context(STYLE)
def snapshot(
    tokens: Tokens,
    *,
    ax: Axes | None = None,
    colour: ArrayLike | Array | None = None,
    title: str = "",
    view: tuple[float, float] | None = None,
    colour_label: str = "",
) -> Figure:
    """The tokens on the circle (d = 2), the sphere (d = 3) or their principal directions (d > 3).

    Arguments:
        ax: where to draw; a new figure if left out.
        colour: (n,) one number or whole-number label per token. The seven labels of most mass have
            their own colour, others are grey; a disc of several tokens has their median number.
        view: (azimuth, elevation) in degrees from which a sphere is seen.
        colour_label: what the colours mean; adds a colour bar.

    The diamond at the end of a line from the centre is the mean ∫x dμ. Of more than 20,000 discs the
    heavy ones and an even choice of the others are drawn.
    """
    require_kind(tokens, Tokens, "tokens")
    scale = _scale(colour, np.asarray(tokens.weights))
    camera = camera_for(np.asarray(tokens.moments().second), view)
    if ax is None:
        ax = Figure(figsize=(5.6 if colour_label else 4.6, 4.8), layout="constrained").subplots()
    _draw(ax, tokens, scale, camera, title)
    figure = ax.get_figure(root=True)
    if figure is None:
        raise InputError("`ax` must belong to a figure, but was removed from it")
    _colour_bar(figure, [ax], scale, colour_label)
    return figure


@matplotlib.rc_context(STYLE)
def small_multiples(
    trajectory: Trajectory,
    times: ArrayLike | None = None,
    columns: int = 4,
    colour: ArrayLike | Array | None = None,
    *,
    view: tuple[float, float] | None = None,
    colour_label: str = "",
) -> Figure:
    """Snapshots side by side, each titled with its time.

    Arguments: `times`: the saved snapshots nearest to these are shown; eight spread evenly over the
    saved ones if left out. `columns`: panels per row. Others as in `snapshot`.
    """
    require_kind(trajectory, Trajectory, "trajectory")
    whole = isinstance(columns, int | np.integer) and not isinstance(columns, bool)
    require(whole and columns >= 1, "columns", "be a whole number, at least 1", repr(columns))
    chosen = _nearest(trajectory, times)
    scale = _scale(colour, np.asarray(trajectory.weights))
    camera = _shared_camera(trajectory, chosen, view)
    columns = min(int(columns), len(chosen))
    rows = -(-len(chosen) // columns)
    figure = Figure(figsize=(2.25 * columns, 2.45 * rows + 0.1), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax, k in zip(grid, chosen, strict=False):
        _draw(ax, trajectory.tokens(k), scale, camera, _time(trajectory, k))
        ax.set_xlabel("")
    for ax in grid[len(chosen) :]:
        ax.set_axis_off()
    if camera.note:
        figure.supxlabel(camera.note.replace("\n", " "), fontsize=STYLE["font.size"])
    _colour_bar(figure, list(grid), scale, colour_label)
    return figure


@matplotlib.rc_context(STYLE)
def animation(
    trajectory: Trajectory,
    colour: ArrayLike | Array | None = None,
    fps: float = 12,
    *,
    view: tuple[float, float] | None = None,
) -> FuncAnimation:
    """The saved snapshots as a film of `fps` frames per second, each with its time; see `snapshot`."""
    require_kind(trajectory, Trajectory, "trajectory")
    require(0 < as_number(fps, "fps") < np.inf, "fps", "be positive and finite", fps)
    frames = _nearest(trajectory, trajectory.snapshot_ts)
    scale = _scale(colour, np.asarray(trajectory.weights))
    camera = _shared_camera(trajectory, frames, view)
    figure = Figure(figsize=(4.5, 4.8), dpi=120)
    ax = figure.add_axes((0.02, 0.06, 0.96, 0.86))

    def show(k: int) -> list[Any]:
        with matplotlib.rc_context(STYLE):
            ax.clear()
            _draw(ax, trajectory.tokens(k), scale, camera, _time(trajectory, k))
        return [ax]

    return FuncAnimation(figure, show, frames=frames.tolist(), interval=1000 / fps, blit=False)


@matplotlib.rc_context(STYLE)
def curves(
    ts: ArrayLike | Array,
    values: Mapping[str, ArrayLike | Array],
    xlabel: str = "t",
    ylabel: str = "",
    log: str = "",
    predicted: Mapping[str, ArrayLike | Array] | None = None,
    *,
    ax: Axes | None = None,
) -> Figure:
    """Up to eight measured curves and up to four predicted ones (dashed, black or grey) over `ts`.

    Arguments: `ts` (times,); `values` and `predicted`: label → (times,); `log`: the logarithmic axes,
    "", "x", "y" or "xy". Points that are not finite, or not positive on a logarithmic axis, are left
    out. The legend stands beside the data, in the order in which the curves end.
    """
    require(log in ("", "x", "y", "xy"), "log", 'be "", "x", "y" or "xy"', repr(log))
    predicted = predicted or {}
    require(1 <= len(values) <= len(DASHES), "values", f"hold 1 to {len(DASHES)} curves", len(values))
    require(len(predicted) <= len(PREDICTED), "predicted", f"hold at most {len(PREDICTED)} curves",
            len(predicted))  # fmt: skip
    x = np.asarray(as_real(ts, "ts"))
    require(x.ndim == 1, "ts", "have shape (times,)", f"of shape {x.shape}")
    if ax is None:
        ax = Figure(figsize=(7.0, 4.0), layout="constrained").subplots()
    ax.set(xlabel=xlabel, ylabel=ylabel, xscale="log" if "x" in log else "linear",
           yscale="log" if "y" in log else "linear")  # fmt: skip
    for (label, y), colour, dash in zip(values.items(), PALETTE, DASHES, strict=False):
        x_kept, y_kept = _drawable(x, y, label, log)
        marker = "o" if len(x_kept) <= 12 else ""
        ax.plot(x_kept, y_kept, color=colour, linestyle=dash, label=label, marker=marker, markersize=4.5)
    for (label, y), (colour, dash) in zip(predicted.items(), PREDICTED, strict=False):
        ax.plot(*_drawable(x, y, label, log), color=colour, linestyle=dash, linewidth=1.2, label=label)
    _legend_beside(ax)
    return ax.get_figure(root=True)  # pyright: ignore[reportReturnType] (an axes in use has a figure)


@matplotlib.rc_context(STYLE)
def save(drawing: Figure | Animation, path: str | Path) -> Path:
    """Write a figure (.png, .pdf, .svg) or an animation (.gif, .mp4) and return the path.

    The file appears whole or not at all; its directory is made. Equal figures give equal files.
    """
    path = as_path(path, "path")
    if not isinstance(drawing, Figure | Animation):
        raise InputError(f"`drawing` must be a Figure or an Animation, but was {type(drawing).__name__}")
    film = isinstance(drawing, Animation)
    known, kind = (FILMS, "an animation") if film else (STILLS, "a figure")
    _check_ending(path, known, f" for {kind}")
    ending = path.suffix.lower()
    path.parent.mkdir(parents=True, exist_ok=True)
    # written in a directory beside, then renamed: on one disk the rename cannot stop half way
    with tempfile.TemporaryDirectory(prefix=".figure-", dir=path.parent) as beside:
        part = Path(beside) / f"part{ending}"
        if isinstance(drawing, Animation):
            drawing.save(part, writer="pillow" if ending == ".gif" else "ffmpeg")
        else:
            undated = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
            drawing.savefig(part, metadata=undated.get(ending))
        os.replace(part, path)
    return path


def is_film(path: str | Path) -> bool:
    """Whether a file of this name would hold an animation; an ending that `save` cannot write is refused."""
    path = as_path(path, "path")
    _check_ending(path, (*STILLS, *FILMS), "")
    return path.suffix.lower() in FILMS


def _check_ending(path: Path, known: tuple[str, ...], purpose: str) -> None:
    ending = path.suffix.lower()
    wanted = f"end in {', '.join(known[:-1])} or {known[-1]}{purpose}"
    require(ending in known, "path", wanted, repr(str(path)))
    if ending == ".mp4" and not writers.is_available("ffmpeg"):
        raise InputError(f"`path` must end in .gif while ffmpeg is not installed, but was {str(path)!r};"
                         " install ffmpeg to write .mp4")  # fmt: skip


def _draw(ax: Axes, tokens: Tokens, scale: _Scale, camera: Camera, title: str) -> None:
    x, weights = np.asarray(tokens.x), np.asarray(tokens.weights)
    # small enough that tokens spread evenly do not touch
    least = float(np.clip(3 / tokens.n if tokens.d == 2 else 0.4 / np.sqrt(tokens.n), 0.004, 0.02))
    discs = gather(Discs(x @ camera.axes, weights, scale.values), least)
    near = discs.at[:, 2] >= 0
    _draw_ball(ax, camera)
    _draw_discs(ax, discs, ~near, scale, least, alpha=0.32, zorder=1)
    _draw_discs(ax, discs, near, scale, least, alpha=0.9, zorder=3)
    mean = weights @ x @ camera.axes
    ax.plot([0, mean[0]], [0, mean[1]], color="0.25", linewidth=1.0, zorder=4)
    ax.plot(
        *mean[:2], "D", markersize=4.5, color="0.1", markeredgecolor="white", markeredgewidth=0.5, zorder=5
    )
    ax.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), aspect="equal", xticks=[], yticks=[])
    ax.set(title=title, xlabel=camera.note)
    ax.spines[:].set_visible(False)


def _draw_ball(ax: Axes, camera: Camera) -> None:
    """Outline of the circle or sphere; for d = 3 also faint circles of latitude and longitude."""
    d = len(camera.axes)
    ax.add_patch(Circle((0, 0), 1, facecolor="none", edgecolor="0.65", linewidth=0.8, zorder=2.5))
    if d > 2:
        ax.add_patch(Circle((0, 0), 1, facecolor="0.975", edgecolor="none", zorder=0))
    if d != 3:
        return
    turn, arc = np.linspace(-np.pi, np.pi, 121), np.linspace(-np.pi / 2, np.pi / 2, 121)
    lat = np.stack([np.full(121, a) for a in np.radians([-60, -30, 0, 30, 60])] + [arc] * 12)
    lon = np.stack([turn] * 5 + [np.full(121, a) for a in np.radians(np.arange(0, 360, 30))])
    globe = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=-1)
    at = np.moveaxis(globe @ camera.axes, 0, 1)
    for side, shade, zorder in ((at[..., 2] <= 0, "0.91", 0.5), (at[..., 2] >= 0, "0.82", 2)):
        up, right = np.where(side, at[..., 1], np.nan), np.where(side, at[..., 0], np.nan)
        ax.plot(right, up, color=shade, linewidth=0.6, zorder=zorder)


def _draw_discs(
    ax: Axes, discs: Discs, chosen: np.ndarray, scale: _Scale, least: float, alpha: float, zorder: float
) -> None:
    """The chosen discs, in units of the sphere, heavy ones below."""
    order = np.flatnonzero(chosen)[np.argsort(-discs.weights[chosen], kind="stable")]
    diameter = 2 * radius(discs.weights[order], least)
    collection = EllipseCollection(
        diameter,
        diameter,
        np.zeros(len(order)),
        units="xy",
        offsets=discs.at[order, :2],
        offset_transform=ax.transData,
        facecolors=scale.colours(scale.norm(discs.values[order])),
        edgecolors="white",
        linewidths=np.where(diameter > 0.05, 0.5, 0.0),
        alpha=alpha,
        zorder=zorder,
        rasterized=len(order) > RASTER,
        clip_on=False,
    )
    ax.add_collection(collection, autolim=False)


def _scale(colour: ArrayLike | Array | None, weights: np.ndarray) -> _Scale:
    n = len(weights)
    if colour is None:
        return _Scale(np.zeros(n), ListedColormap(PALETTE[:1]), Normalize(0, 1))
    numbers = np.asarray(colour)
    values = np.asarray(as_real(numbers.astype(int) if numbers.dtype == bool else numbers, "colour"))
    require(values.shape == (n,), "colour", f"have shape ({n},), one per token", f"of shape {values.shape}")
    require(bool(np.all(np.isfinite(values))), "colour", "be finite", values[~np.isfinite(values)][:1])
    if numbers.dtype.kind == "f":
        # the palest tenth of the map would be lost on white
        colours = ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0, 0.9, 256)))
        return _Scale(values, colours, Normalize(values.min(), values.max()))
    labels, index = np.unique(values, return_inverse=True)
    shown = np.sort(np.argsort(-np.bincount(index, weights), kind="stable")[:7])
    place = np.full(len(labels), 7)
    place[shown] = np.arange(len(shown))
    others = len(labels) > 7
    names = tuple(f"{labels[k]:g}" for k in shown) + ("other",) * others
    colours = ListedColormap(PALETTE[: len(shown)] + (OTHER,) * others)
    edges = np.arange(len(names) + 1) - 0.5
    return _Scale(place[index].astype(float), colours, BoundaryNorm(edges, len(names)), names)


def _colour_bar(figure: Figure, axes: Sequence[Axes], scale: _Scale, label: str) -> None:
    if not label:
        return
    mappable = ScalarMappable(scale.norm, scale.colours)
    bar = figure.colorbar(mappable, ax=list(axes), label=label, shrink=0.7, aspect=25, pad=0.02)
    bar.outline.set_visible(False)
    if scale.names:
        bar.set_ticks(list(range(len(scale.names))), labels=list(scale.names))


def _shared_camera(
    trajectory: Trajectory, chosen: Int[np.ndarray, "k"], view: tuple[float, float] | None
) -> Camera:
    """One camera for all chosen snapshots, so that panels can be compared."""
    x = np.asarray(trajectory.x)[chosen]
    rows = x.reshape(-1, x.shape[-1])
    return camera_for((rows.T * np.tile(np.asarray(trajectory.weights), len(chosen))) @ rows, view)


def _nearest(trajectory: Trajectory, times: ArrayLike | Array | None) -> Int[np.ndarray, "k"]:
    """Indices of the snapshots nearest to the times, each once, in order."""
    saved = np.asarray(trajectory.snapshot_ts)
    require(len(saved) > 0, "trajectory", "hold at least one snapshot", "without any")
    if times is None:
        return np.unique(np.round(np.linspace(0, len(saved) - 1, 8)).astype(int))
    wanted = np.atleast_1d(np.asarray(as_real(times, "times")))
    require(wanted.ndim == 1 and wanted.size > 0, "times", "be a list of times", f"of shape {wanted.shape}")
    require(bool(np.all(np.isfinite(wanted))), "times", "be finite", wanted[~np.isfinite(wanted)][:1])
    return np.unique(np.argmin(np.abs(saved[None] - wanted[:, None]), axis=1))


def _time(trajectory: Trajectory, k: int) -> str:
    return f"t = {float(trajectory.snapshot_ts[k]):.4g}"


def _drawable(
    x: Float[np.ndarray, "times"], values: ArrayLike | Array, label: str, log: str
) -> tuple[np.ndarray, np.ndarray]:
    y = np.asarray(as_real(values, label))
    require(y.shape == x.shape, label, f"have shape {x.shape}, one value per time", f"of shape {y.shape}")
    kept = np.isfinite(x) & np.isfinite(y) & ((x > 0) | ("x" not in log)) & ((y > 0) | ("y" not in log))
    return x[kept], y[kept]


def _legend_beside(ax: Axes) -> None:
    """A legend right of the axes, the curve that ends highest on top."""
    lines = sorted(ax.get_lines(), key=lambda line: -(np.append(-np.inf, line.get_ydata())[-1]))
    ax.legend(handles=lines, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0)
