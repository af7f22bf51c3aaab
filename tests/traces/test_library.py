"""The traces of a known pair that come with the kit."""

import json
from pathlib import Path

import pytest
from command_line import error_line, skit_here
from nightly import nightly_except

from specbench_kit.core.errors import SkitError
from specbench_kit.models.named import NAMED_PAIRS
from specbench_kit.traces.library import BUNDLED, bundled_traces, trace_file
from specbench_kit.traces.trace import TraceFile

REPORTS, TUNING, TREES = "qwen2.5-coder", "qwen2.5-coder-tune", "qwen2.5-coder-trees"
LONG = "qwen2.5-coder-long"
TASKS = {
    "chat of two turns",
    "code",
    "editing",
    "mathematics",
    "questions about passages",
    "structured output",
    "summary",
    "translation",
}
KINDS = {"mathematics", "probability", "logic", "algorithms", "finding faults", "planning"}
"""What the questions of the long trace are about."""
LARGEST_BYTES = 25_000_000
"""What all traces together may add to an installation."""


def test_every_bundled_file_is_in_the_catalogue() -> None:
    assert {file.stem for file in BUNDLED.glob("*.parquet")} == set(bundled_traces())
    assert set(bundled_traces()) == {REPORTS, TUNING, TREES, LONG}
    assert sum(file.stat().st_size for file in BUNDLED.iterdir()) <= LARGEST_BYTES


@pytest.mark.parametrize(
    ("name", "tasks"), [(REPORTS, TASKS), (TUNING, TASKS), (TREES, TASKS), (LONG, KINDS)]
)
def test_a_trace_holds_all_tasks_of_the_pair_that_it_is_named_after(
    name: str, tasks: set[str]
) -> None:
    trace, pair = TraceFile(Path(name)), NAMED_PAIRS["qwen2.5-coder"]
    assert trace.header.licence == bundled_traces()[name].licence
    assert pair.draft is not None
    for role, model in (("target", pair.target), ("draft", pair.draft)):
        assert trace.recording.models[role].gguf_sha256 == model.sha256
    requests = list(trace)
    assert {request.category for request in requests} == tasks
    assert len({request.request_id for request in requests}) == len(requests)
    assert not trace.header.lacks


@pytest.mark.parametrize("name", [REPORTS, LONG])
def test_nothing_is_reported_on_that_something_was_tuned_on(name: str) -> None:
    tuning, reports = (TraceFile(Path(trace)).recording.prompts for trace in (TUNING, name))
    assert tuning
    assert reports
    assert not set(tuning) & set(reports)


def test_the_long_trace_is_long_and_small() -> None:
    answers = [len(request.output_ids) for request in TraceFile(Path(LONG))]
    assert sum(length >= 1000 for length in answers) >= 24
    assert (BUNDLED / f"{LONG}.parquet").stat().st_size <= 6_000_000


def test_a_file_comes_before_a_bundled_trace_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert trace_file(Path(REPORTS)) == BUNDLED / f"{REPORTS}.parquet"
    Path(REPORTS).touch()
    assert trace_file(Path(REPORTS)) == Path(REPORTS)
    assert trace_file(Path("folder/trace")) == Path("folder/trace")


def test_an_unknown_name_is_one_line() -> None:
    with pytest.raises(
        SkitError, match=r"no trace 'qwen2.5-codr' \(did you mean 'qwen2.5-coder'\?\)"
    ):
        trace_file(Path("qwen2.5-codr"))
    line = error_line(skit_here("bench", "--replay", "nothing", "--method", "fixed-k"))
    assert line.startswith(
        "no trace 'nothing': name a file of skit record, or a bundled trace (qwen2.5-coder"
    )


@pytest.mark.parametrize("limit", nightly_except([34], [34, 135]))
def test_policies_differ_on_the_known_pair(limit: int, tmp_path: Path) -> None:
    """The claim of the first minute: behind a link, stop rules of one draft model differ, and the bound lies above."""
    policies = [
        part
        for method in ("fixed-k:k=2", "threshold", "svip", "oracle")
        for part in ("--method", method)
    ]
    known_pair = ("bench", "--config", "known-pair", *policies, "--limit", limit)
    done = skit_here(*known_pair, "--out", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)["summary"]
    speedups = {method: entry["overall"]["speedup"] for method, entry in summary.items()}
    requests = {entry["requests"]["finished"] for entry in summary.values()}
    assert requests == {limit}
    bound = max(speedups, key=lambda method: speedups[method])
    assert bound.startswith("oracle")
    assert speedups[bound] > 1.5
    assert min(speedups.values()) < 0.9 * speedups[bound]


def test_trees_replay_beside_chains_and_what_was_not_recorded_is_named(tmp_path: Path) -> None:
    """Trees of the right shape accept more of each draft than any chain, and are faster where verification is cheap."""
    policies = [
        part for method in ("server-tree", "threshold", "oracle") for part in ("--method", method)
    ]
    done = skit_here(
        "bench",
        "--replay",
        TREES,
        *policies,
        "--deployment",
        "specedge",
        "--out",
        tmp_path,
        "--json",
    )
    assert done.returncode == 0, done.stderr
    totals = {
        label.partition(":")[0]: entry["overall"]
        for label, entry in json.loads(done.stdout)["summary"].items()
    }
    assert totals["server-tree"]["acceptance_length"] > totals["oracle"]["acceptance_length"]
    assert (
        totals["server-tree"]["speedup"]
        > totals["oracle"]["speedup"]
        > totals["threshold"]["speedup"]
    )
    line = error_line(
        skit_here("bench", "--replay", TREES, "--method", "ssd", "--deployment", "specedge")
    )
    assert line.startswith("its tree asks for more of the draft model than the trace holds")


def test_a_named_method_that_the_trace_cannot_serve_costs_no_other_its_report(
    tmp_path: Path,
) -> None:
    policies = ("--method", "specedge", "--method", "fixed-k", "--limit", 8, "--batch-size", 8)
    done = skit_here(
        "bench", "--replay", TREES, *policies, "--deployment", "wan", "--out", tmp_path, "--json"
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: specedge: left out, as said above"
    document = json.loads(done.stdout)
    assert list(document["summary"]) == ["fixed-k"]
    assert "asks for more of the draft model" in document["left_out"]["specedge"]


SHORT = ["--duration", "10", "--warm-up", "2", "--seeds", "1", "--jobs", "1"]


@pytest.mark.parametrize(
    "arguments",
    [
        [
            "capacity",
            "--deployment",
            "wan",
            "--slo",
            "class-4",
            "--method",
            "fixed-k:k=4",
            "--acceptance",
            REPORTS,
            *SHORT,
        ],
        [
            "sweep",
            "--replay",
            REPORTS,
            "--deployment",
            "wan",
            "--method",
            "fixed-k",
            "--set",
            "link.rtt_s=0.02,0.04",
        ],
    ],
    ids=lambda arguments: str(arguments[0]),
)
def test_other_commands_take_the_name_too(arguments: list[str], tmp_path: Path) -> None:
    done = skit_here(*arguments, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
