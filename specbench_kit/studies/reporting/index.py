"""One page that lists all runs of a folder: when, what, on what, the result in a sentence, and a
link to its report.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import one_line
from specbench_kit.reports import render_html, render_markdown
from specbench_kit.reports.document import (
    Block,
    Document,
    Heading,
    Paragraph,
    Table,
    code,
    link,
    plain,
)
from specbench_kit.reports.sections import machine
from specbench_kit.reports.study import Entry
from specbench_kit.reports.writing.formatting import ABSENT
from specbench_kit.runs.document import RunDescription
from specbench_kit.runs.folder import write_text
from specbench_kit.studies.kinds import kind_in

PAGES = ("report.html", "report.md", "README.html")


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A folder with a page; `run` says what was run, None for a report on several runs."""

    folder: Path
    page: str
    run: RunDescription | None
    headline: str

    @property
    def setting(self) -> tuple[str, str, str]:
        """The run's method or command, its dataset and its kind of time."""
        run = self.run or RunDescription()
        method, dataset_name, time_kind = (
            one_line(value) if value else ABSENT
            for value in (run.method or run.command, run.dataset.name, run.time_kind)
        )
        return method, dataset_name, time_kind


def write_index(root: Path) -> Path:
    """Write `index.html` and `index.md` into the folder; a folder without any report is an
    error.
    """
    entries = sorted(_entries(root), key=lambda entry: entry.folder.name, reverse=True)
    if not entries:
        raise SkitError(
            f"{root} holds no run with a report: name the folder that runs were made in"
        )
    document = build(root, entries)
    write_text(root / "index.md", render_markdown.render(document))
    write_text(root / "index.html", render_html.render(document, {}))
    return root / "index.html"


def build(root: Path, entries: list[IndexEntry]) -> Document:
    """Return the page, with reports on several runs first."""
    several = [entry for entry in entries if not entry.run]
    single = [entry for entry in entries if entry.run]
    blocks: list[Block] = []
    if several:
        rows = [(_link(root, entry), entry.headline) for entry in several]
        blocks += [Heading("Side by side"), Table(("report", "result"), rows)]
    if single:
        lines = [(_link(root, entry), *entry.setting, entry.headline) for entry in single]
        blocks += [Heading("Runs"), Table(("run", "method", "dataset", "time", "result"), lines)]
        benchmarks = [entry for entry in single if entry.run and entry.run.method]
        comparable = [
            entry for entry in benchmarks if entry.setting[1:] == benchmarks[0].setting[1:]
        ]
        if len(comparable) > 1:
            # The page is passed on: it names no folder above its own.
            first, last = (
                f"{root.resolve().name}/{comparable[place].folder.name}" for place in (-1, 0)
            )
            command = code(f"skit compare {first} {last}")
            blocks.append(Paragraph(f"Two runs side by side, from the folder above: {command}"))
    return Document(f"{len(entries)} reports in {code(root.resolve().name)}", blocks)


def _entries(root: Path) -> Iterator[IndexEntry]:
    if not root.is_dir():
        raise SkitError(f"there is no folder '{root}'")
    for folder in sorted({path.parent for page in PAGES for path in root.glob(f"*/**/{page}")}):
        page = next(page for page in PAGES if (folder / page).is_file())
        try:
            entry = _entry(folder)
        except (SkitError, ValueError) as error:  # what is damaged must not hide the other runs
            entry = Entry(RunDescription(), [], f"{folder.name} cannot be read: {error}", [])
        lines = [*machine.warnings(*entry.runs), *entry.cautions]
        headline = _with_doubts(lines, entry.headline)
        yield IndexEntry(folder, page, entry.run, one_line(headline))


DOUBTFUL = (
    *(
        "DISTURBED MACHINE",
        "PARTIAL RUN",
        "CHANGED INPUTS",
        "SAMPLE DATA",
        "SYNTHETIC PAIR",
        "TOY PAIR",
    ),
    *("LOSSY VERIFICATION", "NOT LOSSLESS", "FORCED COMPARISON", "IMPOSSIBLE TIMES"),
)
"""Cautions without which no headline stands in a list: the numbers do not hold, or not of what they
seem to be of.
"""


def _with_doubts(lines: Iterable[str], headline: str) -> str:
    """Return a headline behind the capitals of the cautions that it must not be read without."""
    words = [plain(line) for line in lines]
    found = [doubt for doubt in DOUBTFUL if any(line.startswith(doubt) for line in words)]
    return f"{', '.join(found)}: {headline}" if found else headline


def _entry(folder: Path) -> Entry:
    """Return what was run in a folder, nothing for several runs, and its result in a sentence."""
    kind = kind_in(folder)
    return kind.entry(folder) if kind else Entry(None, [], ABSENT, [])


def _link(root: Path, entry: IndexEntry) -> str:
    folder = entry.folder.relative_to(root)
    return link(one_line(str(folder)), (folder / entry.page).as_posix())
