"""tokenfield: tokens of deep transformers as particles on the sphere, at any temperature.

    import tokenfield as tkf

The public nouns and verbs are listed in `__all__`; CONTRIBUTING.md says where each lives.
"""

import jax

jax.config.update("jax_enable_x64", True)

from tokenfield import density, figures, initial, sphere, symmetry, theory, weights  # noqa: E402
from tokenfield.diagnostics.clusters import clusters  # noqa: E402
from tokenfield.diagnostics.energy import dissipation, energy, log_energy  # noqa: E402
from tokenfield.diagnostics.free_energy import free_energy  # noqa: E402
from tokenfield.diagnostics.order import order_parameter  # noqa: E402
from tokenfield.diagnostics.phases import phases  # noqa: E402
from tokenfield.diagnostics.rates import fit_bound, fit_rate  # noqa: E402
from tokenfield.diagnostics.transport import wasserstein  # noqa: E402
from tokenfield.errors import InputError, RunError  # noqa: E402
from tokenfield.mirrored import Mirrored  # noqa: E402
from tokenfield.models import (  # noqa: E402
    HardmaxAttention,
    InteractionFlow,
    Noise,
    SoftmaxAttention,
    UnnormalisedAttention,
    ZeroTemperature,
)
from tokenfield.simulate import log_times, simulate  # noqa: E402
from tokenfield.solvers import Adaptive, Layers, RungeKutta4  # noqa: E402
from tokenfield.stochastic import EulerMaruyama, Strang  # noqa: E402
from tokenfield.sweep.dataset import open_sweep  # noqa: E402
from tokenfield.sweep.drive import sweep  # noqa: E402
from tokenfield.tokens import Tokens  # noqa: E402
from tokenfield.trajectory import Trajectory, load  # noqa: E402
from tokenfield.weights import AttentionWeights  # noqa: E402

__all__ = [
    # state, laws, matrices
    "Tokens", "AttentionWeights", "initial", "weights", "sphere", "symmetry",
    # models
    "SoftmaxAttention", "UnnormalisedAttention", "InteractionFlow", "HardmaxAttention", "ZeroTemperature",
    "Mirrored", "Noise",
    # runs
    "simulate", "log_times", "Layers", "RungeKutta4", "Adaptive", "EulerMaruyama", "Strang",
    "Trajectory", "load", "sweep", "open_sweep",
    # the mean field as a density
    "density",
    # measurements, predictions, pictures
    "order_parameter", "energy", "log_energy", "dissipation", "free_energy", "clusters", "wasserstein",
    "phases", "fit_rate", "fit_bound", "theory", "figures",
    # trouble
    "InputError", "RunError",
]  # fmt: skip
