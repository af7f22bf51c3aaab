"""The `skit` command: one module per sub-command, and one place where errors become one line."""

import sys

import typer

from specbench_kit.cli import (
    bench,
    capacity,
    compare,
    interchange,
    listing,
    profile_drafter,
    profile_verifier,
    record,
    report,
    rerun,
    simulate,
    sweep,
    train_predictor,
)
from specbench_kit.cli.config_file import configurable
from specbench_kit.errors import SkitError

INTERRUPTED = 130
"""Exit code that typer makes of Ctrl-C."""

app = typer.Typer(
    name="skit",
    help="Benchmark speculative-decoding policies for edge-cloud LLM serving on one engine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("bench")(configurable(bench.bench))
app.command("rerun")(configurable(rerun.rerun))
app.command("report")(configurable(report.report))
app.command("compare")(configurable(compare.compare))
app.command("import")(configurable(interchange.import_run))
app.command("export")(configurable(interchange.export_run))
app.command("record")(configurable(record.record))
app.command("train-predictor")(configurable(train_predictor.train_predictor))
app.command("profile-verifier")(configurable(profile_verifier.profile_verifier))
app.command("profile-drafter")(configurable(profile_drafter.profile_drafter))
app.command("sweep")(configurable(sweep.sweep))
app.command("simulate")(configurable(simulate.simulate))
app.command("capacity")(configurable(capacity.capacity))
app.command("list")(configurable(listing.list_entries))


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
