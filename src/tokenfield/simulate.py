"""The one verb: carry tokens along a model's flow and return what was saved.

convert → check → run. A run on concrete arrays is driven from the host (run.py), so that it can show
progress, merge tokens, write to disk and be stopped. Under jit, vmap or grad the same steps run inside one
traced program.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from tokenfield import stepper
from tokenfield.attention.auto import Switchboard
from tokenfield.attention.ring import Ring, mesh_of
from tokenfield.errors import (
    InputError,
    RunError,
    as_number,
    as_whole,
    is_traced,
    require,
    require_increasing,
    require_kind,
)
from tokenfield.models import Model, Noisy
from tokenfield.record import Measure, Record, checked_measures, describe, kept_indices
from tokenfield.run import Run, Watch
from tokenfield.solvers import Adaptive, Solver
from tokenfield.stepper import Field, State
from tokenfield.store import as_path, refuse_occupied
from tokenfield.symmetry import symmetries
from tokenfield.tokens import Tokens, as_real
from tokenfield.trajectory import Trajectory, fingerprint

#: Attempted steps between two saved times after which a traced run, which nobody can stop, gives up.
TRACED_STEPS = 10**7
#: Fast sums that are differentiated in βB are planned for a neighbourhood of it, relative.
NEARBY = 1e-3


def simulate(
    model: Model,
    tokens: Tokens,
    ts: ArrayLike | Array,
    solver: Solver = Adaptive(),  # noqa: B008 (frozen)
    summation: str = "auto",
    progress: bool | Watch = False,
    *,
    snapshots: Sequence[int] | None = None,
    measure: Mapping[str, Measure] | None = None,
    merge_angle: float | None = None,
    store: str | Path | None = None,
    resume: bool = False,
    strict: bool = True,
    settings: Mapping[str, Any] | None = None,
    summation_tolerance: float | None = None,
    time_limit: float | None = None,
    devices: int | None = None,
) -> Trajectory:
    """Follow the tokens through the times `ts` and return a `Trajectory`.

    Arguments:
        model, tokens: the flow and the initial law.
        ts: increasing times; the tokens are given at ts[0]. `log_times` makes log-spaced ones.
        solver: `Adaptive()` (default), `RungeKutta4(step)` or `Layers(step)`; for models with noise
            `EulerMaruyama(step, key)` or `Strang(step, key)`.
        summation: how attention sums are computed: "auto" (by cost, may change during the run), "direct",
            "circle" (d = 2), "harmonic" (d = 3) or "merged" (d = 2, 3); docs/sums.md.
        progress: show a bar with the time reached, steps and rate; or a function (share of the saved times
            reached, time) to be called now and then: what it raises stops the run.
        snapshots: indices into ts at which tokens are kept (negative ones count from the end); all if
            left out, none if empty.
        measure: functions of the tokens, by name, evaluated at every time.
        merge_angle: during the run, replace tokens closer than this angle by one weighted token; they
            stay together in the snapshots. `stats["merge_distance"]` sums the W2 distances introduced.
        store: directory to write to while running; `resume` goes on with one that was cut short.
        strict: raise `RunError` on numerical trouble instead of returning the part that was finished.
        settings: plain data to keep in the store beside the inputs.
        summation_tolerance: error allowed in the sums; a tenth of the solver's tolerance if left out. The
            greatest error found is `stats["certificate"]`; a run that cannot keep it says so.
        time_limit: seconds after which the run stops, as after numerical trouble; looked at between bursts
            of steps, a few times a second unless a single step takes longer.
        devices: spread the tokens over so many JAX devices, direct sums round a ring of them; for runs
            larger than one device, also on several hosts (docs/clusters.md). Not with `merge_angle`.

    Tokens with a symmetry that the model keeps are watched: `status` and `stats["symmetry"]` say when
    rounding has broken it; what follows is not the solution (`Mirrored` keeps a reflection).

    Differentiable in the model, tokens and ts (reverse mode) when called under jax.grad, and usable
    under jit and vmap; there `progress`, `store` and merging do not apply and values are not checked.
    """
    times = as_real(ts, "ts")
    _check(model, tokens, times, solver)
    measure = checked_measures(measure)
    require(store is not None or not resume, "resume", "come with a store", repr(resume))
    path = None if store is None else as_path(store, "store")
    if merge_angle is not None:
        _check_merging(merge_angle, model, devices)
    if time_limit is not None:
        require(as_number(time_limit, "time_limit") > 0, "time_limit", "be positive", time_limit)
    tolerance = _summation_tolerance(summation_tolerance, solver)
    ring = None if devices is None else _ring(devices, model, store=store, time_limit=time_limit)
    known = lax.stop_gradient(tokens)  # under grad, unlike jit, the values are there
    board = Switchboard(summation, _heads(model, summation, tokens), known, tolerance, ring)
    field = Field(model, tokens.weights, board.sums, solver.tangent)
    if is_traced(model, tokens, times):
        require(merge_angle is None, "merge_angle", "not be used under jit", merge_angle)
        require(store is None, "store", "not be used under jit", repr(store))
        return _traced(solver, field, tokens, times, snapshots, measure)

    inputs = describe(
        model=model,
        solver=solver,
        summation=summation,
        summation_tolerance=tolerance,
        merge_angle=merge_angle,
        tokens={"n": tokens.n, "d": tokens.d}
        | {name: fingerprint(np.asarray(a)) for name, a in (("x", tokens.x), ("weights", tokens.weights))},
        ts=times,
        snapshots=None if snapshots is None else kept_indices(snapshots, len(times)),
        measure=sorted(measure),
        **({} if devices is None else {"devices": devices}),
    )
    record = Record(np.asarray(times), tokens, snapshots, measure, inputs)
    kept = [each for each in symmetries(tokens) if model.commutes(each.map)]
    run = Run(solver, field, tokens, np.asarray(times), merge_angle, record, board, time_limit, kept)
    try:
        if path is None:
            run.start()
        elif resume and path.exists():
            checkpoint = record.reopen(path)
            if record.finished is not None:
                return record.finished
            run.restore(checkpoint)
        else:
            refuse_occupied(path)
            run.start()  # first, so that a model that fails leaves no empty store
            record.create(path, tokens, settings)
        trajectory = run.go(progress)
    finally:
        record.close()
    if strict and not trajectory.complete:
        raise RunError(trajectory.status, trajectory)
    return trajectory


def log_times(first: float, last: float, count: int) -> np.ndarray:
    """0 followed by `count` log-spaced times from `first` to `last`."""
    first, last = as_number(first, "first"), as_number(last, "last")
    require(0 < first < np.inf, "first", "be positive and finite", first)
    require(first < last < np.inf, "last", f"be finite and greater than first = {first:g}", last)
    as_whole(count, "count", 2)
    inner = np.geomspace(first, last, count)
    return np.concatenate([[0.0], inner])


def _check(model: Model, tokens: Tokens, ts: Array, solver: Solver) -> None:
    require_kind(model, Model, "model")
    require_kind(tokens, Tokens, "tokens")
    require_kind(solver, Solver, "solver")
    require(tokens.d == model.d, "tokens", f"have the dimension {model.d} of the model", tokens.d)
    if isinstance(model, Noisy) and not solver.takes_noise:
        raise InputError(
            "`solver` must be EulerMaruyama(step, key) or Strang(step, key) for a model with noise,"
            f" but was {type(solver).__name__}"
        )
    if is_traced(ts):
        require(ts.ndim == 1 and ts.size >= 1, "ts", "be a list of times", f"of shape {ts.shape}")
        return
    require_increasing(np.asarray(ts), "ts")
    solver.check(np.asarray(ts), tokens.x.size)


def _check_merging(angle: float, model: Model, devices: int | None) -> None:
    require(0 < as_number(angle, "merge_angle") < np.pi / 2, "merge_angle", "lie between 0 and π/2", angle)
    require(not isinstance(model, Noisy), "merge_angle", "not be used with noise", angle)
    require(devices is None, "merge_angle", "not be used on several devices", angle)


def _ring(devices: int, model: Model, **one_host_only: Any) -> Ring:
    """The devices as a ring, with what does not go together with them refused."""
    ring = Ring(mesh=mesh_of(devices))
    require(not isinstance(model, Noisy), "devices", "not be used with noise", devices)
    if jax.process_count() > 1:
        for name, value in one_host_only.items():
            require(value is None, name, "not be used on several hosts", repr(value))
    return ring


def _traced(
    solver: Solver,
    field: Field,
    tokens: Tokens,
    ts: Float[Array, "times"],
    snapshots: Sequence[int] | None,
    measure: Mapping[str, Measure],
) -> Trajectory:
    """The whole run as one traced program. After numerical trouble the tokens are NaN."""

    def to_next(state: State, t: Array) -> tuple[State, Array]:
        most = jnp.asarray(TRACED_STEPS)
        state = stepper.advance(solver, field, state, t, ts[-1], most, kind="checkpointed")
        reached = ~state.failed & (state.t >= t)
        return state, jnp.where(reached, stepper.read(solver, state, t), jnp.nan)

    state = stepper.begin(solver, field, tokens.x, ts[0])
    state, later = lax.scan(to_next, state, ts[1:])
    x = jnp.concatenate([tokens.x[None], later])
    at = kept_indices(snapshots, len(ts))
    measured = {
        name: lax.map(lambda row, fn=fn: fn(Tokens(row, tokens.weights)), x) for name, fn in measure.items()
    }
    return Trajectory(
        ts=ts,
        x=x[at],
        weights=tokens.weights,
        snapshot_ts=ts[at],
        measured=measured,
        stats={"steps": state.steps, "rejected": state.rejected},
        inputs={},
        status="traced: values were not looked at; NaN marks trouble",
        complete=True,
    )


def _heads(model: Model, summation: str, tokens: Tokens) -> np.ndarray | None:
    """βB of the heads where there is something to gain and the values are known."""
    if summation == "auto" and is_traced(model, tokens):
        return None  # nobody could change the sums during the run
    if summation == "direct" and is_traced(model):
        return None
    with jax.ensure_compile_time_eval():  # a model that is not traced has values inside jit, too
        heads = lax.stop_gradient(model.exponents)
    require(not is_traced(heads), "summation", "be 'direct' where B or beta are traced by jit or vmap",
            repr(summation))  # fmt: skip
    if heads is None or not is_traced(model):
        return None if heads is None else np.asarray(heads)
    return np.concatenate([(1 - NEARBY) * np.asarray(heads), (1 + NEARBY) * np.asarray(heads)])


def _summation_tolerance(tolerance: float | None, solver: Solver) -> float:
    if tolerance is None:
        return max(0.1 * solver.tolerance, 1e-12)
    require(
        1e-12 <= as_number(tolerance, "summation_tolerance") <= 1e-2,
        "summation_tolerance",
        "lie in [1e-12, 1e-2]",
        tolerance,
    )
    return float(tolerance)
