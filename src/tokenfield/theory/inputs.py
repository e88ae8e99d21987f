"""What the closed forms take: the checks they share, each one sentence when it fails."""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from tokenfield.errors import InputError, as_number, require
from tokenfield.laws.tokens import as_real

Flow = Literal["softmax", "unnormalised"]

#: Beyond this e^s is not a double.
LARGEST_EXPONENT = 700.0


def check_flow(flow: str) -> None:
    """Refuse anything but the two flows."""
    known = isinstance(flow, str) and flow in ("softmax", "unnormalised")
    require(known, "flow", "be 'softmax' or 'unnormalised'", repr(flow))


def check_exponent(exponent: float, instead: str) -> None:
    """Refuse a β whose result would overflow."""
    if exponent > LARGEST_EXPONENT:
        raise InputError(
            f"`beta` must give values below e^{LARGEST_EXPONENT:g}, but gave e^{exponent:.6g}; {instead}"
        )


def finite(value: float, name: str) -> float:
    """A finite number of either sign."""
    number = as_number(value, name)
    require(bool(np.isfinite(number)), name, "be a finite number", number)
    return number


def fraction(value: float, name: str) -> float:
    """A number between 0 and 1."""
    number = as_number(value, name)
    require(0 < number < 1, name, "lie between 0 and 1", number)
    return number


def common_product(rho: float, n: int) -> float:
    """Common inner product of n distinct unit vectors."""
    rho, lowest = as_number(rho, "rho0"), -1 / (n - 1)
    require(lowest <= rho < 1, "rho0", f"lie in [{lowest:.6g}, 1)", rho)
    return rho


def arc(w: float) -> float:
    """Half-width of one of two arcs that face each other."""
    w = as_number(w, "w")
    require(0 < w < np.pi / 4, "w", "lie between 0 and π/4", w)
    return w


def cap_angle(angle: float) -> float:
    """Angle of a cap on which the PL inequality holds."""
    angle = as_number(angle, "angle")
    require(0 <= angle <= np.pi / 4 * (1 + 1e-15), "angle", "lie in [0, π/4]", angle)
    return angle


def times(ts: ArrayLike) -> np.ndarray:
    """Increasing times, counted from the initial value."""
    ts = np.atleast_1d(np.asarray(as_real(ts, "ts")))
    require(ts.ndim == 1 and ts.size > 0, "ts", "be a list of times", f"of shape {ts.shape}")
    require(bool(np.all(np.isfinite(ts))), "ts", "be finite", ts[~np.isfinite(ts)][:1])
    require(bool(np.all(np.diff(ts) > 0)), "ts", "be increasing", ts.tolist())
    require(bool(ts[0] >= 0), "ts", "start at 0, the time of the initial value, or later", ts[0])
    return ts
