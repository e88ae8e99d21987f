"""The phase a run is in now, in words, from what is known so far.

`tkf.phases` judges a whole run. While one is being watched its end is not known: each frame is judged by the
frames before it, by the same classification, so that scrubbing back shows the same words.
"""

from typing import NamedTuple

import numpy as np

from tokenfield.lab.frame import Stage
from tokenfield.measure.classification import phase_so_far

#: Without a limit law tokens rest if they move slower than this, relative to the fastest so far.
MAX_RESTING_SPEED = 0.02


class PhaseLabel(NamedTuple):
    """A short name and a sentence."""

    name: str
    words: str


def phase(stage: Stage, ts: np.ndarray, curves: dict[str, np.ndarray], speed: np.ndarray) -> PhaseLabel:
    """The phase at the last of the times, in words.

    Args:
        stage: what stays the same during the run.
        ts: times so far, (times,).
        curves: the measured curves over these times, name → (times,).
        speed: mean speed of the tokens, (times,).
    """
    if len(ts) < 2:
        return PhaseLabel("start", "The tokens as they begin.")
    if stage.kind in ("fixed", "algebraic", "rotating"):
        found = phase_so_far(ts, curves["distance"], curves["to_end"], stage.same)
        return _rotating(found, stage) if stage.kind == "rotating" else PHASE_LABELS[found]
    return _gathering(curves["clusters"], speed)


PHASE_LABELS = {
    "concentration": PhaseLabel(
        "concentration", "Tokens run to the dominant eigenspace E of V Bᵀ, as at zero temperature."
    ),
    "metastable": PhaseLabel("metastable", "Tokens stay near Π♯ρ0, in the dominant eigenspace E of V Bᵀ."),
    "escape": PhaseLabel("escape", "Clusters see only themselves now: they leave E and follow V."),
    "terminal": PhaseLabel("terminal", "Tokens have ended in the dominant eigenspace of V."),
    "no concentration": PhaseLabel(
        "no concentration", "Tokens did not come near Π♯ρ0: too warm, or too few tokens for this β."
    ),
}


def _rotating(found: str, stage: Stage) -> PhaseLabel:
    if found in ("metastable", "terminal"):
        period = "" if stage.period is None else f", one turn in t = {stage.period:.3g}"
        return PhaseLabel("circulating", f"Tokens are in the plane E and circulate there{period}.")
    if found == "escape":
        return PhaseLabel("escape", "Tokens leave the plane E again.")
    return PhaseLabel("concentration", "Tokens fall on the plane E, turning.")


def _gathering(clusters: np.ndarray, speed: np.ndarray) -> PhaseLabel:
    count = int(clusters[-1])
    slow = speed[-1] <= MAX_RESTING_SPEED * np.max(speed)
    if count == 1 and slow:
        return PhaseLabel("one cluster", "All tokens have gathered in one place.")
    if count >= 1 and slow:
        return PhaseLabel(
            f"{count} clusters wait", "Clusters hardly move; whether they last depends on β and V."
        )
    if count > 1 and count < np.max(clusters):
        return PhaseLabel("merging", "Clusters run into each other.")
    return PhaseLabel("gathering", "Tokens gather where many already are.")
