"""`skit bench` from the command line to the files that it leaves."""

import json
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command_line import (
    Rows,
    TinyPair,
    environment,
    error_line,
    read_object,
    read_rows,
    skit,
    skit_here,
    write_rows,
)
from msgspec.structs import fields

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.datasets.loading import load
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.models.executors.library import load_library

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


METHODS = ("fixed-k:k=3", "threshold", "oracle:max_draft=3")
PROMPTS: Rows = [
    {"id": "d1", "category": "chat", "turns": ["Who was first?", "And why?"]},
    {"id": "q1", "category": "maths", "prompt": "How many?"},
    {"id": "d2", "category": "chat", "turns": ["Who was last?", "Really?"]},
    {"id": "t1", "category": "text", "prompt": "Once upon a time", "chat": False},
]
DESIGNED = {
    "request_id",
    "category",
    "prompt_ids",
    "output_ids",
    "text",
    "finish_reason",
    "error",
    "ttft_s",
    "e2e_s",
    "tpot_s",
    "time_kind",
    "rounds",
}
DESIGNED_ROUND = {
    "drafted",
    "submitted",
    "accepted",
    "committed",
    "draft_s",
    "policy_s",
    "link_s",
    "queue_s",
    "verify_s",
}


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("data") / "prompts.jsonl", *PROMPTS)


def bench(prompts: Path, out: Path, tiny: TinyPair, *options: object) -> list[object]:
    return [
        "bench",
        "--dataset",
        prompts,
        "--max-new-tokens",
        16,
        "--out",
        out,
        *tiny.options,
        *options,
    ]


def methods(*names: str) -> list[str]:
    return [part for name in names for part in ("--method", name)]


@pytest.fixture(scope="module")
def done(
    prompts: Path, tiny: TinyPair, tmp_path_factory: pytest.TempPathFactory
) -> subprocess.CompletedProcess[str]:
    """Three methods in one real process, in batches of three, with JSON."""
    out = tmp_path_factory.mktemp("results")
    return skit(*bench(prompts, out, tiny, *methods(*METHODS), "--batch-size", 3, "--json"))


@pytest.fixture(scope="module")
def document(done: subprocess.CompletedProcess[str]) -> JsonObject:
    assert done.returncode == 0, done.stderr
    parsed: JsonObject = json.loads(done.stdout.splitlines()[-1])
    return parsed


@pytest.fixture(scope="module")
def runs(document: JsonObject) -> list[Path]:
    return [Path(path) for path in document["run_dirs"]]


def the_run(out: Path) -> Path:
    (run,) = out.iterdir()
    return run


def outputs(run: Path, name: str = "requests.jsonl") -> dict[str, list[int]]:
    return {row["request_id"]: row["output_ids"] for row in read_rows(run / name)}


def test_stdout_is_one_json_document_and_tables_go_to_stderr(
    done: subprocess.CompletedProcess[str], document: JsonObject, runs: list[Path]
) -> None:
    assert done.stdout.count("\n") == 1
    assert set(document) == {"run_dirs", "summary", "report_dir", "warnings"}
    assert [line.partition(":")[0] for line in document["warnings"]] == ["INJECTED READINGS"]
    assert tuple(document["summary"]) == METHODS
    assert [read_object(run / "summary.json") for run in runs] == list(document["summary"].values())
    assert "lossless" in done.stderr
    assert str(Path(document["report_dir"]) / "report.html") in done.stderr


def test_every_method_has_a_run_directory_with_all_files(runs: list[Path]) -> None:
    for run, method in zip(runs, ("fixed-k-k-3", "threshold", "oracle-max-draft-3"), strict=True):
        assert re.fullmatch(rf"\d{{8}}T\d{{6}}Z-{method}-prompts-[0-9a-f]{{8}}", run.name)
        names = {path.name for path in run.iterdir()}
        assert names >= {
            "run.json",
            "requests.jsonl",
            "baseline.jsonl",
            "summary.json",
            "report.md",
        }
        assert not [name for name in names if name.startswith(".")]


def test_request_lines_have_the_designed_fields(runs: list[Path]) -> None:
    """A record tells what a policy expected, where the policy has chances to reckon with."""
    only_of_derived_times, only_of_dialogues = {"ends_s"}, {"dialogue"}
    only_of_grammars = {"grammar", "forced_first"}
    only_under_grammars = {"forbidden", "forced", "forced_submitted", "forced_accepted"}
    only_of_some_methods = {
        "expected",
        "drafter",
        "sent_bytes",
        "stale_bytes",
    } | only_under_grammars
    always = {f.name for f in fields(RequestRecord)} - (
        only_of_derived_times | only_of_dialogues | only_of_grammars
    )
    designed = {f.name for f in fields(RoundRecord)} - only_of_some_methods
    assert designed >= DESIGNED_ROUND
    for run in runs:
        for row in [*read_rows(run / "requests.jsonl"), *read_rows(run / "baseline.jsonl")]:
            assert set(row) - only_of_dialogues == always >= DESIGNED
            assert all(set(step) - only_of_some_methods == designed for step in row["rounds"])


