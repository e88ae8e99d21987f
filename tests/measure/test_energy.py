"""The energy against double loops, and its growth along the flows against the dissipation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special

import tokenfield as tkf
from tests.marks import mostly_slow
from tokenfield.laws.tokens import Continuum
from tokenfield.measure import energy as energies


def cloud(n=12, d=3, key=0):
    w = np.random.default_rng(key).dirichlet(np.ones(n))
    return tkf.Tokens(tkf.initial.uniform(n, d, key).x, w)


@pytest.mark.parametrize("beta", [1e-3, 1.0, 30.0, -1e-3, -1.0, -30.0])
def test_energy_is_the_double_sum(beta):
    tokens = cloud()
    x, w = np.asarray(tokens.x), np.asarray(tokens.weights)
    expected = w @ np.exp(beta * x @ x.T) @ w / (2 * beta)
    assert float(tkf.energy(tokens, beta)) == pytest.approx(expected, rel=1e-13)
    assert float(tkf.log_energy(tokens, beta)) == pytest.approx(np.log(abs(expected)), rel=1e-13)


@pytest.mark.parametrize("beta", [2.0, -2.0])
def test_energy_of_many_tokens_is_the_double_sum(beta):
    """Enough tokens for the sums that use each pair once."""
    tokens = cloud(n=2100)
    x, w = np.asarray(tokens.x), np.asarray(tokens.weights)
    expected = w @ np.exp(beta * x @ x.T) @ w / (2 * beta)
    assert float(tkf.energy(tokens, beta)) == pytest.approx(expected, rel=1e-12)


class CircleLaw(Continuum):
    """The density ∝ 1 + .5cosθ on the circle."""

    def tokens(self, k=-1):
        raise NotImplementedError

    def moments(self, k=-1):
        raise NotImplementedError

    def pairs(self, f, k=-1):
        theta = np.linspace(0, 2 * np.pi, 64, endpoint=False)
        w = (1 + 0.5 * np.cos(theta)) / 64
        return w @ f(np.cos(theta[:, None] - theta)) @ w


@pytest.mark.parametrize("beta", [1.5, -1.5])
def test_energy_of_a_density_on_the_circle(beta):
    """∬e^{βcos(θ−φ)} = Σ_k I_k(β)|z_k|² with z_0 = 1, z_{±1} = ¼."""
    expected = (special.iv(0, beta) + special.iv(1, beta) / 8) / (2 * beta)
    assert float(tkf.energy(CircleLaw(), beta)) == pytest.approx(expected, rel=1e-12)


def test_energy_at_infinite_temperature_is_half_the_squared_order_parameter():
    tokens = cloud()
    assert float(tkf.energy(tokens, 0.0)) == pytest.approx(float(tkf.order_parameter(tokens)) ** 2 / 2)
    # E_β − 1/2β → R²/2, from both sides
    for beta in (1e-6, -1e-6):
        assert float(tkf.energy(tokens, beta)) - 1 / (2 * beta) == pytest.approx(
            float(tkf.energy(tokens, 0.0)), abs=1e-6
        )


def test_energy_is_greatest_at_a_dirac():
    dirac = tkf.Tokens([[0.0, 1.0, 0.0]])
    for beta in (2.0, -2.0):
        assert float(tkf.energy(dirac, beta)) == pytest.approx(np.exp(beta) / (2 * beta))
        assert float(tkf.energy(cloud(), beta)) < np.exp(beta) / (2 * beta)


def test_log_energy_at_large_beta():
    """Two tokens at angle a, β = 10^4: log E = log(½(1 + e^{β(cos a − 1)})) + β − log 2β."""
    beta, a = 1e4, 0.02
    tokens = tkf.Tokens([[1.0, 0.0], [np.cos(a), np.sin(a)]])
    expected = np.log((1 + np.exp(beta * (np.cos(a) - 1))) / 2) + beta - np.log(2 * beta)
    assert float(tkf.log_energy(tokens, beta)) == pytest.approx(expected, abs=1e-9)
    for size in (beta, -beta):
        sentence = f"^`beta` must be at most 700 in size, but was {size}; use log_energy"
        with pytest.raises(tkf.InputError, match=sentence):
            tkf.energy(tokens, size)
    softmax = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), beta)
    with pytest.raises(tkf.InputError, match=r"`beta` must be at most 700 in size, but was 800.0"):
        tkf.dissipation(softmax, tokens, 800.0)
    with pytest.raises(tkf.InputError, match=r"`beta` must be one number, but was of shape \(2,\)"):
        tkf.energy(tokens, [1.0, 2.0])


def test_log_energy_at_very_negative_beta():
    """Two tokens at angle a: log|E| = log(½(1 + e^{β(cos a − 1)})) + β − log 2|β|; the far pair counts."""
    beta, a = -1e4, 2.0
    tokens = tkf.Tokens([[1.0, 0.0], [np.cos(a), np.sin(a)]])
    expected = np.log(0.5) + beta * np.cos(a) - np.log(2e4)
    assert float(tkf.log_energy(tokens, beta)) == pytest.approx(expected, rel=1e-13)
    with pytest.raises(tkf.InputError, match="^`beta` must not be 0, where the energy is R²/2"):
        tkf.log_energy(tokens, 0.0)
    with pytest.raises(tkf.InputError, match="^`beta` must be a finite number, but was -inf"):
        tkf.energy(tokens, -np.inf)


def minus_identity(d):
    """B = −I: with β > 0 the model reads e^{−β⟨x,y⟩}."""
    return tkf.AttentionWeights(-np.eye(d), np.eye(d))


@pytest.mark.parametrize("kind", [tkf.SoftmaxAttention, tkf.UnnormalisedAttention])
def test_energy_at_negative_beta_rises_at_the_rate_of_the_dissipation(kind):
    """x' = P_x Σw e^{β⟨x,y⟩}y (over Z), β = −2, by SciPy: E rises at ∫|v|² (over Z), and log|E| falls."""
    beta, tokens, h = -2.0, cloud(n=8), 1e-3
    w, x0 = np.asarray(tokens.weights), np.asarray(tokens.x)

    def slope(_, flat):
        x = flat.reshape(8, 3)
        k = np.exp(beta * x @ x.T) * w
        v = k @ x / (k.sum(axis=1, keepdims=True) if kind is tkf.SoftmaxAttention else 1.0)
        return (v - np.sum(v * x, axis=1, keepdims=True) * x).ravel()

    ts = 0.5 + h * np.arange(-2, 3)
    run = integrate.solve_ivp(slope, (0, ts[-1]), x0.ravel(), "DOP853", ts, rtol=1e-13, atol=1e-15).y.T
    laws = [tkf.Tokens(x.reshape(8, 3), w) for x in run]
    e = [float(tkf.energy(law, beta)) for law in laws]
    rate = (8 * (e[3] - e[1]) - (e[4] - e[0])) / (12 * h)
    found = float(tkf.dissipation(kind(minus_identity(3), 2.0), laws[2], beta))
    assert found == pytest.approx(rate, rel=1e-8)
    assert found > 0
    assert float(tkf.log_energy(laws[4], beta)) < float(tkf.log_energy(laws[0], beta))


