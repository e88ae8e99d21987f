"""The clustering recipes: their parts against integrals and second routes, quick runs against the theory."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

import tokenfield as tkf
from tokenfield import theory
from tokenfield.papers import catalogue, recipe
from tokenfield.papers.clustering import (
    figure1,
    figure2,
    figure3,
    figure4,
    landscape,
    lojasiewicz,
    phase_diagram,
    pl,
    shared,
    staircase,
    synchronisation,
    uniform_instability,
)
from tokenfield.sweeps import pairs

NAMES = {
    "clustering-fig1",
    "clustering-fig2",
    "clustering-fig3",
    "clustering-fig4",
    "lojasiewicz",
    "pl",
    "synchronisation",
    "uniform-instability",
    "landscape",
    "phase-diagram",
    "staircase",
}


def silent(done, what):
    assert 0 <= done <= 1


def test_all_recipes_of_the_paper_are_listed():
    assert {r.name for r in catalogue.recipes("clustering")} == NAMES
    assert {r.name for r in catalogue.RECIPES} >= NAMES


# ---- the examples ----


def test_meeting_time_of_example_25_by_the_equation_of_three_tokens():
    """All three angles, no symmetry used, by SciPy."""
    xi, beta = 0.7, 1.0
    m, a = 0.075, 0.5548110330
    w = np.array([(1 - m) / 2, (1 - m) / 2, m])

    def slope(_, theta):
        s = theta[None] - theta[:, None]
        return (np.exp(beta * np.cos(s)) * np.sin(s)) @ w

    solved = integrate.solve_ivp(
        slope, (0, 0.7), [a, -a, np.pi], rtol=1e-11, atol=1e-13, events=lambda t, y: y[0] - 0.2
    )
    assert solved.t_events[0][0] == pytest.approx(figure1.meeting_time(xi, beta, 0.2), rel=1e-8)


def test_example_26_by_the_models_own_velocities():
    assert figure2.measured_critical_beta() == pytest.approx(0.599130, abs=5e-7)
    np.testing.assert_allclose(figure2.edge_speeds(4.0), [-8.39169518, -3.58902142], atol=5e-9)


def test_consensus_of_figure_3_has_the_slope_of_the_chart():
    rng = np.random.default_rng(0)
    u, w, h = rng.normal(size=(6, 2)), rng.dirichlet(np.ones(6)), 1e-4
    before = figure3.consensus_run(u, w, np.array([0.0, h, 2 * h]))
    slope = (-3 * before[0] + 4 * before[1] - before[2]) / (2 * h)
    expected = theory.consensus(u, w, figure3.BETA, "unnormalised")
    np.testing.assert_allclose(slope, expected, atol=1e-6)


def test_hulls_that_grow_are_seen():
    square = np.array([[1.0, 1], [-1, 1], [-1, -1], [1, -1]])
    assert figure3.worst_escape(np.stack([square, 0.9 * square])) == pytest.approx(-0.1)
    assert figure3.worst_escape(np.stack([square, 1.1 * square])) == pytest.approx(0.1)


def test_turns_of_a_known_curve():
    ts = np.linspace(0, 6, 61)
    np.testing.assert_allclose(figure4.turns(ts, np.cos(ts)), [np.pi / 2, 1.5 * np.pi], atol=1e-5)


def test_square_and_slope_of_a_run():
    """d/dt R² by differences of R² under the exact boost at small β: here of two tokens by hand."""
    a = 0.4
    x = np.array([[np.cos(a), np.sin(a)], [np.cos(a), -np.sin(a)]])
    square, slope = np.asarray(figure4.square_and_slope(jnp.asarray(x[None]), jnp.array([0.5, 0.5])))[0]
    assert square == pytest.approx(np.cos(a) ** 2, rel=1e-12)
    # R = cos a, a' = −½e^{β cos 2a} sin 2a
    rate = 0.5 * np.exp(figure4.BETA * np.cos(2 * a)) * np.sin(2 * a)
    assert slope == pytest.approx(2 * np.cos(a) * np.sin(a) * rate, rel=1e-12)


@pytest.mark.parametrize("off", [0.3, 1e-3])
def test_waiting_time_by_the_equation_of_the_angle(off):
    t = lojasiewicz.waiting_time(off)
    solved = integrate.solve_ivp(
        lambda _, a: -np.exp(lojasiewicz.BETA * np.cos(a)) * np.sin(a),
        (0, t),
        [np.pi - off],
        rtol=1e-11,
        atol=1e-13,
    )
    assert solved.y[0, -1] == pytest.approx(np.pi / 2, abs=1e-7)


# ---- inequalities and rates ----


@pytest.mark.slow
def test_pl_ratio_of_two_tokens_and_of_the_plain_formula():
    angle, beta = 0.6, 2.0
    x = pl.on_cap(jnp.array([angle, angle]), jnp.array([[1.0, 0.0], [-1.0, 0.0]]))
    found = float(jnp.exp(pl.log_ratio(x, jnp.array([0.3, 0.7]), beta)))
    assert found == pytest.approx(theory.pl_bound(angle, beta), rel=1e-12)
    z = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)))
    points, w = pl.placed(z, angle)
    assert float(jnp.min(points[:, 0])) >= np.cos(angle)
    plain = pl._plain_log_ratio(z, jnp.asarray(angle), jnp.asarray(beta))
    assert float(plain) == pytest.approx(float(pl.log_ratio(points, w, beta)), rel=1e-11)


@pytest.mark.parametrize("d", [2, 3, 5])
def test_rings_are_the_density(d):
    """∫x_1 and ∫x_1² of (1 + ½x_1): 1/2d and 1/d; across, ∫x_2² = 1/d by symmetry."""
    tokens = synchronisation.rings(d, 60)
    mean, second = tokens.moments()
    np.testing.assert_allclose(mean, np.eye(d)[0] / (2 * d), atol=1e-9)
    np.testing.assert_allclose(second, np.eye(d) / d, atol=1e-9)


def test_harmonics_are_orthogonal_and_1_at_the_pole():
    for d, n in ((2, 64), (3, 800)):
        flat = (
            tkf.initial.circle_density(np.ones_like, n)
            if d == 2
            else tkf.initial.sphere_density(lambda x: np.ones(len(x)), n, d)
        )
        Y = uniform_instability.harmonics(np.asarray(flat.x), 6)
        gram = (Y * np.asarray(flat.weights)) @ Y.T
        degree = np.arange(1, 7)
        norms = 1 / 2 * np.ones(6) if d == 2 else 1 / (2 * degree + 1)
        np.testing.assert_allclose(gram, np.diag(norms), atol=1e-12)
        np.testing.assert_allclose(uniform_instability.harmonics(np.eye(d)[:1], 6), 1, atol=1e-14)


def test_ends_are_counted():
    e1, e2 = np.array([1.0, 0, 0]), np.array([0, 1.0, 0])
    x = np.stack([[e1] * 6, [e1, -e1, e1, e1, -e1, e1], [e2, -e1, e1, e2, -e1, e2]])
    found = landscape.Ends("by hand", x, np.zeros(3))
    assert found.counts.tolist() == [1, 2, 3]
    np.testing.assert_allclose(found.heavier, [1, 2 / 3, 1 / 2])


# ---- the phase diagram ----


def test_velocity_and_pairs_of_a_system_are_those_of_the_model():
    theta = np.random.default_rng(0).uniform(0, 2 * np.pi, size=(7, 3))
    beta = np.array([0.5, 3.0, 9.0])
    ones = jnp.ones(theta.shape)
    found = np.asarray(pairs.velocity(jnp.asarray(theta), ones, jnp.asarray(beta)))
    close = theta.copy()
    close[1], close[4] = close[0] + 0.02, close[3] + 0.05
    share = np.asarray(pairs.met(jnp.asarray(close), ones))
    for k in range(3):
        x = np.stack([np.cos(theta[:, k]), np.sin(theta[:, k])], axis=1)
        v = np.asarray(shared.softmax(beta[k]).velocity(tkf.Tokens(x)))
        np.testing.assert_allclose(found[:, k], x[:, 0] * v[:, 1] - x[:, 1] * v[:, 0], atol=1e-13)
        gap = np.cos(close[:, None, k] - close[:, k])[np.triu_indices(7, 1)]
        assert share[k] == pytest.approx(np.mean(gap >= 1 - 1e-3))


@pytest.mark.slow
def test_merging_tokens_halving_steps_and_inner_products_change_nothing():
    """Angles with and without merging, with half the step, and by inner products in NumPy."""
    theta, betas = pairs.start(40, 2, 32), np.array([0.5, 4.0])
    kept = phase_diagram.shares(theta, betas, 60, merge=False)
    np.testing.assert_allclose(phase_diagram.shares(theta, betas, 60).share, kept.share, atol=6e-5)
    finer = phase_diagram.shares(theta, betas, 60, step=0.05, stride=4)
    np.testing.assert_allclose(finer.ts, kept.ts, atol=1e-12)
    np.testing.assert_allclose(finer.share, kept.share, atol=2e-4)
    x = np.stack([np.cos(theta.T), np.sin(theta.T)], axis=2)
    products = phase_diagram.any_dimension(x, betas, 60, step=0.05, stride=4)
    np.testing.assert_allclose(products.share, finer.share, atol=6e-5)  # one pair of 19,840
    assert kept.share[0, -1] > 0.5 > kept.share[0, 0]


def test_merged_tokens():
    """Two clusters, one of them across 2π, and a lone token; an empty row stays empty."""
    theta = np.array([[6.28315, 1.0], [1.0, 2.0], [1.00005, 3.0], [0.00002, 0.0]])
    mass = np.array([[2.0, 1.0], [1.0, 1.0], [3.0, 1.0], [1.0, 0.0]])
    found, total, count = pairs.merged(theta, mass)
    assert count.tolist() == [2, 3]
    np.testing.assert_allclose(total, [[3, 1], [4, 1], [0, 1], [0, 0]])
    first = (2 * (6.28315 - 2 * np.pi) + 0.00002) / 3
    np.testing.assert_allclose(found[:2, 0], [first, (1 + 3 * 1.00005) / 4], atol=1e-12)
    np.testing.assert_allclose(found[:3, 1], [1, 2, 3])


def test_equiangular_times():
    """Orthogonal tokens by inner products meet when the equiangular equation says so."""
    betas = np.array([1.0, 3.0])
    found = phase_diagram.half_times(phase_diagram.any_dimension(np.eye(32)[None], betas, 40))
    np.testing.assert_allclose(found, phase_diagram.equiangular_times(betas), atol=0.21)
    assert np.isinf(phase_diagram.equiangular_times(np.array([9.0]))[0])


# ---- the staircase ----


@pytest.mark.parametrize("beta", [3.0, 9.0])
def test_two_equal_clusters_merge_when_two_tokens_do(beta):
    """t = ∫(1+e^{β(1−ρ)})/(2(1−ρ²))dρ of theory §4."""
    found = staircase.next_merger(np.array([0.2, 2.7]), np.array([0.5, 0.5]), beta, 1e12)
    expected = theory.two_tokens(np.cos(2.5), np.cos(staircase.LINK), beta)
    assert found == pytest.approx(expected, rel=1e-6)


def test_clusters_that_do_not_meet_in_time():
    assert staircase.next_merger(np.array([0.0, 3.1]), np.array([0.6, 0.4]), 9.0, 10.0) == np.inf


@pytest.mark.slow
@pytest.mark.parametrize("chosen", catalogue.recipes("clustering"), ids=lambda r: r.name)
def test_quick_recipes_agree_with_the_theory(chosen, tmp_path):
    outcome = recipe.reproduce(chosen, tmp_path, True, silent)
    assert [check.name for check in outcome.checks if not check.passed] == []
    assert (outcome.path / "figure.png").stat().st_size > 10_000
