"""`skit record` and `skit bench --replay` from the command line."""

import json
import re
import subprocess
from pathlib import Path

import pyarrow.parquet
import pytest
import torch
from command_line import (
    Rows,
    TinyPair,
    error_line,
    read_object,
    read_rows,
    skit,
    skit_here,
    write_rows,
)
from tiny_predictors import confidence_predictor

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.traces.replay import identify_pair
from specbench_kit.traces.trace import TraceFile
from specbench_kit.traces.writing import UnfinishedTrace

METHODS = ("fixed-k:k=2", "threshold:threshold=0.1,max_draft=4", "sglang-ema")
"""Not the oracle, which plans whole answers by the clock of a replay; a live run here has none."""
PROMPTS: Rows = [
    {"id": "long", "prompt": "?" * 600},
    {"id": "d1", "category": "chat", "turns": ["Who was first?", "And why?"]},
    {"id": "q1", "category": "maths", "prompt": "How many?"},
    {"id": "t1", "category": "text", "prompt": "Once upon a time", "chat": False},
]
ROUND = ("drafted", "submitted", "accepted", "committed")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("data") / "prompts.jsonl", *PROMPTS)


@pytest.fixture(scope="module")
def recorded(prompts: Path, tiny: TinyPair) -> subprocess.CompletedProcess[str]:
    return skit(*record(prompts, prompts.parent / "trace.parquet", tiny))


@pytest.fixture(scope="module")
def trace(recorded: subprocess.CompletedProcess[str], prompts: Path) -> Path:
    assert recorded.returncode == 0, recorded.stderr
    return prompts.parent / "trace.parquet"


