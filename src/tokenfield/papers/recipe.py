"""Recipes: named experiments that measure what a paper states, draw it, and give a verdict.

A recipe is a function (quick, progress) → `Result`; one that is a grid of runs declares it as a sweep, and is
given its dataset. Running a recipe writes a directory

    figure.pdf, figure.png   the picture
    table.csv                the numbers in rows
    data.zarr                all that was measured, an xarray Dataset
    verdict.json             every check: measured, predicted, tolerance, passed, source

which appears whole or not at all. A check that fails stays in the verdict.
"""

import csv
import difflib
import html
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import tokenfield as tkf
from tokenfield import figures
from tokenfield.errors import InputError, RunError
from tokenfield.runs.files import as_path
from tokenfield.runs.plain import plain
from tokenfield.runs.seal import data_hash
from tokenfield.runs.store import make_directory, versions
from tokenfield.sweeps.dataset import failures
from tokenfield.sweeps.grid import Grid

FORMAT = "tokenfield verdict 1"
VERDICT = "verdict.json"
#: What a result consists of.
FILES = ("figure.pdf", "figure.png", "table.csv", "data.zarr", VERDICT)
#: Share of a recipe's progress that its sweeps take.
SWEEPING = 0.7

#: How far a recipe is, from 0 to 1, and what it is doing.
Progress = Callable[[float, str], None]
#: A sweep that a recipe needs: a table as in a file, or a grid of objects.
Declared = Mapping[str, Any] | Grid
#: One line of a table: column → value.
Row = Mapping[str, str | float | int | None]


@dataclass(frozen=True)
class Check:
    """One comparison: |measured − predicted| ≤ tolerance for "≈"; an inequality for "≤" and "≥".

    `source`: where the prediction comes from, a theorem or a formula, never the program's own output.
    """

    name: str
    measured: float
    predicted: float
    tolerance: float
    passed: bool
    source: str
    relation: Literal["≈", "≤", "≥"] = "≈"

    @property
    def expected(self) -> str:
        """What was predicted, as a person writes it."""
        if self.relation == "≈":
            return f"{self.predicted:.4g} ± {self.tolerance:.2g}"
        return f"{self.relation} {self.predicted:.4g}"


def near(
    name: str, measured: float, predicted: float, source: str, relative: float = 0.0, absolute: float = 0.0
) -> Check:
    """A check that two numbers agree to relative·|predicted| + absolute.

    Args:
        name: what is compared, for a person.
        measured: the number that was found.
        predicted: the number that the theory gives.
        source: where the prediction comes from.
        relative: relative part of the tolerance.
        absolute: absolute part of the tolerance.

    Returns:
        The check, which fails for NaN.
    """
    tolerance = relative * abs(predicted) + absolute
    passed = bool(abs(measured - predicted) <= tolerance)  # False for NaN
    return Check(name, float(measured), float(predicted), float(tolerance), passed, source)


def at_most(name: str, measured: float, bound: float, source: str) -> Check:
    """A check that measured ≤ bound.

    Args:
        name: what is compared, for a person.
        measured: the number that was found.
        bound: the number that it must not exceed.
        source: where the bound comes from.

    Returns:
        The check, which fails for NaN.
    """
    return Check(name, float(measured), float(bound), 0.0, bool(measured <= bound), source, "≤")


def at_least(name: str, measured: float, bound: float, source: str) -> Check:
    """A check that measured ≥ bound.

    Args:
        name: what is compared, for a person.
        measured: the number that was found.
        bound: the number that it must reach.
        source: where the bound comes from.

    Returns:
        The check, which fails for NaN.
    """
    return Check(name, float(measured), float(bound), 0.0, bool(measured >= bound), source, "≥")


@dataclass(frozen=True, eq=False)
class Result:
    """What a recipe found: checks, the rows of its table, its data and its figure."""

    checks: Sequence[Check]
    table: Sequence[Row]
    data: xr.Dataset
    figure: Figure


