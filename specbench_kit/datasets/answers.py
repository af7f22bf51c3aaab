"""Whether a text gives the right answer, by stated rules; nothing that a model wrote is executed."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import punctuation

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
MARKED = re.compile(r"(?:answer(?: is|:)|####)\s*(.+)", re.IGNORECASE)
LETTER = re.compile(r"\b([A-D])\b")
ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@dataclass(frozen=True, slots=True)
class Rule:
    """How an answer is read out of a text, and the same in words."""

    read: Callable[[str], str]
    words: str


@dataclass(frozen=True, slots=True)
class Gold:
    """The right answers of a prompt, any of which will do, and the name of the rule that texts are read by."""

    rule: str
    answers: tuple[str, ...]

    def is_met(self, text: str) -> bool:
        """Whether the text's answer is one of them, read by the same rule."""
        read = RULES[self.rule].read
        said = read(text)
        return bool(said) and said in {read(answer) for answer in self.answers}


def _number(text: str) -> str:
    marked = MARKED.findall(text)
    found = NUMBER.findall(marked[-1]) if marked else []
    found = found or NUMBER.findall(text)
    return f"{float(found[-1].replace(',', '')):g}" if found else ""


def _letter(text: str) -> str:
    marked = MARKED.findall(text)
    found = LETTER.findall(marked[-1])[:1] if marked else []
    letters: list[str] = found or LETTER.findall(text)[-1:] or [""]
    return letters[0]


def _phrase(text: str) -> str:
    marked = MARKED.findall(text)
    lines = [line for line in text.splitlines() if line.strip()]
    said = marked[-1] if marked else (lines or [""])[0]
    plain = said.lower().translate(str.maketrans("", "", punctuation))
    return " ".join(ARTICLES.sub(" ", plain).split())


RULES: Mapping[str, Rule] = {
    "number": Rule(_number, "the last number, after the last `####` or `answer is` where there is one"),
    "letter": Rule(_letter, "the first letter A to D after the last `answer is`, else the last one"),
    "phrase": Rule(
        _phrase, "the text after the last `answer is`, else the first line, without case, punctuation and articles"
    ),
}
