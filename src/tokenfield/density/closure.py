"""Gaussian closure: tokens of R^d whose law stays N(m, Σ), an ordinary equation for m and Σ (theory §6.4).

Without normalisation, softmax, L2, Sinkhorn and linear attention, drifts and MLPs without an activation
move a token of a Gaussian law by an affine map of it, x' = a + M(x − m), so that the law stays Gaussian:

    m' = a,   Σ' = MΣ + ΣMᵀ        (2501.18322; models/gaussian.py says what each term gives)

For linear attention the second moment closes for any cloud. Softmax attention makes Σ' quadratic in Σ, which
can reach infinity in finite time. That time is predicted first: in the clock ds = (1 + tr Σ/tr Σ_0)dt the
covariance only grows exponentially on its way there, and what is left at the end is tr Σ/(tr Σ)'.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike
from scipy import integrate

from tokenfield.errors import InputError, RunError, require, require_increasing, require_kind
from tokenfield.laws.tokens import as_real
from tokenfield.models.base import Model, Term
from tokenfield.models.gaussian import GaussianLaw
from tokenfield.models.requirements import check_closure
from tokenfield.runs.times import as_times

#: A blow-up is looked for up to so many times the last time that was asked for.
HORIZON = 100.0
#: Growth of the covariance after which it is decided whether it blows up.
BLOWN_UP = 1e10
#: It does if what is left then, tr Σ/(tr Σ)', is this part of the time so far: exponential growth leaves
#: more.
MOMENT = 1e-5
#: Tolerances of the integration, and of a first look at whether there is a blow-up.
RELATIVE, ABSOLUTE, ROUGHLY = 1e-12, 1e-14, 1e-5

#: (t, m and Σ in one row) → their derivatives.
Slope = Callable[[float, np.ndarray], np.ndarray]


class GaussianRun(NamedTuple):
    """A Gaussian law at the times `ts` (times,): `mean` (times, d), `covariance` (times, d, d).

    `blow_up`: the time at which the covariance becomes infinite; infinity if it stays finite for at least
    a hundred times as long as was asked. `model` is the one that was given.
    """

    ts: Float[np.ndarray, "times"]
    mean: Float[np.ndarray, "times d"]
    covariance: Float[np.ndarray, "times d d"]
    blow_up: float
    model: Model


def gaussian(
    model: Model, mean: ArrayLike | Array, covariance: ArrayLike | Array, ts: ArrayLike | Array
) -> GaussianRun:
    """Follow the law N(mean, covariance) of tokens in R^d through the times `ts`.

    Scores are those of the tokens themselves, as `NoNorm(model)` has them; a model that names no space is
    taken without normalisation, too. Times at or after a blow-up are refused with the time of it: ask for
    earlier ones, the law is followed as close to it as they come.

    Args:
        model: `NoNorm` of attention (softmax, L2, Sinkhorn, linear), drifts and MLPs with the activation
            "identity", or these alone.
        mean: at ts[0], (d,).
        covariance: at ts[0], (d, d), symmetric and positive semi-definite.
        ts: increasing times; or one final time, counted from 0.

    Returns:
        Mean and covariance at the times, and the time of the blow-up.
    """
    require_kind(model, Model, "model")
    check_closure(model)
    times = np.asarray(as_times(ts))
    require_increasing(times, "ts")
    law = _checked_law(mean, covariance, model.d)
    slope = _slope(model, law)
    blow_up = _blow_up(slope, law, times)
    beyond = times[times >= blow_up]
    if beyond.size:
        raise InputError(
            f"`ts` must end before t = {blow_up:.12g}, where the covariance becomes infinite, but had"
            f" {beyond[0]:g}"
        )
    y = _integrated(slope, _packed(law), times)
    d = model.d
    return GaussianRun(times, y[:, :d], y[:, d:].reshape(-1, d, d), blow_up, model)


def _checked_law(mean: ArrayLike | Array, covariance: ArrayLike | Array, d: int) -> GaussianLaw:
    m, S = np.asarray(as_real(mean, "mean")), np.asarray(as_real(covariance, "covariance"))
    right = m.shape == (d,) and bool(np.all(np.isfinite(m)))
    require(right, "mean", f"be finite and of shape ({d},) like the model", f"of shape {m.shape}")
    require(S.shape == (d, d), "covariance", f"have shape ({d}, {d}) like the model", f"of shape {S.shape}")
    finite = bool(np.all(np.isfinite(S)))
    symmetric = finite and bool(np.abs(S - S.T).max() <= 1e-12 * max(np.abs(S).max(), 1e-300))
    definite = symmetric and bool(np.linalg.eigvalsh(S).min() >= -1e-12 * np.abs(S).max())
    require(definite, "covariance", "be symmetric and positive semi-definite", S.tolist())
    return GaussianLaw(m, (S + S.T) / 2)


def _packed(law: GaussianLaw) -> np.ndarray:
    return np.concatenate([law.mean, law.covariance.ravel()])


def _slope(model: Model, start: GaussianLaw) -> Slope:
    """(t, (m, Σ)) → (m', Σ'); models with a term that is not affine on Gaussian laws are refused."""
    terms, d = model.terms, model.d
    for term in terms:
        if term.on_gaussian(start) is None:
            raise InputError(
                "`model` must keep Gaussian laws: softmax, L2, Sinkhorn or linear attention over all tokens,"
                f" drifts, MLPs with the activation 'identity'; but {type(term).__name__} here does not"
            )

    def of(_: float, y: np.ndarray) -> np.ndarray:
        S = y[d:].reshape(d, d)
        law = GaussianLaw(y[:d], (S + S.T) / 2)
        mean, cross = np.zeros(d), np.zeros((d, d))
        for term in terms:
            a, G = _output(term, law)
            mean, cross = mean + a, cross + G
        return np.concatenate([mean, (cross + cross.T).ravel()])

    return of


def _output(term: Term, law: GaussianLaw) -> tuple[np.ndarray, np.ndarray]:
    found = term.on_gaussian(law)
    assert found is not None
    return found


def _blow_up(slope: Slope, law: GaussianLaw, times: np.ndarray) -> float:
    """The time at which the covariance becomes infinite; looked for roughly first, as most laws have none."""
    span = max(times[-1] - times[0], 1.0) * HORIZON
    if not np.any(law.covariance):
        return np.inf  # a Dirac stays one
    if _time_to_infinity(slope, law, span, ROUGHLY) == np.inf:
        return np.inf
    return float(times[0] + _time_to_infinity(slope, law, span, RELATIVE))


def _time_to_infinity(slope: Slope, law: GaussianLaw, span: float, tolerance: float) -> float:
    """From the clock in which the covariance grows exponentially; infinity if it takes longer than `span`."""
    d, size = len(law.mean), float(np.trace(law.covariance))

    def trace(y: np.ndarray) -> float:
        return float(np.trace(y[1 + d :].reshape(d, d)))

    def clocked(_: float, y: np.ndarray) -> np.ndarray:
        return np.concatenate([[1.0], slope(y[0], y[1:])]) / (1 + max(trace(y), 0.0) / size)

    def grown(_: float, y: np.ndarray) -> float:
        return np.log(max(trace(y), 1e-300) / size) - np.log(BLOWN_UP)

    def late(_: float, y: np.ndarray) -> float:
        return y[0] - span

    grown.terminal = late.terminal = True  # pyright: ignore[reportFunctionMemberAccess]
    start = np.concatenate([[0.0], _packed(law)])
    with np.errstate(over="ignore", invalid="ignore"):
        found = integrate.solve_ivp(
            clocked, (0, np.inf), start, "DOP853", rtol=tolerance, atol=ABSOLUTE, events=(grown, late)
        )
    if found.status < 0:
        raise RunError(f"could not look for a blow-up of the covariance: {found.message}")
    if found.t_events[0].size == 0:
        return np.inf
    end = found.y[:, -1]
    left = trace(end) / trace(np.concatenate([[0.0], slope(end[0], end[1:])]))
    return end[0] + left if 0 < left < MOMENT * end[0] else np.inf


def _integrated(slope: Slope, start: np.ndarray, times: np.ndarray) -> np.ndarray:
    if len(times) == 1:
        return start[None]
    with np.errstate(over="ignore", invalid="ignore"):  # a trial step too long; it is not accepted
        found = integrate.solve_ivp(
            slope, (times[0], times[-1]), start, "DOP853", times, rtol=RELATIVE, atol=ABSOLUTE
        )
    if not found.success:
        raise RunError(f"could not follow the Gaussian law to t = {times[-1]:g}: {found.message}")
    return found.y.T
