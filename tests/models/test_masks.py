"""Masks: every one by loops, in tiles, under gradients, and the closed forms of causal attention (theory §6.1)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg, special

import tokenfield as tkf
from tests.marks import mostly_slow
from tests.problems.loops import attention, projected, sphere_flow, tok
from tokenfield.sums.base import Mask
from tokenfield.sums.direct import DIRECT

N, D = 7, 4
LATIN = np.random.default_rng(3).uniform(size=(N, N)) < 0.5
OFFSETS = np.where(LATIN, np.random.default_rng(4).normal(size=(N, N)), -np.inf)
BLOCK = [0, 0, 1, 1, 1, 2, 2]
EVERYBODY = np.ones((N, N), bool)

#: name → (mask, sees(i, j), offset(i, j), rotary frequencies); places count from 0
MASKS = {
    "causal": (tkf.masks.causal(), lambda i, j: j <= i, None, ()),
    "strict": (tkf.masks.strict(), lambda i, j: j < i, None, ()),
    "prefix": (tkf.masks.prefix(3), lambda i, j: j <= i or (i < 3 and j < 3), None, ()),
    "window": (tkf.masks.window(3), lambda i, j: i - 3 < j <= i, None, ()),
    "alibi": (tkf.masks.alibi(0.7), lambda i, j: j <= i, lambda i, j: -0.7 * (i - j), ()),
    "blocks": (tkf.masks.blocks([2, 3, 2]), lambda i, j: BLOCK[j] <= BLOCK[i], None, ()),
    "matrix": (tkf.masks.matrix(LATIN), lambda i, j: LATIN[i, j], None, ()),
    "numbers": (tkf.masks.matrix(OFFSETS), lambda i, j: LATIN[i, j], lambda i, j: OFFSETS[i, j], ()),
    "rope": (tkf.masks.rope([1.0, 0.1]), lambda i, j: True, None, (1.0, 0.1)),
    "rope, one pair": (tkf.masks.rope([0.4]), lambda i, j: True, None, (0.4,)),
    "rope & causal": (
        tkf.masks.rope([1.0, 0.1]) & tkf.masks.causal(),
        lambda i, j: j <= i,
        None,
        (1.0, 0.1),
    ),
    "prefix & window": (
        tkf.masks.prefix(4) & tkf.masks.matrix(LATIN),
        lambda i, j: (j <= i or (i < 4 and j < 4)) and LATIN[i, j],
        None,
        (),
    ),
    "alibi & blocks": (
        tkf.masks.alibi(0.3) & tkf.masks.blocks([2, 3, 2]),
        lambda i, j: j <= i and BLOCK[j] <= BLOCK[i],
        lambda i, j: -0.3 * (i - j),
        (),
    ),
}
HIDING = [name for name, (mask, _, _, _) in MASKS.items() if mask.hides_only]


@pytest.fixture
def tokens():
    w = np.random.default_rng(0).dirichlet(np.ones(N))
    return tkf.Tokens(tok(N, D, 1), w)


@pytest.fixture
def weights():
    """Two heads, neither symmetric."""
    return tkf.AttentionWeights(
        tkf.ensembles.gaussian(D, 1, heads=2),
        tkf.ensembles.gaussian(D, 2, heads=2),
        0.3 * np.random.default_rng(5).normal(size=(2, D)),
    )


def by_loops(tokens, weights, name, beta, kernel):
    _, sees, offset, rope = MASKS[name]
    heads = [tuple(np.asarray(a) for a in head) for head in zip(weights.B, weights.V, weights.score_bias)]  # noqa: B905
    x, w = np.asarray(tokens.x), np.asarray(tokens.weights)
    return projected(x, attention(x, heads, beta, kernel, w, sees, offset, rope))


@pytest.mark.parametrize("beta", [0.0, 3.0, -2.0, 1e4])
@pytest.mark.parametrize("name", MASKS)
def test_softmax_under_a_mask_is_its_loop(name, beta, tokens, weights):
    found = tkf.SoftmaxAttention(weights, beta, mask=MASKS[name][0]).velocity(tokens)
    np.testing.assert_allclose(found, by_loops(tokens, weights, name, beta, "softmax"), atol=1e-11)


@pytest.mark.parametrize("beta", [0.0, 1.5])
@pytest.mark.parametrize("name", MASKS)
def test_unnormalised_under_a_mask_is_divided_by_the_visible_weight(name, beta, tokens, weights):
    found = tkf.UnnormalisedAttention(weights, beta, mask=MASKS[name][0]).velocity(tokens)
    np.testing.assert_allclose(found, by_loops(tokens, weights, name, beta, "usa"), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", MASKS)
def test_hardmax_under_a_mask_is_its_loop(name, tokens, weights):
    """Numbers that a mask adds are not multiplied by β: in the limit they only weigh tokens that tie."""
    expected = by_loops(tokens, weights, name, np.inf, "hardmax")
    mask = MASKS[name][0]
    for model in (tkf.HardmaxAttention(weights, mask), tkf.SoftmaxAttention(weights, np.inf, mask)):
        np.testing.assert_allclose(model.velocity(tokens), expected, atol=1e-13)
    cold = tkf.SoftmaxAttention(weights, 1e7, mask).velocity(tokens)
    np.testing.assert_allclose(cold, expected, atol=1e-9)


@pytest.mark.parametrize("name", HIDING)
def test_interaction_under_a_mask_is_its_loop(name, tokens):
    _, sees, offset, rope = MASKS[name]
    A = np.asarray(tkf.ensembles.goe(D, 3, heads=2))
    x, w = np.asarray(tokens.x), np.asarray(tokens.weights)
    expected = attention(x, [(a, a) for a in A], 1.0, np.cosh, w, sees, offset, rope)
    found = tkf.InteractionFlow(jnp.sinh, A, mask=MASKS[name][0]).velocity(tokens)
    np.testing.assert_allclose(found, projected(x, expected), atol=1e-13)


def test_tied_tokens_share_the_hardmax_by_weight_and_offset():
    """Everybody asks for e1, which two tokens are equally near to."""
    x = np.array([[0.6, 0.8], [0.6, -0.8], [-1.0, 0.0]])
    weights = tkf.AttentionWeights(np.zeros((2, 2)), np.eye(2), [1.0, 0.0])
    offsets = np.array([[0.0, -1, 2], [0, 0, 0], [0.3, -0.4, 5]])
    model = tkf.HardmaxAttention(weights, mask=tkf.masks.matrix(offsets))
    p, q = 0.2 * np.exp(0.3), 0.5 * np.exp(-0.4)
    found = model.velocity(tkf.Tokens(x, [0.2, 0.5, 0.3]))
    np.testing.assert_allclose(found[2], [0, 0.8 * (p - q) / (p + q)], atol=1e-15)


def test_saturated_attention_under_a_mask():
    """β → ∞ in the unit e^β: what reaches the bound, divided by the visible weight, times e^{offset}."""
    tokens = tkf.Tokens([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [0.2, 0.3, 0.5])
    V = np.array([[1.0, 0.0], [1.0, 1.0]])
    weights = tkf.AttentionWeights(np.eye(2), V)
    found = tkf.UnnormalisedAttention(weights, np.inf, mask=tkf.masks.causal()).velocity(tokens)
    np.testing.assert_allclose(found, [[0, 1.0], [0, 0], [0, 0.7]], atol=1e-15)
    found = tkf.UnnormalisedAttention(weights, np.inf, mask=tkf.masks.alibi(0.5)).velocity(tokens)
    np.testing.assert_allclose(found, [[0, 1.0], [0, 0], [0, 0.5 + 0.2 * np.exp(-1.0)]], atol=1e-15)


@pytest.mark.parametrize("model", ["softmax", "unnormalised", "hardmax", "interaction"])
def test_the_strict_mask_lets_the_first_token_stay(model, tokens, weights):
    mask = tkf.masks.strict()
    made = {
        "softmax": tkf.SoftmaxAttention(weights, 1e4, mask),
        "unnormalised": tkf.UnnormalisedAttention(weights, 2.0, mask),
        "hardmax": tkf.HardmaxAttention(weights, mask),
        "interaction": tkf.InteractionFlow(jnp.exp, np.eye(D), mask),
    }
    v = np.asarray(made[model].velocity(tokens))
    assert np.array_equal(v[0], np.zeros(D))
    assert np.all(np.isfinite(v)) and np.abs(v[1:]).max() > 0.1


def test_tokens_without_weight_are_not_seen(weights):
    x, w = tok(N, D, 1), np.array([0.0, 0.3, 0.0, 0.2, 0.1, 0.4, 0.0])
    tokens = tkf.Tokens(x, w)
    for name in ("causal", "window", "alibi"):
        for kind, kernel in ((tkf.SoftmaxAttention, "softmax"), (tkf.UnnormalisedAttention, "usa")):
            found = kind(weights, 2.0, mask=MASKS[name][0]).velocity(tokens)
            np.testing.assert_allclose(found, by_loops(tokens, weights, name, 2.0, kernel), atol=1e-13)


@pytest.mark.parametrize(
    "name",
    mostly_slow(
        ["causal", "strict", "prefix", "window", "alibi", "blocks", "matrix", "rope & causal"],
        ["alibi", "blocks"],
    ),
)
def test_many_tokens_go_through_several_tiles(name):
    """1203 tokens are three tiles of keys and two of queries; against whole matrices."""
    n, d = 1203, 3
    rng = np.random.default_rng(1)
    tokens = tkf.Tokens(tkf.initial.uniform(n, d, 0).x, rng.dirichlet(np.ones(n)))
    i, j = np.arange(n)[:, None], np.arange(n)
    see = rng.uniform(size=(n, n)) < 0.01
    sizes = [1, 500, 1, 600, 101]
    number = np.repeat(np.arange(5), sizes)
    masks = {
        "causal": (tkf.masks.causal(), j <= i),
        "strict": (tkf.masks.strict(), j < i),
        "prefix": (tkf.masks.prefix(700), (j <= i) | ((i < 700) & (j < 700))),
        "window": (tkf.masks.window(5), (j <= i) & (j > i - 5)),
        "alibi": (tkf.masks.alibi(0.01), j <= i),
        "blocks": (tkf.masks.blocks(sizes), number[j] <= number[i]),
        "matrix": (tkf.masks.matrix(see), see),
        "rope & causal": (tkf.masks.rope([0.01]) & tkf.masks.causal(), j <= i),
    }
    mask, sees = masks[name]
    x, w = np.asarray(tokens.x), np.asarray(tokens.weights)
    r = x.copy()
    if name == "rope & causal":
        c, s = np.cos(0.01 * np.arange(n)), np.sin(0.01 * np.arange(n))
        r[:, 0], r[:, 1] = c * x[:, 0] - s * x[:, 1], s * x[:, 0] + c * x[:, 1]
    scores = 4.0 * r @ r.T - (0.01 * (i - j) if name == "alibi" else 0.0)
    p = np.where(sees, w * np.exp(scores), 0.0)
    mass = p.sum(axis=1, keepdims=True)
    mean = np.where(mass > 0, p @ x / np.where(mass > 0, mass, 1.0), 0.0)
    identity = tkf.AttentionWeights.identity(d)
    found = tkf.SoftmaxAttention(identity, 4.0, mask).velocity(tokens)
    np.testing.assert_allclose(found, projected(x, mean), atol=1e-12)
    seen = np.where(sees, w, 0.0).sum(axis=1, keepdims=True)
    total = p @ x / np.where(seen > 0, seen, 1.0)
    found = tkf.UnnormalisedAttention(identity, 4.0, mask).velocity(tokens)
    np.testing.assert_allclose(found, projected(x, total), atol=1e-11)
    level = np.where(sees & (w > 0), r @ r.T, -np.inf)
    best = np.argmax(level, axis=1)
    hard = np.where(np.isfinite(level.max(axis=1))[:, None], x[best], 0.0)
    found = tkf.HardmaxAttention(identity, mask).velocity(tokens)
    np.testing.assert_allclose(found, projected(x, hard), atol=1e-13)


@pytest.mark.parametrize(
    ("kind", "name"),
    mostly_slow(
        [(kind, name) for kind in (tkf.SoftmaxAttention, tkf.UnnormalisedAttention) for name in MASKS],
        [(tkf.SoftmaxAttention, "strict"), (tkf.UnnormalisedAttention, "alibi")],
    ),
)
def test_gradients_under_a_mask_are_finite_differences(kind, name, tokens, weights):
    """In the tokens, B, V and β; rows that see nothing must not spoil them."""
    c = jnp.asarray(np.random.default_rng(9).normal(size=(N, D)))

    def f(x, B, V, beta):
        model = kind(tkf.AttentionWeights(B, V, weights.score_bias), beta, mask=MASKS[name][0])
        return jnp.sum(c * model.velocity(tkf.Tokens(x, tokens.weights), DIRECT))

    at = (tokens.x, weights.B, weights.V, jnp.asarray(1.3))
    f = jax.jit(f)
    found = jax.grad(f, argnums=(0, 1, 2, 3))(*at)
    rng, h = np.random.default_rng(2), 1e-5
    for k, gradient in enumerate(found):
        assert np.all(np.isfinite(gradient))
        direction = rng.normal(size=np.shape(at[k]))
        ahead, behind = (f(*at[:k], at[k] + s * h * direction, *at[k + 1 :]) for s in (1, -1))
        slope = (ahead - behind) / (2 * h)
        assert float(jnp.sum(gradient * direction)) == pytest.approx(float(slope), rel=1e-7, abs=1e-8)


def test_the_slope_of_alibi_has_a_derivative(tokens, weights):
    def f(slope):
        return jnp.sum(tkf.SoftmaxAttention(weights, 2.0, tkf.masks.alibi(slope)).velocity(tokens)[-1])

    ahead, behind = f(0.5 + 1e-5), f(0.5 - 1e-5)
    assert float(jax.grad(f)(0.5)) == pytest.approx(float(ahead - behind) / 2e-5, rel=1e-7)


# -- runs


def run_to(model, x, t, **options):
    return tkf.simulate(model, tkf.Tokens(x), [0.0, t], tkf.Adaptive(1e-12, 1e-13, "dopri8"), **options)


def general(d=3):
    """B and V of theory §6.1.9."""
    p, q = np.arange(1, d + 1)[:, None], np.arange(1, d + 1)
    return tkf.AttentionWeights(
        np.eye(d) + 0.3 * np.cos(p * (q + 1)), np.diag(1 - 0.15 * np.arange(d)) + 0.2 * np.sin(p * q)
    )


IDENTITY = tkf.AttentionWeights.identity(3)

REFERENCE = {
    "causal": (IDENTITY, tkf.masks.causal(), (-0.781436878393, 0.585549748086, -0.215610522943)),
    "prefix": (IDENTITY, tkf.masks.prefix(3), (-0.851951879874, 0.520618649544, -0.055984070296)),
    "window": (IDENTITY, tkf.masks.window(3), (-0.655799297731, 0.605805047857, -0.450474777414)),
    "alibi": (IDENTITY, tkf.masks.alibi(0.5), (-0.595524788167, 0.660815244887, -0.456807879533)),
    "general": (general(), tkf.masks.causal(), (-0.993103152499, -0.105930008511, -0.050248997936)),
}


@pytest.mark.parametrize("name", mostly_slow(list(REFERENCE), ["alibi", "general"]))
def test_reference_runs(name):
    """theory §6.1.9, last token at t = 3; and every token against loops."""
    weights, mask, digits = REFERENCE[name]
    run = run_to(tkf.SoftmaxAttention(weights, 2.0, mask), tok(6, 3, 1), 3.0)
    np.testing.assert_allclose(run.x[-1, -1], digits, atol=2e-12)


@pytest.mark.parametrize(
    ("extra", "digits"),
    [
        (None, (-0.55074890911, 0.621999250832, -0.544291744215, 0.11635750194)),
        (tkf.masks.causal(), (-0.55594971627, 0.62175927592, -0.539624122167, 0.114634735412)),
    ],
)
def test_rotary_reference_runs(extra, digits):
    mask = tkf.masks.rope([1.0, 0.1])
    mask = mask if extra is None else mask & extra
    run = run_to(tkf.SoftmaxAttention(tkf.AttentionWeights.identity(4), 2.0, mask), tok(6, 4, 1), 1.0)
    np.testing.assert_allclose(run.x[-1, -1], digits, atol=2e-11)


def test_rotary_scores_see_only_distances(tokens, weights):
    """RoPE with B = V = I: the same tokens three places further read the same."""
    identity, x = tkf.AttentionWeights.identity(D), np.asarray(tokens.x)
    mask = tkf.masks.rope([1.0, 0.3])
    model = tkf.SoftmaxAttention(identity, 2.0, mask)
    rows = jnp.arange(3)
    late = tkf.Tokens(np.roll(x, 3, axis=0), np.roll(np.asarray(tokens.weights), 3))
    early = tkf.Tokens(x[:4], np.asarray(tokens.weights)[:4] / np.sum(np.asarray(tokens.weights)[:4]))
    shifted = np.array(late.weights)
    shifted[:3] = 0
    late = tkf.Tokens(late.x, shifted / shifted.sum())
    here = model.output(early.x[:3], early, rows=rows)
    there = model.output(late.x[3:6], late, rows=rows + 3)
    np.testing.assert_allclose(here, there, atol=1e-14)
    still = tkf.SoftmaxAttention(identity, 2.0, tkf.masks.rope([0.0, 0.0])).velocity(tokens)
    np.testing.assert_allclose(still, tkf.SoftmaxAttention(identity, 2.0).velocity(tokens), atol=1e-14)


@pytest.mark.parametrize("beta", [2.0, -3.0])
def test_the_first_causal_token_moves_by_its_own_value_matrix(beta):
    """theory §6.1.1: x_1(t) = e^{Vt}x_1/|e^{Vt}x_1|, whatever B and β."""
    weights, x = general(), tok(6, 3, 1)
    run = run_to(tkf.SoftmaxAttention(weights, beta, tkf.masks.causal()), x, 1.5)
    expected = linalg.expm(1.5 * np.asarray(weights.V)) @ x[0]
    np.testing.assert_allclose(run.x[-1, 0], expected / np.linalg.norm(expected), atol=1e-11)


@pytest.mark.parametrize("name", mostly_slow(["causal", "alibi", "window", "strict"], ["causal"]))
def test_a_prefix_of_a_causal_run_is_the_run_of_the_prefix(name):
    model = tkf.SoftmaxAttention(general(), 2.0, MASKS[name][0])
    whole, part = (run_to(model, tok(6, 3, 1)[:n], 1.0) for n in (6, 4))
    np.testing.assert_allclose(whole.x[-1, :4], part.x[-1], atol=1e-11)


def test_the_prefix_of_a_prefix_model_attends_fully():
    """theory §6.1.1: the first p tokens are the run of p tokens without any mask."""
    weights, x = general(), tok(6, 3, 1)
    masked = run_to(tkf.SoftmaxAttention(weights, 2.0, tkf.masks.prefix(3)), x, 1.5)
    full = run_to(tkf.SoftmaxAttention(weights, 2.0), x[:3], 1.5)
    np.testing.assert_allclose(masked.x[-1, :3], full.x[-1], atol=1e-11)


def test_the_second_causal_token_decays_with_its_constant():
    """theory §6.1.2: 1−ρ → C e^{−t}, C = 30.577829823 for β = 2 from a right angle."""
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), 2.0, tkf.masks.causal())
    t = 12.0
    run = run_to(model, np.eye(2), t)
    gap = np.sum((run.x[-1, 1] - run.x[-1, 0]) ** 2) / 2  # 1−ρ keeps its digits
    C = tkf.theory.causal_second_token_constant(0.0, 2.0)
    assert pytest.approx(30.577829823, rel=1e-10) == C
    # the next term of the approach is e^{−2t}, with a factor of the order C
    assert gap * np.exp(t) == pytest.approx(C, rel=4e-4)
    exact = tkf.theory.causal_second_token(0.0, 1 - gap, 2.0)
    assert exact == pytest.approx(t, abs=1e-6)


def fan(u, mask, beta, t):
    """Angles to the first token at time t of tokens that begin at the small angles u on the circle."""
    x = np.stack([np.cos(u), np.sin(u)], axis=1)
    run = run_to(tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), beta, mask), x, t)
    return np.arctan2(run.x[-1, :, 1], run.x[-1, :, 0])


@pytest.mark.parametrize("beta", mostly_slow([1.0, 3.0], [3.0]))
def test_the_causal_fan_closes_at_rate_one_half(beta):
    """theory §6.1.3: the slowest mode is u_i ∝ i − 1, at the rate 1/2 for every n, d, β."""
    u, t = 1e-4 * np.arange(6), 8.0
    np.testing.assert_allclose(fan(u, tkf.masks.causal(), beta, t)[1:] / u[1:], np.exp(-t / 2), rtol=5e-8)


def test_the_alibi_fan_closes_at_its_rate():
    """λ = .7: 1/(1+e^λ) = .3318122278; the mode is the eigenvector of the averages."""
    n, t, decay = 5, 6.0, np.exp(-0.7)
    i, j = np.arange(n)[:, None], np.arange(n)
    P = np.where(j <= i, decay ** (i - j), 0.0)
    values, vectors = np.linalg.eig(P / P.sum(axis=1, keepdims=True) - np.eye(n))
    slowest = np.argsort(-values.real)[1]
    assert values[slowest] == pytest.approx(-0.3318122278, abs=1e-10)
    u = 1e-4 * vectors[:, slowest].real
    found = fan(u, tkf.masks.alibi(0.7), 1.0, t)
    np.testing.assert_allclose(found[1:] / u[1:], np.exp(-0.3318122278 * t), rtol=5e-8)


@pytest.mark.parametrize("mask", [tkf.masks.causal(), tkf.masks.alibi(0.7), tkf.masks.window(3)])
def test_narrow_fans_obey_the_linear_system(mask):
    """u' = (P − I)u with P the softmax of equal scores; e^{Mt} by SciPy."""
    n, t, width = 6, 3.0, 1e-4
    i, j = np.arange(n)[:, None], np.arange(n)
    offsets = np.asarray(mask.offset(jnp.asarray(i), jnp.asarray(j[None])))
    P = special.softmax(offsets, axis=1)
    u0 = width * np.array([0.0, 0.3, 1.0, 0.5, 0.9, 0.2])
    found = fan(u0, mask, 2.0, t)
    np.testing.assert_allclose(found, linalg.expm(t * (P - np.eye(n))) @ u0, atol=20 * width**3)


