"""The worker: a process of its own that computes frames, so that nothing it does can stop the page.

It is told by a pipe what to do, ("run", id, settings, ahead), ("open", id, path, ahead) or ("rest", id,
settings of a run that another worker does, or None, 0), and how far it may go, ("ahead", id, frames). A newer
task ends the older one between two bursts of steps. It answers

    ("ready", id)                  it has nothing to do; the task that was the last (−1: none yet)
    ("taken", id)                  it has turned to the task
    ("waiting", id, frame)         it does nothing until this frame may be made
    ("begin", id, stage, times)    what stays the same, and when frames are to come
    ("frame", id, frame)           one frame after the other
    ("end", id, sentence)          no more frames, because all were made
    ("trouble", id, sentence)      no more frames, for the reason given
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from tokenfield import config, store
from tokenfield.attention.auto import PAIR
from tokenfield.errors import InputError, RunError
from tokenfield.lab.frame import Observer, is_measured
from tokenfield.lab.setup import Setup
from tokenfield.simulate import simulate
from tokenfield.tokens import Tokens
from tokenfield.trajectory import FIXED
from tokenfield.weights import AttentionWeights

#: Steps that are less accurate than this, or take longer than so many seconds, are mentioned.
ROUGH, LONG = 1e-5, 5.0
#: Evaluations a step.
STAGES = 6

#: Spawned, never forked: a forked child of a JAX process hangs.
CONTEXT = multiprocessing.get_context("spawn")


class Worker:
    """The near end: starts the process, sends tasks, collects answers."""

    def __init__(self, target: Callable[[Connection], None] | None = None):
        self.pipe, far = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=target or work, args=(far,), daemon=True)
        self.process.start()
        far.close()
        #: the last task sent, and the last that is over; None until the process says that it is there
        self._sent, self._over = -1, None
        self.held = False

    @property
    def ready(self) -> bool:
        """Whether the process has started."""
        return self._over is not None

    @property
    def idle(self) -> bool:
        """Whether it would turn to a task at once."""
        return self._over == self._sent

    def send(self, *message: Any) -> None:
        """Send a message; a worker that is gone does not answer."""
        if message[0] != "ahead":
            self._sent = message[1]
        with contextlib.suppress(OSError):
            self.pipe.send(message)

    def answers(self) -> list[tuple[Any, ...]]:
        """All that was answered since the last look; nothing while held, perhaps in the middle of a word."""
        found = []
        if self.held:
            return found
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll():
                message = self.pipe.recv()
                if message[0] == "ready":
                    self._over = message[1]
                else:
                    found.append(message)
        return found

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.is_alive()

    def hold(self, on: bool) -> None:
        """Hold the process for a moment, so that another has the processors, or let it go on."""
        self.held = on
        with contextlib.suppress(OSError):
            os.kill(self.process.pid or 0, signal.SIGSTOP if on else signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.join(2)
        self.pipe.close()


class Superseded(Exception):  # noqa: N818 (not an error)
    """A newer task is there."""


class Desk:
    """The far end: the newest task and how far it may go, kept by a thread that listens."""

    def __init__(self, pipe: Connection):
        self.pipe, self.news = pipe, threading.Condition()
        self.task: tuple[Any, ...] | None = None
        self.newest, self.ahead = -1, 0
        #: the law of the last run, and its tokens: to draw many takes a while, and most changes keep them
        self.drawn: tuple[Any, Tokens] | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while True:
                message = self.pipe.recv()
                with self.news:
                    if message[0] == "ahead":
                        if message[1] == self.newest:
                            self.ahead = message[2]
                    else:
                        self.task, self.newest, self.ahead = message[:3], message[1], message[3]
                    self.news.notify_all()
        except (EOFError, OSError):
            os._exit(0)  # the lab is gone

    def next(self) -> tuple[Any, ...]:
        """Wait for a task."""
        with self.news:
            self.news.wait_for(lambda: self.task is not None)
            task, self.task = self.task, None
            assert task is not None
            return task

    def check(self, task: int) -> None:
        """Stop the task if there is a newer one."""
        if self.newest != task:
            raise Superseded

    def wait(self, task: int, frame: int) -> None:
        """Wait until this frame may be made."""
        if frame >= self.ahead and self.newest == task:
            self.answer("waiting", task, frame)
        with self.news:
            self.news.wait_for(lambda: self.newest != task or frame < self.ahead)
        self.check(task)

    def answer(self, *message: Any) -> None:
        """Send an answer."""
        self.pipe.send(message)

    def tokens(self, law: Any) -> Tokens:
        """The tokens of the law."""
        if self.drawn is None or self.drawn[0] != law:
            self.drawn = (law, law.build())
        return self.drawn[1]


def work(pipe: Connection) -> None:
    """What the process does: one task after the other, for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the lab's to handle
    _die_with_the_lab()
    keep_compiled()
    desk = Desk(pipe)
    _warm_up()
    desk.answer("ready", -1)
    while True:
        kind, task, what = desk.next()
        desk.answer("taken", task)
        _do(desk, kind, task, what)
        desk.answer("ready", task)


