"""Reductions for other kernels, and repulsion, against the numbers of theory §6.6 and the simulator."""

import numpy as np
import pytest
from scipy import special

import tokenfield as tkf
from tokenfield import theory

ACCURATE = tkf.Adaptive(1e-11, 1e-12)


def product_after(model, n, rho0, t):
    """Common inner product of n equiangular tokens of the simulator."""
    run = tkf.simulate(model, tkf.initial.equiangular(n, model.d, rho0), [0, t], ACCURATE)
    x = np.asarray(run.x[-1])
    return float(x[0] @ x[1])


def test_linear_equiangular_time():
    t = theory.linear_equiangular_time(0.1, 0.9, 6)
    assert abs(t - 4.442078560) < 1e-9
    model = tkf.LinearAttention(tkf.AttentionWeights.identity(6))
    assert abs(product_after(model, 6, 0.1, t) - 0.9) < 1e-9
    assert abs(theory.equiangular_kernel([t], 6, lambda s: s, 0.1)[0] - 0.9) < 1e-11


def test_sigmoid_becomes_unnormalised():
    """ρ(.5) from .1, β = 1: n = 10⁴ .267106614 against .267136982, and the gap falls like 1/n."""

    def gap(n):
        sigmoid = theory.equiangular_kernel([0.5], n, lambda s: n * special.expit(s - np.log(n)), 0.1)[0]
        return sigmoid, theory.equiangular([0.5], n, 1.0, 0.1, "unnormalised")[0]

    np.testing.assert_allclose(gap(10**4), (0.267106614, 0.267136982), atol=1e-9)
    differences = [abs(np.subtract(*gap(n))) for n in (10**3, 10**4, 10**5)]
    np.testing.assert_allclose(np.log10(differences[:-1]) - np.log10(differences[1:]), 1, atol=0.01)
    model = tkf.SigmoidAttention(tkf.AttentionWeights.identity(6), 1.0, -np.log(6))
    expected = theory.equiangular_kernel([0.5], 6, lambda s: 6 * special.expit(s - np.log(6)), 0.1)[0]
    assert abs(product_after(model, 6, 0.1, 0.5) - expected) < 1e-10


def test_scalar_heads():
    found = theory.equiangular_heads([1.0], 6, 1.0, [1, 3], [0.5, 0.5], 0.1)[0]
    assert abs(found - 0.451181147207) < 1e-12
    b, v = np.array([1.0, 3.0])[:, None, None], np.array([0.5, 0.5])[:, None, None]
    model = tkf.SoftmaxAttention(tkf.AttentionWeights(b * np.eye(6), v * np.eye(6)), 1.0)
    assert abs(product_after(model, 6, 0.1, 1.0) - found) < 1e-10
    # one head is the equiangular case itself
    one = theory.equiangular_heads([0.3, 1.0], 6, 2.0, [1.5], [1.0], 0.1)
    np.testing.assert_allclose(one, theory.equiangular([0.3, 1.0], 6, 3.0, 0.1), rtol=1e-11)


def repelling(d, beta):
    return tkf.SoftmaxAttention(tkf.AttentionWeights(np.eye(d), -np.eye(d)), beta)


def test_simplex_rate():
    rate = theory.simplex_rate(4, 2.0)
    assert abs(rate - 0.459983820) < 1e-9
    rho = theory.equiangular_heads([30.0, 32.0], 4, 2.0, [1.0], [-1.0], 0.0)
    gap = rho + 1 / 3
    assert abs(np.log(gap[0] / gap[1]) / 2 - rate) < 1e-5 * rate
    # the flow linearised at the simplex: tokens leave its space by h and ρ by h², which decays twice as fast
    x = np.pad(theory.optimal_code("tetrahedron"), ((0, 0), (0, 1)))
    found = theory.stability(repelling(4, 2.0), tkf.Tokens(x))
    assert np.abs(2 * found.spectrum + rate).min() < 1e-9


@pytest.mark.slow
def test_rates_of_a_repelled_polygon():
    usa, sa = (-theory.equispaced_spectrum(5, 2.0, flow)[1:3] for flow in ("unnormalised", "softmax"))
    np.testing.assert_allclose(usa, [-0.984402892, -2.095944775], atol=1e-9)
    np.testing.assert_allclose(sa, [-0.428143240, -0.911582640], atol=1e-9)
    a = 2 * np.pi * np.arange(5) / 5
    pentagon = tkf.Tokens(np.stack([np.cos(a), np.sin(a)], axis=1))
    rates = np.sort(np.real(theory.stability(repelling(2, 2.0), pentagon).spectrum))
    np.testing.assert_allclose(rates, np.sort(np.repeat(sa, 2)), atol=1e-9)


