"""Stability of a configuration of tokens: the spectrum of the linearised flow, modulo rotations.

Tokens that move by a tangent u (n, d) change their velocity by J u, J the derivative of the field in the
tangent spaces, n(d−1) square. If the model commutes with a rotation and the tokens are at rest, J vanishes on
the motion that the rotation makes: such modes are taken out, and the spectrum is that of J on what is left.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Inexact
from scipy.sparse import linalg as sparse

from tokenfield.errors import InputError, RunError, as_whole
from tokenfield.geometry import sphere
from tokenfield.laws.tokens import Tokens

#: Up to this many unknowns n(d−1) the whole spectrum is computed, beyond only its upper end.
LARGEST_DENSE_SIZE = 1500
#: How many eigenvalues are found beyond that, unless told.
LEADING_COUNT = 8
#: Rates below this, relative to ‖J‖, cannot be told from zero.
SMALLEST_RATE = 1e-11
#: What J does to a rotation may be this large, relative to ‖J‖, and so may imaginary parts made by rounding.
LARGEST_ROTATION_RATE = 1e-9
#: A velocity below this, relative to the greatest rate, is rest.
LARGEST_SPEED_AT_REST = 1e-8
#: Columns of the Jacobian that are computed at once.
COLUMNS_AT_ONCE = 16
ARPACK_OPTIONS: Any = {"tol": 1e-11, "maxiter": 1000}


class HasVelocity(Protocol):
    """Anything with a velocity, such as a model."""

    def velocity(self, tokens: Tokens) -> Float[Array, "n d"]:
        """Tangent velocity of every token."""
        ...


@dataclass(frozen=True, eq=False)
class Stability:
    """The linearised flow about a configuration.

    `spectrum`: eigenvalues by falling real part, real if all are; all n(d−1) but the rotations, or the
    leading ones (`whole` says which). `rotations`: how many modes were taken out because the model does not
    feel them. `index`: number of unstable directions; at least that many if only the leading eigenvalues are
    known and all are unstable. `fastest` (n, d): the tangent vectors of the fastest growing, or slowest
    decaying, mode (its real part), of norm 1. `speed`: greatest velocity of a token; `stationary`: whether
    that is rest. `note`: what was found, in words.
    """

    spectrum: Inexact[np.ndarray, "m"]
    rotations: int
    index: int
    fastest: Float[np.ndarray, "n d"]
    speed: float
    stationary: bool
    whole: bool
    note: str


def stability(model: HasVelocity, tokens: Tokens, count: int | None = None) -> Stability:
    """Spectrum, index and fastest direction of the token flow linearised about `tokens`.

    Up to 1500 unknowns n(d−1) all eigenvalues by dense matrices; beyond, or if `count` is given, the `count`
    (8) with the greatest real parts, without forming a matrix. At a configuration that is not at rest the
    eigenvalues say how neighbouring configurations part from it at first, and the note says so.

    Args:
        model: anything with a velocity that JAX can differentiate.
        tokens: the configuration, x (n, d) and weights (n,).
        count: how many of the leading eigenvalues are wanted, at most n(d−1) − 2; None for all of them, or 8
            if there are more than 1500.

    Returns:
        Spectrum, rotations left out, index, and the fastest direction (n, d).
    """
    size = tokens.n * (tokens.d - 1)
    if count is not None:
        as_whole(count, "count", 1)
        if count > size - 2:
            raise InputError(f"`count` must be at most n(d−1) − 2 = {size - 2}, but was {count}")
    frame = sphere.frame(tokens.x)

    def velocity(u: Array) -> Array:
        moved = tokens.x + jnp.einsum("nde,ne->nd", frame, u.reshape(tokens.n, -1))
        v = model.velocity(Tokens(sphere.retract(moved), tokens.weights))
        return jnp.einsum("nde,nd->ne", frame, v).ravel()

    @jax.jit
    def apply(u: Array) -> Array:
        return jax.jvp(velocity, (jnp.zeros(size),), (u,))[1]

    v = velocity(jnp.zeros(size))
    speed = float(jnp.max(jnp.linalg.norm(v.reshape(tokens.n, -1), axis=1)))
    turns = _rotations(np.asarray(tokens.x), np.asarray(frame))
    whole = count is None and size <= LARGEST_DENSE_SIZE
    # similar to J, and symmetric for gradient flows of weighted tokens
    root = np.repeat(np.sqrt(np.asarray(tokens.weights)), tokens.d - 1)
    root = root / root.max() if np.min(root) > 0 else np.ones(size)
    solve = _dense if whole else _leading
    values, vector, rotations, scale = solve(apply, turns, root, count or LEADING_COUNT)
    order = np.argsort(-np.real(values), kind="stable")
    values = (
        np.real(values[order])
        if np.max(np.abs(np.imag(values)), initial=0) <= LARGEST_ROTATION_RATE * scale
        else values[order]
    )
    direction = np.einsum("nde,ne->nd", np.asarray(frame), vector.reshape(tokens.n, -1))
    index = int(np.sum(np.real(values) > SMALLEST_RATE * scale))
    rest = speed <= LARGEST_SPEED_AT_REST * max(scale, np.finfo(float).tiny)
    return Stability(
        values,
        rotations,
        index,
        direction,
        speed,
        rest,
        whole,
        _describe(values, rotations, index, speed, rest, whole),
    )


Apply = Callable[[Any], Array]


class _Modes(NamedTuple):
    """Eigenvalues, the vector of the leading one, how many rotations were left out, ‖J‖."""

    values: np.ndarray
    vector: np.ndarray
    rotations: int
    scale: float


def _rotations(x: np.ndarray, frame: np.ndarray) -> np.ndarray:
    """Orthonormal basis (n(d−1), k) of the motions Ωx of all tokens, Ω skew."""
    d = x.shape[1]
    motions = []
    for i, j in combinations(range(d), 2):
        turn = np.zeros_like(x)
        turn[:, i], turn[:, j] = -x[:, j], x[:, i]
        motions.append(np.einsum("nde,nd->ne", frame, turn).ravel())
    left, sizes, _ = np.linalg.svd(np.stack(motions, axis=1), full_matrices=False)
    return left[:, sizes > 1e-10 * sizes[0]]


def _neutral(apply: Apply, turns: np.ndarray, scale: float) -> np.ndarray:
    """The rotations that J maps to 0, an orthonormal basis."""
    if turns.shape[1] == 0:
        return turns
    images = np.stack([np.asarray(apply(t)) for t in turns.T], axis=1)
    _, sizes, right = np.linalg.svd(images, full_matrices=False)
    return turns @ right[sizes <= LARGEST_ROTATION_RATE * scale].T


def _dense(apply: Apply, turns: np.ndarray, root: np.ndarray, _: int) -> _Modes:
    size = len(root)
    J = np.asarray(lax.map(apply, jnp.eye(size), batch_size=COLUMNS_AT_ONCE)).T
    scale = float(np.linalg.norm(J, 2))
    free = _neutral(apply, turns, scale)
    S = root[:, None] * J / root
    # J vanishes on the rotations, so its action on the complement has the other eigenvalues
    kept = np.linalg.svd(root[:, None] * free)[0][:, free.shape[1] :] if free.shape[1] else np.eye(size)
    M = kept.T @ S @ kept
    if len(M) == 0:
        return _Modes(np.zeros(0), np.zeros(size), free.shape[1], scale)
    if np.linalg.norm(M - M.T) <= 1e-11 * np.linalg.norm(M):
        values, vectors = np.linalg.eigh((M + M.T) / 2)
    else:
        values, vectors = np.linalg.eig(M)
    vector = _real(kept @ vectors[:, np.argmax(np.real(values))] / root)
    return _Modes(values, vector, free.shape[1], scale)


def _leading(apply: Apply, turns: np.ndarray, root: np.ndarray, count: int) -> _Modes:
    size = len(root)
    start = np.random.default_rng(0).normal(size=size)

    def J(u: np.ndarray) -> np.ndarray:
        return root * np.asarray(apply(jnp.asarray(u.ravel() / root)))

    def eigs(f: Callable[[np.ndarray], np.ndarray], k: int, which: str) -> Any:
        options: Any = {"matvec": f, "dtype": float}
        operator: Any = sparse.LinearOperator((size, size), **options)
        try:
            return sparse.eigs(operator, k, which=which, v0=start, **ARPACK_OPTIONS)
        except sparse.ArpackNoConvergence as error:
            raise RunError(f"the {k} leading eigenvalues of {size} were not found: {error}") from error

    scale = float(np.abs(eigs(J, 1, "LM")[0][0]))
    free = _neutral(apply, turns, scale)
    gone = np.linalg.qr(root[:, None] * free)[0]

    def outside(u: np.ndarray) -> np.ndarray:
        """J off the rotations, which are sent below everything else."""
        along = gone @ (gone.T @ u.ravel())
        v = J(u.ravel() - along)
        return v - gone @ (gone.T @ v) - 2 * scale * along

    values, vectors = eigs(outside, count, "LR")
    vector = _real(vectors[:, np.argmax(np.real(values))] / root)
    return _Modes(values, vector, free.shape[1], scale)


def _real(vector: np.ndarray) -> np.ndarray:
    """Real part of an eigenvector at the phase where it is largest, of norm 1 and with a fixed sign."""
    phase = np.sum(vector * vector) if np.iscomplexobj(vector) else 1.0
    real = np.real(vector * np.exp(-0.5j * np.angle(phase)))
    real = real / np.linalg.norm(real)
    return real * np.sign(real[np.argmax(np.abs(real))])


def _describe(values: np.ndarray, rotations: int, index: int, speed: float, rest: bool, whole: bool) -> str:
    at_least = "" if whole or index < len(values) else "at least "
    parts = [f"{at_least}{index} unstable directions"]
    if len(values):
        parts.append(f"greatest rate {np.real(values[0]):.6g}")
    parts.append(f"{rotations} rotations left out")
    if not whole:
        parts.append(f"only the {len(values)} leading eigenvalues were computed")
    if not rest:
        parts.append(f"not at rest: tokens move at up to {speed:.3g}, rates hold only for short times")
    return "; ".join(parts)
