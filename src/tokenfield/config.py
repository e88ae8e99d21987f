"""A run as a TOML file: read, checked by name, turned into the arguments of `simulate`.

What may stand in each section is in settings.py and initial_settings.py; here is the whole, and its error
sentences.
"""

import difflib
import json
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tokenfield.diagnostics.energy import energy
from tokenfield.diagnostics.order import order_parameter
from tokenfield.diagnostics.transport import limit_distance
from tokenfield.errors import InputError
from tokenfield.initial_settings import InitialSettings
from tokenfield.settings import (
    TAGS,
    AdaptiveSettings,
    ModelSettings,
    NoiseSettings,
    RunSettings,
    Section,
    SolverSettings,
    Times,
    WeightsSettings,
)
from tokenfield.theory.spectral import limit
from tokenfield.tokens import Continuum, Tokens
from tokenfield.trajectory import plain

Whole = TypeVar("Whole", bound=Section)


class Config(Section):
    """A whole run."""

    weights: WeightsSettings
    model: ModelSettings
    initial: InitialSettings
    times: Times
    solver: SolverSettings = AdaptiveSettings()
    run: RunSettings = RunSettings()
    noise: NoiseSettings | None = None

    def arguments(self, tokens: Tokens | None = None) -> dict[str, Any]:
        """The settings as arguments of `simulate`, every object built and checked; `tokens` if they are."""
        weights = self.weights.build()
        if tokens is None:
            tokens = cast(Tokens, self.initial.build())
        model = self.model.build(weights)
        measure: dict[str, Callable[[Tokens], Any]] = {
            name: partial(fn, model) for name, fn in self.measures().items()
        }
        if "limit_distance" in self.run.measure:
            measure["limit_distance"] = limit_distance(limit(weights), tokens)
        return {
            "model": model if self.noise is None else model + self.noise.build(),
            "tokens": tokens,
            "ts": self.times.build(),
            "solver": self.solver.build(),
            "summation": self.run.summation,
            "summation_tolerance": self.run.summation_tolerance,
            "snapshots": self.run.snapshots,
            "merge_angle": self.run.merge_angle,
            "measure": measure,
            "settings": plain(self.model_dump(exclude_none=True)),
        }

    def measures(self) -> dict[str, Callable[[Any, Tokens], Any]]:
        """The functions of model and tokens to be measured, by name; not those that need the first tokens."""
        check_energy(self.run.measure, self.model)
        return {name: MEASURES[name] for name in self.run.measure if name in MEASURES}


def check_energy(measure: Sequence[str], model: ModelSettings) -> None:
    """Refuse the energy where there is no β."""
    if "energy" in measure and not hasattr(model, "beta"):
        raise InputError(f"`run.measure` must not name 'energy' for {model.kind!r}: it has no beta")


#: What files may ask to be measured: functions of the model and the law.
MEASURES: dict[str, Callable[[Any, Tokens | Continuum], Any]] = {
    "order_parameter": lambda model, tokens: order_parameter(tokens),
    "energy": lambda model, tokens: energy(tokens, model.beta),
    "mean": lambda model, tokens: tokens.moments().mean,
}


def read(path: str | Path) -> Config:
    """Read and check a TOML file."""
    return parse(read_toml(Path(path)))


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file says, not yet checked."""
    try:
        return tomllib.loads(path.read_text(encoding="utf8"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"`config` must be a TOML file, but {path} is not: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise InputError(f"`config` must be a readable TOML file, but {path} is not: {reason}") from error


def parse(settings: dict[str, Any]) -> Config:
    """Check settings given as plain data."""
    return parse_as(Config, settings)


def parse_as(whole: type[Whole], settings: dict[str, Any]) -> Whole:
    """Check settings given as plain data against all that a file may hold."""
    try:
        return whole.model_validate(settings)
    except ValidationError as error:
        raise InputError("\n".join(_sentence(e, whole) for e in error.errors())) from None


def text(run: Config) -> str:
    """The configuration as the text of a TOML file, which `read` gives back as it is."""
    parts = []
    for name, section in run.model_dump(exclude_none=True).items():
        parts.append("\n".join([f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in section.items())]))
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


def _sentence(error: ErrorDetails, whole: type[BaseModel]) -> str:
    """One error as a sentence that names the setting, the value and the fix."""
    context = error.get("ctx", {})
    name, section = _follow(error["loc"], whole)
    match error["type"]:
        case "extra_forbidden":
            known = list(section.model_fields)
            near = difflib.get_close_matches(str(error["loc"][-1]), known, 1, 0.5)
            hint = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(known)}"
            return f"`{name}` is not a known setting; {hint}"
        case "missing":
            return f"`{name}` must be given, but is missing"
        case "union_tag_not_found":
            return f"`{name}.{context['discriminator'].strip(chr(39))}` must be given, but is missing"
        case "union_tag_invalid":
            tag = context["discriminator"].strip("'")
            return f"`{name}.{tag}` must be one of {context['expected_tags']}, but was {context['tag']!r}"
        case "value_error":
            return f"`{name}` must {context['error']}"
    message = error["msg"].removeprefix("Input should be ")
    return f"`{name}` must be {message}, but was {error['input']!r}"


def _follow(loc: tuple[int | str, ...], section: type[BaseModel]) -> tuple[str, type[BaseModel]]:
    """The name in the file of what an error's path leads to, and the section that it stands in."""
    names, choices = [], {}
    for k, part in enumerate(loc):
        if part in choices:  # the tag of a union's alternative is in the path, but not in the file
            section, choices = choices[part], {}
            continue
        names.append(str(part))
        field = section.model_fields.get(str(part))
        if field is not None and k < len(loc) - 1:
            choices = {_tag(c): c for c in _sections_in(field.annotation)}
            section = choices.pop(None, section)
    return ".".join(names), section


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    """Every section that a setting may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for inner in get_args(annotation) for section in _sections_in(inner)]


def _tag(section: type[BaseModel]) -> str | None:
    """What selects a section among others, if something does."""
    field = next((section.model_fields[name] for name in TAGS if name in section.model_fields), None)
    return None if field is None else get_args(field.annotation)[0]
