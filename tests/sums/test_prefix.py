"""Near-linear causal sums on the circle against direct sums, and tiles that a mask leaves out (theory §6.1)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokenfield as tkf
from tests.marks import mostly_slow
from tokenfield.sums.base import Queries
from tokenfield.sums.choice import sums_for
from tokenfield.sums.circle import CircleSums
from tokenfield.sums.direct import DIRECT, visible_weight
from tokenfield.sums.expansion import audit
from tokenfield.sums.prefix import _powers
from tokenfield.sums.profile import EXPONENTIAL, Scored

N = 700
GENERAL = np.array([[1.0, 0.5], [-0.3, 0.4]])
MASKS = {
    "causal": tkf.masks.causal(),
    "strict": tkf.masks.strict(),
    "alibi": tkf.masks.alibi(0.02),
    "steep alibi": tkf.masks.alibi(30.0),
}


@pytest.fixture(scope="module")
def tokens():
    """Some tokens have no weight, the first ones among them."""
    w = np.random.default_rng(0).dirichlet(np.ones(N))
    w[[0, 1, 5, 300]] = 0
    return tkf.Tokens(tkf.initial.uniform(N, 2, 1).x, w / w.sum())


def planned(A, bias=None):
    return CircleSums.plan(Scored(EXPONENTIAL, A[None], None if bias is None else bias[None]), 1e-9)


def asked(A, tokens, mask, rows, bias=None):
    return Queries(jnp.asarray(A), tokens.x[rows], bias, mask, rows)


EVERYBODY = jnp.arange(N)


HEADS = np.stack([40 * np.eye(2), -3 * np.eye(2), 0 * np.eye(2), 30 * GENERAL])
#: One plan for all of them, compiled once for each kind of mask.
SUMS = CircleSums.plan(Scored(EXPONENTIAL, HEADS), 1e-9)
exponential = eqx.filter_jit(lambda sums, queries, tokens: sums.exponential(queries, tokens))


@pytest.mark.parametrize("name", mostly_slow(list(MASKS), ["alibi", "steep alibi"]))
def test_prefix_sums_are_direct_sums(name, tokens):
    """All tokens in order, and some of them in another order; rows that see nobody read 0."""
    mask = MASKS[name]
    for rows in (EVERYBODY, jnp.array([699, 0, 5, 64, 63, 300, 2])):
        for A in HEADS:
            queries = asked(A, tokens, mask, rows)
            fast, exact = exponential(SUMS, queries, tokens), DIRECT.exponential(queries, tokens)
            nobody = np.isneginf(exact.log_mass)
            np.testing.assert_array_equal(np.isneginf(fast.log_mass), nobody)
            assert nobody.any()
            np.testing.assert_allclose(fast.mean, exact.mean, atol=1e-11)
            np.testing.assert_allclose(fast.log_mass[~nobody], exact.log_mass[~nobody], atol=1e-11)
            assert np.all(np.asarray(fast.error)[~nobody] <= 1e-9)


def test_all_tokens_in_another_order_are_no_number(tokens):
    queries = asked(HEADS[0], tokens, MASKS["alibi"], EVERYBODY[::-1])
    found = exponential(SUMS, queries, tokens)
    assert np.all(np.isnan(found.mean) | np.isneginf(found.log_mass)[:, None])
    assert (
        np.isnan(found.mean).any(axis=1).sum() == N - 2
    )  # the first two tokens have no weight: they see nobody


def test_the_error_is_estimated_and_far_queries_fall_back(tokens):
    """Keys on one side, queries to the other: the expansion alone is wrong by far more than 1e-9."""
    theta = 0.3 * np.random.default_rng(3).normal(size=N)
    narrow = tkf.Tokens(np.stack([np.cos(theta), np.sin(theta)], axis=1))
    A, mask = -40 * np.eye(2), MASKS["alibi"]
    queries, sums = asked(A, narrow, mask, EVERYBODY), SUMS
    exact = DIRECT.exponential(queries, narrow)
    raw = eqx.filter_jit(lambda q, t: sums.expansion(q, t))(queries, narrow)
    mass = np.exp(np.asarray(exact.log_mass - raw.length))
    off = np.abs(np.asarray(raw.mass) - mass)
    assert np.all(off <= np.asarray(raw.error + 4 * exact.error * mass)), "the estimate of the error holds"
    assert np.max(off / mass) > 1e-6, "or the test tests nothing"
    found = exponential(sums, queries, narrow)
    np.testing.assert_allclose(found.mean, exact.mean, atol=1e-9)
    few = CircleSums.plan(Scored(EXPONENTIAL, HEADS), 1e-9, fallback_rows=16)
    found = exponential(few, queries, narrow)
    assert np.isnan(found.log_mass).any(), "more than fit are not a number"


@pytest.mark.slow
def test_biases(tokens):
    A, bias = 20 * GENERAL, jnp.array([3.0, -5.0])
    queries = asked(A, tokens, MASKS["alibi"], EVERYBODY, bias)
    fast = exponential(planned(A, np.asarray(bias)), queries, tokens)
    np.testing.assert_allclose(fast.mean, DIRECT.exponential(queries, tokens).mean, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [tkf.SoftmaxAttention, tkf.UnnormalisedAttention])
def test_velocities_by_name(kind, tokens):
    """Two heads; unnormalised ones beyond the exponent where time has a unit of its own, too."""
    weights = tkf.AttentionWeights(np.stack([np.eye(2), GENERAL]), np.stack([GENERAL, np.eye(2)]))
    for beta, mask in ((60.0, MASKS["causal"]), (400.0, MASKS["alibi"])):
        model = kind(weights, beta, mask)
        fast, exact = model.velocity(tokens, "circle"), model.velocity(tokens, "direct")
        np.testing.assert_allclose(fast, exact, atol=1e-9 * np.abs(exact).max())


@pytest.mark.slow
def test_the_audit_reads_the_mask(tokens):
    checked = eqx.filter_jit(lambda sums, scored, turn: audit(sums, scored, tokens, turn))
    scored = Scored(EXPONENTIAL, jnp.asarray(HEADS[0]), None, tkf.masks.strict())
    turns = [jnp.asarray(turn) for turn in range(50)]  # all tokens, the first among them
    assert max(float(checked(SUMS, scored, turn)) for turn in turns) < 1e-10
    wrong = eqx.tree_at(lambda s: s.multipliers, SUMS, 1.001 * SUMS.multipliers)
    assert float(checked(wrong, scored, turns[1])) > 1e-4


def test_who_gets_prefix_sums(tokens):
    """auto takes them for many tokens; other masks and dimensions stay direct, by name they are refused."""
    many = tkf.initial.uniform(20_000, 2, 0)
    identity = tkf.AttentionWeights.identity(2)
    chosen = lambda mask, t=many: sums_for(tkf.SoftmaxAttention(identity, 50.0, mask), t).name  # noqa: E731
    assert (
        chosen(tkf.masks.causal()) == chosen(tkf.masks.alibi(0.1)) == chosen(tkf.masks.strict()) == "circle"
    )
    assert chosen(tkf.masks.window(9)) == chosen(tkf.masks.prefix(9)) == "direct"
    assert chosen(tkf.masks.causal(), tokens) == "direct"
    space = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), 50.0, tkf.masks.causal())
    sphere = tkf.initial.uniform(20_000, 3, 0)
    assert sums_for(space, sphere).name == "direct"
    for model, t, name in (
        (space, sphere, "harmonic"),
        (tkf.SoftmaxAttention(identity, 50.0, tkf.masks.window(9)), many, "circle"),
        (tkf.SoftmaxAttention(identity, 50.0, tkf.masks.causal()), many, "merged"),
        (tkf.InteractionFlow(jnp.sinh, np.eye(2), tkf.masks.causal()), many, "circle"),
    ):
        with pytest.raises(tkf.InputError, match="`summation` must be 'auto' or 'direct' for this model"):
            model.velocity(t, name)


@pytest.mark.slow
def test_a_causal_run_with_fast_sums(tokens):
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), 40.0, tkf.masks.causal())
    x = tkf.Tokens(tokens.x[:200])
    runs = [
        tkf.simulate(model, x, [0.0, 0.5], tkf.RungeKutta4(0.1), summation=s) for s in ("circle", "direct")
    ]
    np.testing.assert_allclose(runs[0].x[-1], runs[1].x[-1], atol=1e-10)


@pytest.mark.slow
def test_gradients_of_prefix_sums_are_those_of_direct_sums(tokens):
    x = tkf.Tokens(tokens.x[:130], tokens.weights[:130] / np.sum(tokens.weights[:130]))
    A = 10 * GENERAL
    sums = CircleSums.plan(Scored(EXPONENTIAL, np.stack([0.9 * A, 1.1 * A])), 1e-9)

    def f(A, slope, x, sums):
        queries = Queries(A, x.x, None, tkf.masks.alibi(slope), jnp.arange(130))
        found = sums.exponential(queries, x)
        return jnp.sum(found.mean[5:] ** 2 + found.log_mass[5:, None])

    gradient = eqx.filter_jit(jax.grad(f, argnums=(0, 1)))
    fast, exact = (gradient(jnp.asarray(A), jnp.asarray(0.05), x, s) for s in (sums, DIRECT))
    for a, b in zip(fast, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8)


def test_powers_of_a_direction():
    theta = np.linspace(-3, 3, 5)
    found = _powers(jnp.stack([jnp.cos(theta), jnp.sin(theta)]), 200)
    k = np.arange(201)[:, None]
    np.testing.assert_allclose(found, np.concatenate([np.cos(k * theta), np.sin(k * theta)]), atol=2e-13)


@pytest.mark.parametrize(
    "mask",
    [
        tkf.masks.causal(),
        tkf.masks.strict(),
        tkf.masks.prefix(150),
        tkf.masks.window(40),
        tkf.masks.alibi(0.3),
        tkf.masks.blocks([1, 300, 399]),
        tkf.masks.prefix(150) & tkf.masks.blocks([1, 300, 399]),
    ],
)
def test_masks_say_what_tiles_and_weights_they_show(mask, tokens):
    """`may_see` against every offset of a tile, `visible_weight` against whole rows."""
    seen = np.isfinite(np.asarray(mask.offset(EVERYBODY[:, None], EVERYBODY[None, :])))
    weight = visible_weight(Queries(jnp.eye(2), tokens.x, None, mask, EVERYBODY), tokens)
    np.testing.assert_allclose(weight, seen @ np.asarray(tokens.weights), atol=1e-14)
    hidden = 0
    for first in range(0, N, 70):
        for start in range(0, N, 70):
            shown = mask.may_see((first, first + 69), (start, start + 69))
            assert bool(shown) >= seen[first : first + 70, start : start + 70].any()
            hidden += not bool(shown)
    assert hidden >= 0.9 * sum(
        not seen[i : i + 70, j : j + 70].any() for i in range(0, N, 70) for j in range(0, N, 70)
    )
