"""Where tokens concentrate at zero temperature (2605.10931; theory §2).

The zero-temperature flow x' = P_x D x/|Bᵀx|, D = V Bᵀ, has the orbits x(τ) = e^{Dτ}x0/|e^{Dτ}x0| with
dτ = dt/|Bᵀx|. As τ grows only the eigenvalues of D with the largest real part count: their invariant
subspace E takes every token off the complementary subspace, whatever the signs of the eigenvalues.
`limit` says what happens in E; how fast the law gets there is in concentration.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike, NDArray
from scipy import integrate

from tokenfield.errors import InputError, as_number, require, require_kind
from tokenfield.laws.tokens import Tokens
from tokenfield.models.weights import AttentionWeights, as_matrix
from tokenfield.theory.jordan_groups import SMALLEST_TOKEN_PART, JordanGroup, jordan_groups
from tokenfield.theory.schur import SchurSplit, rounding_of_product, show, split_dominant

Kind = Literal["fixed", "rotating", "algebraic"]

#: Real parts of eigenvalues closer than this, relative to ‖D‖, count as one unless told otherwise.
EIGENVALUE_TOLERANCE = 1e-8
#: A token with |P x| below this, relative to ‖P‖, has no part in E that rounding would not make.
SMALLEST_PART_IN_E = 1e-12
#: Powers of ten that V Bᵀ may have, up or down, without overflow or loss of digits on the way.
LARGEST_DECIMAL_EXPONENT = 290
#: Eigenvalues that rounding may have moved by more than this part of the gap are reported as uncertain.
LARGEST_UNCERTAINTY_PER_GAP = 0.1


class Period(NamedTuple):
    """One full turn of a rotating token: in τ, and in the time t of the flow.

    `t` is None if it differs from orbit to orbit, that is unless all end on one circle.
    """

    tau: float
    t: float | None


@dataclass(frozen=True, eq=False)
class Limit:
    """What becomes of the tokens under x' = P_x D x/|Bᵀx|.

    `kind`: "fixed", the dominant eigenvalue is real and each token comes to rest in its eigenspace E, with
    an exponential approach; "algebraic", it is real and defective, and the approach is like 1/t;
    "rotating", a complex pair has the largest real part, and tokens circulate in E for ever. If a real
    eigenvalue and pairs share the largest real part, those with the largest Jordan blocks decide.
    `eigenvalue`: the dominant one, of a pair the one with positive imaginary part. `eigenvalues` (k,): all
    that were counted as dominant. `gap`: distance of the real parts to the next eigenvalue, infinite if E
    is the whole space. `projector` (d, d): P, onto E along the complementary invariant subspace; orthogonal
    if D is symmetric. `basis` (d, k): orthonormal basis of E. `period`: of a rotating limit, else None, also
    None if different frequencies have no common turn. `tolerance`: how close real parts had to be to count
    as one. `note`: what was decided, in words. `nilpotent` and `index`: N = (D − λ)P and the least m with
    N^m = 0 of a defective eigenvalue, 0 and 1 otherwise. `rest`: makes `lower`.
    """

    kind: Kind
    eigenvalue: float | complex
    eigenvalues: np.ndarray
    gap: float
    projector: Float[np.ndarray, "d d"]
    basis: Float[np.ndarray, "d k"]
    period: Period | None
    tolerance: float
    note: str
    nilpotent: Float[np.ndarray, "d d"] = field(repr=False)
    index: int = field(repr=False)
    rest: "Callable[[], Limit] | None" = field(repr=False)

    @property
    def dimension(self) -> int:
        """k = dim E."""
        return self.basis.shape[1]

    @cached_property
    def lower(self) -> "Limit | None":
        """The same for the complementary invariant subspace, where exceptional tokens stay; None if empty."""
        return self.rest() if self.rest is not None else None

    def exceptional(self, tokens: Tokens) -> Int[np.ndarray, "m"]:
        """Indices of the tokens with P x = 0 to rounding, which never come near E."""
        return np.flatnonzero(self._missed(_rows(tokens, len(self.projector))))

    def push(self, tokens: Tokens) -> Tokens:
        """The limit law Π♯ρ0, token by token in the same order.

        Π(x) = P x/|P x|; for a defective eigenvalue N^j P x/|N^j P x| with N the nilpotent part and j the
        highest power that does not vanish. Exceptional tokens stay in the complementary invariant subspace
        and go where its own dominant eigenvalue takes them (if that one rotates, they are put on the circle
        they end up on). A rotating limit has no limit law and is refused.
        """
        require(
            self.kind != "rotating",
            "limit",
            "be of kind 'fixed' or 'algebraic' to have a limit law",
            "'rotating': tokens circulate in E for ever",
        )
        return Tokens(self._move(_rows(tokens, len(self.projector))), tokens.weights)

    def _missed(self, x: np.ndarray) -> np.ndarray:
        size = np.linalg.norm(x @ self.projector.T, axis=1)
        return size <= SMALLEST_PART_IN_E * np.linalg.norm(self.projector, 2)

    def _move(self, x: np.ndarray) -> np.ndarray:
        missed = self._missed(x)
        end, power = x @ self.projector.T, self.projector
        for _ in range(self.index - 1):
            power = self.nilpotent @ (power / np.linalg.norm(power, 2))
            power = power / np.linalg.norm(power, 2)
            last = x @ power.T
            end = np.where((np.linalg.norm(last, axis=1) > SMALLEST_TOKEN_PART)[:, None], last, end)
        if np.any(missed) and self.lower is not None:
            end[missed] = self.lower._move(x[missed])
        return end / np.linalg.norm(end, axis=1, keepdims=True)


def limit(weights: AttentionWeights, tolerance: float = EIGENVALUE_TOLERANCE) -> Limit:
    """Where the zero-temperature flow of one head takes the tokens: the dominant part of D = V Bᵀ.

    Eigenvalues whose real parts differ from the largest by at most tolerance·‖D‖ count as one eigenvalue,
    and so do eigenvalues that rounding cannot tell apart (a Jordan block computed in double precision splits
    by far more than rounding); `note` says what was counted together. Singular D is fine. Where Bᵀx = 0 the
    field has no value: refused if such a direction lies in E, mentioned in the note otherwise.
    """
    require_kind(weights, AttentionWeights, "weights")
    require(
        weights.heads == 1,
        "weights",
        "have one head: with several, Σ V_h B_hᵀx/|B_hᵀx| has no linear orbits",
        f"with {weights.heads} heads",
    )
    B, V = (np.asarray(m[0]) for m in weights.stacked())
    sizes = [float(np.max(np.abs(m))) for m in (B, V)]
    order = sum(np.log10(size) for size in sizes if size > 0)
    require(
        abs(order) < LARGEST_DECIMAL_EXPONENT and max(sizes) < 10.0**LARGEST_DECIMAL_EXPONENT,
        "weights",
        f"have B, V and V Bᵀ within 1e±{LARGEST_DECIMAL_EXPONENT}",
        f"with a V Bᵀ near 1e{order:.0f}",
    )
    D = V @ B.T
    noise = rounding_of_product(len(D), np.linalg.norm(V, 2) * np.linalg.norm(B, 2))
    return _analyse(D, B, tolerance, noise)


def dominant(matrix: ArrayLike, tolerance: float = EIGENVALUE_TOLERANCE) -> Limit:
    """The same for x' = P_x M x, with orbits e^{Mt}x0/|e^{Mt}x0|: of M = V, where clusters end."""
    M = np.asarray(as_matrix(np.asarray(matrix), "matrix"))
    require(M.ndim == 2, "matrix", "be one matrix (d, d)", f"of shape {M.shape}")
    return _analyse(M, np.eye(len(M)), tolerance, rounding_of_product(len(M), np.linalg.norm(M, 2)))


