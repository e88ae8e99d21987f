"""What a person may name as a file: regular ones below a stated size, and names that a disk can have."""

import os
from pathlib import Path

import pytest

import tokenfield as tkf
from tests.runs.test_store import run
from tokenfield import cli
from tokenfield.lab.source import source
from tokenfield.runs import files
from tokenfield.sweeps import grid

READERS = {
    "simulate": lambda path: cli.config.read(path),
    "sweep": grid.read,
    "lab": source,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("what", ["pipe", "device", "large", "directory", "socket"])
def test_only_regular_files_of_a_stated_size_are_read(tmp_path, reader, what):
    if what == "directory" and reader == "lab":
        pytest.skip("the lab plays directories")
    path = _make(tmp_path / "case.toml", what)
    with pytest.raises(tkf.InputError, match=r"^`(config|path)` must be a (regular )?file") as error:
        READERS[reader](path)
    assert len(str(error.value)) < 400


def _make(path, what):
    if what == "device":
        return Path("/dev/zero")
    if what == "pipe":
        os.mkfifo(path)
    elif what == "directory":
        path.mkdir()
    elif what == "socket":
        import socket

        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(path))
    else:
        with open(path, "wb") as file:
            file.truncate(2**40)  # takes no room on disk
    return path


@pytest.mark.parametrize(
    "name", ["manifest.json", "checkpoint.npz", "data.zarr/x/zarr.json", "data.zarr/R/c/0"]
)
@pytest.mark.parametrize("link", [False, True])
def test_a_store_with_a_pipe_or_device_inside_is_one_sentence(tmp_path, name, link):
    run(tmp_path / "run")
    path = tmp_path / "run" / name
    path.unlink()
    path.symlink_to("/dev/zero") if link else os.mkfifo(path)
    with pytest.raises(tkf.InputError, match="^`path` must "):
        cli.info(tmp_path / "run", verify=True)


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "x/" + "b" * 256])
def test_names_that_no_disk_can_have_are_one_sentence(name, tmp_path):
    for use in (
        lambda: run(tmp_path / name),
        lambda: tkf.load(f"{tmp_path}/{name}"),
        lambda: cli.info(Path(f"{tmp_path}/{name}")),
        lambda: cli.config.read(f"{tmp_path}/{name}"),
        lambda: source(f"{tmp_path}/{name}"),
        lambda: tkf.open_sweep(f"{tmp_path}/{name}"),
    ):
        with pytest.raises(tkf.InputError, match="must be a path (without|of names)"):
            use()
    assert not list(tmp_path.iterdir())


def test_a_name_that_leaves_no_room_for_drafts_is_one_sentence(tmp_path):
    with pytest.raises(tkf.RunError, match="could not write to .*File name too long"):
        run(tmp_path / ("a" * 250))


def test_a_file_that_grows_is_cut_off(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"a" * 11)
    assert files.read_regular(path, "path", 11) == b"a" * 11
    with pytest.raises(tkf.InputError, match="at most 10 bytes"):
        files.read_regular(path, "path", 10)
