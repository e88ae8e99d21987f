"""Zonal densities: polynomials, Funk–Hecke, exact laws in any dimension, rates, noise, refusals."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import tokenfield as tkf
from tests.marks import mostly_slow
from tokenfield import density
from tokenfield.density import heights, stationary
from tokenfield.geometry.gegenbauer import gauss, harmonics

AXIS = np.array([1.0, 2.0, 2.0]) / 3
LINE = np.outer(AXIS, AXIS)
REST = np.eye(3) - LINE
CASES = {
    "softmax": tkf.SoftmaxAttention(tkf.AttentionWeights(0.5 * LINE + 2 * REST, LINE + 0.5 * REST), 3.0),
    "unnormalised": tkf.UnnormalisedAttention(
        tkf.AttentionWeights(1.5 * LINE - 0.5 * REST, LINE + 0.5 * REST), 1.0
    ),
    "heads": tkf.SoftmaxAttention(
        tkf.AttentionWeights(np.stack([np.eye(3), 2 * LINE + REST]), np.stack([LINE, REST])), 2.0
    ),
    "interaction": tkf.InteractionFlow(lambda s: jnp.exp(2 * s) / 2 + 0.3 * s**3, LINE + 0.5 * REST),
    "zero temperature": tkf.ZeroTemperature(tkf.AttentionWeights(0.5 * LINE + 2 * REST, LINE + 0.5 * REST)),
}


def profile(t):
    return 1 + 0.8 * t + 0.5 * t**2


def identity(d, beta, kind=tkf.UnnormalisedAttention):
    return kind(tkf.AttentionWeights.identity(d), beta)


def poisson(d, r=0.2):
    return lambda t: ((1 - r * r) / (1 - 2 * r * t + r * r)) ** (d - 1)


@pytest.mark.parametrize("d", [2, 3, 8, 1000])
def test_polynomials(d):
    t, w = gauss(d, 40)
    p, dp = harmonics(d, 30, t)
    np.testing.assert_allclose(p.T @ (w[:, None] * p), np.eye(31), atol=1e-11)
    # −Δp_l = l(l+d−2)p_l, weakly: ∫(1−t²)p_k'p_l' = l(l+d−2)δ_kl
    stiff = dp.T @ ((w * (1 - t**2))[:, None] * dp)
    l = np.arange(31)  # noqa: E741
    np.testing.assert_allclose(stiff, np.diag(l * (l + d - 2.0)), atol=1e-9 * 30 * (28 + d))
    assert w @ t**2 == pytest.approx(1 / d, rel=1e-12)
    at, slope = harmonics(d, 5, np.array([0.3]))
    h = 1e-6
    np.testing.assert_allclose(
        slope,
        (harmonics(d, 5, np.array([0.3 + h]))[0] - harmonics(d, 5, np.array([0.3 - h]))[0]) / (2 * h),
        rtol=1e-6,
        atol=1e-6,
    )
    if d > 2:
        shape = special.eval_gegenbauer(5, (d - 2) / 2, np.array([0.3, 1.0]))
        assert at[0, 5] / harmonics(d, 5, np.ones(1))[0][0, 5] == pytest.approx(
            shape[0] / shape[1], rel=1e-10
        )


@pytest.mark.parametrize("d", [2, 3, 8])
def test_funk_hecke(d):
    """For B = I the mass a height reads is Σ λ_l c_l p_l, λ_l in closed form (theory §3.4)."""
    beta = 5.0
    field = heights.spectral_field(
        heights.zonal_model(identity(d, beta, tkf.SoftmaxAttention), np.eye(d)[0]), d, 24
    )
    degree = np.arange(25)
    eigen = special.gamma(d / 2) * (2 / beta) ** (d / 2 - 1) * special.ive(degree + d / 2 - 1, beta)
    np.testing.assert_allclose(field.reading[0].weight[0], eigen * np.asarray(field.density), atol=1e-13)


@pytest.mark.parametrize("name", CASES)
def test_velocities_are_those_of_tokens(name):
    """Averaged over the axis, against the model's sums over a grid of the whole sphere."""
    model = CASES[name]
    tokens = tkf.initial.sphere_density(lambda x: profile(x @ AXIS), 3000)
    v = np.asarray(model.velocity(tokens))[:400]
    x = np.asarray(tokens.x)[:400]
    phi = np.arccos(x @ AXIS)
    across = np.cos(phi)[:, None] * (x - np.outer(x @ AXIS, AXIS)) / np.sin(phi)[:, None] - np.outer(
        np.sin(phi), AXIS
    )
    zonal = heights.zonal_model(model, AXIS)
    t, w = gauss(3, 60)
    masses = w * profile(t) / (w @ profile(t))
    u = zonal.velocity(jnp.asarray(phi), jnp.asarray(np.arccos(t)), jnp.asarray(masses))
    np.testing.assert_allclose(u, np.sum(v * across, axis=1), atol=1e-9)


