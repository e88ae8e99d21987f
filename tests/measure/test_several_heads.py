"""The limit law and the phases of several heads, and the rank of laws, against exact cases."""

import numpy as np
import pytest

import tokenfield as tkf
from tests.theory.test_attractors import FOUR, NARROW, TURNING, uniform
from tokenfield import theory


def on_circle(n):
    theta = (np.arange(n) + 0.5) * 2 * np.pi / n
    return tkf.Tokens(np.stack([np.cos(theta), np.sin(theta)], axis=1)), theta


def test_the_distance_to_the_law_of_four_sinks():
    """Uniform tokens: each basin is an arc, and tokens go to their own sink; W2² is the sum over the arcs."""
    tokens, theta = on_circle(2000)
    found = theory.attractors(FOUR, 0)
    to_law = tkf.limit_distance(found, tokens)
    assert to_law.exact and to_law(to_law.end) == 0
    sinks = np.array([0.5754508397, 2.2132138405])
    sources = np.array([-0.42597, 1.6612988915, np.pi - 0.42597])
    square = 0.0
    for sink, low, high in zip(sinks, sources[:-1], sources[1:], strict=True):
        square += 2 * ((high - sink) ** 3 - (low - sink) ** 3) / 3 / (2 * np.pi)
    assert to_law(tokens) <= np.sqrt(square) + 1e-3  # the best transport may be shorter
    own = np.asarray(found.push(tokens).x)
    gap = np.mod(theta - np.arctan2(own[:, 1], own[:, 0]) + np.pi, 2 * np.pi) - np.pi
    assert np.sqrt(np.mean(gap**2)) == pytest.approx(np.sqrt(square), rel=1e-3)
    assert tkf.limit_distance(FOUR, tokens)(tokens) == pytest.approx(to_law(tokens), abs=1e-12)


def test_one_head_given_as_weights_is_its_limit():
    weights = tkf.AttentionWeights(np.diag([0.5, 2.0, 1.0]), np.diag([1.0, 0.5, 0.8]))
    tokens = tkf.initial.uniform(40, 3, 0)
    by_weights, by_limit = (
        tkf.limit_distance(weights, tokens),
        tkf.limit_distance(theory.limit(weights), tokens),
    )
    assert by_weights(tokens) == by_limit(tokens)


@pytest.mark.slow
def test_a_run_at_zero_temperature_comes_to_its_limit_law():
    tokens = tkf.Tokens(uniform(31, 3, 8))
    run = tkf.simulate(tkf.ZeroTemperature(NARROW), tokens, [0, 40.0], tkf.Adaptive(rtol=1e-9, atol=1e-12))
    distance = run.measure(tkf.limit_distance(NARROW, tokens))
    assert distance[0] > 0.1 and distance[1] < 1e-6


def test_phases_of_two_heads():
    """Concentration at the four sinks, at the slower rate .8646; then all end in the top eigenspace of ΣV_h."""
    tokens, _ = on_circle(240)
    solver = tkf.Adaptive(rtol=1e-6, atol=1e-9)
    run = tkf.simulate(tkf.SoftmaxAttention(FOUR, 400.0), tokens, np.linspace(0, 40, 161), solver, "direct")
    found = tkf.phases(run)
    assert [phase.name for phase in found.found] == ["concentration", "metastable", "escape", "terminal"]
    assert found.get("metastable").clusters == 4 and found.method.startswith("W2")
    values = np.linalg.eigvalsh(np.sum(np.asarray(FOUR.V), axis=0))
    assert found.get("terminal").rate == pytest.approx(values[1] - values[0], rel=0.1)
    assert found.get("terminal").to_end < 1e-3 and "several heads" in found.note


@pytest.mark.slow
def test_heads_that_turn_tokens_have_no_limit_law():
    tokens, _ = on_circle(12)
    with pytest.raises(tkf.InputError, match="go round with the period 4.447"):
        tkf.limit_distance(TURNING, tokens)
    run = tkf.simulate(tkf.ZeroTemperature(TURNING), tokens, np.linspace(0, 9, 10))
    found = tkf.phases(run)
    assert found.found == () and found.method.startswith("root mean square angle to E")


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_effective_rank_of_axes(k):
    """k orthogonal directions with equal mass: k, at x and −x alike."""
    x = np.concatenate([np.eye(5)[:k], -np.eye(5)[:k]])
    assert float(tkf.effective_rank(tkf.Tokens(x))) == pytest.approx(k, abs=1e-12)


def test_effective_rank_in_closed_form():
    """Masses p, 1−p on two axes: p^{−p}(1−p)^{−(1−p)}; turned, it is the same; of two tokens at angle a the
    eigenvalues are (1 ± cos a)/2."""
    p, a = 0.2, 0.7
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    expected = p**-p * (1 - p) ** -(1 - p)
    assert float(tkf.effective_rank(tkf.Tokens(turn[:2], [p, 1 - p]))) == pytest.approx(expected, rel=1e-12)
    q = (1 + np.cos(a)) / 2
    two = tkf.Tokens(np.array([[1.0, 0], [np.cos(a), np.sin(a)]]))
    assert float(tkf.effective_rank(two)) == pytest.approx(q**-q * (1 - q) ** -(1 - q), rel=1e-12)


@pytest.mark.slow
def test_ranks_of_runs_and_densities():
    tokens = tkf.initial.uniform(20, 3, 0)
    run = tkf.simulate(tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), 1.0), tokens, [0, 30.0])
    for measure in (tkf.effective_rank, tkf.order_parameter):
        np.testing.assert_allclose(measure(run), [float(measure(run.tokens(k))) for k in (0, 1)], rtol=1e-14)
    assert float(tkf.effective_rank(run)[1]) == pytest.approx(1, abs=1e-6)
    model = tkf.UnnormalisedAttention(tkf.AttentionWeights.identity(2), 1.0)
    law = tkf.density.solve(model, lambda a: 1 + 0.8 * np.cos(2 * a), [0, 0.01], "circle")
    # ∫xxᵀ = diag(½ + .2, ½ − .2) at first
    assert float(tkf.effective_rank(law)) == pytest.approx(0.7**-0.7 * 0.3**-0.3, rel=0.01)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: tkf.limit_distance("limit", on_circle(4)[0]), "`where` must be theory.limit or"),
        (lambda: tkf.effective_rank(np.eye(2)), "`tokens` must be a Tokens"),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match=sentence):
        bad()
