"""The one verb: carry tokens along a model's flow and return what was saved.

convert → check → run. A run on concrete arrays is driven from the host in bursts of compiled steps, so
that it can show progress, merge tokens, write to disk and be stopped. Under jit, vmap or grad the same
steps run inside one traced program.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from numpy.typing import ArrayLike
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tokenfield import stepper
from tokenfield.attention.auto import Switchboard
from tokenfield.attention.direct import Sums
from tokenfield.errors import InputError, RunError, as_number, as_whole, is_traced, require
from tokenfield.models import Model
from tokenfield.record import Measure, Record, checked_measures, describe, kept_indices
from tokenfield.solvers import Adaptive, Solver
from tokenfield.stepper import Field, State
from tokenfield.store import Checkpoint, as_path, refuse_occupied
from tokenfield.tokens import Tokens, as_real
from tokenfield.trajectory import Trajectory, fingerprint, plain

#: Attempted steps between two looks for tokens to merge, and this many times that for cheaper sums; fixed, so
#: that a resumed run does alike.
PACE, RECONSIDER = 16, 4
#: Seconds a burst of compiled steps should take.
BURST_SECONDS = 0.2
#: So many attempts that get less than this part of the way to the next saved time will not get there.
PATIENCE, HOPELESS = 1000, 1e-8
#: Attempted steps between two saved times after which a traced run, which nobody can stop, gives up.
TRACED_STEPS = 10**7

#: What is wrong when steps become too short.
ROUGH = "the velocity is not finite or not smooth there"

_begin = eqx.filter_jit(stepper.begin)
_advance = eqx.filter_jit(stepper.advance)
_read = eqx.filter_jit(stepper.read)


def simulate(
    model: Model,
    tokens: Tokens,
    ts: ArrayLike | Array,
    solver: Solver = Adaptive(),  # noqa: B008 (frozen)
    summation: str = "auto",
    progress: bool = False,
    *,
    snapshots: Sequence[int] | None = None,
    measure: Mapping[str, Measure] | None = None,
    merge_angle: float | None = None,
    store: str | Path | None = None,
    resume: bool = False,
    strict: bool = True,
    settings: Mapping[str, Any] | None = None,
    summation_tolerance: float | None = None,
) -> Trajectory:
    """Follow the tokens through the times `ts` and return a `Trajectory`.

    Arguments:
        model, tokens: the flow and the initial law.
        ts: increasing times; the tokens are given at ts[0]. `log_times` makes log-spaced ones.
        solver: `Adaptive()` (default), `RungeKutta4(step)` or `Layers(step)`.
        summation: how attention sums are computed: "auto" (by cost, may change during the run), "direct",
            "circle" (d = 2), "harmonic" (d = 3) or "merged" (d = 2, 3); docs/sums.md.
        progress: show a bar with the time reached, steps and rate.
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

    Differentiable in the model, tokens and ts (reverse mode) when called under jax.grad, and usable
    under jit and vmap; there `progress`, `store` and merging do not apply and values are not checked.
    """
    times = as_real(ts, "ts")
    _check(model, tokens, times, solver)
    measure = checked_measures(measure)
    require(store is not None or not resume, "resume", "come with a store", repr(resume))
    path = None if store is None else as_path(store, "store")
    if merge_angle is not None:
        require(
            0 < as_number(merge_angle, "merge_angle") < np.pi / 2,
            "merge_angle",
            "lie between 0 and π/2",
            merge_angle,
        )
    tolerance = _summation_tolerance(summation_tolerance, solver)
    board = Switchboard(summation, _heads(model, summation, tokens), tokens, tolerance)
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
    )
    record = Record(np.asarray(times), tokens, snapshots, measure, inputs)
    run = _Run(solver, field, tokens, np.asarray(times), merge_angle, record, board)
    try:
        if path is not None and resume and path.exists():
            checkpoint = record.reopen(path)
            if record.finished is not None:
                return record.finished
            run.restore(checkpoint)
        elif path is not None:
            refuse_occupied(path)
            run.start()  # first, so that a model that fails leaves no empty store
            record.create(path, tokens, settings)
        else:
            run.start()
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
    for name, value, kind in (
        ("model", model, Model),
        ("tokens", tokens, Tokens),
        ("solver", solver, Solver),
    ):
        if not isinstance(value, kind):
            raise InputError(f"`{name}` must be a {kind.__name__}, but was {type(value).__name__}")
    require(tokens.d == model.d, "tokens", f"have the dimension {model.d} of the model", tokens.d)
    require(ts.ndim == 1 and ts.size >= 1, "ts", "be a list of times", f"of shape {ts.shape}")
    if is_traced(ts):
        return
    t = np.asarray(ts)
    require(bool(np.all(np.isfinite(t))), "ts", "be finite", t[~np.isfinite(t)][:1])
    back = np.flatnonzero(np.diff(t) <= 0)
    if back.size:
        k = int(back[0])
        raise InputError(
            f"`ts` must be increasing, but ts[{k + 1}] = {t[k + 1]:g} follows ts[{k}] = {t[k]:g}"
        )
    solver.check(t, tokens.x.size)


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


class _Run:
    """A run on concrete arrays, driven from the host."""

    def __init__(
        self,
        solver: Solver,
        field: Field,
        tokens: Tokens,
        ts: np.ndarray,
        merge_angle: float | None,
        record: Record,
        board: Switchboard,
    ):
        self.solver, self.field, self.ts, self.record = solver, field, ts, record
        self.board, self.used = board, [(float(ts[0]), type(board.sums).__name__.lower())]
        self.initial, self.merge_angle = tokens, merge_angle
        #: which row of the state each token is, and how many rows are tokens (the rest is padding)
        self.group, self.active = np.arange(tokens.n), tokens.n
        self.merge_distance, self.restarts, self.seconds = 0.0, 0, 0.0
        self.burst, self.stalled, self.reconsidered = 8, False, 0
        #: attempts, time and restarts when the pace was last looked at
        self.mark = (0, float(ts[0]), 0)

    def start(self) -> None:
        """Begin at the first time."""
        self.state = _begin(self.solver, self.field, self.initial.x, jnp.asarray(self.ts[0]))

    def go(self, progress: bool) -> Trajectory:
        """Run to the end, or to trouble, and return the trajectory."""
        began, before = time.monotonic(), self.seconds
        with _bar(progress) as bar:
            task = bar.add_task("simulating", total=1.0, t=float(self.state.t), steps=0, rate=0.0)
            self._record_reached()
            while self.record.reached < len(self.ts) and not self._trouble():
                self._burst()
                self._record_reached()
                self._merge()
                self._reconsider()
                self.seconds = before + time.monotonic() - began
                self.record.flush(self._checkpoint)
                steps = int(self.state.steps)
                rate = steps / max(self.seconds, 1e-9)
                bar.update(task, completed=self._fraction(), t=float(self.state.t), steps=steps, rate=rate)
        self.seconds = before + time.monotonic() - began
        return self._finish()

    def _burst(self) -> None:
        paced = self.merge_angle or self.board.summation == "auto"
        most = PACE - self._attempts() % PACE if paced else self.burst
        began = time.monotonic()
        target, stop = jnp.asarray(self.ts[self.record.reached]), jnp.asarray(self.ts[-1])
        self.state = _advance(self.solver, self.field, self.state, target, stop, jnp.asarray(most))
        jax.block_until_ready(self.state)
        if bool(self.state.failed) and not self.field.exact:
            self._fall_back()
        self._watch_pace(float(target))
        if time.monotonic() - began < BURST_SECONDS:
            self.burst = min(2 * self.burst, 10**6)
        else:
            self.burst = max(1, self.burst // 2)

    def _watch_pace(self, target: float) -> None:
        """Stalled if the last thousand attempts got nowhere; a merge starts the count anew."""
        attempts, t, restarts = self.mark
        if self.restarts != restarts or self._attempts() - attempts >= PATIENCE:
            hopeless = float(self.state.t) - t < HOPELESS * (target - t)
            self.stalled = hopeless and self.restarts == restarts
            self.mark = (self._attempts(), float(self.state.t), self.restarts)

    def _record_reached(self) -> None:
        while self.record.reached < len(self.ts) and self.ts[self.record.reached] <= float(self.state.t):
            x = _read(self.solver, self.state, jnp.asarray(self.ts[self.record.reached]))
            self.record.add(Tokens(x[self.group], self.initial.weights))

    def _merge(self) -> None:
        if self.merge_angle is None or self._attempts() % PACE:
            return
        merged = Tokens(self.state.x[: self.active], self.field.weights[: self.active]).merge(
            self.merge_angle
        )
        if merged.tokens.n == self.active:
            return
        self.merge_distance += merged.distance
        self.group, self.active = np.asarray(merged.group)[self.group], merged.tokens.n
        # rows of weight 0 pad to a power of four: a run then compiles few programs, not n
        size = min(len(self.state.x), 4 ** int(np.ceil(np.log(self.active) / np.log(4) - 1e-9)))
        pad = size - self.active
        x = jnp.concatenate([merged.tokens.x, jnp.broadcast_to(merged.tokens.x[:1], (pad, self.initial.d))])
        weights = jnp.concatenate([merged.tokens.weights, jnp.zeros(pad)])
        self._replace(x, weights)

    def _fall_back(self) -> None:
        """Other sums for the step at which the present ones missed their tolerance, if there are any."""
        if self.board.fall_back(self._tokens()):
            self._take_sums()
            blocked = lambda s: (s.failed, s.stuck)  # noqa: E731
            self.state = eqx.tree_at(
                blocked, self.state, (jnp.array(False), jnp.zeros_like(self.state.stuck))
            )

    def _reconsider(self) -> None:
        due = self._attempts() % (PACE * RECONSIDER) == 0 and self._attempts() != self.reconsidered
        if due and not self._trouble():
            self.reconsidered = self._attempts()
            if self.board.reconsider(self._tokens()):
                self._take_sums()

    def _take_sums(self) -> None:
        self.field = eqx.tree_at(lambda f: f.sums, self.field, self.board.sums, is_leaf=_is_sums)
        self.used.append((float(self.state.t), type(self.board.sums).__name__.lower()))

    def _tokens(self) -> Tokens:
        return Tokens(self.state.x, self.field.weights)

    def _replace(self, x: Array, weights: Array) -> None:
        """Go on from other tokens at the same time with the same step and counts."""
        old, self.restarts = self.state, self.restarts + 1
        self.field = eqx.tree_at(lambda f: f.weights, self.field, weights)
        new = stepper.fresh(self.solver, self.field, x, old.t, old.dt, old.controller)
        counts = lambda s: (s.steps, s.rejected, s.stuck, s.failed)  # noqa: E731
        self.state = eqx.tree_at(counts, new, counts(old))

    def _attempts(self) -> int:
        return int(self.state.steps) + int(self.state.rejected)

    def _fraction(self) -> float:
        """Share of the saved times reached, with the part of the current gap."""
        k = self.record.reached
        if k >= len(self.ts):
            return 1.0
        gap = (float(self.state.t) - self.ts[k - 1]) / (self.ts[k] - self.ts[k - 1])
        return (k - 1 + min(max(gap, 0.0), 1.0)) / (len(self.ts) - 1)

    def _trouble(self) -> str:
        t = float(self.state.t)
        if not np.isfinite(float(self.state.dt)):
            return f"stopped at t = {t:g}: the velocity is not finite at the initial tokens"
        if self.stalled:
            return f"stopped at t = {t:g}: steps of {float(self.state.dt):.1e} will not get far; {ROUGH}"
        if not bool(self.state.failed):
            return ""
        if not self.field.exact:
            return (
                f"stopped at t = {t:g}: {self.used[-1][1]} sums missed their tolerance"
                f" {self.board.tolerance:g} at the next step; use summation='auto' or 'direct'"
            )
        if self.solver.controller is None:
            return f"stopped at t = {t:g}: the next step gave tokens that are not finite"
        return f"stopped at t = {t:g}: no step, however short, met the tolerance; {ROUGH}"

    def _finish(self) -> Trajectory:
        trouble = self._trouble()
        complete = self.record.reached == len(self.ts)
        status = f"reached t = {self.ts[-1]:g} as asked" if complete else trouble
        stats = self._stats()
        facts = {"status": status, "complete": complete, "stats": plain(stats)}
        self.record.flush(self._checkpoint, last=True, **facts)
        return self.record.trajectory(status, complete, stats)

    def _stats(self) -> dict[str, Any]:
        stages, starts = self.solver.stages, 3 + self.restarts if self.solver.controller else 0
        stats = {
            "steps": int(self.state.steps),
            "rejected": int(self.state.rejected),
            "evaluations": None if stages is None else self._attempts() * stages + starts,
            "seconds": self.seconds,
            "summation": _history(self.used),
            "certificate": float(self.state.certificate),
            "log_time_unit": float(self.field.model.log_time_unit),
        }
        if self.merge_angle is not None:
            stats |= {"tokens_left": self.active, "merge_distance": self.merge_distance}
        return stats

    def _checkpoint(self) -> dict[str, np.ndarray]:
        """All that is needed to go on; the interpolant is not, since all times reached are recorded."""
        leaves = jax.tree.leaves(eqx.tree_at(lambda s: s.dense, self.state, None))
        counts = {"reached": self.record.reached, "active": self.active, "restarts": self.restarts}
        floats = {"merge_distance": self.merge_distance, "seconds": self.seconds}
        arrays = {"group": self.group, "weights": self.field.weights}
        state = {f"state_{i}": leaf for i, leaf in enumerate(leaves)}
        sums = {"sums": json.dumps([self.board.describe(), self.used, self.reconsidered])}
        return {k: np.asarray(v) for k, v in (counts | floats | arrays | state | sums).items()}

    def restore(self, saved: Checkpoint | None) -> None:
        """Go on from a checkpoint, or from the start if there is none."""
        if saved is None:
            return self.start()
        self.active, self.restarts = (int(saved.take(k, (), np.int64)) for k in ("active", "restarts"))
        self.seconds, self.merge_distance = (
            float(saved.take(k, (), np.float64)) for k in ("seconds", "merge_distance")
        )
        self.group = saved.take("group", (self.initial.n,), np.int64)
        rows = np.size(saved.get("weights", 0))
        weights = saved.take("weights", (rows,), np.float64)
        inside = self.group.min() >= 0 and self.group.max() < self.active <= rows
        saved.require(bool(inside), "has a `group` that points nowhere")
        self.field = eqx.tree_at(lambda f: f.weights, self.field, jnp.asarray(weights))
        description, self.used, self.reconsidered = saved.json("sums")
        self.board.restore(description)
        self.field = eqx.tree_at(lambda f: f.sums, self.field, self.board.sums, is_leaf=_is_sums)
        x = jnp.zeros((rows, self.initial.d))
        like = eqx.filter_eval_shape(stepper.begin, self.solver, self.field, x, jnp.zeros(()))
        dense = stepper.zeros(like.dense)
        bare = eqx.tree_at(lambda s: s.dense, like, None)
        leaves = [
            jnp.asarray(saved.take(f"state_{i}", leaf.shape, leaf.dtype))
            for i, leaf in enumerate(jax.tree.leaves(bare))
        ]
        bare = jax.tree.unflatten(jax.tree.structure(bare), leaves)
        self.state = eqx.tree_at(lambda s: s.dense, bare, dense, is_leaf=lambda leaf: leaf is None)
        return None


def _heads(model: Model, summation: str, tokens: Tokens) -> np.ndarray | None:
    """βB of the heads where there is something to gain and the values are known."""
    if summation == "auto" and is_traced(model, tokens):
        return None  # nobody could change the sums during the run
    if is_traced(model):
        fast = summation not in ("auto", "direct")
        require(not fast, "summation", "be 'direct' where B or beta are traced", repr(summation))
        return None
    heads = model.exponents
    return None if heads is None else np.asarray(heads)


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


def _history(used: list[tuple[float, str]]) -> str:
    """The sums used, in words: "circle", "circle, merged from t = 17.2"."""
    first, *later = used
    words = [first[1], *(f"{name} from t = {t:.6g}" for t, name in later[:5])]
    more = [f"and {len(later) - 5} more changes"] if len(later) > 5 else []
    return ", ".join(words + more)


def _is_sums(node: Any) -> bool:
    return isinstance(node, Sums)


def _bar(progress: bool) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("t = {task.fields[t]:.5g}, {task.fields[steps]} steps, {task.fields[rate]:.3g}/s"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, disable=not progress)
