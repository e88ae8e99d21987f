"""Sweeps of objects: a grid of models, tokens, times and solvers that a program has in hand.

    grid = declare_runs(model=[SoftmaxAttention(weights, beta) for beta in betas], tokens=tokens, ts=ts)
    data = sweep(grid, store="out/betas")

A cell is known by a description of its objects as data (`runs.trajectory.plain`); the objects themselves go
to worker processes and never to disk. What is stored can be opened and read by anyone, and gone on with by
the program that has the objects.
"""

import functools
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import equinox as eqx
import jax
import numpy as np

from tokenfield.config.measures import bind
from tokenfield.errors import InputError, require, require_increasing, require_kind
from tokenfield.laws.tokens import Tokens, as_real
from tokenfield.models.base import Model
from tokenfield.registry import find
from tokenfield.runs.plain import plain
from tokenfield.runs.times import kept_indices
from tokenfield.solvers.ode import Adaptive, Solver
from tokenfield.sweeps.axes import MOST_CELLS, Axis
from tokenfield.sweeps.batch import LARGEST, BatchProgram, can_share, element, most_elements, run_together
from tokenfield.sweeps.grid import Cell, Grid, cell_id, check_time_limit
from tokenfield.sweeps.protocol import Kind
from tokenfield.sweeps.result import CellResult, result_of

#: What cells of objects are called on disk.
OBJECTS = "objects"
#: What is measured: registered names, or functions of the tokens by name.
Measures = Sequence[str] | Mapping[str, Callable[[Tokens], Any]]


@dataclass(frozen=True, eq=False)
class RunObjects:
    """The objects of one run, as arguments of `simulate`."""

    model: Model
    tokens: Tokens
    ts: np.ndarray
    solver: Solver
    measure: Measures
    snapshots: tuple[int, ...] | None
    summation: str
    merge_angle: float | None

    def check(self) -> None:
        """Refuse what `simulate` would refuse."""
        require_kind(self.model, Model, "model")
        require_kind(self.tokens, Tokens, "tokens")
        require_kind(self.solver, Solver, "solver")
        d = self.model.d
        require(self.tokens.d == d, "tokens", f"have the dimension {d} of the model", self.tokens.d)
        require_increasing(self.ts, "ts")
        self.solver.check(self.ts, self.tokens.x.size)
        find("sums", self.summation, "summation")
        if not isinstance(self.measure, Mapping):
            for name in self.measure:
                find("measure", name, "measure")
        kept_indices(self.snapshots, len(self.ts))

    def measures(self) -> dict[str, Callable[[Tokens], Any]]:
        """The functions of the tokens that are measured, by name."""
        if isinstance(self.measure, Mapping):
            return dict(self.measure)
        drift = self.model.drift
        context = {name: getattr(drift, name, None) for name in ("beta", "weights")}
        context |= {"model": drift, "start": self.tokens}
        return {name: bind(name, context) for name in self.measure}


