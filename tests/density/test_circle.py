"""Densities on the circle: velocities by loops, exact laws, rates, orders, mass, positivity, resolution."""

import jax.numpy as jnp
import numpy as np
import pytest

import tokenfield as tkf
from tests.marks import mostly_slow
from tokenfield import density
from tokenfield.density import circle, circle_reading, resolution, volumes

ONE = tkf.AttentionWeights.identity(2)
#: One number of modes for all quick spectral runs of one kind: they share a compiled program.
MODES = 128


def turn(angle):
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s], [s, c]])


def smooth(theta):
    return 1 + 0.5 * np.cos(theta) + 0.3 * np.sin(2 * theta)


TURNED = tkf.AttentionWeights(turn(0.3) @ np.diag([0.5, 1.2]), np.array([[1.0, 0.3], [-0.2, 0.8]]))
MODELS = {
    "softmax": tkf.SoftmaxAttention(ONE, 3.0),
    "unnormalised": tkf.UnnormalisedAttention(ONE, 3.0),
    "V turns": tkf.SoftmaxAttention(tkf.AttentionWeights(np.eye(2), turn(0.7) @ np.diag([1, 0.5])), 3.0),
    "B negative": tkf.SoftmaxAttention(tkf.AttentionWeights(-np.eye(2), np.eye(2)), 2.0),
    "B and V": tkf.SoftmaxAttention(TURNED, 3.0),
    "unnormalised, B and V": tkf.UnnormalisedAttention(TURNED, 2.0),
    "heads": tkf.SoftmaxAttention(
        tkf.AttentionWeights(np.stack([np.diag([0.5, 2.0]), np.eye(2)]), np.stack([np.eye(2), turn(1.0)])),
        2.0,
    ),
    "two multiples of I": tkf.UnnormalisedAttention(
        tkf.AttentionWeights(np.stack([2 * np.eye(2), -np.eye(2)]), np.stack([np.eye(2), turn(1.0)])), 1.0
    ),
    "φ": tkf.InteractionFlow(lambda s: jnp.exp(2 * s) / 2 + 0.3 * s**3, np.eye(2)),
    "φ, A": tkf.InteractionFlow(lambda s: jnp.exp(2 * s) / 2 + 0.3 * s**3, np.diag([1.0, 0.5])),
    "cold": tkf.UnnormalisedAttention(ONE, 400.0),
}


