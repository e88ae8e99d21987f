"""Initial laws: random samples, and quadrature tokens that stand for a density.

Random laws take an integer key and give the same tokens for the same key. Density laws place weighted
tokens so that sums over them are integrals: equispaced on the circle, Gauss × uniform on S², Gauss ×
cross-polytope for zonal laws in any dimension, Sobol points otherwise.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from tokenfield.errors import as_number, as_whole, require
from tokenfield.laws.graded import graded as graded
from tokenfield.laws.quadrature import Density, density_values, unit_direction, weighted_tokens
from tokenfield.laws.tokens import Tokens, as_real
from tokenfield.registry import MATRIX, register

#: Below this share of the sphere, a cap's angles are drawn without computing the share.
SMALLEST_SHARE = 1e-250
#: Points that a rejection draws at a time at least, and without accepting one at most.
FEWEST, MOST_TRIES = 1024, 10**6


@register("law", "uniform", exact_n=True)
def uniform(n: int, d: int, key: int) -> Tokens:
    """n independent uniform tokens on the sphere of R^d.

    Args:
        n: number of tokens.
        d: dimension of the surrounding space, at least 2.
        key: seed; the same key gives the same tokens.

    Returns:
        Tokens (n, d) of equal weight.
    """
    return Tokens(_unit(_rng(n, d, key).normal(size=(n, d))))


@register(
    "law",
    "gauss_hermite",
    settings={"mean": list[float], "covariance": MATRIX},
    size=lambda settings: settings.nodes ** len(settings.mean),
)
def gauss_hermite(mean: ArrayLike, covariance: ArrayLike, nodes: int) -> Tokens:
    """Tokens in R^d, with lengths, that stand for N(mean, covariance): the product rule of Gauss and Hermite.

    Sums over them are integrals over the Gaussian law, exact for polynomials of degree 2·nodes − 1. They are
    for free spaces; on the sphere only their directions are read. Affine maps of the tokens keep the rule.

    Args:
        mean: (d,), d ≥ 2.
        covariance: (d, d), symmetric and positive definite.
        nodes: points for each dimension, at least 1; even ones do not place a token at the mean.

    Returns:
        Tokens (nodes^d, d) with weights and lengths.
    """
    m, S = np.asarray(as_real(mean, "mean")), np.asarray(as_real(covariance, "covariance"))
    require(m.ndim == 1 and m.size > 1, "mean", "have shape (d,) with d ≥ 2", f"of shape {m.shape}")
    d, nodes = m.size, as_whole(nodes, "nodes", 1)
    require(S.shape == (d, d), "covariance", f"have shape ({d}, {d})", f"of shape {S.shape}")
    symmetric = bool(np.all(np.isfinite(S))) and np.abs(S - S.T).max() <= 1e-12 * np.abs(S).max()
    definite = symmetric and bool(np.linalg.eigvalsh(S).min() > 0)
    require(definite, "covariance", "be symmetric and positive definite", S.tolist())
    z, w = np.polynomial.hermite_e.hermegauss(nodes)
    grid = np.stack(np.meshgrid(*[z] * d, indexing="ij"), axis=-1).reshape(-1, d)
    shares = np.prod(np.stack(np.meshgrid(*[w / w.sum()] * d, indexing="ij"), axis=-1).reshape(-1, d), axis=1)
    points = m + grid @ np.linalg.cholesky(S).T
    away = bool(np.all(np.any(points != 0, axis=1)))
    require(away, "nodes", "place no token at 0: take an even number, or another mean", nodes)
    return Tokens.normalised(points, shares / shares.sum())


@register("law", "von_mises_fisher", settings={"mean": list[float]}, exact_n=True)
def von_mises_fisher(n: int, mean: ArrayLike, kappa: float, key: int) -> Tokens:
    """n independent tokens with density ∝ e^{κ⟨mean, x⟩}.

    Args:
        n: number of tokens.
        mean: direction (d,) of norm 1.
        kappa: concentration κ ≥ 0; 0 is the uniform law.
        key: seed; the same key gives the same tokens.

    Returns:
        Tokens (n, d) of equal weight.
    """
    centre = unit_direction(mean, "mean")
    _rng(n, centre.size, key)
    require(0 <= as_number(kappa, "kappa") < np.inf, "kappa", "be at least 0 and finite", kappa)
    kappa = float(kappa)
    if kappa == 0:
        return uniform(n, centre.size, key)
    from scipy import stats  # takes a second to import

    law = stats.vonmises_fisher(centre, kappa)  # pyright: ignore[reportArgumentType] (kappa is real)
    return Tokens(_unit(np.reshape(law.rvs(n, random_state=_rng(n, centre.size, key)), (n, -1))))


@register("law", "cap", settings={"centre": list[float]}, exact_n=True)
def cap(n: int, centre: ArrayLike, angle: float, key: int) -> Tokens:
    """n independent uniform tokens within an angle of a direction.

    Args:
        n: number of tokens.
        centre: direction (d,) of norm 1.
        angle: greatest angle to the centre, in (0, π].
        key: seed; the same key gives the same tokens.

    Returns:
        Tokens (n, d) of equal weight.
    """
    axis = unit_direction(centre, "centre")
    require(0 < as_number(angle, "angle") <= np.pi, "angle", "lie in (0, π]", angle)
    rng, d = _rng(n, axis.size, key), axis.size
    height, radius = _cap_heights(n, (d - 1) / 2, angle, rng)
    across = rng.normal(size=(n, d))
    across = _unit(across - np.outer(across @ axis, axis))
    return Tokens(_unit(np.outer(height, axis) + radius[:, None] * across))


@register("law", "poisson", settings={"w": list[float]}, exact_n="keyed")
def poisson(n: int, w: ArrayLike, key: int | None = None) -> Tokens:
    """The Poisson law with density (1−|w|²)^{d−1}/|x−w|^{2(d−1)}.

    It is the uniform law moved by a Möbius map of the ball, and the family that the flow with β = 0
    keeps (theory §4).

    Args:
        n: number of tokens; of quadrature tokens, about.
        w: vector (d,) inside the unit ball.
        key: seed of n independent tokens; quadrature tokens if left out.

    Returns:
        Tokens (n, d), of equal weight if they are independent.
    """
    w = np.asarray(as_real(w, "w"))
    require(w.ndim == 1 and w.size >= 2, "w", "be a vector of length d ≥ 2", f"of shape {w.shape}")
    radius = float(np.linalg.norm(w))
    require(radius < 1, "w", "lie inside the unit ball", f"of norm {radius:.9g}")
    if key is not None:
        flat = uniform(n, w.size, key)
    elif w.size == 2:
        flat = circle_density(np.ones_like, n)
    else:
        axis = w / radius if radius > 0 else np.eye(w.size)[0]
        flat = zonal_density(np.ones_like, axis, n)
    return flat.push(lambda x: jnp.asarray(_moebius(np.asarray(x), w)))


@register("law", "equiangular", exact_n=True)
def equiangular(n: int, d: int, rho: float) -> Tokens:
    """n tokens, every two with the same inner product.

    Args:
        n: number of tokens.
        d: dimension, at least n.
        rho: the inner product, in [−1/(n−1), 1].

    Returns:
        Tokens (n, d) of equal weight.
    """
    _rng(n, d, 0)
    require(d >= n, "d", f"be at least n = {n}", d)
    lowest = -1 / (n - 1) if n > 1 else -1.0
    require(lowest <= as_number(rho, "rho") <= 1, "rho", f"lie in [{lowest:.6g}, 1]", rho)
    a = np.sqrt(1 - rho)
    b = (np.sqrt(max(1 + (n - 1) * rho, 0.0)) - a) / n
    x = np.zeros((n, d))
    x[:, :n] = a * np.eye(n) + b
    return Tokens(_unit(x))


def circle_density(f: Density, n: int) -> Tokens:
    """n equispaced tokens on the circle with weights ∝ f(θ); f takes an array of angles.

    The angles are (j + ½)·2π/n: spectrally accurate for smooth f, and never on the axes if 4 divides n.
    """
    _rng(n, 2, 0)
    theta = (np.arange(n) + 0.5) * (2 * np.pi / n)
    density = density_values(f, theta, "f")
    return weighted_tokens(np.stack([np.cos(theta), np.sin(theta)], axis=1), np.ones(n), density)


def sphere_density(f: Density, n: int, d: int = 3) -> Tokens:
    """About n tokens on the sphere of R^d with weights for a density.

    d = 3: Gauss–Legendre in the height × uniform in the longitude, exact for polynomials of degree
    2√(n/2) − 1. d ≥ 4: exactly n scrambled Sobol points of fixed seed, error about 1/n.

    Args:
        f: the density, a function of points (m, d) that gives (m,); need not be normalised.
        n: about how many tokens.
        d: dimension, at least 3.

    Returns:
        Tokens with weights ∝ f.
    """
    _rng(n, d, 0)
    require(d >= 3, "d", "be at least 3 (use circle_density on the circle)", d)
    x, w = _gauss_uniform(n) if d == 3 else (_sobol(n, d), np.ones(n))
    return weighted_tokens(x, w, density_values(f, x, "f"))


def zonal_density(profile: Density, axis: ArrayLike, n: int) -> Tokens:
    """About n tokens for a density profile(⟨x, axis⟩) in any dimension.

    Gauss–Gegenbauer nodes in the height × the 2(d−1) points of a cross-polytope across the axis.

    Args:
        profile: a function of heights (m,) in [−1, 1] that gives (m,); need not be normalised.
        axis: direction (d,) of norm 1.
        n: about how many tokens.

    Returns:
        Tokens with weights for the density.
    """
    centre = unit_direction(axis, "axis")
    d = centre.size
    _rng(n, d, 0)
    around = 2 * (d - 1)
    t, w = special.roots_gegenbauer(max(1, round(n / around)), (d - 2) / 2)
    across = np.linalg.svd(centre[None])[2][1:]
    cross = np.concatenate([across, -across])
    x = t[:, None, None] * centre + np.sqrt(1 - t**2)[:, None, None] * cross
    density = np.repeat(density_values(profile, t, "profile"), around)
    return weighted_tokens(x.reshape(-1, d), np.repeat(w, around), density)


def sampled(f: Density, n: int, d: int, key: int, most: float) -> Tokens:
    """n independent tokens with density ∝ f, by rejection.

    Args:
        f: the density, a function of points (m, d) that gives (m,); need not be normalised.
        n: number of tokens.
        d: dimension.
        key: seed; the same key gives the same tokens.
        most: a number that f does not exceed, the closer the quicker.

    Returns:
        Tokens (n, d) of equal weight.
    """
    rng = _rng(n, d, key)
    require(0 < as_number(most, "most") < np.inf, "most", "be positive and finite", most)
    x, tried = np.empty((0, d)), 0
    while len(x) < n:
        drawn = _unit(rng.normal(size=(max(n, FEWEST), d)))
        values = density_values(f, drawn, "f")
        require(
            values.max() <= most * (1 + 1e-9),
            "most",
            "be at least f everywhere",
            f"{most:g}, below a value {values.max():g} of f",
        )
        x = np.concatenate([x, drawn[rng.uniform(size=len(drawn)) * most < values]])
        tried += len(drawn)
        require(
            len(x) > 0 or tried < MOST_TRIES,
            "most",
            "be near the greatest value of f",
            f"{most:g}, too large to accept one of {tried} points",
        )
    return Tokens(x[:n])


def mixture(parts: Sequence[Tokens], masses: ArrayLike) -> Tokens:
    """The law Σ mass_k · part_k: all tokens of all parts, weights scaled by the masses (sum 1)."""
    listed = isinstance(parts, Sequence) and all(isinstance(part, Tokens) for part in parts)
    require(listed, "parts", "be a list of Tokens", repr(parts))
    masses = np.asarray(as_real(masses, "masses"))
    require(
        len(parts) > 0 and masses.shape == (len(parts),),
        "masses",
        f"have one entry for each of the {len(parts)} parts",
        f"of shape {masses.shape}",
    )
    require(
        bool(np.all(masses >= 0)) and abs(masses.sum() - 1) <= 1e-6,
        "masses",
        "be at least 0 and sum to 1",
        masses.tolist(),
    )
    dims = {part.d for part in parts}
    require(len(dims) == 1, "parts", "have one dimension", sorted(dims))
    x = jnp.concatenate([part.x for part in parts])
    return Tokens(x, jnp.concatenate([m * p.weights for m, p in zip(masses, parts, strict=True)]))


def _rng(n: int, d: int, key: int) -> np.random.Generator:
    for name, value, least in (("n", n, 1), ("d", d, 2), ("key", key, 0)):
        as_whole(value, name, least)
    return np.random.default_rng(key)


def _cap_heights(n: int, a: float, angle: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """cos θ and sin θ of n angles from the centre of a cap, θ with density ∝ sin^{2a−1}θ."""
    # u = sin²(θ/2) has the Beta(a, a) law on the whole sphere; here cut at the angle
    share = special.betainc(a, a, np.sin(angle / 2) ** 2)
    if share > SMALLEST_SHARE:
        u = special.betaincinv(a, a, share * rng.uniform(size=n))
        return 1 - 2 * u, 2 * np.sqrt(u * (1 - u))
    # the share of the sphere underflows. w = sin²θ has density ∝ w^{a−1}(1−w)^{−1/2}: drawn from the
    # power, kept by the root, which changes little over the few w that the power leaves likely
    top, w = np.sin(angle) ** 2, np.empty(0)
    while len(w) < n:
        drawn = top * rng.uniform(size=n) ** (1 / a)
        w = np.concatenate([w, drawn[rng.uniform(size=n) ** 2 * (1 - drawn) <= 1 - top]])
    return np.sqrt(1 - w[:n]), np.sqrt(w[:n])


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def _moebius(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The Möbius map of the ball that carries 0 to w, on the sphere: w + (1−|w|²)(x + w)/|x + w|²."""
    square = np.sum((x + w) ** 2, axis=1, keepdims=True)
    return _unit(w + (1 - w @ w) * (x + w) / square)


def _gauss_uniform(n: int) -> tuple[np.ndarray, np.ndarray]:
    rings = max(1, round(np.sqrt(n / 2)))
    t, w = np.polynomial.legendre.leggauss(rings)
    phi = (np.arange(2 * rings) + 0.5) * (np.pi / rings)
    t, w, phi = np.repeat(t, 2 * rings), np.repeat(w, 2 * rings), np.tile(phi, rings)
    s = np.sqrt(1 - t**2)
    return np.stack([s * np.cos(phi), s * np.sin(phi), t], axis=1), w


def _sobol(n: int, d: int) -> np.ndarray:
    from scipy.stats import qmc  # takes a second to import

    points = qmc.Sobol(d, rng=np.random.default_rng(0)).random_base2(int(np.ceil(np.log2(max(n, 2)))))
    return _unit(special.ndtri(np.clip(points[:n], 1e-16, 1 - 1e-16)))
