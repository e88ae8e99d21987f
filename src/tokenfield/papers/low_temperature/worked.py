"""What the recipes of this paper share: the worked cases, their tokens, how to run and to measure them."""

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

import tokenfield as tkf
from tokenfield.measure.limit_law import limit_distance
from tokenfield.papers import declared

PAPER = "arXiv 2605.10931"
#: The worked case of theory §2.6: E = span e2 for D = diag(½, 1), V ends at ±e1; c = ¼, κ = 1.
CIRCLE = tkf.AttentionWeights(np.diag([0.5, 2.0]), np.diag([1.0, 0.5]))
#: The same on S²: D = diag(½, 1, ⅕), and c = ¼ again.
SPHERE = tkf.AttentionWeights(np.diag([0.5, 2.0, 1.0]), np.diag([1.0, 0.5, 0.2]))
#: Up to this many tokens the direct sums are quicker than the fast ones are compiled.
DIRECT = 2500
#: What the pictures of tokens show.
KEY = r"colours: on which side of $E^\perp$ a token began; diamond: the mean of all tokens"
#: What these recipes ask of a run.
SOLVER = tkf.Adaptive(rtol=1e-7, atol=1e-10)
#: The initial law is 1 + ⟨tilt, x⟩, in two dimensions with the first two of these.
TILT = (0.3, 0.2, 0.1)


def density(x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n"]:
    """A law without symmetry: by symmetry, clusters could not leave E."""
    tilt = np.array(TILT)[: min(x.shape[1], 3)]
    return 1 + x[:, : len(tilt)] @ tilt


def circle_tokens(n: int, grading: float | None = None) -> tkf.Tokens:
    """Quadrature tokens on the circle, crowded near E^⊥ = ±e1: there the flow pulls them apart.

    Without the crowding the mass that a finite β sends to the wrong side of ±e1 (3.5e-4 at β = 100) would be
    a token or none.
    """
    return tkf.initial.graded(density, n, [0.0, 1.0], grading)


def graded_sphere_tokens(n: int) -> tkf.Tokens:
    """About n quadrature tokens on S² in rings about e2, crowded near E^⊥ as on the circle.

    A few thousand of them give what a million equal ones do not. More crowding was only tried at β = 100:
    W2 .0921 (.9999), .0898 (.98) with 2,926 tokens.
    """
    return tkf.initial.graded(density, n, [0.0, 1.0, 0.0])


def sphere_tokens(n: int, d: int = 3) -> tkf.Tokens:
    """About n quadrature tokens on the sphere of R^d."""
    return tkf.initial.sphere_density(density, n, d)


def model_at(weights: tkf.AttentionWeights, beta: float) -> tkf.Model:
    """Softmax attention, or for β = ∞ the zero-temperature flow."""
    return tkf.ZeroTemperature(weights) if np.isinf(beta) else tkf.SoftmaxAttention(weights, beta)


def run(weights: tkf.AttentionWeights, beta: float, tokens: tkf.Tokens, ts: np.ndarray) -> tkf.Trajectory:
    """One run at the tolerance of these recipes.

    Args:
        weights: B and V.
        beta: inverse temperature; infinite: zero temperature.
        tokens: the initial law.
        ts: saved times, (times,), from 0.
    """
    return tkf.simulate(model_at(weights, beta), tokens, ts, SOLVER, _summation(tokens))


def _summation(tokens: tkf.Tokens) -> str:
    return "direct" if tokens.n <= DIRECT else "auto"


def distances(
    trajectory: tkf.Trajectory, where: tkf.theory.Limit, p: float = 2
) -> Float[np.ndarray, "times"]:
    """W_p to Π♯ρ0 at every saved time (`limit_distance`).

    Args:
        trajectory: the run.
        where: Π.
        p: order of the distance, 1 or 2.
    """
    return trajectory.measure(limit_distance(where, trajectory.tokens(0), p))


def grid(
    weights: tkf.AttentionWeights, betas: ArrayLike, initial: dict[str, Any], ts: np.ndarray, **run: Any
) -> dict[str, Any]:
    """A sweep over β of runs at the tolerance of these recipes.

    Args:
        weights: B and V.
        betas: inverse temperatures, (betas,).
        initial: [initial] of the sweep.
        ts: saved times, (times,), from 0.
        **run: [run] of the sweep: what is measured and kept.
    """
    return {
        "weights": declared.attention(weights),
        "model": {"kind": "softmax"},
        "initial": initial,
        "times": {"at": ts.tolist()},
        "solver": declared.adaptive(SOLVER),
        "run": {"measure": []} | run,
        "sweep": {"model": {"beta": np.asarray(betas, float).tolist()}},
    }


def limit_grid(
    weights: tkf.AttentionWeights, betas: ArrayLike, tokens: tkf.Tokens, ts: np.ndarray
) -> dict[str, Any]:
    """The sweep over β that measures W2 to Π♯ρ0 over time.

    Args:
        weights: B and V.
        betas: inverse temperatures, (betas,).
        tokens: the initial law.
        ts: saved times, (times,), from 0.
    """
    return grid(
        weights, betas, declared.atoms(tokens), ts, measure=["limit_distance"], summation=_summation(tokens)
    )


def run_grid(
    weights: tkf.AttentionWeights, betas: ArrayLike, tokens: tkf.Tokens, ts: np.ndarray
) -> dict[str, Any]:
    """The sweep over β that keeps the tokens at every time.

    Args:
        weights: B and V.
        betas: inverse temperatures, (betas,).
        tokens: the initial law.
        ts: saved times, (times,), from 0.
    """
    kept = list(range(len(ts)))
    return grid(weights, betas, declared.atoms(tokens), ts, snapshots=kept, summation=_summation(tokens))


def leaving_rate(weights: tkf.AttentionWeights) -> float:
    """Rate at which clusters leave E by y' = P_y V y: top of V minus ⟨y, Vy⟩ on E (theory §2.6).

    The fastest place of E counts; V symmetric.
    """
    V, E = np.asarray(weights.V), tkf.theory.limit(weights).basis
    return float(np.linalg.eigvalsh(V)[-1] - np.linalg.eigvalsh(E.T @ V @ E)[0])


def bottom(ts: np.ndarray, curve: np.ndarray) -> tuple[float, float]:
    """Time and value of the least point of a curve, by a parabola through three points of its logarithm."""
    k = int(np.clip(np.argmin(curve), 1, len(ts) - 2))
    a, b, c = np.polyfit(ts[k - 1 : k + 2] - ts[k], np.log(curve[k - 1 : k + 2]), 2)
    shift = float(np.clip(-b / (2 * a), ts[k - 1] - ts[k], ts[k + 1] - ts[k])) if a > 0 else 0.0
    return float(ts[k] + shift), float(np.exp(np.polyval([a, b, c], shift)))


def label(beta: float) -> str:
    """β in a legend."""
    return "zero temperature" if np.isinf(beta) else f"β = {beta:g}"
