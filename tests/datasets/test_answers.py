"""Answers are read from texts by stated rules."""

import pytest

from specbench_kit.datasets.answers import Gold
from specbench_kit.datasets.base import datasets


@pytest.mark.parametrize(
    ("rule", "gold", "right", "wrong"),
    [
        ("number", "16 - 3 = 13, 13 * 2 = 26\n#### 1,026", "So it is $1026.00 in 3 days. The answer is 1026.", "1027"),
        ("number", "#### -4", "7 less 11 is -4", "it is 4"),
        ("letter", "C", "Not A, as B says. The answer is (C), not D.", "The answer is B"),
        ("letter", "B", "A is wrong, so B", "B is wrong, so D"),
        ("phrase", "The Beatles", "The answer is: beatles!", "the rolling stones"),
        ("phrase", "an 80-yard run", "80yard run\nbecause he ran", "because\n80-yard run"),
    ],
)
def test_a_rule_tells_right_from_wrong(rule: str, gold: str, right: str, wrong: str) -> None:
    assert Gold(rule, (gold,)).matches(right)
    assert not Gold(rule, (gold,)).matches(wrong)
    assert not Gold(rule, (gold,)).matches("")


@pytest.mark.parametrize(
    ("name", "row", "text"),
    [
        ("gsm8k", {"question": "?", "answer": "2 + 3 = 5\n#### 5"}, "That makes 5."),
        ("mmlu", {"question": "?", "subject": "art", "choices": list("wxyz"), "answer": 2}, "The answer is C"),
        ("triviaqa", {"question": "?", "answer": {"value": "Rome", "aliases": ["Roma"]}}, "Roma"),
        ("drop", {"question": "?", "passage": "p", "query_id": "1", "answers_spans": {"spans": ["12"]}}, "12."),
    ],
)
def test_datasets_with_answers_know_them(name: str, row: dict[str, object], text: str) -> None:
    prompt = datasets.get(name)().prompt(row, 0)
    assert prompt is not None
    assert prompt.gold is not None
    assert prompt.gold.matches(text)
    assert not prompt.gold.matches("9 D elsewhere")
