"""The places of a text that state its answer: after `####` or "answer is", in `\\boxed{...}`, or in bold."""

import re

BOXED = r"\\boxed\s*\{(?P<boxed>(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
MARKED = r"(?:####|\banswer\W{0,3}\s(?:is\b|=)|\banswer\**\s*[:=]|\banswer\*\*)[\s:*]*(?P<marked>.+)"
STATED = re.compile(rf"(?={BOXED})|(?={MARKED})", re.IGNORECASE)
BOLD = re.compile(r"\*\*(?=\S)([^*\n]+?)\*\*")
END_OF_THOUGHT = "</think>"


def conclusion(text: str) -> str:
    """Return the part of a text that follows the thoughts of a reasoning model, or the whole text without any."""
    return text.rpartition(END_OF_THOUGHT)[2]


def stated_answers(text: str) -> list[str]:
    """Return what the text states as its answer, the last statement first."""
    # Look-aheads, so that a box inside a marked line is a statement of its own.
    statements = [match["boxed"] or match["marked"] or "" for match in STATED.finditer(text)]
    return [statement for statement in reversed(statements) if statement.strip()]


def bold_texts(text: str) -> list[str]:
    """Return the texts in bold, the last one first."""
    return BOLD.findall(text)[::-1]
