"""The command line as a person types it."""

import contextlib
import io
import json
import subprocess
import sys
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

import tokenfield as tkf
from tokenfield import cli, figures
from tokenfield.config import reading as config
from tokenfield.papers import catalogue, recipe

CONFIG = """
[weights]
V = { diag = [1.0, 0.5] }
B = { diag = [0.5, 2.0] }
[model]
kind = "softmax"
beta = 10.0
[initial]
law = "circle_density"
n = 40
cos = [0.3]
[times]
stop = 2.0
count = 5
"""


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def tokenfield(*arguments, cwd="."):
    """The command, in this process: a new one would spend seconds on imports."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["tokenfield", *map(str, arguments)]),
    ):
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def test_the_module_is_the_command(tmp_path):
    command = [sys.executable, "-m", "tokenfield", "info", "absent"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 2
    assert done.stderr == "tokenfield: `path` must be a stored run, but absent does not exist\n"


@pytest.fixture
def case(tmp_path):
    path = tmp_path / "case.toml"
    path.write_text(CONFIG)
    return path


def test_simulate_then_info(case, tmp_path):
    done = tokenfield("simulate", case, "--figure", tmp_path / "case.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "reached t = 2 as asked" in done.stdout
    assert (tmp_path / "case.png").read_bytes().startswith(b"\x89PNG")
    stored = tkf.load(tmp_path / "out" / "case")
    np.testing.assert_array_equal(stored.x, tkf.simulate(**config.read(case).arguments()).x)
    shown = tokenfield("info", tmp_path / "out" / "case")
    assert shown.returncode == 0
    for word in ("5 of 5", "SoftmaxAttention", "jax"):
        assert word in shown.stdout


def test_a_second_run_into_the_same_place_is_refused(case, tmp_path):
    assert tokenfield("simulate", case, "--out", tmp_path / "a", "--quiet").returncode == 0
    before = json.loads((tmp_path / "a" / "manifest.json").read_text())
    again = tokenfield("simulate", case, "--out", tmp_path / "a", "--quiet")
    assert again.returncode == 2
    assert again.stderr.startswith("tokenfield: `path` must be new or an empty directory")
    assert "Traceback" not in again.stderr
    assert json.loads((tmp_path / "a" / "manifest.json").read_text()) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["simulate", "absent.toml"], "`config` must be a readable TOML file, but absent.toml is not"),
        (["info", "absent"], "`path` must be a stored run, but absent does not exist"),
    ],
)
def test_mistakes_are_one_sentence_on_standard_error(arguments, words, tmp_path):
    done = tokenfield(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["case.jpg", "case", "case.tar.gz"])
def test_a_figure_that_cannot_be_written_is_refused_before_the_run(name, case, tmp_path):
    done = tokenfield("simulate", case, "--figure", tmp_path / name, "--out", tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 2
    assert "`path` must end in .png, .pdf, .svg, .gif or .mp4, but was" in done.stderr
    assert not (tmp_path / "run").exists()


def test_endings_may_be_capitals():
    assert figures.is_film("a.GIF")
    assert not figures.is_film("b/a.PNG")


def test_help_names_every_command():
    shown = tokenfield("--help").stdout
    for word in ("demo", "reproduce", "simulate", "info"):
        assert word in shown


def test_reproduce_lists_its_recipes():
    shown = tokenfield("reproduce")
    assert shown.returncode == 0
    for known in catalogue.RECIPES:
        assert known.name in shown.stdout


def test_reproduce_runs_one_writes_it_and_complains_of_what_failed(tmp_path, monkeypatch, capsys):
    """In this process, with a recipe of its own: one check of two fails."""
    checks = [recipe.near("good", 1.0, 1.0, "s"), recipe.near("bad", 1.0, 2.0, "s")]

    def run(quick, progress):
        progress(0.5, "half")
        return recipe.Result(checks, [{"a": 1}], xr.Dataset({"a": 1.0}), Figure())

    monkeypatch.setattr(catalogue, "RECIPES", (recipe.Recipe("mine", "a line", run),))
    for name in ("mine", "all"):
        with pytest.raises(tkf.RunError, match="1 of 2 checks do not agree"):
            cli.reproduce(name, tmp_path, quick=True, quiet=True)
    assert (tmp_path / "mine" / "verdict.json").exists()
    assert 'src="mine/figure.png"' in (tmp_path / "index.html").read_text()
    assert "index.html" in capsys.readouterr().out


def test_reproduce_refuses_an_unknown_name(tmp_path):
    done = tokenfield("reproduce", "scalling", cwd=tmp_path)
    assert done.returncode == 2 and "did you mean 'scaling'?" in done.stderr
    assert done.stderr.count("\n") == 1 and list(tmp_path.iterdir()) == []


def test_an_interrupt_that_the_garbage_collector_swallows_still_stops_the_program():
    """Python discards exceptions in callbacks of the collector; a sweep once went on after Ctrl-C."""
    program = """
import gc, signal, time
from tokenfield import cli

def collected(phase, info):
    if phase == "start" and not sent:
        sent.append(True)
        signal.raise_signal(signal.SIGINT)

def app():
    gc.callbacks.append(collected)
    gc.collect()
    time.sleep(60)

sent = []
cli.app = app
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert done.returncode == 130, done.stderr
    assert done.stderr.startswith("tokenfield: interrupted;") and done.stderr.count("\n") == 1
