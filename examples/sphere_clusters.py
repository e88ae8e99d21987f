"""Tokens on the sphere gather in clusters, which then merge over exponentially long times.

Draws the clusters at eight times and the energy, a staircase that climbs at every merge.
Run: python examples/sphere_clusters.py [directory]
"""

import sys
from pathlib import Path

import tokenfield as tkf

BETA = 9.0


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "out/sphere_clusters")
    tokens = tkf.initial.uniform(200, 3, key=1)
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), BETA)
    run = tkf.simulate(
        model,
        tokens,
        tkf.log_times(0.1, 1e5, 80),
        measure={"energy": lambda t: tkf.energy(t, BETA)},
        merge_angle=1e-3,
        progress=True,
    )
    print(run.status, run.stats)
    panels = tkf.figures.small_multiples(run, times=[0, 2, 5, 10, 30, 100, 1e4, 1e5])
    print(tkf.figures.save(panels, out / "clusters.png"))
    curve = tkf.figures.curves(run.ts, {"energy": run.measured["energy"]}, "t", "interaction energy", "x")
    print(tkf.figures.save(curve, out / "energy.png"))


if __name__ == "__main__":
    main()
