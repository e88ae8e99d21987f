"""A declared sweep: a run's TOML settings with some of them varied, and the cells that follow from it.

    [model]
    kind = "softmax"

    [sweep]
    seeds = 4                                     # 0, 1, 2, 3; or a list
    model.beta = { log = [1, 1000, 7] }           # from, to, how many
    initial.n = { linear = [100, 400, 4] }        # whole = true rounds to whole numbers
    solver.rtol = [1e-6, 1e-8]
    model = [{ kind = "softmax", beta = 3 }, { kind = "hardmax" }]    # or a whole section at once

    [[sweep.zip]]                                 # several that go together, one axis
    initial.n = [100, 400]
    times.stop = [10, 40]

Every axis is crossed with every other. A seed gives a key to everything random that has none of its own.
Nothing in the file is evaluated; the order of cells, their hashes and their batches follow from it alone.
"""

import copy
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokenfield.config import read_toml
from tokenfield.errors import InputError, as_number, as_whole, require
from tokenfield.settings import RANDOM
from tokenfield.sweep.kinds import KINDS
from tokenfield.trajectory import plain

#: More cells than this are refused.
MOST_CELLS = 10**6
#: So many batches are made of many small cells at least, that there is something for several workers.
LEAST_BATCHES = 16
#: Entries of [sweep] that are not settings to vary.
OPTIONS = ("store", "seeds", "time_limit", "zip")
#: Laws that draw tokens and solvers that draw noise: they need a key.
RANDOM_LAWS = ("uniform", "von_mises_fisher", "cap")
RANDOM_SOLVERS = ("euler-maruyama", "strang")
#: What a store may be called: no path, nothing hidden.
STORE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]{0,79}")
#: Names of dimensions and variables that an axis cannot have.
TAKEN = (
    "time", "times", "time_index", "snapshot", "snapshots", "snapshot_index", "token", "dim", "x",
    "token_weights", "state", "status", "cell", "steps", "rejected", "rho", "nodes", "masses", "node",
    "coordinate", "resolved", "order_parameter", "energy", "mean", "limit_distance", "free_energy", "minimum",
    "tail", "share",
)  # fmt: skip


class Axis(NamedTuple):
    """One direction of the grid: for each setting on it a name, its coordinate, and its values."""

    name: str
    settings: tuple[str, ...]
    coordinates: tuple[str, ...]
    points: tuple[tuple[Any, ...], ...]


class Cell(NamedTuple):
    """One run: its place along the axes, the hash of its settings, and the settings."""

    where: tuple[int, ...]
    id: str
    settings: dict[str, Any]


class Batch(NamedTuple):
    """Cells of one task; `size` lanes, more than there are cells in the last batch of a group."""

    number: int
    cells: tuple[Cell, ...]
    size: int


