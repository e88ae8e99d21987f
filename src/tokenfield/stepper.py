"""A run between two steps: its state, how it moves on, and how it is read at a given time.

Everything here is traceable, so the same steps serve a run watched from the host, a batch of runs
under vmap, and a gradient through a run.
"""

from typing import Any, Literal

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from tokenfield import sphere
from tokenfield.attention.direct import Direct, Sums
from tokenfield.attention.fast import audit
from tokenfield.models import Model
from tokenfield.solvers import Solver
from tokenfield.tokens import Tokens

#: Rejections in a row after which the field counts as not integrable at this tolerance.
PATIENCE = 50
#: Checkpoints of the reverse pass: memory against recomputation (Stumm–Walther).
CHECKPOINTS = 64


class Field(eqx.Module):
    """The right-hand side as Diffrax wants it, constant along rays (degree 0 off the sphere)."""

    model: Model
    weights: Float[Array, "n"]
    sums: Sums
    tangent: bool = eqx.field(static=True)

    def __call__(self, t: Any, x: Float[Array, "n d"], args: Any) -> Float[Array, "n d"]:
        """Velocity of every token, or the unprojected attention output for `Layers`."""
        tokens = Tokens(x, self.weights)  # normalises
        if self.tangent:
            return self.model.velocity(tokens, self.sums)
        return self.model.attention(tokens.x, tokens, self.sums)

    @property
    def exact(self) -> bool:
        """Whether the sums have no error but rounding; others are audited at every step."""
        return isinstance(self.sums, Direct)

    def audit(self, x: Float[Array, "n d"], turn: Int[Array, ""]) -> Float[Array, ""]:
        """Greatest error of the sums at a sample of tokens, over all heads."""
        tokens, heads = Tokens(x, self.weights), self.model.exponents
        if self.exact or heads is None:
            return jnp.zeros(())
        return jnp.max(lax.map(lambda A: audit(self.sums, A, tokens, turn), heads))


class State(eqx.Module):
    """Where a run stands: the last step went from `t_before` to `t`, the next will be `dt` long."""

    t_before: Float[Array, ""]
    t: Float[Array, ""]
    dt: Float[Array, ""]
    x: Float[Array, "n d"]
    scheme: Any
    controller: Any
    dense: Any
    steps: Int[Array, ""]
    rejected: Int[Array, ""]
    stuck: Int[Array, ""]
    failed: Bool[Array, ""]
    #: Greatest error of the sums found in any audit.
    certificate: Float[Array, ""]


def begin(solver: Solver, field: Field, x: Float[Array, "n d"], t: Float[Array, ""]) -> State:
    """State at the first time, with the controller's guess of a first step."""
    term, scheme = diffrax.ODETerm(field), solver.scheme
    if solver.controller is None:
        return fresh(solver, field, x, t, jnp.zeros_like(t), None)
    t1, controller = solver.controller.init(term, t, t, x, None, None, scheme.func, solver.order)
    return fresh(solver, field, x, t, jnp.asarray(t1 - t), _arrays(controller))


def fresh(
    solver: Solver,
    field: Field,
    x: Float[Array, "n d"],
    t: Float[Array, ""],
    dt: Float[Array, ""],
    control: Any,
) -> State:
    """State with no step behind it, at a known step size; evaluates nothing."""
    term, scheme = diffrax.ODETerm(field), solver.scheme
    first = scheme.init(term, t, t, x, None)
    count = jnp.zeros((), jnp.int64)
    dense = eqx.filter_eval_shape(lambda: _step_outputs(scheme, term, t, t + 1.0, x, first, count)[2])
    never, exact = jnp.array(False), jnp.zeros(())
    return State(t, t, dt, x, first, control, zeros(dense), count, count, count, never, exact)


