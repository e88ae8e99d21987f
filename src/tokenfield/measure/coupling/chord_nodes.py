"""Transport on the circle for the chord, between more points than a linear program takes.

Both laws are moved to a few thousand nodes: a token gives its mass to the two nodes beside it, in
proportion to its nearness, so that ∫f is kept for every f that is linear in the angle between nodes. With
potentials f, g at the nodes, continued linearly, f(x) + g(y) is at most the interpolated cost. Let
h(t) = (2 sin(t/2))^p be the cost of the arc t, and δ the distance of the nodes:

- p = 1: h is concave on (0, 2π), and one may take g = −f. Then f(x) − f(y) ≤ h everywhere if it is so at
  the nodes, and W1 between the laws is at least W1 between the nodes.
- p ≥ 2: linear interpolation in each of two angles exceeds h by at most δ²/8 max h'' each; W_p^p between
  the laws is at least that between the nodes less δ²/4 max h''.
- 1 < p < 2: h'' is infinite at 0. Between cells that touch the interpolated cost is at most (2δ)^p; for
  others δ²/4 max h'' is less than that.

The plan between the nodes, followed from token to token, is the upper bound.
"""

from typing import NamedTuple

import numpy as np

from tokenfield.measure.coupling.atoms import Bounds, by_program
from tokenfield.measure.coupling.circle import geodesic_plan
from tokenfield.measure.coupling.plan import Cost, DiscreteLaw, Plan, split

#: Nodes at equal distances.
NODE_COUNT = 4096
#: With p = 1, further nodes where the flow of mass changes its direction, at most.
MAX_STOPS = 2048
#: Chords shorter than this are as good as arcs, to a part in ten thousand, and are coupled as such.
ARC_THRESHOLD = 0.05


class NodeMasses(NamedTuple):
    """A law moved to nodes, in their order: the mass `mass[k]` of `token[k]` is given to `node[k]`."""

    token: np.ndarray
    node: np.ndarray
    mass: np.ndarray

    def total(self, nodes: int) -> np.ndarray:
        """The mass of every node."""
        return np.bincount(self.node, self.mass, minlength=nodes)

    def thinned(self, kept: np.ndarray) -> "NodeMasses":
        """The same with the part `kept` of each node's mass; what is left with none is left out."""
        mass = self.mass * kept[self.node]
        real = mass > 0
        return NodeMasses(self.token[real], self.node[real], mass[real])


def by_nodes(mu: DiscreteLaw, nu: DiscreteLaw, cost: Cost, count: int = NODE_COUNT) -> Bounds:
    """A coupling for the chordal cost of two laws on the circle, and a lower bound of W_p.

    Args:
        mu: points (n, 2) and weights (n,).
        nu: points (m, 2) and weights (m,).
        cost: the chord, and p.
        count: nodes at equal distances; for p ≥ 2 the bound of W_p^p loses like count^{−2}.

    Returns: the plan between the tokens, and the bound.
    """
    nodes = np.linspace(-np.pi, np.pi, count + 1)[:-1]
    if cost.p == 1:
        stops = _stops(mu, nu)
        return _by_moving(mu, nu, np.union1d(nodes, np.where(stops < np.pi, stops, -np.pi)), cost)
    x = _points(nodes)
    first, second = _on_nodes(mu, nodes), _on_nodes(nu, nodes)
    a, b = first.total(count), second.total(count)
    source, sink = np.flatnonzero(a), np.flatnonzero(b)
    found = by_program(_law(x[source], a[source]), _law(x[sink], b[sink]), cost)
    plan = _followed(Plan(source[found.plan.i], sink[found.plan.j], found.plan.mass), first, second)
    return Bounds(plan, cost.root(found.lower**cost.p - _loss(cost.p, 2 * np.pi / count)))


def _loss(p: float, step: float) -> float:
    """How far the interpolated cost may exceed the cost."""
    if p < 2:
        return (2 * step) ** p
    # h'' ≤ p(p − 1) cos²(t/2) (2 sin(t/2))^{p−2}, which is greatest where sin² = (p − 2)/p
    bend = p * (p - 1) * (2 / p) * (4 * (p - 2) / p) ** ((p - 2) / 2)
    return bend * step**2 / 4