@dataclass(frozen=True)
class Recipe:
    """A named experiment; `line` says in one line what it shows. `quick` runs take under a minute.

    `sweeps`: of `quick`, the sweeps it needs, declared as in docs/sweeps.md or by `declare_runs`. They are
    done first, in workers on every core unless quick, and `run` is called with (quick, progress, datasets by
    name) then.
    """

    name: str
    line: str
    run: Callable[..., Result]
    sweeps: Callable[[bool], Mapping[str, Declared]] | None = None


@dataclass(frozen=True)
class Reproduction:
    """A recipe that was run: where its files are, and the checks."""

    recipe: Recipe
    path: Path
    checks: Sequence[Check]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)


def find(recipes: Iterable[Recipe], name: str) -> Recipe:
    """The recipe of that name; for an unknown one, a sentence with the nearest known."""
    known = {recipe.name: recipe for recipe in recipes}
    if name in known:
        return known[name]
    nearest = difflib.get_close_matches(name, known, 1, 0)[0]
    listed = ", ".join(known)
    raise InputError(f"`name` must be a recipe, but was {name!r}; did you mean {nearest!r}? Known: {listed}")


def reproduce(recipe: Recipe, out: Path | str, quick: bool, progress: Progress) -> Reproduction:
    """Run a recipe and write its files to the directory out/NAME.

    A former result of a recipe there is replaced; a directory with anything else in it is refused, before
    the run, and so is a place that cannot be written to.

    Args:
        recipe: what to run.
        out: the directory for results.
        quick: whether to run the smaller size.
        progress: told how far it is.

    Returns:
        Where the files are, and the checks.
    """
    path = as_path(out, "out") / recipe.name
    make_directory(path.parent, "out")
    refuse_foreign(path)
    began = time.monotonic()
    result = _run(recipe, path.with_name(f".{recipe.name}.cells"), quick, progress)
    seconds = time.monotonic() - began
    outcome = Reproduction(recipe, path, result.checks, seconds)
    verdict = {
        "format": FORMAT,
        "recipe": recipe.name,
        "about": recipe.line,
        "quick": quick,
        "passed": outcome.passed,
        "seconds": round(seconds, 1),
        "versions": versions(),
        "checks": [_plain(asdict(check)) for check in result.checks],
    }
    write_whole(path, lambda draft: _write(draft, result, verdict))
    return outcome


def _run(recipe: Recipe, cells: Path, quick: bool, progress: Progress) -> Result:
    """Sweeps first. Their cells stay until the recipe is through: one that was killed goes on with them."""
    if recipe.sweeps is None:
        return recipe.run(quick, progress)
    found = swept(recipe.sweeps(quick), cells, 0 if quick else None, partial(_part, progress, 0.0, SWEEPING))
    result = recipe.run(quick, partial(_part, progress, SWEEPING, 1.0), found)
    shutil.rmtree(cells, ignore_errors=True)
    return result


def _part(progress: Progress, first: float, last: float, done: float, what: str) -> None:
    progress(first + (last - first) * done, what)


def swept(
    declared: Mapping[str, Declared], place: Path, executor: int | None, progress: Progress
) -> dict[str, xr.Dataset]:
    """The datasets of declared sweeps; a cell that fails is an error.

    Args:
        declared: the sweeps by name, as tables or as grids of objects.
        place: directory under which their cells are kept.
        executor: as for `sweep`.
        progress: told how far they are.

    Returns:
        The datasets by name.
    """
    found = {}
    for k, (name, declaration) in enumerate(declared.items()):
        # cells of other sizes or versions lie elsewhere
        said = declaration.declaration if isinstance(declaration, Grid) else plain(dict(declaration))
        mark = data_hash({"declaration": said, "versions": versions()})[:12]
        tell = partial(_tell, progress, k / len(declared), 1 / len(declared), name)
        found[name] = tkf.sweep(declaration, executor, store=place / f"{name}-{mark}", progress=tell)
        for sentence in failures(found[name]):
            raise RunError(f"a cell of the sweep {name!r} failed: {sentence}")
    return found


