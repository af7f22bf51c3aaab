"""Names from files of others as text that no terminal, table or page takes for more."""

from typing import Any


def one_line(text: str) -> str:
    """The text with its white space as single blanks, and characters that show nothing as escapes."""
    if text.isprintable():
        return text
    return "".join(map(_visible, " ".join(text.split())))


def one_line_texts(value: Any) -> Any:
    """A JSON value all of whose texts, keys included, are one line."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, dict):
        return {one_line(key): one_line_texts(inner) for key, inner in value.items()}
    return [one_line_texts(inner) for inner in value] if isinstance(value, list) else value


def first_line(error: BaseException) -> str:
    """Of a library's error, or its type where it says nothing."""
    lines = str(error).strip().splitlines()
    return one_line(lines[0]) if lines else type(error).__name__


def _visible(character: str) -> str:
    # Blanks of every kind are told apart from what moves a cursor or turns the writing direction.
    return character if character.isprintable() or character.isspace() else ascii(character)[1:-1]
