"""One page on all runs of a folder: when, what, on what, the result in a sentence, and where its report lies."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import one_line
from specbench_kit.reports.writing import html
from specbench_kit.reports.writing.formatting import ABSENT
from specbench_kit.reports.writing.markup import code, document, table
from specbench_kit.runs.folder import write_text

HEAD_CHARACTERS = 20_000
"""Of a report, within which its result stands."""
PAGES = ("report.html", "report.md")


@dataclass(frozen=True, slots=True)
class Entry:
    """A folder with a report; `about` is its run.json, or nothing for a report on several runs."""

    folder: Path
    page: str
    about: dict[str, Any]
    headline: str


def write_index(root: Path) -> Path:
    """Write `index.html` and `index.md` into the folder; a folder without any report is an error."""
    entries = sorted(_entries(root), key=lambda entry: entry.folder.name, reverse=True)
    if not entries:
        raise SkitError(f"{root} holds no run with a report: name the folder that runs were made in")
    text = render(root, entries)
    write_text(root / "index.md", text)
    write_text(root / "index.html", html.page(text, {}))
    return root / "index.html"


def render(root: Path, entries: list[Entry]) -> str:
    """As Markdown: reports on several runs first."""
    several, single = ([one for one in entries if bool(one.about) is kind] for kind in (False, True))
    sections = [f"# {len(entries)} reports in {code(root.resolve().name)}"]
    if several:
        rows = [(_link(root, one), one.headline) for one in several]
        sections.append("## Side by side\n\n" + table(["report", "result"], rows))
    if single:
        header = ["run", "of", "dataset", "time", "result"]
        rows_of = [(_link(root, one), *_what(one.about), one.headline) for one in single]
        sections.append("## Runs\n\n" + table(header, rows_of))
        benchmarks = [one for one in single if one.about.get("method")]
        alike = [one for one in benchmarks if _what(one.about)[1:] == _what(benchmarks[0].about)[1:]]
        if len(alike) > 1:
            first, last = alike[-1].folder.name, alike[0].folder.name
            sections.append(f"Two runs side by side: {code(f'skit compare {first} {last}')}")
    return document(sections)


def _entries(root: Path) -> Iterator[Entry]:
    if not root.is_dir():
        raise SkitError(f"there is no folder '{root}'")
    for file in sorted({path.parent for name in PAGES for path in root.glob(f"*/**/{name}")}):
        page = next(name for name in PAGES if (file / name).is_file())
        yield Entry(file, page, _about(file / "run.json"), _headline(file / "report.md"))


def _about(path: Path) -> dict[str, Any]:
    """A run.json as far as it can be read; what is none has no fields."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {"method": "run.json cannot be read"}
    return found if isinstance(found, dict) and found else {"method": "run.json cannot be read"}


def _headline(path: Path) -> str:
    """The first sentence in bold, else the title."""
    if not path.is_file():
        return ABSENT
    with path.open(encoding="utf-8", errors="replace") as file:
        lines = [one_line(line.strip()) for line in file.read(HEAD_CHARACTERS).splitlines()]
    bold = next((line for line in lines if line.startswith("**") and line.endswith("**")), "")
    title = next((line for line in lines if line.startswith("# ")), f"# {ABSENT}")
    return bold.strip("*") or title[2:]


def _link(root: Path, entry: Entry) -> str:
    place = entry.folder.relative_to(root)
    return f"[{one_line(str(place))}]({(place / entry.page).as_posix()})"


def _what(about: dict[str, Any]) -> tuple[str, str, str]:
    dataset = about.get("dataset")
    name = dataset.get("name") if isinstance(dataset, dict) else None
    texts = (about.get("method") or about.get("command"), name, about.get("time_kind"))
    return tuple(one_line(str(text)) if text else ABSENT for text in texts)  # type: ignore[return-value]
