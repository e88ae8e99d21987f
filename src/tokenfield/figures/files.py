"""Files of figures and animations: written whole or not at all, equal figures as equal files."""

import os
import tempfile
from pathlib import Path

import matplotlib
from matplotlib.animation import Animation, writers
from matplotlib.figure import Figure

from tokenfield.errors import InputError, require
from tokenfield.figures.style import STYLE
from tokenfield.runs.files import as_path

#: Endings that `save` writes.
FIGURE_ENDINGS, ANIMATION_ENDINGS = (".png", ".pdf", ".svg"), (".gif", ".mp4")


@matplotlib.rc_context(STYLE)
def save(drawing: Figure | Animation, path: str | Path) -> Path:
    """Write a figure (.png, .pdf, .svg) or an animation (.gif, .mp4) and return the path.

    The file appears whole or not at all; its directory is made. Equal figures give equal files.
    """
    path = as_path(path, "path")
    if not isinstance(drawing, Figure | Animation):
        raise InputError(f"`drawing` must be a Figure or an Animation, but was {type(drawing).__name__}")
    moving = isinstance(drawing, Animation)
    known, kind = (ANIMATION_ENDINGS, "an animation") if moving else (FIGURE_ENDINGS, "a figure")
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
    _check_ending(path, (*FIGURE_ENDINGS, *ANIMATION_ENDINGS), "")
    return path.suffix.lower() in ANIMATION_ENDINGS


def _check_ending(path: Path, known: tuple[str, ...], purpose: str) -> None:
    ending = path.suffix.lower()
    wanted = f"end in {', '.join(known[:-1])} or {known[-1]}{purpose}"
    require(ending in known, "path", wanted, repr(str(path)))
    if ending == ".mp4" and not writers.is_available("ffmpeg"):
        raise InputError(
            f"`path` must end in .gif while ffmpeg is not installed, but was {str(path)!r};"
            " install ffmpeg to write .mp4"
        )
