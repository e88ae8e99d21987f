"""Near-linear sums of a million tokens against the direct sum, and how they grow with n.

The direct sum is timed on a subset of queries against all keys and scaled. Times are best of the rounds,
taken in turn in one process. Tables (Bessel and Legendre functions) are made once, before.
"""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

import tokenfield as tkf
from report import Row, peak, race
from tokenfield.sums.base import Queries
from tokenfield.sums.circle import CircleSums
from tokenfield.sums.direct import DIRECT
from tokenfield.sums.harmonic import HarmonicSums
from tokenfield.sums.policy import SummationPolicy
from tokenfield.sums.profile import EXPONENTIAL, Scored

TOPIC = "fast sums"
N, SUBSET = 10**6, 2000
#: name, d, β, B, tolerance, how many times as fast as the direct sum
CASES = (
    ("d = 2, β = 1000, B = diag(.5, 2)", 2, 1000.0, np.diag([0.5, 2.0]), 1e-9, 3000),
    ("d = 3, β = 100, B = I", 3, 100.0, np.eye(3), 1e-8, 1000),
    ("d = 3, β = 100, B = diag(.5, 2, 1)", 3, 100.0, np.diag([0.5, 2.0, 1.0]), 1e-8, 600),
)
_sums = jax.jit(lambda sums, A, x, tokens: sums.exponential(Queries(A, x), tokens))


def rows() -> list[Row]:
    return [row for case in CASES for row in _against_direct(*case)] + _growth() + _small() + [_memory()]


def _plan(d: int, A: np.ndarray, tolerance: float) -> CircleSums | HarmonicSums:
    return (CircleSums if d == 2 else HarmonicSums).plan(Scored(EXPONENTIAL, A[None]), tolerance)


def _against_direct(
    name: str, d: int, beta: float, B: np.ndarray, tolerance: float, need: float
) -> list[Row]:
    tokens, A = tkf.initial.uniform(N, d, 0), jnp.asarray(beta * B)
    sums, some = _plan(d, beta * B, tolerance), tokens.x[:: N // SUBSET]
    times = race(
        {
            "fast": lambda: jax.block_until_ready(_sums(sums, A, tokens.x, tokens)),
            "direct": lambda: jax.block_until_ready(_sums(DIRECT, A, some, tokens)),
        },
        4,
    )
    fast, exact = _sums(sums, A, tokens.x, tokens), _sums(DIRECT, A, some, tokens)
    off = float(jnp.abs(fast.mean[:: N // SUBSET] - exact.mean).max())
    ratio = times["direct"].best * N / len(some) / times["fast"].best
    return [
        Row(
            TOPIC,
            f"{name}, n = 10⁶: speed against direct",
            f"{ratio:.0f} × ({times['fast'].best:.2f} s)",
            f"≥ {need} ×",
            ratio >= need,
        ),
        Row(TOPIC, f"{name}: error", f"{off:.1e}", f"≤ {tolerance:g}", off <= tolerance),
    ]


def _growth() -> list[Row]:
    found = []
    for name, d, beta, B, tolerance, _ in CASES:
        sums, A = _plan(d, beta * B, tolerance), jnp.asarray(beta * B)
        clouds = {n: tkf.initial.uniform(n, d, 0) for n in (10**5, 4 * 10**6)}
        calls = {
            str(n): lambda c=c: jax.block_until_ready(_sums(sums, A, c.x, c))  # noqa: B023
            for n, c in clouds.items()
        }
        small, large = (t.best for t in race(calls, 3).values())
        exponent = np.log(large / small) / np.log(40)
        case = f"{name}: exponent of n, 10⁵ to 4·10⁶"
        found.append(Row(TOPIC, case, f"{exponent:.2f}", "≤ 1.15", bool(exponent <= 1.15)))
    return found


def _small() -> list[Row]:
    """`auto` against direct where direct is best."""
    found = []
    for _, d, beta, B, tolerance, _ in CASES:
        tokens, A = tkf.initial.uniform(1000, d, 0), jnp.asarray(beta * B)
        auto = SummationPolicy("auto", Scored(EXPONENTIAL, beta * B[None]), tokens, tolerance).sums
        calls = {
            name: lambda s=s: jax.block_until_ready(_sums(s, A, tokens.x, tokens))  # noqa: B023
            for name, s in (("auto", auto), ("direct", DIRECT))
        }
        times = race(calls, 30)
        ratio = times["auto"].best / times["direct"].best
        case = f"d = {d}, β = {beta:g}, n = 1000: auto against direct"
        found.append(Row(TOPIC, case, f"{ratio:.2f} × the time", "≤ 1.3", ratio <= 1.3))
    return found


def _memory() -> Row:
    """Peak of a process of its own that runs a million tokens on the sphere for some steps."""
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
    most = float(done.stdout.split()[-1])
    return Row(
        TOPIC, "d = 3, n = 10⁶: peak of the whole process, in a run", f"{most:.2f} GB", "≤ 3 GB", most <= 3
    )


if __name__ == "__main__":
    _, d, beta, B, tolerance, _ = CASES[-1]
    model = tkf.SoftmaxAttention(tkf.AttentionWeights(B, np.eye(d)), beta)
    tkf.simulate(model, tkf.initial.uniform(N, d, 0), [0.0, 0.1], tkf.Adaptive(1e-6, 1e-8), snapshots=[])
    print(peak() / 1e3)
