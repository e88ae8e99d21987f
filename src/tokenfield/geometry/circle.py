"""The circle: nodes, points and sizes of grids for Fourier series."""

import numpy as np
from jaxtyping import Float
from scipy import fft


def angles(size: int) -> Float[np.ndarray, "size"]:
    """The nodes (j + ½)·2π/size, which lie on no axis if 4 divides the size."""
    return (np.arange(size) + 0.5) * (2 * np.pi / size)


def points(theta: np.ndarray) -> np.ndarray:
    """(cos θ, sin θ), one row for each angle."""
    return np.stack([np.cos(theta), np.sin(theta)], axis=1)


def fast_size(least: int) -> int:
    """An even size not below the given one for which FFTs are quick."""
    return 2 * int(fft.next_fast_len(-(-least // 2)))  # pyright: ignore[reportArgumentType] (it is an int)
