"""Steps in time for densities: y' = f(y) − decay·y, from one saved time to the next.

Without diffusion an explicit pair (Tsit5); with it Kennedy and Carpenter's fourth-order IMEX pair, whose
implicit part, diagonal in the coefficients, is solved exactly. Both keep the L² error of a step below the
tolerance. Linear invariants such as the mass are kept to rounding.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jaxtyping import Array, Float

from tokenfield.density.domain import Watch

#: Attempted steps between two saved times after which a run gives up.
MAX_STEPS = 200_000


class Advanced(NamedTuple):
    """After some steps: the state, the step size to go on with, steps taken, whether all went well."""

    y: Array
    dt: Array
    steps: Array
    succeeded: Array


#: (y, t0, t1, dt or 0 if not known) → the state at t1.
Advance = Callable[[Array, Array, Array, Array], Advanced]


class Marched(NamedTuple):
    """States (reached, ...) at the times reached, how the run ended, whether it reached the last time."""

    y: np.ndarray
    status: str
    complete: bool
    stats: dict[str, Any]


def march(
    advance: Advance,
    y0: Float[Array, "..."],
    ts: np.ndarray,
    watch: Watch,
    healthy: Callable[[np.ndarray], bool] | None = None,
) -> Marched:
    """The states at the saved times; the run stops with a sentence where numbers are no longer finite.

    Args:
        advance: carries a state from one time to another.
        y0: state at the first time, of any shape.
        ts: times to be saved, (times,), increasing.
        watch: called at every saved time with the time and the steps so far; what it returns ends the run.
        healthy: whether a saved state is worth going on from; all are if left out.
    """
    began, steps, wanted = time.monotonic(), 0, len(ts)
    rows, dt = [np.asarray(y0)], jnp.zeros(())
    y, status = jnp.asarray(y0), "reached the last time"
    if healthy is not None and not healthy(rows[0]):
        status, ts = f"not run from t = {ts[0]:.6g}", ts[:1]
    for t0, t1 in itertools.pairwise(ts):
        y, dt, taken, succeeded = advance(y, jnp.asarray(t0), jnp.asarray(t1), dt)
        steps += int(taken)
        if not bool(succeeded) or not bool(jnp.all(jnp.isfinite(y))):
            status = f"stopped between t = {t0:.6g} and {t1:.6g}: no step keeps the tolerance"
            break
        rows.append(np.asarray(y))
        reason = watch(float(t1), steps)
        if reason and len(rows) < wanted:
            status = f"stopped at t = {t1:.6g}: {reason}"
            break
        if healthy is not None and not healthy(rows[-1]):
            status = f"stopped at t = {t1:.6g}"
            break
    stats = {"steps": steps, "seconds": time.monotonic() - began}
    return Marched(np.stack(rows), status, len(rows) == wanted, stats)


def adaptive(
    field: Callable[[Array], Array],
    tolerance: float,
    decay: Float[Array, "..."] | None = None,
    norm: Callable[[Array], Array] | None = None,
) -> Advance:
    """Adaptive steps of y' = field(y) − decay·y.

    Args:
        field: the explicit part, an eqx.Module, so that equal ones share a compiled program.
        tolerance: greatest error of a step, in the norm.
        decay: eigenvalues of the diffusion, of the shape of y; without them the steps are explicit.
        norm: of the error of a step; the root of the sum of squares if left out.
    """

    def advance(y: Array, t0: Array, t1: Array, dt: Array) -> Advanced:
        return _advance(field, decay, norm or _norm, jnp.asarray(tolerance), y, t0, t1, dt)

    return advance


@eqx.filter_jit
def _advance(
    field: Callable[[Array], Array],
    decay: Array | None,
    norm: Callable[[Array], Array],
    tolerance: Array,
    y: Array,
    t0: Array,
    t1: Array,
    dt: Array,
) -> Advanced:
    explicit = diffrax.ODETerm(lambda t, y, args: field(y))
    if decay is None:
        terms, scheme = explicit, diffrax.Tsit5()
    else:
        implicit = diffrax.ODETerm(lambda t, y, args: -decay * y)
        terms = diffrax.MultiTerm(explicit, implicit)
        scheme = diffrax.KenCarp4(root_finder=_Diagonal())
    # a first guess; the controller corrects it within a few steps
    first = jnp.where(dt > 0, dt, 1e-3 * (t1 - t0))
    found = diffrax.diffeqsolve(
        terms,
        scheme,
        t0,
        t1,
        jnp.minimum(first, t1 - t0),
        y,
        stepsize_controller=diffrax.PIDController(rtol=0.0, atol=tolerance, norm=norm),
        saveat=diffrax.SaveAt(t1=True, controller_state=False),
        max_steps=MAX_STEPS,
        throw=False,
        adjoint=diffrax.ForwardMode(),
    )
    steps = found.stats["num_steps"]
    mean = (t1 - t0) / jnp.maximum(found.stats["num_accepted_steps"], 1)
    succeeded = found.result == diffrax.RESULTS.successful
    return Advanced(jnp.asarray(found.ys)[0], mean, steps, succeeded)


def _norm(error: Float[Array, "..."]) -> Float[Array, ""]:
    """Root of the sum of squares: with orthonormal coefficients, the L² norm."""
    return jnp.sqrt(jnp.sum(error * error))


class _Diagonal(optx.AbstractRootFinder):
    """Root of an affine map that acts on every entry by itself: one division.

    Diffrax's own root finder would build the Jacobian, a square matrix.
    """

    rtol: float = 0.0
    atol: float = 1.0  # of no meaning: one step is exact
    norm: Callable[[Any], Array] = optx.max_norm

    def init(self, fn, y, args, options, f_struct, aux_struct, tags):
        if "init_state" in options:
            return options["init_state"]
        zero, one = fn(jnp.zeros_like(y), args)[0], fn(jnp.ones_like(y), args)[0]
        return one - zero, jnp.zeros((), int)

    def step(self, fn, y, args, options, state, tags):
        slope, count = state
        value, aux = fn(y, args)
        return y - value / slope, (slope, count + 1), aux

    def terminate(self, fn, y, args, options, state, tags):
        return state[1] >= 1, optx.RESULTS.successful

    def postprocess(self, fn, y, aux, args, options, state, tags, result):
        return y, aux, {}
