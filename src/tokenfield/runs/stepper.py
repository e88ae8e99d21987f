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

from tokenfield.models.base import Model
from tokenfield.solvers.ode import Solver
from tokenfield.sums.base import Sums
from tokenfield.sums.expansion import audit
from tokenfield.sums.profile import Scored

#: Rejections in a row after which the field counts as not integrable at this tolerance.
PATIENCE = 50
#: A step that ends this near a jump, relative to the time, ends there.
AT_THE_JUMP = 1e-9
#: Checkpoints of the reverse pass: memory against recomputation (Stumm–Walther).
CHECKPOINTS = 64


class Field(eqx.Module):
    """The right-hand side as Diffrax wants it: y' of the tokens, given as rows of the model's space."""

    model: Model
    weights: Float[Array, "n"]
    sums: Sums
    #: Times are taken as just before this one, which a step ends at: the next jump of the model.
    until: Float[Array, ""] | None = None

    def __call__(self, t: Any, y: Float[Array, "n d"], args: Any) -> Float[Array, "n d"]:
        """y' of every token."""
        model, t = self._at(t)
        return model.slope(y, self.weights, self.sums, t)

    def layer(self, t: Any, y: Float[Array, "n d"], step: Any, sequential: bool) -> Float[Array, "n d"]:
        """The tokens after one layer.

        Args:
            t: the time at which it begins.
            y: tokens (n, d) as rows of the model's space.
            step: η.
            sequential: one sublayer after the other; else all terms in one step.
        """
        model, t = self._at(t)
        if not sequential:
            return model.space.layer(y, model.output_at(y, self.weights, self.sums), t, step)
        return model.sublayers(y, self.weights, self.sums, t, step)

    def during(self, start: Float[Array, ""]) -> "Field":
        """The field for a step that begins at this time."""
        if not self.model.reads_time:
            return self
        return Field(self.model.during(start), self.weights, self.sums, self.model.next_jump(start))

    def _at(self, t: Any) -> tuple[Model, Any]:
        if not self.model.reads_time:
            return self.model, 0.0 if t is None else t
        if self.until is not None:
            t = jnp.minimum(t, jnp.nextafter(self.until, -jnp.inf))
        return self.model.at(t), t

    @property
    def exact(self) -> bool:
        """Whether the sums have no error but rounding; others are audited at every step."""
        return self.sums.exact

    def audit(self, y: Float[Array, "n d"], turn: Int[Array, ""]) -> Float[Array, ""]:
        """Greatest error of the sums at a sample of tokens, over all heads."""
        scored = self.model.scored
        if self.exact or scored is None:
            return jnp.zeros(())
        tokens = self.model.space.seen(y, self.weights)

        def one(head: tuple[Array, Array | None]) -> Array:
            return audit(self.sums, Scored(scored.profile, head[0], head[1], scored.mask), tokens, turn)

        return jnp.max(lax.map(one, (scored.A, scored.bias)))


class State(eqx.Module):
    """Where a run stands: the last step went from `t_before` to `t`, the next will be `dt` long."""

    t_before: Float[Array, ""]
    t: Float[Array, ""]
    dt: Float[Array, ""]
    y: Float[Array, "n d"]
    scheme: Any
    controller: Any
    dense: Any
    steps: Int[Array, ""]
    rejected: Int[Array, ""]
    stuck: Int[Array, ""]
    failed: Bool[Array, ""]
    #: Greatest error of the sums found in any audit.
    certificate: Float[Array, ""]
    #: Whether the last step ended at a jump of the model, so that stored slopes no longer hold.
    jumped: Bool[Array, ""]


def begin(solver: Solver, field: Field, y: Float[Array, "n d"], t: Float[Array, ""]) -> State:
    """State at the first time, with the controller's guess of a first step.

    Args:
        solver: the step formula and its control.
        field: the right-hand side.
        y: tokens (n, d) as rows of the model's space.
        t: the first time.
    """
    if solver.controller is None:
        return fresh(solver, field, y, t, jnp.zeros_like(t), None)
    term, scheme = diffrax.ODETerm(field.during(t)), solver.scheme
    t1, controller = solver.controller.init(term, t, t, y, None, None, scheme.func, solver.order)
    return fresh(solver, field, y, t, jnp.asarray(t1 - t), _arrays(controller))


