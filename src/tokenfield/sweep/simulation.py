"""Cells that are runs of `simulate`: one at a time, or many small ones as lanes of one program.

Lanes share what a program is compiled for: the number of tokens and times, the solver, the kind of model and
of measurement. They differ in numbers: β, matrices, tokens, times. Each lane steps at its own pace, chosen by
its own error control; a lane that is done waits for the others. The same stepper serves both ways, so that
they agree to rounding; to the bit, a cell depends on its batch, and that is why batches never change.
"""

import time
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from tokenfield import config, stepper
from tokenfield.attention.direct import DIRECT
from tokenfield.errors import InputError
from tokenfield.models import Model
from tokenfield.record import kept_indices
from tokenfield.run import HOPELESS, PATIENCE, out_of_time, trouble
from tokenfield.simulate import simulate
from tokenfield.solvers import Solver
from tokenfield.stepper import Field, State
from tokenfield.sweep.outcome import Outcome, failure
from tokenfield.tokens import Tokens
from tokenfield.trajectory import Trajectory, axes, plain

sections = ("weights", "model", "noise", "initial", "times", "solver", "run")
#: Cells with more tokens than this gain nothing from company.
LARGEST = 128
#: Lanes of one program, tokens in all of them, and bytes of their records.
LANES, TOKENS, BYTES = 256, 4096, 2**26
#: Laws of which the number of tokens is plain from the settings; and those of which it is if they have a key.
COUNTED = ("uniform", "von_mises_fisher", "cap", "equiangular", "circle_density")
COUNTED_IF_DRAWN = ("sphere_density", "poisson")
#: Beyond this β an energy overflows, which `simulate` refuses in a sentence.
LARGEST_ENERGY = 700.0


def check(settings: dict[str, Any]) -> dict[str, Any]:
    """Every setting, also those left out; no snapshots unless asked for."""
    run = {"snapshots": []} | settings.get("run", {})
    parsed = config.parse(settings | {"run": run})
    parsed.measures()
    return plain(parsed.model_dump(exclude_none=True))


def build(settings: dict[str, Any]) -> None:
    """Make the objects, only to see that they can be made."""
    config.parse(settings).arguments()


def records(settings: dict[str, Any]) -> int:
    """Bytes of the times, measurements and snapshots of a cell, roughly."""
    ts = config.parse(settings).times.build()
    kept = len(kept_indices(settings["run"]["snapshots"], len(ts)))
    one = settings["initial"].get("n", len(settings["initial"].get("x", []))) * 8 * 8
    return 1000 + 8 * len(ts) * (1 + 2 * len(settings["run"]["measure"])) + kept * one


def together_if(settings: dict[str, Any]) -> str | None:
    """What lanes have to have in common; None for cells that are better off alone."""
    initial, run, solver = settings["initial"], settings["run"], settings["solver"]
    drawn = initial["law"] in COUNTED_IF_DRAWN and "key" in initial
    small = (initial["law"] in COUNTED or drawn) and initial["n"] <= LARGEST
    plain_run = (
        "noise" not in settings
        and "key" not in solver
        and "merge_angle" not in run
        and set(run["measure"]) <= set(config.MEASURES)
        and run["summation"] in ("auto", "direct")
    )
    beta = settings["model"].get("beta", 1.0)
    if not small or not plain_run or solver.get("method") == "kvaerno5" or beta == "inf":
        return None
    if "energy" in run["measure"] and not 0 < beta <= LARGEST_ENERGY:
        return None
    model = {k: v for k, v in settings["model"].items() if k != "beta"}
    vector = initial.get("mean") or initial.get("centre") or initial.get("w") or (1, 1)
    dimension = initial.get("d") or len(vector)
    count = len(config.parse(settings).times.build())
    common = [model, initial["law"], initial["n"], dimension, count, solver, run]
    return repr([*common, _shapes(settings["weights"])])


def _shapes(value: Any) -> Any:
    """Matrices without their numbers."""
    if isinstance(value, dict):
        return {k: _shapes(v) for k, v in value.items() if k != "key"}
    if isinstance(value, list):
        return [_shapes(v) for v in value]
    return value if isinstance(value, int) else "number"


