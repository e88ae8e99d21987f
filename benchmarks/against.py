"""This tree against an older one, case by case: `python benchmarks/against.py OLDER/src [--rounds K]`.

Two processes, one for each tree, have every case compiled and then take turns, so that other work on the
machine slows both. Each row is the ratio of the least times (and of the medians), new over old.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

#: Rounds of a case whose one call takes longer than this, in seconds, are a quarter as many.
LONG_CALL = 2.0


def cases() -> dict[str, Callable[[], object]]:
    """Name → one call, in the names that both trees share."""
    import jax
    import jax.numpy as jnp

    import tokenfield as tkf

    identity, softmax = tkf.AttentionWeights.identity, tkf.SoftmaxAttention
    general = tkf.AttentionWeights(np.diag([0.5, 2, 1]), np.diag([1, 0.5, 0.8]))
    on_circle = tkf.AttentionWeights(np.diag([0.5, 2]), np.diag([1, 0.5]))
    rng = np.random.default_rng(0)
    pair = np.eye(2)[rng.integers(0, 2, 100_000)] + 1e-3 * rng.normal(size=(100_000, 2))
    clusters = tkf.Tokens(pair / np.linalg.norm(pair, axis=1, keepdims=True))

    def steps(model, tokens, count: int, **options):
        ts, solver = [0.0, 0.1 * count], tkf.RungeKutta4(0.1)
        return lambda: tkf.simulate(model, tokens, ts, solver, progress=False, snapshots=[], **options)

    def density(model, rho0, ts, domain):
        return lambda: tkf.density.solve(model, rho0, ts, domain)

    def final(beta):
        run = tkf.simulate(softmax(identity(3), beta), cloud, [0.0, 1.0], tkf.RungeKutta4(0.1))
        return jnp.sum(run.x[-1] ** 2 * jnp.arange(3.0))

    cloud = tkf.initial.uniform(64, 3, 0)
    gradient = jax.jit(jax.grad(final))
    random = {n: tkf.initial.uniform(n, 3, 0) for n in (2000, 4000, 50_000)}
    wave = tkf.initial.circle_density(lambda t: 1 + 0.3 * np.cos(t), 200_000)
    few = tkf.initial.uniform(32, 2, 0)
    two = tkf.Tokens(np.eye(2))
    return {
        "direct sums, d = 3, B = I, n = 4000": steps(
            softmax(identity(3), 10.0), random[4000], 3, summation="direct"
        ),
        "direct sums, d = 3, any B, n = 4000": steps(
            softmax(general, 10.0), random[4000], 2, summation="direct"
        ),
        "circle sums, β = 300, n = 2·10⁵": steps(softmax(on_circle, 300.0), wave, 5, summation="circle"),
        "harmonic sums, β = 50, n = 5·10⁴": steps(
            softmax(general, 50.0), random[50_000], 2, summation="harmonic"
        ),
        "merged sums, two clusters, n = 10⁵": steps(
            softmax(on_circle, 300.0), clusters, 3, summation="merged"
        ),
        "hardmax, n = 2000": steps(tkf.HardmaxAttention(general), random[2000], 5),
        "interaction cosh, n = 2000": steps(
            tkf.InteractionFlow(jnp.cosh, np.eye(3)), random[2000], 5, summation="direct"
        ),
        "adaptive run, n = 32, t = 10": lambda: tkf.simulate(
            softmax(identity(2), 5.0), few, np.linspace(0, 10, 21), progress=False
        ),
        "two tokens, β = 20, to 1.2·10⁷": lambda: tkf.simulate(
            softmax(identity(2), 20.0), two, [0.0, 1.2e7], progress=False
        ),
        "gradient in β, n = 64": lambda: jax.block_until_ready(gradient(3.0)),
        "density, circle": density(
            softmax(identity(2), 5.0), lambda t: 1 + 0.3 * np.cos(t), [0.0, 1.0, 2.0], "circle"
        ),
        "density, zonal": density(softmax(identity(3), 5.0), lambda t: 1 + 0.3 * t, [0.0, 1.0], "zonal"),
        "density, S², degree 32": density(
            softmax(general, 5.0), lambda x: 1 + 0.3 * x[:, 0], [0.0, 0.5], tkf.density.Sphere(32)
        ),
    }


def serve() -> None:
    """A tree's process: for each name on standard input, call the case once and print the seconds."""
    known = cases()
    print("\n".join(known), "", sep="\n", flush=True)
    for line in sys.stdin:
        begun = time.perf_counter()
        known[line.rstrip("\n")]()
        print(time.perf_counter() - begun, flush=True)


class Tree:
    """A process that has one tree imported."""

    def __init__(self, source: Path):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            env=os.environ | {"PYTHONPATH": str(source)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.names = list(iter(lambda: self._line(), ""))

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("one of the trees failed; its message is above")
        return line.rstrip("\n")

    def seconds(self, name: str) -> float:
        """Time of one call."""
        assert self.process.stdin is not None
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        return float(self._line())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("older", type=Path, nargs="?", help="directory src of the older tree")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="", help="only cases whose name holds this")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve()
    if options.older is None:
        parser.error("name the directory src of the older tree")
    new, old = Tree(Path(__file__).parent.parent / "src"), Tree(options.older)
    print("| case | old | new | new / old, least | medians |\n|---|---|---|---|---|", flush=True)
    for name in new.names:
        if options.only in name:
            _row(name, old, new, options.rounds)
    return None


def _row(name: str, old: Tree, new: Tree, rounds: int) -> None:
    once = max(old.seconds(name), new.seconds(name))  # the first call compiles
    once = min(once, old.seconds(name))
    rounds = max(3, rounds // 4) if once > LONG_CALL else rounds
    taken = [(old.seconds(name), new.seconds(name)) for _ in range(rounds)]
    before, after = zip(*taken, strict=True)
    ratio, middle = min(after) / min(before), statistics.median(after) / statistics.median(before)
    print(f"| {name} | {min(before):.4g} s | {min(after):.4g} s | {ratio:.2f} | {middle:.2f} |", flush=True)


if __name__ == "__main__":
    main()
