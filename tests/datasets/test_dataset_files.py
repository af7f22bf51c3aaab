"""A user's own prompt file: what it may look like, and what is said where it is wrong."""

import bz2
import gzip
import json
import lzma
from collections import Counter
from pathlib import Path

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.base import LoadedDataset, Prompt
from specbench_kit.datasets.loading import load
from specbench_kit.datasets.rows import COMPRESSED


def load_file(path: Path, limit: int | None = None, seed: int = 0) -> LoadedDataset:
    return load(str(path), data_dir=None, allow_sample=False, limit=limit, seed=seed)


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_file_may_name_its_prompts_in_three_ways(tmp_path: Path) -> None:
    loaded = load_file(
        write(
            tmp_path / "mine.jsonl",
            {"prompt": "Say hello."},
            {"question": "Who are you?", "question_id": 9, "category": "identity"},
            {"turns": ["One.", "Two."], "id": "dialogue"},
            {"prompt": "def f(", "id": "code", "chat": False},
        )
    )
    assert loaded.prompts == (
        Prompt("0", "mine", ("Say hello.",)),
        Prompt("9", "identity", ("Who are you?",)),
        Prompt("dialogue", "mine", ("One.", "Two.")),
        Prompt("code", "mine", ("def f(",), chat=False),
    )
    assert (loaded.name, loaded.source, loaded.location, loaded.total) == (
        "mine",
        "file",
        "mine.jsonl",
        4,
    )


SAID = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello"}]
PARTS = [{"type": "text", "text": "Say "}, {"type": "text", "text": "it"}]
SHARED = [
    {"from": "gpt", "value": "As I said."},
    {"from": "human", "value": "And then?"},
    {"from": "gpt", "value": "It ended."},
    {"from": "human", "value": " "},
    {"from": "human", "value": "Why?"},
]


@pytest.mark.parametrize(
    ("row", "turns"),
    [
        ({"conversations": SHARED}, ("And then?", "Why?")),
        ({"conversation": SHARED, "turns": None}, ("And then?", "Why?")),
        (
            {
                "messages": [
                    *SAID,
                    {"role": "assistant", "content": None},
                    {"role": "User", "content": PARTS},
                ]
            },
            None,
        ),
        ({"prompt": SAID}, ("Hello",)),
        ({"question": SAID}, ("Hello",)),
        (
            {"custom_id": "first", "method": "POST", "body": {"model": "m", "messages": SAID}},
            ("Hello",),
        ),
    ],
)
def test_conversations_are_read_in_the_forms_that_people_have(
    tmp_path: Path, row: dict[str, object], turns: tuple[str, ...] | None
) -> None:
    (prompt,) = load_file(write(tmp_path / "mine.jsonl", row)).prompts
    assert prompt.turns == (turns or ("Hello", "Say it"))
    assert prompt.id == row.get("custom_id", "0")


@pytest.mark.parametrize(
    "row",
    [
        {"messages": SAID},
        {"prompt": SAID},
        {"body": {"messages": SAID}},
        {
            "conversations": [
                {"from": "system", "value": "Be short."},
                {"from": "human", "value": "Hello"},
            ]
        },
        {
            "messages": [
                {"role": "developer", "content": [{"type": "text", "text": "Be short."}]},
                SAID[1],
            ]
        },
        {"prompt": "Hello", "system": "Be short."},
        {"system_prompt": "Be short.", "conversations": [{"from": "human", "value": "Hello"}]},
    ],
)
def test_what_the_system_says_goes_before_the_first_turn(
    tmp_path: Path, row: dict[str, object]
) -> None:
    loaded = load_file(write(tmp_path / "mine.jsonl", row))
    (prompt,) = loaded.prompts
    assert (prompt.system, prompt.turns) == ("Be short.", ("Hello",))
    without = load_file(write(tmp_path / "without.jsonl", {"prompt": "Hello"}))
    assert prompt.fingerprint != without.prompts[0].fingerprint
    assert loaded.digest != without.digest


