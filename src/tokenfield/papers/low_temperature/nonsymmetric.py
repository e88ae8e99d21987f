"""Beyond the paper: D = V Bᵀ that is not symmetric, as in trained heads (theory §2.8).

From the orbits e^{Dτ}x: a real dominant eigenvalue takes tokens to the oblique spectral projection, not to
the orthogonal one; a complex pair makes them circulate on a great circle with a period that is an integral; a
defective eigenvalue lets them come to rest only like 1/t.
"""

from dataclasses import dataclass

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import tokenfield as tkf
from tokenfield.measure.target import rms_angle
from tokenfield.papers.low_temperature import worked
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, at_least, at_most, near

ORBITS = "theory §2.8: orbits of e^(Dτ)"
#: Columns are the (generalised) eigenvectors; far from orthogonal.
BASIS = np.array([[1.0, 0.6, 0.2], [0.3, 1.0, -0.3], [0.1, 0.2, 1.0]])
#: Not symmetric either, and well conditioned.
B = np.array([[1.0, 0.4, 0.0], [-0.2, 1.2, 0.3], [0.1, 0.0, 0.8]])
BLOCKS = {
    "fixed": np.diag([1.0, 0.4, 0.1]),
    "rotating": np.array([[0.5, -1.0, 0.0], [1.0, 0.5, 0.0], [0.0, 0.0, 0.0]]),
    "algebraic": np.array([[0.5, 0.6, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.0]]),
}


def weights_of(kind: str) -> tkf.AttentionWeights:
    """B and V with V Bᵀ = S·block·S⁻¹."""
    D = BASIS @ BLOCKS[kind] @ np.linalg.inv(BASIS)
    return tkf.AttentionWeights(B, D @ np.linalg.inv(B).T)


@dataclass(frozen=True, eq=False)
class Seen:
    """A run of one kind, the curve measured on it, and the law (with its name) that it ends with."""

    kind: str
    run: tkf.Trajectory
    curve: np.ndarray
    label: str
    law: np.ndarray
    name: str


def run(quick: bool, progress: Progress) -> Result:
    """The recipe."""
    tokens = worked.sphere_tokens(800 if quick else 5000)
    seen, checks = [], []
    for k, (kind, follow) in enumerate(
        (("fixed", _fixed), ("rotating", _rotating), ("algebraic", _algebraic))
    ):
        progress(k / 4, kind)
        weights = weights_of(kind)
        ts = np.linspace(0, 60, 241) if kind != "algebraic" else np.append(0, np.logspace(-1, 3.5, 91))
        found, more = follow(weights, worked.run(weights, np.inf, tokens, ts))
        seen.append(found)
        checks += more
    progress(0.75, "fixed, β = 100")
    checks.append(_warm(quick))
    data = xr.Dataset(
        {
            name: (f"time_{s.kind}", values)
            for s in seen
            for name, values in (
                (f"curve_{s.kind}", s.curve),
                (f"time_{s.kind}", np.asarray(s.run.snapshot_ts)),
            )
        }
    )
    rows = [{"kind": s.kind, "note": tkf.theory.limit(weights_of(s.kind)).note} for s in seen]
    return Result(checks, rows, data, figure(seen))


RECIPE = Recipe(
    "nonsymmetric", "V Bᵀ not symmetric: fixed, rotating and defective, predicted against simulated", run
)


def _fixed(weights: tkf.AttentionWeights, found: tkf.Trajectory) -> tuple[Seen, list[Check]]:
    where = tkf.theory.limit(weights)
    curve = worked.distances(found, where)
    start = found.tokens(0)
    beside = where.basis @ (where.basis.T @ np.asarray(start.x).T)
    # every token on its side of the line, in the middle: rounding would make many atoms
    ends = np.sign(where.basis.T @ beside).T * where.basis.T
    orthogonal = tkf.Tokens(ends, start.weights)
    ts = np.asarray(found.snapshot_ts)
    late = (ts > 20) & (curve > 1e-6)
    rate = tkf.theory.concentration_rates(weights).approach
    checks = [
        at_most("fixed: W2 to the oblique projection in the end", curve[-1], 1e-4, ORBITS),
        at_least(
            "fixed: W2 to the orthogonal projection in the end",
            tkf.wasserstein(found.tokens(-1), orthogonal).lower,
            0.1,
            "orthogonal and oblique projection differ for this D",
        ),
        near(
            "fixed: rate in the end",
            tkf.fit_rate(ts[late], curve[late], model="exponential").rate,
            rate,
            "theory §2.3: c, for a finite number of tokens",
            relative=0.02,
        ),
    ]
    return Seen("fixed", found, curve, "W2 to Π♯ρ0", *_exponential(ts, curve, rate)), checks


def _exponential(ts: np.ndarray, curve: np.ndarray, rate: float) -> tuple[np.ndarray, str]:
    """e^{−rate·t} through the curve's middle, and its name."""
    middle = len(ts) // 2
    return curve[middle] * np.exp(-rate * (ts - ts[middle])), f"rate {rate:.3g}, predicted"


