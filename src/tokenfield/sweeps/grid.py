"""A declared sweep: a run's TOML settings with some of them varied, and the cells that follow from it.

    [model]
    kind = "softmax"

    [sweep]
    seeds = 4                                     # 0, 1, 2, 3; or a list
    model.beta = { log = [1, 1000, 7] }           # from, to, how many; axes.py lists all that can be said

Every axis is crossed with every other. A seed gives a key to everything random that has none of its own.
Nothing in the file is evaluated; the order of cells, their hashes and their batches follow from it alone.
"""

import copy
import itertools
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokenfield.config.files import read_toml
from tokenfield.errors import InputError, as_number, require
from tokenfield.runs.plain import plain
from tokenfield.runs.seal import data_hash
from tokenfield.sweeps.axes import MOST_CELLS, Axis, axes_of
from tokenfield.sweeps.keys import assign_keys
from tokenfield.sweeps.kinds import KINDS, kind_of
from tokenfield.sweeps.protocol import Kind

#: So many batches are made of many small cells at least, that there is something for several workers.
LEAST_BATCHES = 16
#: What a store may be called: no path, nothing hidden.
STORE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]{0,79}")


@dataclass(frozen=True)
class Cell:
    """One run: its place along the axes, the hash of its settings, the settings as data and as parsed."""

    where: tuple[int, ...]
    id: str
    settings: dict[str, Any]
    config: Any = field(default=None, compare=False, repr=False)


class Batch(NamedTuple):
    """Cells of one task; `size` is what its program is for, more than its cells in the last of a group."""

    number: int
    cells: tuple[Cell, ...]
    size: int


@dataclass(frozen=True)
class Grid(ABC):
    """A declared sweep. `declaration` is plain data, from which the hashes of all cells follow."""

    declaration: dict[str, Any]
    kind: str
    axes: tuple[Axis, ...]
    store: str | None
    time_limit: float | None

    @property
    @abstractmethod
    def maker(self) -> Kind:
        """What computes the cells."""

    @abstractmethod
    def cell_at(self, where: tuple[int, ...]) -> Cell:
        """The cell at a place along the axes, checked."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Points along each axis."""
        return tuple(len(axis.points) for axis in self.axes)

    @property
    def digest(self) -> str:
        """Hash of what is computed."""
        return digest_of(self.declaration)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, the last axis running fastest; every one checked."""
        cells = tuple(self.cell_at(where) for where in itertools.product(*map(range, self.shape)))
        first: dict[str, Cell] = {}
        for cell in cells:
            twin = first.setdefault(cell.id, cell)
            if twin is not cell:
                raise InputError(
                    f"`sweep` must not hold the same cell twice, but {self.label(twin)} and"
                    f" {self.label(cell)} are the same run"
                )
        return cells

    @cached_property
    def batches(self) -> tuple[Batch, ...]:
        """Cells that are computed as one task, from the whole sweep and never from what is left of it."""
        groups: dict[str, list[Cell]] = {}
        for cell in self.cells:
            groups.setdefault(self.maker.batch_key(cell.config) or cell.id, []).append(cell)
        made = []
        for group in groups.values():
            size = min(self.maker.batch_size(group[0].config), -(-len(group) // LEAST_BATCHES))
            made += [(tuple(group[k : k + size]), size) for k in range(0, len(group), size)]
        return tuple(Batch(k, cells, size) for k, (cells, size) in enumerate(made))

    def label(self, cell: Cell) -> str:
        """A cell's place in words: "beta = 10, seed = 2"."""
        words = [
            f"{name} = {_short(value)}"
            for axis, k in zip(self.axes, cell.where, strict=True)
            for name, value in zip(axis.coordinates, axis.points[k], strict=True)
        ]
        return ", ".join(words) or "the only cell"

    def find(self, name: str) -> Cell:
        """The cell with this number, or whose hash begins so."""
        if name.isdigit() and int(name) < len(self.cells):
            return self.cells[int(name)]
        found = [cell for cell in self.cells if len(name) >= 4 and cell.id.startswith(name)]
        require(
            len(found) == 1,
            "cell",
            f"be a number below {len(self.cells)} or at least four letters of one cell's hash",
            repr(name),
        )
        return found[0]


