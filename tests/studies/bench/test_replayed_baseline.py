"""What the methods of a replay share: the baseline, which is decoded once, and the prompts that are replayed."""

from pathlib import Path

import pytest
from environments import DEPLOYMENT
from trace_builders import made_request, made_requests, write_trace

from specbench_kit.core.typed_json import convert
from specbench_kit.datasets.description import DatasetDescription
from specbench_kit.metrics.run_data import load_runs
from specbench_kit.reports.sections.wording import dataset_sentence
from specbench_kit.studies.bench.replay import bench_replay
from specbench_kit.studies.bench.settings import BenchSettings


def test_every_method_of_a_replay_keeps_the_baseline_and_is_compared_with_it(
    tmp_path: Path,
) -> None:
    trace = write_trace(tmp_path / "t.parquet", made_requests(6))
    methods = ("fixed-k:k=2", "fixed-k:k=3", "suffix")
    settings = BenchSettings(methods, out=tmp_path / "out", deployment=DEPLOYMENT)
    conclusions, *_ = bench_replay(settings, trace.path, lambda _: None)
    first, *later_runs = (conclusion.directory for conclusion in conclusions)
    assert len(first.baseline_records()) == 6
    for run in later_runs:
        assert run.baseline_records() == first.baseline_records()
    for conclusion in conclusions:
        plain_s, own_s = (
            sum(record.e2e_s or 0.0 for record in records)
            for records in (first.baseline_records(), conclusion.directory.records())
        )
        assert conclusion.summary.overall.speedup == pytest.approx(plain_s / own_s)
    assert [len(run.baseline) for run in load_runs([settings.out])[0]] == [6, 6, 6]


def test_a_limited_replay_says_how_many_prompts_its_requests_are_of(tmp_path: Path) -> None:
    first = made_request("talk/1", 20, prompt=(1, 2, 3), seed=1)
    turns = [first, made_request("talk/2", 20, prompt=(1, 2, 3, *first.output_ids, 4), seed=2)]
    dataset = {"name": "made", "total": 5, "count": 5, "chat": 5, "source": "file"}
    trace = write_trace(tmp_path / "t.parquet", [*turns, *made_requests(4)], dataset=dataset)
    described = {}
    for limit in (None, 3):
        settings = BenchSettings(
            ("fixed-k:k=2",), out=tmp_path / str(limit), deployment=DEPLOYMENT, limit=limit
        )
        ((conclusion,), *_) = bench_replay(settings, trace.path, lambda _: None)
        described[limit] = conclusion.directory.run["dataset"]
    assert described[None] == dataset
    assert (
        dataset_sentence(convert(DatasetDescription, described[3]))
        == "made, 2 of 5 prompts, from file, as chat messages"
    )
