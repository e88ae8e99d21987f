"""The exact cases against the printed digits of theory §4 and against independent computations."""

import mpmath
import numpy as np
import pytest
from scipy import integrate

import tokenfield as tkf
from tokenfield import theory


def test_equiangular_reference_numbers():
    softmax = theory.equiangular([0, 1, 5], 32, 1.0, 0.0)
    np.testing.assert_allclose(softmax[1:], [0.1518493355439, 0.9982842486223], atol=1e-12)
    usa = theory.equiangular([0, 1], 32, 1.0, 0.0, "unnormalised")
    assert usa[1] == pytest.approx(0.1899421137486, abs=1e-12)


def test_equiangular_equation_comes_from_the_full_system():
    """Public code had it wrong (peers.md): ρ' is compared with d/dt⟨x_0, x_1⟩ of the token velocities."""
    n, beta, rho = 7, 2.3, 0.37
    tokens = tkf.initial.equiangular(n, n, rho)
    for kind, flow in ((tkf.SoftmaxAttention, "softmax"), (tkf.UnnormalisedAttention, "unnormalised")):
        v = kind(tkf.AttentionWeights.identity(n), beta).velocity(tokens)
        slope = float(v[0] @ tokens.x[1] + v[1] @ tokens.x[0])
        h = 1e-4
        rhos = theory.equiangular([0, h, 2 * h], n, beta, rho, flow)
        assert (-3 * rhos[0] + 4 * rhos[1] - rhos[2]) / (2 * h) == pytest.approx(slope, rel=1e-6)


def token_products(n, beta, rho0, ts, flow):
    """⟨x_0, x_1⟩ of n tokens in R^n that start equiangular, token by token and pair by pair; β a function of t."""
    gram = np.full((n, n), rho0) + (1 - rho0) * np.eye(n)

    def slope(t, flat):
        x = flat.reshape(n, n)
        v = np.zeros((n, n))
        for i in range(n):
            mass = 0.0
            for j in range(n):
                weight = np.exp(beta(t) * (x[i] @ x[j])) / n
                v[i] += weight * x[j]
                mass += weight
            v[i] /= mass if flow == "softmax" else 1.0
            v[i] -= (v[i] @ x[i]) * x[i]
        return v.ravel()

    x0 = np.linalg.cholesky(gram).ravel()
    moved = integrate.solve_ivp(slope, (0, ts[-1]), x0, "DOP853", ts, rtol=1e-11, atol=1e-13).y.T
    return np.array([x[:n] @ x[n : 2 * n] for x in moved])


@pytest.mark.parametrize("flow", ["softmax", "unnormalised"])
@pytest.mark.parametrize("rho0", [0.1, -0.2])
def test_equiangular_at_negative_beta_is_the_full_system(flow, rho0):
    ts = [0.4, 1.5]
    expected = token_products(4, lambda t: -3.0, rho0, ts, flow)
    np.testing.assert_allclose(theory.equiangular(ts, 4, -3.0, rho0, flow), expected, rtol=1e-8)


def test_equiangular_at_very_negative_beta():
    """Each token reads the others alike and not itself: ρ' = 2(1−ρ)((n−1)ρ+1)/(n−1) until 1−ρ ~ 1/|β|."""
    n, rho0, t = 5, 0.1, 0.7
    ratio = (rho0 + 1 / (n - 1)) / (1 - rho0) * np.exp(2 * t * n / (n - 1))  # (ρ + 1/(n−1))/(1−ρ) grows so
    expected = (ratio - 1 / (n - 1)) / (1 + ratio)
    assert theory.equiangular([t], n, -1e5, rho0)[0] == pytest.approx(expected, rel=1e-9)


def test_equiangular_with_a_temperature_that_falls():
    """β(t) = 1 + t, n = 6, ρ0 = .1: the printed digits of theory §6.5; and the full system, also through 0."""
    assert theory.equiangular([2.0], 6, lambda t: 1 + t, 0.1)[0] == pytest.approx(0.879105645088, abs=5e-13)
    for flow in ("softmax", "unnormalised"):
        expected = token_products(4, lambda t: 1 - 2 * t, 0.1, [0.5, 1.5], flow)
        found = theory.equiangular([0.5, 1.5], 4, lambda t: 1 - 2 * t, 0.1, flow)
        np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_a_constant_function_is_the_constant():
    expected = theory.equiangular([1.0, 3.0], 6, -0.7, 0.1)
    np.testing.assert_allclose(theory.equiangular([1.0, 3.0], 6, lambda t: -0.7, 0.1), expected, rtol=1e-13)