class ObjectCells:
    """Cells that are objects; they follow `protocol.Kind`."""

    sections = ()
    whole = None

    def check(self, settings: dict[str, Any]) -> Any:
        """Never asked for: no file can say such cells."""
        raise NotImplementedError

    def describe(self, config: RunObjects) -> dict[str, Any]:
        """The objects as data."""
        described = {name: plain(value) for name, value in vars(config).items() if name != "measure"}
        measure = config.measure
        functions = isinstance(measure, Mapping)
        said = {k: _function(fn) for k, fn in measure.items()} if functions else list(measure)
        return described | {"measure": said}

    def build(self, config: RunObjects) -> None:
        """Everything is there."""

    def batch_key(self, config: RunObjects) -> str | None:
        """What the runs of a batch have to have in common; None for those that are better off alone."""
        model, solver = config.model, config.solver
        leaves, structure = jax.tree.flatten(model)
        alone = (
            config.tokens.n > LARGEST
            or config.merge_angle is not None
            or isinstance(config.measure, Mapping)
            or solver.takes_noise
            or solver.stages is None  # an implicit method
            or not all(eqx.is_array(leaf) for leaf in leaves)
            or not can_share(config.measure, config.summation, float(getattr(model, "beta", 1.0)))
        )
        if alone:
            return None
        shapes = [leaf.shape for leaf in leaves]
        sizes = (config.tokens.x.shape, len(config.ts), config.snapshots, tuple(config.measure))
        return repr([str(structure), shapes, plain(solver), *sizes])

    def batch_size(self, config: RunObjects) -> int:
        """How many runs fit into one program."""
        return most_elements(config.tokens.n, len(config.ts))

    def run_one(self, config: RunObjects, time_limit: float | None) -> CellResult:
        """One run."""
        began = time.monotonic()
        from tokenfield.runs.simulate import simulate  # who only declares a sweep does not need it

        run = simulate(
            config.model,
            config.tokens,
            config.ts,
            config.solver,
            config.summation,
            snapshots=config.snapshots,
            measure=config.measures(),
            merge_angle=config.merge_angle,
            strict=False,
            time_limit=time_limit,
        )
        counts = {name: int(run.stats[name]) for name in ("steps", "rejected")}
        return result_of(run, config.snapshots != (), counts, time.monotonic() - began)

    def run_batch(
        self, configs: Sequence[RunObjects], size: int, time_limit: float | None
    ) -> list[CellResult]:
        """A batch of runs.

        Args:
            configs: cells with the same `batch_key`.
            size: runs that the program is compiled for; it is padded if there are fewer.
            time_limit: seconds that each cell may take.

        Returns:
            The result of each cell, in order.
        """
        first = configs[0]
        program = BatchProgram(first.solver, tuple(first.measure), first.snapshots)
        elements = [element(c.model, c.tokens, c.ts, c.solver) for c in configs]
        return run_together(program, elements, size, time_limit)

    def estimated_bytes(self, config: RunObjects) -> int:
        """Bytes of the times, measurements and snapshots of a cell, roughly."""
        times = len(config.ts)
        kept = len(kept_indices(config.snapshots, times))
        return 1000 + 8 * times * (1 + 2 * len(config.measure)) + kept * config.tokens.n * 8 * 8


@dataclass(frozen=True)
class ObjectGrid(Grid):
    """A sweep of objects: `runs` in the order of the cells; without them, as it was read back from disk."""

    runs: tuple[RunObjects, ...] | None = None

    @property
    def maker(self) -> Kind:
        """What computes the cells."""
        return ObjectCells()

    def cell_at(self, where: tuple[int, ...]) -> Cell:
        """The cell at a place along the axes."""
        k = int(np.ravel_multi_index(where, self.shape)) if where else 0
        id = self.declaration[OBJECTS]["cells"][k]
        if self.runs is None:
            return Cell(where, id, {})
        return Cell(where, id, _settings(self.runs[k]), self.runs[k])


def declare_runs(
    model: Any,
    tokens: Any,
    ts: Any,
    solver: Any = Adaptive(),  # noqa: B008 (frozen)
    measure: Measures = ("order_parameter",),
    *,
    snapshots: Sequence[int] | None = (),
    summation: str = "auto",
    merge_angle: float | None = None,
    together: bool = False,
    time_limit: float | None = None,
) -> Grid:
    """Declare a grid of runs of objects, for `sweep`.

    Each of the first four arguments is one object, or a list of them, or a mapping label → object; a list or
    a mapping is an axis of its name, with the labels (or 0, 1, …) as its coordinate. `Dataset.rename` gives
    it another name.

    Args:
        model: the flow, or several.
        tokens: the initial law, (n, d), or several.
        ts: increasing times, (times,), or a list of such lists.
        solver: the solver, or several.
        measure: names of registered measures; or name → function of the tokens, each computed at every time.
        snapshots: indices of the times at which tokens are kept; None for all.
        summation: how attention sums are computed, as for `simulate`.
        merge_angle: tokens closer than this angle become one, as for `simulate`.
        together: whether all lists are of one length and change together, along one axis called `run`.
        time_limit: seconds that a cell may take.

    Returns:
        The grid, every cell checked.
    """
    given = {"model": model, "tokens": tokens, "ts": ts, "solver": solver}
    several = {name: _listed(value, name) for name, value in given.items() if _is_several(value, name)}
    axes = _one_axis(several) if together else [_axis(name, *each) for name, each in several.items()]
    count = math.prod(len(axis.points) for axis in axes)
    require(count <= MOST_CELLS, "sweep", f"hold at most {MOST_CELLS} cells", count)
    if time_limit is not None:
        check_time_limit(time_limit, "time_limit")
    kept = None if snapshots is None else tuple(snapshots)
    runs = []
    for where in np.ndindex(*(len(axis.points) for axis in axes)):
        index = {name: k for axis, k in zip(axes, where, strict=True) for name in axis.settings}
        chosen = given | {name: objects[index[name]] for name, (_, objects) in several.items()}
        chosen["ts"] = np.asarray(as_real(chosen["ts"], "ts"))
        run = RunObjects(
            **chosen, measure=measure, snapshots=kept, summation=summation, merge_angle=merge_angle
        )
        run.check()
        runs.append(run)
    described = {
        "axes": [[axis.name, axis.settings, [point[0] for point in axis.points]] for axis in axes],
        "cells": [cell_id(OBJECTS, _settings(run)) for run in runs],
    }
    declaration = {OBJECTS: plain(described), "sweep": {}}
    return ObjectGrid(declaration, OBJECTS, tuple(axes), None, time_limit, tuple(runs))


