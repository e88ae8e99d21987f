"""Closed forms: what the theorems say, to compare with what the program does."""

from tokenfield.theory.concentration import (
    ConcentrationRates,
    Limit,
    Period,
    concentration_rates,
    dominant,
    laplace_envelope,
    laplace_gap,
    limit,
)
from tokenfield.theory.reductions import (
    equiangular,
    lorentz,
    poisson_order,
    poisson_radius_order,
    two_tokens,
    zero_temperature,
)

__all__ = [
    "ConcentrationRates",
    "Limit",
    "Period",
    "concentration_rates",
    "dominant",
    "equiangular",
    "laplace_envelope",
    "laplace_gap",
    "limit",
    "lorentz",
    "poisson_order",
    "poisson_radius_order",
    "two_tokens",
    "zero_temperature",
]
