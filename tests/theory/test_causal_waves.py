"""Growth of waves about the uniform law under causal attention, and what the last token remembers (§6.1.4–5)."""

import mpmath
import numpy as np
import pytest
from scipy import integrate, special

import tokenfield as tkf
from tokenfield import theory


def test_the_printed_growth():
    """SA on the circle, β = 5, l = 3, four blocks, t = 1."""
    found = theory.causal_growth([1, 0.5, -0.3, 0.2], [0.0, 1.0], 5.0, 3)
    np.testing.assert_array_equal(found[0], [1, 0.5, -0.3, 0.2])
    np.testing.assert_allclose(found[1], [1.979171521, 1.275756366, 0.195681590, 0.636705235], atol=5e-10)


@pytest.mark.parametrize(
    ("slope", "flow", "d"), [(0.0, "unnormalised", 2), (1.3, "softmax", 3), (-0.7, "softmax", 2)]
)
def test_the_growth_solves_its_equation(slope, flow, d):
    """h_k' = a Σ_{j≤k} (z_j − z_{j−1})h_j/z_k by loops, z = e^{λs} − 1, integrated by DOP853."""
    L, h0, t = 5, np.array([1.0, -0.5, 0.3, 0.0, 2.0]), 0.7
    a = float(theory.growth_rate(d, 2.0, 2, flow))
    z = np.arange(L + 1) / L if slope == 0 else np.expm1(slope * np.arange(L + 1) / L)

    def change(_, h):
        return [a * sum((z[j + 1] - z[j]) * h[j] for j in range(k + 1)) / z[k + 1] for k in range(L)]

    expected = integrate.solve_ivp(change, (0, t), h0, "DOP853", rtol=1e-12, atol=1e-14).y[:, -1]
    np.testing.assert_allclose(theory.causal_growth(h0, [t], 2.0, 2, d, flow, slope)[0], expected, rtol=1e-10)


@pytest.mark.parametrize("power", [0.0, 1.0, 2.5])
def test_powers_of_the_place_grow_by_their_own_rate(power):
    """s^p on more and more blocks: e^{Ct}h0 → e^{t·a/(p+1)}h0, first order in the width of a block."""
    rate = theory.causal_growth_rate(power, 5.0, 3)
    assert rate == pytest.approx(float(theory.growth_rate(2, 5.0, 3)) / (1 + power), rel=1e-15)
    errors = []
    for L in (100, 200):
        s = (np.arange(L) + 0.5) / L
        grown = theory.causal_growth(s**power, [1.0], 5.0, 3)[0, -1]
        errors.append(abs(grown / s[-1] ** power - np.exp(rate)))
    assert errors[1] <= 0.6 * errors[0] + 1e-12
    assert errors[1] < 3e-3


def test_the_printed_profile():
    """β = 1, λ = 1, M = 8, n ≤ 20, in the units of the paper."""
    found = theory.lost_in_the_middle(1.0, 1.0, 8.0, 20, clock="paper")
    assert found.critical_time == pytest.approx(2.457488980, abs=5e-10)
    printed = [1.282176795, 1.265523693, 1.545486618, 1.638251135]
    np.testing.assert_allclose(found.at([0.1, 0.5, 0.9, 1.0], 1.0), printed, atol=5e-10)
    place, value = found.minimum(1.0)
    assert place == pytest.approx(0.2592755, abs=5e-8)
    assert value == pytest.approx(1.195306376, abs=5e-10)


@pytest.mark.parametrize(("beta", "slope", "window", "t"), [(2.5, 0.0, 5.0, 0.8), (0.7, 2.0, 8.0, 3.0)])
def test_the_profile_in_many_digits(beta, slope, window, t):
    """The formula of the theorem with mpmath's Bessel functions; n²I_n(β) and the clock t_ours = β·t_paper."""
    paper = theory.lost_in_the_middle(beta, slope, window, 20, clock="paper")
    ours = theory.lost_in_the_middle(beta, slope, window, 20)
    sigma = np.array([0.03, 0.4, 0.95])
    expected = []
    with mpmath.workdps(30):
        for place in map(mpmath.mpf, sigma):
            total = mpmath.mpf(0)
            for n in range(1, 21):
                c = n**2 * mpmath.besseli(n, beta) * t
                if slope == 0:
                    factor, y = mpmath.mpf(1), -mpmath.log(place)
                else:
                    factor = slope * mpmath.exp(slope * place) / mpmath.expm1(slope)
                    y = mpmath.log(mpmath.expm1(slope) / mpmath.expm1(slope * place))
                psi = mpmath.sqrt(c / y) * mpmath.besseli(1, 2 * mpmath.sqrt(c * y))
                total += mpmath.exp(-((mpmath.pi * n / window) ** 2) / 2) * factor * psi
            expected.append(float(total))
    np.testing.assert_allclose(paper.at(sigma, t), expected, rtol=1e-11)
    np.testing.assert_allclose(ours.at(sigma, beta * t), expected, rtol=1e-11)
    assert ours.critical_time == pytest.approx(beta * paper.critical_time, rel=1e-12)


