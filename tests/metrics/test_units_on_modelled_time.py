"""Intervals on modelled time: prompts vary by themselves, however many are decoded at once."""

from math import log
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest
from report_builders import run_document
from trace_builders import MODELS, made_request, write_trace

from specbench_kit.deployments.loading import load
from specbench_kit.metrics.vocabulary import BASELINE, MetricValues
from specbench_kit.studies.bench.replay import bench_replay
from specbench_kit.studies.bench.settings import BenchSettings

SERVER = load("server:gpu=h100,target=llama3.1-8b,drafter=eagle3,engine=vllm")


def measured(folder: Path, prompts: int, at_once: int, seed: int) -> MetricValues:
    """Return the metrics of a method on prompts of its own, so many of which are decoded at once."""
    random = np.random.default_rng([5, seed])
    traces = [
        made_request(
            f"request-{number}",
            int(random.integers(20, 90)),
            prompt=tuple(random.integers(0, 50, 60).tolist()),
            seed=10_000 * seed + number,
        )
        for number in range(prompts)
    ]
    trace = write_trace(folder / f"{seed}.parquet", traces, MODELS).path
    settings = BenchSettings(
        ("fixed-k:k=3",), deployment=SERVER, out=folder / "results", batch_size=at_once
    )
    conclusions, *_ = bench_replay(settings, trace, lambda _: None)
    (summary,) = (one.summary for one in conclusions if one.summary.method != BASELINE)
    return summary.overall


def test_forty_prompts_in_one_batch_have_a_verdict_on_modelled_time(tmp_path: Path) -> None:
    overall = measured(tmp_path, prompts=40, at_once=20, seed=1)
    assert overall.speedup_units == 40
    assert overall.intervals["speedup"] is not None
    assert overall.intervals["typical_speedup"] is not None


def test_a_slow_moment_is_shared_on_a_clock_alone() -> None:
    units = {}
    for time_kind in ("measured", "modelled"):
        run = run_document({"time_kind": time_kind, "config": {"batch_size": 16}})
        assert run.decoded_at_once == 16
        units[time_kind] = run.requests_per_unit
    assert units == {"measured": 16, "modelled": 1}


@pytest.mark.nightly
def test_intervals_over_prompts_are_as_wide_as_new_prompts_scatter(tmp_path: Path) -> None:
    """Batches hardly tie prompts together: new prompts scatter no more than the intervals of one run say."""
    runs = [measured(tmp_path, prompts=48, at_once=24, seed=seed) for seed in range(24)]
    values = [log(run.speedup or 0.0) for run in runs]
    halves = [
        log(high / low) / 2
        for run in runs
        for low, high in [run.intervals["speedup"] or (1.0, 1.0)]
    ]
    # A prompt's time has a part of its neighbours' in it, which makes intervals somewhat too wide.
    assert 0.8 < fmean(halves) / (1.96 * stdev(values)) < 2.2
    held = [abs(value - fmean(values)) <= half for value, half in zip(values, halves, strict=True)]
    assert sum(held) >= 20  # of 24; with the right intervals fewer come out once in a hundred tries