def batch_size(settings: dict[str, Any]) -> int:
    """Lanes that fit."""
    n = settings["initial"].get("n", LARGEST)
    times = len(config.parse(settings).times.build())
    return max(1, min(LANES, TOKENS // n, BYTES // (8 * 4 * n * times)))


# -- one at a time


def alone(settings: dict[str, Any], time_limit: float | None) -> Outcome:
    """One run."""
    began = time.monotonic()
    run = simulate(**config.parse(settings).arguments(), strict=False, time_limit=time_limit)
    counts = {name: int(run.stats[name]) for name in ("steps", "rejected")}
    seconds = time.monotonic() - began
    return _outcome(settings, run, counts, seconds)


def _outcome(settings: dict[str, Any], run: Trajectory, counts: dict[str, int], seconds: float) -> Outcome:
    """The arrays of a trajectory; what it did not reach is not there."""
    arrays = {"time": np.asarray(run.ts)} | {k: np.asarray(v) for k, v in run.measured.items()}
    names = {"time": ("time",)} | {k: axes(k, np.ndim(v)) for k, v in run.measured.items()}
    if settings["run"]["snapshots"]:
        arrays |= {"snapshot": np.asarray(run.snapshot_ts), "x": np.asarray(run.x),
                   "token_weights": np.asarray(run.weights)}  # fmt: skip
        names |= {"snapshot": ("snapshot",), "x": axes("x", 3), "token_weights": ("token",)}
    return Outcome(run.status, run.complete, arrays, names, counts, seconds)


# -- many as lanes of one program


class Lane(eqx.Module):
    """What differs between cells of a batch."""

    model: Model
    tokens: Tokens
    ts: Array | np.ndarray


def together(many: Sequence[dict[str, Any]], size: int, time_limit: float | None) -> list[Outcome]:
    """A batch of runs, in order. What cannot be built fails by itself."""
    began = time.monotonic()
    built = _lanes(many)
    good = [lane for lane in built if isinstance(lane, Lane)]
    if not good:
        return [failure(str(lane)) for lane in built]
    first = config.parse(many[0])
    solver, names = first.solver.build(), tuple(first.run.measure)
    # lanes to fill up the program: it is compiled once for all batches
    filled = [lane if isinstance(lane, Lane) else good[0] for lane in built]
    filled += [good[0]] * (size - len(filled))
    lanes = jax.tree.map(lambda *leaves: np.stack([np.asarray(a) for a in leaves]), *filled)
    reached, rows, states, why = _run(solver, lanes, time_limit)
    measured = {k: np.asarray(v) for k, v in _measure(names, lanes, rows).items()}
    host = jax.device_get((states.t, states.steps, states.rejected))
    kept = kept_indices(first.run.snapshots, lanes.ts.shape[1])
    snapshots = np.asarray(rows[:, kept]) if len(kept) else np.empty((size, 0, 1, 1))
    seconds = (time.monotonic() - began) / len(many)
    outcomes = []
    for k, (settings, lane) in enumerate(zip(many, built, strict=True)):
        if not isinstance(lane, Lane):
            outcomes.append(failure(str(lane)))
            continue
        t, steps, rejected = (a[k] for a in host)
        ts, count = lanes.ts[k], int(reached[k])
        complete = count == len(ts)
        status = f"reached t = {ts[-1]:g} as asked" if complete else f"stopped at t = {t:g}: {why[k]}"
        run = Trajectory(
            ts=ts[:count], x=snapshots[k][: int(np.sum(kept < count))],
            weights=np.asarray(lane.tokens.weights),
            snapshot_ts=ts[kept[kept < count]], measured={name: v[k][:count] for name, v in measured.items()},
            stats={}, inputs={}, status=status, complete=complete,
        )  # fmt: skip
        outcomes.append(_outcome(settings, run, {"steps": int(steps), "rejected": int(rejected)}, seconds))
    return outcomes


def _lanes(many: Sequence[dict[str, Any]]) -> list[Lane | InputError]:
    """The lanes, or why there is none. Weights that many cells share are built once."""
    made: list[Lane | InputError] = []
    weights: dict[str, Any] = {}
    for settings in many:
        parsed = config.parse(settings)
        try:
            name = repr(settings["weights"])
            if name not in weights:
                weights[name] = parsed.weights.build()
            ts = parsed.times.build()
            parsed.solver.build().check(ts, 0)
            model, tokens = parsed.model.build(weights[name]), parsed.initial.build()
            if model.d != tokens.d:
                raise InputError(
                    f"`tokens` must have the dimension {model.d} of the model, but was {tokens.d}"
                )
            if not np.all(np.diff(ts) > 0) or not np.all(np.isfinite(ts)):
                raise InputError("`ts` must be finite and increasing, but is not")
            made.append(Lane(model, tokens, ts))
        except InputError as error:
            made.append(error)
    return made


def _run(solver: Solver, lanes: Lane, time_limit: float | None) -> tuple[np.ndarray, Array, State, list[str]]:
    """Step until every lane has ended: times reached, the tokens there, states, and what stopped each."""
    states, rows = _begin(solver, lanes)
    size, times = lanes.ts.shape
    reached = np.zeros(size, int)
    why = [""] * size
    began, mark = None, np.asarray(lanes.ts[:, 0])
    while True:
        states, rows, found = _leg(solver, lanes, states, rows, jnp.asarray(reached))
        reached = np.asarray(found)
        began = began or time.monotonic()  # the first leg, which compiles, does not count
        t, dt, failed = (np.asarray(a) for a in (states.t, states.dt, states.failed))
        target = lanes.ts[np.arange(size), np.minimum(reached, times - 1)]
        stalled = t - mark < HOPELESS * (target - mark)
        going = (reached < times) & ~failed & ~stalled & np.isfinite(dt)
        # a lane may use its own limit for each that still goes on: they share the processor
        late = time_limit is not None and time.monotonic() - began > time_limit * max(1, int(going.sum()))
        mark = t
        if late or not going.any():
            break
    for k in np.flatnonzero(reached < times):
        stop = trouble(float(dt[k]), bool(failed[k]), bool(stalled[k]), solver)
        why[k] = stop or out_of_time(time_limit)
    return reached, rows, states, why


@eqx.filter_jit
def _begin(solver: Solver, lanes: Lane) -> tuple[State, Array]:
    def one(lane: Lane) -> State:
        return stepper.begin(solver, _field(solver, lane), lane.tokens.x, jnp.asarray(lane.ts)[0])

    size, times = lanes.ts.shape
    return jax.vmap(one)(lanes), jnp.full((size, times, *lanes.tokens.x.shape[1:]), jnp.nan)


@eqx.filter_jit
def _leg(
    solver: Solver, lanes: Lane, states: State, rows: Array, reached: Array
) -> tuple[State, Array, Array]:
    """Up to `PATIENCE` attempts of every lane, through as many of its times as that reaches."""

    def one(lane: Lane, state: State, rows: Array, reached: Array) -> tuple[State, Array, Array]:
        field, ts = _field(solver, lane), jnp.asarray(lane.ts)

        def to_next(carry: tuple[State, Array], at: Any) -> Any:
            old, used = carry
            k, t, row = at
            new = stepper.advance(solver, field, old, t, ts[-1], PATIENCE - used)
            new = jax.tree.map(lambda a, b: jnp.where(k < reached, a, b), old, new)
            there = ~new.failed & (new.t >= t)
            row = jnp.where(there & (k >= reached), stepper.read(solver, new, t), row)
            used = used + (new.steps + new.rejected) - (old.steps + old.rejected)
            return (new, used), (row, there | (k < reached))

        start = (state, jnp.zeros((), jnp.int64))
        (state, _), (rows, there) = lax.scan(to_next, start, (jnp.arange(len(ts)), ts, rows))
        return state, rows, jnp.sum(there)

    return jax.vmap(one)(lanes, states, rows, reached)


@eqx.filter_jit
def _measure(names: tuple[str, ...], lanes: Lane, rows: Array) -> dict[str, Array]:
    def one(lane: Lane, rows: Array) -> dict[str, Array]:
        def at(row: Array) -> dict[str, Array]:
            tokens = Tokens(row, lane.tokens.weights)
            return {name: jnp.asarray(config.MEASURES[name](lane.model, tokens)) for name in names}

        return lax.map(at, rows)

    return jax.vmap(one)(lanes, rows)


def _field(solver: Solver, lane: Lane) -> Field:
    return Field(lane.model, lane.tokens.weights, DIRECT, solver.tangent)
