"""The clusters of a run, followed through its snapshots: which merged into which, and when."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tokenfield.measure.clusters import clusters
from tokenfield.runs.trajectory import Trajectory


class Merge(NamedTuple):
    """Clusters `parts` became the cluster `into`, after the time `after` and by the time `time`."""

    after: float
    time: float
    parts: tuple[int, ...]
    into: int


class MergeTree(NamedTuple):
    """The clusters of a run as nodes, each a set of tokens that stayed together for some time.

    `ts` (snapshots,) and `counts` (snapshots,): how many clusters there were when. `nodes` (snapshots, n):
    the node each token belongs to. `born`, `died` (nodes,): first snapshot time of a node, and that of the
    node that followed it, infinite for the last ones. `weights` (nodes,): their masses. `links` (m, 2): which
    node gave tokens to which later one; without splits a forest. `merges`: the events, in order of time.
    """

    ts: Float[np.ndarray, "snapshots"]
    counts: Int[np.ndarray, "snapshots"]
    nodes: Int[np.ndarray, "snapshots n"]
    born: Float[np.ndarray, "nodes"]
    died: Float[np.ndarray, "nodes"]
    weights: Float[np.ndarray, "nodes"]
    links: Int[np.ndarray, "links 2"]
    merges: list[Merge]


def track(trajectory: Trajectory, angle: float) -> MergeTree:
    """The clusters (single linkage at `angle`) of every snapshot, joined into a merge tree.

    A cluster that neither gains nor loses a token stays the same node. Times are those of the snapshots.
    """
    ts = np.asarray(trajectory.snapshot_ts, dtype=float)
    weights = np.asarray(trajectory.weights)
    first = clusters(trajectory.tokens(0), angle)
    rows, counts, merges, links = [first.labels], [first.count], [], []
    born, died = [ts[0]] * first.count, [np.inf] * first.count
    masses = list(np.bincount(first.labels, weights))
    for k in range(1, len(ts)):
        found = clusters(trajectory.tokens(k), angle)
        pairs, now = _unchanged(rows[-1], found.labels)
        mass = np.bincount(found.labels, weights)
        for label in np.flatnonzero(now < 0):
            parts = pairs[pairs[:, 1] == label, 0]
            now[label] = len(born)
            born.append(ts[k])
            died.append(np.inf)
            masses.append(mass[label])
            links += [(int(part), int(now[label])) for part in parts]
            for part in parts:
                died[part] = ts[k]
            if len(parts) > 1:
                merges.append(Merge(ts[k - 1], ts[k], tuple(int(p) for p in parts), int(now[label])))
        rows.append(now[found.labels])
        counts.append(found.count)
    return MergeTree(
        ts,
        np.array(counts),
        np.stack(rows),
        np.array(born),
        np.array(died),
        np.array(masses),
        np.array(links, dtype=int).reshape(-1, 2),
        merges,
    )


def _unchanged(nodes: Int[np.ndarray, "n"], labels: Int[np.ndarray, "n"]) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (node, label) that share tokens, and for each label the node that holds the same ones, or −1."""
    pairs = np.unique(np.stack([nodes, labels], axis=1), axis=0)
    sources, targets = np.bincount(pairs[:, 1]), np.bincount(pairs[:, 0])
    same = (sources[pairs[:, 1]] == 1) & (targets[pairs[:, 0]] == 1)
    now = np.full(len(sources), -1)
    now[pairs[same, 1]] = pairs[same, 0]
    return pairs, now
