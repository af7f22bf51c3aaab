"""`skit rerun`: repeat a run and report what differs."""

from pathlib import Path

from typer import Exit

from specbench_kit.cli.common import JsonOption, command_line, print_json, say, say_report
from specbench_kit.cli.exit_codes import FAILED
from specbench_kit.core.common_options import Out, RunFolder
from specbench_kit.studies.rerun.options import RerunOptions


def rerun(
    run: RunFolder, options: RerunOptions, out: Out = Path("results"), as_json: JsonOption = False
) -> None:
    """Repeat the run and print the differences."""
    from rich.console import Console

    console = Console(stderr=as_json)
    with console.status("loading models"):
        from specbench_kit.studies.rerun.run import rerun as repeat
    from specbench_kit.cli.progress import decoding_bar

    with decoding_bar() as report:
        result = repeat(run, options, out, command_line(), report)
    folder = result.conclusion.directory.path
    for line in result.differences.lines():
        say(console, line)
    say_report(console, folder)
    if as_json:
        document = {
            "run_dirs": [str(folder)],
            "summary": {result.conclusion.summary.method: result.conclusion.summary},
            "differences": result.differences.to_dict(),
        }
        print_json(document)
    if not result.differences.is_repeated:
        raise Exit(FAILED)
