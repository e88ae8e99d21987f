"""Terms beside attention, and sums of terms: MLP, drift, noise, score biases, a context (theory §6.1.7, §6.3)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg, special

import tokenfield as tkf
from tests.marks import mostly_slow
from tests.problems.loops import attention, flow, projected, sphere_flow, tok, unit
from tokenfield.models.climbing import energy_of
from tokenfield.sums.direct import DIRECT

IDENTITY = tkf.AttentionWeights.identity(3)
TIGHT = tkf.Adaptive(1e-12, 1e-13, "dopri8")

ACTIVATIONS = {
    "gelu": lambda z: z * special.ndtr(z),
    "gelu-tanh": lambda z: 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))),
    "relu": lambda z: max(z, 0.0),
    "identity": lambda z: z,
}


def theory_weights(gradient=False):
    """W1, b1, W2, b2 of theory §6.3.4: four neurons in R³."""
    h, k = np.arange(1, 5)[:, None], np.arange(1, 4)
    W1, b1 = np.cos(0.9 * h * k + 0.2), 0.1 * np.arange(4) - 0.2
    W2 = W1.T * (0.5 + 0.1 * np.arange(4)) if gradient else 0.5 * np.sin(0.7 * k[:, None] * h[:, 0])
    return W1, b1, W2, 0.05 * k


def mlp_loop(x, W1, b1, W2, b2, activation):
    """W2 σ(W1 x + b1) + b2, neuron by neuron."""
    out = np.zeros_like(x)
    for i in range(len(x)):
        out[i] += b2
        for neuron in range(len(W1)):
            out[i] += W2[:, neuron] * ACTIVATIONS[activation](W1[neuron] @ x[i] + b1[neuron])
    return out


def run(model, x, ts, solver=TIGHT, **options):
    tokens = x if isinstance(x, tkf.Tokens) else tkf.Tokens(x)
    return tkf.simulate(model, tokens, ts, solver, **options)


# -- MLP


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_mlp_is_its_loop(activation):
    x, parts = tok(5, 3, 1), theory_weights()
    found = tkf.MLP(*parts, activation).velocity(tkf.Tokens(x))
    np.testing.assert_allclose(found, projected(x, mlp_loop(x, *parts, activation)), atol=1e-15)


def test_biases_left_out_are_zero():
    x, (W1, _, W2, _) = tok(5, 3, 1), theory_weights()
    expected = mlp_loop(x, W1, np.zeros(4), W2, np.zeros(3), "gelu")
    np.testing.assert_allclose(
        tkf.MLP(W1, None, W2, None).velocity(tkf.Tokens(x)), projected(x, expected), atol=1e-15
    )


def test_a_linear_mlp_is_a_matrix_exponential():
    """theory §6.3.1: e^{W2W1t}x/|·|, and e^{(V+W2W1)t} together with the zero-temperature flow, B = I."""
    W1, _, W2, _ = theory_weights()
    x, V, t = tok(5, 3, 1), np.diag([1.0, 0.5, -0.3]), 0.8
    mlp = tkf.MLP(W1, None, W2, None, "identity")
    np.testing.assert_allclose(run(mlp, x, [0, t]).x[-1], unit(x @ linalg.expm(t * W2 @ W1).T), atol=1e-11)
    both = mlp + tkf.ZeroTemperature(tkf.AttentionWeights(np.eye(3), V))
    expected = unit(x @ linalg.expm(t * (V + W2 @ W1)).T)
    np.testing.assert_allclose(run(both, x, [0, t]).x[-1], expected, atol=1e-11)


@pytest.mark.parametrize("term", ["drift", "mlp"])
def test_a_constant_pull_adds_to_the_artanh(term):
    """theory §6.3.1, only b2: artanh⟨x,b̂⟩ grows at the rate |b|."""
    b, x, t = np.array([0.3, -0.7, 0.4]), tok(5, 3, 1), 1.2
    zero = np.zeros((4, 3))
    model = tkf.Drift(b) if term == "drift" else tkf.MLP(zero, None, zero.T, b)
    found = run(model, x, [0, t]).x[-1]
    before, after = (np.arctanh(y @ b / np.linalg.norm(b)) for y in (x, found))
    np.testing.assert_allclose(after, before + np.linalg.norm(b) * t, atol=1e-10)


def test_a_drift_beside_the_mean_is_a_lorentz_boost():
    """theory §6.3.1: β = 0 attention + b is the boost of §4 with m + b, so ∂g = [[0,(m+b)ᵀ],[m+b,0]]g."""
    b, x, t = np.array([0.3, -0.7, 0.4]), tok(5, 3, 1), 0.9

    def slope(_, g):
        Y = np.column_stack([np.ones(5), x]) @ g.T
        pull = (Y[:, 1:] / Y[:, :1]).mean(axis=0) + b
        boost = np.zeros((4, 4))
        boost[0, 1:] = boost[1:, 0] = pull
        return boost @ g

    g = flow(slope, np.eye(4), [t])[0]
    Y = np.column_stack([np.ones(5), x]) @ g.T
    model = tkf.SoftmaxAttention(IDENTITY, 0.0) + tkf.Drift(b)
    np.testing.assert_allclose(run(model, x, [0, t]).x[-1], Y[:, 1:] / Y[:, :1], atol=1e-10)


def test_one_relu_neuron_draws_half_the_sphere():
    """theory §6.3.2: c ≤ 0 is frozen, c(t) = [1+(c0^{−2}−1)e^{−2at}]^{−1/2} on the other side."""
    w, a, t = unit(np.array([1.0, 2.0, -0.5])), 0.8, 1.5
    x = tok(8, 3, 1)
    c = x @ w
    assert np.any(c < -0.1) and np.any(c > 0.1)
    found = run(tkf.MLP(w[None], None, a * w[:, None], None, "relu"), x, [0, t]).x[-1]
    np.testing.assert_allclose(found[c <= 0], x[c <= 0], atol=1e-15)
    ahead = c[c > 0]
    expected = (1 + (ahead**-2 - 1) * np.exp(-2 * a * t)) ** -0.5
    np.testing.assert_allclose(found[c > 0] @ w, expected, atol=1e-10)


def test_an_mlp_alone_follows_the_reference():
    """theory §6.3.4, t = 1.5."""
    found = run(tkf.MLP(*theory_weights()), tok(5, 3, 1), [0, 1.5]).x[-1]
    np.testing.assert_allclose(found[0], (-0.402627907084, -0.912204854539, 0.075980733031), atol=2e-12)


def test_an_mlp_with_attention_follows_the_reference():
    model = tkf.SoftmaxAttention(IDENTITY, 2.0) + tkf.MLP(*theory_weights())
    found = run(model, tok(5, 3, 1), [0, 1.5]).x[-1]
    np.testing.assert_allclose(found[0], (-0.207939263613, -0.811450137765, 0.546177568717), atol=2e-12)
    np.testing.assert_allclose(found[4], (0.069150509126, -0.201157031154, 0.977115170236), atol=2e-12)


def test_the_approximate_gelu_is_another_function():
    """theory §6.3: tanh-GELU differs by some 2e-4 here; both are followed as they are."""
    exact, other = (
        run(tkf.MLP(*theory_weights(), activation), tok(5, 3, 1), [0, 1.5]).x[-1]
        for activation in ("gelu", "gelu-tanh")
    )
    expected = sphere_flow(lambda x: mlp_loop(x, *theory_weights(), "gelu-tanh"), tok(5, 3, 1), [1.5])[0]
    np.testing.assert_allclose(other, expected, atol=1e-10)
    assert 1e-4 < np.max(np.abs(other - exact)) < 4e-4


@pytest.mark.parametrize(
    ("sublayers", "digits"),
    [
        ("sequential", (0.07537178995, -0.19524613426, 0.977853792924)),
        ("parallel", (0.056189144272, -0.207000903654, 0.976725860184)),
    ],
)
def test_layers_follow_the_reference(sublayers, digits):
    """theory §6.3.4: 30 layers, η = .05, and the same by loops."""
    parts, x = theory_weights(), tok(5, 3, 1)
    model = tkf.SoftmaxAttention(IDENTITY, 2.0) + tkf.MLP(*parts)
    found = run(model, x, [0, 1.5], tkf.Layers(0.05, sublayers)).x[-1]
    np.testing.assert_allclose(found[4], digits, atol=2e-12)
    head = [(np.eye(3), np.eye(3))]
    for _ in range(30):
        if sublayers == "parallel":
            x = unit(x + 0.05 * (attention(x, head, 2.0) + mlp_loop(x, *parts, "gelu")))
        else:
            x = unit(x + 0.05 * attention(x, head, 2.0))
            x = unit(x + 0.05 * mlp_loop(x, *parts, "gelu"))
    np.testing.assert_allclose(found, x, atol=1e-13)


def test_sequential_layers_take_terms_in_the_order_they_were_added():
    parts, x = theory_weights(), tok(5, 3, 1)
    model = tkf.MLP(*parts) + tkf.SoftmaxAttention(IDENTITY, 2.0)
    found = run(model, x, [0, 0.5], tkf.Layers(0.5, "sequential")).x[-1]
    x = unit(x + 0.5 * mlp_loop(x, *parts, "gelu"))
    x = unit(x + 0.5 * attention(x, [(np.eye(3), np.eye(3))], 2.0))
    np.testing.assert_allclose(found, x, atol=1e-14)


@pytest.mark.parametrize(
    ("activation", "energy", "speed"),
    [("gelu", 0.2268504128844, 0.3754597761), ("relu", 0.8527062191020, 0.4227234559)],
)
def test_the_energy_of_attention_and_a_gradient_mlp(activation, energy, speed):
    """theory §6.3.3–4: d/dt(E_β + ∫Φ) = ∫|v|²; both printed numbers, and the derivative by differences."""
    tokens = tkf.Tokens(tok(5, 3, 1))
    # the ReLU numbers of theory are those of the printed weights
    model = tkf.UnnormalisedAttention(IDENTITY, 2.0) + tkf.MLP(*theory_weights(gradient=True), activation)
    assert float(energy_of(model, tokens)) == pytest.approx(energy, abs=1e-12)
    v = np.asarray(model.velocity(tokens))
    dissipated = float(np.sum(v * v) / 5)
    assert dissipated == pytest.approx(speed, abs=1e-9)
    h = 1e-5
    ahead, behind = (tkf.Tokens(unit(tok(5, 3, 1) + s * h * v)) for s in (1, -1))
    slope = float(energy_of(model, ahead) - energy_of(model, behind)) / (2 * h)
    assert slope == pytest.approx(dissipated, rel=1e-8)


def test_the_potential_is_a_primitive():
    """∇Φ is the term, by JAX and so for every S."""
    x = jnp.asarray(tok(6, 3, 1))
    for activation in ("gelu", "relu", "identity"):
        term = tkf.MLP(*theory_weights(gradient=True), activation)
        slope = jax.grad(lambda x, term=term: jnp.sum(term.potential(x)))(x)
        np.testing.assert_allclose(
            slope, mlp_loop(np.asarray(x), *theory_weights(True), activation), atol=1e-14
        )
    np.testing.assert_allclose(tkf.Drift([1.0, 2, 3]).potential(x), x @ jnp.array([1.0, 2, 3]), atol=1e-15)


# -- sums of terms


def test_sums_commute_and_associate():
    tokens = tkf.Tokens(tok(6, 3, 1))
    a = tkf.SoftmaxAttention(IDENTITY, 2.0)
    b = tkf.MLP(*theory_weights())
    c = tkf.Drift([0.1, 0.2, -0.3])
    expected = sum(np.asarray(term.velocity(tokens)) for term in (a, b, c))
    for model in ((a + b) + c, a + (b + c), c + b + a, (c + a) + b):
        assert len(model.terms) == 3
        np.testing.assert_allclose(model.velocity(tokens), expected, atol=1e-15)


def test_different_attentions_add_up():
    """A mask, a context, another kernel: each with its own keys."""
    x, context = tok(6, 3, 1), tok(4, 3, 2)
    causal = lambda i, j: j <= i  # noqa: E731
    head, B = [(np.eye(3), np.eye(3))], np.asarray(tkf.ensembles.gaussian(3, 1))
    model = (
        tkf.SoftmaxAttention(IDENTITY, 2.0, tkf.masks.causal())
        + tkf.UnnormalisedAttention(tkf.AttentionWeights(B, np.eye(3)), 1.0, context=tkf.Tokens(context))
        + tkf.InteractionFlow(jnp.sinh, np.eye(3))
        + tkf.HardmaxAttention(tkf.AttentionWeights(B, -np.eye(3)))
    )
    expected = (
        attention(x, head, 2.0, sees=causal)
        + attention(x, [(B, np.eye(3))], 1.0, "usa", keys=context)
        + attention(x, head, 1.0, np.cosh)
        + attention(x, [(B, -np.eye(3))], 1.0, "hardmax")
    )
    np.testing.assert_allclose(model.velocity(tkf.Tokens(x)), projected(x, expected), atol=1e-13)


@pytest.mark.slow
def test_cold_unnormalised_attention_with_an_mlp_is_the_same_flow_in_its_time():
    """β = 301: velocities are e^{−301} times those of the equation, the MLP with them."""
    x = np.asarray(tkf.initial.equiangular(3, 3, 0.995).x)
    # an MLP as strong as the attention: its pull in the equation is e^{301}(…)
    W1, b1, W2, b2 = theory_weights()
    strong = 1e-2 * np.exp(301.0)
    model = tkf.UnnormalisedAttention(IDENTITY, 301.0) + tkf.MLP(W1, b1, strong * W2, strong * b2)
    assert float(model.log_time_unit) == pytest.approx(301.0)
    head = [(np.eye(3), np.eye(3))]

    def output(x):
        near = np.exp(301.0 * (x @ x.T - 1)) @ x / 3
        return near + mlp_loop(x, W1, b1, 1e-2 * W2, 1e-2 * b2, "gelu")

    assert np.allclose(attention(x, head, 5.0, "usa"), np.exp(5.0 * (x @ x.T)) @ x / 3)
    expected = sphere_flow(output, x, [0.7])[0]
    found = run(model, x, [0, 0.7])
    np.testing.assert_allclose(found.x[-1], expected, atol=1e-9)
    assert found.stats["log_time_unit"] == pytest.approx(301.0)
    order = tkf.MLP(W1, b1, strong * W2, strong * b2) + tkf.UnnormalisedAttention(IDENTITY, 301.0)
    np.testing.assert_allclose(run(order, x, [0, 0.7]).x[-1], expected, atol=1e-9)


def test_two_time_units_take_the_slower():
    tokens = tkf.Tokens(tok(4, 3, 1))
    a, b = (tkf.UnnormalisedAttention(IDENTITY, beta) for beta in (310.0, 312.0))
    found = (a + b).velocity(tokens)
    expected = np.exp(-2.0) * np.asarray(a.velocity(tokens)) + np.asarray(b.velocity(tokens))
    np.testing.assert_allclose(found, expected, atol=1e-15)


# -- score biases and contexts


def biased(d, seed=3, heads=2):
    rng = np.random.default_rng(seed)
    B, V = (np.asarray(tkf.ensembles.gaussian(d, k, heads=heads)) for k in (1, 2))
    return B, V, 0.5 * rng.normal(size=(heads, d))


@pytest.mark.parametrize("kernel", ["softmax", "usa", "hardmax"])
def test_score_biases_are_their_loop(kernel):
    B, V, c = biased(4)
    x, w = tok(6, 4, 1), np.random.default_rng(0).dirichlet(np.ones(6))
    weights = tkf.AttentionWeights(B, V, c)
    model = {
        "softmax": tkf.SoftmaxAttention(weights, 3.0),
        "usa": tkf.UnnormalisedAttention(weights, 3.0),
        "hardmax": tkf.HardmaxAttention(weights),
    }[kernel]
    expected = attention(x, list(zip(B, V, c, strict=True)), 3.0, kernel, w)
    np.testing.assert_allclose(
        model.velocity(tkf.Tokens(x, w)), projected(x, expected), rtol=1e-12, atol=1e-12
    )


def test_zero_temperature_reads_the_biased_query():
    B, V, c = biased(4)
    x = tok(6, 4, 1)
    expected = sum((unit(x @ b + bias)) @ v.T for b, v, bias in zip(B, V, c, strict=True))
    found = tkf.ZeroTemperature(tkf.AttentionWeights(B, V, c)).velocity(tkf.Tokens(x))
    np.testing.assert_allclose(found, projected(x, expected), atol=1e-14)


@pytest.mark.parametrize(
    ("summation", "d", "kind"),
    mostly_slow(
        [
            (name, d, kind)
            for name, d in (("circle", 2), ("harmonic", 3), ("merged", 2), ("merged", 3))
            for kind in (tkf.SoftmaxAttention, tkf.UnnormalisedAttention)
        ],
        [("circle", 2, tkf.SoftmaxAttention), ("harmonic", 3, tkf.UnnormalisedAttention)],
    ),
)
def test_score_biases_in_fast_sums(summation, d, kind):
    B, V, c = biased(d)
    tokens = tkf.initial.uniform(300, d, 0)
    model = kind(tkf.AttentionWeights(B, V, c), 4.0)
    exact = model.velocity(tokens, DIRECT)
    found = model.velocity(tokens, summation)
    np.testing.assert_allclose(found, exact, atol=1e-8 * np.abs(exact).max())
    without = kind(tkf.AttentionWeights(B, V), 4.0).velocity(tokens, DIRECT)
    assert np.abs(without - exact).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("summation", "d"), [("circle", 2), ("harmonic", 3)])
def test_runs_with_score_biases_by_fast_sums(summation, d):
    B, V, c = biased(d)
    model = tkf.SoftmaxAttention(tkf.AttentionWeights(B, V, c), 4.0) + tkf.Drift(np.eye(d)[0])
    tokens = tkf.initial.uniform(300, d, 0)
    fast, direct = (tkf.simulate(model, tokens, 1.0, summation=s) for s in (summation, "direct"))
    assert np.abs(fast.x - direct.x).max() < 1e-7
    assert 0 <= fast.stats["certificate"] <= 1.1e-9


def test_an_anchor_draws_tokens_straight():
    """theory §6.1.7, one anchor: tan(θ/2) = tan(θ0/2)e^{−t}, whatever β."""
    anchor = tkf.Tokens([[0.0, 0.0, 1.0]])
    model = tkf.SoftmaxAttention(IDENTITY, 3.0, context=anchor)
    x, t = tok(5, 3, 1), 1.3
    found = run(model, x, [0, t]).x[-1]
    half = np.tan(np.arccos(x[:, 2]) / 2) * np.exp(-t)
    np.testing.assert_allclose(np.tan(np.arccos(found[:, 2]) / 2), half, atol=1e-10)


def two_anchors(a=0.7):
    return tkf.Tokens([[np.cos(a), np.sin(a)], [np.cos(a), -np.sin(a)]])


def test_two_anchors_follow_the_reference():
    """theory §6.1.7: a = .7, β = 4: θ(1) = .363163240 from .2, θ* = .658206626 at the rate .803457594."""
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), 4.0, context=two_anchors())
    start = np.array([[np.cos(0.2), np.sin(0.2)]])
    angles = np.arctan2(*run(model, start, [0, 1.0, 12.0, 13.0]).x[:, 0, ::-1].T)
    assert angles[1] == pytest.approx(0.363163240, abs=1e-9)
    rest = 0.658206626
    end = run(model, start, [0, 40.0]).x[-1, 0]
    assert np.arctan2(end[1], end[0]) == pytest.approx(rest, abs=1e-9)
    assert np.log((rest - angles[2]) / (rest - angles[3])) == pytest.approx(0.803457594, abs=2e-4)
    assert np.tan(rest) == pytest.approx(np.tan(0.7) * np.tanh(4 * np.sin(rest) * np.sin(0.7)), abs=1e-8)


@pytest.mark.parametrize(("beta", "splits"), [(1.80, False), (1.89, True)])
def test_two_anchors_split_at_the_pitchfork(beta, splits):
    """β_c = cos a/sin²a = 1.842920267: the symmetric state is stable below and unstable beyond."""
    assert np.cos(0.7) / np.sin(0.7) ** 2 == pytest.approx(1.842920267, abs=1e-9)
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), beta, context=two_anchors())
    v = model.velocity(tkf.Tokens([[np.cos(1e-3), np.sin(1e-3)]]))
    assert (float(v[0, 1]) > 0) == splits


def test_anchors_climb_their_free_energy():
    """V = B: ascent of Φ = β^{−1} log Σ w e^{β⟨x,Bz⟩}; not for V = Bᵀ."""
    B = np.asarray(tkf.ensembles.gaussian(3, 4))
    anchors = tkf.Tokens(tok(4, 3, 2), [0.1, 0.2, 0.3, 0.4])
    model = tkf.SoftmaxAttention(tkf.AttentionWeights(B, B), 2.0, context=anchors)
    x = jnp.asarray(tok(5, 3, 1))

    def phi(x):
        return jax.scipy.special.logsumexp(2.0 * x @ B @ anchors.x.T, b=anchors.weights, axis=1).sum() / 2.0

    slope = projected(np.asarray(x), np.asarray(jax.grad(phi)(x)))
    np.testing.assert_allclose(model.velocity(tkf.Tokens(x)), slope, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("n", mostly_slow([40, 1600], [40]))
def test_a_context_beside_attention_is_read_exactly_by_any_sums(n):
    """Fast sums are planned for the moving tokens' heads; the context has another temperature."""
    context = tkf.initial.uniform(n, 2, 5)
    weights = tkf.AttentionWeights.identity(2)
    model = tkf.SoftmaxAttention(weights, 2.0) + tkf.SoftmaxAttention(weights, 10.0, context=context)
    tokens = tkf.initial.uniform(1600, 2, 0)
    exact = model.velocity(tokens, DIRECT)
    x, y = np.asarray(tokens.x), np.asarray(context.x)
    p, q = np.exp(2.0 * x @ x.T), np.exp(10.0 * x @ y.T)
    by_hand = p @ x / p.sum(axis=1, keepdims=True) + q @ y / q.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(exact, projected(x, by_hand), atol=1e-13)
    for summation in ("auto", "circle"):
        np.testing.assert_allclose(model.velocity(tokens, summation), exact, atol=1e-8)


