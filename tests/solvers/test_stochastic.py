"""Tokens with noise: weak orders by quadrature over the noise (no sampling error), exact laws, refusals."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg, special
from scipy.integrate import solve_ivp

import tokenfield as tkf
from tokenfield.config import reading as config
from tokenfield.runs import store
from tokenfield.runs.stepper import Field
from tokenfield.solvers.sde import walk
from tokenfield.sums.direct import DIRECT

SOLVERS = {"euler": tkf.EulerMaruyama, "strang": tkf.Strang}
#: Each compiles a program of its own; quickly tried with one of them.
ONE_QUICK = [pytest.param("euler", marks=pytest.mark.slow), "strang"]


def still(d):
    """No drift at all."""
    return tkf.ZeroTemperature(tkf.AttentionWeights(np.eye(d), np.zeros((d, d))))


def zonal_polynomial(degree, d, u):
    """P_l(u), 1 at u = 1: the zonal harmonic of the sphere of R^d."""
    if d == 2:
        return np.cos(degree * np.arccos(np.clip(u, -1, 1)))
    return special.eval_gegenbauer(degree, d / 2 - 1, u) / special.eval_gegenbauer(degree, d / 2 - 1, 1.0)


@pytest.mark.parametrize("d", [2, 3, 5])
def test_a_walk_multiplies_harmonics_as_brownian_motion_does(d):
    """E P_l against e^{−l(l+d−2)s}, by Gauss–Laguerre quadrature over the squared length of the noise."""
    half, weights = special.roots_genlaguerre(40, (d - 1) / 2 - 1)  # |ξ|²/2 is Gamma((d−1)/2)
    weights = weights / weights.sum()
    x = np.tile(np.eye(d)[0], (40, 1))
    noise = np.sqrt(2 * half)[:, None] * np.eye(d)[1]
    for degree in (1, 2, 3):
        errors = []
        for s in (0.005, 0.0025):
            height = np.asarray(walk(x, s, noise))[:, 0]
            errors.append(
                weights @ zonal_polynomial(degree, d, height) - np.exp(-degree * (degree + d - 2) * s)
            )
        if d == 2:
            assert np.abs(errors).max() < 1e-14
        else:
            assert 2.8 < np.log2(errors[0] / errors[1]) < 3.2  # order 2: local error s³


def generator(nodes, derivative, diffusion, a):
    """Lf = D((1−u²)f')' + a u(1−u²)f' at the nodes."""
    second = derivative @ derivative
    return (
        diffusion * ((1 - nodes**2)[:, None] * second - 2 * nodes[:, None] * derivative)
        + (a * nodes * (1 - nodes**2))[:, None] * derivative
    )


@pytest.mark.parametrize("name", SOLVERS)
def test_weak_order_with_drift_is_the_declared_one(name):
    """On S² with the drift P_x V x, V = diag(a, 0, 0): functions of the height stay such functions.

    The Markov operator of one step and the exact semigroup are matrices on polynomials of the height; the
    expectation over the noise is Gauss–Hermite quadrature, so no samples blur the order.
    """
    a, kappa, t, count = 0.8, 2.5, 0.8, 15
    nodes, _ = np.polynomial.legendre.leggauss(count)
    vandermonde = np.polynomial.legendre.legvander(nodes, count - 1)
    slopes = np.stack(
        [np.polynomial.legendre.legval(nodes, np.polynomial.legendre.legder(row)) for row in np.eye(count)],
        axis=1,
    )
    derivative = slopes @ np.linalg.inv(vandermonde)
    f = nodes + nodes**2
    exact = linalg.expm(t * generator(nodes, derivative, 1 / kappa, a)) @ f

    model = tkf.ZeroTemperature(tkf.AttentionWeights(np.eye(3), np.diag([a, 0, 0]))) + tkf.Noise(kappa)
    x0 = np.stack([nodes, np.sqrt(1 - nodes**2), 0 * nodes], axis=1)
    draws = SOLVERS[name](1.0, 0).scheme.draws
    z, w = np.polynomial.hermite_e.hermegauss(8)
    w = w / w.sum()
    index = np.array(list(itertools.product(range(8), repeat=2 * draws)))
    measure = np.prod(w[index], axis=1)
    flat = z[index].reshape(-1, draws, 2)

    def frames(x):  # noise along two tangent directions at each point
        return np.asarray(tkf.sphere.frame(jnp.asarray(x)))

    def move(h):
        """The matrix of one step, its quadrature done point by point."""
        field = Field(model, np.full(len(flat), 1 / len(flat)), DIRECT)
        scheme = SOLVERS[name](1.0, 0).scheme
        step = jax.jit(lambda x, normal: scheme.move(partial(field, args=None), field, 0.0, x, h, normal))
        rows = []
        for x in x0:
            start = np.tile(x, (len(flat), 1))
            normal = [np.einsum("de,qe->qd", frames(x), flat[:, 0])]
            if draws == 2:
                # the second noise is tangent where it acts; its law there is that of any frame
                first = step(start, np.stack([normal[0], 0 * start]))
                normal.append(np.einsum("qde,qe->qd", frames(np.asarray(first)), flat[:, 1]))
            end = np.asarray(step(start, np.stack(normal)))[:, 0]
            rows.append(measure @ np.polynomial.legendre.legvander(end, count - 1))
        return np.stack(rows) @ np.linalg.inv(vandermonde)

    errors = [np.abs(np.linalg.matrix_power(move(t / k), k) @ f - exact)[3:-3].max() for k in (4, 8)]
    order = SOLVERS[name](1.0, 0).order
    assert order - 0.25 < np.log2(errors[0] / errors[1]) < order + 0.35
    assert errors[1] < {"euler": 0.05, "strang": 5e-3}[name]


@pytest.mark.parametrize("name", ONE_QUICK)
def test_brownian_motion_has_the_exact_moments(name):
    """E x = e^{−(d−1)t/κ}x0 and degree 2 like e^{−2dt/κ}, within four standard errors of 40,000 tokens."""
    d, kappa, n, t = 4, 2.0, 40_000, 0.4
    start = tkf.Tokens(np.tile(np.eye(d)[0], (n, 1)))
    run = tkf.simulate(still(d) + tkf.Noise(kappa), start, [0, t], SOLVERS[name](0.02, 3), summation="direct")
    x = run.x[-1]
    assert np.abs(np.linalg.norm(x, axis=1) - 1).max() < 4e-16
    first, second = np.exp(-(d - 1) * t / kappa), np.exp(-2 * d * t / kappa)
    for values, expected in (
        (x[:, 0], first),
        (x[:, 1], 0.0),
        (x[:, 0] ** 2, 1 / d + (1 - 1 / d) * second),
        (x[:, 1] ** 2, 1 / d - second / d),
    ):
        bias = 0.003 if name == "euler" else 0.0  # order 1: half a percent of the exponent
        assert abs(values.mean() - expected) < 4 * values.std() / np.sqrt(n) + bias


@pytest.mark.slow
def test_interacting_tokens_follow_the_fokker_planck_moments():
    """USA on the circle with noise: z_n' = −n²z_n/κ + (n/2)Σ c_k(z_k z_{n−k} − z̄_k z_{n+k}) (theory §3.12)."""
    beta, kappa, n, t, top = 1.0, 6.0, 5_000, 1.5, 30
    k = np.arange(1, top)
    c = 2 * k * special.iv(k, beta) / beta
    rate = -(np.arange(top + 1) ** 2) / kappa

    def slope(_, z):  # real moments of an even law
        full = lambda m: np.where(np.abs(m) <= top, z[np.minimum(np.abs(m), top)], 0.0)  # noqa: E731
        sums = [np.sum(c * z[k] * (full(m - k) - full(m + k))) for m in range(top + 1)]
        return rate * z + np.arange(top + 1) / 2 * np.array(sums)

    z0 = np.zeros(top + 1)
    z0[0], z0[1] = 1.0, 0.25  # 2πf = 1 + ½cos θ
    exact = solve_ivp(slope, (0, t), z0, rtol=1e-10, atol=1e-12).y[:, -1]
    law = tkf.initial.circle_density(lambda theta: 1 + 0.5 * np.cos(theta), n)
    model = tkf.UnnormalisedAttention(tkf.AttentionWeights.identity(2), beta) + tkf.Noise(kappa)
    run = tkf.simulate(model, law, [0, t], tkf.Strang(0.1, 7), summation="direct")
    theta = np.arctan2(run.x[-1, :, 1], run.x[-1, :, 0])
    for m in (1, 2):
        found = np.sum(law.weights * np.cos(m * theta))
        assert abs(found - exact[m]) < 4 * np.sqrt(np.sum(law.weights**2))
    assert exact[1] > 0.3  # the drift won over the noise; without it z_1 would be 0.19


def test_the_key_makes_the_run_and_saved_times_do_not_change_it():
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), 2.0) + tkf.Noise(5.0)
    tokens = tkf.initial.uniform(20, 3, 0)
    run = lambda key, ts: tkf.simulate(model, tokens, ts, tkf.Strang(0.125, key)).x[-1]  # noqa: E731
    np.testing.assert_array_equal(run(1, [0, 1.0]), run(1, [0, 0.5, 1.0]))
    assert np.abs(run(1, [0, 1.0]) - run(2, [0, 1.0])).max() > 0.1


