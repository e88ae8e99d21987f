"""What a layer does to a Gaussian law in R^d, where it is an affine map of the token (theory §6.4).

A term whose output is affine at tokens with the law N(m, Σ) keeps the law Gaussian: with the output a at the
mean and the covariance G of output and token, m' = a and Σ' = G + Gᵀ. Terms add up.

| reading | at the mean | covariance with the token |
|---|---|---|
| softmax, q = Aᵀx + b | m + Σ(Aᵀm + b) | ΣAᵀΣ |
| linear | C(Aᵀm + b), C = Σ + mmᵀ | CAᵀΣ |
| L2, N = (1 + βΣKᵀK)^{−1} | N(m + ΣAᵀm) | NΣAᵀΣ |
| Sinkhorn, A = Aᵀ | m | Σ^{½}h(Σ^{½}AΣ^{½})Σ^{½}, h(g) = (√(1+4g²) − 1)/2g |

Sinkhorn's plan between N(m, Σ) and itself is Gaussian. Its precision has the block −A off the diagonal, which
gives X = G(1 − X²) for the correlation X = Σ^{−½}CΣ^{−½} and G = Σ^{½}AΣ^{½}; X is a function of G.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class GaussianOutput(NamedTuple):
    """Output at the mean (d,), and its covariance with the token (d, d)."""

    mean: Float[np.ndarray, "d"]
    cross: Float[np.ndarray, "d d"]


class GaussianLaw(NamedTuple):
    """N(mean, covariance)."""

    mean: Float[np.ndarray, "d"]
    covariance: Float[np.ndarray, "d d"]


def over_heads(readings: Iterable[tuple[np.ndarray, GaussianOutput]]) -> GaussianOutput:
    """The output of several heads: the sum of V times what each reads, of pairs (V, reading)."""
    means, crosses = zip(*((V @ mean, V @ cross) for V, (mean, cross) in readings), strict=True)
    return GaussianOutput(np.sum(means, axis=0), np.sum(crosses, axis=0))


def softmax_reading(A: np.ndarray, bias: np.ndarray, law: GaussianLaw) -> GaussianOutput:
    """The mean of the keys tilted by e^{⟨q, y⟩}.

    Args:
        A: score matrix (d, d).
        bias: of the queries (d,).
        law: of queries and keys.
    """
    m, S = law
    return GaussianOutput(m + S @ (A.T @ m + bias), S @ A.T @ S)


def linear_reading(A: np.ndarray, bias: np.ndarray, law: GaussianLaw) -> GaussianOutput:
    """∫⟨q, y⟩y dμ.

    Args:
        A: score matrix (d, d).
        bias: of the queries (d,).
        law: of queries and keys.
    """
    m, S = law
    C = S + np.outer(m, m)
    return GaussianOutput(C @ (A.T @ m + bias), C @ A.T @ S)


def l2_reading(A: np.ndarray, penalty: np.ndarray, law: GaussianLaw) -> GaussianOutput:
    """The mean of the keys tilted by e^{⟨Aᵀx, y⟩ − ½⟨y, penalty·y⟩}.

    Args:
        A: score matrix βQᵀK (d, d).
        penalty: βKᵀK (d, d).
        law: of queries and keys.
    """
    m, S = law
    right = np.stack([m + S @ A.T @ m, *(S @ A.T @ S).T], axis=1)
    solved = np.linalg.solve(np.eye(len(m)) + S @ penalty, right)
    return GaussianOutput(solved[:, 0], solved[:, 1:])


def sinkhorn_reading(A: np.ndarray, law: GaussianLaw) -> GaussianOutput:
    """The mean of the partner under Sinkhorn's plan; A (d, d) symmetric."""
    values, vectors = np.linalg.eigh(law.covariance)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    g, turn = np.linalg.eigh(root @ ((A + A.T) / 2) @ root)
    correlation = 2 * g / (1 + np.sqrt(1 + 4 * g * g))
    return GaussianOutput(law.mean, root @ ((turn * correlation) @ turn.T) @ root)
