"""Equiangular tokens under the placements of LayerNorm (2510.22026; theory §6.2), B = V = I, any real β.

Tokens x_i = rθ_i with ⟨θ_i,θ_j⟩ = ρ and one common length r. With E = e^{−β(1−ρ)}, p = 1/(1+(n−1)E), q = Ep
and S = 1+(n−1)ρ, the attention output A_i = pθ_i + qΣ_{j≠i}θ_j has

    a = ⟨θ_i,A_i⟩ = p+(n−1)qρ,   ‖A‖² = (p−q)²+2(p−q)qS+q²nS,   ⟨θ_j,A_i⟩ = aρ+g,   g = q(1−ρ)S,

and θ' = P_θA/s gives **ρ' = 2g/s**:

| scheme | s | r' | layer with step η |
|---|---|---|---|
| post | 1 | 0 | θ ← N(θ+ηA) |
| pre | r | a | x ← x+ηA |
| mix | post until `switch`, then pre | | |
| peri | r‖A‖ | a/‖A‖ | x ← x+ηA/‖A‖ |
| ngpt | ‖A‖/α | 0 | θ ← N(θ+α(A/‖A‖−θ)) |
| scaled | r√(1+t) | a/√(1+t) | x ← x+ηA/√layer |
| none | 1, scores on x: β → βr² | ra | x ← x+ηA(x) |

Pre, peri and scaled run along the same curve dρ/dr = 2g/(ra), at different speeds.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import optimize

from tokenfield.errors import as_number, as_whole, require
from tokenfield.theory.inputs import common_product, finite, times
from tokenfield.theory.integration import other_weight, solve

Scheme = Literal["post", "pre", "mix", "peri", "ngpt", "scaled", "none"]


class EquiangularOrbit(NamedTuple):
    """Common inner product `rho` (times,) of the directions and common length `r` (times,) of the tokens."""

    rho: Float[np.ndarray, "times"]
    r: Float[np.ndarray, "times"]


class _Output(NamedTuple):
    """The attention output A: a = ⟨θ,A⟩, ‖A‖, p−q, and g/(1−ρ) = qS."""

    along: float
    norm: float
    contrast: float
    turn: float


def _output(n: int, gap: float, beta: float) -> _Output:
    """A of tokens with 1−ρ = gap; written in the gap, which keeps its digits as ρ → 1."""
    q = float(other_weight(n, beta * gap))
    S, contrast = n - (n - 1) * gap, 1 - n * q
    square = contrast**2 + 2 * contrast * q * S + q * q * n * S
    return _Output(1 - (n - 1) * q * gap, np.sqrt(max(square, 0.0)), contrast, q * S)


class _Speed(NamedTuple):
    """1/s, by which directions turn, and r'/r."""

    turning: float
    growth: float


#: Functions of (A, r, t, α), one for each scheme that does not change on the way.
_FLOWS: dict[str, Callable[[_Output, float, float, float], _Speed]] = {
    "post": lambda A, r, t, alpha: _Speed(1.0, 0.0),
    "pre": lambda A, r, t, alpha: _Speed(1 / r, A.along / r),
    "peri": lambda A, r, t, alpha: _Speed(1 / (r * A.norm), A.along / (r * A.norm)),
    "ngpt": lambda A, r, t, alpha: _Speed(alpha / A.norm, 0.0),
    "scaled": lambda A, r, t, alpha: _Speed(1 / (r * np.sqrt(1 + t)), A.along / (r * np.sqrt(1 + t))),
    "none": lambda A, r, t, alpha: _Speed(1.0, A.along),
}


class _Layer(NamedTuple):
    """x ← kept·θ + added·A, and whether the token keeps its new length."""

    kept: float
    added: float
    free: bool


#: Functions of (A, r, η, number of the layer from 1, α).
_LAYERS: dict[str, Callable[[_Output, float, float, int, float], _Layer]] = {
    "post": lambda A, r, step, layer, alpha: _Layer(1.0, step, False),
    "pre": lambda A, r, step, layer, alpha: _Layer(r, step, True),
    "peri": lambda A, r, step, layer, alpha: _Layer(r, step / A.norm, True),
    "ngpt": lambda A, r, step, layer, alpha: _Layer(1 - alpha, alpha / A.norm, False),
    "scaled": lambda A, r, step, layer, alpha: _Layer(r, step / np.sqrt(layer), True),
    "none": lambda A, r, step, layer, alpha: _Layer(r, step * r, True),
}


