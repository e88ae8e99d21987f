"""Densities on S² at degree 128: one right-hand side in units of a forward-and-back harmonic transform.

The unit is one density transformed to moments and back, on the same grid with the same tables.
"""

import jax
import numpy as np

import tokenfield as tkf
from report import Row, race
from tokenfield.density.grid import HarmonicGrid
from tokenfield.density.sphere import Sphere, _Field

TOPIC = "density on S²"
DEGREE, BETA = 128, 20.0
#: name, model, B, how many transforms a right-hand side may cost
CASES = (
    ("softmax, B = I", tkf.SoftmaxAttention, np.eye(3), 15),
    ("unnormalised, B = I", tkf.UnnormalisedAttention, np.eye(3), 15),
    ("softmax, B = diag(.5, 2, 1)", tkf.SoftmaxAttention, np.diag([0.5, 2.0, 1.0]), 15),
)


def rows() -> list[Row]:
    return [_case(*case) for case in CASES]


def _case(name: str, kind: type, B: np.ndarray, most: int) -> Row:
    model = kind(tkf.AttentionWeights(B, np.diag([1.0, 0.5, 0.2])), BETA)
    field = _Field.plan(model, DEGREE, Sphere().tolerance)
    grid: HarmonicGrid = field.grid
    density = 1 + 0.3 * grid.points[0] + 0.2 * grid.points[1] * grid.points[2]
    y = field.pack(grid.moments(density[None])[0])
    slope = jax.jit(lambda field, y: field(y))
    back = jax.jit(lambda grid, f: grid.values(grid.moments(f[None]))[0])
    times = race(
        {
            "slope": lambda: jax.block_until_ready(slope(field, y)),
            "transform": lambda: jax.block_until_ready(back(grid, density)),
        },
        5,
    )
    ratio = times["slope"].best / times["transform"].best
    case = f"degree {DEGREE}, {name}: a right-hand side against a transform there and back"
    measured = f"{ratio:.1f} × ({1e3 * times['transform'].best:.1f} ms)"
    return Row(TOPIC, case, measured, f"≤ {most} ×", ratio <= most)


if __name__ == "__main__":
    for row in rows():
        print(*row.cells(), sep=" | ")
