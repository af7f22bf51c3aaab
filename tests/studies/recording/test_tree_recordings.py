"""`skit record --trees`: what is refused before any work, and a trace on which its methods replay."""

from pathlib import Path

import pytest
from command_line import TinyPair, error_line, skit_here, write_rows

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.loading import load
from specbench_kit.studies.recording.trace import TreeMethods
from specbench_kit.traces.trace import TraceFile

SPECS = (
    "opt-tree:nodes=8,max_depth=4",
    "specinfer:branching=2-2",
    "specedge:depth=2,budget=6,branch=4",
)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("fixed-k", "fixed-k drafts no trees"),
        ("specpipe", "specpipe drafts no trees"),
        ("adaptive-quantised", "drafts no trees of the draft model's tokens"),
        ("opt-tree:drafter=head", "drafter 'head' cannot be recorded"),
        ("no-such", "no-such"),
    ],
)
def test_methods_without_recordable_trees_are_refused(spec: str, says: str) -> None:
    with pytest.raises(SkitError, match=says):
        TreeMethods((spec,), [load("wan")])


def test_trees_need_deployments_and_text(tmp_path: Path) -> None:
    with pytest.raises(SkitError, match="--trees-for names deployments, not local"):
        TreeMethods(("opt-tree",), [load("local")])
    refused = skit_here(
        "record", "--trees", "opt-tree", "--no-text", "--out", tmp_path / "trees.parquet"
    )
    assert "leave out --trees or --no-text" in error_line(refused)


def test_recorded_trees_replay(tiny: TinyPair, tmp_path: Path) -> None:
    rows = [
        {"id": "q1", "prompt": "How many?"},
        {"id": "q2", "prompt": "Once upon a time", "chat": False},
    ]
    prompts, path = write_rows(tmp_path / "prompts.jsonl", *rows), tmp_path / "trees.parquet"
    trees = [argument for spec in SPECS for argument in ("--trees", spec)]
    pair = [
        "--target",
        tiny.target,
        "--draft",
        tiny.draft,
        "--dataset",
        prompts,
        "--max-new-tokens",
        8,
    ]
    recorded = skit_here("record", *pair, "--max-draft", 4, *trees, "--out", path)
    assert recorded.returncode == 0, recorded.stderr
    file = TraceFile(path)
    assert file.header.trees == SPECS
    assert all(
        trace.candidates.trunk == len(trace.output_ids) + len(trace.continuation) for trace in file
    )
    methods = [argument for spec in (*SPECS, "fixed-k:k=3") for argument in ("--method", spec)]
    replayed = skit_here(
        "bench", "--replay", path, "--deployment", "wan", *methods, "--out", tmp_path / "runs"
    )
    assert replayed.returncode == 0, replayed.stderr
    beyond = skit_here(
        "bench", "--replay", path, "--method", "specinfer:branching=9-9", "--out", tmp_path / "runs"
    )
    assert "asks for more of the draft model than the trace holds" in error_line(beyond)
