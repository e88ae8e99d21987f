"""A run on concrete arrays, driven from the host in bursts of compiled steps.

Between bursts tokens are merged, sums are changed, and watchers look (watchers.py). Who drives says what to
do with the tokens of a saved time: `simulate` records them, `moments` hands them out.
"""

import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from tokenfield.laws.symmetry import Symmetry
from tokenfield.laws.tokens import Tokens
from tokenfield.runs import stepper
from tokenfield.runs.checkpoint import Checkpoint
from tokenfield.runs.merging import Merging
from tokenfield.runs.stepper import Field
from tokenfield.runs.watchers import Clock, StallWatch, SymmetryWatch, out_of_time, trouble
from tokenfield.solvers.ode import Solver
from tokenfield.sums.base import Sums
from tokenfield.sums.policy import SummationPolicy
from tokenfield.sums.ring import gathered, place, spread_tokens

#: Attempted steps between two looks for tokens to merge, and this many times that for cheaper sums; fixed, so
#: that a resumed run does alike.
MERGE_EVERY, RECONSIDER_EVERY = 16, 4
#: Seconds a burst of compiled steps should take.
BURST_SECONDS = 0.2
#: Attempted steps of the longest burst.
LONGEST_BURST = 10**6

_begin = eqx.filter_jit(stepper.begin)
_advance = eqx.filter_jit(stepper.advance)
_read = eqx.filter_jit(stepper.read)


class Saved(NamedTuple):
    """The tokens at one of the times to be saved."""

    t: float
    tokens: Tokens