def _tell(progress: Progress, first: float, share: float, name: str, there: int, declared: int) -> None:
    progress(first + share * there / declared, f"{name}: {there} of {declared} runs")


def refuse_foreign(path: Path) -> None:
    """Refuse a place that holds something other than a former result."""
    if not (path.exists() or path.is_symlink()) or (path.is_dir() and not any(path.iterdir())):
        return
    try:
        ours = json.loads((path / VERDICT).read_text(encoding="utf8")).get("format") == FORMAT
        others = [each.name for each in path.iterdir() if each.name not in FILES]
    except (OSError, ValueError, AttributeError):
        ours, others = False, []
    if not ours or others:
        what = f"{others[0]}, which" if others else "something that"
        raise InputError(
            f"`out` must have room for a result, but {path} holds {what} is not one; move it elsewhere"
        )


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Write into a directory beside `path` and rename it, so that the result is there whole or not at all."""
    draft = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}"
    old = draft.with_name(draft.name + ".old")
    try:
        draft.mkdir(parents=True)
        write(draft)
        refuse_foreign(path)  # the run may have taken hours
        if path.exists():
            os.rename(path, old)
        os.rename(draft, path)
    except OSError as error:
        raise RunError(f"the result could not be written to {path}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        if old.exists() and not path.exists():
            os.rename(old, path)
        shutil.rmtree(old, ignore_errors=True)


def _write(draft: Path, result: Result, verdict: Mapping[str, Any]) -> None:
    for ending in ("pdf", "png"):
        figures.save(result.figure, draft / f"figure.{ending}")
    result.data.to_zarr(draft / "data.zarr", mode="w", consolidated=False, zarr_format=3)
    write_table(draft / "table.csv", result.table)
    text = json.dumps(verdict, indent=1, ensure_ascii=False, allow_nan=False)
    (draft / VERDICT).write_text(text, encoding="utf8")


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Rows as CSV, the columns in order of first use."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with path.open("w", encoding="utf8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def _plain(check: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN and no infinity: they become words."""
    odd = {k: str(v) for k, v in check.items() if isinstance(v, float) and not np.isfinite(v)}
    return check | odd


def page(outcomes: Sequence[Reproduction], out: Path) -> Path:
    """One HTML page of all figures and verdicts, beside the results; images by relative path."""
    parts = [_HEAD]
    for outcome in outcomes:
        parts.append(_section(outcome))
    parts.append("</body></html>\n")
    path = out / "index.html"
    draft = path.with_name(f".index.{uuid.uuid4().hex[:8]}")
    draft.write_text("\n".join(parts), encoding="utf8")
    os.replace(draft, path)
    return path


def _section(outcome: Reproduction) -> str:
    name, line = html.escape(outcome.recipe.name), html.escape(outcome.recipe.line)
    passed = sum(check.passed for check in outcome.checks)
    rows = "\n".join(_line(check) for check in outcome.checks)
    return f"""<section id="{name}">
<h2>{name}</h2>
<p>{line}</p>
<a href="{name}/figure.pdf"><img src="{name}/figure.png" alt="{line}"></a>
<p>{passed} of {len(outcome.checks)} checks passed, {outcome.seconds:.0f} s.
<a href="{name}/table.csv">table</a>, <a href="{name}/verdict.json">verdict</a></p>
<table><tr><th>check</th><th>measured</th><th>predicted</th><th>source</th><th></th></tr>
{rows}
</table></section>"""


def _line(check: Check) -> str:
    cells = (check.name, f"{check.measured:.4g}", check.expected, check.source)
    mark = "passed" if check.passed else "failed"
    inner = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
    return f'<tr class="{mark}">{inner}<td>{mark}</td></tr>'


_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>tokenfield: measured against predicted</title>
<meta name="viewport" content="width=device-width">
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
img { max-width: 100%; }
table { border-collapse: collapse; font-size: 14px; }
td, th { border-bottom: 1px solid #ddd; padding: .25rem .6rem; text-align: left; vertical-align: top; }
.failed td:last-child { color: #b00; font-weight: bold; }
</style></head><body>
<h1>Measured against predicted</h1>"""
