"""Answers are read from texts by stated rules."""

import pytest

from specbench_kit.datasets.answers import Gold
from specbench_kit.datasets.base import datasets


@pytest.mark.parametrize(
    ("rule", "gold", "right", "wrong"),
    [
        (
            "number",
            "16 - 3 = 13, 13 * 2 = 26\n#### 1,026",
            "So it is $1026.00 in 3 days. The answer is 1026.",
            "1027",
        ),
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
    ("text", "number"),
    [
        ("It costs 1234567", "1234567"),
        ("It is 1234567.", "1,234,567"),
        ("#### 9{,}500", "9500"),
        (r"\boxed{9\,500}", "9500"),
        ("exactly 9\u202f500", "9500"),
        ("The answer is 1,00,000", "100000"),
        ("The answer is -$5", "-5"),
        ("The answer is $-5", "-5"),
        ("it is \u22125", "-5"),
        ("it is .5", "0.5"),
        ("it is 3.0", "3"),
        ("10-3 is 7, so 16-13", "13"),
        ("The answer is 72. (48 in April and 24 in May)", "72"),
        ("72. (48 in April and 24 in May)", "72"),
        ("**10**. Let me check: all 3 steps hold", "10"),
        ("**Step 1: Add 3**\nThat makes **26 dollars**.\n**3. Check**: 26 / 2 = 13", "26"),
        ("**Final Answer**\n\n18 dollars in 2 days", "18"),
        ("The answer is that the total is 72 in 2 months", "72"),
        ("The answer is 16 - 3 = 13 dollars", "13"),
        ("The answer is 5. No, wait:\n\\boxed{6}", "6"),
        (r"\boxed{\frac{1}{2}}", "0.5"),
        ("Answer: 3/4", "0.75"),
        ("The answer is 1 million", "1000000"),
        ("<think>the answer is 5?</think>It is 18", "18"),
        ("1" * 5000, "1" * 5000),
    ],
)
def test_a_number_is_read_as_it_is_stated(text: str, number: str) -> None:
    assert Gold("number", (number,)).matches(text)
    assert not Gold("number", (f"{number}1",)).matches(text)


def test_numbers_are_compared_in_every_digit() -> None:
    assert not Gold("number", ("1234567",)).matches("1234568")
    assert not Gold("number", ("0.12345671",)).matches("0.12345672")


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is option C. A square has four sides", "C"),
        ("C. A square", "C"),
        ("(b)", "B"),
        ("b) the square", "B"),
        ("The answer is (b)", "B"),
        ("The answer is A because B has none", "A"),
        ("The answer is not B but C", "C"),
        ("Option C is correct because option A is false.", "C"),
        ("A square has four sides, so D", "D"),
        (r"\boxed{\text{B}}", "B"),
        ("**Answer: A**", "A"),
    ],
)
def test_a_letter_is_read_as_it_is_stated(text: str, letter: str) -> None:
    for candidate in "ABCD":
        assert Gold("letter", (candidate,)).matches(text) == (candidate == letter)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("It is **Paris**, the capital", "Paris"),
        (r"\boxed{Paris}", "Paris"),
        ("o'brien", "O\u2019Brien"),
        ("cafe\u0301", "caf\u00e9"),
        ("A", "a"),
    ],
)
def test_a_phrase_is_read_as_it_is_stated(text: str, phrase: str) -> None:
    assert Gold("phrase", (phrase,)).matches(text)
    assert not Gold("phrase", (f"{phrase}s",)).matches(text)


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("So it is 5.\n#### 1,026.", True, True),
        ("So it is $1026.", False, True),
        ("#### 1026\nThe next one is 7", True, False),
        ("#### 1026.00", False, False),
        ("none", False, False),
    ],
)
def test_two_rules_read_numbers_as_the_harness_does(
    text: str, strict: bool, flexible: bool
) -> None:
    for gold in ("1 + 2 = 3\n#### 1,026", "1026"):
        assert Gold("strict", (gold,)).matches(text) == strict
        assert Gold("flexible", (gold,)).matches(text) == flexible


@pytest.mark.parametrize(
    ("name", "row", "text"),
    [
        ("gsm8k", {"question": "?", "answer": "2 + 3 = 5\n#### 5"}, "That makes 5."),
        (
            "mmlu",
            {"question": "?", "subject": "art", "choices": list("wxyz"), "answer": 2},
            "The answer is C",
        ),
        ("triviaqa", {"question": "?", "answer": {"value": "Rome", "aliases": ["Roma"]}}, "Roma"),
        (
            "drop",
            {"question": "?", "passage": "p", "query_id": "1", "answers_spans": {"spans": ["12"]}},
            "12.",
        ),
    ],
)
def test_datasets_with_answers_know_them(name: str, row: dict[str, object], text: str) -> None:
    prompt = datasets.get(name)().prompt(row, 0)
    assert prompt is not None
    assert prompt.gold is not None
    assert prompt.gold.matches(text)
    assert not prompt.gold.matches("9 D elsewhere")


SPACES = " \u00a0\u2002\u2007\u2009\u200a\u202f\u205f"


@pytest.mark.parametrize("space", SPACES)
def test_a_space_of_any_kind_may_part_thousands(space: str) -> None:
    for text in (
        f"The answer is 1{space}500.",
        f"#### 1{space}500",
        f"It costs $1{space}500.00 in all",
    ):
        assert Gold("number", ("1500",)).matches(text)
    assert Gold("number", ("1234567.5",)).matches(f"12 is 1{space}234{space}567.5")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("in 2020 300", "300"),
        ("he has 5 12", "12"),
        ("It is 1'500", "1500"),
        ("It is 1’500'000", "1500000"),
        ("he read 5 200-page books, so 7", "7"),
        ("The answer is 5 1/2", "5"),
        ("The answer is 0 500", "0"),
        ("The answer is 1 5000", "1"),
    ],
)
def test_not_every_space_parts_thousands(text: str, number: str) -> None:
    assert Gold("number", (number,)).matches(text)


@pytest.mark.parametrize("letter", "ABCDEFGHIJ")
def test_every_letter_of_ten_choices_is_read(letter: str) -> None:
    forms = (
        "The answer is ({}).", "The answer is {}.", "Answer: {}", "{}", "{}. 42 km", "({}) since it is so",
        r"\boxed{{{}}}", r"So it is $\boxed{{\text{{{}}}}}$", "**{}**", "Option {} is correct.", "Therefore ({}) holds",
        "I think the best choice is {}.", "the answer is {}", "#### {}",
    )  # fmt: skip
    for form in forms:
        assert Gold("letter", (letter,)).matches(form.format(letter)), form
        others = set("ABCDEFGHIJ") - {letter}
        assert not any(Gold("letter", (other,)).matches(form.format(letter)) for other in others), (
            form
        )


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B, since water freezes at 32 °F and not at 20 F", "B"),
        ("I think that it is B", "B"),
        ("The answer is I because of the ninth choice", "I"),
        ("The answer: I believe it is (D)", "D"),
        ("C is right since E = mc2 and G is constant", "C"),
    ],
)
def test_letters_that_are_no_choices_are_passed_over(text: str, letter: str) -> None:
    assert Gold("letter", (letter,)).matches(text)
