"""Wide networks with random values: the overlap of tokens from layer to layer as d → ∞ (theory §6.5.4).

Values with independent entries of variance σ² and step η change a token by a nearly orthogonal vector; with
α² = σ²dη the overlap ρ of equiangular tokens obeys a map of its own, layer by layer:

    attention   ρ ← (ρ + α²⟨ȳ_i, ȳ_j⟩)/(1 + α²|ȳ_i|²)
    ReLU        ρ ← (ρ + α²κ(ρ))/(1 + α²),   κ = [√(1−ρ²) + (π − arccos ρ)ρ]/π
"""

import numpy as np
from jaxtyping import Float

from tokenfield.errors import as_number, as_whole, require
from tokenfield.theory.inputs import common_product, finite


def wide_layers(
    rho0: float, layers: int, n: int = 2, beta: float = 0.0, attention: float = 0.0, relu: float = 0.0
) -> Float[np.ndarray, "layers+1"]:
    """Overlaps ρ of n equiangular tokens after 0, 1, …, `layers` wide random layers.

    A layer is softmax attention (B = I, random V) and then a random ReLU network, each added to the token and
    followed by normalisation.

    Args:
        rho0: inner product of any two tokens at first.
        layers: number of layers, at least 1.
        n: number of tokens.
        beta: inverse temperature of the attention.
        attention: α² of the attention, at least 0; 0 leaves it out.
        relu: α² of the ReLU network, at least 0; 0 leaves it out.

    Returns:
        (layers + 1,), the first is rho0.
    """
    n, layers = as_whole(n, "n", 2), as_whole(layers, "layers", 1)
    beta = finite(beta, "beta")
    attention, relu = _variance(attention, "attention"), _variance(relu, "relu")
    overlaps = [common_product(rho0, n)]
    for _ in range(layers):
        own, shared = _read(overlaps[-1], n, beta)
        rho = (overlaps[-1] + attention * shared) / (1 + attention * own)
        overlaps.append((rho + relu * relu_overlap(rho)) / (1 + relu))
    return np.array(overlaps)


def _read(rho: float, n: int, beta: float) -> tuple[float, float]:
    """|ȳ_i|² and ⟨ȳ_i, ȳ_j⟩ of equiangular tokens under softmax attention."""
    q = 1 / (n - 1 + np.exp(beta * (1 - rho)))  # weight of each other token
    p = 1 - (n - 1) * q
    # ȳ_i = (p − q)x_i + q Σ_j x_j
    with_sum, square_of_sum = 1 + (n - 1) * rho, n * (1 + (n - 1) * rho)
    common = 2 * (p - q) * q * with_sum + q**2 * square_of_sum
    return (p - q) ** 2 + common, (p - q) ** 2 * rho + common


def relu_overlap(rho: float) -> float:
    """κ(ρ) = [√(1−ρ²) + (π − arccos ρ)ρ]/π: overlap of two tokens behind a wide random ReLU layer."""
    rho = min(max(finite(rho, "rho"), -1.0), 1.0)
    return float((np.sqrt(1 - rho**2) + (np.pi - np.arccos(rho)) * rho) / np.pi)


def relu_deficit(relu: float, layers: int) -> float:
    """1 − ρ ≈ (2/(cL))² after many ReLU layers, c = α²/(1+α²)·2√2/3π; not exponential, since κ'(1) = 1.

    Args:
        relu: α² of a layer, positive.
        layers: L.
    """
    relu, layers = _variance(relu, "relu"), as_whole(layers, "layers", 1)
    c = relu / (1 + relu) * 2 * np.sqrt(2) / (3 * np.pi)
    return float((2 / (c * layers)) ** 2)


def erf_slope(variance: float) -> float:
    """χ = κ'(1) of a wide random layer with the error function, whose inputs have this variance s.

    2s/(√(1+4s) arcsin(2s/(1+2s))), above 1: such layers pull close tokens apart.
    """
    s = as_number(variance, "variance")
    require(0 < s < np.inf, "variance", "be positive and finite", s)
    return float(2 * s / (np.sqrt(1 + 4 * s) * np.arcsin(2 * s / (1 + 2 * s))))


def terminal_factor(attention: float, mlp: float = 0.0, slope: float = 1.0) -> float:
    """What 1 − ρ of close tokens is multiplied by in a layer: order below 1, chaos above.

    (1 + α_M²χ)/((1 + α_M²)(1 + α_A²)), χ = κ'(1) of the MLP: 1 for ReLU, `erf_slope` for the error function.

    Args:
        attention: α_A², at least 0.
        mlp: α_M², at least 0.
        slope: χ.

    Returns:
        The factor.
    """
    attention, mlp = _variance(attention, "attention"), _variance(mlp, "mlp")
    return float((1 + mlp * finite(slope, "slope")) / (1 + mlp) / (1 + attention))


def critical_attention(mlp: float, slope: float) -> float:
    """α_A² on the line between order and chaos: α_M²(χ − 1)/(1 + α_M²); 0 if there is order for every α_A.

    Args:
        mlp: α_M², at least 0.
        slope: χ.
    """
    mlp = _variance(mlp, "mlp")
    return float(max(mlp * (finite(slope, "slope") - 1) / (1 + mlp), 0.0))


def _variance(value: float, name: str) -> float:
    value = as_number(value, name)
    require(0 <= value < np.inf, name, "be at least 0 and finite", value)
    return value
