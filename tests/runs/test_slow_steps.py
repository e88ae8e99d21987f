"""Steps that take long: the clock and the bar are true, and nothing that is decided depends on them."""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokenfield as tkf
from tests.problems.loops import tok
from tokenfield.models.base import Term
from tokenfield.runs import driver, watchers
from tokenfield.runs.driver import next_burst
from tokenfield.runs.stepper import Field
from tokenfield.sums.choice import policy_for
from tokenfield.sums.direct import DIRECT
from tokenfield.sums.policy import SummationPolicy

TOKENS = tkf.Tokens(tok(6, 3, 1))
MODEL = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), 2.0)


class Slow(Term):
    """No velocity, for which one waits."""

    seconds: float = eqx.field(static=True)

    d = 3

    def output(self, x, tokens, sums=DIRECT, rows=None):
        def wait(x):
            time.sleep(self.seconds)
            return np.zeros_like(x)

        return jax.pure_callback(wait, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def limited(options):
    with pytest.raises(tkf.RunError, match="the time limit of 0.4 s is used up") as error:
        tkf.simulate(MODEL + Slow(0.15), TOKENS, [0, 100.0], tkf.Layers(0.5), time_limit=0.4, **options)
    return error.value.trajectory.stats


@pytest.mark.parametrize("options", [{}, {"merge_angle": 1e-3}], ids=["free", "merging"])
def test_the_time_limit_is_looked_at_after_every_slow_step(options):
    """Three steps of 0.15 s use 0.4 s up; a burst of 8 or 16 would take 1.2 or 2.4 s."""
    stats = limited(options)
    assert 1 <= stats["steps"] <= 4


def test_a_slow_first_step_is_said_while_it_lasts(capsys, monkeypatch):
    monkeypatch.setattr(watchers, "SLOW_STEP_SECONDS", 0.1)
    tkf.simulate(MODEL + Slow(0.4), TOKENS, [0, 0.5], tkf.Layers(0.5), progress=True)
    shown = " ".join(capsys.readouterr().out.split())
    assert "the first step of 6 tokens with direct sums takes over 0.1 s" in shown
    tkf.simulate(MODEL + Slow(0.4), TOKENS, [0, 0.5], tkf.Layers(0.5), progress=False)
    tkf.simulate(MODEL, TOKENS, [0, 0.5], tkf.Layers(0.5), progress=True)
    assert "first step" not in capsys.readouterr().out


def test_progress_is_told_after_every_slow_step():
    told = []
    ts = [0, 1.5]
    tkf.simulate(MODEL + Slow(0.15), TOKENS, ts, tkf.Layers(0.5), progress=lambda share, t: told.append(t))
    assert told == [0.5, 1.0, 1.5]


def test_bursts_follow_the_pace():
    """They double while steps are fast, and one slow step is a burst, however long the last one was."""
    assert next_burst(1, 1e-6) == 2
    assert next_burst(64, 0.01) == 20
    assert next_burst(10**6, 75.0) == 1
    assert next_burst(10**6, 0.0) == 10**6


def runs_at_two_paces(monkeypatch, run):
    """The run with as long bursts as there may be, and with one step a burst."""
    monkeypatch.setattr(driver, "BURST_SECONDS", 1e9)
    fast = run()
    monkeypatch.setattr(driver, "BURST_SECONDS", 0.0)
    return fast, run()


def test_merging_does_not_depend_on_the_clock(monkeypatch):
    fast, slow = runs_at_two_paces(
        monkeypatch,
        lambda: tkf.simulate(MODEL, TOKENS, np.linspace(0, 2.0, 5), tkf.RungeKutta4(0.0125), merge_angle=0.3),
    )
    assert np.array_equal(fast.x, slow.x)
    assert fast.stats["tokens_left"] == slow.stats["tokens_left"] < 6
    assert fast.stats["merge_distance"] == slow.stats["merge_distance"]


def to_circle(policy, tokens):
    """Take circle sums at the first look, as if they had become cheaper."""
    before, policy.sums = policy.sums, policy.expansion
    return before.exact


def test_a_change_of_sums_does_not_depend_on_the_clock(monkeypatch):
    """It falls on the 64th attempt at every pace."""
    monkeypatch.setattr(SummationPolicy, "settled", property(lambda policy: False))
    monkeypatch.setattr(SummationPolicy, "reconsider", to_circle)
    tokens = tkf.Tokens(tok(50, 2, 1))
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), 2.0)
    fast, slow = runs_at_two_paces(
        monkeypatch, lambda: tkf.simulate(model, tokens, [0, 1.0, 2.0], tkf.RungeKutta4(0.02))
    )
    assert fast.stats["summation"] == slow.stats["summation"] == "direct, circle from t = 1.28"
    assert np.array_equal(fast.x, slow.x)


def test_a_burst_begins_anew_with_other_sums():
    """The sums that others fall back to may be a thousand times slower."""
    tokens = tkf.Tokens(tok(50, 2, 1))
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), 2.0)
    seen = []

    class Watched(driver.Driver):
        def _take_sums(self):
            super()._take_sums()
            seen.append(self.burst)

    policy = policy_for(model, tokens, "auto", 1e-8)
    policy.sums = policy.expansion
    field = Field(model, tokens.weights, policy.sums)
    run = Watched(tkf.RungeKutta4(0.1), field, tokens, np.array([0.0, 1.0]), policy)
    run.start()
    run.burst = 4096
    assert run._fall_back() and seen == [1]
    assert jnp.isfinite(run.state.t)
