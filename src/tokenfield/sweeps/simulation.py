"""Cells that are runs of `simulate`: one at a time, or many small ones as one program (batch.py)."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tokenfield.config import reading
from tokenfield.config.reading import Config
from tokenfield.config.section import Section
from tokenfield.errors import InputError
from tokenfield.runs.simulate import simulate
from tokenfield.runs.times import kept_indices
from tokenfield.sweeps.batch import (
    LARGEST,
    BatchElement,
    BatchProgram,
    can_share,
    element,
    most_elements,
    run_together,
)
from tokenfield.sweeps.protocol import FileKind
from tokenfield.sweeps.result import CellResult, result_of


class SimulationCells(FileKind):
    """Runs of `simulate`."""

    sections = ("weights", "model", "noise", "initial", "times", "solver", "run", "terms", "space")
    whole: type[Section] | None = Config

    def check(self, settings: dict[str, Any]) -> Config:
        """The settings, parsed; no snapshots unless asked for."""
        run = settings.get("run", {})
        if isinstance(run, Mapping):
            settings = settings | {"run": {"snapshots": []} | dict(run)}
        config = reading.parse(settings)
        config.check()
        return config

    def build(self, config: Config) -> None:
        """Make the objects, only to see that they can be made."""
        config.arguments()

    def estimated_bytes(self, config: Config) -> int:
        """Bytes of the times, measurements and snapshots of a cell, roughly."""
        times = len(config.times.build())
        kept = len(kept_indices(config.run.snapshots, times))
        one = (config.initial.size or 0) * 8 * 8
        return 1000 + 8 * times * (1 + 2 * len(config.run.measure)) + kept * one

    def batch_key(self, config: Config) -> str | None:
        """What the runs of a batch have to have in common; None for those that are better off alone."""
        law, run, solver = config.initial, config.run, config.solver
        n = _exact_number(config)
        plain_run = config.noise is None and config.terms is None and config.space is None
        batches = solver.entry.facts["batches"]
        batches = batches(solver) if callable(batches) else batches
        if n is None or n > LARGEST or not plain_run or not batches or run.merge_angle is not None:
            return None
        if not can_share(run.measure, run.summation, getattr(config.model, "beta", 1.0)):
            return None
        common = [
            config.model.model_dump(exclude={"beta"}),
            law.entry.name,
            n,
            _dimension(config),
            len(config.times.build()),
            solver.model_dump(),
            run.model_dump(),
        ]
        return repr([*common, _shapes(config.weights.model_dump(exclude_none=True))])

    def batch_size(self, config: Config) -> int:
        """How many runs fit into one program."""
        return most_elements(getattr(config.initial, "n", LARGEST), len(config.times.build()))

    def run_one(self, config: Config, time_limit: float | None) -> CellResult:
        """One run."""
        began = time.monotonic()
        run = simulate(**config.arguments(), strict=False, time_limit=time_limit)
        counts = {name: int(run.stats[name]) for name in ("steps", "rejected")}
        return result_of(run, bool(config.run.snapshots), counts, time.monotonic() - began)

    def run_batch(self, configs: Sequence[Config], size: int, time_limit: float | None) -> list[CellResult]:
        """A batch of runs; one that cannot be built fails by itself.

        Args:
            configs: cells with the same `batch_key`.
            size: runs that the program is compiled for; it is padded if there are fewer.
            time_limit: seconds that each cell may take.

        Returns:
            The result of each cell, in order.
        """
        first = configs[0]
        program = BatchProgram(first.solver.build(), tuple(first.run.measure), first.run.snapshots)
        return run_together(program, _elements(configs), size, time_limit)


def _elements(configs: Sequence[Config]) -> list[BatchElement | InputError]:
    """The runs, or why there is none. Weights that many cells share are built once."""
    made: list[BatchElement | InputError] = []
    weights: dict[str, Any] = {}
    for config in configs:
        try:
            name = repr(config.weights)
            if name not in weights:
                weights[name] = config.weights.build()
            model, tokens = config.model.build(weights[name]), config.initial.build()
            made.append(element(model, tokens, config.times.build(), config.solver.build()))
        except InputError as error:
            made.append(error)
    return made


def _exact_number(config: Config) -> int | None:
    """The number of tokens, if that is plain from the settings."""
    law = config.initial
    exact = law.entry.facts["exact_n"]
    known = getattr(law, "key", None) is not None if exact == "keyed" else exact
    return getattr(law, "n", None) if known else None


def _dimension(config: Config) -> int:
    """The dimension of the tokens as far as the settings of the law say it: as d, or as a vector's length."""
    law = config.initial
    vectors = (value for value in law.model_dump().values() if isinstance(value, list))
    return getattr(law, "d", None) or len(next(vectors, (1, 1)))


def _shapes(value: Any) -> Any:
    """Matrices without their numbers."""
    if isinstance(value, dict):
        return {k: _shapes(v) for k, v in value.items() if k != "key"}
    if isinstance(value, list):
        return [_shapes(v) for v in value]
    return value if isinstance(value, int) else "number"
