"""Jobs: what takes longer than a moment and writes a file, in a process of its own that can be ended.

Saving a run does it again with `simulate`, from the configuration that is saved beside it: the two cannot
differ. A job that is cancelled leaves a store that `tokenfield simulate --resume` goes on with.
"""

import contextlib
import re
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import tokenfield as tkf
from tokenfield.config import reading as config
from tokenfield.errors import require
from tokenfield.lab.frame import Frame, Stage
from tokenfield.lab.worker import SPAWN, call_with_modules, keep_compiled
from tokenfield.registry import foreign_modules
from tokenfield.runs.store import refuse_occupied

#: Most pictures of an animation.
MAX_ANIMATION_FRAMES = 100

Progress = Callable[[float], None]


class Job:
    """A job that runs: `share` of it done; `result` a sentence once it is over, `failed` whether badly."""

    def __init__(self, title: str, function: Callable[..., str], *arguments: Any):
        self.title, self.share, self.result, self.failed = title, 0.0, "", False
        self.pipe, child_end = SPAWN.Pipe(duplex=False)
        begin = (foreign_modules(), _work, child_end, function, arguments)
        self.process = SPAWN.Process(target=call_with_modules, args=begin, daemon=True)
        self.process.start()
        child_end.close()

    def tick(self) -> None:
        """Read how far it is."""
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll():
                kind, value = self.pipe.recv()
                if kind == "share":
                    self.share = value
                else:
                    self.result, self.failed = value, kind == "error"
        if not self.result and not self.process.is_alive() and not self.pipe.closed and not self.pipe.poll():
            self.result, self.failed = f"{self.title}: the process died", True

    def cancel(self) -> None:
        """End it."""
        self.process.kill()
        self.process.join(2)
        if not self.result:
            self.result, self.failed = f"{self.title}: cancelled", True


def _work(pipe: Connection, function: Callable[..., str], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pipe.send(("done", function(*arguments, lambda share: pipe.send(("share", share)))))
    except (tkf.InputError, tkf.RunError, OSError) as error:
        pipe.send(("error", str(error)))
    except Exception as error:  # whatever it is, the page must show it
        pipe.send(("error", f"{type(error).__name__}: {error}"))


def new_path(folder: Path, name: str, ending: str = "") -> Path:
    """The path of a new file or directory; names that are not plain, or taken, are refused.

    Args:
        folder: where it is to be.
        name: letters, digits, dots, dashes and underscores.
        ending: of the file, with its dot.
    """
    plain = bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}", name))
    require(plain, "name", "be letters, digits, dots, dashes and underscores", repr(name))
    path = folder / f"{name}{ending}"
    require(not path.exists(), "name", "be new", f"{name!r}, and {path} is there already")
    return path


def save_run(run: config.Config, path: Path) -> Job:
    """Write PATH.toml, and the run that it describes to the store PATH."""
    refuse_occupied(path)
    return Job("saving the run", _save_run, run.model_dump(exclude_none=True), path)


def save_figure(stage: Stage, frame: Frame, colour: np.ndarray, path: Path) -> Job:
    """Draw one frame.

    Args:
        stage: what stays the same during the run.
        frame: the m tokens to draw.
        colour: a number or label for each, (m,).
        path: of the new picture.
    """
    return Job("saving the figure", _save_figure, stage.weights, frame, colour, path)


def save_animation(stage: Stage, frames: Sequence[Frame], colour: np.ndarray, path: Path) -> Job:
    """Draw the frames, or `MAX_ANIMATION_FRAMES` of them, as an animation.

    Args:
        stage: what stays the same during the run.
        frames: the m tokens over time.
        colour: a number or label for each token, (m,).
        path: of the new animation.
    """
    few = np.unique(np.linspace(0, len(frames) - 1, min(MAX_ANIMATION_FRAMES, len(frames))).astype(int))
    return Job("saving the animation", _save_animation, stage.weights, [frames[k] for k in few], colour, path)


def _save_run(settings: dict[str, Any], path: Path, progress: Progress) -> str:
    keep_compiled()
    run = config.parse(settings)
    file = path.with_name(path.name + ".toml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(config.text(run), encoding="utf8")
    again = config.read(file).arguments()
    trajectory = tkf.simulate(**again, store=path, progress=lambda share, _: progress(share), strict=False)
    if not trajectory.complete:
        raise tkf.RunError(f"{path}: {trajectory.status}")
    return f"saved {file} and the run {path}; `tokenfield simulate {file}` repeats it"


def _save_figure(weights: np.ndarray, frame: Frame, colour: np.ndarray, path: Path, _: Progress) -> str:
    picture = tkf.figures.snapshot(
        tkf.Tokens(_unit(frame.x), weights), colour=colour, title=f"t = {frame.t:.4g}"
    )
    return f"saved {tkf.figures.save(picture, path)}"


def _save_animation(
    weights: np.ndarray, frames: list[Frame], colour: np.ndarray, path: Path, progress: Progress
) -> str:
    ts = np.array([frame.t for frame in frames])
    x = np.stack([_unit(frame.x) for frame in frames])
    film = tkf.figures.animation(
        tkf.Trajectory(ts, x, weights, ts, {}, {}, {}, "frames of the lab", True), colour
    )
    drawn, draw = 0, film._func  # type: ignore[attr-defined] (matplotlib has no other way to count)

    def counted(*arguments: Any) -> Any:
        nonlocal drawn
        drawn += 1
        progress(min(drawn / len(frames), 1.0))
        return draw(*arguments)

    film._func = counted  # type: ignore[attr-defined]
    return f"saved {tkf.figures.save(film, path)}"


def _unit(x: np.ndarray) -> np.ndarray:
    """Single precision put back on the sphere."""
    x = x.astype(float)
    return x / np.linalg.norm(x, axis=1, keepdims=True)
