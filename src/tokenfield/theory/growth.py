"""Growth of spherical harmonics on the uniform law (2504.14697; theory §3.4), B = V = I, any real β.

By Funk–Hecke the kernel e^{β⟨x,y⟩} multiplies harmonics of degree l by

    λ_l(β) = Γ(d/2)(2/|β|)^{d/2−1} I_{l+d/2−1}(|β|) sign(β)^l,   λ_l(−β) = (−1)^l λ_l(β).

About the uniform law a perturbation h of degree l moves tokens by v = β^{−1}λ_l∇h (divided by λ_0 for
softmax), so that h' = −div v = l(l+d−2)λ_l/β·h. Under β < 0 odd degrees therefore grow exactly as under |β|,
and even degrees decay as fast as they would grow.
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import special

from tokenfield.errors import as_whole, require
from tokenfield.theory.inputs import Flow, check_exponent, check_flow, finite


def growth_rate(
    d: int, beta: float, degree: ArrayLike, flow: Flow = "softmax"
) -> Float[np.ndarray, "*degrees"]:
    """Rate at which spherical harmonics of degree l grow on the uniform law of the sphere in R^d.

    Unnormalised: l(l+d−2)λ_l/β; softmax: the same divided by λ_0. β = 0 is the limit: (d−1)/d for l = 1, else
    0. For β < 0 the rate is (−1)^{l+1} times that of |β|: negative for even degrees, which decay.

    Args:
        d: dimension of the surrounding space, d ≥ 2.
        beta: inverse temperature, any real number.
        degree: degrees l ≥ 1, one or an array of any shape.
        flow: "softmax" or "unnormalised". The unnormalised rate grows like e^|β| and is refused where that is
            no double: `log_growth_rate` is meant there.

    Returns:
        The rates, of the shape of `degree`.
    """
    degrees, logs = _log_rates(d, beta, degree, flow)
    check_exponent(float(np.max(logs)), "use log_growth_rate")
    return np.exp(logs) * np.where((beta < 0) & (degrees % 2 == 0), -1.0, 1.0)


def log_growth_rate(
    d: int, beta: float, degree: ArrayLike, flow: Flow = "softmax"
) -> Float[np.ndarray, "*degrees"]:
    """Logarithm of `growth_rate`, finite for every β ≠ 0; −∞ at β = 0 for degrees above 1.

    Args:
        d: dimension of the surrounding space, d ≥ 2.
        beta: inverse temperature, any real number.
        degree: degrees l ≥ 1; odd ones only if β < 0, since even degrees then decay.
        flow: "softmax" or "unnormalised".

    Returns:
        The logarithms, of the shape of `degree`.
    """
    degrees, logs = _log_rates(d, beta, degree, flow)
    grows = beta >= 0 or bool(np.all(degrees % 2 == 1))
    require(grows, "degree", "be odd for beta < 0, where harmonics of even degree decay", degree)
    return logs


def fastest_degree(d: int, beta: float) -> int:
    """Degree l whose harmonics grow fastest on the uniform law, the same for both flows.

    The number of clusters that form first on the circle. The rates rise up to it and fall beyond it. For
    β < 0 it is the fastest of the odd degrees, the only ones that grow.
    """
    as_whole(d, "d", 2)
    beta = finite(beta, "beta")
    # ratio of successive rates (1+1/l)(1+1/(l+d−2)) I_{ν+1}/I_ν, ν = l+d/2−1, falls below 1 before √(3β)+2
    logs = _log_softmax_rates(d, abs(beta), int(np.sqrt(3 * abs(beta))) + 3)
    if beta < 0:
        logs[1::2] = -np.inf
    return int(np.argmax(logs)) + 1


def _log_rates(d: int, beta: float, degree: ArrayLike, flow: Flow) -> tuple[np.ndarray, np.ndarray]:
    """The degrees, checked, and log |rate| of each."""
    as_whole(d, "d", 2)
    beta = abs(finite(beta, "beta"))
    check_flow(flow)
    degrees = np.asarray(degree)
    require(
        degrees.dtype.kind in "iu" and bool(np.all(degrees >= 1)),
        "degree",
        "be a whole number, at least 1",
        degree,
    )
    logs = _log_softmax_rates(d, beta, int(np.max(degrees)))[degrees - 1]
    return degrees, logs if flow == "softmax" else logs + _log_uniform_mass(d, beta)


def _log_softmax_rates(d: int, beta: float, top: int) -> np.ndarray:
    """log of l(l+d−2)λ_l/(βλ_0) for l = 1..top and β ≥ 0, from λ_l/λ_{l−1} = I_{ν+l}/I_{ν+l−1}, ν = d/2−1."""
    degree = np.arange(1, top + 1)
    with np.errstate(divide="ignore"):  # β = 0: all but the first vanish
        steps = np.log(_bessel_ratios(d / 2 - 1, beta, top)) + np.where(degree > 1, np.log(beta), 0.0)
    return np.log(degree * (degree + d - 2.0)) + np.cumsum(steps)


def _bessel_ratios(nu: float, beta: float, count: int) -> np.ndarray:
    """I_{ν+j+1}(β)/(β I_{ν+j}(β)) for j < count, β ≥ 0, by the recurrence downwards, which forgets its start.

    g_μ = 1/(2(μ+1) + β²g_{μ+1}): an error shrinks by e^{−J²/β} in J steps.
    """
    extra = 20 + int(6.5 * np.sqrt(beta))
    mu = nu + count + extra
    g = 1 / (mu + 0.5 + np.hypot(mu + 1.5, beta))  # a sharp bound of the ratio
    out = np.empty(count)
    for j in range(count + extra - 1, -1, -1):
        g = 1 / (2 * (nu + j + 1) + beta**2 * g)
        if j < count:
            out[j] = g
    return out


def _log_uniform_mass(d: int, beta: float) -> float:
    """log λ_0, λ_0 = ∫e^{β⟨x,y⟩}dσ(y) = Σ_k (β²/4)^k/(k! (d/2)_k): positive terms, nothing cancels."""
    if beta == 0:
        return 0.0
    nu, z = d / 2 - 1, beta**2 / 4
    peak = z / (nu / 2 + np.sqrt(nu**2 / 4 + z))  # where k(ν+k) = z
    k = np.arange(1, int(peak + 9 * np.sqrt(peak + 1)) + 60)
    terms = np.cumsum(np.log(z / (k * (nu + k))))
    return float(np.asarray(special.logsumexp(np.append(terms, 0.0))))
