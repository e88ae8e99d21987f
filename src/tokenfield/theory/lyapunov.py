"""Products of layers: Lyapunov exponents and the law that deep tokens have (theory §6.8).

A layer whose output is linear, S_l x, takes a token to a multiple of M_l x: M_l = e^{ηS_l} if it acts as a
flow for the time η, M_l = I + ηS_l if it is one explicit step of a network. At zero temperature that is so
where every B is a multiple of an orthogonal matrix; for other B tokens have clocks of their own and there is
no product. Deep tokens then depend on the product only (Oseledets):

    x_L → ±p_L,  + with the mass m = μ_0{⟨v_1, x⟩ > 0},

p_L and v_1 the top left and right singular vectors of M_L…M_1. The direction p_L goes on moving, the
hyperplane v_1^⊥ converges, and tokens approach ±p_L like e^{−(λ_1−λ_2)L}.
"""

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import linalg

from tokenfield.errors import InputError, as_whole, require, require_kind
from tokenfield.laws.tokens import Tokens
from tokenfield.models.depth import Layered

#: A model this far from a matrix times the token, relative to 1, is not linear.
LARGEST_DEFECT = 1e-10
#: Layers that are drawn at once.
BATCH = 1000
#: Exponents of random layers closer than this many standard errors count as one.
STANDARD_ERRORS = 3.0
#: Multipliers of a period whose moduli agree to this part count as one.
SAME_MODULUS = 1e-10


@dataclass(frozen=True, eq=False)
class LyapunovSpectrum:
    """Exponents of a product of layers, and what becomes of a law.

    `exponents` (d,): λ_1 ≥ λ_2 ≥ …, per layer; λ_1 is log of the length that a token gains. `errors` (d,):
    their standard errors, 0 for layers that repeat. `gap` and `gap_error`: λ_1 less the next exponent that
    differs from it. `directions` (d, k): orthonormal basis of where tokens are after the last layer; k > 1 if
    the top exponents are equal, and there is no limit law then. `normals` (d, k): what is read of the initial
    tokens, for k = 1 the normal v_1 of the hyperplane that parts them. `layers`: how many were multiplied,
    one period if they repeat. `step`: time that a layer lasts. `multipliers` (d,): eigenvalues of the product
    of one period, else None.
    """

    exponents: Float[np.ndarray, "d"]
    errors: Float[np.ndarray, "d"]
    gap: float
    gap_error: float
    directions: Float[np.ndarray, "d k"]
    normals: Float[np.ndarray, "d k"]
    layers: int
    step: float
    multipliers: np.ndarray | None

    @property
    def rates(self) -> Float[np.ndarray, "d"]:
        """The exponents per unit of time."""
        return self.exponents / self.step

    @property
    def rate(self) -> float:
        """(λ_1 − λ_2)/step: how fast tokens approach ±p, per unit of time."""
        return self.gap / self.step

    def mass(self, tokens: Tokens) -> float:
        """m = μ_0{⟨v_1, x⟩ > 0}, the mass that ends at +p; the rest ends at −p."""
        return float(np.sum(np.asarray(tokens.weights)[self._side(tokens) > 0]))

    def push(self, tokens: Tokens) -> Tokens:
        """The law after all the layers, token by token: sign⟨v_1, x⟩ p.

        For layers that repeat: the law after many periods; with a negative multiplier, an even number.
        """
        return Tokens(self._side(tokens)[:, None] * self.directions[:, 0], tokens.weights)

    def _side(self, tokens: Tokens) -> np.ndarray:
        require_kind(tokens, Tokens, "tokens")
        d, k = self.directions.shape
        require(tokens.d == d, "tokens", f"have the dimension {d} of the layers", tokens.d)
        require(k == 1, "depth", "have a simple top exponent to have a limit law", f"with {k} equal ones")
        return np.where(np.asarray(tokens.x) @ self.normals[:, 0] >= 0, 1.0, -1.0)


def lyapunov(
    depth: Layered, layers: Literal["flow", "network"] = "flow", count: int = 10_000
) -> LyapunovSpectrum:
    """Lyapunov exponents of the layers of a model: a `Depth` that repeats, or `RandomLayers`.

    Layers that repeat have them from the eigenvalues of the product of one period, exactly. Those of random
    layers are averages over `count` layers (QR iteration), with standard errors from batches of layers.

    Args:
        depth: layers whose output is linear: zero temperature with B a multiple of an orthogonal matrix, MLP
            with the identity as activation and no biases, or sums of these.
        layers: "flow": each layer acts for its step of time, e^{ηS}; "network": each is one explicit step,
            I + ηS, as `Layers(step)` takes it.
        count: number of random layers, at least 100.

    Returns:
        The spectrum; other layers are refused.
    """
    require_kind(depth, Layered, "depth")
    known = layers in ("flow", "network")
    require(known, "layers", "be 'flow' or 'network'", repr(layers))
    as_whole(count, "count", 100)
    changes = np.isinf(depth.last_jump)
    require(changes, "depth", "repeat its layers or draw them at random", "layers that come to an end")
    if depth.period is not None:
        return _periodic(depth, _matrices(depth, 0, depth.period, layers))
    return _random(depth, layers, count)


