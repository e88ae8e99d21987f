"""The session: one run that all tabs watch, its frames so far, and which of them is shown.

It knows nothing of the page. `tick` is called some twenty times a second: it collects what the worker has
made, moves the playhead and sees that a worker is there and does not hang.

A compiled step cannot be interrupted, and with many tokens it takes seconds. So there are two workers: while
one is still busy with what nobody wants any more, the other does what is wanted now.
"""

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tokenfield.config import Config
from tokenfield.errors import require
from tokenfield.lab.frame import CURVES, Frame, Stage
from tokenfield.lab.phase import Phase, phase
from tokenfield.lab.worker import Worker

#: Frames the worker may be ahead of the one shown.
AHEAD = 60
#: Seconds over which frames are shown that were finished at once, by one long step.
SPREAD = 1.0
#: Seconds a worker has to turn to a new task; then the spare one takes over as soon as it is free.
GRACE = 0.05
#: Seconds for which a busy worker is held at most, so that the other has the processors to itself.
HELD = 1.0
#: Seconds until a worker that still computes what nobody wants, or nobody watches, is ended.
USELESS = 3.0
#: Seconds a new worker has to start.
START = 60.0


class Message(NamedTuple):
    """A sentence for the page."""

    kind: Literal["good", "trouble"]
    text: str


