"""Fits of synthetic curves whose law and constants are known, with and without noise."""

from collections import Counter

import numpy as np
import pytest

import tokenfield as tkf
from tokenfield import theory

TS = np.linspace(2, 20, 100)
LAWS = {
    "exponential": (lambda t: 3 * np.exp(-0.3 * t), 0.3, 0.0, 3.0),
    "power": (lambda t: 2 * t**-1.5, 0.0, -1.5, 2.0),
    "exponential-power": (lambda t: 2 * t * np.exp(-0.5 * t), 0.5, 1.0, 2.0),
}


def noise(rng, n, correlation, size=0.05):
    """Stationary noise with the given correlation from point to point."""
    steps = rng.normal(size=n) * size
    out = np.empty(n)
    out[0] = steps[0]
    for i in range(1, n):
        out[i] = correlation * out[i - 1] + np.sqrt(1 - correlation**2) * steps[i]
    return out


@pytest.mark.parametrize("name", LAWS)
def test_exact_curves_are_recognised_and_recovered(name):
    law, rate, power, amplitude = LAWS[name]
    fit = tkf.fit_rate(TS, law(TS))
    assert fit.model == name
    np.testing.assert_allclose([fit.rate, fit.power, fit.amplitude], [rate, power, amplitude], atol=1e-10)
    assert fit.misfit < 1e-12
    later = np.array([1.0, 30.0, 60.0])
    np.testing.assert_allclose(fit.predict(later), law(later), rtol=1e-9)
    assert (fit.interval == (0, 0)) == (name == "power")
    assert (fit.power_interval == (0, 0)) == (name == "exponential")


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_intervals_cover_and_laws_are_recognised_under_noise(name, correlation):
    """200 noisy curves of each law; 95% intervals cover the truth in 85% or more, also if the noise hangs
    together over five points, where the textbook intervals of least squares cover in less than 60%."""
    law, rate, power, _ = LAWS[name]
    rng = np.random.default_rng(0)
    covered = textbook = 0
    chosen = Counter()
    for _ in range(200):
        values = law(TS) * np.exp(noise(rng, len(TS), correlation))
        fit = tkf.fit_rate(TS, values, name)
        truth, interval = (power, fit.power_interval) if name == "power" else (rate, fit.interval)
        covered += interval[0] <= truth <= interval[1]
        chosen[tkf.fit_rate(TS, values).model] += 1
        column = {"exponential": -TS, "power": np.log(TS)}.get(name)
        if column is not None:
            best, cov = np.polyfit(column, np.log(values), 1, cov=True)
            textbook += abs(best[0] - truth) < 1.98 * np.sqrt(cov[0, 0])
    assert covered >= 0.85 * 200
    assert chosen[name] >= 0.85 * 200
    if correlation == 0.8 and name != "exponential-power":
        assert textbook < 0.6 * 200


def test_level_widens_the_interval():
    rng = np.random.default_rng(1)
    values = np.exp(-0.3 * TS + noise(rng, len(TS), 0.5))
    narrow, wide = (tkf.fit_rate(TS, values, level=level) for level in (0.68, 0.99))
    assert wide.interval[0] < narrow.interval[0] < narrow.rate < narrow.interval[1] < wide.interval[1]
    assert narrow.rate == wide.rate


def test_scaling_time_and_values():
    """fit(ts·a, values·b) has rate/a and amplitude·b."""
    rng = np.random.default_rng(2)
    values = np.exp(-0.3 * TS + noise(rng, len(TS), 0.0))
    one, two = tkf.fit_rate(TS, values), tkf.fit_rate(TS * 10, values * 7)
    assert two.rate == pytest.approx(one.rate / 10)
    np.testing.assert_allclose(two.interval, np.array(one.interval) / 10)
    assert two.amplitude == pytest.approx(one.amplitude * 7)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("unit", [1e-17, 3e12])
def test_the_unit_of_time_does_not_matter(name, unit):
    law, rate, power, amplitude = LAWS[name]
    fit = tkf.fit_rate(TS * unit, law(TS), name)
    np.testing.assert_allclose([fit.rate * unit, fit.power], [rate, power], atol=1e-10)
    assert fit.log_amplitude == pytest.approx(np.log(amplitude) - power * np.log(unit), rel=1e-9)


