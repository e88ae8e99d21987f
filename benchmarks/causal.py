"""Causal attention on the circle: near-linear sums against direct ones, and direct sums with masks.

Prints the lines of causal.md: `python benchmarks/causal.py`. Processor seconds are those of all cores
together, which other programs disturb less than seconds on the clock.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

import tokenfield as tkf
from tokenfield.sums.base import Queries
from tokenfield.sums.circle import CircleSums
from tokenfield.sums.direct import DIRECT
from tokenfield.sums.profile import EXPONENTIAL, Scored

BETA, REPEATS = 100.0, 4


def seconds(f, *args):
    """Least seconds on the clock and of the processor over some calls, after one that compiles."""
    jax.block_until_ready(f(*args))
    found = []
    for _ in range(REPEATS):
        clock, processor = time.perf_counter(), time.process_time()
        jax.block_until_ready(f(*args))
        found.append((time.perf_counter() - clock, time.process_time() - processor))
    return np.min(found, axis=0)


def fast(n=100_000):
    """Prefix sums at n tokens; the direct sum at n/5, times 25; the error at a sample of tokens."""
    A = BETA * np.eye(2)
    sums = CircleSums.plan(Scored(EXPONENTIAL, A[None]), 1e-9)
    for name, mask in (("causal", tkf.masks.causal()), ("alibi", tkf.masks.alibi(1e-3))):
        times = []
        for kind, count in ((sums, n), (DIRECT, n // 5)):
            tokens = tkf.initial.uniform(count, 2, 0)
            queries = Queries(jnp.asarray(A), tokens.x, None, mask, jnp.arange(count))
            times.append(
                seconds(jax.jit(lambda q, t, kind=kind: kind.exponential(q, t).mean), queries, tokens)
            )
        tokens, rows = tkf.initial.uniform(n, 2, 0), jnp.arange(0, n, n // 50)
        few = Queries(jnp.asarray(A), tokens.x[rows], None, mask, rows)
        exact = DIRECT.exponential(few, tokens).mean
        whole = Queries(jnp.asarray(A), tokens.x, None, mask, jnp.arange(n))
        error = np.abs(sums.exponential(whole, tokens).mean[rows] - exact).max()
        (wall, cpu), (far, far_cpu) = times[0], 25 * times[1]
        ratio = f"{far / wall:.0f} ({far_cpu / cpu:.0f} in processor time)"
        print(
            f"| {name} | {n} | {wall:.3f} | {cpu:.3f} | {far:.1f} | {far_cpu:.1f} | {ratio} | {error:.0e} |",
            flush=True,
        )


def masked(n=20_000):
    """Direct sums with masks, as shares of the one without."""
    for d in (2, 3, 16):
        tokens, A = tkf.initial.uniform(n, d, 0), BETA * jnp.eye(d)
        masks = {"none": None, "causal": tkf.masks.causal(), "strict": tkf.masks.strict()}
        masks |= {
            "alibi": tkf.masks.alibi(1e-3),
            "window": tkf.masks.window(50),
            "prefix": tkf.masks.prefix(n // 2),
        }
        found = {}
        for name, mask in masks.items():
            queries = Queries(A, tokens.x, None, mask, None if mask is None else jnp.arange(n))
            found[name] = seconds(jax.jit(lambda q, t: DIRECT.exponential(q, t).mean), queries, tokens)[1]
        shares = " | ".join(f"{found[name] / found['none']:.2f}" for name in masks if name != "none")
        print(f"| {d} | {found['none']:.2f} | {shares} |", flush=True)


if __name__ == "__main__":
    fast()
    masked()
