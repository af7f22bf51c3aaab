"""`skit rerun`: run a run again, and say what differs."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench_kit.bench.places import Places
from specbench_kit.cli import options
from specbench_kit.cli.declared import Given, options_of

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.bench.rerun import Rerun


@options_of(Places)
def rerun(
    given: Given,
    run: Annotated[Path, typer.Argument(help="A run directory of `skit bench`, or a folder that holds one.")],
    out: options.OutOption = Path("results"),
    as_json: options.JsonOption = False,
) -> None:
    """Run a run again from its run.json, and say what differs: environment, outputs, rounds and time."""
    from rich.console import Console

    console = Console(stderr=as_json)
    with console.status("loading models"):
        from specbench_kit.bench.rerun import rerun as run_again
    from specbench_kit.cli.progress import decoding_bar

    with decoding_bar() as report:
        done = run_again(run, Places(**given), out, ("skit", *sys.argv[1:]), report)
    _print_differences(console, done)
    if as_json:
        print(json.dumps(_document(done), allow_nan=False))


def _print_differences(console: "Console", done: "Rerun") -> None:
    from specbench_kit.cli.common import say

    for line in done.differences.lines():
        say(console, line)
    say(console, f"report: {done.conclusion.directory.path / 'report.md'}")


def _document(done: "Rerun") -> dict[str, object]:
    summary = done.conclusion.summary
    return {
        "run_dirs": [str(done.conclusion.directory.path)],
        "summary": {summary["method"]: summary},
        "differences": done.differences.to_dict(),
    }