@pytest.mark.parametrize("beta", [-0.5, -30.0])
def test_two_tokens_at_negative_beta_are_the_pair_itself(beta):
    """The pair itself, token by token: the time at which its inner product is .8."""

    def slope(_, x):
        x, y = x[:2], x[2:]
        k = np.exp(beta * (x @ y - 1))
        p, q = 1 / (1 + k), k / (1 + k)
        u, v = p * x + q * y, p * y + q * x
        return np.concatenate([u - (u @ x) * x, v - (v @ y) * y])

    def reached(_, x):
        return x[:2] @ x[2:] - 0.8

    reached.terminal = True
    start = np.array([1.0, 0.0, -0.3, np.sqrt(1 - 0.09)])
    run = integrate.solve_ivp(slope, (0, 50), start, "DOP853", rtol=1e-12, atol=1e-14, events=reached)
    assert theory.two_tokens(-0.3, 0.8, beta) == pytest.approx(run.t_events[0][0], rel=1e-9)


def test_two_tokens_reference_numbers():
    assert theory.two_tokens(0, 0.9, 5.0) == pytest.approx(16.9525332, abs=5e-8)
    assert theory.two_tokens(0, 0.9, 20.0) == pytest.approx(1.21917570e7, abs=0.05)


def test_two_tokens_are_two_equiangular_tokens():
    t = theory.two_tokens(0.2, 0.7, 3.0)
    assert theory.equiangular([0, t], 2, 3.0, 0.2)[1] == pytest.approx(0.7, abs=1e-10)


def test_poisson_reference_numbers():
    ts = [0, 1, 2, 4]
    flat = [0.3189649611, 0.4851827523, 0.8334562386]
    np.testing.assert_allclose(theory.poisson_order(ts, 0.2, 2)[1:], flat, atol=1e-10)
    round_ = [0.4747500789, 0.7347273790, 0.9809039599]
    np.testing.assert_allclose(theory.poisson_order(ts, 0.2, 3)[1:], round_, atol=1e-10)


def test_poisson_in_the_plane_agrees_with_its_ordinary_differential_equation():
    """d = 2 is in closed form; the general route must give the same: r' = ½(1−r²)r, R = r."""
    ts = np.linspace(0, 3, 7)
    solved = integrate.solve_ivp(
        lambda _, r: 0.5 * (1 - r**2) * r, (0, 3), [0.3], t_eval=ts, rtol=1e-11, atol=1e-13
    )
    np.testing.assert_allclose(theory.poisson_order(ts, 0.3, 2), solved.y[0], atol=1e-9)


@pytest.mark.parametrize("d", [3, 4, 5, 9])
def test_poisson_order_function_in_many_digits(d):
    r = 0.6
    with mpmath.workdps(30):

        def weight(t):
            return (1 - t * t) ** (mpmath.mpf(d - 3) / 2) / (1 - 2 * r * t + r * r) ** (d - 1)

        top = mpmath.quad(lambda t: t * weight(t), [-1, 0, 1])
        expected = float(top / mpmath.quad(weight, [-1, 0, 1]))
    assert float(theory.poisson_radius_order(r, d)) == pytest.approx(expected, rel=1e-12)


def test_lorentz_boost_solves_the_token_equation():
    """Right-hand side against a central difference of the boost, for a weighted law in R^4."""
    tokens = tkf.Tokens(tkf.initial.uniform(9, 4, 0).x, np.random.default_rng(0).dirichlet(np.ones(9)))
    h = 1e-3
    before, now, after = theory.lorentz(tokens.x, tokens.weights, [0.0, 0.5 - h, 0.5, 0.5 + h])[1:]
    m = np.asarray(tokens.weights) @ now
    slope = m - (now @ m)[:, None] * now
    np.testing.assert_allclose((after - before) / (2 * h), slope, atol=1e-6)


