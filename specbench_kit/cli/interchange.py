"""`skit import` and `skit export`: files of other tools."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench_kit.cli import options
from specbench_kit.cli.declared import Given, options_of
from specbench_kit.errors import SkitError
from specbench_kit.interchange.importing import Names
from specbench_kit.option import OUTPUT, RUN

if TYPE_CHECKING:
    from rich.console import Console

RESULTS, TRACE = Path("results"), Path("results/trace.parquet")
FormatOption = Annotated[str, typer.Option("--format", help="A name from `skit list formats`.")]


@options_of(Names)
def import_run(
    given: Given,
    file: Annotated[Path, typer.Argument(help="A file that another tool wrote.", show_default=False)],
    name: FormatOption = "spec-bench",
    baseline: Annotated[
        Path | None,
        typer.Option(help="The file of plain autoregressive decoding on the same prompts.", rich_help_panel=RUN),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder that run directories are made in, or the trace to write.",
            show_default="results, or results/trace.parquet",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Make a run directory of another tool's file, so that its numbers stand in the same reports.

    A file that tells what was accepted in each step makes a trace, to be replayed with --deployment.
    """
    from rich.console import Console

    from specbench_kit.interchange.base import formats

    console, names, argv = Console(stderr=as_json), Names(**given), ("skit", *sys.argv[1:])
    if formats.get(name).gives_traces:
        if baseline is not None:
            raise SkitError("--baseline: a replay of the trace has its own baseline, leave it out")
        _import_trace(console, file, name, names, out or TRACE, argv, as_json)
    else:
        _import_run(console, file, name, baseline, names, out or RESULTS, argv, as_json)


def _import_trace(
    console: "Console", file: Path, name: str, names: Names, out: Path, argv: tuple[str, ...], as_json: bool
) -> None:
    from specbench_kit.cli.common import say
    from specbench_kit.interchange.importing import import_trace

    done = import_trace(file, name, names, out, argv)
    for note in done.notes:
        say(console, f"note: {note}")
    say(console, f"trace: {done.path} ({done.requests} requests, {done.offsets} offsets)")
    if as_json:
        print(json.dumps({"trace": str(done.path), "requests": done.requests, "notes": list(done.notes)}))


def _import_run(
    console: "Console",
    file: Path,
    name: str,
    baseline: Path | None,
    names: Names,
    out: Path,
    argv: tuple[str, ...],
    as_json: bool,
) -> None:
    from specbench_kit.cli.common import say
    from specbench_kit.interchange.importing import import_file
    from specbench_kit.reports.run.terminal import print_summary

    done = import_file(file, name, baseline, names, out, argv)
    print_summary(console, done.directory.run, [done.summary])
    for note in done.directory.run["imported"]["notes"]:
        say(console, f"note: {note}")
    say(console, f"report: {done.directory.path / 'report.md'}")
    if as_json:
        run = {"run_dirs": [str(done.directory.path)], "summary": {done.summary["method"]: done.summary}}
        print(json.dumps(run, allow_nan=False))


def export_run(
    run: Annotated[
        Path, typer.Argument(help="A run directory of `skit bench`, or a folder that holds one.", show_default=False)
    ],
    name: FormatOption,
    out: Annotated[Path, typer.Option(help="The file to write.", rich_help_panel=OUTPUT)],
) -> None:
    """Write a run's requests as a file that another tool reads."""
    from rich.console import Console

    from specbench_kit.cli.common import say
    from specbench_kit.interchange.importing import export_run as write

    write(run, name, out)
    say(Console(), f"{name}: {out}")
