"""One page that lists all runs of a folder: when, what, on what, the result in a sentence, and a link to its report."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import one_line
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.reports import render_html, render_markdown
from specbench_kit.reports.document import Block, Document, Heading, Paragraph, Table, code, link
from specbench_kit.reports.writing.formatting import ABSENT
from specbench_kit.runs.folder import write_text

HEAD_CHARACTERS = 20_000
"""Characters at the start of a report within which its headline stands."""
PAGES = ("report.html", "report.md")


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A folder with a report; `run` is its run.json, empty for a report on several runs."""

    folder: Path
    page: str
    run: JsonObject
    headline: str

    @property
    def setting(self) -> tuple[str, str, str]:
        """The run's method or command, its dataset and its kind of time."""
        dataset = self.run.get("dataset")
        name = dataset.get("name") if isinstance(dataset, dict) else None
        method, dataset_name, time_kind = (
            one_line(str(value)) if value else ABSENT
            for value in (self.run.get("method") or self.run.get("command"), name, self.run.get("time_kind"))
        )
        return method, dataset_name, time_kind


def write_index(root: Path) -> Path:
    """Write `index.html` and `index.md` into the folder; a folder without any report is an error."""
    entries = sorted(_entries(root), key=lambda entry: entry.folder.name, reverse=True)
    if not entries:
        raise SkitError(f"{root} holds no run with a report: name the folder that runs were made in")
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
        benchmarks = [entry for entry in single if entry.run.get("method")]
        comparable = [entry for entry in benchmarks if entry.setting[1:] == benchmarks[0].setting[1:]]
        if len(comparable) > 1:
            first = comparable[-1].folder.name
            last = comparable[0].folder.name
            blocks.append(Paragraph(f"Two runs side by side: {code(f'skit compare {first} {last}')}"))
    return Document(f"{len(entries)} reports in {code(root.resolve().name)}", blocks)


def _entries(root: Path) -> Iterator[IndexEntry]:
    if not root.is_dir():
        raise SkitError(f"there is no folder '{root}'")
    for folder in sorted({path.parent for page in PAGES for path in root.glob(f"*/**/{page}")}):
        page = next(page for page in PAGES if (folder / page).is_file())
        yield IndexEntry(folder, page, _run_file(folder / "run.json"), _headline(folder / "report.md"))


def _run_file(path: Path) -> JsonObject:
    """Return a run.json as far as it can be read: a damaged one must not hide the other runs."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        content = None
    return content if isinstance(content, dict) and content else {"method": "run.json cannot be read"}


def _headline(path: Path) -> str:
    """Return a report's first line in bold, which is its result, else its first item of a list, else its title."""
    if not path.is_file():
        return ABSENT
    with path.open(encoding="utf-8", errors="replace") as file:
        lines = [one_line(line.strip()) for line in file.read(HEAD_CHARACTERS).splitlines()]
    bold = next((line for line in lines if line.startswith("**") and line.endswith("**")), "")
    title = next((line for line in lines if line.startswith("# ")), f"# {ABSENT}")
    # The results of a simulation are a list above its first section.
    opening = lines[: next((number for number, line in enumerate(lines) if line.startswith("## ")), len(lines))]
    item = next((line[2:] for line in opening if line.startswith("- ")), "")
    return bold.strip("*") or item or title[2:]


def _link(root: Path, entry: IndexEntry) -> str:
    folder = entry.folder.relative_to(root)
    return link(one_line(str(folder)), (folder / entry.page).as_posix())