def test_zero_temperature_orbits_do_not_overflow_and_end_in_the_top_eigenvector():
    V = np.diag([3.0, 1.0, -2.0])
    x = np.asarray(tkf.initial.uniform(6, 3, 0).x)
    end = theory.zero_temperature(x, V, [0, 1000.0])[-1]
    np.testing.assert_allclose(end, np.sign(x[:, :1]) * [[1, 0, 0]], atol=1e-12)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: theory.equiangular([0, 1], 1, 1.0, 0.0), "`n` must be a whole number, at least 2"),
        (lambda: theory.equiangular([0, 1], 4, 1.0, 1.0), "`rho0` must lie in"),
        (
            lambda: theory.equiangular([0, 1], 4, 1.0, 0.0, "hard"),
            "`flow` must be 'softmax' or 'unnormalised'",
        ),
        (lambda: theory.equiangular([1, 0], 4, 1.0, 0.0), "`ts` must be increasing"),
        (lambda: theory.two_tokens(0.5, 0.4, 1.0), "`rho0` must lie in"),
        (lambda: theory.poisson_order([0, 1], 1.0, 3), "`r0` must lie in"),
        (
            lambda: theory.equiangular([0, 1], 8, 800.0, 0.1, "unnormalised"),
            "`beta` must be at most 500 in size",
        ),
        (lambda: theory.equiangular([0, 1], 8, np.inf, 0.1), "`beta` must be a finite number"),
        (lambda: theory.equiangular([0, 1], 8, lambda t: "cold", 0.1), "`beta` must be a number"),
        (
            lambda: theory.equiangular([0, 1], 8, lambda t: 1.0 if t < 0.5 else np.inf, 0.1),
            "`beta` must be a finite",
        ),
        (lambda: theory.equiangular([0, 1], 8, -501.0, 0.1, "unnormalised"), "`beta` must be at most 500 in"),
        (lambda: theory.equiangular([0, 1], 8, "cold", 0.1), "`beta` must be a number"),
        (lambda: theory.equiangular([0, 1], 2.5, 1.0, 0.1), "`n` must be a whole number"),
        (lambda: theory.equiangular([0, 1], 2, 1.0, 0.1, ["softmax"]), "`flow` must be 'softmax' or"),
        (lambda: theory.equiangular([], 8, 1.0, 0.1), "`ts` must be a list of times"),
        (lambda: theory.equiangular([0, np.inf], 8, 1.0, 0.1), "`ts` must be finite"),
        (
            lambda: theory.two_tokens(0.0, 0.9, 800.0),
            "`beta` must be at most 500 here, or the time overflows",
        ),
        (lambda: theory.two_tokens(0.0, 1.0, 1.0), r"`rho1` must lie in \(−1, 1\)"),
        (lambda: theory.poisson_radius_order(0.5, 2.5), "`d` must be a whole number"),
        (lambda: theory.lorentz(np.eye(3), [0.5, 0.5], [0, 1]), r"`weights` must have shape \(3,\)"),
        (lambda: theory.poisson_radius_order(2.5, 3), r"`r` must lie in \[0, 1\], but was 2.5"),
        (lambda: theory.lorentz(np.eye(3), [0, 1, 2], [0, 1]), "`weights` must be at least 0 and sum to 1"),
        (lambda: theory.lorentz([1.0, 0.0], [1.0], [0, 1]), r"`x0` must have shape \(n, d\)"),
        (lambda: theory.zero_temperature([[1.0, 0.0]], np.eye(3), [0, 1]), r"`V` must be a finite matrix"),
        (lambda: theory.zero_temperature([[2.0, 0.0]], np.eye(2), [0, 1]), "`x0` must have rows of norm 1"),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad()


def test_what_cannot_be_integrated_is_said():
    """The tokens meet within times of e^{−β}, shorter than the spacing of numbers near the end."""
    with pytest.raises(tkf.RunError, match="^could not solve the equation with beta = 100 up to t = 1: "):
        theory.equiangular([0, 1], 8, 100.0, 0.1, "unnormalised")


@pytest.mark.parametrize(
    ("rho0", "rho1", "beta"), [(0.0, 0.9, 499.0), (0.5, 0.9, 999.0), (-0.9, 0.99, 100.0)]
)
def test_two_tokens_at_low_temperature(rho0, rho1, beta):
    """The same integral in many digits, in y = β(ρ−ρ0), where e^{−y} does not depend on β."""
    with mpmath.workdps(30):
        scale = mpmath.e ** (beta * (1 - mpmath.mpf(rho0)))

        def integrand(y):
            rho = rho0 + y / beta
            return (1 / scale + mpmath.e**-y) / (2 * beta * (1 - rho * rho))

        end = beta * (mpmath.mpf(rho1) - mpmath.mpf(rho0))
        split = [y for y in (0, 5, 10, 20, 40, 80, 160) if y < end]
        expected = scale * mpmath.quad(integrand, [*split, end])
    assert theory.two_tokens(rho0, rho1, beta) == pytest.approx(float(expected), rel=1e-10)


