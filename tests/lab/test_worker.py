"""The worker and jobs as real processes: the frames are those of `simulate`, and trouble is a message."""

import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tokenfield import cli
from tokenfield.config import reading as config
from tokenfield.errors import InputError
from tokenfield.lab import job, worker
from tokenfield.lab.presets import PRESETS
from tokenfield.lab.session import Session
from tokenfield.lab.setup import Setup
from tokenfield.lab.worker import Worker, _conclusion
from tokenfield.laws import initial
from tokenfield.models.attention import SoftmaxAttention, UnnormalisedAttention
from tokenfield.models.norms import PreNorm
from tokenfield.models.weights import AttentionWeights
from tokenfield.runs.simulate import moments, simulate
from tokenfield.runs.trajectory import load
from tokenfield.theory.examples import three_atoms

#: One small run for all tests: the same shapes, one compilation.
SMALL = Setup(n=40, stop=6.0, frames=31)


@pytest.fixture(scope="module")
def session():
    session = Session()
    yield session
    session.close()


def tick(session, until, seconds=120.0):
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, f"after {seconds} s: {session.status}, {len(session.frames)} frames"
        session.tick()
        time.sleep(0.01)


@pytest.mark.slow
def test_frames_are_what_simulate_gives_bit_for_bit(session):
    run = SMALL.config()
    session.start(run)
    tick(session, lambda: session.finished)
    assert session.status == "reached t = 6 as asked" and len(session.frames) == 31
    trajectory = simulate(**run.arguments())
    np.testing.assert_array_equal([f.t for f in session.frames], trajectory.ts)
    np.testing.assert_array_equal([f.x for f in session.frames], trajectory.x.astype(np.float32))


def test_a_run_that_is_looked_at_ends_with_the_same_words_as_one_that_is_recorded():
    """Also when rounding has broken a symmetry of the tokens."""
    model = UnnormalisedAttention(AttentionWeights.identity(2), 0.1)
    for ts, kept in (([0.0, 10.0], True), ([0.0, 10.0, 100.0], False)):
        *_, last = moments(model, three_atoms(0.7), ts)
        status = simulate(model, three_atoms(0.7), ts).status
        assert _conclusion(last) == status and ("broken a symmetry" not in status) == kept


def test_a_change_is_seen_at_once_while_a_run_goes_on(session):
    session.start(replace(SMALL, stop=60.0, frames=1000).config())
    tick(session, lambda: len(session.frames) > 3)
    began = time.monotonic()
    session.start(replace(SMALL, beta=3.0).config())
    tick(session, lambda: len(session.frames) > 0)
    # half a second is asked for; here other tests share the machine
    assert time.monotonic() - began < 5.0
    assert session.total == 31


class Answers:
    """An inbox that lets a run go on to its end and keeps its answers."""

    def __init__(self):
        self.found, self.tokens = [], lambda law: law

    def wait(self, task, frame):
        pass

    def check(self, task):
        pass

    def answer(self, *message):
        self.found.append(message)


def test_tokens_with_lengths_are_shown_by_their_directions(monkeypatch):
    model = PreNorm(SoftmaxAttention(SMALL.config().weights.build(), 5.0))
    tokens, ts = initial.uniform(12, 3, 0), np.linspace(0.0, 2.0, 5)
    arguments = {"model": model, "tokens": tokens, "ts": ts, "snapshots": None, "measure": {}, "settings": {}}
    run = SimpleNamespace(initial=tokens, arguments=lambda tokens: arguments, solver=None)
    monkeypatch.setattr(worker.config, "parse", lambda settings: run)
    answers = Answers()
    assert worker._run(answers, 1, {}) == "reached t = 2 as asked"
    (_, _, stage, _), *frames = answers.found
    assert any("their directions are shown" in note for note in stage.notes)
    np.testing.assert_array_equal(
        [frame.x for _, _, frame in frames], simulate(model, tokens, ts).x.astype(np.float32)
    )


def talk(pipe):
    while True:
        pipe.send(("frame", 0, bytes(10**7)))


def test_a_worker_that_is_suspended_in_the_middle_of_a_message_does_not_block_the_lab():
    worker = Worker(talk)
    try:
        assert worker.pipe.poll(60)
        worker.suspend()
        answers = []
        listener = threading.Thread(target=lambda: answers.append(worker.answers()), daemon=True)
        listener.start()
        listener.join(5)
        assert answers == [[]]
        worker.resume()
        assert worker.pipe.recv()[0] == "frame"
    finally:
        worker.kill()


