"""The zero-temperature flow of several heads (theory §6.7): its field, its linearisation, its orbits.

    x' = P_x F(x),   F(x) = Σ_h V_h B_hᵀx/|B_hᵀx|

has no linear orbits. At a fixed point F(x) = λx a small displacement u obeys u' = (PJP − λP)u with
J = Σ_h V_h(I − q̂q̂ᵀ)B_hᵀ/|B_hᵀx|, q̂ = B_hᵀx/|B_hᵀx|. F is odd, so that fixed points and basins come with their
antipodes. Where B_hᵀx = 0 a head reads 0.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from tokenfield.models.weights import AttentionWeights

#: |B_hᵀx| below this part of ‖B_h‖ is rounding: the head has no direction there.
SMALLEST_QUERY = 1e-14
#: Error of one step, and the step that is taken whatever its error: where the field jumps no step is exact.
STEP_TOLERANCE, SHORTEST_STEP = 1e-9, 1e-9
#: Steps of Newton's method, and the speed (in units of Σ‖V_h‖) at which a point is one of rest.
NEWTON_STEPS, REST_SPEED = 12, 1e-13

# Dormand and Prince's pair of order 5 and 4: nodes are not needed, the field does not read the time
_STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
_ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)


class RestPoint(NamedTuple):
    """A fixed point `x` (d,), and `rate`, at which the slowest small displacement dies out.

    The rate is negative at an unstable point.
    """

    x: Float[np.ndarray, "d"]
    rate: float


@dataclass(frozen=True, eq=False)
class HeadFlow:
    """The heads with ‖B_h‖ = 1, which their field does not notice, and values in units of `scale` = Σ‖V_h‖.

    Times of this class are multiplied by `scale`, and rates divided by it. `B`, `V` (heads, d, d).
    """

    B: Float[np.ndarray, "heads d d"]
    V: Float[np.ndarray, "heads d d"]
    scale: float

    @classmethod
    def of(cls, weights: AttentionWeights) -> "HeadFlow":
        """The flow of these weights; heads that read nothing are left out, if any other is there."""
        B, V = (np.asarray(matrices) for matrices in weights.stacked())
        sizes = np.stack([np.linalg.norm(m / _unit(m), 2, axis=(1, 2)) * _unit(m)[:, 0, 0] for m in (B, V)])
        seen = np.all(sizes > 0, axis=0)
        if not np.any(seen):
            return cls(B[:1], V[:1], 1.0)
        scale = float(np.sum(sizes[1, seen]))
        return cls(B[seen] / sizes[0, seen, None, None], V[seen] / scale, scale)

    @property
    def d(self) -> int:
        """Dimension of the tokens."""
        return self.B.shape[-1]

    @cached_property
    def null_directions(self) -> list[Float[np.ndarray, "d k"]]:
        """Per head an orthonormal basis of the directions with B_hᵀx = 0."""
        split = [np.linalg.svd(B) for B in self.B]
        return [left[:, sizes <= SMALLEST_QUERY * self.d] for left, sizes, _ in split]

    def output(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """F at unit rows."""
        total = np.zeros_like(x)
        for B, V in zip(self.B, self.V, strict=True):
            total += _directions(x @ B) @ V.T
        return total

    def velocity(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """P_x F at unit rows."""
        F = self.output(x)
        return F - np.sum(x * F, axis=1, keepdims=True) * x

    def linearised(self, x: Float[np.ndarray, "d"]) -> Float[np.ndarray, "d d"]:
        """PJP − λP at one point, 0 along x."""
        J, P = np.zeros((self.d, self.d)), np.eye(self.d) - np.outer(x, x)
        for B, V in zip(self.B, self.V, strict=True):
            q = x @ B
            size = np.linalg.norm(q)
            if size > SMALLEST_QUERY:
                J += V @ (B.T - np.outer(q, q @ B.T) / size**2) / size
        return P @ J @ P - (x @ self.output(x[None])[0]) * P

    def rest_point(self, x: Float[np.ndarray, "d"]) -> RestPoint | None:
        """The fixed point that Newton's method finds from x, None if it finds none."""
        for _ in range(NEWTON_STEPS):
            slope, speed = self.linearised(x), self.velocity(x[None])[0]
            if np.linalg.norm(speed) <= REST_SPEED:
                break
            try:
                x = x - np.linalg.solve(slope - np.outer(x, x), speed)
            except np.linalg.LinAlgError:
                return None
            x = x / np.linalg.norm(x)
        if not np.linalg.norm(self.velocity(x[None])) <= 100 * REST_SPEED:
            return None
        return RestPoint(x, self.rate(x))

    def rate(self, x: Float[np.ndarray, "d"]) -> float:
        """−(greatest real part) of PJP − λP on the tangent space at a fixed point."""
        tangent = np.linalg.svd(x[None])[2][1:].T
        return -float(np.max(np.linalg.eigvals(tangent.T @ self.linearised(x) @ tangent).real))

    def follow(self, x: Float[np.ndarray, "n d"], time: float) -> Float[np.ndarray, "n d"]:
        """Where tokens are after a time; every token takes steps of its own."""
        x, left = x.copy(), np.full(len(x), time)
        step = np.full(len(x), 0.05)
        moving = np.arange(len(x))
        while moving.size:
            h = np.minimum(step[moving], left[moving])
            end, error = _dormand_prince(self.velocity, x[moving], h)
            done = (error <= STEP_TOLERANCE) | (h <= SHORTEST_STEP)
            x[moving[done]] = end[done] / np.linalg.norm(end[done], axis=1, keepdims=True)
            left[moving[done]] -= h[done]
            factor = 0.9 * (STEP_TOLERANCE / np.maximum(error, 1e-300)) ** 0.2
            step[moving] = np.maximum(h * np.clip(factor, 0.2, 5.0), SHORTEST_STEP)
            moving = moving[left[moving] > SHORTEST_STEP]
        return x

    def at_rest(self, x: Float[np.ndarray, "n d"], speed: float) -> Bool[np.ndarray, "n"]:
        """Which tokens move more slowly than this."""
        return np.linalg.norm(self.velocity(x), axis=1) < speed


def _unit(matrices: np.ndarray) -> np.ndarray:
    """A size of each matrix by which it can be divided: squares of 1e200 overflow."""
    size = np.max(np.abs(matrices), axis=(1, 2), keepdims=True)
    return np.where(size > 0, size, 1.0)


def _directions(q: np.ndarray) -> np.ndarray:
    size = np.linalg.norm(q, axis=1, keepdims=True)
    return np.where(size > SMALLEST_QUERY, q, 0.0) / np.maximum(size, SMALLEST_QUERY)


def _dormand_prince(velocity, x: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One step of every token with its own h, and the greatest entry of its estimated error."""
    slopes, y = [velocity(x)], x
    for row in _STAGES:
        y = x + h[:, None] * sum(a * k for a, k in zip(row, slopes, strict=True))
        slopes.append(velocity(y))
    off = h[:, None] * sum(e * k for e, k in zip(_ERROR, slopes, strict=True))
    return y, np.max(np.abs(off), axis=1)
