"""The command line: reads settings, calls the library, prints what came out. No mathematics here."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tokenfield import config, figures, store
from tokenfield.errors import InputError, RunError
from tokenfield.papers import low_temperature
from tokenfield.simulate import simulate as run_simulation
from tokenfield.trajectory import FIXED, Trajectory

app = typer.Typer(
    help="Tokens of deep transformers as particles on the sphere: simulate them, measure them, look at them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Directory for the figure.")] = Path("out/demo"),
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
) -> None:
    """Watch tokens concentrate, stay, and leave: the headline experiment, in a minute.

    Runs the worked case of arXiv 2605.10931 on the circle at three temperatures, prints what was measured
    beside what the theory predicts, and draws the figure.
    """
    result = low_temperature.demo(progress=not quiet)
    table = Table("quantity", "measured", "predicted", "agrees", title=result.title)
    for row in result.rows:
        table.add_row(row.quantity, row.measured, row.predicted, "yes" if row.agrees else "[bold red]no")
    console.print(table)
    path = out / "demo.png"
    figures.save(low_temperature.demo_figure(result), path)
    console.print(f"figure: {path}", highlight=False)
    if not all(row.agrees for row in result.rows):
        raise RunError("the demonstration does not agree with the theory")


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
def info(path: Annotated[Path, typer.Argument(metavar="PATH", help="A stored run.")]) -> None:
    """Say what a stored run is, how far it got, what it cost, and what made it."""
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