def test_request_lines_add_up(runs: list[Path]) -> None:
    for row in [row for run in runs for row in read_rows(run / "requests.jsonl")]:
        assert row["finish_reason"] in ("eos", "length")
        assert row["error"] is None
        assert row["time_kind"] == "measured"
        assert sum(step["committed"] for step in row["rounds"]) == len(row["output_ids"]) <= 16
        assert all(
            step["accepted"] <= step["submitted"] <= step["drafted"] for step in row["rounds"]
        )
        assert 0 < row["ttft_s"] <= row["e2e_s"] == row["rounds"][-1]["end_s"]


def test_all_methods_answer_every_turn_like_the_baseline(runs: list[Path]) -> None:
    expected = outputs(runs[0], "baseline.jsonl")
    assert set(expected) == {"d1/1", "d1/2", "q1", "d2/1", "d2/2", "t1"}
    for run in runs:
        assert outputs(run) == outputs(run, "baseline.jsonl") == expected


def test_the_second_turn_is_asked_after_the_first_answer(
    runs: list[Path], tokenizer: "PreTrainedTokenizerBase"
) -> None:
    rows = {row["request_id"]: row for row in read_rows(runs[0] / "requests.jsonl")}
    second = tokenizer.decode(rows["d1/2"]["prompt_ids"])
    assert rows["d1/1"]["text"]
    assert second == (
        f"<|begin|>user: Who was first?\nassistant: {rows['d1/1']['text'].strip()}\nuser: And why?\nassistant: "
    )
    assert tokenizer.decode(rows["t1"]["prompt_ids"]) == "Once upon a time"


def test_run_json_says_what_was_run_without_naming_a_folder(
    runs: list[Path], prompts: Path
) -> None:
    run = read_object(runs[0] / "run.json")
    assert run["method"] == "fixed-k:k=3"
    assert (run["dataset"]["source"], run["dataset"]["location"]) == ("file", "prompts.jsonl")
    assert (run["dataset"]["count"], run["dataset"]["total"], run["requests"]) == (4, 4, 6)
    assert run["config"] == {
        "max_new_tokens": 16,
        "batch_size": 3,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "seed": 0,
        "limit": None,
        "repeats": 1,
        "baseline": True,
        "device": "cpu",
        "dtype": "float32",
        "effective_batch_size": 3,
        "executors": dict.fromkeys(
            ("target", "draft"), "llama-cpu" if load_library() is None else "native"
        ),
    }
    assert run["argv"][:4] == ["skit", "bench", "--dataset", "prompts.jsonl"]
    assert {"git_commit", "versions", "hardware", "started_at", "models", "time_kind"} <= set(run)
    for path in (prompts.parent, runs[0].parent):
        assert (
            str(path)
            not in (runs[0] / "run.json").read_text() + (runs[0] / "report.md").read_text()
        )


def test_the_report_says_that_the_run_was_lossless_and_how_to_repeat_it(runs: list[Path]) -> None:
    report = (runs[0] / "report.md").read_text()
    assert report.startswith("# `fixed-k (k=3)` on prompts\n")
    assert "Lossless: 6 of 6 outputs equal autoregressive output token for token" in report
    assert "\nskit bench --dataset prompts.jsonl " in report
    assert "SAMPLE DATA" not in report


def test_sampled_runs_repeat_under_a_seed_and_are_not_compared(
    prompts: Path, tiny: TinyPair, tmp_path: Path
) -> None:
    sampling = ("--temperature", 0.8, "--top-p", 0.9, "--top-k", 50)
    for folder, seed in (("a", 3), ("b", 3), ("c", 4)):
        options = (*methods("fixed-k"), "--no-baseline", *sampling, "--seed", seed)
        assert skit_here(*bench(prompts, tmp_path / folder, tiny, *options)).returncode == 0
    first, again, other_seed = (the_run(tmp_path / folder) for folder in "abc")
    assert outputs(first) == outputs(again) != outputs(other_seed)
    assert not (first / "baseline.jsonl").exists()
    assert read_object(first / "summary.json")["lossless"] is None
    report = (first / "report.md").read_text()
    assert "| sampling | temperature 0.8, top-p 0.9, top-k 50, seed 3 |" in report
    assert "Sampling is undecided: too few tokens were drawn" in report


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        ("block-verification", "block"),
        ("sampled-tree:branching=2-1", "siblings"),
        ("sampled-tree:branching=2-1,replacement=true", "siblings"),
        ("sparse-quantised:k=3", "own-distributions"),
    ],
)
def test_tokens_are_tested_under_every_rule_for_drawn_drafts(
    method: str, rule: str, prompts: Path, tiny: TinyPair, tmp_path: Path
) -> None:
    done = skit_here(
        *bench(prompts, tmp_path, tiny, *methods(method), "--no-baseline", "--temperature", 0.8)
    )
    assert done.returncode == 0, done.stderr
    sampling = read_object(the_run(tmp_path) / "summary.json")["sampling"]
    assert sampling["rule"] == rule
    assert not {"acceptance", "softness"} & sampling.keys()
    assert sampling["tokens"]["drawn"] > 0
    report = (the_run(tmp_path) / "report.md").read_text()
    assert "power against one token in ten from the draft model" in report
    assert "committed tokens in" in report
    assert "which drafted tokens were accepted" not in report