def test_energy_has_a_gradient_in_beta_of_either_sign():
    tokens, h = cloud(), 1e-4
    for beta in (1.3, -1.3):
        slope = float(jax.grad(lambda b: tkf.energy(tokens, b))(beta))
        e = {k: float(tkf.energy(tokens, beta + k * h)) for k in (-2, -1, 1, 2)}
        assert slope == pytest.approx((8 * (e[1] - e[-1]) - (e[2] - e[-2])) / (12 * h), rel=1e-9)


@pytest.mark.parametrize("kind", [tkf.SoftmaxAttention, tkf.UnnormalisedAttention])
@pytest.mark.parametrize("beta", mostly_slow([0.5, 4.0], [4.0]))
@pytest.mark.parametrize("d", mostly_slow([2, 3, 5], [2]))
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


# ---- general interactions and variations ----

A3 = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, -0.4], [0.0, -0.4, 0.5]])
PHIS = {
    "exponential": lambda s: jnp.exp(2 * s) / 2,
    "negative beta": lambda s: -jnp.exp(-2 * s) / 2,
    "quartic": lambda s: s**4 / 4 - s**3 + s,
}


def tangents(tokens, key=5):
    z = np.random.default_rng(key).normal(size=tokens.x.shape)
    return np.array(tkf.sphere.project(tokens.x, jnp.asarray(z)))


