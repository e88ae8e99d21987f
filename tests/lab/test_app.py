"""The app without a browser: what people ask for, and what it says when they ask for nonsense."""

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.lab.fake_worker import FakeWorker
from tests.test_cli import tokenfield
from tokenfield.lab import app as module
from tokenfield.lab.app import MIN_SECONDS_BETWEEN_RUNS, Lab
from tokenfield.lab.frame import Stage
from tokenfield.lab.guard import is_loopback
from tokenfield.lab.session import Session


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A lab with a page, but with workers that do nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Session", lambda: Session(FakeWorker))
        lab = Lab(port=0, out=tmp_path_factory.mktemp("out"))
        lab.notified = []
        patch.setattr(lab, "_notify", lab.notified.append)
        lab.begin()
        yield lab
        lab.close()


#: For every control what a person, or a page that is not ours, might ask for, and a part of the answer.
BAD = [
    ("n", -5, "`tokens` must be a whole number"),
    ("n", 2.5, "`tokens` must be a whole number"),
    ("n", np.nan, "`tokens` must be a whole number"),
    ("n", 10**7, "`tokens` must be at most 1000000"),
    ("d", 1, "`dimension` must be"),
    ("d", 65, "`dimension` must be at most 64"),
    ("d", 2.5, "`dimension` must be a whole number"),
    ("model", "warm", "`model` must be one of"),
    ("law", "nowhere", "nowhere"),
    ("beta", np.nan, "`beta` must be"),
    ("step", 0.0, "`layer step` must be positive and finite"),
    ("number", np.nan, "must"),
    ("key", -1, "`seed` must be"),
    ("key", 1.5, "`seed` must be"),
    ("stop", -1.0, "`until t` must be positive and finite"),
    ("stop", np.inf, "`until t` must be positive and finite"),
    ("V_spectrum", "1, 2", "`eigenvalues of V` must be 3 numbers"),
    ("V_spectrum", "nan, 1, 1", "`eigenvalues of V` must be finite"),
    ("B_spectrum", "one", "`eigenvalues of B` must be numbers separated by commas"),
    ("B_spectrum", "", "`eigenvalues of B` must be numbers separated by commas"),
    ("V_angle", np.nan, "must be finite"),
    ("B_angle", np.inf, "must be finite"),
    ("turn", np.inf, "must be finite"),
    ("log", 7, "`time scale` must be"),
    ("colour", "taste", "`colour by` must be one of"),
    ("size", np.nan, "`token size` must be"),
    ("projection", "none", "`projection` must be one of"),
    ("axes", "1, 1, 2", "`axes` must be three"),
    ("speed", 0, "`speed` must lie between"),
    ("scrub", np.nan, "NaN"),
    ("preset", "rain", "`phenomenon` must be one of"),
    ("save run", "../x", "`name` must be"),
    ("save figure", "", "`name` must be"),
    ("open", "/nowhere", "`path` must be"),
    ("unheard of", 1, "unheard of"),
]


@pytest.mark.parametrize(("what", "value", "sentence"), BAD)
def test_bad_values_of_any_control_are_messages_and_the_lab_goes_on(lab, what, value, sentence):
    lab._handle("preset", "concentration, then escape")
    lab._handle("law", "around one direction")  # so that its number means something
    before = lab.setup
    while lab._run_due_at is not None:  # the change becomes a run, and only then its frames are taken
        lab.poll()
    lab.session.worker.begin()
    lab.session.worker.make(0, 9)
    lab.poll()
    assert len(lab.session.frames) == 9
    lab.notified.clear()
    lab.panel.name.value = str(value)
    lab.panel.path.value = str(value)
    lab._handle(what, value)
    assert [m.kind for m in lab.notified] == ["error"] and sentence in lab.notified[0].text
    assert lab.setup == before
    lab._handle("n", 77)
    assert lab.setup == replace(before, n=77) and len(lab.notified) == 1
    assert lab.panel.n.value == 77


def test_every_control_is_in_the_list_of_bad_values(lab):
    asked = {what for what, *_ in BAD}
    controls = {name for name, handle in vars(lab.panel).items() if hasattr(handle, "value")}
    without_nonsense = {"play", "more", "solid", "computed", "job", "cancel"}
    renamed = {"time": "scrub", "name": "save run", "path": "open", "colour": "colour"}
    assert {renamed.get(name, name) for name in controls - without_nonsense} <= asked


def test_a_slider_that_is_dragged_begins_a_run_now_and_then(lab, monkeypatch):
    clock = [time.monotonic() + 100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    lab._handle("preset", "Example 2.6")
    lab.poll()
    first, began = lab.session._id, []
    for k in range(40):  # a change every 0.05 s
        lab._handle("beta", 0.05 * k)
        lab.poll()
        began.append(lab.session._id - first)
        clock[0] += 0.05
    assert began[0] == 1  # the first change at once
    assert began[-1] == pytest.approx(40 * 0.05 / MIN_SECONDS_BETWEEN_RUNS, abs=1)
    clock[0] += MIN_SECONDS_BETWEEN_RUNS
    lab.poll()
    assert lab.session.config.model.beta == lab.setup.beta  # the last change is not lost


def test_what_stays_during_a_run_is_drawn_anew_only_if_it_changed(lab):
    drawn = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab.scene, "redraw", lambda: drawn.append(1))
        stage = Stage(2, 2, np.full(2, 0.5), np.eye(2), kind="fixed", limit_basis=np.eye(2)[:, :1])
        lab.scene.set(stage)
        lab.scene.set(replace(stage, rate=2.0, limit_basis=np.eye(2)[:, :1]))
        assert len(drawn) == 1
        for other in ({"limit_basis": np.eye(2)[:, 1:]}, {"limit_basis": None}, {"start": -np.eye(2)}):
            drawn.clear()
            lab.scene.set(stage)
            lab.scene.set(replace(stage, **other))
            assert drawn


def test_what_one_sees_of_a_message_is_not_lost_between_turns(lab):
    lab._handle("preset", "Example 2.6")
    lab.notified.clear()
    lab.session.worker.outbox.append(("error", lab.session.worker.task, "stopped at t = 1"))
    lab.poll()
    assert [m.text for m in lab.notified] == ["stopped at t = 1"] and lab.session.finished
    lab._handle("preset", "Example 2.5")
    assert not lab.session.finished


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("127.9.9.9", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.7", False),
        ("example.org", False),
    ],
)
def test_a_host_that_others_can_reach_comes_with_a_warning(host, alone, monkeypatch):
    calls = []
    monkeypatch.setattr(module, "serve", lambda *arguments: calls.append(arguments))
    done = tokenfield("lab", "--host", host, "--no-browser")
    assert done.returncode == 0 and calls[0][1] == host and is_loopback(host) is alone
    assert ("warning" in done.stdout and f"{host} is not a loopback address" in done.stdout) is not alone


def test_without_a_host_only_this_machine_is_listened_to(monkeypatch):
    calls = []
    monkeypatch.setattr(module, "serve", lambda *arguments: calls.append(arguments))
    assert "warning" not in tokenfield("lab", "--no-browser").stdout and is_loopback(calls[0][1])
