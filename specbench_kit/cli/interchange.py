"""`skit import` and `skit export`: files of other tools."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from specbench_kit.cli import options
from specbench_kit.cli.declared import Given, options_of
from specbench_kit.interchange.importing import Names
from specbench_kit.option import OUTPUT, RUN

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
    out: options.OutOption = Path("results"),
    as_json: options.JsonOption = False,
) -> None:
    """Make a run directory of another tool's file, so that its numbers stand in the same reports."""
    from rich.console import Console

    from specbench_kit.cli.common import say
    from specbench_kit.interchange.importing import import_file
    from specbench_kit.reports.run.terminal import print_summary

    console = Console(stderr=as_json)
    done = import_file(file, name, baseline, Names(**given), out, ("skit", *sys.argv[1:]))
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
