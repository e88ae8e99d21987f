"""Cells that are many small systems at one β: which share of the pairs of their tokens has met, over time.

    [pairs]
    n = 32                                     # tokens of a system, uniform on the circle
    systems = 2048
    key = 0
    stop = 30.0
    step = 0.1                                 # of the Runge–Kutta formula
    stride = 2                                 # steps from one saved time to the next
    [sweep]
    pairs.beta = { linear = [0.1, 9, 90] }

Softmax flow with B = V = I; a pair has met when ⟨x,y⟩ ≥ 1 − 10⁻³. Systems lie along the last axis, so that
one compiled loop over the tokens serves 128 of them; they are independent and shared among the threads of the
process (one, in a worker). Tokens that have come within 10⁻⁴ go on as one heavier token (its equation is the
same up to the square of that), so that late times cost little, and a system whose tokens have all met is not
carried on.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from pydantic import Field

from tokenfield.config.reading import parse_as
from tokenfield.config.section import Section
from tokenfield.errors import require
from tokenfield.runs.watchers import out_of_time
from tokenfield.sweeps.protocol import FileKind
from tokenfield.sweeps.result import CellResult

#: How close a pair is that has met.
MET = 1e-3
#: Systems of one compiled batch, and saved times between two looks for finished systems.
SYSTEMS, BLOCK = 128, 10
#: Tokens closer than this go on as one.
CLOSE = 1e-4
#: Angles and masses of systems with the same number of rows, (rows, systems) each.
Group = tuple[np.ndarray, np.ndarray]


class Pairs(Section):
    """[pairs]: the systems, and how they are carried on."""

    beta: float = Field(ge=0, allow_inf_nan=False)
    n: int = Field(ge=2, le=4096)
    systems: int = Field(ge=1)
    key: int = Field(ge=0)
    stop: float = Field(gt=0, allow_inf_nan=False)
    step: float = Field(0.1, gt=0, allow_inf_nan=False)
    stride: int = Field(2, ge=1)

    @classmethod
    def is_random(cls, table: Mapping[str, Any]) -> bool:
        """The angles are drawn."""
        return True

    @property
    def saves(self) -> int:
        """Saved times after the first."""
        return round(self.stop / (self.step * self.stride))


class PairsFile(Section):
    """A whole file."""

    pairs: Pairs


class PairCells(FileKind):
    """Many small systems at one β in a cell."""

    sections = ("pairs",)
    whole: type[Section] | None = PairsFile

    def check(self, settings: dict[str, Any]) -> PairsFile:
        """The settings, parsed."""
        config = parse_as(PairsFile, settings)
        pairs = config.pairs
        whole = pairs.saves >= 1 and abs(pairs.saves * pairs.step * pairs.stride / pairs.stop - 1) < 1e-9
        require(
            whole, "pairs.stop", f"be a multiple of step · stride = {pairs.step * pairs.stride:g}", pairs.stop
        )
        return config

    def build(self, config: PairsFile) -> None:
        """Nothing that `check` has not seen."""

    def estimated_bytes(self, config: PairsFile) -> int:
        """Bytes of the times and shares."""
        return 1000 + 16 * (config.pairs.saves + 1)

    def run_one(self, config: PairsFile, time_limit: float | None) -> CellResult:
        """All systems at one β."""
        began = time.monotonic()
        pairs = config.pairs
        found, late = [], False
        with ThreadPoolExecutor(threads()) as pool:
            theta0 = start(pairs.systems, pairs.key, pairs.n)
            for part in parts(pool, theta0, pairs.beta, pairs.saves, pairs.step, pairs.stride):
                found.append(part)
                late = time_limit is not None and time.monotonic() - began > time_limit
                if late:
                    break
        share = np.concatenate(found)
        ts = pairs.step * pairs.stride * np.arange(len(share))
        complete = len(share) == pairs.saves + 1
        status = f"reached t = {ts[-1]:g} as asked" if complete else f"stopped at t = {ts[-1]:g}: "
        status += "" if complete else out_of_time(time_limit)
        return CellResult(
            status,
            complete,
            {"time": ts, "share": share},
            {"time": ("time",), "share": ("time",)},
            {"steps": pairs.stride * (len(share) - 1)},
            time.monotonic() - began,
        )


# -- the systems


def start(systems: int, key: int, n: int) -> Float[np.ndarray, "n systems"]:
    """Uniform angles of many systems.

    Args:
        systems: how many systems.
        key: seed; the same key gives the same angles.
        n: tokens of each.

    Returns:
        Angles (n, systems) in [0, 2π).
    """
    return np.random.default_rng(key).uniform(0, 2 * np.pi, size=(n, systems))


def threads() -> int:
    """Threads that systems are shared among: those that XLA has, one in a worker."""
    return int(os.environ.get("NPROC") or os.cpu_count() or 1)


def velocity(
    theta: Float[Array, "n systems"], mass: Float[Array, "n systems"], beta: Float[Array, "systems"]
) -> Float[Array, "n systems"]:
    """Softmax flow on the circle in angles: Σ_j e^{β cos s}sin s / Σ_j e^{β cos s}, s = θ_j − θ_i.

    Args:
        theta: angles (n, systems).
        mass: how many tokens each row stands for, (n, systems).
        beta: inverse temperature of each system, (systems,).

    Returns:
        Angular velocities (n, systems).
    """
    c, s = jnp.cos(theta), jnp.sin(theta)

    def add(j: Array, sums: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        # without the barrier the exponential would be computed three times
        pull = lax.optimization_barrier(mass[j] * jnp.exp(beta * (c * c[j] + s * s[j] - 1)))
        return sums[0] + pull * c[j], sums[1] + pull * s[j], sums[2] + pull

    zero = jnp.zeros_like(theta)
    along, across, mass = lax.fori_loop(0, len(theta), add, (zero, zero, zero))
    return (c * across - s * along) / mass


def met(theta: Float[Array, "n systems"], mass: Float[Array, "n systems"]) -> Float[Array, "systems"]:
    """Share of the pairs of every system that have met; `mass`: how many tokens go together."""
    c, s, n = jnp.cos(theta), jnp.sin(theta), jnp.sum(mass, axis=0)

    def add(j: Array, count: Array) -> Array:
        return count + mass[j] * jnp.sum(mass * (c * c[j] + s * s[j] >= 1 - MET), axis=0)

    count = lax.fori_loop(0, len(theta), add, jnp.zeros(theta.shape[1]))
    return (count - n) / (n * (n - 1))


@partial(jax.jit, static_argnames=("saves", "stride"))
def advance(
    theta: Array, mass: Array, beta: Array, step: Array, saves: int, stride: int
) -> tuple[Array, Array]:
    """Carry systems from one saved time to the next, several times, by classical Runge–Kutta steps.

    Args:
        theta: angles (n, systems).
        mass: how many tokens each row stands for, (n, systems).
        beta: inverse temperature of each system, (systems,).
        step: length of a step, ().
        saves: how many times are saved.
        stride: steps from one saved time to the next.

    Returns:
        Angles at the end (n, systems), and shares of pairs that have met (saves, systems).
    """

    def move(_: Array, a: Array) -> Array:
        k1 = velocity(a, mass, beta)
        k2 = velocity(a + step / 2 * k1, mass, beta)
        k3 = velocity(a + step / 2 * k2, mass, beta)
        return a + step / 6 * (k1 + 2 * k2 + 2 * k3 + velocity(a + step * k3, mass, beta))

    def save(a: Array, _: None) -> tuple[Array, Array]:
        a = lax.fori_loop(0, stride, move, a)
        return a, met(a, mass)

    return lax.scan(save, theta, None, length=saves)


def parts(
    pool: Executor,
    theta0: Float[np.ndarray, "n systems"],
    beta: float,
    saves: int,
    step: float,
    stride: int,
    merge: bool = True,
) -> Iterator[np.ndarray]:
    """Mean share of pairs that have met at the times 0, stride·step, …, some times after the others.

    Args:
        pool: threads that the systems are shared among.
        theta0: angles at the beginning, (n, systems).
        beta: inverse temperature.
        saves: how many times are saved after the first.
        step: length of a step.
        stride: steps from one saved time to the next.
        merge: whether tokens that are together go on as one, and systems of one cluster do not go on.

    Yields:
        Shares (times,) of the next few times.
    """
    systems = theta0.shape[1]
    yield np.array([np.mean(np.asarray(met(jnp.asarray(theta0), jnp.ones(theta0.shape))))])
    groups, done = [(theta0, np.ones(theta0.shape))], 0
    for first in range(0, saves, BLOCK):
        count = min(BLOCK, saves - first)
        carry = partial(_carry, beta=beta, step=step, saves=count, stride=stride)
        carried = list(pool.map(carry, [chunk for group in groups for chunk in _chunks(*group)]))
        seen = np.sum([np.sum(part[2], axis=1) for part in carried], axis=0) if carried else np.zeros(count)
        yield (done + seen) / systems
        groups = [part[:2] for part in carried]
        if merge:
            groups = _regroup(groups)
            done = systems - sum(theta.shape[1] for theta, _ in groups)


def _chunks(theta: np.ndarray, mass: np.ndarray) -> list[Group]:
    cuts = range(0, theta.shape[1], SYSTEMS)
    return [(theta[:, k : k + SYSTEMS], mass[:, k : k + SYSTEMS]) for k in cuts]


def _carry(
    group: Group, beta: float, step: float, saves: int, stride: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One chunk, padded to the size that is compiled: angles, masses, and shares (saves, systems)."""
    theta, mass = group
    room = ((0, 0), (0, SYSTEMS - theta.shape[1]))
    padded = jnp.asarray(np.pad(theta, room)), jnp.asarray(np.pad(mass, room, constant_values=1.0))
    end, seen = advance(*padded, jnp.full(SYSTEMS, beta), jnp.asarray(step), saves, stride)
    return np.asarray(end)[:, : theta.shape[1]], mass, np.asarray(seen)[:, : theta.shape[1]]


