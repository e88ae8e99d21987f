"""The Gaussian closure against tokens: exact before the blow-up, out of reach of any tokens near it.

Tokens of R^d without normalisation whose law is Gaussian stay so (arXiv 2501.18322, 2606.07600; theory §6.4):
mean and covariance obey an ordinary equation. Gauss–Hermite tokens are the same law as seen by the simulator.
Softmax attention with V = I reaches infinity at t* = 1/λ_max(βΣ_0^{½}(B+Bᵀ)Σ_0^{½}); on the way there the
tilted mean leaves the outermost token, and tokens, however many, fall behind the closure.
"""

from typing import NamedTuple

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import tokenfield as tkf
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, at_least, at_most, near

CLOSED = "theory §6.4.1, derived: Σ = (Σ0^{−1} − β(B+Bᵀ)t)^{−1}"
BETA, MEAN, COVARIANCE = 0.8, np.array([0.4, -0.2]), np.array([[0.5, 0.1], [0.1, 0.3]])
SCORES = np.array([[1.0, 0.3], [0.3, -0.5]])
GENERAL = tkf.AttentionWeights([[0.5, -0.6], [0.2, 0.8]], [[0.7, 0.2], [-0.3, 0.4]])


class Followed(NamedTuple):
    """Greatest eigenvalues of the covariance at the times: of tokens, one row for each number of nodes."""

    ts: np.ndarray
    nodes: tuple[int, ...]
    tokens: np.ndarray
    closure: np.ndarray
    blow_up: float


def softmax(weights: tkf.AttentionWeights) -> tkf.Model:
    """Attention in R^d, scores on the tokens themselves."""
    return tkf.NoNorm(tkf.SoftmaxAttention(weights, BETA))


def covariances(run: tkf.Trajectory) -> np.ndarray:
    """Covariance of the tokens at every time, (times, d, d)."""
    found = []
    for k in range(len(run.ts)):
        law = run.tokens(k)
        y, w = np.asarray(law.points), np.asarray(law.weights)
        y = y - w @ y
        found.append((w * y.T) @ y)
    return np.array(found)


def followed(weights: tkf.AttentionWeights, shares: np.ndarray, nodes: tuple[int, ...]) -> Followed:
    """Tokens and closure up to shares of the time of the blow-up.

    Args:
        weights: B and V.
        shares: increasing parts of the time of the blow-up, from 0.
        nodes: points for each dimension, one run each.
    """
    model = softmax(weights)
    blow_up = tkf.density.gaussian(model, MEAN, COVARIANCE, [0.0]).blow_up
    law = tkf.density.gaussian(model, MEAN, COVARIANCE, shares * blow_up)
    widths = []
    for count in nodes:
        start = tkf.initial.gauss_hermite(MEAN, COVARIANCE, count)
        run = tkf.simulate(model, start, shares * blow_up, tkf.Adaptive(1e-9, 1e-10))
        widths.append(np.linalg.eigvalsh(covariances(run))[:, -1])
    closure = np.linalg.eigvalsh(law.covariance)[:, -1]
    return Followed(shares * blow_up, nodes, np.array(widths), closure, blow_up)


def run(quick: bool, progress: Progress) -> Result:
    """The recipe."""
    shares = np.array([0, 0.2, 0.4, 0.54, 0.67, 0.8, 0.9])
    nodes = (8, 16) if quick else (10, 20, 40)
    progress(0.0, "tokens towards the blow-up")
    identity = followed(tkf.AttentionWeights(SCORES, np.eye(2)), shares, nodes)
    progress(0.6, "general values")
    general = followed(GENERAL, np.array([0, 0.1, 0.158]), nodes[-1:])
    progress(0.9, "near the blow-up")
    checks = [*_checks(identity, general), *_near_the_end(identity.blow_up)]
    rows = [
        {"share": t / identity.blow_up, "nodes": n, "tokens": width, "closure": exact}
        for n, widths in zip(nodes, identity.tokens, strict=True)
        for t, width, exact in zip(identity.ts, widths, identity.closure, strict=True)
    ]
    data = xr.Dataset(
        {"tokens": (("nodes", "time"), identity.tokens), "closure": ("time", identity.closure)},
        {"nodes": list(nodes), "time": identity.ts},
        {"blow_up": identity.blow_up},
    )
    return Result(checks, rows, data, figure(identity))


