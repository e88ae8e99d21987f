"""The low-temperature recipes: their tokens and laws against integrals, quick runs against the theory."""

import numpy as np
import pytest
from scipy import integrate

import tokenfield as tkf
from tokenfield.laws import initial
from tokenfield.laws.graded import CIRCLE_GRADING
from tokenfield.models.weights import AttentionWeights
from tokenfield.papers import catalogue, recipe
from tokenfield.papers.low_temperature import (
    concentration,
    demo,
    finite_tokens,
    laplace,
    nonsymmetric,
    proof,
    scaling,
    terminal,
    training_drift,
    worked,
)
from tokenfield.theory import limit


def silent(done, what):
    assert 0 <= done <= 1


@pytest.mark.parametrize("grading", [0.0, CIRCLE_GRADING])
def test_circle_tokens_integrate_the_density(grading):
    tokens = worked.circle_tokens(400, grading)
    angle = np.arctan2(tokens.x[:, 1], tokens.x[:, 0])

    def f(t):
        return (1 + 0.3 * np.cos(t) + 0.2 * np.sin(t)) / (2 * np.pi)

    for g in (np.cos, lambda t: np.exp(np.sin(2 * t)), lambda t: np.cos(3 * t) ** 2):
        exact = integrate.quad(lambda t, g=g: f(t) * g(t), 0, 2 * np.pi)[0]
        assert float(tokens.weights @ g(angle)) == pytest.approx(exact, abs=1e-10)


def test_circle_tokens_crowd_near_e1():
    gaps = [
        np.sort(np.arctan2(*np.asarray(worked.circle_tokens(400, a).x).T[::-1]) % (2 * np.pi))[0]
        for a in (0, CIRCLE_GRADING)
    ]
    assert gaps[1] < gaps[0] / 4000


@pytest.mark.parametrize("d", [2, 3])
def test_graded_tokens_are_the_uniform_law_of_the_orthant(d):
    """∫x_1 and ∫x_1² over the positive orthant: 2/π and ½ on the circle, ½ and ⅓ on the sphere."""
    tokens = concentration.graded_tokens(d, 30.0)
    first = np.asarray(tokens.x)[:, 0]
    assert float(tokens.weights @ first) == pytest.approx({2: 2 / np.pi, 3: 0.5}[d], rel=5e-5)
    assert float(tokens.weights @ first**2) == pytest.approx(1 / d, rel=5e-5)
    assert first.min() < 1e-12


def test_graded_tokens_of_the_sphere_are_a_quadrature_of_their_law():
    """Moments of 1 + ⟨a, x⟩ by hand: a/3, I/3, and ⟨x_i² x_j⟩ = a_j/15, three times that for i = j."""
    tokens = worked.graded_sphere_tokens(1250)
    x, w = np.asarray(tokens.x), np.asarray(tokens.weights)
    tilt = np.array(worked.TILT)
    np.testing.assert_allclose(w @ x, tilt / 3, atol=1e-11)
    np.testing.assert_allclose((x.T * w) @ x, np.eye(3) / 3, atol=1e-11)
    np.testing.assert_allclose((x.T**2 * w) @ x, (1 + 2 * np.eye(3)) * tilt / 15, atol=1e-9)
    height = np.unique(np.round(np.abs(x[:, 1]), 12))
    assert height[:2].max() < 1e-2  # two rings where 1250 even tokens are 0.1 apart


def test_least_density_and_gap_of_known_laws():
    """θ → θ + ½ sin θ has the slope 1.5 at 0, where 1 + .3cos θ is 1.3; the uniform law has an exact gap."""
    start = tkf.initial.graded(proof.density, 2000, [0.0, 1.0])
    angle = np.arctan2(start.x[:, 1], start.x[:, 0])
    moved = angle + 0.5 * np.sin(angle)
    now = tkf.Tokens(np.stack([np.cos(moved), np.sin(moved)], axis=1), start.weights)
    exact = np.min(np.log(proof.density(np.asarray(start.x))) - np.log(1 + 0.5 * np.cos(angle)))
    assert proof.least_log_density(start, now) == pytest.approx(exact, abs=1e-3)
    even = tkf.initial.circle_density(np.ones_like, 400)
    aim = np.linalg.norm(np.asarray(even.x) @ np.asarray(worked.CIRCLE.B), axis=1)
    gaps = proof.laplace_gaps(even, worked.CIRCLE, 50.0)
    np.testing.assert_allclose(gaps, tkf.theory.laplace_gap(50.0, 2, aim), rtol=1e-8)


def test_the_chain_is_minimised_over_t_beside_the_measured_curve():
    """At β = 1000 the chain is least at t = 0, where it is the Lyapunov step alone: ∫arctan²|tan∠(x, E)|dρ0."""
    tokens, ts = tkf.initial.graded(proof.density, 100, [0.0, 1.0]), np.array([0.0, 1.0, 2.0])
    cold = worked.run(worked.CIRCLE, np.inf, tokens, ts)
    each = proof.measured(cold, tokens, 1000.0, ts)
    found = proof.least_totals(each)
    # the angle to the axis e2 is uniform on (0, π/2) for this law: its root mean square is π/√12
    assert found["least total bound"] == pytest.approx(np.pi / np.sqrt(12), rel=1e-4)
    assert found["least total"] == each.total[-1] < found["least total if divergence is L"]
    labels = [text.get_text() for text in proof.figure([each]).axes[-1].get_legend().get_texts()]
    assert labels and not any("theorem" in label for label in labels)


def test_bottom_of_a_parabola_of_the_logarithm():
    ts = np.linspace(0, 10, 41)
    when, least = worked.bottom(ts, 0.3 * np.exp(0.05 * (ts - 4.1) ** 2))
    assert when == pytest.approx(4.1) and least == pytest.approx(0.3)
    assert worked.bottom(ts, np.exp(-ts))[0] == 10.0