@pytest.mark.parametrize("begin", [3e3, 3e7])
def test_times_far_from_zero(begin):
    """The amplitude, of t = 0, is out of range; the law is not."""
    ts = np.linspace(begin, begin + 20, 50)
    fit = tkf.fit_rate(ts, np.exp(-0.3 * (ts - begin)), "exponential")
    assert fit.rate == pytest.approx(0.3, rel=1e-7) and fit.amplitude == np.inf
    np.testing.assert_allclose(fit.predict(ts), np.exp(-0.3 * (ts - begin)), rtol=1e-6)


def test_a_transient_below_a_tenth_of_a_percent_asks_for_no_third_constant():
    values = np.exp(-0.25 * TS) * (1 + 3e-3 * np.exp(-TS))
    assert tkf.fit_rate(TS, values).model == "exponential"
    assert tkf.fit_rate(TS, values).rate == pytest.approx(0.25, rel=1e-3)


def test_growth_is_a_negative_rate():
    fit = tkf.fit_rate(np.arange(10.0), 0.1 * np.exp(0.45 * np.arange(10.0)), "exponential")
    assert fit.rate == pytest.approx(-0.45)
    assert fit.predict(0.0) == pytest.approx(0.1)


def test_the_tied_case_of_the_concentration_is_an_exponential_times_t():
    """W_1 ≈ (2/π)(gt+1)e^{−gt}, theory §2.3: rate g, and the power whose log t bends like log(gt+1).

    −(log(gt+1))'' = q/t² at q = (gt/(gt+1))², which lies between its values at the ends of the window.
    """
    ts = np.linspace(40, 400, 60)
    fit = tkf.fit_rate(ts, 2 / np.pi * (0.5 * ts + 1) * np.exp(-0.5 * ts))
    assert fit.model == "exponential-power"
    assert fit.rate == pytest.approx(0.5, rel=1e-3)
    assert (20 / 21) ** 2 < fit.power < (200 / 201) ** 2


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: tkf.fit_rate(TS, np.zeros(100)), "`values` must be positive and finite"),
        (lambda: tkf.fit_rate(TS, np.full(100, np.nan)), "`values` must be positive and finite"),
        (lambda: tkf.fit_rate(TS[:7], TS[:7]), "`ts` must have at least 8 entries"),
        (lambda: tkf.fit_rate(TS, TS[:50]), "`values` must have one entry per time"),
        (lambda: tkf.fit_rate(TS[::-1], TS), "`ts` must be finite and increasing"),
        (lambda: tkf.fit_rate([-np.inf, *TS[1:]], TS, "exponential"), "`ts` must be finite and increasing"),
        (lambda: tkf.fit_rate(TS - 2, np.exp(-TS)), "`ts` must be positive, for t"),
        (lambda: tkf.fit_rate(TS, TS, "line"), "`model` must be one of exponential, power"),
        (lambda: tkf.fit_rate(TS, TS, level=95), "`level` must lie between 0 and 1"),
        (lambda: tkf.fit_rate("now", TS), "`ts` must be an array of real numbers"),
        (lambda: tkf.fit_bound([1.0, 2.0], TS, np.ones((2, 3))), "`W` must have shape"),
        (lambda: tkf.fit_bound([1.0, 2.0], TS, -np.ones((2, 100))), "`W` must be positive"),
        (lambda: tkf.fit_bound([1.0], TS, np.ones((1, 100))), "`W` must have at least 8 measurements"),
        (lambda: tkf.fit_bound([1.0, 2.0], TS, np.full((2, 100), np.nan)), "`W` must have at least 8"),
        (lambda: tkf.fit_bound([1.0, 2.0], np.ones(9), np.ones((2, 9))), "`W` must .* 3 different times"),
        (lambda: tkf.fit_bound(BETAS, TIMES + 1e4, surface(*CONSTANTS[0])), "`ts` must begin near 0"),
        (lambda: tkf.fit_bound([1.0, 1.0], TS, np.ones((2, 100))), "`betas` must be positive and different"),
        (lambda: tkf.fit_bound([1.0, 2.0], -TS, np.ones((2, 100))), "`ts` must be finite and at least 0"),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad()


# --- the bound

BETAS = np.array([10.0, 30.0, 100.0, 300.0, 1000.0])
TIMES = np.linspace(0, 20, 41)
CONSTANTS = [(0.02, 1.5, 0.2, 0.25), (0.1, 1.0, 0.05, 0.5), (0.5, 2.0, 0.3, 0.1)]


def surface(C1, C2, C, c, betas=BETAS, ts=TIMES):
    return C1 * np.sqrt(np.log(betas + 1) / betas)[:, None] * np.exp(C * ts) + C2 * np.exp(-c * ts)