def test_tokens_under_anchors_do_not_interact():
    context = tkf.Tokens(tok(4, 3, 2))
    model = tkf.SoftmaxAttention(IDENTITY, 3.0, context=context)
    whole, one = (model.velocity(tkf.Tokens(tok(5, 3, 1)[:n])) for n in (5, 1))
    np.testing.assert_allclose(whole[:1], one, atol=1e-16)
    assert not model.interacts


# -- noise


def test_noise_is_added_once_and_not_alone():
    sa = tkf.SoftmaxAttention(IDENTITY, 2.0)
    with pytest.raises(tkf.InputError, match="^`terms` must have noise at most once, but was noisy twice"):
        sa + tkf.Noise(3.0) + tkf.Noise(2.0)
    with pytest.raises(tkf.InputError, match="^`terms` must have noise at most once"):
        (sa + tkf.Noise(3.0)) + (tkf.Drift([1.0, 0, 0]) + tkf.Noise(2.0))
    with pytest.raises(tkf.InputError, match="^`terms` must"):
        tkf.Noise(3.0) + tkf.Noise(2.0)
    assert (sa + tkf.Noise(np.inf)) is sa
    assert float((sa + tkf.Drift([1.0, 0, 0]) + tkf.Noise(4.0)).diffusion) == 0.25


