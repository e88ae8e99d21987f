from . import density, encoders, figures, theory
from .errors import InputError, RunError
from .geometry import sphere
from .laws import initial, symmetry
from .laws.tokens import Tokens
from .measure.clusters import clusters
from .measure.energy import dissipation, energy, log_energy
from .measure.free_energy import free_energy
from .measure.limit_law import limit_distance
from .measure.order import effective_rank, order_parameter
from .measure.phases import phases
from .measure.rates import fit_bound, fit_rate
from .measure.transport import wasserstein
from .models import ensembles, masks
from .models.attention import (
    Attention,
    HardmaxAttention,
    InteractionFlow,
    SoftmaxAttention,
    UnnormalisedAttention,
    ZeroTemperature,
)
from .models.base import Model, Term
from .models.common_noise import CommonNoise
from .models.depth import Depth, RandomLayers, Schedule
from .models.kernels import Kernel, Pointwise
from .models.l2 import L2Attention
from .models.mirrored import Mirrored
from .models.norms import NGPT, MixNorm, NoNorm, PeriNorm, PreNorm, ScaledNorm
from .models.pointwise import LinearAttention, SigmoidAttention
from .models.sinkhorn import SinkhornAttention
from .models.terms import MLP, Drift, Noise
from .models.weights import AttentionWeights
from .runs.simulate import Moment, moments, simulate
from .runs.times import log_times
from .runs.trajectory import Trajectory, load
from .solvers.ode import Adaptive, Layers, RungeKutta4, Solver
from .solvers.sde import EulerMaruyama, Strang
from .sums.base import Mask, Sums
from .sweeps.dataset import open_sweep
from .sweeps.drive import sweep

__version__: str

__all__ = [
    "__version__",
    "Adaptive",
    "Attention",
    "AttentionWeights",
    "CommonNoise",
    "Depth",
    "Drift",
    "EulerMaruyama",
    "HardmaxAttention",
    "InputError",
    "InteractionFlow",
    "Kernel",
    "L2Attention",
    "Layers",
    "LinearAttention",
    "MLP",
    "Mask",
    "Mirrored",
    "MixNorm",
    "Model",
    "Moment",
    "NGPT",
    "NoNorm",
    "Noise",
    "PeriNorm",
    "Pointwise",
    "PreNorm",
    "RandomLayers",
    "RunError",
    "RungeKutta4",
    "ScaledNorm",
    "Schedule",
    "SigmoidAttention",
    "SinkhornAttention",
    "SoftmaxAttention",
    "Solver",
    "Strang",
    "Sums",
    "Term",
    "Tokens",
    "Trajectory",
    "UnnormalisedAttention",
    "ZeroTemperature",
    "clusters",
    "density",
    "dissipation",
    "effective_rank",
    "encoders",
    "energy",
    "ensembles",
    "figures",
    "fit_bound",
    "fit_rate",
    "free_energy",
    "initial",
    "limit_distance",
    "load",
    "log_energy",
    "log_times",
    "masks",
    "moments",
    "open_sweep",
    "order_parameter",
    "phases",
    "simulate",
    "sphere",
    "sweep",
    "symmetry",
    "theory",
    "wasserstein",
]
