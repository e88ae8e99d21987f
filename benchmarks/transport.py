"""Wasserstein distances of many tokens: seconds, and how wide the interval is."""

import time

import numpy as np

import tokenfield as tkf
from report import Row


def rows() -> list[Row]:
    rng = np.random.default_rng(0)
    far = (_cloud(10**6, 2, 0.0, rng), _cloud(10**6, 2, 1.0, rng))
    laws = {
        "circle, n = 10^6": far,
        "sphere, 20 atoms, n = 10^6": (_cloud(10**6, 3, 0.0, rng), _cloud(20, 3, 0.0, rng)),
        "sphere, 250 atoms, n = 10^5": (_cloud(10**5, 3, 0.0, rng), _cloud(250, 3, 0.0, rng)),
        "sphere, n = 4000": (_cloud(4000, 3, 0.0, rng), _cloud(4000, 3, 1.0, rng)),
        "sphere, n = 10^5": (_cloud(10**5, 3, 0.0, rng), _cloud(10**5, 3, 1.0, rng)),
    }
    return [_row(case, *pair) for case, pair in laws.items()] + [
        _row("circle, chord, n = 10^6", *far, 2, "chordal"),
        _row("circle, chord, n = 10^6", *far, 1, "chordal", 1e-4),
    ]


def _row(
    case: str, mu: tkf.Tokens, nu: tkf.Tokens, p: int = 2, cost: str = "geodesic", most: float = 1e-5
) -> Row:
    start = time.perf_counter()
    found = tkf.wasserstein(mu, nu, p, cost)
    seconds = time.perf_counter() - start
    width = (found.upper - found.lower) / found.upper
    return Row(f"W{p}", case, f"{seconds:.1f} s, width {width:.0e}", f"width ≤ {most:.0e}", width <= most)


def _cloud(n: int, d: int, shift: float, rng: np.random.Generator) -> tkf.Tokens:
    """Directions of shifted Gaussian vectors."""
    x = rng.normal(size=(n, d)) + shift * np.eye(d)[0]
    return tkf.Tokens(x / np.linalg.norm(x, axis=1, keepdims=True))
