"""The worker: a process of its own that computes frames, so that nothing it does can stop the page.

It gets tasks through a pipe, ("run", id, settings, limit), ("open", id, path, limit) or ("prefetch", id,
settings of a run that another worker does, or None, 0), and how many frames it may make, ("limit", id,
frames). A newer task ends the older one between two bursts of steps. It answers

    ("ready", id)                  it has nothing to do; the task that was the last (−1: none yet)
    ("started", id)                it has turned to the task
    ("waiting", id, frame)         it does nothing until this frame may be made
    ("begin", id, stage, times)    what stays the same, and when frames are to come
    ("frame", id, frame)           one frame after the other
    ("end", id, sentence)          no more frames, because all were made
    ("error", id, sentence)        no more frames, for the reason given
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

import tokenfield as tkf
from tokenfield.config import reading as config
from tokenfield.lab.head import head_of, head_of_stored
from tokenfield.lab.observer import Observer, is_measured
from tokenfield.lab.setup import Setup
from tokenfield.registry import foreign_modules, import_modules
from tokenfield.runs.contents import check_data, contents_of, read_rows
from tokenfield.runs.manifest import read_manifest
from tokenfield.sums.direct import SECONDS_PER_PAIR

#: Steps that are less accurate than this, or take longer than so many seconds, are mentioned.
MAX_UNMENTIONED_RTOL, MAX_UNMENTIONED_SECONDS = 1e-5, 5.0
#: Evaluations a step.
EVALUATIONS_PER_STEP = 6
#: Arguments of `simulate` that say what is recorded; a run that is only looked at has none of them.
RECORDING_ARGUMENTS = ("snapshots", "measure", "settings")

#: Spawned, never forked: a forked child of a JAX process hangs.
SPAWN = multiprocessing.get_context("spawn")


def call_with_modules(modules: tuple[str, ...], function: Callable[..., None], *arguments: Any) -> None:
    """Begin a process: import what registers models and laws of the user, then call.

    Args:
        modules: their names.
        function: what the process does.
        arguments: of the function.
    """
    import_modules(modules)
    function(*arguments)


class Worker:
    """The parent's end of the pipe: starts the process, sends tasks, collects answers."""

    def __init__(self, target: Callable[[Connection], None] | None = None):
        self.pipe, child_end = SPAWN.Pipe()
        begin = (foreign_modules(), target or work, child_end)
        self.process = SPAWN.Process(target=call_with_modules, args=begin, daemon=True)
        self.process.start()
        child_end.close()
        #: the last task sent, and the last that is over; None until the process says that it is there
        self._last_sent, self._last_finished = -1, None
        self.suspended = False

    @property
    def ready(self) -> bool:
        """Whether the process has started."""
        return self._last_finished is not None

    @property
    def idle(self) -> bool:
        """Whether it would turn to a task at once."""
        return self._last_finished == self._last_sent

    def send(self, *message: Any) -> None:
        """Send a message; a worker that is gone does not answer."""
        if message[0] != "limit":
            self._last_sent = message[1]
        with contextlib.suppress(OSError):
            self.pipe.send(message)

    def answers(self) -> list[tuple[Any, ...]]:
        """All answers since the last call; none while suspended, perhaps in the middle of a message."""
        found = []
        if self.suspended:
            return found
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll():
                message = self.pipe.recv()
                if message[0] == "ready":
                    self._last_finished = message[1]
                else:
                    found.append(message)
        return found

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.is_alive()

    def suspend(self) -> None:
        """Stop the process for a moment, so that another has the processors."""
        self.suspended = True
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a suspended process go on."""
        self.suspended = False
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.kill(self.process.pid or 0, number)

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.join(2)
        self.pipe.close()


class Superseded(Exception):  # noqa: N818 (not an error)
    """A newer task is there."""


class Inbox:
    """The process's end of the pipe: the newest task and its limit of frames, kept by a thread."""

    def __init__(self, pipe: Connection):
        self.pipe, self.changed = pipe, threading.Condition()
        self.task: tuple[Any, ...] | None = None
        self.newest, self.limit = -1, 0
        #: the law of the last run, and its tokens: to draw many takes a while, and most changes keep them
        self.cached: tuple[Any, tkf.Tokens] | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while True:
                message = self.pipe.recv()
                with self.changed:
                    if message[0] == "limit":
                        if message[1] == self.newest:
                            self.limit = message[2]
                    else:
                        self.task, self.newest, self.limit = message[:3], message[1], message[3]
                    self.changed.notify_all()
        except (EOFError, OSError):
            os._exit(0)  # the lab is gone

    def next(self) -> tuple[Any, ...]:
        """Wait for a task."""
        with self.changed:
            self.changed.wait_for(lambda: self.task is not None)
            task, self.task = self.task, None
            assert task is not None
            return task

    def check(self, task: int) -> None:
        """Stop the task if there is a newer one."""
        if self.newest != task:
            raise Superseded

    def wait(self, task: int, frame: int) -> None:
        """Wait until this frame may be made."""
        if frame >= self.limit and self.newest == task:
            self.answer("waiting", task, frame)
        with self.changed:
            self.changed.wait_for(lambda: self.newest != task or frame < self.limit)
        self.check(task)

    def answer(self, *message: Any) -> None:
        """Send an answer."""
        self.pipe.send(message)

    def tokens(self, law: Any) -> tkf.Tokens:
        """The tokens of the law."""
        if self.cached is None or self.cached[0] != law:
            self.cached = (law, law.build())
        return self.cached[1]


