"""The `skit` command, and the one place where errors become one line."""

import sys
from typing import Annotated

import typer

from specbench_kit.cli.commands import Commands
from specbench_kit.core.errors import SkitError
from specbench_kit.core.version import __version__

INTERRUPTED = 130
"""Exit code that typer makes of Ctrl-C."""

GUIDE = """Benchmark speculative-decoding policies for edge-cloud LLM serving on one engine.

  skit bench --method fixed-k                  one method on the bundled pair, and a report
  skit bench --method all --limit 20           every method side by side
  skit bench --method wisp --deployment wan    the same tokens, time modelled for a link
  skit compare results/A results/B             runs side by side, as a check with --fail-if
  skit train-predictor                         a rejection predictor for a pair, and what it is worth
  skit profile-verifier --gpu a100             how long a device takes to verify
  skit simulate, skit capacity                 many devices, one verifier
  skit new method my-rule                      a policy of your own, with its test, to start from
  skit serve, skit bench --server              a target here, drafts that come over a wire
  skit load, skit validate                     many devices at a real server, the simulator beside them
  skit reproduce wisp/table-2                  published numbers beside ours
  skit list                                    methods, datasets, deployments and the rest
  skit doctor                                  what is installed here, and what each missing part would bring

skit --help lists every command, skit COMMAND --help its options.
"""

app = typer.Typer(
    name="skit",
    cls=Commands,
    help="Benchmark speculative-decoding policies for edge-cloud LLM serving on one engine.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # the library would take longer to load than all else
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tell_version(asked: bool) -> None:
    if asked:
        print(f"specbench-kit {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_tell_version)
]


@app.callback(invoke_without_command=True)
def _start(context: typer.Context, version: VersionOption = False) -> None:
    del version  # told when it was met, before any other option
    if context.invoked_subcommand is None:
        print(GUIDE, end="")


def main() -> None:
    """Run the command line; bad input ends with one line on stderr and exit code 2."""
    try:
        _run()
    except SkitError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _run() -> None:
    try:
        app()
    except SystemExit as end:
        if end.code == INTERRUPTED:
            raise SkitError("interrupted") from None
        raise
    except OSError as error:
        raise SkitError(str(error)) from error