def equiangular_norm(
    scheme: Scheme,
    n: int,
    beta: float,
    rho0: float,
    r0: float,
    ts: ArrayLike,
    alpha: float = 1.0,
    switch: float | None = None,
) -> EquiangularOrbit:
    """Inner product ρ(t) and length r(t) of n equiangular tokens under a placement of LayerNorm.

    ρ' = 2g/s and r' as in the table above. As t → ∞, 1−ρ falls like e^{−2t} (post), e^{−2αt} (ngpt), t^{−2}
    (pre, peri, mix), t^{−1} (scaled); without normalisation and β > 0 the tokens decouple at some ρ < 1.

    Args:
        scheme: "post", "pre", "mix", "peri", "ngpt", "scaled" or "none".
        n: number of tokens, at least 2.
        beta: inverse temperature, any real number.
        rho0: ρ at t = 0, in [−1/(n−1), 1); not the lower end for "peri" and "ngpt", where A may vanish.
        r0: length at t = 0, positive.
        ts: increasing times (times,), the first at 0 or later.
        alpha: rate of "ngpt", positive; the others do not use it.
        switch: time at which "mix" turns from post to pre, at least 0; needed there, refused elsewhere.

    Returns:
        ρ and r at the times; r is constant for "post" and "ngpt".
    """
    ts = times(ts)
    gap, r = _start(scheme, n, beta, rho0, r0, alpha, switch)
    if switch is None:
        gaps, lengths = _flow(scheme, n, beta, alpha, ts, gap, r)
        return EquiangularOrbit(1 - gaps, lengths)
    before, after = ts[ts <= switch], ts[ts > switch]
    first, _ = _flow("post", n, beta, alpha, np.append(before, switch), gap, r)
    gaps, lengths = _flow("pre", n, beta, alpha, after - switch, first[-1], r)
    gaps, lengths = np.append(first[:-1], gaps), np.append(np.full(len(before), r), lengths)
    return EquiangularOrbit(1 - gaps, lengths)


def equiangular_norm_layers(
    scheme: Scheme,
    n: int,
    beta: float,
    rho0: float,
    r0: float,
    layers: int,
    step: float = 1.0,
    alpha: float = 1.0,
    switch: float | None = None,
) -> EquiangularOrbit:
    """ρ and r after each of some layers, the explicit steps of `equiangular_norm`.

    x ← κθ + hA gives 1−ρ⁺ = (1−ρ)(κ+h(p−q))²/(κ²+2κha+h²‖A‖²), the square root of the denominator being the
    new length: κ = r, h = η (pre); κ = 1, h = η (post); see the table above.

    Args:
        scheme: "post", "pre", "mix", "peri", "ngpt", "scaled" or "none".
        n: number of tokens, at least 2.
        beta: inverse temperature, any real number.
        rho0: ρ before the first layer, in [−1/(n−1), 1); not the lower end for "peri" and "ngpt".
        r0: length before the first layer, positive.
        layers: how many, at least 0.
        step: η, positive; "ngpt" does not use it.
        alpha: α of "ngpt", positive and at most 1; the others do not use it.
        switch: "mix" is post while (layer−1)·step < switch, then pre.

    Returns:
        ρ and r before the first and after each layer, (layers + 1,).
    """
    gap, r = _start(scheme, n, beta, rho0, r0, alpha, switch)
    require(0 < as_number(step, "step") < np.inf, "step", "be positive and finite", step)
    require(scheme != "ngpt" or alpha <= 1, "alpha", "be at most 1 for layers", alpha)
    gaps, lengths = [gap], [r]
    for layer in range(1, as_whole(layers, "layers", 0) + 1):
        now = scheme
        if switch is not None:  # rounding of layer·step must not move the switch
            now = "post" if (layer - 1) * step < switch * (1 - 1e-12) else "pre"
        A = _output(n, gap, beta * r * r if scheme == "none" else beta)
        kept, added, free = _LAYERS[now](A, r, step, layer, alpha)
        square = kept**2 + 2 * kept * added * A.along + (added * A.norm) ** 2
        gap *= (kept + added * A.contrast) ** 2 / square
        r = float(np.sqrt(square)) if free else r
        gaps.append(gap)
        lengths.append(r)
    return EquiangularOrbit(1 - np.array(gaps), np.array(lengths))