def _regroup(parts: Sequence[Group]) -> list[Group]:
    """Systems with their tokens merged, by the number of rows they need; those of one cluster are done."""
    sizes: dict[int, list[Group]] = {}
    for theta, mass in parts:
        rows = len(theta)
        theta, mass, count = merged(theta, mass)
        # powers of two: few numbers of rows, few programs
        need = np.minimum(2 ** np.ceil(np.log2(np.maximum(count, 2))).astype(int), rows)
        for size in np.unique(need[count > 1]).tolist():
            here = (count > 1) & (need == size)
            sizes.setdefault(size, []).append((theta[:size, here], mass[:size, here]))
    return [
        (np.concatenate([t for t, _ in groups], axis=1), np.concatenate([m for _, m in groups], axis=1))
        for groups in sizes.values()
    ]


def merged(theta: np.ndarray, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens closer than `CLOSE` to the next as one at their mean, clusters first; and how many there are.

    Rows beyond a system's clusters have the mass 0.
    """
    n, systems = theta.shape
    theta = np.where(mass > 0, theta % (2 * np.pi), np.inf)
    order = np.argsort(theta, axis=0)
    theta, mass = np.take_along_axis(theta, order, 0), np.take_along_axis(mass, order, 0)
    theta = np.where(mass > 0, theta, theta[0])  # empty rows lie with the first and weigh nothing
    new = np.diff(theta, axis=0, prepend=-np.inf) > CLOSE
    new &= mass > 0
    label = np.cumsum(new, axis=0) - 1
    label = np.where(mass > 0, label, 0)
    count = label.max(axis=0) + 1
    # the last cluster may go on beyond 2π: it is the first one then
    last = np.max(np.where(mass > 0, theta, -np.inf), axis=0)
    wraps = (theta[0] + 2 * np.pi - last <= CLOSE) & (count > 1)
    back = wraps & (label == count - 1)
    theta, label, count = np.where(back, theta - 2 * np.pi, theta), np.where(back, 0, label), count - wraps
    place = (label * systems + np.arange(systems)).ravel()
    total = np.bincount(place, mass.ravel(), n * systems).reshape(n, systems)
    mean = np.bincount(place, (mass * theta).ravel(), n * systems).reshape(n, systems)
    return np.divide(mean, total, out=np.zeros_like(mean), where=total > 0), total, count
