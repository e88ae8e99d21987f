"""Ways to follow the flow x' = P_x A(x) in time. Each declares its order; each ends on the sphere.

The step formulas are Diffrax's; this file says which one, with what step control, and what it may be
asked. After every accepted step the tokens are put back on the sphere, x ← x/|x|. That loses neither
order nor the stored last stage, because the field is extended off the sphere with degree 0: it is
evaluated at x/|x| (theory §5).
"""

from abc import abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple

import diffrax
import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optimistix
from jaxtyping import Array, Float

from tokenfield.errors import InputError, as_number, require
from tokenfield.registry import Setting, register

#: Unknowns up to which the stiff method's dense Jacobian is affordable.
LARGEST_JACOBIAN = 4000


class Solver(eqx.Module):
    """What a run needs to know of a solver."""

    #: Whether steps end where the weights of the model jump.
    ends_at_jumps: ClassVar[bool] = True
    #: Whether it can follow models with noise.
    takes_noise: ClassVar[bool] = False
    #: Whether it can follow noise that all tokens share.
    takes_common_noise: ClassVar[bool] = False

    @property
    @abstractmethod
    def order(self) -> int:
        """Declared order: the error at a fixed time shrinks like step^order."""

    @property
    @abstractmethod
    def lands(self) -> bool:
        """Whether steps end on every time to be saved; otherwise saved states are interpolated."""

    @property
    @abstractmethod
    def scheme(self) -> diffrax.AbstractSolver:
        """The step formula."""

    @property
    @abstractmethod
    def controller(self) -> diffrax.PIDController | None:
        """The step size control, None for fixed steps."""

    @property
    def tolerance(self) -> float:
        """Error that a step may have, for sums to stay below; fixed steps are taken to want nine digits."""
        return 1e-9

    @property
    @abstractmethod
    def stages(self) -> int | None:
        """Evaluations of the field per attempted step, None if it varies."""

    @abstractmethod
    def first_step(self, gap: Float[Array, ""]) -> Float[Array, ""]:
        """Step to use over a gap between two saved times (fixed steps only)."""

    def check(self, ts: np.ndarray, size: int) -> None:
        """Refuse times, or a number of unknowns, that this solver cannot do."""


#: Whether the terms of a layer act in one step or one after the other.
Sublayers = Literal["parallel", "sequential"]


class _LayerScheme(diffrax.AbstractSolver):
    """One layer as a step formula in Diffrax's form; the field knows what a layer does in its space."""

    sequential: bool

    term_structure: ClassVar = diffrax.AbstractTerm
    interpolation_cls: ClassVar = diffrax.LocalLinearInterpolation

    def order(self, terms: object) -> int:
        """1."""
        return 1

    def init(self, terms: Any, t0: Any, t1: Any, y0: Array, args: Any) -> None:
        """Nothing is carried from layer to layer."""
        return

    def func(self, terms: Any, t0: Any, y0: Array, args: Any) -> Array:
        """The velocity."""
        return terms.vf(t0, y0, args)

    def step(
        self, terms: Any, t0: Any, t1: Any, y0: Array, args: Any, solver_state: None, made_jump: Any
    ) -> Any:
        """One layer from t0 to t1."""
        y1 = terms.vector_field.layer(t0, y0, t1 - t0, self.sequential)
        return y1, None, {}, None, diffrax.RESULTS.successful


# sublayers came later: left out, so that cells of sweeps that do not name it keep their hashes
@register("solver", "layers", settings={"step": float, "sublayers": Setting(Sublayers | None, None)})
class Layers(Solver):
    """The discrete network, one step a layer: on the sphere x ← (x + ηA)/|x + ηA|, A the output of the layer.

    In other spaces a layer is what spaces.py says; with `Depth` each layer has its own weights.

    Args:
        step: η; saved times must be whole numbers of layers.
        sublayers: "parallel": one step with the sum of all terms; "sequential": attention, MLP and others one
            after the other in the order they were added, each with its own return to the sphere.
    """

    step: float = eqx.field(converter=lambda v: as_number(v, "step"))
    sublayers: Sublayers = "parallel"

    ends_at_jumps: ClassVar[bool] = False
    order: ClassVar[int] = 1
    lands: ClassVar[bool] = True
    controller: ClassVar[None] = None
    stages: ClassVar[int] = 1

    def __check_init__(self):
        check_step(self.step)
        known = self.sublayers in ("parallel", "sequential")
        require(known, "sublayers", "be 'parallel' or 'sequential'", repr(self.sublayers))

    @property
    def scheme(self) -> diffrax.AbstractSolver:
        """The layer."""
        return _LayerScheme(self.sublayers == "sequential")

    def first_step(self, gap: Float[Array, ""]) -> Float[Array, ""]:
        """Always η."""
        return jnp.full_like(gap, self.step)

    def check(self, ts: np.ndarray, size: int) -> None:
        """Times must be whole numbers of layers after the first."""
        layers = (ts - ts[0]) / self.step
        off = np.abs(layers - np.round(layers)) > 1e-6
        if off.any():
            k = int(np.argmax(off))
            raise InputError(
                f"`ts` must be whole multiples of the layer step {self.step:g} after ts[0],"
                f" but ts[{k}] = {ts[k]:g} is {layers[k]:g} layers"
            )


