"""Killed, interrupted and resumed in real processes: nothing is lost and nothing is decoded twice."""

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from command_line import (
    PATIENCE_S,
    SKIT,
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

DIALOGUES: Rows = [{"id": f"d{i}", "turns": [f"Who was number {i}?", "And why?"]} for i in range(8)]
METHODS = ("fixed-k", "threshold")
Outputs = dict[str, list[int]]


@pytest.fixture(scope="module")
def command(tiny: TinyPair, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A run of two methods over dialogues, long enough to be killed in the middle."""
    prompts = write_rows(tmp_path_factory.mktemp("data") / "prompts.jsonl", *DIALOGUES)
    methods = [part for name in METHODS for part in ("--method", name)]
    return ["bench", *methods, "--dataset", str(prompts), "--max-new-tokens", "20", *tiny.options]


@pytest.fixture(scope="module")
def whole(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the same run lies that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole")
    done = skit(*command, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def run_directory(out: Path, method: str) -> Path:
    (found,) = out.glob(f"*Z-{method}-*")
    return found


def outputs(run: Path, name: str = "requests.jsonl") -> Outputs:
    rows = read_rows(run / name)
    found = {row["request_id"]: row["output_ids"] for row in rows}
    assert len(found) == len(rows)
    return found


def assert_same_as(whole: Path, out: Path) -> None:
    """Both methods finished with the same outputs as without interruption, and their summaries say so."""
    for method in METHODS:
        run, untouched = run_directory(out, method), run_directory(whole, method)
        for name in ("requests.jsonl", "baseline.jsonl"):
            assert outputs(run, name) == outputs(untouched, name)
        summary, expected = read_object(run / "summary.json"), read_object(untouched / "summary.json")
        assert summary["partial"] is False
        assert summary["requests"] == {"planned": 16, "finished": 16, "failed": 0}
        for count in ("rounds", "tokens", "drafted", "accepted"):
            assert summary["overall"][count] == expected["overall"][count]
        assert "PARTIAL RUN" not in (run / "report.md").read_text()


def hear_ctrl_c() -> None:
    """A shell that starts the tests in the background has them ignore Ctrl-C, and so their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start_and_wait(command: list[str], out: Path, requests: int) -> "subprocess.Popen[str]":
    """A benchmark that has recorded so many requests of its first method."""
    process = subprocess.Popen(
        [SKIT, *command, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        preexec_fn=hear_ctrl_c,
    )
    deadline = time.monotonic() + PATIENCE_S
    while sum(file.read_bytes().count(b"\n") for file in out.glob(f"*Z-{METHODS[0]}-*/requests.jsonl")) < requests:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return process


def test_a_killed_run_is_resumed_to_the_same_end(command: list[str], whole: Path, tmp_path: Path) -> None:
    process = start_and_wait(command, tmp_path, requests=3)
    process.kill()
    process.communicate()
    run = run_directory(tmp_path, METHODS[0])
    finished = run.joinpath("requests.jsonl").read_bytes().rpartition(b"\n")[0]
    assert 3 <= finished.count(b"\n") + 1 < 16
    assert not (run / "summary.json").exists()
    done = skit(*command, "--out", tmp_path, "--resume")
    assert done.returncode == 0, done.stderr
    assert run.joinpath("requests.jsonl").read_bytes().startswith(finished)
    assert_same_as(whole, tmp_path)


def test_ctrl_c_leaves_a_partial_report_and_one_line(command: list[str], whole: Path, tmp_path: Path) -> None:
    process = start_and_wait(command, tmp_path, requests=2)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert "Traceback" not in errors
    assert errors.splitlines()[-1] == "error: interrupted; finished requests are kept, --resume goes on with the rest"
    assert "PARTIAL RUN" in output
    for method in METHODS:
        run = run_directory(tmp_path, method)
        summary = read_object(run / "summary.json")
        assert summary["partial"] is True
        assert summary["requests"]["planned"] == 16
        assert summary["requests"]["finished"] == len(outputs(run)) < 16
        assert "PARTIAL RUN" in (run / "report.md").read_text()
    assert skit(*command, "--out", tmp_path, "--resume").returncode == 0
    assert_same_as(whole, tmp_path)


def test_ctrl_c_before_decoding_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hub = environment(HF_HUB_OFFLINE="0", HF_ENDPOINT=f"http://127.0.0.1:{silent.getsockname()[1]}")
        process = subprocess.Popen(
            [SKIT, "bench", "--method", "fixed-k"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=hub | {"HF_HOME": str(tmp_path), "no_proxy": "127.0.0.1"},
            preexec_fn=hear_ctrl_c,
        )
        silent.settimeout(PATIENCE_S)
        connection, _ = silent.accept()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE_S)
        connection.close()
    assert (process.returncode, output, errors) == (2, "", "error: interrupted\n")


def cut(run: Path, name: str, lines: int) -> None:
    """Leave so many lines and half of the next, as a kill in mid-write does."""
    kept = run.joinpath(name).read_bytes().splitlines(keepends=True)[: lines + 1]
    run.joinpath(name).write_bytes(b"".join(kept)[: -len(kept[-1]) // 2])


@pytest.mark.parametrize(
    ("first", "second", "baselines"),
    [(3, 2, (3, 4)), (1, 0, (1, 2)), (0, 0, (0, 0)), (15, 14, (15, 15))],
    ids=["between turns of a dialogue", "after the first turn", "before the first request", "near the end"],
)
def test_files_cut_at_any_place_are_completed(
    first: int, second: int, baselines: tuple[int, int], command: list[str], whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    for method, requests, baseline in zip(METHODS, (first, second), baselines, strict=True):
        run = run_directory(out, method)
        cut(run, "requests.jsonl", requests)
        cut(run, "baseline.jsonl", baseline)
        (run / "summary.json").unlink()
        (run / "report.md").unlink()
    done = skit_here(*command, "--out", out, "--resume")
    assert done.returncode == 0, done.stderr
    assert_same_as(whole, out)


def test_a_finished_run_is_not_resumed(command: list[str], whole: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    line = error_line(skit_here(*command, "--out", whole, "--resume"))
    assert line == f"{whole} holds no unfinished run with these settings: start one without --resume"
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before
