"""The section on the known pair in results/reference/README.md, made of the files of results/reference/pair.

The text is `scripts/pages/pair.md`, whose fields in braces name numbers and tables: `{specedge[margin]:.2f}` is a
speedup of the report `specedge`, `{link-batch-1[adaspec,300]}` one of a sweep at 300 ms, and `{tasks[adaspec,code,20]}`
one by task. `written_pages.py` writes the page.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench_kit.methods.base import methods
from specbench_kit.metrics.statistics import FEWEST_UNITS
from specbench_kit.metrics.verdicts import FASTER, NO_DIFFERENCE, SLOWER, verdict
from specbench_kit.reports.document import Folded, Table
from specbench_kit.reports.render_markdown import blocks, table
from specbench_kit.reports.writing.formatting import ABSENT

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results" / "reference"
PAIR = REFERENCE / "pair"
PREDICTOR = ROOT / "specbench_kit" / "predictors" / "bundled" / "qwen2.5-coder" / "predictor.json"
TEXT = Path(__file__).parent / "pages" / "pair.md"

CLOCKS = ("wan", "specedge", "wisp-roofline")
SIZES = (1, 2, 4, 8, 16, 32)
LINKS_MS = (0, 20, 40, 80, 160, 300)
LONG_LINKS_MS = (160, 300)
WAN_MS = 40
BASELINE, ORACLE = "autoregressive", "oracle"
WITHOUT_LINK = "link=false"
LEVEL_WITH_FIRST = " ≈"
"""Stands behind the speedup of a method that is not shown to be slower than the fastest one of its column."""

TREES = (
    "eagle2-tree",
    "opt-tree",
    "sampled-tree",
    "sequoia",
    "server-tree",
    "specedge",
    "specinfer",
)
"""The methods that draft trees, as the trace of trees replays them."""
CHAINS = ("oracle", "reachable", "margin", "adaspec", "threshold", "fixed-k", "suffix")
"""The methods that stand beside them."""
DECODED = ["method", "speedup", "typical prompt", "acceptance length"]
"""The columns of tables on requests that were decoded."""

LOSSY_RULES = ("typical", "fly")

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Speedup:
    """A speedup over autoregressive decoding at the server and what is known of it; in a text it is its value."""

    value: float
    low: float | None
    high: float | None
    typical: float | None
    typical_low: float | None
    typical_high: float | None
    acceptance_length: float | None
    colocated_ratio: float | None
    beside_first: str

    @classmethod
    def of(cls, row: Row) -> "Speedup":
        """Return the speedup in a line of `report.csv` or `sweep.csv`; the baseline's is 1."""
        names = (
            "speedup_low",
            "speedup_high",
            "typical_speedup",
            "typical_speedup_low",
            "typical_speedup_high",
        )
        low, high, typical, typical_low, typical_high = (_number(row.get(name)) for name in names)
        return cls(
            _number(row["speedup"]) or 1.0,
            low,
            high,
            typical,
            typical_low,
            typical_high,
            _number(row.get("acceptance_length")),
            _number(row.get("colocated_ratio")),
            row.get("verdict") or "",
        )

    @property
    def interval(self) -> str:
        """The value with its interval, as tables show it."""
        if self.low is None or self.high is None:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} ({self.low:.2f}–{self.high:.2f})"

    @property
    def server_only(self) -> float:
        """How many times as fast the same rounds would be with the draft model beside the target."""
        assert self.colocated_ratio is not None, "nothing was drafted at an edge"
        return 1 / self.colocated_ratio

    @property
    def gain(self) -> str:
        """Whether drafting is shown to pay on a typical prompt, and the summed times do not show the opposite.

        The summed times decide in files that hold no typical prompt.
        """
        in_all = _verdict(self.value, self.low, self.high)
        if self.typical is None:
            return in_all
        on_prompt = _verdict(self.typical, self.typical_low, self.typical_high)
        return NO_DIFFERENCE if {on_prompt, in_all} == {FASTER, SLOWER} else on_prompt

    def __format__(self, spec: str) -> str:
        return format(self.value, spec or ".2f")


def _verdict(value: float, low: float | None, high: float | None) -> str:
    return verdict(value, None if low is None or high is None else (low, high), FEWEST_UNITS)


