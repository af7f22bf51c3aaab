"""Tables of a document in LaTeX, for a paper: in ASCII, so that every engine and every encoding of
fonts sets them.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specbench_kit.reports.document import Cell, Column, Estimate, Table, plain
from specbench_kit.reports.writing.formatting import interval, significant

COLUMN_PT, PAGE_PT = 240.0, 500.0
"""Widths of one column and of the page of a two-column paper, in points: those of ACM and IEEE are
a little wider.
"""
LETTER_PT, SMALL_PT = 4.6, 4.0
"""Widths of a letter of 8 pt, bold ones included, and of a digit of an interval, of 7 pt."""
GAP_PT = 6.0
"""Space between two columns of a table."""
SPECIAL = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",
    "]": "{]}",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "×": r"$\times$",
    "–": "--",
    "µ": r"$\mu$",
    "μ": r"$\mu$",
    "τ": r"$\tau$",
    "ε": r"$\epsilon$",
    "²": "$^2$",
    "°": r"$^\circ$",
    "·": r"$\cdot$",
    "→": r"$\rightarrow$",
    "—": "---",
    "…": r"\dots{}",
    "‘": "`",
    "’": "'",
    "“": "``",
    "”": "''",
    "ß": r"\ss{}",
    "æ": r"\ae{}",
    "ø": r"\o{}",
    "Æ": r"\AE{}",
    "Ø": r"\O{}",
}
"""Characters that mean something to LaTeX, begin an argument behind a line's end, or are not
ASCII.
"""
ACCENTS = {
    "\N{COMBINING GRAVE ACCENT}": "`",
    "\N{COMBINING ACUTE ACCENT}": "'",
    "\N{COMBINING CIRCUMFLEX ACCENT}": "^",
    "\N{COMBINING TILDE}": "~",
    "\N{COMBINING DIAERESIS}": '"',
    "\N{COMBINING RING ABOVE}": "r",
    "\N{COMBINING CEDILLA}": "c",
    "\N{COMBINING CARON}": "v",
    "\N{COMBINING MACRON}": "=",
}
"""Commands that set an accent over or under a letter, in every encoding of fonts."""
BETWEEN_HYPHENS = re.compile("(?<=-)(?=-)")
COMMAND = re.compile(r"\\[a-z]+|[{}$\\]")
"""What of a cell is no letter."""
UNITS: Mapping[str, tuple[float, str]] = {
    "times": (1, "×"),
    "share": (100, "%"),
    "rate": (1, "tok/s"),
    "tokens": (1, "tok"),
    "seconds": (1e3, "ms"),
}
"""The scale and the name of the one unit that a column of a paper has, in place of a unit in each
cell.
"""


def render(table: Table, caption: str, slug: str, note: str) -> str:
    """Return the table with letters of 7 pt and more, in one column of the paper or across the
    page; needs booktabs.

    Columns that do not fit beside the others go below them, next to the names of the rows again:
    nothing is shrunk. The first column holds names, which are set as code. `note` goes below the
    table, `slug` into its label.
    """
    parts = [_Part.of(table, columns) for columns in _fitting(table)]
    kind = "table" if len(parts) == 1 and parts[0].width_pt <= COLUMN_PT else "table*"
    lines = [
        "% needs \\usepackage{booktabs}",
        f"\\begin{{{kind}}}",
        "\\centering\\footnotesize",
        f"\\setlength{{\\tabcolsep}}{{{GAP_PT / 2:g}pt}}",
        f"\\caption{{{latex(caption)}}}",
        f"\\label{{tab:{slug}}}\\medskip",
        "\\par\\smallskip\n".join(part.tabular for part in parts),
        f"\\par\\smallskip\\parbox{{\\linewidth}}{{\\footnotesize {latex(note)}}}",
        f"\\end{{{kind}}}",
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Part:
    """Some columns of a table, set, and how wide they are."""

    tabular: str
    width_pt: float

    @classmethod
    def of(cls, table: Table, columns: Sequence[int]) -> "_Part":
        part = table.select(columns)
        lines = [
            f"\\begin{{tabular}}{{@{{}}l{'r' * (len(columns) - 1)}@{{}}}}",
            "\\toprule",
            f"{' & '.join(latex(_title(column)) for column in part.typed_columns)} \\\\",
            "\\midrule",
            *(" & ".join(row) + " \\\\" for row in part.texts(_cell)),
            "\\bottomrule",
            "\\end{tabular}",
        ]
        return cls("\n".join(lines), sum(_width_pt(table, index) for index in columns))


def _fitting(table: Table) -> list[list[int]]:
    """Return the columns of each part, all with the first column, as many as a page is wide."""
    parts = [[0]]
    for index in range(1, len(table.columns)):
        if (
            len(parts[-1]) > 1
            and sum(_width_pt(table, other) for other in (*parts[-1], index)) > PAGE_PT
        ):
            parts.append([0])
        parts[-1].append(index)
    return parts


def _width_pt(table: Table, index: int) -> float:
    """Return about how wide a column is set."""
    column = table.typed_columns[index]
    cells = [_letters_pt(_cell(column, row[index])) for row in table.rows]
    return GAP_PT + max([LETTER_PT * len(_title(column)), *cells])


def _letters_pt(text: str) -> float:
    """Return about how wide a cell is set: commands take no room, an escaped character that of one
    letter.
    """
    value, _, small = text.partition("{\\scriptsize")
    plain_value, plain_small = (COMMAND.sub("", part).replace("--", "-") for part in (value, small))
    return LETTER_PT * len(plain_value) + SMALL_PT * len(plain_small)


def _title(column: Column) -> str:
    return f"{column.title} ({UNITS[column.unit][1]})" if column.unit in UNITS else column.title


def latex(text: str) -> str:
    """Return the text with every character that would be a command escaped, and without one beyond
    ASCII.
    """
    # Two hyphens side by side would become a dash.
    return "{}".join("".join(map(_character, part)) for part in BETWEEN_HYPHENS.split(text))


def _character(character: str) -> str:
    if character in SPECIAL:
        return SPECIAL[character]
    if character.isascii():
        return character if character.isprintable() else " "
    parts = unicodedata.normalize("NFD", character)
    if len(parts) == 2 and parts[0].isascii() and parts[1] in ACCENTS:
        return f"\\{ACCENTS[parts[1]]}{{{parts[0]}}}"
    alike = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode().strip()
    return "".join(map(_character, alike)) or f"U+{ord(character):04X}"


def _cell(column: Column, cell: Cell) -> str:
    if isinstance(cell, str):
        return f"\\texttt{{{latex(plain(cell))}}}" if cell.startswith("`") else latex(cell)
    estimate = cell if isinstance(cell, Estimate) else Estimate(cell)
    text = latex(_number(column, estimate.value))
    bounds = f" {{\\scriptsize [{latex(interval(estimate.bounds))}]}}" if estimate.bounds else ""
    return (f"\\textbf{{{text}}}" if estimate.best else text) + bounds


def _number(column: Column, value: float | None) -> str:
    """Return the number as a page shows it, in the unit that the column's title names."""
    if value is None or column.unit not in UNITS:
        return column.text(value)
    scale, _ = UNITS[column.unit]
    return f"{scale * value:.1f}" if column.unit == "share" else significant(scale * value)
