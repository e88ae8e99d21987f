"""Panels: the circle or the sphere S² cut into boxes of angles, each with its own Gauss nodes.

A label is an angle (d = 2) or a colatitude and a longitude (d = 3). Smooth functions of the sphere are smooth
functions of the label, so the rule of a box with m nodes in each direction is exact to degree 2m − 1, and the
last Legendre coefficients of a function in the box tell how well its nodes resolve it. Boxes may differ in
size: they are divided where the flow pulls nodes apart.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int


class Panels(NamedTuple):
    """Boxes between the corners `lower` and `upper` (panels, d − 1), with `order` nodes in each direction."""

    lower: Float[np.ndarray, "p k"]
    upper: Float[np.ndarray, "p k"]
    order: int

    @property
    def k(self) -> int:
        """Dimension of the sphere."""
        return self.lower.shape[1]

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.lower) * self.order**self.k

    def labels(self) -> Float[np.ndarray, "p q k"]:
        """The labels of the nodes of every panel."""
        t, _ = _unit_rule(self.order, self.k)
        return self.lower[:, None] + (self.upper - self.lower)[:, None] * t

    def points(self) -> Float[np.ndarray, "n d"]:
        """The nodes on the sphere."""
        return points(self.labels().reshape(-1, self.k))

    def weights(self) -> Float[np.ndarray, "n"]:
        """Weights of the nodes for the uniform law; sum 1."""
        _, w = _unit_rule(self.order, self.k)
        weights = np.prod(self.upper - self.lower, axis=1)[:, None] * w
        if self.k == 2:
            weights = weights * np.sin(self.labels()[..., 0])
        return weights.ravel() / weights.sum()

    def tails(self, values: Float[np.ndarray, "n c"]) -> Float[np.ndarray, "p k"]:
        """Greatest of the last two Legendre coefficients of any column in each panel and direction."""
        m = self.order
        nodes, _ = np.polynomial.legendre.leggauss(m)
        to_coefficients = np.linalg.inv(np.polynomial.legendre.legvander(nodes, m - 1))[-2:]
        table = values.reshape(len(self.lower), *[m] * self.k, -1)
        found = [np.abs(np.tensordot(table, to_coefficients, (1 + i, 1))) for i in range(self.k)]
        return np.stack([f.reshape(len(f), -1).max(axis=1) for f in found], axis=1)

    def masses(self, weights: Float[np.ndarray, "n"]) -> Float[np.ndarray, "p"]:
        """Sum of the node weights of each panel."""
        return weights.reshape(len(self.lower), -1).sum(axis=1)

    def divided(self, parts: Int[np.ndarray, "p k"], order: int) -> "Panels":
        """Every panel cut into parts[i, j] equal parts in direction j, with another number of nodes."""
        lower, upper = self.lower, self.upper
        for j in range(self.k):
            count = parts[:, j]
            owner = np.repeat(np.arange(len(count)), count)
            place = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
            step = ((upper - lower)[:, j] / count)[owner]
            start = lower[owner, j] + place * step
            lower, upper, parts = lower[owner].copy(), upper[owner].copy(), parts[owner]
            lower[:, j], upper[:, j] = start, start + step
        return Panels(lower, upper, order)

    def with_order(self, order: int) -> "Panels":
        """The same boxes with another number of nodes."""
        return Panels(self.lower, self.upper, order)


def even_panels(d: int, n: int, order: int) -> Panels:
    """Equal boxes with about n nodes in all.

    Args:
        d: dimension of the surrounding space, 2 or 3.
        n: nodes wanted.
        order: Gauss nodes of a box in each direction.
    """
    if d == 2:
        edges = np.linspace(0, 2 * np.pi, max(2, round(n / order)) + 1)
        return Panels(edges[:-1, None], edges[1:, None], order)
    rings = max(1, round(np.sqrt(n / 2) / order))
    theta, phi = np.linspace(0, np.pi, rings + 1), np.linspace(0, 2 * np.pi, 2 * rings + 1)
    corner = lambda a, b: np.stack(np.meshgrid(a, b, indexing="ij"), axis=-1).reshape(-1, 2)  # noqa: E731
    return Panels(corner(theta[:-1], phi[:-1]), corner(theta[1:], phi[1:]), order)


def points(labels: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n d"]:
    """Points of the sphere at the labels."""
    if labels.shape[1] == 1:
        return np.concatenate([np.cos(labels), np.sin(labels)], axis=1)
    theta, phi = labels.T
    return np.stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)], axis=1)


def to_divide(share: Float[np.ndarray, "p"], allowed: float) -> Bool[np.ndarray, "p"]:
    """The fewest panels such that the shares of the others sum to at most `allowed`."""
    order = np.argsort(share)
    kept = np.cumsum(share[order]) <= allowed
    marked = np.ones(len(share), bool)
    marked[order[kept]] = False
    return marked


def _unit_rule(order: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss nodes (q, k) and weights (q,) of the unit box."""
    t, w = np.polynomial.legendre.leggauss(order)
    t, w = (t + 1) / 2, w / 2
    grid = np.stack(np.meshgrid(*[t] * k, indexing="ij"), axis=-1).reshape(-1, k)
    return grid, np.prod(np.stack(np.meshgrid(*[w] * k, indexing="ij"), axis=-1).reshape(-1, k), axis=1)
