"""A matrix in a file: its rows, or one of the kinds that are known by name."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from pydantic import model_validator

from tokenfield.config.section import Section
from tokenfield.errors import as_whole, require_room
from tokenfield.laws.tokens import as_real
from tokenfield.models import ensembles

#: Kinds of `Matrix` that are drawn, one for each head.
RANDOM = ("gaussian", "goe", "wishart", "spectrum")


class Matrix(Section):
    """A matrix: rows, or one of diag, identity, gaussian, goe, wishart, spectrum (random ones with a key)."""

    rows: list[Any] | None = None
    diag: list[float] | None = None
    identity: int | None = None
    gaussian: int | None = None
    goe: int | None = None
    wishart: int | None = None
    spectrum: list[float] | None = None
    key: int = 0
    heads: int | None = None

    @classmethod
    def is_random(cls, table: Mapping[str, Any]) -> bool:
        """Whether it is of a kind that is drawn."""
        return bool(set(table) & set(RANDOM))

    @model_validator(mode="before")
    @classmethod
    def _plain_rows(cls, value: Any) -> Any:
        return {"rows": value} if isinstance(value, list) else value

    @model_validator(mode="after")
    def _one_kind(self) -> "Matrix":
        given = self.model_dump(exclude={"key", "heads"}, exclude_none=True)
        kinds = ", ".join(name for name in type(self).model_fields if name not in ("key", "heads"))
        if len(given) != 1:
            raise ValueError(f"hold exactly one of {kinds}, but holds {', '.join(given) or 'none'}")
        if self.heads is not None and not set(given) & set(RANDOM):
            raise ValueError(
                f"hold heads only beside {', '.join(RANDOM)}, but holds it beside {next(iter(given))}"
            )
        return self

    def build(self) -> Any:
        """The array."""
        random = (self.key, self.heads)
        makers: dict[str, Callable[[Any], Any]] = {
            "rows": lambda rows: as_real(rows, "rows"),
            "diag": np.diag,
            "identity": lambda d: np.eye(as_whole(d, "identity", 2)),
            "gaussian": lambda d: ensembles.gaussian(d, *random),
            "goe": lambda d: ensembles.goe(d, *random),
            "wishart": lambda d: ensembles.wishart(d, *random),
            "spectrum": lambda values: ensembles.with_spectrum(values, *random),
        }
        kind, value = next((k, v) for k, v in self if k in makers and v is not None)
        if kind != "rows":
            d = value if isinstance(value, int) else len(value)
            require_room(d**2 * max(self.heads or 1, 1), kind, d)
        return makers[kind](value)
