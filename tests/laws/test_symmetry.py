"""Symmetries of laws: found where they are, kept by halves, and missed by a run when rounding breaks them."""

import jax.numpy as jnp
import numpy as np
import pytest

import tokenfield as tkf
from tokenfield import theory
from tokenfield.laws.symmetry import half, symmetries, whole
from tokenfield.models.mirrored import Mirrored


def usa(beta, d=2):
    return tkf.UnnormalisedAttention(tkf.AttentionWeights.identity(d), beta)


def ring(n, turn=0.0):
    theta = 2 * np.pi * np.arange(n) / n + turn
    return tkf.Tokens(np.stack([np.cos(theta), np.sin(theta)], axis=1))


def turned(tokens, key=0):
    q = np.linalg.qr(np.random.default_rng(key).normal(size=(tokens.d, tokens.d)))[0]
    return tkf.Tokens(np.asarray(tokens.x) @ q, tokens.weights)


# ---- what is found ----


@pytest.mark.parametrize("d", [2, 3, 8, 40])
@pytest.mark.parametrize("n", [3, 50])
def test_random_tokens_have_no_symmetry(n, d):
    if d > n:  # fewer tokens than dimensions: a reflection across the rest of the space
        return
    assert symmetries(tkf.initial.uniform(n, d, key=n + d)) == []


@pytest.mark.parametrize(
    "tokens",
    [
        theory.three_atoms(0.7),
        turned(theory.three_atoms(0.3)),
        theory.two_arcs(8, 0.7, 0.4),
        ring(5, 0.3),
        ring(8),
        theory.near_dirac(0.1, 3),
        tkf.initial.equiangular(5, 6, 0.2),
        turned(tkf.initial.equiangular(4, 4, -0.1)),
        tkf.initial.circle_density(theory.profile("A"), 600),
    ],
)
def test_symmetric_laws_are_found_and_their_maps_are_symmetries(tokens):
    found = symmetries(tokens)
    assert found
    for each in found:
        np.testing.assert_allclose(each.map @ each.map.T, np.eye(tokens.d), atol=1e-14)
        assert each.defect(np.asarray(tokens.x)) < 1e-12
        # the law moved by the map is the law: any function has the same mean
        f = lambda x: np.exp(np.asarray(x) @ np.linspace(1, 2, tokens.d))  # noqa: E731
        w = np.asarray(tokens.weights)
        assert w @ f(np.asarray(tokens.x) @ each.map.T) == pytest.approx(w @ f(tokens.x), rel=1e-12)


def test_weights_count():
    """The points of Example 2.5 with unequal masses at ±a are no longer even; nor is profile B."""
    x = theory.three_atoms(0.7).x
    assert symmetries(tkf.Tokens(x, [0.5, 0.4, 0.1])) == []
    assert symmetries(tkf.initial.circle_density(theory.profile("B"), 64)) == []


def test_a_small_nudge_is_no_symmetry():
    x = np.array(theory.three_atoms(0.7).x)
    x[2] = [-np.cos(1e-9), np.sin(1e-9)]
    assert symmetries(tkf.Tokens(x, theory.three_atoms(0.7).weights)) == []


def test_the_defect_is_the_distance():
    found = symmetries(theory.three_atoms(0.7))[0]
    x = np.array(theory.three_atoms(0.7).x)
    x[2] = [-np.cos(0.1), np.sin(0.1)]
    assert found.defect(x) == pytest.approx(2 * np.sin(0.1), rel=1e-12)


# ---- halves ----


