"""What the recipes of this paper share: the flow with B = V = I, its runs, circles with atoms on them."""

import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.patches import Circle

import tokenfield as tkf

PAPER = "arXiv 2504.14697"
#: The mirror of even laws on the circle: θ → −θ turns the sign of the second coordinate.
MIRROR = 1
#: Radius of a disc that stands for all the mass.
LARGEST = 0.45


def usa(beta: float | Array, d: int = 2) -> tkf.UnnormalisedAttention:
    """The unnormalised flow, the gradient ascent of E_β."""
    return tkf.UnnormalisedAttention(tkf.AttentionWeights.identity(d), beta)


def softmax(beta: float, d: int = 2) -> tkf.SoftmaxAttention:
    """The softmax flow."""
    return tkf.SoftmaxAttention(tkf.AttentionWeights.identity(d), beta)


def run(model: tkf.Model, tokens: tkf.Tokens, ts: np.ndarray, tolerance: float = 1e-10) -> tkf.Trajectory:
    """A run with the direct sums at a tolerance that leaves the errors to the theory.

    Args:
        model: the flow.
        tokens: the initial law.
        ts: saved times, (times,), from 0.
        tolerance: relative error of a step; the absolute one is a hundredth of it.
    """
    return tkf.simulate(model, tokens, ts, solver_of(tolerance), "direct")


def solver_of(tolerance: float) -> tkf.Adaptive:
    """The solver of such runs."""
    return tkf.Adaptive(rtol=tolerance, atol=1e-2 * tolerance)


def even_run(
    model: tkf.Model, tokens: tkf.Tokens, ts: np.ndarray, tolerance: float = 1e-10
) -> tkf.Trajectory:
    """A run of an even law by its upper half, so that rounding cannot break the symmetry (theory §3.12).

    The snapshots are halves; `evened` gives the law of one of them.

    Args:
        model: the flow.
        tokens: the initial law, its own mirror image.
        ts: saved times, (times,), from 0.
        tolerance: relative error of a step; the absolute one is a hundredth of it.
    """
    return run(tkf.Mirrored(model, MIRROR), tkf.symmetry.half(tokens, MIRROR), ts, tolerance)


def evened(trajectory: tkf.Trajectory, k: int) -> tkf.Tokens:
    """The whole law of a snapshot of an even run."""
    return tkf.symmetry.whole(trajectory.tokens(k), MIRROR)


def even_order(trajectory: tkf.Trajectory) -> Float[np.ndarray, "times"]:
    """R of every snapshot of an even run: the mean lies on the axis."""
    return np.abs(np.asarray(trajectory.x)[:, :, 0] @ np.asarray(trajectory.weights))


def angles(x: np.ndarray) -> np.ndarray:
    """Angles θ of points on the circle, in (−π, π]."""
    return np.arctan2(x[..., 1], x[..., 0])


def draw_circle(ax: Axes, title: str = "") -> None:
    """An empty circle, with room for discs on it."""
    ax.add_patch(Circle((0, 0), 1, facecolor="none", edgecolor="0.6", linewidth=0.9, zorder=1))
    ax.set(xlim=(-1.45, 1.45), ylim=(-1.3, 1.3), aspect="equal", xticks=[], yticks=[], title=title)
    ax.spines[:].set_visible(False)


def draw_atoms(ax: Axes, tokens: tkf.Tokens, colour: str = tkf.figures.PALETTE[0]) -> None:
    """Discs with radii proportional to their masses.

    Args:
        ax: where to draw.
        tokens: the law, d = 2.
        colour: of the discs.
    """
    for x, mass in zip(np.asarray(tokens.x), np.asarray(tokens.weights), strict=True):
        disc = Circle(x.tolist(), LARGEST * mass, facecolor=colour, edgecolor="white", alpha=0.85, zorder=3)
        ax.add_patch(disc)


def draw_mean(ax: Axes, mean: np.ndarray) -> None:
    """The mean ∫x dμ as a diamond at the end of a line from the centre."""
    ax.plot([0, mean[0]], [0, mean[1]], color="0.25", linewidth=1.0, zorder=4)
    ax.plot(*mean, "D", color="0.1", markersize=5, markeredgecolor="white", markeredgewidth=0.6, zorder=5)


def draw_arrows(ax: Axes, x: np.ndarray, v: np.ndarray, scale: float) -> None:
    """Velocities times a scale as arrows from the points x; none where they would be too short to see.

    Args:
        ax: where to draw.
        x: points, (n, 2).
        v: velocities there, (n, 2).
        scale: length of an arrow for unit velocity.
    """
    for start, move in zip(x, scale * v, strict=True):
        if np.linalg.norm(move) > 0.02:
            ax.annotate(
                "",
                start + move,
                start,
                zorder=6,
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": tkf.figures.PALETTE[1],
                    "linewidth": 1.6,
                    "shrinkA": 0,
                    "shrinkB": 0,
                    "mutation_scale": 11,
                },
            )