@pytest.mark.parametrize("constants", CONSTANTS)
def test_exact_surfaces_are_recovered(constants):
    fit = tkf.fit_bound(BETAS, TIMES, surface(*constants))
    np.testing.assert_allclose([fit.C1, fit.C2, fit.C, fit.c], constants, rtol=1e-6)
    np.testing.assert_allclose(fit.fitted, constants[:2], rtol=1e-6)
    assert fit.holds and fit.slack.largest == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(
        fit.bound([5.0], [0.0, 3.0]), surface(*constants, np.array([5.0]), np.array([0, 3.0])), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("constants", "ts"),
    [
        ((0.02, 1.5, 0.005, 0.25), np.linspace(0, 300, 301)),
        ((0.02, 1.5, 0.0005, 1.0), np.geomspace(1e-2, 1e3, 101)),
        ((1e-6, 1.0, 5.0, 3.0), TIMES),
        ((2e-302, 1.5e-300, 0.2, 0.25), TIMES),
        ((2e298, 1.5e300, 0.2, 0.25), TIMES),
        ((0.02, 1.5, 2e-9, 2.5e-9), 1e8 * TIMES),
        ((0.02, 1.5, 0.2, 0.25), 20 + TIMES),
    ],
    ids=["long", "many scales", "steep", "tiny", "huge", "slow", "late"],
)
def test_exact_surfaces_of_any_scale_are_recovered(constants, ts):
    betas = np.array([10.0, 100.0, 1000.0])
    fit = tkf.fit_bound(betas, ts, surface(*constants, betas, ts))
    np.testing.assert_allclose([fit.C1, fit.C2, fit.C, fit.c], constants, rtol=1e-6)
    assert fit.holds and fit.slack.largest == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("factor", [1e-9, 1e9])
def test_one_absurd_measurement_still_has_a_bound(factor):
    W = surface(*CONSTANTS[0])
    W[1, 10] *= factor
    fit = tkf.fit_bound(BETAS, TIMES, W)
    assert fit.holds and np.min(fit.bound(BETAS, TIMES) / W) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("constants", CONSTANTS)
def test_noisy_surfaces_with_gaps(constants):
    rng = np.random.default_rng(0)
    W = surface(*constants) * np.exp(0.05 * rng.normal(size=(5, 41)))
    W[rng.random(W.shape) < 0.3] = np.nan
    fit = tkf.fit_bound(BETAS, TIMES, W)
    np.testing.assert_allclose([*fit.fitted, fit.C, fit.c], constants, rtol=0.15)
    np.testing.assert_allclose([fit.C, fit.c], constants[2:], rtol=0.08)
    assert fit.misfit == pytest.approx(0.05, rel=0.25)
    # it dominates, touches, and no smaller multiple of it does
    known = ~np.isnan(W)
    ratio = fit.bound(BETAS, TIMES)[known] / W[known]
    assert fit.holds and ratio.min() == pytest.approx(1, abs=1e-12)
    assert fit.slack.largest == pytest.approx(ratio.max()) and fit.slack.median == pytest.approx(
        np.median(ratio)
    )
    # no other pair (C1, C2) on a grid around does better in the mean and still dominates
    grow = theory.laplace_envelope(BETAS)[:, None] * np.exp(fit.C * TIMES)
    fall = np.broadcast_to(np.exp(-fit.c * TIMES), grow.shape)
    for a in np.linspace(0.8, 1.2, 21):
        for b in np.linspace(0.8, 1.2, 21):
            other = (a * fit.C1 * grow + b * fit.C2 * fall)[known] / W[known]
            assert other.min() < 1 - 1e-12 or other.mean() >= ratio.mean() - 1e-9


def test_zero_temperature_row_and_no_growth():
    """β = ∞ has only the second term; without growth C1 is not needed at all."""
    betas = np.array([10.0, 100.0, np.inf])
    W = 0.1 * theory.laplace_envelope(betas)[:, None] * np.exp(0.2 * TIMES) + np.exp(-0.4 * TIMES)
    fit = tkf.fit_bound(betas, TIMES, W)
    np.testing.assert_allclose([fit.C1, fit.C2, fit.C, fit.c], [0.1, 1.0, 0.2, 0.4], rtol=1e-5)
    flat = tkf.fit_bound(BETAS, TIMES, np.tile(np.exp(-0.3 * TIMES), (5, 1)))
    assert flat.c == pytest.approx(0.3) and flat.C1 < 1e-6 and flat.holds
