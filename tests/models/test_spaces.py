"""Spaces: every placement of LayerNorm against theory §6.2, as flows and as layers; lengths on disk and in vmap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokenfield as tkf
from tests.marks import mostly_slow
from tests.problems.loops import attention, flow, projected, tok, unit
from tests.problems.placements import FLOW_DIGITS, LAYER_DIGITS

TIGHT = tkf.Adaptive(1e-12, 1e-13, "dopri8")
ALPHA, SWITCH = 0.5, 1.0

#: space → (scheme of theory, how it is made, its options in theory)
SPACES = {
    "post": (lambda m: m, {}),
    "pre": (tkf.PreNorm, {}),
    "mix": (lambda m: tkf.MixNorm(m, SWITCH), {"switch": SWITCH}),
    "peri": (tkf.PeriNorm, {}),
    "ngpt": (lambda m: tkf.NGPT(m, ALPHA), {"alpha": ALPHA}),
    "scaled": (tkf.ScaledNorm, {}),
    "none": (tkf.NoNorm, {}),
}
FREE = ("pre", "mix", "peri", "scaled", "none")


def equiangular(n=6, d=8, rho=0.1, r=1.0, free=True):
    x = tkf.initial.equiangular(n, d, rho).x
    return tkf.Tokens(x, radii=np.full(n, r) if free else None)


def softmax(d=8, beta=1.0):
    return tkf.SoftmaxAttention(tkf.AttentionWeights.identity(d), beta)


def run(name, model, tokens, ts, solver=TIGHT, **options):
    return tkf.simulate(SPACES[name][0](model), tokens, ts, solver, **options)


def products(found, k=-1):
    """Common inner product and length; both must be common."""
    G = found.x[k] @ found.x[k].T
    off = G[~np.eye(len(G), dtype=bool)]
    assert np.ptp(off) < 1e-11
    if found.radii is None:
        return off[0], 1.0
    assert np.ptp(found.radii[k]) < 1e-11
    return off[0], found.radii[k][0]


@pytest.mark.parametrize("name", mostly_slow(list(SPACES), ["pre", "mix", "ngpt"]))
def test_equiangular_flows_have_the_digits_of_theory(name):
    """n = 6, β = 1, ρ0 = .1, r0 = 1, t = 3, α = .5, τ = 1, in d = 8."""
    rho, r = products(run(name, softmax(), equiangular(free=name in FREE), [0, 3.0]))
    expected, length = FLOW_DIGITS[name]
    assert rho == pytest.approx(expected, abs=3e-12)
    assert r == pytest.approx(length, rel=1e-11)


@pytest.mark.parametrize("name", LAYER_DIGITS)
def test_layers_have_the_digits_of_theory(name):
    """30 layers, η = α = .1."""
    tokens = equiangular(free=name in FREE)
    if name == "ngpt":
        found = tkf.simulate(tkf.NGPT(softmax(), 0.1), tokens, [0, 30.0], tkf.Layers(1.0))
    else:
        found = run(name, softmax(), tokens, [0, 3.0], tkf.Layers(0.1))
    assert products(found) == pytest.approx(LAYER_DIGITS[name], abs=3e-12)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize(("n", "beta", "rho", "r"), [(4, 2.5, -0.2, 1.7), (9, -1.5, 0.4, 0.6)])
def test_speeds_are_those_of_theory(name, n, beta, rho, r):
    """ρ' and r' from the velocity itself, against a short step of the scalar equations."""
    if name in ("post", "ngpt"):
        r = 1.0
    model, options = SPACES[name]
    tokens = equiangular(n, 10, rho, r, name in FREE)
    v = np.asarray(model(softmax(10, beta)).velocity(tokens))
    y = np.asarray(tokens.points)
    h = 1e-4
    orbit = tkf.theory.equiangular_norm(name, n, beta, rho, r, [0.0, h, 2 * h], **options)
    step = lambda a: (-3 * a[0] + 4 * a[1] - a[2]) / (2 * h)  # noqa: E731
    dot = v[0] @ y[1] + y[0] @ v[1]
    growth = v[0] @ y[0] / r
    assert growth == pytest.approx(step(orbit.r), abs=1e-6)
    assert dot / r**2 - 2 * rho * growth / r == pytest.approx(step(orbit.rho), abs=1e-6)


@pytest.mark.parametrize("name", mostly_slow(list(SPACES), ["peri", "scaled"]))
def test_other_parameters_follow_the_scalar_equations(name):
    n, beta, rho, r = 4, 2.5, -0.2, 1.7 if name in FREE else 1.0
    ts = [0.0, 0.4, 1.0, 1.7]
    options = SPACES[name][1]
    if name == "none":
        ts = [0.0, 0.2, 0.5, 0.9]
    found = run(name, softmax(10, beta), equiangular(n, 10, rho, r, name in FREE), ts)
    orbit = tkf.theory.equiangular_norm(name, n, beta, rho, r, ts, **options)
    for k in range(4):
        assert products(found, k) == pytest.approx((orbit.rho[k], orbit.r[k]), rel=1e-10)


@pytest.mark.parametrize("name", mostly_slow(list(SPACES), ["none", "scaled"]))
def test_layers_follow_the_scalar_recursion(name):
    n, beta, rho, r = 4, 2.5, -0.2, 1.7 if name in FREE else 1.0
    step = 1.0 if name in ("scaled", "ngpt") else 0.125
    count = 12 if name in ("scaled", "ngpt") else 30
    options = SPACES[name][1]
    tokens = equiangular(n, 10, rho, r, name in FREE)
    found = run(name, softmax(10, beta), tokens, [0, count * step], tkf.Layers(step))
    orbit = tkf.theory.equiangular_norm_layers(name, n, beta, rho, r, count, step, **options)
    assert products(found) == pytest.approx((orbit.rho[-1], orbit.r[-1]), rel=1e-10)


def test_initial_speeds():
    """theory §6.2: ρ'(0) = .361949551440 for Post-LN, .685596130548 for Peri-LN."""
    tokens = equiangular()
    for model, speed in ((softmax(), 0.361949551440), (tkf.PeriNorm(softmax()), 0.685596130548)):
        v, x = np.asarray(model.velocity(tokens)), np.asarray(tokens.x)
        growth = 2 * 0.1 * (v[0] @ x[0])
        assert v[0] @ x[1] + x[0] @ v[1] - growth == pytest.approx(speed, abs=1e-12)


