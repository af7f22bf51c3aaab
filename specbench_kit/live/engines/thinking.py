"""Where the thoughts of a reasoning model end in its answer, and its reply begins."""

from collections.abc import Sequence
from typing import NamedTuple

from specbench_kit.datasets.answers import end_of_thoughts
from specbench_kit.live.engines.answers import ThinkingPart, divided


class TextPart(NamedTuple):
    """A part of an answer: when it arrived, its thoughts, whatever else it holds, and its tokens."""

    at_s: float
    thoughts: str
    others: str
    tokens: int


def _end_of_fields(parts: Sequence[TextPart]) -> int | None:
    """Return the position of the first text outside the fields of thoughts, in the joined text."""
    position = 0
    has_thoughts = False
    for part in parts:
        position += len(part.thoughts)
        has_thoughts = has_thoughts or bool(part.thoughts.strip())
        if part.others.strip():
            blank = len(part.others) - len(part.others.lstrip())
            return position + blank if has_thoughts else None
        position += len(part.others)
    return position if has_thoughts else None


def end_of_thinking(parts: Sequence[TextPart]) -> int | None:
    """Return the position in the joined text at which the reply begins; None without thoughts.

    A server sends thoughts in fields of their own, or between tags in the text of the answer.
    """
    if any(part.thoughts.strip() for part in parts):
        return _end_of_fields(parts)
    return end_of_thoughts("".join(part.others for part in parts))


def thinking_part(
    parts: Sequence[TextPart], end: int, *, counts_tokens: bool = True
) -> ThinkingPart:
    """Return the thinking part of an answer, which takes `end` characters of the joined text.

    The tokens of a part that holds the end of the thoughts and the beginning of the reply are
    divided in proportion to their characters.
    """
    position = 0
    tokens = 0
    reply_s = None
    for part in parts:
        length = len(part.thoughts) + len(part.others)
        inside = min(length, max(0, end - position))
        if inside == length and position < end:
            tokens += part.tokens
        # White space before the first word of the reply mostly is a part of its token.
        elif f"{part.thoughts}{part.others}"[:inside].strip():
            tokens += divided(part.tokens, [inside, length - inside])[0]
        if inside < length and reply_s is None:
            reply_s = part.at_s
        position += length
    return ThinkingPart(
        tokens=tokens if counts_tokens else None,
        characters=end,
        reply_characters=position - end,
        reply_s=reply_s,
        unfinished=reply_s is None,
    )


def thinking_of_text(text: str | None, tokens: int) -> ThinkingPart | None:
    """Return the thinking part that tags mark in a text of so many tokens, without its times; None
    without one.
    """
    end = end_of_thoughts(text) if text else None
    return None if text is None or end is None else untimed_part(end, len(text) - end, tokens)


def untimed_part(characters: int, reply_characters: int, tokens: int) -> ThinkingPart:
    """Return a thinking part by its length and that of the reply, in whose proportion all tokens
    are divided.
    """
    return ThinkingPart(
        tokens=divided(tokens, [characters, reply_characters])[0] if reply_characters else tokens,
        characters=characters,
        reply_characters=reply_characters,
        unfinished=not reply_characters,
    )