def _by_moving(mu: DiscreteLaw, nu: DiscreteLaw, nodes: np.ndarray, cost: Cost) -> Bounds:
    """p = 1: what both laws have at a node stays there, the rest has to move.

    What moves less than `ARC_THRESHOLD` is coupled again, token by token, in the order of the circle.
    """
    first, second = _on_nodes(mu, nodes), _on_nodes(nu, nodes)
    a, b = first.total(len(nodes)), second.total(len(nodes))
    more, less = np.maximum(a - b, 0.0), np.maximum(b - a, 0.0)
    moving, x = float(more.sum()), _points(nodes)
    source, sink = np.flatnonzero(more), np.flatnonzero(less)
    if min(len(source), len(sink)) == 0:  # rounding may leave something on one side
        return Bounds(geodesic_plan(mu, nu, 1), 0.0)
    found = by_program(_law(x[source], more[source]), _law(x[sink], less[sink]), cost)
    i, j, mass = source[found.plan.i], sink[found.plan.j], found.plan.mass * moving
    far = cost.distance(x[i], x[j]) > ARC_THRESHOLD
    i, j, mass = i[far], j[far], mass[far]
    leaves, arrives = _part(i, mass, a), _part(j, mass, b)
    moved = _followed(Plan(i, j, mass), first.thinned(leaves), second.thinned(arrives))
    stayed = _in_order(mu, nu, first.thinned(1 - leaves), second.thinned(1 - arrives))
    plan = Plan(*(np.concatenate(pair) for pair in zip(moved, stayed, strict=True)))
    return Bounds(plan, found.lower * moving)


def _part(node: np.ndarray, mass: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Which part of a node's mass the listed masses are; 0 at nodes without mass."""
    listed = np.bincount(node, mass, minlength=len(whole))
    return np.divide(listed, whole, out=np.zeros_like(whole), where=listed > 0).clip(0.0, 1.0)


def _in_order(mu: DiscreteLaw, nu: DiscreteLaw, first: NodeMasses, second: NodeMasses) -> Plan:
    """These masses coupled in the order of the circle."""
    a, b = np.bincount(first.token, first.mass), np.bincount(second.token, second.mass)
    i, j = np.flatnonzero(a), np.flatnonzero(b)
    if min(len(i), len(j)) == 0:
        return Plan(i[:0], j[:0], a[:0])
    plan = geodesic_plan(_law(mu.x[i], a[i]), _law(nu.x[j], b[j]), 1)
    return Plan(i[plan.i], j[plan.j], plan.mass * a.sum())


def _followed(plan: Plan, first: NodeMasses, second: NodeMasses) -> Plan:
    """A plan between nodes as one between the tokens that gave them their mass."""
    if len(plan.mass) == 0:
        return plan
    parts = split(plan, first.mass, second.mass)
    return Plan(first.token[parts.i], second.token[parts.j], parts.mass * plan.mass.sum())


def _on_nodes(law: DiscreteLaw, nodes: np.ndarray) -> NodeMasses:
    ends = np.append(nodes, nodes[0] + 2 * np.pi)
    angle = np.maximum(np.arctan2(law.x[:, 1], law.x[:, 0]), nodes[0])
    left = np.minimum(np.searchsorted(ends, angle, side="right") - 1, len(nodes) - 1)
    share = (angle - ends[left]) / (ends[left + 1] - ends[left])
    token = np.tile(np.arange(len(angle)), 2)
    node = np.concatenate([left, (left + 1) % len(nodes)])
    mass = np.concatenate([law.w * (1 - share), law.w * share])
    order = np.argsort(node, kind="stable")
    order = order[mass[order] > 0]
    return NodeMasses(token[order], node[order], mass[order])


def _stops(mu: DiscreteLaw, nu: DiscreteLaw) -> np.ndarray:
    """Angles where the flow of mass of least ∫|flow| changes its direction: kinks of the best potential.

    The flow past an angle is F − G less its median over the circle. Of the stretches between two changes
    those with the greatest ∫|flow| count.
    """
    angle = np.arctan2(*np.concatenate([mu.x, nu.x]).T[::-1])
    order = np.argsort(angle)
    angle = angle[order]
    flow = np.cumsum(np.concatenate([mu.w, -nu.w])[order])
    length = np.diff(angle, append=angle[0] + 2 * np.pi)
    by_size = np.argsort(flow)
    half = np.searchsorted(np.cumsum(length[by_size]), np.pi)
    flow = flow - flow[by_size[half]]
    first = np.flatnonzero(np.sign(flow) != np.sign(np.roll(flow, 1)))
    if len(first) < 2:
        return angle[first]
    size = np.add.reduceat(np.roll(np.abs(flow) * length, -first[0]), first - first[0])
    greatest = np.argsort(-size)[: MAX_STOPS // 2]
    return angle[np.union1d(first[greatest], first[(greatest + 1) % len(first)])]


def _points(angle: np.ndarray) -> np.ndarray:
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _law(x: np.ndarray, mass: np.ndarray) -> DiscreteLaw:
    return DiscreteLaw(x, mass / mass.sum())
