"""AttentionWeights: conventions, heads, random ensembles."""

import numpy as np
import pytest

import tokenfield as tkf
from tokenfield.models import ensembles


def test_scores_of_q_and_k_are_those_of_b():
    """⟨Qx, Ky⟩ = ⟨Bᵀx, y⟩ with B = QᵀK, also for rectangular Q and K."""
    rng = np.random.default_rng(0)
    Q, K, V = rng.normal(size=(2, 5)), rng.normal(size=(2, 5)), rng.normal(size=(5, 5))
    x, y = rng.normal(size=5), rng.normal(size=5)
    w = tkf.AttentionWeights.from_qkv(Q, K, V)
    assert (Q @ x) @ (K @ y) == pytest.approx(float((w.B.T @ x) @ y))
    np.testing.assert_allclose(w.D, V @ np.asarray(w.B).T)
    assert w.heads == 1


def test_heads_keep_their_axis():
    rng = np.random.default_rng(1)
    Q, K, V = rng.normal(size=(3, 2, 5)), rng.normal(size=(3, 2, 5)), rng.normal(size=(3, 5, 5))
    w = tkf.AttentionWeights.from_qkv(Q, K, V)
    assert w.heads == 3
    np.testing.assert_allclose(w.D[1], V[1] @ (Q[1].T @ K[1]).T)
    assert tkf.AttentionWeights(np.eye(5), V).B.shape == (3, 5, 5)


def test_identity():
    w = tkf.AttentionWeights.identity(4)
    np.testing.assert_array_equal(w.D, np.eye(4))


def test_ensembles_are_seeded_and_have_their_spectra():
    np.testing.assert_array_equal(ensembles.goe(6, 3), ensembles.goe(6, 3))
    d = 400
    assert np.abs(np.linalg.eigvals(ensembles.gaussian(d, 0))).max() == pytest.approx(1, abs=0.1)
    semicircle = np.linalg.eigvalsh(ensembles.goe(d, 0))
    assert (semicircle.min(), semicircle.max()) == pytest.approx((-2, 2), abs=0.15)
    wishart = np.linalg.eigvalsh(ensembles.wishart(d, 0))
    assert wishart.min() > 0
    assert wishart.max() == pytest.approx(4, abs=0.3)  # Marchenko–Pastur, ratio 1
    spectrum = [3.0, 1.0, -2.0]
    np.testing.assert_allclose(np.linalg.eigvalsh(ensembles.with_spectrum(spectrum, 1)), sorted(spectrum))
    assert ensembles.wishart(3, 0, heads=2).shape == (2, 3, 3)


def test_eigenvectors_of_with_spectrum_are_uniform():
    """Haar: the mean of the projector on an eigenvector is I/d."""
    spectrum, count = [1.0, 0.0, 0.0], 3000
    mean = np.mean([ensembles.with_spectrum(spectrum, k) for k in range(count)], axis=0)
    np.testing.assert_allclose(mean, np.eye(3) / 3, atol=4 * 0.3 / np.sqrt(count))


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: tkf.AttentionWeights(np.ones((2, 3)), np.eye(3)), r"`B` must have shape \(d, d\) or"),
        (lambda: tkf.AttentionWeights(np.eye(3), np.eye(2)), r"`V` must be 3 × 3 like B, but was of shape"),
        (
            lambda: tkf.AttentionWeights(np.ones((2, 3, 3)), np.ones((4, 3, 3))),
            "`V` must have 2 heads like B",
        ),
        (lambda: tkf.AttentionWeights(np.eye(2) * np.nan, np.eye(2)), "`B` must be finite"),
        (
            lambda: tkf.AttentionWeights.from_qkv(np.ones((2, 3)), np.ones((3, 2)), np.eye(3)),
            "`K` must have the",
        ),
        (lambda: tkf.AttentionWeights.identity(1), "`d` must be a whole number, at least 2, but was 1"),
        (lambda: ensembles.with_spectrum([[1.0]], 0), "`spectrum` must be a list"),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad()
