"""Every model in every use: it runs and agrees with an independent route, or is refused in one sentence.

Each cell of the table (models × uses) is a test. Nothing may be silently wrong, and nothing but `InputError`
may be raised. What a model cannot do follows from what it declares: order (masks), free (lengths), time, noise,
rough (jumps of the velocity).
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokenfield as tkf
from tests.conftest import MOST_MAPS
from tests.marks import mostly_slow
from tests.problems.loops import unit
from tokenfield.models.norms import Norm
from tokenfield.sums.direct import DIRECT

BETA = 2.0


def weights(d, heads=None):
    """Symmetric about the first axis, so that zonal laws and reflections are kept."""
    B, V = np.diag([1.0] + [0.5] * (d - 1)), np.diag([0.8] + [1.0] * (d - 1))
    if heads is None:
        return tkf.AttentionWeights(B, V)
    return tkf.AttentionWeights(np.stack([B, 0.7 * np.eye(d)]), np.stack([V, -0.3 * np.eye(d)]))


def sa(d, **options):
    return tkf.SoftmaxAttention(weights(d), BETA, **options)


def usa(d, **options):
    return tkf.UnnormalisedAttention(weights(d), BETA, **options)


def l2(d, **options):
    K = np.diag([1.3] + [0.8] * (d - 1))
    return tkf.L2Attention(np.eye(d), K, weights(d).V, BETA, **options)


def mlp(d):
    return tkf.MLP(np.eye(d), None, 0.5 * np.eye(d), 0.1 * np.eye(d)[0], "identity")


def relu(d):
    rng = np.random.default_rng(0)
    return tkf.MLP(rng.normal(size=(4, d)), rng.normal(size=4), 0.3 * rng.normal(size=(d, 4)), None, "relu")


def drift(d):
    return tkf.Drift(0.3 * np.eye(d)[0])


def context(d):
    return tkf.initial.uniform(7, d, 5)


def causal():
    return tkf.masks.causal()


#: name → (how it is made in dimension d, what stands in its way)
MODELS = {
    "softmax": (sa, ""),
    "softmax, two heads": (lambda d: tkf.SoftmaxAttention(weights(d, 2), BETA), ""),
    "softmax, biased": (
        lambda d: tkf.SoftmaxAttention(
            tkf.AttentionWeights(weights(d).B, weights(d).V, 0.3 * np.eye(d)[0]), BETA
        ),
        "",
    ),
    "unnormalised": (usa, ""),
    "interaction": (lambda d: tkf.InteractionFlow(jnp.cosh, weights(d).B), ""),
    "sigmoid": (lambda d: tkf.SigmoidAttention(weights(d), BETA, -1.0, count=3.0), ""),
    "sigmoid, number": (lambda d: tkf.SigmoidAttention(weights(d), BETA, -np.log(40)), "number"),
    "linear": (lambda d: tkf.LinearAttention(weights(d, 2)), ""),
    "l2": (l2, ""),
    "sinkhorn": (lambda d: tkf.SinkhornAttention(weights(d), BETA), ""),
    "hardmax": (lambda d: tkf.HardmaxAttention(weights(d)), "rough"),
    "softmax at infinity": (lambda d: tkf.SoftmaxAttention(weights(d), np.inf), "rough"),
    "unnormalised at infinity": (lambda d: tkf.UnnormalisedAttention(weights(d), np.inf), "rough"),
    "zero temperature": (lambda d: tkf.ZeroTemperature(weights(d)), ""),
    "anchors": (lambda d: sa(d, context=context(d)), ""),
    "softmax, causal": (lambda d: sa(d, mask=causal()), "order"),
    "unnormalised, causal": (lambda d: usa(d, mask=causal()), "order"),
    "interaction, causal": (lambda d: tkf.InteractionFlow(jnp.cosh, weights(d).B, causal()), "order"),
    "hardmax, causal": (lambda d: tkf.HardmaxAttention(weights(d), causal()), "order rough"),
    "softmax, alibi": (lambda d: sa(d, mask=tkf.masks.alibi(0.1)), "order"),
    "softmax, rotary": (lambda d: sa(d, mask=tkf.masks.rope([0.3])), "order"),
    "mlp": (mlp, ""),
    "relu": (relu, ""),
    "drift": (drift, ""),
    "softmax + mlp": (lambda d: sa(d) + mlp(d), ""),
    "softmax + relu": (lambda d: sa(d) + relu(d), ""),
    "unnormalised + drift": (lambda d: usa(d) + drift(d), ""),
    "softmax + interaction": (lambda d: sa(d) + tkf.InteractionFlow(jnp.cosh, weights(d).B), ""),
    "softmax + anchors": (lambda d: sa(d) + tkf.SoftmaxAttention(weights(d), 5.0, context=context(d)), ""),
    "softmax + causal": (lambda d: sa(d) + sa(d, mask=causal()), "order"),
    "softmax + hardmax": (lambda d: sa(d) + tkf.HardmaxAttention(weights(d)), "rough"),
    "softmax + noise": (lambda d: sa(d) + tkf.Noise(20.0), "noise"),
    "unnormalised + drift + noise": (lambda d: usa(d) + drift(d) + tkf.Noise(20.0), "noise"),
    "causal + noise": (lambda d: sa(d, mask=causal()) + tkf.Noise(20.0), "order noise"),
    "pre": (lambda d: tkf.PreNorm(sa(d)), "free"),
    "pre, causal": (lambda d: tkf.PreNorm(sa(d, mask=causal())), "order free"),
    "peri": (lambda d: tkf.PeriNorm(sa(d) + mlp(d)), "free"),
    "scaled": (lambda d: tkf.ScaledNorm(sa(d)), "free time"),
    "mix": (lambda d: tkf.MixNorm(sa(d), 0.15), "free time"),
    "none": (lambda d: tkf.NoNorm(sa(d)), "free"),
    "ngpt": (lambda d: tkf.NGPT(sa(d), 0.5), "space"),
    "depth": (lambda d: tkf.Depth([sa(d), tkf.SoftmaxAttention(weights(d), 1.0)], 0.15), "time"),
    "depth, kinds": (lambda d: tkf.Depth([sa(d), sa(d) + mlp(d)], 0.15), "time"),
    "depth, causal": (lambda d: tkf.Depth([sa(d), sa(d, mask=causal())], 0.15), "order time"),
    "pre of depth": (lambda d: tkf.PreNorm(tkf.Depth([sa(d), usa(d)], 0.15)), "free time"),
    "schedule": (
        lambda d: tkf.Schedule(lambda t: tkf.SoftmaxAttention(weights(d), 1 + t) + drift(d)),
        "time",
    ),
    "schedule, causal": (
        lambda d: tkf.Schedule(lambda t: tkf.SoftmaxAttention(weights(d), 1 + t, causal())),
        "order time",
    ),
    "random": (
        lambda d: tkf.RandomLayers(
            lambda key: tkf.SoftmaxAttention(
                tkf.AttentionWeights(jnp.eye(d), jax.random.normal(key, (d, d))), BETA
            ),
            0.15,
            1,
        ),
        "time",
    ),
    "mirrored": (lambda d: tkf.Mirrored(sa(d), 1), "half"),
}
NAMES = list(MODELS)
#: Words of a refusal, one of which each obstacle must give.
WORDS = {
    "order": "order of its tokens",
    "number": "not on their number",
    "free": "live on the sphere",
    "time": "not change with time",
    "noise": "no noise",
    "rough": "smooth velocity",
    "space": "projected output",
    "half": "not mirrored",
}


@pytest.fixture(autouse=True)
def forget_programs_of_earlier_cells():
    """The table compiles more programs than one process may map (tests/conftest.py)."""
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()


def made(name, d=2):
    return MODELS[name][0](d)


def obstacles(name):
    return MODELS[name][1].split()


def outcome(f):
    """The result, or the sentence of a refusal; any other exception is a failure of the test."""
    try:
        return f(), ""
    except tkf.InputError as error:
        sentence = str(error)
        assert sentence.startswith("`") and "` must " in sentence, sentence
        assert len(sentence) < 400
        return None, sentence


def refused(sentence, names, *wanted):
    """Whether a sentence names one of the arguments and one of the properties that stand in the way."""
    assert sentence.split("`")[1] in names, sentence
    assert any(WORDS[each] in sentence for each in wanted), sentence


def tokens_of(d, n=40):
    """The same number of tokens in all uses of the circle, so that they share compiled programs."""
    w = np.random.default_rng(1).dirichlet(np.ones(n))
    x = unit(np.random.default_rng(0).normal(size=(n, d)) + 0.5 * np.eye(d)[0])
    return tkf.Tokens(x, w)


def solver_of(name, step=0.05):
    return tkf.EulerMaruyama(step, 3) if "noise" in obstacles(name) else tkf.RungeKutta4(step)


def declared(model):
    """What the model says of itself, in the words of this file."""
    said = {
        "order": model.reads_order,
        "number": model.reads_number,
        "free": model.space.free,
        "time": model.reads_time,
        "noise": model.noisy,
        "rough": not model.smooth,
    }
    return {name for name, holds in said.items() if holds}


@pytest.mark.parametrize("name", NAMES)
def test_declarations_are_those_of_the_table(name):
    assert declared(made(name)) == set(obstacles(name)) - {"space", "half"}


#: Who has fast sums: one smooth kernel over all tokens, on the sphere or their directions.
FAST = {
    "softmax",
    "softmax, two heads",
    "softmax, biased",
    "unnormalised",
    "interaction",
    "sigmoid",
    "sigmoid, number",
    "linear",
    "l2",
    "sinkhorn",
    "softmax + mlp",
    "softmax + relu",
    "unnormalised + drift",
    "softmax + anchors",
    "softmax + noise",
    "unnormalised + drift + noise",
    "pre",
    "peri",
    "scaled",
    "mix",
    "ngpt",
    "depth",
    "depth, kinds",
    "pre of depth",
}
#: Who has fast sums on the circle only: by partial sums in the order of the tokens.
FAST_BY_PREFIXES = {
    "softmax, causal",
    "unnormalised, causal",
    "softmax, alibi",
    "causal + noise",
    "pre, causal",
}


@pytest.mark.parametrize(
    ("name", "d"),
    mostly_slow(
        [(name, d) for name in NAMES for d in (2, 3)],
        [("softmax + anchors", 2), ("softmax, causal", 2), ("none", 2), ("mirrored", 2), ("interaction", 2)],
    ),
)
def test_velocities_by_every_summation(name, d):
    model, tokens = made(name, d), tokens_of(d)
    exact = np.asarray(model.velocity(tokens, DIRECT))
    for summation in ("auto", "direct", "circle", "harmonic", "merged"):
        found, sentence = outcome(lambda s=summation: model.velocity(tokens, s))
        right_dimension = {"circle": (2,), "harmonic": (3,)}.get(summation, (2, 3))
        fast = name in FAST or (name in FAST_BY_PREFIXES and summation == "circle")
        possible = summation in ("auto", "direct") or (fast and d in right_dimension)
        if summation == "merged" and name in ("interaction", "sigmoid", "sigmoid, number", "linear"):
            possible = False  # cells are for the exponential
        assert (found is not None) == possible, (summation, sentence)
        if sentence:
            assert sentence.startswith("`summation` must"), summation
        else:
            np.testing.assert_allclose(
                found, exact, atol=2e-8 * np.abs(exact).max(), err_msg=summation, strict=True
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_runs_by_every_summation(name):
    model, tokens, solver = made(name), tokens_of(2), solver_of(name)
    direct = tkf.simulate(model, tokens, [0, 0.3], solver, summation="direct")
    for summation in ("auto", "circle", "merged"):
        found, sentence = outcome(
            lambda s=summation: tkf.simulate(model, tokens, [0, 0.3], solver, summation=s)
        )
        assert (not sentence) or sentence.startswith("`summation` must")
        if found is not None:
            np.testing.assert_allclose(found.x, direct.x, atol=1e-7)
            if found.radii is not None:
                np.testing.assert_allclose(found.radii, direct.radii, rtol=1e-7)


@pytest.mark.parametrize(
    "name", mostly_slow(NAMES, ["softmax, causal", "pre", "softmax + noise", "depth", "depth, causal"])
)
def test_merging(name):
    """Refused for models that tell close tokens apart; else two tokens at .004 go on as one with little error.

    A causal model once moved its first token by .035.
    """
    angle = 0.004
    a = np.append(angle / 2, np.linspace(0, 5, 39))
    tokens = tkf.Tokens(np.stack([np.cos(a), np.sin(a)], axis=1))
    model, ts = made(name), [0, 0.3]
    step = 0.3 / 64  # tokens are merged every sixteen steps
    found, sentence = outcome(
        lambda: tkf.simulate(model, tokens, ts, solver_of(name, step), merge_angle=angle)
    )
    unwanted = [each for each in obstacles(name) if each in ("order", "number", "free", "noise")]
    if unwanted:
        assert found is None
        return refused(sentence, ("model",), *unwanted)
    assert not sentence
    alone = tkf.simulate(model, tokens, ts, solver_of(name, step))
    assert found.stats["tokens_left"] == 39
    return np.testing.assert_allclose(found.x, alone.x, atol=2 * angle)


@pytest.mark.parametrize("name", mostly_slow(NAMES, ["softmax, causal", "peri"]))
def test_devices(name):
    model, tokens, solver = made(name), tokens_of(2), solver_of(name)
    found, sentence = outcome(lambda: tkf.simulate(model, tokens, [0, 0.3], solver, devices=1))
    unwanted = [each for each in obstacles(name) if each in ("order", "noise")]
    if unwanted:
        assert found is None
        return refused(sentence, ("model",), *unwanted)
    assert not sentence
    alone = tkf.simulate(model, tokens, [0, 0.3], solver)
    np.testing.assert_allclose(found.x, alone.x, atol=1e-13)
    if found.radii is not None:
        np.testing.assert_allclose(found.radii, alone.radii, rtol=1e-13)
    return None


@pytest.mark.parametrize("name", NAMES)
def test_solvers_and_noise(name):
    """Deterministic solvers refuse noise, stochastic ones free spaces; none runs without the noise asked for."""
    model, tokens = made(name), tokens_of(2)
    _, sentence = outcome(lambda: tkf.simulate(model, tokens, [0, 0.3], tkf.RungeKutta4(0.05)))
    assert bool(sentence) == ("noise" in obstacles(name))
    if sentence:
        assert sentence.startswith("`solver` must be EulerMaruyama")
        a, b = (tkf.simulate(model, tokens, [0, 0.3], tkf.EulerMaruyama(0.05, key)).x[-1] for key in (1, 2))
        assert np.abs(a - b).max() > 0.01
    noisy, sentence = outcome(lambda: model + tkf.Noise(2.0))
    if noisy is None:
        assert sentence.startswith(("`model` must", "`terms` must have noise at most once"))
    else:
        assert (noisy.noisy and float(noisy.diffusion) > 0) or "infinity" in name
        assert isinstance(noisy, tkf.Model) and not isinstance(noisy, Norm)


@pytest.mark.parametrize("name", NAMES)
def test_symmetries_are_only_claimed_where_they_are_kept(name):
    """Tokens that are their own image under x₂ → −x₂: whoever claims to keep that must do so."""
    a = np.linspace(0.4, 2.9, 20)
    angles = np.concatenate([a, -a])
    tokens = tkf.Tokens(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    model = made(name)
    run = tkf.simulate(model, tokens, [0, 0.3], solver_of(name))
    flip = np.array([1.0, -1.0])
    kept = np.abs(run.x[-1, :20] - run.x[-1, 20:] * flip).max() < 1e-12
    if "symmetry" in run.stats:
        assert kept and run.stats["symmetry"].startswith("kept")
        assert not {"order", "free", "noise"} & set(obstacles(name))
    assert "symmetry" not in run.status


def test_noise_does_not_count_as_a_numerical_error():
    x = np.array([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]])
    run = tkf.simulate(sa(3) + tkf.Noise(10.0), tkf.Tokens(x), [0, 1.0], tkf.EulerMaruyama(0.1, 0))
    assert "symmetry" not in run.stats and run.status == "reached t = 1 as asked"


@pytest.mark.parametrize("name", mostly_slow(NAMES, ["softmax, causal", "depth, kinds", "mix"]))
def test_jit_and_vmap(name):
    """A run inside jit is the run; two laws under vmap are each by itself."""
    model, solver = made(name), solver_of(name)
    clouds = jnp.stack([tokens_of(2).x, tokens_of(2).x[::-1]])

    def final(x):
        run = tkf.simulate(model, tkf.Tokens(x), [0.0, 0.3], solver)
        return run.x[-1] if run.radii is None else run.x[-1] * run.radii[-1][:, None]

    alone = [np.asarray(final(x)) for x in clouds]
    np.testing.assert_allclose(jax.jit(final)(clouds[0]), alone[0], atol=1e-13)
    together = jax.vmap(final)(clouds)
    np.testing.assert_allclose(together, np.stack(alone), atol=1e-13)
    for summation in ("circle", "harmonic", "merged"):
        found, sentence = outcome(
            lambda s=summation: jax.jit(lambda x: model.velocity(tkf.Tokens(x), s))(clouds[0])
        )
        if found is None:
            assert sentence.startswith("`summation` must")
        else:
            exact = model.velocity(tkf.Tokens(clouds[0]), DIRECT)
            np.testing.assert_allclose(found, exact, atol=1e-8)


# -- densities


def on_circle(a):
    return 1 + 0.4 * np.cos(a) + 0.2 * np.sin(2 * a)


def on_sphere(x):
    return 1 + 0.4 * x[:, 0] + 0.3 * x[:, 1] * x[:, 2]


DOMAINS = {
    "circle": (
        2,
        lambda: tkf.density.Circle(64),
        on_circle,
        lambda n: tkf.initial.circle_density(on_circle, n // 2),
    ),
    "sphere": (
        3,
        lambda: tkf.density.Sphere(16),
        on_sphere,
        lambda n: tkf.initial.sphere_density(on_sphere, n),
    ),
    "zonal": (
        3,
        lambda: tkf.density.Zonal(np.eye(3)[0], 24),
        lambda t: 1 + 0.4 * t,
        lambda n: tkf.initial.sphere_density(lambda x: 1 + 0.4 * x[:, 0], n),
    ),
    "characteristics": (
        2,
        lambda: tkf.density.Characteristics(n=64),
        lambda x: on_circle(np.arctan2(x[:, 1], x[:, 0])),
        lambda n: tkf.initial.circle_density(on_circle, n // 2),
    ),
}
QUICK_DENSITIES = [
    ("softmax, causal", "circle"),
    ("pre", "sphere"),
    ("depth", "zonal"),
    ("hardmax", "characteristics"),
    ("ngpt", "circle"),
    ("mirrored", "circle"),
    ("softmax + mlp", "circle"),
]


@pytest.mark.parametrize(
    ("name", "domain"), mostly_slow([(n, d) for n in NAMES for d in DOMAINS], QUICK_DENSITIES)
)
def test_densities(name, domain):
    """The law of many tokens, moments to 1e-5, or a sentence. A masked model was once accepted."""
    d, place, rho0, cloud = DOMAINS[domain]
    model, ts = made(name, d), [0.0, 0.2]
    found, sentence = outcome(lambda: tkf.density.solve(model, rho0, ts, place()))
    unwanted = [each for each in obstacles(name) if each != "noise"]
    if unwanted:
        assert found is None
        return refused(sentence, ("model",), *unwanted)
    if domain == "zonal" and name in (
        "relu",
        "softmax + relu",
        "anchors",
        "softmax + anchors",
        "softmax, biased",
        "l2",
        "sinkhorn",
    ):
        assert sentence.startswith("`model` must")
        assert (
            "symmetry about the axis" in sentence or "score biases" in sentence or "made of heads" in sentence
        )
        return None
    if domain == "characteristics" and "noise" in obstacles(name):
        assert sentence.startswith("`domain` must not be characteristics for a model with noise")
        return None
    assert not sentence
    tokens = cloud(1500 if "relu" in name else 400)  # a kink takes more nodes
    expected, allowed = _moments_of_tokens(model, tokens, ts, "noise" in obstacles(name))
    mean = np.asarray(found.moments().mean)
    return np.testing.assert_allclose(mean, expected, atol=allowed)


def _moments_of_tokens(model, tokens, ts, noisy):
    """Mean of the tokens at the last time, and how far a density may be from it."""
    if not noisy:
        run = tkf.simulate(model, tokens, ts, tkf.RungeKutta4(0.05))
        return np.asarray(run.tokens(-1).moments().mean), 2e-5
    # many runs of the same tokens with noise: the mean to its standard error
    means = np.stack(
        [
            np.asarray(tkf.simulate(model, tokens, ts, tkf.Strang(0.05, key)).tokens(-1).moments().mean)
            for key in range(12)
        ]
    )
    return means.mean(axis=0), 5 * float(means.std(axis=0).max()) / np.sqrt(12)