def test_tokens_without_temperature_keep_their_constant():
    """theory §6.2.1, β = 0: (1−ρ)r² is constant; ρ = .906792949434, r = 3.107397929368 at t = 3."""
    found = run("pre", softmax(beta=0.0), equiangular(), [0, 0.5, 3.0])
    assert products(found) == pytest.approx((0.906792949434, 3.107397929368), abs=3e-12)
    for k in range(3):
        rho, r = products(found, k)
        assert (1 - rho) * r**2 == pytest.approx(0.9, abs=1e-11)


@pytest.mark.slow
def test_three_spaces_run_along_one_curve():
    """theory §6.2.1: ρ at r = 2 is .693192413 for Pre-LN, Peri-LN and LN-scaling; read where r passes 2."""
    for name in ("pre", "peri", "scaled"):
        ts = np.linspace(0, 3.5, 351)
        found = run(name, softmax(), equiangular(), ts)
        r = found.radii[:, 0]
        k = int(np.searchsorted(r, 2.0))
        rho = np.array([found.x[i, 0] @ found.x[i, 1] for i in range(k - 3, k + 3)])
        at = np.polynomial.polynomial.Polynomial.fit(r[k - 3 : k + 3], rho, 5)
        assert at(2.0) == pytest.approx(0.693192413, abs=1e-9)


def test_without_normalisation_tokens_do_not_collapse():
    """theory §6.2.3: ρ_∞ = .682432178555 from t ≈ 3 on."""
    rho, r = products(run("none", softmax(), equiangular(), [0, 3.2]))
    assert rho == pytest.approx(0.682432178555, abs=1e-11)
    assert r > 14


# -- general tokens


def general():
    rng = np.random.default_rng(4)
    B, V = (np.asarray(tkf.ensembles.gaussian(3, k, heads=2)) for k in (1, 2))
    return B, V, rng.uniform(0.5, 2.0, 5)


def slope_by_hand(name, y, output, t):
    """The table of theory §6.2, written for y itself."""
    r = np.linalg.norm(y, axis=1, keepdims=True)
    A = output(y if name == "none" else y / r)
    size = np.linalg.norm(A, axis=1, keepdims=True)
    tangent = projected(y / r, A)
    return {
        "post": tangent,
        "pre": A,
        "mix": r * tangent if t < SWITCH else A,
        "peri": A / size,
        "ngpt": ALPHA * projected(y / r, A / size),
        "scaled": A / np.sqrt(1 + t),
        "none": A,
    }[name]


