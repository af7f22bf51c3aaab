"""Runs of the kit in the formats of other tools."""

import json
import re
from pathlib import Path

import pytest
from command_line import Rows, TinyPair, error_line, read_rows, skit_here, write_rows

from specbench_kit.core.typed_json import JsonObject

PROMPTS: Rows = [
    {"id": "d1", "category": "chat", "turns": ["Who was first?", "And why?"]},
    {"id": "HumanEval/1", "category": "code", "prompt": "How many?"},
    {"id": "HumanEval/2", "category": "code", "prompt": "Which colour has the sea at night?"},
    {"id": "long", "category": "code", "prompt": "?" * 600},
]


@pytest.fixture(scope="module")
def run(tiny: TinyPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    prompts = write_rows(folder / "prompts.jsonl", *PROMPTS)
    options = (
        "--method",
        "fixed-k:k=3",
        "--max-new-tokens",
        16,
        "--repeats",
        2,
        "--out",
        folder / "results",
    )
    done = skit_here("bench", "--dataset", prompts, *tiny.options, *options)
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "results").iterdir()
    return run


@pytest.fixture(scope="module")
def records(run: Path) -> Rows:
    return read_rows(run / "requests.jsonl")


def exported(run: Path, name: str, out: Path) -> Path:
    done = skit_here("export", run, "--format", name, "--out", out / "file")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{name}: {out / 'file'}\n"
    return out / "file"


def test_spec_bench_groups_turns_and_repeats_by_question(
    run: Path, records: Rows, tmp_path: Path
) -> None:
    rows = {row["question_id"]: row for row in read_rows(exported(run, "spec-bench", tmp_path))}
    assert set(rows) == {"d1", "HumanEval/1", "HumanEval/2", "long"}
    assert [[len(choice["turns"]) for choice in row["choices"]] for row in rows.values()] == [
        [2, 2],
        [1, 1],
        [1, 1],
        [1, 1],
    ]
    by_key = {(record["request_id"], record["repeat"]): record for record in records}
    for repeat, choice in enumerate(rows["d1"]["choices"]):
        turns = [by_key["d1/1", repeat], by_key["d1/2", repeat]]
        assert choice["new_tokens"] == [len(turn["output_ids"]) for turn in turns]
        assert choice["wall_time"] == [turn["e2e_s"] for turn in turns]
        assert choice["decoding_steps"] == [len(turn["rounds"]) for turn in turns]
        assert choice["accept_lengths"] == [
            step["accepted"] + 1 for turn in turns for step in turn["rounds"]
        ]
    assert rows["long"]["choices"][0]["turns"] == ["ERROR"]


def test_an_exported_run_imports_with_the_same_metrics(run: Path, tmp_path: Path) -> None:
    file = exported(run, "spec-bench", tmp_path)
    done = skit_here("import", file, "--out", tmp_path / "results", "--json")
    assert done.returncode == 0, done.stderr
    (again,) = json.loads(done.stdout.splitlines()[-1])["summary"].values()
    own = json.loads((run / "summary.json").read_text())
    for name in ("tokens", "rounds", "accepted", "acceptance_length", "finished", "failed"):
        assert again["overall"][name] == own["overall"][name]


def test_aiperf_records_have_units_and_agree_with_the_run(
    run: Path, records: Rows, tmp_path: Path
) -> None:
    rows = read_rows(exported(run, "aiperf", tmp_path))
    by_name = {row["metadata"]["x_request_id"]: row for row in rows}
    assert set(by_name) == {f"{record['request_id']}#{record['repeat']}" for record in records}
    for record in records:
        row = by_name[f"{record['request_id']}#{record['repeat']}"]
        check_aiperf(row, record)
    turns = [(row["metadata"]["conversation_id"], row["metadata"]["turn_index"]) for row in rows]
    assert turns.count(("d1", 0)) == turns.count(("d1", 1)) == turns.count(("HumanEval/2", 0)) == 2
    assert {row["metadata"]["session_num"] for row in rows} == set(range(8))


def check_aiperf(row: JsonObject, record: JsonObject) -> None:
    metrics, metadata = row["metrics"], row["metadata"]
    if record["finish_reason"] == "error":
        assert set(metrics) == {"error_isl"}
        assert row["error"]["message"] == record["error"]
        return
    expected = {
        "request_latency": (record["e2e_s"] * 1e3, "ms"),
        "time_to_first_token": (record["ttft_s"] * 1e3, "ms"),
        "input_sequence_length": (len(record["prompt_ids"]), "tokens"),
        "output_sequence_length": (len(record["output_ids"]), "tokens"),
    }
    assert {name: (metrics[name]["value"], metrics[name]["unit"]) for name in expected} == expected
    if len(record["rounds"]) > 1:
        gaps = metrics["inter_chunk_latency"]
        assert gaps["unit"] == "ms"
        assert sum(gaps["value"]) == pytest.approx((record["e2e_s"] - record["ttft_s"]) * 1e3)
    spent_ns = metadata["request_end_ns"] - metadata["request_start_ns"]
    assert spent_ns == pytest.approx(record["e2e_s"] * 1e9, abs=1e3)
    assert (row["error"], metadata["benchmark_phase"], metadata["time_kind"]) == (
        None,
        "profiling",
        "measured",
    )


def test_vllm_counters_add_up(run: Path, records: Rows, tmp_path: Path) -> None:
    text = exported(run, "vllm", tmp_path).read_text()
    rounds = [step for record in records for step in record["rounds"]]
    drafts = [step for step in rounds if step["submitted"]]
    sample = re.compile(
        r'^vllm:spec_decode_num_(\w+)_total\{engine="0",model_name="target"(?:,position="(\d)")?\} (\S+)$'
    )
    counters = {
        match.groups()[:2]: float(match[3])
        for line in text.splitlines()
        if (match := sample.match(line))
    }
    assert counters == {
        ("drafts", None): len(drafts),
        ("draft_tokens", None): sum(step["submitted"] for step in drafts),
        ("accepted_tokens", None): sum(step["accepted"] for step in drafts),
        **{
            ("accepted_tokens_per_pos", str(n)): sum(step["accepted"] > n for step in drafts)
            for n in range(3)
        },
    }
    names = re.findall(r"^# TYPE (\S+) counter$", text, re.MULTILINE)
    assert names == re.findall(r"^# HELP (\S+) .+$", text, re.MULTILINE)
    assert len(names) == 4


def test_a_run_without_what_a_format_counts_is_refused(run: Path, tmp_path: Path) -> None:
    file = exported(run, "spec-bench", tmp_path)
    assert skit_here("import", file, "--out", tmp_path / "results").returncode == 0
    (again,) = (tmp_path / "results").iterdir()
    line = error_line(
        skit_here("export", again, "--format", "vllm", "--out", tmp_path / "counters")
    )
    assert (
        line == "the run does not say how many tokens were submitted, which vLLM's counters count"
    )
    (again / "requests.jsonl").write_text("")
    line = error_line(
        skit_here("export", again, "--format", "aiperf", "--out", tmp_path / "records")
    )
    assert line.endswith("requests.jsonl holds no finished request: there is nothing to export")
