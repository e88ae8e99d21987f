"""Runs on disk: round trips, kill -9 and resume, damage, foreign files, full disks."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import tokenfield as tkf
from tests.marks import mostly_slow
from tokenfield.runs import contents, seal, store

TS = np.linspace(0, 4, 41)


def run(path=None, **more):
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), more.pop("beta", 4.0))
    measure = {"R": tkf.order_parameter, "mean": lambda t: t.moments().mean}
    arguments = {"solver": tkf.Adaptive(), "measure": measure, "store": path} | more
    return tkf.simulate(model, tkf.initial.uniform(15, 3, 0), TS, **arguments)


def same(a, b):
    np.testing.assert_array_equal(a.ts, b.ts)
    np.testing.assert_array_equal(a.x, b.x)
    np.testing.assert_array_equal(a.weights, b.weights)
    for name in b.measured:
        np.testing.assert_array_equal(a.measured[name], b.measured[name])
    assert a.status == b.status
    assert a.complete == b.complete
    assert a.inputs == b.inputs


def test_save_and_load_give_back_everything(tmp_path):
    trajectory = run()
    trajectory.save(tmp_path / "run")
    back = tkf.load(tmp_path / "run")
    same(back, trajectory)
    assert back.stats["steps"] == trajectory.stats["steps"]


def test_written_while_running_is_the_same(tmp_path):
    run(tmp_path / "deep" / "run")
    same(tkf.load(tmp_path / "deep" / "run"), run())


def test_snapshots_can_be_left_out_of_the_store(tmp_path):
    run(tmp_path / "few", snapshots=[-1])
    run(tmp_path / "none", snapshots=[])
    full = run()
    np.testing.assert_array_equal(tkf.load(tmp_path / "few").x, full.x[-1:])
    none = tkf.load(tmp_path / "none")
    assert none.x.shape == (0, 15, 3)
    np.testing.assert_array_equal(none.measured["R"], full.measured["R"])


def test_xarray_opens_the_data_without_us(tmp_path):
    trajectory = run(tmp_path / "run")
    data = xr.open_zarr(tmp_path / "run" / "data.zarr", consolidated=False, chunks=None)
    assert data.x.dims == ("snapshot", "token", "dim")
    np.testing.assert_array_equal(data.x, trajectory.x)
    np.testing.assert_array_equal(data.R.sel(time=TS[7]), trajectory.measured["R"][7])


def test_the_manifest_carries_inputs_and_versions(tmp_path):
    run(tmp_path / "run", settings={"note": "mine"})
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["settings"] == {"note": "mine"}
    assert manifest["inputs"]["model"]["beta"] == 4.0
    assert manifest["versions"]["jax"]


def test_measurements_that_are_not_numbers_are_kept(tmp_path):
    """NaN may be what a function says; it is not damage."""
    run(tmp_path / "run", measure={"undefined": lambda t: np.nan})
    assert np.isnan(tkf.load(tmp_path / "run").measured["undefined"]).all()


# -- interruption


class Killed(BaseException):
    pass


@pytest.mark.parametrize("merge_angle", mostly_slow([None, 0.05], [0.05]))
@pytest.mark.parametrize("stop_at", mostly_slow([0, 1, 13, 40], [0, 13]))
@pytest.mark.parametrize("solver", [tkf.Adaptive(), tkf.RungeKutta4(0.07)], ids=["adaptive", "rk4"])
def test_resumed_run_is_bit_identical(tmp_path, monkeypatch, stop_at, solver, merge_angle):
    """Interrupted in a commit, before it counts; the resumed run equals an undisturbed one."""
    monkeypatch.setattr("tokenfield.runs.record.WRITE_EVERY", 0.0)
    whole = run(solver=solver, merge_angle=merge_angle)
    commit = store.Writer.commit

    def interrupted(self, checkpoint, **facts):
        if facts["reached"] > stop_at:
            raise Killed
        commit(self, checkpoint, **facts)

    monkeypatch.setattr(store.Writer, "commit", interrupted)
    with pytest.raises(Killed):
        run(tmp_path / "run", solver=solver, merge_angle=merge_angle)
    part = tkf.load(tmp_path / "run")
    assert not part.complete
    assert len(part.ts) <= stop_at
    np.testing.assert_array_equal(part.x, whole.x[: len(part.x)])
    monkeypatch.setattr(store.Writer, "commit", commit)
    resumed = run(tmp_path / "run", solver=solver, merge_angle=merge_angle, resume=True)
    same(resumed, whole)
    same(tkf.load(tmp_path / "run"), whole)
    for count in ("steps", "rejected", "evaluations"):
        assert resumed.stats[count] == whole.stats[count]


CONFIG = """
[weights]
identity = 3
[model]
kind = "softmax"
beta = 6.0
[initial]
law = "uniform"
n = 700
d = 3
key = 1
[times]
stop = 30.0
count = 300
"""


def command(*arguments):
    return [sys.executable, "-m", "tokenfield", *map(str, arguments)]


@pytest.mark.slow
def test_kill_minus_nine_loses_nothing_and_resume_goes_on(tmp_path):
    config = tmp_path / "case.toml"
    config.write_text(CONFIG)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run(command("simulate", config, "--out", whole, "--quiet"), check=True, capture_output=True)
    kills = 0
    for _ in range(2):
        resume = ["--resume"] if cut.exists() else []
        process = subprocess.Popen(
            command("simulate", config, "--out", cut, "--quiet", *resume),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        before = _reached(cut)
        deadline = time.monotonic() + 60
        while process.poll() is None and _reached(cut) < before + 5 and time.monotonic() < deadline:
            time.sleep(0.02)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
        part = tkf.load(cut)
        np.testing.assert_array_equal(part.x, tkf.load(whole).x[: len(part.x)])
    assert kills >= 1
    subprocess.run(
        command("simulate", config, "--out", cut, "--quiet", "--resume"), check=True, capture_output=True
    )
    same(tkf.load(cut), tkf.load(whole))
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".cut")]


def _reached(path: Path) -> int:
    try:
        return json.loads((path / "manifest.json").read_text())["reached"]
    except FileNotFoundError:
        return 0


def test_a_kill_between_checkpoint_and_manifest(tmp_path, monkeypatch):
    """The checkpoint is then ahead of the manifest's count; the rows it stands on are there."""
    monkeypatch.setattr("tokenfield.runs.record.WRITE_EVERY", 0.0)
    write = store._write_json

    def interrupted(path, content):
        if content["reached"] > 8:
            raise Killed
        write(path, content)

    monkeypatch.setattr(store, "_write_json", interrupted)
    with pytest.raises(Killed):
        run(tmp_path / "run")
    monkeypatch.setattr(store, "_write_json", write)
    same(run(tmp_path / "run", resume=True), run())
    same(tkf.load(tmp_path / "run"), run())


