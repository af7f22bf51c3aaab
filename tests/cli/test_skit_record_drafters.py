"""`skit record --drafter`: what a head, a look-up or both draft, on the bundled target, which has a head."""

import json
from pathlib import Path

import pytest
from command_line import Rows, TinyPair, error_line, read_object, read_rows, skit_here, write_rows
from nightly import nightly_except

from specbench_kit.traces.trace import TraceFile

PROMPTS: Rows = [
    {"id": "d1", "category": "chat", "turns": ["Who was first?", "And why?"]},
    {
        "id": "q1",
        "category": "maths",
        "prompt": "How many? One, two, three, four, one, two, three,",
    },
    {
        "id": "q2",
        "category": "maths",
        "prompt": "How many? One, two, three, four, one, two, three,",
    },
]
ROUND = ("drafted", "submitted", "accepted", "committed", "draft_s", "link_s", "verify_s")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("data") / "prompts.jsonl", *PROMPTS)


def bench(out: Path, *options: object) -> Path:
    done = skit_here("bench", "--deployment", "wan", *options, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout.splitlines()[-1])["run_dirs"]
    return Path(run)


def rounds(run: Path) -> dict[str, list[list[float]]]:
    return {
        row["request_id"]: [[step[name] for name in ROUND] for step in row["rounds"]]
        for row in read_rows(run / "requests.jsonl")
    }


@pytest.mark.parametrize("drafter", nightly_except(["first-of"], ["head", "suffix", "first-of"]))
def test_a_replay_has_the_rounds_and_seconds_of_the_live_run(
    drafter: str, prompts: Path, tmp_path: Path
) -> None:
    """The trace is recorded in a batch, whose requests end in another order than one after the other."""
    trace, prompt_options = (
        tmp_path / "trace.parquet",
        ["--dataset", prompts, "--max-new-tokens", 24],
    )
    done = skit_here(
        "record", "--drafter", drafter, *prompt_options, "--max-draft", 4, "--out", trace
    )
    assert done.returncode == 0, done.stderr
    file = TraceFile(trace)
    assert "draft" not in file.header.run["models"]
    live = bench(tmp_path / "live", *prompt_options, "--method", f"fixed-k:k=4,drafter={drafter}")
    # A replay without a drafter of its own drafts as the trace does.
    replayed = bench(tmp_path / "replayed", "--replay", trace, "--method", "fixed-k:k=4")
    assert rounds(replayed) == rounds(live)
    in_order = [row["request_id"] for row in read_rows(live / "requests.jsonl")]
    assert drafter == "head" or in_order == [trace.request_id for trace in file]
    summary = read_object(replayed / "summary.json")
    assert summary["lossless"]["identical"] == 4
    assert summary["overall"]["accepted"] > 0
    assert ("By drafter" in (live / "report.md").read_text()) == (drafter == "first-of")


def test_options_that_are_tuned_on_a_trace_name_its_drafter(prompts: Path, tmp_path: Path) -> None:
    trace, tuned = tmp_path / "trace.parquet", tmp_path / "tuned.json"
    done = skit_here(
        *(
            "record",
            "--drafter",
            "suffix.shared=false",
            "--dataset",
            prompts,
            "--max-new-tokens",
            24,
            "--out",
            trace,
        )
    )
    assert done.returncode == 0, done.stderr
    done = skit_here(
        *(
            "tune",
            "--replay",
            trace,
            "--method",
            "fixed-k",
            "--deployment",
            "wan",
            "--budget",
            3,
            "--out",
            tuned,
        )
    )
    assert done.returncode == 0, done.stderr
    assert read_object(tuned)["methods"]["fixed-k"]["spec"].endswith("drafter=suffix.shared=false")
    line = error_line(skit_here("train-predictor", "--trace", trace, "--out", tmp_path / "out"))
    assert (
        "drafter 'suffix' has no more than probabilities: record a trace with --drafter model or head"
        in line
    )


@pytest.mark.parametrize(
    ("drafter", "problem"),
    [
        ("cascade", "a trace cannot hold the drafts of 'cascade'"),
        ("nothing", "unknown drafter 'nothing'"),
        ("head.path=nowhere", "there is no head in 'nowhere'"),
        ("first-of.match=0", "match must be at least 1"),
    ],
)
def test_drafters_that_cannot_be_recorded_are_one_line(
    drafter: str, problem: str, prompts: Path, tiny: TinyPair, tmp_path: Path
) -> None:
    options = ("--dataset", prompts, "--target", tiny.target, "--out", tmp_path / "t.parquet")
    done = skit_here("record", "--drafter", drafter, *options)
    assert problem in error_line(done)
    assert list(tmp_path.iterdir()) == []
