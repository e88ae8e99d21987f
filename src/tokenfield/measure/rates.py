"""Rates from measured curves: how fast something decays, and the constants of the low-temperature bound.

Both fit logarithms, so that every point of a curve over many decades counts alike. Measured curves are
smooth, their residuals hang together from point to point, and the textbook intervals of least squares are
then far too narrow. Here one thing serves for the choice of the law and for the intervals: leave out one
contiguous block of the curve after another, and look how well the rest predicts it and how much the
constants move.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from scipy import special

from tokenfield.errors import as_number, require
from tokenfield.laws.tokens import as_real
from tokenfield.measure.bound_surface import fit_surface, least_above, terms

RateModel = Literal["exponential", "power", "exponential-power"]

#: A law with two constants that fits to this (rms of the log) is not given a third.
CLOSE_MISFIT = 1e-3
#: The third constant must bring the squared error of prediction below this fraction of what it was.
MAX_ERROR_RATIO = 0.75
#: Contiguous blocks of the curve left out in turn, and the fewest points that allow it.
JACKKNIFE_BLOCKS, MIN_POINTS = 8, 8


@dataclass(frozen=True)
class Fit:
    """values ≈ amplitude · t^power · e^{−rate·t}; see `fit_rate`.

    `rate` and `interval` are 0 for the model "power", `power` and `power_interval` for "exponential" (a
    curve like t^{−q} has power −q). `log_amplitude`: of the amplitude, which may itself be out of range.
    `misfit`: root mean square of the residuals of log values.
    """

    model: RateModel
    rate: float
    interval: tuple[float, float]
    power: float
    power_interval: tuple[float, float]
    log_amplitude: float
    misfit: float
    level: float

    @property
    def amplitude(self) -> float:
        """Of the law at t = 1 without its exponential; 0 or infinite if that is out of range."""
        with np.errstate(over="ignore", under="ignore"):
            return float(np.exp(self.log_amplitude))

    def predict(self, ts: ArrayLike) -> Float[np.ndarray, "times"]:
        """The fitted law at other times."""
        ts = np.asarray(ts, dtype=float)
        power = self.power * np.log(ts) if self.power != 0 else 0.0
        return np.exp(self.log_amplitude + power - self.rate * ts)


def fit_rate(ts: ArrayLike, values: ArrayLike, model: RateModel | None = None, level: float = 0.95) -> Fit:
    """Fit A e^{−rt}, A t^q or A t^q e^{−rt} to a positive curve.

    Of the first two the one that better predicts left-out blocks of the curve is taken. The third is taken
    only if the better of them misses the data by more than 0.1% and the extra constant lowers the squared
    error of prediction by a quarter or more. Intervals come from leaving out each of 8 contiguous blocks (the
    jackknife, with Student's t for the number of blocks): honest for residuals that hang together over less
    than a block. A transient inside the window is not noise and no interval covers it: choose the window, and
    see whether the rate stays when it shrinks.

    Args:
        ts: increasing times, (times,), at least 8; positive unless the model is "exponential".
        values: the curve, (times,), positive.
        model: which of the laws to fit, "exponential", "power" or "exponential-power"; chosen if left out.
        level: of the intervals, between 0 and 1.

    Returns: rate, power and amplitude, with intervals.
    """
    ts, values = _curve(ts, values)
    require(
        model is None or model in get_args(RateModel),
        "model",
        "be one of " + ", ".join(get_args(RateModel)),
        repr(model),
    )
    level = as_number(level, "level")
    require(0 < level < 1, "level", "lie between 0 and 1", level)
    if model != "exponential":
        require(bool(ts[0] > 0), "ts", "be positive, for t^q (or choose model='exponential')", ts[0])
    logs = np.log(values)
    chosen = model if model is not None else _choose(ts, logs)
    return _fit(chosen, ts, logs, level)


class Slack(NamedTuple):
    """How far a bound lies above the data: largest and median of bound/data."""

    largest: float
    median: float


@dataclass(frozen=True)
class BoundFit:
    """W ≤ C1 √(log(β+1)/β) e^{Ct} + C2 e^{−ct}; see `fit_bound`.

    `C1`, `C2`, `C`, `c`: of the bound. `fitted`: C1 and C2 of the best fit, which runs through the data
    instead of above them, and `misfit` its rms of log W. `slack`: of the bound. `holds`: whether the bound,
    evaluated again, lies above every point (to rounding).
    """

    C1: float
    C2: float
    C: float
    c: float
    fitted: tuple[float, float]
    misfit: float
    slack: Slack
    holds: bool

    def bound(self, betas: ArrayLike, ts: ArrayLike) -> Float[np.ndarray, "betas times"]:
        """The right-hand side for every β and t, also others than those fitted."""
        grow, fall = terms(_vector(betas, "betas"), _vector(ts, "ts"), self.C, self.c)
        return self.C1 * grow + self.C2 * fall


def fit_bound(betas: ArrayLike, ts: ArrayLike, W: ArrayLike) -> BoundFit:
    """Constants of the theorem W(μ_t^β, Π♯ρ0) ≤ C1 √(log(β+1)/β) e^{Ct} + C2 e^{−ct} from measurements.

    First the surface is fitted by least squares in log W with C, c ≥ 0. Then, with those C and c, the bound
    is the pair C1, C2 that lies above every point and is least in the mean of bound/W, so it touches the
    data. With such constants the inequality always holds on the data it was made from; what says something is
    the slack, and whether `bound` also covers other β. Leave out late times where W has levelled off at its
    greatest value: e^{Ct} does not. The constants have no intervals: where one term nowhere leads its
    constants mean little, and noise of a few per cent may change C and c by factors.

    Args:
        betas: different β, (betas,), positive; infinity allowed.
        ts: times, (times,), finite and at least 0.
        W: distances, (betas, times), positive; NaN where not measured. At least 8, of two β and three times.

    Returns: the constants of the bound and of the fit, and the slack.
    """
    betas, ts, W, known = _surface(betas, ts, W)
    # in units of the length and the size of the data, and with t from the first time on
    begin, length, size = float(ts.min()), float(np.ptp(ts)), float(np.exp(np.median(np.log(W[known]))))
    within, W = (ts - begin) / length, W / size
    (first, second, C, c), misfit = fit_surface(betas, within, W, known)
    grow, fall = (term[known] for term in terms(betas, within, C, c))
    C1, C2 = least_above(grow, fall, W[known])
    ratio = (C1 * grow + C2 * fall) / W[known]
    slack = Slack(float(ratio.max()), float(np.median(ratio)))
    C, c = C / length, c / length
    with np.errstate(over="ignore"):
        back, forth = size * np.exp(-C * begin), size * np.exp(c * begin)
    require(bool(np.isfinite(forth)), "ts", "begin near 0, where the bound's constants are defined", begin)
    return BoundFit(
        float(C1 * back),
        float(C2 * forth),
        C,
        c,
        (float(first * back), float(second * forth)),
        misfit,
        slack,
        bool(np.all(ratio >= 1 - 1e-12)),
    )


def _surface(
    betas: ArrayLike, ts: ArrayLike, W: ArrayLike
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The arguments of `fit_bound` as arrays, checked, and where W was measured."""
    betas, ts = _vector(betas, "betas"), _vector(ts, "ts")
    different = len(np.unique(betas)) == len(betas)
    require(different and bool(np.all(betas > 0)), "betas", "be positive and different", betas.tolist())
    require(bool(np.all((ts >= 0) & (ts < np.inf))), "ts", "be finite and at least 0", ts.tolist())
    W = np.asarray(as_real(np.asarray(W), "W"))
    require(
        W.shape == (len(betas), len(ts)),
        "W",
        f"have shape ({len(betas)}, {len(ts)}), β by t",
        f"of shape {W.shape}",
    )
    known = ~np.isnan(W)
    require(
        bool(np.all((W[known] > 0) & (W[known] < np.inf))),
        "W",
        "be positive and finite, or NaN",
        W[known].min() if known.any() else "empty",
    )
    rows, columns = int(np.sum(known.any(axis=1))), len(np.unique(ts[known.any(axis=0)]))
    require(
        rows >= 2 and columns >= 3 and np.sum(known) >= MIN_POINTS,
        "W",
        f"have at least {MIN_POINTS} measurements, of 2 values of β or more and 3 different times or more",
        f"with {np.sum(known)}, {rows} and {columns}",
    )
    return betas, ts, W, known


def _curve(ts: ArrayLike, values: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    ts, values = _vector(ts, "ts"), _vector(values, "values")
    require(
        len(ts) == len(values), "values", f"have one entry per time, {len(ts)}", f"of length {len(values)}"
    )
    require(len(ts) >= MIN_POINTS, "ts", f"have at least {MIN_POINTS} entries", f"of length {len(ts)}")
    require(
        bool(np.all(np.isfinite(ts))) and bool(np.all(np.diff(ts) > 0)),
        "ts",
        "be finite and increasing",
        "not",
    )
    good = (values > 0) & (values < np.inf)
    require(bool(np.all(good)), "values", "be positive and finite to have a logarithm", values[~good][:1])
    return ts, values


def _vector(value: ArrayLike, name: str) -> np.ndarray:
    array = np.asarray(as_real(np.asarray(value), name))
    require(array.ndim == 1, name, "be a list of numbers", f"of shape {array.shape}")
    return array


class _Design(NamedTuple):
    """Columns 1, −t and log t, as the law has them; the last two shifted and scaled to lie around 0."""

    rows: np.ndarray
    shift: np.ndarray
    scale: np.ndarray

    def constants(self, solved: np.ndarray) -> np.ndarray:
        """Log of the amplitude, rate and power from the coefficients of these columns."""
        rest = solved[..., 1:] / self.scale
        return np.concatenate([solved[..., :1] - rest @ self.shift[:, None], rest], axis=-1)


def _design(model: RateModel, ts: np.ndarray) -> _Design:
    columns = []
    if model != "power":
        columns.append(-ts)
    if model != "exponential":
        columns.append(np.log(ts))
    raw = np.stack(columns, axis=1)
    shift = raw.mean(axis=0)
    scale = np.max(np.abs(raw - shift), axis=0)
    return _Design(np.concatenate([np.ones((len(ts), 1)), (raw - shift) / scale], axis=1), shift, scale)


def _solve(design: np.ndarray, logs: np.ndarray) -> np.ndarray:
    return np.linalg.lstsq(design, logs, rcond=None)[0]


def _left_out(n: int) -> list[Bool[np.ndarray, "n"]]:
    """Masks of the contiguous blocks."""
    blocks = min(JACKKNIFE_BLOCKS, n // 2)
    block = np.arange(n) * blocks // n
    return [block == k for k in range(blocks)]


def _prediction_error(model: RateModel, ts: np.ndarray, logs: np.ndarray) -> float:
    """Mean square by which each block is missed by the law fitted to the others."""
    design = _design(model, ts).rows
    missed = [design[out] @ _solve(design[~out], logs[~out]) - logs[out] for out in _left_out(len(ts))]
    return float(np.mean(np.concatenate(missed) ** 2))


def _choose(ts: np.ndarray, logs: np.ndarray) -> RateModel:
    error = {model: _prediction_error(model, ts, logs) for model in get_args(RateModel)}
    simple: RateModel = "exponential" if error["exponential"] <= error["power"] else "power"
    design = _design(simple, ts).rows
    misfit = np.sqrt(np.mean((design @ _solve(design, logs) - logs) ** 2))
    if misfit > CLOSE_MISFIT and error["exponential-power"] < MAX_ERROR_RATIO * error[simple]:
        return "exponential-power"
    return simple


def _fit(model: RateModel, ts: np.ndarray, logs: np.ndarray, level: float) -> Fit:
    design = _design(model, ts)
    solved = _solve(design.rows, logs)
    best = design.constants(solved)
    blocks = _left_out(len(ts))
    others = design.constants(np.stack([_solve(design.rows[~out], logs[~out]) for out in blocks]))
    g = len(blocks)
    deviation = np.sqrt((g - 1) / g * np.sum((others - best) ** 2, axis=0))
    reach = special.stdtrit(g - 1, (1 + level) / 2) * deviation
    low, high = best - reach, best + reach

    def pick(column: int) -> tuple[float, tuple[float, float]]:
        return float(best[column]), (float(low[column]), float(high[column]))

    nothing = (0.0, (0.0, 0.0))
    rate, interval = nothing if model == "power" else pick(1)
    power, power_interval = nothing if model == "exponential" else pick(-1)
    misfit = float(np.sqrt(np.mean((design.rows @ solved - logs) ** 2)))
    return Fit(model, rate, interval, power, power_interval, float(best[0]), misfit, level)
