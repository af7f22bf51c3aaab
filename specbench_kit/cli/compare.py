"""`skit compare`: runs side by side, refused if they are not comparable."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from specbench_kit.cli.common import JsonOption
from specbench_kit.cli.report import ComparisonOptions
from specbench_kit.core.option import Option

FAILED = 1
"""Exit code if a condition of --fail-if holds."""
INCONCLUSIVE = 3
"""Exit code if none holds, but one could not be judged: a disturbed machine, or runs that are too small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions(ComparisonOptions):
    """The runs to compare, the conditions under which the comparison fails, and the folder of its report."""

    fail_if: Annotated[
        tuple[str, ...],
        Option(
            "Exit with 1 if this condition holds for any method: a metric, an operator and a number, such as "
            "'speedup<0.95', 'itl.p99>50ms' or 'speedup.high<1'. For two runs of one method, 'slower by 5%' asks "
            "whether the second is slower, by a test that fails 5% of equal versions and 80% of those that lost 5%; "
            "'baseline_ratio<0.9' compares the baselines, which differ if the machine or the engine changed. Exit "
            "with 2 if the condition cannot be evaluated, for instance because a run cannot be read, and with 3 if it "
            "is about time and a run was timed on a disturbed machine, or if the runs are too small to tell. May be "
            "given several times."
        ),
    ] = ()
    out: Annotated[Path | None, Option("Folder for a report; without it, none is written.")] = None


def compare(options: CheckOptions, as_json: JsonOption = False) -> None:
    """Print the comparison and exit with the code of the conditions."""
    from rich.console import Console

    from specbench_kit.cli.common import say
    from specbench_kit.cli.report import as_document, write
    from specbench_kit.metrics.gate import Condition, SlowerGate, disturbed_runs, require_readable, violations
    from specbench_kit.reports.comparison.terminal import print_comparison

    conditions = [SlowerGate.parse(text) or Condition.parse(text) for text in options.fail_if]
    formats = options.format_names()
    look = options.look()
    console = Console(stderr=as_json)
    comparison = options.load()
    print_comparison(console, comparison, look)
    if options.out is not None:
        write(console, comparison, options.out, formats, look)
    disturbances = disturbed_runs(comparison) if any(condition.is_timed for condition in conditions) else []
    judged = [condition for condition in conditions if not (disturbances and condition.is_timed)]
    failed: list[str] = []
    inconclusive = [f"{line}; run it again on a quiet machine" for line in disturbances]
    for condition in judged:
        if isinstance(condition, SlowerGate):
            result = condition.judge(comparison)
            failed += result.failed
            inconclusive += result.too_small
        else:
            failed += violations(comparison, condition)
    if as_json:
        document = as_document(comparison) | {"failed": failed, "inconclusive": inconclusive}
        print(json.dumps(document, allow_nan=False))
    for line in failed:
        say(Console(stderr=True), f"failed: {line}", style="bold red")
    for line in inconclusive:
        say(Console(stderr=True), f"inconclusive: {line}", style="bold red")
    if failed:
        raise typer.Exit(FAILED)
    if conditions:
        require_readable(comparison)
    if inconclusive:
        raise typer.Exit(INCONCLUSIVE)
    if judged:
        say(console, f"passed: {', '.join(condition.text for condition in judged)} holds for no method")
