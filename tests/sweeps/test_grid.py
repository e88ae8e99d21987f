"""What a file declares: the cells, their order, hashes and batches."""

import math
import subprocess
import sys

import numpy as np
import pytest

import tokenfield as tkf
from tests.sweeps.cases import SMALL, small
from tokenfield.registry import entries
from tokenfield.sweeps import grid as grids
from tokenfield.sweeps.axes import taken_names

TOML = """
[weights]
identity = 2
[initial]
law = "uniform"
d = 2
[times]
stop = 1.0
[model]
kind = "softmax"
[sweep]
seeds = [3, 5]
model.beta = { log = [1, 100, 3] }
[[sweep.zip]]
initial.n = [10, 20, 30]
times.stop = [1, 2, 3]
"""


def test_a_file_with_every_kind_of_axis(tmp_path):
    (tmp_path / "many.toml").write_text(TOML)
    grid = grids.read(tmp_path / "many.toml")
    assert [(axis.name, axis.coordinates) for axis in grid.axes] == [
        ("beta", ("beta",)),
        ("n_stop", ("n", "stop")),
        ("seed", ("seed",)),
    ]
    assert grid.shape == (3, 3, 2)
    assert grid.store == "many"
    found = [
        (c.settings["model"]["beta"], c.settings["initial"]["n"], c.settings["times"]["stop"])
        for c in grid.cells
    ]
    beta = [1.0, 10.0, 100.0]
    np.testing.assert_allclose(
        found, [(b, n, t) for b in beta for n, t in [(10, 1), (20, 2), (30, 3)] for _ in range(2)]
    )


def test_ranges_end_where_they_say():
    grid = grids.declare(
        small(
            sweep={
                "model": {"beta": {"linear": [0, 1, 5]}},
                "initial": {"n": {"log": [8, 32, 3], "whole": True}},
            }
        )
    )
    assert [p[0] for p in grid.axes[0].points] == [0, 0.25, 0.5, 0.75, 1]
    assert [p[0] for p in grid.axes[1].points] == [8, 16, 32]


def test_whole_sections_and_lists_can_be_swept():
    models = [{"kind": "softmax", "beta": 2.0}, {"kind": "hardmax"}, {"kind": "zero-temperature"}]
    spectra = [[1.0, 0.5], [1.0, 0.2]]
    grid = grids.declare(small(sweep={"model": models, "weights": {"V": {"diag": spectra}}, "seeds": 1}))
    assert grid.shape == (3, 2, 1)
    kinds = [cell.settings["model"]["kind"] for cell in grid.cells]
    assert kinds == ["softmax"] * 2 + ["hardmax"] * 2 + ["zero-temperature"] * 2
    assert grid.cells[3].settings["weights"]["V"]["diag"] == [1.0, 0.2]


def test_axes_are_not_called_like_what_is_measured():
    """A setting `mean` beside the measurement `mean`, a section `times` beside the times of each cell."""
    law = {"law": "von_mises_fisher", "n": 8, "kappa": 2.0, "key": 1}
    times = [{"stop": 1.0, "count": 3}, {"stop": 2.0, "count": 3}]
    sweep = {
        "initial": {"mean": [[1.0, 0.0], [0.0, 1.0]]},
        "times": times,
        "model": {"beta": [1.0]},
        "run": {"snapshots": [[0], [1]]},
    }
    config = {k: SMALL[k] for k in ("weights", "model", "solver", "run")} | {"initial": law, "sweep": sweep}
    names = [axis.name for axis in grids.declare(config).axes]
    assert names == ["initial_mean", "times_section", "beta", "run_snapshots"]
    assert set(entries("measure")) <= taken_names()


def test_a_setting_called_linear_is_no_range():
    initial = {"law": "sphere_density", "n": 18, "d": 3}
    tilts = [[0.1, 0.0, 0.0], [0.2, 0.0, 0.0]]
    config = SMALL | {
        "weights": {"identity": 3},
        "initial": initial,
        "sweep": {"initial": {"linear": tilts}, "model": {"beta": [1.0]}},
    }
    assert grids.declare(config).shape == (2, 1)


def test_a_seed_keys_everything_random_apart():
    config = small(weights={"V": {"gaussian": 2}, "B": {"goe": 2, "key": 7}}, sweep={"seeds": 3})
    cells = grids.declare(config).cells
    keys = {(c.settings["weights"]["V"]["key"], c.settings["initial"]["key"]) for c in cells}
    assert len(keys) == 3
    assert all(a != b for a, b in keys)
    assert {c.settings["weights"]["B"]["key"] for c in cells} == {7}  # it had one of its own


def test_noise_is_seeded_and_never_batched():
    solver = {"kind": "strang", "step": 0.25}
    grid = grids.declare(
        SMALL | {"noise": {"kappa": 5.0}, "solver": solver, "sweep": {"model": {"beta": [1.0]}, "seeds": 40}}
    )
    assert len({c.settings["solver"]["key"] for c in grid.cells}) == 40
    assert {b.size for b in grid.batches} == {1}


def test_hashes_depend_on_the_run_alone():
    first = grids.declare(small())
    spelled = small(solver={"step": 0.25}, run={"summation": "auto", "measure": ["order_parameter", "mean"]})
    again = grids.declare({k: spelled[k] for k in reversed(spelled)})
    assert [c.id for c in first.cells] == [c.id for c in again.cells]
    assert len({c.id for c in first.cells}) == 12
    other = grids.declare(small(solver={"step": 0.125}))
    assert not {c.id for c in first.cells} & {c.id for c in other.cells}