def test_news_travels_through_a_window_of_two_like_a_poisson_process():
    """theory §6.1.3: u_i(4) = P(Poisson(2) ≤ i−2) from u = (0, 1, …, 1)."""
    digits = [0.1353352832, 0.4060058497, 0.6766764162, 0.8571234605, 0.9473469827]
    u = np.where(np.arange(6) > 0, 1e-4, 0.0)
    found = fan(u, tkf.masks.window(2), 1.0, 4.0)[1:] / 1e-4
    np.testing.assert_allclose(found, digits, atol=1e-8)


def test_strict_fans_close_like_a_jordan_block():
    """theory §6.1.3: self excluded, u_i' = mean_{j<i} u_j − u_i: u_2 = e^{−t}u_2(0)."""
    u0 = 1e-4 * np.array([0.0, 1.0, 0.4])
    found = fan(u0, tkf.masks.strict(), 2.0, 3.0)
    e = np.exp(-3.0)
    np.testing.assert_allclose(found, 1e-4 * np.array([0.0, e, e * (0.4 + 3.0 / 2)]), atol=1e-11)


def test_identical_blocks_move_as_one():
    """Every block sees copies of itself only: the mean field of causal attention from a law that is the same
    for all is the full flow."""
    x = tok(5, 3, 1)
    weights = general()
    blocks = tkf.masks.blocks([5, 5, 5])
    run = run_to(tkf.SoftmaxAttention(weights, 2.0, blocks), np.concatenate([x, x, x]), 1.0)
    alone = run_to(tkf.SoftmaxAttention(weights, 2.0), x, 1.0)
    for k in range(3):
        np.testing.assert_allclose(run.x[-1, 5 * k : 5 * k + 5], alone.x[-1], atol=1e-11)