def test_noise_is_counted_in_the_time_of_the_equation():
    cold = tkf.UnnormalisedAttention(IDENTITY, 310.0) + tkf.Noise(4.0)
    assert float(cold.diffusion) == pytest.approx(0.25 * np.exp(-310.0), rel=1e-12)


def test_noise_alone_is_brownian_motion():
    """With a drift of 0: E⟨x_t, x_0⟩ = e^{−(d−1)t/κ}, by standard error."""
    n, t, kappa = 20_000, 0.3, 2.0
    x = np.tile([1.0, 0, 0], (n, 1))
    model = tkf.Drift(np.zeros(3)) + tkf.Noise(kappa)
    run = tkf.simulate(model, tkf.Tokens(x), [0, t], tkf.Strang(0.05, 1))
    values = run.x[-1, :, 0]
    expected = np.exp(-2 * t / kappa)
    assert abs(values.mean() - expected) < 4 * values.std() / np.sqrt(n)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: tkf.MLP(np.ones(3), None, np.ones((3, 1)), None), "`W1` must have shape (k, d), but was of"),
        (lambda: tkf.MLP(np.ones((2, 3)), None, np.ones((2, 3)), None), "`W2` must have shape (3, 2), the"),
        (
            lambda: tkf.MLP(np.ones((2, 3)), [1.0], np.ones((3, 2)), None),
            "`b1` must have shape (2,), but was",
        ),
        (
            lambda: tkf.MLP(np.ones((2, 3)), None, np.ones((3, 2)), [1.0]),
            "`b2` must have shape (3,), but was",
        ),
        (
            lambda: tkf.MLP(np.ones((2, 3)), None, np.full((3, 2), np.nan), None),
            "`W2` must be finite, but was",
        ),
        (
            lambda: tkf.MLP(np.ones((2, 3)), None, np.ones((3, 2)), None, "swish"),
            "`activation` must be one of gelu, gelu-tanh, relu, identity, but was 'swish'",
        ),
        (lambda: tkf.Drift(3.0), "`a` must be a vector of length d ≥ 2, but was of shape ()"),
        (lambda: tkf.Drift([np.inf, 0]), "`a` must be finite, but was"),
        (lambda: tkf.Noise(0.0), "`kappa` must be positive"),
        (
            lambda: tkf.Drift([1.0, 0]) + tkf.Drift([1.0, 0, 0]),
            "`terms` must have one dimension, but was [2, 3]",
        ),
        (
            lambda: tkf.Drift([1.0, 0]) + tkf.PreNorm(tkf.Drift([1.0, 0])),
            "`term` must be a term or a sum of terms; spaces and depth go round the sum, but was PreNorm",
        ),
        (
            lambda: tkf.Depth([tkf.Drift([1.0, 0])]) + tkf.Drift([1.0, 0]),
            "`model` must be a term, a sum or a model in a space to be added to, but was Depth",
        ),
        (
            lambda: tkf.SoftmaxAttention(IDENTITY, 1.0, context=tkf.Tokens(np.eye(2))),
            "`context` must have the dimension 3 of the weights, but was 2",
        ),
        (lambda: tkf.SoftmaxAttention(IDENTITY, 1.0, context=np.eye(3)), "`context` must be a Tokens"),
        (
            lambda: tkf.AttentionWeights(np.eye(3), np.eye(3), np.ones(2)),
            "`score_bias` must have shape (3,) or (heads, 3), but was of shape (2,)",
        ),
    ],
)
def test_bad_terms_are_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError) as error:
        bad()
    assert str(error.value).startswith(sentence)


