"""The protocol that every kind of cell follows, and what kinds whose cells are sections of a file share."""

from collections.abc import Sequence
from typing import Any, Protocol

from tokenfield.config.section import Section
from tokenfield.runs.plain import plain
from tokenfield.sweeps.result import CellResult


class Kind(Protocol):
    """A kind of cell. `config` is what `check` made of the settings of one cell; it is parsed once."""

    @property
    def sections(self) -> tuple[str, ...]:
        """The tables of its TOML files."""
        ...

    @property
    def whole(self) -> type[Section] | None:
        """The section that a whole file is for; None if no file can say such cells."""
        ...

    def check(self, settings: dict[str, Any]) -> Any:
        """The settings of one cell, parsed; bad ones are refused with a sentence."""
        ...

    def describe(self, config: Any) -> dict[str, Any]:
        """Every setting as plain data, also those left out: the same run always gives the same data."""
        ...

    def build(self, config: Any) -> None:
        """Build everything once, to find what only building finds."""
        ...

    def batch_key(self, config: Any) -> str | None:
        """Cells with the same key may be computed in one program; None for cells that are computed alone."""
        ...

    def batch_size(self, config: Any) -> int:
        """How many such cells one program can hold."""
        ...

    def run_one(self, config: Any, time_limit: float | None) -> CellResult:
        """Compute one cell, in at most so many seconds."""
        ...

    def run_batch(self, configs: Sequence[Any], size: int, time_limit: float | None) -> list[CellResult]:
        """Compute several cells as one program.

        Args:
            configs: cells with the same `batch_key`.
            size: runs that the program is compiled for; it is padded if there are fewer.
            time_limit: seconds that each cell may take.

        Returns:
            The result of each cell, in order.
        """
        ...

    def estimated_bytes(self, config: Any) -> int:
        """About what a cell takes on disk."""
        ...


class FileKind:
    """What kinds whose cells are sections of a file have in common; unless they say more, cells are alone."""

    whole: type[Section] | None = None

    def describe(self, config: Section) -> dict[str, Any]:
        """Every setting as plain data, also those left out."""
        return plain(config.model_dump(exclude_none=True))

    def batch_key(self, config: Any) -> str | None:
        """None: each cell is computed alone."""
        return None

    def batch_size(self, config: Any) -> int:
        """1: each cell is computed alone."""
        return 1

    def run_batch(self, configs: Sequence[Any], size: int, time_limit: float | None) -> list[CellResult]:
        """Never asked for.

        Args:
            configs: the cells.
            size: elements of the program.
            time_limit: seconds.
        """
        raise NotImplementedError(f"{type(self).__name__} has no batches")
