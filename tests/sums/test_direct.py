"""Direct sums against loops in NumPy and in many digits: every tile edge, every temperature."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenfield as tkf
from tests.marks import mostly_slow
from tokenfield.sums import direct
from tokenfield.sums.base import Queries
from tokenfield.sums.direct import DIRECT, Direct
from tokenfield.sums.policy import SummationPolicy
from tokenfield.sums.profile import EXPONENTIAL, Scored

SYMMETRIC = Direct(symmetric=True)


def exponential(q, tokens, sums=DIRECT):
    return sums.exponential(Queries(jnp.eye(tokens.d), jnp.asarray(q)), tokens)


def reference(q, tokens):
    """The obvious way, with the maximum over tokens that have weight."""
    x, w = np.asarray(tokens.x), np.asarray(tokens.weights)
    scores = np.asarray(q) @ x.T
    top = np.max(np.where(w > 0, scores, -np.inf), axis=1)
    p = np.where(w > 0, np.exp(np.where(w > 0, scores - top[:, None], 0)), 0) * w
    mass = p.sum(axis=1)
    return top + np.log(mass), p @ x / mass[:, None]


def cloud(n, d, key):
    rng = np.random.default_rng(key)
    w = rng.dirichlet(np.full(n, 0.3))
    w[1:][rng.uniform(size=n - 1) < 0.1] = 0
    return tkf.Tokens(tkf.initial.uniform(n, d, key).x, w / w.sum())


@settings(deadline=None, max_examples=30, derandomize=True)
@given(
    sizes=st.sampled_from([(1, 1, 2), (1, 40, 3), (23, 7, 2), (40, 40, 6)]),
    log_beta=st.floats(-12, 7),
    key=st.integers(0, 9),
)
def test_exponential_sums_of_small_clouds(sizes, log_beta, key):
    m, n, d = sizes
    tokens, q = cloud(n, d, key), 10**log_beta * np.asarray(tkf.initial.uniform(m, d, key + 50).x)
    log_mass, mean, _ = exponential(q, tokens)
    expected = reference(q, tokens)
    np.testing.assert_allclose(log_mass, expected[0], rtol=1e-12, atol=1e-12)
    # a score of size β carries a rounding error β·1e-16 into its exponential
    np.testing.assert_allclose(mean, expected[1], atol=1e-13 + 1e-14 * 10**log_beta)


@pytest.mark.parametrize("n", [513, 2501])
@pytest.mark.parametrize("beta", [0.0, 1e-12, 1.0, 300.0, 1e5, 1e8])
def test_exponential_sums_across_tiles(n, beta):
    tokens = cloud(n, 3, 1)
    q = beta * np.asarray(tkf.initial.uniform(n + 7, 3, 2).x)
    log_mass, mean, _ = exponential(q, tokens)
    expected = reference(q, tokens)
    np.testing.assert_allclose(log_mass, expected[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(mean, expected[1], atol=1e-13 + 1e-14 * beta)


def test_queries_turned_away_from_every_key_are_found_and_done_again():
    """All keys in one cap, queries opposite, β = 10^4: every shifted term underflows."""
    tokens = tkf.initial.cap(1200, [0, 0, 1.0], 0.3, 0)
    q = -1e4 * np.asarray(tkf.initial.cap(1200, [0, 0, 1.0], 0.3, 1).x)
    assert np.all(np.exp(q @ np.asarray(tokens.x).T - 1e4) == 0)
    log_mass, mean, _ = exponential(q, tokens)
    expected = reference(q, tokens)
    np.testing.assert_allclose(log_mass, expected[0], rtol=1e-12)
    np.testing.assert_allclose(mean, expected[1], atol=1e-10)


@pytest.mark.parametrize("beta", [0.0, 1e-12, 7.0, 1e8])
def test_against_fifty_digits(beta):
    tokens, x = tkf.initial.uniform(6, 3, 3), tkf.initial.uniform(2, 3, 4).x
    found = exponential(beta * x, tokens).mean
    with mpmath.workdps(50):
        for i in range(2):
            q = [mpmath.mpf(beta) * mpmath.mpf(float(v)) for v in x[i]]
            scores = [sum(a * mpmath.mpf(float(b)) for a, b in zip(q, y, strict=True)) for y in tokens.x]
            p = [mpmath.exp(s - max(scores)) for s in scores]
            mean = [
                sum(pj * mpmath.mpf(float(y[k])) for pj, y in zip(p, tokens.x, strict=True)) / sum(p)
                for k in range(3)
            ]
            np.testing.assert_allclose(found[i], [float(v) for v in mean], atol=1e-15 + 3e-16 * beta)


@pytest.mark.parametrize("n", [50, 1300])
def test_hardmax_takes_the_best_token_present(n):
    tokens = cloud(n, 3, 5)
    q = np.asarray(tkf.initial.uniform(n, 3, 6).x)
    found = DIRECT.hardmax(Queries(jnp.eye(tokens.d), jnp.asarray(q)), tokens)
    scores = np.where(np.asarray(tokens.weights) > 0, q @ np.asarray(tokens.x).T, -np.inf)
    np.testing.assert_allclose(found.mean, np.asarray(tokens.x)[scores.argmax(axis=1)], atol=1e-15)
    np.testing.assert_allclose(found.top, scores.max(axis=1), atol=1e-15)


def test_hardmax_averages_ties_by_weight():
    tokens = tkf.Tokens([[1.0, 0.0], [0.6, 0.8], [0.6, -0.8], [0.6, 0.8]], [0.1, 0.2, 0.3, 0.4])
    found = DIRECT.hardmax(Queries(jnp.eye(2), jnp.array([[-1.0, 0.0]])), tokens)
    np.testing.assert_allclose(found.mean[0], [0.6, (0.6 * 0.8 - 0.3 * 0.8) / 0.9], atol=1e-15)
    assert float(found.mass[0]) == pytest.approx(0.9)


@pytest.mark.parametrize("n", [40, 1100])
def test_kernel_sums(n):
    tokens, q = cloud(n, 4, 7), np.asarray(tkf.initial.uniform(n, 4, 8).x)
    mass, total = DIRECT.pointwise(lambda s: s**3 - s, Queries(jnp.eye(tokens.d), jnp.asarray(q)), tokens)
    s = q @ np.asarray(tokens.x).T
    weighted = (s**3 - s) * np.asarray(tokens.weights)
    np.testing.assert_allclose(mass, weighted.sum(axis=1), atol=1e-14)
    np.testing.assert_allclose(total, weighted @ np.asarray(tokens.x), atol=1e-14)


@pytest.mark.parametrize(
    ("n", "beta"), mostly_slow([(30, 2.0), (30, 0.0), (1100, 3.0), (1100, 5e3)], [(30, 2.0), (1100, 5e3)])
)
def test_gradients_agree_with_finite_differences(n, beta):
    """In queries, keys and weights, inside one tile, across tiles, and through the careful branch."""
    x, y = tkf.initial.uniform(n, 3, 0).x, tkf.initial.cap(n, [0, 0, 1.0], 0.05, 1).x
    w = jnp.asarray(np.random.default_rng(0).dirichlet(np.ones(n)))
    c = jnp.asarray(np.random.default_rng(1).normal(size=(n, 3)) / n)

    @jax.jit
    def f(x, y, w):
        # raw fields: a derivative along y leaves the sphere, which Tokens would undo
        tokens = jax.tree.unflatten(jax.tree.structure(tkf.Tokens(y0, w0)), (y, w))
        total = exponential(beta * x, tokens)
        return jnp.sum(c * total.mean) + jnp.mean(total.log_mass) / (1 + beta)

    y0, w0 = y, w
    gradients = jax.jit(jax.grad(f, argnums=(0, 1, 2)))(x, y, w)
    rng, eps = np.random.default_rng(2), 1e-6 / (1 + beta)
    for k, g in enumerate(gradients):
        v = rng.normal(size=g.shape)
        args = [x, y, w]
        plus, minus = ([a + s * eps * v if i == k else a for i, a in enumerate(args)] for s in (1, -1))
        measured = (f(*plus) - f(*minus)) / (2 * eps)
        assert float(jnp.vdot(g, v)) == pytest.approx(float(measured), rel=3e-5, abs=1e-8)


def test_vmap_over_clouds_and_temperatures():
    x = jnp.stack([tkf.initial.uniform(600, 3, k).x for k in range(3)])
    betas = jnp.array([0.5, 5.0, 5e4])
    together = jax.vmap(lambda x, b: exponential(b * x, tkf.Tokens(x)).mean)(x, betas)
    for k in range(3):
        alone = exponential(betas[k] * x[k], tkf.Tokens(x[k])).mean
        np.testing.assert_allclose(together[k], alone, atol=1e-12)


def test_no_array_grows_like_n_squared():
    """The largest intermediate of a jitted sum at n = 20,000 is a tile, not n × n."""
    n = 20_000
    tokens = jax.eval_shape(lambda: tkf.Tokens(jnp.ones((n, 3)) / np.sqrt(3)))
    compiled = jax.jit(exponential).lower(tokens.x, tokens).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 200e6  # n² doubles are 3.2e9


def test_tiles_hardly_pad():
    for n in (501, 999, 1001, 12_345):
        size = direct.tile_size(n, 500)
        assert 0 <= -n % size < 0.01 * n + 30


@pytest.mark.parametrize("beta", [0.0, 3.0, 300.0, 1e6])
@pytest.mark.parametrize("n", mostly_slow([513, 2503], [513]))
def test_symmetric_sums_are_the_same_sums(n, beta):
    """Also with weights of 0 and so small that their tokens do not see themselves."""
    tokens = cloud(n, 3, 11)
    weights = np.array(tokens.weights)
    weights[0] = 0.0
    weights[1] = 1e-250
    tokens = tkf.Tokens(tokens.x, weights / weights.sum())
    found = exponential(beta * tokens.x, tokens, SYMMETRIC)
    expected = reference(beta * np.asarray(tokens.x), tokens)
    np.testing.assert_allclose(found.log_mass, expected[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.mean, expected[1], atol=1e-13 + 1e-14 * beta)


@pytest.mark.slow
def test_gradient_of_symmetric_sums():
    x = tkf.initial.uniform(1200, 3, 0).x
    c = jnp.asarray(np.random.default_rng(1).normal(size=x.shape))

    def f(x, sums):
        return jnp.sum(c * exponential(4.0 * x, tkf.Tokens(x), sums).mean)

    np.testing.assert_allclose(jax.grad(f)(x, SYMMETRIC), jax.grad(f)(x, DIRECT), atol=1e-12)


def test_a_run_knows_when_scores_are_symmetric():
    """B a multiple of I for every head: and only then."""
    eye, tokens = np.eye(2), cloud(5, 2, 0)
    for heads, expected in (
        ([eye], True),
        ([3 * eye], True),
        ([eye, -2 * eye], True),
        ([eye, np.diag([1.0, 2.0])], False),
        ([[[1.0, 1e-9], [0.0, 1.0]]], False),
    ):
        assert (
            SummationPolicy("direct", Scored(EXPONENTIAL, np.array(heads)), tokens, 1e-9).sums.symmetric
            is expected
        )
    assert not SummationPolicy("auto", None, tokens, 1e-9).sums.symmetric


@pytest.mark.slow
@pytest.mark.parametrize("kind", [tkf.SoftmaxAttention, tkf.UnnormalisedAttention])
def test_runs_with_symmetric_scores_follow_the_same_flow(kind):
    tokens = cloud(700, 3, 0)
    B = jnp.stack([jnp.eye(3), 0.5 * jnp.eye(3)])
    tilted = B.at[0, 0, 1].set(1e-13)  # the same to rounding, but not symmetric
    runs = [
        tkf.simulate(kind(tkf.AttentionWeights(b, np.diag([1.0, 0.5, 0.2])), 2.0), tokens, [0.0, 0.5])
        for b in (B, tilted)
    ]
    np.testing.assert_allclose(runs[0].x[-1], runs[1].x[-1], atol=1e-11)


def test_calls_outside_of_jit_compile_once():
    """A measure such as the energy is called at every saved time."""
    tokens = [cloud(600, 3, k) for k in range(3)]
    compiled = lambda: [f._cache_size() for f in (direct._exponential, direct._hardmax)]  # noqa: E731
    hardmax = tkf.HardmaxAttention(tkf.AttentionWeights.identity(3))
    for call in (lambda t: tkf.energy(t, 2.0), hardmax.velocity):
        call(tokens[0])
        before = compiled()
        call(tokens[1]), call(tokens[2])
        assert compiled() == before