def test_eigenvectors_stay_at_zero_temperature():
    """Every weight e^{(λ−λ_1)t} but the first underflows; the direction does not."""
    orbits = theory.zero_temperature(np.eye(3), np.diag([1.0, 0.5, -3.0]), [0, 1.0, 2000.0, 1e9])
    np.testing.assert_array_equal(orbits, np.broadcast_to(np.eye(3), (4, 3, 3)))


def test_long_orbits_at_zero_temperature_in_many_digits():
    """Tokens that are first drawn to the second eigenvector and leave it, and a rotation."""
    V, t = np.diag([1.0, 0.75, -1.0]), 1500.0
    x = np.array([[1e-163, 0.6, 0.8]])
    with mpmath.workdps(30):
        moved = [
            mpmath.mpf(float(v)) * mpmath.e ** (mpmath.mpf(float(r)) * t)
            for v, r in zip(x[0], np.diag(V), strict=True)
        ]
        norm = mpmath.sqrt(sum(m * m for m in moved))
        expected = [float(m / norm) for m in moved]
    assert 0.1 < expected[0] < 0.9
    np.testing.assert_allclose(theory.zero_temperature(x, V, [0, t])[1, 0], expected, rtol=1e-9, atol=1e-15)
    turned = theory.zero_temperature([[1.0, 0.0]], [[0.0, -1.0], [1.0, 0.0]], [0, 1e4])[1, 0]
    np.testing.assert_allclose(turned, [np.cos(1e4), np.sin(1e4)], atol=1e-10)


def test_times_count_from_the_initial_value():
    np.testing.assert_allclose(
        theory.equiangular([1, 5], 32, 1.0, 0.0), [0.1518493355439, 0.9982842486223], atol=1e-12
    )
    np.testing.assert_allclose(theory.poisson_order([1.0], 0.2, 3), [0.4747500789], atol=1e-10)


@pytest.mark.parametrize(("n", "gamma", "rho"), [(5, 1.0, 0.3), (40, 2.0, 0.5), (7, 0.4, 0.0)])
def test_equiangular_layer_is_the_layer(n, gamma, rho):
    tokens = tkf.initial.equiangular(n, n, rho)
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(n), gamma * np.log(n))
    out = tkf.sphere.retract(model.output(tokens.x, tokens))
    assert theory.equiangular_layer(n, gamma, rho) == pytest.approx(float(out[0] @ out[1]), rel=1e-12)


@pytest.mark.parametrize(("n", "gamma", "rho"), [(5, -1.0, 0.3), (12, -0.4, -0.05)])
def test_equiangular_layer_at_negative_beta(n, gamma, rho):
    """The layer written out with β = γ log n < 0."""
    x = np.linalg.cholesky(np.full((n, n), rho) + (1 - rho) * np.eye(n))
    k = np.exp(gamma * np.log(n) * x @ x.T)
    a = k @ x
    expected = a[0] @ a[1] / np.linalg.norm(a[0]) / np.linalg.norm(a[1])
    assert theory.equiangular_layer(n, gamma, rho) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rho", [0.1, 0.5, 0.9])
def test_long_context_limit(rho):
    critical = 1 / (1 - rho)
    assert theory.long_context_limit(0.99 * critical, rho) == 1
    assert theory.long_context_limit(critical, rho) == pytest.approx(4 * rho / (1 + 3 * rho), rel=1e-14)
    assert theory.long_context_limit(1.01 * critical, rho) == rho
    for factor in (-0.5, 0.9, 1.0, 1.1):
        found = theory.equiangular_layer(1e300, factor * critical, rho)
        assert found == pytest.approx(theory.long_context_limit(factor * critical, rho), rel=1e-12)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: theory.equiangular_layer(1, 1.0, 0.5), "`n` must be at least 2"),
        (lambda: theory.equiangular_layer(4, 1.0, 1.0), "`rho` must lie in"),
        (lambda: theory.long_context_limit(1.0, 0.0), "`rho` must lie between 0 and 1"),
    ],
)
def test_bad_input_of_the_layers_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad()