@pytest.mark.parametrize("name", SPACES)
def test_velocities_are_their_loops(name):
    B, V, r = general()
    x, w = tok(5, 3, 1), np.random.default_rng(0).dirichlet(np.ones(5))
    model = tkf.SoftmaxAttention(tkf.AttentionWeights(B, V), 2.0) + tkf.Drift([0.1, 0.2, -0.3])
    y = x * r[:, None] if name in FREE else x
    output = lambda z: attention(z, list(zip(B, V, strict=True)), 2.0, weights=w) + np.array([0.1, 0.2, -0.3])  # noqa: E731
    tokens = tkf.Tokens(x, w, r if name in FREE else None)
    found = SPACES[name][0](model).velocity(tokens)
    np.testing.assert_allclose(found, slope_by_hand(name, y, output, 0.0), atol=1e-13)


@pytest.mark.parametrize("name", mostly_slow(list(SPACES), ["mix", "none"]))
def test_runs_are_their_loops(name):
    """General B, V, lengths, with a mask; DOP853 in two parts where Mix-LN switches."""
    B, V, r = general()
    x = tok(5, 3, 1)
    heads, causal = list(zip(B, V, strict=True)), lambda i, j: j <= i
    output = lambda z: attention(z, heads, 1.0, sees=causal)  # noqa: E731
    y = x * r[:, None] if name in FREE else x
    middle = flow(lambda t, y: slope_by_hand(name, y, output, min(t, 1 - 1e-12)), y, [1.0])[0]
    end = flow(lambda t, y: slope_by_hand(name, y, output, t + 1), middle, [0.4])[0]
    model = tkf.SoftmaxAttention(tkf.AttentionWeights(B, V), 1.0, tkf.masks.causal())
    tokens = tkf.Tokens(x, radii=r if name in FREE else None)
    found = run(name, model, tokens, [0, 1.0, 1.4])
    for k, expected in ((1, middle), (2, end)):
        points = np.asarray(found.tokens(k).points)
        np.testing.assert_allclose(points, expected, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("name", SPACES)
def test_rotations_turn_velocities(name):
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    B, V, r = general()
    tokens = tkf.Tokens(tok(5, 3, 1), radii=r if name in FREE else None)
    made = SPACES[name][0]
    v = made(tkf.SoftmaxAttention(tkf.AttentionWeights(B, V), 2.0)).velocity(tokens)
    weights = tkf.AttentionWeights(turn @ B @ turn.T, turn @ V @ turn.T)
    w = made(tkf.SoftmaxAttention(weights, 2.0)).velocity(tokens.push(lambda x: x @ turn.T))
    np.testing.assert_allclose(w, np.asarray(v) @ turn.T, atol=1e-13)


def test_layer_scale_is_in_the_weights():
    """theory §6.2: LayerScale γ is V → diag(γ)V."""
    gamma, tokens = np.array([0.5, 2.0, -1.0]), tkf.Tokens(tok(5, 3, 1))
    scaled = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3).layer_scaled(gamma), 2.0)
    A = attention(tok(5, 3, 1), [(np.eye(3), np.eye(3))], 2.0) * gamma
    np.testing.assert_allclose(tkf.PreNorm(scaled).velocity(tokens), A, atol=1e-14)
    V = np.arange(18.0).reshape(2, 3, 3)
    several = tkf.AttentionWeights(np.ones((2, 3, 3)), V, np.ones(3)).layer_scaled(gamma)
    for h in range(2):
        np.testing.assert_array_equal(several.V[h], np.diag(gamma) @ V[h])
    np.testing.assert_array_equal(several.score_bias, np.ones((2, 3)))
    for bad, sentence in (
        (np.ones(2), r"`gamma` must have shape \(3,\)"),
        ([1, np.nan, 1], "`gamma` must be finite"),
    ):
        with pytest.raises(tkf.InputError, match=sentence):
            tkf.AttentionWeights.identity(3).layer_scaled(bad)


# -- lengths


def test_lengths_begin_at_one_and_are_dropped_on_the_sphere():
    x = tok(5, 3, 1)
    free = run("pre", softmax(3), tkf.Tokens(x), [0, 0.5])
    given = run("pre", softmax(3), tkf.Tokens(x, radii=np.ones(5)), [0, 0.5])
    assert np.array_equal(free.x, given.x) and np.array_equal(free.radii, given.radii)
    bound = run("post", softmax(3), tkf.Tokens(x, radii=[1.0, 2, 3, 4, 5]), [0, 0.5])
    assert bound.radii is None and bound.tokens(-1).radii is None
    np.testing.assert_allclose(bound.x, run("post", softmax(3), tkf.Tokens(x), [0, 0.5]).x, atol=1e-15)


