"""Cells that are runs of `density.solve`, one at a time.

A run that its resolution did not hold is done, not failed: the numbers are there, `resolved` is 0 and the
status says from when on they are doubtful. One that stops before its last time has failed.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tokenfield.config.densities import DensityDomain, DensityRunSettings, InitialDensity, density_on
from tokenfield.config.measures import bind, check_measures
from tokenfield.config.reading import parse_as
from tokenfield.config.section import Section
from tokenfield.config.sections import ModelSettings, NoiseSettings, Times, WeightsSettings
from tokenfield.density.mean_field import solve
from tokenfield.density.result import DensityTrajectory
from tokenfield.errors import require, require_increasing
from tokenfield.laws.tokens import Continuum, Moments, Tokens
from tokenfield.measure.free_energy import check_climbs
from tokenfield.models.base import Model
from tokenfield.registry import find
from tokenfield.runs.axes import axes
from tokenfield.runs.times import kept_indices
from tokenfield.sweeps.protocol import FileKind
from tokenfield.sweeps.result import CellResult


class MeanField(Section):
    """A whole run."""

    weights: WeightsSettings
    model: ModelSettings
    density: DensityDomain
    initial: InitialDensity
    times: Times
    run: DensityRunSettings = DensityRunSettings()
    noise: NoiseSettings | None = None

    def arguments(self) -> dict[str, Any]:
        """The settings as arguments of `density.solve`, every object built."""
        model, d = self.model.build(self.weights.build()), getattr(self.initial, "d", None)
        require(
            d in (None, model.d),
            "initial",
            f"have the dimension {model.d} of the model",
            d,
        )
        return {
            "model": model if self.noise is None else model + self.noise.build(),
            "rho0": self._rho0(),
            "ts": self.times.build(),
            "domain": self.density.build(),
        }

    def check(self) -> None:
        """Refuse what can be seen without building the model."""
        self.density.build()
        density_on(self.density, self.initial)
        times = self.times.build()
        require_increasing(times, "times")
        kept_indices(self.run.snapshots, len(times))
        check_measures(self.run.measure, self.model)

    def _rho0(self) -> Callable[[np.ndarray], np.ndarray]:
        law = density_on(self.density, self.initial)

        def rho0(places: np.ndarray) -> np.ndarray:
            values = law(places)
            least = float(values.min())
            require(least >= 0, "initial", "be a density, at least 0 everywhere", f"{least:g} somewhere")
            return values

        return rho0


class DensityCells(FileKind):
    """Runs of `density.solve`."""

    sections = ("weights", "model", "noise", "density", "initial", "times", "run")
    whole: type[Section] | None = MeanField

    def check(self, settings: dict[str, Any]) -> MeanField:
        """The settings, parsed."""
        config = parse_as(MeanField, settings)
        config.check()
        return config

    def build(self, config: MeanField) -> None:
        """The run at its first time: a domain refuses what it cannot do, and takes no step."""
        arguments = config.arguments()
        if any("climbs" in find("measure", name).facts["needs"] for name in config.run.measure):
            check_climbs(arguments["model"].drift)
        solve(**arguments | {"ts": arguments["ts"][:1]}, strict=False)

    def estimated_bytes(self, config: MeanField) -> int:
        """Bytes of the times, measurements and snapshots of a cell, roughly."""
        times, kept = len(config.times.build()), len(config.run.snapshots)
        nodes = config.density.size or 0
        return 1000 + 8 * times * (1 + 2 * len(config.run.measure)) + 8 * 4 * kept * nodes

    def run_one(self, config: MeanField, time_limit: float | None) -> CellResult:
        """One run."""
        began = time.monotonic()
        arguments = config.arguments()
        run = solve(**arguments, strict=False, time_limit=time_limit)
        arrays = {"time": run.ts}
        arrays |= {name: _measured(name, run, arguments["model"]) for name in config.run.measure}
        names = {
            name: ("time",) if name == "time" else axes(name, values.ndim) for name, values in arrays.items()
        }
        if config.run.snapshots:
            arrays |= _snapshots(run, kept_indices(config.run.snapshots, len(arguments["ts"])))
            names |= {
                "snapshot": ("snapshot",),
                "nodes": ("snapshot", "node", "coordinate"),
                "rho": ("snapshot", "node"),
                "masses": ("snapshot", "node"),
            }
        counts = {"steps": int(run.stats["steps"]), "resolved": int(run.resolved)}
        return CellResult(run.status, run.complete, arrays, names, counts, time.monotonic() - began)


def _snapshots(run: DensityTrajectory, kept: np.ndarray) -> dict[str, np.ndarray]:
    """Nodes, density and masses at the times kept, as far as the run got."""
    kept = kept[kept < len(run.ts)]
    nodes = run.nodes[kept] if run.domain.moving else np.repeat(run.nodes[None], len(kept), axis=0)
    # angles and heights are places with one coordinate, so that cells of several domains fit together
    nodes = nodes if nodes.ndim == 3 else nodes[..., None]
    return {
        "snapshot": run.ts[kept],
        "nodes": nodes,
        "rho": run.density[kept],
        "masses": run.masses[kept],
    }


class _At(Continuum):
    """The law at one time of a run: diagnostics take it as they take tokens."""

    run: DensityTrajectory
    at: int

    def tokens(self, k: int = -1) -> Tokens:
        """As tokens."""
        return self.run.tokens(self.at)

    def moments(self, k: int = -1) -> Moments:
        """The first two."""
        return self.run.moments(self.at)

    def pairs(self, f: Callable[[np.ndarray], np.ndarray], k: int = -1) -> float:
        """Mean over pairs."""
        return self.run.pairs(f, self.at)


def _measured(name: str, run: DensityTrajectory, model: Model) -> np.ndarray:
    """A measure at every time; `model` with its noise."""
    entry = find("measure", name)
    if entry.facts["of"] == "density run":
        return entry.make(run, model)
    measure = bind(name, {"model": model.drift, "beta": getattr(model.drift, "beta", None)})
    return np.stack([np.asarray(measure(_At(run, k))) for k in range(len(run.ts))])
