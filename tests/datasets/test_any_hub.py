"""Any dataset of the hub by its columns, and SPEED-Bench, from copies on disk."""

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.datasets.base import Hub, LoadedDataset, Prompt, datasets
from specbench_kit.datasets.loading import load, parse

HIDDEN = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
SPEED: dict[str, Any] = {
    "question_id": "0123456789abcdef0123456789abcdef",
    "category": "coding",
    "sub_category": "python",
    "turns": ["Sort a list.", "Without a copy."],
    "source": "mt-bench-101",
    "src_id": "7",
    "difficulty": "easy",
    "multiturn": True,
}
"""As the card of nvidia/SPEED-Bench has its columns."""


def put(path: Path, *rows: JsonObject) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)


def loaded_from(spec: str, folder: Path, limit: int | None = None) -> LoadedDataset:
    return load(spec, data_dir=folder, allow_sample=True, limit=limit, seed=0)


def offline(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(folder / "cache"))


@pytest.mark.parametrize(
    "name", [name for name in datasets.all() if name.startswith("speed-bench")]
)
def test_speed_bench_is_read_as_its_own_script_writes_it(name: str, tmp_path: Path) -> None:
    kind = datasets.get(name)
    assert str(kind.local) == f"speed/{kind.hub.config}/test.parquet"
    put(
        tmp_path / str(kind.local),
        SPEED,
        SPEED | {"question_id": "b", "category": "rag", "turns": ["What?"]},
    )
    prompts = loaded_from(name, tmp_path).prompts
    assert prompts == (
        Prompt(SPEED["question_id"], "coding", tuple(SPEED["turns"])),
        Prompt("b", "rag", ("What?",)),
    )


def test_speed_bench_takes_messages_and_refuses_placeholders(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Sort a list."}]
    kind = datasets.get("speed-bench")()
    prepared = {"question_id": "a", "category": "coding", "messages": messages}
    assert kind.prompt(prepared, 0) == Prompt("a", "coding", ("Sort a list.",))
    put(
        tmp_path / "speed/qualitative/test.parquet",
        SPEED,
        SPEED | {"question_id": "b", "turns": [HIDDEN]},
    )
    with pytest.raises(
        SkitError,
        match=r"^test\.parquet, row 2: the row holds a placeholder instead of the prompt.*prepare_data\.py",
    ):
        loaded_from("speed-bench", tmp_path)


def test_a_copy_of_a_hub_repository_serves_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline(monkeypatch, tmp_path)
    rows = [{"question": f"How many are {n}?", "kind": "maths", "key": f"k{n}"} for n in range(4)]
    put(tmp_path / "hub/someone/riddles/data/validation-00000-of-00001.parquet", *rows)
    spec = "hub:someone/riddles?split=validation&prompt=question&id=key&category=kind"
    loaded = loaded_from(spec, tmp_path, limit=3)
    assert (loaded.name, loaded.source, loaded.location) == (
        spec,
        "local",
        "someone/riddles:validation",
    )
    assert (loaded.total, len(loaded.prompts)) == (4, 3)
    assert loaded.prompts[0] in {Prompt(row["key"], "maths", (row["question"],)) for row in rows}
    with pytest.raises(
        SkitError, match=r"row 1: there is no column 'text': choose from question, kind, key"
    ):
        loaded_from("hub:someone/riddles?split=validation&prompt=text", tmp_path)
    with pytest.raises(
        SkitError,
        match=r"^no prompts for 'hub:someone/riddles\?prompt=question': .*\"?test\"?.*correct it",
    ):
        loaded_from("hub:someone/riddles?prompt=question", tmp_path)


def test_out_of_reach_is_one_line_and_no_sample_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline(monkeypatch, tmp_path)
    with pytest.raises(
        SkitError, match="someone/none:test is out of reach and not cached; correct it, put a"
    ) as error:
        loaded_from("hub:someone/none", tmp_path)
    assert "at hub/someone/none below the data directory" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_spec_says_where_and_which_columns() -> None:
    dataset = parse("hub:a/b?split=train&config=en&rows=100&prompt=the+question")
    assert dataset.hub == Hub("a/b", "train", "en", stream=100)
    assert dataset.prompt({"the question": "Why?"}, 7) == Prompt("7", "b", ("Why?",))


@pytest.mark.parametrize(
    ("value", "turns"),
    [
        (["One.", "Two."], ("One.", "Two.")),
        (
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}],
            ("Why?",),
        ),
        ([{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}], ("Why?",)),
    ],
)
def test_dialogues_are_what_a_person_says_in_them(value: object, turns: tuple[str, ...]) -> None:
    assert parse("hub:a/b").prompt({"prompt": value}, 0).turns == turns


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("hub:", "names no dataset of the hub: write hub:owner/name"),
        ("hub:name", "names no dataset"),
        ("hub:../../etc", "names no dataset"),
        ("hub:a/b?splt=test", "write config, split, prompt"),
        ("hub:a/b?split=test&split=train", "each once"),
        ("hub:a/b?prompt", "with a value"),
        ("hub:a/b?rows=0", "rows must be a whole number from 1 up"),
    ],
)
def test_a_spec_that_is_wrong_is_one_line(spec: str, reason: str) -> None:
    with pytest.raises(SkitError) as error:
        parse(spec)
    assert reason in str(error.value)


def test_a_parquet_file_is_prompts_too(tmp_path: Path) -> None:
    put(tmp_path / "mine.parquet", {"id": "a", "prompt": "Why?"}, {"id": "b", "prompt": "How?"})
    loaded = loaded_from(str(tmp_path / "mine.parquet"), tmp_path)
    assert (loaded.name, loaded.source, [prompt.turns for prompt in loaded.prompts]) == (
        "mine",
        "file",
        [("Why?",), ("How?",)],
    )
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "mine.parquet").read_bytes()[:100])
    with pytest.raises(
        SkitError, match=r"cannot read prompts from .*cut\.parquet.*give a complete Parquet file"
    ):
        loaded_from(str(tmp_path / "cut.parquet"), tmp_path)
