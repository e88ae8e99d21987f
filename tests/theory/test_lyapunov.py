"""Lyapunov exponents of layers and the law of deep tokens (theory §6.8)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, linalg, special

import tokenfield as tkf
from tokenfield import theory

V1 = np.diag([1.0, 0.5, 0.8])
V2 = np.array([[0.2, 0.4, 0], [-0.1, 0.6, 0.3], [0.3, 0, 0.1]])
V3 = np.array([[0.0, 1, 0], [-1, 0, 0], [0, 0, 0.5]])
LAYERS = (V1, V2, V3)


def zero(V, B=None):
    return tkf.ZeroTemperature(tkf.AttentionWeights(jnp.eye(len(V)) if B is None else B, V))


def gaussian(key):
    return zero(jax.random.normal(key, (3, 3)))


def in_the_plane(key):
    return zero(jax.random.normal(key, (2, 2)))


# -- layers that repeat


def test_the_monodromy_of_three_layers():
    """theory §6.8; the rate is printed per unit of time, a period lasts 2.1."""
    found = theory.lyapunov(tkf.Depth([zero(V) for V in LAYERS], 0.7, repeat=True))
    assert found.rate == pytest.approx(0.125883586115, abs=1e-12)
    expected = (0.23444950447, -0.039635663671, 0.971319949357)
    np.testing.assert_allclose(found.directions[:, 0], expected, atol=1e-12)
    product = linalg.expm(0.7 * V3) @ linalg.expm(0.7 * V2) @ linalg.expm(0.7 * V1)
    np.testing.assert_allclose(np.prod(found.multipliers), np.linalg.det(product), rtol=1e-12)
    np.testing.assert_allclose(np.exp(3 * found.exponents), np.abs(found.multipliers), rtol=1e-12)
    np.testing.assert_allclose(np.sum(found.exponents), 0.7 * np.trace(sum(LAYERS)) / 3, atol=1e-13)
    # the normal is a left eigenvector of the product
    pulled = found.normals[:, 0] @ product
    np.testing.assert_allclose(pulled / np.linalg.norm(pulled), found.normals[:, 0], atol=1e-12)


def test_the_law_that_repeated_layers_end_at():
    """Sides of the hyperplane by iterating the product in NumPy; as a network I + ηS."""
    depth = tkf.Depth([zero(V) for V in LAYERS], 0.3, repeat=True)
    tokens = tkf.initial.uniform(40, 3, 0)
    found = theory.lyapunov(depth, "network")
    x = np.asarray(tokens.x).T
    for k in range(3000):
        x = x + 0.3 * LAYERS[k % 3] @ x
        x = x / np.linalg.norm(x, axis=0)
    np.testing.assert_allclose(found.push(tokens).x, x.T, atol=1e-12)
    assert 0 < found.mass(tokens) < 1
    assert found.mass(tokens) == pytest.approx(np.mean(x[2] * found.directions[2, 0] > 0))


def test_multiples_of_orthogonal_matrices_and_heads_add_up():
    """|Bᵀx| = c: the output is Σ V_h B_hᵀx/c_h; an MLP with the identity adds W2 W1."""
    turn = linalg.expm(V2 - V2.T)
    heads = tkf.ZeroTemperature(tkf.AttentionWeights(np.stack([3 * turn, np.eye(3)]), np.stack([V1, V2])))
    mlp = tkf.MLP(V3, None, V1, None, "identity")
    found = theory.lyapunov(tkf.Depth([heads + mlp], 0.5, repeat=True))
    values = np.linalg.eigvals(V1 @ turn.T + V2 + V1 @ V3)
    np.testing.assert_allclose(found.rates, np.sort(values.real)[::-1], atol=1e-12)


def test_a_rotating_top_has_no_law():
    found = theory.lyapunov(tkf.Depth([zero(V3 - np.eye(3))], 1.0, repeat=True))
    assert found.directions.shape == (3, 1)  # e3 with −.5 is above the pair with −1
    turning = theory.lyapunov(tkf.Depth([zero(V3 - np.diag([0, 0, 1.0]))], 1.0, repeat=True))
    assert turning.directions.shape == (3, 2) and turning.gap == pytest.approx(0.5)
    with pytest.raises(tkf.InputError, match="^`depth` must have a simple top exponent to have a limit law"):
        turning.push(tkf.initial.uniform(4, 3, 0))


# -- random layers


def test_newman():
    """Printed for d = 3; for d = 2 by the explicit E log|g|, and the sum as E log|det| of χ² variables."""
    np.testing.assert_allclose(
        theory.gaussian_layers(3), (-0.184487567, -0.491340387, -1.184487567), atol=1e-9
    )
    half = lambda m: integrate.quad(  # noqa: E731
        lambda u: np.log(2 * u) * u ** (m / 2 - 1) * np.exp(-u) / special.gamma(m / 2), 0, np.inf
    )[0]
    for d in (2, 5):
        expected = [0.5 * (half(d - k) - np.log(d)) for k in range(d)]
        np.testing.assert_allclose(theory.gaussian_layers(d), expected, atol=1e-6)


@pytest.mark.slow
def test_measured_gaussian_layers_are_newmans():
    """I + ηG with a huge η is ηG."""
    size = 1e9
    found = theory.lyapunov(tkf.RandomLayers(gaussian, size / np.sqrt(3), 1), "network", 4000)
    off = found.exponents - np.log(size) - theory.gaussian_layers(3)
    assert np.abs(off / found.errors).max() < 4
    assert found.errors.max() < 0.03


@pytest.mark.parametrize(
    ("d", "step", "expected"),
    [(2, 0.5, 0.024450255354), (4, 0.3, 0.089952552615), (8, 0.1, 0.029408000000)],
)
def test_residual_gaussian_layers(d, step, expected):
    assert theory.residual_gaussian_layers(d, step) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("d", "step"), [(2, 0.3), (3, 1.0), (5, 0.4)])
def test_residual_layers_by_quadrature(d, step):
    """E log Q = ∫(e^{−t} − E e^{−tQ})dt/t for Q = |e + ηg|², whose Laplace transform is elementary."""

    def integrand(u):
        t = np.exp(u)
        scale = 1 + 2 * t * step**2
        return np.exp(-t) - scale ** (-d / 2) * np.exp(-t / scale)

    expected = 0.5 * integrate.quad(integrand, -40, 80, points=[-5, 0, 5], limit=500, epsabs=1e-13)[0]
    assert theory.residual_gaussian_layers(d, step) == pytest.approx(expected, abs=1e-11)


@pytest.mark.slow
def test_measured_residual_layers():
    found = theory.lyapunov(tkf.RandomLayers(in_the_plane, 0.5, 1), "network", 10_000)
    assert abs(found.exponents[0] - theory.residual_gaussian_layers(2, 0.5)) < 4 * found.errors[0]


def test_small_steps_are_the_isotropic_flow():
    """λ_1 of I + ηG per η² tends to (d−2)/2."""
    for d in (2, 5, 16):
        first = theory.residual_gaussian_layers(d, 1e-3) / 1e-6
        assert first == pytest.approx(theory.isotropic_flow(d)[0], abs=1e-4)
    np.testing.assert_allclose(theory.isotropic_flow(4, 0.5), [0.25, 0, -0.25, -0.5])


def test_bingham_exponents():
    """Printed numbers; for d = 2 the Bessel form."""
    found = theory.bingham_layers(np.diag([1.0, -1]), np.sqrt(0.5))
    assert found.first == pytest.approx(0.697774657964, abs=1e-12)
    assert found.gap == pytest.approx(1.895549315928, abs=1e-12)
    assert found.total == pytest.approx(-0.5, abs=1e-14)
    found = theory.bingham_layers(np.diag([1, 0.5, -0.2]), np.sqrt(0.4))
    assert found.first == pytest.approx(0.8435262875, abs=1e-12) and found.gap is None
    turned = linalg.expm(V2 - V2.T) @ np.diag([1, 0.5, -0.2]) @ linalg.expm(V2 - V2.T).T
    assert theory.bingham_layers(turned, np.sqrt(0.4)).first == pytest.approx(found.first, abs=1e-12)
    a, variance = 0.7, 0.3
    bessel = a * special.ive(1, a / variance) / special.ive(0, a / variance)
    found = theory.bingham_layers(np.diag([-a, a]), np.sqrt(variance))
    assert found.first == pytest.approx(bessel, abs=1e-13)
    assert found.gap == pytest.approx(2 * bessel + variance, abs=1e-13)


@pytest.mark.parametrize(("d", "k", "s"), [(3, 1, 2.0), (5, 2, -7.0), (10, 3, 4.0), (64, 1, 30.0)])
def test_bingham_moments_of_two_blocks(d, k, s):
    """Σ of the first k squares has a Beta density times e^{st}."""
    weight = lambda t: t ** (k / 2) * (1 - t) ** ((d - k) / 2 - 1) * np.exp(s * (t - (s > 0)))  # noqa: E731
    top = integrate.quad(lambda t: weight(t), 0, 1, epsabs=0, epsrel=1e-12)[0]
    bottom = integrate.quad(lambda u: 2 * u * weight(u * u) / u**2, 0, 1, epsabs=0, epsrel=1e-12)[0]
    found = theory.bingham_moments(np.where(np.arange(d) < k, s, 0.0))
    assert found[:k].sum() == pytest.approx(top / bottom, rel=1e-9)
    assert found.sum() == pytest.approx(1, abs=1e-11)


def bingham_draw(key):
    """V = diag(a, −a) + (σ/√η) W for a = 1, σ² = .5, η = .02."""
    return zero(jnp.diag(jnp.array([1.0, -1.0])) + jnp.sqrt(0.5 / 0.02) * jax.random.normal(key, (2, 2)))


@pytest.mark.slow
def test_measured_layers_with_a_mean_and_noise():
    """Layers I + ηV of small η follow the Itô equation: λ_1 and the gap of Bingham, within noise and O(η)."""
    found = theory.lyapunov(tkf.RandomLayers(bingham_draw, 0.02, 0), "network", 15_000)
    expected = theory.bingham_layers(np.diag([1.0, -1]), np.sqrt(0.5))
    assert abs(found.rates[0] - expected.first) < 4 * found.errors[0] / 0.02 + 0.02
    assert abs(found.rate - expected.gap) < 4 * found.gap_error / 0.02 + 0.04


@pytest.mark.slow
def test_the_law_of_random_layers():
    """Tokens through 300 layers of the simulator are at ±p, on the sides that v_1 tells."""
    model, tokens = tkf.RandomLayers(gaussian, 0.5, 5), tkf.initial.uniform(50, 3, 0)
    found = theory.lyapunov(model, "network", 300)
    run = tkf.simulate(model, tokens, [0, 150.0], tkf.Layers(0.5))
    np.testing.assert_allclose(run.x[-1], found.push(tokens).x, atol=1e-9)
    # the hyperplane has converged long before, the direction moves on
    early = theory.lyapunov(model, "network", 200)
    assert abs(early.normals[:, 0] @ found.normals[:, 0]) == pytest.approx(1, abs=1e-9)
    assert abs(early.directions[:, 0] @ found.directions[:, 0]) < 0.999


def test_mass_of_isotropic_layers():
    """f_0 ∝ 1 + ½cos θ: a half plane with normal at φ has the mass ½ + cos φ/2π; its variance is 1/8π²."""
    tokens = tkf.initial.circle_density(lambda theta: 1 + 0.5 * np.cos(theta), 20_000)
    masses = []
    for phi in 2 * np.pi * (np.arange(8) + 0.3) / 8:
        normal = np.array([[np.cos(phi)], [np.sin(phi)]])
        spectrum = theory.LyapunovSpectrum(np.zeros(2), np.zeros(2), 1.0, 0.0, normal, normal, 1, 1.0, None)
        masses.append(spectrum.mass(tokens))
        assert masses[-1] == pytest.approx(0.5 + np.cos(phi) / (2 * np.pi), abs=1e-4)
    assert np.var(masses) == pytest.approx(1 / (8 * np.pi**2), abs=1e-4)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: theory.lyapunov(zero(V1)), "`depth` must be a Layered, but was ZeroTemperature"),
        (lambda: theory.lyapunov(tkf.Depth([zero(V1)])), "`depth` must repeat its layers or draw them"),
        (
            lambda: theory.lyapunov(tkf.Depth([zero(V1, np.diag([1, 2.0, 1]))], 1.0, True)),
            "`depth` must have layers that are a matrix times the token",
        ),
        (
            lambda: theory.lyapunov(
                tkf.Depth([tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), 1.0)], 1.0, True)
            ),
            "`depth` must have layers that are a matrix times the token",
        ),
        (
            lambda: theory.lyapunov(tkf.Depth([zero(V1)], 1.0, True), "explicit"),
            "`layers` must be 'flow' or 'network', but was 'explicit'",
        ),
        (lambda: theory.bingham_layers(V2, 1.0), "`V` must be symmetric"),
        (lambda: theory.bingham_layers(V1, 0.0), "`sigma` must be positive and finite"),
        (lambda: theory.residual_gaussian_layers(3, 0.0), "`step` must be at least 1e-4"),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError) as error:
        bad()
    assert str(error.value).startswith(sentence)
