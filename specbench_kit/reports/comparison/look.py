"""How a comparison's tables and figures look, where that is chosen."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from specbench_kit.core.errors import SkitError, did_you_mean
from specbench_kit.core.renamed import current_name
from specbench_kit.reports.comparison.wording import COLUMNS

Size = Literal["screen", "column", "page"]
"""Of figures: for reading on a screen, or for one or both columns of a paper."""


@dataclass(frozen=True, slots=True)
class Look:
    """`columns` are those of the tables, all of them if none is named; a `bare` figure has no title."""

    columns: Sequence[str] = ()
    bare: bool = False
    size: Size = "screen"

    def of(self, usual: Iterable[str] = COLUMNS) -> list[str]:
        """The columns of a table that usually has these."""
        return list(self.columns or usual)


USUAL = Look()


def parse_columns(text: str) -> tuple[str, ...]:
    """Columns by the short names of `short_names`, with commas between them; an unknown one is an error."""
    known = short_names()
    names = [name.strip().lower().replace("_", "-") for name in text.split(",") if name.strip()]
    names = [current_name(name, "--columns") for name in names]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise SkitError(f"--columns: unknown column '{name}'{hint}; known: {', '.join(known)}")
    return tuple(dict.fromkeys(known[name] for name in names))


def short_names() -> dict[str, str]:
    """Columns by what they are called on a command line: `speedup`, `acceptance-length`, `itl-p95`."""
    return {name.partition(" (")[0].lower().replace(" / ", "-per-").replace(" ", "-"): name for name in COLUMNS}
