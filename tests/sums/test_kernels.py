"""Fast sums of any smooth kernel against the direct ones, and a contributor's own kernel everywhere."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import tokenfield as tkf
from tests.marks import mostly_slow
from tests.problems.loops import attention, projected, tok
from tokenfield.sums.base import Queries
from tokenfield.sums.circle import CircleSums
from tokenfield.sums.direct import DIRECT
from tokenfield.sums.harmonic import HarmonicSums
from tokenfield.sums.profile import EXPONENTIAL, FunctionProfile

#: φ, by name; the weight is φ'
POTENTIALS = {
    "cosh": jnp.cosh,
    "polynomial": lambda s: s**4 / 4 - s**3 / 6 + s,
    "sigmoid": lambda s: jax.nn.softplus(6 * s - 1) / 6,
    "sharp": lambda s: jnp.exp(20 * s) / 20,
    "linear": lambda s: s**2 / 2,
    "wave": lambda s: jnp.sin(5 * s),
}


def matrices(d):
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(d, d)))[0]
    return {
        "identity": np.eye(d),
        "negative": -np.eye(d),
        "anisotropic": turn @ np.diag([0.5, 1.2, 0.8][:d]) @ turn.T,
        "indefinite": turn @ np.diag([0.5, -1.2, 0.8][:d]) @ turn.T,
        "singular": turn @ np.diag([1.0, 0.0, 0.5][:d]) @ turn.T,
        "zero": np.zeros((d, d)),
        "two heads": np.stack([np.eye(d), turn @ np.diag([0.3, 0.9, 0.6][:d]) @ turn.T]),
    }


NAME = {2: "circle", 3: "harmonic"}
CASES = [(d, phi, A) for d in (2, 3) for phi in POTENTIALS for A in matrices(2)]


def cloud(d, n=200):
    """Tokens of unequal weights, some in a cluster."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, d))
    x[: n // 4] = np.eye(d)[0] + 0.01 * x[: n // 4]
    w = 10 ** rng.uniform(-6, 0, n)
    return tkf.Tokens(x / np.linalg.norm(x, axis=1, keepdims=True), w / w.sum())


def amplitude(phi, A):
    """Greatest weight of any score that occurs: errors are relative to it."""
    reach = np.abs(np.linalg.eigvalsh(A)).max()
    scores = np.linspace(-reach, reach, 4001)
    return float(jnp.max(jnp.abs(jax.vmap(jax.grad(POTENTIALS[phi]))(scores))))


@pytest.mark.parametrize(
    ("d", "phi", "A"),
    mostly_slow(CASES, [(2, "cosh", "singular"), (2, "sharp", "two heads"), (3, "sigmoid", "identity")]),
)
def test_fast_sums_of_a_kernel_are_the_direct_ones(d, phi, A):
    """To the promised 1e-9 of the greatest weight, times what V = A makes of it."""
    matrix, tokens = matrices(d)[A], cloud(d)
    model = tkf.InteractionFlow(POTENTIALS[phi], matrix)
    fast, direct = (model.velocity(tokens, s) for s in (NAME[d], "direct"))
    strength = sum(np.linalg.norm(a, 2) for a in matrix.reshape(-1, d, d))
    assert np.abs(fast - direct).max() <= 1e-9 * max(strength * amplitude(phi, matrix), 1e-300)


@pytest.mark.parametrize(
    ("d", "phi"), mostly_slow([(2, "cosh"), (2, "sharp"), (3, "sigmoid")], [(2, "cosh")])
)
def test_a_run_by_fast_sums_keeps_its_certificate(d, phi):
    model = tkf.InteractionFlow(POTENTIALS[phi], matrices(d)["anisotropic"])
    tokens = cloud(d)
    t = 0.3 / amplitude(phi, matrices(d)["anisotropic"])
    fast, direct = (tkf.simulate(model, tokens, [0, t], summation=s) for s in (NAME[d], "direct"))
    assert np.abs(fast.x - direct.x).max() < 1e-7
    assert fast.stats["summation"] == NAME[d] and direct.stats["certificate"] == 0
    assert 0 < fast.stats["certificate"] <= 1.1e-9


@pytest.mark.parametrize("d", mostly_slow([2, 3], [2]))
def test_the_audit_sees_a_wrong_kernel(d, monkeypatch):
    """A multiplier that is off by 1e-5 ends the run."""
    kind = CircleSums if d == 2 else HarmonicSums
    right = kind.tables

    def wrong(profile, band, nodes):
        tables = dict(right(profile, band, nodes))
        m = tables["multipliers"]
        tables["multipliers"] = m * (1 + 1e-5 * (jnp.arange(m.shape[1]) == 1))
        return tables

    monkeypatch.setattr(kind, "tables", staticmethod(wrong))
    model = tkf.InteractionFlow(jnp.cosh, np.eye(d))  # an odd weight, of which mode 1 is the greatest
    with pytest.raises(tkf.RunError, match=f"{NAME[d]} sums missed their tolerance"):
        tkf.simulate(model, cloud(d), [0, 0.3], summation=NAME[d])


#: Weights with a kink or a jump somewhere in [−1, 1].
ROUGH = {
    "kink": lambda s: jnp.abs(s - 0.3) ** 2 * jnp.sign(s - 0.3) / 2,
    "jump": lambda s: jnp.maximum(s - 0.3, 0.0),
}


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("name", ROUGH)
def test_kernels_that_are_not_smooth_have_no_fast_sums(name, d):
    """Refused by name, direct when nobody asked: never a series that does not converge."""
    model, tokens = tkf.InteractionFlow(ROUGH[name], np.eye(d)), cloud(d, 60)
    with pytest.raises(tkf.InputError, match=f"^`summation` must not be '{NAME[d]}'"):
        model.velocity(tokens, NAME[d])
    x, w = np.asarray(tokens.x), np.asarray(tokens.weights)
    weight = {"kink": lambda s: abs(s - 0.3), "jump": lambda s: float(s > 0.3)}[name]
    expected = projected(x, attention(x, [(np.eye(d), np.eye(d))], 1.0, weight, w))
    np.testing.assert_allclose(model.velocity(tokens, "auto"), expected, atol=1e-13)


def test_auto_leaves_rough_kernels_to_direct_sums(monkeypatch):
    monkeypatch.setattr("tokenfield.sums.policy.CHEAP_SECONDS", 0.0)
    model = tkf.InteractionFlow(ROUGH["kink"], np.eye(2))
    run = tkf.simulate(model, cloud(2, 600), [0, 0.1], tkf.RungeKutta4(0.05))
    assert run.stats["summation"] == "direct" and run.stats["certificate"] == 0


def test_cells_are_for_the_exponential():
    with pytest.raises(tkf.InputError, match="^`summation` must be 'auto' or 'direct' for this model"):
        tkf.InteractionFlow(jnp.cosh, np.eye(2)).velocity(cloud(2), "merged")


def test_sums_planned_for_one_kernel_do_another_directly():
    """Fast sums know their own function only; any other is summed over all pairs."""
    tokens = cloud(2)
    first, second = tkf.InteractionFlow(jnp.cosh, np.eye(2)), tkf.InteractionFlow(jnp.sinh, np.eye(2))
    sums = CircleSums.plan(first.scored, 1e-9)
    np.testing.assert_allclose(second.velocity(tokens, sums), second.velocity(tokens, DIRECT), atol=1e-15)
    exponential = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), 3.0)
    np.testing.assert_allclose(
        exponential.velocity(tokens, sums), exponential.velocity(tokens, DIRECT), atol=1e-15
    )