@pytest.mark.parametrize("slope", [0.0, 1.0])
@pytest.mark.parametrize("flow", ["softmax", "unnormalised"])
def test_the_profile_is_the_answer_of_the_blocks(slope, flow):
    """The last row of e^{aCt}, times the number of blocks, converges to G in the width of a block (order one)."""
    t, beta, errors = 1.0, 2.0, []
    profile = theory.lost_in_the_middle(beta, slope, 1e9, 1, flow)  # one wave, weight 1
    for L in (100, 200):
        places = np.array([L // 5, L // 2, 4 * L // 5])
        h0 = np.zeros((3, L))
        h0[np.arange(3), places] = L
        answer = [theory.causal_growth(h, [t], beta, 1, flow=flow, slope=slope)[0, -1] for h in h0]
        errors.append(np.abs(answer - profile.at((places + 0.5) / L, t)).max())
    assert errors[1] < 0.02
    assert errors[1] < 0.6 * errors[0]


def test_recency_ends_at_the_critical_time():
    """The slope at σ = 1, by differences, changes sign at t_crit; without ALiBi it is never positive."""
    profile = theory.lost_in_the_middle(1.5, 0.8)
    for factor, rises in ((0.98, True), (1.02, False)):
        t = factor * profile.critical_time
        assert (profile.at(1.0, t) > profile.at(1 - 1e-4, t)) == rises
    flat = theory.lost_in_the_middle(1.5, 0.0)
    assert flat.critical_time == 0
    s = np.linspace(0.01, 1, 200)
    assert np.all(np.diff(flat.at(s, 0.3)) < 0)
    assert flat.minimum(0.3)[0] == 1.0


def test_the_minimum_is_one():
    """Early, where it lies far down, late, where there is none, and against a fine grid."""
    profile = theory.lost_in_the_middle(1.0, 1.0, clock="paper")
    s = np.union1d(np.geomspace(1e-12, 1, 20001), np.linspace(1e-4, 1, 20001))
    for t in (0.01, 0.3, 2.4, 6.0):
        place, value = profile.minimum(t)
        values = profile.at(s, t)
        assert value <= values.min() * (1 + 1e-14)
        assert place == pytest.approx(s[np.argmin(values)], rel=2e-3)


def test_the_rates_are_those_of_full_attention():
    n = np.arange(1, 21)
    paper = theory.lost_in_the_middle(2.0, 1.0, clock="paper")
    np.testing.assert_allclose(paper.rates, n**2 * special.iv(n, 2.0), rtol=1e-12)
    soft = theory.lost_in_the_middle(2.0, 1.0, flow="softmax")
    np.testing.assert_allclose(soft.rates, n**2 * special.iv(n, 2.0) / (2 * special.iv(0, 2.0)), rtol=1e-12)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: theory.causal_averages(0), "`blocks` must be a whole number, at least 1"),
        (lambda: theory.causal_growth([[1.0]], [1.0], 1.0, 1), "`h0` must be a list of amplitudes"),
        (lambda: theory.causal_growth_rate(-1.0, 1.0, 1), "`power` must be greater than −1"),
        (lambda: theory.lost_in_the_middle(0.0, 1.0), "`beta` must be positive"),
        (lambda: theory.lost_in_the_middle(1.0, -1.0), "`slope` must be at least 0"),
        (lambda: theory.lost_in_the_middle(1.0, 1.0, 0.0), "`window` must be positive"),
        (lambda: theory.lost_in_the_middle(1.0, 1.0, clock="theirs"), "`clock` must be 'ours' or 'paper'"),
        (lambda: theory.lost_in_the_middle(1.0, 1.0).at(0.0, 1.0), r"`sigma` must lie in \(0, 1\]"),
        (lambda: theory.lost_in_the_middle(1.0, 1.0).at(0.5, -1.0), "`t` must be at least 0"),
        (lambda: theory.lost_in_the_middle(1.0, 1.0).minimum(0.0), "`t` must be positive"),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad()