def test_a_system_s_message_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SkitError, match=r"mine\.jsonl, line 1: the system's message must be a text"
    ):
        load_file(write(tmp_path / "mine.jsonl", {"prompt": "Hello", "system": {"a": 1}}))


def test_a_shared_conversation_without_a_user_is_left_out(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "conversations": SHARED[:1]},
        {"id": "b", "conversations": []},
        {"id": "c", "prompt": "Hi"},
    ]
    assert [prompt.id for prompt in load_file(write(tmp_path / "shared.jsonl", *rows)).prompts] == [
        "c"
    ]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", ["array.json", "array.jsonl"])
def test_one_array_holds_the_same_prompts_as_lines(
    tmp_path: Path, name: str, indent: int | None
) -> None:
    rows = [{"category": "c", "prompt": "x, [y]"}, {"category": "c", "conversations": SHARED}]
    array = tmp_path / name
    array.write_text(f"\n {json.dumps(rows, indent=indent)}\n", encoding="utf-8")
    assert (
        load_file(array).prompts == load_file(write(tmp_path / "array.lines.jsonl", *rows)).prompts
    )


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('[{"prompt": "a"}, {"prompt": ]', "bad.json, row 2: not valid JSON"),
        ('[{"prompt": "a"}', "bad.json, row 1: no comma or bracket follows"),
        ('[{"prompt": "a"}, "b"]', "bad.json, row 2: a str where a JSON object belongs"),
        ('[{"prompt": "a"}] x', "bad.json, row 2: not valid JSON"),
        ('[{"prompt": "a"}, {"text": "b"}]', "bad.json, row 2: none of the fields"),
        ("[]", "bad.json holds no prompts"),
        ('{"prompt": {"a": 1}}', "line 1: a prompt must be a non-empty string"),
        ('{"messages": "a"}', "line 1: 'messages' must be a list of strings or of messages"),
        (
            '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
            "a part that is not text",
        ),
        ('{"messages": [{"role": "user"}]}', "line 1: the field 'value' is missing"),
    ],
)
def test_a_damaged_array_or_message_is_named_with_its_place(
    tmp_path: Path, content: str, complaint: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(SkitError, match=complaint):
        load_file(path)


@pytest.mark.parametrize("form", ['{"prompt": "Hi", "n": %s}', '[{"prompt": "Hi", "n": %s}]'])
def test_a_number_of_any_length_does_no_harm_where_nobody_reads_it(
    tmp_path: Path, form: str
) -> None:
    path = tmp_path / "huge.jsonl"
    path.write_text(form % ("7" * 5000))
    assert [prompt.turns for prompt in load_file(path).prompts] == [("Hi",)]


def test_blank_lines_a_byte_order_mark_and_windows_line_ends_are_harmless(tmp_path: Path) -> None:
    path = tmp_path / "windows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "Gr\xc3\xbc\xc3\x9fe"}\r\n\r\n{"prompt": "Two"}\r\n')
    assert [prompt.turns for prompt in load_file(path).prompts] == [("Grüße",), ("Two",)]


def test_a_path_without_the_suffix_is_known_by_its_separator(tmp_path: Path) -> None:
    assert load_file(write(tmp_path / "prompts.txt.lines", {"prompt": "Hi"})).name == "prompts.txt"


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (
            [{"prompt": "a"}, {"text": "b"}],
            "bad.jsonl, line 2: none of the fields 'prompt', 'question', 'turns'",
        ),
        ([{"prompt": 7}], "bad.jsonl, line 1: a prompt must be a non-empty string, not 7"),
        ([{"prompt": "  "}], "line 1: a prompt must be a non-empty string"),
        ([{"question": None}], "line 1: a prompt must be a non-empty string, not None"),
        ([{"turns": "abc"}], "line 1: 'turns' must be a list of strings"),
        ([{"turns": []}], "line 1: there are no turns"),
        ([{"turns": ["a", 1]}], "line 1: a prompt must be a non-empty string, not 1"),
        ([{"turns": ["a", "b"], "chat": False}], "line 1: a text to continue"),
        (
            [{"prompt": "a", "chat": "no"}],
            "line 1: 'category' must be a string and 'chat' true or false",
        ),
        ([{"prompt": "a", "category": None}], "line 1: 'category' must be a string"),
        ([{"prompt": "a", "id": [1]}], "line 1: the id must be a string or a whole number"),
        (
            [{"prompt": "a", "id": 1}, {"prompt": "b", "id": "1"}],
            "line 2: the id '1' is taken by an earlier line",
        ),
        ([{"prompt": "\ud800"}], "line 1: 'utf-8' codec can't encode"),
        ([["a"]], "line 1: a list where a JSON object belongs"),
        ([], "bad.jsonl holds no prompts"),
    ],
)
def test_a_wrong_row_is_named_with_its_line(
    tmp_path: Path, rows: list[object], complaint: str
) -> None:
    with pytest.raises(SkitError) as raised:
        load_file(write(tmp_path / "bad.jsonl", *rows))
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{"prompt": "a"}\n{"prompt": \n', "bad.jsonl, line 2: not valid JSON"),
        (b'{"prompt": "a"}\n{"prompt": "\xfc"}\n', "bad.jsonl, line 2: not UTF-8 text"),
        ('{"prompt": "a"}'.encode("utf-16"), "bad.jsonl, line 1: not UTF-8 text"),
        (b"\n\n", "bad.jsonl holds no prompts"),
    ],
)
def test_a_broken_file_is_named_with_its_line(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(SkitError, match=complaint):
        load_file(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SkitError, match=r"there is no prompt file '.*absent\.jsonl'"):
        load_file(tmp_path / "absent.jsonl")
    with pytest.raises(SkitError, match="Is a directory"):
        load_file(tmp_path)


def test_a_limit_draws_the_same_subset_for_a_seed_in_the_original_order(tmp_path: Path) -> None:
    path = write(tmp_path / "many.jsonl", *({"prompt": f"p{number}"} for number in range(50)))
    first, again, other_seed = (
        load_file(path, 10, 3),
        load_file(path, 10, 3),
        load_file(path, 10, 4),
    )
    assert first == again
    assert first.digest != other_seed.digest
    assert [int(prompt.id) for prompt in first.prompts] == [4, 8, 15, 23, 30, 34, 37, 38, 40, 48]
    assert first.total == 50


def test_a_limit_beyond_the_file_takes_all_and_one_below_one_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "two.jsonl", {"prompt": "a"}, {"prompt": "b"})
    assert load_file(path, 99) == load_file(path)
    for limit in (0, -3):
        with pytest.raises(SkitError, match="at least 1"):
            load_file(path, limit)


