"""Find the fastest method for every task of a trace and every round trip, as a table and a figure.

    python scripts/fastest_by_task.py qwen2.5-coder --deployment specedge --rtts 0,0.04,0.16 \
        --method threshold --method adaspec --out results/reference/pair/tasks

The whole trace is replayed at every round trip, so that methods that learn do so across tasks. A lead is shown if each
other method is slower by the verdicts on the task's prompts, which hold together. Tasks stand in the order of how often
the first drafted token is right.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_acceptance import accepted

from specbench_kit.core.plain_text import CsvCell, csv_text
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.loading import find
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.rounds import NO_REQUESTS, RequestGroup
from specbench_kit.metrics.rows import TableEntry, choose_reference, rows_of
from specbench_kit.metrics.statistics import units_of
from specbench_kit.metrics.verdicts import SLOWER
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.reports.writing.drawing import plot
from specbench_kit.reports.writing.palette import BASELINE_STYLE, method_styles
from specbench_kit.runs.folder import write_text
from specbench_kit.traces.draft_limits import fit_spec
from specbench_kit.traces.replay import prepare_for_replay, replay
from specbench_kit.traces.trace import TraceFile

SHOWN, UNDECIDED = 0.85, 0.3
"""The opacity of a cell whose lead is shown, and of one whose lead may be chance."""

Row = dict[str, CsvCell]


def decode(
    trace: TraceFile, specs: Sequence[str], deployment: Deployment
) -> dict[str, list[RequestRecord]]:
    """Return the records of plain decoding and of every method, by its spec as the trace allows it."""
    records = {}
    for spec in (fit_spec(given, trace.header) for given in (BASELINE, *specs)):
        method = prepare_for_replay(parse_method(spec), trace, deployment, 1)
        records[spec] = list(replay(method, trace.header, trace, deployment=deployment))
    return records


def compare(rtt_s: float, records: Mapping[str, list[RequestRecord]]) -> Iterator[Row]:
    """Yield a row per task and method: its speedup, and its speed beside the task's fastest method."""
    parts = {spec: RequestGroup(decoded).categories for spec, decoded in records.items()}
    for task in sorted(parts[BASELINE]):
        plain = parts[BASELINE][task]
        units = units_of(plain.records)
        entries = [TableEntry(plain, NO_REQUESTS, units, label=BASELINE, is_baseline=True)]
        entries += [
            TableEntry(part[task], plain, units, label=spec)
            for spec, part in parts.items()
            if spec != BASELINE
        ]
        rows = rows_of(entries, choose_reference(entries))
        speedups = {spec: row.speedup or 1.0 for spec, row in rows.items()}
        fastest = max(speedups, key=speedups.__getitem__)
        for spec, row in rows.items():
            # The reference is a method that drafts: where none is as fast as the baseline, speedups have the verdict.
            beside, verdict = row.relative_speed, row.verdict
            if fastest == BASELINE:
                beside, verdict = row.speedup, row.speedup_verdict
            low, high = row.bounds("speedup") or (None, None)
            yield {
                "task": task,
                "rtt_s": rtt_s,
                "method": spec,
                "speedup": speedups[spec],
                "speedup_low": low,
                "speedup_high": high,
                "fastest": spec == fastest,
                "beside_fastest": 1.0 if spec == fastest else beside,
                "shown_slower": spec != fastest and verdict == SLOWER,
            }


def rates_of_first_tokens(trace: TraceFile) -> dict[str, float]:
    """Return by task how often the first drafted token is right, the highest rate first."""
    right: dict[str, list[bool]] = {}
    for request in trace:
        right.setdefault(request.category, []).extend(accepted(request) > 0)
    rates = {task: sum(found) / len(found) for task, found in right.items()}
    return dict(sorted(rates.items(), key=lambda item: -item[1]))


def draw(
    rows: Sequence[Row], path: Path, title: str, rates: Mapping[str, float] | None = None
) -> None:
    """Draw a cell per task and round trip in the colour of its fastest method, pale where the lead may be chance.

    With the `rates` of right first tokens, tasks stand in their order and have them beside their names.
    """
    from matplotlib import rc_context

    of_rows, rtts = (list(dict.fromkeys(row[name] for row in rows)) for name in ("task", "rtt_s"))
    tasks: list[CsvCell] = [*list(rates)[::-1]] if rates else of_rows
    winners = [row for row in rows if row["fastest"]]
    methods = sorted({str(row["method"]) for row in winners})
    styles = method_styles({name: name for name in methods if name != BASELINE})
    colours = {name: styles.get(name, BASELINE_STYLE).colour for name in methods}
    settings: dict[Any, Any] = {"svg.hashsalt": "skit", "svg.fonttype": "none"}
    with rc_context(settings), plot(path, (12.5, 5), formats=("svg",)) as axes:
        for winner in winners:
            x, y = rtts.index(winner["rtt_s"]), tasks.index(winner["task"])
            others = [
                row
                for row in rows
                if row["task"] == winner["task"] and row["rtt_s"] == winner["rtt_s"]
            ]
            is_shown = all(row["shown_slower"] or row["fastest"] for row in others)
            opacity = SHOWN if is_shown else UNDECIDED
            axes.bar(
                x,
                1,
                1,
                y - 0.5,
                color=colours[str(winner["method"])],
                alpha=opacity,
                edgecolor="white",
            )
            look = {"color": "white", "fontweight": "bold"} if is_shown else {}
            axes.text(
                x, y, f"{winner['speedup']:.2f}x", ha="center", va="center", fontsize=9, **look
            )
        for name, colour in colours.items():
            axes.bar(0, 0, color=colour, alpha=SHOWN, label=name)
        axes.set_xticks(range(len(rtts)), [f"{1000 * float(str(rtt_s)):g} ms" for rtt_s in rtts])
        names = [
            f"{task}\nfirst token right: {rates[str(task)]:.0%}" if rates else str(task)
            for task in tasks
        ]
        axes.set_yticks(range(len(tasks)), names)
        axes.set(xlabel="round trip", title=title)
        axes.margins(0)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=9)


def main() -> None:
    """Read the command line, and write `fastest.csv` and `fastest.svg`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--deployment", required=True)
    parser.add_argument("--rtts", required=True, help="seconds, separated by commas")
    parser.add_argument("--method", action="append", required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    trace, rows = TraceFile(options.trace), list[Row]()
    for rtt_s in map(float, options.rtts.split(",")):
        deployment = find(options.deployment).replace({"link.rtt_s": rtt_s}).build()
        rows += compare(rtt_s, decode(trace, options.method, deployment))
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / "fastest.csv", csv_text(rows))
    title = (
        f"Fastest of {len(options.method) + 1} methods and its speedup, {options.deployment}, modelled\n"
        "(bold: each other method is shown to be slower)"
    )
    draw(rows, options.out / "fastest.svg", title, rates_of_first_tokens(trace))


if __name__ == "__main__":
    main()