class Killed(BaseException):
    pass


@pytest.mark.parametrize("name", ONE_QUICK)
def test_resumed_run_is_bit_identical(tmp_path, monkeypatch, name):
    monkeypatch.setattr("tokenfield.runs.record.WRITE_EVERY", 0.0)
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), 2.0) + tkf.Noise(5.0)
    tokens, ts = tkf.initial.uniform(20, 3, 0), np.linspace(0, 2, 9)
    run = lambda **more: tkf.simulate(model, tokens, ts, SOLVERS[name](0.125, 1), **more)  # noqa: E731
    whole, commit = run(), store.Writer.commit

    def interrupted(self, checkpoint, **facts):
        if facts["reached"] > 4:
            raise Killed
        commit(self, checkpoint, **facts)

    monkeypatch.setattr(store.Writer, "commit", interrupted)
    with pytest.raises(Killed):
        run(store=tmp_path / "run")
    monkeypatch.setattr(store.Writer, "commit", commit)
    np.testing.assert_array_equal(run(store=tmp_path / "run", resume=True).x, whole.x)


def test_noise_is_kept_apart_from_the_drift():
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), 2.0)
    noisy = model + tkf.Noise(4.0)
    assert noisy.drift is model
    assert float(noisy.diffusion) == 0.25
    assert model.drift is model
    assert float(model.diffusion) == 0
    assert model + tkf.Noise(np.inf) is model
    tokens = tkf.initial.uniform(5, 2, 0)
    np.testing.assert_array_equal(noisy.velocity(tokens), model.velocity(tokens))
    cold = tkf.UnnormalisedAttention(tkf.AttentionWeights.identity(2), 400.0) + tkf.Noise(4.0)
    assert float(cold.diffusion) == pytest.approx(np.exp(-400.0) / 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
def test_without_noise_the_schemes_are_euler_and_midpoint(name):
    """κ = ∞ is allowed: the deterministic flow, to the order of the scheme."""
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), 2.0) + tkf.Noise(np.inf)
    tokens = tkf.initial.uniform(9, 3, 0)
    exact = tkf.simulate(model, tokens, [0, 1.0], tkf.RungeKutta4(0.02)).x[-1]
    error = lambda solver: np.abs(tkf.simulate(model, tokens, [0, 1.0], solver).x[-1] - exact).max()  # noqa: E731
    make = SOLVERS[name]
    order = np.log2(error(make(0.05, 0)) / error(make(0.025, 0)))
    assert order == pytest.approx(make(0.05, 0).order, abs=0.2)


