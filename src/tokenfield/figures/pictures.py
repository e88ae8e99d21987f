"""Figures: results in, matplotlib figures and animations out. Nothing here simulates or opens a window.

Tokens are drawn as discs whose area grows with their weight. A disc takes in the tokens whose centres it
covers, and their weight, so that a tight cluster of half the mass looks like half the mass. A sphere is
drawn in orthographic projection, the far side faint; above d = 3 the tokens are projected on the principal
directions of their second moment. Colours are safe for colour-blind readers.
"""

from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Array, Int
from matplotlib.animation import FuncAnimation
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from tokenfield.errors import InputError, as_number, require, require_kind
from tokenfield.figures.camera import Camera, camera_for
from tokenfield.figures.drawing import add_colour_bar, colour_scale, draw
from tokenfield.figures.style import STYLE
from tokenfield.laws.tokens import Tokens, as_real
from tokenfield.runs.trajectory import Trajectory

#: Panels of `small_multiples` if no times are given.
DEFAULT_PANELS = 8


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

    The diamond at the end of a line from the centre is the mean ∫x dμ. Of more than 20,000 discs the
    heavy ones and an even choice of the others are drawn.

    Args:
        tokens: the law, weights (n,) and unit rows (n, d).
        ax: where to draw; a new figure if left out.
        colour: (n,) one number or whole-number label per token. The seven labels of most mass have
            their own colour, others are grey; a disc of several tokens has their median number.
        title: above the picture.
        view: (azimuth, elevation) in degrees from which a sphere is seen.
        colour_label: what the colours mean; adds a colour bar.

    Returns: the figure of the axes.
    """
    require_kind(tokens, Tokens, "tokens")
    scale = colour_scale(colour, np.asarray(tokens.weights))
    camera = camera_for(np.asarray(tokens.moments().second), view)
    if ax is None:
        ax = Figure(figsize=(5.6 if colour_label else 4.6, 4.8), layout="constrained").subplots()
    draw(ax, tokens, scale, camera, title)
    figure = ax.get_figure(root=True)
    if figure is None:
        raise InputError("`ax` must belong to a figure, but was removed from it")
    add_colour_bar(figure, [ax], scale, colour_label)
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

    Args:
        trajectory: a run of n tokens with at least one snapshot.
        times: (k,); the saved snapshots nearest to these are shown, eight spread evenly over the saved ones
            if left out.
        columns: panels per row.
        colour: (n,) one number or label per token, as in `snapshot`.
        view: (azimuth, elevation) in degrees from which a sphere is seen.
        colour_label: what the colours mean; adds a colour bar.

    Returns: the figure.
    """
    require_kind(trajectory, Trajectory, "trajectory")
    whole = isinstance(columns, int | np.integer) and not isinstance(columns, bool)
    require(whole and columns >= 1, "columns", "be a whole number, at least 1", repr(columns))
    chosen = _nearest(trajectory, times)
    scale = colour_scale(colour, np.asarray(trajectory.weights))
    camera = _shared_camera(trajectory, chosen, view)
    columns = min(int(columns), len(chosen))
    rows = -(-len(chosen) // columns)
    figure = Figure(figsize=(2.25 * columns, 2.45 * rows + 0.1), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax, k in zip(grid, chosen, strict=False):
        draw(ax, trajectory.tokens(k), scale, camera, _time(trajectory, k))
        ax.set_xlabel("")
    for ax in grid[len(chosen) :]:
        ax.set_axis_off()
    if camera.note:
        figure.supxlabel(camera.note.replace("\n", " "), fontsize=STYLE["font.size"])
    add_colour_bar(figure, list(grid), scale, colour_label)
    return figure


@matplotlib.rc_context(STYLE)
def animation(
    trajectory: Trajectory,
    colour: ArrayLike | Array | None = None,
    fps: float = 12,
    *,
    view: tuple[float, float] | None = None,
) -> FuncAnimation:
    """The saved snapshots one after the other, each with its time.

    Args:
        trajectory: a run of n tokens with at least one snapshot.
        colour: (n,) one number or label per token, as in `snapshot`.
        fps: frames per second.
        view: (azimuth, elevation) in degrees from which a sphere is seen.

    Returns: the animation, which `save` writes.
    """
    require_kind(trajectory, Trajectory, "trajectory")
    require(0 < as_number(fps, "fps") < np.inf, "fps", "be positive and finite", fps)
    frames = _nearest(trajectory, trajectory.snapshot_ts)
    scale = colour_scale(colour, np.asarray(trajectory.weights))
    camera = _shared_camera(trajectory, frames, view)
    figure = Figure(figsize=(4.5, 4.8), dpi=120)
    ax = figure.add_axes((0.02, 0.06, 0.96, 0.86))

    def show(k: int) -> list[Any]:
        with matplotlib.rc_context(STYLE):
            ax.clear()
            draw(ax, trajectory.tokens(k), scale, camera, _time(trajectory, k))
        return [ax]

    return FuncAnimation(figure, show, frames=frames.tolist(), interval=1000 / fps, blit=False)


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
        return np.unique(np.round(np.linspace(0, len(saved) - 1, DEFAULT_PANELS)).astype(int))
    wanted = np.atleast_1d(np.asarray(as_real(times, "times")))
    require(wanted.ndim == 1 and wanted.size > 0, "times", "be a list of times", f"of shape {wanted.shape}")
    require(bool(np.all(np.isfinite(wanted))), "times", "be finite", wanted[~np.isfinite(wanted)][:1])
    return np.unique(np.argmin(np.abs(saved[None] - wanted[:, None]), axis=1))


def _time(trajectory: Trajectory, k: int) -> str:
    return f"t = {float(trajectory.snapshot_ts[k]):.4g}"