def plain_energy(x, w, phi, A):
    return 0.5 * w @ np.asarray(phi(jnp.asarray(x @ A @ x.T))) @ w


def geodesic(x, X, s):
    size = np.linalg.norm(X, axis=1, keepdims=True)
    return np.cos(s * size) * x + np.sin(s * size) * X / size


def test_interaction_energy_is_the_double_sum_and_contains_the_energy():
    tokens = cloud()
    x, w = np.asarray(tokens.x), np.asarray(tokens.weights)
    for phi in PHIS.values():
        found = float(energies.interaction_energy(tokens, phi, A3))
        assert found == pytest.approx(plain_energy(x, w, phi, A3), rel=1e-13)
    for name, beta in (("exponential", 2.0), ("negative beta", -2.0)):
        found = float(energies.interaction_energy(tokens, PHIS[name]))
        assert found == pytest.approx(float(tkf.energy(tokens, beta)), rel=1e-13)


@pytest.mark.parametrize("name", mostly_slow(PHIS, ["exponential", "negative beta"]))
@pytest.mark.parametrize("A", [pytest.param(None, marks=pytest.mark.slow), A3], ids=["identity", "matrix"])
def test_variations_along_geodesics(name, A):
    """Against central differences of the plain double sum to 1e-7, and against the formulas of theory §3.2."""
    tokens, phi = cloud(), PHIS[name]
    X, x, w = tangents(tokens), np.asarray(tokens.x), np.asarray(tokens.weights)
    M = np.eye(3) if A is None else A
    first = float(energies.first_variation(tokens, X, phi, A))
    second = float(energies.second_variation(tokens, X, phi, A))
    h = 4e-3
    e = {k: plain_energy(geodesic(x, X, k * h), w, phi, M) for k in range(-3, 4)}
    slope = (45 * (e[1] - e[-1]) - 9 * (e[2] - e[-2]) + (e[3] - e[-3])) / (60 * h)
    bend = (270 * (e[1] + e[-1]) - 27 * (e[2] + e[-2]) + 2 * (e[3] + e[-3]) - 490 * e[0]) / (180 * h**2)
    assert first == pytest.approx(slope, rel=1e-7)
    assert second == pytest.approx(bend, rel=1e-7)
    G = x @ M @ x.T
    d1 = np.vectorize(jax.grad(phi))(G)
    d2 = np.vectorize(jax.grad(jax.grad(phi)))(G)
    cross = X @ M @ x.T
    square = 0.5 * w @ (d2 * (cross + cross.T) ** 2) @ w
    rest = w @ (d1 * (X @ M @ X.T - np.sum(X**2, axis=1)[:, None] * G)) @ w
    assert second == pytest.approx(square + rest, rel=1e-12)


def test_second_variation_along_a_flow():
    """x' = P_x(Cx + b) integrated by SciPy on both sides of s = 0, second difference of the energy."""
    tokens, phi = cloud(), PHIS["exponential"]
    rng = np.random.default_rng(3)
    C, b = rng.normal(size=(3, 3)), rng.normal(size=3)

    def field(x):
        return tkf.sphere.project(x, x @ C.T + b)

    def slope(_, x):
        x = x.reshape(-1, 3)
        z = x @ C.T + b
        return (z - np.sum(x * z, axis=1, keepdims=True) * x).ravel()

    x, w, h = np.asarray(tokens.x), np.asarray(tokens.weights), 4e-3
    e = {0: plain_energy(x, w, phi, A3)}
    for sign in (1, -1):
        ts = sign * h * np.arange(1, 4)
        moved = integrate.solve_ivp(slope, (0, ts[-1]), x.ravel(), "DOP853", ts, rtol=1e-13, atol=1e-15).y.T
        e |= {sign * (k + 1): plain_energy(y.reshape(-1, 3), w, phi, A3) for k, y in enumerate(moved)}
    bend = (270 * (e[1] + e[-1]) - 27 * (e[2] + e[-2]) + 2 * (e[3] + e[-3]) - 490 * e[0]) / (180 * h**2)
    found = float(energies.second_variation_of_flow(tokens, field, phi, A3))
    assert found == pytest.approx(bend, rel=1e-7)
    geodesics = float(energies.second_variation(tokens, field(tokens.x), phi, A3))
    assert abs(found - geodesics) > 1e-3 * abs(found)


