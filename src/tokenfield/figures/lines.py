"""Curves over time: measured ones in colour, predicted ones dashed, the legend beside them."""

from collections.abc import Mapping

import matplotlib
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from tokenfield.errors import require
from tokenfield.figures.style import DASHES, PALETTE, PREDICTED_STYLES, STYLE
from tokenfield.laws.tokens import as_real

#: Curves of at most this many points also show the points.
MAX_MARKED_POINTS = 12


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

    Points that are not finite, or not positive on a logarithmic axis, are left out. The legend stands beside
    the data, in the order in which the curves end.

    Args:
        ts: times, (times,).
        values: measured curves, label → (times,).
        xlabel: of the horizontal axis.
        ylabel: of the vertical axis.
        log: the logarithmic axes, "", "x", "y" or "xy".
        predicted: predicted curves, label → (times,).
        ax: where to draw; a new figure if left out.

    Returns: the figure of the axes.
    """
    predicted = predicted or {}
    x = _checked(ts, values, predicted, log)
    if ax is None:
        ax = Figure(figsize=(7.0, 4.0), layout="constrained").subplots()
    ax.set(
        xlabel=xlabel,
        ylabel=ylabel,
        xscale="log" if "x" in log else "linear",
        yscale="log" if "y" in log else "linear",
    )
    for (label, y), colour, dash in zip(values.items(), PALETTE, DASHES, strict=False):
        x_kept, y_kept = _drawable(x, y, label, log)
        marker = "o" if len(x_kept) <= MAX_MARKED_POINTS else ""
        ax.plot(x_kept, y_kept, color=colour, linestyle=dash, label=label, marker=marker, markersize=4.5)
    for (label, y), (colour, dash) in zip(predicted.items(), PREDICTED_STYLES, strict=False):
        ax.plot(*_drawable(x, y, label, log), color=colour, linestyle=dash, linewidth=1.2, label=label)
    _legend_beside(ax)
    return ax.get_figure(root=True)  # pyright: ignore[reportReturnType] (an axes in use has a figure)


def _checked(ts: ArrayLike | Array, values: Mapping, predicted: Mapping, log: str) -> np.ndarray:
    """The times as an array, if there are neither too many nor too few curves."""
    require(log in ("", "x", "y", "xy"), "log", 'be "", "x", "y" or "xy"', repr(log))
    require(1 <= len(values) <= len(DASHES), "values", f"hold 1 to {len(DASHES)} curves", len(values))
    require(
        len(predicted) <= len(PREDICTED_STYLES),
        "predicted",
        f"hold at most {len(PREDICTED_STYLES)} curves",
        len(predicted),
    )
    x = np.asarray(as_real(ts, "ts"))
    require(x.ndim == 1, "ts", "have shape (times,)", f"of shape {x.shape}")
    return x


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
