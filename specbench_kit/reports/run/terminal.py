"""The result of a run as a compact table on the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specbench_kit.metrics.setting import method_label, sampling_sentence
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.reports.writing import colocation, machine, wording
from specbench_kit.reports.writing.cautions import result_cautions, resumption_cautions, setting_cautions
from specbench_kit.reports.writing.console import empty_table, print_warnings
from specbench_kit.reports.writing.formatting import times
from specbench_kit.reports.writing.values import COLUMNS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Fields = dict[str, Any]

SHOWN = ("speedup (95%)", "throughput", "acceptance length", "acceptance")


def print_summary(console: "Console", run: Fields, summaries: Sequence[Fields]) -> None:
    """One table with a row per method and one for their baseline; `run` is any of the runs: they share its setting."""
    from rich.text import Text

    print_warnings(console, machine.warnings(run))
    console.print(Text(_setting(run), style="dim"))
    console.print(_table(run, summaries))
    for summary in summaries:
        if doubt := wording.speedup_doubt(run, summary):
            console.print(Text(f"{summary['method']}: {times(summary['overall']['speedup'])}, {doubt}"))
    cautions = [f"{s['method']}: {caution}" for s in summaries for caution in result_cautions(s)]
    for summary in summaries:
        cautions += colocation.cautions(str(summary["method"]), summary["overall"])
    for line in [*resumption_cautions(run), *setting_cautions(run), *cautions]:
        console.print(Text(line, style="bold yellow"))


def _setting(run: Fields) -> str:
    config = run.get("config") or {}
    parts = [wording.dataset_sentence(run.get("dataset") or {}), sampling_sentence(config)]
    parts += [wording.batch_sentence(config), wording.time_kind(run)]
    return " · ".join(parts)


def _table(run: Fields, summaries: Sequence[Fields]) -> "Table":
    from rich.text import Text

    table = empty_table([name.replace(" / ", " /\n") for name in (*SHOWN, "lossless")])
    for name, overall, verdict in _rows(run, summaries):
        table.add_row(Text(name), *(Text(COLUMNS[column](overall)) for column in SHOWN), Text(verdict))
    return table


def _rows(run: Fields, summaries: Sequence[Fields]) -> list[tuple[str, Fields, str]]:
    baselines = [s["baseline"]["overall"] for s in summaries if s.get("baseline")]
    labels = [method_label(run) if s["method"] == run["method"] else str(s["method"]) for s in summaries]
    rows = [(one, s["overall"], wording.lossless_short(s)) for one, s in zip(labels, summaries, strict=True)]
    return [(BASELINE, baselines[0], ""), *rows] if baselines else rows
