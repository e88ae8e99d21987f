"""The session: play, scrub, change, and what happens when a worker hangs, dies or is not wanted."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.lab.fake_worker import FakeWorker, frame
from tokenfield.errors import InputError
from tokenfield.lab import session as module
from tokenfield.lab.session import MAX_FRAMES_AHEAD, MAX_SUSPENDED_SECONDS, MAX_UNWANTED_SECONDS, Session
from tokenfield.lab.setup import Setup

RUN = Setup(n=4).config()


@pytest.fixture
def lab():
    FakeWorker.made = []
    session = Session(FakeWorker)
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
    lab.worker.outbox.append(("end", lab.worker.task, "reached t = 30 as asked"))
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


def test_curves_are_those_of_the_measured_frames_so_far(lab):
    for k in range(9):
        few = frame(k / 10) if k % 3 == 0 else replace(frame(k / 10), curves={})
        lab.worker.outbox.append(("frame", lab.worker.task, few))
    lab.tick()
    for at, ts in ((0, [0.0]), (2, [0.0]), (3, [0.0, 0.3]), (8, [0.0, 0.3, 0.6])):
        lab.scrub(at)
        assert lab.curves()["t"].tolist() == ts and len(lab.curves()["order"]) == len(ts)


def test_the_worker_stays_near_what_is_shown_and_waits_while_nobody_watches(lab):
    lab.worker.make(0, 40)
    lab.tick()
    lab.scrub(30)
    lab.tick()
    assert lab.worker.limit == 31 + MAX_FRAMES_AHEAD
    lab.watched = False
    lab.tick()
    assert lab.worker.limit == 40  # not one frame more
    lab.worker.outbox.append(("waiting", lab.worker.task, 40))
    at, resting = lab.at, lab.worker
    lab.playing = True
    for now in (1e6, 2e6):
        lab.tick(now)
    assert lab.at == at and lab.worker is resting and resting.alive
    lab.watched = True
    lab.tick()
    assert lab.worker.limit == 31 + MAX_FRAMES_AHEAD


def test_a_long_step_that_nobody_watches_is_ended_and_begun_again_for_those_who_come_back(lab):
    lab.worker.make(0, 40)
    lab.worker.outbox.append(("waiting", lab.worker.task, 40))
    lab.tick(1.0)
    lab.scrub(30)
    lab.tick(1.1)  # allowed more, so it waits no longer
    lab.watched, busy = False, lab.worker
    lab.tick(2.0)
    lab.tick(2.5 + MAX_UNWANTED_SECONDS)
    assert not busy.alive and {kind for kind, *_ in lab.worker.sent} <= {"prefetch"} and len(lab.frames) == 40
    lab.tick(1e6)
    assert lab.worker.alive and {kind for kind, *_ in lab.worker.sent} <= {"prefetch"}
    lab.watched = True
    lab.tick(2e6)
    assert lab.worker.sent[-1][0] == "run"
    lab.worker.begin()
    lab.worker.make(0, 35)
    lab.tick(2e6)
    assert lab.at == 30 and lab.messages == type(lab.messages)()


def test_frames_of_a_run_that_was_given_up_are_not_shown(lab):
    old = lab.worker.task
    lab.start(RUN)
    lab.worker.outbox.append(("frame", old, frame(9.0)))
    lab.tick()
    assert lab.frames == [] and lab.worker.task == old + 1


def busy_and_asked_for_another(lab):
    lab.worker.make(0, 5)
    lab.tick()
    busy = lab.worker
    lab.start(RUN)
    assert lab.worker is not busy and lab.worker.sent[-1][:2] == ("run", lab._id)
    assert lab.standby is busy and busy.sent[-1][0] == "prefetch" and len(FakeWorker.made) == 2
    assert busy.suspended
    return busy


def test_the_standby_takes_over_from_a_busy_worker_which_is_then_the_standby(lab, monkeypatch):
    busy = busy_and_asked_for_another(lab)
    # what it answers to the run that it was sent before the prefetch is ignored
    busy.outbox.append(("frame", lab._id, frame(9.0)))
    lab.tick()
    assert lab.frames == [] and busy.suspended
    lab.worker.begin()
    lab.worker.make(0, 1)
    lab.tick()
    assert len(lab.frames) == 1 and not busy.suspended
    other = lab.worker
    lab.start(RUN)
    monkeypatch.setattr(module, "PICKUP_SECONDS", -1.0)
    lab.tick()
    assert lab.worker is other  # neither is free
    busy.idle = True
    lab.tick()
    assert lab.worker is busy and lab.standby is other


def test_a_standby_is_told_once_of_each_run_whose_tokens_it_may_need(lab):
    prefetches = lambda: [what for kind, _, what, _ in lab.standby.sent if kind == "prefetch"]  # noqa: E731
    lab.tick()
    assert prefetches() == []  # first the run itself
    lab._prefetch_sent_at -= 2 * MAX_UNWANTED_SECONDS  # the lab has been open for a while
    lab.worker.make(0, 5)
    lab.tick()
    lab.tick()
    assert prefetches() == [lab._task[2]]
    lab.standby.idle, standby = False, lab.standby  # it draws them
    lab.tick()
    assert lab.standby is standby
    lab.standby.alive = False
    lab.worker.idle = True  # done
    lab.start(RUN)
    lab.worker.begin()
    lab.worker.make(0, 5)
    lab.tick()
    assert prefetches() == [lab._task[2]]  # a new standby


def test_a_worker_that_does_not_end_its_task_is_killed(lab):
    busy = busy_and_asked_for_another(lab)
    lab.tick()
    assert busy.alive
    lab.tick(time.monotonic() + MAX_SUSPENDED_SECONDS + 0.1)
    assert not busy.suspended and busy.alive
    lab.tick(time.monotonic() + MAX_UNWANTED_SECONDS + 1)
    assert not busy.alive and lab.standby is not busy and lab.standby.alive


def test_a_worker_that_waits_for_the_playhead_takes_the_next_run_itself(lab):
    waiting = lab.worker
    waiting.outbox.append(("waiting", waiting.task, waiting.limit))
    lab.tick()
    lab.start(RUN)
    assert lab.worker is waiting and waiting.sent[-1][:2] == ("run", lab._id)


def test_a_dead_standby_is_replaced_when_something_is_asked_for(lab):
    lab.standby.alive = False
    lab.start(RUN)
    assert lab.standby.alive and len(FakeWorker.made) == 3


def test_a_worker_that_prepares_many_tokens_is_left_alone(lab, monkeypatch):
    lab.start(RUN)
    lab.worker.outbox.append(("started", lab.worker.task))
    monkeypatch.setattr(module, "PICKUP_SECONDS", -1.0)
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


def test_both_workers_may_die_at_once(lab):
    lab.worker.alive = lab.standby.alive = False
    lab.tick()
    lab.tick()
    assert len(lab.messages) == 1 and not lab.finished and lab.worker.sent[-1][0] == "run"


def test_trouble_is_a_message_and_keeps_the_frames(lab):
    lab.worker.make(0, 5)
    lab.worker.outbox.append(("error", lab.worker.task, "stopped at t = 1"))
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
    session = Session(FakeWorker)
    session.worker.ready = False
    session.start(RUN)
    monkeypatch.setattr(module, "START_TIMEOUT", -1.0)
    session.tick()
    assert session.finished and "does not start" in session.messages.popleft().text