def test_the_digest_follows_id_category_turns_and_order(tmp_path: Path) -> None:
    a, b = {"id": "a", "prompt": "x"}, {"id": "b", "prompt": "y"}
    variants = [
        [a, b],
        [b, a],
        [a],
        [a, b | {"category": "c"}],
        [a, b | {"id": "z"}],
        [a, b | {"prompt": "z"}],
    ]
    digests = [load_file(write(tmp_path / "d.jsonl", *rows)).digest for rows in variants]
    assert len(set(digests)) == len(variants)
    assert load_file(write(tmp_path / "d.jsonl", a, b)).digest == digests[0]
    assert digests[0] == "6c8e3d6bddb5d5f11a36f99f484d7945bcbfc7ef04087c72642e60776e904f45"


def test_a_file_that_is_none_of_prompts_leads_to_one_that_may_be_meant(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}')
    (tmp_path / "prompts.txt").write_text("a")
    for name in ("prompts.txt", "promts.jsonl"):
        with pytest.raises(
            SkitError, match=rf"prompt file.*\(did you mean '{tmp_path}/prompts.jsonl'\?\)"
        ):
            load(str(tmp_path / name), data_dir=None, allow_sample=False, limit=None, seed=0)


def test_several_datasets_are_one_pool_with_equal_shares() -> None:
    mixture = load("gsm8k+humaneval+mt-bench", data_dir=None, allow_sample=True, limit=8, seed=0)
    assert Counter(prompt.category for prompt in mixture.prompts) == {
        "gsm8k": 3,
        "humaneval": 3,
        "mt-bench": 2,
    }
    alone = load("humaneval", data_dir=None, allow_sample=True, limit=3, seed=0)
    drawn = [prompt.turns for prompt in mixture.prompts if prompt.id.startswith("humaneval/")]
    assert drawn == [prompt.turns for prompt in alone.prompts]
    with pytest.raises(SkitError, match="3 datasets cannot share 2 prompts"):
        load("gsm8k+humaneval+mt-bench", data_dir=None, allow_sample=True, limit=2, seed=0)