def work(pipe: Connection) -> None:
    """What the process does: one task after the other, for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the lab's to handle
    _end_with_parent()
    keep_compiled()
    inbox = Inbox(pipe)
    _warm_up()
    inbox.answer("ready", -1)
    while True:
        kind, task, subject = inbox.next()
        inbox.answer("started", task)
        _perform(inbox, kind, task, subject)
        inbox.answer("ready", task)


def _end_with_parent() -> None:
    """Ask Linux to end this process with the lab: while suspended, it would not notice."""
    with contextlib.suppress(OSError, AttributeError):  # elsewhere there is no such call
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG


def _perform(inbox: Inbox, kind: str, task: int, subject: Any) -> None:
    """One task, to its end or until there is a newer one."""
    try:
        sentence = {"run": _run, "open": _open, "prefetch": _prefetch}[kind](inbox, task, subject)
        inbox.answer("end", task, sentence)
    except Superseded:
        pass  # nobody waits for this one any more
    except (tkf.InputError, tkf.RunError) as error:
        inbox.answer("error", task, str(error))
    except MemoryError:
        inbox.answer("error", task, "not enough memory for so many tokens")
    except Exception as error:  # whatever it is, the page must show it
        inbox.answer("error", task, f"{type(error).__name__}: {error}")


def _warm_up() -> None:
    """All that is slow the first time only."""
    arguments = Setup(n=8).config().arguments()
    tokens = arguments["tokens"]
    Observer(tokens, *head_of(arguments["model"])).frame(0.0, tokens)


def keep_compiled() -> None:
    """Keep compiled programs on disk, so that the next lab and a new worker need not compile them again."""
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(home / "tokenfield" / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _run(inbox: Inbox, task: int, settings: dict[str, Any]) -> str:
    """Simulate, and make a frame at every saved time."""
    run = config.parse(settings)
    arguments = run.arguments(inbox.tokens(run.initial))
    tokens, ts = arguments["tokens"], np.asarray(arguments["ts"])
    model = arguments["model"]
    observer = Observer(tokens, *head_of(model), free=model.space.free)
    notes = (*observer.stage.notes, *_caveats(run.solver, tokens.n, tokens.d))
    inbox.answer("begin", task, replace(observer.stage, notes=notes), ts)

    def show(frame: int, now: tkf.Tokens) -> None:
        inbox.wait(task, frame)
        inbox.answer("frame", task, observer.frame(ts[frame], now, is_measured(frame, len(ts))))

    show(0, tokens)  # at once: sums are planned and models compiled only then
    arguments = {name: value for name, value in arguments.items() if name not in RECORDING_ARGUMENTS}
    found = tkf.moments(**arguments, progress=lambda *_: inbox.check(task))
    moment = next(found)  # of the tokens just shown
    for frame, moment in enumerate(found, start=1):
        show(frame, moment.tokens)
    return _conclusion(moment)


def _conclusion(last: tkf.Moment) -> str:
    """How a run that reached its last time ended, in the words of `Trajectory.status`."""
    symmetry = last.stats.get("symmetry", "kept")
    return f"reached t = {last.t:g} as asked" + ("" if symmetry.startswith("kept") else f"; {symmetry}")


def _prefetch(inbox: Inbox, task: int, settings: dict[str, Any] | None) -> str:
    """Draw the tokens of a run that may be asked for with another β."""
    if settings is not None:
        inbox.tokens(config.parse(settings).initial)
    return ""


def _caveats(solver: Any, n: int, d: int) -> list[str]:
    """What a person should know who wonders about the accuracy or the time of a run."""
    found = []
    if getattr(solver, "rtol", 0.0) > MAX_UNMENTIONED_RTOL:
        found.append(f"a step may be off by {solver.rtol:g}")
    seconds = EVALUATIONS_PER_STEP * SECONDS_PER_PAIR * n**2
    if d > 3 and seconds > MAX_UNMENTIONED_SECONDS:
        found.append(f"above d = 3 all {n:,}² pairs are summed: at least {seconds:.0f} seconds a step")
    return found


def _open(inbox: Inbox, task: int, where: str) -> str:
    """Read a stored run, and make a frame of every snapshot."""
    path = Path(where)
    manifest = read_manifest(path)
    contents = contents_of(manifest)
    check_data(path, contents)
    count = manifest["written"].get("x", 0)
    if count == 0:
        raise tkf.InputError(f"`path` must be a run with snapshots to be shown, but {path} has none")
    head, free = head_of_stored(manifest["inputs"]), "radii" in manifest["written"]
    ts = read_rows(path, contents, "snapshot", 0, count)
    masses = read_rows(path, contents, "weights", 0, manifest["inputs"]["tokens"]["n"])
    observer: Observer | None = None
    for k in range(count):
        if observer is not None:
            inbox.wait(task, k)
        tokens = tkf.Tokens(read_rows(path, contents, "x", k, k + 1)[0], masses)
        if observer is None:
            observer = Observer(tokens, *head, free=free)
            inbox.answer("begin", task, observer.stage, ts)
        inbox.answer("frame", task, observer.frame(ts[k], tokens, is_measured(k, count)))
    return manifest.get("status", "the run was interrupted; this is what it had finished")