def _analyse(M: np.ndarray, B: np.ndarray, tolerance: float, noise: float) -> Limit:
    """The limit of e^{Mτ} with the tolerance made absolute, and its quarrel with Bᵀx = 0 settled."""
    tolerance = as_number(tolerance, "tolerance")
    require(0 <= tolerance < 1, "tolerance", "lie in [0, 1)", tolerance)
    eye = np.eye(len(M))
    found = _peel(M, B, eye, eye, max(tolerance * float(np.linalg.norm(M, 2)), noise), noise)
    note = found.note + _undefined(B, found.basis)
    return Limit(**{**vars(found), "note": note})


def _peel(
    M: np.ndarray, B: np.ndarray, up: np.ndarray, down: np.ndarray, tolerance: float, noise: float
) -> Limit:
    """The limit in an invariant subspace of R^d: x = up y, y = down x, where the matrix is M."""
    level = split_dominant(M, tolerance, noise)
    k, top = level.count, level.values[: level.count]
    found = jordan_groups(level.T, top, level.uncertainty[:k], tolerance)
    index = max(group.index for group in found)
    leading = [group for group in found if group.index == index]
    turns = leading[-1].frequency > 0
    kind: Kind = "rotating" if turns else "algebraic" if index > 1 else "fixed"
    real = float(np.mean(top.real))
    inner = up @ level.Q[:, :k]
    project = np.concatenate([np.eye(k), level.X], axis=1) @ level.Q.T @ down
    along = up @ level.Q @ np.concatenate([-level.X, np.eye(len(M) - k)])

    def rest() -> Limit:
        return _peel(level.R, B, along, level.Q[:, k:].T @ down, tolerance, noise)

    return Limit(
        kind=kind,
        eigenvalue=complex(real, leading[-1].frequency) if turns else real,
        eigenvalues=top if found[-1].frequency > 0 else top.real,
        gap=real - float(level.values[k].real) if k < len(M) else np.inf,
        projector=inner @ project,
        basis=np.linalg.qr(inner)[0],
        period=_period(level.T, inner, B, leading, tolerance) if turns else None,
        tolerance=tolerance,
        note=_describe(kind, level, real, found, tolerance),
        nilpotent=inner @ leading[0].nilpotent @ project
        if kind == "algebraic"
        else np.zeros((len(B), len(B))),
        index=index if kind == "algebraic" else 1,
        rest=rest if k < len(M) else None,
    )