def test_leaving_rate_is_that_of_clusters_under_v():
    """y' = P_y V y near e2 of the worked case grows at 1 − ½."""
    assert worked.leaving_rate(worked.CIRCLE) == pytest.approx(0.5)
    assert worked.leaving_rate(terminal.CASES[2].weights) == pytest.approx(0.5)


def test_exponents_of_laws_that_were_drawn():
    betas = np.logspace(2, 4, 9)
    found = scaling.Bottoms(worked.CIRCLE, betas, 1.5 + 2 * np.log(betas), 3 * betas**-0.5)
    assert all(check.passed for check in scaling.exponent_checks(found))
    assert found.exponent.power == pytest.approx(-0.5) and -found.slope.rate == pytest.approx(2)
    wrong = scaling.Bottoms(worked.CIRCLE, betas, 1.5 + 3 * np.log(betas), 3 * betas**-0.3)
    assert not any(check.passed for check in scaling.exponent_checks(wrong))


def test_exponents_predicted_where_the_tail_is_slower_than_the_clusters():
    """c = .2/1.5, r = .2/2, v = .2 by hand: s = (⅓)/(.3·.2667), exponent −.1·s."""
    slow = AttentionWeights(np.diag([1.0, 1.5]), np.diag([1.0, 0.8]))
    np.testing.assert_allclose(scaling.predicted(slow), (-0.1 * 25 / 6, 25 / 6), rtol=1e-12)


def test_sharp_rate_of_the_worked_case():
    checks = concentration.sharp_checks(concentration.CASES[:1], silent, (0, 1))
    assert checks[0].passed and checks[0].predicted == 0.25


@pytest.mark.slow
def test_tokens_end_where_v_takes_them(tmp_path):
    case = terminal.TerminalCase("small", (0.5, 2), (1, 0.5), 20, 100, 30)
    (ended,) = terminal.ended([case], tkf.sweep(terminal.grid([case]), 0, store=tmp_path / "s"))
    assert terminal.checks(ended)[0].passed
    # and not where V Bᵀ does
    assert ended.phases.to_limit[-1] > 1.5


def test_laplace_gap_of_the_jump_is_the_integral():
    """By adaptive quadrature on either side of the jump."""
    beta, density = 50.0, laplace.DENSITIES[2]
    found = laplace.gap(initial.circle_density(density.f, 4000), np.array([1.0, 0.0]), np.array([beta]))

    def moment(g):
        sides = ((-np.pi, 0.0, 0.5), (0.0, np.pi, 1.5))
        return sum(
            f * integrate.quad(lambda t: g(t) * np.exp(beta * (np.cos(t) - 1)), a, b)[0] for a, b, f in sides
        )

    mean = np.array([moment(np.cos), moment(np.sin)]) / moment(lambda t: 1.0)
    assert found[0] == pytest.approx(np.linalg.norm(mean - [1, 0]), rel=1e-4)


def test_crossover_of_a_law_that_was_drawn():
    ns = np.array([10, 30, 100, 300, 1000])
    assert finite_tokens.crossover(ns, 10 / ns) == pytest.approx(10 / finite_tokens.SEEN)
    assert np.isnan(finite_tokens.crossover(ns, 1e6 / ns)) and np.isnan(finite_tokens.crossover(ns, 0.1 / ns))


@pytest.mark.parametrize("kind", ["fixed", "rotating", "algebraic"])
def test_nonsymmetric_matrices_are_of_their_kind(kind):
    assert limit(nonsymmetric.weights_of(kind)).kind == kind


def test_the_path_begins_symmetric_and_turns_where_the_discriminant_vanishes():
    path = training_drift.PATHS[0]
    D = np.asarray(path.weights(0.0).D)
    np.testing.assert_allclose(D, D.T, atol=1e-15)
    change = training_drift.transition(path, 0.15, 0.25)
    assert change.merging and change.fixed_below

    def top_two(s):
        values = np.linalg.eigvals(np.asarray(path.weights(s).D))
        return values[np.argsort(-values.real)][:2]

    # (λ1 − λ2)² is smooth in s, positive before and negative after
    before, after = (np.diff(top_two(change.s + h))[0] ** 2 for h in (-1e-5, 1e-5))
    assert before.real > 0 > after.real and abs(before.real + after.real) < 0.01 * before.real


def test_on_the_second_path_a_real_eigenvalue_crosses_the_pair():
    path = training_drift.PATHS[1]
    change = training_drift.transition(path, 0.35, 0.45)
    assert not change.merging and not change.fixed_below

    values = np.linalg.eigvals(np.asarray(path.weights(change.s).D))
    top = values[np.argsort(-values.real)][:3]
    # eigenvalues count as one from the tolerance of `limit` on
    assert np.ptp(top.real) < 1.01 * path.limit(change.s).tolerance and np.sum(top.imag == 0) == 1


@pytest.mark.slow
@pytest.mark.parametrize("chosen", catalogue.recipes("low_temperature"), ids=lambda r: r.name)
def test_quick_recipes_agree_with_the_theory(chosen, tmp_path):
    outcome = recipe.reproduce(chosen, tmp_path, True, silent)
    assert [check.name for check in outcome.checks if not check.passed] == []
    assert (outcome.path / "figure.png").stat().st_size > 10_000


@pytest.mark.slow  # .ci/run also makes the demo as a person does
def test_the_demo_agrees_with_the_theory():
    checks, figure = demo.demo(silent)
    assert [check.name for check in checks if not check.passed] == []
    assert len(figure.subfigs) == 3
