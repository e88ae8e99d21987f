"""Closed forms: what the theorems say, to compare with what the program does."""

from tokenfield.theory.reductions import (
    equiangular,
    lorentz,
    poisson_order,
    poisson_radius_order,
    two_tokens,
    zero_temperature,
)

__all__ = [
    "equiangular",
    "lorentz",
    "poisson_order",
    "poisson_radius_order",
    "two_tokens",
    "zero_temperature",
]