@dataclass(frozen=True)
class Grid:
    """A declared sweep. `declaration` is the file as plain data, which is all that the rest follows from."""

    declaration: dict[str, Any]
    kind: str
    base: dict[str, Any]
    axes: tuple[Axis, ...]
    store: str | None
    time_limit: float | None

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
        cells = tuple(self._cell(where) for where in itertools.product(*map(range, self.shape)))
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
        kind, groups = KINDS[self.kind], {}
        for cell in self.cells:
            groups.setdefault(kind.together_if(cell.settings) or cell.id, []).append(cell)
        made = []
        for group in groups.values():
            size = min(kind.batch_size(group[0].settings), -(-len(group) // LEAST_BATCHES))
            made += [(tuple(group[k : k + size]), size) for k in range(0, len(group), size)]
        return tuple(Batch(k, cells, size) for k, (cells, size) in enumerate(made))

    def label(self, cell: Cell) -> str:
        """The cell's place in words: "beta = 10, seed = 2"."""
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
        require(len(found) == 1, "cell",
                f"be a number below {len(self.cells)} or at least four letters of one cell's hash",
                repr(name))  # fmt: skip
        return found[0]

    def _cell(self, where: tuple[int, ...]) -> Cell:
        settings = copy.deepcopy(self.base)
        seed = None
        for axis, k in zip(self.axes, where, strict=True):
            for name, value in zip(axis.settings, axis.points[k], strict=True):
                if name == "seed":
                    seed = value
                else:
                    _put(settings, name, copy.deepcopy(value))
        sown = _sow(settings, seed) if seed is not None else 1
        try:
            checked = KINDS[self.kind].check(settings)
            require(sown > 0, "sweep.seeds", "have something random without a key to seed", seed)
        except InputError as error:
            at = self.label(Cell(where, "", settings)) if where else ""
            raise InputError(f"{error}" + (f" (at {at})" if at else "")) from None
        return Cell(where, fingerprint({"kind": self.kind, "settings": checked})[:32], checked)


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
    axes = _name_axes([*_axes(sweep, kind), *_zips(sweep, kind), *_seeds(sweep)])
    count = math.prod(len(points) for _, _, _, points in axes)
    require(count <= MOST_CELLS, "sweep", f"hold at most {MOST_CELLS} cells", count)
    store, limit = sweep.get("store"), sweep.get("time_limit")
    if store is not None:
        require(isinstance(store, str) and STORE_NAME.fullmatch(store) is not None, "sweep.store",
                "be a plain name: at most 80 letters, digits and _ . + = -, not beginning with a sign",
                repr(store))  # fmt: skip
    if limit is not None:
        require(0 < as_number(limit, "sweep.time_limit") < np.inf, "sweep.time_limit",
                "be a positive number of seconds", limit)  # fmt: skip
    declaration["sweep"] = sweep
    grid = Grid(declaration, kind, base, tuple(axes), store or name, limit)
    first = grid.cells[0]  # all are checked by now; one is built, which finds what only building finds
    KINDS[kind].build(first.settings)
    return grid


def _kind(base: Mapping[str, Any], sweep: Mapping[str, Any]) -> str:
    """What kind of cell the sections of a file are for, given or varied."""
    zips = sweep.get("zip", [])
    tables = [base, sweep, *(zips if isinstance(zips, list) else [])]
    named = {name for table in tables if isinstance(table, Mapping) for name in table}
    return next((kind for kind in KINDS if kind in named), "simulate")


def digest_of(declaration: Mapping[str, Any]) -> str:
    """Hash of a declaration; where to store and how long to try are no part of what is computed."""
    sweep = {k: v for k, v in declaration["sweep"].items() if k not in ("store", "time_limit")}
    return fingerprint({**declaration, "sweep": sweep})


def fingerprint(value: Any) -> str:
    """Hash of plain data, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf8")).hexdigest()


def _axes(sweep: Mapping[str, Any], kind: str) -> Iterator[Axis]:
    """An axis for every setting that [sweep] varies, as they stand in the file."""
    for name, value in _leaves({k: v for k, v in sweep.items() if k not in OPTIONS}, ""):
        _check_known(name, kind, "sweep.")
        yield Axis(name, (name,), (), tuple((v,) for v in _values(value, f"sweep.{name}")))


def _zips(sweep: Mapping[str, Any], kind: str) -> Iterator[Axis]:
    zips = sweep.get("zip", [])
    right = isinstance(zips, list) and all(isinstance(z, dict) for z in zips)
    require(right, "sweep.zip", "be tables: write [[sweep.zip]]", repr(zips))
    for k, table in enumerate(zips):
        place = f"sweep.zip[{k}]"
        together = {name: _values(v, f"{place}.{name}") for name, v in _leaves(table, "")}
        require(len(together) >= 2, place, "hold at least two settings", ", ".join(together) or "empty")
        for name in together:
            _check_known(name, kind, f"{place}.")
        lengths = {name: len(v) for name, v in together.items()}
        require(len(set(lengths.values())) == 1, place, "hold lists of one length", lengths)
        yield Axis("", tuple(together), (), tuple(zip(*together.values(), strict=True)))


def _seeds(sweep: Mapping[str, Any]) -> Iterator[Axis]:
    seeds = sweep.get("seeds")
    if seeds is None:
        return
    if not isinstance(seeds, list):
        seeds = list(range(as_whole(seeds, "sweep.seeds", 1)))
    require(len(seeds) > 0, "sweep.seeds", "hold at least one seed", seeds)
    for seed in seeds:
        as_whole(seed, "sweep.seeds", 0)
    yield Axis("seed", ("seed",), ("seed",), tuple((s,) for s in seeds))


def _name_axes(axes: Sequence[Axis]) -> list[Axis]:
    """Coordinates by the last word of the setting where that is clear, else by the whole name."""
    every = [name for axis in axes for name in axis.settings]
    for name in every:
        outer = [o for o in every if o != name and name.startswith(o + ".")]
        twice = every.count(name) > 1
        require(not twice and not outer, "sweep", "vary each setting once",
                f"varying {name} {'twice' if twice else 'within ' + outer[0] if outer else ''}")  # fmt: skip
    last = [name.rpartition(".")[2] for name in every]
    short = {
        name: end if last.count(end) == 1 and end not in TAKEN else _whole_name(name)
        for name, end in zip(every, last, strict=True)
    }
    named = []
    for axis in axes:
        coordinates = tuple(short[name] for name in axis.settings)
        named.append(axis._replace(name="_".join(coordinates), coordinates=coordinates))
    return named


def _whole_name(name: str) -> str:
    """Dots as underscores; a section that is called like a variable is told from it."""
    whole = name.replace(".", "_")
    return f"{whole}_section" if whole in TAKEN else whole


def _check_known(name: str, kind: str, prefix: str) -> None:
    sections = KINDS[kind].sections
    require(name.partition(".")[0] in sections, f"{prefix}{name}",
            f"be a setting of {', '.join(sections)}, or one of {', '.join(OPTIONS)}", "not one")  # fmt: skip


def _leaves(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Dotted names of what is a list or a range."""
    for key, value in table.items():
        name = f"{prefix}{key}"
        is_range = bool(prefix) and isinstance(value, dict) and bool(set(value) & {"linear", "log"})
        if isinstance(value, dict) and not is_range:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


def _values(value: Any, name: str) -> list[Any]:
    """The points of a list or a range."""
    if isinstance(value, list):
        require(len(value) > 0, name, "hold at least one value", value)
        return value
    require(isinstance(value, dict), name, "be a list, or a range like { log = [1, 100, 5] }", repr(value))
    options = dict(value)
    whole = options.pop("whole", False)
    spacing, ends = options.popitem() if len(options) == 1 else ("", None)
    right = spacing in ("linear", "log") and isinstance(ends, list) and len(ends) == 3
    require(right and isinstance(whole, bool), name,
            "be { linear = [from, to, count] } or { log = [from, to, count] }, with or without whole = true",
            repr(value))  # fmt: skip
    assert isinstance(ends, list)
    start, stop = (as_number(v, name) for v in ends[:2])
    count = as_whole(ends[2], f"{name} (count)", 1)
    require(count <= MOST_CELLS, f"{name} (count)", f"be at most {MOST_CELLS}", count)
    require(bool(np.isfinite([start, stop]).all()), name, "begin and end at finite numbers", ends)
    if spacing == "log":
        require(start > 0 and stop > 0, name, "begin and end at positive numbers", ends)
    points = (np.geomspace if spacing == "log" else np.linspace)(start, stop, count)
    return [round(v) for v in points.tolist()] if whole else points.tolist()


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


def _sow(settings: dict[str, Any], seed: int) -> int:
    """Give a key of its own to everything random that has none; how much there was."""
    places = list(_random(settings, ""))
    for name, table in places:
        digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
        table["key"] = int.from_bytes(digest[:4], "big")
    return len(places)


def draws(table: Mapping[str, Any]) -> bool:
    """Whether a table of settings describes something random; laws without n are densities, not tokens."""
    named = (table.get("law") in RANDOM_LAWS and "n" in table) or table.get("kind") in RANDOM_SOLVERS
    return named or "systems" in table or bool(set(table) & set(RANDOM))


def _random(value: Any, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Tables without a key that draw something."""
    if isinstance(value, list):
        for k, inner in enumerate(value):
            yield from _random(inner, f"{name}[{k}]")
    if isinstance(value, dict):
        if "key" not in value and draws(value):
            yield name, value
        for key, inner in value.items():
            yield from _random(inner, f"{name}.{key}" if name else key)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"
