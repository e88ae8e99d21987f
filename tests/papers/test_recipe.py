"""The frame around recipes: what is written, what is refused, what a verdict says."""

import ast
import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

import tokenfield as tkf
from tests.sweeps import cases
from tokenfield import cli
from tokenfield.papers import catalogue, recipe
from tokenfield.papers.low_temperature import demo as headline
from tokenfield.papers.recipe import Recipe, Result, at_least, at_most, near

FILES = ["data.zarr", "figure.pdf", "figure.png", "table.csv", "verdict.json"]


def silent(done, what):
    assert 0 <= done <= 1 and what


def result(value=1.0):
    figure = Figure()
    figure.subplots().plot([0, 1], [0, value])
    checks = [near("one", value, 1.0, "arithmetic", relative=0.01), at_most("two", 1.0, 2.0, "a < b & c")]
    data = xr.Dataset({"y": ("x", [value, 2.0])}, {"x": [0.0, 1.0]})
    return Result(checks, [{"x": 0, "y": value}, {"x": 1, "z": "last"}], data, figure)


def small(value=1.0, name="small"):
    def run(quick, progress):
        progress(0.5, "half")
        return result(value)

    return Recipe(name, "a small one", run)


def test_a_recipe_leaves_its_files(tmp_path):
    outcome = recipe.reproduce(small(), tmp_path, True, silent)
    assert outcome.passed and outcome.path == tmp_path / "small"
    assert sorted(p.name for p in outcome.path.iterdir()) == FILES
    assert [p.name for p in tmp_path.iterdir()] == ["small"]
    verdict = json.loads((outcome.path / "verdict.json").read_text())
    assert verdict["recipe"] == "small" and verdict["quick"] and verdict["passed"]
    first = verdict["checks"][0]
    assert first == {
        "name": "one",
        "measured": 1.0,
        "predicted": 1.0,
        "tolerance": 0.01,
        "passed": True,
        "source": "arithmetic",
        "relation": "≈",
    }
    with (outcome.path / "table.csv").open() as file:
        assert list(csv.reader(file)) == [["x", "y", "z"], ["0", "1.0", ""], ["1", "", "last"]]
    with xr.open_zarr(outcome.path / "data.zarr", consolidated=False, chunks=None) as data:
        np.testing.assert_array_equal(data.y, [1.0, 2.0])
    assert (outcome.path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (outcome.path / "figure.pdf").read_bytes().startswith(b"%PDF")


def test_a_failed_check_stays_failed_and_a_new_result_replaces_the_old(tmp_path):
    assert not recipe.reproduce(small(3.0), tmp_path, False, silent).passed
    verdict = json.loads((tmp_path / "small" / "verdict.json").read_text())
    assert not verdict["passed"] and [c["passed"] for c in verdict["checks"]] == [False, True]
    assert recipe.reproduce(small(), tmp_path, False, silent).passed
    assert json.loads((tmp_path / "small" / "verdict.json").read_text())["passed"]
    assert [p.name for p in tmp_path.iterdir()] == ["small"]


def gridded(run):
    """A recipe that needs a sweep of three runs."""
    return Recipe(
        "gridded",
        "a grid",
        run,
        lambda quick: {
            "runs": cases.small(initial={"key": 1}, sweep={"seeds": None, "model": {"beta": [1.0, 2.0, 3.0]}})
        },
    )


def test_a_recipe_that_is_a_grid_is_given_its_sweep_and_goes_on_where_it_was_stopped(tmp_path):
    seen = []

    def stopped(quick, progress, found):
        raise KeyboardInterrupt

    def run(quick, progress, found):
        assert {p: p.stat().st_ino for p in kept} == kept, "what was there was computed again"
        seen.append(found["runs"])
        return result()

    with pytest.raises(KeyboardInterrupt):
        recipe.reproduce(gridded(stopped), tmp_path, True, silent)
    cells = list(tmp_path.glob(".gridded.cells/runs-*/cells/*.cell"))
    assert len(cells) == 3
    cells[0].unlink()
    kept = {p: p.stat().st_ino for p in cells[1:]}
    recipe.reproduce(gridded(run), tmp_path, True, silent)
    assert [p.name for p in tmp_path.iterdir()] == ["gridded"]
    (data,) = seen
    assert data.beta.values.tolist() == [1.0, 2.0, 3.0] and np.isfinite(data.order_parameter).all()


def test_a_cell_that_fails_fails_the_recipe(tmp_path):
    bad = cases.small(initial={"key": 1}, sweep={"seeds": None, "model": {"beta": [1.0]}, "time_limit": 1e-9})
    broken = Recipe("broken", "", lambda *_: pytest.fail("it ran"), lambda quick: {"runs": bad})
    with pytest.raises(tkf.RunError, match="^a cell of the sweep 'runs' failed: .*time limit"):
        recipe.reproduce(broken, tmp_path, True, silent)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: p.write_text("x"),
        lambda p: (p.mkdir(), (p / "a").write_text("x")),
        lambda p: (p.mkdir(), (p / "verdict.json").write_text('{"format": 1}')),
        lambda p: p.symlink_to("nowhere"),
    ],
)
def test_a_foreign_place_is_refused_before_the_run(make, tmp_path):
    make(tmp_path / "small")
    with pytest.raises(
        tkf.InputError, match="^`out` must have room for a result, but .*small holds something"
    ):
        recipe.reproduce(Recipe("small", "", lambda *_: pytest.fail("it ran")), tmp_path, True, silent)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_recipe_that_breaks_leaves_nothing_and_keeps_the_old_result(tmp_path):
    def broken(quick, progress):
        raise tkf.RunError("stopped")

    recipe.reproduce(small(), tmp_path, True, silent)
    with pytest.raises(tkf.RunError):
        recipe.reproduce(Recipe("small", "", broken), tmp_path, True, silent)
    unwritable = Result([], [], xr.Dataset({"a": ("x", np.array([object()]))}), Figure())
    with pytest.raises(Exception):  # noqa: B017 (whatever zarr says of an object)
        recipe.reproduce(Recipe("small", "", lambda *_: unwritable), tmp_path, True, silent)
    assert [p.name for p in tmp_path.iterdir()] == ["small"]
    assert json.loads((tmp_path / "small" / "verdict.json").read_text())["passed"]


