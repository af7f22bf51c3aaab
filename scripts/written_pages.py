"""Write the pages of results/reference whose text is written by hand: `python scripts/written_pages.py`.

The text of each is a file of `scripts/pages`, whose fields in braces name numbers of the files beside the page:
`{zen5[kit: 1 new tokens]:.1f}` is a figure of `python -m benchmarks`, `{zen5[kit: 5 new tokens / kit: 1 new tokens]}` a
ratio of two, and `{schedulers[series=edf;devices=70;class=all;violation_rate]:.0%}` the cell of a row of a result that
was kept. So no number is copied by hand, and a test finds a page that is older than its files.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from pair_section import section

from specbench_kit import api
from specbench_kit.core.plain_text import CsvCell, CsvRow

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results" / "reference"
TEXTS = Path(__file__).parent / "pages"
RATIO, STEP, IS = " / ", ";", "="


class Numbers(Protocol):
    """What a field in braces names a number of."""

    def __getitem__(self, name: str) -> CsvCell:
        """Return the number of that name."""


@dataclass(frozen=True)
class Figures:
    """The figures that `python -m benchmarks` wrote, by label, and the ratio of any two."""

    path: Path

    @cached_property
    def _by_label(self) -> Mapping[str, float]:
        figures = json.loads(self.path.read_text(encoding="utf-8"))["figures"]
        return {figure["label"]: figure["value"] for figure in figures}

    def __getitem__(self, label: str) -> float:
        if label in self._by_label or RATIO not in label:
            return self._by_label[label]
        above, _, below = label.partition(RATIO)
        return self._by_label[above] / self._by_label[below]


@dataclass(frozen=True)
class Rows:
    """The cells of a table: conditions on a row, and a column; or the ratio of two cells."""

    of: Sequence[CsvRow]

    @classmethod
    def kept(cls, folder: Path) -> "Rows":
        """Return the main table of a result that was kept."""
        return cls(next(iter(api.load(folder).tables.values())))

    @classmethod
    def in_file(cls, path: Path) -> "Rows":
        """Return the table in a CSV file."""
        with path.open(encoding="utf-8", newline="") as file:
            return cls([{k: _cell(v) for k, v in row.items()} for row in csv.DictReader(file)])

    def __getitem__(self, name: str) -> CsvCell:
        if RATIO in name:
            above, below = map(self.__getitem__, name.split(RATIO))
            assert isinstance(above, float), name
            assert isinstance(below, float), name
            return above / below
        *conditions, column = name.split(STEP)
        asked = dict(condition.split(IS, 1) for condition in conditions)
        found = [
            row for row in self.of if all(_text(row[key]) == value for key, value in asked.items())
        ]
        assert len(found) == 1, f"{len(found)} rows are {name}"
        return found[0][column]


def _cell(text: str) -> CsvCell:
    try:
        return float(text)
    except ValueError:
        return text or None


def _text(cell: CsvCell) -> str:
    return f"{cell:g}" if isinstance(cell, float) else str(cell)


@dataclass(frozen=True)
class Page:
    """A page, the text that it is made of, and where the numbers of that text come from."""

    path: Path
    text: Path
    numbers: Mapping[str, "Numbers | str"]

    def written(self) -> str:
        """Return the page as its files have it."""
        text = self.text.read_text(encoding="utf-8")
        return text.format(**self.numbers)


PEERS, H100 = REFERENCE / "peers", REFERENCE / "gpu-h100"
PAGES = [
    Page(
        REFERENCE / "README.md",
        TEXTS / "reference.md",
        {
            **{
                name: Figures(REFERENCE / name / f"{name}.json")
                for name in ("serving_log", "steps", "step_times")
            },
            "schedulers": Rows.kept(REFERENCE / "schedulers"),
            "held_out": Rows.kept(REFERENCE / "schedulers-held-out"),
            "pair": section(),
        },
    ),
    Page(
        PEERS / "README.md",
        TEXTS / "peers.md",
        {path.stem: Figures(path) for path in sorted(PEERS.glob("*.json"))},
    ),
    Page(
        H100 / "README.md",
        TEXTS / "gpu-h100.md",
        {path.stem: Rows.in_file(path) for path in sorted(H100.glob("*.csv"))},
    ),
]


def main() -> None:
    """Write every page."""
    for page in PAGES:
        page.path.write_text(page.written(), encoding="utf-8")
        print(page.path.relative_to(ROOT))


if __name__ == "__main__":
    main()
