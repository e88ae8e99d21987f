"""The closed forms of clustering against the printed digits of theory §3 and against second routes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, special

import tokenfield as tkf
from tokenfield import theory

KINDS = {"softmax": tkf.SoftmaxAttention, "unnormalised": tkf.UnnormalisedAttention}


def attention(d, beta, flow):
    return KINDS[flow](tkf.AttentionWeights.identity(d), beta)


def weighted(n, d, key):
    w = np.random.default_rng(key).dirichlet(np.ones(n))
    return tkf.Tokens(tkf.initial.uniform(n, d, key).x, w)


# ---- trace identity ----


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize("phi", [jnp.exp, lambda s: s**4 / 4 - s**3, lambda s: jnp.cos(2 * s)])
def test_trace_identity(d, phi):
    trace = theory.trace_identity(weighted(15, d, d), phi)
    assert trace.variations == pytest.approx(trace.integral, rel=1e-11)


@pytest.mark.slow
def test_trace_is_positive_for_attention_in_three_dimensions_and_zero_at_a_dirac():
    phi = lambda s: jnp.exp(3 * s) / 3  # noqa: E731
    for key in range(3):
        assert theory.trace_identity(weighted(6, 3, key), phi).integral > 0
    dirac = theory.trace_identity(tkf.Tokens([[0.0, 0.0, 1.0]]), phi)
    assert dirac.integral == 0
    assert abs(dirac.variations) < 1e-12


# ---- spectra ----


@pytest.mark.parametrize("flow", ["softmax", "unnormalised"])
@pytest.mark.parametrize(("n", "beta"), [(2, 1.0), (5, 3.0), (8, 0.0), (12, 40.0), (6, -4.0), (5, -40.0)])
def test_equispaced_spectrum_by_bessel_aliases(n, beta, flow):
    """Mode k grows at Σ_{m≡k} m²I_m/β − Σ_{m≡0} m²I_m/β (mod n), another way to sum the same."""
    m = np.arange(-400, 401)
    coefficient = (
        np.where(np.abs(m) == 1, 0.5, 0.0) if beta == 0 else m**2 * special.iv(m, beta) / beta
    )  # I_m(−β) = (−1)^m I_m(β)
    alias = np.array([np.sum(coefficient[m % n == k]) for k in range(n)])
    expected = alias - alias[0]
    if flow == "softmax":
        expected = expected / np.sum(special.iv(m, beta)[m % n == 0])
    found = theory.equispaced_spectrum(n, beta, flow)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12 * np.exp(abs(beta)))


def test_many_equispaced_tokens_are_the_uniform_law():
    for flow in ("softmax", "unnormalised"):
        for beta in (5.0, -5.0):
            found = theory.equispaced_spectrum(64, beta, flow)[1:8]
            np.testing.assert_allclose(found, theory.growth_rate(2, beta, np.arange(1, 8), flow), rtol=1e-11)


def test_equispaced_softmax_at_very_negative_beta():
    """Each of three tokens reads the other two alike: modes at ⟨cos s − β sin²s⟩(1 − cos ks) over m = 1, 2."""
    beta = -1e5
    s = 2 * np.pi / 3
    expected = -(np.cos(s) - beta * np.sin(s) ** 2) * (1 - np.cos(s * np.arange(3)))
    np.testing.assert_allclose(theory.equispaced_spectrum(3, beta), expected, rtol=1e-9, atol=1e-6)


def test_antipodal_reference_numbers():
    """Equal atoms at ±e1 under A = diag(2,1,.5), φ = e^s, are linearly stable."""
    found = theory.antipodal_spectrum(0.5, jnp.exp, np.diag([2, 1, 0.5]), [1, 0, 0])
    expected = [[-3.49152512, -3.62686041], [-5.37262297, -5.44029061]]
    np.testing.assert_allclose(found.whole, expected, atol=5e-9)
    assert found.stable
    assert not theory.antipodal_spectrum(0.5, jnp.exp, np.eye(3), [1, 0, 0]).stable


def angles_jacobian(slope, angles):
    return np.linalg.eigvals(np.asarray(jax.jacfwd(slope)(jnp.asarray(angles)))).real


@pytest.mark.parametrize("flow", ["softmax", "unnormalised"])
@pytest.mark.parametrize(
    ("p", "beta"), [(0.5, 1.0), (0.8, 0.3), (0.3, 2.5), (0.6, 0.0), (0.7, -1.5), (0.4, -0.2)]
)
def test_antipodal_rates_from_the_jacobian_in_angles(p, beta, flow):
    """Three half-tokens in each atom on the circle, the velocity written in angles."""
    w = jnp.array([p / 3] * 3 + [(1 - p) / 3] * 3)

    def slope(theta):
        s = theta[None] - theta[:, None]
        k = jnp.exp(beta * jnp.cos(s)) * w
        v = jnp.sum(k * jnp.sin(s), axis=1)
        return v / jnp.sum(k, axis=1) if flow == "softmax" else v

    found = theory.antipodal_rates(p, beta, flow)
    expected = [0, found.rigid, *np.repeat(found.split, 2)]
    measured = angles_jacobian(slope, [0, 0, 0, np.pi, np.pi, np.pi])
    np.testing.assert_allclose(np.sort(measured), np.sort(expected), atol=1e-12 * np.exp(abs(beta)))
    if flow == "unnormalised":
        q = 1 - p
        assert found.rigid == pytest.approx(np.exp(-beta), rel=1e-14)
        assert found.split[0] == pytest.approx(-p * np.exp(beta) + q * np.exp(-beta), rel=1e-12)
        if beta != 0:
            general = theory.antipodal_spectrum(p, lambda s: jnp.exp(beta * s) / beta, np.eye(3), [0, 1, 0])
            np.testing.assert_allclose(general.whole, [[found.rigid, 0]] * 2, atol=1e-12)
            np.testing.assert_allclose(general.split, found.split, rtol=1e-12)
    else:
        q = 1 - p
        Z1, Z2 = p * np.exp(beta) + q * np.exp(-beta), q * np.exp(beta) + p * np.exp(-beta)
        assert found.rigid == pytest.approx(np.exp(-beta) * (q / Z1 + p / Z2), rel=1e-13)


@pytest.mark.parametrize("p", [0.5, 0.7])
def test_antipodal_spectrum_with_a_matrix_from_the_full_jacobian(p):
    """Two tokens per atom, a rotated A; velocities linearised in R^d by JAX, radial part removed."""
    rng = np.random.default_rng(1)
    axes = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    A = axes @ np.diag([1.2, 0.4, -0.3]) @ axes.T
    phi = lambda s: s**3 / 3 + jnp.exp(0.5 * s)  # noqa: E731
    x0 = jnp.asarray(axes[:, 0])
    x = jnp.stack([x0, x0, -x0, -x0])
    w = jnp.array([p / 2, p / 2, (1 - p) / 2, (1 - p) / 2])
    flow = tkf.InteractionFlow(phi, A)
    frame = tkf.sphere.frame(x0)

    def slope(u):
        moved = tkf.Tokens(tkf.sphere.retract(x + u.reshape(4, 2) @ frame.T), w)
        return (flow.velocity(moved) @ frame).ravel()

    measured = angles_jacobian(slope, np.zeros(8))
    found = theory.antipodal_spectrum(p, phi, A, axes[:, 0])
    expected = [*found.whole.ravel(), *np.repeat(found.split, 2)]
    np.testing.assert_allclose(np.sort(measured), np.sort(expected), atol=1e-12)


# ---- PL inequality ----


def speed_and_deficit(x, w, beta):
    x, w = np.asarray(x), np.asarray(w)
    g = x @ x.T
    v = (np.exp(beta * g) * w) @ x
    v -= np.sum(v * x, axis=1, keepdims=True) * x
    gap = np.sum((x[:, None] - x) ** 2, axis=2) / 2
    return np.sum(w * np.sum(v**2, axis=1)), w @ (-np.expm1(-beta * gap)) @ w * np.exp(beta) / (2 * beta)


def test_pl_reference_numbers():
    assert theory.pl_constant(np.pi / 4, 1.0) == pytest.approx(0.215499, abs=5e-7)
    assert theory.pl_bound(np.pi / 4, 1.0) == pytest.approx(0.581977, abs=5e-7)
    assert theory.pl_bound(0.0, 3.0) == pytest.approx(2 * np.exp(3.0), rel=1e-14)
    assert theory.pl_bound(1e-5, 3.0) == pytest.approx(2 * np.exp(3.0), rel=1e-8)


@pytest.mark.parametrize("beta", [-0.1, 0.2, 1.0, 4.0])
@pytest.mark.parametrize("angle", [0.2, 0.6, np.pi / 4])
def test_pl_bound_is_the_ratio_of_two_tokens(angle, beta):
    x = [[np.cos(angle), np.sin(angle)], [np.cos(angle), -np.sin(angle)]]
    speed, deficit = speed_and_deficit(x, [0.3, 0.7], beta)
    assert speed / deficit == pytest.approx(theory.pl_bound(angle, beta), rel=1e-12)
    assert theory.pl_constant(angle, beta) <= theory.pl_bound(angle, beta)
    c = np.cos(2 * angle)
    plain = beta * np.exp(2 * beta * c) * np.sin(2 * angle) ** 2 / (np.exp(beta) - np.exp(beta * c))
    assert theory.pl_bound(angle, beta) == pytest.approx(plain, rel=1e-12)


@pytest.mark.parametrize("beta", [2.0, 0.0, -2.0])
@pytest.mark.parametrize("angle", [0.0, 0.3, np.pi / 4])
def test_pl_constant_is_that_of_its_proof(angle, beta):
    """k_min²/k_max, the extremes of e^{βg} over the cap, times 2R(R+Ru)/(1+R) at R = cosα, Ru = cos2α."""
    k = np.exp(beta * np.linspace(np.cos(2 * angle), 1, 101))
    R, Ru = np.cos(angle), np.cos(2 * angle)
    expected = k.min() ** 2 / k.max() * 2 * R * (R + Ru) / (1 + R)
    assert theory.pl_constant(angle, beta) == pytest.approx(expected, rel=1e-12)
    assert theory.pl_constant(0.0, beta) == pytest.approx(
        theory.pl_bound(0.0, beta), rel=1e-14
    )  # sharp there


@pytest.mark.parametrize("beta", [-0.05, -0.3, -1.0, -4.0])
def test_below_zero_the_pl_bound_is_the_least_ratio_of_all_pairs(beta):
    """Pairs at every angle up to π/2, down to tokens that nearly coincide."""
    pairs = np.linspace(1e-4, np.pi / 4, 400)
    ratios = []
    for a in pairs:
        speed, deficit = speed_and_deficit(
            [[np.cos(a), np.sin(a)], [np.cos(a), -np.sin(a)]], [0.5, 0.5], beta
        )
        ratios.append(speed / deficit)
    for k in (150, 399):
        assert theory.pl_bound(pairs[k], beta) == pytest.approx(np.min(ratios[: k + 1]), rel=1e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_pl_inequality_on_random_laws_in_caps(sign):
    rng = np.random.default_rng(0)
    for _ in range(1000):
        d, n = int(rng.integers(2, 6)), int(rng.integers(2, 12))
        angle, beta = rng.uniform(0.05, np.pi / 4), sign * rng.uniform(0.05, 6)
        across = rng.normal(size=(n, d - 1))
        across /= np.linalg.norm(across, axis=1, keepdims=True)
        theta = angle * rng.uniform(size=(n, 1)) ** rng.choice([0.1, 1.0])  # filling the cap, or near its rim
        x = np.concatenate([np.cos(theta), np.sin(theta) * across], axis=1)
        speed, deficit = speed_and_deficit(x, rng.dirichlet(np.full(n, 0.5)), beta)
        assert speed >= theory.pl_constant(angle, beta) * deficit
        if sign > 0:
            assert speed >= theory.pl_bound(angle, beta) * deficit * (1 - 1e-9)  # the conjecture


@pytest.mark.parametrize(("angle", "beta"), [(0.3, 4.0), (np.pi / 4, 1.0)])
def test_the_least_pl_ratio_is_that_of_two_tokens(angle, beta):
    """Four weighted tokens in a cap of S², positions and weights optimised from several starts."""
    rng = np.random.default_rng(0)

    def ratio(unknowns):
        z, share = unknowns[:12].reshape(4, 3), unknowns[12:]
        r, across = (
            angle * special.expit(z[:, :1]),
            z[:, 1:] / np.linalg.norm(z[:, 1:], axis=1, keepdims=True),
        )
        w = np.exp(3 * np.tanh(share))  # weights that underflow would mean nothing
        speed, deficit = speed_and_deficit(
            np.concatenate([np.cos(r), np.sin(r) * across], axis=1), w / w.sum(), beta
        )
        return np.log(speed / deficit)

    least = min(
        optimize.minimize(ratio, rng.normal(size=16), method="BFGS", options={"maxiter": 60}).fun
        for _ in range(3)
    )
    assert (
        theory.pl_bound(angle, beta) * (1 - 1e-9)
        <= np.exp(least)
        <= theory.pl_bound(angle, beta) * (1 + 1e-3)
    )


@pytest.mark.slow
@pytest.mark.parametrize("flow", ["softmax", "unnormalised"])
def test_what_follows_from_the_pl_inequality_in_a_run(flow):
    """D_t ≤ D_0e^{−λt} and W2(μ_t, limit) ≤ 2√(D_t/λ), λ = λ1 or e^{−β}λ1 for softmax; caps hold their tokens."""
    angle, beta = 0.75, 1.5
    tokens = tkf.Tokens(tkf.initial.cap(6, [0, 0, 1.0], angle, key=4).x, np.arange(1, 7) / 21)
    rate = theory.pl_constant(angle, beta) * (np.exp(-beta) if flow == "softmax" else 1.0)
    ts = np.linspace(0, 24 if flow == "softmax" else 6, 13)
    run = tkf.simulate(attention(3, beta, flow), tokens, ts)
    w = np.asarray(tokens.weights)
    deficits = np.array([speed_and_deficit(x, w, beta)[1] for x in np.asarray(run.x)])
    assert np.all(deficits <= deficits[0] * np.exp(-rate * ts) * (1 + 1e-9))
    angles = np.asarray(tkf.sphere.distance(run.x, run.x[-1, :1]))  # the limit is one atom
    assert np.all(np.sqrt(angles[:10] ** 2 @ w) <= 2 * np.sqrt(deficits[:10] / rate))
    caps = [theory.enclosing_cap(run.tokens(k)).angle for k in range(len(ts))]
    assert caps[0] <= angle and np.all(np.diff(caps) <= 1e-8)  # the solver's tolerance


@pytest.mark.parametrize("d", [2, 3, 6])
def test_enclosing_cap_by_a_quadratic_programme(d):
    """cos of the angle = 1/min|c| over ⟨c, x_i⟩ ≥ 1."""
    tokens = tkf.initial.cap(40, np.eye(d)[0], 1.2, key=d)
    cap = theory.enclosing_cap(tokens)
    x = np.asarray(tokens.x)
    assert np.max(np.arccos(x @ cap.centre)) <= cap.angle + 1e-12
    found = optimize.minimize(
        lambda c: c @ c,
        np.eye(d)[0] * 9,
        jac=lambda c: 2 * c,
        method="SLSQP",
        options={"ftol": 1e-15},
        constraints={"type": "ineq", "fun": lambda c: x @ c - 1, "jac": lambda c: x},
    )
    assert np.cos(cap.angle) == pytest.approx(1 / np.linalg.norm(found.x), abs=1e-9)


def test_enclosing_cap_of_special_laws():
    assert theory.enclosing_cap(tkf.Tokens([[0.6, 0.8]])).angle == pytest.approx(0, abs=1e-12)
    two = theory.enclosing_cap(tkf.Tokens([[1.0, 0, 0], [0, 1.0, 0]]))
    assert two.angle == pytest.approx(np.pi / 4, abs=1e-12)
    with pytest.raises(tkf.InputError, match="^`tokens` must lie in an open hemisphere"):
        theory.enclosing_cap(theory.near_dirac(0.1))


# ---- synchronisation ----


def test_synchronisation_rate():
    assert theory.synchronisation_rate(0.1, 2) == pytest.approx(0.452419, abs=5e-7)
    assert theory.synchronisation_rate(0.0, 9) == 1.0
    assert theory.synchronisation_rate(0.5, 3) == pytest.approx(np.exp(-0.5))


@pytest.mark.parametrize("d", [3, 4, 7])
def test_only_diracs_are_maxima_down_to_a_negative_beta(d):
    """Two equal atoms at ⟨x,y⟩ = 1/2|β|, where the bracket is least: the trace changes sign at the threshold."""
    threshold = -((d - 2) + np.sqrt((d - 2) ** 2 - 1)) / 2
    for beta, sign in ((threshold * (1 - 1e-3), 1), (threshold * (1 + 1e-3), -1)):
        g = min(-1 / (2 * beta), 0.999)
        x = np.zeros((2, d))
        x[0, 0], x[1, :2] = 1, [g, np.sqrt(1 - g * g)]
        trace = theory.trace_identity(tkf.Tokens(x), lambda s, b=beta: jnp.exp(b * s) / b)
        assert np.sign(trace.variations) == np.sign(trace.integral) == sign


@pytest.mark.slow
def test_synchronisation_at_a_negative_beta():
    """β = −.1 on the circle: W2 falls at e^{.1}/2, slower than the contraction e^{−.1} of the cluster."""
    angles, w = synchronising([12.0, 18.0], beta=-0.1, nodes=1000, grading=26.0)
    far = np.sqrt((np.pi - np.abs(angles)) ** 2 @ w)
    assert np.log(far[0] / far[1]) / 6 == pytest.approx(theory.synchronisation_rate(-0.1, 2), rel=1e-3)


def synchronising(ts, beta=0.1, nodes=700, grading=16.0):
    """Angles from the antipode and weights of f_0 ∝ 1+.5cosθ at the times ts, by characteristics.

    Gauss nodes crowd at the antipode, whose neighbourhood the flow blows up; the field by its Fourier series.
    """
    y, w = np.polynomial.legendre.leggauss(nodes)
    s = np.pi * np.sinh(grading * y) / np.sinh(grading)
    w = w * np.cosh(grading * y) * (1 - 0.5 * np.cos(s))
    w = w / w.sum()
    k = np.arange(1, 12)
    c = 2 * k * special.iv(k, beta) / beta

    def slope(_, s):
        waves = np.exp(1j * s) ** k[:, None]
        return np.imag((c * (waves @ w)) @ np.conj(waves))

    solved = integrate.solve_ivp(slope, (0, ts[-1]), s, "DOP853", ts, rtol=1e-11, atol=1e-16)
    return solved.y.T, w


def test_synchronisation_reference_numbers():
    """Printed R(2,4,6,10) at β = .1, and W2² = ∫angle²dμ to the limit falls at the sharp rate."""
    angles, w = synchronising([2.0, 4.0, 6.0, 10.0, 16.0])
    R = np.abs(np.exp(1j * angles) @ w)
    np.testing.assert_allclose(R[:4], [0.60330179, 0.90740024, 0.98456383, 0.99958644], atol=5e-9)
    far = np.sqrt((np.pi - np.abs(angles)) ** 2 @ w)
    assert np.log(far[3] / far[4]) / 6 == pytest.approx(theory.synchronisation_rate(0.1, 2), rel=1e-3)
    law = theory.circle_moments(lambda t: 1 + 0.5 * np.cos(t), 150)
    np.testing.assert_allclose(np.abs(theory.fourier_moments([2.0, 4.0], law, 0.1)[:, 1]), R[:2], atol=1e-9)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: theory.equispaced_spectrum(1, 1.0), "`n` must be a whole number, at least 2"),
        (lambda: theory.antipodal_rates(1.0, 1.0), "`p` must lie between 0 and 1"),
        (
            lambda: theory.antipodal_spectrum(0.5, jnp.exp, np.eye(2), [1, 1]),
            "`axis` must be a vector of norm 1",
        ),
        (
            lambda: theory.antipodal_spectrum(0.5, jnp.exp, np.diag([1, 2]), [0.6, 0.8]),
            "`axis` must be an eigenvector of A",
        ),
        (
            lambda: theory.antipodal_spectrum(0.5, jnp.exp, [[0, 1], [0, 0]], [1, 0]),
            "`A` must be one symmetric",
        ),
        (lambda: theory.pl_constant(1.0, 1.0), r"`angle` must lie in \[0, π/4\]"),
        (lambda: theory.pl_bound(0.1, 1e4), "`beta` must give values below"),
        (lambda: theory.synchronisation_rate(1e5, 2), "`beta` must have"),
        (lambda: theory.pl_constant(0.3, np.inf), "`beta` must be a finite number"),
        (lambda: theory.antipodal_rates(0.3, -800.0, "unnormalised"), "`beta` must give values below"),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad()