ENERGIES = {
    "tetrahedron": 0.558081716,
    "octahedron": 0.480182974,
    "icosahedron": 0.454130659495,
    "600-cell": 0.3976592142198,
}


@pytest.mark.parametrize("name", ENERGIES)
def test_energies_of_universal_optima(name):
    x = theory.optimal_code(name)
    assert len(np.unique(np.round(x, 9), axis=0)) == len(x) == {3: len(x), 4: 120}[x.shape[1]]
    pairs = np.exp(2 * x @ x.T).mean() / 4
    found = float(tkf.energy(tkf.Tokens(x), 2.0))
    digits = len(str(ENERGIES[name])) - 2
    assert abs(found - ENERGIES[name]) < 10.0**-digits and abs(found - pairs) < 1e-14
    if name == "600-cell":  # the uniform law of S³, a little below
        uniform = special.ive(1, 2.0) * np.exp(2.0) / 4
        assert abs(uniform - 0.3976592136593) < 1e-13 and uniform < found


@pytest.mark.slow
def test_repelled_tokens_reach_the_icosahedron():
    start = tkf.initial.uniform(12, 3, 3)
    run = tkf.simulate(repelling(3, 2.0), start, [0, 400.0], tkf.Adaptive(1e-9, 1e-10))
    assert abs(float(tkf.energy(run.tokens(-1), 2.0)) - 0.454130659495) < 1e-12


def test_bipartite_states():
    first, second = (theory.bipartite_rates([-2.0, -1.0], k, 0.6, 1.0) for k in (0, 1))
    np.testing.assert_allclose(first.across, [[-0.960978407, -2.922615654]], atol=1e-9)
    np.testing.assert_allclose(first.within, [-1.893044601, -1.951747480], atol=1e-9)
    assert abs(second.across[0, 0] - 0.746380527) < 1e-9
    positive = theory.bipartite_rates([2.0, 1.0], 0, 0.5, 1.0)
    assert positive.across.max() < 0 and positive.within.max() < 0
    # the linearisation of two tokens is the modes across
    D = np.diag([-2.0, -1.0])
    model = tkf.SoftmaxAttention(tkf.AttentionWeights(D, D), 1.0)
    found = theory.stability(model, tkf.Tokens([[1.0, 0], [-1, 0]], [0.6, 0.4]))
    np.testing.assert_allclose(np.sort(np.real(found.spectrum)), np.sort(first.across[0]), atol=1e-9)


def test_hardmax_leaders():
    """Layers x ← x + α/(1+α)(mean of the argmax − x) in R^d, of the library and in closed form."""
    y = np.array([[2, 0], [-0.5, 1.8], [-1, -1.5], [0.4, 0.3], [0.1, -0.2]])
    weights, alpha = tkf.AttentionWeights.identity(2), 0.5
    pull_back = tkf.MLP(np.eye(2), None, -np.eye(2), None, "identity")
    model = tkf.NoNorm(tkf.HardmaxAttention(weights) + pull_back)
    step = alpha / (1 + alpha)
    run = tkf.simulate(model, tkf.Tokens.normalised(y), [0, step, 10 * step], tkf.Layers(step))
    first, final = np.asarray(run.x[1:] * run.radii[1:][:, :, None])
    expected = [[1.972253552135, 0.005202458975], [1.954044945723, -0.009971379702]]
    np.testing.assert_allclose(final[:3], y[:3], atol=1e-14)
    np.testing.assert_allclose(final[3:], expected, atol=1e-12)
    np.testing.assert_allclose(final[3], theory.leader_orbit(y[3], y[0], alpha, 10)[-1], atol=1e-12)
    # the last token first ties between two leaders, and reads their mean
    np.testing.assert_allclose(first[4], y[4] + step * ((y[0] + y[2]) / 2 - y[4]), atol=1e-14)
    np.testing.assert_allclose(final[4], theory.leader_orbit(first[4], y[0], alpha, 9)[-1], atol=1e-12)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: theory.optimal_code("cube"), "name"),
        (lambda: theory.bipartite_rates([1.0, 2.0], 2, 0.5, 1.0), "k"),
        (lambda: theory.linear_equiangular_time(0.0, 0.5, 3), "rho0"),
        (lambda: theory.equiangular_heads([1.0], 3, 1.0, [1.0], [1.0, 2.0], 0.0), "values"),
        (lambda: theory.equiangular_kernel([1.0], 3, 2.0, 0.0), "weight"),
        (lambda: theory.leader_orbit([1.0, 0], [1.0], 0.5, 3), "leader"),
    ],
)
def test_refusals(call, name):
    with pytest.raises(tkf.InputError, match=f"^`{name}` must"):
        call()
