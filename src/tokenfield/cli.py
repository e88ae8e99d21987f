"""The command line: reads settings, calls the library, prints what came out. No mathematics here."""

import contextlib
import signal
import sys
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import lazy_loader
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tokenfield.errors import InputError, RunError
from tokenfield.registry import import_modules

if TYPE_CHECKING:
    from tokenfield import figures
    from tokenfield.config import reading as config
    from tokenfield.papers import catalogue, recipe
    from tokenfield.papers.low_temperature import demo as headline
    from tokenfield.runs import checkpoint, contents, files, lock, manifest, seal, store, trajectory
    from tokenfield.runs import simulate as runs
    from tokenfield.sweeps import dataset, directory, drive, estimate, repeat
    from tokenfield.sweeps import grid as sweeps
else:  # each is imported when a command needs it
    figures, config, catalogue, recipe, headline, runs = (
        lazy_loader.load(f"tokenfield.{name}", suppress_warning=True)
        for name in (
            "figures",
            "config.reading",
            "papers.catalogue",
            "papers.recipe",
            "papers.low_temperature.demo",
            "runs.simulate",
        )
    )
    checkpoint, contents, files, lock, manifest, seal, store, trajectory = (
        lazy_loader.load(f"tokenfield.runs.{name}", suppress_warning=True)
        for name in ("checkpoint", "contents", "files", "lock", "manifest", "seal", "store", "trajectory")
    )
    dataset, directory, drive, estimate, repeat, sweeps = (
        lazy_loader.load(f"tokenfield.sweeps.{name}", suppress_warning=True)
        for name in ("dataset", "directory", "drive", "estimate", "repeat", "grid")
    )

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
#: Rows of a list of cells that are shown.
SHOWN = 20


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print(metadata.version("tokenfield"), highlight=False)
        raise typer.Exit


