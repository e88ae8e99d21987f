from . import stationary
from .block_causal import CausalDensity, block_tokens, causal
from .characteristics import Characteristics
from .circle import Circle
from .closure import GaussianRun, gaussian
from .domain import Domain, Problem
from .mean_field import solve
from .result import DensityTrajectory
from .sphere import Sphere
from .zonal import Zonal

__all__ = [
    "CausalDensity",
    "Characteristics",
    "Circle",
    "DensityTrajectory",
    "Domain",
    "GaussianRun",
    "Problem",
    "Sphere",
    "Zonal",
    "block_tokens",
    "causal",
    "gaussian",
    "solve",
    "stationary",
]
