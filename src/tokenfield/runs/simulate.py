"""The verbs: carry tokens along a model's flow, and return what was saved or look on while it runs.

convert → check → run. A run on concrete arrays is driven from the host (driver.py), so that it can show
progress, merge tokens, write to disk and be stopped. Under jit, vmap or grad the same steps run inside one
traced program.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from tokenfield.errors import (
    InputError,
    RunError,
    as_number,
    is_traced,
    require,
    require_increasing,
    require_kind,
)
from tokenfield.laws.symmetry import symmetries
from tokenfield.laws.tokens import Tokens
from tokenfield.models.base import Model
from tokenfield.models.requirements import check_devices, check_merging
from tokenfield.runs import stepper
from tokenfield.runs.driver import Driver
from tokenfield.runs.files import as_path
from tokenfield.runs.plain import describe, fingerprint, plain
from tokenfield.runs.record import Measure, Record, checked_measures
from tokenfield.runs.stepper import Field, State
from tokenfield.runs.store import refuse_occupied
from tokenfield.runs.threads import threads_note
from tokenfield.runs.times import as_times, kept_indices
from tokenfield.runs.trajectory import Trajectory
from tokenfield.runs.watchers import Progress, ProgressBar, slow_step
from tokenfield.solvers.ode import Adaptive, Solver
from tokenfield.sums.choice import policy_for
from tokenfield.sums.ring import Ring, mesh_of

#: Attempted steps between two saved times after which a traced run, which nobody can stop, gives up.
TRACED_STEPS = 10**7


def simulate(
    model: Model,
    tokens: Tokens,
    ts: ArrayLike | Array,
    solver: Solver = Adaptive(),  # noqa: B008 (frozen)
    summation: str = "auto",
    progress: bool | Progress | None = None,
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

    Args:
        model: the flow: attention and other terms, in a space, with weights that may change with depth.
        tokens: the initial law, rows in order; lengths in a free space are 1 unless given.
        ts: increasing times, the tokens are given at ts[0]; or one final time, counted from 0. `log_times`
            makes log-spaced ones.
        solver: `Adaptive()` (default), `RungeKutta4(step)` or `Layers(step)`; for models with noise
            `EulerMaruyama(step, key)` or `Strang(step, key)`.
        summation: how attention sums are computed: "auto" (by cost, may change during the run), "direct",
            "circle" (d = 2), "harmonic" (d = 3) or "merged" (d = 2, 3); docs/sums.md.
        progress: True for a bar with the time reached, steps and rate, False for none, None for a bar in a
            terminal or notebook once the run lasts over two seconds; or a function (share of the saved times
            reached, time) to be called now and then: what it raises stops the run.
        snapshots: indices into ts at which tokens are kept (negative ones count from the end); all if
            left out, none if empty.
        measure: functions of the tokens, by name, evaluated at every time.
        merge_angle: during the run, replace tokens closer than this angle by one weighted token; they
            stay together in the snapshots. `stats["merge_distance"]` sums the W2 distances introduced.
        store: directory to write to while running.
        resume: go on with a store that was cut short, to the same bits as without the cut if the number of
            threads is the same; if not, `status` says so.
        strict: raise `RunError` on numerical trouble instead of returning the part that was finished.
        settings: plain data to keep in the store beside the inputs.
        summation_tolerance: error allowed in the sums; a tenth of the solver's tolerance if left out. The
            greatest error found is `stats["certificate"]`; a run that cannot keep it says so.
        time_limit: seconds after which the run stops, as after numerical trouble; counted from the first step
            on, and looked at a few times a second, after every step if steps are slower than that.
        devices: spread the tokens over so many JAX devices, direct sums round a ring of them; for runs
            larger than one device, also on several hosts (docs/clusters.md). Not with `merge_angle`.

    Tokens with a symmetry that the model keeps are watched: `status` and `stats["symmetry"]` say when
    rounding has broken it; what follows is not the solution (`Mirrored` keeps a reflection).

    Differentiable in the model, tokens and ts (reverse mode) when called under jax.grad, and usable
    under jit and vmap; there `progress`, `store` and merging do not apply and values are not checked.
    """
    times = as_times(ts)
    _check(model, tokens, times, solver)
    measure = checked_measures(measure)
    require(store is not None or not resume, "resume", "come with a store", repr(resume))
    path = None if store is None else as_path(store, "store")
    if devices is not None and jax.process_count() > 1:
        for name, value in (("store", store), ("time_limit", time_limit)):
            require(value is None, name, "not be used on several hosts", repr(value))
    tokens = _in_space(model, tokens)
    if _traced_inputs(model, tokens, times, solver):
        require(merge_angle is None, "merge_angle", "not be used under jit", merge_angle)
        require(store is None, "store", "not be used under jit", repr(store))
        tolerance = _summation_tolerance(summation_tolerance, solver)
        sums = policy_for(model, tokens, summation, tolerance).sums
        return _traced(solver, Field(model, tokens.weights, sums), tokens, times, snapshots, measure)
    driver = _driver(
        model, tokens, times, solver, summation, summation_tolerance, merge_angle, time_limit, devices
    )
    inputs = describe(
        model=model,
        solver=solver,
        summation=summation,
        summation_tolerance=driver.policy.tolerance,
        merge_angle=merge_angle,
        tokens=_fingerprints(tokens),
        ts=times,
        snapshots=None if snapshots is None else kept_indices(snapshots, len(times)),
        measure=sorted(measure),
        **({} if devices is None else {"devices": devices}),
    )
    record = Record(np.asarray(times), tokens, snapshots, measure, inputs)
    try:
        if path is None:
            driver.start()
        elif resume and path.exists():
            checkpoint = record.reopen(path)
            if record.finished is not None:
                return record.finished
            driver.restore(checkpoint)
        else:
            refuse_occupied(path)
            driver.start()  # first, so that a model that fails leaves no empty store
            record.create(path, tokens, settings, model)
        trajectory = _recorded(driver, record, progress)
    finally:
        record.close()
    if strict and not trajectory.complete:
        raise RunError(trajectory.status, trajectory)
    return trajectory