def fresh(
    solver: Solver,
    field: Field,
    y: Float[Array, "n d"],
    t: Float[Array, ""],
    dt: Float[Array, ""],
    control: Any,
) -> State:
    """State with no step behind it, at a known step size; evaluates nothing.

    Args:
        solver: the step formula and its control.
        field: the right-hand side.
        y: tokens (n, d) as rows of the model's space.
        t: the time.
        dt: length of the next step.
        control: state of the step size control, None for fixed steps.
    """
    term, scheme = diffrax.ODETerm(field.during(t)), solver.scheme
    first = scheme.init(term, t, t, y, None)
    count = jnp.zeros((), jnp.int64)
    outputs = lambda: _step_outputs(scheme, term, t, t + 1.0, y, first, count, False)  # noqa: E731
    dense = eqx.filter_eval_shape(lambda: outputs()[2])
    never, exact = jnp.array(False), jnp.zeros(())
    return State(t, t, dt, y, first, control, zeros(dense), count, count, count, never, exact, never)


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

    Args:
        solver: the step formula and its control.
        field: the right-hand side.
        state: where the run stands.
        target: time to be reached.
        stop: last time of the run: no step goes beyond it.
        most: attempted steps.
        kind: "checkpointed" for loops that are differentiated backwards.
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
    """Try one step; keep it if the error control agrees.

    Args:
        solver: the step formula and its control.
        field: the right-hand side.
        state: where the run stands.
        limit: time that the step must not go beyond; the next jump of the model is another.
    """
    jumps = field.model.reads_time and solver.ends_at_jumps
    jump = field.model.next_jump(state.t) if field.model.reads_time else None
    if jumps and jump is not None:
        limit = jnp.minimum(limit, jump)
    here = field.during(state.t)
    term, scheme = diffrax.ODETerm(here), solver.scheme
    # a remainder below a thousandth of a step is taken along rather than left as a sliver
    clipped = state.t + 1.001 * state.dt >= limit
    t1 = jnp.where(clipped, limit, state.t + state.dt)
    if jump is not None:
        t1 = jnp.where(jnp.abs(t1 - jump) <= AT_THE_JUMP * (1 + jnp.abs(t1)), jump, t1)  # sums of steps round
    made_jump = state.jumped if jumps else False
    y1, error, dense, scheme_state, result = _step_outputs(
        scheme, term, state.t, t1, state.y, state.scheme, state.steps, made_jump
    )
    y1 = field.model.space.retract(y1)
    finite = jnp.all(jnp.isfinite(y1))
    if solver.controller is None:
        keep, dt, controller = finite, state.dt, None
    else:
        # a failed implicit solve or a non-finite stage is an infinite error: the step shrinks
        usable = finite & (result == diffrax.RESULTS.successful)
        error = jnp.where(usable, jnp.nan_to_num(error, nan=jnp.inf), jnp.inf)
        error = error / field.model.space.scale(state.y)
        keep, t_from, t_next, _, controller, _ = solver.controller.adapt_step_size(
            state.t, t1, state.y, y1, None, error, solver.order, state.controller
        )
        dt = t_next - t_from
        # a step cut short by a saved time or a jump says nothing against the longer one
        dt = jnp.where(keep & clipped, jnp.maximum(dt, state.dt), dt)
    stuck = jnp.where(keep, 0, state.stuck + 1)
    moved = state.t + dt > state.t
    failed = jnp.where(solver.controller is None, ~keep, (stuck >= PATIENCE) | ~moved)
    worst = state.certificate
    if not field.exact:
        # sums that miss their tolerance end the burst; other sums then try the same step
        found = here.audit(y1, state.steps)
        missed = ~finite | ~(found <= field.sums.tolerance)
        keep, failed = keep & ~missed, failed | missed
        worst = jnp.where(missed, worst, jnp.maximum(worst, found))
        dt, controller = lax.cond(missed, lambda: (state.dt, state.controller), lambda: (dt, controller))
    jumped = (t1 == jump) if jumps else state.jumped
    new = State(
        state.t,
        t1,
        dt,
        y1,
        _arrays(scheme_state),
        _arrays(controller),
        dense,
        state.steps + 1,
        state.rejected,
        stuck,
        failed,
        worst,
        jumped,
    )
    old = eqx.tree_at(
        lambda s: (s.dt, s.controller, s.rejected, s.stuck, s.failed),
        state,
        (dt, _arrays(controller), state.rejected + 1, stuck, failed),
        is_leaf=lambda leaf: leaf is None,  # fixed steps have no controller
    )
    return jax.tree.map(lambda a, b: lax.select(jnp.broadcast_to(keep, a.shape), a, b), new, old)


def read(solver: Solver, field: Field, state: State, t: Float[Array, ""]) -> Float[Array, "n d"]:
    """The tokens at a time inside the last step, as rows of the model's space.

    Args:
        solver: the step formula, which knows its interpolant.
        field: the right-hand side, which knows the space.
        state: where the run stands.
        t: a time of the last step.
    """
    if solver.lands:
        return state.y
    # before the first step there is nothing to interpolate
    t0 = jnp.where(state.t_before < state.t, state.t_before, state.t - 1.0)
    inside = solver.scheme.interpolation_cls(t0=t0, t1=state.t, **state.dense).evaluate(t)
    ended = t == state.t
    return jnp.where(ended, state.y, field.model.space.retract(jnp.where(ended, state.y, inside)))


def _step_outputs(
    scheme: Any, term: Any, t0: Array, t1: Array, y: Array, scheme_state: Any, steps: Array, made_jump: Any
) -> Any:
    # the number of the step is for schemes that draw noise
    return scheme.step(term, t0, t1, y, steps, scheme_state, made_jump=made_jump)


def _arrays(tree: Any) -> Any:
    return jax.tree.map(jnp.asarray, tree)


def zeros(tree: Any) -> Any:
    """Arrays of zeros for a tree of shapes."""
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), tree)
