"""Stores that cannot be used, cannot be gone on with, or could not be written: one sentence each."""

import dataclasses
import functools
import json
import shutil
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import tokenfield as tkf
from tests.runs.test_store import Killed, run, same
from tokenfield import cli
from tokenfield.runs import seal, store
from tokenfield.runs.plain import describe

TS = np.linspace(0, 4, 41)


def manifest(path):
    return json.loads((path / "manifest.json").read_text())


def rewrite(path, **facts):
    content = manifest(path) | facts
    content = {k: v for k, v in content.items() if v != "gone"}
    (path / "manifest.json").write_text(json.dumps(seal.sealed(content)))


def cut(path, monkeypatch, after=20, **more):
    """A run killed in the commit that follows `after` records."""
    monkeypatch.setattr("tokenfield.runs.record.WRITE_EVERY", 0.0)
    commit = store.Writer.commit

    def interrupted(self, checkpoint, **facts):
        if facts["reached"] > after:
            raise Killed
        commit(self, checkpoint, **facts)

    with monkeypatch.context() as patch:
        patch.setattr(store.Writer, "commit", interrupted)
        with pytest.raises(Killed):
            run(path, **more)
    return path


# -- what may be measured and kept


@pytest.mark.parametrize(
    "name",
    ["x", "time", "weights", "snapshot", "token", "", "a/b", ".", ".hidden", "zarr.json", "__a", 3, None],
)
def test_names_that_a_store_cannot_have(name, tmp_path):
    with pytest.raises(tkf.InputError, match="^`measure` must .* but was"):
        run(tmp_path / "run", measure={name: tkf.order_parameter})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["β", "R", "W2 to the limit", "mean_1", "a.b"])
def test_other_names_are_kept(name, tmp_path):
    mean = {"mean": lambda t: t.moments().mean, name: tkf.order_parameter}
    made = run(tmp_path / "run", measure=mean)
    same(tkf.load(tmp_path / "run"), made)


@pytest.mark.parametrize("measure", [[tkf.order_parameter], "R", 3])
def test_measures_have_names(measure):
    with pytest.raises(tkf.InputError, match="^`measure` must map names to functions"):
        run(measure=measure)


@pytest.mark.parametrize("value", ["a", None, object(), 1j, [[1.0], [1.0, 2.0]]])
def test_a_measure_returns_numbers(value, tmp_path):
    with pytest.raises(
        tkf.InputError, match=r"^`measure\['f'\]` must return real numbers, but was returning"
    ):
        run(tmp_path / "run", measure={"f": lambda t: value})
    assert not list(tmp_path.iterdir())


def test_a_measure_keeps_its_shape(tmp_path):
    lengths = iter(range(1, 100))
    with pytest.raises(tkf.InputError, match=r"^`measure\['f'\]` must return the shape \(1,\) at every time"):
        run(tmp_path / "run", measure={"f": lambda t: np.zeros(next(lengths))})


@pytest.mark.parametrize("snapshots", [range(0, 41, 10), np.array([0, 10, 20, 30, 40]), (0, 10, -21, 30, -1)])
def test_snapshots_of_any_kind_are_stored(snapshots, tmp_path):
    made = run(tmp_path / "run", snapshots=snapshots)
    same(tkf.load(tmp_path / "run"), made)
    np.testing.assert_array_equal(made.snapshot_ts, TS[::10])
    same(run(tmp_path / "run", snapshots=[0, 10, 20, 30, 40], resume=True), made)


def test_settings_of_any_kind_are_stored(tmp_path):
    settings = {"a": np.arange(3), "p": Path("b/c"), "t": (1, np.float64(2.5)), "inf": np.inf, "r": range(2)}
    run(tmp_path / "run", settings=settings)
    expected = {"a": [0, 1, 2], "p": "b/c", "t": [1, 2.5], "inf": "inf", "r": [0, 1]}
    assert manifest(tmp_path / "run")["settings"] == expected


