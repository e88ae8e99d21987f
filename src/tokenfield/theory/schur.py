"""The dominant eigenvalues of a matrix, split off by an ordered Schur form, and what rounding did to them."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from tokenfield.errors import InputError

#: Largest uncertainty, relative to ‖M‖, that bad conditioning may lend an eigenvalue.
LARGEST_UNCERTAINTY = 1e-3


class SchurSplit(NamedTuple):
    """The dominant eigenvalues of one matrix M, from its ordered Schur form M = Q [[T, ·], [0, R]] Qᵀ.

    `values`: all eigenvalues, dominant first; `count` of the dominant ones; `uncertainty`: how far rounding
    may have moved each, at most `LARGEST_UNCERTAINTY`‖M‖; `doubt`: the same for the dominant ones and the
    next, without a limit; `T`: restriction to their invariant subspace E; `R`: what is left; `X`, with
    T X − X R = the corner: Q [[I, X], [0, 0]] Qᵀ projects onto E along the complementary invariant subspace.
    """

    values: NDArray[np.complex128]
    count: int
    uncertainty: np.ndarray
    doubt: float
    Q: np.ndarray
    T: np.ndarray
    R: np.ndarray
    X: np.ndarray


def split_dominant(M: np.ndarray, tolerance: float, noise: float) -> SchurSplit:
    """The eigenvalues of largest real part and their invariant subspace.

    Args:
        M: real matrix (d, d).
        tolerance: real parts that differ from the largest by at most this count as one.
        noise: how far rounding may have moved M, in norm.

    Returns:
        The split; for a symmetric M its subspaces are orthogonal.
    """
    return _symmetric(M, tolerance) if _is_symmetric(M, noise) else _general(M, tolerance, noise)


def rounding_of_product(d: int, scale: Any) -> float:
    """What rounding may have done to a product of d × d matrices of that size."""
    return float(10 * d * np.finfo(float).eps * scale)


def show(value: np.ndarray | complex) -> str:
    """A number, or a direction with its largest entry positive."""
    if np.ndim(value) == 0:
        return f"{value:.9g}"
    vector = np.asarray(value) * np.sign(np.ravel(value)[np.argmax(np.abs(value))])
    entries = [f"{v:.4g}" for v in np.round(vector, 12) + 0.0]
    return "(" + ", ".join(entries if len(entries) <= 8 else [*entries[:8], "…"]) + ")"


def _is_symmetric(M: np.ndarray, noise: float) -> bool:
    return bool(np.linalg.norm(M - M.T, 2) <= noise)


def _symmetric(M: np.ndarray, tolerance: float) -> SchurSplit:
    values, Q = np.linalg.eigh((M + M.T) / 2)
    values, Q = values[::-1], Q[:, ::-1]
    k = int(np.sum(values[0] - values <= tolerance))
    corner = np.zeros((k, len(M) - k))
    T, R = np.diag(values[:k]), np.diag(values[k:])
    return SchurSplit(values.astype(complex), k, np.zeros(len(M)), 0.0, Q, T, R, corner)


def _general(M: np.ndarray, tolerance: float, noise: float) -> SchurSplit:
    size = float(np.linalg.norm(M, 2))  # eigenvalues of matrices beyond 1e±138 come out wrong
    M, tolerance, noise = M / size, tolerance / size, noise / size
    eigen: Any = linalg.eig(M, left=True, right=True)
    values, left, right = eigen
    schur: Any = linalg.schur
    # to first order a perturbation of size `noise` moves an eigenvalue by noise/|⟨left, right⟩|
    overlap = np.abs(np.sum(left.conj() * right, axis=0))
    # (an overlap of 0 says nothing), and by (2‖M‖)^{1−1/d} noise^{1/d} at most (Elsner 1985)
    moved = noise / np.maximum(overlap, np.finfo(float).tiny)
    moved = np.minimum(moved, 2 * noise ** (1 / len(M)))
    order = np.argsort(-values.real, kind="stable")
    values, moved = values[order], moved[order]
    uncertainty = np.minimum(moved, LARGEST_UNCERTAINTY)
    behind = values[0].real - values.real
    k = int(np.flatnonzero(behind <= np.maximum(tolerance, np.minimum(uncertainty, uncertainty[0])))[-1]) + 1
    doubt = float(np.max(moved[: k + 1]))
    if k < len(M):  # what lies further away than the next eigenvalue may move further
        doubt = max(doubt, float(np.max(uncertainty[k:] * behind[k] / behind[k:])))
    if k == len(M):
        T, Q = schur(M)
        empty = np.zeros((0, 0))
        return SchurSplit(
            values * size, k, uncertainty * size, doubt * size, Q, T * size, empty, np.zeros((k, 0))
        )
    cut = (values[k - 1].real + values[k].real) / 2
    try:
        form, Q, found = schur(M, sort=lambda re, _: re > cut)
    except linalg.LinAlgError:
        form, Q, found = M, M, -1
    if found != k:
        raise InputError(
            f"`tolerance` must be larger: the eigenvalues {show(size * values[k - 1])} and"
            f" {show(size * values[k])} are too ill-conditioned to be told apart"
        )
    T, R = form[:k, :k], form[k:, k:]
    X = linalg.solve_sylvester(T, -R, form[:k, k:])
    return SchurSplit(values * size, k, uncertainty * size, doubt * size, Q, T * size, R * size, X)
