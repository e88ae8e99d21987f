"""The Gaussian closure against the numbers of theory §6.4, closed forms, SciPy and Gauss–Hermite tokens."""

import numpy as np
import pytest
from scipy import integrate, linalg, optimize

import tokenfield as tkf

MEAN, COVARIANCE = np.array([0.4, -0.2]), np.array([[0.5, 0.1], [0.1, 0.3]])
B_SYMMETRIC = np.array([[1, 0.3], [0.3, -0.5]])
V = np.array([[0.7, 0.2], [-0.3, 0.4]])
B = np.array([[0.5, -0.6], [0.2, 0.8]])
V2, B2 = np.array([[0.1, -0.5], [0.4, 0.3]]), np.array([[-0.4, 0.3], [0.1, 0.6]])
EYE = np.eye(2)


def softmax(B, V, beta=0.8):
    return tkf.NoNorm(tkf.SoftmaxAttention(tkf.AttentionWeights(B, V), beta))


def upper(S):
    return S[0, 0], S[0, 1], S[1, 1]


def test_identity_values():
    run = tkf.density.gaussian(softmax(B_SYMMETRIC, EYE), MEAN, COVARIANCE, [0, 0.6])
    np.testing.assert_allclose(
        upper(run.covariance[-1]), (1.069631986251, 0.264616996316, 0.312290297819), atol=1e-12
    )
    np.testing.assert_allclose(run.mean[-1], (1.026804357515, -0.244376524896), atol=1e-12)
    assert abs(run.blow_up - 1.120026196747) < 1e-10


def test_general_values_and_two_heads():
    run = tkf.density.gaussian(softmax(B, V), MEAN, COVARIANCE, [0, 0.6])
    np.testing.assert_allclose(
        upper(run.covariance[-1]), (0.580028906811, 0.105657431051, 0.302534707265), atol=1e-12
    )
    np.testing.assert_allclose(run.mean[-1], (0.569720124758, -0.388255493227), atol=1e-12)
    run = tkf.density.gaussian(softmax([B, B2], [V, V2]), MEAN, COVARIANCE, [0, 0.5])
    np.testing.assert_allclose(
        upper(run.covariance[-1]), (0.534667061553, 0.08395699908, 0.326350403594), atol=1e-12
    )
    np.testing.assert_allclose(run.mean[-1], (0.648347988997, -0.313912778256), atol=1e-12)
    # terms add up as heads do
    parts = [tkf.SoftmaxAttention(tkf.AttentionWeights(b, v), 0.8) for b, v in ((B, V), (B2, V2))]
    again = tkf.density.gaussian(parts[0] + parts[1], MEAN, COVARIANCE, [0, 0.5])
    np.testing.assert_allclose(again.covariance, run.covariance, rtol=1e-12)


@pytest.mark.parametrize("part", [0.3, 0.9, 1 - 1e-6])
def test_closed_form_up_to_the_blow_up(part):
    """Σ = (Σ0^{−1} − β(B+Bᵀ)t)^{−1} for V = I and any B; t* = 1/λ_max(βΣ0^{½}(B+Bᵀ)Σ0^{½})."""
    beta, b = 0.7, np.array([[0.9, -0.4], [0.7, 0.2]])
    root = linalg.sqrtm(COVARIANCE)
    end = 1 / np.linalg.eigvalsh(beta * root @ (b + b.T) @ root)[-1]
    run = tkf.density.gaussian(softmax(b, EYE, beta), MEAN, COVARIANCE, [0, part * end])
    assert abs(run.blow_up / end - 1) < 1e-11
    expected = np.linalg.inv(np.linalg.inv(COVARIANCE) - beta * (b + b.T) * part * end)
    np.testing.assert_allclose(run.covariance[-1], expected, rtol=1e-10 / (1 - part))