def test_what_cannot_be_stored_is_named(tmp_path):
    with pytest.raises(tkf.InputError, match=r"^`settings.colours\[1\]` must be numbers, .* of type set$"):
        run(tmp_path / "run", settings={"colours": [1, {2}]})

    class Odd(tkf.SoftmaxAttention):
        extra: frozenset = eqx.field(static=True)

        def __init__(self, weights, beta):
            super().__init__(weights, beta)
            self.extra = frozenset({1, 2})

    model = Odd(tkf.AttentionWeights.identity(3), 1.0)
    made = tkf.simulate(model, tkf.initial.uniform(4, 3, 0), [0, 1.0])
    assert made.complete
    with pytest.raises(tkf.InputError, match="^`inputs.model.extra` must be numbers"):
        made.save(tmp_path / "saved")
    assert not list(tmp_path.iterdir())


# -- functions in models


def interaction(phi, path=None, **more):
    model = tkf.InteractionFlow(phi, np.eye(2))
    return tkf.simulate(model, tkf.initial.uniform(5, 2, 0), [0, 0.5, 1.0], store=path, **more)


class Scaled:
    def __init__(self, beta):
        self.beta = beta

    def __call__(self, s):
        return jnp.exp(self.beta * s)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda b: functools.partial(lambda b, s: jnp.exp(b * s), b),
        Scaled,
        lambda b: lambda s: jnp.exp(b * s),
        lambda b: (lambda c: lambda s: jnp.exp(c * s))(jnp.asarray(b)),
    ],
    ids=["partial", "object", "closure", "closure of an array"],
)
def test_resume_notices_another_phi(make, tmp_path):
    """Both have one qualified name; only what they compute differs."""
    made = interaction(make(1.0), tmp_path / "run")
    same(interaction(make(1.0), tmp_path / "run", resume=True), made)
    with pytest.raises(tkf.InputError, match="holds one with other model"):
        interaction(make(1.0 + 1e-15), tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    "phi",
    [np.exp, lambda s: jnp.stack([s, s]), lambda s: None, lambda s: "a", lambda a, b: a, lambda s: 1 / 0],
)
def test_a_phi_that_jax_cannot_use_is_one_sentence(phi, tmp_path):
    with pytest.raises(tkf.InputError, match="^`phi` must be a JAX function of one number that gives one"):
        interaction(phi, tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_model_that_fails_leaves_no_store(tmp_path):
    class Broken(tkf.SoftmaxAttention):
        @property
        def kernel(self):
            raise ZeroDivisionError

    model = Broken(tkf.AttentionWeights.identity(3), 1.0)
    with pytest.raises(ZeroDivisionError):
        tkf.simulate(model, tkf.initial.uniform(4, 3, 0), [0, 1.0], store=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_measures_may_be_any_callable(tmp_path):
    measure = {"p": functools.partial(lambda k, t: t.x[k, 0], 1), "o": Scaled(1.0).__call__}
    measure["o"] = type("Callable", (), {"__call__": lambda self, t: float(t.n)})()
    assert run(tmp_path / "run", measure=measure).measured["o"][0] == 15


# -- going on


def test_resume_of_a_saved_run_returns_it(tmp_path):
    made = run()
    made.save(tmp_path / "run")
    before = (tmp_path / "run" / "manifest.json").read_bytes()
    back = run(tmp_path / "run", resume=True)
    same(back, made)
    assert back.stats["seconds"] == made.stats["seconds"]
    assert (tmp_path / "run" / "manifest.json").read_bytes() == before
    with pytest.raises(tkf.InputError, match="holds one with other model"):
        run(tmp_path / "run", beta=5.0, resume=True)


def failing(path=None, **more):
    model = tkf.InteractionFlow(lambda s: -jnp.log(0.99 - s), np.eye(2))
    tokens = tkf.Tokens([[1.0, 0.0], [0.0, 1.0]])
    return tkf.simulate(model, tokens, np.linspace(0, 50, 101), store=path, strict=False, **more)


def test_a_saved_part_cannot_be_gone_on_with(tmp_path):
    failing().save(tmp_path / "run")
    with pytest.raises(
        tkf.InputError, match="^`resume` must continue a run that was stored while running, but"
    ):
        failing(tmp_path / "run", resume=True)
    assert len(tkf.load(tmp_path / "run").ts) == 2


def test_a_resumed_run_forgets_how_it_ended_before(tmp_path, monkeypatch):
    cut(tmp_path / "run", monkeypatch)
    rewrite(tmp_path / "run", status="stopped at t = 1", complete=False, stats={"steps": 1})
    cut(tmp_path / "run", monkeypatch, after=30, resume=True)
    assert not {"status", "complete", "stats"} & set(manifest(tmp_path / "run"))
    assert tkf.load(tmp_path / "run").status == "the run was interrupted; resume it to go on"


def test_resume_notices_another_measure(tmp_path, monkeypatch):
    cut(tmp_path / "run", monkeypatch, measure={"f": lambda t: t.x[0, 0]})
    with pytest.raises(tkf.InputError, match="whose measurement 'f' began with another value"):
        run(tmp_path / "run", measure={"f": lambda t: t.x[0, 1]}, resume=True)
    assert run(tmp_path / "run", measure={"f": lambda t: t.x[0, 0]}, resume=True).complete
    with pytest.raises(tkf.InputError, match="whose measurement 'f' began with another value"):
        run(tmp_path / "run", measure={"f": lambda t: t.x[0, 1]}, resume=True)


@pytest.mark.parametrize("package", ["tokenfield", "jax", "jaxlib", "diffrax"])
def test_resume_under_another_version_is_refused(tmp_path, monkeypatch, package):
    cut(tmp_path / "run", monkeypatch)
    now = manifest(tmp_path / "run")["versions"]
    rewrite(tmp_path / "run", versions=now | {package: "0.0.1", "xarray": "0.0.1"})
    sentence = f"^`resume` must run with the versions .* that was {package} 0.0.1 and this is {package} {now[package]}$"
    with pytest.raises(tkf.InputError, match=sentence):
        run(tmp_path / "run", resume=True)


def test_resume_needs_a_store_and_a_path():
    with pytest.raises(tkf.InputError, match="^`resume` must come with a store"):
        run(resume=True)
    with pytest.raises(tkf.InputError, match="^`store` must be a path, but was 3"):
        run(3)


# -- damage


DAMAGE = [
    (lambda p: shutil.rmtree(p / "data.zarr" / "weights" / "c"), "has lost 1 of 1 files of `weights`"),
    (lambda p: shutil.rmtree(p / "data.zarr" / "time" / "c"), "has lost 1 of 1 files of `time`"),
    (lambda p: shutil.rmtree(p / "data.zarr" / "snapshot" / "c"), "has lost 1 of 1 files of `snapshot`"),
    (lambda p: (p / "data.zarr" / "x" / "c" / "0" / "0" / "0").unlink(), "has lost 1 of 1 files of `x`"),
    (lambda p: shutil.rmtree(p / "data.zarr" / "weights"), "has lost `weights`"),
    (lambda p: shutil.rmtree(p / "data.zarr" / "time"), "has lost `time`"),
    (lambda p: shutil.rmtree(p / "data.zarr" / "snapshot"), "has lost `snapshot`"),
    (lambda p: shutil.rmtree(p / "data.zarr" / "x"), "has lost `x`"),
    (lambda p: shutil.rmtree(p / "data.zarr" / "mean"), "has lost `mean`"),
    (lambda p: shutil.rmtree(p / "data.zarr"), "is damaged"),
    (lambda p: (p / "data.zarr" / "x" / "zarr.json").write_text("{"), "x/zarr.json was changed"),
    *(
        (lambda p, k=k, v=v: rewrite(p, **{k: v}), f"the entry `{k}` is {'missing' if v == 'gone' else ''}")
        for k, v in [
            ("inputs", "gone"),
            ("written", "gone"),
            ("reached", "gone"),
            ("versions", "gone"),
            ("inputs", []),
            ("written", {"x": "many"}),
            ("written", 3),
            ("reached", "ten"),
            ("reached", -1),
            ("versions", None),
            ("versions", {"jax": 3}),
            ("stats", 3),
            ("status", 3),
            ("complete", "yes"),
        ]
    ),
]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A complete run and one that was cut."""
    folder = tmp_path_factory.mktemp("stored")
    run(folder / "whole")
    with pytest.MonkeyPatch.context() as patch:
        cut(folder / "cut", patch)
    return folder


@pytest.mark.parametrize("which", ["whole", "cut"])
@pytest.mark.parametrize(("damage", "sentence"), DAMAGE)
def test_damage_is_one_sentence_everywhere(stored, tmp_path, damage, sentence, which):
    path = tmp_path / "run"
    shutil.copytree(stored / which, path)
    damage(path)
    for use in (lambda: tkf.load(path), lambda: run(path, resume=True), lambda: cli.info(path)):
        with pytest.raises(tkf.InputError, match=f"^`path` must be a .*{sentence}") as caught:
            use()
        assert "\n" not in str(caught.value)


def test_more_records_than_there_are(stored, tmp_path):
    shutil.copytree(stored / "whole", tmp_path / "run")
    rewrite(tmp_path / "run", written={"x": 1000, "R": 1000, "mean": 1000}, reached=1000)
    with pytest.raises(tkf.InputError, match="`x` has 41 records, not 1000"):
        tkf.load(tmp_path / "run")


def test_files_beyond_the_count_do_not_hide_a_lost_one(tmp_path, monkeypatch):
    """Rows may be on disk ahead of the count; the number of files alone says nothing."""
    monkeypatch.setattr(store, "CHUNK_BYTES", 1)  # a file for every record
    cut(tmp_path / "run", monkeypatch)
    reached = len(tkf.load(tmp_path / "run").ts)
    files = tmp_path / "run" / "data.zarr" / "R" / "c"
    assert len(list(files.iterdir())) > reached
    (files / "0").unlink()
    with pytest.raises(tkf.InputError, match=f"has lost 1 of {reached} files of `R`"):
        tkf.load(tmp_path / "run")


def without(name):
    return lambda arrays: arrays.pop(name)


def replaced(name, value):
    return lambda arrays: arrays.update({name: np.asarray(value)})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        *(
            (without(name), f"lacks `{name}`")
            for name in (
                "reached",
                "active",
                "restarts",
                "seconds",
                "merge_distance",
                "group",
                "weights",
                "state_3",
            )
        ),
        (replaced("reached", [1, 2]), r"has `reached` of shape \(2,\)"),
        (replaced("reached", 1000), "has `reached` = 1000"),
        (replaced("state_3", np.zeros((2, 2))), r"has `state_3` of shape \(2, 2\), float64, not \(15, 3\)"),
        (replaced("state_3", np.full((15, 3), "a")), "has `state_3` of shape"),
        (replaced("group", np.arange(3)), "has `group` of shape"),
        (replaced("group", np.arange(15) + 1), "has a `group` that points nowhere"),
        (replaced("weights", np.eye(3)), "has `weights` of shape"),
    ],
)
def test_a_damaged_checkpoint_is_one_sentence(stored, tmp_path, change, sentence):
    path = tmp_path / "run"
    shutil.copytree(stored / "cut", path)
    with np.load(path / "checkpoint.npz") as file:
        arrays = dict(file)
    change(arrays)
    del arrays["seal"]
    np.savez(path / "checkpoint.npz", **arrays, seal=seal.named_hash(arrays))
    with pytest.raises(tkf.InputError, match=f"^`path` must hold a usable checkpoint, but .*{sentence}"):
        run(path, resume=True)
    store.Writer(path).close()  # the lock is free again


def test_info_counts_many_times(tmp_path):
    """Beyond 4096 times the inputs hold only their number and hash."""
    part = run(snapshots=[])
    inputs = part.inputs | describe(ts=np.linspace(0, 4, 5000))
    dataclasses.replace(part, inputs=inputs).save(tmp_path / "run")
    shown = CliRunner().invoke(cli.app, ["info", str(tmp_path / "run")])
    assert "41 of 5000" in shown.stdout


@pytest.mark.parametrize("bad", [None, 3, ["a"], b"a"])
def test_paths_are_text(bad):
    with pytest.raises(tkf.InputError, match="^`path` must be a path"):
        tkf.load(bad)
    with pytest.raises(tkf.InputError, match="^`path` must be a path"):
        run().save(bad)


def test_a_resume_with_another_number_of_threads_says_what_that_means(tmp_path, monkeypatch):
    """Also if it is interrupted and gone on with once more."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("NPROC", "2")
    cut(tmp_path / "run", monkeypatch)
    assert manifest(tmp_path / "run")["threads"] == [{"XLA": 2, "OpenMP": 2}]
    assert run(tmp_path / "run", resume=True).status == run().status  # the same number: nothing to be said
    shutil.rmtree(tmp_path / "run")
    cut(tmp_path / "run", monkeypatch)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cut(tmp_path / "run", monkeypatch, after=30, resume=True)
    status = run(tmp_path / "run", resume=True).status
    assert (
        "begun with 2 XLA threads, 2 OpenMP threads and gone on with 2 XLA threads, 1 OpenMP threads"
        in status
    )
    assert tkf.load(tmp_path / "run").status == status
