"""The folder of any command gives its page again, from its two files alone."""

import re
import shutil
from html import unescape
from pathlib import Path

from command_line import skit_here

from specbench_kit.reports.study import StudyKind
from specbench_kit.studies.kinds import studies_in


def assert_made_again(folder: Path, scratch: Path) -> None:
    """Assert that `skit report` makes every page, table and picture anew, byte for byte."""
    copy = scratch / folder.name
    shutil.copytree(folder, copy)
    studies = studies_in(copy)
    assert studies
    assert_marks_are_rendered(folder)
    removed = [path for study in studies for path in made_of(study.kind, copy)]
    for study in studies:
        removed += [copy / name for name in study.kind.files(study)]
        for picture in study.kind.pictures(study):
            removed += [copy / "plots" / f"{picture.name}.{suffix}" for suffix in ("png", "svg")]
    for path in removed:
        path.unlink()
    done = skit_here("report", copy)
    assert done.returncode == 0, done.stderr
    assert studies[0].kind.headline(studies[0])
    for path in removed:
        assert path.read_bytes() == (folder / path.relative_to(copy)).read_bytes(), path


def made_of(kind: StudyKind, folder: Path) -> list[Path]:
    """The pages of a kind of study in a folder."""
    return [folder / f"{kind.page}.{suffix}" for suffix in ("md", "html")]


WITHOUT_MARKS = re.compile(r"<(style|script|svg|pre|code)\b.*?</\1>|<[^>]*>", re.DOTALL)
"""What an HTML page holds besides its running text."""
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
BOLD = re.compile(r"\*+")


def assert_marks_are_rendered(folder: Path) -> None:
    """Assert that no HTML page of a folder shows a mark of Markdown, and that no text of a Markdown
    page is bold within bold.
    """
    pages = [path for path in sorted(folder.rglob("*")) if path.suffix in (".html", ".md")]
    assert pages
    for path in pages:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".html":
            assert "*" not in unescape(WITHOUT_MARKS.sub("", text)), path
            assert not re.search(r"<strong>(?:(?!</strong>).)*<strong>", text), path
        else:
            for line in CODE.sub("code", text).splitlines():
                assert not (error := nested_bold(line)), f"{path}: {error}: {line}"


def nested_bold(line: str) -> str:
    """Return what is wrong with the marks of bold text in a line of Markdown; empty if nothing is."""
    marks = [mark for mark in BOLD.finditer(line) if mark[0] != "*"]
    if any(mark[0] != "**" for mark in marks):
        return "marks that run together"
    if len(marks) % 2:
        return "a mark without its other"
    for opening, closing in zip(marks[::2], marks[1::2], strict=True):
        # An inner mark that opens again follows a blank, where only a closing one may stand.
        if line[opening.end()].isspace() or line[closing.start() - 1].isspace():
            return "bold within bold"
    return ""
