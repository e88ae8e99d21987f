"""Where every token ends: in the dominant eigenspace of V, not of V Bᵀ, be they simple or double.

Once clusters are narrower than β^{−1/2} each moves by y' = P_y V y (theory §2.6). It leaves E at the top of V
minus V's Rayleigh quotient on E, and comes to the dominant eigenspace of V at the gap of V.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import tokenfield as tkf
from tokenfield.measure.target import angle_to
from tokenfield.models.attention import SoftmaxAttention
from tokenfield.papers import declared
from tokenfield.papers.low_temperature import worked
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, near
from tokenfield.sweeps.grid import Grid
from tokenfield.sweeps.objects import declare_runs

if TYPE_CHECKING:
    from tokenfield.measure.phases import Phases

MECHANISM = "theory §2.6: clusters move by y' = P_y V y"
#: A token this close to the dominant eigenspace of V has ended there.
ENDED = 0.05


@dataclass(frozen=True)
class TerminalCase:
    """Diagonal B and V, a temperature, and how many tokens stand for the law."""

    name: str
    B: tuple[float, ...]
    V: tuple[float, ...]
    beta: float
    n: int
    last: float

    @property
    def weights(self) -> tkf.AttentionWeights:
        """B and V."""
        return tkf.AttentionWeights(np.diag(self.B), np.diag(self.V))

    def tokens(self) -> tkf.Tokens:
        """A law without symmetry."""
        return worked.circle_tokens(self.n) if len(self.B) == 2 else worked.sphere_tokens(self.n, len(self.B))


CASES = (
    TerminalCase("d = 2", (0.5, 2), (1, 0.5), 1000, 600, 55),
    TerminalCase("d = 3", (0.5, 2, 1), (1, 0.5, 0.2), 50, 800, 40),
    TerminalCase("d = 3, E a plane", (2, 2, 0.3), (0.5, 0.5, 1), 50, 800, 40),
    TerminalCase("d = 3, V's a plane", (0.3, 0.3, 2), (1, 1, 0.5), 50, 800, 40),
    TerminalCase("d = 8", (0.5, 2, 1, 1, 1, 1, 1, 1), (1, 0.5, 0.3, 0.3, 0.2, 0.2, 0.1, 0.1), 10, 600, 40),
)


@dataclass(frozen=True, eq=False)
class Ended:
    """A case, its run and its phases."""

    case: TerminalCase
    run: tkf.Trajectory
    phases: "Phases"

    @property
    def share(self) -> float:
        """Mass that is within 0.05 of the dominant eigenspace of V in the end."""
        end = self.run.tokens(-1)
        V = tkf.theory.dominant(np.asarray(self.case.weights.V))
        return float(np.asarray(end.weights) @ (angle_to(end, V.basis) < ENDED))


def grid(cases: Sequence[TerminalCase]) -> Grid:
    """The sweep of the cases to their ends."""
    return declare_runs(
        [SoftmaxAttention(case.weights, float(case.beta)) for case in cases],
        [case.tokens() for case in cases],
        [np.linspace(0, case.last, int(4 * case.last) + 1) for case in cases],
        worked.SOLVER,
        measure=(),
        snapshots=None,
        summation="direct",
        together=True,
    )


def ended(cases: Sequence[TerminalCase], found: xr.Dataset) -> list[Ended]:
    """The runs of the sweep with their phases."""
    return [
        Ended(case, each, tkf.phases(each, case.weights))
        for case, each in zip(cases, declared.runs(found), strict=True)
    ]


def checks(ended: Ended) -> list[Check]:
    """All mass in V's dominant eigenspace; on the circle also the rates of leaving and of arriving."""
    name, weights = ended.case.name, ended.case.weights
    found = [
        near(
            f"mass that ends in V's dominant eigenspace, {name}",
            ended.share,
            1.0,
            f"{worked.PAPER}, experiments; {MECHANISM}",
            absolute=1e-6,
        )
    ]
    if weights.d > 2:
        return found
    arrive, leave = ended.phases.get("terminal"), ended.phases.get("escape")
    gap = tkf.theory.dominant(np.asarray(weights.V)).gap
    arrived = np.nan if arrive is None or arrive.rate is None else arrive.rate
    left = np.nan if leave is None or leave.rate is None else leave.rate
    return [
        *found,
        near(
            f"growth of W2 in the escape, {name}",
            left,
            worked.leaving_rate(weights),
            f"{MECHANISM}: top of V − ⟨p, Vp⟩, as β → ∞",
            relative=0.1,
        ),
        near(f"rate of arrival at ±e1, {name}", arrived, gap, f"{MECHANISM}: the gap of V", relative=0.05),
    ]


