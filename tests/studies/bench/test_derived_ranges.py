"""The range that derived times leave to a benchmark's speeds: the same requests at the ends of what times may be."""

import json
from dataclasses import replace
from functools import partial
from itertools import product
from math import exp, log
from pathlib import Path
from statistics import median

import pytest
from environments import DEPLOYMENT
from nightly import nightly_except
from tiny_models import clear_prompts, decode, disturbed, make_requests, make_runner, tiny_llama
from trace_builders import made_requests, write_trace

from specbench_kit.decoding.latency import RoundedModel
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.description import AS_DRAFTED, DECIDED_ANEW, corners
from specbench_kit.deployments.loading import bundled
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.comparison import compare
from specbench_kit.metrics.derived_range import reversing_ends, seconds_at_ends, speedup_range
from specbench_kit.metrics.paired import Seconds, Side, speedup
from specbench_kit.metrics.run_data import load_runs
from specbench_kit.reports.sections import derived_range
from specbench_kit.reports.sections.cautions import setting_cautions
from specbench_kit.studies.bench.conclusion import Conclusion
from specbench_kit.studies.bench.replay import bench_replay
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.traces.replay import prepare_for_replay, replay
from specbench_kit.traces.trace import TraceFile

WAN = bundled()["wan"].build()
ENDS = dict(corners(WAN))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> TraceFile:
    return write_trace(tmp_path_factory.mktemp("trace") / "t.parquet", made_requests(8))


def replayed(
    trace: TraceFile, out: Path, *methods: str, batch_size: int = 1, deployment: Deployment = WAN
) -> list[Conclusion]:
    settings = BenchSettings(methods, out=out, deployment=deployment, batch_size=batch_size)
    conclusions, left_out, _ = bench_replay(settings, trace.path, lambda _: None)
    assert not left_out
    return conclusions


def seconds_at(trace: TraceFile, spec: str, end: Deployment, batch_size: int) -> list[float | None]:
    method = prepare_for_replay(parse_method(spec), trace, end, batch_size)
    records = replay(method, trace.header, trace, deployment=end, batch_size=batch_size)
    return [
        seconds for _, seconds in sorted((record.request_id, record.e2e_s) for record in records)
    ]


SPECS = ("fixed-k:k=3", "threshold:max_draft=5", "sglang-ema", "goodput:max_draft=5")


@pytest.mark.parametrize(
    ("spec", "batch_size"),
    nightly_except(
        [("fixed-k:k=3", 1), ("sglang-ema", 3), ("goodput:max_draft=5", 3)], product(SPECS, [1, 3])
    ),
)
def test_every_end_takes_what_a_replay_of_that_deployment_takes(
    spec: str, batch_size: int, trace: TraceFile, tmp_path: Path
) -> None:
    """An end times the rounds again or decides anew: goodput goes by times, the others do not."""
    (conclusion,) = replayed(trace, tmp_path, spec, batch_size=batch_size)
    records = sorted(conclusion.directory.records(), key=lambda record: record.request_id)
    assert conclusion.directory.run["range"] == {"ends": list(ENDS), "decisions": DECIDED_ANEW}
    for position, end in enumerate(ENDS.values()):
        assert [record.ends_s[position] for record in records] == pytest.approx(
            seconds_at(trace, spec, end, batch_size), rel=1e-12
        )
    slowest, fastest = (
        list(ENDS).index("slow drafter, slow verifier"),
        list(ENDS).index("fast drafter, fast verifier"),
    )
    for record in [*records, *conclusion.directory.baseline_records()]:
        assert record.e2e_s is not None
        assert record.ends_s[fastest] < record.e2e_s < record.ends_s[slowest]


def typical_of(own: Seconds, plain: Seconds) -> float:
    """The speedup on a typical prompt by its definition: exp of the median of the means of all pairs of logarithms."""
    logs = [log(plain[key] / own[key]) for key in own]
    return exp(
        median((one + other) / 2 for place, one in enumerate(logs) for other in logs[place:])
    )


def test_ranges_of_speedups_stand_in_summary_and_report(trace: TraceFile, tmp_path: Path) -> None:
    conclusions = replayed(trace, tmp_path, "fixed-k:k=3", "threshold:max_draft=5")
    for conclusion in conclusions:
        overall = conclusion.summary.overall
        own, plain = (seconds_at_ends(records) for records in read(conclusion))
        speedups = [typical_of(method, base) for method, base in zip(own, plain, strict=True)]
        assert (overall.typical_speedup_least, overall.typical_speedup_most) == pytest.approx(
            (min(speedups), max(speedups))
        )
        assert overall.time_least < 1 < overall.time_most
        assert "DERIVED TIMES: what profiles, host and interconnects may be leaves" in (
            conclusion.directory.path / "report.md"
        ).read_text(encoding="utf-8")
    runs, _ = load_runs([conclusion.directory.path for conclusion in conclusions])
    (line,) = derived_range.of_comparison(compare(runs))
    assert "fixed-k" in line
    assert "live run" not in line
    assert not any("a plain step" in line for run in runs for line in setting_cautions(run.fields))