@pytest.mark.parametrize("kind", mostly_slow(["softmax", "unnormalised"], ["softmax"]))
def test_waves_in_blocks_grow_by_the_averaging_matrix(kind):
    """theory §6.1.4: L blocks about the uniform law of the circle, h(t) = e^{a_l C t}h(0), C_kj = 1/k."""
    L, n, mode, beta, size = 4, 64, 3, 5.0, 1e-6
    h = np.array([1.0, 0.5, -0.3, 0.2])
    theta = np.arange(n) * 2 * np.pi / n
    # moving tokens by ε h sin(3θ)/3 gives the density the wave −ε h cos 3θ
    angles = theta - size * h[:, None] * np.sin(mode * theta) / mode
    x = np.stack([np.cos(angles), np.sin(angles)], axis=2).reshape(-1, 2)
    rate = tkf.theory.growth_rate(2, beta, mode, kind)
    t = 1.0 if kind == "softmax" else 1.0 / 20
    mask, identity = tkf.masks.blocks([n] * L), tkf.AttentionWeights.identity(2)
    made = tkf.SoftmaxAttention if kind == "softmax" else tkf.UnnormalisedAttention
    run = run_to(made(identity, beta, mask), x, t)
    found = np.arctan2(run.x[-1, :, 1], run.x[-1, :, 0]).reshape(L, n)
    wave = np.mean(np.exp(1j * mode * found), axis=1)
    start = np.mean(np.exp(1j * mode * angles), axis=1)
    C = np.tri(L) / np.arange(1, L + 1)[:, None]
    grown = linalg.expm(rate * t * C) @ h
    if kind == "softmax":
        np.testing.assert_allclose(grown, [1.979171521, 1.275756366, 0.195681590, 0.636705235], atol=2e-9)
    np.testing.assert_allclose(wave.real / start.real[0], grown, atol=1e-7)