@pytest.mark.parametrize("d", mostly_slow([3, 1000], [3]))
def test_growth_about_the_uniform_law(d):
    """Theory §3.4 in every dimension; d = 3, β = 5, l = 3: 9.97809 / .672349."""
    for flow, kind in (("softmax", tkf.SoftmaxAttention), ("unnormalised", tkf.UnnormalisedAttention)):
        for beta, degree in ((5.0, 3), (1.0, 1)):
            field = heights.spectral_field(heights.zonal_model(identity(d, beta, kind), np.eye(d)[0]), d, 16)
            c = jnp.zeros(17).at[0].set(1.0).at[degree].set(1e-7)
            rate = float(tkf.theory.growth_rate(d, beta, degree, flow))
            assert float(field(c)[degree] / 1e-7) == pytest.approx(rate, rel=1e-5)
    assert float(tkf.theory.growth_rate(3, 5.0, 3)) == pytest.approx(0.672349, rel=1e-5)


def test_poisson_law_by_polynomials():
    ts = [0.0, 1.0, 2.0]
    found = density.solve(
        identity(3, 0.0), poisson(3), ts, density.Zonal(np.eye(3)[0], 64, "spectral", 1e-11)
    )
    R = [float(jnp.linalg.norm(found.moments(k).mean)) for k in (1, 2)]
    np.testing.assert_allclose(R, [0.4747500789, 0.7347273790], atol=2e-10)
    np.testing.assert_allclose(found.mass, 1, atol=1e-12)
    assert found.resolved
    assert found.minimum.min() > 0


@pytest.mark.slow
def test_poisson_law_in_a_thousand_dimensions():
    """No polynomial holds it; nodes do, to the solver's tolerance."""
    d, ts = 1000, [0.0, 1.0, 4.0]
    found = density.solve(identity(d, 0.0), poisson(d), ts, "zonal")
    assert found.domain.scheme == "characteristics"
    R = [float(found.moments(k).mean[0]) for k in range(3)]
    np.testing.assert_allclose(R, tkf.theory.poisson_order(ts, 0.2, d), atol=1e-9)
    assert found.resolved
    np.testing.assert_allclose(found.mass, 1, atol=1e-12)
    # density at the nodes: the Poisson law of the radius at t = 1
    from scipy import optimize

    r = optimize.brentq(lambda r: tkf.theory.poisson_radius_order(r, d) - R[1], 0.1, 0.9)
    t = found.nodes[1]
    np.testing.assert_allclose(np.log(found.density[1]), np.log(poisson(d, r)(t)), rtol=1e-6, atol=1e-5)
    drawn = found.sample(500, 1, k=1)
    assert drawn.x.shape == (500, 1000)
    assert float(tkf.order_parameter(drawn)) == pytest.approx(R[1], abs=4 / np.sqrt(500 * d) + 2e-3)
    with pytest.raises(tkf.InputError, match="use .sample"):
        found.tokens()


