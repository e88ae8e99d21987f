"""How the direct sum grows with n: the exponent of its time, and what a small sum costs at least."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import tokenfield as tkf
from report import Row, race
from tokenfield.sums.base import Queries
from tokenfield.sums.direct import DIRECT

LARGE, SMALL = (2_000, 4_000, 8_000, 16_000), (100, 1_000)
_means = jax.jit(lambda tokens: DIRECT.exponential(Queries(10.0 * jnp.eye(tokens.d), tokens.x), tokens).mean)


def rows() -> list[Row]:
    large = race({str(n): _sum(n) for n in LARGE}, 7)
    small = race({str(n): _sum(n) for n in SMALL}, 50)
    best = [large[str(n)].best for n in LARGE]
    exponent = float(np.polyfit(np.log(LARGE), np.log(best), 1)[0])
    case = f"exponent of n, {LARGE[0]} to {LARGE[-1]}, d = 3"
    found = [Row("scaling", case, f"{exponent:.2f}", "2 ± 0.15", abs(exponent - 2) <= 0.15)]
    return found + [Row("scaling", f"one sum, n = {n}", f"{small[str(n)].best * 1e3:.2f} ms") for n in SMALL]


def _sum(n: int) -> Callable[[], object]:
    tokens = tkf.initial.uniform(n, 3, 0)
    return lambda: jax.block_until_ready(_means(tokens))