def test_masked_flows_keep_rotations_but_not_the_order(weights):
    tokens = tkf.Tokens(tok(N, D, 1))
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(D, D)))[0]
    both = tkf.AttentionWeights(turn @ weights.B @ turn.T, turn @ weights.V @ turn.T)
    plain = tkf.AttentionWeights(weights.B, weights.V)
    for name in ("causal", "alibi", "numbers"):
        v = tkf.SoftmaxAttention(plain, 2.0, MASKS[name][0]).velocity(tokens)
        w = tkf.SoftmaxAttention(both, 2.0, MASKS[name][0]).velocity(tokens.push(lambda x: x @ turn.T))
        np.testing.assert_allclose(w, v @ turn.T, atol=1e-12)
        back = tkf.SoftmaxAttention(plain, 2.0, MASKS[name][0]).velocity(tkf.Tokens(tokens.x[::-1]))
        assert np.abs(np.asarray(back)[::-1] - v).max() > 0.05


def test_masked_runs_are_loops():
    """Unnormalised and interaction runs, with weights, by DOP853."""
    x, w = tok(5, 3, 1), np.array([0.1, 0.3, 0.2, 0.25, 0.15])
    weights = general()
    head = [(np.asarray(weights.B), np.asarray(weights.V))]
    causal = lambda i, j: j <= i  # noqa: E731
    expected = sphere_flow(lambda x: attention(x, head, 1.5, "usa", w, causal), x, [0.4])
    model = tkf.UnnormalisedAttention(weights, 1.5, tkf.masks.causal())
    run = tkf.simulate(model, tkf.Tokens(x, w), [0, 0.4], tkf.Adaptive(1e-12, 1e-13, "dopri8"))
    np.testing.assert_allclose(run.x[-1], expected[0], atol=1e-10)


