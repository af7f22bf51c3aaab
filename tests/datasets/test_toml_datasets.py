"""A dataset is one TOML file: its template is data, and a damaged file is refused in one line."""

from pathlib import Path

import pytest
from documents import FENCED, ROOT

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.answers import Gold
from specbench_kit.datasets.base import Prompt
from specbench_kit.datasets.loading import SAMPLES
from specbench_kit.datasets.toml_datasets import dataset_type, fill

RIDDLES = """
summary = "riddles"
paper = "none"
sample = "chat"
local = "riddles.jsonl"
hub = { path = "someone/riddles", split = "test" }

[prompt]
id = "riddle-{index}"
category = "{kind}"
text = "Solve: {riddle.text}"
"""


def test_one_file_defines_a_dataset(tmp_path: Path) -> None:
    path = tmp_path / "riddles.toml"
    path.write_text(RIDDLES)
    dataset = dataset_type(path)()
    assert (dataset.summary, dataset.local, dataset.sample) == ("riddles", "riddles.jsonl", "chat")
    row = {"kind": "keys", "riddle": {"text": "What has keys but no locks?"}}
    assert dataset.prompt(row, 3) == Prompt("riddle-3", "keys", ("Solve: What has keys but no locks?",))


def test_the_example_for_contributors_is_a_dataset(tmp_path: Path) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (example,) = (match[3] for match in FENCED.finditer(text) if match[2] == "toml")
    path = tmp_path / "riddles.toml"
    path.write_text(example)
    dataset = dataset_type(path)()
    assert (SAMPLES / f"{dataset.sample}.jsonl").is_file()
    row = {"riddle": "What has keys but no locks?", "answer": "a piano"}
    gold = Gold("phrase", ("a piano",))
    assert dataset.prompt(row, 0) == Prompt("riddles-0", "riddles", (row["riddle"],), gold=gold)
    assert (dataset.example.row, dataset.example.text) == (row, row["riddle"])


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('paper = "none"', "", "paper is missing"),
        ('sample = "chat"', 'sample = "chat"\ncode = "1"', "code is unknown"),
        ("category =", "catgory =", "prompt.catgory is unknown"),
        ('split = "test"', "split = 3", "hub.split must be text, not 3"),
        ("[prompt]", "[prompt", "cannot be used"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, old: str, new: str, reason: str) -> None:
    path = tmp_path / "riddles.toml"
    path.write_text(RIDDLES.replace(old, new))
    with pytest.raises(SkitError, match=r"the dataset file 'riddles\.toml' cannot be used: ") as raised:
        dataset_type(path)
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_template_reaches_columns_and_nothing_else() -> None:
    row = {"question": "Why?", "{index}": 1}
    assert fill("{question}", {"question": None}, 0) is None
    assert fill("{index}: {question}", {"question": "{index}"}, 7) == "7: {index}"
    assert fill("{question!r} {question[0]} {}", row, 7) == "{question!r} {question[0]} {}"
    for template in ("{question.__class__}", "a {question.upper}"):
        with pytest.raises(TypeError):
            fill(template, row, 0)
