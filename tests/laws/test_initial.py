"""Initial laws: reproducible, of the right distribution, quadrature of the right accuracy."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, special, stats

import tokenfield as tkf
from tokenfield.laws import initial

RANDOM = {
    "uniform": lambda key: initial.uniform(200, 3, key),
    "vmf": lambda key: initial.von_mises_fisher(200, [0, 0, 1.0], 4.0, key),
    "cap": lambda key: initial.cap(200, [0, 1.0, 0], 0.7, key),
    "poisson": lambda key: initial.poisson(200, [0.3, 0.1, 0.0], key),
    "sampled": lambda key: initial.sampled(lambda x: 1 + x[:, 0], 200, 3, key, 2.0),
}


@pytest.mark.parametrize("law", RANDOM)
def test_same_key_same_tokens(law):
    np.testing.assert_array_equal(RANDOM[law](5).x, RANDOM[law](5).x)
    assert not np.allclose(RANDOM[law](5).x, RANDOM[law](6).x)


@pytest.mark.parametrize("d", [2, 3, 8])
def test_uniform_heights_follow_the_beta_law(d):
    x = np.asarray(initial.uniform(20_000, d, 1).x)
    law = stats.beta((d - 1) / 2, (d - 1) / 2)
    assert stats.kstest((1 + x[:, -1]) / 2, law.cdf).pvalue > 1e-3


@pytest.mark.parametrize(("d", "kappa"), [(2, 3.0), (3, 0.5), (3, 50.0), (6, 10.0)])
def test_von_mises_fisher_mean_is_a_bessel_ratio(d, kappa):
    mean = np.ones(d) / np.sqrt(d)
    x = np.asarray(initial.von_mises_fisher(40_000, mean, kappa, 2).x)
    heights = x @ mean
    expected = special.ive(d / 2, kappa) / special.ive(d / 2 - 1, kappa)
    assert abs(heights.mean() - expected) < 4 * heights.std() / np.sqrt(len(x))


@pytest.mark.parametrize(("d", "angle"), [(2, 1.0), (3, 0.3), (5, 2.5), (7, np.pi)])
def test_cap_is_uniform_within_its_angle(d, angle):
    centre = np.eye(d)[1]
    theta = np.arccos(np.clip(np.asarray(initial.cap(20_000, centre, angle, 3).x) @ centre, -1, 1))
    assert theta.max() <= angle + 1e-9
    total = integrate.quad(lambda s: np.sin(s) ** (d - 2), 0, angle)[0]

    def cdf(t):
        return np.array([integrate.quad(lambda s: np.sin(s) ** (d - 2), 0, v)[0] / total for v in t])

    assert stats.kstest(theta[:2000], cdf).pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("d", "angle"), [(512, 0.01), (512, 0.3), (4096, 1e-3), (4096, 1.0), (300, 1e-3)])
def test_cap_in_many_dimensions(d, angle):
    """The cap's share of the sphere underflows; the law of the angle within it is that of its density."""
    tokens = initial.cap(3000, np.eye(d)[0], angle, 3)
    x = np.asarray(tokens.x)
    theta = np.arctan2(np.linalg.norm(x[:, 1:], axis=1), x[:, 0])
    assert theta.max() <= angle * (1 + 1e-12)
    assert theta.min() > 0
    width = np.tan(angle) / (d - 2)  # the density falls by e over this much

    def density(s):  # of (angle − θ)/width
        return np.exp((d - 2) * (np.log(np.sin(angle - width * s)) - np.log(np.sin(angle))))

    edges = np.linspace(0, min(60.0, angle / width * (1 - 1e-9)), 4001)
    pieces = [integrate.fixed_quad(density, a, b, n=5)[0] for a, b in pairwise(edges)]
    mass = np.concatenate([[0], np.cumsum(pieces)])
    assert stats.kstest((angle - theta) / width, lambda s: np.interp(s, edges, mass / mass[-1])).pvalue > 1e-3
    np.testing.assert_array_equal(x, initial.cap(3000, np.eye(d)[0], angle, 3).x)
    # across the axis the tokens are spread evenly: the mean of unit vectors is of length about 1/√n
    across = x[:, 1:] / np.linalg.norm(x[:, 1:], axis=1, keepdims=True)
    assert np.linalg.norm(across.mean(axis=0)) < 1.5 / np.sqrt(3000)


