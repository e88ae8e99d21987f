"""Settings that name something registered: sections chosen by a tag, and plain names.

    model: Annotated[RegisteredSection, Choice("model")]      [model] kind = "softmax", beta = 3.0
    summation: Annotated[str, Name("sums")]                   summation = "direct"

Names are looked up when a file is read, so that whatever is registered by then can be said in it.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, create_model
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import PydanticCustomError, core_schema

from tokenfield.config.matrices import Matrix
from tokenfield.config.section import Section
from tokenfield.errors import InputError, require_room
from tokenfield.registry import FAMILIES, MATRIX, Entry, Member, Required, Setting, entries, find, unknown


class RegisteredSection(Section):
    """The settings of a registered entry; `section_of` makes the class of each."""

    entry: ClassVar[Entry]

    @classmethod
    def is_random(cls, table: Mapping[str, Any]) -> bool:
        """What the entry declares."""
        return cls.entry.random

    @classmethod
    def uses_key(cls, table: Mapping[str, Any]) -> bool:
        """Whether there is a key, also where it may be left out."""
        return "key" in cls.model_fields and table.get("key") is not None

    def build(self, *given: Any) -> Any:
        """The object, made from the arguments that no file says and these settings.

        What was left out is left to the default that what is made has of its own.
        """
        if self.entry.family == "law" and self.size:
            require_room(self.size * (getattr(self, "d", None) or 1), "initial.n", self.size)
        own = inspect.signature(self.entry.make).parameters
        left_out = [k for k, v in self if v is None and own[k].default is not inspect.Parameter.empty]
        skipped = {self.entry.tag, *left_out}
        arguments = {name: _built(value) for name, value in self if name not in skipped}
        return self.entry.make(*given, **arguments)

    @property
    def size(self) -> int | None:
        """About how many tokens or nodes there are; None if not declared."""
        size = self.entry.facts.get("size")
        return getattr(self, "n", None) if size is None else size(self)

    def __reduce__(self) -> Any:
        """As data: the class is made by every process for itself."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        return _restored, (self.entry.family, self.entry.name, self.entry.module, values)


def _built(value: Any) -> Any:
    if isinstance(value, list):
        return [_built(each) for each in value]
    build = getattr(value, "build", None)
    return value if build is None else build()


