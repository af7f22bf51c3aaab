"""The same result as a compact table on the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specbench_kit.reports import wording
from specbench_kit.reports.vocabulary import BASELINE, COLUMNS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Fields = dict[str, Any]

SHOWN = ("speedup (95%)", "throughput", "tokens / verify", "acceptance")


def print_summary(console: "Console", run: Fields, summaries: Sequence[Fields]) -> None:
    """One table with a row per method and one for their baseline; `run` is any of the runs: they share its setting."""
    from rich.text import Text

    console.print(Text(_setting(run), style="dim"))
    console.print(_table(summaries))
    cautions = [f"{s['method']}: {caution}" for s in summaries for caution in wording.result_cautions(s)]
    for line in [*wording.setting_cautions(run), *cautions]:
        console.print(Text(line, style="bold yellow"))


def _setting(run: Fields) -> str:
    config = run.get("config") or {}
    parts = [wording.dataset_sentence(run.get("dataset") or {}), wording.sampling_sentence(config)]
    parts += [f"batch size {config.get('batch_size')}", wording.time_kind(run)]
    return " · ".join(parts)


def _table(summaries: Sequence[Fields]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", overflow="fold")
    for name in (*SHOWN, "lossless"):
        table.add_column(name.replace(" / ", " /\n"), justify="right", no_wrap=True)
    for label, overall, verdict in _rows(summaries):
        table.add_row(Text(label), *(Text(COLUMNS[name](overall)) for name in SHOWN), Text(verdict))
    return table


def _rows(summaries: Sequence[Fields]) -> list[tuple[str, Fields, str]]:
    baselines = [s["baseline"]["overall"] for s in summaries if s.get("baseline")]
    rows = [(s["method"], s["overall"], wording.lossless_short(s)) for s in summaries]
    return [(BASELINE, baselines[0], ""), *rows] if baselines else rows
