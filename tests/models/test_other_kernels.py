"""Sigmoid, linear, L2 and Sinkhorn attention against loops in NumPy and the numbers of theory §6.6."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import tokenfield as tkf
from tests.problems.loops import attention, projected, tok
from tokenfield.models.climbing import energy_of
from tokenfield.models.sinkhorn import potentials
from tokenfield.sums.direct import DIRECT, Direct

ACCURATE = tkf.Adaptive(1e-11, 1e-12)
IDENTITY = tkf.AttentionWeights.identity(3)
K = np.diag([1, 1.2, 1.4])
#: Theory §6.6: tok(6, 3, 1), β = 2, V = I, t = 1, the last token.
REFERENCES = {
    "sinkhorn": (tkf.SinkhornAttention(IDENTITY, 2.0), (-0.602642995642, 0.668861437241, -0.435253716326)),
    "linear": (tkf.LinearAttention(IDENTITY), (-0.553147603749, 0.690493916002, -0.466096428253)),
    "sigmoid": (
        tkf.SigmoidAttention(IDENTITY, 2.0, -np.log(6)),
        (-0.684976429823, 0.651392172393, -0.3263365262),
    ),
    "l2": (
        tkf.L2Attention(np.eye(3), K, np.eye(3), 2.0),
        (-0.577135922731, 0.66477031741, -0.474335906066),
    ),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_numbers_of_the_theory(name):
    model, expected = REFERENCES[name]
    run = tkf.simulate(model, tkf.Tokens(tok(6, 3, 1)), [0, 1.0], ACCURATE)
    np.testing.assert_allclose(run.x[-1, -1], expected, atol=2e-12)


# -- neighbouring parameters, by loops


def heads(d=3):
    rng = np.random.default_rng(3)
    B = rng.normal(size=(2, d, d))
    return B + np.swapaxes(B, 1, 2), rng.normal(size=(2, d, d))


B2, V2 = heads()
W2 = tkf.AttentionWeights(B2, V2)
X7 = tok(7, 3, 0.7)
WEIGHTS7 = np.random.default_rng(1).dirichlet(np.ones(7))
PAIRS2 = list(zip(B2, V2, strict=True))
TOKENS7 = tkf.Tokens(X7, WEIGHTS7)


def sinkhorn_loops(x, w, B, beta):
    """The symmetric scaling by plain iteration, an n × n matrix."""
    scores = beta * x @ B @ x.T
    f = np.zeros(len(x))
    for _ in range(4000):
        f, before = 0.5 * (f - special.logsumexp(scores + f, axis=1, b=w)), f
        if np.abs(f - before).max() < 1e-15:
            break
    return np.exp(scores + f[:, None] + f) * w, f


def l2_loops(x, w, Qs, Ks, Vs, beta, sees=lambda i, j: True):
    out = np.zeros_like(x)
    for Q, key, V in zip(Qs, Ks, Vs, strict=True):
        for i in range(len(x)):
            p = np.array(
                [
                    w[j] * np.exp(-beta / 2 * np.sum((Q @ x[i] - key @ x[j]) ** 2)) * sees(i, j)
                    for j in range(len(x))
                ]
            )
            out[i] += V @ (p @ x / p.sum())
    return out


def test_sigmoid_is_a_sum_over_tokens():
    n = 7
    found = tkf.SigmoidAttention(W2, 0.7, 0.4).velocity(TOKENS7)
    loops = n * attention(X7, PAIRS2, 0, lambda s: special.expit(0.7 * s + 0.4), WEIGHTS7)
    np.testing.assert_allclose(found, projected(X7, loops), atol=1e-13)
    # a token of weight 0 is none; a count of its own makes the velocity one of the law
    padded = tkf.Tokens(np.concatenate([X7, X7[:2]]), np.append(WEIGHTS7, [0, 0]))
    again = tkf.SigmoidAttention(W2, 0.7, 0.4).velocity(padded)[:n]
    np.testing.assert_allclose(again, found, atol=1e-13)
    split = tkf.Tokens(np.concatenate([X7, X7]), np.tile(WEIGHTS7 / 2, 2))
    counted = tkf.SigmoidAttention(W2, 0.7, 0.4, count=n).velocity(split)[:n]
    np.testing.assert_allclose(counted, found, atol=1e-13)


def test_sigmoid_under_a_mask_sums_what_is_visible():
    model = tkf.SigmoidAttention(W2, 0.7, 0.4, mask=tkf.masks.causal())
    loops = np.zeros_like(X7)
    for i in range(7):
        for B, V in PAIRS2:
            for j in range(i + 1):
                loops[i] += V @ X7[j] * 7 * WEIGHTS7[j] * special.expit(0.7 * X7[i] @ B @ X7[j] + 0.4)
    np.testing.assert_allclose(model.velocity(TOKENS7), projected(X7, loops), atol=1e-13)


def test_linear_is_its_formula_with_biases_and_masks():
    c = np.array([[0.3, -0.2, 0.1], [0.0, 0.5, 0.2]])
    biased = tkf.AttentionWeights(B2, V2, c)
    loops = attention(X7, list(zip(B2, V2, c, strict=True)), 0, lambda s: s, WEIGHTS7)
    found = tkf.LinearAttention(biased).velocity(TOKENS7)
    np.testing.assert_allclose(found, projected(X7, loops), atol=1e-13)
    masked = tkf.LinearAttention(W2, tkf.masks.causal()).velocity(TOKENS7)
    loops = attention(X7, PAIRS2, 0, lambda s: s, WEIGHTS7, sees=lambda i, j: j <= i)
    np.testing.assert_allclose(masked, projected(X7, loops), atol=1e-13)


def test_l2_is_its_formula_on_the_sphere_under_masks_and_in_free_space():
    rng = np.random.default_rng(5)
    Q, keys = rng.normal(size=(2, 2, 4, 3))
    model = tkf.L2Attention(Q, keys, V2, 1.7)
    found = model.velocity(TOKENS7)
    np.testing.assert_allclose(found, projected(X7, l2_loops(X7, WEIGHTS7, Q, keys, V2, 1.7)), atol=1e-13)
    causal = tkf.L2Attention(Q, keys, V2, 1.7, mask=tkf.masks.causal()).velocity(TOKENS7)
    loops = l2_loops(X7, WEIGHTS7, Q, keys, V2, 1.7, lambda i, j: j <= i)
    np.testing.assert_allclose(causal, projected(X7, loops), atol=1e-13)
    y = X7 * np.linspace(0.2, 3, 7)[:, None]
    free = tkf.NoNorm(model).velocity(tkf.Tokens.normalised(y, WEIGHTS7))
    np.testing.assert_allclose(free, l2_loops(y, WEIGHTS7, Q, keys, V2, 1.7), atol=1e-12)


def test_l2_with_orthogonal_matrices_is_softmax():
    turn = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))[0]
    found = tkf.L2Attention(turn, turn, np.eye(3), 3.0).velocity(TOKENS7)
    np.testing.assert_allclose(found, tkf.SoftmaxAttention(IDENTITY, 3.0).velocity(TOKENS7), atol=1e-14)


def test_l2_where_no_offset_fits_into_a_weight():
    """β(|Ky|² range)/2 = 8000: the nearest key is read; weights alone would all underflow."""
    beta, keys = 1e4, np.diag([1.0, 1.2, 1.6])
    x = np.eye(3)
    found = tkf.L2Attention(np.eye(3), keys, np.eye(3), beta).velocity(tkf.Tokens(x))
    loops = []
    for i in range(3):
        scores = np.array([-beta / 2 * np.sum((x[i] - keys @ y) ** 2) for y in x])
        loops.append(special.softmax(scores) @ x)
    np.testing.assert_allclose(found, projected(x, np.array(loops)), atol=1e-12)
    # symmetric sums must not be used for scores with offsets
    scaled = tkf.L2Attention(np.diag(1 / np.diag(keys)), keys, np.eye(3), 2.0)
    symmetric, plain = (scaled.velocity(tkf.Tokens(tok(600, 3, 1)), s) for s in (Direct(True), DIRECT))
    np.testing.assert_allclose(symmetric, plain, atol=1e-14)


@pytest.mark.parametrize(("beta", "B"), [(0.8, B2), (-0.7, B2), (400.0, B2 @ B2)])
def test_sinkhorn_is_its_scaling(beta, B):
    """Scores of either sign; large ones where the matrix is positive."""
    model = tkf.SinkhornAttention(tkf.AttentionWeights(B, V2), beta)
    loops = sum(sinkhorn_loops(X7, WEIGHTS7, b, beta)[0] @ X7 @ V.T for b, V in zip(B, V2, strict=True))
    np.testing.assert_allclose(model.velocity(TOKENS7), projected(X7, loops), atol=2e-10)


def test_row_sums_of_sinkhorn_are_one():
    x = np.asarray(tkf.initial.uniform(60, 3, 0).x)
    f = np.asarray(potentials(20.0 * jnp.eye(3), tkf.Tokens(x), DIRECT))
    rows = np.exp(20 * x @ x.T + f[:, None] + f).mean(axis=1)
    np.testing.assert_allclose(rows, 1, atol=1e-12)


@pytest.mark.parametrize("tokens", [tkf.initial.equiangular(4, 5, 0.3), tkf.Tokens(tok(2, 5, 1))])
def test_sinkhorn_of_few_tokens_is_softmax(tokens):
    weights = tkf.AttentionWeights.identity(5)
    found = tkf.SinkhornAttention(weights, 2.0).velocity(tokens)
    np.testing.assert_allclose(found, tkf.SoftmaxAttention(weights, 2.0).velocity(tokens), atol=1e-12)


@pytest.mark.slow
def test_sinkhorn_has_the_derivatives_of_its_solution():
    x, rng = jnp.asarray(tok(6, 3, 1)), np.random.default_rng(0)
    v = jnp.asarray(rng.normal(size=x.shape))

    def of(beta, s):
        y = x + s * v
        tokens = tkf.Tokens(y / jnp.linalg.norm(y, axis=1, keepdims=True))
        return jnp.sum(jnp.sin(tkf.SinkhornAttention(IDENTITY, beta).velocity(tokens, "direct")))

    found, h = jax.grad(of, (0, 1))(2.0, 0.0), 1e-4
    of = jax.jit(of)
    start = np.array([2.0, 0.0])
    for place, step in enumerate(np.diag([h, h])):
        one, two = (of(*(start + k * step)) - of(*(start - k * step)) for k in (1, 2))
        np.testing.assert_allclose(found[place], (8 * one - two) / (12 * h), rtol=1e-8)


CLIMBING = {
    "sinkhorn": tkf.SinkhornAttention(tkf.AttentionWeights(np.diag([1, 0.5, 2]), np.diag([2, 1, 4.0])), 1.3),
    "linear": tkf.LinearAttention(tkf.AttentionWeights(np.diag([1, 0.5, 2]), np.diag([2, 1, 4.0]))),
    "sigmoid": tkf.SigmoidAttention(IDENTITY, 2.0, -0.5),
    "sigmoid, counted": tkf.SigmoidAttention(IDENTITY, 2.0, -0.5, count=3.0),
    "unnormalised at 0": tkf.UnnormalisedAttention(IDENTITY, 0.0),
    "sinkhorn at 0": tkf.SinkhornAttention(IDENTITY, 0.0),
}


@pytest.mark.parametrize("name", CLIMBING)
def test_what_climbs_an_energy_climbs_it_at_the_rate_of_its_square(name):
    """dE/dt = Σ w|v|²; the unnormalised flow at β = 0 had an energy e − 1 times too large."""
    model = CLIMBING[name]
    v = np.asarray(model.velocity(TOKENS7))

    def moved(s):
        y = X7 + s * v
        return float(energy_of(model, tkf.Tokens(y / np.linalg.norm(y, axis=1, keepdims=True), WEIGHTS7)))

    h = 1e-3
    slope = (8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h)
    np.testing.assert_allclose(slope, np.sum(WEIGHTS7 * np.sum(v * v, axis=1)), rtol=1e-8)


def test_energies_are_their_formulas():
    pairs, g = np.outer(WEIGHTS7, WEIGHTS7), X7 @ X7.T
    softplus = np.log1p(np.exp(2 * g - 0.5))
    np.testing.assert_allclose(energy_of(CLIMBING["sigmoid"], TOKENS7), 7 / 4 * np.sum(pairs * softplus))
    linear = tkf.LinearAttention(IDENTITY)
    np.testing.assert_allclose(energy_of(linear, TOKENS7), np.sum(pairs * g**2) / 4)
    _, f = sinkhorn_loops(X7, WEIGHTS7, np.eye(3), 2.0)
    found = energy_of(tkf.SinkhornAttention(IDENTITY, 2.0), TOKENS7)
    np.testing.assert_allclose(found, -WEIGHTS7 @ f / 2, rtol=1e-12)
    # the value of the transport problem itself
    plan = np.exp(2 * g + f[:, None] + f) * pairs
    value = np.sum(plan * g) - np.sum(plan * (2 * g + f[:, None] + f)) / 2
    np.testing.assert_allclose(found, value / 2, rtol=1e-12)


def test_sigmoid_and_linear_are_interaction_flows():
    n = 7
    phi = lambda s: n / 2.0 * jax.nn.softplus(2.0 * s - 0.5)  # noqa: E731
    found = tkf.SigmoidAttention(IDENTITY, 2.0, -0.5).velocity(TOKENS7)
    np.testing.assert_allclose(found, tkf.InteractionFlow(phi, np.eye(3)).velocity(TOKENS7), atol=1e-13)
    square = tkf.InteractionFlow(lambda s: s * s / 2, np.eye(3))
    np.testing.assert_allclose(
        tkf.LinearAttention(IDENTITY).velocity(TOKENS7), square.velocity(TOKENS7), atol=1e-14
    )


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: tkf.SinkhornAttention(tkf.AttentionWeights([[1, 2], [0, 1]], np.eye(2)), 1.0), "weights"),
        (
            lambda: tkf.SinkhornAttention(tkf.AttentionWeights(np.eye(2), np.eye(2), [1.0, 0]), 1.0),
            "weights",
        ),
        (lambda: tkf.SinkhornAttention(IDENTITY, np.inf), "beta"),
        (lambda: tkf.SigmoidAttention(IDENTITY, np.inf, 0.0), "beta"),
        (lambda: tkf.SigmoidAttention(IDENTITY, 1.0, np.nan), "bias"),
        (lambda: tkf.SigmoidAttention(IDENTITY, 1.0, 0.0, count=0), "count"),
        (lambda: tkf.SigmoidAttention(IDENTITY, 1.0, 0.0, mask=tkf.masks.alibi(1.0)), "mask"),
        (lambda: tkf.LinearAttention(IDENTITY, tkf.masks.alibi(1.0)), "mask"),
        (lambda: tkf.L2Attention(np.eye(3), np.eye(2), np.eye(3), 1.0), "K"),
        (lambda: tkf.L2Attention(np.eye(3), np.eye(3), np.eye(3), np.inf), "beta"),
    ],
)
def test_refusals(make, name):
    with pytest.raises(tkf.InputError, match=f"^`{name}` must"):
        make()


def test_numbers_of_a_kernel_that_are_traced_refuse_tables():
    """Derivatives in the bias through tables that were made for one bias were once 0."""
    tokens = tkf.initial.uniform(40, 2, 0)
    weights = tkf.AttentionWeights.identity(2)

    def sigmoid(bias):
        return jnp.sum(tkf.SigmoidAttention(weights, 2.0, bias).velocity(tokens, "circle") ** 2)

    def closure(c):
        flow = tkf.InteractionFlow(lambda s: jnp.cosh(c * s), np.eye(2))
        return jnp.sum(flow.velocity(tokens, "circle") ** 2)

    for f in (jax.grad(sigmoid), jax.jit(sigmoid), jax.grad(closure)):
        with pytest.raises(tkf.InputError, match="`summation` must be 'direct' where"):
            f(-1.0)


def test_files_name_them():
    from tokenfield.config.choices import section_of
    from tokenfield.registry import find

    settings = {
        "sigmoid": {"beta": 2.0, "bias": -1.0, "count": 6.0},
        "linear": {},
        "sinkhorn": {"beta": 2.0},
        "l2": {"beta": 2.0, "K": {"diag": [1, 1.2, 1.4]}},
    }
    for name, said in settings.items():
        made = section_of(find("model", name))(**said).build(tkf.AttentionWeights(K, np.eye(3)))
        if name == "l2":
            direct = tkf.L2Attention(np.eye(3), K, np.eye(3), 2.0)
            np.testing.assert_allclose(made.velocity(TOKENS7), direct.velocity(TOKENS7), atol=1e-14)
