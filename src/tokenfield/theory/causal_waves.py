"""Causal attention about the uniform law: how waves grow from place to place (theory §6.1.4).

The mean field of causal attention has a law μ_s for every place s in [0, 1]; the tokens at s read the laws of
all u ≤ s. About the uniform law a harmonic of degree l with the amplitudes h_s obeys

    h_s' = a_l (1/s)∫_0^s h_u du,

a_l the rate of full attention (growth.py): the profile s^p grows at the rate a_l/(p+1). With L equal blocks
of tokens that see their own block and those before, h' = a_l C h with C_kj = 1/k for j ≤ k, exactly. ALiBi at
the scale of the mean field, e^{−λ(s−u)}, is the same with s replaced by z = e^{λs}−1.
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import linalg

from tokenfield.errors import as_number, as_whole, require
from tokenfield.laws.tokens import as_real
from tokenfield.theory.growth import growth_rate
from tokenfield.theory.inputs import Flow, finite, times


def causal_averages(blocks: int, slope: float = 0.0) -> Float[np.ndarray, "L L"]:
    """The matrix C of averages over the block itself and all before it, with rows of sum 1.

    C_kj = (z_j − z_{j−1})/z_k for j ≤ k, z_j = e^{λj/L}−1; 1/k without ALiBi.

    Args:
        blocks: number L of equal blocks.
        slope: λ of ALiBi at the scale of the mean field, where all tokens have length 1 together.

    Returns:
        C, lower triangular.
    """
    L, slope = as_whole(blocks, "blocks", 1), finite(slope, "slope")
    behind = np.arange(L)[:, None] - np.arange(L)
    # e^{λ(s_j−s_k)}, with which nothing overflows: the widths z_j − z_{j−1} are these times one factor
    share = np.where(behind >= 0, np.exp(-slope * np.maximum(behind, 0) / L), 0.0)
    return share / share.sum(axis=1, keepdims=True)


def causal_growth(
    h0: ArrayLike,
    ts: ArrayLike,
    beta: float,
    degree: int,
    d: int = 2,
    flow: Flow = "softmax",
    slope: float = 0.0,
) -> Float[np.ndarray, "times L"]:
    """Amplitudes e^{a_l C t}h0 of a small wave on the uniform law in L equal causal blocks, V = B = I.

    Args:
        h0: amplitudes in the blocks at t = 0 (L,).
        ts: increasing times (times,), the first at 0 or later.
        beta: inverse temperature, any real number.
        degree: degree l ≥ 1 of the harmonic, on the circle its wave number.
        d: dimension of the surrounding space.
        flow: "softmax" or "unnormalised".
        slope: λ of ALiBi at the scale of the mean field, where all tokens have length 1 together.

    Returns:
        The amplitudes at the times (times, L).
    """
    h0 = np.asarray(as_real(h0, "h0"))
    require(h0.ndim == 1 and h0.size > 0, "h0", "be a list of amplitudes", f"of shape {h0.shape}")
    matrix = float(growth_rate(d, beta, degree, flow)) * causal_averages(len(h0), slope)
    return np.stack([linalg.expm(matrix * t) @ h0 for t in times(ts)])


def causal_growth_rate(power: float, beta: float, degree: int, d: int = 2, flow: Flow = "softmax") -> float:
    """Rate a_l/(p+1) at which the profile s^p of a wave grows about the uniform law; with ALiBi (e^{λs}−1)^p.

    Args:
        power: p > −1; 0 is the same wave at every place.
        beta: inverse temperature, any real number.
        degree: degree l ≥ 1 of the harmonic, on the circle its wave number.
        d: dimension of the surrounding space.
        flow: "softmax" or "unnormalised".

    Returns:
        The rate.
    """
    power = as_number(power, "power")
    require(-1 < power < np.inf, "power", "be greater than −1 and finite", power)
    return float(growth_rate(d, beta, degree, flow)) / (power + 1)