@app.callback()
def options(
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Import a module of yours that registers laws, models, measures or presets; from this"
            " directory or wherever Python looks. May be given several times.",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Tokens of deep transformers as particles on the sphere: simulate them, measure them, look at them."""
    if modules:
        sys.path.insert(0, str(Path.cwd()))
        import_modules(modules)


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


def _reproduce(chosen: "recipe.Recipe", out: Path, quick: bool, quiet: bool) -> "recipe.Reproduction":
    with _progress(chosen.name, quiet) as progress:
        outcome = recipe.reproduce(chosen, out, quick, progress)
    console.print(_checks(chosen.name, outcome.checks))
    console.print(f"figure: {outcome.path / 'figure.png'}", highlight=False, soft_wrap=True)
    return outcome


def _checks(title: str, checks: Sequence["recipe.Check"]) -> Table:
    table = Table("quantity", "measured", "predicted", "agrees", title=title)
    for check in checks:
        agrees = "yes" if check.passed else "[bold red]no"
        table.add_row(check.name, f"{check.measured:.4g}", check.expected, agrees)
    return table


def _complain(checks: Sequence["recipe.Check"]) -> None:
    failed = sum(not check.passed for check in checks)
    if failed:
        raise RunError(f"{failed} of {len(checks)} checks do not agree with the theory")


@contextlib.contextmanager
def _progress(title: str, quiet: bool) -> Iterator["recipe.Progress"]:
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
    same command with --resume continues it to the same result, to the bit if the number of threads is the
    same; if it is not, the status says what that means.
    """
    arguments = config.read(settings).arguments()
    film = figure is not None and figures.is_film(figure)
    target = out or Path("out") / settings.stem
    trajectory = runs.simulate(**arguments, store=target, resume=resume, progress=not quiet, strict=False)
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
    done = drive.sweep(
        grid,
        workers if scheduler is None else scheduler,
        store=target,
        retry_failed=retry_failed,
        progress=not quiet,
        say=lambda sentence: console.print(sentence, highlight=False, soft_wrap=True),
    )
    console.print(f"{done.state.size} cells in {target}", highlight=False, soft_wrap=True)
    doubtful = int((done.resolved == 0).sum()) if "resolved" in done else 0
    if doubtful:
        console.print(f"under-resolved: {doubtful} of them; `status` says from when on", highlight=False)
    failed = dataset.failures(done)
    if failed:
        raise RunError(
            f"{len(failed)} of {done.state.size} cells failed, the first because: {failed[0]}"
            f" (all: tokenfield info {target}; once more: --retry-failed)"
        )


def _dry_run(grid: "sweeps.Grid", quiet: bool) -> None:
    table = Table("", "cell", "settings", title=f"{len(grid.cells)} cells in {len(grid.batches)} tasks")
    shown = list(enumerate(grid.cells))
    for k, cell in shown if len(shown) <= SHOWN else shown[: SHOWN - 3]:
        table.add_row(str(k), cell.id[:12], grid.label(cell))
    if len(shown) > SHOWN:
        table.add_row("…", "", "")
        table.add_row(str(shown[-1][0]), shown[-1][1].id[:12], grid.label(shown[-1][1]))
    console.print(table)
    with _progress("dry run", quiet) as progress:
        cost = estimate.estimate(grid, progress)
    console.print(cost.sentence, highlight=False, soft_wrap=True)


@app.command()
def collect(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A sweep, finished or not.")],
    to: Annotated[Path | None, typer.Option(help="File to write: .nc, .csv or .parquet.")] = None,
) -> None:
    """Gather the cells of a sweep into one labelled dataset, and write it for other programs."""
    if to is not None:
        dataset.exportable(to)
    found = dataset.open_sweep(path)
    console.print(str(found.drop_attrs()), highlight=False, markup=False)
    if to is not None:
        console.print(f"written: {dataset.export(found, to)}", highlight=False, soft_wrap=True)


@app.command()
def rerun(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A sweep.")],
    cell: Annotated[str, typer.Argument(metavar="CELL", help="Its number, or the beginning of its hash.")],
) -> None:
    """Compute one cell of a sweep once more and compare it with what is stored."""
    found = repeat.rerun(path, cell)
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

    Everything is served by this machine, and to this machine only unless --host says otherwise; the page
    opens only at the address that is printed, with its token. Ctrl-C ends.
    """
    from tokenfield.lab import app as live  # viser takes a second to import
    from tokenfield.lab import guard

    if not guard.is_loopback(host):
        console.print(
            f"[bold yellow]warning:[/] {host} is not a loopback address: whoever can reach this port and"
            " learns the address below (it is not encrypted on its way) can open runs and write files here",
            soft_wrap=True,
        )

    def ready(url: str) -> None:
        console.print(f"lab: {url}  (Ctrl-C ends)", highlight=False, soft_wrap=True)
        if browser:
            webbrowser.open(url)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # Ctrl-C is how the lab is ended
    live.serve(
        path, host, port, out, ready, lambda sentence: console.print(sentence, highlight=False, markup=False)
    )


@app.command()
def info(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A stored run, or a sweep.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file and compare it with its hash.")
    ] = False,
) -> None:
    """Say what a stored run or sweep is, how far it got, what it cost, and what made it."""
    path = files.as_path(path, "path")
    if directory.is_sweep(path):
        _sweep_info(path, verify)
        return
    facts = manifest.read_manifest(path)
    held = contents.contents_of(facts)
    contents.check_data(path, held)
    table = Table("", "", title=str(path), show_header=False)
    status = facts.get("status", "interrupted or still running; --resume goes on")
    table.add_row("status", status)
    table.add_row("times reached", f"{facts['reached']} of {_asked(facts)}")
    for name, count in facts["written"].items():
        table.add_row(f"records of {name}", str(count))
    for section in ("model", "solver", "tokens", "merge_angle"):
        table.add_row(section, _short(facts["inputs"].get(section)))
    for name, value in facts.get("stats", {}).items():
        table.add_row(name, _short(value))
    table.add_row("threads", "; then ".join(map(_short, facts.get("threads", []))))
    table.add_row("versions", ", ".join(f"{k} {v}" for k, v in facts["versions"].items()))
    if verify:
        table.add_row("verified", _verified(path, facts, held))
    console.print(table)


def _verified(path: Path, facts: dict[str, Any], held: "contents.Contents") -> str:
    """Every file of a stored run compared with its hash; the first that differs is refused."""
    if held.chunks is None:
        raise InputError(f"`path` must be a store with hashes to be verified, but {path} is one of 0.1")
    count = contents.verify(path, held)
    checkpoint.read_checkpoint(path, seal.data_hash(facts["inputs"]))
    return f"all {count} chunks are as they were written"


def _sweep_info(path: Path, verify: bool) -> None:
    facts = dataset.summary(path)
    if verify:
        dataset.verify(path)
    table = Table("", "", title=str(path), show_header=False)
    table.add_row("axes", ", ".join(f"{name} ({count})" for name, count in facts["axes"].items()))
    for name in ("declared", "done", "failed", "missing"):
        table.add_row(f"cells {name}", str(facts[name]))
    if lock.is_locked(path):
        told = directory.read_progress(path)
        left = told.get("seconds_left")
        table.add_row(
            "running now",
            f"{told.get('running', '?')} at {told.get('cells_per_second', 0):.3g}/s,"
            f" {'?' if left is None else f'{left:.3g}'} s left",
        )
        table.add_row("dashboard", str(told.get("dashboard", "")))
    else:
        table.add_row("running now", "no")
    for id, label, sentence in facts["failures"][:SHOWN]:
        table.add_row(f"failed {id[:12]}", f"{label}: {sentence}")
    if verify:
        table.add_row("verified", f"all {facts['done'] + facts['failed']} cells are as they were written")
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


def _summary(trajectory: "trajectory.Trajectory", path: Path) -> Table:
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
    """Entry point: every expected trouble is one sentence on standard error and exit code 1, 2 or 130."""
    interrupted: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        interrupted.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = _repeat_lost_interrupt
    try:
        app()
    except BaseException as error:
        # whatever became of the interrupt on its way up, as inside an import
        if interrupted or isinstance(error, KeyboardInterrupt):
            _fail("interrupted; what was finished is kept, and what is stored can be gone on with", 130)
        if isinstance(error, InputError | RunError):
            _fail(error, 2 if isinstance(error, InputError) else 1)
        raise
    finally:
        signal.signal(signal.SIGINT, before)
        sys.unraisablehook = sys.__unraisablehook__


def _repeat_lost_interrupt(unraisable: Any) -> None:
    """Send an interrupt again that Python discarded.

    Where the signal arrives in a callback of the garbage collector (JAX has one) or in a finaliser, Python
    prints the exception and goes on. A thread repeats it a little later, when that callback has ended.
    """
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        main_thread = threading.main_thread().ident
        again = threading.Timer(0.05, signal.pthread_kill, (main_thread, signal.SIGINT))
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(unraisable)


def _fail(sentence: object, code: int) -> None:
    sys.stderr.write(f"tokenfield: {sentence}\n")
    sys.exit(code)