SUSPENDING = """
import time
from tokenfield.lab.worker import Worker

if __name__ == "__main__":
    worker = Worker()
    while not worker.ready:
        worker.answers()
        time.sleep(0.05)
    worker.suspend()
    print(worker.process.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a suspended process with its parent")
def test_a_suspended_worker_ends_with_a_lab_that_is_killed(tmp_path):
    (tmp_path / "suspending.py").write_text(SUSPENDING)
    lab = subprocess.Popen(
        [sys.executable, str(tmp_path / "suspending.py")], stdout=subprocess.PIPE, text=True
    )
    worker = Path("/proc", lab.stdout.readline().strip())
    assert worker.exists()
    lab.kill()
    lab.wait()
    lab.stdout.close()
    end = time.monotonic() + 30
    while worker.exists() and ") Z " not in (worker / "stat").read_text():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize("change", [{"beta": 7.0}, {"n": 41}, {"key": 3}])
def test_tokens_are_kept_only_for_the_same_law(session, change):
    session.start(SMALL.config())
    tick(session, lambda: len(session.frames) > 0)
    run = replace(SMALL, **change).config()
    for _ in range(2):  # one worker after the other
        session.start(run)
        tick(session, lambda: len(session.frames) > 0)
        np.testing.assert_array_equal(session.frames[0].x, run.initial.build().x.astype(np.float32))


@pytest.mark.slow
def test_bad_settings_are_a_message_and_the_session_goes_on(session):
    bad = config.parse(
        SMALL.config().model_dump(exclude_none=True) | {"model": {"kind": "softmax", "beta": np.nan}}
    )
    session.start(bad)
    tick(session, lambda: session.finished)
    assert "`beta` must be a finite number or infinity" in session.messages.popleft().text
    session.start(SMALL.config())
    tick(session, lambda: len(session.frames) > 3)


def test_a_worker_that_is_killed_is_replaced_and_does_the_run_again(session):
    session.start(replace(SMALL, stop=60.0, frames=1000).config())
    tick(session, lambda: len(session.frames) > 3 and session.standby.ready)
    session.worker.process.kill()
    tick(session, lambda: bool(session.messages))
    assert "the worker process died" in session.messages.popleft().text
    tick(session, lambda: len(session.frames) > 3)


def test_a_stored_run_is_played_and_a_deleted_one_is_a_message(session, tmp_path):
    run = SMALL.config()
    stored = simulate(**run.arguments(), store=tmp_path / "run")
    session.open(tmp_path / "run")
    tick(session, lambda: session.finished)
    np.testing.assert_array_equal([f.x for f in session.frames], stored.x.astype(np.float32))
    assert session.stage.kind == "fixed" and session.stage.rate == pytest.approx(0.25)
    shutil.rmtree(tmp_path / "run")
    session.open(tmp_path / "run")
    tick(session, lambda: session.finished)
    assert "does not exist" in session.messages.popleft().text


def done(work):
    end = time.monotonic() + 120
    while not work.result:
        assert time.monotonic() < end
        work.tick()
        time.sleep(0.02)
    return work


@pytest.mark.slow
@pytest.mark.parametrize("setup", [SMALL, replace(PRESETS["Example 2.6"].setup, n=40, frames=31)])
def test_a_saved_run_is_repeated_by_the_command_bit_for_bit(setup, tmp_path, monkeypatch):
    path = job.new_path(tmp_path, "mine")
    saved = done(job.save_run(setup.config(), path))
    assert not saved.failed and saved.share == 1.0, saved.result
    monkeypatch.setattr(
        "sys.argv", ["tokenfield", "simulate", f"{path}.toml", "--out", f"{path}-2", "--quiet"]
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    first, second = load(path), load(f"{path}-2")
    assert first.complete and len(first.ts) == setup.frames
    np.testing.assert_array_equal(first.x, second.x)
    assert first.inputs == second.inputs
    with pytest.raises(InputError, match="`name` must be new"):
        job.new_path(tmp_path, "mine")


@pytest.mark.slow
def test_figures_and_animations_are_written(session, tmp_path):
    session.start(SMALL.config())
    tick(session, lambda: session.finished)
    stage, frames = session.stage, session.frames
    colour = frames[-1].colour
    figure = done(job.save_figure(stage, frames[-1], colour, tmp_path / "a.png"))
    film = done(job.save_animation(stage, frames, colour, tmp_path / "a.gif"))
    assert not figure.failed and not film.failed, (figure.result, film.result)
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG" and film.share == 1.0
    from PIL import Image

    with Image.open(tmp_path / "a.gif") as image:
        assert image.n_frames == len(frames)


@pytest.mark.slow
def test_a_cancelled_save_leaves_a_run_that_can_be_resumed(tmp_path):
    setup = replace(SMALL, n=1500, stop=200.0, frames=900)
    work = job.save_run(setup.config(), tmp_path / "long")
    end = time.monotonic() + 120
    while not work.share > 0 and time.monotonic() < end:
        work.tick()
        time.sleep(0.02)
    work.cancel()
    assert work.failed and "cancelled" in work.result
    part = load(tmp_path / "long")
    assert not part.complete and len(part.ts) < 900


def test_names_of_files_are_plain(tmp_path):
    for bad in ("", "../a", ".a", "a b", "a/b", "x" * 80):
        with pytest.raises(InputError, match="`name` must be"):
            job.new_path(tmp_path, bad)
