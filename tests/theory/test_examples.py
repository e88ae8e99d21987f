"""The examples of 2504.14697 against the printed digits of theory §3, run and by hand."""

import numpy as np
import pytest

import tokenfield as tkf
from tokenfield import theory


def usa(beta, d=2):
    return tkf.UnnormalisedAttention(tkf.AttentionWeights.identity(d), beta)


def R(tokens):
    return float(tkf.order_parameter(tokens))


@pytest.mark.parametrize("eps", [1e-6, 0.1, 0.5])
@pytest.mark.parametrize("beta", [0.0, 1.0, 4.0])
def test_near_dirac(eps, beta):
    tokens = theory.near_dirac(eps, 3)
    assert float(np.abs(usa(beta, 3).velocity(tokens)).max()) == 0
    distance = np.asarray(tkf.sphere.distance(tokens.x, tokens.x[:1]))
    assert np.sqrt(np.asarray(tokens.weights) @ distance**2) == pytest.approx(np.pi * np.sqrt(eps), rel=1e-12)
    dirac = tkf.Tokens(tokens.x[:1])
    gap = float(tkf.energy(dirac, beta) - tkf.energy(tokens, beta))
    assert theory.near_dirac_deficit(eps, beta) == pytest.approx(gap, rel=1e-8)
    if beta > 0:
        printed = eps * (1 - eps) * (np.exp(beta) - np.exp(-beta)) / beta
        assert theory.near_dirac_deficit(eps, beta) == pytest.approx(printed, rel=1e-12)


@pytest.mark.parametrize("beta", [-0.5, -4.0])
def test_near_dirac_deficit_at_negative_beta(beta):
    """e^β/2β − (1/2β)Σ w_i w_j e^{β⟨x_i,x_j⟩}, positive though both energies are negative."""
    w = np.array([0.7, 0.3])
    energy = w @ np.exp(beta * np.array([[1, -1], [-1, 1]])) @ w / (2 * beta)
    assert theory.near_dirac_deficit(0.3, beta) == pytest.approx(
        np.exp(beta) / (2 * beta) - energy, rel=1e-12
    )
    assert theory.near_dirac_deficit(0.3, beta) > 0


def test_three_atoms_reference_numbers():
    tokens = theory.three_atoms(0.7)
    assert float(tokens.weights[2]) == pytest.approx(0.075, abs=1e-15)
    assert float(tkf.sphere.distance(tokens.x[0], tokens.x[1])) / 2 == pytest.approx(0.5548110330, abs=5e-11)
    assert R(tokens) == pytest.approx(0.71125, abs=1e-14)


@pytest.mark.parametrize("xi", [0.05, 0.7, 0.95])
def test_three_atoms_start_above_xi_and_do_not_synchronise(xi):
    tokens = theory.three_atoms(xi)
    m = (1 - xi) / 4
    assert R(tokens) > xi
    run = tkf.simulate(usa(0.5), tokens, [0.0, 20.0])
    assert R(run.tokens(-1)) == pytest.approx(1 - 2 * m, abs=1e-6)
    np.testing.assert_allclose(run.tokens(-1).x[:, 0], [1, 1, -1], atol=1e-6)


def test_two_arcs_reference_numbers_and_fate():
    """Above β_c both arcs keep their tokens, R → p − q; the same law synchronises at β = .1 and .3."""
    tokens = theory.two_arcs(24, 0.7, np.pi / 8)
    assert R(tokens) == pytest.approx(0.3897981434, abs=5e-11)
    assert R(tkf.simulate(usa(4.0), tokens, [0.0, 3.0]).tokens(-1)) == pytest.approx(0.4, abs=1e-6)
    for beta in (0.1, 0.3):
        even = tkf.simulate(usa(beta), tokens, [0.0, 22.0]).tokens(-1)
        assert R(even) > 0.99


def test_two_arcs_are_symmetric_in_every_bit():
    x = np.asarray(theory.two_arcs(9, 0.7, 0.4).x)
    np.testing.assert_array_equal(x[:9], x[:9][::-1] * [1, -1])
    np.testing.assert_array_equal(x[9:], -x[:9])


@pytest.mark.parametrize("name", ["A", "B", "C"])
def test_profiles_are_densities(name):
    theta = np.linspace(0, 2 * np.pi, 4096, endpoint=False)
    values = theory.profile(name)(theta)
    assert values.min() >= 0
    assert np.mean(values) * 2 * np.pi == pytest.approx(1, abs=1e-13)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: theory.near_dirac(0.0), "`eps` must lie between 0 and 1"),
        (lambda: theory.three_atoms(1.0), "`xi` must lie between 0 and 1"),
        (lambda: theory.two_arcs(0, 0.7, 0.1), "`n` must be a whole number"),
        (lambda: theory.two_arcs(4, 0.7, 0.9), "`w` must lie between 0 and π/4"),
        (lambda: theory.profile("D"), "`name` must be 'A', 'B' or 'C'"),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad()
