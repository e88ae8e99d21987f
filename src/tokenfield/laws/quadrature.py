"""What the laws that stand for a density share: its values at nodes, and the tokens these make."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tokenfield.errors import InputError, require
from tokenfield.laws.tokens import Tokens, as_real

#: A density, as a function of an array of points along its first axis.
Density = Callable[[np.ndarray], ArrayLike]


def unit_direction(value: ArrayLike, name: str) -> np.ndarray:
    """A vector (d,) of norm 1, corrected to rounding; anything else is refused by name."""
    array = np.asarray(as_real(value, name))
    require(
        array.ndim == 1 and array.size >= 2, name, "be a vector of length d ≥ 2", f"of shape {array.shape}"
    )
    norm = float(np.linalg.norm(array))
    require(abs(norm - 1) <= 1e-6, name, "have norm 1", f"of norm {norm:.9g}")
    return array / norm


def density_values(f: Density, points: np.ndarray, name: str) -> np.ndarray:
    """The density at the points, one number each; what is no density is refused.

    Args:
        f: the density.
        points: where to evaluate it, along the first axis.
        name: of the argument, for the sentence.
    """
    require(callable(f), name, "be a function of an array of points", repr(f))
    count = len(points)
    found: Any = f(points)
    if getattr(found, "dtype", None) == np.bool_:
        found = found.astype(float)  # an indicator
    density = np.asarray(as_real(found, f"{name}(...)"))
    require(
        density.shape in ((), (count,)),
        name,
        f"give one number for each of the {count} points",
        f"giving the shape {density.shape}",
    )
    if not np.all(np.isfinite(density)) or density.min() < 0 or density.max() == 0:
        raise InputError(
            f"`{name}` must be finite, at least 0 and not 0 everywhere,"
            f" but its values ran from {density.min():g} to {density.max():g}"
        )
    return np.broadcast_to(density, (count,))


def weighted_tokens(x: np.ndarray, w: np.ndarray, density: np.ndarray) -> Tokens:
    """Nodes of a quadrature of the uniform law as tokens of a density.

    Args:
        x: unit rows (n, d).
        w: weights of the quadrature (n,), of any sum.
        density: values at the nodes (n,).
    """
    total = w * density
    return Tokens(x, total / total.sum())