@pytest.fixture(scope="module")
def predictor(tiny: TinyPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Expects acceptance where the draft model is not wholly unsure, so that it stops now and then."""
    pair = identify_pair(str(tiny.target), str(tiny.draft))
    return confidence_predictor(tmp_path_factory.mktemp("predictor"), pair, threshold=0.03)


def record(prompts: Path, out: Path, tiny: TinyPair, *options: object) -> list[object]:
    return [
        *("record", "--dataset", prompts, "--max-new-tokens", 16, "--max-draft", 4),
        *("--out", out, *tiny.options, *options),
    ]


def methods(*specs: str) -> list[str]:
    return [part for spec in specs for part in ("--method", spec)]


def rounds(run: Path) -> JsonObject:
    return {
        row["request_id"]: [[step[name] for name in ROUND] for step in row["rounds"]]
        for row in read_rows(run / "requests.jsonl")
        if row["finish_reason"] != "error"
    }


def test_what_was_recorded_is_told_and_a_prompt_that_does_not_fit_is_left_out(
    recorded: subprocess.CompletedProcess[str], trace: Path
) -> None:
    file = TraceFile(trace)
    offsets = sum(len(request.output_ids) for request in file)
    line = f"trace: {trace} (4 requests, {offsets} offsets; 1 did not fit the context)"
    assert line in recorded.stdout.splitlines()
    assert {request.request_id for request in file} == {"d1/1", "d1/2", "q1", "t1"}


def test_the_header_says_where_the_trace_is_from_and_nothing_of_the_machines_folders(
    trace: Path, tiny: TinyPair
) -> None:
    header = TraceFile(trace).header
    pair = identify_pair(str(tiny.target), str(tiny.draft))
    assert [header.run["models"][role]["hash"] for role in ("target", "draft")] == [
        pair.target,
        pair.draft,
    ]
    assert {"dataset", "config", "argv", "versions", "git_commit", "hardware", "started_at"} <= set(
        header.run
    )
    assert header.max_draft == len(header.verify_s) - 1 == 4
    assert min(header.draft_s, header.statistics_s, *header.verify_s) > 0
    assert header.run["statistics"] == "measured in the decoding loop"
    assert str(trace.parent) not in json.dumps(header.run)


def test_a_replay_has_the_rounds_of_the_live_run(
    prompts: Path, trace: Path, tiny: TinyPair, predictor: Path, tmp_path: Path
) -> None:
    specs = methods(*METHODS, f"wisp:predictor={predictor},max_draft=4")
    sides = (["--dataset", prompts, "--max-new-tokens", 16, *tiny.options], ["--replay", trace])
    runs_of_commands = []
    for name, options in zip(("live", "replay"), sides, strict=True):
        done = skit_here("bench", *specs, *options, "--out", tmp_path / name, "--json")
        assert done.returncode == 0, done.stderr
        runs_of_commands.append(
            [Path(path) for path in json.loads(done.stdout.splitlines()[-1])["run_dirs"]]
        )
    for live, replayed in zip(*runs_of_commands, strict=True):
        assert rounds(live) == rounds(replayed)
        assert read_object(replayed / "run.json")["time_kind"] == "modelled"
        assert read_object(replayed / "summary.json")["lossless"]["identical"] == 4
        assert "MODELLED TIME" in (replayed / "report.md").read_text()


def test_a_replay_loads_no_model(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model is made")

    monkeypatch.setattr(torch.nn.Module, "__init__", refuse)
    done = skit_here("bench", "--method", "fixed-k", "--replay", trace, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"x the speed of autoregressive decoding", next(tmp_path.glob("*/report.md")).read_text()
    )


REFUSED = {
    "fixed-k:k=5": "the trace holds drafts of 4 tokens and the method wants more",
    "specinfer": "a trace holds chains, so a method that drafts trees cannot be replayed",
    "specpipe": "a trace holds chains, so a method that fills a pipeline cannot be replayed",
    "wisp": "no predictor for this pair of models",
}


@pytest.mark.parametrize("spec", REFUSED)
def test_a_method_that_the_trace_does_not_serve_is_refused_before_there_is_a_run(
    spec: str, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKIT_HOME", str(tmp_path / "home"))
    done = skit_here("bench", "--method", spec, "--replay", trace, "--out", tmp_path / "out")
    assert REFUSED[spec] in error_line(done)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [["--temperature", "1"], ["--resume"], ["--token-view"]])
def test_what_a_trace_does_not_hold_is_refused(
    options: list[str], trace: Path, tmp_path: Path
) -> None:
    done = skit_here(
        "bench", "--method", "fixed-k", "--replay", trace, "--out", tmp_path / "out", *options
    )
    assert "leave out" in error_line(done)
    assert not (tmp_path / "out").exists()


def test_a_damaged_trace_is_one_line(trace: Path, tmp_path: Path) -> None:
    intact = trace.read_bytes()
    columns = pyarrow.parquet.ParquetFile(trace).metadata.row_group(0)
    largest = max(
        map(columns.column, range(columns.num_columns)),
        key=lambda column: column.total_compressed_size,
    )
    end = (
        largest.dictionary_page_offset or largest.data_page_offset
    ) + largest.total_compressed_size
    middle = end - 8  # inside of the last page's data, behind its header
    contents = {
        "cut": intact[:middle],
        "text": b"no trace",
        "flipped": intact[:middle] + bytes([intact[middle] ^ 255]) + intact[middle + 1 :],
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.parquet").write_bytes(content)
    for name, problem in {
        "cut": "cannot read",
        "text": "cannot read",
        "flipped": "is damaged",
        "no": "cannot read",
    }.items():
        file = tmp_path / f"{name}.parquet"
        line = error_line(
            skit_here("bench", "--method", "fixed-k", "--replay", file, "--out", tmp_path / "out")
        )
        assert problem in line
        assert "record it" in line


BAD = {
    "--max-draft 0": "--max-draft must be at least 1, not 0",
    "--max-new-tokens 0": "--max-new-tokens must be at least 1, not 0",
    "--limit 0": "--limit must be at least 1, not 0",
    "--target nowhere": "no target model 'nowhere'",
}


@pytest.mark.parametrize("options", BAD)
def test_bad_options_are_one_line_and_leave_no_file(
    options: str, prompts: Path, tiny: TinyPair, tmp_path: Path
) -> None:
    done = skit_here(*record(prompts, tmp_path / "trace.parquet", tiny, *options.split()))
    assert BAD[options] in error_line(done)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_one_line(
    prompts: Path, tiny: TinyPair, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    line = error_line(skit_here(*record(prompts, tmp_path / "file/trace.parquet", tiny)))
    assert line.startswith(f"cannot write {tmp_path / 'file/trace.parquet'}: ")


def test_prompts_of_which_none_fits_are_one_line(tiny: TinyPair, tmp_path: Path) -> None:
    prompts = write_rows(tmp_path / "prompts.jsonl", PROMPTS[0])
    line = error_line(skit_here(*record(prompts, tmp_path / "trace.parquet", tiny)))
    assert re.fullmatch(
        r"no prompt of prompts fits the context, which has room for \d+ tokens of prompt", line
    )
    assert not (tmp_path / "trace.parquet").exists()


def test_prompts_that_bench_does_not_ask_can_be_recorded(tmp_path: Path, tiny: TinyPair) -> None:
    data = tmp_path / "data/gsm8k"
    data.mkdir(parents=True)
    for split in ("test", "train"):
        write_rows(
            data / f"{split}.jsonl", {"question": f"A question to {split}?", "answer": "#### 1"}
        )
    parts = []
    for options in ([], ["--train-split"]):
        out = tmp_path / f"{len(options)}.parquet"
        common = (
            "--dataset",
            "gsm8k",
            "--data-dir",
            tmp_path / "data",
            "--max-new-tokens",
            4,
            "--max-draft",
            2,
        )
        done = skit_here("record", *common, "--out", out, *tiny.options, *options)
        assert done.returncode == 0, done.stderr
        parts.append(
            (
                TraceFile(out).header.run["dataset"]["location"],
                next(iter(TraceFile(out))).prompt_ids,
            )
        )
    assert [location for location, _ in parts] == ["gsm8k/test.jsonl", "gsm8k/train.jsonl"]
    assert parts[0][1] != parts[1][1]


def test_minutes_leave_a_trace_of_what_is_recorded_and_resume_records_the_others(
    prompts: Path, trace: Path, tiny: TinyPair, tmp_path: Path
) -> None:
    out = tmp_path / "trace.parquet"
    ended = skit_here(*record(prompts, out, tiny, "--batch-size", 1, "--minutes", 1e-6))
    assert ended.returncode == 0, ended.stderr
    terminal = " ".join(ended.stdout.split())
    assert re.search(
        r"PARTIAL RUN: (\d) of 5 requests were recorded before --minutes were over; the same",
        terminal,
    )
    part = TraceFile(out)
    assert 1 <= len(part) < len(TraceFile(trace))
    assert part.header.run["dataset"]["recorded"] == {"requests": len(part), "planned": 5}
    replayed = skit_here(
        "bench", *methods("fixed-k:k=2"), "--replay", out, "--out", tmp_path / "runs"
    )
    assert f"PARTIAL RUN: {len(part)} of 5 requests were recorded" in " ".join(
        replayed.stdout.split()
    )
    again = skit_here(*record(prompts, out, tiny, "--batch-size", 1))
    assert "continue it with --resume" in error_line(again)
    resumed = skit_here(*record(prompts, out, tiny, "--batch-size", 1, "--resume"))
    assert resumed.returncode == 0, resumed.stderr
    assert "PARTIAL" not in resumed.stdout
    assert "recorded" not in TraceFile(out).header.run["dataset"]
    assert [request.output_ids for request in TraceFile(out)] == [
        request.output_ids for request in TraceFile(trace)
    ]
    assert not (tmp_path / "trace.parquet.unfinished").exists()


def test_a_recording_that_is_being_written_is_not_taken_up(
    prompts: Path, trace: Path, tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process is refused while one records, with --resume as without, and the recording comes out whole."""
    command = record(prompts, tmp_path / "trace.parquet", tiny, "--batch-size", 1)
    second: list[subprocess.CompletedProcess[str]] = []
    append = UnfinishedTrace.append

    def append_and_run(self: UnfinishedTrace, *arguments: object) -> None:
        append(self, *arguments)
        if not second:
            second.append(skit(*command, "--resume"))

    monkeypatch.setattr(UnfinishedTrace, "append", append_and_run)
    first = skit_here(*command)
    assert first.returncode == 0, first.stderr
    folder = tmp_path / "trace.parquet.unfinished"
    line = f"{folder} is being written by another skit: wait until it has ended, then --resume"
    assert error_line(second[0]) == line
    assert [request.output_ids for request in TraceFile(tmp_path / "trace.parquet")] == [
        request.output_ids for request in TraceFile(trace)
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["trace.parquet"]