class _ClassicalRungeKutta(diffrax.AbstractERK):
    """The classical fourth-order formula of Kutta (1901), as data."""

    tableau: ClassVar[diffrax.ButcherTableau] = diffrax.ButcherTableau(
        c=np.array([0.5, 0.5, 1.0]),
        a_lower=(np.array([0.5]), np.array([0.0, 0.5]), np.array([0.0, 0.0, 1.0])),
        b_sol=np.array([1 / 6, 1 / 3, 1 / 3, 1 / 6]),
        b_error=np.zeros(4),
    )
    interpolation_cls: ClassVar = diffrax.ThirdOrderHermitePolynomialInterpolation.from_k

    def order(self, terms: object) -> int:
        """4."""
        return 4


@register("solver", "rk4", settings={"step": float})
class RungeKutta4(Solver):
    """Classical fourth-order Runge–Kutta with fixed steps.

    Every gap between saved times is cut into equal steps no longer than `step`.
    """

    step: float = eqx.field(converter=lambda v: as_number(v, "step"))

    order: ClassVar[int] = 4
    lands: ClassVar[bool] = True
    scheme: ClassVar[diffrax.AbstractSolver] = _ClassicalRungeKutta()
    controller: ClassVar[None] = None
    stages: ClassVar[int] = 4

    def __check_init__(self):
        check_step(self.step)

    def first_step(self, gap: Float[Array, ""]) -> Float[Array, ""]:
        """The gap cut into equal parts."""
        return equal_steps(gap, self.step)


class _Method(NamedTuple):
    """An embedded pair: how to make it from the tolerance, its order, stages, and whether it interpolates."""

    scheme: type
    order: int
    stages: int | None
    lands: bool


METHODS = {
    "tsit5": _Method(diffrax.Tsit5, 5, 6, lands=False),
    # the interpolants of the next two are too coarse for the long steps they take
    "dopri8": _Method(diffrax.Dopri8, 8, 13, lands=True),
    "kvaerno5": _Method(diffrax.Kvaerno5, 5, None, lands=True),
}


@register(
    "solver",
    "adaptive",
    settings={"rtol": float, "atol": float},
    batches=lambda settings: settings.method != "kvaerno5",
)
class Adaptive(Solver):
    """Embedded Runge–Kutta pair with error control over every token.

    A step is accepted if no token's error estimate exceeds atol + rtol (tokens have norm 1): a maximum
    over tokens, not a mean that hides one. Methods: "tsit5" (order 5, the default), "dopri8" (order 8,
    for tight tolerances), "kvaerno5" (order 5, implicit, for stiff runs of up to 4000 coordinates).
    """

    rtol: float = eqx.field(default=1e-8, converter=lambda v: as_number(v, "rtol"))
    atol: float = eqx.field(default=1e-10, converter=lambda v: as_number(v, "atol"))
    method: Literal["tsit5", "dopri8", "kvaerno5"] = "tsit5"

    def __check_init__(self):
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            require(0 <= value < np.inf, name, "be at least 0 and finite", value)
        require(self.tolerance >= 1e-14, "rtol", "leave rtol + atol at least 1e-14", self.tolerance)
        known = isinstance(self.method, str) and self.method in METHODS
        require(known, "method", f"be one of {', '.join(METHODS)}", repr(self.method))

    @property
    def tolerance(self) -> float:
        """Greatest error estimate of any token in an accepted step."""
        return self.atol + self.rtol

    @property
    def order(self) -> int:
        """Order of the method."""
        return METHODS[self.method].order

    @property
    def lands(self) -> bool:
        """Whether the method must end on saved times for want of a good interpolant."""
        return METHODS[self.method].lands

    @property
    def stages(self) -> int | None:
        """Evaluations per attempted step; unknown for the implicit method."""
        return METHODS[self.method].stages

    @property
    def scheme(self) -> diffrax.AbstractSolver:
        """Diffrax's formula."""
        if self.method == "kvaerno5":
            # Diffrax's default keeps one Jacobian over all stages and fails on half the steps here
            finder = optimistix.Chord(rtol=1e-12, atol=0.1 * self.tolerance)
            return diffrax.Kvaerno5(root_finder=finder)
        return METHODS[self.method].scheme()

    @property
    def controller(self) -> diffrax.PIDController:
        """Integral control on the largest token error; rotations of all tokens do not change it."""
        return diffrax.PIDController(rtol=0.0, atol=self.tolerance, norm=largest_error)

    def first_step(self, gap: Float[Array, ""]) -> Float[Array, ""]:
        """Not used: the controller chooses."""
        raise NotImplementedError

    def check(self, ts: np.ndarray, size: int) -> None:
        """The stiff method solves dense linear systems."""
        if self.method == "kvaerno5" and size > LARGEST_JACOBIAN:
            raise InputError(
                f"`method` must not be 'kvaerno5' for {size} coordinates (at most {LARGEST_JACOBIAN}:"
                " it solves dense linear systems); use 'tsit5', with `merge_angle` for long times"
            )


def largest_error(error: Float[Array, "n d"]) -> Float[Array, ""]:
    """Greatest Euclidean norm of a row: the token that is off most."""
    scale = jnp.max(jnp.abs(error))
    safe = jnp.where((scale > 0) & jnp.isfinite(scale), scale, 1.0)  # squares of 1e155 overflow
    return safe * jnp.sqrt(jnp.max(jnp.sum((error / safe) ** 2, axis=-1)))


def equal_steps(gap: Float[Array, ""], step: float | Array) -> Float[Array, ""]:
    """Length of the steps when a gap is cut into equal ones no longer than `step`."""
    return gap / jnp.maximum(1, jnp.ceil(gap / step - 1e-9))


def check_step(step: float) -> None:
    """Refuse steps that lead nowhere."""
    require(0 < step < np.inf, "step", "be positive and finite", step)