def test_profiles_by_quadrature_are_the_bessel_functions():
    """FunctionProfile(exp) without its closed form, scaled back by e^s."""
    s = np.array([0.0, 0.3, 2.0, 7.0, -3.0])
    by_quadrature = FunctionProfile(jnp.exp)
    scale = np.exp(np.abs(s))[:, None]
    np.testing.assert_allclose(
        by_quadrature.fourier(s, 12), scale * EXPONENTIAL.fourier(s, 12), rtol=0, atol=1e-12
    )
    np.testing.assert_allclose(
        by_quadrature.funk_hecke(s, 12), scale * EXPONENTIAL.funk_hecke(s, 12), rtol=0, atol=1e-10
    )


# -- a contributor's own kernel and attention, made of what the front door exports


class Power(tkf.Pointwise):
    """(1 + s/a)³: a kernel with a number of its own."""

    a: Float[Array, ""]

    def function(self, scores: Array) -> Array:
        return (1 + scores / self.a) ** 3


class PowerAttention(tkf.Attention):
    """Attention with that kernel."""

    weights: tkf.AttentionWeights
    a: Float[Array, ""] = eqx.field(converter=jnp.asarray)
    mask: tkf.Mask | None = None
    context: ClassVar[None] = None

    @property
    def kernel(self):
        return Power(self.a)


def powers(d, a=2.0, mask=None):
    B, V = np.diag([1.0] + [0.5] * (d - 1)), np.diag([0.8] + [1.0] * (d - 1))
    return PowerAttention(tkf.AttentionWeights(B, V), a, mask)