def test_commuting_case_with_decay():
    """σ = σ0/(1 − 2βvbσ0t), m = m0 e^{vt}(1 − 2βvbσ0t)^{−½}; vb < 0 decays like 1/t."""
    v, b, s0, beta, t = np.array([1.0, -0.5]), np.array([-0.8, 1.1]), np.array([0.5, 0.3]), 1.3, 4.0
    run = tkf.density.gaussian(softmax(np.diag(b), np.diag(v), beta), MEAN, np.diag(s0), [0, t])
    factor = 1 - 2 * beta * v * b * s0 * t
    np.testing.assert_allclose(run.covariance[-1], np.diag(s0 / factor), atol=1e-13)
    np.testing.assert_allclose(run.mean[-1], MEAN * np.exp(v * t) * factor**-0.5, rtol=1e-11)
    assert run.blow_up == np.inf


def test_times_beyond_the_blow_up_are_refused():
    with pytest.raises(tkf.InputError, match=r"^`ts` must end before t = 1\.12002619675,"):
        tkf.density.gaussian(softmax(B_SYMMETRIC, EYE), MEAN, COVARIANCE, [0, 1.0, 1.5])


def test_blow_up_of_general_values_is_where_the_plain_integration_stops():
    run = tkf.density.gaussian(softmax(B, V), MEAN, COVARIANCE, [0, 0.1])

    def slope(t, y):
        S = y.reshape(2, 2)
        G = 0.8 * V @ S @ B.T @ S
        return (G + G.T).ravel()

    def large(t, y):
        return np.trace(y.reshape(2, 2)) - 1e7

    large.terminal = True
    plain = integrate.solve_ivp(
        slope, (0, 100), COVARIANCE.ravel(), "LSODA", rtol=1e-11, atol=1e-12, events=large
    )
    assert abs(plain.t[-1] - run.blow_up) < 1e-5


def test_l2_and_sinkhorn_in_one_dimension():
    v, k, q, s0, t = 1.0, 0.8, 1.1, 0.5, 0.7
    run = tkf.density.gaussian(tkf.L2Attention(q * EYE, k * EYE, v * EYE, 2.0), [0, 0], s0 * EYE, [0, t])
    np.testing.assert_allclose(run.covariance[-1], 1.306477674514 * EYE, atol=2e-12)
    assert run.blow_up == np.inf
    weights = tkf.AttentionWeights(k * q * EYE, v * EYE)
    run = tkf.density.gaussian(tkf.SinkhornAttention(weights, 1.0), [0.3, 0], s0 * EYE, [0, t])
    np.testing.assert_allclose(run.covariance[-1], 0.961201969943 * EYE, atol=2e-12)
    np.testing.assert_allclose(run.mean[-1], [0.3 * np.exp(v * t), 0], atol=1e-12)
    assert run.blow_up == np.inf


def test_implicit_closed_forms_for_neighbouring_numbers():
    """2k²log(Σ/Σ0) + 1/Σ0 − 1/Σ = 4vkqt (L2); u − coth(u/2) = 2vt + const, 2aΣ = sinh u (Sinkhorn)."""
    v, k, q, s0, t = 0.6, 1.2, 0.9, 0.7, 1.1

    def l2(s):
        return 2 * k**2 * np.log(s / s0) + 1 / s0 - 1 / s - 4 * v * k * q * t

    run = tkf.density.gaussian(tkf.L2Attention(q * EYE, k * EYE, v * EYE, 2.0), [0, 0], s0 * EYE, [0, t])
    assert abs(run.covariance[-1, 0, 0] - optimize.brentq(l2, s0, 50, xtol=1e-14)) < 1e-10
    a = k * q

    def clock(s):
        u = np.arcsinh(2 * a * s)
        return u - 1 / np.tanh(u / 2)

    weights = tkf.AttentionWeights(a * EYE, v * EYE)
    run = tkf.density.gaussian(tkf.SinkhornAttention(weights, 1.0), [0, 0], s0 * EYE, [0, t])
    expected = optimize.brentq(lambda s: clock(s) - clock(s0) - 2 * v * t, s0, 50, xtol=1e-14)
    assert abs(run.covariance[-1, 0, 0] - expected) < 1e-10


