"""All benchmarks in one table: printed, and written to results.md. Run by `make bench`.

A new topic is a module here with a function `rows()`, and its name in `TOPICS`.
"""

import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

import density
import density_sphere
import direct_sums
import fast_sums
import long_times
import memory
import phase_diagram
import random_layers
import scaling
import sweep
import transport
from report import HEADER, Row, machine

TOPICS = (
    direct_sums,
    fast_sums,
    scaling,
    memory,
    long_times,
    transport,
    density,
    density_sphere,
    phase_diagram,
    random_layers,
    sweep,
)
RESULTS = Path(__file__).parent / "results.md"


def main() -> None:
    console = Console()
    found: list[Row] = []
    for topic in TOPICS:
        with console.status(f"measuring {topic.__name__}"):
            began = time.monotonic()
            found += topic.rows()
        console.print(f"{topic.__name__}: {time.monotonic() - began:.0f} s")
    table = Table(*HEADER, title=machine())
    for row in found:
        table.add_row(*row.cells(), style="red" if row.passed is False else None)
    console.print(table)
    RESULTS.write_text(_markdown(found), encoding="utf-8")


def _markdown(found: list[Row]) -> str:
    lines = [
        f"| {' | '.join(cells)} |" for cells in (HEADER, ("---",) * len(HEADER), *(r.cells() for r in found))
    ]
    return "\n".join(["# Benchmarks", "", f"Measured with {machine()}.", "", *lines, ""])


if __name__ == "__main__":
    main()