class Report:
    """The rows of a report over all requests, by label, or by the method's name where only one row has it."""

    def __init__(self, folder: Path) -> None:
        rows = [row for row in _rows(folder / "report.csv") if row["table"] == "overall"]
        self.rows = {row["method"]: Speedup.of(row) for row in rows}
        self.first = next(row["reference"] for row in rows)
        self.consistent = {row["method"]: row["sampling_consistent"] for row in rows}
        self.equal = {row["method"]: _equal(row) for row in rows}
        """By label, how many outputs are those of autoregressive decoding."""

    def __getitem__(self, name: str) -> Speedup:
        """Return the row of a label, or the only one of a method."""
        if name in self.rows:
            return self.rows[name]
        (found,) = (row for label, row in self.rows.items() if label.partition(" (")[0] == name)
        return found

    @property
    def is_older(self) -> bool:
        """Whether the report was made before verdicts went by a typical prompt."""
        return all(row.typical is None for row in self.rows.values())

    @property
    def others(self) -> dict[str, Speedup]:
        """The methods that could be deployed, less the fastest of them; what is shown to be faster is a bound."""
        named = {
            label: row
            for label, row in self.rows.items()
            if label.partition(" (")[0] not in (BASELINE, ORACLE)
        }
        return {
            label: row
            for label, row in named.items()
            if label != self.first and row.beside_first != FASTER
        }

    @property
    def best(self) -> Speedup:
        """The fastest method that could be deployed."""
        return self.rows[self.first]

    @property
    def best_name(self) -> str:
        """The method of that row."""
        return self.first.partition(" (")[0]

    @property
    def slower(self) -> int:
        """The number of methods that are shown to be slower than the first."""
        return sum(row.beside_first == SLOWER for row in self.others.values())

    @property
    def count(self) -> int:
        """The number of methods beside the first."""
        return len(self.others)

    @property
    def equals(self) -> str:
        """The methods without a shown difference from the first, as a list of words."""
        names = [
            f"`{label.partition(' (')[0]}`"
            for label, row in self.others.items()
            if row.beside_first != SLOWER
        ]
        return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "none"

    def is_behind(self, name: str) -> bool:
        """Return True if a method is shown to be slower than the fastest, or is not in the report."""
        label = next((key for key in self.rows if key.partition(" (")[0] == name), None)
        return label is None or self.rows[label].beside_first == SLOWER

    def cell(self, name: str) -> str:
        """Return the speedup with its interval, and a sign where it is level with the fastest; a
        dash for a method that the report left out.
        """
        of_method = (key for key in self.rows if key.partition(" (")[0] == name)
        label = name if name in self.rows else next(of_method, None)
        if label is None:
            return ABSENT
        row = self.rows[label]
        is_level = label == self.first or (label in self.others and row.beside_first != SLOWER)
        return row.interval + (
            LEVEL_WITH_FIRST if is_level and len(self.others) > self.slower else ""
        )


class Sweep:
    """The rows of a sweep over round trips, by method and milliseconds: `reachable,300`."""

    def __init__(self, folder: Path) -> None:
        self.rows = {
            (row["method"], round(1e3 * float(row["link.rtt_s"]), 6)): Speedup.of(row)
            for row in _rows(folder / "sweep.csv")
        }

    def __getitem__(self, key: str) -> Speedup:
        method, _, rtt_ms = key.rpartition(",")
        return self.rows[method, float(rtt_ms)]

    @property
    def methods(self) -> list[str]:
        """All methods in the order of the file."""
        return list(dict.fromkeys(method for method, _ in self.rows if method != BASELINE))


class Tasks:
    """Speedups by method, task and milliseconds: `adaspec,code,20`; the method `fastest` is the fastest one there."""

    def __init__(self, path: Path) -> None:
        self.rows: dict[tuple[str, str, float], Speedup] = {}
        self.slower: set[tuple[str, str, float]] = set()
        self.fastest: dict[tuple[str, float], str] = {}
        for row in _rows(path):
            key = row["method"], row["task"], round(1e3 * float(row["rtt_s"]), 6)
            self.rows[key] = Speedup.of(row)
            if row["shown_slower"] == "True":
                self.slower.add(key)
            if row["fastest"] == "True":
                self.fastest[key[1:]] = row["method"]
                self.rows["fastest", *key[1:]] = self.rows[key]

    def __getitem__(self, key: str) -> Speedup:
        method, task, rtt_ms = key.rsplit(",", 2)
        return self.rows[method, task, float(rtt_ms)]

    def is_shown(self, task: str, rtt_ms: float) -> bool:
        """Return whether every other method is shown to be slower there."""
        others = [key for key in self.rows if key[1:] == (task, rtt_ms) and key[0] != "fastest"]
        return sum(key in self.slower for key in others) == len(others) - 1