@pytest.mark.slow
def test_strang_keeps_its_order_where_weights_change_smoothly():
    """The midpoint step must look at the middle of the time as well."""
    weights = tkf.AttentionWeights.identity(3)
    model = tkf.Schedule(lambda t: tkf.SoftmaxAttention(weights, 1 + 4 * jnp.sin(3 * t)))
    tokens = tkf.initial.uniform(9, 3, 0)
    end = lambda solver: tkf.simulate(model, tokens, [0, 1.0], solver).x[-1]  # noqa: E731
    exact = end(tkf.RungeKutta4(0.02))
    errors = [np.abs(end(tkf.Strang(step, 0)) - exact).max() for step in (0.05, 0.025)]
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2, abs=0.2)


def test_a_config_file_may_ask_for_noise():
    settings = {
        "weights": {"identity": 3},
        "model": {"kind": "softmax", "beta": 1.0},
        "noise": {"kappa": 4.0},
        "initial": {"law": "uniform", "n": 5, "d": 3, "key": 0},
        "times": {"stop": 1.0, "count": 3},
        "solver": {"kind": "strang", "step": 0.25, "key": 2},
    }
    arguments = config.parse(settings).arguments()
    assert float(arguments["model"].diffusion) == 0.25
    assert arguments["solver"].order == 2


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda m: tkf.Noise(0.0), "`kappa` must be positive .infinity is no noise., but was 0.0"),
        (lambda m: tkf.Noise([1.0, 2.0]), "`kappa` must be one number"),
        (lambda m: tkf.Strang(0.0, 1), "`step` must be positive and finite, but was 0.0"),
        (lambda m: tkf.Strang(0.1, -1), "`key` must be a whole number, at least 0, but was -1"),
        (lambda m: m + tkf.Noise(2.0) + tkf.Noise(2.0), "`terms` must have noise at most once"),
        (
            lambda m: tkf.simulate(m + tkf.Noise(2.0), tkf.Tokens(np.eye(2)), [0, 1.0]),
            r"`solver` must be EulerMaruyama\(step, key\) or Strang\(step, key\) for a model with noise",
        ),
        (
            lambda m: tkf.simulate(
                m + tkf.Noise(2.0), tkf.Tokens(np.eye(2)), [0, 1.0], tkf.Strang(0.1, 0), merge_angle=0.1
            ),
            "`model` must have no noise for merging tokens",
        ),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad(tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), 1.0))
