"""The terminal phase of several heads (theory §2.6, §6.7, §7.3): where tight clusters go, and how fast.

A cluster narrower than β^{−1/2} that sees itself reads its own mean y in every head, so that

    y' = P_y W y (flow),   y ← N(y + ηWy) (layers),   W = ΣV_h,

whatever the temperature and the scores. The flow ends in the invariant subspace of the eigenvalues λ of W of
largest real part, layers in that of the eigenvalues μ = 1 + ηλ of largest modulus; these may differ.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import linalg

from tokenfield.errors import InputError, as_number, require, require_kind
from tokenfield.laws.tokens import Tokens
from tokenfield.models.weights import AttentionWeights
from tokenfield.theory.spectral import dominant

TerminalKind = Literal["fixed", "alternating", "rotating", "algebraic"]

#: Moduli of I + ηΣV_h closer than this, relative, count as the same: rounding parts a Jordan block by 1e-8.
SAME_MODULUS = 1e-7
#: A token with |P x| below this, relative to ‖P‖, has no part in the dominant space.
SMALLEST_PART = 1e-12


@dataclass(frozen=True, eq=False)
class Terminal:
    """Where tight clusters end, per unit of depth: of time for the flow, per layer for layers.

    `kind`: "fixed", each cluster comes to rest; "alternating", its part in the eigenspaces with μ < 0 changes
    sign at every layer; "rotating", it goes on turning in the dominant space; "algebraic", the eigenvalue is
    defective and the approach is like 1/t. `eigenvalue`: λ of the flow, μ of layers; of a pair the one with
    positive imaginary part. `eigenvalues` (k,): all dominant ones. `basis` (d, k): orthonormal, of the
    dominant space. `projector` (d, d): onto it along the other invariant subspace. `rate`: at which clusters
    approach that space, the gap of the growths; infinite if it is the whole space. `rotation`: angle per unit
    of depth in the eigenbasis of the pair, 0 if clusters do not turn.
    `cluster_rate`: at which a cluster shrinks, Re λ or log|μ|; negative: it spreads. `step`: η of layers.
    """

    kind: TerminalKind
    eigenvalue: float | complex
    eigenvalues: np.ndarray
    basis: Float[np.ndarray, "d k"]
    projector: Float[np.ndarray, "d d"]
    rate: float
    rotation: float
    cluster_rate: float
    step: float | None

    @property
    def period(self) -> float | None:
        """Of one turn, in time or in layers; None without rotation."""
        return 2 * np.pi / self.rotation if self.rotation > 0 else None

    def push(self, tokens: Tokens) -> Tokens:
        """Where clusters that begin at these places end: P y/|P y|. Only of kind "fixed"."""
        require_kind(tokens, Tokens, "tokens")
        require(tokens.d == len(self.projector), "tokens", f"have d = {len(self.projector)}", tokens.d)
        require(
            self.kind == "fixed", "terminal", "be of kind 'fixed' to have an end for each cluster", self.kind
        )
        end = np.asarray(tokens.x) @ self.projector.T
        size = np.linalg.norm(end, axis=1, keepdims=True)
        lost = np.flatnonzero(size[:, 0] <= SMALLEST_PART * np.linalg.norm(self.projector, 2))
        require(lost.size == 0, "tokens", "have a part in the dominant space", f"none at index {lost[:1]}")
        return Tokens(end / size, tokens.weights)


def terminal(weights: AttentionWeights, step: float | None = None) -> Terminal:
    """Where tight clusters end: the dominant invariant subspace of ΣV_h, or of I + step·ΣV_h by modulus.

    Needs clusters that see themselves, ⟨B_hᵀp, p⟩ > 0 at every place p on the way.

    Args:
        weights: B and V of the heads, (heads, d, d) or (d, d); B and score biases do not matter.
        step: η of `Layers(step)`, positive; None: the flow.

    Returns:
        The dominant space, the rate at which it is approached, and what happens in it.
    """
    require_kind(weights, AttentionWeights, "weights")
    W = np.sum(np.asarray(weights.every_head().V), axis=0)
    if step is not None:
        step = as_number(step, "step")
        require(0 < step < np.inf, "step", "be positive and finite", step)
        return _of_layers(np.eye(len(W)) + step * W, step)
    found = dominant(W)
    return Terminal(
        kind=found.kind,
        eigenvalue=found.eigenvalue,
        eigenvalues=found.eigenvalues,
        basis=found.basis,
        projector=found.projector,
        rate=found.gap,
        rotation=float(np.imag(found.eigenvalue)),
        cluster_rate=float(np.real(found.eigenvalue)),
        step=None,
    )


def _of_layers(M: np.ndarray, step: float) -> Terminal:
    """The invariant subspace of the eigenvalues of M of largest modulus."""
    d, sizes = len(M), np.sort(np.abs(np.linalg.eigvals(M)))[::-1]
    require(sizes[0] > 0, "weights", "leave some direction to layers: I + step·ΣV_h is nilpotent", "none")
    k = int(np.sum(sizes > sizes[0] * (1 - SAME_MODULUS)))
    cut = (sizes[k - 1] + sizes[k]) / 2 if k < d else -1.0
    ordered: Any = linalg.schur(M, sort=lambda re, im: bool(np.hypot(re, im) > cut))
    T, Q, found = ordered
    if found != k:
        raise InputError(
            "`weights` must have eigenvalues of I + step·ΣV_h that can be told apart, but rounding mixes"
            f" those of modulus {sizes[k - 1]:.9g} and {sizes[min(k, d - 1)]:.9g}"
        )
    X = linalg.solve_sylvester(T[:k, :k], -T[k:, k:], T[:k, k:]) if k < d else np.zeros((k, 0))
    top = np.linalg.eigvals(T[:k, :k]).astype(complex)
    lead = complex(top[np.argmax(top.imag)])
    kind = _kind(T[:k, :k], top)
    turns = kind == "rotating"
    return Terminal(
        kind=kind,
        eigenvalue=lead if turns else lead.real,
        eigenvalues=top if turns else top.real,
        basis=Q[:, :k],
        projector=Q[:, :k] @ np.concatenate([np.eye(k), X], axis=1) @ Q.T,
        rate=float(np.log(sizes[0] / sizes[k])) if k < d and sizes[k] > 0 else np.inf,
        rotation=abs(float(np.angle(lead))) if turns else 0.0,
        cluster_rate=float(np.log(sizes[0])),
        step=step,
    )


def _kind(T: np.ndarray, top: NDArray[np.complex128]) -> TerminalKind:
    """What happens in the dominant space, where the matrix is T with the eigenvalues `top`."""
    size = float(np.max(np.abs(top)))
    if np.max(np.abs(top.imag)) > SAME_MODULUS * size:
        return "rotating"
    if np.ptp(top.real) > size:  # both signs
        return "alternating"
    if np.linalg.norm(T - np.mean(top.real) * np.eye(len(T)), 2) > 10 * SAME_MODULUS * size:
        return "algebraic"
    return "fixed" if top.real[0] > 0 else "alternating"
