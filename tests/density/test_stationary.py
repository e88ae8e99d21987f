"""Stationary densities: critical couplings, branches, folds and transitions against closed forms."""

import numpy as np
import pytest
from scipy import integrate, special

import tokenfield as tkf
from tokenfield.density import stationary
from tokenfield.density.stationary import Interaction

DIMENSIONS = (2, 3, 8)
#: β_* of theory §4 (d = 2, 3); d = 8 from its equation.
BETA_STAR = {2: 2.4469183, 3: 1.8161545}


@pytest.mark.parametrize("d", DIMENSIONS)
def test_critical_couplings(d):
    interaction = Interaction(d, 40)
    for beta in (0.5, 2.0, 5.0):
        degrees = np.arange(1, 5)
        lam = special.gamma(d / 2) * (2 / beta) ** (d / 2 - 1) * special.iv(degrees + d / 2 - 1, beta)
        found = stationary.critical_kappas(interaction, beta, 4)
        np.testing.assert_allclose(found, beta / lam, rtol=1e-6)
        np.testing.assert_allclose(tkf.theory.critical_kappa(d, beta, degrees), beta / lam, rtol=1e-12)
    assert stationary.critical_kappas(interaction, 1e-4)[0] == pytest.approx(d, rel=1e-6)
    assert stationary.critical_kappas(interaction, 0.0)[0] == pytest.approx(d, rel=1e-12)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_transition_from_the_branches(d):
    found = stationary.transition_beta(Interaction(d, 32))
    ratio = special.iv(d / 2 + 1, found) / special.iv(d / 2, found)
    assert ratio == pytest.approx(1 / d, abs=1e-6)
    assert found == pytest.approx(tkf.theory.transition_beta(d), abs=1e-5)
    if d in BETA_STAR:
        assert found == pytest.approx(BETA_STAR[d], abs=1e-5)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_branch_without_temperature(d):
    """β = 0: R = I_{d/2}(κR)/I_{d/2−1}(κR), and the law is von Mises–Fisher with concentration κR."""
    interaction = Interaction(d, 40)
    found = stationary.branch(interaction, 0.0, to=2.0 * d, step=0.5)
    assert len(found.states) > 4
    assert not found.folds
    for state in found.states[1:]:
        z = state.kappa * state.order
        assert state.order == pytest.approx(special.ive(d / 2, z) / special.ive(d / 2 - 1, z), abs=1e-11)
        assert state.order == pytest.approx(tkf.theory.noisy_order(state.kappa, d), abs=1e-10)
        assert state.unstable == 0
        assert state.free_energy < 0


def test_stationary_laws_solve_the_equation_itself():
    """On the circle, ρ ∝ e^{κU} with U by an integral that does not know harmonics."""
    beta, kappa = 1.5, 2.5
    interaction = Interaction(2, 40)
    start = stationary.at_amplitude(interaction, beta, 0.5)
    state = stationary.solve(interaction, kappa, beta, start.coefficients)
    assert state.order > 0.3

    theta = np.arange(256) * (2 * np.pi / 256)
    p = np.sqrt(2) * np.cos(np.outer(np.arange(1, 41), theta))
    rho = 1 + state.coefficients @ p
    U = np.exp(beta * np.cos(theta[:, None] - theta)) @ rho / (256 * beta)
    expected = np.exp(kappa * (U - U.max()))
    np.testing.assert_allclose(rho, expected / expected.mean(), atol=1e-11)


@pytest.mark.parametrize("d", (2, 3))
def test_continuous_below_and_discontinuous_above(d):
    interaction, star = Interaction(d, 40), tkf.theory.transition_beta(d)
    critical = lambda beta: float(tkf.theory.critical_kappa(d, beta))  # noqa: E731
    below = stationary.branch(interaction, 0.8 * star, to=1.2 * critical(0.8 * star), step=0.2)
    assert not below.folds
    assert np.all(np.diff(below.kappa) > 0)
    assert np.all(below.stable[1:])
    above = stationary.branch(interaction, 1.3 * star, to=1.05 * critical(1.3 * star), step=0.2)
    ((fold, order),) = above.folds
    assert fold < critical(1.3 * star)
    turned = above.order > order
    assert np.all(above.stable[turned][1:])
    assert not np.any(above.stable[1:][~turned[1:]])
    # both laws have the same free energy at one κ between the fold and κ_1: there the transition is
    upper = above.free_energy[turned]
    assert upper.max() > 0 > upper.min()


