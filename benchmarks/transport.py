"""Wasserstein distances of many tokens: seconds, and how wide the interval is."""

import time

import numpy as np

import tokenfield as tkf
from report import Row


def rows() -> list[Row]:
    rng = np.random.default_rng(0)
    laws = {
        "circle, n = 10^6": (_cloud(10**6, 2, 0.0, rng), _cloud(10**6, 2, 1.0, rng)),
        "sphere, 20 atoms, n = 10^6": (_cloud(10**6, 3, 0.0, rng), _cloud(20, 3, 0.0, rng)),
        "sphere, n = 4000": (_cloud(4000, 3, 0.0, rng), _cloud(4000, 3, 1.0, rng)),
        "sphere, n = 10^5": (_cloud(10**5, 3, 0.0, rng), _cloud(10**5, 3, 1.0, rng)),
    }
    return [_row(case, *pair) for case, pair in laws.items()]


def _row(case: str, mu: tkf.Tokens, nu: tkf.Tokens) -> Row:
    start = time.perf_counter()
    found = tkf.wasserstein(mu, nu)
    seconds = time.perf_counter() - start
    width = (found.upper - found.lower) / found.upper
    return Row("W2", case, f"{seconds:.1f} s, width {width:.0e}", "width ≤ 1e-5", width <= 1e-5)


def _cloud(n: int, d: int, shift: float, rng: np.random.Generator) -> tkf.Tokens:
    """Directions of shifted Gaussian vectors."""
    x = rng.normal(size=(n, d)) + shift * np.eye(d)[0]
    return tkf.Tokens(x / np.linalg.norm(x, axis=1, keepdims=True))
