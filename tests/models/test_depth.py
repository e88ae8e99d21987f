"""Depth as time: layers with their own weights, schedules, random layers (theory §6.5, §6.8)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg

import tokenfield as tkf
from tests.marks import mostly_slow
from tests.problems.loops import attention, flow, sphere_flow, tok, unit
from tokenfield.sums.direct import DIRECT

TIGHT = tkf.Adaptive(1e-12, 1e-13, "dopri8")
V1 = np.diag([1.0, 0.5, 0.8])
V2 = np.array([[0.2, 0.4, 0], [-0.1, 0.6, 0.3], [0.3, 0, 0.1]])
V3 = np.array([[0.0, 1, 0], [-1, 0, 0], [0, 0, 0.5]])
START = unit(np.array([[0.3, -0.5, 0.8], [0.9, 0.1, -0.4]]))
IDENTITY = tkf.AttentionWeights.identity(3)
MLP = tkf.MLP(
    np.ones((2, 3)) * [[1.0], [-0.5]], [0.1, 0.2], np.array([[0.5, 1], [-1, 0.2], [0.3, 0.4]]), None
)


def zero(V, B=None):
    return tkf.ZeroTemperature(tkf.AttentionWeights(np.eye(3) if B is None else B, V))


def run(model, x, ts, solver=TIGHT, **options):
    return tkf.simulate(model, x if isinstance(x, tkf.Tokens) else tkf.Tokens(x), ts, solver, **options)


# -- closed forms


def test_layers_at_zero_temperature_are_a_product_of_exponentials():
    """theory §6.8, B = I, η = .7."""
    found = run(tkf.Depth([zero(V) for V in (V1, V2, V3)], 0.7), START, [0, 2.1]).x[-1]
    np.testing.assert_allclose(found[0], (-0.044233597543, -0.353319313938, 0.93445644695), atol=2e-12)
    product = linalg.expm(0.7 * V3) @ linalg.expm(0.7 * V2) @ linalg.expm(0.7 * V1)
    np.testing.assert_allclose(found, unit(START @ product.T), atol=1e-11)


def test_layers_with_their_own_clocks_are_no_product():
    """theory §6.8: general B_l."""
    layers = [zero(V1, np.diag([0.5, 2, 1])), zero(V2), zero(V1, np.diag([2, 1, 0.5]))]
    found = run(tkf.Depth(layers, 0.7), START, [0, 2.1]).x[-1]
    np.testing.assert_allclose(found[0], (0.365403304036, -0.570337549176, 0.735659911508), atol=2e-12)
    np.testing.assert_allclose(found[1], (0.981437286968, 0.025070925467, -0.190137582937), atol=2e-12)


def test_a_period_repeated_goes_to_the_dominant_vector_of_its_product():
    """theory §6.8: direction and rate .125883586115."""
    model = tkf.Depth([zero(V) for V in (V1, V2, V3)], 0.7, repeat=True)
    found = run(model, START, 2.1 * np.array([0, 1, 20, 21, 180]))
    product = linalg.expm(0.7 * V3) @ linalg.expm(0.7 * V2) @ linalg.expm(0.7 * V1)
    np.testing.assert_allclose(found.x[1], unit(START @ product.T), atol=1e-11)
    rest = np.array([0.23444950447, -0.039635663671, 0.971319949357])
    assert np.abs(np.abs(found.x[-1] @ rest) - 1).max() < 1e-11
    # the other two multipliers are a complex pair: coordinates along left eigenvectors fall without turning
    values, left = np.linalg.eig(product.T)
    first, second = left.T[np.argsort(-np.abs(values))[:2]]
    share = np.abs((found.x[2:4] @ second) / (found.x[2:4] @ first))
    # the printed rate is per unit of time, a period lasts 2.1
    np.testing.assert_allclose(np.log(share[0] / share[1]) / 2.1, 0.125883586115, atol=1e-9)


def test_a_schedule_of_temperature():
    """theory §6.5: equiangular, β(t) = 1 + t, n = 6, ρ0 = .1: ρ(2) = .879105645088."""
    weights = tkf.AttentionWeights.identity(6)
    model = tkf.Schedule(lambda t: tkf.SoftmaxAttention(weights, 1 + t))
    found = run(model, tkf.initial.equiangular(6, 6, 0.1), [0, 2.0]).x[-1]
    assert found[0] @ found[1] == pytest.approx(0.879105645088, abs=2e-12)


# -- the network itself


def layer_loop(x, layers, step):
    """x ← N(x + ηA_l(x)) for outputs A_l, one after the other."""
    for output in layers:
        x = unit(x + step * output(x))
    return x


def heads(seed):
    B, V = (np.asarray(tkf.ensembles.gaussian(3, 10 * seed + k, heads=2)) for k in (1, 2))
    return B, V


def test_layers_with_depth_are_the_network():
    """One explicit step per layer with its own weights, by loops; the last one stays on."""
    x, step = tok(5, 3, 1), 0.3
    parts = [heads(k) for k in range(4)]
    models = [tkf.SoftmaxAttention(tkf.AttentionWeights(B, V), 2.0) for B, V in parts]
    found = run(tkf.Depth(models, step), x, step * np.arange(7), tkf.Layers(step)).x
    outputs = [
        lambda x, p=p: attention(x, list(zip(*p, strict=True)), 2.0) for p in [*parts, parts[-1], parts[-1]]
    ]
    for k in range(7):
        np.testing.assert_allclose(found[k], layer_loop(x, outputs[:k], step), atol=1e-13)
    twice = run(tkf.Depth(models, step, repeat=True), x, [0, 8 * step], tkf.Layers(step)).x[-1]
    around = [lambda x, p=p: attention(x, list(zip(*p, strict=True)), 2.0) for p in parts * 2]
    np.testing.assert_allclose(twice, layer_loop(x, around, step), atol=1e-13)


def test_several_steps_of_a_layer():
    """Layers(η) with a Depth of longer steps: the weights change every fourth step, however sums round."""
    x, step = tok(5, 3, 1), 0.1
    parts = [heads(k) for k in range(3)]
    models = [tkf.SoftmaxAttention(tkf.AttentionWeights(B, V), 2.0) for B, V in parts]
    found = run(tkf.Depth(models, 0.4), x, [0, 1.2], tkf.Layers(step)).x[-1]
    outputs = [lambda x, p=p: attention(x, list(zip(*p, strict=True)), 2.0) for p in parts for _ in range(4)]
    np.testing.assert_allclose(found, layer_loop(x, outputs, step), atol=1e-13)


def different_layers():
    """Layers of four kinds, and what each puts out, by loops."""
    B, V = heads(1)
    pairs = list(zip(B, V, strict=True))
    sa = tkf.SoftmaxAttention(tkf.AttentionWeights(B, V), 2.0)
    mlp = lambda x: np.array([np.asarray(MLP.output(jnp.asarray(row[None]), None))[0] for row in x])  # noqa: E731
    models = [
        sa,
        sa + MLP,
        tkf.SoftmaxAttention(tkf.AttentionWeights(B, V), 2.0, tkf.masks.causal()),
        tkf.HardmaxAttention(tkf.AttentionWeights(B, V)) + tkf.Drift([0.1, 0.2, 0.3]),
    ]
    causal = lambda i, j: j <= i  # noqa: E731
    outputs = [
        [lambda x: attention(x, pairs, 2.0)],
        [lambda x: attention(x, pairs, 2.0), mlp],
        [lambda x: attention(x, pairs, 2.0, sees=causal)],
        [lambda x: attention(x, pairs, 1.0, "hardmax"), lambda x: np.tile([0.1, 0.2, 0.3], (len(x), 1))],
    ]
    return models, outputs


def test_layers_of_different_kinds():
    models, outputs = different_layers()
    x = tok(5, 3, 1)
    found = run(tkf.Depth(models, 0.5), x, [0, 2.0], tkf.Layers(0.5)).x[-1]
    for layer in outputs:
        x = unit(x + 0.5 * sum(output(x) for output in layer))
    np.testing.assert_allclose(found, x, atol=1e-13)


def test_a_flow_through_layers_of_different_kinds():
    models, outputs = different_layers()
    models, outputs, x = models[:3], outputs[:3], tok(5, 3, 1)
    found = run(tkf.Depth(models, 0.4), x, [0, 0.3, 0.4, 1.0, 1.2])
    for k, layer in enumerate(outputs):
        output = lambda x, layer=layer: sum(part(x) for part in layer)  # noqa: E731
        if k == 0:
            np.testing.assert_allclose(found.x[1], sphere_flow(output, x, [0.3])[0], atol=1e-10)
        x = sphere_flow(output, x, [0.4])[0]
        x = unit(x)
        if k == 0:
            np.testing.assert_allclose(found.x[2], x, atol=1e-10)
    np.testing.assert_allclose(found.x[-1], x, atol=1e-10)


# -- solvers and jumps


def jumping(kind):
    """The same three layers of step .7 as a Depth, as a schedule, and as a space around a Depth."""
    parts = [heads(k) for k in range(3)]
    models = [tkf.SoftmaxAttention(tkf.AttentionWeights(B, V), 2.0) for B, V in parts]
    if kind == "depth":
        return tkf.Depth(models, 0.7)
    B, V = (jnp.asarray(np.stack(a)) for a in zip(*parts, strict=True))

    def at(t):
        k = jnp.where(t < 0.7, 0, jnp.where(t < 1.4, 1, 2))
        return tkf.SoftmaxAttention(tkf.AttentionWeights(B[k], V[k]), 2.0)

    return tkf.Schedule(at, [1.4, 0.7])


def exact(x, t):
    """By DOP853, layer by layer."""
    for k in range(3):
        B, V = heads(k)
        span = min(0.7, t - 0.7 * k)
        if span <= 0:
            break
        x = sphere_flow(lambda x, p=(B, V): attention(x, list(zip(*p, strict=True)), 2.0), x, [span])[0]
        x = unit(x)
    return x


@pytest.mark.parametrize("kind", ["depth", "schedule"])
@pytest.mark.parametrize("method", ["tsit5", "dopri8", "kvaerno5"])
def test_adaptive_steps_end_at_jumps(kind, method):
    """Saved at the jumps, between them and between steps; each to its tolerance, and cheaply."""
    x, ts = tok(4, 3, 1), [0, 0.35, 0.7, 0.9, 1.4, 2.1]
    found = run(jumping(kind), x, ts, tkf.Adaptive(1e-9, 1e-10, method))
    for k in range(1, 6):
        np.testing.assert_allclose(found.x[k], exact(x, ts[k]), atol=2e-8)
    # a jump inside of a step is found by rejected steps, about thirty of them
    assert found.stats["rejected"] <= 6


@pytest.mark.slow
def test_runs_across_jumps_keep_the_order_of_runge_kutta():
    """Steps that do not divide the layers are cut at the jumps: errors fall like step⁴."""
    x = tok(4, 3, 1)
    end = exact(x, 2.1)
    for kind in ("depth", "schedule"):
        errors = [
            np.abs(run(jumping(kind), x, [0, 2.1], tkf.RungeKutta4(step)).x[-1] - end).max()
            for step in (0.1, 0.05, 0.025)
        ]
        orders = np.log2(np.array(errors[:-1]) / errors[1:])
        assert np.all(orders > 3.5), (kind, orders)


@pytest.mark.slow
def test_errors_across_jumps_follow_the_tolerance():
    x = tok(4, 3, 1)
    end = exact(x, 2.1)
    for tolerance in (1e-5, 1e-7, 1e-9):
        found = run(jumping("depth"), x, [0, 2.1], tkf.Adaptive(tolerance, tolerance))
        assert np.abs(found.x[-1] - end).max() < 20 * tolerance


@pytest.mark.slow
def test_a_run_that_begins_inside_a_layer():
    """ts[0] need not be 0: layers count from time 0."""
    x = tok(4, 3, 1)
    whole = run(jumping("depth"), x, [0, 1.0, 2.1])
    late = run(jumping("depth"), tkf.Tokens(whole.x[1]), [1.0, 2.1])
    np.testing.assert_allclose(late.x[-1], whole.x[-1], atol=1e-11)
    at_jump = run(jumping("schedule"), tkf.Tokens(exact(x, 0.7)), [0.7, 2.1])
    np.testing.assert_allclose(at_jump.x[-1], exact(x, 2.1), atol=1e-10)


# -- schedules


def test_a_smooth_schedule_is_its_loop():
    """B, V and β that move with t, unnormalised, by DOP853."""
    B, V = (np.asarray(tkf.ensembles.gaussian(3, k)) for k in (1, 2))

    def at(t):
        weights = tkf.AttentionWeights(B + t * V, jnp.cos(t) * V)
        return tkf.UnnormalisedAttention(weights, 1 + jnp.sin(t)) + tkf.Drift(jnp.array([0.1, 0, 0]) * t)

    x = tok(4, 3, 1)

    def slope(t, x):
        x = unit(x)
        A = attention(x, [(B + t * V, np.cos(t) * V)], 1 + np.sin(t), "usa") + np.array([0.1, 0, 0]) * t
        return A - np.sum(A * x, axis=1, keepdims=True) * x

    expected = flow(slope, x, [0.5, 1.3])
    found = run(tkf.Schedule(at), x, [0, 0.5, 1.3])
    np.testing.assert_allclose(found.x[1:], expected, atol=1e-10)
    # tsit5 interpolates between its steps
    found = run(tkf.Schedule(at), x, [0, 0.5, 1.3], tkf.Adaptive(1e-10, 1e-11))
    np.testing.assert_allclose(found.x[1:], expected, atol=1e-8)


# -- random layers


def draw(key):
    return tkf.SoftmaxAttention(tkf.AttentionWeights(jnp.eye(3), jax.random.normal(key, (3, 3))), 2.0)


@pytest.mark.slow
def test_random_layers_are_the_layers_of_their_keys():
    """Layer l is draw(fold_in(key, l)): as a Depth of the drawn models; another key gives others."""
    x = tok(5, 3, 1)
    keys = [jax.random.fold_in(jax.random.key(7), k) for k in range(4)]
    depth = tkf.Depth([draw(key) for key in keys], 0.25)
    for solver in (tkf.Layers(0.25), tkf.Adaptive()):
        a = run(tkf.RandomLayers(draw, 0.25, 7), x, [0, 1.0], solver).x[-1]
        b = run(depth, x, [0, 1.0], solver).x[-1]
        np.testing.assert_allclose(a, b, atol=1e-13)
    other = run(tkf.RandomLayers(draw, 0.25, 8), x, [0, 1.0], tkf.Layers(0.25)).x[-1]
    assert np.abs(other - a).max() > 0.1


class StoppedError(Exception):
    pass


@pytest.mark.parametrize(
    ("kind", "solver"),
    mostly_slow(
        [(k, s) for k in ("random", "depth", "schedule") for s in ("layers", "adaptive")],
        [("random", "layers"), ("depth", "adaptive")],
    ),
)
def test_a_stopped_run_goes_on_to_the_bit(kind, solver, tmp_path, monkeypatch):
    monkeypatch.setattr("tokenfield.runs.record.WRITE_EVERY", 0.0)
    model = tkf.RandomLayers(draw, 0.7, 3) if kind == "random" else jumping(kind)
    solver = tkf.Layers(0.175) if solver == "layers" else tkf.Adaptive()
    x, ts = tok(5, 3, 1), 0.175 * np.arange(13)
    whole = run(model, x, ts, solver)

    def progress(share, t):
        if t >= 1.0:
            raise StoppedError

    path = tmp_path / "run"
    with pytest.raises(StoppedError):
        run(model, x, ts, solver, store=path, progress=progress)
    assert 1 < len(tkf.load(path).ts) < 13
    again = run(model, x, ts, solver, store=path, resume=True)
    assert np.array_equal(again.x, whole.x)


def test_a_store_knows_other_layers(tmp_path):
    """A Depth with other weights, or another step, is another run."""
    models = [zero(V) for V in (V1, V2)]
    run(tkf.Depth(models, 0.5), START, [0, 1.0], store=tmp_path / "run")
    for other in (tkf.Depth(models, 0.4), tkf.Depth([zero(V1), zero(V3)], 0.5), tkf.Depth(models, 0.5, True)):
        with pytest.raises(tkf.InputError, match="^`resume` must continue the same run.* other model"):
            run(other, START, [0, 1.0], store=tmp_path / "run", resume=True)


def test_a_store_knows_other_random_layers(tmp_path):
    """Another key, or another function of the same name, is another run."""

    def scaled(scale):
        return lambda key: tkf.Drift(scale * jax.random.normal(key, (3,)))

    go = lambda scale, key, **more: run(  # noqa: E731
        tkf.RandomLayers(scaled(scale), 0.5, key), START, [0, 1.0], tkf.Layers(0.5), store=tmp_path, **more
    )
    tmp_path = tmp_path / "run"
    first = go(1.0, 3)
    assert np.array_equal(go(1.0, 3, resume=True).x, first.x)
    for scale, key in ((2.0, 3), (1.0, 4)):
        with pytest.raises(tkf.InputError, match="^`resume` must continue the same run.* other model"):
            go(scale, key, resume=True)


@pytest.mark.slow
def test_random_layers_for_an_array_of_keys():
    """Under vmap every key is a network of its own."""
    tokens = tkf.Tokens(tok(5, 3, 1))
    pull = lambda key: tkf.Drift(jax.random.normal(key, (3,)))  # noqa: E731

    def end(key):
        return tkf.simulate(tkf.RandomLayers(pull, 0.25, key), tokens, [0.0, 1.0], tkf.Layers(0.25)).x[-1]

    both = jax.vmap(end)(jnp.array([7, 8]))
    for k, key in enumerate((7, 8)):
        np.testing.assert_allclose(both[k], end(key), atol=1e-13)


@pytest.mark.slow
def test_merged_tokens_see_the_same_layers():
    """Two pairs of equal tokens are two tokens of double weight: the run with merging agrees to rounding."""
    model = tkf.RandomLayers(draw, 0.7, 3)
    x = np.repeat(tok(3, 3, 1), 2, axis=0)
    merged = run(model, x, [0, 1.4], tkf.Layers(0.7), merge_angle=1e-6)
    assert merged.stats["merge_distance"] < 1e-7
    light = run(model, tkf.Tokens(x[::2]), [0, 1.4], tkf.Layers(0.7))
    np.testing.assert_allclose(merged.x[-1][::2], light.x[-1], atol=1e-13)
    assert np.array_equal(merged.x[-1][::2], merged.x[-1][1::2])


# -- with spaces and fast sums


@pytest.mark.slow
@pytest.mark.parametrize("space", mostly_slow([tkf.PreNorm, tkf.PeriNorm, tkf.NoNorm], [tkf.PreNorm]))
def test_a_space_around_layers_is_layers_in_the_space(space):
    models = jumping("depth").models
    tokens = tkf.Tokens(tok(5, 3, 1), radii=[1.0, 2, 0.5, 1, 1.5])
    around, inside = space(tkf.Depth(models, 0.3)), tkf.Depth([space(m) for m in models], 0.3)
    for solver in (tkf.Adaptive(), tkf.Layers(0.3)):
        a, b = (
            run(model, tokens, [0, 0.4, 0.9] if solver.order > 1 else [0, 0.9], solver)
            for model in (around, inside)
        )
        np.testing.assert_allclose(a.x, b.x, atol=1e-13)
        np.testing.assert_allclose(a.radii, b.radii, rtol=1e-13)


def test_a_space_that_switches_around_layers():
    """Jumps of both: the layers at .3 and .6, the switch at .5."""
    models = jumping("depth").models
    tokens = tkf.Tokens(tok(5, 3, 1), radii=[1.0, 2, 0.5, 1, 1.5])
    found = run(tkf.MixNorm(tkf.Depth(models, 0.3), 0.5), tokens, [0, 0.9])
    y = np.asarray(tokens.points)
    for k, begin, end in ((0, 0, 0.3), (1, 0.3, 0.5), (1, 0.5, 0.6), (2, 0.6, 0.9)):
        pairs = list(zip(*heads(k), strict=True))

        def slope(t, y, pairs=pairs, post=end <= 0.5):
            r = np.linalg.norm(y, axis=1, keepdims=True)
            A = attention(y / r, pairs, 2.0)
            return r * (A - np.sum(A * y / r, axis=1, keepdims=True) * y / r) if post else A

        y = flow(slope, y, [end - begin])[0]
    np.testing.assert_allclose(found.tokens(-1).points, y, atol=1e-10)
    assert sorted(tkf.MixNorm(tkf.Depth(models, 0.3), 0.5).jumps) == pytest.approx([0.3, 0.5, 0.6])


@pytest.mark.slow
@pytest.mark.parametrize("different", [False, True])
def test_fast_sums_through_layers(different):
    """On the circle, with layers of one kind and of two; audited at every step."""
    rng = np.random.default_rng(0)
    layers = [
        tkf.SoftmaxAttention(tkf.AttentionWeights(rng.normal(size=(2, 2)), rng.normal(size=(2, 2))), 3.0)
        for _ in range(3)
    ]
    if different:
        layers[1] = layers[1] + tkf.Drift([0.3, 0.1])
    model, tokens = tkf.Depth(layers, 0.4), tkf.initial.uniform(400, 2, 0)
    fast, direct = (tkf.simulate(model, tokens, [0, 0.5, 1.2], summation=s) for s in ("circle", "direct"))
    assert np.abs(fast.x - direct.x).max() < 1e-7
    assert fast.stats["summation"] == "circle"
    assert 0 < fast.stats["certificate"] <= 1.1e-9


# -- what is asked of a model


def test_at_and_during():
    depth = jumping("depth")
    tokens = tkf.Tokens(tok(4, 3, 1))
    for t, k in ((0.0, 0), (0.69, 0), (0.7 - 1e-15, 1), (0.7, 1), (1.4, 2), (99.0, 2)):
        assert depth.at(t) is depth.models[k]
        traced = jax.jit(lambda t: depth.at(t).velocity(tokens, DIRECT))(t)
        np.testing.assert_allclose(traced, depth.models[k].velocity(tokens, DIRECT), atol=1e-14)
    again = tkf.Depth(depth.models, 0.7, repeat=True)
    assert again.at(2.1) is depth.models[0] and again.at(4.9 + 1e-12) is depth.models[1]
    assert [float(again.next_jump(jnp.asarray(t))) for t in (0.0, 0.7, 6.9)] == pytest.approx([0.7, 1.4, 7.0])
    assert np.isinf(depth.next_jump(jnp.asarray(1.4)))
    np.testing.assert_allclose(depth.velocity(tokens), depth.models[0].velocity(tokens), atol=1e-16)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda m: tkf.Depth([]), "`models` must be a list of at least one model"),
        (lambda m: tkf.Depth(m), "`models` must be a list of at least one model"),
        (lambda m: tkf.Depth([m, 3]), "`model` must be a Model, but was int"),
        (lambda m: tkf.Depth([m], 0.0), "`step` must be positive and finite, but was 0.0"),
        (
            lambda m: tkf.Depth([m, tkf.Drift([1.0, 0])]),
            "`models` must have one dimension, 3, but was 2",
        ),
        (lambda m: tkf.Depth([m, tkf.PreNorm(m)]), "`models` must live in one space, but was in PreSpace"),
        (
            lambda m: tkf.Depth([tkf.Depth([m])]),
            "`models` must not change with time themselves, but was Depth",
        ),
        (lambda m: tkf.Depth([tkf.ScaledNorm(m)]), "`models` must not change with time themselves"),
        (lambda m: tkf.Depth([m + tkf.Noise(1.0)]), "`models` must have no noise, but was noisy"),
        (
            lambda m: tkf.Depth([m, tkf.UnnormalisedAttention(IDENTITY, 400.0)]),
            "`models` must need no time unit of their own (β‖B‖ at most 300), but was e^400",
        ),
        (lambda m: tkf.Schedule(3), "`function` must be a function of the time, but was 3"),
        (lambda m: tkf.Schedule(lambda t: 3), "`model` must be a Model, but was int"),
        (lambda m: tkf.Schedule(lambda t: m, [np.nan]), "`jumps` must be finite times"),
        (lambda m: tkf.RandomLayers(3), "`draw` must be a function of a random key, but was 3"),
        (lambda m: tkf.RandomLayers(lambda key: m, 1.0, -1), "`key` must be a whole number, at least 0"),
        (
            lambda m: tkf.RandomLayers(
                lambda key: tkf.Drift(np.random.default_rng(int(jax.random.bits(key))).normal(size=3))
            ),
            "`draw` must be a JAX function",
        ),
    ],
)
def test_bad_depths_are_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError) as error:
        bad(tkf.SoftmaxAttention(IDENTITY, 1.0))
    assert str(error.value).startswith(sentence)


def test_sequential_layers_of_different_kinds():
    """Each layer has its own terms."""
    models, outputs = different_layers()
    for space in (lambda m: m, lambda m: tkf.PreNorm(m)):
        y = tok(5, 3, 1)
        free = isinstance(space(models[0]), tkf.PreNorm)
        found = run(space(tkf.Depth(models, 0.5)), y, [0, 2.0], tkf.Layers(0.5, "sequential"))
        for layer in outputs:
            for output in layer:
                y = y + 0.5 * output(unit(y))
                y = y if free else unit(y)
        np.testing.assert_allclose(found.tokens(-1).points, y, atol=1e-13)


@pytest.mark.slow
def test_layers_of_different_kinds_keep_their_own_alpha():
    sa = tkf.SoftmaxAttention(IDENTITY, 2.0)
    models = [tkf.NGPT(sa, 0.5), tkf.NGPT(sa + MLP, 0.1)]
    tokens = tkf.Tokens(tok(5, 3, 1))
    for solver in (tkf.Layers(0.5), TIGHT):
        both = run(tkf.Depth(models, 0.5), tokens, [0, 1.0], solver).x[-1]
        first = run(models[0], tokens, [0, 0.5], solver).tokens(-1)
        second = run(models[1], first, [0, 0.5], solver).x[-1]
        np.testing.assert_allclose(both, second, atol=1e-11)


@pytest.mark.slow
def test_layers_of_different_kinds_are_audited(monkeypatch):
    """Break the sums of the second layer only: the run must notice."""
    weights = tkf.AttentionWeights(np.diag([1.0, 0.5]), np.eye(2))
    layers = [tkf.SoftmaxAttention(weights, 3.0), tkf.SoftmaxAttention(weights, 3.0) + tkf.Drift([0.3, 0.1])]
    from tokenfield.sums.circle import CircleSums

    right = CircleSums.tables

    def wrong(profile, band, nodes):
        return {
            k: v * (1 + 1e-4 * (jnp.arange(v.shape[1]) == 1)) for k, v in right(profile, band, nodes).items()
        }

    monkeypatch.setattr(CircleSums, "tables", staticmethod(wrong))
    with pytest.raises(tkf.RunError, match="circle sums missed their tolerance"):
        tkf.simulate(tkf.Depth(layers, 0.4), tkf.initial.uniform(400, 2, 0), [0, 0.8], summation="circle")


def test_layers_of_a_schedule_change_with_its_jumps():
    """t = .1 + … + .1 is .9999999999999999 and not 1: the jump at 1 must still be seen by the eleventh layer."""
    a, b = np.eye(3), np.diag([1.0, -1, 2])
    schedule = tkf.Schedule(
        lambda t: tkf.ZeroTemperature(tkf.AttentionWeights(jnp.eye(3), jnp.where(t < 1.0, a, b))), [1.0]
    )
    found = run(schedule, START, [0, 2.0], tkf.Layers(0.1)).x[-1]
    x = START
    for k in range(20):
        x = unit(x + 0.1 * x @ (a if k < 10 else b).T)
    np.testing.assert_allclose(found, x, atol=1e-13)


def test_the_switch_of_mix_norm_is_seen_by_its_layer():
    """Eleven steps of .1 are beyond t = 1, however their sum rounds."""
    model = tkf.MixNorm(tkf.SoftmaxAttention(tkf.AttentionWeights.identity(8), 1.0), 1.0)
    found = run(model, tkf.initial.equiangular(6, 8, 0.1), [0, 3.0], tkf.Layers(0.1))
    orbit = tkf.theory.equiangular_norm_layers("mix", 6, 1.0, 0.1, 1.0, 30, 0.1, switch=1.0)
    assert found.x[-1, 0] @ found.x[-1, 1] == pytest.approx(orbit.rho[-1], abs=1e-12)
    assert found.radii[-1, 0] == pytest.approx(orbit.r[-1], abs=1e-12)


@pytest.mark.slow
def test_a_schedule_keeps_the_time_of_the_equation():
    """β passes 300, where unnormalised attention by itself would change its unit of time; V = e^{−β}I here."""
    x = np.asarray(tkf.initial.equiangular(3, 3, 0.995).x)

    def at(t):
        beta = 299.0 + 4 * t
        return tkf.UnnormalisedAttention(tkf.AttentionWeights(jnp.eye(3), jnp.exp(-beta) * jnp.eye(3)), beta)

    def slope(t, x):
        x = unit(x)
        A = np.exp((299.0 + 4 * t) * (x @ x.T - 1)) @ x / 3
        return A - np.sum(A * x, axis=1, keepdims=True) * x

    found = run(tkf.Schedule(at), x, [0, 0.2, 1.0])
    np.testing.assert_allclose(found.x[1:], flow(slope, x, [0.2, 1.0]), atol=1e-9)


@pytest.mark.slow
def test_gradients_through_a_schedule_and_depth():
    x = jnp.asarray(tok(4, 3, 1))

    def final(theta):
        first = tkf.SoftmaxAttention(IDENTITY, theta[0])
        layers = tkf.Depth([first, tkf.SoftmaxAttention(IDENTITY, theta[1])], 0.3)
        smooth = tkf.Schedule(lambda t: tkf.SoftmaxAttention(IDENTITY, theta[0] + t * theta[1]))
        ends = [
            tkf.simulate(m, tkf.Tokens(x), [0.0, 0.6], tkf.RungeKutta4(0.1)).x[-1] for m in (layers, smooth)
        ]
        return sum(jnp.sum(end[:, 1] ** 3) for end in ends)

    theta = jnp.array([1.0, 2.0])
    found = jax.grad(final)(theta)
    final, h = jax.jit(final), 1e-5
    for k in range(2):
        e = h * jnp.eye(2)[k]
        slope = (final(theta + e) - final(theta - e)) / (2 * h)
        assert float(found[k]) == pytest.approx(float(slope), rel=1e-6)