@dataclass(frozen=True)
class FileGrid(Grid):
    """A sweep that a file declares; `base` are its sections beside [sweep]."""

    base: dict[str, Any]

    @property
    def maker(self) -> Kind:
        """The kind that the sections of the file are for."""
        return kind_of(self.kind)

    def cell_at(self, where: tuple[int, ...]) -> Cell:
        """The cell at a place along the axes, parsed and checked."""
        settings = copy.deepcopy(self.base)
        seed = None
        for axis, k in zip(self.axes, where, strict=True):
            for name, value in zip(axis.settings, axis.points[k], strict=True):
                if name == "seed":
                    seed = value
                else:
                    _put(settings, name, copy.deepcopy(value))
        whole = self.maker.whole
        assert whole is not None
        keys = assign_keys(whole, settings, seed) if seed is not None else 1
        try:
            config = self.maker.check(settings)
            require(keys > 0, "sweep.seeds", "have something random without a key to seed", seed)
        except InputError as error:
            at = f" (at {self.label(Cell(where, '', settings))})" if where else ""
            raise InputError(f"{error}{at}") from None
        described = self.maker.describe(config)
        return Cell(where, cell_id(self.kind, described), described, config)


def read(path: str | Path) -> Grid:
    """Read and check a sweep's TOML file."""
    return declare(read_toml(Path(path)), Path(path).stem)


def declare(config: Mapping[str, Any], name: str | None = None) -> Grid:
    """Check a sweep given as plain data; `name` is where it is stored if it does not say."""
    require(isinstance(config, Mapping), "config", "be a table of settings", type(config).__name__)
    declaration = plain(dict(config))
    base = dict(declaration)
    sweep = base.pop("sweep", {})
    require(isinstance(sweep, dict), "sweep", "be a table", repr(sweep))
    kind = _kind(base, sweep)
    axes = axes_of(sweep, kind_of(kind).sections)
    count = math.prod(len(axis.points) for axis in axes)
    require(count <= MOST_CELLS, "sweep", f"hold at most {MOST_CELLS} cells", count)
    store, limit = sweep.get("store"), sweep.get("time_limit")
    if store is not None:
        require(
            isinstance(store, str) and STORE_NAME.fullmatch(store) is not None,
            "sweep.store",
            "be a plain name: at most 80 letters, digits and _ . + = -, not beginning with a sign",
            repr(store),
        )
    if limit is not None:
        check_time_limit(limit, "sweep.time_limit")
    declaration["sweep"] = sweep
    grid = FileGrid(declaration, kind, tuple(axes), store or name, limit, base)
    first = grid.cells[0]  # all are checked by now; one is built, which finds what only building finds
    grid.maker.build(first.config)
    return grid


def check_time_limit(limit: Any, name: str) -> None:
    """Refuse what is no number of seconds."""
    require(0 < as_number(limit, name) < np.inf, name, "be a positive number of seconds", limit)


def _kind(base: Mapping[str, Any], sweep: Mapping[str, Any]) -> str:
    """What kind of cell the sections of a file are for, given or varied."""
    zips = sweep.get("zip", [])
    tables = [base, sweep, *(zips if isinstance(zips, list) else [])]
    named = {name for table in tables if isinstance(table, Mapping) for name in table}
    return next((kind for kind in KINDS if kind in named), "simulate")


def digest_of(declaration: Mapping[str, Any]) -> str:
    """Hash of a declaration; where to store and how long to try are no part of what is computed."""
    sweep = {k: v for k, v in declaration["sweep"].items() if k not in ("store", "time_limit")}
    return data_hash({**declaration, "sweep": sweep})


def cell_id(kind: str, settings: Mapping[str, Any]) -> str:
    """The hash under which a cell is stored."""
    return data_hash({"kind": kind, "settings": settings})[:32]


def _put(settings: dict[str, Any], name: str, value: Any) -> None:
    """Set what a dotted name leads to."""
    *path, last = name.split(".")
    for key in path:
        inner = settings.setdefault(key, {})
        require(
            isinstance(inner, dict), f"sweep.{name}", f"lead through tables; `{key}` is none", repr(inner)
        )
        settings = inner
    settings[last] = value


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"
