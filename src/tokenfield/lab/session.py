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

from tokenfield.config.reading import Config
from tokenfield.errors import require
from tokenfield.lab.frame import CURVES, Frame, Stage
from tokenfield.lab.phase import PhaseLabel, phase
from tokenfield.lab.worker import Worker

#: Frames the worker may be ahead of the one shown.
MAX_FRAMES_AHEAD = 60
#: Seconds over which frames are shown that were finished at once, by one long step.
BURST_PLAYBACK_SECONDS = 1.0
#: Seconds a worker has to turn to a new task; then the standby worker takes over as soon as it is free.
PICKUP_SECONDS = 0.05
#: Seconds for which a busy worker is suspended at most, so that the other has the processors to itself.
MAX_SUSPENDED_SECONDS = 1.0
#: Seconds until a worker that still computes what nobody wants, or nobody watches, is ended.
MAX_UNWANTED_SECONDS = 3.0
#: Seconds a new worker has to start.
START_TIMEOUT = 60.0


class Message(NamedTuple):
    """A sentence for the page."""

    kind: Literal["success", "error"]
    text: str


class Session:
    """The run that is watched.

    `stage`, `frames`, `ts`: what stays, what was computed, and when frames are to come; `at`: index of the
    frame shown; `playing`, `speed` (frames a second); `status`: a sentence; `messages`: to be shown once.
    """

    def __init__(self, make_worker: Callable[[], Worker] = Worker):
        self._make_worker = make_worker
        self.worker, self.standby = make_worker(), make_worker()
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
        self._picked_up, self._crashes = False, 0
        self._playhead, self._ticked_at = 0.0, time.monotonic()
        self._sent_at = self._worker_started_at = self._prefetch_sent_at = time.monotonic()
        self._limit = 0
        #: since when nobody watches; whether the worker waits to be allowed more; whether it was ended
        self._unwatched_since: float | None = None
        self._worker_waits, self._stopped_unwatched = False, False
        #: the standby worker that was sent a prefetch (at `_prefetch_sent_at`), and during which run
        self._prefetched: tuple[Worker, int] | None = None
        self._curves: dict[str, list[float]] = {}

    # -- what to watch

    def start(self, config: Config, play: bool = True) -> None:
        """Begin a live run; the one before it is given up."""
        self.config, self.path, self._crashes = config, None, 0
        self._begin("run", config.model_dump(exclude_none=True), play)

    def open(self, path: Path, play: bool = True) -> None:
        """Play a stored run."""
        self.config, self.path, self._crashes = None, path, 0
        self._begin("open", str(path), play)

    def restart(self) -> None:
        """Play the same frames from the first."""
        self._playhead = 0.0
        self.playing = True

    def cancel(self) -> None:
        """Give up computing; the frames made so far can still be played."""
        if not self.finished and self._task is not None:
            self._replace_worker()
            self._end("cancelled: the frames made so far are kept")

    def _begin(self, kind: str, what: Any, play: bool) -> None:
        self._id += 1
        self._stopped_unwatched = False
        self._revive_standby()
        self.stage, self.frames, self.ts = None, [], np.zeros(0)
        self._curves = {name: [] for name in (*CURVES, "t", "speed")}
        self._playhead, self.playing, self.finished = 0.0, play, False
        self.status = "preparing the tokens"
        self._task = (kind, self._id, what)
        self._send()

    def _send(self) -> None:
        assert self._task is not None
        would_turn_at_once = self.worker.idle or self._worker_waits or not self.worker.ready
        if not would_turn_at_once and self.standby.idle:
            self._swap_workers()
        self._limit, self._picked_up, self._worker_waits = self._allowed(), False, False
        self.worker.send(*self._task, self._limit)
        self._sent_at = time.monotonic()

    # -- play

    @property
    def at(self) -> int:
        """Index of the frame shown."""
        return max(0, min(int(self._playhead), len(self.frames) - 1))

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
            self._playhead = 0.0
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
        self._playhead = float(max(0, min(int(k), len(self.frames) - 1)))

    def set_speed(self, frames: float) -> None:
        """Frames a second."""
        require(0 < frames <= 100, "speed", "lie between 0 and 100 frames a second", frames)
        self.speed = float(frames)

    # -- what is seen

    def curves(self) -> dict[str, np.ndarray]:
        """The curves up to the frame shown, with their times `t` and the mean `speed`."""
        count = 0 if self.frame is None else bisect_right(self._curves["t"], self.frame.t)
        return {name: np.array(values[:count]) for name, values in self._curves.items()}

    def phase(self) -> PhaseLabel:
        """The phase at the frame shown."""
        if self.stage is None or not self.frames:
            return PhaseLabel("starting", "The tokens are being prepared.")
        curves = self.curves()
        return phase(self.stage, curves["t"], curves, curves["speed"])

    @property
    def waiting(self) -> bool:
        """Whether the next frame to be shown is still being computed."""
        return not self.finished and self._playhead >= len(self.frames) - 1

    # -- the clock

    def tick(self, now: float | None = None) -> None:
        """Collect frames, move on, look after the worker."""
        now = time.monotonic() if now is None else now
        for kind, task, *content in self.worker.answers():
            if task == self._id:
                self._handle(kind, *content)
        self.standby.answers()
        self._supervise(now)
        self._stop_unwatched(now)
        if self.playing and self.watched and self.frames:
            self._playhead += self._pace() * min(max(now - self._ticked_at, 0.0), 0.5)
            self._playhead = min(self._playhead, float(len(self.frames) - 1))
            if self.finished and self.at >= len(self.frames) - 1:
                self.playing = False
        self._ticked_at = now
        allowed = self._allowed()
        if not self.finished and allowed != self._limit:
            self._limit, self._worker_waits = allowed, self._worker_waits and allowed <= self._limit
            self.worker.send("limit", self._id, allowed)

    def _pace(self) -> float:
        """Frames a second; where many come at once and then none for a while, spread over that time."""
        ready = len(self.frames) - 1 - self._playhead
        return self.speed if self.finished else min(self.speed, max(ready, 2.0) / BURST_PLAYBACK_SECONDS)

    def close(self) -> None:
        """End the workers."""
        for worker in (self.worker, self.standby):
            worker.kill()

    def _allowed(self) -> int:
        """Frames the worker may have made: nobody watches, nothing is computed."""
        return self.at + 1 + MAX_FRAMES_AHEAD if self.watched else len(self.frames)

    def _handle(self, kind: str, *content: Any) -> None:
        match kind:
            case "started":
                self._picked_up = True
            case "waiting":
                self._worker_waits = content[0] >= self._limit
            case "begin":
                self.stage, self.ts = content
                self.status = "computing"
            case "frame":
                self._add(*content)
            case "end":
                self._end(*content)
            case "error":
                self._fail(*content)

    def _add(self, frame: Frame) -> None:
        self.frames.append(frame)
        self._resume_standby()
        if not frame.curves:
            return
        for name in CURVES:
            self._curves[name].append(frame.curves[name])
        self._curves["t"].append(frame.t)
        assert self.stage is not None
        self._curves["speed"].append(float(self.stage.weights @ frame.speed))

    def _end(self, sentence: str) -> None:
        self.status, self.finished, self._stopped_unwatched = sentence, True, False

    def _supervise(self, now: float) -> None:
        if now - self._prefetch_sent_at > MAX_SUSPENDED_SECONDS:
            self._resume_standby()
        busy = self.standby.ready and not self.standby.idle
        if busy and now - self._prefetch_sent_at > MAX_UNWANTED_SECONDS:
            self.standby.kill()
            self.standby = self._make_worker()
        if self.frames and self.standby.idle and self._prefetched != (self.standby, self._id):
            self._prefetch()
        if self._task is None or self.finished:
            if not self.worker.alive:
                self._replace_worker()
            return
        if not self.worker.alive:
            self._crashes += 1
            self._replace_worker()
            if self._crashes < 2:
                self.messages.append(
                    Message("error", "the worker process died; a new one does the run again")
                )
                self._rerun()
            else:
                self._fail("the worker process died again: fewer tokens may help")
        elif self._ignored(now) and self.standby.idle:
            self._send()
        elif not self.worker.ready and now - self._worker_started_at > START_TIMEOUT:
            self._replace_worker()
            self._fail("the worker process does not start")

    def _ignored(self, now: float) -> bool:
        """Whether the worker has had time to turn to its task and has not."""
        return not self._picked_up and self.worker.ready and now - self._sent_at > PICKUP_SECONDS

    def _stop_unwatched(self, now: float) -> None:
        """End a worker that is in the middle of a long step although nobody watches; begin again for those
        who come back.
        """
        if self.watched:
            self._unwatched_since = None
            if self._stopped_unwatched:
                self._rerun()
            return
        self._unwatched_since = now if self._unwatched_since is None else self._unwatched_since
        over = self.finished or self._stopped_unwatched
        busy = self._picked_up and not self._worker_waits
        if busy and not over and now - self._unwatched_since > MAX_UNWANTED_SECONDS:
            self._replace_worker()
            self._stopped_unwatched = True

    def _fail(self, sentence: str) -> None:
        self._end(sentence)
        self.messages.append(Message("error", sentence))

    def _rerun(self) -> None:
        """Do the same run once more; the frames come again from the first."""
        head, playing = self._playhead, self.playing
        assert self._task is not None
        kind, _, what = self._task
        self._begin(kind, what, playing)
        self._playhead, self.status = head, "preparing again"

    def _swap_workers(self) -> None:
        """The standby worker takes over from one that is busy with a long step or a compilation, which ends
        its task as soon as it can and is then the standby worker.
        """
        self.worker, self.standby = self.standby, self.worker
        self._prefetch()
        self.standby.suspend()

    def _prefetch(self) -> None:
        """Let the standby worker end its task and draw the tokens of this run: most changes keep them."""
        kind, _, what = self._task or ("", 0, None)
        settings = what if kind == "run" else None
        self.standby.send("prefetch", -self._id, settings, 0)  # no other task has this number
        self._prefetched, self._prefetch_sent_at = (self.standby, self._id), time.monotonic()

    def _resume_standby(self) -> None:
        if self.standby.suspended:
            self.standby.resume()

    def _replace_worker(self) -> None:
        self.worker.kill()
        self._resume_standby()
        self._revive_standby()
        self.worker, self.standby = self.standby, self._make_worker()
        self._worker_started_at = time.monotonic()

    def _revive_standby(self) -> None:
        if not self.standby.alive:
            self.standby.kill()
            self.standby = self._make_worker()