def _packed(path: Path, content: bytes) -> None:
    """Write a file as the tool of its ending packs it."""
    if path.suffix == ".zst":
        with pyarrow.output_stream(str(path), compression="zstd") as stream:
            stream.write(content)
    else:
        pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[path.suffix]
        path.write_bytes(pack(content))


@pytest.mark.parametrize("packing", COMPRESSED)
@pytest.mark.parametrize("form", [".jsonl", ".json"])
def test_packed_files_hold_the_prompts_of_the_plain_one(
    tmp_path: Path, form: str, packing: str
) -> None:
    rows = [{"prompt": "Say é\u2028."}, {"prompt": "Why?", "id": "why"}]
    plain = tmp_path / f"mine{form}"
    plain.write_text(json.dumps(rows) if form == ".json" else "\n".join(map(json.dumps, rows)))
    packed = tmp_path / f"mine{form}{packing}"
    _packed(packed, plain.read_bytes())
    assert load_file(packed).prompts == load_file(plain).prompts
    assert load_file(packed).name == "mine"
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(
        SkitError,
        match=rf"cannot read prompts from '.*mine{form}{packing}'.*give a complete JSONL file",
    ):
        load_file(packed)
    packed.write_bytes(b"not packed at all")
    with pytest.raises(SkitError, match=rf"cannot read prompts from '.*mine{form}{packing}'"):
        load_file(packed)


@pytest.mark.parametrize("ending", [".parquet", ".arrow", ".feather"])
def test_tables_hold_the_prompts_of_lines(tmp_path: Path, ending: str) -> None:
    rows = [{"prompt": "One?", "answer": "1"}, {"prompt": "Two?", "answer": "2"}]
    table = pyarrow.Table.from_pylist(rows)
    path = tmp_path / f"mine{ending}"
    if ending == ".parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        # An indexed file, as pandas writes it, and a stream, as the library of datasets does.
        opened = pyarrow.ipc.new_file if ending == ".feather" else pyarrow.ipc.new_stream
        with pyarrow.OSFile(str(path), "wb") as file, opened(file, table.schema) as writer:
            writer.write_table(table)
    assert load_file(path).prompts == load_file(write(tmp_path / "mine.jsonl", *rows)).prompts
    path.write_bytes(b"ARROW1 and no more")
    with pytest.raises(
        SkitError, match=r"cannot read prompts from .*; give a complete (Arrow|Parquet) file"
    ):
        load_file(path)


def test_solutions_in_the_form_of_gsm8k_take_its_rule(tmp_path: Path) -> None:
    solution = {"question": "How many?", "answer": "She has 2*2=<<2*2=4>>4 apples.\n#### 4"}
    plain = {"question": "Where?", "answer": "Paris"}
    stated = solution | {"rule": "strict"}
    prompts = load_file(write(tmp_path / "test.jsonl", solution, plain, stated)).prompts
    golds = [prompt.gold for prompt in prompts if prompt.gold]
    assert [gold.rule for gold in golds] == ["number", "phrase", "strict"]
    assert golds[0].matches("4 apples")
    assert not golds[0].matches("14 apples")


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.parquet", "mine.json.gz"])
def test_a_pointer_of_git_lfs_is_no_prompt_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    )
    with pytest.raises(SkitError, match=rf"'{name}' is a pointer of git-lfs.*run `git lfs pull`"):
        load_file(tmp_path / name)
