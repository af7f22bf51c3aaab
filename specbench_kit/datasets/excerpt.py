"""The opening of a text, as the prompt of a continuation."""

import re


def opening(text: str, words: int) -> str | None:
    """The first `words` words of `text` with their spacing, or None where it has fewer."""
    start = re.match(rf"\s*(?:\S+\s+){{{words - 1}}}\S+", text)
    return start.group().strip() if start else None
