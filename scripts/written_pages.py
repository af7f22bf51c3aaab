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
from typing import Any, Protocol

from live_reference import AHEAD, KNOWN_PAIR, SMOLLM2, SPEEDUP_APART, Links, compared
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
    def kept(cls, folder: Path, table: str = "") -> "Rows":
        """Return a table of a result that was kept, by default the main one."""
        tables = api.load(folder).tables
        return cls(tables[table] if table else next(iter(tables.values())))

    @classmethod
    def in_file(cls, path: Path) -> "Rows":
        """Return the table in a CSV file."""
        with path.open(encoding="utf-8", newline="") as file:
            return cls([{k: _cell(v) for k, v in row.items()} for row in csv.DictReader(file)])

    def __getitem__(self, name: str) -> CsvCell:
        if RATIO in name:
            above, below = map(self.__getitem__, name.split(RATIO))
            return _number(above) / _number(below)
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
class Servers:
    """What `skit ab` found, by `LOAD;FIGURE`: a ratio with its interval and verdict, or `identical` outputs."""

    folder: Path

    @cached_property
    def _loads(self) -> Mapping[str, Any]:
        found: Any = api.load(self.folder)
        return {load.load: load for load in found.result.loads}

    def __getitem__(self, name: str) -> str:
        load, _, figure = name.partition(STEP)
        found = self._loads[load]
        if figure == "identical":
            both = found.outputs.both
            return f"{both.identical} of {both.compared}"
        ratio = next(one for one in found.comparisons if one.figure == figure)
        low, high = ratio.interval
        return f"{ratio.ratio:.2f} ({low:.2f} to {high:.2f}), {ratio.verdict}"


@dataclass(frozen=True)
class Outputs:
    """How many outputs of a result's methods equal those of autoregressive decoding, of how many."""

    rows: Rows

    def __str__(self) -> str:
        judged = [row for row in self.rows.of if row.get("lossless_compared")]
        same, all_of_them = (
            sum(int(_number(row[f"lossless_{kind}"])) for row in judged)
            for kind in ("identical", "compared")
        )
        return f"{same} of {all_of_them}"


@dataclass(frozen=True)
class Agreement:
    """How far modelled links are from measured ones, by `WHAT;SMALLEST_MS`, over methods and round trips of at least
    so many milliseconds: `within`, how many speedups are within the tolerance; `all`, how many there are; `time` and
    `speedup`, the farthest of each.
    """

    links: Links
    folder: Path

    def __getitem__(self, name: str) -> float:
        what, _, least_ms = name.partition(STEP)
        apart = [
            one
            for rtt_s in self.links.rtt_s
            if 1e3 * rtt_s >= float(least_ms)
            for one in compared(self.folder, f"{1e3 * rtt_s:g}ms")
        ]
        if what == "all":
            return len(apart)
        if what == "within":
            return sum(abs(one.speedup_apart) <= SPEEDUP_APART for one in apart)
        return float(max(abs(getattr(one, f"{what}_apart")) for one in apart))


def _number(cell: CsvCell) -> float:
    assert isinstance(cell, int | float), cell
    return cell


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


def links_numbers(name: str, links: Links, folder: Path) -> dict[str, "Numbers | str"]:
    """Return what a text may say of methods over links: every result as `NAME_measured_20ms`, and the agreement."""
    results = {
        f"{name}_{kind}_{1e3 * rtt_s:g}ms": Rows.kept(folder / kind / f"{1e3 * rtt_s:g}ms")
        for kind in ("measured", "modelled")
        for rtt_s in links.rtt_s
    }
    return {**results, f"{name}_agreement": Agreement(links, folder)}


PEERS, H100, LIVE = REFERENCE / "peers", REFERENCE / "gpu-h100", REFERENCE / "live"
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
            "measured": Rows.kept(REFERENCE / "measured"),
            "outputs": str(Outputs(Rows.kept(REFERENCE / "measured"))),
            **links_numbers("links", SMOLLM2, LIVE),
            **links_numbers("pair_links", KNOWN_PAIR, LIVE / "pair"),
            **links_numbers("ahead", AHEAD, LIVE / "ahead"),
            "pair": section(),
        },
    ),
    Page(
        PEERS / "README.md",
        TEXTS / "peers.md",
        {path.stem: Figures(path) for path in sorted(PEERS.glob("*.json"))},
    ),
    Page(
        REFERENCE / "vllm" / "README.md",
        TEXTS / "vllm.md",
        {
            path.stem: path.read_text(encoding="utf-8")
            for path in (REFERENCE / "vllm" / name for name in ("smollm2.md", "bundled.md"))
        },
    ),
    Page(
        REFERENCE / "ab" / "README.md",
        TEXTS / "ab.md",
        {
            "smollm2": Servers(REFERENCE / "ab"),
            "servers": Rows.kept(REFERENCE / "ab", "servers"),
            "pair": Servers(REFERENCE / "ab" / "qwen2.5-coder"),
            "pair_servers": Rows.kept(REFERENCE / "ab" / "qwen2.5-coder", "servers"),
        },
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