def advance(
    solver: Solver,
    field: Field,
    state: State,
    target: Float[Array, ""],
    stop: Float[Array, ""],
    most: Int[Array, ""],
    kind: Literal["lax", "checkpointed"] = "lax",
) -> State:
    """Step until the target time is reached or passed, trouble comes, or `most` attempts are used.

    `stop` is the last time of the run: no step goes beyond it.
    """
    limit = target if solver.lands else stop
    if solver.controller is None:
        dt = jnp.where(state.dt > 0, state.dt, solver.first_step(target - state.t))
        state = eqx.tree_at(lambda s: s.dt, state, dt)

    def going(carry: tuple[State, Array]) -> Array:
        state, used = carry
        return (state.t < target) & ~state.failed & (used < most)

    def body(carry: tuple[State, Array]) -> tuple[State, Array]:
        state, used = carry
        return attempt(solver, field, state, limit), used + 1

    start = (state, jnp.zeros((), jnp.int64))
    checkpoints = CHECKPOINTS if kind == "checkpointed" else None
    state, _ = eqxi.while_loop(going, body, start, kind=kind, checkpoints=checkpoints)
    if solver.controller is None:
        # the next gap chooses its own step
        dt = jnp.where(state.t >= target, 0.0, state.dt)
        state = eqx.tree_at(lambda s: s.dt, state, dt)
    return state


def attempt(solver: Solver, field: Field, state: State, limit: Float[Array, ""]) -> State:
    """Try one step; keep it if the error control agrees."""
    term, scheme = diffrax.ODETerm(field), solver.scheme
    # a remainder below a thousandth of a step is taken along rather than left as a sliver
    clipped = state.t + 1.001 * state.dt >= limit
    t1 = jnp.where(clipped, limit, state.t + state.dt)
    x1, error, dense, scheme_state, result = _step_outputs(
        scheme, term, state.t, t1, state.x, state.scheme, state.steps
    )
    x1 = sphere.retract(x1)
    finite = jnp.all(jnp.isfinite(x1))
    if solver.controller is None:
        keep, dt, controller = finite, state.dt, None
    else:
        # a failed implicit solve or a non-finite stage is an infinite error: the step shrinks
        usable = finite & (result == diffrax.RESULTS.successful)
        error = jnp.where(usable, jnp.nan_to_num(error, nan=jnp.inf), jnp.inf)
        keep, t_from, t_next, _, controller, _ = solver.controller.adapt_step_size(
            state.t, t1, state.x, x1, None, error, solver.order, state.controller
        )
        dt = t_next - t_from
        # a step cut short by a saved time says nothing against the longer one
        dt = jnp.where(keep & clipped, jnp.maximum(dt, state.dt), dt)
    stuck = jnp.where(keep, 0, state.stuck + 1)
    moved = state.t + dt > state.t
    failed = jnp.where(solver.controller is None, ~keep, (stuck >= PATIENCE) | ~moved)
    worst = state.certificate
    if not field.exact:
        # sums that miss their tolerance end the burst; other sums then try the same step
        found = field.audit(x1, state.steps)
        missed = ~finite | ~(found <= field.sums.tolerance)
        keep, failed = keep & ~missed, failed | missed
        worst = jnp.where(missed, worst, jnp.maximum(worst, found))
        dt, controller = lax.cond(missed, lambda: (state.dt, state.controller), lambda: (dt, controller))
    new = State(
        state.t, t1, dt, x1, _arrays(scheme_state), _arrays(controller), dense,
        state.steps + 1, state.rejected, stuck, failed, worst,
    )  # fmt: skip
    old = eqx.tree_at(
        lambda s: (s.dt, s.controller, s.rejected, s.stuck, s.failed),
        state,
        (dt, _arrays(controller), state.rejected + 1, stuck, failed),
        is_leaf=lambda leaf: leaf is None,  # fixed steps have no controller
    )
    return jax.tree.map(lambda a, b: lax.select(jnp.broadcast_to(keep, a.shape), a, b), new, old)


def read(solver: Solver, state: State, t: Float[Array, ""]) -> Float[Array, "n d"]:
    """The tokens at a time inside the last step, on the sphere."""
    if solver.lands:
        return state.x
    # before the first step there is nothing to interpolate
    t0 = jnp.where(state.t_before < state.t, state.t_before, state.t - 1.0)
    inside = solver.scheme.interpolation_cls(t0=t0, t1=state.t, **state.dense).evaluate(t)
    ended = t == state.t
    return jnp.where(ended, state.x, sphere.retract(jnp.where(ended, state.x, inside)))


def _step_outputs(
    scheme: Any, term: Any, t0: Array, t1: Array, x: Array, scheme_state: Any, steps: Array
) -> Any:
    # the number of the step is for schemes that draw noise
    return scheme.step(term, t0, t1, x, steps, scheme_state, made_jump=False)


def _arrays(tree: Any) -> Any:
    return jax.tree.map(jnp.asarray, tree)


def zeros(tree: Any) -> Any:
    """Arrays of zeros for a tree of shapes."""
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), tree)
