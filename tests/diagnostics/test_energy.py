"""The energy against double loops, and its growth along the flows against the dissipation."""

import jax
import numpy as np
import pytest

import tokenfield as tkf


def cloud(n=12, d=3, key=0):
    w = np.random.default_rng(key).dirichlet(np.ones(n))
    return tkf.Tokens(tkf.initial.uniform(n, d, key).x, w)


@pytest.mark.parametrize("beta", [1e-3, 1.0, 30.0])
def test_energy_is_the_double_sum(beta):
    tokens = cloud()
    x, w = np.asarray(tokens.x), np.asarray(tokens.weights)
    expected = w @ np.exp(beta * x @ x.T) @ w / (2 * beta)
    assert float(tkf.energy(tokens, beta)) == pytest.approx(expected, rel=1e-13)


def test_energy_at_infinite_temperature_is_half_the_squared_order_parameter():
    tokens = cloud()
    assert float(tkf.energy(tokens, 0.0)) == pytest.approx(float(tkf.order_parameter(tokens)) ** 2 / 2)
    # E_β − 1/2β → R²/2
    assert float(tkf.energy(tokens, 1e-6)) - 1 / 2e-6 == pytest.approx(
        float(tkf.energy(tokens, 0.0)), abs=1e-6
    )


def test_energy_is_greatest_at_a_dirac():
    dirac = tkf.Tokens([[0.0, 1.0, 0.0]])
    assert float(tkf.energy(dirac, 2.0)) == pytest.approx(np.exp(2) / 4)
    assert float(tkf.energy(cloud(), 2.0)) < np.exp(2) / 4


def test_log_energy_at_large_beta():
    """Two tokens at angle a, β = 10^4: log E = log(½(1 + e^{β(cos a − 1)})) + β − log 2β."""
    beta, a = 1e4, 0.02
    tokens = tkf.Tokens([[1.0, 0.0], [np.cos(a), np.sin(a)]])
    expected = np.log((1 + np.exp(beta * (np.cos(a) - 1))) / 2) + beta - np.log(2 * beta)
    assert float(tkf.log_energy(tokens, beta)) == pytest.approx(expected, abs=1e-9)
    with pytest.raises(tkf.InputError, match=r"`beta` must be at most 700, but was 10000.0; use log_energy"):
        tkf.energy(tokens, beta)
    softmax = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), beta)
    with pytest.raises(tkf.InputError, match=r"`beta` must be at most 700, but was 800.0"):
        tkf.dissipation(softmax, tokens, 800.0)
    with pytest.raises(tkf.InputError, match=r"`beta` must be one number, but was of shape \(2,\)"):
        tkf.energy(tokens, [1.0, 2.0])


@pytest.mark.parametrize("kind", [tkf.SoftmaxAttention, tkf.UnnormalisedAttention])
@pytest.mark.parametrize("beta", [0.5, 4.0])
@pytest.mark.parametrize("d", [2, 3, 5])
def test_energy_grows_at_the_rate_of_the_dissipation(kind, beta, d):
    """dE/dt by central differences of a run equals the dissipation to 1e-6, and E never falls."""
    tokens = cloud(d=d)
    model = kind(tkf.AttentionWeights.identity(d), beta)
    speed = float(np.abs(model.velocity(tokens)).max())
    h = 1e-3 / speed
    centres = np.array([0.2, 0.8, 2.0]) / speed
    ts = np.unique(np.concatenate([[0.0], *(centres + k * h for k in (-2, -1, 0, 1, 2))]))
    run = tkf.simulate(model, tokens, ts, tkf.Adaptive(rtol=1e-13, method="dopri8"))
    energies = run.measure(lambda t: tkf.energy(t, beta))
    assert np.all(np.diff(energies) >= 0)
    for t in centres:
        k = int(np.argmin(np.abs(ts - t)))
        near, far = energies[k + 1] - energies[k - 1], energies[k + 2] - energies[k - 2]
        slope = (8 * near - far) / (12 * h)
        assert slope == pytest.approx(float(tkf.dissipation(model, run.tokens(k), beta)), rel=1e-6)


def test_dissipation_is_the_squared_speed():
    tokens, beta = cloud(), 2.0
    usa = tkf.UnnormalisedAttention(tkf.AttentionWeights.identity(3), beta)
    softmax = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), beta)
    v = np.asarray(usa.velocity(tokens))
    w, x = np.asarray(tokens.weights), np.asarray(tokens.x)
    z = np.exp(beta * x @ x.T) @ w
    assert float(tkf.dissipation(usa, tokens, beta)) == pytest.approx(np.sum(w * np.sum(v**2, 1)), rel=1e-12)
    assert float(tkf.dissipation(softmax, tokens, beta)) == pytest.approx(
        np.sum(w * np.sum(v**2, 1) / z), rel=1e-12
    )


def test_velocity_is_the_gradient_of_the_energy():
    """Gradient by JAX through the tiled sums, divided by the weights, is the unnormalised velocity."""
    tokens, beta = cloud(), 3.0

    def of_points(x):
        return tkf.energy(tkf.Tokens(x, tokens.weights), beta)  # constant along rays: the gradient is tangent

    gradient = jax.grad(of_points)(tokens.x) / tokens.weights[:, None]
    usa = tkf.UnnormalisedAttention(tkf.AttentionWeights.identity(3), beta)
    np.testing.assert_allclose(gradient, usa.velocity(tokens), rtol=1e-10, atol=1e-12)
