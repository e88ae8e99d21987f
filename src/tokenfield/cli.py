"""The command line: reads settings, calls the library, prints what came out. No mathematics here."""

import contextlib
import json
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tokenfield import config, figures, store
from tokenfield.errors import InputError, RunError
from tokenfield.papers import catalogue, recipe
from tokenfield.papers.low_temperature import demo as headline
from tokenfield.simulate import simulate as run_simulation
from tokenfield.sweep import grid as sweeps
from tokenfield.sweep.cells import PROGRESS, in_use, is_sweep
from tokenfield.sweep.dataset import export, exportable, failures, open_sweep, summary
from tokenfield.sweep.drive import sweep as run_sweep
from tokenfield.sweep.estimate import estimate
from tokenfield.sweep.repeat import rerun as rerun_cell
from tokenfield.trajectory import FIXED, Trajectory

app = typer.Typer(
    help="Tokens of deep transformers as particles on the sphere: simulate them, measure them, look at them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
#: Rows of a list of cells that are shown.
SHOWN = 20


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Directory for the figure.")] = Path("out/demo"),
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
) -> None:
    """Watch tokens concentrate, stay, and leave: the headline experiment, in a minute.

    Runs the worked case of arXiv 2605.10931 on the circle at many temperatures, prints what was measured
    beside what the theory predicts, and draws the figure.
    """
    store.make_directory(out, "out")
    with _progress("demo", quiet) as progress:
        checks, figure = headline.demo(progress)
    console.print(_checks(headline.TITLE, checks))
    path = figures.save(figure, out / "demo.png")
    console.print(f"figure: {path}", highlight=False, soft_wrap=True)
    _complain(checks)


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A recipe, or all; none: list.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory for the results, one directory per recipe.")] = Path(
        "out/reproduce"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="A smaller size, under a minute each.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Reproduce a paper's figure or table: measured against predicted, with a verdict.

    Each recipe writes figure.pdf, figure.png, table.csv, data.zarr and verdict.json to DIR/NAME; `all` runs
    every one and makes DIR/index.html. Without a name, the recipes are listed.
    """
    if name is None:
        table = Table("recipe", "what it shows", title="tokenfield reproduce NAME")
        for known in catalogue.RECIPES:
            table.add_row(known.name, known.line)
        console.print(table)
        return
    chosen = catalogue.RECIPES if name == "all" else (recipe.find(catalogue.RECIPES, name),)
    for each in chosen:
        recipe.refuse_foreign(out / each.name)
    outcomes = [_reproduce(each, out, quick, quiet) for each in chosen]
    if name == "all":
        console.print(f"page: {recipe.page(outcomes, out)}", highlight=False, soft_wrap=True)
    _complain([check for outcome in outcomes for check in outcome.checks])


def _reproduce(chosen: recipe.Recipe, out: Path, quick: bool, quiet: bool) -> recipe.Outcome:
    with _progress(chosen.name, quiet) as progress:
        outcome = recipe.reproduce(chosen, out, quick, progress)
    console.print(_checks(chosen.name, outcome.checks))
    console.print(f"figure: {outcome.path / 'figure.png'}", highlight=False, soft_wrap=True)
    return outcome


def _checks(title: str, checks: Sequence[recipe.Check]) -> Table:
    table = Table("quantity", "measured", "predicted", "agrees", title=title)
    for check in checks:
        agrees = "yes" if check.passed else "[bold red]no"
        table.add_row(check.name, f"{check.measured:.4g}", check.expected, agrees)
    return table


def _complain(checks: Sequence[recipe.Check]) -> None:
    failed = sum(not check.passed for check in checks)
    if failed:
        raise RunError(f"{failed} of {len(checks)} checks do not agree with the theory")


@contextlib.contextmanager
def _progress(title: str, quiet: bool) -> Iterator[recipe.Progress]:
    """A bar that a recipe can move."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[what]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=quiet, transient=True) as bar:
        task = bar.add_task(title, total=1.0, what="")
        yield lambda done, what: bar.update(task, completed=done, what=what)


