"""Tables of a document in LaTeX, for a paper."""

from collections.abc import Mapping

from specbench_kit.reports.document import Cell, Column, Estimate, Table, plain
from specbench_kit.reports.writing.formatting import interval, significant

NARROW = 5
"""Columns of numbers that fit one column of a paper."""
SPECIAL = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "≈": r"$\approx$",
    "×": r"$\times$",
    "–": "--",
    "µ": r"$\mu$",
    "τ": r"$\tau$",
}
UNITS: Mapping[str, tuple[float, str]] = {
    "times": (1, "×"),
    "share": (100, "%"),
    "rate": (1, "tok/s"),
    "number": (1, "tok"),
    "seconds": (1e3, "ms"),
}
"""The scale and the name of the one unit that a column of a paper has, in place of a unit in each cell."""


def render(table: Table, caption: str, slug: str, note: str) -> str:
    """Return the table, no wider than its column of the paper; needs booktabs and graphicx.

    The first column holds names, which are set as code. `note` goes below the table, `slug` into its label.
    """
    columns = table.typed_columns
    kind = "table" if len(columns) - 1 <= NARROW else "table*"
    titles = [
        f"{column.title} ({UNITS[column.unit][1]})" if column.unit in UNITS else column.title for column in columns
    ]
    lines = [
        "% needs \\usepackage{booktabs} and \\usepackage{graphicx}",
        f"\\begin{{{kind}}}",
        "\\centering\\small",
        f"\\caption{{{latex(caption)}}}",
        f"\\label{{tab:{slug}}}\\medskip",
        "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{\\begin{tabular}"
        f"{{l{'r' * (len(columns) - 1)}}}",
        "\\toprule",
        f"{' & '.join(map(latex, titles))} \\\\",
        "\\midrule",
        *(" & ".join(map(_cell, columns, row)) + " \\\\" for row in table.rows),
        "\\bottomrule",
        "\\end{tabular}}",
        f"\\par\\smallskip\\parbox{{\\linewidth}}{{\\footnotesize {latex(note)}}}",
        f"\\end{{{kind}}}",
    ]
    return "\n".join(lines) + "\n"


def latex(text: str) -> str:
    """Return the text with every character that would be a command escaped."""
    return "".join(SPECIAL.get(character, character) for character in text)


def _cell(column: Column, cell: Cell) -> str:
    if isinstance(cell, str):
        return f"\\texttt{{{latex(plain(cell))}}}" if cell.startswith("`") else latex(cell)
    estimate = cell if isinstance(cell, Estimate) else Estimate(cell)
    scale, _ = UNITS.get(column.unit, (1, ""))
    text = latex(significant(None if estimate.value is None else scale * estimate.value))
    bounds = f" {{\\scriptsize [{latex(interval(estimate.bounds))}]}}" if estimate.bounds else ""
    return (f"\\textbf{{{text}}}" if estimate.best else text) + bounds
