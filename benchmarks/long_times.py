"""Two tokens at β = 20 meet after t ≈ 10⁷: steps of the default solver, and its error in time (theory §4)."""

import numpy as np

import tokenfield as tkf
from report import Row

BETA, RHO = 20.0, 0.9
CASE = "two tokens, β = 20, ρ from 0 to 0.9"


def rows() -> list[Row]:
    t = tkf.theory.two_tokens(0, RHO, BETA)
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), BETA)
    trajectory = tkf.simulate(model, tkf.Tokens([[1, 0], [0, 1]]), [0, t])
    rho = float(np.dot(*np.asarray(trajectory.x[-1])))
    slope = 2 * (1 - RHO**2) / (1 + np.exp(BETA * (1 - RHO)))
    error = abs(rho - RHO) / slope / t
    steps = int(trajectory.stats["steps"])
    return [
        Row("long times", f"{CASE}: steps", str(steps), "< 1000", steps < 1000),
        Row("long times", f"{CASE}: relative error in time", f"{error:.1e}", "< 1e-6", error < 1e-6),
    ]