def test_half_and_whole():
    tokens = theory.two_arcs(6, 0.7, 0.4)
    upper = half(tokens, 1)
    assert upper.n == 6 and float(upper.x[:, 1].min()) > 0
    for a, b in zip(tokens.moments(), whole(upper, 1).moments(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-15)
    atoms = half(theory.three_atoms(0.7), 1)
    np.testing.assert_allclose(atoms.weights, [0.925, 0.075], rtol=1e-14)


@pytest.mark.parametrize("flow", [tkf.SoftmaxAttention, tkf.UnnormalisedAttention])
def test_a_half_moves_like_the_whole(flow):
    model = flow(tkf.AttentionWeights.identity(3), 2.0)
    some = tkf.initial.uniform(7, 3, 1)
    law = whole(tkf.Tokens(some.x.at[:, 2].set(jnp.abs(some.x[:, 2]))), 2)
    upper = half(law, 2)
    found = Mirrored(model, 2).velocity(upper)
    np.testing.assert_allclose(found, np.asarray(model.velocity(law))[:7], atol=1e-14)


def test_a_token_on_the_mirror_stays_there_in_every_bit():
    v = Mirrored(usa(1.0), 1).velocity(half(theory.three_atoms(0.7), 1))
    assert float(v[1, 1]) == 0.0


def test_bad_input_is_one_sentence():
    with pytest.raises(tkf.InputError, match="^`tokens` must be their own mirror image across axis 1"):
        half(tkf.initial.uniform(5, 2, 0), 1)
    with pytest.raises(tkf.InputError, match="^`axis` must be a coordinate of R"):
        half(theory.three_atoms(0.7), 2)
    skew = tkf.SoftmaxAttention(tkf.AttentionWeights([[1.0, 0.5], [0.0, 1.0]], np.eye(2)), 1.0)
    with pytest.raises(tkf.InputError, match="^`model` must commute with the reflection across axis 1"):
        Mirrored(skew, 1)
    with pytest.raises(tkf.InputError, match="^`axis` must be a coordinate of R"):
        Mirrored(usa(1.0), 5)


# ---- runs (theory §3.12) ----


@pytest.mark.slow
def test_a_run_says_when_rounding_has_broken_the_symmetry_and_a_half_keeps_it():
    """Example 2.5 at β = .1 ends at R = 1 − 2m; the plain run leaves near t = 35e^β and synchronises."""
    tokens, ts = theory.three_atoms(0.7), [0.0, 10.0, 100.0]
    plain = tkf.simulate(usa(0.1), tokens, ts)
    assert float(tkf.order_parameter(plain.tokens(1))) == pytest.approx(0.85, abs=1e-6)
    assert float(tkf.order_parameter(plain.tokens(2))) > 0.99  # the artefact
    assert plain.complete
    assert "by t = 100 numerical errors had broken a symmetry" in plain.status
    assert plain.stats["symmetry"] in plain.status
    kept = tkf.simulate(Mirrored(usa(0.1), 1), half(tokens, 1), ts)
    assert float(tkf.order_parameter(whole(kept.tokens(2), 1))) == pytest.approx(0.85, abs=1e-12)
    assert kept.status == "reached t = 100 as asked"


def test_a_run_that_keeps_its_symmetry_says_so_and_others_say_nothing():
    short = tkf.simulate(usa(0.1), theory.three_atoms(0.7), [0.0, 10.0])
    assert short.status == "reached t = 10 as asked"
    assert short.stats["symmetry"].startswith("kept: reflection across coordinate axis 1")
    generic = tkf.Tokens(theory.three_atoms(0.7).x, [0.5, 0.4, 0.1])
    assert "symmetry" not in tkf.simulate(usa(0.1), generic, [0.0, 10.0]).stats
    # the tokens are even, but the model is not
    skew = tkf.UnnormalisedAttention(tkf.AttentionWeights([[1.0, 0.5], [0.0, 1.0]], np.eye(2)), 0.1)
    run = tkf.simulate(skew, theory.three_atoms(0.7), [0.0, 10.0])
    assert "symmetry" not in run.stats and run.status == "reached t = 10 as asked"


def test_models_know_what_they_commute_with():
    flip, swap = np.diag([1.0, -1.0]), np.array([[0.0, 1.0], [1.0, 0.0]])
    stretched = tkf.SoftmaxAttention(tkf.AttentionWeights(np.diag([0.5, 2.0]), np.eye(2)), 1.0)
    assert stretched.commutes(flip) and not stretched.commutes(swap)
    assert usa(1.0).commutes(swap)
    flow = tkf.InteractionFlow(jnp.exp, np.diag([2.0, 1.0]))
    assert flow.commutes(flip) and not flow.commutes(swap)
