"""Solvers for models with noise, dX = v dt + √(2D) dW on the sphere: geodesic steps that end on it.

Both need one number to know where an expectation goes: s = D·h, the time of Brownian motion in a step h.
A geodesic step of a random length r in a uniform direction multiplies harmonics of degree l by

    E[P_l(cos r)] = 1 − λ E[r²]/2m + λ(λ − ⅔(m−1)) E[r⁴]/8m(m+2) + O(E[r⁶]),   λ = l(l+d−2),  m = d − 1,

and Brownian motion by e^{−λs}. A Gaussian tangent vector of variance 2s in each direction agrees with it to
first order; shortened by e^{−(m−1)s/6} it does to second order, which is what `Strang` uses.

The noise of a step depends on the key and on the number of the step only: a run that is resumed, stopped in
other places or watched goes through the same noise.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from tokenfield.errors import as_key, as_number, is_traced
from tokenfield.geometry import sphere
from tokenfield.registry import register
from tokenfield.solvers.ode import Solver, check_step, equal_steps

#: The velocity of the tokens at a time and place.
Velocity = Callable[[Array, Array], Array]


def walk(x: Float[Array, "n d"], s: Float[Array, ""], normal: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """Brownian motion on the sphere (generator Δ), right to second order in s; on the circle exact.

    Args:
        x: tokens (n, d).
        s: the time.
        normal: standard normal numbers (n, d).
    """
    length = jnp.sqrt(2 * s) * jnp.exp(-(x.shape[1] - 2) * s / 6)
    return sphere.exp(x, length * sphere.project(x, normal))


class _Scheme(diffrax.AbstractSolver):
    """A step formula in Diffrax's form; `args` is the number of the step."""

    key: Int[Array, ""]

    term_structure: ClassVar = diffrax.AbstractTerm
    interpolation_cls: ClassVar = diffrax.LocalLinearInterpolation

    def order(self, terms: object) -> None:
        """None in the sense of Diffrax, which knows no weak orders."""
        return

    def init(self, terms: Any, t0: Any, t1: Any, y0: Array, args: Any) -> None:
        """Nothing is carried from step to step."""
        return

    def func(self, terms: Any, t0: Any, y0: Array, args: Any) -> Array:
        """The velocity."""
        return terms.vf(t0, y0, args)

    def step(
        self, terms: Any, t0: Any, t1: Any, y0: Array, args: Any, solver_state: None, made_jump: Any
    ) -> Any:
        """One step from t0 to t1."""
        key = jax.random.fold_in(jax.random.key(self.key), args)
        normal = jax.random.normal(key, (self.draws, *terms.vector_field.model.noise_shape(len(y0))))
        x = self.move(partial(terms.vf, args=args), terms.vector_field, t0, y0, t1 - t0, normal)
        return x, None, {}, None, diffrax.RESULTS.successful

    #: Standard normal numbers used for one coordinate of a token in a step.
    draws: eqx.AbstractClassVar[int]

    @abstractmethod
    def move(self, velocity: Velocity, field: Any, t: Array, x: Array, h: Array, normal: Array) -> Array:
        """The tokens after a step h from time t, from standard normal numbers (draws, *noise_shape)."""


class _EulerMaruyama(_Scheme):
    draws: ClassVar[int] = 1

    def move(self, velocity: Velocity, field: Any, t: Array, x: Array, h: Array, normal: Array) -> Array:
        noise = field.model.noise(x, field.weights, field.sums, h, normal[0])
        return sphere.exp(x, h * velocity(t, x) + sphere.project(x, noise))


class _Strang(_Scheme):
    draws: ClassVar[int] = 2

    def move(self, velocity: Velocity, field: Any, t: Array, x: Array, h: Array, normal: Array) -> Array:
        before, after = normal
        half = field.model.diffusion * h / 2
        x = walk(x, half, before)
        middle = x + h / 2 * velocity(t, x)
        return walk(sphere.retract(x + h * velocity(t + h / 2, middle)), half, after)


class Stochastic(Solver):
    """A solver for models with noise: fixed steps, reproducible from an integer `key`, an array under vmap.

    Every gap between saved times is cut into equal steps no longer than `step`. The order is the weak one:
    expectations of smooth functions are off by step^order. Models without noise move without it.
    """

    # arrays, so that other steps and keys run the same compiled program
    step: Float[Array, ""] = eqx.field(converter=lambda v: jnp.asarray(_as_step(v)))
    key: Int[Array, ""] = eqx.field(converter=lambda v: jnp.asarray(v if is_traced(v) else as_key(v)))

    takes_noise: ClassVar[bool] = True
    lands: ClassVar[bool] = True
    controller: ClassVar[None] = None

    def first_step(self, gap: Float[Array, ""]) -> Float[Array, ""]:
        """The gap cut into equal parts."""
        return equal_steps(gap, self.step)

    @property
    def tolerance(self) -> float:
        """Error that the sums may have: far below any sampling error."""
        return 1e-7


def _as_step(value: Any) -> float:
    step = as_number(value, "step")
    check_step(step)
    return step


@register("solver", "euler-maruyama", settings={"step": float, "key": int}, batches=False)
class EulerMaruyama(Stochastic):
    """x ← exp_x(v h + √(2Dh) ξ), ξ a standard normal tangent vector: weak order 1.

    Under common noise the tangent vectors are P_x σ√h W A for all tokens, W one matrix of normal numbers.
    """

    takes_common_noise: ClassVar[bool] = True
    order: ClassVar[int] = 1
    stages: ClassVar[int] = 1

    @property
    def scheme(self) -> diffrax.AbstractSolver:
        """The step formula."""
        return _EulerMaruyama(self.key)


@register("solver", "strang", settings={"step": float, "key": int}, batches=False)
class Strang(Stochastic):
    """Half a step of Brownian motion, a midpoint step of the flow, half a step again: weak order 2."""

    order: ClassVar[int] = 2
    stages: ClassVar[int] = 2

    @property
    def scheme(self) -> diffrax.AbstractSolver:
        """The step formula."""
        return _Strang(self.key)