def test_terms_add_to_terms_only():
    with pytest.raises(TypeError):
        tkf.Drift([1.0, 0]) + 3


@pytest.mark.slow
@pytest.mark.parametrize("sublayers", ["parallel", "sequential"])
def test_saturated_attention_with_an_mlp_outruns_it(sublayers):
    """β = ∞: in the unit of the attention an MLP stands still, and nothing is NaN."""
    tokens = tkf.Tokens(np.array([[1.0, 0, 0], [1, 0, 0], [0, 1, 0]]))
    V = np.array([[1.0, 0, 0], [1, 1, 0], [0, 0, 1]])
    usa = tkf.UnnormalisedAttention(tkf.AttentionWeights(np.eye(3), V), np.inf)
    model = usa + tkf.MLP(*theory_weights())
    np.testing.assert_allclose(model.velocity(tokens), usa.velocity(tokens), atol=1e-15)
    runs = (run(m, tokens, [0, 0.5], tkf.Layers(0.5, sublayers)).x[-1] for m in (model, usa))
    np.testing.assert_allclose(*runs, atol=1e-15)


def test_only_gradients_have_a_potential():
    tokens, usa = tkf.Tokens(tok(5, 3, 1)), tkf.UnnormalisedAttention(IDENTITY, 2.0)
    for activation, gradient in (("gelu", False), ("gelu-tanh", True)):
        term = tkf.MLP(*theory_weights(gradient), activation)
        assert not term.is_gradient
        with pytest.raises(tkf.InputError, match="^`MLP` must be a gradient"):
            term.potential(tokens.x)
        with pytest.raises(tkf.InputError, match="^`model` must climb an energy, but was Sum"):
            energy_of(usa + term, tokens)
    for other in (
        tkf.SoftmaxAttention(IDENTITY, 2.0),
        tkf.UnnormalisedAttention(IDENTITY, 2.0, tkf.masks.causal()),
        tkf.NGPT(usa, 0.5),
        tkf.PreNorm(usa),
        tkf.Depth([usa, usa]),
    ):
        with pytest.raises(tkf.InputError, match="^`model` must climb an energy"):
            energy_of(other, tokens)
