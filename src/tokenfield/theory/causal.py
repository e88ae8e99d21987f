"""Causal attention, token i sees j ≤ i: the first tokens, and the fan in which all arrive (2411.04990).

Under V = I every token ends at x_1(0), which never moves. The second token is a scalar equation; near the end
β and d drop out, and angles u_i to the first token obey a triangular linear system (theory §6.1.1–3).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import integrate, linalg, special

from tokenfield.errors import as_number, as_whole, require
from tokenfield.laws.tokens import as_real
from tokenfield.theory.inputs import finite, times
from tokenfield.theory.reductions import LARGEST_RATE_EXPONENT, two_tokens, zero_temperature

#: Rates closer than this count as one: those of a window differ by rounding only.
LARGEST_RATE_GAP = 1e-12


def causal_first_token(x0: ArrayLike, V: ArrayLike, ts: ArrayLike) -> Float[np.ndarray, "times d"]:
    """Path x(t) = e^{Vt}x0/|e^{Vt}x0| of the first token of a causal run, for every B and every real β.

    Args:
        x0: the token at t = 0 (d,), of norm 1.
        V: value matrix (d, d).
        ts: increasing times (times,), the first at 0 or later.

    Returns:
        The token (times, d); V = I leaves it where it is.
    """
    x0 = np.asarray(as_real(x0, "x0"))
    require(x0.ndim == 1, "x0", "be one token of shape (d,)", f"of shape {x0.shape}")
    return zero_temperature(x0[None], V, ts)[:, 0]


def causal_second_token(rho0: float, rho1: float, beta: float) -> float:
    """Time that the second causal token (softmax, B = V = I) takes from ⟨x_1,x_2⟩ = rho0 to rho1.

    ρ' = (1−ρ²)/(1+e^{β(1−ρ)}): t = ∫(1+e^{β(1−ρ)})/(1−ρ²)dρ, twice the time of `two_tokens`, since the first
    token does not come to meet it.

    Args:
        rho0: inner product at the start, in (−1, rho1].
        rho1: inner product at the end, in (−1, 1).
        beta: inverse temperature, any real number up to 500/(1−rho0).

    Returns:
        The time t.
    """
    return 2 * two_tokens(rho0, rho1, beta)


def causal_second_token_constant(rho0: float, beta: float) -> float:
    """C with 1−⟨x_1,x_2⟩ → C e^{−t} for the second causal token from ⟨x_1,x_2⟩ = rho0, any real β.

    log C = log(1−ρ0) + ∫_{ρ0}^1 [(1+e^{β(1−ρ)})/(1−ρ²) − 1/(1−ρ)]dρ; the integrand is (1+φ)/(1+ρ) with
    φ = (e^{β(1−ρ)}−1)/(1−ρ), smooth up to ρ = 1.
    """
    rho0, beta = as_number(rho0, "rho0"), finite(beta, "beta")
    require(-1 < rho0 < 1, "rho0", "lie in (−1, 1)", rho0)
    most = LARGEST_RATE_EXPONENT / (1 - rho0)
    require(beta <= most, "beta", f"be at most {most:g} here, or the integral overflows", beta)

    def integrand(gap: float) -> float:
        return (1 + beta * special.exprel(beta * gap)) / (2 - gap)

    exponent = integrate.quad(integrand, 0, 1 - rho0, epsabs=0, epsrel=1e-13, limit=500)[0]
    exponent += np.log1p(-rho0)
    holds = exponent <= LARGEST_RATE_EXPONENT
    require(
        holds,
        "beta",
        f"give a constant below e^{LARGEST_RATE_EXPONENT:g}",
        f"{beta:g}, which gives e^{exponent:.3g}",
    )
    return float(np.exp(exponent))


class CausalFan(NamedTuple):
    """The linear system u' = Mu of angles to the limit, near consensus under V = I.

    `matrix` (n, n): M, lower triangular with rows of sum 0. `rates` (n,): its diagonal, in the order of the
    tokens; the first is 0, that of the consensus, and the slowest of the others is the last to die out.
    `vectors` (n, n): eigenvectors as columns, the first entry that is not 0 equal to 1; where a repeated rate
    has too few, columns repeat. `defective`: whether that happens, and rates come with powers of t.
    """

    matrix: Float[np.ndarray, "n n"]
    rates: Float[np.ndarray, "n"]
    vectors: Float[np.ndarray, "n n"]
    defective: bool

    def evolve(self, u0: ArrayLike, ts: ArrayLike) -> Float[np.ndarray, "times n"]:
        """u(t) = e^{Mt}u0 at the times (times, n), from u0 (n,); also if M is defective."""
        u0 = np.asarray(as_real(u0, "u0"))
        require(u0.shape == self.rates.shape, "u0", f"have shape {self.rates.shape}", f"of shape {u0.shape}")
        return np.stack([linalg.expm(self.matrix * t) @ u0 for t in times(ts)])


def causal_fan(
    n: int,
    weights: ArrayLike | None = None,
    slope: float = 0.0,
    window: int | None = None,
    strict: bool = False,
) -> CausalFan:
    """Rates and shapes in which causal tokens (softmax, V = I; any d, B and β) reach their consensus.

    u_i' = Σ_j p_ij(u_j−u_i), p_ij ∝ w_j e^{−slope·(i−j)} over the j that i sees. M is triangular, so that its
    rates are −(1−p_ii): −(1−1/i) for equal weights, −(1−w_i/W_i), W_i = w_1+…+w_i, in general. The slowest is
    **−1/2** for every n, with u_i ∝ i−1 (angles grow linearly with the index), −1/(1+e^slope) with ALiBi;
    −(1−1/min(i, w)), repeated and defective, with a window.

    Args:
        n: number of tokens, at least 2.
        weights: positive weights (n,), up to a factor; equal ones if None.
        slope: of ALiBi, any real number, subtracted from the score per token of distance.
        window: token i sees only the last `window` tokens, itself included; all if None.
        strict: whether tokens do not see themselves (the first still does): all rates −1, in one Jordan
            block, so that u_i falls like t^{i−2}e^{−t}.

    Returns:
        The matrix, its rates and eigenvectors.
    """
    n = as_whole(n, "n", 2)
    w = _positive_weights(weights, n)
    behind = np.arange(n)[:, None] - np.arange(n)
    sees = behind >= 0
    if window is not None:
        sees &= behind < as_whole(window, "window", 1 if not strict else 2)
    if strict:
        sees[np.arange(1, n), np.arange(1, n)] = False
    scores = np.where(sees, np.log(w) - finite(slope, "slope") * behind, -np.inf)
    matrix = special.softmax(scores, axis=1) - np.eye(n)
    # the diagonal from the others, which keeps the digits of slow rates
    np.fill_diagonal(matrix, -np.sum(np.tril(matrix, -1), axis=1))
    matrix += 0.0  # no −0
    rates = np.diag(matrix).copy()
    vectors, defective = _eigenvectors(matrix, rates)
    return CausalFan(matrix, rates, vectors, defective)


def poisson_front(ts: ArrayLike, n: int) -> Float[np.ndarray, "times n"]:
    """`causal_fan(n, window=2)` from u = (0, 1, …, 1): u_i(t) = P(Poisson(t/2) ≤ i−2), a front of speed ½.

    The news of token 1 passes from token to token at rate ½; a window w lets it move at (w−1)/2.
    """
    ts, n = times(ts), as_whole(n, "n", 2)
    u = np.zeros((len(ts), n))
    u[:, 1:] = special.gammaincc(np.arange(1, n), ts[:, None] / 2)
    return u


def _positive_weights(weights: ArrayLike | None, n: int) -> np.ndarray:
    if weights is None:
        return np.ones(n)
    w = np.asarray(as_real(weights, "weights"))
    require(w.shape == (n,), "weights", f"have shape ({n},)", f"of shape {w.shape}")
    require(bool(np.all((w > 0) & np.isfinite(w))), "weights", "be positive and finite", w)
    return w


def _eigenvectors(matrix: np.ndarray, rates: np.ndarray) -> tuple[np.ndarray, bool]:
    """Eigenvectors of a lower triangular matrix as columns, and whether there are too few."""
    vectors, found, defective = np.zeros_like(matrix), np.zeros(len(rates), dtype=bool), False
    for i, rate in enumerate(rates):
        same = np.flatnonzero((np.abs(rates - rate) <= LARGEST_RATE_GAP) & ~found)
        if found[i]:
            continue
        space = _single(matrix, i) if len(same) == 1 else _eigenspace(matrix, rate)
        # the k-th of equal rates takes the k-th vector, the last one if there are too few
        vectors[:, same] = space[:, np.minimum(np.arange(len(same)), space.shape[1] - 1)]
        found[same] = True
        defective |= space.shape[1] < len(same)
    return vectors, bool(defective)


def _single(matrix: np.ndarray, i: int) -> np.ndarray:
    """Eigenvector (n, 1) of the i-th diagonal entry, which occurs once: 0 above i and 1 there."""
    v = np.zeros((len(matrix), 1))
    v[i] = 1
    below = matrix[i + 1 :, i + 1 :] - matrix[i, i] * np.eye(len(matrix) - i - 1)
    if len(below):
        v[i + 1 :] = linalg.solve_triangular(below, -matrix[i + 1 :, [i]], lower=True)
    return v


def _eigenspace(matrix: np.ndarray, rate: float) -> np.ndarray:
    """Basis (n, m) of the eigenspace of a repeated eigenvalue."""
    space = linalg.null_space(matrix - rate * np.eye(len(matrix)), rcond=1e-10)
    first = np.argmax(np.abs(space) > 1e-8 * np.max(np.abs(space), axis=0), axis=0)
    return space / space[first, np.arange(space.shape[1])]
