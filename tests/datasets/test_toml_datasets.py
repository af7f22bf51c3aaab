"""A dataset is one TOML file: its template is data, and a damaged file is refused in one line."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from documents import FENCED, ROOT, block
from msgspec import NODEFAULT, inspect

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.answers import Gold, RuleName
from specbench_kit.datasets.base import Prompt
from specbench_kit.datasets.loading import SAMPLES
from specbench_kit.datasets.toml_datasets import DatasetDefinition, dataset_type, fill

HUB = '{ path = "someone/riddles", split = "test" }'
RIDDLES = f"""
summary = "riddles"
paper = "none"
sample = "chat"
local = "riddles.jsonl"
hub = {HUB}

[prompt]
id = "riddle-{{index}}"
category = "{{kind}}"
text = "Solve: {{riddle.text}}"
"""


def riddles(folder: Path, *changes: tuple[str, str]) -> Any:
    """Return the dataset of riddles with these texts of its file in place of others."""
    text = RIDDLES
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    path = folder / "riddles.toml"
    path.write_text(text)
    return dataset_type(path)


def test_one_file_defines_a_dataset(tmp_path: Path) -> None:
    path = tmp_path / "riddles.toml"
    path.write_text(RIDDLES)
    dataset = dataset_type(path)()
    assert (dataset.summary, dataset.local, dataset.sample) == ("riddles", "riddles.jsonl", "chat")
    row = {"kind": "keys", "riddle": {"text": "What has keys but no locks?"}}
    assert dataset.prompt(row, 3) == Prompt(
        "riddle-3", "keys", ("Solve: What has keys but no locks?",)
    )


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
        (
            'sample = "chat"',
            'sample = "chat"\ncode = "1"',
            "code is unknown; known: summary, paper, sample, prompt, ",
        ),
        (
            "category =",
            "catgory =",
            "prompt.catgory is unknown (did you mean 'category'?); known: id, category, text, ",
        ),
        ('split = "test"', "split = 3", "hub.split must be text, not 3"),
        ("[prompt]", "[prompt", "cannot be used"),
        (
            '"riddles.jsonl"',
            '"riddles.csv"',
            "'riddles.csv' is not a file of rows: give a .jsonl file with one {",
        ),
        (
            '"riddles.jsonl"',
            '"riddles.tsv.gz"',
            "'riddles.tsv.gz' is not a file of rows: give a .jsonl file with one {",
        ),
        (
            "\n[prompt]",
            f"train = {{ local = 'a.csv', hub = {HUB} }}\n[prompt]",
            "'a.csv' is not a file of rows",
        ),
        (
            "text =",
            "end_mark =",
            "prompt: give one of text, turns and turn_columns, not none of them",
        ),
        (
            "text =",
            "turns = ['{a}']\ntext =",
            "give one of text, turns and turn_columns, not text and turns",
        ),
        (
            "text =",
            "end_mark = '?'\nturn_columns = ['a']\n#",
            "end_mark go with text, not with turn_columns",
        ),
        (
            "text =",
            "chat = false\nturns = ['{a}', '{b}']\n#",
            "a text to continue (chat = false) has one turn",
        ),
        (
            "[prompt]",
            "example = { row = { } }\n[prompt]",
            "example: give text, which is the first turn, or turns",
        ),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    path = tmp_path / "riddles.toml"
    path.write_text(RIDDLES.replace(old, new))
    with pytest.raises(
        SkitError, match=r"the dataset file 'riddles\.toml' cannot be used: "
    ) as raised:
        dataset_type(path)
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


TEXT = 'text = "Solve: {riddle.text}"'


def test_every_turn_may_have_columns_of_its_own(tmp_path: Path) -> None:
    turns = riddles(tmp_path, (TEXT, 'turns = ["{q1}", "And {q2}?"]'))()
    row = {"kind": "two", "q1": "Who?", "q2": "why"}
    assert turns.prompt(row, 0) == Prompt("riddle-0", "two", ("Who?", "And why?"))


def test_conversations_in_two_columns_are_refused_where_one_would_be_dropped(
    tmp_path: Path,
) -> None:
    columns = riddles(tmp_path, (TEXT, 'turn_columns = ["q1", "q2"]'))()
    for row in (
        {"q1": "Who?", "q2": None},
        {"q1": "", "q2": "Who?"},
        {"q1": "Who?", "q2": ["Who?"]},
    ):
        assert columns.prompt({"kind": "one", **row}, 0).turns == ("Who?",)
    advice = re.escape('where each holds a turn, write turns = ["{q1}", "{q2}"] instead')
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]
    for other in ("Why?", said):
        with pytest.raises(
            ValueError, match=f"'q1' and 'q2' of turn_columns are both set and differ, .*{advice}"
        ):
            columns.prompt({"kind": "two", "q1": "Who?", "q2": other}, 0)


@pytest.mark.parametrize(
    ("row", "stated", "reason"),
    [
        (
            '{ riddle = { text = "keys?" } }',
            'text = "x"',
            "the row of [example] has no column 'kind', which the defini",
        ),
        ('{ kind = "k", riddle = "keys?" }', 'text = "x"', "the row of [example] cannot be read: "),
        (
            '{ kind = "k", riddle = { text = "a" } }',
            'text = "a"',
            "becomes ['Solve: a'], not ['a']",
        ),
        (
            '{ kind = "k", riddle = { text = "a" } }',
            'turns = ["Solve: a", "b"]',
            "not ['Solve: a', 'b']",
        ),
        (
            '{ kind = "bad", riddle = { text = "a" } }',
            'text = "Solve: a"',
            "the definition leaves out the row of [exam",
        ),
    ],
)
def test_an_example_that_is_wrong_says_what_is(
    tmp_path: Path, row: str, stated: str, reason: str
) -> None:
    only = (
        ('paper = "none"', 'paper = "none"\nonly = { kind = ["k", "keys"] }')
        if "bad" in row
        else ("chat", "chat")
    )
    with pytest.raises(SkitError, match=re.escape(reason)):
        riddles(tmp_path, (TEXT, f"{TEXT}\n[example]\nrow = {row}\n{stated}"), only).check_example()


def test_an_example_may_state_all_turns(tmp_path: Path) -> None:
    example = '[example]\nrow = { kind = "k", q1 = "Who?", q2 = "Why?" }\nturns = ["Who?", "Why?"]'
    riddles(tmp_path, (TEXT, f'turns = ["{{q1}}", "{{q2}}"]\n{example}')).check_example()


LEFT_OUT = """
import json
from pathlib import Path
from specbench_kit.core.errors import SkitError
from specbench_kit.datasets import toml_datasets
from specbench_kit.datasets.base import datasets
toml_datasets.register_all(Path({folder!r}))
try:
    datasets.get("damaged")
