"""Rank-one heads at zero temperature (theory §6.7): sectors of signs, crossed on great circles.

With B_h = b_hc_hᵀ every head reads sign⟨b_h, x⟩·ĉ_h, so that in a sector of constant signs s the velocity is
P_x v(s), v(s) = Σ_h s_h u_h, u_h = V_hĉ_h: tokens run along great circles towards v(s), until a sign changes.
Attractors are the v(s)/|v(s)| with **self-consistent signs** s_h = sign⟨b_h, v(s)⟩, at the rate |v(s)|. Where
all signs are self-consistent the basins are the sectors, whose measures are solid angles.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Float

from tokenfield.theory.head_flow import HeadFlow

#: Singular values below this part of ‖B_h‖ = 1 are rounding: the head has rank one.
RANK_TOLERANCE = 1e-12
#: |⟨b, v⟩| below this, with |v| of the order of 1, has no sign.
SIGN_TOLERANCE = 1e-12
#: Heads up to which all signs are tried; with more, those that tokens come to are listed.
MAX_ENUMERATED = 14


@dataclass(frozen=True, eq=False)
class SignHeads:
    """Normals `b` (heads, d), unit rows, of the planes where signs change, and pulls `u` (heads, d)."""

    b: Float[np.ndarray, "heads d"]
    u: Float[np.ndarray, "heads d"]

    @classmethod
    def of(cls, flow: HeadFlow) -> "SignHeads | None":
        """The heads, if all have rank one."""
        left, sizes, right = np.linalg.svd(flow.B)
        if np.any(sizes[:, 1] > RANK_TOLERANCE):
            return None
        return cls(left[:, :, 0], np.einsum("hij,hj->hi", flow.V, right[:, 0, :]))

    def signs(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n heads"]:
        """s_h = sign⟨b_h, x⟩; 0 counts as positive."""
        return np.where(x @ self.b.T >= 0, 1.0, -1.0)

    def consistent(self, signs: Float[np.ndarray, "n heads"]) -> Bool[np.ndarray, "n"]:
        """Which signs are those of their own pull v(s)."""
        return np.all(signs * (signs @ self.u @ self.b.T) > SIGN_TOLERANCE, axis=1)

    def ends(self, x: Float[np.ndarray, "n d"]) -> tuple[Float[np.ndarray, "n d"], Bool[np.ndarray, "n"]]:
        """Where tokens end, and whether they do: not if they slide on a plane or cross planes for ever."""
        x, signs = x.copy(), self.signs(x)
        settled = np.zeros(len(x), bool)
        moving = np.arange(len(x))
        for _ in range(4 * 2 ** min(len(self.b), 10)):
            if moving.size == 0:
                break
            done, end, head = self._cross(x[moving], signs[moving])
            x[moving] = end
            settled[moving[done]] = True
            moving, head = moving[~done], head[~done]
            signs[moving, head] *= -1
            onwards = signs[moving, head] * np.sum(self.b[head] * (signs[moving] @ self.u), axis=1)
            moving = moving[onwards > 0]  # the others are pushed back: they slide
        return x, settled

    def _cross(self, x: np.ndarray, signs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """To v(s) where no plane is in the way, else to the first plane: done, where, and which plane."""
        pull = signs @ self.u
        here, there = signs * (x @ self.b.T), signs * (pull @ self.b.T)
        ahead = there < 0
        # x + τv is on plane h for τ = ⟨b,x⟩/−⟨b,v⟩
        way = np.where(ahead, np.maximum(here, 0.0) / np.where(ahead, -there, 1.0), np.inf)
        head = np.argmin(way, axis=1)
        tau = np.take_along_axis(way, head[:, None], axis=1)
        done = np.isinf(tau[:, 0])
        end = np.where(done[:, None], pull, x + np.where(np.isinf(tau), 0.0, tau) * pull)
        return done, end / np.linalg.norm(end, axis=1, keepdims=True), head

    def attractors(self) -> Float[np.ndarray, "m d"] | None:
        """All v(s)/|v(s)| with self-consistent signs; None if there are too many heads to try."""
        if len(self.b) > MAX_ENUMERATED:
            return None
        count = len(self.b)
        signs = 1.0 - 2.0 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
        pull = signs[self.consistent(signs)] @ self.u
        return pull / np.linalg.norm(pull, axis=1, keepdims=True)

    def sector_masses(self) -> tuple[Float[np.ndarray, "m heads"], Float[np.ndarray, "m"]] | None:
        """The sectors that are not empty and their parts of the sphere; None if the b_h span more than R³."""
        _, sizes, right = np.linalg.svd(self.b, full_matrices=False)
        rank = int(np.sum(sizes > RANK_TOLERANCE * sizes[0]))
        normals = self.b @ right[:rank].T
        if rank == 1:
            top = np.sign(normals[:, 0])
            return np.stack([top, -top]), np.array([0.5, 0.5])
        return {2: _arcs, 3: _polygons}[rank](normals) if rank <= 3 else None


def _arcs(normals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sectors of the circle between the lines with these normals."""
    cuts = np.mod(np.arctan2(normals[:, 0], -normals[:, 1]), np.pi)
    cuts = np.sort(np.concatenate([cuts, cuts + np.pi]))
    lengths = np.diff(np.append(cuts, cuts[0] + 2 * np.pi))
    middle = cuts + lengths / 2
    keep = lengths > RANK_TOLERANCE
    x = np.stack([np.cos(middle), np.sin(middle)], axis=1)[keep]
    return np.where(x @ normals.T > 0, 1.0, -1.0), lengths[keep] / (2 * np.pi)


def _polygons(normals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sectors of the 2-sphere between the planes with these normals, convex polygons of their vertices."""
    pairs = np.array([np.cross(a, b) for a, b in combinations(normals, 2)])
    pairs = pairs[np.linalg.norm(pairs, axis=1) > RANK_TOLERANCE]
    pairs /= np.linalg.norm(pairs, axis=1, keepdims=True)
    corners = np.unique(np.round(np.concatenate([pairs, -pairs]), 12) + 0.0, axis=0, return_index=True)[1]
    corners = np.concatenate([pairs, -pairs])[corners]
    found: dict[tuple, float] = {}
    for corner in corners:
        for signs in _around(normals, corner):
            if signs not in found:
                inside = np.all(np.array(signs) * (corners @ normals.T) > -1e-11, axis=1)
                found[signs] = _area(corners[inside]) / (4 * np.pi)
    return np.array(list(found)), np.array(list(found.values()))


def _around(normals: np.ndarray, corner: np.ndarray) -> list[tuple]:
    """Signs of the sectors that meet in a corner."""
    height = normals @ corner
    through = np.abs(height) < 1e-11
    frame = np.linalg.svd(corner[None])[2][1:]
    local, _ = _arcs(normals[through] @ frame.T)
    signs = np.tile(np.where(height > 0, 1.0, -1.0), (len(local), 1))
    signs[:, through] = local
    return [tuple(row) for row in signs]


def _area(corners: np.ndarray) -> float:
    """Solid angle of a convex spherical polygon: triangles (van Oosterom and Strackee) round its middle."""
    middle = np.mean(corners, axis=0)
    middle /= np.linalg.norm(middle)
    frame = np.linalg.svd(middle[None])[2][1:]
    plane = corners @ frame.T
    order = np.argsort(np.arctan2(plane[:, 1], plane[:, 0]))
    a, b = corners[order], corners[np.roll(order, -1)]
    volume = np.abs(np.cross(a, b) @ middle)
    return float(np.sum(2 * np.arctan2(volume, 1 + a @ middle + b @ middle + np.sum(a * b, axis=1))))
