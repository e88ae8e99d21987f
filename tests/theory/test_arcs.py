"""Two arcs that face each other, against the printed digits of theory §3.10 and quadrature."""

import numpy as np
import pytest

import tokenfield as tkf
from tokenfield import theory


def test_critical_beta_reference_numbers():
    assert theory.critical_beta(0.7, np.pi / 8) == pytest.approx(0.599130, abs=5e-7)
    assert theory.critical_beta(0.7, np.pi / 6) == pytest.approx(0.847298, abs=5e-7)
    assert theory.critical_beta(0.7, 1e-4) == pytest.approx(0.5 * np.log(7 / 3), abs=1e-7)
    assert theory.critical_beta(0.3, np.pi / 8) == pytest.approx(0.599130, abs=5e-7)
    # log(p/q)/(2cos2w) = .14189 holds only while the worst law sits at the edges; here it does not
    assert theory.critical_beta(0.55, np.pi / 8) == pytest.approx(0.17158, abs=5e-6)
    velocities = theory.edge_velocities(0.7, np.pi / 8, 4.0)
    np.testing.assert_allclose(velocities, [-8.39169518, -3.58902142], atol=5e-9)


@pytest.mark.parametrize(("p", "w"), [(0.7, 0.3), (0.9, 0.5), (0.55, np.pi / 8), (0.5, 0.6), (0.62, 0.7)])
def test_critical_beta_is_where_the_worst_even_law_lets_go(p, w):
    """Velocity of the lighter arc's edge over all pairs of atoms: inwards for every law above, not below."""
    q, a = 1 - p, np.linspace(0, w, 801)

    def worst(beta):
        """Greatest outward velocity of the edge π+w over laws ½(δ_{±b}) of mass p and ½(δ_{π±a}) of mass q."""

        def pull(s):
            return np.exp(beta * np.cos(s)) * np.sin(s)

        edge = np.pi + w
        own = 0.5 * (pull(np.pi + a - edge) + pull(np.pi - a - edge))
        other = 0.5 * (pull(a - edge) + pull(-a - edge))
        return np.max(q * own) + np.max(p * other)

    critical = theory.critical_beta(p, w)
    assert worst(critical * (1 + 1e-4)) < 0 < worst(critical * (1 - 1e-4))
    edges = np.log(p / q) / (2 * np.cos(2 * w))
    assert critical >= edges - 1e-12
    if (p, w) in ((0.7, 0.3), (0.9, 0.5)):
        assert critical == pytest.approx(edges, rel=1e-10)


@pytest.mark.parametrize(
    ("p", "w", "beta"), [(0.7, np.pi / 8, 4.0), (0.6, 0.5, 1.3), (0.6, 0.5, 0.0), (0.7, 0.3, -2.5)]
)
def test_edge_velocities_by_quadrature(p, w, beta):
    tokens = theory.two_arcs(40, p, w)
    x, weights = np.asarray(tokens.x), np.asarray(tokens.weights)
    for edge, expected in zip((w, np.pi + w), theory.edge_velocities(p, w, beta), strict=True):
        at, tangent = np.array([np.cos(edge), np.sin(edge)]), np.array([-np.sin(edge), np.cos(edge)])
        assert np.sum(weights * np.exp(beta * x @ at) * (x @ tangent)) == pytest.approx(expected, rel=1e-12)


def test_below_zero_no_arc_holds_its_tokens():
    """The lighter arc's edge moves out for every β ≤ 0: `critical_beta` has no negative branch."""
    for beta in (0.0, -0.5, -3.0):
        assert theory.edge_velocities(0.6, 0.3, beta)[1] > 0


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: theory.critical_beta(0.7, 1.0), "`w` must lie between 0 and π/4"),
        (lambda: theory.edge_velocities(0.7, 0.3, -800.0), "`beta` must give values below"),
        (lambda: theory.edge_velocities(0.7, 0.3, np.nan), "`beta` must be a finite number"),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad()
