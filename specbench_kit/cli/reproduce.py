"""`skit reproduce`: experiments of the papers, published numbers beside ours."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from specbench_kit.cli import options
from specbench_kit.cli.common import command_line, say
from specbench_kit.core import common_options as common
from specbench_kit.core.option import OUTPUT, RUN, Option

if TYPE_CHECKING:
    from rich.console import Console


def reproduce(
    names: Annotated[
        tuple[str, ...],
        Option("Experiments of `skit list experiments`, a paper such as wisp, or all.", argument=True),
    ],
    changed: Annotated[tuple[str, ...], Option("OPTION=VALUE replaces an input, as in seeds=5.", RUN, flag="set")] = (),
    sensitivity: Annotated[bool, Option("Move each assumed input over its range too.", RUN)] = True,
    out: common.Out = Path("results"),
    to: Annotated[Path | None, Option("Write the pages into this folder itself.", OUTPUT)] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Run experiments of the papers and hold what comes out against the published numbers."""
    from rich.console import Console

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.deployments.fields import parse_field
    from specbench_kit.studies.reproduction.run import run

    console = Console(stderr=as_json)
    with stepping_bar() as report:
        outcome = run(names, dict(map(parse_field, changed)), sensitivity, out, to, report, command_line())
    for found in outcome.summary["experiments"]:
        _print(console, found)
    say(console, f"report: {outcome.folder / 'README.md'}")
    if as_json:
        print(json.dumps({"run_dirs": [str(outcome.folder)], "summary": outcome.summary}, allow_nan=False))


def _print(console: "Console", found: dict[str, Any]) -> None:
    from specbench_kit.reports.experiments.terminal import print_experiment

    print_experiment(console, found)