except SkitError as error:
    print(json.dumps([str(error), "damaged" in datasets.all(), datasets.get("whole").summary, datasets.left_out()]))
"""


def test_a_damaged_file_is_left_out_with_a_line_and_refused_where_it_is_asked_for(
    tmp_path: Path,
) -> None:
    (tmp_path / "whole.toml").write_text(RIDDLES)
    (tmp_path / "damaged.toml").write_text(RIDDLES.replace("paper", "papers"))
    code = LEFT_OUT.format(folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    refused, listed, summary, left_out = json.loads(done.stdout)
    assert refused.startswith("the dataset file 'damaged.toml' cannot be used: ")
    assert (listed, summary, left_out) == (False, "riddles", {"damaged": refused})
    assert done.stderr.splitlines() == [f"LEFT OUT: {refused}"]


WORDS = {
    inspect.StrType: "text",
    inspect.LiteralType: "text",
    inspect.BoolType: "true or false",
    inspect.IntType: "whole number",
    inspect.VarTupleType: "list of texts",
    inspect.DictType: "table",
    inspect.StructType: "table",
}


def key_rows(kind: inspect.StructType, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the name of every key of a definition, with what its value is and its default, in words."""
    for key in kind.fields:
        options = key.type.types if isinstance(key.type, inspect.UnionType) else [key.type]
        (value,) = (option for option in options if not isinstance(option, inspect.NoneType))
        default = key.default if key.default_factory is NODEFAULT else key.default_factory()
        written = (
            "needed" if key.required else "none" if default is None else f"`{json.dumps(default)}`"
        )
        yield f"`{prefix}{key.name}`", WORDS[type(value)], written
        if isinstance(value, inspect.StructType) and f"{prefix}{key.name}" != "train.hub":
            yield from key_rows(value, f"{prefix}{key.name}.")


def test_the_page_has_a_table_of_all_keys() -> None:
    page = (ROOT / "docs/recipes/dataset.md").read_text(encoding="utf-8")
    table = page.partition("| key | value | default | meaning |\n| --- | --- | --- | --- |\n")[
        2
    ].partition("\n\n")[0]
    rows = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table.splitlines()]
    assert [tuple(cells[:3]) for cells in rows] == list(
        key_rows(cast("inspect.StructType", inspect.type_info(DatasetDefinition)))
    )
    assert all(len(cells) == 4 and cells[3] for cells in rows)
    (rules,) = (cells[3] for cells in rows if cells[0] == "`answer.rule`")
    assert re.findall("`(.+?)`", rules) == list(get_args(RuleName))


def test_the_file_of_the_page_is_a_dataset(tmp_path: Path) -> None:
    path = tmp_path / "quizzes.toml"
    path.write_text(block("toml", "quizzes"))
    quizzes: Any = dataset_type(path)
    quizzes.check_example()
    prompt = quizzes().prompt(quizzes.example.row, 0)
    assert (prompt.id, len(prompt.turns), prompt.gold) == ("quizzes-0", 2, Gold("letter", ("A",)))


def test_a_template_reaches_columns_and_nothing_else() -> None:
    row = {"question": "Why?", "{index}": 1}
    assert fill("{question}", {"question": None}, 0) is None
    assert fill("{index}: {question}", {"question": "{index}"}, 7) == "7: {index}"
    assert fill("{question!r} {question[0]} {}", row, 7) == "{question!r} {question[0]} {}"
    for template in ("{question.__class__}", "a {question.upper}"):
        with pytest.raises(TypeError):
            fill(template, row, 0)