@pytest.mark.slow
def test_noise_relaxes_to_the_stationary_law():
    """d = 3, κ = 1.5κ_1: the equation ends where Newton's method finds the stationary law."""
    interaction, beta = stationary.Interaction(3, 40), 1.0
    kappa = 1.5 * float(tkf.theory.critical_kappa(3, beta))
    guess = stationary.at_amplitude(interaction, beta, 1.2).coefficients
    state = stationary.solve(interaction, kappa, beta, guess)
    model = identity(3, beta) + tkf.Noise(kappa)
    found = density.solve(
        model, lambda t: 1 + 0.9 * t, [0.0, 5.0, 60.0], density.Zonal(np.eye(3)[0], 40, "spectral")
    )
    assert float(tkf.order_parameter(found)) == pytest.approx(state.order, abs=1e-8)
    assert state.order > 0.5
    F = tkf.free_energy(found, model)
    assert F[0] > F[1] > F[2]
    # −½k_0 is left out there
    t, w = gauss(3, 40)
    constant = 0.5 * float(w @ np.exp(beta * t)) / beta
    assert F[2] + constant == pytest.approx(state.free_energy, abs=1e-8)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: density.Zonal([1.0, 1.0]), "`axis` must have norm 1"),
        (lambda: density.Zonal(AXIS, 2), "`degree` must be a whole number, at least 4"),
        (lambda: density.Zonal(AXIS, 8, "fast"), "`scheme` must be"),
        (
            lambda: density.solve(CASES["softmax"], profile, [0, 1], "zonal"),
            "`B` must keep the symmetry about the axis",
        ),
        (
            lambda: density.solve(
                tkf.HardmaxAttention(tkf.AttentionWeights.identity(3)), profile, [0, 1], "zonal"
            ),
            "`model` must have a smooth velocity",
        ),
        (
            lambda: density.solve(identity(3, np.inf), profile, [0, 1], "zonal"),
            "must have a smooth velocity, not a hardmax",
        ),
        (
            lambda: density.solve(
                identity(3, 1.0) + tkf.Noise(1.0), profile, [0, 1], density.Zonal(AXIS, 8, "characteristics")
            ),
            "has no characteristics",
        ),
        (
            lambda: density.solve(identity(2, 1.0), profile, [0, 1], density.Zonal(AXIS)),
            "`model` must act in",
        ),
    ],
)
def test_refused(call, words):
    with pytest.raises(tkf.InputError, match=words):
        call()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_polynomials_nodes_and_tokens_agree(name):
    """Pairwise, where V Bᵀ ≠ I, and the densities of the two schemes at the nodes that moved."""
    model, ts = CASES[name], [0.0, 0.7]
    cloud = tkf.simulate(
        model, tkf.initial.sphere_density(lambda x: profile(x @ AXIS), 8000), ts, summation="direct"
    )
    waves = density.solve(model, profile, ts, density.Zonal(AXIS, 96, "spectral"))
    nodes = density.solve(model, profile, ts, density.Zonal(AXIS, 96, "characteristics"))
    exact = cloud.tokens(-1).moments()
    for law in (waves.moments(), nodes.moments()):
        np.testing.assert_allclose(law.mean, exact.mean, atol=1e-7)
        np.testing.assert_allclose(law.second, exact.second, atol=1e-7)
    np.testing.assert_allclose(waves.moments().mean, nodes.moments().mean, atol=1e-8)
    if waves.resolved and nodes.resolved:
        t, w = gauss(3, 145)
        c = harmonics(3, 96, t)[0].T @ (w * waves.density[-1])
        np.testing.assert_allclose(harmonics(3, 96, nodes.nodes[-1])[0] @ c, nodes.density[-1], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("d", [2, 8, 100])
def test_poisson_laws(d):
    ts = [0.0, 1.0, 2.0, 4.0]
    found = density.solve(
        identity(d, 0.0), poisson(d), ts, density.Zonal(np.eye(d)[0], 128, "characteristics")
    )
    R = [float(found.moments(k).mean[0]) for k in range(4)]
    np.testing.assert_allclose(R, tkf.theory.poisson_order(ts, 0.2, d), atol=1e-8)


@pytest.mark.slow
def test_circle_and_zonal_are_one_on_even_laws():
    model = identity(2, 2.0, tkf.SoftmaxAttention)
    one = density.solve(model, lambda t: 1 + 0.5 * t, [0.0, 1.0], density.Zonal(np.eye(2)[0], 64, "spectral"))
    two = density.solve(model, lambda a: 1 + 0.5 * np.cos(a), [0.0, 1.0], density.Circle(128, "spectral"))
    np.testing.assert_allclose(one.moments().mean, two.moments().mean, atol=1e-9)
