"""Frames measure what the library measures, and phases named live are those of the whole run."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from tokenfield.lab import setup
from tokenfield.lab.colouring import COLOURINGS, colouring
from tokenfield.lab.frame import CLUSTER_COLOURS, CURVES, Stage
from tokenfield.lab.head import head_of, head_of_stored
from tokenfield.lab.observer import MAX_SHOWN_TOKENS, Observer, is_measured
from tokenfield.lab.phase import phase
from tokenfield.lab.presets import PRESETS
from tokenfield.laws import initial
from tokenfield.laws.tokens import Tokens
from tokenfield.measure.energy import energy
from tokenfield.measure.phases import phases
from tokenfield.models.attention import (
    HardmaxAttention,
    InteractionFlow,
    SoftmaxAttention,
    ZeroTemperature,
)
from tokenfield.models.depth import Depth
from tokenfield.models.norms import NoNorm, PreNorm, ScaledNorm
from tokenfield.models.terms import Drift, Noise
from tokenfield.models.weights import AttentionWeights
from tokenfield.runs.simulate import simulate
from tokenfield.runs.trajectory import plain

DIAGONAL = AttentionWeights(np.diag([0.5, 2.0, 1.0]), np.diag([1.0, 0.5, 0.3]))


def around(centres, count, spread, seed=0):
    rng = np.random.default_rng(seed)
    x = np.repeat(np.asarray(centres, float), count, axis=0)
    x = x + spread * rng.normal(size=x.shape)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def watch(name, **changes):
    """Frames of a preset, made without a worker, and the whole run."""
    run = replace(PRESETS[name].setup, **changes).config()
    arguments = run.arguments()
    trajectory = simulate(**arguments)
    observer = Observer(arguments["tokens"], *head_of(arguments["model"]))
    frames = [observer.frame(t, trajectory.tokens(k)) for k, t in enumerate(trajectory.ts)]
    return observer.stage, frames, trajectory, run


def names(stage, frames):
    """The phases in the order in which a person who watches sees them."""
    columns = {name: np.array([f.curves[name] for f in frames]) for name in frames[0].curves}
    ts = np.array([f.t for f in frames])
    speed = np.array([stage.weights @ f.speed for f in frames])
    seen = []
    for k in range(2, len(frames) + 1):
        now = phase(stage, ts[:k], {n: v[:k] for n, v in columns.items()}, speed[:k]).name
        if not seen or seen[-1] != now:
            seen.append(now)
    return seen


def test_curves_are_the_librarys_measurements():
    tokens = initial.uniform(60, 3, 3)
    frame = Observer(tokens, DIAGONAL, 2.0).frame(0.0, tokens)
    x = np.asarray(tokens.x)
    assert frame.curves["order"] == pytest.approx(np.linalg.norm(x.mean(0)), abs=1e-12)
    share = float(energy(tokens, 2.0)) / (np.exp(2.0) / 4)
    assert frame.curves["energy"] == pytest.approx(share, rel=1e-12)
    # E is ±e2: an even number of tokens go to each end, and each moves by its angle to it
    angle = np.arccos(np.clip(np.abs(x[:, 1]), 0, 1))
    assert frame.curves["to_limit"] == pytest.approx(np.sqrt(np.mean(angle**2)), abs=1e-9)
    assert frame.curves["distance"] == pytest.approx(np.sqrt(np.mean(angle**2)), abs=1e-9)
    assert frame.curves["to_end"] == pytest.approx(
        np.sqrt(np.mean(np.arccos(np.abs(x[:, 0])) ** 2)), abs=1e-9
    )


def test_speed_is_the_angle_moved_over_the_time():
    start = around([[1, 0, 0]], 5, 0.0)
    observer = Observer(Tokens(start), DIAGONAL, 1.0)
    assert np.all(observer.observe(0.0, start).speed == 0)
    c, s = np.cos(0.3), np.sin(0.3)
    moved = np.tile([c, s, 0.0], (5, 1))
    np.testing.assert_allclose(observer.observe(2.0, moved).speed, 0.15, rtol=1e-6)


def test_clusters_are_narrow_heavy_groups_and_keep_their_colours():
    two = around([[1, 0, 0], [0, 0, 1]], 40, 0.02)
    spread = np.asarray(initial.cap(3000, [0.0, 0.0, 1.0], 1.2, 0).x)  # one group, and no narrow one
    assert Observer(Tokens(spread), DIAGONAL, 1.0).observe(0.0, spread).curves["clusters"] == 0
    observer = Observer(Tokens(two), DIAGONAL, 1.0)
    first = observer.observe(0.0, two)
    assert first.curves["clusters"] == 2
    assert len(np.unique(first.colour)) == 2 and CLUSTER_COLOURS not in first.colour
    # the second group becomes the heavier one: colours stay with the tokens
    mixed = two.copy()
    mixed[:10] = two[40:50]
    second = observer.observe(1.0, mixed)
    np.testing.assert_array_equal(second.colour[10:40], first.colour[10:40])
    np.testing.assert_array_equal(second.colour[40:], first.colour[40:])
    assert observer.observe(2.0, around([[1, 0, 0]], 80, 0.02)).curves["clusters"] == 1


def test_of_many_frames_only_some_are_measured():
    assert all(is_measured(k, 400) for k in range(400))
    measured = [k for k in range(1000) if is_measured(k, 1000)]
    assert measured[:3] == [0, 3, 6] and measured[-1] == 999 and len(measured) <= 400
    two = around([[1, 0, 0], [0, 0, 1]], 40, 0.02)
    observer = Observer(Tokens(two), DIAGONAL, 1.0)
    first, second = observer.observe(0.0, two), observer.observe(1.0, two[::-1].copy(), measured=False)
    assert second.curves == {} and second.speed.max() > 1
    np.testing.assert_array_equal(second.colour, first.colour)


def test_a_part_of_many_tokens_is_shown_and_said_so():
    tokens = initial.uniform(3 * MAX_SHOWN_TOKENS, 2, 0)
    observer = Observer(tokens, None, None)
    frame = observer.frame(0.0, tokens)
    assert frame.x.shape == (MAX_SHOWN_TOKENS, 2) and len(np.unique(observer.shown)) == MAX_SHOWN_TOKENS
    assert "8,000 of 24,000 tokens are shown" in observer.stage.notes[0]
    assert observer.stage.kind == "unknown" and np.isnan(frame.curves["distance"])
    assert len(Observer(initial.uniform(9000, 64, 0), None, None).shown) * 64 <= 250_000


@pytest.mark.parametrize("choice", COLOURINGS)
def test_colours_for_every_kind_of_stage(choice):
    for d, weights in ((2, None), (3, DIAGONAL), (3, AttentionWeights.identity(3))):
        tokens = initial.uniform(30, d, 0)
        observer = Observer(tokens, weights, 1.0)
        found = colouring(choice, observer.stage, observer.frame(0.0, tokens))
        assert found.rgb.shape == (30, 3) and found.rgb.dtype == np.uint8
        assert found.values.shape == (30,) and found.legend
    side = colouring(COLOURINGS[0], *_both(DIAGONAL)).values
    x = np.asarray(initial.uniform(30, 3, 0).x)
    # Π sends a token to the end of ±e2 on its own side
    assert len(np.unique(side[x[:, 1] > 0])) == len(np.unique(side[x[:, 1] < 0])) == 1


def _both(weights):
    tokens = initial.uniform(30, 3, 0)
    observer = Observer(tokens, weights, 1.0)
    return observer.stage, observer.frame(0.0, tokens)


@pytest.mark.slow
def test_phases_seen_live_are_those_of_the_whole_run():
    stage, frames, trajectory, run = watch("the same on the circle", n=200, frames=121)
    whole = phases(trajectory, run.weights.build())
    assert names(stage, frames) == [p.name for p in whole.found]
    assert names(stage, frames) == ["concentration", "metastable", "escape", "terminal"]
    np.testing.assert_allclose([f.curves["distance"] for f in frames], whole.distance, atol=1e-9)
    assert stage.rate == pytest.approx(0.25)  # theory §2.6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("two clusters that last", ["concentration", "metastable"]),
        ("rotating", ["concentration", "circulating"]),
        ("Example 2.5", ["gathering", "merging", "2 clusters wait"]),
        ("Example 2.6", ["gathering", "2 clusters wait"]),
    ],
)
def test_phases_of_other_presets(name, seen):
    stage, frames, *_ = watch(name, frames=121)
    assert names(stage, frames) == seen


@pytest.mark.slow
def test_r_of_the_preset_goes_up_down_and_up():
    _, frames, *_ = watch("non-monotone R")
    R, t = np.array([f.curves["order"] for f in frames]), np.array([f.t for f in frames])
    turns = t[1:-1][np.sign(np.diff(R))[1:] != np.sign(np.diff(R))[:-1]]
    np.testing.assert_allclose(turns, [1.10, 5.78], atol=0.06)  # theory §3.12


@pytest.mark.slow
@pytest.mark.parametrize("name", ["concentration, then escape", "rotating", "two clusters that last"])
def test_long_steps_for_many_tokens_change_no_curve_by_a_pixel(name, monkeypatch):
    few = {"n": 300, "frames": 61}
    monkeypatch.setattr(setup, "RTOL", 1e-9)
    exact = [f.curves for f in watch(name, **few)[1]]
    monkeypatch.setattr(setup, "MANY", 0)
    monkeypatch.setattr(setup, "MOST_FRAMES", 61)
    _, frames, _, run = watch(name, **few)
    assert run.solver.rtol == setup.LOOSE
    for curve in CURVES:
        difference = [f.curves[curve] - e[curve] for f, e in zip(frames, exact, strict=True)]
        np.testing.assert_allclose(difference, 0, atol=1e-3)


SOFTMAX = SoftmaxAttention(DIAGONAL, 2.0)
#: Models that the lab can show eigenspaces of, and others with a part of the reason why it cannot.
SHOWN_MODELS = [
    (SOFTMAX, ""),
    (SOFTMAX + Noise(3.0), ""),
    (PreNorm(SOFTMAX), ""),
    (HardmaxAttention(DIAGONAL), ""),
    (ZeroTemperature(DIAGONAL), ""),
    (InteractionFlow(jnp.sin, np.eye(3)), ""),
    (SOFTMAX + Drift(np.ones(3)), "more than attention moves the tokens"),
    (Drift(np.ones(3)), "the model has no attention matrices"),
    (NoNorm(SOFTMAX), "scores read the lengths of the tokens"),
    (ScaledNorm(SOFTMAX), "the model changes with depth"),
    (Depth([SOFTMAX, SOFTMAX]), "the model changes with depth"),
]


@pytest.mark.parametrize(("model", "missing"), SHOWN_MODELS, ids=lambda v: type(v).__name__)
def test_every_model_can_be_watched_whatever_it_is_made_of(model, missing):
    tokens = initial.uniform(20, 3, 0)
    head = head_of(model)
    assert head.missing == missing and (head.weights is None) == bool(missing)
    observer = Observer(tokens, *head, free=model.space.free)
    assert any(note.startswith(missing) for note in observer.stage.notes)
    assert any("lengths of their own" in note for note in observer.stage.notes) == model.space.free
    assert observer.stage.rate is None or not model.space.free
    radii = np.linspace(1, 3, 20) if model.space.free else None
    frame = observer.frame(0.0, Tokens(tokens.x, tokens.weights, radii))
    np.testing.assert_allclose(np.linalg.norm(frame.x, axis=1), 1, rtol=1e-6)  # directions
    assert np.isnan(frame.curves["distance"]) == (bool(missing) or observer.stage.kind == "all")
    assert np.isnan(frame.curves["energy"]) == (head.beta is None)
    for choice in COLOURINGS:
        assert colouring(choice, observer.stage, frame).rgb.shape == (20, 3)


@pytest.mark.parametrize(
    "model", [SOFTMAX, SOFTMAX + Noise(3.0), PreNorm(SOFTMAX), HardmaxAttention(DIAGONAL)]
)
def test_a_stored_run_shows_the_same_head_as_a_live_one(model):
    live, stored = head_of(model), head_of_stored({"model": plain(model)})
    assert stored.beta == live.beta and stored.missing == ""
    for name in ("B", "V"):
        np.testing.assert_array_equal(getattr(stored.weights, name), getattr(live.weights, name))


@pytest.mark.parametrize("model", [SOFTMAX + Drift(np.ones(3)), Depth([SOFTMAX, SOFTMAX]), Drift(np.ones(3))])
def test_a_stored_run_without_one_head_has_no_eigenspaces(model):
    assert head_of_stored({"model": plain(model)}).weights is None


def test_without_tokens_to_compare_it_is_the_start():
    stage = Stage(1, 2, np.ones(1), np.array([[1.0, 0.0]]))
    assert phase(stage, np.zeros(1), {}, np.zeros(1)).name == "start"
