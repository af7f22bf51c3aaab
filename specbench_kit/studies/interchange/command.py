"""`skit import` and `skit export`: result files of other tools."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specbench_kit.cli.common import (
    JsonOption,
    command_line,
    print_json,
    say,
    say_report,
)
from specbench_kit.core.common_options import RunFolder
from specbench_kit.core.errors import require
from specbench_kit.core.option import OUTPUT, RUN, Option
from specbench_kit.studies.bench.terminal import print_run
from specbench_kit.studies.interchange.importing import ImportNames

if TYPE_CHECKING:
    from rich.console import Console

RESULTS = Path("results")
TRACE = Path("results/trace.parquet")
FormatName = Annotated[str, Option("A name from `skit list formats`.", flag="format")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """The file of another tool, and where its run directory or trace goes."""

    file: Annotated[Path, Option("Result file of another tool.", argument=True)]
    name: FormatName = "spec-bench"
    baseline: Annotated[
        Path | None,
        Option("Result file of plain autoregressive decoding on the same prompts.", RUN),
    ] = None
    out: Annotated[
        Path | None,
        Option(
            "Folder in which the run directory is created (default: results), or trace file to write (default: "
            "results/trace.parquet).",
            OUTPUT,
        ),
    ] = None


def import_run(options: ImportOptions, names: ImportNames, as_json: JsonOption = False) -> None:
    """Import the file as a trace if its format holds what was accepted in each step, otherwise as a
    run.
    """
    from rich.console import Console

    from specbench_kit.studies.interchange.base import formats

    console = Console(stderr=as_json)
    if formats.get(options.name).gives_traces:
        require(
            options.baseline is None,
            "--baseline: the replay of a trace has its own baseline; leave it out",
        )
        _import_trace(console, options, names, as_json)
    else:
        _import_run(console, options, names, as_json)


def _import_trace(
    console: "Console", options: ImportOptions, names: ImportNames, as_json: bool
) -> None:
    from specbench_kit.studies.interchange.importing import import_trace

    trace = import_trace(options.file, options.name, names, options.out or TRACE, command_line())
    say(console, trace.reading.line)
    for note in trace.notes:
        say(console, f"note: {note}")
    say(console, f"trace: {trace.path} ({trace.requests} requests, {trace.offsets} offsets)")
    if as_json:
        print_json(
            {
                "trace": str(trace.path),
                "requests": trace.requests,
                "notes": list(trace.notes),
                "file": trace.reading.line,
            }
        )


def _import_run(
    console: "Console", options: ImportOptions, names: ImportNames, as_json: bool
) -> None:
    from specbench_kit.reports import render_terminal
    from specbench_kit.reports.sections.cautions import foreign_files
    from specbench_kit.studies.interchange.importing import import_file

    argv = command_line()
    out = options.out or RESULTS
    conclusion = import_file(options.file, options.name, options.baseline, names, out, argv)
    directory = conclusion.directory
    document = directory.document
    render_terminal.show(console, foreign_files(document))
    print_run(console, conclusion)
    for note in document.imported.notes if document.imported else ():
        say(console, f"note: {note}")
    say_report(console, directory.path)
    if as_json:
        result = {
            "run_dirs": [str(directory.path)],
            "summary": {conclusion.summary.method: conclusion.summary},
        }
        print_json(result)


def export_run(
    run: RunFolder, name: FormatName, out: Annotated[Path, Option("File to write.", OUTPUT)]
) -> None:
    """Write the file and print its path."""
    from rich.console import Console

    from specbench_kit.studies.interchange.importing import export_run as write

    write(run, name, out)
    say(Console(), f"{name}: {out}")
