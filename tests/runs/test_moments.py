"""Runs that are looked on while they go: moments are the run, can be left early, and say when they fail."""

import jax.numpy as jnp
import numpy as np
import pytest

import tokenfield as tkf
from tests.problems.loops import tok

TOKENS = tkf.Tokens(tok(6, 3, 1))
MODEL = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), 2.0)
TS = np.linspace(0, 2.0, 9)


@pytest.mark.parametrize(
    ("model", "solver", "options"),
    [
        (MODEL, tkf.Adaptive(), {}),
        (MODEL, tkf.Layers(0.125), {}),
        (tkf.PreNorm(MODEL), tkf.RungeKutta4(0.1), {}),
        (MODEL + tkf.Noise(5.0), tkf.EulerMaruyama(0.05, 1), {}),
        (tkf.Depth([MODEL, tkf.SoftmaxAttention(MODEL.weights, 5.0)], 0.7), tkf.Adaptive(), {}),
        (MODEL, tkf.Layers(0.0125), {"merge_angle": 0.7}),
    ],
    ids=["adaptive", "layers", "pre", "noise", "depth", "merged"],
)
def test_moments_are_the_run(model, solver, options):
    run = tkf.simulate(model, TOKENS, TS, solver, **options)
    moments = list(tkf.moments(model, TOKENS, TS, solver, **options))
    assert [moment.t for moment in moments] == list(TS)
    assert np.array_equal(np.stack([moment.tokens.x for moment in moments]), run.x)
    if run.radii is not None:
        assert np.array_equal(np.stack([moment.tokens.radii for moment in moments]), run.radii)
    last = moments[-1].stats
    assert {key: last[key] for key in ("steps", "rejected", "summation")} == {
        key: run.stats[key] for key in ("steps", "rejected", "summation")
    }
    if options:
        assert run.stats["tokens_left"] <= last["tokens_left"] < 6  # a run also merges after its last time


def test_moments_can_be_left_early():
    """Nothing beyond what was asked for is computed."""
    steps = []
    for moment in tkf.moments(MODEL, TOKENS, [0, 1.0, 1e6], tkf.Layers(0.5)):
        steps.append(moment.stats["steps"])
        if moment.t >= 1.0:
            break
    assert steps[0] == 0 and len(steps) == 2
    assert steps[1] < 1000


def test_a_closed_iterator_is_over():
    moments = tkf.moments(MODEL, TOKENS, TS)
    next(moments)
    moments.close()
    with pytest.raises(StopIteration):
        next(moments)


def test_one_final_time_shows_every_burst():
    """From 0 to the end, increasing, and the end is that of a run."""
    moments = list(tkf.moments(MODEL, TOKENS, 30.0, tkf.RungeKutta4(0.01)))
    ts = [moment.t for moment in moments]
    assert ts[0] == 0 and ts[-1] == 30.0 and len(ts) > 3
    assert np.all(np.diff(ts) > 0)
    assert np.all(np.diff([moment.stats["steps"] for moment in moments]) > 0)
    run = tkf.simulate(MODEL, TOKENS, 30.0, tkf.RungeKutta4(0.01))
    assert np.array_equal(moments[-1].tokens.x, run.x[-1])


def test_simulate_takes_one_final_time():
    one, two = (tkf.simulate(MODEL, TOKENS, ts) for ts in (10.0, [0.0, 10.0]))
    assert np.array_equal(one.ts, [0, 10.0]) and np.array_equal(one.x, two.x)
    assert np.array_equal(tkf.simulate(MODEL, TOKENS, 10).x, two.x)
    for bad in (0.0, -1.0, np.inf, np.nan):
        for verb in (tkf.simulate, tkf.moments):
            with pytest.raises(
                tkf.InputError, match="^`ts` must be a list of times or one positive final time"
            ):
                verb(MODEL, TOKENS, bad)


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("verb", [tkf.simulate, lambda *a, **k: list(tkf.moments(*a, **k))])
def test_progress_is_told_and_may_stop_a_run(verb):
    told = []
    verb(MODEL, TOKENS, TS, progress=lambda share, t: told.append((share, t)))
    shares, ts = np.array(told).T
    assert shares[-1] == 1.0 and ts[-1] >= 2.0
    assert np.all(np.diff(shares) >= 0) and np.all(shares > 0)

    def stop(share, t):
        raise StoppedError

    with pytest.raises(StoppedError):
        verb(MODEL, TOKENS, TS, progress=stop)


def test_trouble_comes_after_the_moments_that_were_reached():
    """A drift that is not a number from t = 1 on."""
    blowing = tkf.Schedule(
        lambda t: tkf.Drift(jnp.where(t < 1.0, 1.0, jnp.nan) * jnp.array([1.0, 0, 0])), [1.0]
    )
    reached = []
    with pytest.raises(tkf.RunError, match=r"^stopped at t = ") as error:
        for moment in tkf.moments(blowing, TOKENS, [0, 0.5, 1.0, 1.5, 2.0], tkf.RungeKutta4(0.25)):
            reached.append(moment.t)
            assert np.all(np.isfinite(moment.tokens.x))
    assert reached == [0, 0.5, 1.0]
    with pytest.raises(tkf.RunError) as same:
        tkf.simulate(blowing, TOKENS, [0, 0.5, 1.0, 1.5, 2.0], tkf.RungeKutta4(0.25))
    assert str(error.value) == str(same.value)
    assert list(same.value.trajectory.ts) == reached


def test_a_time_limit_ends_moments():
    with pytest.raises(tkf.RunError, match=r"the time limit of 1e-06 s is used up"):
        for _ in tkf.moments(MODEL, TOKENS, 1e7, tkf.Layers(0.5), time_limit=1e-6):
            pass


def test_bad_input_is_said_before_the_first_moment():
    """At the call, not when somebody asks for the first moment."""
    with pytest.raises(tkf.InputError, match="^`solver` must be EulerMaruyama"):
        tkf.moments(MODEL + tkf.Noise(1.0), TOKENS, TS)
    with pytest.raises(tkf.InputError, match="^`model` must not read the order"):
        tkf.moments(tkf.SoftmaxAttention(MODEL.weights, 1.0, tkf.masks.causal()), TOKENS, TS, merge_angle=0.1)
    with pytest.raises(tkf.InputError, match="^`ts` must be increasing"):
        tkf.moments(MODEL, TOKENS, [0, 1.0, 0.5])