class Acceptance:
    """How often first tokens are right, by task, and with `all,mean` how many tokens of a draft are."""

    def __init__(self, path: Path) -> None:
        lines = [
            line.strip("| \n").split(" | ")
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
        self.rows = {
            task: [float(cell.replace("–", "nan")) for cell in cells] for task, *cells in lines[2:]
        }

    def __getitem__(self, key: str) -> float:
        task, _, column = key.partition(",")
        return self.rows[task][2 if column == "mean" else 3]


def _rows(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _equal(row: Row) -> str:
    return f"{row.get('lossless_identical')} of {row.get('lossless_compared')}"


def _number(text: str | None) -> float | None:
    return float(text) if text else None


def foldable(columns: Sequence[str], rows: Sequence[tuple[str, list[str]]], fold: set[str]) -> str:
    """Return a table of rows by method, and those of some methods as a table that opens on a
    click.
    """
    shown = [cells for name, cells in rows if name not in fold]
    hidden = [cells for name, cells in rows if name in fold]
    if not hidden:
        return table(columns, shown)
    names = ", ".join(cells[0] for cells in hidden)
    number = f"{len(hidden)} {'row' if len(hidden) == 1 else 'rows'}"
    title = f"More: {number} that few readers look for ({names})"
    return blocks([Table(columns, shown), Folded(title, [Table(columns, hidden)])])


def seldom_sought(reports: Iterable[Report]) -> set[str]:
    """Return the methods whose rows are folded, unless one of these reports has them level with the
    fastest.
    """
    reports = list(reports)
    return {
        name
        for name, method in methods.all().items()
        if method.is_folded and all(report.is_behind(name) for report in reports)
    }


def methods_table(reports: Mapping[str, Report]) -> str:
    """Return every method under every deployment, as it comes and tuned, the fastest first."""
    first = reports[CLOCKS[0]]
    names = [
        label.partition(" (")[0]
        for label in sorted(first.rows, key=lambda label: -first.rows[label].value)
    ]
    rows = [
        (
            name,
            [
                f"`{name}`",
                *(reports[clock].cell(name) for clock in CLOCKS),
                f"{first[name].typical or 1:.2f}",
                f"{first[name].acceptance_length:.2f}",
                *(reports[f"{clock}-tuned"].cell(name) for clock in CLOCKS),
            ],
        )
        for name in names
        if name != BASELINE
    ]
    clocks = [f"`{clock}`" for clock in CLOCKS]
    typical = f"{clocks[0]}, typical prompt"
    columns = ["method", *clocks, typical, "acceptance length", f"tuned: {clocks[0]}", *clocks[1:]]
    return foldable(columns, rows, seldom_sought([first]))


def claims_table(reports: Mapping[str, Report]) -> str:
    """Return what the authors of methods report, and what these come to here."""
    found, tuned = reports[CLOCKS[0]], reports[f"{CLOCKS[0]}-tuned"]
    published = {name: methods.get(name).reported_result for name in methods.all()}
    rows = []
    for label, row in sorted(found.rows.items(), key=lambda item: -item[1].value):
        name = label.partition(" (")[0]
        if published[name]:
            best = tuned[name].value / tuned["fixed-k"].value
            beside = [f"{row:.2f}", f"{row.value / found['fixed-k'].value:.2f}", f"{best:.2f}"]
            rows.append((name, [f"`{name}`", published[name], *beside]))
    over = ["over autoregressive decoding", "over `fixed-k`", "both tuned"]
    columns = ["method", "what its authors report", f"here, `{CLOCKS[0]}`: {over[0]}", *over[1:]]
    return foldable(columns, rows, seldom_sought([found]))


def trees_table(reports: Mapping[str, Report]) -> str:
    """Return the methods that draft trees and some that draft chains, on the same requests, the fastest first."""
    found = [reports[f"trees-{clock}"] for clock in CLOCKS]
    rows = []
    for label, row in sorted(found[0].rows.items(), key=lambda item: -item[1].value):
        name = label.partition(" (")[0]
        shape = (
            "tree, on the server" if name == "server-tree" else "tree" if name in TREES else "chain"
        )
        if name in (*TREES, *CHAINS):
            cells = [f"`{name}`", shape, *(report.cell(name) for report in found)]
            rows.append([*cells, f"{row.typical or 1:.2f}", f"{row.acceptance_length:.2f}"])
    clocks = [f"`{clock}`" for clock in CLOCKS]
    return table(
        ["method", "drafts a", *clocks, f"{clocks[0]}, typical prompt", "acceptance length"], rows
    )


def tree_batches_table(reports: Mapping[int, Report]) -> str:
    """Return trees beside chains by the number of requests decoded together, the fastest of eight first."""
    rows = []
    for label, _ in sorted(reports[8].rows.items(), key=lambda item: -item[1].value):
        name = label.partition(" (")[0]
        if name in (*TREES, *CHAINS) and all(label in report.rows for report in reports.values()):
            cells = [report.cell(label) for report in reports.values()]
            rows.append([f"`{label}`", "tree" if name in TREES else "chain", *cells])
    return table(
        ["speedup under `wan` by requests decoded together", "drafts a", *map(str, reports)], rows
    )


def rules_table(reports: Mapping[str, Report]) -> str:
    """Return predictors beside thresholds, the fastest first."""
    found = [reports[f"predictor-{clock}"] for clock in CLOCKS]
    labels = sorted(found[0].rows, key=lambda label: -found[0].rows[label].value)
    rows = [
        [f"`{label}`", *(report.cell(label) for report in found)]
        for label in labels
        if label != BASELINE
    ]
    return table(["rule", *(f"`{clock}`" for clock in CLOCKS)], rows)


def links_table(alone: Sweep, together: Sweep) -> str:
    """Return speedups by round trip, of one request and of eight together."""
    rows = [
        [
            f"`{method}`",
            *(f"{alone[f'{method},{ms}']} / {together[f'{method},{ms}']}" for ms in LINKS_MS),
        ]
        for method in alone.methods
    ]
    title = "speedup by round trip: one request / eight together"
    return table([title, *(f"{ms} ms" for ms in LINKS_MS)], rows)


def counting_table(sweeps: Sequence[Sweep]) -> str:
    """Return what methods that count the link come to with and without it over long links."""
    columns = ["method"]
    for words in ("one request", "eight together"):
        columns += [f"{words}, {ms} ms: `{WITHOUT_LINK}`, with the link" for ms in LONG_LINKS_MS]
    rows = []
    for method in (method for method in sweeps[0].methods if method.endswith(WITHOUT_LINK)):
        counted = method.removesuffix(WITHOUT_LINK).rstrip(":,")
        cells = [
            ", ".join(_paying(sweep[f"{name},{ms}"]) for name in (method, counted))
            for sweep in sweeps
            for ms in LONG_LINKS_MS
        ]
        rows.append([f"`{counted}`", *cells])
    return table(columns, rows)


def _paying(speedup: Speedup) -> str:
    """Return a speedup in bold if drafting is shown to pay, and in brackets if it is shown to lose."""
    text = f"{speedup:.2f}"
    return {FASTER: f"**{text}**", SLOWER: f"({text})"}.get(speedup.gain, text)


def batches_table(sweeps: Mapping[int, Sweep]) -> str:
    """Return speedups by the number of requests decoded together, ordered by those of eight."""
    names = sorted(sweeps[8].methods, key=lambda method: -sweeps[8][f"{method},{WAN_MS}"].value)
    rows = [
        [f"`{method}`", *(f"{sweeps[size][f'{method},{WAN_MS}']}" for size in SIZES)]
        for method in names
        if all((method, WAN_MS) in sweeps[size].rows for size in SIZES)
    ]
    return table(["speedup under `wan` by requests decoded together", *map(str, SIZES)], rows)


def sampled_table(report: Report) -> str:
    """Return the methods at a temperature, the fastest first."""
    words = {"True": "yes", "False": "**no**", "": "not shown"}
    rows = [[*cells, words[report.consistent[label]]] for label, cells in _decoded_cells(report)]
    return table([*DECODED, "the target's distribution"], rows)


def tasks_table(tasks: Tasks, acceptance: Acceptance) -> str:
    """Return the fastest method of every task by round trip, in bold where each other one is shown to be slower."""
    names = sorted({task for task, _ in tasks.fastest}, key=lambda task: (-acceptance[task], task))
    rows = []
    for task in names:
        cells = []
        for ms in LINKS_MS:
            text = f"`{tasks.fastest[task, ms].partition(':')[0]}` {tasks[f'fastest,{task},{ms}']}"
            cells.append(f"**{text}**" if tasks.is_shown(task, ms) else text)
        rows.append([task, f"{acceptance[task]:.0%}", *cells])
    return table(["task", "first tokens right", *(f"{ms} ms" for ms in LINKS_MS)], rows)


def decoded_table(report: Report) -> str:
    """Return the methods of a report on decoded requests, the fastest first."""
    return table(DECODED, [cells for _, cells in _decoded_cells(report)])


def lossy_table(reports: Mapping[str, Report]) -> str:
    """Return the methods under rules that change outputs, by rule, the fastest first."""
    rows = []
    for rule, report in reports.items():
        for label, (method, _, *rest) in _decoded_cells(
            report
        ):  # none of them may be called the fastest
            rows.append([f"`{rule}`", method, report[label].interval, *rest, report.equal[label]])
    return table(["rule", *DECODED, "outputs of autoregressive decoding"], rows)


def _decoded_cells(report: Report) -> Iterator[tuple[str, list[str]]]:
    for label, row in sorted(report.rows.items(), key=lambda item: -item[1].value):
        if label != BASELINE:
            length = f"{row.acceptance_length:.2f}" if row.acceptance_length else "–"
            yield (
                label,
                [
                    f"`{label}`",
                    report.cell(label),
                    f"{row.typical:.2f}" if row.typical else "–",
                    length,
                ],
            )


def older_reports(reports: Mapping[str, Report]) -> str:
    """Return a sentence on the reports whose verdicts go by summed times; empty if there are none."""
    names = ", ".join(f"`{name}`" for name, report in reports.items() if report.is_older)
    return (
        f" The verdicts of {names} still go by summed times: these reports are older."
        if names
        else ""
    )


def fields() -> dict[str, Any]:
    """Return what the text may name: reports and sweeps by their folders, and tables."""
    reports = {path.parent.name: Report(path.parent) for path in sorted(PAIR.glob("*/report.csv"))}
    sweeps = {path.parent.name: Sweep(path.parent) for path in sorted(PAIR.glob("*/sweep.csv"))}
    tasks, acceptance = Tasks(PAIR / "tasks" / "fastest.csv"), Acceptance(PAIR / "acceptance.md")
    links = [sweeps["link-batch-1"], sweeps["link-batch-8"]]
    return {
        "auc": json.loads(PREDICTOR.read_text(encoding="utf-8"))["metrics"]["classification"][
            "auc"
        ],
        **reports,
        **sweeps,
        "older_reports": older_reports(reports),
        "tasks": tasks,
        "acceptance": acceptance,
        "methods_table": methods_table(reports),
        "claims_table": claims_table(reports),
        "tasks_table": tasks_table(tasks, acceptance),
        "rules_table": rules_table(reports),
        "links_table": links_table(*links),
        "counting_table": counting_table(links),
        "batches_table": batches_table({size: sweeps[f"batch-{size}"] for size in SIZES}),
        "trees_table": trees_table(reports),
        "tree_batches_table": tree_batches_table(
            {1: reports["trees-wan"], 8: reports["trees-wan-8"], 32: reports["trees-wan-32"]}
        ),
        "pipeline_table": decoded_table(reports["pipeline"]),
        "sampled_table": sampled_table(reports["sampled"]),
        "hybrids_table": decoded_table(reports["hybrids"]),
        "quantised_table": decoded_table(reports["quantised"]),
        "lossy_table": lossy_table({rule: reports[rule] for rule in LOSSY_RULES}),
        "tokenizers_table": decoded_table(reports["tokenizers"]),
    }


def section() -> str:
    """Return the section as the files have it now."""
    return TEXT.read_text(encoding="utf-8").format_map(fields())