@pytest.mark.slow
def test_variations_of_many_tokens_and_of_tokens_at_rest():
    """Several tiles; a token with X = 0 stays where it is."""
    tokens, phi = cloud(n=2100), PHIS["exponential"]
    X, x, w = tangents(tokens), np.asarray(tokens.x), np.asarray(tokens.weights)
    X[::3] = 0
    G, cross = x @ x.T, X @ x.T
    expected = w @ (0.5 * 2 * np.exp(2 * G) * (cross + cross.T) ** 2) @ w
    expected += w @ (np.exp(2 * G) * (X @ X.T - np.sum(X**2, axis=1)[:, None] * G)) @ w
    assert float(energies.second_variation(tokens, X, phi)) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("beta", [0.0, 1e-9, 1.0, 40.0, -1e-9, -1.0, -40.0])
def test_deficit(beta):
    tokens = cloud(n=40)
    dirac = tkf.Tokens([[0.0, 1.0, 0.0]])
    x, w = np.asarray(tokens.x), np.asarray(tokens.weights)
    g = x @ x.T
    expected = (
        w @ (1 - g) @ w / 2 if abs(beta) < 1e-3 else w @ (np.exp(beta) - np.exp(beta * g)) @ w / (2 * beta)
    )
    assert float(energies.deficit(tokens, beta)) == pytest.approx(
        expected, rel=1e-8 if abs(beta) == 1e-9 else 1e-12
    )
    assert float(energies.deficit(dirac, beta)) == 0


@pytest.mark.parametrize("beta", [3.0, -3.0])
@pytest.mark.parametrize("width", [1e-3, 1e-7, 1e-11])
def test_deficit_near_a_dirac(width, beta):
    """Two tokens at a small angle a: (e^β/2β)·2pq(1 − e^{−2β sin²(a/2)}), where e^β − E cancels."""
    p = 0.3
    tokens = tkf.Tokens([[1.0, 0.0], [np.cos(width), np.sin(width)]], [p, 1 - p])
    expected = np.exp(beta) / beta * p * (1 - p) * -np.expm1(-2 * beta * np.sin(width / 2) ** 2)
    assert float(energies.deficit(tokens, beta)) == pytest.approx(expected, rel=1e-9, abs=0)


def test_deficit_of_antipodal_tokens_does_not_overflow():
    """β = −600: (e^β − e^{−β})/4β, of which e^{2·600} is no double."""
    expected = np.exp(600.0) / 2400
    assert float(energies.deficit(tkf.Tokens([[1.0, 0.0], [-1.0, 0.0]]), -600.0)) == pytest.approx(expected)


def test_bad_input_of_variations_is_one_sentence():
    tokens = cloud()
    with pytest.raises(tkf.InputError, match="^`X` must be tangent to the sphere, but was off by"):
        energies.second_variation(tokens, tokens.x, jnp.exp)
    with pytest.raises(tkf.InputError, match=r"^`X` must have the shape \(12, 3\) of the tokens"):
        energies.first_variation(tokens, np.zeros((2, 3)), jnp.exp)
    with pytest.raises(tkf.InputError, match="^`A` must be symmetric"):
        energies.interaction_energy(tokens, jnp.exp, [[0, 1, 0], [0, 0, 0], [0, 0, 0]])
    with pytest.raises(tkf.InputError, match="^`A` must be one 3 × 3 matrix"):
        energies.interaction_energy(tokens, jnp.exp, np.eye(2))
    with pytest.raises(tkf.InputError, match="^`phi` must be a JAX function"):
        energies.interaction_energy(tokens, 3.0)
    with pytest.raises(tkf.InputError, match="^`field` must be a JAX function"):
        energies.second_variation_of_flow(tokens, 3.0, jnp.exp)
    with pytest.raises(tkf.InputError, match="^`beta` must be at most 700"):
        energies.deficit(tokens, 1e4)
