"""The initial density on the nodes of a domain."""

from typing import Any

import numpy as np

from tokenfield.errors import InputError, require
from tokenfield.laws.tokens import as_real


def initial_density(rho0: Any, places: np.ndarray, quadrature: np.ndarray) -> np.ndarray:
    """ρ0 at the places, (nodes,), scaled to mass 1; values that are no density are refused.

    Args:
        rho0: a function of the array of places, or its values there, (nodes,).
        places: coordinates of the nodes, (nodes,) or (nodes, d).
        quadrature: shares of the uniform law that the nodes stand for, (nodes,), sum 1.
    """
    found: Any = rho0(places) if callable(rho0) else rho0
    if getattr(found, "dtype", None) == np.bool_:
        found = np.asarray(found, float)  # an indicator
    values = np.asarray(as_real(found, "rho0"))
    count = len(places)
    require(
        values.shape in ((), (count,)),
        "rho0",
        f"give one number for each of the {count} places",
        f"giving the shape {values.shape}",
    )
    values = np.broadcast_to(values, (count,)).astype(float)
    if not np.all(np.isfinite(values)) or values.min() < 0 or values.max() == 0:
        raise InputError(
            "`rho0` must be finite, at least 0 and not 0 everywhere,"
            f" but its values ran from {values.min():g} to {values.max():g}"
        )
    return values / (quadrature @ values)
