"""Rényi centres: by loops, their expected numbers by sampling and in many digits (theory §6.1.6)."""

import mpmath
import numpy as np
import pytest

import tokenfield as tkf
from tokenfield import theory


def circle(theta):
    return np.stack([np.cos(theta), np.sin(theta)], axis=1)


@pytest.mark.parametrize(("d", "delta"), [(2, 0.5), (3, 0.8), (3, 2.0)])
def test_centres_by_loops(d, delta):
    x = np.asarray(tkf.initial.uniform(60, d, 3).x)
    centres, strong = [], []
    for i in range(60):
        angle = [float(np.arccos(np.clip(x[i] @ x[j], -1, 1))) for j in range(i)]
        if all(angle[j] > delta for j in centres):
            centres.append(i)
        if all(a > delta for a in angle):
            strong.append(i)
    found = theory.renyi_centres(x, delta)
    assert found.centres.tolist() == centres
    assert found.strong.tolist() == strong
    assert set(strong) <= set(centres) and len(strong) < len(centres)


def test_printed_expectations():
    """δ = .5: 6.283185307 strong centres and .7475979202534·2π/δ = 9.394592536 centres."""
    assert theory.expected_strong_centres(0.5) == pytest.approx(6.283185307, abs=5e-10)
    assert theory.renyi_constant() == pytest.approx(0.7475979202534, abs=5e-14)
    assert theory.expected_centres(0.5) == pytest.approx(9.394592536, abs=5e-10)
    assert theory.expected_centres(0.1) == pytest.approx(0.7475979202534 * 20 * np.pi, rel=1e-12)


def test_sampled_numbers():
    """n = 200, δ = .5: within four standard errors, of 500 samples."""
    rng = np.random.default_rng(0)
    counts = np.array(
        [
            [len(part) for part in theory.renyi_centres(circle(a), 0.5)]
            for a in rng.uniform(0, 2 * np.pi, (500, 200))
        ]
    )
    mean, error = counts.mean(axis=0), counts.std(axis=0) / np.sqrt(len(counts))
    expected = [theory.expected_centres(0.5, 200), theory.expected_strong_centres(0.5, 200)]
    np.testing.assert_array_less(np.abs(mean - expected), 4 * error)
    # the printed samples: 9.139 ± .011 and 6.307 ± .016, and jamming is far beyond the error
    assert expected[0] == pytest.approx(9.139, abs=0.022)
    assert expected[1] == pytest.approx(6.307, abs=0.032)
    assert theory.expected_centres(0.5) - mean[0] > 6 * error[0]


def test_strong_centres_on_the_sphere():
    """v = sin²(δ/2) on S²; the expectation is the sum Σ(1−v)^i, and a sample agrees."""
    v = np.sin(0.4) ** 2
    assert theory.cap_measure(0.8, 3) == pytest.approx(v, rel=1e-14)
    assert theory.cap_measure(0.8, 2) == pytest.approx(0.8 / np.pi, rel=1e-13)
    assert theory.cap_measure(1.1, 5) + theory.cap_measure(np.pi - 1.1, 5) == pytest.approx(1.0, rel=1e-14)
    assert theory.expected_strong_centres(0.8, 20, 3) == pytest.approx(sum((1 - v) ** i for i in range(20)))
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 20, 3))
    x /= np.linalg.norm(x, axis=2, keepdims=True)
    counts = np.array([len(theory.renyi_centres(y, 0.8).strong) for y in x])
    error = counts.std() / np.sqrt(len(counts))
    assert abs(counts.mean() - theory.expected_strong_centres(0.8, 20, 3)) < 4 * error


def test_short_rings():
    """m(x) = 1 on [1, 2) and 3 − 2/x on [2, 3]: at most two centres, then 1 + 3 − 2/(L−2); long ones jam at cL."""
    assert theory.expected_centres(3.1) == 2.0
    assert theory.expected_centres(2 * np.pi / 2.5) == 2.0
    for L in (3.2, 3.9):
        assert theory.expected_centres(2 * np.pi / L) == pytest.approx(1 + 3 - 2 / (L - 2), rel=1e-13)
    short, long = theory.expected_centres(2 * np.pi / 15.99), theory.renyi_constant() * 15.99
    assert short == pytest.approx(long, rel=1e-13)
    rng = np.random.default_rng(2)
    counts = [
        len(theory.renyi_centres(circle(a), 2 * np.pi / 4.7).centres)
        for a in rng.uniform(0, 2 * np.pi, (100, 300))
    ]
    error = np.std(counts) / 10
    # a fixed number of tokens is short of jamming by about e^{−2γ}L²/n
    assert np.mean(counts) == pytest.approx(theory.expected_centres(2 * np.pi / 4.7), abs=4 * error + 0.025)


def test_the_kinetics_in_many_digits():
    with mpmath.workdps(25):
        ein = lambda t: mpmath.e1(t) + mpmath.log(t) + mpmath.euler if t > 0 else mpmath.mpf(0)  # noqa: E731
        for n in (10, 200):
            tau = mpmath.mpf(n) * mpmath.mpf(0.5) / (2 * mpmath.pi)
            share = mpmath.quad(lambda t: mpmath.exp(-2 * ein(t)), [0, tau / 4, tau])
            expected = float(share * 2 * mpmath.pi / mpmath.mpf(0.5))
            assert theory.expected_centres(0.5, n) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: theory.renyi_centres([1.0, 0.0], 0.5), r"`x` must have shape \(n, d\)"),
        (lambda: theory.renyi_centres(np.eye(2), 0.0), "`delta` must lie between 0 and π"),
        (lambda: theory.expected_centres(4.0), "`delta` must lie between 0 and π"),
        (lambda: theory.expected_centres(1.0, 50), "`delta` must be at most π/4 for a finite number"),
        (lambda: theory.expected_strong_centres(0.5, 0), "`n` must be a whole number, at least 1"),
        (lambda: theory.expected_strong_centres(0.5, 3, 1), "`d` must be a whole number, at least 2"),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad()