@pytest.mark.slow
def test_hashes_and_batches_are_those_of_another_process():
    code = (
        "from tests.sweeps.cases import SMALL; from tokenfield.sweeps.grid import declare; g = declare(SMALL);"
        "print([(b.size, [c.id for c in b.cells]) for b in g.batches])"
    )
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    mine = [(b.size, [c.id for c in b.cells]) for b in grids.declare(SMALL).batches]
    assert seen.stdout.strip() == repr(mine)


def test_batches_hold_each_cell_once_and_only_alike_ones():
    grid = grids.declare(
        small(sweep={"seeds": 40, "initial": {"n": [8, 9, 200]}, "model": {"beta": [1.0, 2.0]}})
    )
    batches = grid.batches
    assert sorted(c.id for b in batches for c in b.cells) == sorted(c.id for c in grid.cells)
    for batch in batches:
        sizes = {c.settings["initial"]["n"] for c in batch.cells}
        assert len(sizes) == 1
        assert len(batch.cells) <= batch.size
        assert batch.size == (1 if sizes == {200} else math.ceil(80 / 16))


BAD = {
    "nothing": ({"seeds": []}, "`sweep.seeds` must hold at least one seed"),
    "text": ({"seeds": "many"}, "`sweep.seeds` must be a whole number"),
    "empty": ({"model": {"beta": []}}, "`sweep.model.beta` must hold at least one value"),
    "scalar": ({"model": {"beta": 3.0}}, "`sweep.model.beta` must be a list, or a range"),
    "range": ({"model": {"beta": {"log": [0, 1, 3]}}}, "`sweep.model.beta` must begin and end at positive"),
    "count": ({"model": {"beta": {"linear": [0, 1, 1.5]}}}, "whole number"),
    "spacing": ({"model": {"beta": {"log": [1, 2]}}}, "must be { linear"),
    "section": ({"modell": {"beta": [1.0]}}, "`sweep.modell.beta` must be a setting of weights, model"),
    "setting": ({"model": {"betta": [1.0]}}, "did you mean `beta`"),
    "value": ({"model": {"beta": [1.0, "__import__('os').abort()"]}}, "`model.beta` must be a valid number"),
    "built": ({"model": {"beta": [float("-inf")]}}, "`beta` must be a finite number or infinity"),
    "twice": ({"model": {"beta": [2.0, 2.0]}}, "same cell twice"),
    "lengths": ({"zip": [{"initial": {"n": [8, 9]}, "times": {"stop": [1.0]}}]}, "lists of one length"),
    "lonely": ({"zip": [{"initial": {"n": [8, 9]}}]}, "at least two settings"),
    "unzipped": ({"zip": {"initial": {"n": [8, 9]}}}, "write \\[\\[sweep.zip\\]\\]"),
    "both": (
        {"initial": {"n": [8, 9]}, "zip": [{"initial": {"n": [8]}, "times": {"stop": [1.0]}}]},
        "each setting once",
    ),
    "within": (
        {
            "weights": {"V": [{"identity": 2}]},
            "zip": [{"weights": {"V": {"diag": [[1, 2]]}}, "times": {"stop": [1.0]}}],
        },
        "each setting once",
    ),
    "limit": ({"time_limit": -3}, "`sweep.time_limit` must be a positive number"),
    "many": ({"seeds": 2000, "model": {"beta": {"linear": [0, 1, 1000]}}}, "at most 1000000 cells"),
    "nothing random": ({"initial": {"key": [1, 2]}}, "`sweep.seeds` must have something random"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_declared_is_one_sentence(case):
    changes, sentence = BAD[case]
    with pytest.raises(tkf.InputError, match=sentence) as error:
        grids.declare(small(sweep={"model": {"beta": [1.0]}} | changes))
    assert all(line.startswith("`") for line in str(error.value).splitlines())


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/x", "a/b", "..", ".", ".hidden", "", "a\\b", "a\nb", "~", "-rf", "x" * 81, 3, "$HOME"],
)
def test_names_cannot_leave_the_output_directory(name):
    with pytest.raises(tkf.InputError, match="^`sweep.store` must be a plain name"):
        grids.declare(small(sweep={"store": name}))


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(tkf.InputError, match="readable TOML file"):
        grids.read(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("[sweep")
    with pytest.raises(tkf.InputError, match="must be a TOML file"):
        grids.read(tmp_path / "bad.toml")


def test_cells_are_found_by_number_or_hash():
    grid = grids.declare(SMALL)
    assert grid.find("3") is grid.cells[3]
    assert grid.find(grid.cells[5].id[:10]) is grid.cells[5]
    with pytest.raises(tkf.InputError, match="^`cell` must be a number below 12"):
        grid.find("99")


def test_cells_that_were_stored_by_earlier_versions_are_found():
    """Hashes on disk, written before cells were typed: a change of them would orphan every stored sweep."""
    first, *_, last = grids.declare(SMALL).cells
    assert (first.id, last.id) == ("48eb64704d52598c1185399ee1c1f559", "748f68e811b212459d847550fe722748")
    assert grids.declare(SMALL).digest == "b5df259b87ab13cde2b8f34a5fb05e512a98eafb9f2cf7192c0afe3b3d8d5252"
