"""The mean-field equation itself: laws as densities, the limit n → ∞ of tokens (design.md)."""

from tokenfield.density import gegenbauer, stationary
from tokenfield.density.characteristics import Characteristics
from tokenfield.density.circle import Circle
from tokenfield.density.domain import Domain, Problem
from tokenfield.density.result import DensityTrajectory
from tokenfield.density.solve import solve
from tokenfield.density.sphere import Sphere
from tokenfield.density.zonal import Zonal

__all__ = [
    "Characteristics",
    "Circle",
    "DensityTrajectory",
    "Domain",
    "Problem",
    "Sphere",
    "Zonal",
    "gegenbauer",
    "solve",
    "stationary",
]
