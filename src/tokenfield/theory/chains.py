"""Jordan chains of eigenvalues that share the largest real part: which of them decides in the end?

Let T have the eigenvalues λ + iω only, λ one number. On the part that belongs to one ω, e^{Tτ} grows like
τ^{m−1}e^{λτ}, m the index of that part: the least m with N^m = 0 for N = T − λ − iω. The parts of greatest
index outgrow the others by a power of τ, and what is left of a token x there is the direction of N^{m−1}x.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from tokenfield.errors import InputError

#: Powers of the nilpotent part that are smaller than this, relative to those of its norm, are rounding.
ROUNDED = 1e-12
#: A token whose part in such a power is smaller than this, relative to the greatest, has none.
NILPOTENT = 1e-9
#: N of eigenvalues that only lie apart is at most this many times their spread.
APART = 3.0


Complex = NDArray[np.complex128]


class Chain(NamedTuple):
    """The part of T (k, k) that belongs to λ + i·`frequency`, and to its conjugate.

    `index`: m. `nilpotent` (k, k): N P, P the spectral projection; 0 if m = 1. `last` (k, k): N^{m−1}P up to
    a factor. `rank`: that of `last`, as far as rounding allows to say. `certain`: whether N^m is 0 to
    rounding, and N^{m−1} more than eigenvalues that differ would make it.
    """

    frequency: float
    index: int
    nilpotent: np.ndarray
    last: np.ndarray
    rank: int
    certain: bool

    @property
    def plane(self) -> np.ndarray:
        """Orthonormal basis (k, 2) of the plane where orbits end if they turn and `rank` is 1."""
        v = np.linalg.svd(self.last)[0][:, 0]
        return np.linalg.qr(np.stack([np.real(v), np.imag(v)], axis=1))[0]


def chains(T: np.ndarray, values: Complex, unsure: np.ndarray, tolerance: float) -> list[Chain]:
    """That of the real eigenvalue, if there is one, then those of the pairs by frequency.

    `values` (k,): the eigenvalues of T, each known to `unsure` (k,). Those closer than that, or than
    `tolerance`, are one.
    """
    turning = np.abs(values.imag) > np.maximum(tolerance, unsure)
    pairs = np.flatnonzero(turning & (values.imag > 0))
    pairs = pairs[np.argsort(values.imag[pairs])]
    apart = np.diff(values.imag[pairs]) > np.maximum(
        tolerance, np.minimum(unsure[pairs][1:], unsure[pairs][:-1])
    )
    resting = [np.flatnonzero(~turning)] if not np.all(turning) else []
    turns = np.split(pairs, np.flatnonzero(apart) + 1) if len(pairs) else []
    return [_chain(T, values, group, tolerance, float) for group in resting] + [
        _chain(T, values, group, tolerance, complex) for group in turns
    ]


def _chain(T: np.ndarray, values: Complex, group: np.ndarray, tolerance: float, kind: type) -> Chain:
    inner, part, project = _split_off(T, values, group)
    centre = np.mean(values[group])
    if kind is float:
        centre = centre.real
    N = part - centre * np.eye(len(part))
    found = _powers(N, float(np.max(np.abs(values[group] - centre))), tolerance)
    index, last = found.index, found.last
    nilpotent = inner @ (N if index > 1 else 0 * N) @ project
    last = inner @ last @ project
    if kind is float:
        nilpotent, last = np.real(nilpotent), np.real(last)
    return Chain(float(np.imag(centre)), index, nilpotent, last, found.rank, found.certain)


class _Powers(NamedTuple):
    """Least m with N^m = 0, N^{m−1} up to a factor and its rank; `certain`: see `Chain`."""

    index: int
    last: np.ndarray
    rank: int
    certain: bool


def _powers(N: np.ndarray, spread: float, tolerance: float) -> _Powers:
    """The powers of N, as far as eigenvalues that spread by so much allow to say."""
    eye, size = np.eye(len(N)), float(np.linalg.norm(N, 2))
    if size <= max(tolerance, APART * spread):  # different eigenvalues counted as one, not a chain
        return _Powers(1, eye, len(N), True)
    # eigenvalues further apart than the tolerance were one before rounding split them, which changes N itself
    # by no more than rounding
    small = min(0.1, ROUNDED + 10 * min(spread, tolerance) / size)
    last, power, m = eye, N / size, 1
    while np.linalg.norm(power, 2) > small and m < len(N):
        last, power, m = power, power @ N / size, m + 1
    sizes = np.linalg.svd(last, compute_uv=False)
    # eigenvalues that really differ so much would make powers of that size
    clear = sizes[0] > 10 * spread / size and float(np.linalg.norm(power, 2)) <= ROUNDED
    certain = spread <= tolerance or clear
    return _Powers(m, last, int(np.sum(sizes > small * sizes[0])), certain)


def _split_off(
    T: np.ndarray, values: Complex, group: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The invariant subspace of a group of eigenvalues: basis (k, a), T there (a, a), coordinates (a, k)."""
    if len(group) == len(values):
        return np.eye(len(T)), T, np.eye(len(T))
    size = float(np.linalg.norm(T, 2))

    def chosen(value: complex) -> bool:
        return int(np.argmin(np.abs(values.imag - size * value.imag))) in group

    schur: Any = linalg.schur
    try:
        form, Q, found = schur(T / size, output="complex", sort=chosen)
    except linalg.LinAlgError:
        form, Q, found = T, T, -1
    a = len(group)
    if found != a:
        raise InputError(
            f"`tolerance` must be larger: the eigenvalues with imaginary parts"
            f" {', '.join(f'{v:.9g}' for v in values.imag)} are too ill-conditioned to be told apart"
        )
    X = linalg.solve_sylvester(form[:a, :a], -form[a:, a:], form[:a, a:])
    project = np.concatenate([np.eye(a), X], axis=1) @ Q.conj().T
    return Q[:, :a], size * form[:a, :a], project
