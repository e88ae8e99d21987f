"""Models at every temperature: limits, heads, time units, symmetries, agreement of independent routes."""

import equinox as eqx
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import special

import tokenfield as tkf

MODELS = {
    "softmax": lambda w: tkf.SoftmaxAttention(w, 3.0),
    "unnormalised": lambda w: tkf.UnnormalisedAttention(w, 1.5),
    "hardmax": tkf.HardmaxAttention,
    "zero": tkf.ZeroTemperature,
    "interaction": lambda w: tkf.InteractionFlow(jnp.exp, w.B + jnp.swapaxes(w.B, -1, -2)),
}


def loop_velocity(tokens, head):
    """Σ_h V_h read_h(x), projected, token by token; `head(B, V, q)` by the formulas of theory §1."""
    out = []
    for x in np.asarray(tokens.x):
        a = head(x)
        out.append(a - (x @ a) * x)
    return np.array(out)


@pytest.fixture
def weights():
    return tkf.AttentionWeights(tkf.ensembles.gaussian(4, 1, heads=3), tkf.ensembles.gaussian(4, 2, heads=3))


@pytest.fixture
def tokens():
    w = np.random.default_rng(0).dirichlet(np.ones(11))
    return tkf.Tokens(tkf.initial.uniform(11, 4, 0).x, w)


def heads(weights):
    return list(zip(np.asarray(weights.B), np.asarray(weights.V), strict=True))


def test_softmax_is_its_formula(weights, tokens):
    y, w = np.asarray(tokens.x), np.asarray(tokens.weights)

    def head(x):
        total = 0
        for B, V in heads(weights):
            p = w * np.exp(3.0 * (y @ (B.T @ x)))
            total = total + V @ (p @ y / p.sum())
        return total

    found = tkf.SoftmaxAttention(weights, 3.0).velocity(tokens)
    np.testing.assert_allclose(found, loop_velocity(tokens, head), atol=1e-14)


def test_unnormalised_is_its_formula_with_weights_and_self_term(weights, tokens):
    """Public code left out the 1/n (peers.md)."""
    y, w = np.asarray(tokens.x), np.asarray(tokens.weights)

    def head(x):
        return sum(V @ ((w * np.exp(1.5 * (y @ (B.T @ x)))) @ y) for B, V in heads(weights))

    found = tkf.UnnormalisedAttention(weights, 1.5).velocity(tokens)
    np.testing.assert_allclose(found, loop_velocity(tokens, head), rtol=1e-12, atol=1e-12)


def test_zero_temperature_is_its_formula(weights, tokens):
    def head(x):
        return sum(V @ (B.T @ x) / np.linalg.norm(B.T @ x) for B, V in heads(weights))

    np.testing.assert_allclose(
        tkf.ZeroTemperature(weights).velocity(tokens), loop_velocity(tokens, head), atol=1e-14
    )


def test_hardmax_is_its_formula(weights, tokens):
    y = np.asarray(tokens.x)

    def head(x):
        return sum(V @ y[np.argmax(y @ (B.T @ x))] for B, V in heads(weights))

    np.testing.assert_allclose(
        tkf.HardmaxAttention(weights).velocity(tokens), loop_velocity(tokens, head), atol=1e-14
    )


def test_interaction_flow_is_its_formula(tokens):
    A = np.asarray(tkf.ensembles.goe(4, 3, heads=2))
    y, w = np.asarray(tokens.x), np.asarray(tokens.weights)

    def head(x):
        return sum(a @ ((w * np.cosh(y @ a @ x)) @ y) for a in A)

    np.testing.assert_allclose(
        tkf.InteractionFlow(jnp.sinh, A).velocity(tokens), loop_velocity(tokens, head), atol=1e-13
    )


def test_exponential_interaction_is_the_unnormalised_flow(tokens):
    beta = 2.5
    flow = tkf.InteractionFlow(lambda s: jnp.exp(beta * s) / beta, np.eye(4))
    usa = tkf.UnnormalisedAttention(tkf.AttentionWeights.identity(4), beta)
    np.testing.assert_allclose(flow.velocity(tokens), usa.velocity(tokens), rtol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 1e-12, 1e-3, 1.0, 50.0, 1e3, 1e5, 1e8, np.inf])
@pytest.mark.parametrize("kind", [tkf.SoftmaxAttention, tkf.UnnormalisedAttention])
def test_every_temperature_is_finite(kind, beta, weights, tokens):
    assert np.all(np.isfinite(kind(weights, beta).velocity(tokens)))


def test_temperature_zero_reads_the_mean(tokens):
    identity = tkf.AttentionWeights.identity(4)
    mean = np.asarray(tokens.moments().mean)
    expected = loop_velocity(tokens, lambda x: mean)
    for kind in (tkf.SoftmaxAttention, tkf.UnnormalisedAttention):
        np.testing.assert_allclose(kind(identity, 0.0).velocity(tokens), expected, atol=1e-15)
        np.testing.assert_allclose(kind(identity, 1e-12).velocity(tokens), expected, atol=1e-11)


