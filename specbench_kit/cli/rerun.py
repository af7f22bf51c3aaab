"""`skit rerun`: run a run again, and say what differs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specbench_kit.cli import options
from specbench_kit.cli.common import command_line
from specbench_kit.core import common_options as common
from specbench_kit.studies.rerun.options import RerunOptions

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.studies.rerun.run import RerunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What is run again, and where to."""

    run: common.RunFolder
    out: common.Out = Path("results")


def rerun(asked: Again, options_given: RerunOptions, as_json: options.JsonOption = False) -> None:
    """Run a run again from its run.json, and say what differs: environment, outputs, rounds and time."""
    from rich.console import Console

    console = Console(stderr=as_json)
    with console.status("loading models"):
        from specbench_kit.studies.rerun.run import rerun as run_again
    from specbench_kit.cli.progress import decoding_bar

    with decoding_bar() as report:
        done = run_again(asked.run, options_given, asked.out, command_line(), report)
    _print_differences(console, done)
    if as_json:
        print(json.dumps(_document(done), allow_nan=False))


def _print_differences(console: "Console", done: "RerunResult") -> None:
    from specbench_kit.cli.common import say

    for line in done.differences.lines():
        say(console, line)
    say(console, f"report: {done.conclusion.directory.path / 'report.md'}")


def _document(done: "RerunResult") -> dict[str, object]:
    summary = done.conclusion.summary
    return {
        "run_dirs": [str(done.conclusion.directory.path)],
        "summary": {summary["method"]: summary},
        "differences": done.differences.to_dict(),
    }
