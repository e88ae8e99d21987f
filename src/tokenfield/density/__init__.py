"""The mean-field equation itself: laws as densities, the limit n → ∞ of tokens (design.md)."""

from tokenfield.density.characteristics import Characteristics
from tokenfield.density.domain import Domain, Problem
from tokenfield.density.result import DensityTrajectory
from tokenfield.density.solve import solve
from tokenfield.density.sphere import Sphere

__all__ = ["Characteristics", "DensityTrajectory", "Domain", "Problem", "Sphere", "solve"]
