"""Cells that are runs of `density.solve`, one at a time.

A run that its resolution did not hold is done, not failed: the numbers are there, `resolved` is 0 and the
status says from when on they are doubtful. One that stops before its last time has failed.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tokenfield import config
from tokenfield.density.result import DensityTrajectory
from tokenfield.density.solve import solve
from tokenfield.density_settings import DensityDomain, DensityRunSettings, InitialDensity
from tokenfield.diagnostics.free_energy import check_climbs, free_energy
from tokenfield.errors import InputError, require, require_increasing
from tokenfield.models import Model
from tokenfield.record import kept_indices
from tokenfield.settings import ModelSettings, NoiseSettings, Section, Times, WeightsSettings
from tokenfield.sweep.outcome import Outcome
from tokenfield.tokens import Continuum, Moments, Tokens
from tokenfield.trajectory import axes, plain

sections = ("weights", "model", "noise", "density", "initial", "times", "run")
#: Models that climb an energy, which a free energy needs.
CLIMBING = ("unnormalised", "interaction")


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
        model = self.model.build(self.weights.build())
        require(self.initial.d in (None, model.d), "initial", f"have the dimension {model.d} of the model",
                self.initial.d)  # fmt: skip
        return {
            "model": model if self.noise is None else model + self.noise.build(),
            "rho0": self._rho0(),
            "ts": self.times.build(),
            "domain": self.density.build(),
        }

    def check(self) -> None:
        """Refuse what can be seen without building the model."""
        self.density.build()
        self.density.density_of(self.initial)
        times = self.times.build()
        require_increasing(times, "times")
        kept_indices(self.run.snapshots, len(times))
        config.check_energy(self.run.measure, self.model)
        if "free_energy" in self.run.measure and self.model.kind not in CLIMBING:
            raise InputError(
                f"`run.measure` must not name 'free_energy' for {self.model.kind!r}, which climbs no energy;"
                f" {' and '.join(CLIMBING)} do"
            )

    def _rho0(self) -> Callable[[np.ndarray], np.ndarray]:
        law = self.density.density_of(self.initial)

        def rho0(places: np.ndarray) -> np.ndarray:
            values = law(places)
            least = float(values.min())
            require(least >= 0, "initial", "be a density, at least 0 everywhere", f"{least:g} somewhere")
            return values

        return rho0


def check(settings: dict[str, Any]) -> dict[str, Any]:
    """Every setting, also those left out."""
    parsed = _parse(settings)
    parsed.check()
    return plain(parsed.model_dump(exclude_none=True))


def build(settings: dict[str, Any]) -> None:
    """The run at its first time: a domain refuses what it cannot do, and takes no step."""
    parsed = _parse(settings)
    arguments = parsed.arguments()
    if "free_energy" in parsed.run.measure:
        check_climbs(arguments["model"].drift)
    solve(**arguments | {"ts": arguments["ts"][:1]}, strict=False)


def records(settings: dict[str, Any]) -> int:
    """Bytes of the times, measurements and snapshots of a cell, roughly."""
    parsed = _parse(settings)
    times, kept = len(parsed.times.build()), len(parsed.run.snapshots)
    return 1000 + 8 * times * (1 + 2 * len(parsed.run.measure)) + 8 * 4 * kept * parsed.density.nodes


def together_if(settings: dict[str, Any]) -> None:
    """Each cell is alone."""


def batch_size(settings: dict[str, Any]) -> int:
    """Each cell is alone."""
    return 1


def alone(settings: dict[str, Any], time_limit: float | None) -> Outcome:
    """One run."""
    began = time.monotonic()
    parsed = _parse(settings)
    arguments = parsed.arguments()
    run = solve(**arguments, strict=False, time_limit=time_limit)
    arrays = {"time": run.ts} | {name: MEASURES[name](run, arguments["model"]) for name in parsed.run.measure}
    names = {
        name: ("time",) if name == "time" else axes(name, values.ndim) for name, values in arrays.items()
    }
    kept = kept_indices(parsed.run.snapshots, len(arguments["ts"]))
    kept = kept[kept < len(run.ts)]
    if parsed.run.snapshots:
        nodes = run.nodes[kept] if run.domain.moving else np.repeat(run.nodes[None], len(kept), axis=0)
        # angles and heights are places with one coordinate, so that cells of several domains fit together
        nodes = nodes if nodes.ndim == 3 else nodes[..., None]
        arrays |= {"snapshot": run.ts[kept], "nodes": nodes,
                   "rho": run.density[kept], "masses": run.masses[kept]}  # fmt: skip
        names |= {"snapshot": ("snapshot",), "nodes": ("snapshot", "node", "coordinate"),
                  "rho": ("snapshot", "node"), "masses": ("snapshot", "node")}  # fmt: skip
    counts = {"steps": int(run.stats["steps"]), "resolved": int(run.resolved)}
    return Outcome(run.status, run.complete, arrays, names, counts, time.monotonic() - began)


def _parse(settings: dict[str, Any]) -> MeanField:
    return config.parse_as(MeanField, settings)


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


def _at_each_time(name: str) -> Callable[[DensityTrajectory, Model], np.ndarray]:
    """What is measured of tokens, of the density at every time."""

    def measure(run: DensityTrajectory, model: Model) -> np.ndarray:
        laws = (_At(run, k) for k in range(len(run.ts)))
        return np.stack([np.asarray(config.MEASURES[name](model.drift, law)) for law in laws])

    return measure


#: What files may ask to be measured: functions of the run and the model, with its noise.
MEASURES: dict[str, Callable[[DensityTrajectory, Model], np.ndarray]] = {
    **{name: _at_each_time(name) for name in config.MEASURES},
    "free_energy": free_energy,
    "minimum": lambda run, model: run.minimum,
    "tail": lambda run, model: run.tail,
}