def stored_grid(declaration: Mapping[str, Any], name: str) -> Grid:
    """A grid of objects as its manifest describes it: it can be looked at, but not computed."""
    axes = [
        Axis(axis, tuple(settings), (axis,), tuple((label,) for label in labels))
        for axis, settings, labels in declaration[OBJECTS]["axes"]
    ]
    return ObjectGrid(dict(declaration), OBJECTS, tuple(axes), name, None)


def _settings(run: RunObjects) -> dict[str, Any]:
    described = ObjectCells().describe(run)
    try:
        json.dumps(described)
    except TypeError as error:
        raise InputError(f"`runs` must be made of arrays, numbers and functions, but {error}") from None
    return described


def _is_several(value: Any, name: str) -> bool:
    if name == "ts":
        rows = value.values() if isinstance(value, Mapping) else value
        return isinstance(value, Mapping) or (isinstance(value, list) and any(np.ndim(row) for row in rows))
    return isinstance(value, list | tuple | Mapping)


def _listed(value: Any, name: str) -> tuple[list[Any], list[Any]]:
    """Labels and objects."""
    require(len(value) > 0, name, "hold at least one object", "empty")
    if isinstance(value, Mapping):
        return [plain(label) for label in value], list(value.values())
    return list(range(len(value))), list(value)


def _axis(name: str, labels: Sequence[Any], objects: Sequence[Any]) -> Axis:
    return Axis(name, (name,), (name,), tuple((label,) for label in labels))


def _one_axis(several: Mapping[str, tuple[list[Any], list[Any]]]) -> list[Axis]:
    lengths = {name: len(objects) for name, (_, objects) in several.items()}
    one = len(set(lengths.values())) == 1
    require(one, "together", "come with lists of one length", lengths or "without any")
    labels = next((each for each, _ in several.values() if each != list(range(len(each)))), None)
    labels = labels or list(range(next(iter(lengths.values()))))
    return [Axis("run", tuple(several), ("run",), tuple((label,) for label in labels))]


def _function(fn: Any, above: tuple[Any, ...] = ()) -> Any:
    """A function of the tokens as data: its name, its code and what it carries; not what it looks up."""
    if isinstance(fn, functools.partial):
        return {"partial": _function(fn.func), "of": [plain(list(fn.args)), plain(fn.keywords)]}
    if not isinstance(fn, FunctionType) or fn in above:
        return plain(fn)
    digest = hashlib.sha256(repr(_instructions(fn.__code__)).encode()).hexdigest()
    carried = [*(cell.cell_contents for cell in fn.__closure__ or ()), *(fn.__defaults__ or ())]
    inner = [_function(each, (*above, fn)) for each in carried]
    return plain(fn) | {"code": digest} | ({"carries": inner} if inner else {})


def _instructions(code: CodeType) -> list[Any]:
    """What a function does, without the place where it stands."""
    inner = [_instructions(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return [code.co_code.hex(), code.co_names, inner]


def is_objects(config: Any) -> bool:
    """Whether this is a model or several, and no file."""
    if isinstance(config, Mapping):
        config = list(config.values())
    return any(isinstance(each, Model) for each in (config if isinstance(config, list) else [config]))
