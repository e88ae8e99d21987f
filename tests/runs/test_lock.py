"""One process at a time: a directory that is taken away during a run is noticed, on any system."""

import ast
import shutil
from pathlib import Path

import pytest

import tokenfield as tkf
from tests.runs.test_store import run, same

SOURCE = Path(tkf.__file__).parent
#: Modules of Python that exist on some systems only.
POSIX_ONLY = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}


def at_time(k, action):
    """A measurement that does something to the disk when the k-th time is measured."""
    seen = []

    def measured(tokens):
        seen.append(1)
        if len(seen) == k:
            action()
        return 0.0

    return {"R": tkf.order_parameter, "trouble": measured}


def contents(path):
    return {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != ".lock"}


@pytest.mark.parametrize("write_every", [0.0, 1000.0])
def test_a_directory_made_again_by_another_run_is_left_alone(tmp_path, monkeypatch, write_every):
    """Whether the other run is noticed between two writes or only at the last one."""
    monkeypatch.setattr("tokenfield.runs.record.WRITE_EVERY", write_every)
    run(tmp_path / "other", beta=5.0)
    path = tmp_path / "run"

    def replace():
        shutil.rmtree(path)
        shutil.copytree(tmp_path / "other", path)

    with pytest.raises(tkf.RunError, match="^stopped writing to .*run: the directory was removed and made"):
        run(path, measure=at_time(20, replace))
    assert contents(path) == contents(tmp_path / "other")
    same(tkf.load(path), tkf.load(tmp_path / "other"))


@pytest.mark.parametrize("write_every", [0.0, 1000.0])
def test_a_directory_removed_during_a_run_is_one_sentence(tmp_path, monkeypatch, write_every):
    monkeypatch.setattr("tokenfield.runs.record.WRITE_EVERY", write_every)
    path = tmp_path / "run"
    with pytest.raises(tkf.RunError, match="^stopped writing to .*run: the directory was removed by some"):
        run(path, measure=at_time(20, lambda: shutil.rmtree(path)))
    assert not path.exists()


def test_nothing_that_only_some_systems_have_is_imported():
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not POSIX_ONLY & {name.partition(".")[0] for name in names}, file
