"""`skit import` and `skit export`: files of other tools."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specbench_kit.cli import options
from specbench_kit.cli.common import command_line
from specbench_kit.core import common_options as common
from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import OUTPUT, RUN, Option
from specbench_kit.studies.interchange.importing import ImportNames

if TYPE_CHECKING:
    from rich.console import Console

RESULTS, TRACE = Path("results"), Path("results/trace.parquet")
FormatName = Annotated[str, Option("A name from `skit list formats`.", flag="format")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Importing:
    """What is imported, and where to."""

    file: Annotated[Path, Option("A file that another tool wrote.", argument=True)]
    name: FormatName = "spec-bench"
    baseline: Annotated[Path | None, Option("The file of plain autoregressive decoding on the same prompts.", RUN)] = (
        None
    )
    out: Annotated[
        Path | None,
        Option(
            "Folder that run directories are made in (results), or the trace to write (results/trace.parquet).", OUTPUT
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporting:
    """What is exported, and where to."""

    run: common.RunFolder
    name: FormatName
    out: Annotated[Path, Option("The file to write.", OUTPUT)]


def import_run(asked: Importing, names: ImportNames, as_json: options.JsonOption = False) -> None:
    """Make a run directory of another tool's file, so that its numbers stand in the same reports.

    A file that tells what was accepted in each step makes a trace, to be replayed with --deployment.
    """
    from rich.console import Console

    from specbench_kit.studies.interchange.base import formats

    console = Console(stderr=as_json)
    if formats.get(asked.name).gives_traces:
        if asked.baseline is not None:
            raise SkitError("--baseline: a replay of the trace has its own baseline, leave it out")
        _import_trace(console, asked, names, as_json)
    else:
        _import_run(console, asked, names, as_json)


def _import_trace(console: "Console", asked: Importing, names: ImportNames, as_json: bool) -> None:
    from specbench_kit.cli.common import say
    from specbench_kit.studies.interchange.importing import import_trace

    done = import_trace(asked.file, asked.name, names, asked.out or TRACE, command_line())
    for note in done.notes:
        say(console, f"note: {note}")
    say(console, f"trace: {done.path} ({done.requests} requests, {done.offsets} offsets)")
    if as_json:
        print(json.dumps({"trace": str(done.path), "requests": done.requests, "notes": list(done.notes)}))


def _import_run(console: "Console", asked: Importing, names: ImportNames, as_json: bool) -> None:
    from specbench_kit.cli.common import say
    from specbench_kit.reports.run.terminal import print_summary
    from specbench_kit.studies.interchange.importing import import_file

    argv = command_line()
    done = import_file(asked.file, asked.name, asked.baseline, names, asked.out or RESULTS, argv)
    print_summary(console, done.directory.run, [done.summary])
    for note in done.directory.run["imported"]["notes"]:
        say(console, f"note: {note}")
    say(console, f"report: {done.directory.path / 'report.md'}")
    if as_json:
        run = {"run_dirs": [str(done.directory.path)], "summary": {done.summary["method"]: done.summary}}
        print(json.dumps(run, allow_nan=False))


def export_run(asked: Exporting) -> None:
    """Write a run's requests as a file that another tool reads."""
    from rich.console import Console

    from specbench_kit.cli.common import say
    from specbench_kit.studies.interchange.importing import export_run as write

    write(asked.run, asked.name, asked.out)
    say(Console(), f"{asked.name}: {asked.out}")
