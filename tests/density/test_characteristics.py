"""Nodes carried by the flow: panels, divergences, exact densities, honest error estimates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import tokenfield as tkf
from tokenfield import density
from tokenfield.density.divergence import velocity_and_divergence
from tokenfield.density.panels import even_panels, to_divide
from tokenfield.papers.low_temperature import worked
from tokenfield.sums.choice import policy_for
from tokenfield.sums.direct import DIRECT


def identity(d, beta, kind=tkf.SoftmaxAttention):
    return kind(tkf.AttentionWeights.identity(d), beta)


# -- panels


@pytest.mark.parametrize("d", [2, 3])
def test_panels_integrate_polynomials(d):
    """Also where some of them are divided: monomials against Γ functions."""
    panels = even_panels(d, 400 if d == 2 else 2000, 8)
    parts = np.ones((len(panels.lower), d - 1), int)
    parts[0], parts[3, 0] = 2, 4
    panels = panels.divided(parts, 8)
    assert panels.n == len(panels.points())
    x, w = panels.points(), panels.weights()
    assert w.sum() == pytest.approx(1, abs=1e-14)
    for powers in [(2, 0, 0), (4, 2, 0), (0, 2, 2), (1, 0, 0), (1, 1, 2), (6, 0, 0)]:
        p = np.array(powers[:d])
        exact = 0.0
        if np.all(p % 2 == 0):
            exact = np.exp(
                special.gammaln((p + 1) / 2).sum()
                - special.gammaln((p.sum() + d) / 2)
                + special.gammaln(d / 2)
                - d * special.gammaln(0.5)
            )
        assert w @ np.prod(x**p, axis=1) == pytest.approx(exact, abs=1e-9)


def test_tails_find_the_panel_with_the_step():
    panels = even_panels(2, 64, 8)
    theta = panels.labels().ravel()
    tails = panels.tails(np.tanh(40 * (theta - 2.5))[:, None])[:, 0]
    assert panels.lower[np.argmax(tails), 0] < 2.5 < panels.upper[np.argmax(tails), 0]
    assert np.sort(tails)[-2] < 0.01 * tails.max()
    np.testing.assert_array_equal(to_divide(np.array([1e-3, 1.0, 1e-3, 0.1]), 0.01), [0, 1, 0, 1])


# -- divergence


@pytest.mark.parametrize("kind", [tkf.SoftmaxAttention, tkf.UnnormalisedAttention])
def test_divergence_is_its_formula(kind):
    """tr(Da) − xᵀDa x − (d−1)⟨x,a⟩ with Da = V C Aᵀ from second moments, two heads, by loops."""
    d, beta = 4, 1.5
    weights = tkf.AttentionWeights(
        tkf.ensembles.gaussian(d, 1, heads=2), tkf.ensembles.gaussian(d, 2, heads=2)
    )
    tokens = tkf.Tokens(tkf.initial.uniform(11, d, 0).x, np.random.default_rng(0).dirichlet(np.ones(11)))
    model = kind(weights, beta)
    v, found = jax.jit(lambda x: velocity_and_divergence(model, x, tokens))(tokens.x)
    np.testing.assert_allclose(v, kind(weights, beta).velocity(tokens), rtol=1e-13, atol=1e-13)
    y, w = np.asarray(tokens.x), np.asarray(tokens.weights)
    for x, value in zip(y, found, strict=True):
        expected = 0.0
        for B, V in zip(np.asarray(weights.B), np.asarray(weights.V), strict=True):
            p = w * np.exp(beta * (y @ (B.T @ x)))
            if kind is tkf.SoftmaxAttention:
                p = p / p.sum()
            mean, second = p @ y, (p[:, None] * y).T @ y
            if kind is tkf.SoftmaxAttention:
                second = second - np.outer(mean, mean)
            slope = beta * V @ second @ B.T
            expected += np.trace(slope) - x @ slope @ x - (d - 1) * x @ V @ mean
        assert float(value) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("d", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_divergence_rides_on_the_fast_sums(d):
    weights = tkf.AttentionWeights(np.diag([1.0, 2.0, 1.5][:d]), tkf.ensembles.gaussian(d, 2))
    model = tkf.SoftmaxAttention(weights, 10.0)
    tokens = tkf.initial.uniform(500, d, 0)
    summation = {2: "circle", 3: "harmonic"}[d]
    fast = policy_for(model, tokens, summation, 1e-10).sums
    at = jax.jit(lambda sums: velocity_and_divergence(model, tokens.x, tokens, sums)[1])
    np.testing.assert_allclose(at(fast), at(DIRECT), atol=1e-9)


# -- exact problems


def poisson_density(x, w):
    """Relative to the uniform law."""
    d = x.shape[1]
    return ((1 - w @ w) / np.sum((x - w) ** 2, axis=1)) ** (d - 1)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("d", [2, pytest.param(3, marks=SLOW), pytest.param(5, marks=SLOW)])
def test_poisson_laws_are_exact_at_every_node(d):
    """β = 0: the law stays in its family, so the density is known wherever a node goes (theory §4)."""
    axis, r0, ts = np.eye(d)[0], 0.2, np.array([0.0, 0.5, 1.0])
    domain = {
        2: density.Characteristics(n=64),
        3: density.Characteristics(n=512),
        5: density.Characteristics(rule=tkf.initial.zonal_density(np.ones_like, axis, 160)),
    }[d]
    run = density.solve(identity(d, 0.0), lambda x: poisson_density(x, r0 * axis), ts, domain)
    exact = tkf.theory.poisson_order(ts, r0, d)
    np.testing.assert_allclose(run.measure(tkf.order_parameter), exact, atol=1e-6)
    r = np.array([_radius(R, d) for R in exact])
    for k in range(len(ts)):
        np.testing.assert_allclose(run.density[k], poisson_density(run.nodes[k], r[k] * axis), rtol=3e-6)
    np.testing.assert_allclose(run.mass, 1, atol=1e-12)
    assert run.minimum.min() > 0


def _radius(R, d):
    """r with h_d(r) = R (theory §4), by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        r = (low + high) / 2
        h = 2 * (d - 1) / d * r * special.hyp2f1(1, 1 - d / 2, 1 + d / 2, r * r)
        low, high = (r, high) if h < R else (low, r)
    return low


