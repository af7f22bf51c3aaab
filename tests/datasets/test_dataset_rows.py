"""Every dataset turns a row in its published layout into the prompt that is decoded."""

from typing import Any

import pytest
from plug_ins import of_the_kit

from specbench_kit.datasets.answers import Gold
from specbench_kit.datasets.base import Dataset, Prompt, datasets
from specbench_kit.datasets.toml_datasets import DEFINITIONS

LONG = " ".join(f"word{number}" for number in range(140))
OPENING = " ".join(f"word{number}" for number in range(128))
MESSAGE: dict[str, Any] = {
    "message_id": "6ab24d72-0181-4594-a9cd-deaf170242fb",
    "parent_id": None,
    "text": "Can you explain tides to me?",
    "role": "prompter",
    "lang": "en",
    "deleted": False,
    "message_tree_id": "6ab24d72-0181-4594-a9cd-deaf170242fb",
    "tree_state": "ready_for_export",
}
DIALOGUE = {
    "question_id": 81,
    "category": "writing",
    "turns": ["Write a letter.", "Shorten it."],
    "reference": [],
}
MESSAGES: dict[str, Any] = {
    "question_id": 82,
    "category": "coding",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Sort a list."},
        {"role": "assistant", "content": "sorted(a)"},
        {"role": "user", "content": "Now a dictionary."},
    ],
}
RAG = {
    "question_id": 481,
    "category": "rag",
    "turns": ["A passage.\nA question?"],
    "reference": ["An answer."],
}

ROWS: list[tuple[str, dict[str, Any], Prompt | None]] = [
    (
        "gsm8k",
        {
            "question": "Ann has 3 pens and buys 2. How many?",
            "answer": "3 + 2 = <<3+2=5>>5\n#### 5",
        },
        Prompt(
            "gsm8k-7",
            "math_reasoning",
            ("Ann has 3 pens and buys 2. How many?",),
            gold=Gold("number", ("3 + 2 = <<3+2=5>>5\n#### 5",)),
        ),
    ),
    ("spec-bench", DIALOGUE, Prompt("81", "multi_turn", ("Write a letter.", "Shorten it."))),
    ("spec-bench", RAG, Prompt("481", "rag", ("A passage.\nA question?",))),
    ("mt-bench", DIALOGUE, Prompt("81", "writing", ("Write a letter.", "Shorten it."))),
    ("mt-bench", RAG, None),
    *(
        (f"speed-bench{size}", row, prompt)
        for row, prompt in (
            (DIALOGUE, Prompt("81", "writing", ("Write a letter.", "Shorten it."))),
            (
                MESSAGES,
                Prompt("82", "coding", ("Sort a list.", "Now a dictionary."), system="Be brief."),
            ),
        )
        for size in ("", "-1k", "-2k", "-8k", "-16k", "-32k")
    ),
    *(
        (
            f"humaneval{kind}",
            {
                "task_id": "HumanEval/5",
                "prompt": 'def twice(x):\n    """Double x."""\n',
                "canonical_solution": "    return 2 * x\n",
                "test": "def check(candidate):\n    assert candidate(1) == 2\n",
                "entry_point": "twice",
            },
            Prompt(
                "HumanEval/5",
                "code",
                ('def twice(x):\n    """Double x."""\n',),
                chat=kind != "-raw",
            ),
        )
        for kind in ("", "-raw")
    ),
    *(
        (
            f"humaneval-x-{language}",
            {
                "task_id": "CPP/5",
                "prompt": "int twice(int x){\n",
                "declaration": "",
                "canonical_solution": "",
            },
            Prompt("CPP/5", language, ("int twice(int x){\n",)),
        )
        for language in ("cpp", "go", "java", "js", "python")
    ),
    (
        "gutenberg",
        {"id": 84, "text": LONG},
        Prompt("gutenberg-84", "continuation", (OPENING,), chat=False),
    ),
    ("gutenberg", {"id": "85", "text": LONG}, None),
    (
        "wikitext-2",
        {"text": f" {LONG} \n"},
        Prompt("wikitext-2-7", "continuation", (OPENING,), chat=False),
    ),
    ("wikitext-2", {"text": ""}, None),
    ("wikitext-2", {"text": " = = Career = = \n"}, None),
    (
        "c4",
        {"text": LONG, "timestamp": "2019-04-22T10:19:02Z", "url": "https://example.org/a"},
        Prompt("c4-7", "continuation", (OPENING,), chat=False),
    ),
    (
        "c4",
        {
            "text": "Page not found.",
            "timestamp": "2019-04-22T10:19:02Z",
            "url": "https://example.org/b",
        },
        None,
    ),
    (
        "cnn-dailymail",
        {"article": "A bridge opened today.", "highlights": "Bridge opens.", "id": "92c514c9"},
        Prompt(
            "cnn-dailymail-7",
            "summarization",
            ("Summarize this news article in a few sentences.\n\nA bridge opened today.",),
        ),
    ),
    (
        "wmt14-de-en",
        {"translation": {"de": "Guten Morgen.", "en": "Good morning."}},
        Prompt(
            "wmt14-de-en-7",
            "translation",
            ("Translate this German text into English.\n\nGuten Morgen.",),
        ),
    ),
    (
        "natural-questions",
        {"question": "who wrote the anthem of iceland", "answer": ["Matthías Jochumsson"]},
        Prompt("natural-questions-7", "qa", ("who wrote the anthem of iceland?",)),
    ),
    (
        "drop",
        {
            "section_id": "nfl_1184",
            "query_id": "f37e81fa",
            "passage": "They scored 7 and then 3 points.",
            "question": "How many points did they score?",
            "answers_spans": {"spans": ["10"], "types": ["number"]},
        },
        Prompt(
            "drop-7",
            "reading",
            (
                "Read the passage and answer the question, showing how you get there.\n\n"
                "They scored 7 and then 3 points.\n\nQuestion: How many points did they score?",
            ),
            gold=Gold("phrase", ("10",)),
        ),
    ),
    (
        "mmlu",
        {
            "question": "2 + 2 = ?",
            "subject": "elementary_mathematics",
            "choices": ["3", "4", "5", "6"],
            "answer": 1,
        },
        Prompt(
            "mmlu-7",
            "elementary_mathematics",
            (
                "2 + 2 = ?\n\nA. 3\nB. 4\nC. 5\nD. 6\n\nWhich choice is right? Give your reasons, then the letter.",
            ),
            gold=Gold("letter", ("B",)),
        ),
    ),
    (
        "triviaqa",
        {
            "question": "Which river flows through Ghent?",
            "question_id": "tc_33",
            "question_source": "http://www.triviacountry.com/",
            "answer": {"value": "Scheldt", "aliases": ["Schelde", "Scheldt"]},
        },
        Prompt(
            "triviaqa-7",
            "qa",
            ("Which river flows through Ghent?",),
            gold=Gold("phrase", ("Scheldt", "Schelde", "Scheldt")),
        ),
    ),
    ("oasst", MESSAGE, Prompt(MESSAGE["message_id"], "chat", ("Can you explain tides to me?",))),
    ("oasst", MESSAGE | {"parent_id": "c8e83833", "role": "assistant"}, None),
    ("oasst", MESSAGE | {"lang": "es"}, None),
    ("oasst", MESSAGE | {"deleted": True}, None),
]


