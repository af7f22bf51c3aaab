"""What the README and the pages below docs/ say: their blocks, and the commands in them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^(<!-- make docs-test -->\n)?```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """Lines between fences; one that is `slow` runs in `make docs-test`, as it is written."""

    page: Path
    language: str
    text: str
    slow: bool


def blocks(language: str) -> list[CodeBlock]:
    """Every block of the language, each text once."""
    all_blocks = [
        CodeBlock(page, match[2], match[3], bool(match[1]))
        for page in PAGES
        for match in FENCED.finditer(page.read_text(encoding="utf-8"))
        if match[2] == language
    ]
    return list({block.text: block for block in reversed(all_blocks)}.values())[::-1]


def block(language: str, part: str) -> str:
    """The one block that has this in it."""
    (matching,) = (candidate for candidate in blocks(language) if part in candidate.text)
    return matching.text