def test_a_contributors_attention_is_its_loop():
    x = tok(6, 3, 1)
    for mask, sees in ((None, None), (tkf.masks.causal(), lambda i, j: j <= i)):
        model = powers(3, mask=mask)
        heads = [(np.asarray(model.weights.B), np.asarray(model.weights.V))]
        expected = attention(x, heads, 1.0, lambda s: (1 + s / 2) ** 3, sees=sees)
        np.testing.assert_allclose(model.velocity(tkf.Tokens(x)), projected(x, expected), atol=1e-14)


@pytest.mark.parametrize("d", mostly_slow([2, 3], [2]))
def test_a_contributors_attention_has_fast_sums(d):
    model, tokens = powers(d), cloud(d)
    np.testing.assert_allclose(
        model.velocity(tokens, NAME[d]), model.velocity(tokens, DIRECT), atol=1e-9 * 1.5**3
    )
    both = model + powers(d, 3.0)  # two numbers: no sums serve both, and nothing is mixed up
    with pytest.raises(tkf.InputError, match="^`summation` must be 'auto' or 'direct' for this model"):
        both.velocity(tokens, NAME[d])
    alone = model.velocity(tokens, DIRECT) + powers(d, 3.0).velocity(tokens, DIRECT)
    np.testing.assert_allclose(both.velocity(tokens), alone, atol=1e-14)


@pytest.mark.slow
def test_a_contributors_attention_runs_by_fast_sums():
    fast, direct = (tkf.simulate(powers(2), cloud(2), [0, 0.5], summation=s) for s in ("circle", "direct"))
    assert np.abs(fast.x - direct.x).max() < 1e-7
    assert 0 < fast.stats["certificate"] <= 1.1e-9


def test_a_contributors_attention_has_gradients():
    tokens = tkf.Tokens(tok(5, 3, 1))

    def f(a):
        return jnp.sum(powers(3, a).velocity(tokens, DIRECT)[:, 0] ** 2)

    assert float(jax.grad(f)(2.0)) == pytest.approx(float(f(2 + 1e-5) - f(2 - 1e-5)) / 2e-5, rel=1e-7)


def on_circle(a):
    return 1 + 0.4 * np.cos(a) + 0.2 * np.sin(2 * a)


@pytest.mark.parametrize("domain", mostly_slow(["circle", "characteristics", "sphere", "zonal"], ["circle"]))
def test_a_contributors_attention_has_densities(domain):
    """Against quadrature tokens of the same law."""
    d = 2 if domain in ("circle", "characteristics") else 3
    if d == 2:
        tokens = tkf.initial.circle_density(on_circle, 200)
    else:
        tokens = tkf.initial.sphere_density(lambda x: 1 + 0.4 * x[:, 0], 1500)
    rho0, place = {
        "circle": (on_circle, tkf.density.Circle(64)),
        "characteristics": (
            lambda x: on_circle(np.arctan2(x[:, 1], x[:, 0])),
            tkf.density.Characteristics(n=64),
        ),
        "sphere": (lambda x: 1 + 0.4 * x[:, 0], tkf.density.Sphere(16)),
        "zonal": (lambda t: 1 + 0.4 * t, tkf.density.Zonal(np.eye(3)[0], 24)),
    }[domain]
    law = tkf.density.solve(powers(d), rho0, [0, 0.3], place)
    run = tkf.simulate(powers(d), tokens, [0, 0.3])
    expected = run.tokens(-1).moments()
    np.testing.assert_allclose(law.moments().mean, expected.mean, atol=1e-5)
    np.testing.assert_allclose(law.moments().second, expected.second, atol=1e-5)


def test_a_pointwise_sum_answers_any_query():
    """The sums themselves, at points that are no tokens, with a bias."""
    tokens, d = cloud(2), 2
    bias = np.array([0.4, -0.2])
    A = np.diag([1.0, 0.5])
    function = Power(jnp.asarray(2.0))
    scored = powers(2).scored._replace(A=A[None], bias=bias[None])
    sums = CircleSums.plan(scored, 1e-9)
    x = np.asarray(tkf.initial.uniform(50, d, 9).x)
    queries = Queries(jnp.asarray(A), jnp.asarray(x), jnp.asarray(bias))
    found = sums.pointwise(scored.profile.f, queries, tokens)
    y, w = np.asarray(tokens.x), np.asarray(tokens.weights)
    weight = np.asarray(function.function((x @ A + bias) @ y.T)) * w
    np.testing.assert_allclose(found.mass, weight.sum(axis=1), atol=1e-8)
    np.testing.assert_allclose(found.total, weight @ y, atol=1e-8)