# -- what does not go together


class Even(Mask):
    """A mask of a contributor's own: even tokens see even ones."""

    def offset(self, i, j):
        return jnp.where((i - j) % 2 == 0, 0.0, -jnp.inf)


def test_a_contributors_mask_works(tokens, weights):
    found = tkf.SoftmaxAttention(weights, 2.0, Even()).velocity(tokens)
    heads = [tuple(np.asarray(a) for a in head) for head in zip(weights.B, weights.V, weights.score_bias)]  # noqa: B905
    x, w = np.asarray(tokens.x), np.asarray(tokens.weights)
    expected = attention(x, heads, 2.0, "softmax", w, lambda i, j: (i - j) % 2 == 0)
    np.testing.assert_allclose(found, projected(x, expected), atol=1e-13)


IDENTITY4 = tkf.AttentionWeights.identity(D)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda t: tkf.SoftmaxAttention(IDENTITY4, 1.0, mask="causal"), "`mask` must be a Mask, but was str"),
        (lambda t: tkf.masks.prefix(-1), "`p` must be a whole number, at least 0, but was -1"),
        (lambda t: tkf.masks.window(0), "`w` must be a whole number, at least 1, but was 0"),
        (lambda t: tkf.masks.alibi(-0.1), "`slope` must be at least 0 and finite, but was -0.1"),
        (lambda t: tkf.masks.alibi(np.inf), "`slope` must be at least 0 and finite, but was inf"),
        (lambda t: tkf.masks.blocks([]), "`sizes` must hold at least one size"),
        (lambda t: tkf.masks.blocks([2, 0]), "`sizes` must be a whole number, at least 1, but was 0"),
        (lambda t: tkf.masks.matrix(np.ones((2, 3))), "`M` must be a square matrix, but was of shape (2, 3)"),
        (lambda t: tkf.masks.matrix([[np.nan]]), "`M` must hold numbers or −infinity"),
        (lambda t: tkf.masks.matrix([[np.inf]]), "`M` must hold numbers or −infinity"),
        (
            lambda t: tkf.masks.matrix([[True, False, False], [False] * 3, [True] * 3]),
            "`M` must let every token see at least one; put M[i, i] = True for one that should see only itself,"
            " but was without any for token 1",
        ),
        (lambda t: tkf.masks.matrix([[-np.inf]]), "`M` must let every token see at least one"),
        (lambda t: tkf.masks.rope([[1.0]]), "`frequencies` must be a list of numbers"),
        (
            lambda t: tkf.SoftmaxAttention(IDENTITY4, 1.0, tkf.masks.rope([1.0] * 3)).velocity(t),
            "`frequencies` must be at most 2, one for each pair of coordinates, but was 3",
        ),
        (
            lambda t: tkf.SoftmaxAttention(IDENTITY4, 1.0, tkf.masks.blocks([3, 3])).velocity(t),
            f"`mask` must have blocks of {N} tokens in all, but was 6",
        ),
        (
            lambda t: tkf.simulate(
                tkf.SoftmaxAttention(IDENTITY4, 1.0, tkf.masks.causal() & tkf.masks.matrix(np.eye(5))),
                t,
                1.0,
            ),
            f"`mask` must be a matrix for {N} tokens, but was one for 5",
        ),
        (
            lambda t: tkf.SoftmaxAttention(IDENTITY4, 1.0, tkf.masks.causal(), context=t),
            "`mask` must be left out where there is a context",
        ),
        (
            lambda t: tkf.InteractionFlow(jnp.exp, np.eye(D), tkf.masks.alibi(0.5)),
            "`mask` must only hide tokens: this kernel has no exponent",
        ),
        (
            lambda t: tkf.InteractionFlow(jnp.exp, np.eye(D), tkf.masks.matrix(np.ones((N, N)))),
            "`mask` must only hide tokens",
        ),
        (
            lambda t: tkf.SoftmaxAttention(IDENTITY4, 1.0, tkf.masks.causal()).output(t.x, t),
            "`rows` must be given where there is a mask",
        ),
        (
            lambda t: tkf.SoftmaxAttention(IDENTITY, 1.0, tkf.masks.causal()).velocity(t),
            "`tokens` must have the dimension 3 of the model, but was 4",
        ),
    ],
)
def test_bad_masks_are_one_sentence(bad, sentence, tokens):
    with pytest.raises(tkf.InputError) as error:
        bad(tokens)
    assert str(error.value).startswith(sentence)


