"""The axes of a declared sweep: what [sweep] says about settings that vary.

[sweep]
seeds = 4                                     # 0, 1, 2, 3; or a list
model.beta = { log = [1, 1000, 7] }           # from, to, how many
initial.n = { linear = [100, 400, 4] }        # whole = true rounds to whole numbers
solver.rtol = [1e-6, 1e-8]
model = [{ kind = "softmax", beta = 3 }, { kind = "hardmax" }]    # or a whole section at once

[[sweep.zip]]                                 # several that go together, one axis
initial.n = [100, 400]
times.stop = [10, 40]
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tokenfield.errors import as_number, as_whole, require
from tokenfield.registry import entries

#: More cells than this are refused.
MOST_CELLS = 10**6
#: Entries of [sweep] that are not settings to vary.
OPTIONS = ("store", "seeds", "time_limit", "zip")
#: Names of dimensions and variables of every dataset; an axis cannot have them, nor those of a measure.
RESERVED = (
    *("time", "times", "time_index", "snapshot", "snapshots", "snapshot_index"),
    *("token", "dim", "x", "token_weights", "state", "status", "cell", "steps", "rejected"),
    *("rho", "nodes", "masses", "node", "coordinate", "resolved", "share"),
)


class Axis(NamedTuple):
    """One direction of the grid: for each setting on it a name, its coordinate, and its values."""

    name: str
    settings: tuple[str, ...]
    coordinates: tuple[str, ...]
    points: tuple[tuple[Any, ...], ...]


def axes_of(sweep: Mapping[str, Any], sections: Sequence[str]) -> list[Axis]:
    """The axes that a [sweep] table declares, in the order of the file, zips after them and seeds last."""
    return _name_axes([*_crossed(sweep, sections), *_zips(sweep, sections), *_seeds(sweep)])


def taken_names() -> set[str]:
    """Names of dimensions and variables that an axis cannot have."""
    return {*RESERVED, *entries("measure")}


def _crossed(sweep: Mapping[str, Any], sections: Sequence[str]) -> Iterator[Axis]:
    """An axis for every setting that [sweep] varies, as they stand in the file."""
    for name, value in _leaves({k: v for k, v in sweep.items() if k not in OPTIONS}, ""):
        _check_known(name, sections, "sweep.")
        yield Axis(name, (name,), (), tuple((v,) for v in _values(value, f"sweep.{name}")))


def _zips(sweep: Mapping[str, Any], sections: Sequence[str]) -> Iterator[Axis]:
    zips = sweep.get("zip", [])
    right = isinstance(zips, list) and all(isinstance(z, dict) for z in zips)
    require(right, "sweep.zip", "be tables: write [[sweep.zip]]", repr(zips))
    for k, table in enumerate(zips):
        place = f"sweep.zip[{k}]"
        together = {name: _values(v, f"{place}.{name}") for name, v in _leaves(table, "")}
        require(len(together) >= 2, place, "hold at least two settings", ", ".join(together) or "empty")
        for name in together:
            _check_known(name, sections, f"{place}.")
        lengths = {name: len(v) for name, v in together.items()}
        require(len(set(lengths.values())) == 1, place, "hold lists of one length", lengths)
        yield Axis("", tuple(together), (), tuple(zip(*together.values(), strict=True)))


def _seeds(sweep: Mapping[str, Any]) -> Iterator[Axis]:
    seeds = sweep.get("seeds")
    if seeds is None:
        return
    if not isinstance(seeds, list):
        count = as_whole(seeds, "sweep.seeds", 1)
        require(count <= MOST_CELLS, "sweep.seeds", f"be at most {MOST_CELLS}", count)
        seeds = list(range(count))
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
        require(
            not twice and not outer,
            "sweep",
            "vary each setting once",
            f"varying {name} {'twice' if twice else 'within ' + outer[0] if outer else ''}",
        )
    taken = taken_names()
    last = [name.rpartition(".")[2] for name in every]
    short = {
        name: end if last.count(end) == 1 and end not in taken else _whole_name(name, taken)
        for name, end in zip(every, last, strict=True)
    }
    named = []
    for axis in axes:
        coordinates = tuple(short[name] for name in axis.settings)
        named.append(axis._replace(name="_".join(coordinates), coordinates=coordinates))
    return named


def _whole_name(name: str, taken: set[str]) -> str:
    """Dots as underscores; a section that is called like a variable is told from it."""
    whole = name.replace(".", "_")
    return f"{whole}_section" if whole in taken else whole


def _check_known(name: str, sections: Sequence[str], prefix: str) -> None:
    require(
        name.partition(".")[0] in sections,
        f"{prefix}{name}",
        f"be a setting of {', '.join(sections)}, or one of {', '.join(OPTIONS)}",
        "not one",
    )


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
    require(
        right and isinstance(whole, bool),
        name,
        "be { linear = [from, to, count] } or { log = [from, to, count] }, with or without whole = true",
        repr(value),
    )
    assert isinstance(ends, list)
    start, stop = (as_number(v, name) for v in ends[:2])
    count = as_whole(ends[2], f"{name} (count)", 1)
    require(count <= MOST_CELLS, f"{name} (count)", f"be at most {MOST_CELLS}", count)
    require(bool(np.isfinite([start, stop]).all()), name, "begin and end at finite numbers", ends)
    if spacing == "log":
        require(start > 0 and stop > 0, name, "begin and end at positive numbers", ends)
    points = (np.geomspace if spacing == "log" else np.linspace)(start, stop, count)
    return [round(v) for v in points.tolist()] if whole else points.tolist()