class Moment(NamedTuple):
    """A run at one time: the time, the tokens, and what it has cost so far (steps, seconds, sums, ...)."""

    t: float
    tokens: Tokens
    stats: dict[str, Any]


def moments(
    model: Model,
    tokens: Tokens,
    ts: ArrayLike | Array,
    solver: Solver = Adaptive(),  # noqa: B008 (frozen)
    summation: str = "auto",
    progress: bool | Progress | None = None,
    *,
    merge_angle: float | None = None,
    summation_tolerance: float | None = None,
    time_limit: float | None = None,
) -> Iterator[Moment]:
    """Look on while tokens move: a run as an iterator, to be stopped when you like.

        for moment in tkf.moments(model, tokens, ts=10.0):
            print(moment.t, tkf.order_parameter(moment.tokens))

    Args:
        model: the flow.
        tokens: the initial law, rows in order.
        ts: increasing times at which to look, the first is that of the tokens; or one final time, counted
            from 0: then there is a moment after every burst of steps, a few a second.
        solver, summation, progress, merge_angle, summation_tolerance, time_limit: as in `simulate`.

    Raises `RunError` on numerical trouble, after the moments that were reached.
    """
    times = as_times(ts)
    _check(model, tokens, times, solver)
    require(not _traced_inputs(model, tokens, times, solver), "moments", "not be called under jit", "traced")
    driver = _driver(
        model,
        _in_space(model, tokens),
        times,
        solver,
        summation,
        summation_tolerance,
        merge_angle,
        time_limit,
    )
    driver.start()
    return _moments(driver, ProgressBar(progress), every_burst=np.ndim(ts) == 0)


def _moments(driver: Driver, bar: ProgressBar, every_burst: bool) -> Iterator[Moment]:
    try:
        for saved in driver.saved():
            yield Moment(saved.t, saved.tokens, driver.stats())
        _ready(driver, bar)
        while driver.going:
            driver.go_on()
            found = driver.saved()
            for saved in found:
                yield Moment(saved.t, saved.tokens, driver.stats())
            t = float(driver.state.t)
            if every_burst and not found and driver.going:
                yield Moment(t, driver.tokens_at(t), driver.stats())
            driver.between()
            bar(driver.share(), t, int(driver.state.steps), driver.clock.seconds)
    finally:
        bar.close()
    status, complete = driver.status()
    if not complete:
        raise RunError(status)


def _recorded(driver: Driver, record: Record, progress: bool | Progress | None) -> Trajectory:
    """Run to the end, or to trouble, and return what was recorded."""
    bar = ProgressBar(progress)
    driver.clock.begin()
    try:
        _take(driver, record)
        _ready(driver, bar)
        while driver.going:
            driver.go_on()
            _take(driver, record)
            driver.between()
            record.flush(driver.checkpoint)
            bar(driver.share(), float(driver.state.t), int(driver.state.steps), driver.clock.seconds)
    finally:
        bar.close()
    status, complete = driver.status()
    note = threads_note(record.threads)
    status += f"; {note}" if note else ""
    stats = driver.stats()
    record.flush(driver.checkpoint, last=True, status=status, complete=complete, stats=plain(stats))
    return record.trajectory(status, complete, stats, driver.field.model)


def _ready(driver: Driver, bar: ProgressBar) -> None:
    """Compile, and have it said if the first step is slow."""
    driver.compile()
    bar.expect(slow_step(driver.initial.n, driver.policy.sums.name))


def _take(driver: Driver, record: Record) -> None:
    for saved in driver.saved():
        record.add(saved.tokens)


# -- converting and checking


