"""The mean field of causal attention: densities of blocks against tokens in blocks and linear growth."""

import numpy as np
import pytest

import tokenfield as tkf

IDENTITY = tkf.AttentionWeights.identity(2)


def bump(place, height=0.6):
    return lambda theta: 1 + height * np.cos(theta - place) + 0.2 * np.sin(2 * theta + place)


@pytest.fixture(scope="module")
def laws():
    return [bump(0.0), bump(1.5, 0.3), bump(-2.0)]


@pytest.mark.parametrize(
    ("weights", "kind"),
    [
        pytest.param(IDENTITY, tkf.SoftmaxAttention, marks=pytest.mark.slow),
        pytest.param(IDENTITY, tkf.UnnormalisedAttention, marks=pytest.mark.slow),
        pytest.param(
            tkf.AttentionWeights([[1.0, 0.4], [-0.2, 0.7]], [[0.8, 0.1], [0.3, 1.0]]),
            tkf.SoftmaxAttention,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_densities_are_tokens_in_blocks(weights, kind, laws):
    """Moments of every block at t = .5; quadrature clouds of 48 tokens are exact to far more digits."""
    beta, ts = 2.0, [0.0, 0.5]
    found = tkf.density.causal(kind(weights, beta), laws, ts, modes=128)
    assert found.resolved
    tokens, mask = tkf.density.block_tokens(laws, 48)
    run = tkf.simulate(kind(weights, beta, mask), tokens, ts, tkf.Adaptive(1e-10, 1e-11), summation="direct")
    angles = np.arctan2(run.x[-1, :, 1], run.x[-1, :, 0]).reshape(3, 48)
    w = 3 * np.asarray(run.weights).reshape(3, 48)
    for degree in (1, 2, 3):
        expected = np.sum(w * np.exp(-1j * degree * angles), axis=1)
        np.testing.assert_allclose(found.moment(degree)[-1], expected, atol=1e-8)
    assert found.tokens(1).n == 128


@pytest.mark.slow
def test_the_first_block_is_full_attention(laws):
    """It reads itself alone; and blocks with one law stay together."""
    model, ts = tkf.SoftmaxAttention(IDENTITY, 2.0), [0.0, 0.5]
    whole = tkf.density.solve(model, laws[0], ts, tkf.density.Circle(128, "spectral"))
    same = tkf.density.causal(model, [laws[0]] * 3, ts, slope=0.7, modes=128)
    theta = np.asarray(whole.nodes)
    expected = np.exp(-1j * theta) @ whole.masses[-1]
    np.testing.assert_allclose(same.moment(1)[-1], np.full(3, expected), atol=1e-9)


@pytest.mark.parametrize("slope", [0.0, 1.5])
def test_small_waves_grow_as_predicted(slope):
    """theory §6.1.4: β = 5, l = 3, h = (1, .5, −.3, .2): the printed numbers, and with ALiBi the theory's."""
    h, size = np.array([1.0, 0.5, -0.3, 0.2]), 1e-7
    laws = [lambda theta, a=a: 1 + 2 * size * a * np.cos(3 * theta) for a in h]
    model = tkf.SoftmaxAttention(IDENTITY, 5.0)
    found = tkf.density.causal(model, laws, [0.0, 1.0], slope, modes=128, tolerance=1e-13)
    grown = found.moment(3)[-1].real / size
    np.testing.assert_allclose(grown, tkf.theory.causal_growth(h, [1.0], 5.0, 3, slope=slope)[0], atol=1e-6)
    if slope == 0:
        np.testing.assert_allclose(grown, [1.979171521, 1.275756366, 0.195681590, 0.636705235], atol=1e-6)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (
            lambda f: tkf.density.causal(tkf.SoftmaxAttention(IDENTITY, 1.0), f, [0, 1]),
            "`rho0` must be a list",
        ),
        (lambda f: tkf.density.block_tokens([], 4), "`rho0` must be a list of functions of angles"),
        (
            lambda f: tkf.density.causal(
                tkf.SoftmaxAttention(IDENTITY, 1.0, tkf.masks.causal()), [f], [0, 1]
            ),
            "`model` must not read the order of its tokens",
        ),
        (
            lambda f: tkf.density.causal(tkf.SoftmaxAttention(IDENTITY, 1.0), [f], [0, 1], slope=-1.0),
            "`slope` must be at least 0",
        ),
        (
            lambda f: tkf.density.causal(tkf.SoftmaxAttention(IDENTITY, 1.0) + tkf.Noise(1.0), [f], [0, 1]),
            "`model` must have no noise here",
        ),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad(bump(0.0))
