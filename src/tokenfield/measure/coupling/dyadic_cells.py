"""A law cut into cells by halving, at several resolutions.

The points are put in an order in which every cell of every resolution is a run of neighbours, so that
a cell is known by its first token and its parts follow each other.
"""

from typing import NamedTuple

import numpy as np

from tokenfield.measure.coupling.plan import DiscreteLaw


class Scale(NamedTuple):
    """A law at one resolution: its cells' points and weights, and the first token of each cell."""

    x: np.ndarray
    w: np.ndarray
    first: np.ndarray


def halved(x: np.ndarray, least: int = 2) -> np.ndarray:
    """An order of the points in which every dyadic part is a cell: halved along its widest coordinate."""
    order = np.arange(len(x))
    parts = [(0, len(x))]
    while parts:
        start, end = parts.pop()
        if end - start <= least:
            continue
        inside = order[start:end]
        axis = np.argmax(np.ptp(x[inside], axis=0))
        middle = (end - start) // 2
        order[start:end] = inside[np.argpartition(x[inside, axis], middle)]
        parts += [(start, start + middle), (start + middle, end)]
    return order


def cell_starts(n: int, cells: int) -> np.ndarray:
    """First token of each cell, as the halving places them; not more cells than tokens."""
    starts = np.array([0, n])
    while 2 * (len(starts) - 1) <= cells and 2 * (len(starts) - 1) <= n:
        middles = starts[:-1] + np.diff(starts) // 2
        starts = np.sort(np.concatenate([starts, middles]))
    return starts[:-1]


def at_scales(law: DiscreteLaw, sizes: list[int]) -> list[Scale]:
    """The law at every resolution, the last one itself."""
    n = len(law.w)
    return [merged(law, cell_starts(n, size)) if size < n / 2 else _full(law) for size in sizes] + [
        _full(law)
    ]


def _full(law: DiscreteLaw) -> Scale:
    return Scale(law.x, law.w, np.arange(len(law.w)))


def merged(law: DiscreteLaw, first: np.ndarray) -> Scale:
    """Each cell at its mean direction, or at its first token if it has none."""
    mean = np.add.reduceat(law.w[:, None] * law.x, first)
    weight = np.add.reduceat(law.w, first)
    length = np.linalg.norm(mean, axis=1, keepdims=True)
    x = np.where(length > 1e-3 * weight[:, None], mean / np.maximum(length, 1e-300), law.x[first])
    return Scale(x, weight, first)


def parents(coarse: Scale, fine: Scale) -> np.ndarray:
    """The coarse cell that holds each fine one."""
    return np.searchsorted(coarse.first, fine.first, side="right") - 1


def children(of: np.ndarray, n: int) -> np.ndarray:
    """Where the children of each cell begin, and where the last end: they follow each other."""
    return np.searchsorted(of, np.arange(n + 1))


def expand(cells: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All children of the listed cells, and for each the place in the list it came from."""
    count = np.diff(starts)[cells]
    place = np.repeat(np.arange(len(cells)), count)
    ends = np.cumsum(count)
    return starts[cells][place] + np.arange(len(place)) - (ends - count)[place], place


def smallest(values: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
    """Whether each value is among the `count` smallest of its group.

    Args:
        values: (k,).
        group: number of the group of each value, (k,).
        count: how many of each group are kept.

    Returns: a mask, (k,).
    """
    order = np.lexsort((values, group))
    ordered = group[order]
    begin = np.flatnonzero(np.diff(ordered, prepend=-1))
    rank = np.arange(len(group)) - np.repeat(begin, np.diff(np.append(begin, len(group))))
    kept = np.zeros(len(group), bool)
    kept[order[rank < count]] = True
    return kept


def group_min(values: np.ndarray, group: np.ndarray, n: int) -> np.ndarray:
    """Least value of each group.

    Args:
        values: (k,).
        group: number of the group of each value, (k,), below n.
        n: how many groups there are.

    Returns: (n,), infinite where a group has no value.
    """
    least = np.full(n, np.inf)
    np.minimum.at(least, group, values)
    return least