@pytest.mark.parametrize("name", mostly_slow(MODELS, ("φ", "V turns", "cold")))
def test_velocities_are_those_of_the_nodes_as_tokens(name):
    """Both schemes, convolutions and matrices, against the model's own sums at the same places."""
    model, size = MODELS[name], 96
    tokens = tkf.initial.circle_density(smooth, size)
    edges = np.arange(size) * (2 * np.pi / size)
    x = np.stack([np.cos(edges), np.sin(edges)], axis=1)
    read = np.asarray(model.output(jnp.asarray(x), tokens))
    expected = x[:, 0] * read[:, 1] - x[:, 1] * read[:, 0]
    atol = 1e-12 * max(1, np.abs(expected).max())
    if name != "cold":  # 96 tokens are too few for so narrow a kernel
        turn = np.exp(-1j * np.arange(size // 2) * np.pi / size)
        c = jnp.asarray(np.fft.rfft(np.asarray(tokens.weights))[: size // 2] * turn)
        found = volumes.cells_of(model, size).velocity(c, tokens.weights)
        np.testing.assert_allclose(found, expected, atol=atol)
    dense = circle_reading._on_grid(model, size, on_edges=True)(None, tokens.weights)
    np.testing.assert_allclose(dense, expected, atol=atol)


def test_any_other_model_by_its_own_sums():
    model = tkf.ZeroTemperature(TURNED)
    field = circle.spectral_field(model, 32)
    theta = np.arange(field.size) * (2 * np.pi / field.size)
    x = np.stack([np.cos(theta), np.sin(theta)], axis=1)
    v = np.asarray(model.velocity(tkf.Tokens(x)))
    u = field.velocity(None, jnp.full(field.size, 1 / field.size))
    np.testing.assert_allclose(u, x[:, 0] * v[:, 1] - x[:, 1] * v[:, 0], atol=1e-14)


@pytest.mark.parametrize(
    ("flow", "kind"),
    [
        pytest.param("softmax", tkf.SoftmaxAttention, marks=pytest.mark.slow),
        ("unnormalised", tkf.UnnormalisedAttention),
    ],
)
def test_growth_about_the_uniform_law(flow, kind):
    """Theory §3.4, by the right-hand sides of both schemes; d = 2, β = 5, l = 3: 18.5961 / .682678."""
    for beta, degree in [(1.0, 1), (5.0, 3), (20.0, 6)]:
        rate = float(tkf.theory.growth_rate(2, beta, degree, flow))
        c = jnp.zeros((2, MODES // 2)).at[0, 0].set(1.0).at[:, degree].set(jnp.array([3e-7, 4e-7]))
        change = circle.spectral_field(kind(ONE, beta), MODES)(c)
        np.testing.assert_allclose(change[:, degree] / c[:, degree], rate, rtol=1e-6)
        theta = circle_reading.angles(2048)
        rho = jnp.asarray(1 + 1e-6 * np.cos(degree * theta))
        flux, _ = volumes.cells_of(kind(ONE, beta), 2048).fluxes(rho)
        slope = -(jnp.roll(flux, -1) - flux) * 2048 / (2 * np.pi)
        assert float(2e6 * jnp.mean(slope * np.cos(degree * theta))) == pytest.approx(rate, rel=1e-4)
    assert float(tkf.theory.growth_rate(2, 5.0, 3, "unnormalised")) == pytest.approx(18.5961, rel=1e-5)


def poisson(t, r0=0.2):
    """Density relative to the uniform law of the Poisson law at time t under β = 0 (theory §4)."""
    R = float(tkf.theory.poisson_order([0.0, t], r0, 2)[-1]) if t else r0
    return lambda theta: (1 - R**2) / (1 - 2 * R * np.cos(theta) + R**2)


FREE = tkf.UnnormalisedAttention(ONE, 0.0)


def test_poisson_law_by_modes():
    ts = [0.0, 1.0, 2.0, 4.0]
    found = density.solve(FREE, poisson(0), ts, density.Circle(MODES, "spectral", 1e-11))
    R = [float(jnp.linalg.norm(found.moments(k).mean)) for k in range(4)]
    np.testing.assert_allclose(R[1:], [0.3189649611, 0.4851827523, 0.8334562386], atol=2e-10)
    # spectral: the only errors are those of time and of the modes left out, R^{MODES/2}
    np.testing.assert_allclose(found.density[1], poisson(1.0)(found.nodes), atol=1e-9)
    np.testing.assert_allclose(found.density[2], poisson(2.0)(found.nodes), atol=1e-9)
    np.testing.assert_allclose(found.mass, 1, atol=1e-12)
    assert found.resolved == (found.tail.max() <= resolution.SPECTRAL_TAIL)
    # R^43 at t = 4 is what 128 modes carry in the top third
    assert found.tail[-1] == pytest.approx(0.8334562386**43, rel=1)
    assert "under-resolved from t = 4" in found.status


def test_cells_are_of_order_two_and_positive():
    errors = []
    for count in (256, 512):
        found = density.solve(FREE, poisson(0, 0.5), [0.0, 1.0], density.Circle(count, "volume"))
        exact = poisson(1.0, 0.5)(found.nodes)
        errors.append(np.mean(np.abs(found.density[-1] - exact)))
        assert found.minimum.min() >= 0
        assert found.mass[-1] == pytest.approx(1, abs=1e-12)
        assert found.resolved
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2, abs=0.15)


def arcs(theta, p=0.7, w=np.pi / 8):
    near = np.minimum(theta, 2 * np.pi - theta) <= w
    return p * near + (1 - p) * (np.abs(theta - np.pi) <= w)


def test_two_arcs_stay_apart():
    """Theory §3.10: R_0 = .3897981434, R → p − q = .4, and what is empty stays empty."""
    model = tkf.UnnormalisedAttention(ONE, 4.0)
    found = density.solve(model, arcs, [0.0, 0.02, 0.3], density.Circle(512, "volume"))
    assert float(jnp.linalg.norm(found.moments(0).mean)) == pytest.approx(0.3897981434, abs=1e-5)
    assert float(tkf.order_parameter(found)) == pytest.approx(0.4, abs=2e-5)
    assert found.minimum.min() == 0
    side = np.cos(found.nodes) > 0
    np.testing.assert_allclose(found.masses[:, side].sum(axis=1), 0.7, atol=1e-12)
    assert not found.resolved
    assert "cells" in found.status


def test_without_a_scheme_steep_laws_go_to_cells():
    found = density.solve(tkf.UnnormalisedAttention(ONE, 4.0), arcs, [0.0, 0.01], "circle")
    assert found.domain.scheme == "volume"
    assert found.minimum.min() >= 0


def test_a_hopeless_resolution_is_a_sentence():
    model = tkf.UnnormalisedAttention(ONE, 4.0)
    with pytest.raises(tkf.RunError, match="under-resolved") as caught:
        density.solve(
            model,
            lambda t: np.exp(2000 * (np.cos(t - np.pi / 16) - 1)),
            [0.0, 1.0],
            density.Circle(16, "spectral"),
        )
    assert len(caught.value.trajectory.ts) == 1


def test_noise_damps_each_harmonic():
    """About the uniform law mode l grows at l²(λ_l/β − 1/κ); κ below κ_1 for l = 1, above for none."""
    beta, kappa = 1.0, 1.2
    model = tkf.UnnormalisedAttention(ONE, beta) + tkf.Noise(kappa)
    start = lambda theta: 1 + 1e-4 * (np.cos(theta) + np.sin(2 * theta) + np.cos(3 * theta))  # noqa: E731
    found = density.solve(model, start, [0.0, 0.5], density.Circle(MODES, "spectral", 1e-12))
    c = np.abs(np.exp(-1j * np.outer([1, 2, 3], found.nodes)) @ found.masses.T)
    rates = np.log(c[:, 1] / c[:, 0]) / 0.5
    degrees = np.array([1, 2, 3])
    expected = tkf.theory.growth_rate(2, beta, degrees, "unnormalised") - degrees**2 / kappa
    np.testing.assert_allclose(rates, expected, atol=2e-4)


def test_free_energy_falls_at_its_rate():
    """dF/dt = −∫|κ^{−1}∂_θ log ρ − u|²dμ, the velocity from the model's sums at the nodes."""
    kappa = 3.0
    model = tkf.UnnormalisedAttention(ONE, 1.0) + tkf.Noise(kappa)
    ts = np.linspace(0, 1, 21)
    found = density.solve(model, smooth, ts, density.Circle(MODES, "spectral", 1e-12))
    F = tkf.free_energy(found, model)
    assert np.all(np.diff(F) < 0)
    k = 10
    tokens = found.tokens(k)
    x, v = np.asarray(tokens.x), np.asarray(model.drift.velocity(tokens))
    wave = np.fft.rfftfreq(MODES, 1 / MODES)
    slope = np.fft.irfft(1j * wave * np.fft.rfft(np.log(found.density[k])), MODES)
    force = slope / kappa - (x[:, 0] * v[:, 1] - x[:, 1] * v[:, 0])
    fall = (F[k - 2] - 8 * F[k - 1] + 8 * F[k + 1] - F[k + 2]) / (12 * ts[1])
    assert fall == pytest.approx(-found.masses[k] @ force**2, rel=1e-4)
    with pytest.raises(tkf.InputError, match="`model` must be unnormalised attention"):
        tkf.free_energy(found, tkf.SoftmaxAttention(ONE, 1.0))


def test_the_result_is_read_like_a_trajectory():
    found = density.solve(FREE, poisson(0), [0.0, 1.0, 2.0, 4.0], density.Circle(MODES, "spectral", 1e-11))
    assert found.measure(tkf.order_parameter) == pytest.approx(
        [float(jnp.linalg.norm(found.moments(k).mean)) for k in range(4)], abs=1e-12
    )
    assert float(tkf.order_parameter(found)) == pytest.approx(0.8334562386, abs=1e-9)
    assert float(tkf.energy(found, 0.0)) == pytest.approx(0.8334562386**2 / 2, abs=1e-9)
    assert tkf.wasserstein(found, found.tokens(-1)).value == 0
    assert tkf.wasserstein(found, found.tokens(0)).value > 0.5
    drawn = found.sample(40_000, 3, k=1)
    assert drawn.n == 40_000
    mean = np.asarray(drawn.moments().mean)
    np.testing.assert_allclose(mean, [0.3189649611, 0.0], atol=4 / np.sqrt(40_000))
    assert found.complete


@pytest.mark.slow
def test_phases_take_a_density():
    """The worked low-temperature case at β = 10 (theory §2.6): concentration at .25 and a minimum near 7."""
    weights = tkf.AttentionWeights(np.diag([0.5, 2.0]), np.diag([1.0, 0.5]))
    model = tkf.SoftmaxAttention(weights, 10.0)
    start = lambda t: 1 + 0.3 * np.cos(t) + 0.2 * np.sin(t)  # noqa: E731
    found = density.solve(model, start, np.linspace(0, 30, 61), density.Circle(256, "volume"))
    seen = tkf.phases(found, weights)
    assert [phase.name for phase in seen.found][:3] == ["concentration", "metastable", "escape"]
    assert seen.minimum_time == pytest.approx(7, abs=1.5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: density.Circle(7), "`modes` must be a whole number, at least 8"),
        (lambda: density.Circle(9), "`modes` must be even"),
        (lambda: density.Circle(8, "fast"), '`scheme` must be "auto", "spectral" or "volume"'),
        (lambda: density.Circle(8, "auto", 1.0), r"`tolerance` must lie in \[1e-13, 1e-2\]"),
        (
            lambda: density.solve(FREE, smooth, [0, 1], "circle", time_limit=0),
            "`time_limit` must be positive, but was 0",
        ),
        (
            lambda: density.solve(FREE, smooth, [0, 1], "torus"),
            "`domain` must be a domain object or one of circle",
        ),
        (lambda: density.solve(FREE, smooth, [1, 0], "circle"), "`ts` must be increasing"),
        (
            lambda: density.solve(FREE, lambda t: np.cos(t), [0, 1], "circle"),
            "`rho0` must be finite, at least 0",
        ),
        (lambda: density.solve(FREE, np.ones(7), [0, 1], "circle"), "`rho0` must give one number for each"),
        (
            lambda: density.solve(FREE + tkf.Noise(1.0), smooth, [0, 1], density.Circle(8, "volume")),
            '`scheme` must be "spectral" for a model with noise',
        ),
        (
            lambda: density.solve(
                tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), 1.0), smooth, [0, 1], "circle"
            ),
            "`model` must act in dimension 2",
        ),
    ],
)
def test_refused(call, words):
    with pytest.raises(tkf.InputError, match=words):
        call()


# -- thorough


@pytest.mark.slow
def test_synchronisation():
    """Theory §3.8: f_0 ∝ 1 + .5cos θ at β = .1, R(2, 4, 6, 10), and the W2 rate .452419."""
    model = tkf.UnnormalisedAttention(ONE, 0.1)
    values = [0.60330179, 0.90740024, 0.98456383, 0.99958644]
    modes = density.solve(
        model, lambda t: 1 + 0.5 * np.cos(t), [0, 2, 4, 6], density.Circle(1024, "spectral")
    )
    R = [float(jnp.linalg.norm(modes.moments(k).mean)) for k in range(1, 4)]
    np.testing.assert_allclose(R, values[:3], atol=1e-8)
    ts = np.concatenate([[0, 2, 4, 6, 10], np.linspace(11, 16, 6)])
    cells = density.solve(model, lambda t: 1 + 0.5 * np.cos(t), ts, density.Circle(2048, "volume"))
    R = [float(jnp.linalg.norm(cells.moments(k).mean)) for k in range(1, 5)]
    np.testing.assert_allclose(R, values, atol=2e-6)
    end = tkf.Tokens([[1.0, 0.0]])
    distance = np.array([tkf.wasserstein(cells.tokens(k), end).value for k in (2, 3, 4)])
    fine = density.solve(model, lambda t: 1 + 0.5 * np.cos(t), [0, 8, 9, 10], density.Circle(8192, "volume"))
    distance = [tkf.wasserstein(fine.tokens(k), end).value for k in (1, 2, 3)]
    rate = np.log(distance[0] / distance[2]) / 2
    assert rate == pytest.approx(tkf.theory.synchronisation_rate(0.1, 2), rel=0.02)
    assert rate == pytest.approx(0.452419, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["A", "B", "C"])
def test_order_need_not_grow(name):
    """Theory §3.12: the slope of R² at 0 and where it changes sign, φ = e^{.1s} in unnormalised time."""
    f = tkf.theory.profile(name)
    model = tkf.InteractionFlow(lambda s: jnp.exp(0.1 * s) / 0.1, np.eye(2))
    ts = {"A": np.linspace(0, 4, 81), "B": np.linspace(0, 1, 101), "C": np.linspace(0, 7, 141)}[name]
    found = density.solve(model, lambda t: 2 * np.pi * f(t), ts, density.Circle(1024, "spectral", 1e-12))
    square = np.sum(found.measure(lambda tokens: tokens.moments().mean) ** 2, axis=1)
    slope = np.gradient(square, ts, edge_order=2)
    changes = ts[1:][np.diff(np.sign(slope)) != 0]
    if name == "A":
        assert slope[0] == pytest.approx(-3.54223296e-6, rel=2e-2)
        np.testing.assert_allclose(changes, [3.36], atol=0.05)
    elif name == "B":
        assert square.min() == pytest.approx(1.0691e-5, rel=1e-4)
        assert ts[np.argmin(square)] == pytest.approx(0.485, abs=0.01)
    else:
        np.testing.assert_allclose(changes, [1.10, 5.78], atol=0.06)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["V turns", "B and V", "unnormalised, B and V", "heads", "φ, A"])
