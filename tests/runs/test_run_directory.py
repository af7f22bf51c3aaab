"""A run's folder keeps what was finished through kills, full disks and foreign files."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.runs.directory import SCHEMA_VERSION, RunDirectory, config_key, find_resumable

RUN: dict[str, Any] = {
    "method": "fixed-k:k=4",
    "dataset": {"name": "gsm8k", "digest": "d" * 64, "total": 1319, "count": 8},
    "models": {"target": {"name": "t", "hash": "1" * 64}, "draft": {"name": "d", "hash": "2" * 64}},
    "config": {"max_new_tokens": 32, "temperature": 0.0, "seed": 0},
    "time_kind": "measured",
    "hardware": {"cpu": "one"},
}
NOBODY = 65534


def record(number: int, text: str = "text") -> RequestRecord:
    values: dict[str, Any] = {
        f.name: 0.25 if f.name.endswith("_s") else 4 for f in fields(RoundRecord)
    }
    step = RoundRecord(
        **values
        | {
            "aligned": True,
            "commits_s": [0.25],
            "parents": [],
            "path": [],
            "padded": [],
            "drafter": "",
        }
    )
    return RequestRecord(
        f"q{number}", "math", [1, 2], [3, 4, 5, 6], text, ttft_s=0.31, e2e_s=0.31, rounds=[step]
    )


def ids(run: RunDirectory) -> list[str]:
    return [r.request_id for r in run.records()]


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write anywhere, so the test steps down where it runs as root."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(was)


def test_create_names_the_folder_and_writes_run_json(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "deep" / "results", RUN)
    assert re.fullmatch(rf"\d{{8}}T\d{{6}}Z-fixed-k-k-4-gsm8k-{config_key(RUN)[:8]}", run.path.name)
    assert json.loads((run.path / "run.json").read_text()) == {
        "schema_version": SCHEMA_VERSION,
        **RUN,
    }
    assert sorted(p.name for p in run.path.iterdir()) == ["requests.jsonl", "run.json"]
    assert run.records() == run.baseline_records() == []


def test_folder_name_leaves_out_folders_of_paths_and_stays_short(tmp_path: Path) -> None:
    dataset = RUN["dataset"] | {"name": "local:/home/jo/Sätze 1.jsonl"}
    run = RunDirectory.create(
        tmp_path,
        RUN | {"method": "wisp:predictor=/home/jo/p.json,x=" + "9" * 300} | {"dataset": dataset},
    )
    assert re.match(
        r"\d{8}T\d{6}Z-wisp-predictor-p.json-x-9+-local-s-tze-1.jsonl-[0-9a-f]{8}$", run.path.name
    )
    assert len(run.path.name) < 160


def test_runs_of_one_second_do_not_collide(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: RunDirectory.create(tmp_path, RUN), range(16)))
    assert len({run.path for run in runs}) == 16
    assert all(RunDirectory.open(run.path).run["method"] == "fixed-k:k=4" for run in runs)


def test_records_come_back_as_they_went_in(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, RUN)
    written = [record(0, "a\u2028b\nc\x85d"), record(1, "\ud800 half a pair"), record(2, "")]
    for entry in written:
        run.append(entry)
    run.append_baseline(record(0))
    reopened = RunDirectory.open(run.path)
    assert reopened.records() == written
    assert reopened.baseline_records() == [record(0)]
    assert reopened.run == run.run


def test_reading_drops_a_cut_last_line_and_appending_removes_it(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, RUN)
    run.append(record(0))
    run.append(record(1, "é" * 20_000))
    file = run.path / "requests.jsonl"
    content = file.read_bytes()
    cut = content[: content.index("é".encode()) + 1]
    file.write_bytes(cut)
    assert ids(RunDirectory.open(run.path)) == ["q0"]
    assert file.read_bytes() == cut
    RunDirectory.open(run.path).append(record(2))
    assert ids(run) == ["q0", "q2"]
    assert file.read_bytes().count(b"\n") == 2


def test_a_cut_first_line_leaves_no_record(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, RUN)
    (run.path / "requests.jsonl").write_text('{"request_id": "q')
    assert ids(run) == []
    run.append(record(1))
    assert ids(run) == ["q1"]


def test_a_killed_process_leaves_every_finished_request(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from specbench_kit.runs.directory import RunDirectory\n"
        "from specbench_kit.decoding.records import RequestRecord\n"
        "run = RunDirectory.open(Path(sys.argv[1]))\n"
        "for n in range(10**9):\n"
        "    run.append(RequestRecord(f'q{n}', 'math', list(range(20000))))\n"
        "    print(n, flush=True)\n"
    )
    run = RunDirectory.create(tmp_path, RUN)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(run.path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        reported = [int(process.stdout.readline()) for _ in range(20)]
        process.send_signal(signal.SIGKILL)
    finished = ids(run)
    assert len(finished) > reported[-1]
    run.append(record(-1))
    assert ids(run) == [*finished, "q-1"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"request_id": "q1", "cat', "Unterminated string"),
        ("", "Expecting value"),
        ("[1, 2]", "not a request record"),
        ('{"request_id": "q1", "category": "c", "prompt_ids": []}', "rounds is missing"),
        ('{"rounds": []}', "request_id"),
        (
            '{"request_id": "q1", "category": "c", "prompt_ids": [], "rounds": [{"drafted": 1}]}',
            "submitted is missing",
        ),
        ("\udcff", "codec can't decode"),
    ],
)
def test_a_malformed_line_is_an_error_with_its_place(
    tmp_path: Path, line: str, reason: str
) -> None:
    run = RunDirectory.create(tmp_path, RUN)
    content = f"{record(0).to_json()}\n{line}\n{record(2).to_json()}\n"
    (run.path / "requests.jsonl").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(SkitError, match=re.escape(f"{run.path / 'requests.jsonl'}:2: ")) as raised:
        run.records()
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_request_recorded_twice_and_not_alike_is_an_error_with_its_place(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, RUN)
    for entry in (record(0), record(1), record(0, "other")):
        run.append(entry)
    with pytest.raises(
        SkitError,
        match=r"requests\.jsonl:3: request 'q0' is recorded twice with different content: remove",
    ):
        run.records()
    assert run.drop_repeated() == 0


def test_lines_that_repeat_an_earlier_one_are_read_once_and_dropped(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, RUN)
    for number in (0, 1, 0, 2, 1):
        run.append(record(number))
        run.append_baseline(record(number))
    assert ids(run) == ["q0", "q1", "q2"]
    assert run.drop_repeated() == 4
    assert (run.path / "requests.jsonl").read_text() == "".join(
        record(n).to_json() + "\n" for n in (0, 1, 2)
    )
    assert run.baseline_records() == run.records()
    assert run.drop_repeated() == 0


def test_fields_of_a_newer_kit_are_passed_over(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, RUN | {"new": 1})
    document = json.loads(record(0).to_json())
    document["new"] = document["rounds"][0]["new"] = 1
    (run.path / "requests.jsonl").write_text(json.dumps(document) + "\n")
    assert RunDirectory.open(run.path).records() == [record(0)]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        ("{", "not valid JSON"),
        ("[]", "no JSON object"),
        ('{"method": "fixed-k"}', "names no schema_version"),
        ('{"schema_version": 1, "method": 3}', "method must be text or null, not 3"),
        (
            '{"schema_version": 1, "models": {"draft": "d"}}',
            r"models\[\.\.\.\] must be an object or null, not text",
        ),
        (
            '{"schema_version": 1, "dataset": {"count": "8"}}',
            'dataset.count must be a whole number or null, not "8"',
        ),
        ('{"schema_version": 1, "argv": ["skit", 1]}', r"argv\[1\] must be text, not 1"),
        (f'{{"schema_version": {SCHEMA_VERSION + 1}}}', "newer specbench-kit"),
    ],
)
def test_open_refuses_what_is_no_known_run(
    tmp_path: Path, content: str | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(SkitError, match=reason) as raised:
        RunDirectory.open(tmp_path)
    assert str(tmp_path) in str(raised.value)


def test_a_run_is_partial_until_its_summary_says_otherwise(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, RUN)
    assert run.is_partial
    run.write_summary({"partial": True})
    assert run.is_partial
    run.write_summary({"partial": False})
    assert not run.is_partial
    run.write_report("plots/note.md", "text")
    assert (run.path / "plots" / "note.md").read_text() == "text"
    assert not [p for p in run.path.rglob(".*") if p.is_file()]


def test_numbers_that_are_not_finite_never_reach_a_file(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, RUN)
    with pytest.raises(ValueError, match="not JSON compliant"):
        run.write_summary({"tpot": float("nan")})
    with pytest.raises(ValueError, match="not JSON compliant"):
        run.append(RequestRecord("q0", "math", [], ttft_s=float("inf")))
    assert ids(run) == []
    assert not (run.path / "summary.json").exists()


def test_the_key_follows_what_defines_a_run_and_nothing_else() -> None:
    key = config_key(RUN)
    assert (
        config_key(json.loads(json.dumps(RUN)) | {"hardware": {"cpu": "two"}, "argv": ["skit"]})
        == key
    )
    for changed in ("method", "dataset", "models", "config"):
        assert config_key(RUN | {changed: {"name": "other"}}) != key


def test_the_key_follows_resolved_options_and_not_how_they_were_given() -> None:
    named, default = (
        RUN | {"method": spec, "options": {"k": 4}} for spec in ("fixed-k:k=4", "fixed-k")
    )
    assert config_key(named) == config_key(default)
    assert config_key(default | {"options": {"k": 5}}) != config_key(default)
    assert config_key(default | {"method": "threshold"}) != config_key(default)


def test_find_resumable_takes_the_newest_partial_run_of_the_same_settings(tmp_path: Path) -> None:
    older, newer, finished = (RunDirectory.create(tmp_path, RUN) for _ in range(3))
    RunDirectory.create(tmp_path, RUN | {"config": {"seed": 1}})
    finished.write_summary({"partial": False})
    newer.write_summary({"partial": True})
    assert find_resumable(tmp_path, [RUN]) == [newer]
    newer.write_summary({"partial": False})
    assert find_resumable(tmp_path, [RUN]) == [older]


def test_find_resumable_takes_a_finished_run_along_with_a_partial_one(tmp_path: Path) -> None:
    threshold_run = RUN | {"method": "threshold"}
    finished, partial = (
        RunDirectory.create(tmp_path, RUN),
        RunDirectory.create(tmp_path, threshold_run),
    )
    finished.write_summary({"partial": False})
    described = [RUN, threshold_run]
    assert find_resumable(tmp_path, described) == [finished, partial]
    partial.write_summary({"partial": False})
    with pytest.raises(
        SkitError,
        match=f"no unfinished run .*; this run is finished: {finished.path}; start another",
    ):
        find_resumable(tmp_path, described)


@pytest.mark.parametrize("folder", [".", "missing"])
def test_find_resumable_without_such_a_run_is_an_error(tmp_path: Path, folder: str) -> None:
    RunDirectory.create(tmp_path, RUN | {"config": {"seed": 1}})
    with pytest.raises(SkitError, match="no unfinished run with these settings"):
        find_resumable(tmp_path / folder, [RUN])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_names_the_run_and_keeps_finished_requests(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, RUN)
    run.append(record(0))
    (run.path / "baseline.jsonl").symlink_to("/dev/full")
    with pytest.raises(
        SkitError, match="No space left on device; finished requests are kept"
    ) as raised:
        run.append_baseline(record(0))
    assert str(run.path) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert ids(run) == ["q0"]


def test_a_write_that_stops_halfway_costs_that_request_only(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, RUN)
    run.append(record(0))
    file = run.path / "requests.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 100, hard))
    try:
        with pytest.raises(SkitError, match=r"File too large; finished requests are kept"):
            run.append(record(1))
        with pytest.raises(SkitError, match=r"cannot write summary\.json"):
            run.write_summary({"long": "x" * 10_000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not file.read_bytes().endswith(b"\n")
    run.append(record(2))
    assert ids(run) == ["q0", "q2"]
    assert sorted(p.name for p in run.path.iterdir()) == ["requests.jsonl", "run.json"]


def test_a_folder_that_may_not_be_written_is_one_line(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, RUN)
    run.path.chmod(0o500)
    tmp_path.chmod(0o500)
    with unprivileged():
        with pytest.raises(SkitError, match=r"cannot make a run directory in .*Permission denied"):
            RunDirectory.create(tmp_path / "new", RUN)
        with pytest.raises(SkitError, match=r"cannot write report\.md in .*Permission denied"):
            run.write_report("report.md", "text")
    tmp_path.chmod(0o700)
    run.path.chmod(0o700)
    assert sorted(p.name for p in run.path.iterdir()) == ["requests.jsonl", "run.json"]


def test_out_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(SkitError, match=r"cannot make a run directory in .*out: File exists"):
        RunDirectory.create(tmp_path / "out", RUN)
