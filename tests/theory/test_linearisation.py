"""Stability by automatic differentiation against the closed forms and against runs."""

import jax.numpy as jnp
import numpy as np
import pytest

import tokenfield as tkf
from tests.marks import mostly_slow
from tokenfield import theory
from tokenfield.theory import linearisation

KINDS = {"softmax": tkf.SoftmaxAttention, "unnormalised": tkf.UnnormalisedAttention}


def attention(d, beta, flow):
    return KINDS[flow](tkf.AttentionWeights.identity(d), beta)


def ring(n):
    theta = 2 * np.pi * np.arange(n) / n
    return tkf.Tokens(np.stack([np.cos(theta), np.sin(theta)], axis=1))


def falling(values):
    return np.sort(np.asarray(values))[::-1]


@pytest.mark.parametrize("flow", ["softmax", "unnormalised"])
@pytest.mark.parametrize(("n", "beta"), mostly_slow([(5, 3.0), (12, 10.0)], [(5, 3.0)]))
def test_equispaced_tokens(n, beta, flow):
    found = theory.stability(attention(2, beta, flow), ring(n))
    expected = theory.equispaced_spectrum(n, beta, flow)[1:]
    np.testing.assert_allclose(
        found.spectrum, falling(expected), rtol=1e-10, atol=1e-11 * np.abs(expected).max()
    )
    assert found.rotations == 1
    assert found.index == np.sum(expected > 1e-9 * np.abs(expected).max())
    assert found.stationary
    assert found.whole


@pytest.mark.parametrize("flow", ["softmax", "unnormalised"])
@pytest.mark.parametrize("d", mostly_slow([2, 4], [4]))
def test_antipodal_atoms(d, flow):
    """Two tokens in the first atom, one in the second, unequal masses: rigid and split modes d−1 times each."""
    p, beta = 0.7, 1.2
    x = np.eye(d)[[0, 0, 0]] * [[1], [1], [-1]]
    found = theory.stability(attention(d, beta, flow), tkf.Tokens(x, [0.5, 0.2, 0.3]))
    rates = theory.antipodal_rates(p, beta, flow)
    np.testing.assert_allclose(found.spectrum, falling([rates.rigid, rates.split[0]] * (d - 1)), rtol=1e-11)
    assert found.rotations == d - 1
    assert found.index == d - 1
    u = found.fastest
    np.testing.assert_allclose(u[:, 0], 0, atol=1e-12)
    np.testing.assert_allclose(u[0], u[1], atol=1e-10)
    assert u[0] @ u[2] > 0  # both towards the same side: they approach each other


def test_no_rotation_is_free_for_a_matrix():
    """A = diag(2,1,.5): no rotation commutes, all rates negative, index 0; reference numbers of theory §3.3."""
    tokens = tkf.Tokens([[1.0, 0, 0], [-1.0, 0, 0]])
    found = theory.stability(tkf.InteractionFlow(jnp.exp, np.diag([2, 1, 0.5])), tokens)
    np.testing.assert_allclose(
        found.spectrum, [-3.49152512, -3.62686041, -5.37262297, -5.44029061], atol=5e-9
    )
    assert (found.rotations, found.index) == (0, 0)
    partly = theory.stability(tkf.InteractionFlow(jnp.exp, np.diag([1.0, 1, 0.5])), tokens)
    assert partly.rotations == 1


def test_a_dirac_is_stable_and_mass_is_not_asked_for():
    """n tokens in one point: split modes −e^β (n−1)(d−1) times, the rotations left out; weights of 0 allowed."""
    beta = 0.8
    found = theory.stability(
        attention(3, beta, "unnormalised"), tkf.Tokens([[0.0, 0, 1]] * 4, [0.5, 0.3, 0.2, 0.0])
    )
    np.testing.assert_allclose(found.spectrum, [-np.exp(beta)] * 6, rtol=1e-11)
    assert (found.rotations, found.index) == (2, 0)


@pytest.mark.slow
def test_the_fastest_direction_grows_at_its_rate_in_a_run():
    beta, eps = 4.0, 1e-7
    model, tokens = attention(2, beta, "softmax"), ring(7)
    found = theory.stability(model, tokens)
    moved = tkf.Tokens(tkf.sphere.exp(tokens.x, jnp.asarray(eps * found.fastest)), tokens.weights)
    run = tkf.simulate(model, moved, [0.0, 3.0], tkf.Adaptive(rtol=1e-12, atol=1e-14))
    u = np.asarray(run.tokens(-1).x - tokens.x)
    grown = np.sum(u * found.fastest) / eps
    assert np.log(grown) / 3 == pytest.approx(float(found.spectrum[0]), rel=1e-5)


def test_a_spectrum_that_is_not_real():
    """A rotating V gives complex pairs; trace and determinant against finite differences of the velocity."""
    V = np.array([[0.2, -1.0, 0.0], [1.0, 0.2, 0.0], [0.0, 0.0, 1.0]])
    model = tkf.SoftmaxAttention(tkf.AttentionWeights(np.eye(3), V), 1.0)
    tokens = tkf.Tokens([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    found = theory.stability(model, tokens)
    # P_x V y at x = y = e3: an atom that moves as a whole has V − 1 across, a split −1 twice
    np.testing.assert_allclose(
        np.sort_complex(found.spectrum), np.sort_complex([-1, -1, -0.8 + 1j, -0.8 - 1j]), atol=1e-12
    )


def test_a_configuration_that_moves_is_said_to():
    found = theory.stability(attention(3, 1.0, "softmax"), tkf.initial.uniform(5, 3, 0))
    assert not found.stationary
    assert found.speed > 0.1
    assert "not at rest" in found.note


@pytest.mark.parametrize("flow", ["softmax", "unnormalised"])
def test_matrix_free_agrees_with_the_closed_form(flow):
    n, beta = 300, 20.0
    found = theory.stability(attention(2, beta, flow), ring(n), count=7)
    expected = falling(theory.equispaced_spectrum(n, beta, flow)[1:])
    np.testing.assert_allclose(found.spectrum, expected[:7], rtol=1e-8)
    assert not found.whole
    assert found.note.startswith("at least 7 unstable directions")


def test_matrix_free_leaves_out_the_rotations_of_stable_tokens():
    """Below a Dirac everything decays: the rotations must not show as zeros."""
    tokens = tkf.Tokens([[0.0, 0, 1]] * 30, np.arange(1, 31) / 465)
    found = theory.stability(attention(3, 0.5, "unnormalised"), tokens, count=3)
    np.testing.assert_allclose(found.spectrum, [-np.exp(0.5)] * 3, rtol=1e-8)
    assert (found.rotations, found.index) == (2, 0)


@pytest.mark.slow
def test_matrix_free_for_many_tokens():
    n, beta = 3000, 50.0
    assert n > linearisation.LARGEST_DENSE_SIZE
    found = theory.stability(attention(2, beta, "softmax"), ring(n))
    np.testing.assert_allclose(found.spectrum, falling(theory.equispaced_spectrum(n, beta))[:8], rtol=1e-8)


def test_bad_input_is_one_sentence():
    with pytest.raises(tkf.InputError, match="^`count` must be at most n"):
        theory.stability(attention(2, 1.0, "softmax"), ring(4), count=3)
    with pytest.raises(tkf.InputError, match="^`count` must be a whole number"):
        theory.stability(attention(2, 1.0, "softmax"), ring(4), count=0)
    with pytest.raises(tkf.InputError, match="^`tokens` must have the dimension 3"):
        theory.stability(attention(3, 1.0, "softmax"), ring(4))