def _period(
    T: np.ndarray, inner: np.ndarray, B: np.ndarray, leading: list[JordanGroup], tolerance: float
) -> Period | None:
    """Length of a turn in τ, and in t = ∫|Bᵀx|dτ if all orbits end on one circle."""
    frequencies = [group.frequency for group in leading if group.frequency > 0]
    if np.ptp(frequencies) > tolerance:
        return None
    omega = float(np.mean(frequencies))
    if len(leading) > 1 or leading[0].rank > 1:
        return Period(2 * np.pi / omega, None)
    plane = leading[0].plane
    part = plane.T @ T @ plane
    turn = (part - np.trace(part) / 2 * np.eye(2)) / omega
    start = np.linalg.svd(turn)[0][:, 0]  # the long axis: what is quick happens at the quarter turn

    def pace(angle: float) -> float:
        x = inner @ plane @ (np.cos(angle) * start + np.sin(angle) * (turn @ start))
        return float(np.linalg.norm(B.T @ x) / np.linalg.norm(x))

    half, _ = integrate.quad(
        pace, 0, np.pi, points=[np.pi / 2], epsabs=0, epsrel=1e-11, limit=1000
    )  # x and −x have the same pace
    return Period(2 * np.pi / omega, 2 * half / omega)


def _spread(values: NDArray[Any]) -> float:
    return float(np.max(np.abs(values - np.mean(np.real(values)))))


def _describe(kind: str, level: SchurSplit, real: float, found: list[JordanGroup], tolerance: float) -> str:
    k, d = level.count, len(level.values)
    parts = [
        f"{kind}: {k} of {d} eigenvalues dominant, real part {real:.9g}",
        f"real parts within {tolerance:.3g} count as one",
    ]
    turns = found[-1].frequency > 0
    apart = _spread(np.real(level.values[:k]) if turns else level.values[:k])
    if apart > 0:
        parts.append(f"those counted as one lie within {apart:.3g} of their mean")
    if apart > tolerance:
        parts.append("which rounding cannot tell apart")
    gap = real - level.values[k].real if k < d else np.inf
    if level.doubt > LARGEST_UNCERTAINTY_PER_GAP * gap:
        parts.append(
            f"not certain: rounding may move these eigenvalues by {level.doubt:.2g}, the gap is"
            f" {gap:.2g}, so that kind, eigenspace and gap may be others"
        )
    if not all(group.certain for group in found):
        parts.append(
            "not certain: how large the Jordan blocks are, and so the limit, is at the edge of rounding"
        )
    if kind == "algebraic":
        parts.append("the eigenvalue is defective, the approach is like 1/t")
    if turns:
        parts += _describe_turn(found, tolerance)
    return "; ".join(parts)


def _describe_turn(found: list[JordanGroup], tolerance: float) -> list[str]:
    index = max(group.index for group in found)
    leading = [group for group in found if group.index == index]
    turning = [group for group in found if group.frequency > 0]
    parts = ["frequencies " + ", ".join(f"{group.frequency:.6g}" for group in turning)]
    if len(found) > len(turning):
        parts.append("a real eigenvalue shares the largest real part with a complex pair")
    if len(leading) < len(found):
        parts.append("defective eigenvalues outgrow the others by a power of t")
    if leading[-1].frequency == 0:
        return parts
    if np.ptp([group.frequency for group in leading if group.frequency > 0]) > tolerance:
        parts.append("different frequencies: no common period is given")
    elif len(leading) > 1 or leading[0].rank > 1:
        parts.append("the period in t depends on the orbit")
    if index > 1:
        parts.append("a pair is defective, the approach to the circles is like 1/t")
    return parts


def _undefined(B: np.ndarray, basis: np.ndarray) -> str:
    """Refuse a direction of E with Bᵀx = 0; a clause for the note about others."""
    scale = np.linalg.norm(B, 2)
    _, sizes, right = np.linalg.svd(B.T @ basis)
    lost = int(np.sum(sizes <= SMALLEST_PART_IN_E * scale))
    if lost > 0:
        others = f" and in a space of dimension {lost}" if lost > 1 else ""
        raise InputError(
            f"`weights` must have Bᵀx ≠ 0 where tokens end, but |Bᵀx| ≤ {SMALLEST_PART_IN_E:g}·‖B‖ at"
            f" x = ±{show(basis @ right[-1])}{others}, where the zero-temperature field has no value to"
            " rounding"
        )
    left, sizes, _ = np.linalg.svd(B)
    kernel = int(np.sum(sizes <= SMALLEST_PART_IN_E * scale))
    if kernel == 0:
        return ""
    where = f"at x = ±{show(left[:, -1])}" if kernel == 1 else f"on a subspace of dimension {kernel}"
    return f"; Bᵀx = 0 {where}, outside E: the field has no value there"


def _rows(tokens: Tokens, d: int) -> np.ndarray:
    require_kind(tokens, Tokens, "tokens")
    require(tokens.d == d, "tokens", f"have d = {d}", tokens.d)
    return np.asarray(tokens.x)
