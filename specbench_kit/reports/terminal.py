"""The same result as a compact table on the terminal."""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from specbench_kit.metrics import setting
from specbench_kit.metrics.comparison import Comparison
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.reports import comparison_wording, machine_wording, wording
from specbench_kit.reports.formatting import ABSENT, times
from specbench_kit.reports.values import COLUMNS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Fields = dict[str, Any]

VERDICT_WIDTH = 14
SHOWN = ("speedup (95%)", "throughput", "tokens / verify", "acceptance")


def print_summary(console: "Console", run: Fields, summaries: Sequence[Fields]) -> None:
    """One table with a row per method and one for their baseline; `run` is any of the runs: they share its setting."""
    from rich.text import Text

    print_warnings(console, machine_wording.warnings(run))
    console.print(Text(_setting(run), style="dim"))
    console.print(_table(run, summaries))
    for summary in summaries:
        if doubt := wording.speedup_doubt(run, summary):
            console.print(Text(f"{summary['method']}: {times(summary['overall']['speedup'])}, {doubt}"))
    cautions = [f"{s['method']}: {caution}" for s in summaries for caution in wording.result_cautions(s)]
    for line in [*wording.resumption_cautions(run), *wording.setting_cautions(run), *cautions]:
        console.print(Text(line, style="bold yellow"))


def print_comparison(console: "Console", comparison: Comparison) -> None:
    """One table with a row per method, what the intervals show, and everything that must be known before quoting it."""
    from rich.text import Text

    print_warnings(console, machine_wording.of_all(run.fields for run in comparison.runs))
    console.print(Text(comparison_wording.where(comparison), style="dim"))
    console.print(_comparison_table(comparison))
    console.print(Text(comparison_wording.headline(comparison).replace("`", "")))
    if any(comparison_wording.EVEN in comparison_wording.speedup_cell(row) for row in comparison.overall.values()):
        console.print(Text(comparison_wording.EVEN_NOTE, style="dim"))
    for line in comparison_wording.cautions(comparison):
        console.print(Text(line.replace("`", ""), style="bold yellow"))


def print_warnings(console: "Console", lines: Sequence[str]) -> None:
    """What must be read before any number."""
    from rich.text import Text

    for line in lines:
        console.print(Text(line, style="bold red"))


def _comparison_table(comparison: Comparison) -> "Table":
    from rich.text import Text

    against = "\n".join(["against", *wrap(comparison.reference, VERDICT_WIDTH)])
    table = _empty_table(["speedup (95%)", "tokens /\nverify", "acceptance", against, "lossless"])
    for label, row in comparison.overall.items():
        cells = [comparison_wording.COLUMNS[name](row) for name in ("speedup (95%)", "tokens / verify", "acceptance")]
        cells += [_against(row), comparison_wording.lossless_cell(row).replace(", ", "\n")]
        table.add_row(Text(label), *map(Text, cells))
    return table


def _against(row: Mapping[str, Any]) -> str:
    if not row.get("verdict"):
        return ABSENT
    return "\n".join([times(row["relative_speed"]), *wrap(row["verdict"], VERDICT_WIDTH)])


def _setting(run: Fields) -> str:
    config = run.get("config") or {}
    parts = [wording.dataset_sentence(run.get("dataset") or {}), setting.sampling_sentence(config)]
    parts += [wording.batch_sentence(config), wording.time_kind(run)]
    return " · ".join(parts)


def _table(run: Fields, summaries: Sequence[Fields]) -> "Table":
    from rich.text import Text

    table = _empty_table([name.replace(" / ", " /\n") for name in (*SHOWN, "lossless")])
    for label, overall, verdict in _rows(run, summaries):
        table.add_row(Text(label), *(Text(COLUMNS[name](overall)) for name in SHOWN), Text(verdict))
    return table


def _empty_table(columns: Sequence[str]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", overflow="fold")
    for name in columns:
        table.add_column(Text(name), justify="right", no_wrap=True)
    return table


def _rows(run: Fields, summaries: Sequence[Fields]) -> list[tuple[str, Fields, str]]:
    baselines = [s["baseline"]["overall"] for s in summaries if s.get("baseline")]
    labels = [setting.label(run) if s["method"] == run["method"] else str(s["method"]) for s in summaries]
    rows = [(one, s["overall"], wording.lossless_short(s)) for one, s in zip(labels, summaries, strict=True)]
    return [(BASELINE, baselines[0], ""), *rows] if baselines else rows