def test_masks_combine_with_masks_only():
    with pytest.raises(TypeError):
        tkf.masks.causal() & 3


# -- the ends of the range


@pytest.mark.parametrize("name", MASKS)
def test_the_ends_of_the_range_of_beta(name, tokens, weights):
    """β = 0 and 1e8 by loops, and 1e8 beside the hardmax: finite everywhere."""
    mask = MASKS[name][0]
    for beta in (0.0, 1e8):
        found = np.asarray(tkf.SoftmaxAttention(weights, beta, mask).velocity(tokens))
        expected = by_loops(tokens, weights, name, beta, "softmax")
        np.testing.assert_allclose(found, expected, atol=1e-7 if beta else 1e-13)
    hard = np.asarray(tkf.HardmaxAttention(weights, mask).velocity(tokens))
    np.testing.assert_allclose(found, hard, atol=1e-7)


ALONE = {
    "causal": tkf.masks.causal(),
    "prefix": tkf.masks.prefix(3),
    "window": tkf.masks.window(1),
    "alibi": tkf.masks.alibi(2.0),
    "blocks": tkf.masks.blocks([1]),
    "matrix": tkf.masks.matrix([[True]]),
    "rope": tkf.masks.rope([1.0]),
}


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("beta", [0.0, 3.0, 1e8, np.inf])
def test_a_token_alone_reads_itself(name, beta):
    """n = 1: P_x V x, whatever β and B; unnormalised e^{βxᵀBx}P_x V x in its time unit."""
    x = tok(1, 2, 1)
    weights = tkf.AttentionWeights([[1.0, 0.5], [0.2, 0.8]], [[0.3, 1.0], [-0.4, 2.0]])
    expected = projected(x, x @ np.asarray(weights.V).T)
    found = tkf.SoftmaxAttention(weights, beta, ALONE[name]).velocity(tkf.Tokens(x))
    np.testing.assert_allclose(found, expected, atol=1e-14)
    if beta <= 3:
        usa = tkf.UnnormalisedAttention(weights, beta, ALONE[name]).velocity(tkf.Tokens(x))
        score = beta * (x @ np.asarray(weights.B) @ x.T)
        np.testing.assert_allclose(usa, np.exp(score) * expected, rtol=1e-13)


def test_a_token_alone_under_the_strict_mask_stays():
    for model in (tkf.SoftmaxAttention, tkf.UnnormalisedAttention):
        for beta in (0.0, 1e8):
            found = model(tkf.AttentionWeights.identity(2), beta, tkf.masks.strict())
            assert np.array_equal(found.velocity(tkf.Tokens(tok(1, 2, 1))), np.zeros((1, 2)))


def test_a_row_that_sees_only_itself(tokens, weights):
    see = np.ones((N, N), bool)
    see[4] = np.arange(N) == 4
    x = np.asarray(tokens.x)
    for beta in (0.0, 1e8, np.inf):
        found = np.asarray(tkf.SoftmaxAttention(weights, beta, tkf.masks.matrix(see)).velocity(tokens))
        full = np.asarray(tkf.SoftmaxAttention(weights, beta).velocity(tokens))
        alone = sum(x[4] @ np.asarray(V).T for V in weights.V)
        np.testing.assert_allclose(found[4], projected(x[4:5], alone[None])[0], atol=1e-13)
        others = [0, 1, 2, 3, 5, 6]
        np.testing.assert_allclose(found[others], full[others], atol=1e-7)