def test_modes_cells_and_tokens_agree(name):
    """Pairwise, where V Bᵀ ≠ I; the cells to their second order."""
    model, ts = MODELS[name], [0.0, 0.7]
    cloud = tkf.simulate(model, tkf.initial.circle_density(smooth, 2000), ts).tokens(-1).moments()
    modes = density.solve(model, smooth, ts, density.Circle(512, "spectral")).moments()
    cells = density.solve(model, smooth, ts, density.Circle(1024, "volume")).moments()
    for law, atol in ((modes, 1e-8), (cells, 2e-5)):
        np.testing.assert_allclose(law.mean, cloud.mean, atol=atol)
        np.testing.assert_allclose(law.second, cloud.second, atol=atol)


@pytest.mark.slow
def test_near_linear_sums_on_large_grids(monkeypatch):
    model = MODELS["B and V"]
    exact = circle_reading._on_grid(model, 96, on_edges=True)
    monkeypatch.setattr(circle_reading, "LARGEST_MATRIX", 8)
    fast = circle_reading._on_grid(model, 96, on_edges=True)
    assert isinstance(fast, circle_reading.Summed)
    masses = tkf.initial.circle_density(smooth, 96).weights
    np.testing.assert_allclose(fast(None, masses), exact(None, masses), atol=1e-9)
