"""A run as a TOML file: read, checked by name, turned into the arguments of `simulate`.

What may stand in each section is in settings.py; here is the whole and its error sentences.
"""

import difflib
import json
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tokenfield.diagnostics.energy import energy
from tokenfield.diagnostics.order import order_parameter
from tokenfield.diagnostics.transport import coupled_distance
from tokenfield.errors import InputError
from tokenfield.settings import (
    AdaptiveSettings,
    Built,
    InitialSettings,
    Matrix,
    ModelSettings,
    NoiseSettings,
    RunSettings,
    Section,
    SolverSettings,
    Times,
    WeightsSettings,
)
from tokenfield.theory.spectral import limit
from tokenfield.tokens import Tokens
from tokenfield.trajectory import plain
from tokenfield.weights import AttentionWeights


class Config(Section):
    """A whole run."""

    weights: WeightsSettings
    model: ModelSettings
    initial: InitialSettings
    times: Times
    solver: SolverSettings = AdaptiveSettings()
    run: RunSettings = RunSettings()
    noise: NoiseSettings | None = None

    def arguments(self) -> dict[str, Any]:
        """The settings as arguments of `simulate`, every object built and checked."""
        weights, tokens = self.weights.build(), self.initial.build()
        model = self.model.build(weights)
        measure: dict[str, Callable[[Tokens], Any]] = {
            name: partial(fn, model) for name, fn in self.measures().items()
        }
        if "limit_distance" in self.run.measure:
            measure["limit_distance"] = limit_distance(weights, tokens)
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
        if "energy" in self.run.measure and not hasattr(self.model, "beta"):
            raise InputError(f"`run.measure` must not name 'energy' for {self.model.kind!r}: it has no beta")
        return {name: MEASURES[name] for name in self.run.measure if name in MEASURES}


#: What files may ask to be measured: functions of the model and the tokens.
MEASURES: dict[str, Callable[[Any, Tokens], Any]] = {
    "order_parameter": lambda model, tokens: order_parameter(tokens),
    "energy": lambda model, tokens: energy(tokens, model.beta),
    "mean": lambda model, tokens: tokens.moments().mean,
}


def limit_distance(weights: AttentionWeights, first: Tokens) -> Callable[[Tokens], float]:
    """Cost of moving every token to Π of where it began, a function of the tokens now.

    An upper bound of W2(μ_t, Π♯ρ0), and W2 itself while every token is nearest to its own end.
    """
    end = limit(weights).push(first).x
    return lambda tokens: coupled_distance(tokens.x, end, tokens.weights)


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
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        raise InputError("\n".join(_sentence(e) for e in error.errors())) from None


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


def _sentence(error: ErrorDetails) -> str:
    """One error as a sentence that names the setting, the value and the fix."""
    # the tag of a union's alternative is in the path, but not in the file
    loc, context = error["loc"], error.get("ctx", {})
    sections = _sections()
    name = ".".join(str(p) for k, p in enumerate(loc) if p not in sections or k == len(loc) - 1)
    match error["type"]:
        case "extra_forbidden":
            known = list(_section_at(loc[:-1]).model_fields)
            near = difflib.get_close_matches(str(loc[-1]), known, 1, 0.5)
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


def _sections() -> dict[str, type[BaseModel]]:
    """Every section that a `kind` or `law` selects, by that tag."""
    every = [*Section.__subclasses__(), *Built.__subclasses__()]
    tagged = ((c, c.model_fields.get("kind") or c.model_fields.get("law")) for c in every)
    return {get_args(field.annotation)[0]: c for c, field in tagged if field is not None}


def _section_at(loc: tuple[int | str, ...]) -> type[BaseModel]:
    """The section that an error's path leads to."""
    if not loc:
        return Config
    plain_sections = {"weights": WeightsSettings, "times": Times, "run": RunSettings, "noise": NoiseSettings}
    return (_sections() | plain_sections).get(str(loc[-1]), Matrix)
