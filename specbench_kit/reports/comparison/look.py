"""The user's choices on how a comparison's tables and figures look."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from specbench_kit.core.errors import SkitError, did_you_mean
from specbench_kit.reports.sections.columns import COLUMNS, MetricColumn

Size = Literal["screen", "column", "page"]
"""The size of figures: for reading on a screen, or for one or both columns of a paper."""


@dataclass(frozen=True, slots=True)
class Look:
    """`columns` are the titles of the tables' columns, all if there are none; a `bare` figure has no title."""

    columns: Sequence[str] = ()
    bare: bool = False
    size: Size = "screen"

    def table_columns(self, usual: Iterable[str] = COLUMNS) -> list[MetricColumn]:
        """Return the columns of a table that has the `usual` ones unless others are chosen."""
        return [COLUMNS[title] for title in self.columns or usual]


USUAL = Look()


def parse_columns(text: str) -> tuple[str, ...]:
    """Return the titles of columns by their `short_names`, separated by commas; an unknown name is an error."""
    titles = short_names()
    names = [name.strip().lower().replace("_", "-") for name in text.split(",") if name.strip()]
    for name in names:
        if name not in titles:
            hint = did_you_mean(name, titles)
            raise SkitError(f"--columns: unknown column '{name}'{hint}; known: {', '.join(titles)}")
    return tuple(dict.fromkeys(titles[name] for name in names))


def short_names() -> dict[str, str]:
    """Return the titles of columns by their names on the command line: `speedup`, `acceptance-length`, `itl-p95`."""
    return {title.partition(" (")[0].lower().replace(" ", "-"): title for title in COLUMNS}