def test_along_beta():
    """At fixed κ the branch followed along β passes through states that Newton finds at that β."""
    interaction = Interaction(3, 40)
    begin = stationary.solve(
        interaction, 4.0, 0.0, stationary.at_amplitude(interaction, 0.0, 1.0).coefficients
    )
    found = stationary.continued(interaction, begin, to=0.8, step=0.2)
    assert found.status == "reached the end asked for"
    assert np.all(np.diff(found.beta) > 0)
    last = found.states[-1]
    again = stationary.solve(interaction, 4.0, last.beta, begin.coefficients)
    np.testing.assert_allclose(again.coefficients, last.coefficients, atol=1e-10)
    # down again: to where it came from
    back = stationary.continued(interaction, last, to=0.0, step=0.2)
    near = np.argmin(np.abs(back.beta - found.states[1].beta))
    assert back.order[near] == pytest.approx(found.states[1].order, abs=0.05)


def test_transition_is_where_the_curvature_of_theory_changes_sign():
    """Near β = 0 the branch R² = d²(d+2)(κ/d − 1)/κ³ has curvature 1/(d(d+2))·d in c_1 = √d R."""
    for d in (2, 5):
        # κ − d = κ³R²/(d(d+2)), c_1² = d R²
        assert stationary.curvature(Interaction(d, 24), 0.0) == pytest.approx(d / (d + 2), rel=1e-5)


def test_says_when_it_is_under_resolved():
    found = stationary.branch(Interaction(2, 12), 3.5, to=100.0, step=0.3)
    assert "under-resolved" in found.status


def test_eigenvalues_are_integrals():
    interaction, beta, d = Interaction(5, 20), 1.3, 5
    area = integrate.quad(lambda t: (1 - t * t) ** ((d - 3) / 2), -1, 1)[0]
    for degree in (1, 2, 4):
        P = lambda t, n=degree: special.eval_gegenbauer(n, 1.5, t) / special.eval_gegenbauer(n, 1.5, 1.0)  # noqa: E731
        exact = integrate.quad(lambda t, P=P: np.exp(beta * t) / beta * P(t) * (1 - t * t), -1, 1)[0] / area
        assert interaction.eigenvalues(beta)[degree - 1] == pytest.approx(exact, rel=1e-10)
        h = 1e-5
        slope = (interaction.eigenvalues(beta + h) - interaction.eigenvalues(beta - h)) / (2 * h)
        np.testing.assert_allclose(interaction.slopes(beta)[:6], slope[:6], atol=1e-8)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Interaction(1), "`d` must be a whole number, at least 2"),
        (lambda: stationary.solve(Interaction(2, 8), -1.0, 1.0, np.zeros(8)), "`kappa` must be positive"),
        (lambda: stationary.solve(Interaction(2, 8), 1.0, 1.0, np.zeros(7)), "`guess` must have the shape"),
        (lambda: stationary.branch(Interaction(2, 8), -1.0, to=3.0), "`beta` must be at least 0"),
        (lambda: stationary.critical_kappas(Interaction(2, 8), 1.0, 9), "`count` must be at most 8"),
        (lambda: tkf.theory.noisy_order(0.0, 3), "`kappa` must be positive"),
    ],
)
def test_refused(call, words):
    with pytest.raises(tkf.InputError, match=words):
        call()


def test_noisy_order_at_its_ends():
    assert tkf.theory.noisy_order(2.9, 3) == 0
    for d in (2, 3, 100):
        for kappa in (1.0001 * d, 3.0 * d, 50.0 * d):
            R = tkf.theory.noisy_order(kappa, d)
            assert R > 0
            assert special.ive(d / 2, kappa * R) / special.ive(d / 2 - 1, kappa * R) == pytest.approx(
                R, abs=1e-12
            )
