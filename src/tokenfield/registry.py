"""The registry: what files may name, said once, where it is defined.

    @register("law", "cap", random=True, settings={"centre": list[float]}, exact_n=True)
    def cap(n: int, centre: ArrayLike, angle: float, key: int) -> Tokens: ...

Files, sweeps, the lab and help read the entries; adding a law touches its own file and its test.
The settings of an entry are the arguments of what is registered, with their annotations and defaults; the
decorator gives the types that a file needs where the annotations say more than a file can hold.

Entries of tokenfield live in modules that may not have been imported yet: `FAMILIES` says which, and they
are imported when a family is first asked for. A user's own module registers when it is imported, at any time.
"""

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from tokenfield.errors import InputError, require

Made = TypeVar("Made", bound=Callable[..., Any])


class Required:
    """Stands for the default of a setting that has none."""


class Setting(NamedTuple):
    """A setting of an entry: the type of its value in a file, and the default if it may be left out."""

    type: Any
    default: Any = Required


class Member(NamedTuple):
    """The type of a setting that is itself an entry of a family, for example `Member("mask")`."""

    family: str


#: The type of a setting that is a matrix, written as rows or as one of the kinds that [weights] takes.
MATRIX = Member("matrix")


class Family(NamedTuple):
    """A family of entries.

    `modules` of tokenfield register them. `tag` is the setting that names one in a file. `given` are the
    arguments that the caller has and no file says. `facts` are what an entry may declare beside its settings,
    with what holds if it does not.
    """

    modules: tuple[str, ...] = ()
    tag: str = "kind"
    given: tuple[str, ...] = ()
    facts: Mapping[str, Any] = MappingProxyType({})


FAMILIES: dict[str, Family] = {
    # exact_n: whether there are exactly `n` tokens, so that cells with one n can share a compiled program
    #   ("keyed": if they have a key). size: about how many tokens there are, a function of the settings
    "law": Family(("laws.initial", "config.laws"), "law", (), {"exact_n": False, "size": None}),
    # laws as densities; each has a function of the places of some domains (config/densities.py)
    "density": Family(("config.densities",), "law"),
    # climbs: whether the flow climbs an energy, which a free energy needs
    "model": Family(
        ("models.attention", "models.pointwise", "models.sinkhorn", "config.models"),
        "kind",
        ("weights",),
        {"climbs": False},
    ),
    "term": Family(("models.terms",)),
    "space": Family(("models.norms",), "kind", ("model",)),
    "mask": Family(("models.masks",)),
    # batches: whether runs with it can share a compiled program, or a function of the settings that says so
    "solver": Family(("solvers.ode", "solvers.sde"), "kind", (), {"batches": True}),
    # places: the function of a density law that is a density there; size: about how many nodes there are
    "domain": Family(
        ("density.circle", "density.sphere", "density.zonal", "density.characteristics"),
        "domain",
        (),
        {"places": "of_points", "size": None},
    ),
    # of: "tokens"; "law", tokens or a density; "density run", a function of the run and the model.
    # needs: further arguments, of beta, model, weights, start. prepared: called with those alone, it gives
    #   the function of the tokens. traceable: a JAX function that cells of one program can share
    "measure": Family(
        ("measure.order", "measure.energy", "measure.free_energy", "config.measures"),
        "kind",
        (),
        {"of": "tokens", "needs": (), "prepared": False, "traceable": False},
    ),
    # direct: whether a small run under this name uses direct sums, so that cells can share a program
    "sums": Family(
        ("sums.policy", "sums.direct", "sums.circle", "sums.harmonic", "sums.cells"),
        "kind",
        (),
        {"direct": False},
    ),
    # setups of the lab; the documentation of each says what one sees
    "preset": Family(("lab.presets",)),
}


@dataclass(frozen=True, eq=False)
class Entry:
    """What is known of one member of a family.

    `make` is what was registered: a function or a class. `random`: whether it needs a key.
    `overrides` are the types that the decorator gave; `module` and `place` (file and line) where it was used.
    """

    family: str
    name: str
    make: Callable[..., Any]
    random: bool
    facts: Mapping[str, Any]
    overrides: Mapping[str, Any]
    module: str
    place: str

    @property
    def tag(self) -> str:
        """The setting that names the entry in a file."""
        return FAMILIES[self.family].tag

    @property
    def has_section(self) -> bool:
        """Whether what was registered is a class of settings of its own, which builds what it describes."""
        return hasattr(self.make, "model_fields")

    @property
    def builtin(self) -> bool:
        """Whether it comes with tokenfield."""
        return self.module.partition(".")[0] == "tokenfield"

    @property
    def summary(self) -> str:
        """The first line of its documentation."""
        return (inspect.getdoc(self.make) or "").partition("\n")[0]

    @cached_property
    def settings(self) -> Mapping[str, Setting]:
        """Its settings by name, in the order of the arguments."""
        if self.has_section:
            fields: Mapping[str, Any] = getattr(self.make, "model_fields")  # noqa: B009 (a class of pydantic)
            return {
                name: Setting(each.annotation, Required if each.is_required() else each.default)
                for name, each in fields.items()
            }
        settings = {}
        for name, parameter in _parameters(self.make, self.family).items():
            told = self.overrides.get(name, parameter.annotation)
            if told is None:
                continue  # what no file can say
            default = Required if parameter.default is parameter.empty else parameter.default
            settings[name] = told if isinstance(told, Setting) else Setting(told, default)
        return settings