def test_riccati_with_decay():
    attention = tkf.SoftmaxAttention(tkf.AttentionWeights(1.5 * EYE, -EYE), 1.0)
    model = attention + tkf.MLP(EYE, None, 0.6 * EYE, None, "identity")
    run = tkf.density.gaussian(model, [0, 0], 0.1 * EYE, [0, 3.0])
    np.testing.assert_allclose(run.covariance[-1], 0.369695618584 * EYE, atol=1e-12)
    assert run.blow_up == np.inf


def test_affine_terms():
    """x' = Wx + b alone: m and Σ by the matrix exponential."""
    W, b = np.array([[0.3, -0.5], [0.2, -0.1]]), np.array([0.4, 0.7])
    model = tkf.MLP(EYE, b, W, 0 * b, "identity") + tkf.Drift([0.1, -0.3])
    run = tkf.density.gaussian(tkf.NoNorm(model), MEAN, COVARIANCE, [0, 1.3])
    big = np.zeros((3, 3))
    big[:2, :2], big[:2, 2] = W, W @ b + [0.1, -0.3]
    flow = linalg.expm(1.3 * big)
    np.testing.assert_allclose(run.mean[-1], (flow @ [*MEAN, 1])[:2], atol=1e-12)
    np.testing.assert_allclose(run.covariance[-1], flow[:2, :2] @ COVARIANCE @ flow[:2, :2].T, atol=1e-12)


def test_second_moment_of_any_cloud_under_linear_attention():
    """C' = VCBᵀC + transpose holds for tokens that are not Gaussian at all."""
    rng = np.random.default_rng(0)
    y, w = rng.uniform(-1, 1, size=(5, 2)), rng.dirichlet(np.ones(5))
    model = tkf.NoNorm(tkf.LinearAttention(tkf.AttentionWeights(B, V)))
    run = tkf.simulate(model, tkf.Tokens.normalised(y, w), [0, 0.7], tkf.Adaptive(1e-11, 1e-12))
    end = np.asarray(run.x[-1] * run.radii[-1][:, None])
    m = w @ y
    law = tkf.density.gaussian(model, m, (w * y.T) @ y - np.outer(m, m), [0, 0.7])
    second = law.covariance[-1] + np.outer(law.mean[-1], law.mean[-1])
    np.testing.assert_allclose(second, (w * end.T) @ end, atol=1e-11)
    np.testing.assert_allclose(law.mean[-1], w @ end, atol=1e-11)


def moments(tokens):
    y, w = np.asarray(tokens.points), np.asarray(tokens.weights)
    m = w @ y
    return m, (w * (y - m).T) @ (y - m)


def test_gauss_hermite_tokens_have_the_moments_of_the_law():
    tokens = tkf.initial.gauss_hermite(MEAN, COVARIANCE, 6)
    m, S = moments(tokens)
    np.testing.assert_allclose(m, MEAN, atol=1e-14)
    np.testing.assert_allclose(S, COVARIANCE, atol=1e-14)
    y = np.asarray(tokens.points) - MEAN
    fourth = np.asarray(tokens.weights) @ (y[:, 0] ** 2 * y[:, 1] ** 2)
    expected = COVARIANCE[0, 0] * COVARIANCE[1, 1] + 2 * COVARIANCE[0, 1] ** 2  # Isserlis
    assert abs(fourth - expected) < 1e-14
    with pytest.raises(tkf.InputError, match="`nodes` must place no token at 0"):
        tkf.initial.gauss_hermite([0, 0], COVARIANCE, 3)
    with pytest.raises(tkf.InputError, match="`covariance` must be symmetric"):
        tkf.initial.gauss_hermite([0, 0], -COVARIANCE, 4)


#: One reading of every kind by itself: the velocity of quadrature tokens is that of the closure.
READINGS = {
    "softmax with a bias": tkf.SoftmaxAttention(tkf.AttentionWeights([B, B2], [V, V2], [0.3, -0.2]), 0.8),
    "linear": tkf.LinearAttention(tkf.AttentionWeights(B, V, [0.3, -0.2])),
    "l2": tkf.L2Attention(V2, B, V, 1.7),
    "sinkhorn": tkf.SinkhornAttention(tkf.AttentionWeights(B_SYMMETRIC + EYE, V), 0.6),
}