class Session:
    """The run that is watched.

    `stage`, `frames`, `ts`: what stays, what was computed, and when frames are to come; `at`: index of the
    frame shown; `playing`, `speed` (frames a second); `status`: a sentence; `messages`: to be shown once.
    """

    def __init__(self, make: Callable[[], Worker] = Worker):
        self._make = make
        self.worker, self.spare = make(), make()
        self.stage: Stage | None = None
        self.frames: list[Frame] = []
        self.ts = np.zeros(0)
        self.playing, self.speed, self.watched = False, 12.0, True
        self.status, self.finished = "", False
        self.messages: deque[Message] = deque()
        #: what is being watched: the configuration of a live run, or the path of a stored one
        self.config: Config | None = None
        self.path: Path | None = None
        self._id: int = 0
        self._task: tuple[str, int, Any] | None = None
        self._taken, self._deaths = False, 0
        self._head, self._ticked = 0.0, time.monotonic()
        self._asked = self._born = self._told = time.monotonic()
        self._ahead = 0
        #: since when nobody watches; whether the worker waits to be allowed more; whether it was ended
        self._left: float | None = None
        self._resting, self._ended = False, False
        #: the spare that was told to rest (at the time `_told`), and during which run
        self._rests: tuple[Worker, int] | None = None
        self._columns: dict[str, list[float]] = {}

    # -- what to watch

    def start(self, config: Config, play: bool = True) -> None:
        """Begin a live run; the one before it is given up."""
        self.config, self.path, self._deaths = config, None, 0
        self._begin("run", config.model_dump(exclude_none=True), play)

    def open(self, path: Path, play: bool = True) -> None:
        """Play a stored run."""
        self.config, self.path, self._deaths = None, path, 0
        self._begin("open", str(path), play)

    def restart(self) -> None:
        """Play the same frames from the first."""
        self._head = 0.0
        self.playing = True

    def cancel(self) -> None:
        """Give up computing; the frames made so far can still be played."""
        if not self.finished and self._task is not None:
            self._replace_worker()
            self._end("cancelled: the frames made so far are kept")

    def _begin(self, kind: str, what: Any, play: bool) -> None:
        self._id += 1
        self._ended = False
        self._revive_spare()
        self.stage, self.frames, self.ts = None, [], np.zeros(0)
        self._columns = {name: [] for name in (*CURVES, "t", "speed")}
        self._head, self.playing, self.finished = 0.0, play, False
        self.status = "preparing the tokens"
        self._task = (kind, self._id, what)
        self._send()

    def _send(self) -> None:
        assert self._task is not None
        would_turn_at_once = self.worker.idle or self._resting or not self.worker.ready
        if not would_turn_at_once and self.spare.idle:
            self._swap_workers()
        self._ahead, self._taken, self._resting = self._allowed(), False, False
        self.worker.send(*self._task, self._ahead)
        self._asked = time.monotonic()

    # -- play

    @property
    def at(self) -> int:
        """Index of the frame shown."""
        return max(0, min(int(self._head), len(self.frames) - 1))

    @property
    def frame(self) -> Frame | None:
        """The frame shown; None before the first."""
        return self.frames[self.at] if self.frames else None

    @property
    def total(self) -> int:
        """How many frames the whole run has."""
        return len(self.ts)

    def play(self) -> None:
        """Go on, from the first frame if the last is shown."""
        if self.total and self.at >= self.total - 1:
            self._head = 0.0
        self.playing = True

    def pause(self) -> None:
        """Stay at the frame shown."""
        self.playing = False

    def step(self, frames: int = 1) -> None:
        """Pause one frame further."""
        self.playing = False
        self.scrub(self.at + frames)

    def scrub(self, k: int) -> None:
        """Pause at the k-th frame, or the last computed one before it."""
        self.playing = False
        self._head = float(max(0, min(int(k), len(self.frames) - 1)))

    def set_speed(self, frames: float) -> None:
        """Frames a second."""
        require(0 < frames <= 100, "speed", "lie between 0 and 100 frames a second", frames)
        self.speed = float(frames)

    # -- what is seen

    def curves(self) -> dict[str, np.ndarray]:
        """The curves up to the frame shown, with their times `t` and the mean `speed`."""
        count = 0 if self.frame is None else bisect_right(self._columns["t"], self.frame.t)
        return {name: np.array(values[:count]) for name, values in self._columns.items()}

    def phase(self) -> Phase:
        """The phase at the frame shown."""
        if self.stage is None or not self.frames:
            return Phase("starting", "The tokens are being prepared.")
        curves = self.curves()
        return phase(self.stage, curves["t"], curves, curves["speed"])

    @property
    def waiting(self) -> bool:
        """Whether the next frame to be shown is still being computed."""
        return not self.finished and self._head >= len(self.frames) - 1

    # -- the clock

    def tick(self, now: float | None = None) -> None:
        """Collect frames, move on, look after the worker."""
        now = time.monotonic() if now is None else now
        for kind, task, *rest in self.worker.answers():
            if task == self._id:
                self._take(kind, *rest)
        self.spare.answers()
        self._look_after(now)
        self._mind_the_watchers(now)
        if self.playing and self.watched and self.frames:
            self._head += self._pace() * min(max(now - self._ticked, 0.0), 0.5)
            self._head = min(self._head, float(len(self.frames) - 1))
            if self.finished and self.at >= len(self.frames) - 1:
                self.playing = False
        self._ticked = now
        allowed = self._allowed()
        if not self.finished and allowed != self._ahead:
            self._ahead, self._resting = allowed, self._resting and allowed <= self._ahead
            self.worker.send("ahead", self._id, allowed)

    def _pace(self) -> float:
        """Frames a second; where many come at once and then none for a while, spread over that time."""
        ready = len(self.frames) - 1 - self._head
        return self.speed if self.finished else min(self.speed, max(ready, 2.0) / SPREAD)

    def close(self) -> None:
        """End the workers."""
        for worker in (self.worker, self.spare):
            worker.kill()

    def _allowed(self) -> int:
        """Frames the worker may have made: nobody watches, nothing is computed."""
        return self.at + 1 + AHEAD if self.watched else len(self.frames)

    def _take(self, kind: str, *rest: Any) -> None:
        match kind:
            case "taken":
                self._taken = True
            case "waiting":
                self._resting = rest[0] >= self._ahead
            case "begin":
                self.stage, self.ts = rest
                self.status = "computing"
            case "frame":
                self._add(*rest)
            case "end":
                self._end(*rest)
            case "trouble":
                self._give_up(*rest)

    def _add(self, frame: Frame) -> None:
        self.frames.append(frame)
        self._let_go()
        if not frame.curves:
            return
        for name in CURVES:
            self._columns[name].append(frame.curves[name])
        self._columns["t"].append(frame.t)
        assert self.stage is not None
        self._columns["speed"].append(float(self.stage.weights @ frame.speed))

    def _end(self, sentence: str) -> None:
        self.status, self.finished, self._ended = sentence, True, False

    def _look_after(self, now: float) -> None:
        if now - self._told > HELD:
            self._let_go()
        if self.spare.ready and not self.spare.idle and now - self._told > USELESS:
            self.spare.kill()
            self.spare = self._make()
        if self.frames and self.spare.idle and self._rests != (self.spare, self._id):
            self._rest()
        if self._task is None or self.finished:
            if not self.worker.alive:
                self._replace_worker()
            return
        if not self.worker.alive:
            self._deaths += 1
            self._replace_worker()
            if self._deaths < 2:
                self.messages.append(
                    Message("trouble", "the worker process died; a new one does the run again")
                )
                self._again()
            else:
                self._give_up("the worker process died again: fewer tokens may help")
        elif not self._taken and self.worker.ready and self.spare.idle and now - self._asked > GRACE:
            self._send()
        elif not self.worker.ready and now - self._born > START:
            self._replace_worker()
            self._give_up("the worker process does not start")

    def _mind_the_watchers(self, now: float) -> None:
        """End a worker that is in the middle of a long step although nobody watches; begin again for those
        who come back.
        """
        if self.watched:
            self._left = None
            if self._ended:
                self._again()
            return
        self._left = now if self._left is None else self._left
        busy = self._taken and not self._resting and not self.finished and not self._ended
        if busy and now - self._left > USELESS:
            self._replace_worker()
            self._ended = True

    def _give_up(self, sentence: str) -> None:
        self._end(sentence)
        self.messages.append(Message("trouble", sentence))

    def _again(self) -> None:
        """Do the same run once more; the frames come again from the first."""
        head, playing = self._head, self.playing
        assert self._task is not None
        kind, _, what = self._task
        self._begin(kind, what, playing)
        self._head, self.status = head, "preparing again"

    def _swap_workers(self) -> None:
        """The spare takes over from one that is busy with a long step or a compilation; that one rests as
        soon as it can, and is then the spare.
        """
        self.worker, self.spare = self.spare, self.worker
        self._rest()
        self.spare.hold(True)

    def _rest(self) -> None:
        """Let the spare rest, with the tokens of this run at hand: most changes keep them."""
        kind, _, what = self._task or ("", 0, None)
        self.spare.send("rest", -self._id, what if kind == "run" else None, 0)  # no other has this number
        self._rests, self._told = (self.spare, self._id), time.monotonic()

    def _let_go(self) -> None:
        if self.spare.held:
            self.spare.hold(False)

    def _replace_worker(self) -> None:
        self.worker.kill()
        self._let_go()
        self._revive_spare()
        self.worker, self.spare = self.spare, self._make()
        self._born = time.monotonic()

    def _revive_spare(self) -> None:
        if not self.spare.alive:
            self.spare.kill()
            self.spare = self._make()
