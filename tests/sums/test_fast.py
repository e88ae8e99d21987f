"""Fast sums against the direct ones: every cloud, temperature and matrix, and the estimate never below the error."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

import tokenfield as tkf
from tests.marks import mostly_slow
from tokenfield.geometry import harmonics
from tokenfield.sums import cells as merged
from tokenfield.sums import policy as auto
from tokenfield.sums.base import Queries
from tokenfield.sums.circle import CircleSums
from tokenfield.sums.direct import DIRECT, Direct
from tokenfield.sums.expansion import audit
from tokenfield.sums.harmonic import HarmonicSums
from tokenfield.sums.profile import EXPONENTIAL, Scored
from tokenfield.sums.radial import Radial

CIRCLE_MATRICES = {
    "identity": np.eye(2),
    "rotation": np.array([[0.6, -0.8], [0.8, 0.6]]),
    "worked case": np.diag([0.5, 2.0]),
    "shear": np.array([[1.0, 2.0], [0.0, 1.0]]),
    "reflection": -np.eye(2),
    "singular": np.array([[1.0, 1.0], [1.0, 1.0]]) / 2,
    "nearly singular": np.diag([1.0, 1e-4]),
    "zero": np.zeros((2, 2)),
}
SPHERE_MATRICES = {
    "identity": np.eye(3),
    "orthogonal": np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0],
    "theory": np.diag([0.5, 2.0, 1.0]),
    "skew": np.eye(3) + 0.5 * np.array([[0.0, 1, -1], [-1, 0, 1], [1, -1, 0]]),
    "rank two": np.diag([1.0, 0.0, 0.5]),
    "rank one": np.outer([1.0, 0, 0], [0.6, 0.8, 0]),
}


def cloud(kind, n, d, key):
    """Uniform, clustered, nearly atomic, in one cap, with weights over twelve decades."""
    rng, pole = np.random.default_rng(key), np.eye(d)[0]
    weights = np.full(n, 1 / n)
    if kind == "uniform":
        x = tkf.initial.uniform(n, d, key).x
    elif kind == "clustered":
        centres = np.asarray(tkf.initial.uniform(5, d, key).x)[rng.integers(0, 5, n)]
        x = centres + 0.05 * rng.normal(size=(n, d))
    elif kind == "atomic":
        centres = np.asarray(tkf.initial.uniform(4, d, key).x)[rng.integers(0, 4, n)]
        x = centres + 1e-9 * rng.normal(size=(n, d))
    elif kind == "cap":
        x = tkf.initial.cap(n, pole, 0.4, key).x
    else:
        x = tkf.initial.uniform(n, d, key).x
        weights = 10 ** rng.uniform(-12, 0, n)
    x = np.array(x)
    return tkf.Tokens(x / np.linalg.norm(x, axis=1, keepdims=True), weights / weights.sum())


KINDS = ("uniform", "clustered", "atomic", "cap", "decades")
COMPARE = jax.jit(lambda sums, A, tokens: sums.exponential(Queries(A, tokens.x), tokens))


def scored(A):
    """One head with an exponential kernel."""
    return Scored(EXPONENTIAL, A[None])


def errors(sums, A, tokens):
    """Error of the mean and of log Z beyond the rounding of the direct sum, the estimate, and lost rows."""
    fast, exact = (
        COMPARE(sums, jnp.asarray(A), tokens),
        DIRECT.exponential(Queries(jnp.asarray(A), tokens.x), tokens),
    )
    rounding = 8 * np.asarray(exact.error)
    off = np.maximum(
        np.linalg.norm(fast.mean - exact.mean, axis=1), np.abs(np.asarray(fast.log_mass - exact.log_mass))
    )
    return np.maximum(off - rounding, 0), np.asarray(fast.error), ~np.isfinite(np.asarray(fast.log_mass))


def kept(sums, A, tokens):
    """Every row is within the estimate, the estimate within the tolerance, or the row is NaN."""
    off, estimate, lost = errors(sums, A, tokens)
    assert np.all(off[~lost] <= estimate[~lost])
    assert np.all(estimate[~lost] <= sums.tolerance)
    return lost


def cases(names, betas, quick):
    """All pairs."""
    return mostly_slow([(n, b) for n in names for b in betas], quick)


@pytest.mark.parametrize(
    ("name", "beta"),
    cases(
        CIRCLE_MATRICES, [0.1, 10.0, 1e3, 1e5], {("identity", 10.0), ("worked case", 1e3), ("singular", 10.0)}
    ),
)
def test_circle_sums_are_the_direct_sums(name, beta):
    A = beta * CIRCLE_MATRICES[name]
    sums = CircleSums.plan(scored(A), 1e-8, fallback_rows=64)
    for kind in ("uniform", "decades"):
        assert not kept(sums, A, cloud(kind, 1500, 2, 1)).any() or beta == 1e5


@pytest.mark.parametrize(("name", "beta"), cases(SPHERE_MATRICES, [0.1, 10.0, 200.0], {("theory", 10.0)}))
def test_harmonic_sums_are_the_direct_sums(name, beta):
    A = beta * SPHERE_MATRICES[name]
    sums = HarmonicSums.plan(scored(A), 1e-7, fallback_rows=64)
    for kind in ("uniform", "decades"):
        kept(sums, A, cloud(kind, 1500, 3, 1))
    assert not kept(sums, A, tkf.initial.sphere_density(lambda x: 1 + 0.5 * x[:, 1], 5000)).any()


@pytest.mark.slow
@settings(deadline=None, max_examples=25, derandomize=True)
@given(
    kind=st.sampled_from(KINDS),
    name=st.sampled_from(sorted(CIRCLE_MATRICES)),
    log_beta=st.floats(-1, 5),
    key=st.integers(0, 5),
)
def test_circle_estimates_hold_on_adversarial_clouds(kind, name, log_beta, key):
    """Keys in one cap and queries turned out of it, atoms, tiny weights: right, or said to be lost."""
    A = 10**log_beta * CIRCLE_MATRICES[name]
    kept(CircleSums.plan(scored(A), 1e-8, fallback_rows=64), A, cloud(kind, 800, 2, key))


@pytest.mark.slow
@settings(deadline=None, max_examples=12, derandomize=True)
@given(
    kind=st.sampled_from(KINDS),
    name=st.sampled_from(sorted(SPHERE_MATRICES)),
    log_beta=st.floats(-1, 2.3),
    key=st.integers(0, 5),
)
def test_harmonic_estimates_hold_on_adversarial_clouds(kind, name, log_beta, key):
    A = 10**log_beta * SPHERE_MATRICES[name]
    kept(HarmonicSums.plan(scored(A), 1e-7, fallback_rows=64), A, cloud(kind, 800, 3, key))


@pytest.mark.slow
@pytest.mark.parametrize(("d", "beta"), cases([2, 3], [0.1, 30.0, 1e3, 1e5], {(2, 1e3)}))
def test_merged_sums_keep_relative_accuracy_wherever_queries_look(d, beta):
    """Two narrow clusters and B that turns every query away from them."""
    angle = min(0.1, 2 / (1 + beta))
    parts = [tkf.initial.cap(2000, c, angle, k) for k, c in enumerate((np.eye(d)[0], np.eye(d)[1]))]
    tokens = tkf.initial.mixture(parts, [0.2, 0.8])
    for B in (-np.eye(d), np.diag([0.5, 2.0, 1.0][:d]), np.diag([1.0, 0.0, 0.0][:d])):
        for plan in merged.plans(np.asarray(tokens.x), beta * np.linalg.norm(B, 2), 1e-8)[:2]:
            assert not kept(plan, beta * B, tokens).any()
            few = plan.exponential(Queries(jnp.asarray(beta * B), tokens.x[:50]), tokens)
            exact = DIRECT.exponential(Queries(jnp.asarray(beta * B), tokens.x[:50]), tokens)
            assert np.abs(few.mean - exact.mean).max() < 1e-8 + 1e-15 * beta


def test_merged_sums_say_when_cells_run_out():
    tokens = tkf.initial.uniform(3000, 2, 0)
    small = merged.CellSums(1e-8, 2.0, 13, 8)
    assert np.isnan(COMPARE(small, 500 * jnp.eye(2), tokens).log_mass).all()


@pytest.mark.slow
def test_nan_comes_out_where_nan_goes_in():
    """The NUFFT library writes outside of its arrays if it is given NaN."""
    tokens = tkf.initial.uniform(1000, 2, 0)
    broken = jax.tree.unflatten(jax.tree.structure(tokens), (tokens.x.at[3, 0].set(jnp.nan), tokens.weights))
    for sums in (CircleSums.plan(scored(np.eye(2)), 1e-8), merged.CellSums(1e-8, 2.0, 13, 500)):
        assert np.isnan(COMPARE(sums, jnp.eye(2), broken).mean).any()


@pytest.mark.parametrize("low,high", [(5.0, 20.0), (0.0, 300.0), (1.0, 1e6)])
def test_lengths_are_interpolated_to_the_tolerance(low, high):
    radial = Radial.plan(EXPONENTIAL, low, high, 1e-10)
    s, z = np.random.default_rng(0).uniform(low, high, 200), np.random.default_rng(1).uniform(0, 2, 300)
    z = np.concatenate([z, z / high, z / np.sqrt(high)])
    found = np.asarray(radial.coefficients(jnp.asarray(s))) @ np.exp(-np.outer(radial.nodes, z))
    assert np.abs(found - np.exp(-np.outer(s, z))).max() < 2e-10


def test_legendre_tables_are_scipys_harmonics():
    """Σ_p a·2cos or 2 sin pθ against sph_harm_y at random points."""
    L, rng = 12, np.random.default_rng(0)
    table, theta = harmonics.legendre_fourier(L), rng.uniform(0, np.pi, 20)
    p = np.arange(L + 1)
    for m in range(L + 1):
        waves = 2 * (np.cos if m % 2 == 0 else np.sin)(np.outer(p, theta))
        for degree in range(m, L + 1):
            expected = special.sph_harm_y(degree, m, theta, np.zeros(20)).real
            np.testing.assert_allclose(table[m, degree] @ waves, expected, atol=1e-13)


def test_bessel_multipliers_against_many_digits():
    for s in (1e-3, 1.0, 300.0, 2e4):
        for degree in (0, 1, 40):
            with mpmath.workdps(30):
                exact = mpmath.sqrt(mpmath.pi / (2 * s)) * mpmath.besseli(degree + 0.5, s) * mpmath.exp(-s)
            found = harmonics.scaled_bessel(np.array(degree), np.array(s)) / (4 * np.pi)
            assert found == pytest.approx(float(exact), rel=1e-11, abs=1e-290)


def test_bands_leave_out_less_than_the_tolerance():
    for s in (0.5, 40.0, 3e3):
        K = CircleSums.band(EXPONENTIAL, s, 1e-10)
        assert 2 * special.ive(np.arange(K + 1, K + 3000), s).sum() <= 1e-10
        assert 2 * special.ive(np.arange(max(K - 2, 0), K + 3000), s).sum() > 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("d", [2, 3])
def test_gradients_of_fast_sums(d):
    """In points and weights, and in A on a plan made for it, against the direct sums."""
    n, B = 600, np.diag([0.5, 2.0, 1.0][:d])
    kind = CircleSums if d == 2 else HarmonicSums
    sums = kind.plan(
        Scored(EXPONENTIAL, np.stack([3.9 * B, 4.1 * B])), 1e-9
    )  # room around 4B for the derivative in A
    c = jnp.asarray(np.random.default_rng(0).normal(size=(n, d)))
    tokens = cloud("uniform", n, d, 3)

    def f(sums, A, x, w):
        tokens = tkf.Tokens(x, w)
        found = sums.exponential(
            Queries(A, tokens.x), tokens
        )  # on the sphere: the expansions see directions only
        return jnp.sum(c * found.mean) + jnp.sum(found.log_mass)

    grad = jax.jit(jax.grad(f, argnums=(1, 2, 3)))
    fast, exact = (grad(s, jnp.asarray(4 * B), tokens.x, tokens.weights) for s in (sums, DIRECT))
    for a, b in zip(fast, exact, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7 * np.abs(b).max())


@pytest.mark.slow
def test_the_audit_sees_a_wrong_table():
    """Break a multiplier: the sampled exact sums find it, and the sample turns."""
    tokens = tkf.initial.circle_density(lambda a: 1 + 0.5 * np.cos(a), 2000)
    A = 20.0 * np.eye(2)
    right = CircleSums.plan(scored(A), 1e-8)
    wrong = CircleSums(
        tolerance=1e-8, multipliers=right.multipliers.at[0, 1].mul(1 + 1e-5), radial=right.radial, grid=0
    )
    for turn in range(3):
        assert float(audit(right, Scored(EXPONENTIAL, jnp.asarray(A)), tokens, jnp.asarray(turn))) < 1e-10
        assert float(audit(wrong, Scored(EXPONENTIAL, jnp.asarray(A)), tokens, jnp.asarray(turn))) > 1e-7


# -- runs


def worked_case(beta=300.0, n=3000):
    weights = tkf.AttentionWeights(np.diag([0.5, 2.0]), np.diag([1.0, 0.5]))
    tokens = tkf.initial.circle_density(lambda a: 1 + 0.3 * np.cos(a) + 0.2 * np.sin(a), n)
    return tkf.SoftmaxAttention(weights, beta), tokens


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    cases(
        ["circle", "harmonic", "merged"],
        [tkf.SoftmaxAttention, tkf.UnnormalisedAttention],
        {("circle", tkf.SoftmaxAttention)},
    ),
)
def test_a_run_by_fast_sums_is_the_run_by_direct_sums(name, kind):
    d = 3 if name == "harmonic" else 2
    B = np.stack([np.diag([0.5, 1.5, 1.0][:d]), 0.7 * np.eye(d)])  # two heads
    model = kind(tkf.AttentionWeights(B, np.diag([1.0, 0.5, 0.8][:d])), 6.0)
    tokens = cloud("decades", 700, d, 0)
    ts = np.linspace(0, 1.0, 4) * (1.0 if kind is tkf.SoftmaxAttention else 1e-3)
    fast, direct = (tkf.simulate(model, tokens, ts, summation=s) for s in (name, "direct"))
    assert np.abs(fast.x - direct.x).max() < 1e-7
    assert fast.stats["summation"] == name
    assert 0 <= fast.stats["certificate"] <= 1.1e-9


@pytest.mark.slow
def test_auto_changes_sums_when_queries_look_away(monkeypatch):
    """Concentration by circle sums; in the escape every query misses every key and merged sums take over."""
    monkeypatch.setattr(auto, "CHEAP_SECONDS", 0.0)
    model, tokens = worked_case()
    ts = np.linspace(0, 30, 4)
    auto_run, direct = (
        tkf.simulate(model, tokens, ts, tkf.Adaptive(1e-6, 1e-8), summation=s) for s in ("auto", "direct")
    )
    assert auto_run.stats["summation"].startswith("circle, merged from t = ")
    assert auto_run.stats["certificate"] <= 1.1e-7
    # the escape is unstable: errors of 1e-7 grow by e^{.45·15}
    assert np.abs(auto_run.x - direct.x).max() < 1e-3
    assert np.abs(auto_run.x[1] - direct.x[1]).max() < 1e-5


@pytest.mark.slow
def test_a_run_may_begin_where_expansions_fail(monkeypatch):
    """All keys in one cap and B = −I: no query sees a key, from the first evaluation on."""
    monkeypatch.setattr(auto, "CHEAP_SECONDS", 0.0)
    model = tkf.SoftmaxAttention(tkf.AttentionWeights(-np.eye(2), np.eye(2)), 500.0)
    tokens = tkf.initial.cap(3000, [1.0, 0.0], 0.2, 0)
    run = tkf.simulate(model, tokens, [0.0, 0.01], tkf.Adaptive(1e-6, 1e-8))
    assert run.stats["summation"].startswith("circle, direct from t = 0")
    exact = tkf.simulate(model, tokens, [0.0, 0.01], tkf.Adaptive(1e-6, 1e-8), summation="direct")
    assert np.abs(run.x[-1] - exact.x[-1]).max() < 1e-6
    with pytest.raises(tkf.RunError, match="stopped at t = 0: circle sums missed their tolerance"):
        tkf.simulate(model, tokens, [0.0, 0.01], summation="circle")


@pytest.mark.slow
def test_tokens_merged_in_a_run_keep_its_certificate_and_end_in_direct_sums(monkeypatch):
    """Few tokens are left: the board counts those, and what the audits found before stays."""
    monkeypatch.setattr(auto, "CHEAP_SECONDS", 1e-4)
    monkeypatch.setattr("tokenfield.sums.expansion.FORGIVEN_ROUNDINGS", 0.0)
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), 20.0)
    tokens = tkf.initial.circle_density(lambda a: 1 + 0.9 * np.cos(a), 2000)
    run = tkf.simulate(model, tokens, np.linspace(0, 60, 4), tkf.Adaptive(1e-6, 1e-8), merge_angle=1e-3)
    assert run.stats["tokens_left"] < 50
    assert run.stats["summation"].startswith("circle") and "direct from" in run.stats["summation"]
    assert run.stats["certificate"] > 0


@pytest.mark.slow
def test_named_sums_that_fail_say_where():
    model, tokens = worked_case()
    with pytest.raises(
        tkf.RunError, match=r"stopped at t = 1\d\.\d+: circle sums missed their tolerance"
    ) as e:
        tkf.simulate(model, tokens, np.linspace(0, 30, 31), tkf.Adaptive(1e-6, 1e-8), summation="circle")
    assert 10 < len(e.value.trajectory.ts) < 25


@pytest.mark.slow
def test_a_resumed_run_takes_up_its_sums(tmp_path, monkeypatch):
    """Cut in the merged part; the end is the same to the bit."""
    monkeypatch.setattr(auto, "CHEAP_SECONDS", 0.0)
    model, tokens = worked_case()
    ts, solver = np.linspace(0, 30, 7), tkf.Adaptive(1e-6, 1e-8)
    whole = tkf.simulate(model, tokens, ts, solver)

    calls = []

    def sometimes(t):
        calls.append(0)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return float(t.x[0, 0])

    with pytest.raises(KeyboardInterrupt):
        tkf.simulate(model, tokens, ts, solver, store=tmp_path / "run", measure={"m": sometimes})
    calls += [0] * 10
    again = tkf.simulate(
        model, tokens, ts, solver, store=tmp_path / "run", measure={"m": sometimes}, resume=True
    )
    assert np.array_equal(again.x, whole.x)
    assert again.stats["summation"] == whole.stats["summation"]


def test_harmonics_of_too_high_a_degree_are_refused():
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), 1e4)
    with pytest.raises(tkf.InputError, match=r"`summation` must not be 'harmonic' where β‖B‖ = 10000"):
        tkf.simulate(model, tkf.initial.uniform(600, 3, 0), [0.0, 1.0], summation="harmonic")


def test_small_problems_are_summed_directly():
    for d in (2, 3):
        tokens = tkf.initial.uniform(1000, d, 0)
        board = auto.SummationPolicy("auto", scored(10 * np.eye(d)), tokens, 1e-9)
        assert isinstance(board.sums, Direct)
        assert board.settled  # so that bursts of steps may be long
        assert not board.reconsider(tokens)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("summation", "B"),
    [
        ("circle", np.eye(2)),
        ("circle", np.diag([0.5, 2.0])),
        ("merged", np.diag([0.5, 2.0])),
        ("harmonic", np.eye(3)),
    ],
)
def test_gradient_of_a_run_by_fast_sums(summation, B):
    """In x, B, V and β, against the direct sums; those agree with finite differences (test_simulate)."""
    d = len(B)
    V, tokens = jnp.diag(jnp.arange(1.0, d + 1)), cloud("uniform", 300, d, 1)

    def final(inputs, summation):
        x, B, V, beta = inputs
        model = tkf.SoftmaxAttention(tkf.AttentionWeights(B, V), beta)
        start = tkf.Tokens(x, tokens.weights)
        run = tkf.simulate(
            model, start, [0.0, 0.5], tkf.RungeKutta4(0.25), summation=summation, summation_tolerance=1e-9
        )
        return jnp.sum(run.x[-1, :, 1] ** 2)

    fast, direct = (
        jax.grad(final)((tokens.x, jnp.asarray(B), V, jnp.asarray(8.0)), s) for s in (summation, "direct")
    )
    for a, b in zip(fast, direct, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6 * np.abs(b).max())


@pytest.mark.slow
def test_named_fast_sums_need_values():
    model, tokens = worked_case(n=100)

    def final(beta):
        fast = tkf.SoftmaxAttention(model.weights, beta)
        return tkf.simulate(fast, tokens, [0.0, 1.0], summation="circle").x

    with pytest.raises(
        tkf.InputError, match="^`summation` must be 'direct' where B or beta are traced by jit"
    ):
        jax.jit(final)(3.0)

    def from_x(x, summation):
        return tkf.simulate(model, tkf.Tokens(x), [0.0, 0.1], tkf.RungeKutta4(0.1), summation=summation).x

    with pytest.raises(tkf.InputError, match="^`summation` must not be 'merged' under jit or vmap"):
        jax.jit(lambda x: from_x(x, "merged"))(tokens.x)
    fast, direct = (jax.jit(lambda x, s=s: from_x(x, s))(tokens.x) for s in ("circle", "direct"))
    np.testing.assert_allclose(fast, direct, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"summation": "harmonic"}, "`summation` must not be 'harmonic' in d = 2; it is for d = 3"),
        ({"summation_tolerance": 0.0}, "`summation_tolerance` must lie in [1e-12, 1e-2], but was 0.0"),
        ({"summation_tolerance": "x"}, "`summation_tolerance` must be a number, but was 'x'"),
        (
            {"summation": "circle", "model": tkf.HardmaxAttention(tkf.AttentionWeights.identity(2))},
            "`summation` must be 'auto' or 'direct' for this model, but was 'circle'",
        ),
    ],
)
def test_bad_choices_are_one_sentence(change, sentence):
    model, tokens = worked_case(n=100)
    with pytest.raises(tkf.InputError) as error:
        tkf.simulate(**({"model": model, "tokens": tokens, "ts": [0.0, 1.0]} | change))
    assert str(error.value).startswith(sentence)