def _rotating(weights: tkf.AttentionWeights, found: tkf.Trajectory) -> tuple[Seen, list[Check]]:
    where = tkf.theory.limit(weights)
    ts = np.asarray(found.snapshot_ts)
    to_E = found.measure(lambda tokens: rms_angle(tokens, where.basis))
    # the turn of every token within E, from t = 30 on; half a turn takes x to −x, so count by halves
    inside = found.x @ where.basis
    turn = np.unwrap(np.arctan2(inside[..., 1], inside[..., 0]), axis=0)
    late = ts >= 30
    turns = np.abs(turn - turn[late][0])[late] / (2 * np.pi)
    period = np.median([_time_of(ts[late], column, 3) / 3 for column in turns.T[:200]])
    tau, turn_time = where.period or (np.nan, None)
    predicted = np.nan if turn_time is None else turn_time
    # over half turns τ grows in proportion to t
    rate, halves = where.gap * tau / predicted, int(2 * ts[-1] / predicted)
    first, last = (k * predicted / 2 for k in (halves // 3, halves))
    high, low = np.interp([first, last], ts, np.log(to_E))
    checks = [
        at_most("rotating: rms angle to the circle in the end", to_E[-1], 1e-3, ORBITS),
        near("rotating: period", float(period), predicted, f"{ORBITS}: ∮|Bᵀx|dτ", relative=0.002),
        near(
            "rotating: rate of approach to the circle",
            (high - low) / (last - first),
            rate,
            f"{ORBITS}: the gap of the real parts, per unit of τ",
            relative=0.01,
        ),
    ]
    return Seen("rotating", found, to_E, "rms angle to E", *_exponential(ts, to_E, rate)), checks


def _time_of(ts: np.ndarray, turns: np.ndarray, count: int) -> float:
    """Time after ts[0] at which so many turns are complete; NaN if never."""
    return float(np.interp(count, turns, ts, right=np.nan) - ts[0])


def _algebraic(weights: tkf.AttentionWeights, found: tkf.Trajectory) -> tuple[Seen, list[Check]]:
    where = tkf.theory.limit(weights)
    end = where.push(found.tokens(0)).x
    # the median: the few tokens that begin near the eigenvector, and must turn round, come one by one
    curve = found.measure(lambda tokens: float(np.median(tkf.sphere.distance(tokens.x, end))))
    ts = np.asarray(found.snapshot_ts)
    late = ts > 100
    fit = tkf.fit_rate(ts[late], curve[late], model="power")
    # x ∝ s1(a + νbτ) + s2 b: off by |P s2|/(ντ|s1|), and t = |Bᵀp|τ
    first, second = BASIS[:, 0], BASIS[:, 1]
    p = first / np.linalg.norm(first)
    across = np.linalg.norm(second - (second @ p) * p) / np.linalg.norm(first)
    amplitude = across * np.linalg.norm(B.T @ p) / BLOCKS["algebraic"][0, 1]
    checks = [
        near("defective: exponent in t", fit.power, -1.0, f"{ORBITS}: like 1/t", absolute=0.02),
        near(
            "defective: t · median angle in the end",
            ts[-1] * curve[-1],
            float(amplitude),
            f"{ORBITS}: |P s2||Bᵀp|/(ν|s1|)",
            relative=0.01,
        ),
    ]
    law = amplitude / np.maximum(ts, 0.3)
    return Seen(
        "algebraic", found, curve, "median angle to Π(x0)", law, f"{amplitude:.4g}/t, predicted"
    ), checks


def _warm(quick: bool) -> Check:
    """At a finite temperature tokens come nearer to the oblique law than to the orthogonal one."""
    weights = weights_of("fixed")
    where = tkf.theory.limit(weights)
    found = worked.run(weights, 100.0, worked.sphere_tokens(800 if quick else 2400), np.linspace(0, 12, 49))
    start = np.asarray(found.x[0]) @ where.basis
    # both laws live on ±p and differ in which tokens go where: count those on the wrong side
    best = int(np.argmin(worked.distances(found, where)))
    side = np.sign(np.asarray(found.x[best]) @ where.basis)[:, 0]
    oblique = np.sign(np.asarray(where.push(found.tokens(0)).x) @ where.basis)[:, 0]
    wrong = float(found.weights @ (side != oblique))
    naive = float(found.weights @ (side != np.sign(start[:, 0])))
    name = "fixed, β = 100: mass on the wrong side, over that by the orthogonal projection"
    source = "theory §2.8 with §2.4: softmax follows the zero-temperature flow"
    return at_most(name, wrong / naive, 0.2, source)


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(seen: list[Seen]) -> Figure:
    """For each kind the tokens at three times and its curve."""
    drawing = Figure(figsize=(10.5, 9.0), layout="constrained")
    grid = drawing.subplots(3, 4, width_ratios=(1, 1, 1, 1.9))
    for row, each in zip(grid, seen, strict=True):
        ts = np.asarray(each.run.snapshot_ts)
        where = tkf.theory.limit(weights_of(each.kind))
        end = each.run.x[0] if each.kind == "rotating" else where.push(each.run.tokens(0)).x
        side = (np.asarray(end) @ where.basis[:, 0] > 0).astype(int)
        for ax, k in zip(row, (0, int(np.argmin(np.abs(ts - 5))), len(ts) - 1), strict=False):
            title = f"{each.kind}, t = {ts[k]:.3g}"
            tkf.figures.snapshot(each.run.tokens(k), ax=ax, colour=side, title=title)
            ax.title.set_fontsize(10)
        shown = ts > 0
        draw = row[3].loglog if each.kind == "algebraic" else row[3].semilogy
        draw(ts[shown], each.curve[shown], color=tkf.figures.PALETTE[0], label="measured")
        draw(ts[shown], each.law[shown], color="0", linewidth=1.2, linestyle=(0, (3, 2)), label=each.name)
        if each.kind == "fixed":  # positions on E are not corrected by the flow, distances to E are
            row[3].axhline(
                worked.SOLVER.rtol,
                color="0.6",
                linewidth=1.2,
                linestyle=(0, (1, 2)),
                label="tolerance of the steps",
            )
        row[3].legend(fontsize=9)
        row[3].set_ylim(top=4)
        row[3].set(xlabel="t", ylabel=each.label)
    drawing.supxlabel(
        "colours: to which end ±p a token goes (rotating: on which side it began);"
        " diamond: the mean of all tokens",
        fontsize=10,
    )
    return drawing
