"""Sealed stores: what was edited or put in another place is refused by name, and counts agree."""

import json
import shutil

import numpy as np
import pytest
import zarr
from typer.testing import CliRunner

import tokenfield as tkf
from tests.runs.test_store import run, same
from tests.runs.test_store_trouble import cut, rewrite
from tests.sweeps.cases import SMALL
from tokenfield import cli
from tokenfield.runs import store


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A complete run, another one, and one that was cut; a file for every record."""
    folder = tmp_path_factory.mktemp("sealed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "CHUNK_BYTES", 1)
        run(folder / "whole")
        run(folder / "other", beta=4.5)
        cut(folder / "cut", patch)
        cut(folder / "other_cut", patch, beta=4.5)
    return folder


def copy(stored, tmp_path, name):
    shutil.copytree(stored / name, tmp_path / "run")
    return tmp_path / "run"


def swap(a, b):
    content = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(content)


def chunk(path, name, k, *rest):
    return (path / "data.zarr" / name / "c").joinpath(str(k), *rest)


def edit_values(path):
    group = zarr.open_group(path / "data.zarr", mode="r+")
    group["R"][7] = 0.123


def edit_fixed(path):
    group = zarr.open_group(path / "data.zarr", mode="r+")
    group["weights"][:] = np.full(15, 1 / 15) + 1e-16


def edit_axes(path):
    file = path / "data.zarr" / "R" / "zarr.json"
    file.write_text(file.read_text().replace('"time"', '"tim3"'))


EDITS = {
    "a value": (edit_values, "R/c/7"),
    "a weight": (edit_fixed, "weights/c/0"),
    "two records of one array swapped": (lambda p: swap(chunk(p, "R", 3), chunk(p, "R", 4)), "R/c/3"),
    "an array of another run": (
        lambda p: shutil.copy(chunk(p.parent / "other", "x", 5, "0", "0"), chunk(p, "x", 5, "0", "0")),
        "x/c/5/0/0",
    ),
    "the name of an axis": (edit_axes, "R/zarr.json"),
}


@pytest.mark.parametrize("which", ["whole", "cut"])
@pytest.mark.parametrize("edit", EDITS)
def test_edited_and_swapped_files_are_refused_by_name(stored, tmp_path, edit, which):
    path = copy(stored, tmp_path, which)
    shutil.copytree(stored / "other", tmp_path / "other")
    change, name = EDITS[edit]
    change(path)
    uses = [lambda: tkf.load(path), lambda: cli.info(path, verify=True)]
    if which == "cut":
        uses.append(lambda: run(path, resume=True))
    for use in uses:
        with pytest.raises(
            tkf.InputError, match="^`path` must be a stored run as it was written, but"
        ) as error:
            use()
        assert name in str(error.value)


@pytest.mark.parametrize("entry", ["reached", "status", "inputs", "settings", "chunks"])
def test_an_edited_manifest_is_refused_by_name(stored, tmp_path, entry):
    path = copy(stored, tmp_path, "whole")
    file = path / "manifest.json"
    content = json.loads(file.read_text())
    content[entry] = {"reached": 40, "status": "perfect"}.get(entry, {})
    file.write_text(json.dumps(content))
    for use in (lambda: tkf.load(path), lambda: cli.info(path), lambda: run(path, resume=True)):
        with pytest.raises(tkf.InputError, match="manifest.json was changed by hand$"):
            use()


def test_an_edited_or_foreign_checkpoint_is_refused_by_name(stored, tmp_path):
    path = copy(stored, tmp_path, "cut")
    file = path / "checkpoint.npz"
    with np.load(file) as arrays:
        changed = dict(arrays)
    changed["seconds"] = changed["seconds"] + 1
    np.savez(file, **changed)
    with pytest.raises(tkf.InputError, match="checkpoint.npz was changed by hand$"):
        run(path, resume=True)
    shutil.copy(stored / "other_cut" / "checkpoint.npz", file)
    with pytest.raises(tkf.InputError, match="checkpoint.npz belongs to another run$"):
        run(path, resume=True)
    with pytest.raises(tkf.InputError, match="checkpoint.npz belongs to another run$"):
        cli.info(path, verify=True)


@pytest.mark.parametrize("counts", [{"reached": 30}, {"written": {"x": 41, "R": 30, "mean": 41}}])
def test_written_and_reached_agree(stored, tmp_path, counts):
    path = copy(stored, tmp_path, "whole")
    rewrite(path, **counts)
    with pytest.raises(tkf.InputError, match="^`path` must be a stored run whose counts agree"):
        tkf.load(path)


def test_snapshots_that_are_due_are_there(stored, tmp_path):
    path = copy(stored, tmp_path, "whole")
    rewrite(path, written={"x": 40, "R": 41, "mean": 41})
    with pytest.raises(tkf.InputError, match="has 40 snapshots where 41 are due after 41 times"):
        tkf.load(path)


def test_info_verifies_every_chunk(stored):
    shown = CliRunner().invoke(cli.app, ["info", str(stored / "whole"), "--verify"])
    assert shown.exit_code == 0, shown.output
    assert f"all {3 * 41 + 3} chunks are as they were written" in shown.output  # and three fixed arrays
    shown = CliRunner().invoke(cli.app, ["info", str(stored / "cut"), "--verify"])
    assert shown.exit_code == 0, shown.output


def test_info_verifies_the_cells_of_a_sweep(tmp_path):
    tkf.sweep(SMALL, 0, store=tmp_path / "sweep")
    cli.info(tmp_path / "sweep", verify=True)
    cell = sorted((tmp_path / "sweep" / "cells").glob("*.cell"))[3]
    cell.write_bytes(cell.read_bytes()[:-1] + b"x")
    with pytest.raises(tkf.InputError, match=f"{cell.name} is damaged"):
        cli.info(tmp_path / "sweep", verify=True)


def test_a_store_without_seals_is_read_but_not_gone_on_with(stored, tmp_path):
    path = copy(stored, tmp_path, "cut")
    content = json.loads((path / "manifest.json").read_text())
    old = {k: v for k, v in content.items() if k not in ("seal", "chunks", "files")}
    (path / "manifest.json").write_text(json.dumps(old | {"format": "tokenfield run 1"}))
    same(tkf.load(path), tkf.load(stored / "cut"))
    with pytest.raises(tkf.InputError, match="must be a store of format 'tokenfield run 2' to be gone on"):
        run(path, resume=True)
