"""The mean-field equation itself: laws as densities, the limit n → ∞ of tokens (design.md)."""

from tokenfield.density.domain import Domain, Problem
from tokenfield.density.result import DensityTrajectory
from tokenfield.density.solve import solve

__all__ = ["DensityTrajectory", "Domain", "Problem", "solve"]
