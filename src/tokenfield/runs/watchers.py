"""Watchers of a run: what is looked at between bursts of steps, beside the steps themselves."""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tokenfield.laws.symmetry import LOST, Symmetry
from tokenfield.laws.tokens import Tokens
from tokenfield.solvers.ode import Solver

#: A run has stalled if so many attempted steps cover less than this part of the way to the next saved time.
STALL_STEPS, STALL_FRACTION = 1000, 1e-8
#: What is wrong when steps become too short.
ROUGH = "the velocity is not finite or not smooth there"
#: Seconds after which a run in a terminal or notebook shows a bar although nobody asked for it.
BAR_AFTER_SECONDS = 2.0
#: Seconds of a first step after which somebody who looks is told that it is slow.
SLOW_STEP_SECONDS = 2.0

#: Told between bursts the share of saved times reached and the time; what it raises stops the run.
Progress = Callable[[float, float], None]


class StallWatch:
    """Whether the last thousand attempts got anywhere; a merge starts the count anew."""

    def __init__(self, t: float):
        self.stalled = False
        #: attempts, time and restarts when the pace was last looked at
        self.mark = (0, t, 0)

    def look(self, attempts: int, t: float, restarts: int, target: float) -> None:
        """Look at the pace.

        Args:
            attempts: steps attempted so far.
            t: time reached.
            restarts: how often the state was replaced, by merging.
            target: the next saved time.
        """
        before, since, then = self.mark
        if restarts != then or attempts - before >= STALL_STEPS:
            slow = t - since < STALL_FRACTION * (target - since)
            self.stalled = slow and restarts == then
            self.mark = (attempts, t, restarts)


class SymmetryWatch:
    """Notes the first saved time at which a symmetry of the initial tokens is lost to rounding."""

    def __init__(self, symmetries: Sequence[Symmetry], merge_angle: float | None):
        self.symmetries, self.broken = symmetries, ""
        self.allowed = max(LOST, 4 * (merge_angle or 0.0))

    def look(self, t: float, tokens: Tokens) -> None:
        """Look at the tokens of a saved time."""
        if not self.symmetries or self.broken:
            return
        x = np.asarray(tokens.x)
        lost = next((each for each in self.symmetries if each.defect(x) > self.allowed), None)
        if lost is not None:
            self.broken = (
                f"by t = {t:g} numerical errors had broken a symmetry of the initial tokens ({lost.name})"
            )

    def report(self) -> dict[str, str]:
        """For the statistics of the run."""
        return {"symmetry": self.broken or f"kept: {self.symmetries[0].name}"} if self.symmetries else {}


class Clock:
    """Seconds of a run, over resumed parts, and whether its time limit is used up.

    Compiling the steps does not count against the limit, every step does.
    """

    def __init__(self, limit: float | None):
        self.limit, self.late = limit, False
        self.before, self.began = 0.0, time.monotonic()
        self._limit_from = self.began

    def begin(self) -> None:
        """The run goes on now."""
        self.began = time.monotonic()

    def begin_limit(self) -> None:
        """The limit counts from now on."""
        self._limit_from = time.monotonic()

    def look(self) -> None:
        """After a burst."""
        self.late = self.limit is not None and time.monotonic() - self._limit_from > self.limit

    @property
    def seconds(self) -> float:
        """So far."""
        return self.before + time.monotonic() - self.began


def out_of_time(limit: float | None) -> str:
    """What a run reports that was stopped by the clock."""
    return f"the time limit of {limit:g} s is used up"


def slow_step(n: int, sums: str) -> str:
    """What is said when the first step has not been made in two seconds."""
    return (
        f"the first step of {n} tokens with {sums} sums takes over {SLOW_STEP_SECONDS:g} s;"
        " progress and the time limit are looked at after every step"
    )


def trouble(dt: float, failed: bool, stalled: bool, solver: Solver, missed: str = "") -> str:
    """Why a run cannot go on, in words; nothing if it can.

    Args:
        dt: length of the next step.
        failed: whether the last step could not be made.
        stalled: whether steps lead nowhere.
        solver: whose steps they are.
        missed: what inexact sums have to say.
    """
    began = np.isfinite(dt)
    if stalled:
        return f"steps of {dt:.1e} will not get far; {ROUGH}"
    if began and not failed:
        return ""
    if missed:
        return missed
    if not began:
        return "the velocity is not finite at the initial tokens"
    if solver.controller is None:
        return "the next step gave tokens that are not finite"
    return f"no step, however short, met the tolerance; {ROUGH}"


class ProgressBar:
    """A bar with the time reached, steps and rate.

    `progress`: True always, False never, None in a terminal or notebook once a run lasts over two seconds; a
    function is called instead.
    """

    def __init__(self, progress: bool | Progress | None):
        self.tell = progress if callable(progress) else None
        self.after = {True: 0.0, None: BAR_AFTER_SECONDS}.get(progress if not self.tell else False, np.inf)
        if progress is None and not _someone_looks():
            self.after = np.inf
        self._bar: Any = None
        self._task: Any = None
        self._timer: threading.Timer | None = None

    def expect(self, sentence: str) -> None:
        """Show the bar with this sentence unless the first step is made in time, since it looks like a halt.

        A compiled step cannot be asked how far it is; a timer beside it speaks.
        """
        if self.after < np.inf:
            self._timer = threading.Timer(SLOW_STEP_SECONDS, self._say, [sentence])
            self._timer.daemon = True
            self._timer.start()

    def _say(self, sentence: str) -> None:
        self._opened().console.print(sentence)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()  # if it is speaking, it may finish
            self._timer = None

    def __call__(self, share: float, t: float, steps: int, seconds: float) -> None:
        """Show or tell."""
        self._stop_timer()
        if self.tell is not None:
            self.tell(share, t)
        if seconds < self.after:
            return
        rate = steps / max(seconds, 1e-9)
        self._opened().update(self._task, completed=share, t=t, steps=steps, rate=rate)

    def _opened(self) -> Any:
        """The bar, put up when it is first wanted."""
        if self._bar is not None:
            return self._bar
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # only when it is seen

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("t = {task.fields[t]:.5g}, {task.fields[steps]} steps, {task.fields[rate]:.3g}/s"),
            TimeRemainingColumn(),
        )
        self._bar.start()
        self._task = self._bar.add_task("simulating", total=1.0, t=0.0, steps=0, rate=0.0)
        return self._bar

    def close(self) -> None:
        """Take the bar down."""
        self._stop_timer()
        if self._bar is not None:
            self._bar.stop()


def _someone_looks() -> bool:
    """Whether output goes to a terminal or a notebook."""
    terminal = hasattr(sys.stdout, "isatty") and sys.stdout.isatty()
    return terminal or "ipykernel" in sys.modules