def test_checks():
    assert (
        near("", 1.009, 1.0, "", relative=0.01).passed and not near("", 1.011, 1.0, "", relative=0.01).passed
    )
    assert near("", -0.2, 0.0, "", absolute=0.2).passed
    assert not near("", np.nan, 1.0, "", relative=9.0).passed and not at_least("", np.nan, 0.0, "").passed
    assert at_least("", 2.0, 2.0, "").passed and not at_most("", 2.1, 2.0, "").passed
    assert near("", 1, 2, "", absolute=0.5).expected == "2 ± 0.5" and at_most("", 1, 2, "").expected == "≤ 2"


def test_not_a_number_is_a_word_in_the_verdict(tmp_path):
    outcome = recipe.reproduce(small(np.nan), tmp_path, True, silent)
    assert not outcome.passed
    text = (outcome.path / "verdict.json").read_text()
    assert json.loads(text)["checks"][0]["measured"] == "nan"


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(tkf.InputError, match="but was 'concentation'; did you mean 'concentration'"):
        recipe.find(catalogue.RECIPES, "concentation")
    with pytest.raises(tkf.InputError, match="did you mean"):
        recipe.find(catalogue.RECIPES, "?")
    assert recipe.find(catalogue.RECIPES, "scaling").name == "scaling"


def test_names_are_unique_directory_names():
    names = [r.name for r in catalogue.RECIPES]
    assert len(set(names)) == len(names) and "all" not in names
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for name in names)
    assert all(0 < len(r.line) <= 110 and "\n" not in r.line for r in catalogue.RECIPES)


def test_the_catalogue_names_every_module_with_a_recipe():
    folder = Path(catalogue.__file__).parent
    modules = [path for path in folder.glob("*/*.py") if "\nRECIPE = " in path.read_text(encoding="utf8")]
    named = {f"{path.parent.name}.{path.stem}" for path in modules}
    assert set(catalogue.MODULES.values()) == named
    assert [r.name for r in catalogue.recipes()] == list(catalogue.MODULES)


def test_a_recipe_is_imported_when_it_is_asked_for():
    code = (
        "import sys; from tokenfield.papers import catalogue; catalogue.find('laplace');"
        "print([m for m in sys.modules if m.startswith('tokenfield.papers.') and m.count('.') == 3])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    expected = {f"tokenfield.papers.low_temperature.{name}" for name in ("laplace", "worked")}
    assert set(ast.literal_eval(done.stdout)) == expected, done.stderr
    with pytest.raises(tkf.InputError, match="but was 'laplas'; did you mean 'laplace'"):
        catalogue.find("laplas")


def test_the_page_stands_alone(tmp_path):
    outcomes = [
        recipe.reproduce(small(v, n), tmp_path, True, silent) for v, n in ((1.0, "good"), (3.0, "bad"))
    ]
    text = recipe.page(outcomes, tmp_path).read_text()
    assert "http" not in text and "<script" not in text
    assert 'src="good/figure.png"' in text and "a &lt; b &amp; c" in text
    assert text.count('class="failed"') == 1 and "1 of 2 checks passed" in text


def test_a_persons_own_file_beside_a_result_is_not_deleted(tmp_path):
    notes = recipe.reproduce(small(), tmp_path, True, silent).path / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(tkf.InputError, match=r"^`out` must have room .* holds notes.txt, which is not one"):
        recipe.reproduce(small(), tmp_path, True, silent)
    assert notes.read_text() == "mine"


@pytest.mark.parametrize("command", [["reproduce", "laplace", "--quick"], ["demo"]])
def test_a_file_in_the_place_of_the_directory_is_said_before_the_run(command, tmp_path, monkeypatch):
    monkeypatch.setattr(headline, "demo", lambda *_: pytest.fail("it ran"))
    monkeypatch.setattr(recipe, "_run", lambda *_: pytest.fail("it ran"))
    (tmp_path / "file").write_text("x")
    with pytest.raises(tkf.InputError, match="^`out` must be a directory that can be made"):
        cli.app([*command, "--out", str(tmp_path / "file")], standalone_mode=False)