def test_cold_softmax_is_the_hardmax(weights, tokens):
    hard = tkf.HardmaxAttention(weights).velocity(tokens)
    np.testing.assert_allclose(tkf.SoftmaxAttention(weights, np.inf).velocity(tokens), hard, atol=1e-15)
    np.testing.assert_allclose(tkf.SoftmaxAttention(weights, 1e6).velocity(tokens), hard, atol=1e-12)


@pytest.mark.parametrize("beta", [1e3, 1e6])
def test_cold_unnormalised_keeps_its_factor_in_the_time_unit(beta):
    """Velocities are e^{−L} times those of the equation, L stated; checked in 40 digits."""
    weights = tkf.AttentionWeights(2 * np.eye(2), np.eye(2))
    angles = [0.0, 1.2 / np.sqrt(beta)]
    tokens = tkf.Tokens([[np.cos(a), np.sin(a)] for a in angles])
    model = tkf.UnnormalisedAttention(weights, beta)
    assert float(model.log_time_unit) == pytest.approx(2 * beta)
    with mpmath.workdps(40):
        gap = mpmath.mpf(angles[1])
        # token 0 moves along the circle by ½ e^{2β cos gap} sin gap
        expected = mpmath.exp(2 * mpmath.mpf(beta) * (mpmath.cos(gap) - 1)) * mpmath.sin(gap) / 2
    assert float(model.velocity(tokens)[0, 1]) == pytest.approx(float(expected), rel=1e-8)


@pytest.mark.slow
def test_the_time_unit_is_plain_while_nothing_overflows():
    identity = tkf.AttentionWeights.identity(3)
    assert float(tkf.UnnormalisedAttention(identity, 300.0).log_time_unit) == 0
    assert float(tkf.UnnormalisedAttention(identity, 501.0).log_time_unit) == 501.0
    run = tkf.simulate(tkf.UnnormalisedAttention(identity, 900.0), tkf.initial.uniform(5, 3, 0), [0, 1.0])
    assert run.stats["log_time_unit"] == 900.0


def test_runs_on_both_sides_of_the_change_of_unit_meet_the_exact_curve():
    """Time e^{−β}·10 of the equation, at β just below and beyond 300."""
    tokens = tkf.initial.equiangular(3, 3, 0.99)
    for beta in (299.0, 301.0):
        model = tkf.UnnormalisedAttention(tkf.AttentionWeights.identity(3), beta)
        run = tkf.simulate(model, tokens, [0, 10 * np.exp(float(model.log_time_unit) - beta)])
        exact = tkf.theory.equiangular([10 * np.exp(-beta)], 3, beta, 0.99, "unnormalised")
        assert 1 - run.x[-1, 0] @ run.x[-1, 1] == pytest.approx(1 - exact[0], rel=1e-4)


def test_the_spectral_norm_is_taken_over_all_heads():
    B = np.stack([np.diag([1.0, 2.0]), [[0.0, 500.0], [0.0, 0.0]]])
    model = tkf.UnnormalisedAttention(tkf.AttentionWeights(B, np.eye(2)), 1.0)
    assert float(model.log_time_unit) == pytest.approx(500.0)


def test_zero_temperature_reads_a_direction_whatever_the_size_of_b():
    tokens = tkf.initial.uniform(4, 3, 0)
    for scale in (1e-170, 1e200):
        weights = tkf.AttentionWeights(scale * np.eye(3), np.eye(3))
        found = tkf.ZeroTemperature(weights).output(tokens.x, tokens)
        np.testing.assert_allclose(found, tokens.x, atol=1e-15)


