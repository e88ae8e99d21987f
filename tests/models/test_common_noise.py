"""Noise that all tokens share: its Gram matrix, its ends, and random layers that tend to it (theory §6.5)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg

import tokenfield as tkf
from tests.problems.loops import tok, unit
from tokenfield.runs.stepper import Field
from tokenfield.sums.direct import DIRECT


def softmax(d, beta):
    return tkf.SoftmaxAttention(tkf.AttentionWeights.identity(d), beta)


def read(x, beta):
    """What tokens read before V, by NumPy."""
    weights = np.exp(beta * x @ x.T)
    return weights / weights.sum(axis=1, keepdims=True) @ x


def moments(step_from, x, h, count):
    """Drift and variance of the Gram matrix in a step, from `count` pairs of opposite noise, with errors."""
    d = x.shape[1]
    W = np.random.default_rng(0).normal(size=(count, d, d))
    gram = lambda sign: jax.vmap(lambda w: (lambda y: y @ y.T)(step_from(sign * w)))(W)  # noqa: E731
    plus, minus = np.asarray(gram(1.0)), np.asarray(gram(-1.0))
    drift, variance = ((plus + minus) / 2 - x @ x.T) / h, (plus - minus) ** 2 / (4 * h)
    return [(a.mean(axis=0), a.std(axis=0) / np.sqrt(count)) for a in (drift, variance)]


def solver_step(x, sigma, beta, h):
    """One step of Euler–Maruyama as a function of the matrix."""
    model = tkf.CommonNoise(softmax(x.shape[1], beta), sigma)
    field = Field(model, jnp.full(len(x), 1 / len(x)), DIRECT)
    scheme = tkf.EulerMaruyama(h, 0).scheme
    return lambda w: scheme.move(lambda t, y: field(t, y, None), field, 0.0, jnp.asarray(x), h, w[None])


def layer_step(x, sigma, beta, h):
    """One layer with values (σ/√η)W."""
    y = read(x, beta)

    def step(w):
        moved = x + np.sqrt(h) * sigma * y @ w.T
        return moved / jnp.linalg.norm(moved, axis=1, keepdims=True)

    return step


@pytest.mark.parametrize("step", [solver_step, layer_step])
def test_the_gram_matrix_moves_as_predicted(step):
    """Both the solver's step and a layer, by Monte Carlo with the same matrices; opposite signs cancel noise."""
    x, sigma, beta, h = tok(4, 5, 1), 0.8, 1.5, 1e-3
    G, y = x @ x.T, read(x, beta)
    C = y @ y.T
    (drift, drift_error), (variance, variance_error) = moments(step(x, sigma, beta, h), x, h, 20_000)
    off = ~np.eye(4, dtype=bool)
    for found, error, expected in (
        (drift, drift_error, tkf.theory.gram_drift(G, C, 5, sigma)),
        (variance, variance_error, tkf.theory.gram_variance(G, C, 5, sigma)),
    ):
        assert np.abs((found - expected)[off] / error[off]).max() < 4.5
        assert error[off].max() < 0.02 * np.abs(expected[off]).max()


def test_a_product_of_stratonovich_with_what_is_read_would_be_another_equation():
    """Half a step of ȳ along the noise moves the drift by more than the errors that the test above allows."""
    x, sigma, beta, h = tok(4, 5, 1), 0.8, 1.5, 1e-3

    def heun(w):
        def slope(y):
            a = jax.nn.softmax(beta * y @ y.T, axis=1) @ y
            a = np.sqrt(h) * sigma * a @ w.T
            return a - jnp.sum(a * y, axis=1, keepdims=True) * y

        middle = x + slope(jnp.asarray(x))
        y = x + (slope(jnp.asarray(x)) + slope(middle)) / 2
        return y / jnp.linalg.norm(y, axis=1, keepdims=True)

    (drift, error), _ = moments(heun, x, h, 20_000)
    y = read(x, beta)
    expected = tkf.theory.gram_drift(x @ x.T, y @ y.T, 5, sigma)
    assert np.abs((drift - expected) / np.maximum(error, 1e-9))[~np.eye(4, dtype=bool)].max() > 6


def pair(d, rho):
    return tkf.Tokens(np.array([[1.0, 0] + [0] * (d - 2), [rho, np.sqrt(1 - rho**2)] + [0] * (d - 2)]))


def ends(run, keys):
    """z = artanh ρ of the last tokens of a run for every key."""
    x = np.asarray(jax.jit(jax.vmap(lambda key: run(key).x[-1]))(keys))
    plus, minus = (np.sum((x[:, 0] + s * x[:, 1]) ** 2, axis=1) for s in (1, -1))
    return np.log(np.maximum(plus, 1e-300) / np.maximum(minus, 1e-300)) / 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["noise", "layers"])
def test_pairs_end_together_as_often_as_quadrature_says(kind):
    """d = 8, β = 2, ρ_0 = −.5: .714 (theory §6.5), by the equation and by layers of a small step."""
    d, beta, count, h = 8, 2.0, 1000, 0.01

    def draw(key):
        V = jax.random.normal(key, (d, d)) / np.sqrt(h)
        return tkf.SoftmaxAttention(tkf.AttentionWeights(jnp.eye(d), V), beta)

    def run(key):
        if kind == "layers":
            model, solver = tkf.RandomLayers(draw, h, key), tkf.Layers(h)
        else:
            model, solver = tkf.CommonNoise(softmax(d, beta), 1.0), tkf.EulerMaruyama(h, key)
        return tkf.simulate(model, pair(d, -0.5), [0.0, 16.0], solver)

    z = ends(run, jnp.arange(count))
    share, expected = np.mean(z > 0), tkf.theory.CommonNoisePair(d, beta).together(-0.5)
    assert np.mean(np.abs(z) < 3) < 0.02  # all but a few have decided
    assert abs(share - expected) < 3 * np.sqrt(expected * (1 - expected) / count) + 0.015