@app.command()
def simulate(
    settings: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The run to do; see configs/.")],
    out: Annotated[Path | None, typer.Option(help="Directory for the run; out/NAME if left out.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was cut short.")] = False,
    figure: Annotated[
        Path | None, typer.Option(help="Also draw it: .png, .pdf, .svg small multiples; .gif, .mp4 a film.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Do the run that a TOML file describes and store it.

    Snapshots are written while the run goes on. If it is killed, everything finished is kept, and the
    same command with --resume continues it to the same result.
    """
    arguments = config.read(settings).arguments()
    film = figure is not None and figures.is_film(figure)
    target = out or Path("out") / settings.stem
    trajectory = run_simulation(**arguments, store=target, resume=resume, progress=not quiet, strict=False)
    console.print(_summary(trajectory, target))
    if figure is not None and len(trajectory.x):
        figures.save(figures.animation(trajectory) if film else figures.small_multiples(trajectory), figure)
        console.print(f"figure: {figure}", highlight=False)
    if not trajectory.complete:
        raise RunError(trajectory.status)


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The sweep to do; see docs/sweeps.md.")],
    out: Annotated[Path | None, typer.Option(help="Directory for the sweep; out/NAME if left out.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the cells and say what they will cost.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Worker processes on this machine; one per core if left out.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A running dask scheduler to use instead.")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Compute the cells that failed once more.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Compute a grid of runs. If it is stopped, or killed, the same command goes on with it."""
    grid = sweeps.read(file)
    if dry_run:
        _dry_run(grid, quiet)
        return
    if scheduler is not None and workers is not None:
        raise InputError(f"`--workers` must not be given beside `--scheduler`, but was {workers}")
    target = out or Path("out") / (grid.store or file.stem)
    done = run_sweep(
        grid, workers if scheduler is None else scheduler, store=target, retry_failed=retry_failed,
        progress=not quiet, say=lambda sentence: console.print(sentence, highlight=False, soft_wrap=True),
    )  # fmt: skip
    console.print(f"{done.state.size} cells in {target}", highlight=False, soft_wrap=True)
    doubtful = int((done.resolved == 0).sum()) if "resolved" in done else 0
    if doubtful:
        console.print(f"under-resolved: {doubtful} of them; `status` says from when on", highlight=False)
    failed = failures(done)
    if failed:
        raise RunError(
            f"{len(failed)} of {done.state.size} cells failed, the first because: {failed[0]}"
            f" (all: tokenfield info {target}; once more: --retry-failed)"
        )


def _dry_run(grid: sweeps.Grid, quiet: bool) -> None:
    table = Table("", "cell", "settings", title=f"{len(grid.cells)} cells in {len(grid.batches)} tasks")
    shown = list(enumerate(grid.cells))
    for k, cell in shown if len(shown) <= SHOWN else shown[: SHOWN - 3]:
        table.add_row(str(k), cell.id[:12], grid.label(cell))
    if len(shown) > SHOWN:
        table.add_row("…", "", "")
        table.add_row(str(shown[-1][0]), shown[-1][1].id[:12], grid.label(shown[-1][1]))
    console.print(table)
    with _progress("dry run", quiet) as progress:
        cost = estimate(grid, progress)
    console.print(cost.sentence, highlight=False, soft_wrap=True)


@app.command()
def collect(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A sweep, finished or not.")],
    to: Annotated[Path | None, typer.Option(help="File to write: .nc, .csv or .parquet.")] = None,
) -> None:
    """Gather the cells of a sweep into one labelled dataset, and write it for other programs."""
    if to is not None:
        exportable(to)
    dataset = open_sweep(path)
    console.print(str(dataset.drop_attrs()), highlight=False, markup=False)
    if to is not None:
        console.print(f"written: {export(dataset, to)}", highlight=False, soft_wrap=True)


@app.command()
def rerun(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A sweep.")],
    cell: Annotated[str, typer.Argument(metavar="CELL", help="Its number, or the beginning of its hash.")],
) -> None:
    """Compute one cell of a sweep once more and compare it with what is stored."""
    found = rerun_cell(path, cell)
    console.print(found.sentence, highlight=False, soft_wrap=True)
    if not found.identical:
        raise RunError("the cell did not come out the same")


@app.command()
def lab(
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="A stored run to play, or a TOML file to run.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen at; the default is this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; the next free one if it is taken.")] = 8080,
    out: Annotated[Path, typer.Option(help="Directory for what is saved from the page.")] = Path("out/lab"),
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Watch tokens concentrate, stay and leave, live in a browser: change anything, scrub, save.

    Everything is served by this machine, and to this machine only unless --host says otherwise. Ctrl-C ends.
    """
    from tokenfield.lab import app as live  # viser takes a second to import

    if not live.is_loopback(host):
        console.print(
            f"[bold yellow]warning:[/] {host} is not a loopback address: whoever can reach this port can use"
            " the lab, open runs and write files here",
            soft_wrap=True,
        )

    def ready(url: str) -> None:
        console.print(f"lab: {url}  (Ctrl-C ends)", highlight=False, soft_wrap=True)
        if browser:
            webbrowser.open(url)

    live.serve(path, host, port, out, ready)


@app.command()
def info(path: Annotated[Path, typer.Argument(metavar="PATH", help="A stored run, or a sweep.")]) -> None:
    """Say what a stored run or sweep is, how far it got, what it cost, and what made it."""
    if is_sweep(path):
        _sweep_info(path)
        return
    manifest = store.read_manifest(path)
    store.check_data(path, manifest["written"], FIXED)
    table = Table("", "", title=str(path), show_header=False)
    status = manifest.get("status", "interrupted or still running; --resume goes on")
    table.add_row("status", status)
    table.add_row("times reached", f"{manifest['reached']} of {_asked(manifest)}")
    for name, count in manifest["written"].items():
        table.add_row(f"records of {name}", str(count))
    for section in ("model", "solver", "tokens", "merge_angle"):
        table.add_row(section, _short(manifest["inputs"].get(section)))
    for name, value in manifest.get("stats", {}).items():
        table.add_row(name, _short(value))
    table.add_row("versions", ", ".join(f"{k} {v}" for k, v in manifest["versions"].items()))
    console.print(table)


def _sweep_info(path: Path) -> None:
    facts = summary(path)
    table = Table("", "", title=str(path), show_header=False)
    table.add_row("axes", ", ".join(f"{name} ({count})" for name, count in facts["axes"].items()))
    for name in ("declared", "done", "failed", "missing"):
        table.add_row(f"cells {name}", str(facts[name]))
    if in_use(path):
        told = json.loads((path / PROGRESS).read_text()) if (path / PROGRESS).exists() else {}
        left = told.get("seconds_left")
        table.add_row("running now", f"{told.get('running', '?')} at {told.get('cells_per_second', 0):.3g}/s,"
                      f" {'?' if left is None else f'{left:.3g}'} s left")  # fmt: skip
        table.add_row("dashboard", str(told.get("dashboard", "")))
    else:
        table.add_row("running now", "no")
    for id, label, sentence in facts["failures"][:SHOWN]:
        table.add_row(f"failed {id[:12]}", f"{label}: {sentence}")
    table.add_row("host", _short(facts["host"]))
    table.add_row("versions", ", ".join(f"{k} {v}" for k, v in facts["versions"].items()))
    console.print(table)


def _asked(manifest: dict[str, Any]) -> int:
    """How many times the run was asked for; many are kept as shape and hash only."""
    match manifest["inputs"].get("ts"):
        case list(ts):
            return len(ts)
        case {"shape": [int(count)]}:
            return count
    return manifest["reached"]


def _summary(trajectory: Trajectory, path: Path) -> Table:
    table = Table("", "", title="run", show_header=False)
    table.add_row("status", trajectory.status)
    for name, value in trajectory.stats.items():
        table.add_row(name, _short(value))
    for name, values in trajectory.measured.items():
        if len(values) and values.ndim == 1:
            table.add_row(name, f"{values[0]:.6g} → {values[-1]:.6g}")
    table.add_row("stored in", str(path))
    return table


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        value = {k: v for k, v in value.items() if k != "sha256"}
        return ", ".join(f"{k} {_short(v)}" for k, v in value.items())
    text = str(value)
    return text if len(text) <= 200 else text[:200] + " …"


def main() -> None:
    """Entry point: every expected trouble is one sentence on standard error and exit code 1 or 2."""
    try:
        app()
    except InputError as error:
        _fail(error, 2)
    except RunError as error:
        _fail(error, 1)


def _fail(error: Exception, code: int) -> None:
    sys.stderr.write(f"tokenfield: {error}\n")
    sys.exit(code)