@pytest.mark.parametrize(("name", "row", "expected"), ROWS)
def test_a_published_row_becomes_the_prompt(
    name: str, row: dict[str, object], expected: Prompt | None
) -> None:
    assert datasets.get(name)().prompt(row, 7) == expected


OWN = of_the_kit(datasets)
EXAMPLES = {name: entry.example for name, entry in OWN.items() if getattr(entry, "example", None)}
"""Rows that the definitions of datasets bring with them."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_row_of_a_definition_becomes_its_prompt(name: str) -> None:
    OWN[name].check_example()


def test_no_definition_of_the_kit_is_left_out() -> None:
    names = {path.stem for path in DEFINITIONS.glob("*.toml")}
    assert {name: reason for name, reason in datasets.left_out().items() if name in names} == {}
    assert OWN.keys() == names


BUNDLED = {"everyday", "json-answers", "tool-calls"}


def test_every_dataset_of_the_kit_has_a_row_above_or_in_its_definition() -> None:
    # These have no rows elsewhere: they come with the kit.
    assert OWN.keys() - BUNDLED - EXAMPLES.keys() == {name for name, _, _ in ROWS}


@pytest.mark.parametrize("entry", OWN.values(), ids=OWN)
def test_every_dataset_says_what_it_is_and_where_it_lies(entry: type[Dataset]) -> None:
    assert entry.summary
    assert "\n" not in entry.summary
    assert entry.paper
    if entry.local is None:
        assert entry.sample in BUNDLED
        return
    assert not entry.local.startswith("/")
    assert entry.hub is None or (
        "/" in entry.hub.path and entry.hub.split in {"train", "validation", "test"}
    )
    assert entry.sample in {"gsm8k", "chat", "code", "translation", "summarisation"}