@pytest.mark.parametrize("name", READINGS)
def test_slopes_are_those_of_tokens(name):
    """m' and Σ' at the start, from the velocities of 16² Gauss–Hermite tokens."""
    model, tokens = tkf.NoNorm(READINGS[name]), tkf.initial.gauss_hermite(MEAN, COVARIANCE, 16)
    y, w, v = np.asarray(tokens.points), np.asarray(tokens.weights), np.asarray(model.velocity(tokens))
    h = 1e-3
    law = tkf.density.gaussian(model, MEAN, COVARIANCE, h * np.arange(5))
    one_sided = np.array([-25, 48, -36, 16, -3]) / (12 * h)
    np.testing.assert_allclose(np.tensordot(one_sided, law.mean, 1), w @ v, atol=1e-7)
    G = (w * v.T) @ (y - MEAN)
    np.testing.assert_allclose(np.tensordot(one_sided, law.covariance, 1), G + G.T, atol=1e-7)


@pytest.mark.slow
def test_closure_is_the_law_of_tokens():
    """40² Gauss–Hermite tokens of the simulator follow the closure."""
    tokens = tkf.initial.gauss_hermite(MEAN, COVARIANCE, 40)
    law = tkf.density.gaussian(softmax(B, V), MEAN, COVARIANCE, [0, 0.6])
    run = tkf.simulate(softmax(B, V), tokens, [0, 0.6], tkf.Adaptive(1e-10, 1e-11))
    m, S = moments(run.tokens(-1))
    np.testing.assert_allclose(m, law.mean[-1], atol=1e-10)
    np.testing.assert_allclose(S, law.covariance[-1], atol=1e-10)


@pytest.mark.parametrize(
    "model",
    [
        tkf.PreNorm(tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), 1.0)),
        tkf.NGPT(tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), 1.0), 0.5),
        tkf.NoNorm(tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), 1.0, tkf.masks.causal())),
        tkf.UnnormalisedAttention(tkf.AttentionWeights.identity(2), 1.0),
        tkf.HardmaxAttention(tkf.AttentionWeights.identity(2)),
        tkf.NoNorm(tkf.MLP(EYE, None, EYE, None, "relu")),
        tkf.L2Attention(EYE, EYE, EYE, -1.0),
        tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), 1.0, context=tkf.initial.uniform(3, 2, 0)),
        tkf.Depth([tkf.LinearAttention(tkf.AttentionWeights.identity(2))] * 2),
    ],
    ids=lambda model: type(model).__name__,
)
def test_models_that_do_not_keep_gaussian_laws_are_refused(model):
    with pytest.raises(tkf.InputError, match="^`model` must"):
        tkf.density.gaussian(model, MEAN, COVARIANCE, [0, 1.0])


@pytest.mark.parametrize(
    ("mean", "covariance", "name"),
    [([0.0], EYE, "mean"), ([0, 0], np.eye(3), "covariance"), ([0, 0], [[1, 2], [2, 1]], "covariance")],
)
def test_laws_that_are_none_are_refused(mean, covariance, name):
    with pytest.raises(tkf.InputError, match=f"^`{name}` must"):
        tkf.density.gaussian(softmax(B, V), mean, covariance, [0, 1.0])


def test_a_dirac_stays_one():
    run = tkf.density.gaussian(softmax(B, V), MEAN, 0 * EYE, [0, 1.0])
    np.testing.assert_allclose(run.covariance, 0, atol=1e-15)
    np.testing.assert_allclose(run.mean[-1], linalg.expm(V) @ MEAN, rtol=1e-11)
    assert run.blow_up == np.inf


def test_one_number_is_a_final_time():
    model = softmax(EYE, EYE)
    alone, listed = (tkf.density.gaussian(model, MEAN, COVARIANCE, ts) for ts in (0.5, [0.0, 0.5]))
    assert alone.ts.tolist() == [0.0, 0.5] and np.array_equal(alone.covariance, listed.covariance)