@pytest.mark.parametrize(
    ("d", "kind"),
    [
        (2, tkf.SoftmaxAttention),
        pytest.param(2, tkf.UnnormalisedAttention, marks=pytest.mark.slow),
        pytest.param(3, tkf.SoftmaxAttention, marks=pytest.mark.slow),
        pytest.param(3, tkf.UnnormalisedAttention, marks=pytest.mark.slow),
    ],
)
def test_harmonics_grow_at_their_rates(d, kind):
    """About the uniform law, degree 3 at β = 5 (theory §3.4)."""
    flow = {tkf.SoftmaxAttention: "softmax", tkf.UnnormalisedAttention: "unnormalised"}[kind]
    rate = tkf.theory.growth_rate(d, 5.0, 3, flow)
    wave = (lambda u: np.cos(3 * np.arccos(u))) if d == 2 else special.legendre(3)
    harmonic = lambda x: wave(np.clip(x[:, 0], -1, 1))  # noqa: E731
    domain = density.Characteristics(n={2: 256, 3: 2048}[d], tolerance=1e-11)
    run = density.solve(
        identity(d, 5.0, kind), lambda x: 1 + 1e-4 * harmonic(x), [0, 0.1 / rate, 1 / rate], domain
    )
    size = [m @ harmonic(x) for m, x in zip(run.masses, run.nodes, strict=True)]
    assert np.log(size[2] / size[1]) / 0.9 == pytest.approx(1.0, rel=1e-3)