def _die_with_the_lab() -> None:
    """Ask Linux to end this process with the lab: while held, it does not notice that nobody is there."""
    with contextlib.suppress(OSError, AttributeError):  # elsewhere there is no such call
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG


def _do(desk: Desk, kind: str, task: int, what: Any) -> None:
    """One task, to its end or until there is a newer one."""
    try:
        sentence = {"run": _run, "open": _open, "rest": _rest}[kind](desk, task, what)
        desk.answer("end", task, sentence)
    except Superseded:
        pass  # nobody waits for this one any more
    except (InputError, RunError) as error:
        desk.answer("trouble", task, str(error))
    except MemoryError:
        desk.answer("trouble", task, "not enough memory for so many tokens")
    except Exception as error:  # whatever it is, the page must hear of it
        desk.answer("trouble", task, f"{type(error).__name__}: {error}")


def _warm_up() -> None:
    """All that is slow the first time only."""
    run = Setup(n=8).config()
    tokens = run.arguments()["tokens"]
    Observer(tokens, run.weights.build(), 1.0).frame(0.0, tokens)


def keep_compiled() -> None:
    """Keep compiled programs on disk, so that the next lab and a new worker need not compile them again."""
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(home / "tokenfield" / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _run(desk: Desk, task: int, settings: dict[str, Any]) -> str:
    """Simulate, and make a frame at every saved time."""
    run = config.parse(settings)
    arguments = run.arguments(desk.tokens(run.initial))
    tokens, ts = arguments["tokens"], np.asarray(arguments["ts"])
    observer = Observer(tokens, run.weights.build(), getattr(run.model, "beta", None))
    notes = (*observer.stage.notes, *_caveats(run.solver, tokens.n, tokens.d))
    desk.answer("begin", task, replace(observer.stage, notes=notes), ts)
    frames = 0

    def show(now: Tokens) -> None:
        nonlocal frames
        desk.wait(task, frames)
        desk.answer("frame", task, observer.frame(ts[frames], now, is_measured(frames, len(ts))))
        frames += 1

    def measure(now: Tokens) -> float:
        if now is not tokens:
            show(now)
        return 0.0

    show(tokens)  # at once: sums are planned and models compiled only then
    arguments |= {"measure": {"frame": measure}, "snapshots": [], "settings": None}
    trajectory = simulate(**arguments, progress=lambda *_: desk.check(task), strict=False)
    if not trajectory.complete:
        raise RunError(trajectory.status)
    return trajectory.status


def _rest(desk: Desk, task: int, settings: dict[str, Any] | None) -> str:
    """Draw the tokens of a run that may be asked for with another β."""
    if settings is not None:
        desk.tokens(config.parse(settings).initial)
    return ""


def _caveats(solver: Any, n: int, d: int) -> list[str]:
    """What a person should know who wonders about the accuracy or the time of a run."""
    found = []
    if getattr(solver, "rtol", 0.0) > ROUGH:
        found.append(f"a step may be off by {solver.rtol:g}")
    seconds = STAGES * PAIR * n**2
    if d > 3 and seconds > LONG:
        found.append(f"above d = 3 all {n:,}² pairs are summed: at least {seconds:.0f} seconds a step")
    return found


def _open(desk: Desk, task: int, where: str) -> str:
    """Read a stored run, and make a frame of every snapshot."""
    path = Path(where)
    manifest = store.read_manifest(path)
    store.check_data(path, manifest["written"], FIXED)
    count = manifest["written"].get("x", 0)
    if count == 0:
        raise InputError(f"`path` must be a run with snapshots to be shown, but {path} has none")
    weights, beta = _model(manifest["inputs"])
    ts = store.read_rows(path, "snapshot", 0, count)
    masses = store.read_rows(path, "weights", 0, manifest["inputs"]["tokens"]["n"])
    observer: Observer | None = None
    for k in range(count):
        if observer is not None:
            desk.wait(task, k)
        tokens = Tokens(store.read_rows(path, "x", k, k + 1)[0], masses)
        if observer is None:
            observer = Observer(tokens, weights, beta)
            desk.answer("begin", task, observer.stage, ts)
        desk.answer("frame", task, observer.frame(ts[k], tokens, is_measured(k, count)))
    return manifest.get("status", "the run was interrupted; this is what it had finished")


def _model(inputs: dict[str, Any]) -> tuple[AttentionWeights | None, float | None]:
    """The matrices and β of a stored run, as far as its manifest tells them."""
    try:
        model = inputs["model"]
        beta = float(model["beta"]) if "beta" in model else None
        return AttentionWeights(model["weights"]["B"], model["weights"]["V"]), beta
    except (KeyError, TypeError, ValueError):  # large matrices are kept as a hash only
        return None, None
