"""Many small runs as one compiled program.

The elements of a batch share what a program is compiled for: the number of tokens and times, the solver, the
kind of model and of measurement. They differ in numbers: β, matrices, tokens, times. Each steps at its own
pace, chosen by its own error control; one that is done waits for the others. The same stepper serves single
runs, so that both agree to rounding; to the bit, a cell depends on its batch, and that is why batches never
change.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from tokenfield.config.measures import bind
from tokenfield.errors import InputError, require, require_increasing
from tokenfield.laws.tokens import Tokens
from tokenfield.models.base import Model
from tokenfield.registry import find
from tokenfield.runs import stepper
from tokenfield.runs.stepper import Field, State
from tokenfield.runs.times import kept_indices
from tokenfield.runs.trajectory import Trajectory
from tokenfield.runs.watchers import STALL_FRACTION, STALL_STEPS, out_of_time, trouble
from tokenfield.solvers.ode import Solver
from tokenfield.sums.direct import DIRECT
from tokenfield.sweeps.result import CellResult, failure, result_of

#: Runs with more tokens than this gain nothing from company.
LARGEST = 128
#: Elements of one program, tokens in all of them, and bytes of their records.
ELEMENTS, TOKENS, BYTES = 256, 4096, 2**26
#: Beyond this β an energy overflows, which `simulate` refuses in a sentence.
LARGEST_ENERGY = 700.0


class BatchElement(eqx.Module):
    """What differs between the runs of a batch."""

    model: Model
    tokens: Tokens
    ts: Array | np.ndarray


class BatchProgram(NamedTuple):
    """What the runs of a batch share: the solver, the names of the measures, indices of the kept times."""

    solver: Solver
    measure: tuple[str, ...]
    snapshots: Sequence[int] | None


def can_share(measure: Sequence[str], summation: str, beta: float) -> bool:
    """Whether runs can be elements of a batch, as far as the registry knows.

    Args:
        measure: names of what is measured.
        summation: name of the sums.
        beta: inverse temperature; 1 for a model without.

    Returns:
        True if all that is measured can be traced, the sums are direct and β is not too large.
    """
    facts = [find("measure", name).facts for name in measure]
    if not all(each["traceable"] for each in facts) or not find("sums", summation).facts["direct"]:
        return False
    if any("beta" in each["needs"] for each in facts):
        return 0 < beta <= LARGEST_ENERGY
    return not np.isinf(beta)


def most_elements(n: int, times: int) -> int:
    """How many runs of n tokens and so many times one program can hold."""
    return max(1, min(ELEMENTS, TOKENS // n, BYTES // (8 * 4 * n * times)))


def element(model: Model, tokens: Tokens, ts: np.ndarray, solver: Solver) -> BatchElement:
    """One run as an element of a batch; refused with a sentence if `simulate` would refuse it.

    Args:
        model: the flow.
        tokens: the initial law, (n, d).
        ts: increasing times, (times,).
        solver: the solver that the batch shares.

    Returns:
        The element.
    """
    solver.check(ts, 0)
    require(model.d == tokens.d, "tokens", f"have the dimension {model.d} of the model", tokens.d)
    require_increasing(ts, "ts")
    return BatchElement(model, tokens, ts)


def run_together(
    program: BatchProgram, elements: Sequence[BatchElement | InputError], size: int, time_limit: float | None
) -> list[CellResult]:
    """Runs of one batch, in order. One that could not be built fails by itself.

    Args:
        program: what they share.
        elements: the runs, or why there is none.
        size: runs that the program is compiled for; it is padded with copies if there are fewer.
        time_limit: seconds that each run may take.

    Returns:
        The result of each.
    """
    began = time.monotonic()
    good = [each for each in elements if isinstance(each, BatchElement)]
    if not good:
        return [failure(str(each)) for each in elements]
    padded = [each if isinstance(each, BatchElement) else good[0] for each in elements]
    padded += [good[0]] * (size - len(padded))
    stacked = jax.tree.map(lambda *leaves: np.stack([np.asarray(a) for a in leaves]), *padded)
    reached, rows, states, why = _run(program.solver, stacked, time_limit)
    measured = {k: np.asarray(v) for k, v in _measure(program.measure, stacked, rows).items()}
    host = jax.device_get((states.t, states.steps, states.rejected))
    kept = kept_indices(program.snapshots, stacked.ts.shape[1])
    snapshots = np.asarray(rows[:, kept]) if len(kept) else np.empty((size, 0, 1, 1))
    seconds = (time.monotonic() - began) / len(elements)
    results = []
    for k, each in enumerate(elements):
        if not isinstance(each, BatchElement):
            results.append(failure(str(each)))
            continue
        t, steps, rejected = (a[k] for a in host)
        ts, count = stacked.ts[k], int(reached[k])
        complete = count == len(ts)
        run = Trajectory(
            ts=ts[:count],
            x=snapshots[k][: int(np.sum(kept < count))],
            weights=np.asarray(each.tokens.weights),
            snapshot_ts=ts[kept[kept < count]],
            measured={name: v[k][:count] for name, v in measured.items()},
            stats={},
            inputs={},
            status=f"reached t = {ts[-1]:g} as asked" if complete else f"stopped at t = {t:g}: {why[k]}",
            complete=complete,
        )
        counts = {"steps": int(steps), "rejected": int(rejected)}
        results.append(result_of(run, len(kept) > 0, counts, seconds))
    return results


def _run(
    solver: Solver, batch: BatchElement, time_limit: float | None
) -> tuple[np.ndarray, Array, State, list[str]]:
    """Step until every run has ended: times reached, the tokens there, states, and what stopped each."""
    states, rows = _begin(solver, batch)
    size, times = batch.ts.shape
    reached = np.zeros(size, int)
    why = [""] * size
    began, mark = None, np.asarray(batch.ts[:, 0])
    while True:
        states, rows, found = _leg(solver, batch, states, rows, jnp.asarray(reached))
        reached = np.asarray(found)
        began = began or time.monotonic()  # the first leg, which compiles, does not count
        t, dt, failed = (np.asarray(a) for a in (states.t, states.dt, states.failed))
        target = batch.ts[np.arange(size), np.minimum(reached, times - 1)]
        stalled = t - mark < STALL_FRACTION * (target - mark)
        going = (reached < times) & ~failed & ~stalled & np.isfinite(dt)
        # a run may use its own limit for each that still goes on: they share the processor
        late = time_limit is not None and time.monotonic() - began > time_limit * max(1, int(going.sum()))
        mark = t
        if late or not going.any():
            break
    for k in np.flatnonzero(reached < times):
        stop = trouble(float(dt[k]), bool(failed[k]), bool(stalled[k]), solver)
        why[k] = stop or out_of_time(time_limit)
    return reached, rows, states, why


@eqx.filter_jit
def _begin(solver: Solver, batch: BatchElement) -> tuple[State, Array]:
    def one(run: BatchElement) -> State:
        return stepper.begin(solver, _field(solver, run), run.tokens.x, jnp.asarray(run.ts)[0])

    size, times = batch.ts.shape
    return jax.vmap(one)(batch), jnp.full((size, times, *batch.tokens.x.shape[1:]), jnp.nan)


@eqx.filter_jit
def _leg(
    solver: Solver, batch: BatchElement, states: State, rows: Array, reached: Array
) -> tuple[State, Array, Array]:
    """Up to `STALL_STEPS` attempts of every run, through as many of its times as that reaches."""

    def one(run: BatchElement, state: State, rows: Array, reached: Array) -> tuple[State, Array, Array]:
        field, ts = _field(solver, run), jnp.asarray(run.ts)

        def to_next(carry: tuple[State, Array], at: Any) -> Any:
            old, used = carry
            k, t, row = at
            new = stepper.advance(solver, field, old, t, ts[-1], STALL_STEPS - used)
            new = jax.tree.map(lambda a, b: jnp.where(k < reached, a, b), old, new)
            there = ~new.failed & (new.t >= t)
            row = jnp.where(there & (k >= reached), stepper.read(solver, field, new, t), row)
            used = used + (new.steps + new.rejected) - (old.steps + old.rejected)
            return (new, used), (row, there | (k < reached))

        start = (state, jnp.zeros((), jnp.int64))
        (state, _), (rows, there) = lax.scan(to_next, start, (jnp.arange(len(ts)), ts, rows))
        return state, rows, jnp.sum(there)

    return jax.vmap(one)(batch, states, rows, reached)


@eqx.filter_jit
def _measure(names: tuple[str, ...], batch: BatchElement, rows: Array) -> dict[str, Array]:
    def one(run: BatchElement, rows: Array) -> dict[str, Array]:
        def at(row: Array) -> dict[str, Array]:
            tokens = Tokens(row, run.tokens.weights)
            context = {"model": run.model, "beta": getattr(run.model, "beta", None)}
            return {name: jnp.asarray(bind(name, context)(tokens)) for name in names}

        return lax.map(at, rows)

    return jax.vmap(one)(batch, rows)


def _field(solver: Solver, run: BatchElement) -> Field:
    return Field(run.model, run.tokens.weights, DIRECT)
