"""The phase a run is in now, in words, from what is known so far.

`diagnostics.phases` judges a whole run. While one is being watched its end is not known: here each frame is
judged by the frames before it, with the same thresholds, so that scrubbing back shows the same words.
"""

from typing import NamedTuple

import numpy as np

from tokenfield.diagnostics.approach import FLOOR, TOLERANCE
from tokenfield.diagnostics.phases import FACTOR, TURNED, falling
from tokenfield.lab.frame import Stage

#: Without a limit law tokens rest if they move slower than this, relative to the fastest so far.
SLOW = 0.02


class Phase(NamedTuple):
    """A short name and a sentence."""

    name: str
    words: str


def phase(stage: Stage, ts: np.ndarray, curves: dict[str, np.ndarray], speed: np.ndarray) -> Phase:
    """The phase at the last of the times `ts`; `curves` and the mean `speed` over the same times."""
    if len(ts) < 2:
        return Phase("start", "The tokens as they begin.")
    if stage.kind in ("fixed", "algebraic", "rotating"):
        found = _approach(ts, curves["distance"], curves["to_end"], stage.same)
        return _rotating(found, stage) if stage.kind == "rotating" else APPROACH[found]
    return _gathering(curves["clusters"], speed)


APPROACH = {
    "concentration": Phase(
        "concentration", "Tokens run to the dominant eigenspace E of V Bᵀ, as at zero temperature."
    ),
    "metastable": Phase("metastable", "Tokens stay near Π♯ρ0, in the dominant eigenspace E of V Bᵀ."),
    "escape": Phase("escape", "Clusters see only themselves now: they leave E and follow V."),
    "terminal": Phase("terminal", "Tokens have ended in the dominant eigenspace of V."),
    "missed": Phase(
        "no concentration", "Tokens did not come near Π♯ρ0: too warm, or too few tokens for this β."
    ),
}


def _approach(ts: np.ndarray, distance: np.ndarray, to_end: np.ndarray, same: bool) -> str:
    now, least = distance[-1], int(np.argmin(distance))
    before = float(np.max(distance[: least + 1]))
    near = distance[least] <= before / FACTOR or distance[0] <= TOLERANCE
    left = now > max(FACTOR * distance[least], FLOOR)
    if near and left:
        return "terminal" if to_end[-1] < TOLERANCE else "escape"
    if not near:
        if now <= TURNED * distance[least]:
            return "concentration"
        return "terminal" if to_end[-1] < TOLERANCE and not same else "missed"
    return "metastable" if _rests(ts, distance) else "concentration"


def _rests(ts: np.ndarray, distance: np.ndarray) -> bool:
    """Whether the distance has stopped falling."""
    now = distance[-1]
    if now < FLOOR:
        return True
    enter = int(np.argmax(distance <= FACTOR * now))
    if enter == 0 and now <= TURNED * np.min(distance):
        return bool(distance[0] <= TOLERANCE)
    return not falling(ts, distance, enter)


def _rotating(found: str, stage: Stage) -> Phase:
    if found in ("metastable", "terminal"):
        period = "" if stage.period is None else f", one turn in t = {stage.period:.3g}"
        return Phase("circulating", f"Tokens are in the plane E and circulate there{period}.")
    if found == "escape":
        return Phase("escape", "Tokens leave the plane E again.")
    return Phase("concentration", "Tokens fall on the plane E, turning.")


def _gathering(clusters: np.ndarray, speed: np.ndarray) -> Phase:
    count = int(clusters[-1])
    slow = speed[-1] <= SLOW * np.max(speed)
    if count == 1 and slow:
        return Phase("one cluster", "All tokens have gathered in one place.")
    if count >= 1 and slow:
        return Phase(f"{count} clusters wait", "Clusters hardly move; whether they last depends on β and V.")
    if count > 1 and count < np.max(clusters):
        return Phase("merging", "Clusters run into each other.")
    return Phase("gathering", "Tokens gather where many already are.")