_entries: dict[str, dict[str, Entry]] = {family: {} for family in FAMILIES}


def register(
    family: str,
    name: str,
    *,
    random: bool | None = None,
    settings: Mapping[str, Any] | None = None,
    **facts: Any,
) -> Callable[[Made], Made]:
    """Register a function or class under a name that files may use.

    Args:
        family: one of `FAMILIES`, for example "law", "model" or "solver".
        name: what files call it.
        random: whether it needs a key; taken from the signature (an argument `key` without default) if left
            out. Seeds of a sweep give a key to what is random.
        settings: argument → the type of its value in a file, where the annotation is not one; a `Setting`
            also says its default, or that it has none; None leaves the argument out of files.
        facts: what else the family wants to know; see `FAMILIES`.

    Returns:
        A decorator that gives back what it is applied to.
    """
    known = _family(family)
    overrides = dict(settings or {})
    caller = sys._getframe(1)
    module, place = caller.f_globals["__name__"], f"{caller.f_code.co_filename}:{caller.f_lineno}"
    _require_known("fact", f"the {family} {name!r}", facts, known.facts)

    def add(make: Made) -> Made:
        arguments: Mapping[str, Any] = getattr(make, "model_fields", None) or _parameters(make, family)
        _require_known("setting", f"the {family} {name!r}", overrides, arguments)
        keyed = "key" in arguments and _is_required(arguments["key"])
        require(
            not random or "key" in arguments,
            "random",
            f"come with an argument `key` of the {family} {name!r}",
            "True without one",
        )
        is_random = keyed if random is None else random
        entry = Entry(family, name, make, is_random, {**known.facts, **facts}, overrides, module, place)
        former = _entries[family].get(name)
        if former is not None and not _is_reload(former, entry):
            raise InputError(
                f"`name` must be registered once, but the {family} {name!r} is registered at {former.place}"
                f" and at {entry.place}"
            )
        _entries[family][name] = entry
        return make

    return add


def entries(family: str) -> dict[str, Entry]:
    """All entries of a family by name: those of tokenfield first, then others as they were registered."""
    known = _family(family)
    for module in known.modules:
        importlib.import_module(f"tokenfield.{module}")
    found = _entries[family]
    # a user's module may have been imported before those of tokenfield
    order = {f"tokenfield.{module}": k for k, module in enumerate(known.modules)}
    rank = {name: order.get(each.module, len(order) + (not each.builtin)) for name, each in found.items()}
    return {name: found[name] for name in sorted(found, key=rank.__getitem__)}


def find(family: str, name: Any, setting: str | None = None) -> Entry:
    """The entry of that name.

    Args:
        family: one of `FAMILIES`.
        name: the name that a file gives.
        setting: what the error sentence calls it; "model.kind" for example.

    Returns:
        The entry; an unknown name is an `InputError` that lists the known ones and the nearest.
    """
    known = entries(family)
    if isinstance(name, str) and name in known:
        return known[name]
    raise InputError(f"`{setting or family}` must be {unknown(family, name)}")


def unknown(family: str, name: Any) -> str:
    """The end of the sentence about a name that is not known: "one of …, but was …; did you mean …?"."""
    known = entries(family)
    listed = (
        f"one of {', '.join(map(repr, known))}"
        if known
        else f"a registered {family}, of which there are none"
    )
    near = difflib.get_close_matches(str(name), known, 1, 0.5)
    return f"{listed}, but was {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def forget(module: str) -> None:
    """Remove everything that a module registered, for tests and for work at a prompt."""
    for family in _entries.values():
        for name in [name for name, entry in family.items() if entry.module == module]:
            del family[name]


def foreign_modules() -> tuple[str, ...]:
    """Modules outside tokenfield that have registered something, for other processes to import as well."""
    every = (entry for family in _entries.values() for entry in family.values())
    names = {entry.module for entry in every if not entry.builtin}
    return tuple(sorted(names - {"__main__", "__mp_main__"}))


def import_modules(names: Iterable[str]) -> None:
    """Import modules that register something; a module that cannot be imported is a sentence."""
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise InputError(
                f"`import` must name a module that Python can import, but was {name!r}: {error}"
            ) from error


def _family(family: str) -> Family:
    listed = ", ".join(FAMILIES)
    require(family in FAMILIES, "family", f"be one of {listed}", repr(family))
    return FAMILIES[family]


def _parameters(make: Callable[..., Any], family: str) -> dict[str, inspect.Parameter]:
    """The arguments that a file may say."""
    try:
        signature = inspect.signature(make, eval_str=True)
    except (NameError, SyntaxError, AttributeError):  # annotations as text that cannot be looked up
        signature = inspect.signature(make)
    given = FAMILIES[family].given
    return {name: parameter for name, parameter in signature.parameters.items() if name not in given}


def _is_required(argument: Any) -> bool:
    if isinstance(argument, inspect.Parameter):
        return argument.default is argument.empty
    return argument.is_required()


def _require_known(what: str, where: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        listed = ", ".join(known) or "none"
        require(name in known, name, f"be a {what} of {where} ({listed})", "not one")


def _is_reload(former: Entry, entry: Entry) -> bool:
    """Whether the same definition was run once more, by a reload or as a script that is also imported."""
    name = entry.make.__qualname__
    if former.make.__qualname__ != name or "<lambda>" in name:
        return False
    same_file = former.place.rpartition(":")[0] == entry.place.rpartition(":")[0]
    return former.module == entry.module or same_file
