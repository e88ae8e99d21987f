"""A run as a TOML file: read, checked by name, turned into the arguments of `simulate`.

What may stand in each section is in sections.py and in the registry; here is the whole. What is wrong with a
file is said by sentences.py.
"""

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from tokenfield.config.choices import RegisteredSection, section_of
from tokenfield.config.files import read_toml
from tokenfield.config.laws import InitialSettings
from tokenfield.config.measures import bind, check_measures
from tokenfield.config.section import Section
from tokenfield.config.sections import (
    ModelSettings,
    NoiseSettings,
    RunSettings,
    SolverSettings,
    SpaceSettings,
    TermSettings,
    Times,
    WeightsSettings,
)
from tokenfield.config.sentences import sentence
from tokenfield.errors import InputError
from tokenfield.laws.tokens import Tokens
from tokenfield.models.base import Model
from tokenfield.registry import find
from tokenfield.runs.plain import plain

Whole = TypeVar("Whole", bound=Section)


def _default_solver() -> RegisteredSection:
    return section_of(find("solver", "adaptive"))()


class Config(Section):
    """A whole run."""

    weights: WeightsSettings
    model: ModelSettings
    initial: InitialSettings
    times: Times
    solver: SolverSettings = Field(default_factory=_default_solver)
    run: RunSettings = RunSettings()
    noise: NoiseSettings | None = None
    terms: list[TermSettings] | None = None
    space: SpaceSettings | None = None

    def arguments(self, tokens: Tokens | None = None) -> dict[str, Any]:
        """The settings as arguments of `simulate`, every object built and checked; `tokens` if they are."""
        weights = self.weights.build()
        start: Tokens = self.initial.build() if tokens is None else tokens
        attention = self.model.build(weights)
        drift = self._drift(attention)
        context = {
            "model": drift,
            "beta": getattr(attention, "beta", None),
            "weights": weights,
            "start": start,
        }
        self.check()
        return {
            "model": drift if self.noise is None else drift + self.noise.build(),
            "tokens": start,
            "ts": self.times.build(),
            "solver": self.solver.build(),
            "summation": self.run.summation,
            "summation_tolerance": self.run.summation_tolerance,
            "snapshots": self.run.snapshots,
            "merge_angle": self.run.merge_angle,
            "measure": {name: bind(name, context) for name in self.run.measure},
            "settings": plain(self.model_dump(exclude_none=True)),
        }

    def check(self) -> None:
        """Refuse what can be seen without building anything."""
        check_measures(self.run.measure, self.model)

    def _drift(self, model: Model) -> Model:
        """The model with its terms, in its space; all but the noise."""
        for term in self.terms or []:
            model = model + term.build()
        return model if self.space is None else self.space.build(model)


def read(path: str | Path) -> Config:
    """Read and check a TOML file."""
    return parse(read_toml(Path(path)))


def parse(settings: dict[str, Any]) -> Config:
    """Check settings given as plain data."""
    return parse_as(Config, settings)


def parse_as(whole: type[Whole], settings: dict[str, Any]) -> Whole:
    """Check settings given as plain data against all that a file may hold."""
    try:
        return whole.model_validate(settings)
    except ValidationError as error:
        raise InputError("\n".join(sentence(e, whole, settings) for e in error.errors())) from None


def text(run: Config) -> str:
    """The configuration as the text of a TOML file, which `read` gives back as it is."""
    parts = []
    for name, section in run.model_dump(exclude_none=True).items():
        head, tables = (f"[[{name}]]", section) if isinstance(section, list) else (f"[{name}]", [section])
        for table in tables:
            parts.append("\n".join([head, *(f"{key} = {_toml(value)}" for key, value in table.items())]))
    return "\n\n".join(parts) + "\n"


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case dict():
            return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
        case list() | tuple():
            return "[" + ", ".join(_toml(inner) for inner in value) + "]"
    return repr(value)  # numbers: the shortest digits that give the same double back