RECIPE = Recipe(
    "gaussian-closure",
    "mean and covariance of Gaussian laws in R^d against Gauss–Hermite tokens, up to the blow-up",
    run,
)


def _checks(identity: Followed, general: Followed) -> list[Check]:
    root = np.linalg.cholesky(COVARIANCE)
    exact = 1 / np.linalg.eigvalsh(BETA * root.T @ (SCORES + SCORES.T) @ root)[-1]
    error = np.abs(identity.tokens / identity.closure - 1)
    at = {share: int(np.argmin(np.abs(identity.ts / identity.blow_up - share))) for share in (0.2, 0.67, 0.9)}
    finest = identity.nodes[-1]
    return [
        near("time of the blow-up, V = I", identity.blow_up, exact, CLOSED, relative=1e-10),
        at_most(
            f"relative error of {finest}² tokens at 0.2 t*",
            error[-1, at[0.2]],
            1e-6,
            "theory §6.4.5, measured: affine images of the rule stay exact",
        ),
        at_most(
            f"relative error of {finest}² tokens, general V, t = 0.6",
            abs(general.tokens[-1, -1] / general.closure[-1] - 1),
            1e-7,
            "theory §6.4.5, measured",
        ),
        at_least(
            f"relative error of {finest}² tokens at 0.9 t*",
            error[-1, at[0.9]],
            0.1,
            "theory §6.4.5, measured: near the blow-up the tilted mean leaves the nodes",
        ),
        at_least(
            "error of the coarsest over that of the finest tokens at 0.67 t*",
            error[0, at[0.67]] / error[-1, at[0.67]],
            1.0,
            "theory §6.4.5: more nodes reach farther",
        ),
    ]


def _near_the_end(blow_up: float) -> list[Check]:
    """The closure goes on to the blow-up, where (t* − t)Σ tends to a finite matrix."""
    model, gap = softmax(tkf.AttentionWeights(SCORES, np.eye(2))), 1e-6
    law = tkf.density.gaussian(model, MEAN, COVARIANCE, [0.0, (1 - gap) * blow_up])
    exact = np.linalg.inv(np.linalg.inv(COVARIANCE) - BETA * (SCORES + SCORES.T) * (1 - gap) * blow_up)
    found = law.covariance[-1, 0, 0]
    return [near("Σ_11 of the closure at (1 − 10⁻⁶) t*", found, exact[0, 0], CLOSED, relative=1e-3)]


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(found: Followed) -> Figure:
    """Width of the law and error of the tokens over the share of the time of the blow-up."""
    drawing = Figure(figsize=(9.5, 4.0), layout="constrained")
    width, error = drawing.subplots(1, 2)
    model = softmax(tkf.AttentionWeights(SCORES, np.eye(2)))
    shares = 1 - np.geomspace(1, 3e-3, 120)
    law = tkf.density.gaussian(model, MEAN, COVARIANCE, shares * found.blow_up)
    width.plot(shares, np.linalg.eigvalsh(law.covariance)[:, -1], color="black", label="closure")
    share = found.ts / found.blow_up
    for n, widths, colour in zip(found.nodes, found.tokens, tkf.figures.PALETTE, strict=False):
        width.plot(share, widths, "o--", color=colour, markersize=4, label=f"{n}² tokens")
        off = np.maximum(np.abs(widths / found.closure - 1), 1e-16)
        error.plot(share[1:], off[1:], "o-", color=colour, markersize=4, label=f"{n}² tokens")
    width.axvline(1, color="#777777", linestyle=":", linewidth=1)
    width.annotate("blow-up", (1, 0.5), xytext=(-4, 0), textcoords="offset points", ha="right", fontsize=8)
    width.set(yscale="log", xlabel="t/t*", ylabel="greatest eigenvalue of Σ", title="width of the law")
    error.set(yscale="log", xlabel="t/t*", ylabel="relative error of the width", title="tokens, closure")
    width.legend(loc="upper left", fontsize=8)
    error.legend(loc="lower right", fontsize=8)
    return drawing
