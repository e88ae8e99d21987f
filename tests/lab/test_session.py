"""The session: play, scrub, change, and what happens when a worker hangs, dies or is not wanted."""

from pathlib import Path

import numpy as np
import pytest

from tokenfield.errors import InputError
from tokenfield.lab import session as module
from tokenfield.lab.frame import CURVES, Frame, Stage
from tokenfield.lab.session import AHEAD, Session
from tokenfield.lab.setup import Setup

STAGE = Stage(2, 2, np.full(2, 0.5), np.eye(2))
RUN = Setup(n=4).config()


def frame(t):
    return Frame(t, np.eye(2), np.zeros(2), np.zeros(2, int), dict.fromkeys(CURVES, 1.0))


class Puppet:
    """A worker whose strings the test holds."""

    made: list = []  # noqa: RUF012

    def __init__(self):
        self.ready, self.alive, self.sent, self.said = True, True, [], []
        Puppet.made.append(self)

    def send(self, *message):
        self.sent.append(message)

    def answers(self):
        said, self.said = self.said, []
        return said

    def kill(self):
        self.alive = False

    @property
    def task(self):
        return [m for m in self.sent if m[0] != "ahead"][-1][1]

    @property
    def ahead(self):
        return self.sent[-1][-1]

    def begin(self, total=300):
        self.said += [("taken", self.task), ("begin", self.task, STAGE, np.arange(total) / 10)]

    def make(self, first, last):
        self.said += [("frame", self.task, frame(k / 10)) for k in range(first, last)]


@pytest.fixture
def lab():
    Puppet.made = []
    session = Session(Puppet)
    session.start(RUN)
    session.worker.begin()
    return session


def test_it_plays_at_its_speed_and_waits_for_frames(lab):
    lab.worker.make(0, 100)
    lab.set_speed(10)
    lab.tick(0.0)
    base = lab.at
    for k in range(1, 21):
        lab.tick(k / 10)
    assert lab.at - base == pytest.approx(20, abs=1)
    for k in range(21, 300):
        lab.tick(k / 10)
    assert lab.at == 99 and lab.playing and lab.waiting
    lab.worker.make(100, 300)
    lab.worker.said.append(("end", lab.worker.task, "reached t = 30 as asked"))
    for k in range(300, 600):
        lab.tick(k / 10)
    assert lab.at == 299 and not lab.playing and lab.finished
    lab.play()
    assert lab.at == 0 and lab.playing


def test_pause_step_scrub_and_restart(lab):
    lab.worker.make(0, 50)
    lab.tick()
    lab.pause()
    lab.scrub(20)
    assert lab.at == 20 and lab.frame.t == 2.0
    lab.step()
    assert lab.at == 21
    lab.scrub(500)
    assert lab.at == 49
    lab.scrub(-5)
    assert lab.at == 0
    lab.scrub(30)
    assert len(lab.curves()["t"]) == 31 and lab.curves()["t"][-1] == 3.0
    lab.restart()
    assert lab.at == 0 and lab.playing


def test_the_worker_is_held_near_what_is_shown_and_rests_when_nobody_watches(lab):
    lab.worker.make(0, 40)
    lab.tick()
    lab.scrub(30)
    lab.tick()
    assert lab.worker.ahead == 31 + AHEAD
    lab.watched = False
    lab.tick()
    assert lab.worker.ahead == 40  # not one frame more
    at = lab.at
    lab.playing = True
    lab.tick(1e6)
    assert lab.at == at
    lab.watched = True
    lab.tick()
    assert lab.worker.ahead == 31 + AHEAD


def test_frames_of_a_run_that_was_given_up_are_not_shown(lab):
    old = lab.worker.task
    lab.start(RUN)
    lab.worker.said.append(("frame", old, frame(9.0)))
    lab.tick()
    assert lab.frames == [] and lab.worker.task == old + 1


def test_a_busy_worker_is_replaced_after_a_moment(lab, monkeypatch):
    lab.worker.make(0, 5)
    lab.tick()
    busy = lab.worker
    lab.start(RUN)
    lab.tick()
    assert lab.worker is busy
    monkeypatch.setattr(module, "GRACE", -1.0)
    lab.tick()
    assert lab.worker is not busy and not busy.alive and len(Puppet.made) == 3
    assert lab.worker.sent[-1][:2] == ("run", lab._id)


def test_a_worker_that_prepares_many_tokens_is_left_alone(lab, monkeypatch):
    lab.start(RUN)
    lab.worker.said.append(("taken", lab.worker.task))
    monkeypatch.setattr(module, "GRACE", -1.0)
    working = lab.worker
    lab.tick()
    lab.tick()
    assert lab.worker is working


def test_a_worker_that_dies_is_replaced_once_with_a_message(lab):
    lab.worker.make(0, 5)
    lab.tick()
    lab.worker.alive = False
    lab.tick()
    assert "died; a new one does the run again" in lab.messages.popleft().text
    assert lab.worker.alive and lab.worker.sent[-1][0] == "run" and not lab.finished
    lab.worker.begin()
    lab.worker.make(0, 9)
    lab.tick()
    assert len(lab.frames) == 9
    lab.worker.alive = False
    lab.tick()
    assert lab.finished and "died again" in lab.messages.popleft().text
    lab.start(RUN)
    lab.worker.begin()
    lab.worker.make(0, 2)
    lab.tick()
    assert len(lab.frames) == 2  # the lab goes on


def test_trouble_is_a_message_and_keeps_the_frames(lab):
    lab.worker.make(0, 5)
    lab.worker.said.append(("trouble", lab.worker.task, "stopped at t = 1"))
    lab.tick()
    assert lab.messages.popleft().text == "stopped at t = 1"
    assert lab.finished and len(lab.frames) == 5


def test_cancel_keeps_the_frames(lab):
    lab.worker.make(0, 5)
    lab.tick()
    busy = lab.worker
    lab.cancel()
    assert not busy.alive and lab.finished and len(lab.frames) == 5 and "cancelled" in lab.status
    lab.open(Path("somewhere"))
    assert lab.worker.sent[-1][:3] == ("open", lab._id, "somewhere")


def test_a_bad_speed_is_a_sentence(lab):
    for bad in (0, -1, 1e6, np.nan):
        with pytest.raises(InputError, match="`speed` must lie between"):
            lab.set_speed(bad)


def test_a_worker_that_never_starts_is_given_up(monkeypatch):
    session = Session(Puppet)
    session.worker.ready = False
    session.start(RUN)
    monkeypatch.setattr(module, "START", -1.0)
    session.tick()
    assert session.finished and "does not start" in session.messages.popleft().text