def test_the_oracle_says_that_it_needs_the_baseline(
    prompts: Path, tiny: TinyPair, tmp_path: Path
) -> None:
    done = skit_here(*bench(prompts, tmp_path, tiny, *methods("oracle"), "--no-baseline"))
    assert done.returncode == 0, done.stderr
    note = (
        "oracle needs the autoregressive output: the baseline is decoded in spite of --no-baseline"
    )
    assert done.stdout.splitlines().count(note) == 1
    run = the_run(tmp_path)
    assert read_object(run / "run.json")["config"]["baseline"] is True
    assert outputs(run) == outputs(run, "baseline.jsonl")


def test_the_baseline_alone_has_a_report(prompts: Path, tiny: TinyPair, tmp_path: Path) -> None:
    done = skit_here(*bench(prompts, tmp_path, tiny, *methods("autoregressive")))
    assert done.returncode == 0, done.stderr
    run = the_run(tmp_path)
    summary = read_object(run / "summary.json")
    assert (summary["overall"]["acceptance_length"], summary["overall"]["drafted"]) == (1.0, 0)
    assert not (run / "baseline.jsonl").exists()
    assert "# `autoregressive` on prompts" in (run / "report.md").read_text()


def test_a_limit_draws_prompts_by_the_seed(tiny: TinyPair, tmp_path: Path) -> None:
    prompts = write_rows(
        tmp_path / "prompts.jsonl", *({"id": f"p{i}", "prompt": f"{i}?"} for i in range(50))
    )
    for seed in (0, 1):
        options = (*methods("autoregressive"), "--limit", 3, "--seed", seed)
        assert skit_here(*bench(prompts, tmp_path / str(seed), tiny, *options)).returncode == 0
    first, other_seed = (outputs(the_run(tmp_path / str(seed))) for seed in (0, 1))
    expected = load(str(prompts), data_dir=None, allow_sample=False, limit=3, seed=0)
    assert list(first) == [prompt.id for prompt in expected.prompts]
    assert set(first) != set(other_seed)
    assert read_object(the_run(tmp_path / "0") / "run.json")["dataset"]["total"] == 50


def test_spec_bench_dialogues_have_both_turns(tiny: TinyPair, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "spec_bench"
    folder.mkdir(parents=True)
    rows = [
        {"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."]},
        {"question_id": 241, "category": "translation", "turns": ["Translate."]},
    ]
    write_rows(folder / "question.jsonl", *rows)
    out = tmp_path / "results"
    options = (*methods("fixed-k"), "--data-dir", tmp_path / "data")
    assert skit_here(*bench(Path("spec-bench"), out, tiny, *options)).returncode == 0
    run = the_run(out)
    assert sorted(outputs(run)) == ["241", "81/1", "81/2"]
    assert list(read_object(run / "summary.json")["categories"]) == ["multi_turn", "translation"]
    assert read_object(run / "run.json")["dataset"]["source"] == "local"


def test_a_sample_that_stands_in_is_announced_once_and_stamped(tmp_path: Path) -> None:
    options = ("--limit", 2, "--max-new-tokens", 4, "--out", tmp_path)
    done = skit("bench", *methods("fixed-k", "threshold"), *options)
    assert done.returncode == 0, done.stderr
    announced = [line for line in done.stdout.splitlines() if "'gsm8k' was not found" in line]
    assert announced == [
        "SAMPLE DATA: 'gsm8k' was not found; the bundled sample 'gsm8k' with 2 prompts is used instead "
        "(openai/gsm8k:main:test is out of reach and not cached). --no-sample forbids this."
    ]
    runs = [file.parent for file in tmp_path.glob("*/run.json")]
    assert len(runs) == 2
    for run in runs:
        assert read_object(run / "run.json")["dataset"]["source"] == "sample"
        assert (
            "> **SAMPLE DATA: a few bundled prompts stand in for gsm8k"
            in (run / "report.md").read_text()
        )


def test_no_sample_forbids_it(tmp_path: Path) -> None:
    line = error_line(
        skit("bench", *methods("fixed-k"), "--no-sample", cwd=tmp_path, env=environment())
    )
    assert line.startswith("no prompts for 'gsm8k': ")
    assert list(tmp_path.iterdir()) == []
