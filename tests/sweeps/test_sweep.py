"""Sweeps in this process: what is computed, what is kept, what goes wrong, what is collected."""

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys

import filelock
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from typer.testing import CliRunner

import tokenfield as tkf
from tests.sweeps.cases import SMALL, small
from tokenfield import cli
from tokenfield.config import reading as config
from tokenfield.config.reading import parse
from tokenfield.runs import lock, store
from tokenfield.sweeps import cells as stored
from tokenfield.sweeps import dataset, drive, estimate, grid, keys, simulation, work
from tokenfield.sweeps.repeat import rerun
from tokenfield.sweeps.result import CellResult


class Killed(BaseException):
    """Stands for kill -9: nothing may catch it."""


def same(a, b):
    """Equal to the bit, what was computed on other hosts included."""
    xr.testing.assert_identical(a, b)
    for name in a.variables:
        assert a[name].values.tobytes() == b[name].values.tobytes(), name


def killed_after(monkeypatch, count, **more):
    """Interrupt a sweep when `count` cells are written, in the middle of a write."""
    replace, done = os.replace, [0]

    def dying(source, target):
        if str(target).endswith(stored.DONE):
            done[0] += 1
            if done[0] > count:
                raise Killed
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(stored.os, "replace", dying)
        # a killed process does not clean up
        patch.setattr("pathlib.Path.unlink", lambda self, missing_ok=False: None)
        with pytest.raises(Killed):
            tkf.sweep(SMALL, 0, **more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The undisturbed sweep and where it is."""
    path = tmp_path_factory.mktemp("whole") / "sweep"
    return path, tkf.sweep(SMALL, 0, store=path)


def test_every_cell_is_the_run_it_says(whole):
    _, data = whole
    assert data.sizes == {"beta": 3, "seed": 4, "time": 9, "mean_1": 2}
    assert (data.state == dataset.COMPLETE).all()
    for cell in grid.declare(SMALL).cells[::5]:
        run = tkf.simulate(**config.parse(cell.settings).arguments())
        mine = data.isel(beta=cell.where[0], seed=cell.where[1])
        np.testing.assert_allclose(mine["mean"], run.measured["mean"], atol=1e-13)
        np.testing.assert_allclose(mine["order_parameter"], run.measured["order_parameter"], atol=1e-13)
        assert str(mine["status"].values) == run.status
        assert int(mine["steps"]) == run.stats["steps"]


def test_a_finished_sweep_is_not_touched(whole, monkeypatch):
    path, data = whole
    before = {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in (path / "cells").iterdir()}
    monkeypatch.setattr(drive, "executor_of", None)  # nobody is asked to compute
    same(tkf.sweep(SMALL, 0, store=path), data)
    assert before == {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in (path / "cells").iterdir()}


@pytest.mark.parametrize("count", [0, 1, 5, 11])
def test_a_killed_sweep_goes_on_to_the_same_bits(whole, count, tmp_path, monkeypatch):
    path = tmp_path / "sweep"
    killed_after(monkeypatch, count, store=path)
    drafts = list((path / "cells").glob(".*"))
    assert len(drafts) == 1  # the one that was being written
    partial = tkf.open_sweep(path)
    assert int((partial.state == dataset.COMPLETE).sum()) == count
    assert int(np.isnan(partial["steps"]).sum() if "steps" in partial else 12) == 12 - count
    before = {p.name: p.stat().st_ino for p in (path / "cells").glob("*.cell")}
    computed = []
    compute = work.compute
    monkeypatch.setattr(work, "compute", lambda task: computed.append(task.number) or compute(task))
    same(tkf.sweep(SMALL, 0, store=path), whole[1])
    assert len(computed) == 12 - count  # these cells are batches of one
    assert before.items() <= {p.name: p.stat().st_ino for p in (path / "cells").glob("*.cell")}.items()
    assert not list((path / "cells").glob(".*"))


def test_a_batch_is_computed_whole_and_only_what_is_missing_is_written(tmp_path, monkeypatch):
    """Seventeen runs in pairs, of which some cells are lost: the same programs, and the same bits."""
    pairs = small(sweep={"model": {"beta": [1.0]}, "seeds": 17}, times={"count": 3})
    path = tmp_path / "s"
    data = tkf.sweep(pairs, 0, store=path)
    declared = grid.declare(pairs)
    assert [len(batch.cells) for batch in declared.batches] == [2] * 8 + [1]
    lost = [declared.cells[k].id for k in (2, 7, 8, 9)]
    for id in lost:
        (path / "cells" / f"{id}.cell").unlink()
    kept = {p.name: p.stat().st_ino for p in (path / "cells").iterdir()}
    asked, cells = [], simulation.SimulationCells
    run_batch = cells.run_batch
    monkeypatch.setattr(
        cells, "run_batch", lambda self, many, *more: asked.append(many) or run_batch(self, many, *more)
    )
    same(tkf.sweep(pairs, 0, store=path), data)
    assert asked == [[c.config for c in declared.batches[k].cells] for k in (1, 3, 4)]
    assert kept.items() <= {p.name: p.stat().st_ino for p in (path / "cells").iterdir()}.items()


def test_a_cell_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """Synced, then renamed, then the directory synced: a power failure leaves it whole or not at all."""
    calls, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(
        stored.os, "fsync", lambda file: calls.append(os.readlink(f"/proc/self/fd/{file}")) or fsync(file)
    )
    monkeypatch.setattr(stored.os, "replace", lambda a, b: calls.append((str(a), str(b))) or replace(a, b))
    (tmp_path / "cells").mkdir()
    cell = grid.declare(SMALL).cells[0]
    done = CellResult("reached t = 1 as asked", True, {"time": np.zeros(2)}, {"time": ("time",)})
    assert not stored.CellStore(tmp_path).write({cell.id: ("simulate", cell.settings, done)})
    draft = calls[0]
    assert calls == [draft, (draft, str(tmp_path / "cells" / f"{cell.id}.cell")), str(tmp_path / "cells")]
    assert draft.endswith(stored.DRAFT)


def test_an_estimate_is_the_sample_times_the_cells(monkeypatch):
    """Cells of two and four seconds in turn; each takes one block of the disk."""
    cells = grid.declare(SMALL).cells
    seconds = {cell.id: 2.0 + 2.0 * (k % 2) for k, cell in enumerate(cells)}
    monkeypatch.setattr(
        estimate,
        "compute",
        lambda task: {id: CellResult("reached", True, {}, {}, {}, seconds[id]) for id, _ in task.cells},
    )
    found = estimate.estimate(grid.declare(SMALL))
    sampled = [seconds[cells[k].id] for k in (0, 3, 6, 8, 11)]  # spread over the grid
    assert found.seconds == pytest.approx(12 * np.mean(sampled))
    assert (found.least, found.most, found.cells, found.cut) == (2.0, 4.0, 5, 0)
    assert found.bytes == 12 * 4096


def test_a_lost_manifest_is_rebuilt_from_the_cells(whole, tmp_path):
    path = tmp_path / "sweep"
    shutil.copytree(whole[0], path)
    (path / "manifest.json").unlink()
    with pytest.raises(tkf.InputError, match="has no manifest.json"):
        tkf.open_sweep(path)
    same(tkf.sweep(SMALL, 0, store=path), whole[1])


# -- what may be found in the directory: one sentence each, no damage


def _files(path):
    return {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    "what", ["edited", "format", "broken", "other sweep", "other version", "foreign", "file", "stranger"]
)
def test_what_is_refused_is_left_alone(whole, what, tmp_path, monkeypatch):
    path, config = tmp_path / "sweep", SMALL
    shutil.copytree(whole[0], path)
    manifest = path / "manifest.json"
    content = json.loads(manifest.read_text())
    if what == "edited":
        content["declaration"]["solver"]["step"] = 0.5
        manifest.write_text(json.dumps(content))
        sentence = "was changed by hand; delete it and run the sweep again"
    elif what == "format":
        manifest.write_text(json.dumps(content | {"format": "tokenfield sweep 0"}))
        sentence = "must be a sweep of format 'tokenfield sweep 1', but .* has 'tokenfield sweep 0'"
    elif what == "broken":
        manifest.write_text("{")
        sentence = "manifest.json is unreadable"
    elif what == "other sweep":
        config = small(solver={"step": 0.5})
        sentence = "`store` must hold the same sweep, but .* other settings"
    elif what == "other version":
        monkeypatch.setitem(stored._version, "tokenfield", "9.9")
        sentence = "by the versions that began it, .* tokenfield .* then and 9.9 now"
    elif what == "foreign":
        shutil.rmtree(path)
        path.mkdir()
        (path / "thesis.tex").write_text("years of work")
        sentence = "must be new, empty or a sweep, but .* holds other files"
    elif what == "file":
        shutil.rmtree(path)
        path.write_text("")
        sentence = "must be a directory"
    elif what == "stranger":
        manifest.unlink()
        config = small(sweep={"seeds": 2})
        sentence = "must hold cells of this sweep only"
    before = _files(path)
    with pytest.raises(tkf.InputError, match=sentence) as error:
        tkf.sweep(config, 0, store=path)
    assert "\n" not in str(error.value)
    assert _files(path) == before


def test_two_sweeps_on_one_directory(whole, tmp_path):
    path = tmp_path / "sweep"
    shutil.copytree(whole[0], path)
    with filelock.FileLock(path / ".lock"):
        assert lock.is_locked(path)
        before = _files(path)
        with pytest.raises(tkf.InputError, match="must not be in use, but another sweep is running in"):
            tkf.sweep(SMALL, 0, store=path)
        same(tkf.open_sweep(path), whole[1])  # looking is always allowed
        assert _files(path) == before
    assert not lock.is_locked(path)


@pytest.mark.parametrize("how", ["cut", "flipped", "empty", "swapped", "directory", "dangling link", "pipe"])
def test_a_damaged_cell_is_set_aside_and_computed_again(whole, how, tmp_path):
    path = tmp_path / "sweep"
    shutil.copytree(whole[0], path)
    cells = grid.declare(SMALL).cells
    file = path / "cells" / f"{cells[4].id}.cell"
    raw = file.read_bytes()
    if how == "swapped":
        raw = (path / "cells" / f"{cells[5].id}.cell").read_bytes()
    file.unlink()
    if how == "directory":
        (file / "inner").mkdir(parents=True)
    elif how == "dangling link":
        file.symlink_to(tmp_path / "nowhere")
    elif how == "pipe":
        os.mkfifo(file)
    else:
        damaged = {"cut": raw[:-9], "empty": b"", "swapped": raw, "flipped": raw[:-9] + b"\x01" + raw[-8:]}
        file.write_bytes(damaged[how])
    seen = tkf.open_sweep(path)
    assert seen.state.values.ravel()[4] == dataset.FAILURE
    assert "is damaged" in seen.status.values.ravel()[4]
    assert int((seen.state == dataset.COMPLETE).sum()) == 11
    with pytest.raises(tkf.InputError, match="was not yet" if how == "dangling link" else "is damaged"):
        rerun(path, "4", 0)
    said = []
    same(tkf.sweep(SMALL, 0, store=path, say=said.append), whole[1])
    assert len(said) == 1 and "is damaged" in said[0] and "set aside" in said[0]
    assert os.path.lexists(path / "cells" / f"{cells[4].id}.damaged")


def test_a_cell_says_where_it_comes_from(whole):
    path, data = whole
    cell = grid.declare(SMALL).cells[0]
    found = stored.CellStore(path).read(cell.id)
    assert found.settings == cell.settings
    assert found.versions == {name: store.versions()[name] for name in store.COMPUTES}
    assert found.host["machine"] and found.host["device"]
    declaration = json.loads(data.attrs["declaration"])
    again = grid.declare(declaration)
    assert [c.id for c in again.cells] == list(data.cell.values.ravel())
    assert json.loads(data.attrs["keys"])[cell.id] == {"initial.key": cell.settings["initial"]["key"]}
    # laws that are drawn only if they have a key; matrices that are not random have one that says nothing
    drawn = {"initial": {"law": "poisson", "n": 8, "key": 5}, "weights": {"V": {"diag": [1.0], "key": 0}}}
    assert keys.keys_of(config.Config, drawn) == {"initial.key": 5}


# -- cells that fail


FAILING = small(
    weights={"V": {"diag": [1.0, 0.5]}, "B": None, "Q": {"diag": [1e200, 1e200]}, "K": {"diag": [1.0, 1.0]}},
    sweep={
        "model": {"beta": [1.0]},
        "seeds": None,
        "initial": {"key": [1]},
        "weights": {"K": {"diag": [[1e-200, 1e-200], [1e200, 1e200]]}},
    },
)


def test_failures_are_rows_and_can_be_retried(tmp_path, monkeypatch):
    bad = grid.declare(SMALL).cells[3].id
    compute = work.compute

    def failing(task):
        made = compute(task)
        return {
            id: dataclasses.replace(o, complete=False, status="stopped at t = 0.5: rough") if id == bad else o
            for id, o in made.items()
        }

    with monkeypatch.context() as patch:
        patch.setattr(work, "compute", failing)
        data = tkf.sweep(SMALL, 0, store=tmp_path / "s")
        assert data.state.values.ravel().tolist().count(dataset.COMPLETE) == 11
        assert data.status.values.ravel()[3] == "stopped at t = 0.5: rough"
        seen = json.loads((tmp_path / "s" / "progress.json").read_text())
        assert {k: seen[k] for k in ("done", "failed", "running", "declared")} == {
            "done": 11,
            "failed": 1,
            "running": 0,
            "declared": 12,
        }
        log = (tmp_path / "s" / "log.txt").read_text()
        assert f"{bad} failed: beta = 1, seed = 3: stopped at t = 0.5: rough" in log
        assert log.endswith("sweep ends: 11 done, 1 failed\n")
        patch.setattr(drive, "executor_of", None)  # a failure is not tried again by itself
        assert tkf.sweep(SMALL, 0, store=tmp_path / "s").identical(data)
    shown = CliRunner().invoke(cli.app, ["info", str(tmp_path / "s")])
    assert shown.exit_code == 0
    assert "stopped at t = 0.5" in shown.stdout.replace("\n", " ")
    retried = tkf.sweep(SMALL, 0, store=tmp_path / "s", retry_failed=True)
    assert (retried.state == dataset.COMPLETE).all()
    assert not list((tmp_path / "s" / "cells").glob("*.failed"))


def test_numerical_trouble_is_a_sentence(tmp_path):
    data = tkf.sweep(FAILING, 0, store=tmp_path / "s")
    assert data.state.values.ravel().tolist() == [dataset.COMPLETE, dataset.FAILURE]
    assert "finite" in data.status.values.ravel()[1]


def test_nan_is_a_failure():
    arrays = {"energy": np.array([1.0, np.nan]), "time": np.zeros(2)}
    found = CellResult("reached t = 1 as asked", True, arrays).checked()
    assert not found.complete
    assert found.status == "reached t = 1 as asked, but energy came out as NaN"


def test_a_cell_that_never_ends_is_stopped_and_the_others_go_on(tmp_path):
    config = small(
        initial={"key": 1},
        sweep={"seeds": None, "model": {"beta": [1.0]}, "solver": {"step": [0.25, 1e-9]}, "time_limit": 0.3},
    )
    data = tkf.sweep(config, 0, store=tmp_path / "s")
    assert data.state.values.ravel().tolist() == [dataset.COMPLETE, dataset.FAILURE]
    assert "the time limit of 0.3 s is used up" in str(data.status.values.ravel()[1])


@pytest.mark.slow
def test_a_batch_gives_what_its_cells_give_alone():
    """Runs at their own pace, one that cannot be built, one that never ends, beside two that are well."""
    cells = simulation.SimulationCells()
    base = cells.describe(
        cells.check(
            {
                "weights": {"identity": 3},
                "model": {"kind": "softmax", "beta": 1.0},
                "initial": {"law": "equiangular", "n": 3, "d": 3, "rho": 0.1},
                "times": {"stop": 2.0, "count": 4},
                "run": {"measure": ["order_parameter", "energy"], "snapshots": [0, -1]},
            }
        )
    )
    settings = [
        base,
        base | {"model": {"kind": "softmax", "beta": 25.0}, "times": base["times"] | {"stop": 40.0}},
        base | {"initial": base["initial"] | {"rho": 3.0}},
        base | {"times": base["times"] | {"stop": 1e300}},
    ]
    runs = [cells.check(each) for each in settings]
    assert len({cells.batch_key(run) for run in runs}) == 1
    made = cells.run_batch(runs, 5, 0.5)
    for run, outcome in zip(runs[:2], made, strict=False):
        one = cells.run_one(run, None)
        assert outcome.status == one.status
        assert outcome.counts == one.counts
        for name, values in one.arrays.items():
            np.testing.assert_allclose(outcome.arrays[name], values, rtol=1e-9, atol=1e-12, err_msg=name)
            assert outcome.axes[name] == one.axes[name]
    assert "`rho` must lie in" in made[2].status
    assert not made[3].complete


# -- disks that are full or closed


@pytest.fixture
def disk(tmp_path):
    """A file system of its own, as small as wanted."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_costs_only_the_cells_that_do_not_fit(disk, whole):
    path = disk / "s"
    (disk / "ballast").write_bytes(bytes(32 * 1024))
    data = tkf.sweep(SMALL, 0, store=path)
    lost = data.state != dataset.COMPLETE
    assert 0 < int(lost.sum()) < 12
    assert all("No space left" in str(s) for s in data.status.values[lost.values])
    assert not list((path / "cells").glob(".*"))
    (disk / "ballast").unlink()
    subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True)
    same(tkf.sweep(SMALL, 0, store=path), whole[1])


