"""Tokens on one pair of axes: the circle or sphere, discs before and behind it, their mean and colours."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import EllipseCollection
from matplotlib.colors import BoundaryNorm, Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from numpy.typing import ArrayLike

from tokenfield.errors import require
from tokenfield.figures.camera import Camera
from tokenfield.figures.discs import Discs, gather, radius
from tokenfield.figures.style import OTHER, PALETTE
from tokenfield.laws.tokens import Tokens, as_real

#: Beyond this many, discs are pixels, not paths, in PDF and SVG.
RASTER_THRESHOLD = 2_000
#: Labels with a colour of their own; those of less mass are grey.
MAX_LABELS = 7


@dataclass(frozen=True)
class ColourScale:
    """One number per token and the colours these numbers stand for."""

    values: Float[np.ndarray, "n"]
    colours: Colormap
    norm: Normalize
    names: tuple[str, ...] = ()


def draw(ax: Axes, tokens: Tokens, scale: ColourScale, camera: Camera, title: str) -> None:
    """Draw tokens, the sphere they lie on, and their mean.

    Args:
        ax: where to draw.
        tokens: the law, weights (n,) and unit rows (n, d).
        scale: a number for each token, (n,), and its colours.
        camera: from where they are seen.
        title: above the picture.
    """
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


def colour_scale(colour: ArrayLike | Array | None, weights: Float[np.ndarray, "n"]) -> ColourScale:
    """Colours for one number or whole-number label per token, (n,); one colour if there are none."""
    n = len(weights)
    if colour is None:
        return ColourScale(np.zeros(n), ListedColormap(PALETTE[:1]), Normalize(0, 1))
    numbers = np.asarray(colour)
    values = np.asarray(as_real(numbers.astype(int) if numbers.dtype == bool else numbers, "colour"))
    require(values.shape == (n,), "colour", f"have shape ({n},), one per token", f"of shape {values.shape}")
    require(bool(np.all(np.isfinite(values))), "colour", "be finite", values[~np.isfinite(values)][:1])
    if numbers.dtype.kind == "f":
        # the palest tenth of the map would be lost on white
        colours = ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0, 0.9, 256)))
        return ColourScale(values, colours, Normalize(values.min(), values.max()))
    labels, index = np.unique(values, return_inverse=True)
    shown = np.sort(np.argsort(-np.bincount(index, weights), kind="stable")[:MAX_LABELS])
    place = np.full(len(labels), MAX_LABELS)
    place[shown] = np.arange(len(shown))
    others = len(labels) > MAX_LABELS
    names = tuple(f"{labels[k]:g}" for k in shown) + ("other",) * others
    colours = ListedColormap(PALETTE[: len(shown)] + (OTHER,) * others)
    edges = np.arange(len(names) + 1) - 0.5
    return ColourScale(place[index].astype(float), colours, BoundaryNorm(edges, len(names)), names)


def add_colour_bar(figure: Figure, axes: Sequence[Axes], scale: ColourScale, label: str) -> None:
    """Explain the colours beside the axes.

    Args:
        figure: that holds the axes.
        axes: those beside which the bar stands.
        scale: the colours.
        label: what they mean; no bar if empty.
    """
    if not label:
        return
    mappable = ScalarMappable(scale.norm, scale.colours)
    bar = figure.colorbar(mappable, ax=list(axes), label=label, shrink=0.7, aspect=25, pad=0.02)
    bar.outline.set_visible(False)
    if scale.names:
        bar.set_ticks(list(range(len(scale.names))), labels=list(scale.names))


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
    ax: Axes, discs: Discs, chosen: np.ndarray, scale: ColourScale, least: float, alpha: float, zorder: float
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
        rasterized=len(order) > RASTER_THRESHOLD,
        clip_on=False,
    )
    ax.add_collection(collection, autolim=False)