def test_resuming_a_finished_run_returns_it(tmp_path):
    first = run(tmp_path / "run")
    same(run(tmp_path / "run", resume=True), first)


# -- what is refused


def test_an_occupied_directory_is_refused_and_untouched(tmp_path):
    run(tmp_path / "run")
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(
        tkf.InputError, match="^`path` must be new or an empty directory, but .* holds a stored run"
    ):
        run(tmp_path / "run")
    with pytest.raises(tkf.InputError, match="holds one with other model"):
        run(tmp_path / "run", beta=5.0, resume=True)
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("years of work")
    with pytest.raises(tkf.InputError, match="holds other files"):
        run(tmp_path / "notes")
    assert (tmp_path / "notes" / "thesis.txt").read_text() == "years of work"


def test_an_empty_directory_is_used(tmp_path):
    (tmp_path / "run").mkdir()
    assert run(tmp_path / "run").complete


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda p: shutil.rmtree(p), "does not exist"),
        (lambda p: (p / "manifest.json").unlink(), "has no manifest.json"),
        (lambda p: (p / "manifest.json").write_text("{"), "manifest.json is unreadable"),
        (lambda p: (p / "manifest.json").write_text('{"format": "other"}'), "has 'other'"),
        (lambda p: (p / "manifest.json").write_text("[]"), "has None"),
        (lambda p: shutil.rmtree(p / "data.zarr"), "is damaged"),
        (lambda p: shutil.rmtree(p / "data.zarr" / "R"), "has lost `R`"),
        (lambda p: shutil.rmtree(p / "data.zarr" / "x" / "c"), "has lost 1 of 1 files of `x`"),
    ],
)
def test_truncated_and_foreign_stores_are_one_sentence(tmp_path, damage, sentence):
    run(tmp_path / "run")
    damage(tmp_path / "run")
    with pytest.raises(tkf.InputError, match=f"^`path` must be a .*{sentence}"):
        tkf.load(tmp_path / "run")


def test_flipped_bits_are_noticed(tmp_path):
    run(tmp_path / "run")
    chunk = next(p for p in (tmp_path / "run" / "data.zarr" / "x" / "c").rglob("*") if p.is_file())
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 0xFF
    chunk.write_bytes(content)
    with pytest.raises(tkf.InputError, match="is damaged"):
        tkf.load(tmp_path / "run")


def test_a_full_disk_is_a_sentence_and_keeps_what_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr("tokenfield.runs.record.WRITE_EVERY", 0.0)
    fsync, calls = os.fsync, 0

    def full(descriptor):
        nonlocal calls
        calls += 1
        if calls > 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        tkf.RunError, match="could not write to .*: No space left on device; what was finished"
    ):
        run(tmp_path / "run")
    monkeypatch.setattr(os, "fsync", fsync)
    part = tkf.load(tmp_path / "run")
    assert len(part.ts) >= 1
    same(run(tmp_path / "run", resume=True), run())


def test_a_store_in_use_is_refused(tmp_path):
    run(tmp_path / "run")
    writer = store.Writer(tmp_path / "run")
    with pytest.raises(tkf.InputError, match="another process is writing"):
        run(tmp_path / "run", resume=True)
    writer.close()


def test_a_write_that_fails_half_way_leaves_the_rows_that_were_there(tmp_path):
    """A file holds several records; zarr before 3.1.3 wrote it in place and lost those that counted."""
    resource = pytest.importorskip("resource")
    path, values = tmp_path / "run", np.random.default_rng(0).normal(size=(8, 100))
    manifest = {"inputs": {}, "reached": 0, "written": {"a": 0}}
    store.create(path, store.Layout(a=((8, 100), ("time", "a_1"))), {}, manifest)
    writer = store.Writer(path)
    writer.rows("a", 0, values[:4])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.raises(tkf.RunError, match="could not write to .*what was finished is kept"):
            writer.rows("a", 4, values[4:])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        writer.close()
    held = contents.contents_of(manifest | {"format": store.FORMAT, "written": {"a": 4}})
    held = held._replace(chunks={"a": [seal.array_hash(values[:4])]})
    np.testing.assert_array_equal(contents.read_rows(path, held, "a", 0, 4), values[:4])
