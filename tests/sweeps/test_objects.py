"""Sweeps of objects: the runs that `simulate` gives, stored as data, gone on with by whoever has the objects."""

import functools
import json

import numpy as np
import pytest

import tokenfield as tkf
from tests.sweeps.cases import SMALL
from tokenfield.models.attention import InteractionFlow
from tokenfield.sweeps import dataset, drive, work
from tokenfield.sweeps.objects import declare_runs
from tokenfield.sweeps.repeat import rerun

WEIGHTS = tkf.AttentionWeights(np.diag([0.5, 2.0]), np.diag([1.0, 0.5]))
TS = np.linspace(0, 2, 9)
SOLVER = tkf.Layers(0.25)
BETAS = {1.0: None, 10.0: None}


def model(beta):
    return tkf.SoftmaxAttention(WEIGHTS, beta)


def tokens(key, n=8):
    return tkf.initial.uniform(n, 2, key)


def grid(**changes):
    many = {"model": {beta: model(beta) for beta in BETAS}, "tokens": [tokens(1), tokens(2), tokens(3)]}
    return declare_runs(
        **many | {"ts": TS, "solver": SOLVER, "measure": ["order_parameter", "mean"]} | changes
    )


def row(k):
    return lambda t: t.x[k]


def cubed(t):
    return t.moments().mean ** 3


def test_every_cell_is_the_run_of_its_objects(tmp_path):
    data = tkf.sweep(grid(snapshots=[0, -1]), 0, store=tmp_path / "s")
    assert data["mean"].dims == ("model", "tokens", "time", "mean_1") and data.model.values.tolist() == [
        1,
        10,
    ]
    for beta in BETAS:
        for k in range(3):
            run = tkf.simulate(
                model(beta), tokens(k + 1), TS, SOLVER, measure={"mean": lambda t: t.moments().mean}
            )
            cell = data.sel(model=beta).isel(tokens=k)
            np.testing.assert_allclose(cell["mean"], run.measured["mean"], atol=1e-13)
            found = dataset.trajectory(cell)
            np.testing.assert_allclose(found.x, run.x[[0, -1]], atol=1e-13)
            assert str(cell.status.values) == run.status


def test_a_sweep_of_objects_is_that_of_the_file_that_says_the_same(tmp_path):
    """The same runs in the same batches: equal to the bit."""
    laws = [{"law": "uniform", "n": 8, "d": 2, "key": key} for key in range(20)]
    file = SMALL | {"sweep": {"model": {"beta": [1.0, 10.0]}, "initial": laws}}
    said = tkf.sweep(file, 0, store=tmp_path / "file")
    same = grid(tokens=[tokens(key) for key in range(20)])
    assert [len(b.cells) for b in same.batches] == [3] * 13 + [1]
    made = tkf.sweep(same, 0, store=tmp_path / "objects")
    np.testing.assert_array_equal(made.order_parameter, said.order_parameter)
    np.testing.assert_array_equal(made.steps, said.steps)


def test_it_goes_on_where_it_was_stopped_and_others_can_look(tmp_path, monkeypatch):
    whole = tkf.sweep(grid(), 0, store=tmp_path / "s")
    assert tkf.open_sweep(tmp_path / "s").identical(whole)
    cells = sorted((tmp_path / "s" / "cells").iterdir())
    cells[2].unlink()
    computed, compute = [], work.compute
    monkeypatch.setattr(work, "compute", lambda task: computed.append(task) or compute(task))
    assert tkf.sweep(grid(), 0, store=tmp_path / "s").identical(whole)
    assert len(computed) == 1
    monkeypatch.setattr(drive, "executor_of", None)  # nobody is asked to compute
    assert tkf.sweep(grid(), 0, store=tmp_path / "s").identical(whole)
    with pytest.raises(tkf.InputError, match="`store` must hold the same sweep"):
        tkf.sweep(grid(solver=tkf.Layers(0.125)), 0, store=tmp_path / "s")
    with pytest.raises(tkf.InputError, match="is one of objects, which are not on disk"):
        rerun(tmp_path / "s", "0", 0)


