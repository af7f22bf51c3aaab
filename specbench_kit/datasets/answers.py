r"""Rules that read an answer out of a text and compare it; nothing that a model wrote is executed.

A text states its answer after `####` or "answer is", in `\boxed{...}`, or in bold. Numbers are read as people and
models write them, as decimals of any length.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Literal

RuleName = Literal["number", "letter", "phrase", "strict", "flexible"]

ARTICLES = re.compile(r"\b(?:a|an|the)\b")

RESULT = re.compile(r"=|≈|\b(?:is|are|equals|makes)\b", re.IGNORECASE)
SENTENCE_END = re.compile(r"[.!?;](?=\s|$)|\s\(|\n")
REMARK = re.compile(r"\([^()]*\)")
BOLD_NUMBER = re.compile(r"[-\u2212]?(?:\\?\$|[€£¥])?[-\u2212]?\.?\d[^:]*")
HEADING_NUMBER = re.compile(r"\d+[.)]\s")

LATEX = re.compile(r"\\[a-zA-Z]+")
LETTERS = "ABCDEFGHIJ"
"""The letters of choices: MMLU has four of them, AQuA five and MMLU-Pro ten."""
# "A square" begins with an article and "I think" with a pronoun; "(a)" and "a)" name a choice.
NO_ARTICLE = r"A(?!\s+[a-z])"
NO_PRONOUN = r"I(?!\s+(?!because|since|as\b|and\b|is\b)[a-z])"
NOT_LETTER = re.compile(r"\bnot\s+\(?[A-J]\b\)?", re.IGNORECASE)
LEADING_LETTER = re.compile(
    r"[\W_]*(?:the\s+)?(?:(?:correct|right|best)\s+)?(?:(?:option|choice|letter|answer)\b[\W_]*)?"
    rf"([A-HJ]|{NO_PRONOUN}|[b-hj]|[ai](?!\s+\w))(?![\w'’])"
)
LETTER_ALONE = re.compile(r"[\W_]*([A-Ja-j])[\W_]*(?:$|[).:]\s)")
CALLED_RIGHT = re.compile(r"\b([A-J])\b[\W_]*\s(?:is|as)\s(?:the\s)?(?:correct|right|best)\b")
CHOSEN = re.compile(
    r"\b(?:option|choice)\b(?:\s+is)?[\s:*(]*([A-HJ]|I(?!\s+[a-z]))\b", re.IGNORECASE
)
# Letters from E on are also units, variables and notes, unless a mark or nothing follows them.
LETTER = re.compile(
    rf"\(([A-Ja-j])\)|\b([B-D]|{NO_ARTICLE})\b(?!['’])|(?<![\w°'’])(?<!\d )([E-J])(?=[).:*}}]|\s*$)"
)

STRICT = re.compile(r"#### (-?[0-9.,]+)")
FLEXIBLE = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")
IGNORED_BY_HARNESS = re.compile(r"(?s:^.*#### )|[,$]|\.$")


@dataclass(frozen=True, slots=True)
class AnswerRule:
    """A function that reads the answer out of a text, and its description in words.

    `read_gold` reads a right answer, where that has a form of its own.
    """

    read: Callable[[str], str]
    words: str
    read_gold: Callable[[str], str] | None = None


@dataclass(frozen=True, slots=True)
class Gold:
    """The right answers of a prompt, any of which will do, and the name of the rule that reads them
    from texts.
    """

    rule: str
    answers: tuple[str, ...]

    def matches(self, text: str) -> bool:
        """Return True if the text's answer equals one of the right answers, all read by the
        rule.
        """
        rule = ANSWER_RULES[self.rule]
        answer = rule.read(text)
        return bool(answer) and answer in {
            (rule.read_gold or rule.read)(gold) for gold in self.answers
        }


def _number(text: str) -> str:
    text = conclusion(text)
    for statement in stated_answers(text):
        if stated := _stated_number(statement):
            return stated
    bold = [
        words
        for words in bold_texts(text)
        if BOLD_NUMBER.fullmatch(words) and not HEADING_NUMBER.match(words)
    ]
    # A remark in brackets, such as the numbers that were added, is not the result.
    for part in (*bold[:1], REMARK.sub(" ", text), text):
        if found := numbers(part):
            return found[0] if part in bold else found[-1]
    return ""


def _stated_number(statement: str) -> str:
    """Return the first number of a statement's first sentence that has one, behind its last `=` or
    `is`.
    """
    for sentence in SENTENCE_END.split(statement):
        for part in reversed(RESULT.split(sentence)):
            if found := numbers(part):
                return found[0]
    return ""


def _letter(text: str) -> str:
    text = NOT_LETTER.sub(" ", LATEX.sub(" ", _without_boxes(conclusion(text))))
    for statement in stated_answers(text):
        if match := LEADING_LETTER.match(statement) or LETTER.search(statement):
            return _first_group(match)
    if alone := LETTER_ALONE.match(text):
        return _first_group(alone)
    for pattern in (CALLED_RIGHT, CHOSEN, LETTER):
        if matches := list(pattern.finditer(text)):
            return _first_group(matches[-1])
    return ""


def _without_boxes(text: str) -> str:
    """Return the text with each `\\boxed` as the mark `####`, so that its letter remains where
    LaTeX is dropped.
    """
    return re.sub(r"\\boxed\b", "\n#### ", text)


def _first_group(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group).upper()


def _phrase(text: str) -> str:
    text = conclusion(text)
    first_line = next((line for line in text.splitlines() if line.strip()), "")
    return _plain(next(iter([*stated_answers(text), *bold_texts(first_line)[-1:], first_line])))


def _plain(phrase: str) -> str:
    """Return a phrase without case, punctuation and articles."""
    words = unicodedata.normalize("NFKC", phrase).casefold()
    words = "".join(
        character for character in words if unicodedata.category(character)[0] not in "PS"
    )
    return " ".join(ARTICLES.sub(" ", words).split()) or " ".join(words.split())


def _strict(text: str) -> str:
    matches = STRICT.findall(text)
    return _harness_form(matches[0]) if matches else ""


def _flexible(text: str) -> str:
    matches = FLEXIBLE.findall(text)
    return _harness_form(matches[-1]) if matches else ""


def _harness_form(text: str) -> str:
    """Return a text as lm-evaluation-harness compares it: without `$`, commas and a last full
    stop.
    """
    return IGNORED_BY_HARNESS.sub("", text.strip()).strip().lower()


ANSWER_RULES: Mapping[str, AnswerRule] = {
    "number": AnswerRule(
        _number,
        "the number that is stated last (after `####` or `answer is`, boxed or bold), else the last number",
    ),
    "letter": AnswerRule(
        _letter,
        "the letter A to J that is stated last (after `answer is`, boxed, called right), else the last one",
    ),
    "phrase": AnswerRule(
        _phrase,
        "the text that is stated last (after `answer is` or boxed), else the first line or its bold part, "
        "without case, punctuation and articles",
    ),
    "strict": AnswerRule(
        _strict,
        "the number after the first `####`, as strict-match of lm-evaluation-harness",
        _harness_form,
    ),
    "flexible": AnswerRule(
        _flexible, "the last number, as flexible-extract of lm-evaluation-harness", _harness_form
    ),
}


SPACE = r"[ \u00a0\u2000-\u200a\u202f\u205f\u3000]"
SEPARATOR = rf"(?:,|\{{,\}}|\\[,!]|['’]|{SPACE})"
# Only a comma may part two digits, as in India: 1,00,000. Numbers of a list are parted by spaces
# too, and "5 200-page" is no number of thousands.
GROUPED = r"\d{1,3}(?:(?:,|\{,\}|\\[,!])\d{2,3})*(?:,|\{,\}|\\[,!])\d{3}(?!\d)"
SPACED = rf"[1-9]\d{{0,2}}(?:(?:{SPACE}|['’])\d{{3}})+(?![\d/]|-[A-Za-z]|{SPACE}?[*×])"
DIGITS = rf"{GROUPED}|{SPACED}|\d+"
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
CURRENCY = r"(?:(?:\\?\$|[€£¥])(?P<inner_sign>[-\u2212]?))?"
# A minus between two numbers is a subtraction, and one behind a word is a hyphen.
SIGN = r"(?:(?<![\w)%\]}])(?<![\d)] )[-\u2212\u2013])?"
FRACTION = rf"\\[dt]?frac\{{(?P<upper>{DIGITS})\}}\{{(?P<lower>{DIGITS})\}}"
PLAIN = (
    rf"(?P<whole>{DIGITS})?(?P<part>\.\d+)?(?<=\d)(?P<exponent>[eE][-+]?\d{{1,3}}(?!\w))?"
    r"(?:\s*/\s*(?P<divisor>\d+))?"
)
NUMBER = re.compile(
    rf"(?P<sign>{SIGN}){CURRENCY}(?:{FRACTION}|(?<![\d.]){PLAIN})"
    rf"(?:\s*(?P<scale>{'|'.join(SCALES)})\b)?",
    re.IGNORECASE,
)
DIVISION = Context(prec=50)


def numbers(text: str) -> list[str]:
    """Return the numbers of a text, in order, each in its one form: `-1234.5` for `-$1,234.50`."""
    return [_canonical(match) for match in NUMBER.finditer(text)]


def _canonical(match: re.Match[str]) -> str:
    """Return a number without separators and needless zeros; its size is not limited."""
    whole = re.sub(SEPARATOR, "", match["upper"] or match["whole"] or "0")
    value = Decimal(f"{whole}{match['part'] or ''}{match['exponent'] or ''}")
    divisor = Decimal(re.sub(SEPARATOR, "", match["lower"] or match["divisor"] or "1"))
    if divisor not in (0, 1):
        value = DIVISION.divide(value, divisor)
    _, digits, exponent = value.as_tuple()
    # Shifting the exponent by hand is exact; arithmetic would round to the precision of a context.
    scaled = Decimal((0, digits, int(exponent) + SCALES.get((match["scale"] or "").lower(), 0)))
    plain = format(scaled, "f")
    plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
    plain = plain.lstrip("0") or "0"
    plain = f"0{plain}" if plain.startswith(".") else plain
    is_negative = bool(match["sign"] or match["inner_sign"]) and plain != "0"
    return f"-{plain}" if is_negative else plain


BOXED = r"\\boxed\s*\{(?P<boxed>(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
MARKED = (
    r"(?:####|\banswer\W{0,3}\s(?:is\b|=)|\banswer\**\s*[:=]|\banswer\*\*)[\s:*]*(?P<marked>.+)"
)
STATED = re.compile(rf"(?={BOXED})|(?={MARKED})", re.IGNORECASE)
BOLD = re.compile(r"\*\*(?=\S)([^*\n]+?)\*\*")
START_OF_THOUGHT, END_OF_THOUGHT = "<think>", "</think>"


def conclusion(text: str) -> str:
    """Return the part of a text that follows the thoughts of a reasoning model, or the whole text
    without any.
    """
    return text.rpartition(END_OF_THOUGHT)[2]


def end_of_thoughts(text: str) -> int | None:
    """Return the position behind a thinking part that tags mark; None for a text without one.

    A chat template may have written the opening tag, so that a text need not hold it.
    """
    begin = len(text) - len(text.lstrip())
    is_opened = text.startswith(START_OF_THOUGHT, begin)
    thoughts, closing, reply = text.partition(END_OF_THOUGHT)
    if not closing and not is_opened:
        return None
    if not thoughts[begin + len(START_OF_THOUGHT) * is_opened :].strip():
        return None  # a model that is told not to think may write the tags alone
    return len(text) - len(reply.lstrip())


def stated_answers(text: str) -> list[str]:
    """Return what the text states as its answer, the last statement first."""
    # Look-aheads, so that a box inside a marked line is a statement of its own.
    statements = [match["boxed"] or match["marked"] or "" for match in STATED.finditer(text)]
    return [statement for statement in reversed(statements) if statement.strip()]


def bold_texts(text: str) -> list[str]:
    """Return the texts in bold, the last one first."""
    return BOLD.findall(text)[::-1]