def _periodic(depth: Layered, matrices: np.ndarray) -> LyapunovSpectrum:
    period, d = len(matrices), depth.d
    product, log_size = np.eye(d), 0.0
    for M in matrices:
        product = M @ product
        size = np.linalg.norm(product)
        product, log_size = product / size, log_size + np.log(size)
    values, left, right = (np.asarray(a) for a in linalg.eig(product, left=True))  # pyright: ignore
    order = np.argsort(-np.abs(values), kind="stable")
    values, left, right = values[order], left[:, order], right[:, order]
    with np.errstate(divide="ignore"):
        exponents = (np.log(np.abs(values)) + log_size) / period
    top = np.abs(values) >= np.abs(values[0]) * (1 - SAME_MODULUS)
    directions, normals = (_real_basis(v[:, top]) for v in (right, left))
    if top.sum() == 1:
        normals = normals * np.sign(np.sum(normals * directions))
    gap = float(exponents[0] - exponents[min(top.sum(), d - 1)])
    none = np.zeros(d)
    multipliers = values * np.exp(log_size)
    return LyapunovSpectrum(exponents, none, gap, 0.0, directions, normals, period, depth.step, multipliers)


def _real_basis(vectors: np.ndarray) -> np.ndarray:
    """Orthonormal basis of the real space that eigenvectors span, complex ones with their conjugates."""
    count = vectors.shape[1]
    if count == 1:
        vector = np.real(vectors) / np.linalg.norm(np.real(vectors))
        return vector * np.sign(vector[np.argmax(np.abs(vector))])
    u, _, _ = np.linalg.svd(np.concatenate([np.real(vectors), np.imag(vectors)], axis=1))
    return u[:, :count]


def _random(depth: Layered, layers: str, count: int) -> LyapunovSpectrum:
    starts = range(0, count, BATCH)
    batch = lambda start: _matrices(depth, start, min(start + BATCH, count), layers)  # noqa: E731
    # right singular vectors by the transposed layers from the last to the first, then left ones from them
    right = np.linalg.qr(np.random.default_rng(0).normal(size=(depth.d, depth.d)))[0]
    for start in reversed(starts):
        for M in batch(start)[::-1]:
            right = _step(M.T @ right)[0]
    left, logs = right, []
    for start in starts:
        for M in batch(start):
            left, log = _step(M @ left)
            logs.append(log)
    logs = np.array(logs)
    exponents, errors = _mean(logs)
    gaps, gap_errors = _mean(logs[:, :1] - logs)
    below = gaps > STANDARD_ERRORS * gap_errors
    k = int(np.argmax(below)) if below.any() else depth.d
    at = min(k, depth.d - 1)
    return LyapunovSpectrum(
        exponents,
        errors,
        float(gaps[at]),
        float(gap_errors[at]),
        left[:, :k],
        right[:, :k],
        count,
        depth.step,
        None,
    )


def _step(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Orthonormal columns and the logarithms of what each was stretched by, its direction kept."""
    q, r = np.linalg.qr(columns)
    stretch = np.diag(r)
    with np.errstate(divide="ignore"):
        return q * np.where(stretch < 0, -1.0, 1.0), np.log(np.abs(stretch))


def _mean(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over layers, and its standard error from √count batches, which hardly know of each other."""
    batches = int(np.sqrt(len(values)))
    means = values[len(values) % batches :].reshape(batches, -1, values.shape[1]).mean(axis=1)
    return values.mean(axis=0), means.std(axis=0, ddof=1) / np.sqrt(batches)


def _matrices(depth: Layered, start: int, stop: int, layers: str) -> np.ndarray:
    """M_l of the layers start … stop − 1."""
    if depth.period is None:
        # always as many at once, so that one program serves all
        found = _drawn(depth, start + jnp.arange(BATCH))
        found = None if found is None else jax.tree.map(lambda a: a[: stop - start], found)
    else:
        each = [depth.layer(k).linear for k in range(start, stop)]
        found = None if any(one is None for one in each) else jax.tree.map(lambda *a: jnp.stack(a), *each)
    if found is None or float(jnp.max(found[1])) > LARGEST_DEFECT:
        raise InputError(
            "`depth` must have layers that are a matrix times the token (zero temperature with every B a"
            " multiple of an orthogonal matrix), but was not so: with other B every token has a clock of its"
            " own and there is no product of matrices; simulate tokens instead"
        )
    S = depth.step * np.asarray(found[0])
    return linalg.expm(S) if layers == "flow" else np.eye(depth.d) + S


@eqx.filter_jit
def _drawn(depth: Layered, numbers: Array) -> tuple[Array, Array] | None:
    return jax.vmap(lambda number: depth.layer(number).linear)(numbers)