def test_a_range_holds_the_speed_that_is_shown_where_both_ends_are_slower() -> None:
    """A method that decides by times may be fastest at the times that it was made for."""
    keys = [(f"r{number}", 0) for number in range(3)]
    shown = Side(dict.fromkeys(keys, 1.0), dict.fromkeys(keys, 3.0))
    ends = [Side(dict.fromkeys(keys, 1.0), dict.fromkeys(keys, seconds)) for seconds in (2.0, 2.5)]
    units = {name: number for number, (name, _) in enumerate(keys)}
    found = speedup_range(speedup(shown, units), ends, units)
    assert (found["typical_speedup_least"], found["typical_speedup_most"]) == pytest.approx((2, 3))
    assert found["typical_speedup_at_ends"] == pytest.approx([2, 2.5])


def read(conclusion: Conclusion) -> tuple[list[RequestRecord], list[RequestRecord]]:
    return conclusion.directory.records(), conclusion.directory.baseline_records()


def test_published_times_have_no_range(trace: TraceFile, tmp_path: Path) -> None:
    (conclusion,) = replayed(trace, tmp_path, "fixed-k", deployment=bundled()["specedge"].build())
    assert "range" not in conclusion.directory.run
    assert conclusion.summary.overall.typical_speedup_least is None
    assert "ends_s" not in json.loads(
        (conclusion.directory.path / "requests.jsonl").read_text().splitlines()[0]
    )


def priced(step_s: float) -> RoundedModel:
    """A forward that takes so long, whatever is in it."""
    return RoundedModel(0.0, 0.0, 0.0, 0.0, 0.0, step_s)


def with_drafter(*steps_s: float) -> Deployment:
    """A deployment whose draft steps take the first of these seconds, and may take the other two."""
    step_s, fast_s, slow_s = steps_s
    verifier = replace(WAN.verifier, latency=priced(0.05), range=(priced(0.05), priced(0.05)))
    drafter = replace(WAN.drafter, latency=priced(step_s), range=(priced(fast_s), priced(slow_s)))
    link = replace(WAN.link, rtt_s=0.0, jitter_s=0.0)
    return replace(
        WAN, drafter=drafter, verifier=verifier, link=link, colocated=None, cached_prompts=True
    )


def test_a_verdict_that_an_end_reverses_is_told(trace: TraceFile, tmp_path: Path) -> None:
    """Long drafts win if drafting is fast, short ones if it is as slow as it may be."""
    sentences = {}
    for name, steps_s in {
        "reversed": (0.001, 0.0005, 0.08),
        "held": (0.001, 0.0005, 0.002),
    }.items():
        conclusions = replayed(
            trace, tmp_path / name, "fixed-k:k=1", "fixed-k:k=5", deployment=with_drafter(*steps_s)
        )
        runs, _ = load_runs([conclusion.directory.path for conclusion in conclusions])
        comparison = compare(runs)
        assert comparison.reference == "fixed-k (k=5)"
        row = comparison.overall["fixed-k (k=1)"]
        reversing = reversing_ends(
            row.relative_speed, row.typical_relative_speed_at_ends, runs[0].fields.range.ends
        )
        assert reversing is not None
        assert {"slow drafter" in end for end in reversing} == (
            {True} if name == "reversed" else set()
        )
        assert (row.typical_relative_speed_most > 1) == (name == "reversed")
        (sentences[name],) = derived_range.of_comparison(comparison)
    assert (
        "the verdict does not hold with slow drafter, fast verifier or with slow drafter, slow verifier"
        in (sentences["reversed"])
    )
    assert "every verdict on a method holds over the whole range" in sentences["held"]


@pytest.mark.parametrize(
    "spec", ["opt-tree", "specedge:depth=3", "fixed-k:drafter=suffix", "specpipe:stages=2"]
)
def test_live_rounds_are_timed_at_the_ends_as_they_were_drafted(spec: str) -> None:
    """The end that is the deployment itself takes what the run takes, and a slower verifier takes longer."""
    target = tiny_llama()
    runners = tuple(make_runner(model, 4, 96) for model in (target, disturbed(target, 0.03)))
    requests = make_requests(clear_prompts(target, (3, 7, 12), 20), 12)
    deployment = replace(
        DEPLOYMENT, verifier=replace(DEPLOYMENT.verifier, stages=2 if "pipe" in spec else 1)
    )
    slow = replace(deployment, verifier=replace(deployment.verifier, latency=priced(1.0)))
    for batch_size in (1, 2):
        go = partial(
            decode,
            parse_method(spec),
            runners,
            requests,
            batch_size=batch_size,
            deployment=deployment,
        )
        alone, ranged = go(), go(ends=[deployment, slow])
        for name, record in ranged.items():
            assert record.e2e_s is not None
            assert record.e2e_s == alone[name].e2e_s
            same_s, slow_s = record.ends_s
            assert same_s == pytest.approx(record.e2e_s, rel=1e-9)
            assert slow_s > same_s


def test_a_line_has_ends_only_where_times_are_derived() -> None:
    record = RequestRecord("a", "test", [1])
    assert "ends_s" not in json.loads(record.to_json())
    record.ends_s = [1.0, 2.0]
    assert RequestRecord.from_json(record.to_json()).ends_s == [1.0, 2.0]


def test_live_ranges_are_said_to_keep_their_drafts(trace: TraceFile, tmp_path: Path) -> None:
    conclusions = replayed(trace, tmp_path, "goodput:max_draft=5", "fixed-k:k=3")
    runs, _ = load_runs([conclusion.directory.path for conclusion in conclusions])
    for run in runs:
        assert run.fields.range is not None
        run.fields.range.decisions = AS_DRAFTED
    (line,) = derived_range.of_comparison(compare(runs))
    assert (
        "the rounds are those of this live run, also by `goodput:max_draft=5`, which would have planned"
        in line
    )
