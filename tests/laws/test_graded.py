"""Graded quadrature: integrals that are known, crowding where it was asked for, and files that name it."""

import numpy as np
import pytest
from scipy import integrate, special
from scipy.stats import ortho_group

import tokenfield as tkf
from tokenfield.registry import entries

#: What tokens may crowd towards, in the plane and in space.
TURN = ortho_group.rvs(3, random_state=1)
PLACES = [
    np.array([0.6, 0.8]),
    np.array([[0.6, 0.8]]),
    np.array([[0.6, 0.8], [-0.6, -0.8]]),
    TURN[0],
    TURN[:1],
    np.stack([TURN[0], -TURN[0]]),
]


def distance_to(x, towards):
    """Angle to the hyperplane, or to the nearest of the points."""
    if towards.ndim == 1:
        return np.abs(np.arcsin(np.clip(x @ towards, -1, 1)))
    return np.min(np.arccos(np.clip(x @ towards.T, -1, 1)), axis=1)


@pytest.mark.parametrize("towards", PLACES, ids=lambda p: str(p.shape))
@pytest.mark.parametrize("grading", [0.0, 0.9])
def test_integrals_of_a_density(towards, grading):
    """∫e^{⟨a,y⟩}(1 + ⟨b,y⟩)dσ in closed form by Bessel functions; accurate to rounding, whatever the crowding."""
    d = towards.shape[-1]
    a, b = np.array([0.7, -1.1, 0.4])[:d], np.array([0.3, 0.2, -0.5])[:d]
    tokens = tkf.initial.graded(lambda x: 1 + x @ b, 900, towards, grading)
    size = np.linalg.norm(a)
    order = d / 2 - 1
    peak = special.gamma(d / 2) * (2 / size) ** order * special.iv(order, size)
    slope = special.gamma(d / 2) * (2 / size) ** order * special.iv(order + 1, size) / size
    found = np.asarray(tokens.weights) @ np.exp(np.asarray(tokens.x) @ a)
    assert found == pytest.approx(peak + slope * (a @ b), rel=1e-10)


@pytest.mark.parametrize("towards", PLACES, ids=lambda p: str(p.shape))
def test_tokens_crowd_where_they_are_asked_to(towards):
    even, crowded = (
        np.sort(distance_to(np.asarray(tkf.initial.graded(_one, 900, towards, a).x), towards))
        for a in (0.0, 0.95)
    )
    few = 100  # more than a ring of S² holds
    assert crowded[few] < even[few] / 4
    # and not elsewhere: one point of the circle has no other crowd opposite to it
    far = towards.ndim == 2 and len(towards) == 1
    assert not far or crowded[-few] < even[-few]


def _one(x):
    return np.ones(len(x))


def test_density_of_tokens_per_angle():
    """1/(1 − a) at the crowded points of the circle, as the docstring says."""
    a, n = 0.99, 20_000
    x = np.asarray(tkf.initial.graded(_one, n, [[1.0, 0.0]], a).x)
    near = np.sort(np.abs(np.arctan2(x[:, 1], x[:, 0])))[:2]
    assert 2 * near[0] == pytest.approx((1 - a) * 2 * np.pi / n, rel=1e-3)


def test_a_kink_at_the_crowded_hyperplane_is_resolved():
    """∫|x_2|^{1/2} over the circle: the crowd lies where the integrand is rough."""
    exact = integrate.quad(lambda t: np.sqrt(np.sin(t)), 0, np.pi)[0] / np.pi
    errors = []
    for a in (0.0, 0.999):
        tokens = tkf.initial.graded(_one, 400, [0.0, 1.0], a)
        errors.append(abs(np.asarray(tokens.weights) @ np.sqrt(np.abs(np.asarray(tokens.x)[:, 1])) - exact))
    assert errors[1] < errors[0] / 10


def test_a_file_may_name_it():
    entry = entries("law")["graded"]
    settings = entry.make(d=2, n=40, towards=[0.0, 1.0], linear=[0.3, 0.0])
    tokens = settings.build()
    assert tokens.n == settings.size == 40
    assert float(np.asarray(tokens.weights) @ np.asarray(tokens.x)[:, 0]) == pytest.approx(0.15)
    ball = entry.make(n=1250, towards=[[0.0, 1.0, 0.0]])
    assert ball.build().n == ball.size


@pytest.mark.parametrize(
    "towards, grading, sentence",
    [
        (np.eye(4)[0], None, "`towards` must have dimension 2 or 3"),
        (np.eye(3), None, "be a normal \\(d,\\), one point"),
        (np.eye(2), None, "`towards` must have opposite rows"),
        ([2.0, 0.0], None, "`towards` must have norm 1"),
        ([1.0, 0.0], 1.0, "`grading` must lie in \\[0, 1\\)"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(towards, grading, sentence):
    with pytest.raises(tkf.InputError, match=sentence):
        tkf.initial.graded(_one, 40, towards, grading)
