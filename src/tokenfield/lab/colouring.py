"""Colourings: what a token's colour means, as colours for the page and as numbers for a figure."""

from typing import NamedTuple

import matplotlib
import numpy as np
from jaxtyping import UInt8
from matplotlib.colors import hsv_to_rgb, to_hex, to_rgb

from tokenfield.figures import OTHER, PALETTE
from tokenfield.lab.frame import CLUSTER_COLOURS, Frame, Stage

COLOURINGS = ("where Π sends it", "cluster", "speed")

#: The colours of the eigenspaces of V Bᵀ and of V, and of the two ends of Π.
EIGENSPACE_COLOURS = ("#0072B2", "#D55E00")
LIMIT_END_COLOURS = ("#009E73", "#CC79A7")


class Colouring(NamedTuple):
    """`rgb` (m, 3); `values` (m,) numbers or labels that say the same; `legend` in words."""

    rgb: UInt8[np.ndarray, "m 3"]
    values: np.ndarray
    legend: str


def colouring(choice: str, stage: Stage, frame: Frame) -> Colouring:
    """The tokens of a frame coloured by where Π sends them, by cluster or by speed.

    Args:
        choice: one of `COLOURINGS`.
        stage: what stays the same during the run, of m shown tokens.
        frame: the tokens at one time.
    """
    if choice == "cluster":
        shades = [*PALETTE[:CLUSTER_COLOURS], OTHER]
        return Colouring(_rgb(shades)[frame.colour], frame.colour, "one colour per cluster; grey: in none")
    if choice == "speed":
        return _by_speed(frame.speed.astype(float))
    if stage.target is not None and stage.limit_basis is not None and stage.limit_basis.shape[1] == 1:
        side = (stage.target @ stage.limit_basis[:, 0] < 0).astype(int)
        plus, minus = (swatch(colour) for colour in LIMIT_END_COLOURS)
        return Colouring(_rgb(LIMIT_END_COLOURS)[side], side, f"Π sends {plus} to +p, {minus} to −p")
    return _by_angle(stage)


def swatch(colour: str) -> str:
    """A little square of a colour, for a legend."""
    return (
        f'<span style="display:inline-block;width:.8em;height:.8em;border-radius:.2em;background:{colour}">'
        "</span>"
    )


def _by_speed(speed: np.ndarray) -> Colouring:
    # by order of magnitude, three decades below the fastest
    top = max(float(speed.max()), 1e-12)
    level = np.clip(1 + np.log10(np.maximum(speed / top, 1e-3)) / 3, 0, 1)
    rgb = np.round(255 * matplotlib.colormaps["viridis"](0.9 * level)[:, :3]).astype(np.uint8)
    shades = [to_hex(matplotlib.colormaps["viridis"](v)) for v in (0.0, 0.9)]
    return Colouring(
        rgb,
        level,
        f"{swatch(shades[0])} below {top / 1000:.2g} … {swatch(shades[1])} {top:.2g} radians a unit of t",
    )


def _by_angle(stage: Stage) -> Colouring:
    """Hue by an angle: of Π(x) in E, or of where the token began if Π has no say."""
    if stage.target is not None and stage.limit_basis is not None:
        plane, legend = stage.target @ stage.limit_basis[:, :2], "hue: where in E Π sends it"
    else:
        basis = stage.limit_basis if stage.limit_basis is not None else np.eye(stage.d)
        plane, legend = stage.start @ basis[:, :2], "hue: where it began (Π moves nothing here)"
    angle = np.arctan2(plane[:, 1], plane[:, 0])
    level = (angle / (2 * np.pi)) % 1.0
    hues = np.stack([level, np.full(len(level), 0.75), np.full(len(level), 0.85)], axis=1)
    rgb = np.round(255 * hsv_to_rgb(hues)).astype(np.uint8)
    return Colouring(rgb, angle, legend)


def _rgb(shades: list[str] | tuple[str, ...]) -> np.ndarray:
    return np.array([np.round(255 * np.array(to_rgb(shade))) for shade in shades]).astype(np.uint8)
