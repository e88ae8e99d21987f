"""Stationary densities of ∂_t μ = κ^{−1}Δμ − div(μ∇U), U(x) = ∫φ(⟨x,y⟩)dμ(y): branches, folds, stability.

For φ(s) = e^{βs}/β this is unnormalised attention with noise (2604.16288, 2606.05140). A zonal density is
stationary if and only if

    ρ = e^{κU}/∫e^{κU}dσ,    U = Σ_l k_l c_l p_l,   c_l = ∫p_l dμ,   k_l = ∫φ(t)p_l(t)dσ/p_l(1),

p_l the zonal harmonics (Funk–Hecke). These are equations c = G(c; κ, β) for a few dozen numbers: Newton's
method solves them, and branches are followed by pseudo-arclength, so that folds are no obstacle. The uniform
law c = 0 is always one solution. With C the covariance of the p_l under ρ, a solution is stable among zonal
laws if and only if κ·√k C √k has no eigenvalue above 1; at the uniform law, where C = I, the l-th crosses 1
at κ_l = 1/k_l. It descends the free energy F = κ^{−1}∫ρ log ρ dσ − ½Σ_{l≥1} k_l c_l².
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import optimize

from tokenfield.errors import RunError, as_number, as_whole, require
from tokenfield.geometry.gegenbauer import gauss, harmonics

#: Newton's steps before it gives up, and the residual at which it has arrived.
MAX_NEWTON_STEPS, NEWTON_TOLERANCE = 40, 1e-12
#: Coefficients above this at the highest degrees mean that the branch is no longer resolved.
MAX_COEFFICIENT_TAIL = 1e-7
#: Amplitude c_1 at which the curvature of a branch is read off.
SMALL_AMPLITUDE = 0.02


class GibbsLaw(NamedTuple):
    """ρ at the nodes, its coefficients ∫p_l dμ (L,) and the covariance of the p_l (L, L), l = 1..L."""

    density: Float[np.ndarray, "Q"]
    coefficients: Float[np.ndarray, "L"]
    covariance: Float[np.ndarray, "L L"]


@dataclass(frozen=True)
class Interaction:
    """φ(s) = e^{βs}/β on the sphere of R^d (φ(s) = s at β = 0), zonal laws of degree up to `degree`."""

    d: int
    degree: int = 64
    t: np.ndarray = field(init=False, repr=False, compare=False)
    w: np.ndarray = field(init=False, repr=False, compare=False)
    p: np.ndarray = field(init=False, repr=False, compare=False)
    top: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        as_whole(self.d, "d", 2)
        as_whole(self.degree, "degree", 4)
        t, w = gauss(self.d, 2 * self.degree)
        p, _ = harmonics(self.d, self.degree, t)
        top, _ = harmonics(self.d, self.degree, np.ones(1))
        for name, value in (("t", t), ("w", w), ("p", p[:, 1:]), ("top", top[0, 1:])):
            object.__setattr__(self, name, value)

    def eigenvalues(self, beta: float) -> Float[np.ndarray, "L"]:
        """k_l for l = 1..L, by quadrature."""
        if beta == 0:
            return np.where(np.arange(1, self.degree + 1) == 1, 1 / self.d, 0.0)
        return self._project(np.exp(beta * self.t) / beta)

    def slopes(self, beta: float) -> Float[np.ndarray, "L"]:
        """dk_l/dβ."""
        if beta == 0:
            return self._project(self.t**2 / 2)
        return self._project(np.exp(beta * self.t) * (self.t / beta - 1 / beta**2))

    def _project(self, values: np.ndarray) -> np.ndarray:
        found = (self.w * values) @ self.p / self.top
        floor = 1e-16 * np.max(np.abs(values))
        return np.where(np.abs(found * self.top) > 30 * floor, found, 0.0)  # rounding is no interaction

    def law(self, exponent: Float[np.ndarray, "L"]) -> GibbsLaw:
        """The law ρ ∝ exp(Σ exponent_l p_l)."""
        height = self.p @ exponent
        raw = np.exp(height - height.max())
        density = raw / (self.w @ raw)
        mean = (self.w * density) @ self.p
        centred = self.p - mean
        return GibbsLaw(density, mean, centred.T @ ((self.w * density)[:, None] * centred))

    def free_energy(self, law: GibbsLaw, kappa: float, beta: float) -> float:
        """Free energy F, 0 for the uniform law.

        Args:
            law: density and coefficients.
            kappa: inverse strength of the noise.
            beta: inverse temperature.
        """
        entropy = self.w @ (law.density * np.log(np.maximum(law.density, 1e-300)))
        return float(entropy / kappa - 0.5 * self.eigenvalues(beta) @ law.coefficients**2)


class StationaryLaw(NamedTuple):
    """One stationary law: κ, β, c_l (L,), R = |∫x dμ|, F relative to the uniform law, and how many zonal
    directions are unstable (0: stable among zonal laws).
    """

    kappa: float
    beta: float
    coefficients: Float[np.ndarray, "L"]
    order: float
    free_energy: float
    unstable: int


@dataclass(frozen=True, eq=False)
class Branch:
    """Stationary laws along a curve; `folds`: where κ (or β) turns round, by parabolas through the states;
    `status`: why it ends.
    """

    states: tuple[StationaryLaw, ...]
    along: Literal["kappa", "beta"]
    folds: tuple[tuple[float, float], ...]
    status: str

    @property
    def kappa(self) -> Float[np.ndarray, "m"]:
        """κ along the branch."""
        return np.array([s.kappa for s in self.states])

    @property
    def beta(self) -> Float[np.ndarray, "m"]:
        """β along the branch."""
        return np.array([s.beta for s in self.states])

    @property
    def order(self) -> Float[np.ndarray, "m"]:
        """R along the branch."""
        return np.array([s.order for s in self.states])

    @property
    def free_energy(self) -> Float[np.ndarray, "m"]:
        """F along the branch."""
        return np.array([s.free_energy for s in self.states])

    @property
    def stable(self) -> np.ndarray:
        """Whether each state is stable among zonal laws."""
        return np.array([s.unstable == 0 for s in self.states])


def solve(
    interaction: Interaction, kappa: float, beta: float, guess: Float[np.ndarray, "L"]
) -> StationaryLaw:
    """The stationary law near a guess, by Newton's method at fixed κ and β.

    Args:
        interaction: dimension and degree.
        kappa: inverse strength of the noise, positive.
        beta: inverse temperature, at least 0.
        guess: coefficients to begin with, (L,).
    """
    kappa, beta = _positive(kappa, "kappa"), _at_least_zero(beta)
    k = interaction.eigenvalues(beta)
    c = np.array(guess, float)
    require(c.shape == k.shape, "guess", f"have the shape {k.shape}", f"of shape {c.shape}")
    for _ in range(MAX_NEWTON_STEPS):
        law = interaction.law(kappa * k * c)
        step = np.linalg.solve(np.eye(len(c)) - kappa * law.covariance * k, law.coefficients - c)
        c += step
        if np.linalg.norm(step) <= NEWTON_TOLERANCE * (1 + np.linalg.norm(c)):
            return _state(interaction, kappa, beta, c)
    raise RunError(f"no stationary law was found near the guess at kappa = {kappa:g}, beta = {beta:g}")


def at_amplitude(interaction: Interaction, beta: float, amplitude: float, degree: int = 1) -> StationaryLaw:
    """The stationary law with a given coefficient c_l on the branch from κ_l; κ is found.

    Args:
        interaction: dimension and degree.
        beta: inverse temperature, at least 0.
        amplitude: the coefficient c_l.
        degree: l, of the harmonic that the branch begins with.
    """
    beta = _at_least_zero(beta)
    k, at = interaction.eigenvalues(beta), as_whole(degree, "degree", 1) - 1
    c, kappa = np.zeros(len(k)), 1 / k[at]
    c[at] = amplitude
    for _ in range(MAX_NEWTON_STEPS):
        law = interaction.law(kappa * k * c)
        system = np.eye(len(k)) - kappa * law.covariance * k
        system[:, at] = -law.covariance @ (k * c)  # c_l is fixed, κ is free
        step = np.linalg.solve(system, law.coefficients - c)
        kappa += step[at]
        step[at] = 0.0
        c += step
        if np.linalg.norm(law.coefficients - c + step) <= NEWTON_TOLERANCE:
            return _state(interaction, kappa, beta, c)
    raise RunError(f"no stationary law of amplitude {amplitude:g} was found at beta = {beta:g}")


def critical_kappas(interaction: Interaction, beta: float, count: int = 1) -> Float[np.ndarray, "count"]:
    """κ at which the uniform law loses stability to the harmonics of degree 1..count.

    Followed along the uniform branch: where the l-th eigenvalue of the linearisation passes through 0.

    Args:
        interaction: dimension and degree.
        beta: inverse temperature, at least 0.
        count: how many, at most the degree of the interaction.
    """
    beta = _at_least_zero(beta)
    k = interaction.eigenvalues(beta)
    require(1 <= as_whole(count, "count", 1) <= len(k), "count", f"be at most {len(k)}", count)
    covariance = interaction.law(np.zeros(len(k))).covariance

    def margin(log_kappa: float, l: int) -> float:  # noqa: E741
        root = np.sqrt(np.maximum(k, 0.0))
        growth = np.linalg.eigvalsh(np.exp(log_kappa) * root[:, None] * covariance * root)
        return float(1 - np.sort(growth)[::-1][l])

    low = np.log(0.5 / k.max())
    found = []
    for l in range(count):  # noqa: E741
        high = low + 1
        while margin(high, l) > 0:
            high += 2
            require(high < 600, "count", "be no more than the degrees that interact", count)
        root = optimize.brentq(margin, low, high, args=(l,), xtol=1e-14)
        found.append(np.exp(float(root)))  # pyright: ignore[reportArgumentType]
    return np.array(found)


def curvature(interaction: Interaction, beta: float) -> float:
    """d²κ/dc_1² /2 where the branch leaves the uniform law: positive for a continuous transition.

    Read off the branch at two small amplitudes; their combination has no error of order amplitude².
    """
    critical = 1 / interaction.eigenvalues(_at_least_zero(beta))[0]
    amplitudes = (SMALL_AMPLITUDE, 2 * SMALL_AMPLITUDE)
    small, large = ((at_amplitude(interaction, beta, a).kappa - critical) / a**2 for a in amplitudes)
    return float((4 * small - large) / 3)


def transition_beta(interaction: Interaction) -> float:
    """β_*: below it the transition at κ_1 is continuous, above it discontinuous; from the branches."""
    return float(optimize.brentq(lambda beta: curvature(interaction, beta), 0.5, 10.0, xtol=1e-9))  # pyright: ignore[reportArgumentType]


def branch(
    interaction: Interaction,
    beta: float,
    degree: int = 1,
    *,
    to: float,
    step: float = 0.1,
    most: int = 400,
) -> Branch:
    """Follow the branch that leaves the uniform law at κ_l along κ, folds included.

    Args:
        interaction: dimension and degree.
        beta: inverse temperature, at least 0.
        degree: l, of the harmonic that the branch begins with.
        to: κ beyond which the branch is not followed.
        step: greatest length of a step along the curve (c, κ).
        most: states after which it is not followed either.
    """
    beta, to = _at_least_zero(beta), _positive(to, "to")
    begin = at_amplitude(interaction, beta, SMALL_AMPLITUDE, degree)
    uniform = _state(
        interaction, 1 / interaction.eigenvalues(beta)[degree - 1], beta, np.zeros(interaction.degree)
    )
    states, status = _follow(interaction, begin, "kappa", None, lambda s: s.kappa > to, step, most)
    return _branch((uniform, *states), "kappa", status)


def continued(
    interaction: Interaction, begin: StationaryLaw, *, to: float, step: float = 0.1, most: int = 400
) -> Branch:
    """Follow a branch from one stationary law along β at fixed κ, folds included.

    Args:
        interaction: dimension and degree.
        begin: where the branch is begun; its κ is kept.
        to: β that is wanted, at least 0.
        step: greatest length of a step along the curve (c, β).
        most: states after which the branch is not followed.
    """
    to = _at_least_zero(to)
    up = np.sign(to - begin.beta)
    done = lambda s: (s.beta - to) * up >= 0  # noqa: E731
    states, status = _follow(interaction, begin, "beta", up, done, step, most)
    return _branch(states, "beta", status)


def _follow(
    interaction: Interaction,
    begin: StationaryLaw,
    along: str,
    sign: float | None,
    done: Callable[[StationaryLaw], bool],
    step: float,
    most: int,
) -> tuple[tuple[StationaryLaw, ...], str]:
    """Pseudo-arclength in (c, κ) or (c, β): Newton on the plane across the tangent."""
    z = np.append(begin.coefficients, begin.kappa if along == "kappa" else begin.beta)
    other = begin.beta if along == "kappa" else begin.kappa
    # outwards from the uniform law, or towards the β asked for
    guess = np.append(z[:-1], 0.0) if sign is None else np.append(np.zeros(len(z) - 1), sign)
    tangent = _tangent(interaction, z, along, other, guess)
    states = [begin]
    length = step
    while len(states) < most:
        moved = _corrected(interaction, z + length * tangent, tangent, along, other)
        if moved is None or not 0 <= moved[-1] < 1e6:
            length /= 2
            if length < 1e-6:
                return tuple(states), "Newton's method no longer finds the branch"
            continue
        z = moved
        tangent = _tangent(interaction, z, along, other, tangent)
        length = min(1.3 * length, step)
        pair = (z[-1], other) if along == "kappa" else (other, z[-1])
        states.append(_state(interaction, *pair, z[:-1]))
        if z[:-1] @ begin.coefficients < 0:
            return tuple(states[:-1]), "the branch met the uniform law"
        if np.linalg.norm(z[-1 - interaction.degree // 4 : -1]) > MAX_COEFFICIENT_TAIL * np.linalg.norm(
            z[:-1]
        ):
            return tuple(states), f"under-resolved beyond: degree {interaction.degree} is too low"
        if done(states[-1]):
            return tuple(states), "reached the end asked for"
    return tuple(states), f"stopped after {most} states"


def _residual(
    interaction: Interaction, z: np.ndarray, along: str, other: float
) -> tuple[np.ndarray, np.ndarray]:
    """c − G and its derivatives (L, L + 1) by c and by the parameter."""
    c, kappa, beta = z[:-1], *((z[-1], other) if along == "kappa" else (other, z[-1]))
    k = interaction.eigenvalues(beta)
    law = interaction.law(kappa * k * c)
    by_c = np.eye(len(c)) - kappa * law.covariance * k
    change = k * c if along == "kappa" else kappa * interaction.slopes(beta) * c
    return c - law.coefficients, np.column_stack([by_c, -law.covariance @ change])


def _tangent(
    interaction: Interaction, z: np.ndarray, along: str, other: float, before: np.ndarray
) -> np.ndarray:
    """Direction of the branch at z, on the side of `before`."""
    slope = _residual(interaction, z, along, other)[1]
    found = np.linalg.solve(np.vstack([slope, before]), np.append(np.zeros(len(z) - 1), 1.0))
    return found / np.linalg.norm(found)


def _corrected(
    interaction: Interaction, z: np.ndarray, tangent: np.ndarray, along: str, other: float
) -> np.ndarray | None:
    for _ in range(8):
        value, slope = _residual(interaction, z, along, other)
        step = np.linalg.solve(np.vstack([slope, tangent]), np.append(value, 0.0))
        z = z - step
        if z[-1] < 0 or not np.all(np.isfinite(z)):
            return None
        if np.linalg.norm(step) <= NEWTON_TOLERANCE * (1 + np.linalg.norm(z)):
            return z
    return None


def _state(interaction: Interaction, kappa: float, beta: float, c: np.ndarray) -> StationaryLaw:
    k = interaction.eigenvalues(beta)
    law = interaction.law(kappa * k * c)
    root = np.sqrt(np.maximum(k, 0.0))
    growth = np.linalg.eigvalsh(kappa * root[:, None] * law.covariance * root)
    order = abs(float(c[0])) / np.sqrt(interaction.d)
    energy = interaction.free_energy(law, kappa, beta)
    return StationaryLaw(float(kappa), float(beta), c.copy(), order, energy, int(np.sum(growth > 1 + 1e-9)))


def _branch(states: tuple[StationaryLaw, ...], along: Literal["kappa", "beta"], status: str) -> Branch:
    values = np.array([s.kappa if along == "kappa" else s.beta for s in states])
    size = np.array([np.linalg.norm(s.coefficients) for s in states])
    folds = []
    for i in range(1, len(values) - 1):
        if (values[i] - values[i - 1]) * (values[i + 1] - values[i]) < 0:
            a, b, c = np.polyfit(size[i - 1 : i + 2], values[i - 1 : i + 2], 2)
            top = -b / (2 * a)
            order = np.interp(top, size[i - 1 : i + 2], [s.order for s in states[i - 1 : i + 2]])
            folds.append((float(np.polyval([a, b, c], top)), float(order)))
    return Branch(states, along, tuple(folds), status)


def _positive(value: float, name: str) -> float:
    require(0 < as_number(value, name) < np.inf, name, "be positive and finite", value)
    return float(value)


def _at_least_zero(beta: float) -> float:
    require(0 <= as_number(beta, "beta") < np.inf, "beta", "be at least 0 and finite", beta)
    return float(beta)
