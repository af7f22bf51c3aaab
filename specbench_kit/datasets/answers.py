"""Rules that read an answer out of a text and compare it; nothing that a model wrote is executed."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import punctuation

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
MARKED = re.compile(r"(?:answer(?: is|:)|####)\s*(.+)", re.IGNORECASE)
LETTER = re.compile(r"\b([A-D])\b")
ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@dataclass(frozen=True, slots=True)
class AnswerRule:
    """A function that reads the answer out of a text, and its description in words."""

    read: Callable[[str], str]
    words: str


@dataclass(frozen=True, slots=True)
class Gold:
    """The right answers of a prompt, any of which will do, and the name of the rule that reads them from texts."""

    rule: str
    answers: tuple[str, ...]

    def matches(self, text: str) -> bool:
        """Return True if the text's answer equals one of the right answers, all read by the rule."""
        read = RULES[self.rule].read
        answer = read(text)
        return bool(answer) and answer in {read(gold) for gold in self.answers}


def _number(text: str) -> str:
    marked = MARKED.findall(text)
    numbers = NUMBER.findall(marked[-1]) if marked else []
    numbers = numbers or NUMBER.findall(text)
    return f"{float(numbers[-1].replace(',', '')):g}" if numbers else ""


def _letter(text: str) -> str:
    marked = MARKED.findall(text)
    marked_letters = LETTER.findall(marked[-1])[:1] if marked else []
    letters: list[str] = marked_letters or LETTER.findall(text)[-1:] or [""]
    return letters[0]


def _phrase(text: str) -> str:
    marked = MARKED.findall(text)
    lines = [line for line in text.splitlines() if line.strip()]
    phrase = marked[-1] if marked else (lines or [""])[0]
    plain = phrase.lower().translate(str.maketrans("", "", punctuation))
    return " ".join(ARTICLES.sub(" ", plain).split())


RULES: Mapping[str, AnswerRule] = {
    "number": AnswerRule(_number, "the last number, after the last `####` or `answer is` where there is one"),
    "letter": AnswerRule(_letter, "the first letter A to D after the last `answer is`, else the last one"),
    "phrase": AnswerRule(
        _phrase, "the text after the last `answer is`, else the first line, without case, punctuation and articles"
    ),
}