def pre_norm_at_zero_beta(ts: ArrayLike, n: int, rho0: float, r0: float = 1.0) -> EquiangularOrbit:
    """`equiangular_norm("pre", …)` at β = 0 in closed form: r' = 1 − b²/r², b² = (n−1)(1−ρ0)r0²/n.

    (1−ρ)r² is constant and t = r−r0+(b/2)log[(r−b)(r0+b)/((r+b)(r0−b))].

    Args:
        ts: increasing times (times,), the first at 0 or later.
        n: number of tokens, at least 2.
        rho0: ρ at t = 0, in [−1/(n−1), 1); the lower end is at rest.
        r0: length at t = 0, positive.

    Returns:
        ρ and r at the times.
    """
    ts = times(ts)
    gap, r0 = _start("pre", n, 0.0, rho0, r0, 1.0, None)
    b = r0 * np.sqrt((n - 1) * gap / n)

    def excess(r: float, t: float) -> float:
        logs = np.log1p((r - r0) / (r0 - b)) - np.log1p((r - r0) / (r0 + b))
        return r - r0 + b / 2 * logs - t

    r = np.full(len(ts), r0)
    if b < r0:  # else A = 0 and nothing moves
        for k, t in enumerate(ts):
            # r' lies between its value at the start and 1
            low, high = r0 + (1 - (b / r0) ** 2) * t * (1 - 1e-12), r0 + t
            r[k] = optimize.brentq(excess, low, high, args=(t,), xtol=1e-15, rtol=1e-14) if t > 0 else r0  # pyright: ignore[reportArgumentType]
    return EquiangularOrbit(1 - gap * (r0 / r) ** 2, r)


def _start(
    scheme: Scheme, n: int, beta: float, rho0: float, r0: float, alpha: float, switch: float | None
) -> tuple[float, float]:
    """1−ρ and r at the start; every argument checked."""
    known = isinstance(scheme, str) and scheme in get_args(Scheme)
    require(known, "scheme", f"be one of {', '.join(get_args(Scheme))}", repr(scheme))
    n, rho0, r0 = as_whole(n, "n", 2), common_product(rho0, as_whole(n, "n", 2)), finite(r0, "r0")
    finite(beta, "beta")
    divides = scheme in ("peri", "ngpt")
    require(not divides or rho0 > -1 / (n - 1), "rho0", f"be greater than −1/(n−1) for '{scheme}'", rho0)
    require(r0 > 0, "r0", "be positive", r0)
    require(0 < as_number(alpha, "alpha") < np.inf, "alpha", "be positive and finite", alpha)
    if scheme == "mix":
        usable = switch is not None and 0 <= as_number(switch, "switch") < np.inf
        require(usable, "switch", "be a time, at least 0 and finite, for 'mix'", switch)
    else:
        require(switch is None, "switch", f"be None for '{scheme}': only 'mix' has one", switch)
    return 1 - rho0, r0


def _flow(
    scheme: str, n: int, beta: float, alpha: float, ts: np.ndarray, gap: float, r: float
) -> tuple[np.ndarray, np.ndarray]:
    """1−ρ and r of one scheme from t = 0, by −log(1−ρ) and log r, which resolve collapse and growth."""
    if len(ts) == 0 or ts[-1] == 0:
        return np.full(len(ts), gap), np.full(len(ts), r)

    def slope(t: float, state: np.ndarray) -> np.ndarray:
        gap, r = float(np.exp(-state[0])), float(np.exp(state[1]))
        A = _output(n, gap, beta * r * r if scheme == "none" else beta)
        speed = _FLOWS[scheme](A, r, t, alpha)
        return np.array([2 * A.turn * speed.turning, speed.growth])

    distinct, where = np.unique(ts, return_inverse=True)
    state = solve(slope, distinct, [-np.log(gap), np.log(r)], 1e-13, 1e-14, f"beta = {beta:g}")
    return np.exp(-state[where, 0]), np.exp(state[where, 1])
