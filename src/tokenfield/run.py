"""A run on concrete arrays, driven from the host in bursts of compiled steps.

Between bursts it records what was reached, merges tokens, changes sums, writes to disk and shows progress.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tokenfield import stepper
from tokenfield.attention.auto import Switchboard
from tokenfield.attention.direct import Sums
from tokenfield.attention.ring import gathered, place, spread_tokens
from tokenfield.record import Record
from tokenfield.solvers import Solver
from tokenfield.stepper import Field
from tokenfield.store import Checkpoint
from tokenfield.symmetry import LOST, Symmetry
from tokenfield.tokens import Tokens
from tokenfield.trajectory import Trajectory, plain

#: Attempted steps between two looks for tokens to merge, and this many times that for cheaper sums; fixed, so
#: that a resumed run does alike.
PACE, RECONSIDER = 16, 4
#: Seconds a burst of compiled steps should take.
BURST_SECONDS = 0.2
#: So many attempts that get less than this part of the way to the next saved time will not get there.
PATIENCE, HOPELESS = 1000, 1e-8
#: What is wrong when steps become too short.
ROUGH = "the velocity is not finite or not smooth there"

#: Told between bursts the share of saved times reached and the time; what it raises stops the run.
Watch = Callable[[float, float], None]

_begin = eqx.filter_jit(stepper.begin)
_advance = eqx.filter_jit(stepper.advance)
_read = eqx.filter_jit(stepper.read)


class Run:
    """Where a run stands: its state, its sums, which tokens were merged, what it cost."""

    def __init__(
        self,
        solver: Solver,
        field: Field,
        tokens: Tokens,
        ts: np.ndarray,
        merge_angle: float | None,
        record: Record,
        board: Switchboard,
        time_limit: float | None = None,
        symmetries: Sequence[Symmetry] = (),
    ):
        self.solver, self.field, self.ts, self.record = solver, field, ts, record
        self.first = tokens.x
        if board.ring is not None:
            self.first, weights = spread_tokens(tokens, board.ring.mesh)
            self.field = eqx.tree_at(lambda f: f.weights, field, weights)
        self.board, self.used = board, [(float(ts[0]), type(board.sums).__name__.lower())]
        self.initial, self.merge_angle, self.time_limit = tokens, merge_angle, time_limit
        #: which row of the state each token is, and how many rows are tokens (the rest is padding)
        self.group, self.active = np.arange(tokens.n), tokens.n
        self.merge_distance, self.restarts, self.seconds = 0.0, 0, 0.0
        self.burst, self.stalled, self.late, self.reconsidered = 8, False, False, 0
        self.symmetries, self.broken = symmetries, ""
        #: attempts, time and restarts when the pace was last looked at
        self.mark = (0, float(ts[0]), 0)

    def start(self) -> None:
        """Begin at the first time, with sums that keep their tolerance there."""
        self.state = _begin(self.solver, self.field, self.first, jnp.asarray(self.ts[0]))
        while not np.isfinite(float(self.state.dt)) and self._fall_back():
            self.state = _begin(self.solver, self.field, self.first, jnp.asarray(self.ts[0]))

    def go(self, progress: bool | Watch) -> Trajectory:
        """Run to the end, or to trouble, and return the trajectory."""
        began, before = time.monotonic(), self.seconds
        limit_from: float | None = None  # the first burst, which compiles, does not count
        with _bar(progress is True) as bar:
            task = bar.add_task("simulating", total=1.0, t=float(self.state.t), steps=0, rate=0.0)
            self._record_reached()
            while self.record.reached < len(self.ts) and not self._trouble():
                self._burst()
                self._record_reached()
                self._merge()
                self._reconsider()
                self.seconds = before + time.monotonic() - began
                now = time.monotonic()
                limit_from = limit_from or now
                self.late = self.time_limit is not None and now - limit_from > self.time_limit
                self.record.flush(self._checkpoint)
                steps = int(self.state.steps)
                rate = steps / max(self.seconds, 1e-9)
                bar.update(task, completed=self._fraction(), t=float(self.state.t), steps=steps, rate=rate)
                if callable(progress):
                    progress(self._fraction(), float(self.state.t))
        self.seconds = before + time.monotonic() - began
        return self._finish()

    def _burst(self) -> None:
        # on several hosts all must do the same, whatever their clocks say
        hosts = self.board.ring is not None and jax.process_count() > 1
        paced = self.merge_angle or not self.board.settled or hosts
        most = PACE - self._attempts() % PACE if paced else self.burst
        began = time.monotonic()
        target, stop = jnp.asarray(self.ts[self.record.reached]), jnp.asarray(self.ts[-1])
        self.state = _advance(self.solver, self.field, self.state, target, stop, jnp.asarray(most))
        jax.block_until_ready(self.state)
        if bool(self.state.failed):
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
            t = float(self.ts[self.record.reached])
            x = _read(self.solver, self.state, jnp.asarray(t))
            if self.board.ring is not None:
                x = jnp.asarray(gathered(x))
            whole = self.merge_angle is None and len(x) == self.initial.n  # a ring pads
            rows = x if whole else np.asarray(x)[self.group]
            tokens = Tokens(rows, self.initial.weights)
            self._watch_symmetries(t, tokens)
            self.record.add(tokens)

    def _watch_symmetries(self, t: float, tokens: Tokens) -> None:
        """Note the first saved time at which a symmetry of the initial tokens is lost."""
        if not self.symmetries or self.broken:
            return
        x = np.asarray(tokens.x)
        allowed = max(LOST, 4 * (self.merge_angle or 0.0))
        for each in self.symmetries:
            if each.defect(x) > allowed:
                self.broken = (
                    f"by t = {t:g} numerical errors had broken a symmetry of the initial tokens ({each.name})"
                )
                return

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
        filled = merged.tokens.filled(len(self.state.x))
        self._replace(filled.x, filled.weights)

    def _fall_back(self) -> bool:
        """Other sums for the step at which the present ones missed their tolerance, if there are any."""
        if not self.board.fall_back(self._tokens()):
            return False
        self._take_sums()
        blocked = lambda s: (s.failed, s.stuck)  # noqa: E731
        self.state = eqx.tree_at(blocked, self.state, (jnp.array(False), jnp.zeros_like(self.state.stuck)))
        return True

    def _reconsider(self) -> None:
        due = self._attempts() % (PACE * RECONSIDER) == 0 and self._attempts() != self.reconsidered
        if due and not self.board.settled and not self._trouble():
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
        counts = lambda s: (s.steps, s.rejected, s.stuck, s.failed, s.certificate)  # noqa: E731
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
        missed = (
            "" if self.field.exact else f"{self.used[-1][1]} sums missed their tolerance"
            f" {self.board.tolerance:g} at the next step; use summation='auto' or 'direct'"
        )  # fmt: skip
        t, dt, failed = float(self.state.t), float(self.state.dt), bool(self.state.failed)
        reason = trouble(dt, failed, self.stalled, self.solver, missed)
        if not reason and self.late:
            reason = out_of_time(self.time_limit)
        return f"stopped at t = {t:g}: {reason}" if reason else ""

    def _finish(self) -> Trajectory:
        trouble = self._trouble()
        complete = self.record.reached == len(self.ts)
        status = f"reached t = {self.ts[-1]:g} as asked" if complete else trouble
        status += f"; {self.broken}" if self.broken else ""
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
        if self.symmetries:
            stats["symmetry"] = self.broken or f"kept: {self.symmetries[0].name}"
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
        sums = {"sums": json.dumps([self.board.describe(), self.used, self.reconsidered, self.broken])}
        every = (counts | floats | arrays | state | sums).items()
        return {k: gathered(v) if isinstance(v, Array) else np.asarray(v) for k, v in every}

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
        description, self.used, self.reconsidered, *broken = saved.json("sums")
        self.broken = broken[0] if broken else ""
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
        if self.board.ring is not None:
            mesh = self.board.ring.mesh
            self.state, placed = place((self.state, self.field.weights), mesh, rows)
            self.field = eqx.tree_at(lambda f: f.weights, self.field, placed)
        return None


def trouble(dt: float, failed: bool, stalled: bool, solver: Solver, missed: str = "") -> str:
    """Why a run cannot go on, in words; nothing if it can. `missed`: what inexact sums have to say."""
    began = np.isfinite(dt)
    if stalled:
        return f"steps of {dt:.1e} will not get far; {ROUGH}"
    if began and not failed:
        return ""
    if missed:
        return missed
    if not began:
        return "the velocity is not finite at the initial tokens"
    if solver.controller is None:
        return "the next step gave tokens that are not finite"
    return f"no step, however short, met the tolerance; {ROUGH}"


def out_of_time(limit: float | None) -> str:
    """What a run says that was stopped by the clock."""
    return f"the time limit of {limit:g} s is used up"


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