def test_what_is_stored_is_data(tmp_path):
    flow = InteractionFlow(lambda s: s**3 / 3, np.eye(2))
    tkf.sweep(flow, 0, tokens=tokens(1), ts=TS, measure={"cubed": cubed}, store=tmp_path / "s")
    (cell,) = (tmp_path / "s" / "cells").iterdir()
    settings = json.loads(cell.read_bytes().splitlines()[1])["settings"]
    assert settings["tokens"]["kind"] == "Tokens" and settings["measure"]["cubed"]["function"].endswith(
        "cubed"
    )
    for file in (tmp_path / "s").rglob("*"):
        assert file.is_dir() or b"cloudpickle" not in file.read_bytes()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda t: t.moments().mean, lambda t: t.moments().second),
        (lambda t: t.x[0], lambda t: t.x[1]),
        (functools.partial(np.asarray, dtype=float), functools.partial(np.asarray, dtype=int)),
        (row(0), row(1)),
    ],
)
def test_functions_are_told_apart_by_what_they_do(one, other):
    ids = {grid(measure={"f": f}).cells[0].id for f in (one, other)}
    assert len(ids) == 2


def test_lists_may_go_together(tmp_path):
    ts = [[0.0, 1.0], [0.0, 0.5, 2.0]]
    data = tkf.sweep(
        [model(1.0), model(5.0)],
        0,
        tokens=[tokens(1), tokens(2, 5)],
        ts=ts,
        solver=SOLVER,
        snapshots=None,
        together=True,
        store=tmp_path / "s",
    )
    assert data.state.dims == ("run",)
    for k, run in enumerate(data.run.values):
        found = dataset.trajectory(data.sel(run=run))
        assert found.ts.tolist() == ts[k] and found.x.shape[1] == (8, 5)[k]


def test_what_cannot_be_batched_is_alone():
    assert {len(b.cells) for b in grid(measure={"f": cubed}).batches} == {1}
    noisy = [tkf.Strang(0.25, key) for key in range(20)]
    assert {len(b.cells) for b in grid(model=model(1.0) + tkf.Noise(3.0), solver=noisy).batches} == {1}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": []}, "`model` must hold at least one object, but was empty"),
        ({"model": [model(1.0), 3]}, "`model` must be a Model, but was int"),
        (
            {"tokens": tkf.initial.uniform(4, 3, 0)},
            "`tokens` must have the dimension 2 of the model, but was 3",
        ),
        ({"ts": [0.0, 0.0]}, "`ts` must be increasing"),
        ({"measure": ["energi"]}, "`measure` must be one of 'order_parameter', .*did you mean 'energy'"),
        ({"summation": "fast"}, "`summation` must be one of 'auto', 'direct'"),
        (
            {"together": True},
            "`together` must come with lists of one length, but was {'model': 2, 'tokens': 3}",
        ),
        ({"model": [model(1.0), model(1.0)]}, "`sweep` must not hold the same cell twice, but model = 0"),
        ({"time_limit": -1}, "`time_limit` must be a positive number of seconds"),
    ],
)
def test_what_cannot_be_declared_is_one_sentence(changes, sentence):
    with pytest.raises(tkf.InputError, match=f"^{sentence}"):
        assert grid(**changes).cells


def test_objects_and_files_are_not_mixed():
    with pytest.raises(tkf.InputError, match="^`tokens and ts` must come with a model"):
        tkf.sweep(model(1.0), 0)
    with pytest.raises(tkf.InputError, match="^`config` must be a model beside tokens and ts"):
        tkf.sweep(SMALL, 0, tokens=tokens(1), ts=TS)


@pytest.mark.slow
def test_workers_are_sent_the_objects(tmp_path):
    same = grid(measure={"f": lambda t: t.moments().mean})
    made = tkf.sweep(same, 2, store=tmp_path / "a")
    np.testing.assert_allclose(made.f, tkf.sweep(same, 0, store=tmp_path / "b").f, atol=1e-13)
