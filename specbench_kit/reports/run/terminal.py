"""The result of one command's runs as a compact table on the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specbench_kit.metrics.setting import method_label, sampling_sentence
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.reports import render_terminal
from specbench_kit.reports.document import Block, Cell, Column, Note, Paragraph, Table, caution
from specbench_kit.reports.run.answers import answer_cautions, answers_line
from specbench_kit.reports.sections import colocation, headlines, machine, wording
from specbench_kit.reports.sections.cautions import result_cautions, resumption_cautions, setting_cautions
from specbench_kit.reports.sections.columns import COLUMNS
from specbench_kit.reports.stored import RunFile, Summary
from specbench_kit.reports.writing.formatting import times

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = [COLUMNS[title].narrow() for title in ("speedup (95%)", "throughput", "acceptance length", "acceptance rate")]


def print_summary(console: "Console", run: RunFile, summaries: Sequence[Summary]) -> None:
    """Print a table with a row per method and one for their baseline, then all cautions.

    `run` is any of the runs: they share its setting.
    """
    config = run.get("config") or {}
    setting = [wording.dataset_sentence(run.get("dataset") or {}), sampling_sentence(config)]
    setting += [wording.batch_sentence(config), wording.time_kind(run)]
    cautions = [*resumption_cautions(run), *setting_cautions(run)]
    cautions += [f"{summary['method']}: {line}" for summary in summaries for line in result_cautions(summary)]
    for summary in summaries:
        cautions += colocation.cautions(str(summary["method"]), summary["overall"])
    cautions += answer_cautions(summaries)
    doubts: list[Block] = [
        Paragraph(f"{summary['method']}: {times(summary['overall']['speedup'])}, {doubt}")
        for summary in summaries
        if (doubt := headlines.speedup_doubt(summary))
    ]
    doubts += [
        Paragraph(f"{summary['method']}: {words}")
        for summary in summaries
        if (words := headlines.pipeline_words(summary["overall"]))
    ]
    baselines = [summary["baseline"]["overall"] for summary in summaries if summary.get("baseline")]
    rows: list[list[Cell]] = [[BASELINE, *(column.cell(row) for column in SHOWN), ""] for row in baselines[:1]]
    for summary in summaries:
        name = method_label(run) if summary["method"] == run["method"] else str(summary["method"])
        cells = [column.cell(summary["overall"]) for column in SHOWN]
        rows.append([name, *cells, wording.lossless_short(summary)])
    table = Table(("method", *SHOWN, Column("lossless", "count")), rows)
    warnings = caution(machine.warnings(run), severe=True)
    answers = [Note(line)] if (line := answers_line(summaries)) else []
    render_terminal.show(console, [*warnings, Note(" · ".join(setting)), table, *doubts, *answers, *caution(cautions)])