@pytest.mark.parametrize("angle", [1e-3, 1.0, np.pi])
def test_cap_in_space_is_uniform_in_height(angle):
    """Archimedes; both ways of drawing agree with it."""
    for smallest in (initial.SMALLEST_SHARE, 2.0 if angle < 1.5 else 0.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(initial, "SMALLEST_SHARE", smallest)
            x = np.asarray(initial.cap(5000, [0, 0, 1.0], angle, 1).x)
        half = np.arctan2(np.linalg.norm(x[:, :2], axis=1), x[:, 2]) / 2
        assert stats.kstest(np.sin(half) ** 2 / np.sin(angle / 2) ** 2, "uniform").pvalue > 1e-3


@pytest.mark.parametrize(("d", "most"), [(2, 2.0), (3, 2.0), (3, 7.0)])
def test_sampled_heights_follow_their_density(d, most):
    """1 + h over the heights h = cos θ: by angle on the circle, uniform heights on S²."""
    h = np.asarray(initial.sampled(lambda x: 1 + x[:, 0], 20_000, d, 1, most).x)[:, 0]
    cdf = {2: lambda h: 1 - (np.arccos(h) + np.sqrt(1 - h**2)) / np.pi, 3: lambda h: (1 + h) ** 2 / 4}[d]
    assert stats.kstest(h, cdf).pvalue > 1e-3


@pytest.mark.parametrize("d", [2, 3, 5])
def test_poisson_quadrature_has_the_order_parameter_of_the_density(d):
    """R against the integral of the stated density, not against our own formula for it."""
    r = 0.4
    axis = np.random.default_rng(d).normal(size=d)
    axis /= np.linalg.norm(axis)

    def density(t):
        return (1 - r**2) ** (d - 1) / (1 - 2 * r * t + r**2) ** (d - 1) * (1 - t**2) ** ((d - 3) / 2)

    def heights(power):  # substitution t = cos s removes the end point singularity at d = 2
        return integrate.quad(lambda s: np.cos(s) ** power * density(np.cos(s)) * np.sin(s), 0, np.pi)[0]

    tokens = initial.poisson(600, r * axis)
    expected = heights(1) / heights(0)
    np.testing.assert_allclose(tokens.moments().mean, expected * axis, atol=1e-10)
    assert float(tkf.theory.poisson_radius_order(r, d)) == pytest.approx(expected, rel=1e-10)
    sample = initial.poisson(20_000, r * axis, key=1)
    assert abs(np.asarray(sample.x @ axis).mean() - expected) < 4 / np.sqrt(20_000)


@pytest.mark.parametrize(
    ("n", "d", "rho"), [(4, 4, 0.3), (5, 9, -0.25), (32, 32, 0.0), (3, 3, 1.0), (1, 2, 0.5)]
)
def test_equiangular_tokens_share_one_inner_product(n, d, rho):
    x = np.asarray(initial.equiangular(n, d, rho).x)
    gram = x @ x.T
    np.testing.assert_allclose(gram, np.where(np.eye(n), 1, rho), atol=1e-14)


def test_circle_density_is_spectrally_accurate():
    """∫e^{ikθ}dμ for the von Mises density is I_k(κ)/I_0(κ)."""
    tokens = initial.circle_density(lambda t: np.exp(3 * np.cos(t)), 64)
    z = tokens.x[:, 0] + 1j * tokens.x[:, 1]
    for k in (1, 2, 5):
        expected = special.iv(k, 3.0) / special.iv(0, 3.0)
        np.testing.assert_allclose(np.sum(tokens.weights * z**k), expected, atol=1e-14)


def test_a_density_may_be_an_indicator():
    tokens = initial.circle_density(lambda t: t < np.pi, 8)
    np.testing.assert_array_equal(tokens.weights, [0.25] * 4 + [0] * 4)


def test_sphere_density_integrates_polynomials_exactly():
    tokens = initial.sphere_density(lambda x: 1 + x[:, 2] ** 3 + x[:, 0] * x[:, 1], 300)
    np.testing.assert_allclose(tokens.moments().mean, [0, 0, 1 / 5], atol=1e-14)
    np.testing.assert_allclose(tokens.moments().second[0, 1], 1 / 15, atol=1e-14)


def test_quasi_random_density_beats_monte_carlo():
    """⟨x, e⟩ of the density 1 + ⟨x, e⟩ on the sphere of R^6 is 1/6; iid error would be about .4/√n."""
    n = 4096
    mean = initial.sphere_density(lambda x: 1 + x[:, 0], n, d=6).moments().mean
    assert abs(float(mean[0]) - 1 / 6) < 0.1 / np.sqrt(n)


@pytest.mark.parametrize("d", [2, 3, 4, 50])
def test_zonal_density_has_the_von_mises_fisher_mean(d):
    kappa, axis = 2.5, np.eye(d)[-1]
    tokens = initial.zonal_density(lambda t: np.exp(kappa * t), axis, 40 * 2 * (d - 1))
    expected = special.ive(d / 2, kappa) / special.ive(d / 2 - 1, kappa)
    np.testing.assert_allclose(tokens.moments().mean, expected * axis, atol=1e-13)


def test_mixture_adds_laws():
    a, b = tkf.Tokens([[1.0, 0.0]]), tkf.Tokens([[0.0, 1.0], [0.0, -1.0]])
    both = initial.mixture([a, b], [0.2, 0.8])
    np.testing.assert_allclose(both.weights, [0.2, 0.4, 0.4])


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: initial.uniform(0, 3, 0), "`n` must be a whole number, at least 1, but was 0"),
        (lambda: initial.uniform(5, 1, 0), "`d` must be a whole number, at least 2, but was 1"),
        (lambda: initial.uniform(5, 3, 0.5), "`key` must be a whole number, at least 0, but was 0.5"),
        (lambda: initial.uniform(5, 3, -1), "`key` must be a whole number, at least 0, but was -1"),
        (lambda: initial.cap(5, [0, 2.0], 1.0, 0), "`centre` must have norm 1, but was of norm 2"),
        (lambda: initial.cap(5, [0, 1.0], 4.0, 0), r"`angle` must lie in \(0, π\], but was 4"),
        (lambda: initial.von_mises_fisher(5, [0, 1.0], -1.0, 0), "`kappa` must be at least 0"),
        (lambda: initial.poisson(9, [1.0, 0.0]), "`w` must lie inside the unit ball, but was of norm 1"),
        (lambda: initial.equiangular(4, 3, 0.0), "`d` must be at least n = 4, but was 3"),
        (lambda: initial.equiangular(4, 4, -0.5), r"`rho` must lie in \[-0.333333, 1\], but was -0.5"),
        (lambda: initial.circle_density(np.cos, 9), "`f` must be finite, at least 0 and not 0 everywhere"),
        (lambda: initial.sphere_density(lambda x: x[:, 0] * np.nan, 9), "`f` must be finite"),
        (
            lambda: initial.sampled(lambda x: 1 + x[:, 0], 9, 2, 0, 1.5),
            "`most` must be at least f everywhere, but was 1.5, below a value 2 of f",
        ),
        (
            lambda: initial.sampled(np.ones_like, 9, 2, 0, 0.0),
            "`most` must be positive and finite, but was 0.0",
        ),
        (lambda: initial.sampled(lambda x: -x[:, 0], 9, 2, 0, 1.0), "`f` must be finite, at least 0"),
        (
            lambda: initial.sampled(lambda x: np.ones(len(x)), 9, 2, 0, 1e300),
            "`most` must be near the greatest value of f",
        ),
        (lambda: initial.mixture([tkf.Tokens(np.eye(2))], [0.5]), "`masses` must be at least 0 and sum to 1"),
        (lambda: initial.mixture([tkf.Tokens(np.eye(2)), tkf.Tokens(np.eye(3))], [0.5, 0.5]), "`parts` must"),
        (lambda: initial.mixture(None, [1.0]), "`parts` must be a list of Tokens, but was None"),
        (lambda: initial.mixture([np.eye(2)], [1.0]), "`parts` must be a list of Tokens"),
        (lambda: initial.mixture([tkf.Tokens(np.eye(2))], [[1.0], [1.0, 2.0]]), "`masses` must be an array"),
        (lambda: initial.circle_density(3, 9), "`f` must be a function of an array of points, but was 3"),
        (
            lambda: initial.circle_density(lambda t: t[:2], 9),
            r"`f` must give one number for each of the 9 points",
        ),
        (lambda: initial.circle_density(lambda t: "a", 9), r"`f\(...\)` must be an array of real numbers"),
        (
            lambda: initial.sphere_density(None, 9),
            "`f` must be a function of an array of points, but was None",
        ),
        (lambda: initial.sphere_density(lambda x: x, 9), "`f` must give one number for each"),
        (lambda: initial.zonal_density(None, [0, 1.0], 9), "`profile` must be a function"),
        (
            lambda: initial.zonal_density(lambda t: t[:, None], [0, 0, 1.0], 9),
            "`profile` must give one number",
        ),
        (lambda: initial.zonal_density(lambda t: -t, [0, 0, 1.0], 9), "`profile` must be finite, at least 0"),
        (lambda: initial.von_mises_fisher(5, [[1.0], [1.0, 2.0]], 1.0, 0), "`mean` must be an array of real"),
        (lambda: initial.poisson(5, [[1.0], [1.0, 2.0]]), "`w` must be an array of real"),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad()
