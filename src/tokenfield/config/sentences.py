"""What is wrong with a file, one sentence for each setting: its name in the file, its value and the fix."""

import difflib
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from tokenfield.config.choices import inner_sections
from tokenfield.errors import InputError

#: Letters of a value that a sentence shows.
LONGEST_SHOWN = 120


def sentence(error: ErrorDetails, whole: type[BaseModel], settings: Any) -> str:
    """One error as a sentence.

    Args:
        error: what pydantic says of one setting.
        whole: the section that the whole file is for.
        settings: the file as plain data.

    Returns:
        The sentence, beginning with the name of the setting.
    """
    context, loc = error.get("ctx", {}), error["loc"]
    name = ".".join(map(str, loc))
    match error["type"]:
        case "extra_forbidden":
            known = list(_section_at(loc[:-1], whole, settings).model_fields)
            near = difflib.get_close_matches(str(loc[-1]), known, 1, 0.5)
            hint = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(known)}"
            return f"`{name}` is not a known setting; {hint}"
        case "missing":
            return f"`{name}` must be given, but is missing"
        case "tag_missing":
            return f"`{name}.{context['tag']}` must be given, but is missing"
        case "tag_unknown":
            return f"`{name}.{context['tag']}` must be {context['sentence']}"
        case "value_error" if isinstance(context["error"], InputError):
            return str(context["error"])  # a sentence already
        case "value_error":
            return f"`{name}` must {context['error']}"
    message = error["msg"].removeprefix("Input should be ")
    return f"`{name}` must be {message}, but was {_brief(error['input'])}"


def _brief(value: Any) -> str:
    """A value as it may stand in a sentence."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + " …"


def _section_at(loc: tuple[int | str, ...], section: type[BaseModel], value: Any) -> type[BaseModel]:
    """The section that a path through the file leads to."""
    place = 0
    while place < len(loc):
        name = loc[place]
        found = list(inner_sections(section, str(name), value[name]))
        indices, place = _leading_numbers(loc[place + 1 :]), place + 1
        at, section, value = next(each for each in found if each[0] == indices[: len(each[0])])
        place += len(at)
    return section


def _leading_numbers(loc: tuple[int | str, ...]) -> tuple[int, ...]:
    numbers = []
    for part in loc:
        if not isinstance(part, int):
            break
        numbers.append(part)
    return tuple(numbers)
