"""Where the continuum begins: the closest approach to the limit law against β and the number of tokens.

    python examples/continuum.py [--largest 1000000]

At low temperature n tokens follow the mean field only while many of them lie in a cap of radius β^(−1/2),
n ≫ β^((d−1)/2) (theory of arXiv 2605.10931 and its finite-token question). Both tables show the minimum over
time of W2(μ_t, Π♯ρ0): on the circle with quadrature tokens it converges quickly in n; on the sphere with
independent tokens it gets worse with β until n is large enough. The default is n up to 10^5, some minutes;
a million tokens on the sphere at β = 1000 take long on two cores.
"""

import argparse

import numpy as np
from rich.console import Console
from rich.table import Table

import tokenfield as tkf

SIZES = (1_000, 10_000, 100_000, 1_000_000)
SOLVER = tkf.Adaptive(rtol=1e-6, atol=1e-8)


def closest(weights: tkf.AttentionWeights, tokens: tkf.Tokens, beta: float, ts: np.ndarray) -> tkf.Trajectory:
    """A run that measures W2 to the limit law, exactly: the limit has two atoms."""
    limit = tkf.theory.limit(weights).push(tokens)
    return tkf.simulate(
        tkf.SoftmaxAttention(weights, beta),
        tokens,
        ts,
        SOLVER,
        snapshots=[],
        measure={"W2": lambda t: tkf.wasserstein(t, limit).value},
        progress=True,
    )


def cell(run: tkf.Trajectory) -> str:
    k = int(np.argmin(run.measured["W2"]))
    return f"{run.measured['W2'][k]:.6f} at t = {run.ts[k]:g}"


def main() -> None:
    parser = argparse.ArgumentParser(description="the closest approach to the limit law against β and n")
    parser.add_argument("--largest", type=int, default=100_000, help="greatest number of tokens")
    parser.add_argument("--circle", action="store_true", help="only the table of the circle")
    arguments = parser.parse_args()
    sizes = [n for n in SIZES if n <= arguments.largest]
    console = Console()

    table = Table(
        "n", "minimum of W2", "sums", "seconds", title="circle, V = diag(1, .5), B = diag(.5, 2), β = 1000"
    )
    weights = tkf.AttentionWeights(np.diag([0.5, 2.0]), np.diag([1.0, 0.5]))
    for n in sizes:
        tokens = tkf.initial.circle_density(lambda a: 1 + 0.3 * np.cos(a) + 0.2 * np.sin(a), n)
        run = closest(weights, tokens, 1000.0, np.linspace(0, 40, 81))
        table.add_row(str(n), cell(run), run.stats["summation"], f"{run.stats['seconds']:.0f}")
    console.print(table)
    if arguments.circle:
        return

    title = "sphere, V = diag(1, .5, .8), B = diag(.5, 2, 1), independent tokens: minimum of W2"
    table = Table("n", "β = 10", "β = 100", "β = 1000", title=title)
    weights = tkf.AttentionWeights(np.diag([0.5, 2.0, 1.0]), np.diag([1.0, 0.5, 0.8]))
    for n in sizes:
        tokens = tkf.initial.uniform(n, 3, key=0)
        runs = [closest(weights, tokens, beta, np.linspace(0, 24, 49)) for beta in (10.0, 100.0, 1000.0)]
        table.add_row(str(n), *(cell(run) for run in runs))
    console.print(table)


if __name__ == "__main__":
    main()
