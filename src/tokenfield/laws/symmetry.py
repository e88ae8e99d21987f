"""Symmetries of a law of tokens: orthogonal maps that carry it to itself.

The exact flow of a model that commutes with such a map keeps the symmetry for ever. Symmetric states that are
not synchronised are unstable, though (two antipodal clusters at the rate e^{−β}, theory §3.12): rounding
grows and breaks them near t = 35e^β, and what follows is not the solution with that initial law. A run
therefore watches the symmetries of its initial tokens, and says when one is lost; `Mirrored` keeps a
reflection in every bit.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import KDTree

from tokenfield.errors import InputError, as_whole, require, require_kind
from tokenfield.laws.tokens import Tokens

#: How far the image of a token may be from a token, and moments of the images from those of the tokens.
SAME = 1e-12
#: A symmetry that is off by more than this is lost.
LOST = 1e-6
#: Tokens that are watched, symmetries that are watched, and tokens that the first is compared with.
WATCHED, ENOUGH, EXCHANGES = 256, 4, 8
#: Up to this dimension axes are tried: those of coordinates, and the principal ones.
AXES = 8


class Symmetry(NamedTuple):
    """A map (d, d) that carries a law to itself, what it is in words, and for some `tokens` (k,) their
    `images` (k,), the tokens where it takes them.
    """

    map: Float[np.ndarray, "d d"]
    name: str
    tokens: Int[np.ndarray, "k"]
    images: Int[np.ndarray, "k"]

    def defect(self, x: Float[np.ndarray, "n d"]) -> float:
        """How far tokens at other places x are from having this symmetry: the greatest distance."""
        off = x[self.tokens] @ self.map.T - x[self.images]
        return float(np.max(np.linalg.norm(off, axis=1)))


def symmetries(tokens: Tokens) -> list[Symmetry]:
    """Some symmetries of the tokens, to rounding; empty for tokens without any. Takes time like n.

    Looked for: x → −x, reflections across coordinate axes and across the principal axes of the second moment
    (these are all the reflections there are, unless a principal value is multiple), products of them for
    d ≤ 3, and reflections that exchange the first token with one of the next few or the last.
    """
    require_kind(tokens, Tokens, "tokens")
    x, w = np.asarray(tokens.x), np.asarray(tokens.weights)
    mean, found = w @ x, []
    waves = np.random.default_rng(0).normal(size=(tokens.d, 2)) * 3
    seen = w @ np.sin(x @ waves + 1)
    chosen = np.unique(np.linspace(0, tokens.n - 1, WATCHED).astype(int))
    for name, g in _candidates(x, w):
        # cheap tests first: generic tokens fail the first of them
        if np.max(np.abs(g @ mean - mean)) > SAME or _known(g, found):
            continue
        if np.max(np.abs(w @ np.sin(x @ (g.T @ waves) + 1) - seen)) > SAME:
            continue
        distance, images = KDTree(x).query(x[chosen] @ g.T)
        if np.max(distance) <= SAME:
            found.append(Symmetry(g, name, chosen, np.asarray(images)))
        if len(found) == ENOUGH:
            break
    return found


def _known(g: np.ndarray, found: list[Symmetry]) -> bool:
    return any(np.max(np.abs(g - each.map)) < 1e-9 for each in found)


def _candidates(x: np.ndarray, w: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    n, d = x.shape
    if d <= AXES:
        principal = np.linalg.eigh((w * x.T) @ x)[1]
        for kind, axes in (("coordinate", np.eye(d)), ("principal", principal)):
            for k in range(d):
                yield f"reflection across {kind} axis {k}", _reflection(axes[:, k])
            if d == 3:
                for k in range(d):
                    yield f"half-turn about {kind} axis {k}", -_reflection(axes[:, k])
    yield "reflection in the centre", -np.eye(d)
    for j in dict.fromkeys([*range(1, min(n, EXCHANGES + 1)), n - 1]):
        gap = x[0] - x[j]
        length = np.linalg.norm(gap)
        if length > 1e-6:
            yield f"reflection that exchanges tokens 0 and {j}", _reflection(gap / length)


def _reflection(normal: np.ndarray) -> np.ndarray:
    return np.eye(len(normal)) - 2 * np.outer(normal, normal)


def half(tokens: Tokens, axis: int) -> Tokens:
    """One half of a law that the reflection x_axis → −x_axis carries to itself: the tokens with x_axis ≥ 0.

    Those off the mirror have twice their weight. `whole` is the way back; `Mirrored` moves a half.
    """
    _check_axis(tokens, axis)
    x, w = np.asarray(tokens.x), np.asarray(tokens.weights)
    side = np.where(np.abs(x[:, axis]) <= SAME, 0.0, np.sign(x[:, axis]))
    kept = side >= 0
    upper, twice = x[kept].copy(), np.where(side[kept] > 0, 2 * w[kept], w[kept])
    upper[side[kept] == 0, axis] = 0.0
    # every lower token has an upper one, and the masses agree
    distance = KDTree(upper).query(mirror(x[~kept], axis))[0] if not np.all(kept) else np.zeros(1)
    if np.max(distance) > SAME or abs(np.sum(twice) - 1) > SAME:
        raise InputError(f"`tokens` must be their own mirror image across axis {axis}, but were not")
    return Tokens(upper, twice / twice.sum())


def whole(tokens: Tokens, axis: int) -> Tokens:
    """The law that a half stands for: every token and its mirror image, with half the weight each."""
    _check_axis(tokens, axis)
    return Tokens(
        np.concatenate([tokens.x, mirror(np.asarray(tokens.x), axis)]), np.tile(tokens.weights / 2, 2)
    )


def mirror(x: np.ndarray, axis: int) -> np.ndarray:
    """x with the sign of one coordinate turned."""
    return x * (1 - 2 * np.eye(x.shape[1])[axis])


def _check_axis(tokens: Tokens, axis: int) -> None:
    require_kind(tokens, Tokens, "tokens")
    as_whole(axis, "axis", 0)
    require(axis < tokens.d, "axis", f"be a coordinate of R^{tokens.d}", axis)