@pytest.mark.slow
def test_pairs_with_a_mean_move_as_the_equation_of_z():
    """E z after t = .4 with α = .7, against the backward equation of z on a grid."""
    d, beta, sigma, alpha, t, h, count = 6, 1.0, 0.6, 0.7, 0.4, 0.02, 10_000
    value = tkf.AttentionWeights(jnp.eye(d), alpha * jnp.eye(d))
    model = tkf.SoftmaxAttention(value, beta) + tkf.CommonNoise(softmax(d, beta), sigma)
    z = ends(
        lambda key: tkf.simulate(model, pair(d, 0.2), [0.0, t], tkf.EulerMaruyama(h, key)), jnp.arange(count)
    )
    known = tkf.theory.CommonNoisePair(d, beta, sigma, alpha)
    grid = np.linspace(-6, 8, 561)
    w = grid[1] - grid[0]
    b, s = known.drift(grid), known.diffusion(grid) / 2
    generator = (
        np.diag(s[:-1] / w**2 + b[:-1] / (2 * w), 1)
        + np.diag(s[1:] / w**2 - b[1:] / (2 * w), -1)
        - np.diag(2 * s / w**2)
    )
    generator[[0, -1]] = 0
    steps = linalg.lu_factor(np.eye(len(grid)) - t / 200 * generator)
    f = grid
    for _ in range(200):
        f = linalg.lu_solve(steps, f)
    expected = np.interp(np.arctanh(0.2), grid, f)
    assert abs(z.mean() - expected) < 4 * z.std() / np.sqrt(count) + 0.01
    assert expected - np.arctanh(0.2) > 0.4


def test_the_solver_steps_as_the_formula_says():
    """x ← exp_x(h P αȳ + √h P σWȳ), W from the key and the number of the step, by NumPy."""
    d, beta, h, sigma, x = 3, 2.0, 0.1, 0.5, tok(4, 3, 1)
    model = softmax(d, beta) + tkf.CommonNoise(softmax(d, beta), sigma)
    run = tkf.simulate(model, tkf.Tokens(x), [0, 0.2], tkf.EulerMaruyama(h, 9))
    for k in range(2):
        W = np.asarray(jax.random.normal(jax.random.fold_in(jax.random.key(9), k), (1, d, d)))[0]
        y = read(x, beta)
        u = h * y + np.sqrt(h) * sigma * y @ W.T
        u = u - np.sum(u * x, axis=1, keepdims=True) * x
        angle = np.linalg.norm(u, axis=1, keepdims=True)
        x = unit(np.cos(angle) * x + np.sin(angle) / angle * u)
    np.testing.assert_allclose(run.x[-1], x, atol=1e-13)


@pytest.mark.slow
def test_fast_sums_and_a_loaded_model(tmp_path):
    model = softmax(2, 3.0) + tkf.CommonNoise(softmax(2, 3.0), 0.3)
    tokens, solver = tkf.initial.uniform(400, 2, 0), tkf.EulerMaruyama(0.05, 1)
    fast = tkf.simulate(model, tokens, [0, 0.2], solver, summation="circle", store=tmp_path / "run")
    direct = tkf.simulate(model, tokens, [0, 0.2], solver, summation="direct")
    np.testing.assert_allclose(fast.x, direct.x, atol=1e-6)
    again = tkf.load(tmp_path / "run").model
    np.testing.assert_array_equal(
        tkf.simulate(again, tokens, [0, 0.2], solver, summation="direct").x, direct.x
    )


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda m: tkf.CommonNoise(m, 0.0), "`sigma` must be positive and finite, but was 0.0"),
        (lambda m: tkf.CommonNoise(3, 1.0), "`read` must be a Model, but was int"),
        (lambda m: tkf.CommonNoise(tkf.PreNorm(m), 1.0), "`read` must live on the sphere"),
        (lambda m: tkf.CommonNoise(m + tkf.Noise(1.0), 1.0), "`read` must have no noise of its own"),
        (lambda m: m + tkf.CommonNoise(m, 1.0) + tkf.Noise(1.0), "`terms` must have noise at most once"),
        (
            lambda m: tkf.simulate(tkf.CommonNoise(m, 1.0), tkf.initial.uniform(4, 2, 0), 1.0),
            "`solver` must be EulerMaruyama(step, key)",
        ),
        (
            lambda m: tkf.simulate(
                tkf.CommonNoise(m, 1.0), tkf.initial.uniform(4, 2, 0), 1.0, tkf.Strang(0.1, 0)
            ),
            "`solver` must be EulerMaruyama(step, key) for noise that all tokens share, but was Strang",
        ),
        (
            lambda m: tkf.density.solve(
                m + tkf.CommonNoise(m, 1.0), lambda t: 1 + 0 * t, [0, 1.0], tkf.density.Circle()
            ),
            "`model` must have no noise that all tokens share",
        ),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError) as error:
        bad(softmax(2, 1.0))
    assert str(error.value).startswith(sentence)