class Driver:
    """Where a run stands: its state, its sums, which tokens were merged, what it cost.

    Args:
        solver: the step formula and its control.
        field: the right-hand side.
        tokens: the initial law.
        ts: times to be saved, increasing.
        policy: which sums.
        merge_angle: tokens closer than this go on as one.
        time_limit: seconds.
        symmetries: of the initial tokens, which the model keeps.
    """

    def __init__(
        self,
        solver: Solver,
        field: Field,
        tokens: Tokens,
        ts: np.ndarray,
        policy: SummationPolicy,
        merge_angle: float | None = None,
        time_limit: float | None = None,
        symmetries: Sequence[Symmetry] = (),
    ):
        self.solver, self.field, self.ts, self.initial = solver, field, ts, tokens
        self.space = field.model.space
        self.first = self.space.state(tokens)
        if policy.ring is not None:
            self.first, weights = spread_tokens(self.first, tokens.weights, policy.ring.mesh)
            self.field = eqx.tree_at(lambda f: f.weights, field, weights)
        self.policy, self.used = policy, [(float(ts[0]), policy.sums.name)]
        self.merging = Merging(tokens.n, merge_angle)
        self.restarts, self.burst, self.reconsidered, self.reached = 0, 1, 0, 0
        self.clock = Clock(time_limit)
        self.stall = StallWatch(float(ts[0]))
        self.symmetry = SymmetryWatch(symmetries, merge_angle)

    # -- the loop

    def start(self) -> None:
        """Begin at the first time, with sums that keep their tolerance there."""
        self.state = _begin(self.solver, self.field, self.first, jnp.asarray(self.ts[0]))
        while not np.isfinite(float(self.state.dt)) and self._fall_back():
            self.state = _begin(self.solver, self.field, self.first, jnp.asarray(self.ts[0]))

    def compile(self) -> None:
        """Compile the steps, so that the first one takes as long as any other; the time limit counts now."""
        if self.going:
            self._advanced(0)
        self.clock.begin_limit()

    @property
    def going(self) -> bool:
        """Whether there is a time left to be reached, and no trouble."""
        return self.reached < len(self.ts) and not self.trouble()

    def saved(self) -> list[Saved]:
        """The saved times reached since the last call, with the tokens there."""
        found = []
        while self.reached < len(self.ts) and self.ts[self.reached] <= float(self.state.t):
            t = float(self.ts[self.reached])
            tokens = self.tokens_at(t)
            self.symmetry.look(t, tokens)
            found.append(Saved(t, tokens))
            self.reached += 1
        return found

    def go_on(self) -> None:
        """One burst of steps, and what is done between bursts."""
        self._burst()
        self.clock.look()

    def between(self) -> None:
        """Merge, and look for cheaper sums; after the saved times of the last burst were taken."""
        self._merge()
        self._reconsider()

    def tokens_at(self, t: float) -> Tokens:
        """The tokens at a time of the last step, merged ones told apart."""
        y = _read(self.solver, self.field, self.state, jnp.asarray(t))
        if self.policy.ring is not None:
            y = jnp.asarray(gathered(y))
        whole = self.merging.angle is None and len(y) == self.initial.n  # a ring pads
        rows = y if whole else np.asarray(y)[self.merging.group]
        return self.space.tokens(jnp.asarray(rows), self.initial.weights)

    def _burst(self) -> None:
        before, began = self.attempts, time.monotonic()
        self.state = self._advanced(self._burst_length())
        jax.block_until_ready(self.state)
        made, pace = self.attempts - before, time.monotonic() - began
        self.burst = next_burst(self.burst, pace / max(made, 1))
        if bool(self.state.failed):
            self._fall_back()
        t, target = float(self.state.t), float(self.ts[self.reached])
        if not self._fixed or self.attempts % MERGE_EVERY == 0 or t >= target:
            self.stall.look(self.attempts, t, self.restarts, target)

    def _advanced(self, most: int) -> stepper.State:
        """The state after so many attempted steps, or at the next time to be saved."""
        target, stop = jnp.asarray(self.ts[self.reached]), jnp.asarray(self.ts[-1])
        return _advance(self.solver, self.field, self.state, target, stop, jnp.asarray(most))

    @property
    def _fixed(self) -> bool:
        """Whether something is decided every `MERGE_EVERY` attempts, whatever the clock says."""
        return bool(self.merging.angle) or not self.policy.settled or self._on_hosts

    @property
    def _on_hosts(self) -> bool:
        return self.policy.ring is not None and jax.process_count() > 1

    def _burst_length(self) -> int:
        """Attempted steps until the host looks again: few if they are slow, never past a fixed step."""
        if not self._fixed:
            return self.burst
        left = MERGE_EVERY - self.attempts % MERGE_EVERY
        # several hosts must all do the same, and their clocks differ
        return left if self._on_hosts else min(left, self.burst)

    @property
    def attempts(self) -> int:
        """Attempted steps so far."""
        return int(self.state.steps) + int(self.state.rejected)

    def share(self) -> float:
        """Share of the saved times reached, with the part of the current gap."""
        k = self.reached
        if k >= len(self.ts):
            return 1.0
        gap = (float(self.state.t) - self.ts[k - 1]) / (self.ts[k] - self.ts[k - 1])
        return (k - 1 + min(max(gap, 0.0), 1.0)) / (len(self.ts) - 1)

    # -- what is changed between bursts

    def _merge(self) -> None:
        if self.merging.angle is None or self.attempts % MERGE_EVERY:
            return
        merged = self.merging.merged(np.asarray(self.state.y), np.asarray(self.field.weights))
        if merged is not None:
            self._replace(merged.x, merged.weights)

    def _fall_back(self) -> bool:
        """Other sums for the step at which the present ones missed their tolerance, if there are any."""
        if not self.policy.fall_back(self._tokens()):
            return False
        self._take_sums()
        blocked = lambda s: (s.failed, s.stuck)  # noqa: E731
        self.state = eqx.tree_at(blocked, self.state, (jnp.array(False), jnp.zeros_like(self.state.stuck)))
        return True

    def _reconsider(self) -> None:
        due = self.attempts % (MERGE_EVERY * RECONSIDER_EVERY) == 0 and self.attempts != self.reconsidered
        if due and not self.policy.settled and not self.trouble():
            self.reconsidered = self.attempts
            if self.policy.reconsider(self._tokens()):
                self._take_sums()

    def _take_sums(self) -> None:
        self.field = eqx.tree_at(lambda f: f.sums, self.field, self.policy.sums, is_leaf=_is_sums)
        self.used.append((float(self.state.t), self.policy.sums.name))
        self.burst = 1  # the pace of other sums is another

    def _tokens(self) -> Tokens:
        """The tokens of the state as terms see them, for fast sums: on the sphere."""
        return Tokens(np.asarray(_directions(self.state.y)), self.field.weights)

    def _replace(self, y: Array, weights: Array) -> None:
        """Go on from other tokens at the same time with the same step and counts."""
        old, self.restarts = self.state, self.restarts + 1
        self.field = eqx.tree_at(lambda f: f.weights, self.field, weights)
        new = stepper.fresh(self.solver, self.field, y, old.t, old.dt, old.controller)
        counts = lambda s: (s.steps, s.rejected, s.stuck, s.failed, s.certificate)  # noqa: E731
        self.state = eqx.tree_at(counts, new, counts(old))

    # -- how it ends

    def trouble(self) -> str:
        """Why the run cannot go on, in a sentence; nothing if it can."""
        missed = ""
        if not self.field.exact:
            missed = (
                f"{self.used[-1][1]} sums missed their tolerance {self.policy.tolerance:g} at the next step;"
                " use summation='auto' or 'direct'"
            )
        t, dt, failed = float(self.state.t), float(self.state.dt), bool(self.state.failed)
        reason = trouble(dt, failed, self.stall.stalled, self.solver, missed)
        if not reason and self.clock.late:
            reason = out_of_time(self.clock.limit)
        return f"stopped at t = {t:g}: {reason}" if reason else ""

    def status(self) -> tuple[str, bool]:
        """How the run ended, in a sentence, and whether it reached its last time."""
        complete = self.reached == len(self.ts)
        status = f"reached t = {self.ts[-1]:g} as asked" if complete else self.trouble()
        return status + (f"; {self.symmetry.broken}" if self.symmetry.broken else ""), complete

    def stats(self) -> dict[str, Any]:
        """What the run cost and how its sums were made."""
        stages, starts = self.solver.stages, 3 + self.restarts if self.solver.controller else 0
        stats = {
            "steps": int(self.state.steps),
            "rejected": int(self.state.rejected),
            "evaluations": None if stages is None else self.attempts * stages + starts,
            "seconds": self.clock.seconds,
            "summation": _history(self.used),
            "certificate": float(self.state.certificate),
            "log_time_unit": float(self.field.model.log_time_unit),
        }
        stats |= self.symmetry.report()
        if self.merging.angle is not None:
            stats |= {"tokens_left": self.merging.active, "merge_distance": self.merging.distance}
        return stats

    # -- on disk

    def checkpoint(self) -> dict[str, np.ndarray]:
        """All that is needed to go on; the interpolant is not, since all times reached are recorded."""
        leaves = jax.tree.leaves(eqx.tree_at(lambda s: s.dense, self.state, None))
        counts = {"reached": self.reached, "restarts": self.restarts, "seconds": self.clock.seconds}
        state = {f"state_{i}": leaf for i, leaf in enumerate(leaves)}
        history = [self.policy.describe(), self.used, self.reconsidered, self.symmetry.broken]
        every = counts | self.merging.state() | state
        every |= {"weights": self.field.weights, "sums": json.dumps(history)}
        return {k: gathered(v) if isinstance(v, Array) else np.asarray(v) for k, v in every.items()}

    def restore(self, saved: Checkpoint | None) -> None:
        """Go on from a checkpoint, or from the start if there is none."""
        if saved is None:
            return self.start()
        self.reached = int(saved.take("reached", (), np.int64))
        self.restarts = int(saved.take("restarts", (), np.int64))
        self.clock.before = float(saved.take("seconds", (), np.float64))
        rows = np.size(saved.get("weights", 0))
        weights = saved.take("weights", (rows,), np.float64)
        self.merging.restore(saved, self.initial.n, rows)
        self.field = eqx.tree_at(lambda f: f.weights, self.field, jnp.asarray(weights))
        description, self.used, self.reconsidered, *broken = saved.json("sums")
        self.symmetry.broken = broken[0] if broken else ""
        self.policy.restore(description)
        self.field = eqx.tree_at(lambda f: f.sums, self.field, self.policy.sums, is_leaf=_is_sums)
        self.state = self._restored_state(saved, rows)
        if self.policy.ring is not None:
            mesh = self.policy.ring.mesh
            self.state, placed = place((self.state, self.field.weights), mesh, rows)
            self.field = eqx.tree_at(lambda f: f.weights, self.field, placed)
        return None

    def _restored_state(self, saved: Checkpoint, rows: int) -> stepper.State:
        y = jnp.zeros((rows, self.initial.d))
        like = eqx.filter_eval_shape(stepper.begin, self.solver, self.field, y, jnp.zeros(()))
        bare = eqx.tree_at(lambda s: s.dense, like, None)
        leaves = [
            jnp.asarray(saved.take(f"state_{i}", leaf.shape, leaf.dtype))
            for i, leaf in enumerate(jax.tree.leaves(bare))
        ]
        bare = jax.tree.unflatten(jax.tree.structure(bare), leaves)
        dense = stepper.zeros(like.dense)
        return eqx.tree_at(lambda s: s.dense, bare, dense, is_leaf=lambda leaf: leaf is None)


def next_burst(burst: int, pace: float) -> int:
    """Attempted steps of the next burst: at most twice as many, and about `BURST_SECONDS` of them.

    Args:
        burst: attempted steps allowed in the last one.
        pace: seconds each of them took.
    """
    return max(1, int(min(2 * burst, BURST_SECONDS / max(pace, 1e-9), LONGEST_BURST)))


def _directions(y: Array) -> Array:
    return y / jnp.linalg.norm(y, axis=1, keepdims=True)


def _history(used: list[tuple[float, str]]) -> str:
    """The sums used, in words: "circle", "circle, merged from t = 17.2"."""
    first, *later = used
    words = [first[1], *(f"{name} from t = {t:.6g}" for t, name in later[:5])]
    more = [f"and {len(later) - 5} more changes"] if len(later) > 5 else []
    return ", ".join(words + more)


def _is_sums(node: Any) -> bool:
    return isinstance(node, Sums)