def test_saturated_unnormalised_attention_is_the_limit():
    """β → ∞ in its unit: only exact alignment is left, here two equal tokens seen by each other."""
    tokens = tkf.Tokens([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [0.25, 0.25, 0.5])
    V = np.array([[1.0, 0.0], [1.0, 1.0]])
    found = tkf.UnnormalisedAttention(tkf.AttentionWeights(np.eye(2), V), np.inf).velocity(tokens)
    np.testing.assert_allclose(found, [[0, 0.5], [0, 0.5], [0, 0]], atol=1e-15)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("beta", [0.5, 20.0, 200.0])
def test_uniform_law_reads_a_bessel_ratio(d, beta):
    """theory §2.4: the softmax mean of the uniform law is A_d(s) in the direction of Bᵀx."""
    if d == 2:
        flat = tkf.initial.circle_density(np.ones_like, 400)
    else:
        flat = tkf.initial.sphere_density(lambda x: 1.0, 20_000)
    B = np.asarray(tkf.ensembles.gaussian(d, 3))
    x = tkf.initial.uniform(5, d, 0).x
    model = tkf.SoftmaxAttention(tkf.AttentionWeights(B, np.eye(d)), beta)
    q = np.asarray(x) @ B
    s = beta * np.linalg.norm(q, axis=1, keepdims=True)
    ratio = special.ive(d / 2, s) / special.ive(d / 2 - 1, s)
    np.testing.assert_allclose(model.output(x, flat), ratio * q * beta / s, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", MODELS)
def test_rotation_and_permutation_equivariance(name, weights, tokens):
    """Rotate tokens and matrices: velocities rotate. Reorder tokens: velocities reorder."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    turned = tkf.AttentionWeights(turn @ weights.B @ turn.T, turn @ weights.V @ turn.T)
    v = MODELS[name](weights).velocity(tokens)
    w = MODELS[name](turned).velocity(tokens.push(lambda x: x @ turn.T))
    np.testing.assert_allclose(w, v @ turn.T, atol=1e-12)
    order = np.random.default_rng(1).permutation(tokens.n)
    shuffled = tkf.Tokens(tokens.x[order], tokens.weights[order])
    np.testing.assert_allclose(MODELS[name](weights).velocity(shuffled), v[order], atol=1e-13)


@pytest.mark.parametrize("name", MODELS)
def test_velocity_is_tangent_and_heads_add_up(name, weights, tokens):
    model = MODELS[name]
    v = np.asarray(model(weights).velocity(tokens))
    np.testing.assert_allclose(np.sum(v * tokens.x, axis=1), 0, atol=1e-14 * (1 + np.abs(v).max()))
    alone = sum(model(tkf.AttentionWeights(weights.B[h], weights.V[h])).velocity(tokens) for h in range(3))
    np.testing.assert_allclose(v, alone, atol=1e-13)


@pytest.mark.parametrize("name", MODELS)
def test_weighted_tokens_are_repeated_tokens(name, weights):
    x = tkf.initial.uniform(4, 4, 0).x
    weighted = tkf.Tokens(x, [0.5, 0.25, 0.125, 0.125])
    repeated = tkf.Tokens(jnp.repeat(x, jnp.array([4, 2, 1, 1]), axis=0))
    v = MODELS[name](weights)
    np.testing.assert_allclose(v.output(x, weighted), v.output(x, repeated), atol=1e-14)


def test_hardmax_and_zero_temperature_are_different_limits(tokens):
    """With B = V = I every token is its own best key: hardmax stands still, as does the whole-sphere limit;
    with another V they differ, because only one of them has the key Bᵀx/|Bᵀx| at hand."""
    weights = tkf.AttentionWeights(np.diag([2.0, 1, 1, 1]), np.eye(4))
    hard = tkf.HardmaxAttention(weights).velocity(tokens)
    cold = tkf.ZeroTemperature(weights).velocity(tokens)
    assert np.abs(hard - cold).max() > 0.1


def test_zero_temperature_stands_still_where_every_key_ties():
    weights = tkf.AttentionWeights(np.diag([1.0, 0.0]), np.eye(2))
    v = tkf.ZeroTemperature(weights).velocity(tkf.Tokens([[0.0, 1.0], [0.6, 0.8]]))
    np.testing.assert_allclose(v[0], 0)
    assert np.all(np.isfinite(v))


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (
            lambda w: tkf.SoftmaxAttention(w, -np.inf),
            "`beta` must be a finite number or infinity, but was -inf",
        ),
        (
            lambda w: tkf.UnnormalisedAttention(w, np.nan),
            "`beta` must be a finite number or infinity, but was nan",
        ),
        (lambda w: tkf.SoftmaxAttention(w, [1.0, 2.0]), r"`beta` must be one number, but was of shape"),
        (lambda w: tkf.SoftmaxAttention(w, "cold"), "`beta` must be an array of real numbers"),
        (lambda w: tkf.HardmaxAttention(np.eye(2)), "`weights` must be an AttentionWeights, but was ndarray"),
        (lambda w: tkf.InteractionFlow(jnp.exp, [[0, 1.0], [0, 0]]), "`A` must be symmetric, but was off"),
        (
            lambda w: tkf.InteractionFlow(3, np.eye(2)),
            "`phi` must be a JAX function of one number, but was 3",
        ),
        (
            lambda w: tkf.SoftmaxAttention(w, 1.0).velocity(tkf.Tokens(np.eye(2))),
            "`tokens` must have the dim",
        ),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence, weights):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad(weights)


def test_replaced_matrices_are_seen():
    """Also among many tokens, where a multiple of I is summed in a quicker way."""
    tokens, B = tkf.initial.uniform(2000, 3, 0), tkf.ensembles.gaussian(3, 0)
    stale = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), 3.0)
    stale = eqx.tree_at(lambda m: m.weights.B, stale, B)
    fresh = tkf.SoftmaxAttention(tkf.AttentionWeights(B, np.eye(3)), 3.0)
    np.testing.assert_allclose(stale.velocity(tokens), fresh.velocity(tokens), atol=1e-14)


def test_padding_does_not_leave_the_domain_of_phi():
    tokens = tkf.initial.cap(1001, [0, 0, 1.0], 0.5, 0)  # all scores positive
    assert np.all(np.isfinite(tkf.InteractionFlow(jnp.log, np.eye(3)).velocity(tokens)))
