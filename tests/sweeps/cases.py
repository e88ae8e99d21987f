"""Small sweeps that many tests use."""

import copy

#: Twelve cells that are done one at a time and compile in a moment.
SMALL = {
    "weights": {"V": {"diag": [1.0, 0.5]}, "B": {"diag": [0.5, 2.0]}},
    "model": {"kind": "softmax"},
    "initial": {"law": "uniform", "n": 8, "d": 2},
    "times": {"stop": 2.0, "count": 9},
    "solver": {"kind": "layers", "step": 0.25},
    "run": {"measure": ["order_parameter", "mean"]},
    "sweep": {"model": {"beta": {"log": [1, 100, 3]}}, "seeds": 4},
}


def small(**sections):
    """`SMALL` with some sections changed entry by entry."""
    made = copy.deepcopy(SMALL)
    for name, entries in sections.items():
        made[name] = {k: v for k, v in (made[name] | entries).items() if v is not None}
    return made