def test_normalised_tokens_are_directions_and_lengths():
    y = np.random.default_rng(0).normal(size=(5, 3)) * 3
    tokens = tkf.Tokens.normalised(y, [0.1, 0.2, 0.3, 0.2, 0.2])
    np.testing.assert_allclose(tokens.x, unit(y), atol=1e-15)
    np.testing.assert_allclose(tokens.radii, np.linalg.norm(y, axis=1), rtol=1e-15)
    np.testing.assert_allclose(tokens.points, y, atol=1e-15)
    y[2] = 0
    with pytest.raises(
        tkf.InputError, match=r"^`y` must have finite rows other than 0, but was \[0. 0. 0.\] in row 2"
    ):
        tkf.Tokens.normalised(y)
    for bad in (np.zeros(5), -np.ones(5), [1.0, np.inf, 1, 1, 1]):
        with pytest.raises(tkf.InputError, match="^`radii` must be positive and finite"):
            tkf.Tokens(tok(5, 3, 1), radii=bad)
    with pytest.raises(tkf.InputError, match="^`radii` must have shape"):
        tkf.Tokens(tok(5, 3, 1), radii=[1.0])


def test_lengths_are_stored_and_loaded(tmp_path):
    tokens = tkf.Tokens(tok(5, 3, 1), radii=[1.0, 2, 3, 4, 5])
    found = run("peri", softmax(3), tokens, [0, 0.5, 1.0], store=tmp_path / "run", snapshots=[0, -1])
    again = tkf.load(tmp_path / "run")
    assert np.array_equal(again.radii, found.radii) and again.radii.shape == (2, 5)
    assert np.array_equal(again.tokens(-1).radii, found.tokens(-1).radii)
    assert isinstance(again.model, tkf.PeriNorm)
    assert again.dataset()["radii"].dims == ("snapshot", "token")
    found.save(tmp_path / "copy")
    assert np.array_equal(tkf.load(tmp_path / "copy").radii, found.radii)


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("name", mostly_slow(["pre", "mix", "scaled", "ngpt"], ["mix"]))
def test_a_stopped_run_goes_on_to_the_bit(name, tmp_path, monkeypatch):
    """Stopped by an exception in `progress` before and after the switch."""
    monkeypatch.setattr("tokenfield.runs.record.WRITE_EVERY", 0.0)
    tokens = tkf.Tokens(tok(5, 3, 1), radii=[1.0, 2, 3, 4, 5])
    ts = np.linspace(0, 2.0, 9)
    whole = run(name, softmax(3), tokens, ts)
    for stop in (0.4, 1.6):

        def progress(share, t, stop=stop):
            if t >= stop:
                raise StoppedError

        path = tmp_path / f"{stop}"
        with pytest.raises(StoppedError):
            run(name, softmax(3), tokens, ts, store=path, progress=progress)
        cut = tkf.load(path)
        assert not cut.complete and 1 < len(cut.ts) < 9
        again = run(name, softmax(3), tokens, ts, store=path, resume=True)
        assert np.array_equal(again.x, whole.x)
        if name != "ngpt":
            assert np.array_equal(again.radii, whole.radii)


@pytest.mark.slow
def test_the_gradient_of_a_pre_norm_run_is_a_finite_difference():
    x, r = jnp.asarray(tok(4, 3, 1)), jnp.array([1.0, 2.0, 0.7, 1.5])

    def f(x, r, beta):
        model = tkf.PreNorm(tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), beta))
        found = tkf.simulate(model, tkf.Tokens(x, radii=r), jnp.array([0.0, 0.6]), tkf.RungeKutta4(0.2))
        return jnp.sum(found.x[-1, :, 1]) + jnp.sum(found.radii[-1] ** 2)

    at = (x, r, jnp.asarray(1.5))
    gradients = jax.grad(f, argnums=(0, 1, 2))(*at)
    f = jax.jit(f)
    rng, h = np.random.default_rng(0), 1e-5
    for k, gradient in enumerate(gradients):
        direction = jnp.asarray(rng.normal(size=np.shape(at[k])))
        if k == 0:
            direction = direction - jnp.sum(direction * x, axis=1, keepdims=True) * x
        ahead, behind = (f(*at[:k], at[k] + s * h * direction, *at[k + 1 :]) for s in (1, -1))
        assert float(jnp.sum(gradient * direction)) == pytest.approx(
            float(ahead - behind) / (2 * h), rel=1e-7
        )


