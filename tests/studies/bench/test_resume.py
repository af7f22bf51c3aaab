"""Killed, interrupted and resumed: nothing is lost and nothing is decoded twice.

Three tests end a real process; the others stop at the file that requests are appended to, which comes to the same.
"""

import errno
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import (
    PATIENCE_S,
    SKIT,
    Rows,
    TinyPair,
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

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.runs.directory import RunDirectory

pytestmark = pytest.mark.slow

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
    """Return the folder of the same run, which nothing interrupted."""
    out = tmp_path_factory.mktemp("whole")
    done = skit_here(*command, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def run_directory(out: Path, method: str) -> Path:
    (folder,) = out.glob(f"*Z-{method}-*")
    return folder


def outputs(run: Path, name: str = "requests.jsonl") -> Outputs:
    rows = read_rows(run / name)
    outputs = {row["request_id"]: row["output_ids"] for row in rows}
    assert len(outputs) == len(rows)
    return outputs


def assert_same_as(whole: Path, out: Path) -> None:
    """Both methods finished with the same outputs as without interruption, and their summaries say so."""
    for method in METHODS:
        run, untouched = run_directory(out, method), run_directory(whole, method)
        for name in ("requests.jsonl", "baseline.jsonl"):
            assert outputs(run, name) == outputs(untouched, name)
        summary, expected = (
            read_object(run / "summary.json"),
            read_object(untouched / "summary.json"),
        )
        assert summary["partial"] is False
        assert summary["requests"] == {"planned": 16, "finished": 16, "failed": 0}
        for count in ("rounds", "tokens", "drafted", "accepted"):
            assert summary["overall"][count] == expected["overall"][count]
        assert "PARTIAL RUN" not in (run / "report.md").read_text()


def start_and_wait(command: list[str], out: Path, requests: int) -> "subprocess.Popen[str]":
    """A benchmark that has recorded so many requests of its first method."""
    process = subprocess.Popen(
        [SKIT, *command, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        preexec_fn=ignore_ctrl_c,
    )
    deadline = time.monotonic() + PATIENCE_S
    while (
        sum(
            file.read_bytes().count(b"\n") for file in out.glob(f"*Z-{METHODS[0]}-*/requests.jsonl")
        )
        < requests
    ):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return process


def test_a_killed_run_is_resumed_to_the_same_end(
    command: list[str], whole: Path, tmp_path: Path
) -> None:
    process = start_and_wait(command, tmp_path, requests=3)
    process.kill()
    process.communicate()
    run = run_directory(tmp_path, METHODS[0])
    finished = run.joinpath("requests.jsonl").read_bytes().rpartition(b"\n")[0]
    assert 3 <= finished.count(b"\n") + 1 < 16
    assert not (run / "summary.json").exists()
    done = skit_here(*command, "--out", tmp_path, "--resume")
    assert done.returncode == 0, done.stderr
    assert run.joinpath("requests.jsonl").read_bytes().startswith(finished)
    assert_same_as(whole, tmp_path)
    assert_resumed_once(run, finished.count(b"\n") + 1)


def assert_resumed_once(run: Path, done: int) -> None:
    """The run remembers where it went on, and gives no time that spans the interruption."""
    described, summary = read_object(run / "run.json"), read_object(run / "summary.json")
    (resumption,) = described["resumptions"]
    assert resumption["done"] == done
    for name in ("versions", "platform", "hardware"):
        assert resumption[name] == described[name]
    assert resumption["commit"] == described["git_commit"]
    assert resumption["threads"] == described["hardware"]["torch_threads"]
    assert resumption["when"] >= described["started_at"]
    for side in (summary, summary["baseline"]):
        assert side["overall"]["makespan_s"] is side["overall"]["throughput"] is None
    assert summary["overall"]["speedup"] > 0
    assert (
        f"RESUMED 1 TIME, after {done} of 16 requests: makespan" in (run / "report.md").read_text()
    )


def at_request(number: int, do: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something once, when that many requests of the methods have been recorded."""
    append, appended = RunDirectory.append, itertools.count(1)

    def append_and_do(run: RunDirectory, record: RequestRecord) -> None:
        append(run, record)
        if next(appended) == number:
            do()

    monkeypatch.setattr(RunDirectory, "append", append_and_do)


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.nightly  # the killed run above is resumed in the same way
def test_an_interruption_between_requests_is_resumed_to_the_same_end(
    command: list[str], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        at_request(4, interrupt, patched)
        line = error_line(skit_here(*command, "--out", tmp_path))
    assert line == "interrupted; finished requests are kept, --resume continues with the others"
    finished = [outputs(run_directory(tmp_path, method)) for method in METHODS]
    assert sum(map(len, finished)) == 4
    done = skit_here(*command, "--out", tmp_path, "--resume")
    assert done.returncode == 0, done.stderr
    assert_same_as(whole, tmp_path)


@pytest.mark.parametrize("moment", ["Campaign.run", "Campaign.outlook", "Campaign.__init__"])
def test_an_interrupt_before_the_first_answer_is_one_line_and_leaves_no_folder(
    moment: str, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench_kit.studies.bench.campaign import Campaign

    stop = property(lambda _: interrupt()) if moment.endswith("outlook") else lambda *_: interrupt()
    with monkeypatch.context() as patched:
        patched.setattr(Campaign, moment.partition(".")[2], stop)
        done = skit_here(*command, "--out", tmp_path)
    assert (done.returncode, done.stdout) == (130, "")
    assert error_line(done) == "interrupted before the first answer: nothing is kept"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly  # tests/runs/test_run_lock.py holds the lock that this rests on
def test_a_run_that_is_being_written_is_not_taken_up(
    command: list[str], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second: list[subprocess.CompletedProcess[str]] = []
    arguments = [*command, "--out", str(tmp_path), "--resume"]
    at_request(1, lambda: second.append(skit(*arguments)), monkeypatch)
    first = skit_here(*command, "--out", tmp_path)
    run = run_directory(tmp_path, METHODS[0])
    assert (
        error_line(second[0])
        == f"{run} is being written by another skit: wait until it has ended, then --resume"
    )
    assert first.returncode == 0, first.stderr
    assert_same_as(whole, tmp_path)
    assert "resumptions" not in read_object(run / "run.json")


@pytest.mark.parametrize(
    "number", nightly_except([signal.SIGTERM], [signal.SIGINT, signal.SIGTERM])
)
def test_an_interrupt_leaves_a_partial_report_and_one_line(
    number: signal.Signals, command: list[str], whole: Path, tmp_path: Path
) -> None:
    process = start_and_wait(command, tmp_path, requests=2)
    process.send_signal(number)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert (
        errors.splitlines()[-1]
        == "error: interrupted; finished requests are kept, --resume continues with the others"
    )
    assert "PARTIAL RUN" in output
    for method in METHODS:
        run = run_directory(tmp_path, method)
        summary = read_object(run / "summary.json")
        assert summary["partial"] is True
        assert summary["requests"]["planned"] == 16
        assert summary["requests"]["finished"] == len(outputs(run)) < 16
        assert "PARTIAL RUN" in (run / "report.md").read_text()
    assert skit_here(*command, "--out", tmp_path, "--resume").returncode == 0
    assert_same_as(whole, tmp_path)


def test_an_interruption_before_decoding_is_one_line(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench_kit.studies.bench.command.load_dataset", lambda *_: interrupt())
    assert error_line(skit_here(*command, "--out", tmp_path / "out")) == "interrupted"
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
def test_ctrl_c_before_decoding_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hub = environment(
            HF_HUB_OFFLINE="0", HF_ENDPOINT=f"http://127.0.0.1:{silent.getsockname()[1]}"
        )
        process = subprocess.Popen(
            [SKIT, "bench", "--method", "fixed-k"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=hub | {"HF_HOME": str(tmp_path), "no_proxy": "127.0.0.1"},
            preexec_fn=ignore_ctrl_c,
        )
        silent.settimeout(PATIENCE_S)
        connection, _ = silent.accept()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE_S)
        connection.close()
    assert (process.returncode, output, errors) == (130, "", "error: interrupted\n")


def cut(run: Path, name: str, lines: int) -> None:
    """Leave so many lines and half of the next, as a kill in mid-write does."""
    intact = run.joinpath(name).read_bytes().splitlines(keepends=True)[: lines + 1]
    run.joinpath(name).write_bytes(b"".join(intact)[: -len(intact[-1]) // 2])


@pytest.mark.parametrize(
    ("first", "second", "baselines"),
    [
        (3, 2, (3, 4)),
        pytest.param(1, 0, (1, 2), marks=pytest.mark.nightly),
        (0, 0, (0, 0)),
        pytest.param(15, 14, (15, 15), marks=pytest.mark.nightly),
    ],
    ids=[
        "between turns of a dialogue",
        "after the first turn",
        "before the first request",
        "near the end",
    ],
)
def test_files_cut_at_any_place_are_completed(
    first: int,
    second: int,
    baselines: tuple[int, int],
    command: list[str],
    whole: Path,
    tmp_path: Path,
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


@pytest.fixture
def cut_short(whole: Path, tmp_path: Path) -> Path:
    """A copy of the run as a kill left it."""
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    for method in METHODS:
        run = run_directory(out, method)
        cut(run, "requests.jsonl", 14)
        (run / "summary.json").unlink()
    return out


def test_lines_that_two_writers_left_twice_are_dropped_and_told(
    command: list[str], whole: Path, cut_short: Path
) -> None:
    run = run_directory(cut_short, METHODS[0])
    rows = run.joinpath("requests.jsonl").read_bytes().splitlines(keepends=True)[:14]
    run.joinpath("requests.jsonl").write_bytes(b"".join([*rows[:3], *rows[1:]]))
    done = skit_here(*command, "--out", cut_short, "--resume")
    assert done.returncode == 0, done.stderr
    assert f"{run.name}: dropped 2 duplicate lines" in done.stdout.splitlines()
    assert_same_as(whole, cut_short)


def change_version(out: Path) -> None:
    """Every run below a folder, as if begun with an older torch."""
    for method in METHODS:
        file = run_directory(out, method) / "run.json"
        described = read_object(file)
        described["versions"]["torch"] = "1.0"
        file.write_text(json.dumps(described))


def test_other_conditions_are_refused_unless_forced(
    command: list[str], whole: Path, cut_short: Path
) -> None:
    change_version(cut_short)
    before = [
        run_directory(cut_short, method).joinpath("requests.jsonl").read_bytes()
        for method in METHODS
    ]
    line = error_line(skit_here(*command, "--out", cut_short, "--resume"))
    run = run_directory(cut_short, METHODS[0])
    assert line.startswith(
        f"{run.name} was begun under other conditions (versions.torch 1.0 then, "
    )
    assert line.endswith(" now): start it anew without --resume, or mix the two with --force")
    assert before == [
        run_directory(cut_short, method).joinpath("requests.jsonl").read_bytes()
        for method in METHODS
    ]
    done = skit_here(*command, "--out", cut_short, "--resume", "--force")
    assert done.returncode == 0, done.stderr
    assert (
        "RESUMED UNDER OTHER CONDITIONS: versions.torch 1.0 then, "
        in (run / "report.md").read_text()
    )
    assert_same_as(whole, cut_short)


def test_force_without_resume_means_nothing(command: list[str], tmp_path: Path) -> None:
    line = error_line(skit_here(*command, "--out", tmp_path, "--force"))
    assert line == "--force goes with --resume: it mixes two conditions in one run"


def test_a_full_disk_while_reporting_keeps_everything(
    command: list[str], whole: Path, cut_short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench_kit.reports import page_files

    def full(_path: Path, _content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(page_files, "replace_file", full)
        line = error_line(skit_here(*command, "--out", cut_short, "--resume"))
    advice = (
        "finished requests are kept; make room or fix its permissions, then go on with --resume"
    )
    assert line.endswith(f"No space left on device; {advice}")
    assert skit_here(*command, "--out", cut_short, "--resume").returncode == 0
    assert_same_as(whole, cut_short)
    assert len(read_object(run_directory(cut_short, METHODS[0]) / "run.json")["resumptions"]) == 1


MODELLED = ("threshold:schedule=heuristic,max_draft=4", "oracle", "specedge:depth=auto")
"""A policy that learns over the whole run, one that reads the baseline, and one that reads the clock."""


@pytest.fixture(scope="module")
def modelled(command: list[str]) -> list[str]:
    methods = [part for name in MODELLED for part in ("--method", name)]
    return [
        "bench",
        *methods,
        *command[5:],
        "--deployment",
        "wan",
        "--batch-size",
        "3",
        "--token-view",
    ]


@pytest.fixture(scope="module")
def untouched(modelled: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("modelled")
    done = skit_here(*modelled, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def modelled_runs(out: Path) -> list[Path]:
    return sorted(file.parent for file in out.glob("*Z-*/requests.jsonl"))


def test_under_a_deployment_a_resumed_run_is_the_uninterrupted_one(
    modelled: list[str], untouched: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(untouched, out)
    for number, run in enumerate(modelled_runs(out)):
        cut(run, "requests.jsonl", 5 + number)
        cut(run, "baseline.jsonl", 7)
        cut(run, "rounds_detail.jsonl", 3)
        (run / "summary.json").unlink()
    done = skit_here(*modelled, "--out", out, "--resume")
    assert done.returncode == 0, done.stderr
    for run, uninterrupted in zip(modelled_runs(out), modelled_runs(untouched), strict=True):
        for name in ("requests.jsonl", "baseline.jsonl", "rounds_detail.jsonl", "summary.json"):
            assert (run / name).read_bytes() == (uninterrupted / name).read_bytes()
        assert "RESUMED 1 TIME, after " in (run / "report.md").read_text()
        assert read_object(run / "summary.json")["overall"]["throughput"] > 0


def test_a_stored_request_that_comes_out_otherwise_is_named(
    modelled: list[str], untouched: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(untouched, out)
    run = next(folder for folder in modelled_runs(out) if "threshold" in folder.name)
    rows = read_rows(run / "requests.jsonl")[:6]
    rows[4]["rounds"][0]["verify_s"] += 1e-9
    write_rows(run / "requests.jsonl", *rows)
    (run / "summary.json").unlink()
    line = error_line(skit_here(*modelled, "--out", out, "--resume"))
    assert line == (
        f"{MODELLED[0]}: request '{rows[4]['request_id']}' was decoded again and differs from the stored "
        "record: start the run anew without --resume"
    )
    assert read_rows(run / "requests.jsonl") == rows


def test_the_nearest_unfinished_run_is_named_with_what_differs(
    modelled: list[str], untouched: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(untouched, out)
    for run in modelled_runs(out):
        (run / "summary.json").unlink()
    line = error_line(skit_here(*modelled, "--seed", 7, "--out", out, "--resume"))
    none, nearest = line.removeprefix(f"{out} ").split("; ")
    assert none == "holds no unfinished run with these settings"
    advice = "give its settings, or start a run without --resume"
    assert re.fullmatch(rf"nearest is \S+, with config\.seed 0, not 7: {advice}", nearest), nearest


def test_a_finished_run_is_named_and_not_resumed(command: list[str], tmp_path: Path) -> None:
    assert skit(*command, "--limit", 1, "--out", tmp_path).returncode == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    line = error_line(skit(*command, "--limit", 1, "--out", tmp_path, "--resume"))
    # Both methods were finished by the same command, the second one last.
    folder = run_directory(tmp_path, METHODS[1])
    finished = f"this run is finished: {folder}; start another one without --resume"
    assert line == f"{tmp_path} holds no unfinished run with these settings; {finished}"
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


NOT_LOADED = ("--target", "no/such-model")


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "--method", "fixed-k", *NOT_LOADED),
        ("ab", "a=vllm://127.0.0.1:9", "b=vllm://127.0.0.1:9"),
        (
            "sweep",
            "--method",
            "fixed-k",
            "--set",
            "link.rtt_s=0.01,0.02",
            "--deployment",
            "wan",
            *NOT_LOADED,
        ),
        ("simulate", "--system", "sled", "--acceptance", "record", *NOT_LOADED),
        ("profile-verifier", *NOT_LOADED),
    ],
    ids=lambda arguments: arguments[0],
)
def test_nothing_to_resume_is_said_before_anything_is_loaded_or_reached(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    line = error_line(skit_here(*arguments, "--out", tmp_path, "--resume"))
    assert (
        line
        == f"{tmp_path} holds no unfinished run with these settings: start one without --resume"
    )


def test_other_options_than_those_of_the_unfinished_run_are_told_before_anything_is_loaded(
    modelled: list[str], untouched: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(untouched, out)
    for run in modelled_runs(out):
        (run / "summary.json").unlink()
    line = error_line(skit_here(*modelled, *NOT_LOADED, "--limit", 3, "--out", out, "--resume"))
    assert "with config.limit unset, not 3: give its settings" in line


@pytest.mark.parametrize("options", [[], ["--deployment", "wan"]], ids=["measured", "modelled"])
def test_minutes_end_a_run_between_requests_and_resume_continues_it(
    options: list[str], command: list[str], tmp_path: Path
) -> None:
    """Every call has so little time that it ends after one turn of all methods, and each call gets on."""
    ended = skit_here(*command, *options, "--out", tmp_path, "--minutes", 1e-6)
    assert ended.returncode == 0, ended.stderr
    terminal = " ".join(ended.stdout.split())
    assert (
        "PARTIAL RUN: 1 of 16 requests finished. The same command with --resume decodes the others."
        in terminal
    )
    assert terminal.count("PARTIAL RUN") == 1  # of both methods together
    runs = [run_directory(tmp_path, method) for method in METHODS]
    assert [len(outputs(run)) for run in runs] == [1, 1]
    assert [len(outputs(run, "baseline.jsonl")) for run in runs] == [1, 1]
    further = skit_here(*command, *options, "--out", tmp_path, "--minutes", 1e-6, "--resume")
    assert further.returncode == 0, further.stderr
    assert all(1 < len(outputs(run)) < 16 for run in runs)
    assert all(read_object(run / "summary.json")["partial"] for run in runs)
    resumed = skit_here(*command, *options, "--out", tmp_path, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    for run in runs:
        summary = read_object(run / "summary.json")
        assert (summary["partial"], summary["requests"]["finished"]) == (False, 16)
        assert summary["lossless"]["errors"] == 0


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf"])
def test_minutes_are_a_number_above_0(minutes: str, command: list[str], tmp_path: Path) -> None:
    line = error_line(skit_here(*command, "--out", tmp_path, "--minutes", minutes))
    assert line.startswith("--minutes takes a number above 0, such as 5 or 0.5, not ")
    assert list(tmp_path.iterdir()) == []
