"""Answer files of Spec-Bench become runs and come back as they were."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import Rows, error_line, read_object, read_rows, skit_here, write_rows

Fields = dict[str, Any]


def answer(
    question: int, category: str, *choices: Fields, model: str = "vicuna-7b-v1.3-eagle2"
) -> Fields:
    stamp = 1719483241.5 + question
    name = {
        "question_id": question,
        "category": category,
        "answer_id": f"id{question}",
        "model_id": model,
    }
    return {**name, "choices": list(choices), "tstamp": stamp}


def choice(
    index: int, turns: list[str], steps: list[int], lengths: list[int], new: list[int]
) -> Fields:
    seconds = [0.011 * count + 0.125 * index for count in new]
    return {
        "index": index,
        "turns": turns,
        "decoding_steps": steps,
        "new_tokens": new,
        "wall_time": seconds,
        "accept_lengths": lengths,
    }


ANSWERS: Rows = [
    answer(
        81,
        "writing",
        choice(0, ["Aloha!", "A rewritten post."], [3, 4], [4, 2, 5, 1, 3, 3, 2], [11, 9]),
        choice(1, ["Aloha!", "A rewritten post."], [3, 4], [4, 2, 5, 1, 3, 3, 2], [11, 9]),
    ),
    answer(
        241,
        "translation",
        choice(0, ["Guten Tag."], [2], [3, 5], [7]),
        choice(1, ["Guten Tag."], [2], [3, 5], [7]),
    ),
]
"""Question 241 ends within its last accepted tokens."""


def plain(row: Fields) -> Fields:
    """Return the answer of autoregressive decoding, as `inference_baseline.py` writes it."""
    choices = []
    for content in row["choices"]:
        new = content["new_tokens"]
        choices.append(
            content
            | {
                "decoding_steps": new,
                "accept_lengths": [1] * sum(new),
                "wall_time": [0.03 * n for n in new],
            }
        )
    return row | {"choices": choices, "model_id": "vicuna-7b-v1.3-vanilla"}


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "eagle2.jsonl", *ANSWERS)


def imported(out: Path, *arguments: object) -> Path:
    done = skit_here("import", *arguments, "--out", out)
    assert done.returncode == 0, done.stderr
    (run,) = out.iterdir()
    return run


def test_a_file_becomes_a_run_whose_unknown_fields_are_null(answers: Path, tmp_path: Path) -> None:
    run = imported(tmp_path / "results", answers)
    rows = read_rows(run / "requests.jsonl")
    assert [(row["request_id"], row["repeat"]) for row in rows] == [
        ("81/1", 0),
        ("81/2", 0),
        ("81/1", 1),
        ("81/2", 1),
        ("241", 0),
        ("241", 1),
    ]
    assert [len(row["output_ids"]) for row in rows] == [11, 9, 11, 9, 7, 7]
    assert {token for row in rows for token in row["output_ids"]} == {None}
    assert [[step["committed"] for step in row["rounds"]] for row in rows[-2:]] == [[3, 4], [3, 4]]
    assert [[step["accepted"] for step in row["rounds"]] for row in rows[-2:]] == [[2, 4], [2, 4]]
    assert {rows[0]["ttft_s"], *(step["drafted"] for step in rows[0]["rounds"])} == {None}
    assert (rows[0]["category"], rows[0]["e2e_s"], rows[0]["text"]) == ("writing", 0.121, "Aloha!")


def test_the_run_says_which_tool_it_is_from(answers: Path, tmp_path: Path) -> None:
    run = imported(tmp_path / "results", answers, "--target", "vicuna-7b-v1.3")
    described = read_object(run / "run.json")
    assert described["method"] == "vicuna-7b-v1.3-eagle2"
    assert described["models"]["target"] == {
        "name": "vicuna-7b-v1.3",
        "hash": None,
        "parameters": None,
    }
    assert described["started_at"] == "2024-06-27T10:15:22+00:00"
    assert (described["hardware"], described["versions"], described["config"]["dtype"]) == (
        None,
        None,
        None,
    )
    source = described["imported"]
    assert (source["tool"], source["format"], source["file"]) == (
        "Spec-Bench",
        "spec-bench",
        "eagle2.jsonl",
    )
    assert len(source["sha256"]) == 64
    assert source["by"]["versions"]["specbench_kit"]
    assert str(tmp_path) not in (run / "run.json").read_text()


def test_its_numbers_are_those_of_spec_bench(answers: Path, tmp_path: Path) -> None:
    baseline = write_rows(tmp_path / "vanilla.jsonl", *map(plain, ANSWERS))
    run = imported(tmp_path / "results", answers, "--baseline", baseline)
    overall = read_object(run / "summary.json")["overall"]
    seconds, tokens = (
        sum(sum(content[name]) for row in ANSWERS for content in row["choices"])
        for name in ("wall_time", "new_tokens")
    )
    assert overall["tokens"] == tokens
    assert overall["acceptance_length"] == pytest.approx(tokens / 18)
    assert overall["throughput"] == pytest.approx(tokens / seconds)
    assert overall["speedup"] == pytest.approx(0.03 * tokens / seconds)
    assert overall["acceptance_rate"] is None
    assert read_object(run / "summary.json")["lossless"] is None


def test_it_says_what_the_file_was_taken_for(tmp_path: Path) -> None:
    """No time is a doubt that stands before the numbers."""
    row = answer(81, "writing", choice(0, ["Aloha!"], [3], [4, 2, 5], [11]) | {"wall_time": [0.0]})
    done = skit_here("import", write_rows(tmp_path / "a.jsonl", row), "--out", tmp_path / "results")
    words = " ".join(done.stdout.split())
    assert words.startswith(
        "DOUBTFUL: a.jsonl: 1 of 1 answers have tokens and a wall_time of 0 s. a.jsonl: taken for Spec-Bench's "
        "answers, wall_time in seconds; 1 request."
    )


@pytest.mark.parametrize("formats", ["md,csv,latex", "html"])
def test_it_enters_reports(formats: str, answers: Path, tmp_path: Path) -> None:
    baseline = write_rows(tmp_path / "vanilla.jsonl", *map(plain, ANSWERS))
    run = imported(tmp_path / "results", answers, "--baseline", baseline)
    done = skit_here("report", run, "--out", tmp_path / "report", "--format", formats)
    assert done.returncode == 0, done.stderr
    assert any(
        "eagle2" in path.read_text() for path in (tmp_path / "report").iterdir() if path.is_file()
    )


def test_the_round_trip_gives_back_every_number(answers: Path, tmp_path: Path) -> None:
    run = imported(tmp_path / "results", answers)
    done = skit_here(
        "export", run, "--format", "spec-bench", "--out", tmp_path / "deep" / "back.jsonl"
    )
    assert done.returncode == 0, done.stderr
    back = read_rows(tmp_path / "deep" / "back.jsonl")
    for row, original in zip(back, ANSWERS, strict=True):
        assert row["choices"] == original["choices"]
        assert [row[name] for name in ("question_id", "category", "model_id")] == [
            original[name] for name in ("question_id", "category", "model_id")
        ]
        assert set(row) == set(original)


@pytest.mark.parametrize(
    ("steps", "name"),
    [
        ([2, 3], "decoding_steps"),
        ([2, 3], "idxs"),
        ([9, 9], "decoding_steps"),
        ([], "decoding_steps"),
    ],
    ids=["counted from 0", "older name", "other counts", "no counts"],
)
def test_turns_are_told_apart_however_steps_are_counted(
    steps: list[int], name: str, tmp_path: Path
) -> None:
    content = choice(0, ["a", "b"], [], [4, 2, 5, 1, 3, 3, 2], [11, 9])
    del content["decoding_steps"]
    file = write_rows(tmp_path / "a.jsonl", answer(81, "writing", content | {name: steps}))
    rows = read_rows(imported(tmp_path / "results", file) / "requests.jsonl")
    assert [[step["accepted"] + 1 for step in row["rounds"]] for row in rows] == [
        [4, 2, 5],
        [1, 3, 3, 2],
    ]


def test_a_token_of_the_prompts_forward_is_a_round(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "a.jsonl", answer(1, "qa", choice(0, ["a"], [2], [3, 4], [8])))
    (row,) = read_rows(imported(tmp_path / "results", file) / "requests.jsonl")
    assert [step["committed"] for step in row["rounds"]] == [1, 3, 4]


def test_tokens_that_no_round_explains_are_noted(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "a.jsonl", answer(1, "qa", choice(0, ["a"], [2], [3, 4], [12])))
    done = skit_here("import", file, "--out", tmp_path / "results")
    assert (
        "note: more new_tokens than accept_lengths in 1 of 1 requests" in done.stdout.splitlines()
    )


def test_a_turn_that_raised_is_a_failed_request(tmp_path: Path) -> None:
    file = write_rows(
        tmp_path / "a.jsonl",
        answer(1, "qa", choice(0, ["ERROR"], [2], [3, 4], [7])),
        answer(2, "qa", choice(0, ["fine"], [2], [3, 4], [7])),
    )
    run = imported(tmp_path / "results", file)
    assert read_object(run / "summary.json")["requests"] == {
        "planned": 2,
        "finished": 1,
        "failed": 1,
    }


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "holds no answer"),
        ("{", "a.jsonl, line 1: not valid JSON"),
        (
            '{"question_id": 1}',
            "a.jsonl, line 1: not an answer of Spec-Bench (choices is missing)",
        ),
        (
            json.dumps(answer(1, "qa", {"index": 0, "turns": ["a"]})),
            "line 1: not an answer of Spec-Bench",
        ),
        (json.dumps(answer(1, "qa")), "holds no answer: every question's choices are empty"),
        (
            json.dumps(answer(1, "qa", choice(0, "a", [1], [1], [1]))),
            'choices[0].turns must be a list, not "a"',
        ),
        (
            json.dumps(
                answer(1, "qa", choice(0, ["a"], [1], [1], [1]) | {"wall_time": [float("nan")]})
            ),
            "must be seconds",
        ),
        (
            json.dumps(answer(1, "qa", choice(0, ["a"], [1], [1], [1]) | {"new_tokens": [10**30]})),
            "not an answer",
        ),
        (
            "\n".join(
                json.dumps(answer(n, "qa", choice(0, ["a"], [1], [1], [1]), model=f"m{n}"))
                for n in (1, 2)
            ),
            "holds answers of several models: m1, m2",
        ),
    ],
)
def test_other_files_are_refused_with_their_line(content: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(content)
    assert reason in error_line(skit_here("import", file, "--out", tmp_path / "results"))
    assert not (tmp_path / "results").exists()


def test_formats_that_hold_no_requests_and_unknown_ones_are_refused(
    answers: Path, tmp_path: Path
) -> None:
    line = error_line(
        skit_here("import", answers, "--format", "vllm", "--out", tmp_path / "results")
    )
    assert line.startswith(
        "files of vLLM cannot be imported, as they do not tell requests apart: import answers"
    )
    line = error_line(
        skit_here("import", answers, "--format", "specbench", "--out", tmp_path / "results")
    )
    assert line.startswith(
        "unknown format 'specbench' (did you mean 'spec-bench'?); known: aiperf, golden, mlflow, "
    )
    assert "No such file" in error_line(skit_here("import", tmp_path / "none.jsonl"))
