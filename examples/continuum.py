"""Where the continuum begins: the closest approach to the limit law against β and the number of tokens.

    python examples/continuum.py [--largest 1000000] [--only circle]

At low temperature n tokens follow the mean field only while many of them lie in a cap of radius β^(−1/2),
n ≫ β^((d−1)/2) (theory of arXiv 2605.10931 and its finite-token question). Both tables show the minimum over
time of W2(μ_t, Π♯ρ0): on the circle with quadrature tokens it converges in n; on the sphere with independent
tokens it gets worse with β until n is large enough. The default is n up to 10^5. A million tokens take
minutes each on the circle and, up to β = 100, on the sphere (two cores); at β = 1000 they were not carried to
the end. Results: docs/sums.md.
"""

import argparse

import numpy as np
from rich.console import Console
from rich.table import Table

import tokenfield as tkf

SIZES = (1_000, 10_000, 100_000, 1_000_000)
SOLVER = tkf.Adaptive(rtol=1e-4, atol=1e-6)
#: On the sphere the closest approach comes later for larger β: when to stop looking for it.
SPHERE = {10.0: 14.0, 100.0: 19.0, 1000.0: 26.0}
#: Late and cold, a million tokens look away from each other, where only direct sums serve: there those that
#: are closer than this angle go on as one.
MERGED = {(1_000_000, 1000.0): 0.005}


def closest(
    weights: tkf.AttentionWeights,
    tokens: tkf.Tokens,
    beta: float,
    ts: np.ndarray,
    merge_angle: float | None = None,
) -> tkf.Trajectory:
    """A run that measures W2 to the limit law, exactly: the limit has two atoms."""
    limit = tkf.theory.limit(weights).push(tokens)
    return tkf.simulate(
        tkf.SoftmaxAttention(weights, beta),
        tokens,
        ts,
        SOLVER,
        snapshots=[],
        measure={"W2": lambda t: tkf.wasserstein(t, limit).value},
        merge_angle=merge_angle,
        progress=True,
    )


def cell(run: tkf.Trajectory) -> str:
    k = int(np.argmin(run.measured["W2"]))
    words = f"{run.measured['W2'][k]:.4f} at t = {run.ts[k]:g}"
    if k == len(run.ts) - 1:
        words += ", still falling"
    if "merge_distance" in run.stats:
        words += f", merging moved by {run.stats['merge_distance']:.1g}"
    return f"{words} ({run.stats['summation']}, {run.stats['seconds']:.0f} s)"


def circle(sizes: list[int]) -> Table:
    table = Table("n", "minimum of W2", title="circle, V = diag(1, .5), B = diag(.5, 2), β = 1000")
    weights = tkf.AttentionWeights(np.diag([0.5, 2.0]), np.diag([1.0, 0.5]))
    for n in sizes:
        tokens = tkf.initial.circle_density(lambda a: 1 + 0.3 * np.cos(a) + 0.2 * np.sin(a), n)
        table.add_row(str(n), cell(closest(weights, tokens, 1000.0, np.linspace(0, 40, 81))))
    return table


def sphere(sizes: list[int]) -> Table:
    title = "sphere, V = diag(1, .5, .8), B = diag(.5, 2, 1), independent tokens: minimum of W2"
    table = Table("n", *(f"β = {beta:g}" for beta in SPHERE), title=title)
    weights = tkf.AttentionWeights(np.diag([0.5, 2.0, 1.0]), np.diag([1.0, 0.5, 0.8]))
    for n in sizes:
        tokens = tkf.initial.uniform(n, 3, key=0)
        runs = [
            closest(weights, tokens, beta, np.arange(0, end + 0.5, 0.5), MERGED.get((n, beta)))
            for beta, end in SPHERE.items()
        ]
        table.add_row(str(n), *(cell(run) for run in runs))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="the closest approach to the limit law against β and n")
    parser.add_argument("--largest", type=int, default=100_000, help="greatest number of tokens")
    parser.add_argument("--only", choices=("circle", "sphere"), help="one of the two tables")
    arguments = parser.parse_args()
    sizes = [n for n in SIZES if n <= arguments.largest]
    for table in (circle, sphere):
        if arguments.only in (None, table.__name__):
            Console().print(table(sizes))


if __name__ == "__main__":
    main()
