"""What the reductions to ordinary differential equations share: SciPy's integrator, one softmax row."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import integrate, special

from tokenfield.errors import RunError


def other_weight(n: int, gap: ArrayLike) -> Float[np.ndarray, "..."]:
    """Softmax weight q = E/(1+(n−1)E), E = e^{−gap}, of each of n−1 tokens whose score lies `gap` below.

    The token itself has p = 1−(n−1)q. `gap` of either sign and any size; no overflow.
    """
    return special.expit(np.log(n - 1) - np.asarray(gap)) / (n - 1)


def solve(
    slope: Callable[..., np.ndarray], ts: np.ndarray, y0: ArrayLike, rtol: float, atol: float, case: str
) -> np.ndarray:
    """Solve y' = slope(t, y) from t = 0 by DOP853.

    Args:
        slope: function of t and y (size,) that returns y' (size,).
        ts: increasing times (times,), at 0 or later, the last positive.
        y0: value at t = 0 (size,).
        rtol: relative tolerance.
        atol: absolute tolerance.
        case: what is solved, for the sentence if it fails.

    Returns:
        y at the times (times, size).
    """
    with np.errstate(over="ignore", invalid="ignore"):  # a trial step too long; it is not accepted
        solved = integrate.solve_ivp(slope, (0.0, ts[-1]), y0, "DOP853", ts, rtol=rtol, atol=atol)
    if not solved.success:
        raise RunError(f"could not solve the equation with {case} up to t = {ts[-1]:g}: {solved.message}")
    return solved.y.T