@pytest.mark.slow
def test_order_parameter_of_a_weak_coupling():
    """theory §3.8, f0 ∝ 1 + ½cos θ, β = 0.1, unnormalised."""
    run = density.solve(
        identity(2, 0.1, tkf.UnnormalisedAttention),
        lambda x: 1 + 0.5 * x[:, 0],
        [0, 2, 4, 6, 10],
        "characteristics",
    )
    found = run.measure(tkf.order_parameter)
    np.testing.assert_allclose(found[1:], [0.60330179, 0.90740024, 0.98456383, 0.99958644], atol=1e-6)
    assert run.resolved
    assert run.tail.max() < 1e-6


@pytest.mark.long
@pytest.mark.parametrize("beta", [10.0, 100.0])
def test_the_worked_low_temperature_case_meets_many_tokens(beta):
    """Moments of the law against a million graded quadrature tokens (fast sums), to the error that the density
    run itself states; nodes were added where the flow thins them out, near ±e1.

    The flow tears the law apart there at the rate β, so that tokens are exact to the mass of the one at the
    tear only, about 10⁻⁶ for 20,000 of them; at β = 10 those were seen to be off by 5e-6.
    """
    model = tkf.SoftmaxAttention(worked.CIRCLE, beta)
    ts = np.array([0.0, 4.0, 8.0, 11.0])
    run = density.solve(
        model, worked.density, ts, density.Characteristics(n=256, accuracy=1e-6, tolerance=1e-9)
    )
    assert run.resolved
    assert run.stats["nodes"] < 5000
    tokens = tkf.simulate(model, worked.circle_tokens(1_000_000), ts, tkf.Adaptive(rtol=1e-8, atol=1e-9))
    assert tokens.stats["certificate"] < 1e-8
    for k in range(len(ts)):
        exact, found = tokens.tokens(k).moments(), run.moments(k)
        assert np.abs(exact.mean - found.mean).max() < 1e-6
        assert np.abs(exact.second - found.second).max() < 1e-6


def test_a_coarse_first_round_is_no_verdict_on_the_last():
    """Where no panel needs dividing, what counts is more nodes, not fewer: against the circle's modes."""
    tilted, ts = lambda x: 1 + 0.3 * x[:, 0], [0, 1.0]
    run = density.solve(identity(2, 1.0), tilted, ts, density.Characteristics(n=16, accuracy=1e-6))
    modes = density.solve(identity(2, 1.0), lambda a: 1 + 0.3 * np.cos(a), ts, density.Circle(64))
    assert np.abs(run.moments().second - modes.moments().second).max() < 1e-6
    assert run.resolved


def test_runs_that_cannot_be_resolved_say_so():
    domain = density.Characteristics(n=32, most=64, accuracy=1e-9)
    run = density.solve(identity(2, 5.0), lambda x: np.exp(9 * x[:, 0]), [0, 3.0], domain)
    assert not run.resolved
    assert "under-resolved from t = " in run.status
    assert run.tail.max() > 1e-9


@pytest.mark.parametrize(
    ("model", "rho0", "sentence"),
    [
        (
            lambda: identity(2, 1.0) + tkf.Noise(2.0),
            np.ones_like,
            "`domain` must not be characteristics for a model",
        ),
        (
            lambda: identity(2, np.inf),
            np.ones_like,
            "`model` must have a smooth velocity, not a hardmax for a density",
        ),
        (lambda: identity(2, 1.0), 3.0, "`rho0` must be a function of points"),
        (lambda: identity(2, 1.0), lambda x: x[:, 0], "`rho0` must be finite, at least 0"),
    ],
)
def test_what_it_cannot_do_is_one_sentence(model, rho0, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        density.solve(model(), rho0, [0, 1.0], "characteristics")


def test_the_result_is_a_law():
    run = density.solve(
        identity(2, 0.0), lambda x: 1 + 0.5 * x[:, 0], [0, 1.0], density.Characteristics(n=64)
    )
    assert run.tokens().n == run.stats["nodes"]
    sample = run.sample(4000, 1)
    assert abs(float(tkf.order_parameter(sample) - tkf.order_parameter(run))) < 0.05
    assert jnp.isfinite(tkf.wasserstein(run.tokens(0), run.tokens(1)).value)
