"""Servers that die, break off, or are started again in the middle of a comparison."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from command_line import (
    PATIENCE_S,
    SKIT,
    environment,
    error_line,
    ignore_ctrl_c,
    read_object,
    read_rows,
    skit,
    skit_here,
    write_rows,
)
from nightly import nightly_except
from streaming_server import server_process, streaming_server

from specbench_kit.live.engines.answers import AnswerRecord
from specbench_kit.studies.ab.store import AnswerStore


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    rows = (
        {"id": f"p{number}", "prompt": f"prompt number {number}", "chat": False}
        for number in range(4)
    )
    return write_rows(tmp_path / "prompts.jsonl", *rows)


def options(prompts: Path) -> list[object]:
    out = prompts.parent / "out"
    return [
        "--dataset",
        prompts,
        "--max-new-tokens",
        9,
        "--out",
        out,
        "--warm-up",
        0,
        "--retries",
        1,
    ]


def test_a_server_that_dies_loses_nothing_and_the_run_goes_on_when_it_is_back(
    prompts: Path,
) -> None:
    # One answer is the probe's, four are of the run: it dies in the middle of the next.
    with server_process(dies_after=5) as (process, port), streaming_server() as (plain, engine):
        command = [
            "ab",
            f"plain=vllm://{plain}",
            f"spec=vllm://127.0.0.1:{port}",
            *options(prompts),
        ]
        done = skit_here(*command)
        process.join(10)
        assert process.exitcode == 9
        line = error_line(done)
        assert "spec (http://127.0.0.1:" in line
        assert "cannot be reached any more" in line
        assert "--resume goes on" in line
        (folder,) = (prompts.parent / "out").glob("*-ab-*")
        before = read_rows(folder / "answers.jsonl")
        assert sum(row["key"]["server"] == "spec" for row in before) == 4
        assert f"{len(before)} of 16 requests are kept in {folder}" in line
        assert read_object(folder / "summary.json")["partial"] is True
        assert "PARTIAL" in (folder / "report.md").read_text()
        requests_before = len(engine.requests)
        with streaming_server(port=port):
            resumed = skit_here(*command, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    after = read_rows(folder / "answers.jsonl")
    assert after[: len(before)] == before
    summary = read_object(folder / "summary.json")
    assert (summary["partial"], summary["finished"], summary["failed"]) == (False, 16, 0)
    # Only the turn that was cut short is asked again; one more request is the probe.
    assert len(engine.requests) - requests_before <= 16 // 2 - 4 + 1 + 1
    (resumption,) = read_object(folder / "run.json")["resumptions"]
    assert (
        f"RESUMED 1 TIME, at {resumption['when']} after {len(before)} of 16 requests"
        in (folder / "report.md").read_text()
    )
    sent = [row["sent_s"] for row in after]
    assert sent == sorted(sent)
    with streaming_server() as (first_address, _), streaming_server() as (second_address, _):
        again = skit_here(
            "ab",
            f"plain=vllm://{first_address}",
            f"spec=vllm://{second_address}",
            *options(prompts),
            "--resume",
        )
    assert "holds no unfinished run with these settings" in error_line(again)


@pytest.mark.slow
@pytest.mark.parametrize("number", nightly_except([signal.SIGINT], [signal.SIGINT, signal.SIGTERM]))
def test_an_interrupted_run_is_resumed(number: signal.Signals, prompts: Path) -> None:
    # The seventh request to the second server, one of them the probe, is not answered until the command has ended.
    with (
        streaming_server() as (first_address, _),
        streaming_server(stalls_at=7) as (second_address, engine),
    ):
        command = [
            "ab",
            f"a=vllm://{first_address}",
            f"b=vllm://{second_address}",
            *options(prompts),
        ]
        process = subprocess.Popen(
            [SKIT, *map(str, command)],
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=ignore_ctrl_c,
        )
        assert engine.stalled.wait(PATIENCE_S)
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
        engine.released.set()
        assert process.returncode == 130, errors
        assert "error: interrupted; " in errors
        assert "Traceback" not in errors
        (folder,) = (prompts.parent / "out").glob("*-ab-*")
        answer_rows = read_rows(folder / "answers.jsonl")
        assert sum(row["key"]["server"] == "b" for row in answer_rows) == 5
        done = skit_here(*command, "--resume", "--force")
    assert done.returncode == 0, done.stderr
    assert read_object(folder / "summary.json")["finished"] == 16
    assert len(read_rows(folder / "answers.jsonl")) == 16


def test_a_turn_that_was_cut_short_between_the_servers_leaves_one_line_per_request(
    prompts: Path,
) -> None:
    """The second server dies while it has a turn that the first one has taken, and both take it again."""
    # One answer is the probe's, three are of the run: it dies in the third turn, which the first server began.
    with server_process(dies_after=3) as (_, port), streaming_server() as (plain, engine):
        command = [
            "ab",
            f"plain=vllm://{plain}",
            f"spec=vllm://127.0.0.1:{port}",
            *options(prompts),
        ]
        assert skit_here(*command).returncode != 0
        (folder,) = (prompts.parent / "out").glob("*-ab-*")
        before = read_rows(folder / "answers.jsonl")
        assert [row["key"]["server"] for row in before] == [
            "plain",
            "spec",
            "spec",
            "plain",
            "plain",
        ]
        with streaming_server(port=port):
            resumed = skit_here(*command, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert len(engine.requests) == 2 + 9, "a probe each, and the third turn twice"
    rows = read_rows(folder / "answers.jsonl")
    assert rows[:4] == before[:4]
    keys = [json.dumps(row["key"]) for row in rows]
    assert len(set(keys)) == len(keys) == 16
    (again,) = (row for row in rows if row["key"] == before[4]["key"])
    assert again["sent_s"] > before[4]["sent_s"], "the later answer stays"


def test_failed_requests_are_counted_and_leave_their_pairs_out(prompts: Path) -> None:
    with streaming_server() as (first_address, _), streaming_server() as (second_address, broken):
        command = [
            "ab",
            f"a=vllm://{first_address}",
            f"b=vllm://{second_address}",
            *options(prompts),
            "--retries",
            0,
        ]
        # The probe of each server is answered before the first request fails.
        broken.behaviour.breaks_at = {2, 4}
        done = skit_here(*command, "--strict")
    assert done.returncode == 1
    assert "strict: requests failed: 2 of b" in done.stderr
    (folder,) = (prompts.parent / "out").glob("*-ab-*")
    summary = read_object(folder / "summary.json")
    assert (summary["partial"], summary["failed"]) == (False, 2)
    (load,) = summary["loads"]
    assert load["servers"]["b"]["failed"] == 2
    assert load["outputs"]["both"] == {"compared": 6, "identical": 6}
    errors = [row["error"] for row in read_rows(folder / "answers.jsonl") if row["error"]]
    assert errors == ["the stream ended before the answer did"] * 2
    assert "FAILED REQUESTS: 2 of 16" in (folder / "report.md").read_text()


def test_minutes_end_a_comparison_between_turns_and_resume_continues_it(prompts: Path) -> None:
    """Every call has so little time that it ends after one turn of both servers, and each call gets on."""
    with streaming_server() as (first_address, _), streaming_server() as (second_address, _):
        loads = ("--concurrency", "1,2")
        command = [
            "ab",
            f"a=vllm://{first_address}",
            f"b=vllm://{second_address}",
            *options(prompts),
            *loads,
        ]
        ended = skit_here(*command, "--minutes", 1e-6)
        assert ended.returncode == 0, ended.stderr
        assert "PARTIAL RUN: 2 of 32 requests are done; --resume goes on." in " ".join(
            ended.stdout.split()
        )
        (folder,) = (prompts.parent / "out").glob("*-ab-*")
        assert len(read_rows(folder / "answers.jsonl")) == 2
        further = skit_here(*command, "--minutes", 1e-6, "--resume")
        assert further.returncode == 0, further.stderr
        assert len(read_rows(folder / "answers.jsonl")) == 4
        resumed = skit_here(*command, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    summary = read_object(folder / "summary.json")
    assert (summary["partial"], summary["finished"]) == (False, 32)


def test_a_comparison_that_is_being_written_is_not_taken_up(
    prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even its description is changed, nor a line that its writer is in the middle of."""
    second: list[subprocess.CompletedProcess[str]] = []
    append = AnswerStore.append
    with streaming_server() as (first_address, _), streaming_server() as (second_address, _):
        command = [
            "ab",
            f"a=vllm://{first_address}",
            f"b=vllm://{second_address}",
            *options(prompts),
        ]

        def append_and_run(self: AnswerStore, record: AnswerRecord) -> None:
            append(self, record)
            if not second:
                with (self.folder / "answers.jsonl").open("a") as file:
                    file.write("half a line")
                second.append(skit(*command, "--resume", "--force"))
                assert (self.folder / "answers.jsonl").read_text().endswith("half a line")
                (self.folder / "answers.jsonl").write_text("")
                append(self, record)

        monkeypatch.setattr(AnswerStore, "append", append_and_run)
        first = skit_here(*command)
    assert first.returncode == 0, first.stderr
    (folder,) = (prompts.parent / "out").glob("*-ab-*")
    line = f"{folder} is being written by another skit: wait until it has ended, then --resume"
    assert error_line(second[0]) == line
    assert "resumptions" not in read_object(folder / "run.json")
    assert len(read_rows(folder / "answers.jsonl")) == 16
    assert not (folder / ".lock").exists()
