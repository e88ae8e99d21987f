"""Systems with exact solutions (theory §4), as objects: every solver is run on every one.

A problem knows its model, its initial tokens, the times, what to observe, and the exact values. These
come from closed forms and SciPy, never from the simulator.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import tokenfield as tkf
from tokenfield import theory
from tokenfield.models.base import Model


@dataclass(frozen=True)
class Problem:
    name: str
    model: Model
    tokens: tkf.Tokens
    ts: np.ndarray
    observe: Callable[[tkf.Tokens], np.ndarray]
    exact: np.ndarray

    def error(self, solver) -> float:
        found = tkf.simulate(self.model, self.tokens, self.ts, solver).measure(self.observe)
        return float(np.max(np.abs(found - self.exact)))


def inner_product(tokens: tkf.Tokens) -> np.ndarray:
    return np.asarray(tokens.x[0] @ tokens.x[1])


def points(tokens: tkf.Tokens) -> np.ndarray:
    return np.asarray(tokens.x)


def equiangular(n: int, beta: float, rho0: float, flow: str, ts: list[float]) -> Problem:
    kind = {"softmax": tkf.SoftmaxAttention, "unnormalised": tkf.UnnormalisedAttention}[flow]
    return Problem(
        f"equiangular-{flow}-{n}-{beta}",
        kind(tkf.AttentionWeights.identity(n), beta),
        tkf.initial.equiangular(n, n, rho0),
        np.array(ts),
        inner_product,
        theory.equiangular(ts, n, beta, rho0, flow),
    )


def two_tokens(beta: float, rho0: float, rho1: float) -> Problem:
    angle = np.arccos(rho0)
    return Problem(
        f"two-tokens-{beta}",
        tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), beta),
        tkf.Tokens([[1.0, 0.0], [np.cos(angle), np.sin(angle)]]),
        np.array([0.0, theory.two_tokens(rho0, rho1, beta)]),
        inner_product,
        np.array([rho0, rho1]),
    )


def lorentz(d: int) -> Problem:
    cloud = tkf.initial.uniform(12, d, key=d)
    weights = np.random.default_rng(d).dirichlet(np.ones(12))
    ts = np.array([0.0, 0.7, 2.0])
    return Problem(
        f"lorentz-{d}",
        tkf.SoftmaxAttention(tkf.AttentionWeights.identity(d), 0.0),
        tkf.Tokens(cloud.x, weights),
        ts,
        points,
        theory.lorentz(cloud.x, weights, ts),
    )


def poisson(d: int, r0: float = 0.2) -> Problem:
    axis = np.random.default_rng(d).normal(size=d)
    nodes = {2: 48, 3: 4 * 16, 5: 8 * 12}[d]
    ts = np.array([0.0, 0.4, 0.8])
    return Problem(
        f"poisson-{d}",
        tkf.SoftmaxAttention(tkf.AttentionWeights.identity(d), 0.0),
        tkf.initial.poisson(nodes, r0 * axis / np.linalg.norm(axis)),
        ts,
        tkf.order_parameter,
        theory.poisson_order(ts, r0, d),
    )


def zero_temperature(d: int) -> Problem:
    cloud = tkf.initial.uniform(20, d, key=1)
    V = tkf.ensembles.gaussian(d, key=7)
    ts = np.array([0.0, 0.5, 3.0])
    return Problem(
        f"zero-temperature-{d}",
        tkf.ZeroTemperature(tkf.AttentionWeights(np.eye(d), V)),
        cloud,
        ts,
        points,
        theory.zero_temperature(cloud.x, V, ts),
    )


PROBLEMS = [
    equiangular(6, 1.0, 0.0, "softmax", [0.0, 1.0, 4.0]),
    equiangular(6, 3.0, -0.1, "unnormalised", [0.0, 0.5, 1.0]),
    two_tokens(5.0, 0.1, 0.9),
    lorentz(2),
    lorentz(3),
    lorentz(5),
    poisson(2),
    poisson(3),
    poisson(5),
    zero_temperature(4),
]
