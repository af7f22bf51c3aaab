"""`skit reproduce`: experiments of the papers, published numbers beside ours."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench_kit.cli import options
from specbench_kit.cli.common import say
from specbench_kit.core.option import OUTPUT, RUN

if TYPE_CHECKING:
    from rich.console import Console


def reproduce(
    names: Annotated[
        list[str], typer.Argument(help="Experiments of `skit list experiments`, a paper such as wisp, or all.")
    ],
    changed: Annotated[
        list[str] | None,
        typer.Option("--set", help="OPTION=VALUE replaces an input, as in seeds=5.", rich_help_panel=RUN),
    ] = None,
    sensitivity: Annotated[
        bool, typer.Option(help="Move each assumed input over its range too.", rich_help_panel=RUN)
    ] = True,
    out: Annotated[Path, typer.Option(help="Folder that run directories are made in.", rich_help_panel=OUTPUT)] = Path(
        "results"
    ),
    to: Annotated[
        Path | None, typer.Option(help="Write the pages into this folder itself.", rich_help_panel=OUTPUT)
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Run experiments of the papers and hold what comes out against the published numbers."""
    from rich.console import Console

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.deployments.fields import parse_field
    from specbench_kit.studies.reproduction.run import run

    console = Console(stderr=as_json)
    with stepping_bar() as report:
        outcome = run(
            names, dict(map(parse_field, changed or ())), sensitivity, out, to, report, ("skit", *sys.argv[1:])
        )
    for found in outcome.summary["experiments"]:
        _print(console, found)
    say(console, f"report: {outcome.folder / 'README.md'}")
    if as_json:
        print(json.dumps({"run_dirs": [str(outcome.folder)], "summary": outcome.summary}, allow_nan=False))


def _print(console: "Console", found: dict[str, Any]) -> None:
    from specbench_kit.reports.experiments.terminal import print_experiment

    print_experiment(console, found)
