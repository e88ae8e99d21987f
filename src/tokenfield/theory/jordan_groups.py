"""Jordan structure of eigenvalues that share the largest real part: which of them decides in the end?

Let T have the eigenvalues λ + iω only, λ one number. A *group* is the generalised eigenspace of one ω (with
that of −ω, since T is real). There e^{Tτ} grows like τ^{m−1}e^{λτ}, m the index of the eigenvalue: the least
m with N^m = 0, N = T − λ − iω the nilpotent part. Groups of greatest index outgrow the others by a power of
τ, and what is left of a token x there is the direction of N^{m−1}x.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from tokenfield.errors import InputError

#: Powers of the nilpotent part of smaller norm than this, relative to that power of its norm, count as 0.
SMALLEST_POWER_NORM = 1e-12
#: A token whose part in such a power is smaller than this, relative to the greatest, has none.
SMALLEST_TOKEN_PART = 1e-9
#: N of distinct eigenvalues that were counted as one has at most this many times the norm of their spread.
LARGEST_NORM_PER_SPREAD = 3.0


Complex = NDArray[np.complex128]


class JordanGroup(NamedTuple):
    """The generalised eigenspace of T (k, k) that belongs to λ + i·`frequency`, and to its conjugate.

    `index`: m, the size of the largest Jordan block. `nilpotent` (k, k): N P, P the spectral projector; 0 if
    m = 1. `top_power` (k, k): N^{m−1}P up to a factor. `rank`: that of `top_power`, the number of largest
    blocks, as far as rounding allows to say. `certain`: whether N^m is 0 to rounding, and N^{m−1} more than
    eigenvalues that differ would make it.
    """

    frequency: float
    index: int
    nilpotent: np.ndarray
    top_power: np.ndarray
    rank: int
    certain: bool

    @property
    def plane(self) -> np.ndarray:
        """Orthonormal basis (k, 2) of the plane where orbits end if they rotate and `rank` is 1."""
        v = np.linalg.svd(self.top_power)[0][:, 0]
        return np.linalg.qr(np.stack([np.real(v), np.imag(v)], axis=1))[0]


def jordan_groups(
    T: np.ndarray, eigenvalues: Complex, uncertainty: np.ndarray, tolerance: float
) -> list[JordanGroup]:
    """The group of the real eigenvalue, if there is one, then those of the complex pairs by frequency.

    Args:
        T: real matrix (k, k) whose eigenvalues share one real part.
        eigenvalues: those of T (k,).
        uncertainty: how far rounding may have moved each of them (k,).
        tolerance: eigenvalues closer than this, or than their uncertainty, are one.

    Returns:
        The groups; their spaces span R^k.
    """
    imaginary = eigenvalues.imag
    rotating = np.abs(imaginary) > np.maximum(tolerance, uncertainty)
    pairs = np.flatnonzero(rotating & (imaginary > 0))
    pairs = pairs[np.argsort(imaginary[pairs])]
    distinct = np.diff(imaginary[pairs]) > np.maximum(
        tolerance, np.minimum(uncertainty[pairs][1:], uncertainty[pairs][:-1])
    )
    real = [np.flatnonzero(~rotating)] if not np.all(rotating) else []
    rotations = np.split(pairs, np.flatnonzero(distinct) + 1) if len(pairs) else []
    return [_group(T, eigenvalues, members, tolerance, float) for members in real] + [
        _group(T, eigenvalues, members, tolerance, complex) for members in rotations
    ]


def _group(
    T: np.ndarray, eigenvalues: Complex, members: np.ndarray, tolerance: float, field: type
) -> JordanGroup:
    """The group of the eigenvalues with these indices, over the real or the complex numbers (`field`)."""
    basis, restriction, coordinates = _invariant_subspace(T, eigenvalues, members)
    centre = np.mean(eigenvalues[members])
    if field is float:
        centre = centre.real
    N = restriction - centre * np.eye(len(restriction))
    powers = _nilpotent_powers(N, float(np.max(np.abs(eigenvalues[members] - centre))), tolerance)
    nilpotent = basis @ (N if powers.index > 1 else 0 * N) @ coordinates
    top_power = basis @ powers.top_power @ coordinates
    if field is float:
        nilpotent, top_power = np.real(nilpotent), np.real(top_power)
    return JordanGroup(
        float(np.imag(centre)), powers.index, nilpotent, top_power, powers.rank, powers.certain
    )


class _Powers(NamedTuple):
    """Least m with N^m = 0, N^{m−1} up to a factor and its rank; `certain`: see `JordanGroup`."""

    index: int
    top_power: np.ndarray
    rank: int
    certain: bool


def _nilpotent_powers(N: np.ndarray, spread: float, tolerance: float) -> _Powers:
    """The powers of N, as far as eigenvalues that spread by so much allow to say."""
    eye, size = np.eye(len(N)), float(np.linalg.norm(N, 2))
    if size <= max(tolerance, LARGEST_NORM_PER_SPREAD * spread):  # distinct eigenvalues, no Jordan block
        return _Powers(1, eye, len(N), True)
    # eigenvalues further apart than the tolerance were one before rounding split them, which changes N itself
    # by no more than rounding
    small = min(0.1, SMALLEST_POWER_NORM + 10 * min(spread, tolerance) / size)
    last, power, m = eye, N / size, 1
    while np.linalg.norm(power, 2) > small and m < len(N):
        last, power, m = power, power @ N / size, m + 1
    sizes = np.linalg.svd(last, compute_uv=False)
    # eigenvalues that really differ so much would make powers of that size
    clear = sizes[0] > 10 * spread / size and float(np.linalg.norm(power, 2)) <= SMALLEST_POWER_NORM
    certain = spread <= tolerance or clear
    return _Powers(m, last, int(np.sum(sizes > small * sizes[0])), certain)


def _invariant_subspace(
    T: np.ndarray, eigenvalues: Complex, members: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """That of some eigenvalues: basis (k, a), restriction of T to it (a, a), coordinates (a, k)."""
    if len(members) == len(eigenvalues):
        return np.eye(len(T)), T, np.eye(len(T))
    size = float(np.linalg.norm(T, 2))

    def chosen(value: complex) -> bool:
        return int(np.argmin(np.abs(eigenvalues.imag - size * value.imag))) in members

    schur: Any = linalg.schur
    try:
        form, Q, found = schur(T / size, output="complex", sort=chosen)
    except linalg.LinAlgError:
        form, Q, found = T, T, -1
    a = len(members)
    if found != a:
        raise InputError(
            f"`tolerance` must be larger: the eigenvalues with imaginary parts"
            f" {', '.join(f'{v:.9g}' for v in eigenvalues.imag)} are too ill-conditioned to be told apart"
        )
    X = linalg.solve_sylvester(form[:a, :a], -form[a:, a:], form[:a, a:])
    coordinates = np.concatenate([np.eye(a), X], axis=1) @ Q.conj().T
    return Q[:, :a], size * form[:a, :a], coordinates
