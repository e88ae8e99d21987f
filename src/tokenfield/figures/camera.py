"""The camera: from where tokens are seen, and which three directions of a space of many."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from tokenfield.errors import require
from tokenfield.laws.tokens import as_real

#: Azimuth and elevation, in degrees, from which a sphere is seen.
DEFAULT_VIEW = (30.0, 20.0)


@dataclass(frozen=True)
class Camera:
    """Takes tokens to the picture: columns right, up and towards the viewer, and what to say of it."""

    axes: Float[np.ndarray, "d 3"]
    note: str = ""


def camera_for(second: Float[np.ndarray, "d d"], view: tuple[float, float] | None) -> Camera:
    """The camera for tokens of this second moment; `view` is (azimuth, elevation) in degrees, or None."""
    d = len(second)
    if d == 2:
        return Camera(np.eye(2, 3))
    angles = np.asarray(as_real((DEFAULT_VIEW if d == 3 else (0.0, 0.0)) if view is None else view, "view"))
    require(
        angles.shape == (2,) and bool(np.all(np.isfinite(angles))),
        "view",
        "be (azimuth, elevation) in degrees",
        view,
    )
    (ca, ce), (sa, se) = np.cos(np.radians(angles)), np.sin(np.radians(angles))
    turn = np.array([[-sa, -se * ca, ce * ca], [ca, -se * sa, ce * sa], [0.0, ce, se]])
    if d == 3:
        return Camera(turn)
    size, directions = np.linalg.eigh(second)
    top = directions[:, [-3, -1, -2]]  # the first points right, the second up, the third to the viewer
    top *= np.sign(top[np.argmax(np.abs(top), axis=0), range(3)])
    share = size[-3:].sum() / size.sum()
    return Camera(top @ turn, f"three principal directions of {d},\n{share:.0%} of the second moment")
