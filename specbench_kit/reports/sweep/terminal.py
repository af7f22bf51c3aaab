"""A sweep as a compact table on the terminal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specbench_kit.reports.sweep import wording
from specbench_kit.reports.writing.cautions import setting_cautions
from specbench_kit.reports.writing.formatting import rate, significant, times
from specbench_kit.reports.writing.wording import dataset_sentence, time_kind

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Fields = Mapping[str, Any]
FASTEST = "*"
FASTEST_NOTE = f"{FASTEST} the highest speedup there"


def print_sweep(console: "Console", run: Fields, summary: Fields) -> None:
    """A row per point and method, then where each method breaks even."""
    from rich.text import Text

    setting = [dataset_sentence(run["dataset"]), f"batch size {run['config']['batch_size']}", time_kind(dict(run))]
    console.print(Text(" · ".join(setting), style="dim"))
    console.print(_table(summary))
    console.print(Text(FASTEST_NOTE, style="dim"))
    for line in wording.headlines(summary):
        console.print(Text(line, style="bold"), soft_wrap=True)
    for line in setting_cautions(dict(run)):
        console.print(Text(line, style="bold yellow"))


def _table(summary: Fields) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for key in summary["axes"]:
        table.add_column(key, justify="right")
    table.add_column("method", overflow="fold")
    for name in ("speedup", "throughput", "acceptance length"):
        table.add_column(name, justify="right")
    fastest = [{**one["place"], "method": one["method"]} for one in summary["fastest"]]
    for row in summary["rows"]:
        leads = any(one.items() <= row.items() for one in fastest)
        method = f"{row['method']} {FASTEST}" if leads else row["method"]
        places = [wording.number(row[key]) for key in summary["axes"]]
        cells = [times(row["speedup"]), rate(row["throughput"]), significant(row["acceptance_length"])]
        table.add_row(*map(Text, (*places, method, *cells)))
    return table
