"""A training run's result on the terminal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specbench_kit.reports.predictor import wording
from specbench_kit.reports.predictor.advice import advice
from specbench_kit.reports.writing import machine
from specbench_kit.reports.writing.console import print_warnings
from specbench_kit.reports.writing.formatting import share, significant, times

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = ("tokens/s", "of best\nfixed", "gap\nclosed", "acceptance", "tokens/\nverify")


def print_training(console: "Console", run: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
    """Every stop rule on the test prompts, then the conclusions."""
    from rich.table import Table
    from rich.text import Text

    print_warnings(console, machine.warnings(run))
    table = Table(box=None, pad_edge=False)
    table.add_column("stop rule", overflow="fold", min_width=20)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for name, found in summary["decoding"].items():
        table.add_row(Text(wording.label(name, found["kind"]).replace("`", "")), *map(Text, _row(found)))
    console.print(table)
    console.print(Text(advice(summary).replace("`", ""), style="bold"))
    for sentence in (wording.headline(summary), wording.classifier_adds(summary)):
        console.print(Text(sentence.replace("`", "")))
    for caution in wording.cautions(run, summary):
        console.print(Text(caution, style="bold yellow"))


def _row(found: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        significant(found["throughput"]),
        times(found["against_best_fixed"]["value"]),
        share(found["gap_closed"]["value"]),
        share(found["acceptance_rate"]),
        significant(found["acceptance_length"]),
    )