def _cases(quick: bool) -> Sequence[TerminalCase]:
    """More tokens and a lower temperature in the full size."""
    bigger = [TerminalCase(c.name, c.B, c.V, 2 * c.beta, 5 * c.n // 2, c.last + 10) for c in CASES]
    return CASES if quick else bigger


def run(quick: bool, progress: Progress, swept: Mapping[str, xr.Dataset]) -> Result:
    """Run the recipe and judge what it finds.

    Args:
        quick: whether the smaller size is wanted.
        progress: called with the share done and what is being done.
        swept: datasets of the declared sweeps, by name.
    """
    progress(0.0, "phases")
    all_ended = ended(_cases(quick), swept["cases"])
    found = [check for ended in all_ended for check in checks(ended)]
    return Result(found, _table(all_ended), _data(all_ended), figure(all_ended))


RECIPE = Recipe(
    "terminal",
    "where every token ends, d = 2, 3 and 8, simple and double top eigenvalues of V and V Bᵀ",
    run,
    lambda quick: {"cases": grid(_cases(quick))},
)


def _table(all_ended: list[Ended]) -> list[dict[str, str | float]]:
    rows: list[dict[str, str | float]] = []
    for ended in all_ended:
        for phase in ended.phases.found:
            rows.append(
                {
                    "case": ended.case.name,
                    "beta": ended.case.beta,
                    "phase": phase.name,
                    "start": phase.start,
                    "stop": phase.stop,
                    "rate": "" if phase.rate is None else phase.rate,
                    "angle to E": phase.to_limit,
                    "angle to V's": phase.to_end,
                    "clusters": phase.clusters,
                }
            )
    return rows


def _data(all_ended: list[Ended]) -> xr.Dataset:
    variables = {}
    for k, ended in enumerate(all_ended):
        time = f"time_{k}"
        seen = {"distance": ended.phases.distance, "to_E": ended.phases.to_limit, "to_V": ended.phases.to_end}
        variables |= {f"{name}_{k}": (time, values) for name, values in seen.items()}
        variables[time] = (time, ended.phases.ts)
    notes = {f"case_{k}": ended.case.name for k, ended in enumerate(all_ended)}
    return xr.Dataset(variables, attrs=notes)


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(all_ended: list[Ended]) -> Figure:
    """For every case the tokens in the start, when closest to Π♯ρ0, and at the end; the angles below."""
    count = len(all_ended)
    drawing = Figure(figsize=(2.3 * count + 0.6, 9.2), layout="constrained")
    grid = drawing.subplots(4, count, height_ratios=(1, 1, 1, 1.15), squeeze=False)
    for column, ended in zip(grid.T, all_ended, strict=True):
        ts = ended.phases.ts
        middle = int(np.argmin(ended.phases.distance))
        side = _side(ended)
        for ax, k, name in zip(column, (0, middle, -1), ("start", "closest", "end"), strict=False):
            title = f"{name}, t = {ts[k]:.3g}"
            if k == 0:
                seen = ", principal directions" * (ended.run.tokens(0).d > 3)
                title = f"{ended.case.name}{seen}\n{title}"
            tkf.figures.snapshot(ended.run.tokens(k), ax=ax, colour=side, title=title)
            ax.set_xlabel("")
            ax.title.set_fontsize(10)
        ax = column[3]
        ax.plot(ts, ended.phases.to_limit, color=tkf.figures.PALETTE[0], label="to that of V Bᵀ")
        ax.plot(
            ts,
            ended.phases.to_end,
            color=tkf.figures.PALETTE[1],
            linestyle=tkf.figures.DASHES[1],
            label="to that of V",
        )
        ax.set(xlabel="t", ylim=(0, 1.65))
    grid[3, 0].set_ylabel("angle to dominant\neigenspace (rms)")
    for ax in grid[3, 1:]:
        ax.set_yticklabels([])
    handles, labels = grid[3, 0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower center", ncols=2, title=worked.KEY, title_fontsize=10)
    return drawing


def _side(ended: Ended) -> np.ndarray:
    """Which side of E^⊥ a token begins on, as a colour."""
    leading = int(np.argmax(np.multiply(ended.case.B, ended.case.V)))
    return (np.asarray(ended.run.x[0, :, leading]) > 0).astype(int)