@dataclass(frozen=True)
class Choice:
    """A section that is one of the entries of a family; the family's tag says which."""

    family: str

    @property
    def tag(self) -> str:
        """The setting that says which."""
        return FAMILIES[self.family].tag

    def section(self, table: Any) -> type[RegisteredSection] | None:
        """The section that a table of a file asks for; None if it names nothing known."""
        name = table.get(self.tag) if isinstance(table, Mapping) else None
        entry = entries(self.family).get(name) if isinstance(name, str) else None
        return None if entry is None else section_of(entry)

    def validate(self, value: Any) -> RegisteredSection:
        """The settings of the entry that the table names."""
        if isinstance(value, RegisteredSection) and value.entry.family == self.family:
            return value
        if not isinstance(value, Mapping):
            raise PydanticCustomError(
                "not_a_table", "Input should be a valid dictionary or object to extract fields from"
            )
        if self.tag not in value:
            raise PydanticCustomError("tag_missing", "{tag}", {"tag": self.tag})
        section = self.section(value)
        if section is None:
            sentence = unknown(self.family, value[self.tag])
            raise PydanticCustomError("tag_unknown", "{sentence}", {"tag": self.tag, "sentence": sentence})
        return section.model_validate(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return core_schema.no_info_plain_validator_function(
            self.validate,
            serialization=core_schema.plain_serializer_function_ser_schema(_dump, info_arg=True),
        )


@dataclass(frozen=True)
class Name:
    """The name of an entry of a family; `which` says of an entry whether it can stand here."""

    family: str
    which: Callable[[Entry], bool] = lambda entry: True

    def validate(self, value: Any) -> str:
        """The name, if it is known."""
        known = [name for name, entry in entries(self.family).items() if self.which(entry)]
        if value in known:
            return value
        *first, last = map(repr, known)
        listed = f"{', '.join(first)} or {last}" if first else last
        raise PydanticCustomError("name_unknown", "Input should be {listed}", {"listed": listed})

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return core_schema.no_info_plain_validator_function(self.validate)


@cache
def section_of(entry: Entry) -> type[RegisteredSection]:
    """The class of the settings of an entry."""
    title = f"{entry.family}:{entry.name}"
    tag: Any = {entry.tag: (Literal[entry.name], entry.name)}
    tagged = create_model(title, __base__=RegisteredSection, **tag)
    if entry.has_section:
        made: Any = create_model(title, __base__=(entry.make, tagged))  # pyright: ignore
    else:
        fields: Any = {name: _field(setting, name, entry) for name, setting in entry.settings.items()}
        made = create_model(title, __base__=tagged, **fields)
    made.entry = entry
    made.__doc__ = entry.summary
    return made


def _field(setting: Setting, name: str, entry: Entry) -> tuple[Any, Any]:
    told = setting.type
    if told == MATRIX:
        told = Matrix
    elif isinstance(told, Member):
        told = Annotated[RegisteredSection, Choice(told.family)]
    else:
        try:
            TypeAdapter(told)
        except PydanticSchemaGenerationError:
            raise InputError(
                f"`{name}` of the {entry.family} {entry.name!r} must have a type that a file can hold; say it"
                f" in `settings` where it is registered, {entry.place}"
            ) from None
    if setting.default is None:
        told = Union[told, None]  # noqa: UP007 (told may be Annotated)
    return told, ... if setting.default is Required else setting.default


def _restored(family: str, name: str, module: str, values: dict[str, Any]) -> RegisteredSection:
    """A section in another process, which may not have imported the module that registers it."""
    if module not in ("__main__", "__mp_main__"):
        import_module(module)
    return section_of(find(family, name))(**values)


def _dump(value: RegisteredSection, info: Any) -> dict[str, Any]:
    return value.model_dump(mode=info.mode, exclude_none=info.exclude_none)


# -- what a file holds, followed through the sections that it is for


def inner_sections(
    section: type[BaseModel], name: str, value: Any
) -> Iterator[tuple[tuple[int, ...], type[Section], Any]]:
    """The sections that the value of a setting is for.

    Args:
        section: the section that the setting stands in.
        name: of the setting.
        value: what a file says, not yet checked.

    Yields:
        For each: its indices where the value is a list, its section, its table.
    """
    field = section.model_fields.get(name)
    if field is not None:
        told = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        yield from _sections_in(told, value, ())


def _sections_in(told: Any, value: Any, at: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Any, Any]]:
    choice = next((each for each in getattr(told, "__metadata__", ()) if isinstance(each, Choice)), None)
    if choice is not None:
        section = choice.section(value)
        if section is not None:
            yield at, section, value
    elif isinstance(told, type) and issubclass(told, Section):
        yield at, told, value
    elif get_origin(told) is list and isinstance(value, list):
        for k, each in enumerate(value):
            yield from _sections_in(get_args(told)[0], each, (*at, k))
    else:
        for inner in get_args(told):
            yield from _sections_in(inner, value, at)


def tables_of(
    section: type[BaseModel], table: Any, name: str = ""
) -> Iterator[tuple[str, type[Section], Any]]:
    """Every table of a file that is a section, for whoever looks for keys.

    Args:
        section: the section that the whole file, or a table of it, is for.
        table: what the file says, not yet checked.
        name: of the table in the file; empty for the whole file.

    Yields:
        For each: its name in the file, its section, itself.
    """
    if not isinstance(table, Mapping):
        return
    if name and issubclass(section, Section):
        yield name, section, table
    for key, value in table.items():
        for at, inner, found in inner_sections(section, key, value):
            place = "".join([f"{name}.{key}" if name else key, *(f"[{k}]" for k in at)])
            yield from tables_of(inner, found, place)