def test_many_lengths_at_once():
    """vmap over radii is each run by itself."""
    x = jnp.asarray(tok(4, 3, 1))
    lengths = jnp.asarray(np.random.default_rng(0).uniform(0.5, 2.0, (3, 4)))

    def final(r):
        found = tkf.simulate(
            tkf.PreNorm(softmax(3)), tkf.Tokens(x, radii=r), [0.0, 0.5], tkf.RungeKutta4(0.1)
        )
        return found.x[-1], found.radii[-1]

    together = jax.vmap(final)(lengths)
    for k in range(3):
        alone = run("pre", softmax(3), tkf.Tokens(x, radii=lengths[k]), [0, 0.5], tkf.RungeKutta4(0.1))
        np.testing.assert_allclose(together[0][k], alone.x[-1], atol=1e-14)
        np.testing.assert_allclose(together[1][k], alone.radii[-1], rtol=1e-14)


# -- what does not go together


def test_terms_are_added_inside_a_space():
    tokens = tkf.Tokens(tok(5, 3, 1), radii=[1.0, 2, 3, 4, 5])
    drift = tkf.Drift([0.1, 0.2, 0.3])
    a, b = tkf.PreNorm(softmax(3)) + drift, tkf.PreNorm(softmax(3) + drift)
    np.testing.assert_allclose(a.velocity(tokens), b.velocity(tokens), atol=1e-16)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda m: tkf.PreNorm(tkf.PeriNorm(m)), "`model` must be in no other space yet, but was PeriNorm"),
        (lambda m: tkf.PreNorm(3), "`model` must be a Model, but was int"),
        (lambda m: tkf.MixNorm(m, "late"), "`switch` must be a number, but was 'late'"),
        (lambda m: tkf.NGPT(m, 0.0), "`alpha` must be positive and finite, but was 0.0"),
        (lambda m: tkf.NGPT(m, [0.1, 0.2]), "`alpha` must be one number, but was of shape (2,)"),
        (
            lambda m: tkf.simulate(
                tkf.PreNorm(m), tkf.Tokens(tok(4, 3, 1)), [0, 1.0], tkf.EulerMaruyama(0.1, 0)
            ),
            "`solver` must not be EulerMaruyama in a free space",
        ),
    ],
)
def test_bad_spaces_are_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError) as error:
        bad(softmax(3))
    assert str(error.value).startswith(sentence)


def test_noise_is_for_the_sphere():
    """Neither inside a space nor added to it: steps with noise know nothing of lengths."""
    for made in (tkf.PreNorm, lambda m: tkf.NGPT(m, 0.5)):
        with pytest.raises(tkf.InputError, match="^`model` must have no noise: noise is made for the sphere"):
            made(softmax(3) + tkf.Noise(2.0))
        with pytest.raises(tkf.InputError, match="^`model` must have no noise: noise is made for the sphere"):
            made(softmax(3)) + tkf.Noise(2.0)


def test_normalised_outputs_have_no_time_unit():
    """Peri-LN and nGPT divide by ‖A‖: the factor e^{−β} of cold unnormalised attention drops out."""
    x = tok(4, 3, 1)
    B = np.diag([1.0, 0.4, 0.1])
    weights = tkf.AttentionWeights(B, np.eye(3))
    scores = 900.0 * x @ B @ x.T
    A = np.exp(scores - scores.max(axis=1, keepdims=True)) @ x  # a positive factor for each row
    direction = unit(A)
    usa = tkf.UnnormalisedAttention(weights, 900.0)
    peri, ngpt = tkf.PeriNorm(usa), tkf.NGPT(usa, 0.5)
    assert float(peri.log_time_unit) == float(ngpt.log_time_unit) == 0
    tokens = tkf.Tokens(x)
    np.testing.assert_allclose(peri.velocity(tokens), direction, atol=1e-12)
    np.testing.assert_allclose(ngpt.velocity(tokens), 0.5 * projected(x, direction), atol=1e-12)


@pytest.mark.parametrize("made", [tkf.ScaledNorm, lambda m: tkf.MixNorm(m, 1.0)])
def test_spaces_that_read_the_time_take_no_other_unit_of_it(made):
    usa = tkf.UnnormalisedAttention(tkf.AttentionWeights.identity(3), 400.0)
    with pytest.raises(tkf.InputError, match="^`model` must need no time unit of its own"):
        made(usa)
