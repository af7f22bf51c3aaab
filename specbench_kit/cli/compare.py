"""`skit compare`: runs side by side, refused where they are not comparable."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from specbench_kit.cli import options
from specbench_kit.cli.report import Comparing
from specbench_kit.core.option import Option

FAILED = 1
"""Exit code where a condition of --fail-if holds."""
INCONCLUSIVE = 3
"""Exit code where none holds, but one on time could not be judged, since the machine was too busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging(Comparing):
    """What makes a comparison fail, and where its report goes."""

    fail_if: Annotated[
        tuple[str, ...],
        Option(
            "Exit with 1 if this holds for any method: a metric, an operator and a number, as in 'speedup<0.95', "
            "'itl.p99>50ms', 'speedup.high<1' or, against the first of two runs of one method, 'relative_speed<0.95' "
            "(each over its own run's baseline) and 'baseline_ratio<0.9' (the baselines: machine or engine changed); "
            "may be given several times. With 2 if it cannot be told, as of a run that cannot be read; with 3 if it is "
            "about time and a run was timed on a disturbed machine."
        ),
    ] = ()
    out: Annotated[Path | None, Option("Folder to write a report into; none is written without.")] = None


def compare(asked: Judging, as_json: options.JsonOption = False) -> None:
    """Compare runs of the same prompts, models, lengths, sampling and clock."""
    from rich.console import Console

    from specbench_kit.cli.common import say
    from specbench_kit.cli.report import as_document, write
    from specbench_kit.metrics.condition import Condition, disturbed_runs, require_readable, violations
    from specbench_kit.reports.comparison.terminal import print_comparison

    conditions = [Condition.parse(text) for text in asked.fail_if]
    wanted, look = asked.wanted(), asked.look()
    console = Console(stderr=as_json)
    comparison = asked.load()
    print_comparison(console, comparison, look)
    if asked.out is not None:
        write(console, comparison, asked.out, wanted, look)
    open_questions = disturbed_runs(comparison) if any(condition.is_timed for condition in conditions) else []
    judged = [condition for condition in conditions if not (open_questions and condition.is_timed)]
    failed = [line for condition in judged for line in violations(comparison, condition)]
    if as_json:
        print(json.dumps(as_document(comparison) | {"failed": failed, "inconclusive": open_questions}, allow_nan=False))
    for line in failed:
        say(Console(stderr=True), f"failed: {line}", style="bold red")
    for line in open_questions:
        say(Console(stderr=True), f"inconclusive: {line}; run it again on a quiet machine", style="bold red")
    if failed:
        raise typer.Exit(FAILED)
    if conditions:
        require_readable(comparison)
    if open_questions:
        raise typer.Exit(INCONCLUSIVE)
    if judged:
        say(console, f"passed: {', '.join(condition.text for condition in judged)} holds for no method")
