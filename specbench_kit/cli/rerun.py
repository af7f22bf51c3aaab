"""`skit rerun`: run a run again, and say what differs."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench_kit.cli import options
from specbench_kit.option import MODELS, RUN

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.bench.rerun import Rerun


def rerun(
    run: Annotated[Path, typer.Argument(help="A run directory of `skit bench`, or a folder that holds one.")],
    target: Annotated[
        str | None, typer.Option(help="Where the target lies, if that cannot be found.", rich_help_panel=MODELS)
    ] = None,
    draft: Annotated[
        str | None, typer.Option(help="Where the draft model lies, if that cannot be found.", rich_help_panel=MODELS)
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Local datasets, or the folder of a prompt file; SKIT_DATA_DIR if left out.", rich_help_panel=RUN
        ),
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="The trace, where the run replayed one.", rich_help_panel=RUN)
    ] = None,
    device: Annotated[str | None, typer.Option(help="Another device than the run's.", rich_help_panel=MODELS)] = None,
    out: options.OutOption = Path("results"),
    as_json: options.JsonOption = False,
) -> None:
    """Run a run again from its run.json, and say what differs: environment, outputs, rounds and time."""
    from rich.console import Console

    console = Console(stderr=as_json)
    with console.status("loading models"):
        from specbench_kit.bench.rerun import rerun as run_again
        from specbench_kit.bench.restore import Places
    from specbench_kit.cli.progress import decoding_bar

    places = Places(target, draft, data_dir, replay, device)
    with decoding_bar() as report:
        done = run_again(run, places, out, ("skit", *sys.argv[1:]), report)
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
