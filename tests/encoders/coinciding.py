"""What a layer does to tokens that nearly coincide, measured by running them."""

import jax
import numpy as np


def measured_multiplier(layer, x, count=600, skipped=200):
    """By what four tokens about x, 1e-7 apart, change their distances per layer; mean of the logarithms."""
    block = jax.jit(lambda tokens: layer.block(tokens))
    centre, gaps = x, np.random.default_rng(0).normal(size=(4, len(x)))
    growth = []
    for _ in range(count):
        gaps = gaps - gaps.mean(axis=0)
        moved = np.asarray(block(centre + 1e-7 * gaps / np.linalg.norm(gaps)))
        centre = moved.mean(axis=0)
        gaps = moved - centre
        growth.append(np.log(np.linalg.norm(gaps) / 1e-7))
    return np.exp(np.mean(growth[skipped:]))