def test_a_directory_that_cannot_be_written(disk):
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(
        tkf.RunError, match="could not write to .*: Read-only file system; what was finished is kept"
    ):
        tkf.sweep(SMALL, 0, store=disk / "s")


def test_a_disk_that_fills_up_on_the_way(disk, monkeypatch):
    compute, count = work.compute, [0]

    def filling(task):
        count[0] += 1
        if count[0] == 3:
            with contextlib.suppress(OSError), open(disk / "ballast", "wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        return compute(task)

    monkeypatch.setattr(work, "compute", filling)
    subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True)
    data = tkf.sweep(SMALL, 0, store=disk / "s")
    assert int((data.state == dataset.COMPLETE).sum()) == 2
    assert count[0] == 3  # the rest is not even computed
    said = [str(s) for s in data.status.values.ravel()]
    assert sum("No space left" in s for s in said) == 10
    assert not list((disk / "s" / "cells").glob(".*"))


# -- the dataset in other hands


def test_netcdf_and_csv_say_the_same(whole, tmp_path):
    path, data = whole
    back = xr.load_dataset(dataset.export(data, tmp_path / "a.nc"), engine="scipy")
    for name in ("order_parameter", "mean", "state", "steps", "beta", "seed", "time"):
        np.testing.assert_array_equal(back[name], data[name])
    assert back.status.values.ravel()[0] == data.status.values.ravel()[0]
    assert back.attrs["declaration"] == data.attrs["declaration"]
    table = pd.read_csv(dataset.export(data, tmp_path / "a.csv"))
    assert len(table) == 108
    row = table[(table.beta == 10.0) & (table.seed == 2) & (table.time == 0.5)].iloc[0]
    cell = data.sel(beta=10.0, seed=2, time=0.5)
    assert row["order_parameter"] == float(cell.order_parameter)
    assert [row["mean_1"], row["mean_2"]] == cell["mean"].values.tolist()
    done = CliRunner().invoke(cli.app, ["collect", str(path), "--to", str(tmp_path / "b.nc")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "b.nc").read_bytes() == (tmp_path / "a.nc").read_bytes()
    refused = CliRunner().invoke(cli.app, ["collect", str(path), "--to", str(tmp_path / "b.xls")])
    assert isinstance(refused.exception, tkf.InputError)
    assert not refused.output  # before any work


def test_parquet_is_the_same_table(whole, tmp_path):
    pytest.importorskip("pyarrow")
    back = pd.read_parquet(dataset.export(whole[1], tmp_path / "a.parquet"))
    pd.testing.assert_frame_equal(back, dataset.table(whole[1]), check_dtype=False)


def test_what_cannot_be_exported_is_one_sentence(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "_parquet", lambda: False)
    with pytest.raises(
        tkf.InputError, match="^`path` must .*without the package pyarrow; pip install pyarrow$"
    ):
        dataset.export(whole[1], tmp_path / "a.parquet")
    with pytest.raises(tkf.InputError, match="^`path` must end with one of .nc, .csv, .parquet"):
        dataset.export(whole[1], tmp_path / "a.xls")
    with pytest.raises(tkf.RunError, match="^could not write .*: Is a directory"):
        (tmp_path / "b.csv").mkdir()
        dataset.export(whole[1], tmp_path / "b.csv")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b.csv"]  # no drafts


def test_fits_and_figures_take_it(whole):
    _, data = whole
    one = data.order_parameter.sel(beta=10.0, seed=0)
    fit = tkf.fit_rate(one.time, one, model="exponential")
    assert np.isfinite(fit.rate)
    drawn = tkf.figures.curves(
        data.time,
        {f"β = {b:g}": data.order_parameter.sel(beta=b, seed=0) for b in data.beta.values},
        "t",
        "R",
    )
    assert drawn is not None


def test_times_that_differ_are_a_variable(tmp_path):
    config = small(
        sweep={
            "seeds": None,
            "initial": {"key": [1]},
            "model": {"beta": [1.0]},
            "times": {"stop": [1.0, 2.0]},
        },
        times={"count": 3},
    )
    data = tkf.sweep(config, 0, store=tmp_path / "s")
    assert data.times.dims[-1] == "time_index"
    np.testing.assert_array_equal(data.times.values.reshape(2, 3), [[0, 0.5, 1], [0, 1, 2]])


def test_an_axis_beside_a_measurement_of_its_name(tmp_path):
    law = {"law": "von_mises_fisher", "n": 8, "kappa": 2.0, "key": 1}
    times = [{"stop": 1.0, "count": 3}, {"stop": 2.0, "count": 3}]
    sweep = {"initial": {"mean": [[1.0, 0.0], [0.0, 1.0]]}, "times": times, "model": {"beta": [1.0]}}
    config = {k: SMALL[k] for k in ("weights", "model", "solver", "run")} | {"initial": law, "sweep": sweep}
    data = tkf.sweep(config, 0, store=tmp_path / "s")
    assert data["mean"].dims == ("initial_mean", "times_section", "beta", "time_index", "mean_1")
    assert data.initial_mean.values.tolist() == ["[1.0, 0.0]", "[0.0, 1.0]"]


def test_a_cell_is_the_trajectory_it_was(tmp_path):
    """Cells of several dimensions, sizes and lengths in one dataset: each comes back as `simulate` gives it."""
    cases = {
        "weights": {"identity": [2, 3]},
        "initial": [{"law": "uniform", "n": n, "d": d, "key": 1} for n, d in ((9, 2), (5, 3))],
        "times": {"stop": [1.0, 0.5], "count": [5, 3]},
    }
    config = {k: SMALL[k] for k in ("model", "solver")} | {
        "model": {"kind": "softmax", "beta": 2.0},
        "run": {"measure": ["mean"], "snapshots": [0, -1]},
        "sweep": {"zip": [cases]},
    }
    data = tkf.sweep(config, 0, store=tmp_path / "s")
    (axis,) = data.state.dims
    for k, cell in enumerate(grid.declare(config).cells):
        found = dataset.trajectory(data.isel({axis: k}))
        run = tkf.simulate(**parse(cell.settings).arguments())
        for name in ("x", "weights", "snapshot_ts", "ts"):
            np.testing.assert_allclose(getattr(found, name), getattr(run, name), atol=1e-13, err_msg=name)
        np.testing.assert_allclose(found.tokens(-1).moments().mean, run.measured["mean"][-1], atol=1e-13)
        assert (found.status, found.complete) == (run.status, True)
    for bad, sentence in (
        (data, "`cell` must be one cell, but was a grid over"),
        (3, "`cell` must be a cell"),
        (data.drop_vars("x").isel({axis: 0}), "`cell` must hold tokens"),
    ):
        with pytest.raises(tkf.InputError, match=sentence):
            dataset.trajectory(bad)


def test_rerun_repeats_a_cell_and_sees_a_difference(whole, tmp_path):
    found = rerun(whole[0], "7", 0)
    assert found.identical
    assert "the same to the bit" in found.sentence
    path = tmp_path / "sweep"
    shutil.copytree(whole[0], path)
    cells, cell = stored.CellStore(path), grid.declare(SMALL).cells[7]
    outcome = cells.read(cell.id).result
    moved = {"order_parameter": outcome.arrays["order_parameter"] + 1e-9}
    other = dataclasses.replace(outcome, arrays=dict(outcome.arrays) | moved)
    cells.write({cell.id: ("simulate", cell.settings, other)})
    found = rerun(path, cell.id[:8], 0)
    assert not found.identical
    assert found.differences == pytest.approx({"order_parameter": 1e-9}, rel=1e-3)


def test_open_sweep_refuses_what_is_none(tmp_path):
    with pytest.raises(tkf.InputError, match="does not exist"):
        tkf.open_sweep(tmp_path / "nowhere")
    with pytest.raises(tkf.InputError, match="is none"):
        tkf.open_sweep(tmp_path)


@pytest.mark.parametrize("executor", ["nowhere", -1, 1.5, object()])
def test_executors_that_are_none(executor, tmp_path):
    with pytest.raises(tkf.InputError, match="^`(executor|scheduler)` must be"):
        tkf.sweep(SMALL, executor, store=tmp_path / "s")


# -- as a person types it


TOML = """
[weights]
identity = 2
[model]
kind = "softmax"
[initial]
law = "uniform"
n = 8
d = 2
[times]
stop = 1.0
count = 3
[solver]
kind = "layers"
step = 0.25
[sweep]
store = "named"
time_limit = 100
model.beta = [1.0, 2.0]
seeds = 2
"""


def tokenfield(*arguments, cwd):
    command = [sys.executable, "-m", "tokenfield", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.toml").write_text(TOML)
    return tmp_path / "grid.toml"


def test_the_commands(file, tmp_path):
    run = CliRunner()
    planned = run.invoke(cli.app, ["sweep", str(file), "--dry-run", "--quiet"])
    assert planned.exit_code == 0, planned.output
    assert "4 cells" in planned.output and "of work on one core" in planned.output
    assert not (tmp_path / "out").exists()  # nothing is stored
    done = run.invoke(cli.app, ["sweep", str(file), "--workers", "0", "--quiet"])
    assert done.exit_code == 0, done.output
    assert (tkf.open_sweep(tmp_path / "out" / "named").state == 1).all()
    shown = run.invoke(cli.app, ["info", "out/named"])
    assert shown.exit_code == 0 and "beta (2), seed (2)" in shown.output
    both = run.invoke(cli.app, ["sweep", str(file), "--workers", "1", "--scheduler", "tcp://nowhere:1"])
    assert isinstance(both.exception, tkf.InputError)


@pytest.mark.slow
def test_a_sweep_with_workers_is_the_sweep_without(file, tmp_path):
    done = tokenfield("sweep", file, "--workers", 2, "--out", tmp_path / "a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 workers at tls://127.0.0.1" in done.stdout and "dashboard: http://127.0.0.1" in done.stdout
    same(tkf.open_sweep(tmp_path / "a").drop_attrs(), tkf.sweep(file, 0, store=tmp_path / "b").drop_attrs())
    again = tokenfield("rerun", tmp_path / "a", 3, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "the same to the bit" in again.stdout


@pytest.mark.slow
def test_a_cell_that_hangs_or_kills_its_worker_fails_and_the_others_go_on(file, tmp_path, monkeypatch):
    """A cell that cannot be stopped politely is ended with its worker; one that is fatal is given up."""
    (tmp_path / "evil.py").write_text(EVIL)
    done = subprocess.run(
        [sys.executable, "evil.py"], cwd=tmp_path, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    data = tkf.open_sweep(tmp_path / "out" / "evil")
    assert data.state.values.ravel().tolist() == [2, 1, 1, 2]
    assert "its worker was ended" in str(data.status.values.ravel()[0])
    assert "its worker died, again and again" in str(data.status.values.ravel()[3])


EVIL = """
import os, sys, time
import tokenfield as tkf
from tokenfield.sweeps import grid, simulation, work

CELLS = [cell.config for cell in grid.read("grid.toml").cells]
work.GRACE = 1.0
run_one = simulation.SimulationCells.run_one

def evil(self, config, time_limit):
    if config == CELLS[0]:
        time.sleep(1000)
    if config == CELLS[3]:
        os._exit(9)
    return run_one(self, config, time_limit)

simulation.SimulationCells.run_one = evil  # in the workers as well, which import this file

if __name__ == "__main__":
    text = open("grid.toml").read().replace("time_limit = 100", "time_limit = 5")
    open("limited.toml", "w").write(text)
    tkf.sweep("limited.toml", 2, store="out/evil")
"""


@pytest.mark.parametrize("again", [False, True])
def test_a_sweep_whose_directory_is_taken_away_stops_with_a_sentence(whole, again, tmp_path):
    path, taken = tmp_path / "sweep", []

    def take_away(there, declared):
        if there == 2 and not taken:
            taken.append(1)
            shutil.rmtree(path)
            if again:
                shutil.copytree(whole[0], path)

    sentence = "was removed and made again by" if again else "was removed by"
    with pytest.raises(tkf.RunError, match=f"^stopped writing to .*sweep: the directory {sentence} somebody"):
        tkf.sweep(SMALL, 0, store=path, progress=take_away)
    if again:
        same(tkf.open_sweep(path), whole[1])
