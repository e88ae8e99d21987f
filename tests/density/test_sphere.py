"""Densities on S²: transforms against SciPy's harmonics, exact laws, rates, noise, mass, resolution."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import tokenfield as tkf
from tests.marks import mostly_slow
from tokenfield import density
from tokenfield.density.grid import HarmonicGrid, times_coordinates
from tokenfield.density.sphere import _Field

#: One degree for all quick runs: they share a compiled program.
DEGREE = 20


def identity(beta, kind=tkf.SoftmaxAttention):
    return kind(tkf.AttentionWeights.identity(3), beta)


def tilted(x):
    """A smooth law without symmetry."""
    return np.exp(0.5 * x[:, 0] - 0.3 * x[:, 1] * x[:, 2] + 0.2 * x[:, 2])


# -- transforms


def test_moments_are_integrals_against_harmonics():
    grid, rng = HarmonicGrid.plan(6), np.random.default_rng(0)
    x = np.asarray(grid.points)
    theta, phi = np.arccos(x[2]), np.arctan2(x[1], x[0])
    assert np.sum(np.asarray(grid.weights)[:, None] * np.ones(grid.shape)) == pytest.approx(1, abs=1e-14)
    for degree, m in [(0, 0), (3, 0), (4, 3), (6, 6)]:
        c = rng.normal() + 1j * rng.normal() * (m > 0)
        harmonic = special.sph_harm_y(degree, m, theta, phi)
        field = (4 * np.pi * c * harmonic).real * (2 if m else 1)
        expected = np.zeros((7, 7), complex)
        expected[m, degree] = c
        found = grid.moments(jnp.asarray(field)[None])
        np.testing.assert_allclose(found[0], expected, atol=1e-14)
        np.testing.assert_allclose(grid.values(found)[0], field, atol=1e-12)


@pytest.mark.slow
def test_coordinates_multiply_on_the_side_of_the_moments():
    grid = HarmonicGrid.plan(9)
    f = grid.values(grid.moments(jnp.exp(grid.points[0] - grid.points[1] * grid.points[2])[None]))
    f = grid.values(jnp.where(jnp.arange(10) <= 8, grid.moments(f), 0.0))  # so that x f has degree 9
    expected = grid.moments(f[0] * grid.points)
    np.testing.assert_allclose(times_coordinates(grid.moments(f)[0]), expected, atol=1e-15)


def test_divergence_of_gradients_and_rotations():
    """F = ∇f + a × x: div F = Δf, with f = ⟨x, S x⟩, Δf = 2 tr S − 6 f."""
    grid, a = HarmonicGrid.plan(8), np.array([0.3, -1.0, 2.0])
    x = np.asarray(grid.points)
    S = np.asarray(tkf.ensembles.goe(3, 0))
    Sx = np.einsum("ij,jrp->irp", S, x)
    f = np.sum(x * Sx, axis=0)
    field = 2 * (Sx - f * x) + np.cross(a, x, axis=0)
    found = grid.values(grid.divergence(jnp.asarray(field))[None])[0]
    np.testing.assert_allclose(found, 2 * np.trace(S) - 6 * f, atol=1e-12)


# -- the field against the sums over tokens


HEADS = {
    "opposed": tkf.SoftmaxAttention(
        tkf.AttentionWeights(-1.5 * np.eye(3), tkf.ensembles.gaussian(3, 2)), 2.0
    ),
    "general": tkf.SoftmaxAttention(
        tkf.AttentionWeights(tkf.ensembles.gaussian(3, 1), tkf.ensembles.gaussian(3, 2)), 2.0
    ),
    "unnormalised": tkf.UnnormalisedAttention(tkf.AttentionWeights(np.diag([0.5, 2.0, 1.0]), np.eye(3)), 1.0),
    "interaction": tkf.InteractionFlow(lambda s: s**3 + s, -0.7 * np.eye(3)),
    "interaction-A": tkf.InteractionFlow(lambda s: s**3 + s, np.diag([1.0, 0.5, -0.3])),
    "zero": tkf.ZeroTemperature(tkf.AttentionWeights(np.diag([0.5, 2.0, 1.0]), tkf.ensembles.gaussian(3, 2))),
}


@pytest.mark.parametrize("name", mostly_slow(HEADS, ["interaction"]))
def test_every_head_reads_what_tokens_read(name):
    """The law as 5,000 quadrature tokens, read at the points of the grid by direct sums."""
    model = HEADS[name]
    field = _Field.plan(model, DEGREE, 1e-9)
    grid = field.grid
    x = np.asarray(grid.points).reshape(3, -1).T
    moments = grid.moments(jnp.asarray(tilted(x)).reshape(1, *grid.shape))[0]
    moments = moments / (moments[0, 0].real * np.sqrt(4 * np.pi))
    law = grid.values(moments[None])[0]
    every = jnp.concatenate([moments[None], times_coordinates(moments)])
    found = sum(f * part(grid, every, law) for part, f in zip(field.readings, field.factors, strict=True))
    some = slice(None, None, 53)
    exact = model.output(jnp.asarray(x[some]), tkf.initial.sphere_density(tilted, 5000))
    np.testing.assert_allclose(found.reshape(3, -1).T[some], exact, atol=1e-9)


# -- runs


def poisson_density(x, r):
    w = np.array([r, 0, 0])
    return ((1 - r * r) / np.sum((x - w) ** 2, axis=1)) ** 2


def test_poisson_laws_are_met_with_spectral_accuracy():
    """β = 0, r0 = .2 (theory §4); the r of the later law from its own equation."""
    ts = np.array([0.0, 0.4, 0.8])
    run = density.solve(identity(0.0), lambda x: poisson_density(x, 0.2), ts, density.Sphere(DEGREE))
    exact = tkf.theory.poisson_order(ts, 0.2, 3)
    R = [np.linalg.norm(run.moments(k).mean) for k in range(3)]
    np.testing.assert_allclose(R, exact, atol=1e-7)
    h = lambda r: 4 / 3 * r * special.hyp2f1(1, -0.5, 2.5, r * r)  # noqa: E731
    r = np.linspace(0.2, 0.6, 400_001)
    last = r[np.argmin(np.abs(h(r) - exact[-1]))]
    np.testing.assert_allclose(run.density[-1], poisson_density(run.nodes, last), rtol=2e-4)
    np.testing.assert_allclose(run.mass, 1, atol=1e-12)
    assert run.resolved
    assert run.minimum.min() > 0


@pytest.mark.parametrize("kappa", [np.inf, 40.0])
def test_harmonics_grow_at_their_rates(kappa):
    """Softmax, β = 5, degree 3: theory §3.4, less the decay l(l+1)/κ by noise."""
    rate = tkf.theory.growth_rate(3, 5.0, 3, "softmax") - 12 / kappa
    model = identity(5.0) + tkf.Noise(kappa)
    assert model.noisy == (kappa < np.inf)
    harmonic = lambda x: special.legendre(3)(x[:, 0])  # noqa: E731
    domain = density.Sphere(DEGREE, tolerance=1e-11)
    run = density.solve(model, lambda x: 1 + 1e-4 * harmonic(x), [0, 1.0], domain)
    size = run.masses @ harmonic(run.nodes)
    assert np.log(size[1] / size[0]) == pytest.approx(rate, rel=1e-4)
    np.testing.assert_allclose(run.mass, 1, atol=1e-12)


def test_runs_that_cannot_be_resolved_say_so():
    run = density.solve(identity(5.0), lambda x: np.exp(8 * x[:, 0]), [0, 2.0], density.Sphere(DEGREE))
    assert not run.resolved
    assert "under-resolved from t = " in run.status
    np.testing.assert_allclose(run.mass, 1, atol=1e-12)
    assert np.isfinite(run.density).all()


def test_samples_have_the_law():
    domain = density.Sphere(DEGREE)
    run = density.solve(identity(0.0), tilted, [0.0], domain)
    sample = run.sample(40_000, 3).moments()
    exact = run.moments()
    assert np.abs(sample.mean - exact.mean).max() < 0.02
    assert np.abs(sample.second - exact.second).max() < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("flow", ["softmax", "unnormalised"])
@pytest.mark.parametrize("degree", [1, 3, 4])
def test_all_growth_rates(flow, degree):
    kind = {"softmax": tkf.SoftmaxAttention, "unnormalised": tkf.UnnormalisedAttention}[flow]
    rate = tkf.theory.growth_rate(3, 5.0, degree, flow)
    harmonic = lambda x: special.legendre(degree)(x[:, 2])  # noqa: E731
    domain = density.Sphere(DEGREE, tolerance=1e-11)
    run = density.solve(identity(5.0, kind), lambda x: 1 + 1e-4 * harmonic(x), [0, 1 / rate], domain)
    size = run.masses @ harmonic(run.nodes)
    assert np.log(size[1] / size[0]) == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: density.Sphere(2), "`degree` must be a whole number, at least 4"),
        (
            lambda: density.solve(identity(np.inf), tilted, [0, 1.0], "sphere"),
            "`model` must have a smooth velocity",
        ),
        (
            lambda: density.solve(
                tkf.ZeroTemperature(tkf.AttentionWeights.identity(2)), tilted, [0, 1.0], "sphere"
            ),
            "`model` must have the dimension 3 of the domain, but was 2",
        ),
        (
            lambda: density.solve(identity(1.0), "flat", [0, 1.0], "sphere"),
            "`rho0` must be an array of real numbers",
        ),
        (
            lambda: density.solve(identity(1.0), lambda x: x[:, 0], [0, 1.0], "sphere"),
            "`rho0` must be finite, at least 0",
        ),
    ],
)
def test_bad_input_is_one_sentence(make, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        make()
