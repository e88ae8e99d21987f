"""What every section of a file is: typed settings that refuse keys they do not know."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """Settings that refuse keys they do not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _strict_numbers(cls, table: Any) -> Any:
        """Numbers are written as numbers; infinity, which plain data has no number for, may be text."""
        for name, value in table.items() if isinstance(table, Mapping) else ():
            kind = cls.model_fields[name].annotation if name in cls.model_fields else None
            # what is no number at all is refused by its type, a moment later
            lenient = isinstance(value, bool) or (isinstance(value, str) and _is_number(value))
            if kind in (int, int | None) and (lenient or (isinstance(value, float) and value.is_integer())):
                raise ValueError(f"hold a whole number as {name}, but holds {value!r:.60}")
            if kind in (float, float | None) and lenient and value not in ("inf", "-inf", "nan"):
                raise ValueError(f"hold a number as {name}, but holds {value!r:.60}")
        return table

    @classmethod
    def is_random(cls, table: Mapping[str, Any]) -> bool:
        """Whether a table of this section, not yet checked, needs a key."""
        return False

    @classmethod
    def uses_key(cls, table: Mapping[str, Any]) -> bool:
        """Whether what a table of this section describes depends on its key."""
        return cls.is_random(table)


def _is_number(text: str) -> bool:
    """Whether text would be taken for a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
