"""A comparison's table of methods in LaTeX, for a paper."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench_kit.metrics.comparison import Comparison
from specbench_kit.metrics.verdicts import NO_DIFFERENCE
from specbench_kit.reports.comparison.look import USUAL, Look
from specbench_kit.reports.comparison.wording import COLUMNS, EVEN, lossless_cell, where
from specbench_kit.reports.writing import machine
from specbench_kit.reports.writing.formatting import ABSENT, interval, significant

Row = Mapping[str, Any]
SPEEDUP = "speedup (95%)"
NARROW = 5
"""Columns of numbers that fit one column of a paper."""
SPECIAL = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    EVEN: r"$\approx$",
    "×": r"$\times$",
    "–": "--",
    "µ": r"$\mu$",
    "τ": r"$\tau$",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of numbers in one `unit`; `best` chooses the one in bold, `meaning` defines its symbol."""

    title: str
    unit: str
    value: Callable[[Row], float | None]
    best: Callable[..., float] = max
    meaning: str = ""


def _times(scale: float, *path: str) -> Callable[[Row], float | None]:
    def value(row: Row) -> float | None:
        found: Any = row
        for name in path:
            found = (found or {}).get(name)
        return None if found is None else scale * found

    return value


NUMBERS: Mapping[str, Column] = {
    SPEEDUP: Column("Speedup", "×", _times(1, "speedup"), meaning="time of autoregressive decoding over the method's"),
    "headroom": Column("Headroom", "%", _times(100, "headroom")),
    "throughput": Column("Throughput", "tok/s", _times(1, "throughput")),
    "acceptance length": Column(
        "τ", "tok", _times(1, "acceptance_length"), meaning="committed tokens per verification"
    ),
    "acceptance": Column("Accept.", "%", _times(100, "acceptance_rate"), meaning="accepted of submitted tokens"),
    "draft efficiency": Column(
        "Draft eff.", "%", _times(100, "draft_efficiency"), meaning="accepted of drafted tokens"
    ),
    "WDT": Column("WDT", "%", _times(100, "wdt_share"), min, "drafting time spent on wasted tokens"),
    "TTFT": Column("TTFT", "ms", _times(1e3, "ttft", "mean"), min, "time to the first token"),
    "TPOT": Column("TPOT", "ms", _times(1e3, "tpot", "mean"), min, "time per token after it"),
    **{
        f"ITL {rank}": Column(f"ITL {rank}", "ms", _times(1e3, "itl", rank), min, "inter-token latency")
        for rank in ("p50", "p95", "p99")
    },
}
LOSSLESS = "lossless"


def to_latex(comparison: Comparison, look: Look = USUAL) -> str:
    """A table of the methods over all requests, no wider than its column; needs booktabs and graphicx."""
    columns = [name for name in look.of() if _has_values(comparison, name)]
    kind = "table" if len(columns) <= NARROW else "table*"
    bold = {name: _best(comparison, name) for name in columns}
    lines = [
        "% needs \\usepackage{booktabs} and \\usepackage{graphicx}",
        f"\\begin{{{kind}}}",
        "\\centering\\small",
        f"\\caption{{{_caption(comparison, columns)}}}",
        f"\\label{{tab:{_slug(comparison)}}}\\medskip",
        "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{\\begin{tabular}"
        f"{{l{'r' * len(columns)}}}",
        "\\toprule",
        f"{' & '.join(['Method', *map(_title, columns)])} \\\\",
        "\\midrule",
        *(_line(label, row, bold) for label, row in comparison.overall.items()),
        "\\bottomrule",
        "\\end{tabular}}",
        f"\\par\\smallskip\\parbox{{\\linewidth}}{{\\footnotesize {latex(where(comparison))}.}}",
        f"\\end{{{kind}}}",
    ]
    return "\n".join(lines) + "\n"


def latex(text: str) -> str:
    """Text in which no character is a command."""
    return "".join(SPECIAL.get(character, character) for character in text)


def _has_values(comparison: Comparison, name: str) -> bool:
    return any(COLUMNS[name](row) != ABSENT for row in comparison.overall.values())


def _title(name: str) -> str:
    if name == LOSSLESS:
        return "Lossless"
    return latex(f"{NUMBERS[name].title} ({NUMBERS[name].unit})")


def _line(label: str, row: Row, bold: Mapping[str, Sequence[str]]) -> str:
    cells = [f"\\texttt{{{latex(label)}}}"]
    for name, best in bold.items():
        text = _cell(name, row)
        cells.append(f"\\textbf{{{text}}}{_bounds(name, row)}" if label in best else f"{text}{_bounds(name, row)}")
    return f"{' & '.join(cells)} \\\\"


def _cell(name: str, row: Row) -> str:
    if name == LOSSLESS:
        return latex(lossless_cell(row))
    return latex(significant(NUMBERS[name].value(row)))


def _bounds(name: str, row: Row) -> str:
    bounds = row["intervals"].get("speedup") if name == SPEEDUP else None
    return f" {{\\scriptsize [{latex(interval(bounds))}]}}" if bounds else ""


def _best(comparison: Comparison, name: str) -> list[str]:
    """Rows in bold: the best of those that can be deployed and are lossless, and of speedups all that may be it."""
    if name == LOSSLESS:
        return []
    if name == SPEEDUP:
        even = [label for label, row in comparison.overall.items() if row.get("verdict") == NO_DIFFERENCE]
        return [label for label in (comparison.reference, *even) if comparison.overall[label].get("speedup")]
    barred = {one.label for one in comparison.series if one.is_bound}
    barred |= {label for label, row in comparison.overall.items() if (row.get("lossless") or {}).get("errors")}
    found = {label: NUMBERS[name].value(row) for label, row in comparison.overall.items() if label not in barred}
    known = {label: value for label, value in found.items() if value is not None}
    return [label for label, value in known.items() if value == NUMBERS[name].best(known.values())]


def _caption(comparison: Comparison, columns: Sequence[str]) -> str:
    meanings = {
        NUMBERS[name].title.partition(" p")[0]: NUMBERS[name].meaning
        for name in columns
        if name in NUMBERS and NUMBERS[name].meaning
    }
    parts = [
        f"Speculative decoding on {', '.join(comparison.datasets)}.",
        "; ".join(f"{symbol}: {meaning}" for symbol, meaning in meanings.items()) + "." if meanings else "",
        "In brackets 95% intervals." if SPEEDUP in columns else "",
        "Bold: the best that can be deployed and is lossless, and speedups that are not shown to be below it.",
        *machine.of_all(run.fields for run in comparison.runs),
    ]
    return latex(" ".join(filter(None, parts)))


def _slug(comparison: Comparison) -> str:
    return re.sub(r"[^a-z0-9]+", "-", f"skit-{'-'.join(comparison.datasets)}".lower()).strip("-")