def _check(model: Model, tokens: Tokens, ts: Array, solver: Solver) -> None:
    require_kind(model, Model, "model")
    require_kind(tokens, Tokens, "tokens")
    require_kind(solver, Solver, "solver")
    model.check(tokens)
    if model.noisy and not solver.takes_noise:
        raise InputError(
            "`solver` must be EulerMaruyama(step, key) or Strang(step, key) for a model with noise,"
            f" but was {type(solver).__name__}"
        )
    if model.common_noise and not solver.takes_common_noise:
        raise InputError(
            "`solver` must be EulerMaruyama(step, key) for noise that all tokens share,"
            f" but was {type(solver).__name__}"
        )
    if solver.takes_noise and model.space.free:
        raise InputError(
            f"`solver` must not be {type(solver).__name__} in a free space: its steps stay on the sphere;"
            " use Adaptive(), RungeKutta4(step) or Layers(step)"
        )
    if is_traced(ts):
        require(ts.ndim == 1 and ts.size >= 1, "ts", "be a list of times", f"of shape {ts.shape}")
        return
    require_increasing(np.asarray(ts), "ts")
    solver.check(np.asarray(ts), tokens.x.size)


def _traced_inputs(model: Model, tokens: Tokens, ts: Array, solver: Solver) -> bool:
    """Whether any number is traced, also one that the function of a schedule holds."""
    if is_traced(model, tokens, ts, solver) or not model.reads_time:
        return is_traced(model, tokens, ts, solver)
    with jax.ensure_compile_time_eval():
        return is_traced(model.at(0.0))


def _in_space(model: Model, tokens: Tokens) -> Tokens:
    """The tokens as the model's space has them: with lengths in a free one, without on the sphere."""
    free = model.space.free
    if free == (tokens.radii is not None):
        return tokens
    radii = jnp.ones(tokens.n) if free else None
    # in place: making tokens anew would round their directions once more
    return eqx.tree_at(lambda t: t.radii, tokens, radii, is_leaf=lambda leaf: leaf is None)


def _driver(
    model: Model,
    tokens: Tokens,
    ts: Array,
    solver: Solver,
    summation: str,
    summation_tolerance: float | None,
    merge_angle: float | None,
    time_limit: float | None,
    devices: int | None = None,
) -> Driver:
    """A run that has not begun, with what does not go together refused."""
    if merge_angle is not None:
        angle = as_number(merge_angle, "merge_angle")
        require(0 < angle < np.pi / 2, "merge_angle", "lie between 0 and π/2", angle)
        require(devices is None, "merge_angle", "not be used on several devices", angle)
        check_merging(model)
    if time_limit is not None:
        require(as_number(time_limit, "time_limit") > 0, "time_limit", "be positive", time_limit)
    ring = None
    if devices is not None:
        ring = Ring(mesh=mesh_of(devices))
        check_devices(model)
    tolerance = _summation_tolerance(summation_tolerance, solver)
    policy = policy_for(model, tokens, summation, tolerance, ring)
    field = Field(model, tokens.weights, policy.sums)
    kept = []
    if not model.reads_order and not model.space.free and not model.noisy:
        kept = [each for each in symmetries(tokens) if model.commutes(each.map)]
    return Driver(solver, field, tokens, np.asarray(ts), policy, merge_angle, time_limit, kept)


def _fingerprints(tokens: Tokens) -> dict[str, Any]:
    """The tokens as plain data: their number, dimension and hashes."""
    arrays = {"x": tokens.x, "weights": tokens.weights, "radii": tokens.radii}
    hashes = {name: fingerprint(np.asarray(a)) for name, a in arrays.items() if a is not None}
    return {"n": tokens.n, "d": tokens.d} | hashes


def _summation_tolerance(tolerance: float | None, solver: Solver) -> float:
    if tolerance is None:
        return max(0.1 * solver.tolerance, 1e-12)
    inside = 1e-12 <= as_number(tolerance, "summation_tolerance") <= 1e-2
    require(inside, "summation_tolerance", "lie in [1e-12, 1e-2]", tolerance)
    return float(tolerance)


# -- under jit, vmap and grad


def _traced(
    solver: Solver,
    field: Field,
    tokens: Tokens,
    ts: Float[Array, "times"],
    snapshots: Sequence[int] | None,
    measure: Mapping[str, Measure],
) -> Trajectory:
    """The whole run as one traced program. After numerical trouble the tokens are NaN."""
    space = field.model.space

    def to_next(state: State, t: Array) -> tuple[State, Array]:
        most = jnp.asarray(TRACED_STEPS)
        state = stepper.advance(solver, field, state, t, ts[-1], most, kind="checkpointed")
        reached = ~state.failed & (state.t >= t)
        return state, jnp.where(reached, stepper.read(solver, field, state, t), jnp.nan)

    first = space.state(tokens)
    state = stepper.begin(solver, field, first, ts[0])
    state, later = lax.scan(to_next, state, ts[1:])
    rows = jnp.concatenate([first[None], later])
    at = kept_indices(snapshots, len(ts))
    law = lambda row: space.tokens(row, tokens.weights)  # noqa: E731
    measured = {name: lax.map(lambda row, fn=fn: fn(law(row)), rows) for name, fn in measure.items()}
    radii = jnp.linalg.norm(rows[at], axis=-1) if space.free else None
    return Trajectory(
        ts=ts,
        x=rows[at] if radii is None else rows[at] / radii[..., None],
        weights=tokens.weights,
        snapshot_ts=ts[at],
        measured=measured,
        stats={"steps": state.steps, "rejected": state.rejected},
        inputs={},
        status="traced: values were not looked at; NaN marks trouble",
        complete=True,
        radii=radii,
        model=field.model,
    )
