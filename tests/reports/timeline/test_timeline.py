"""Timelines: what is recorded, as a trace for Perfetto, and as a picture."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from command_line import TinyPair, error_line, read_object, skit_here, write_rows
from environments import DEPLOYMENT
from msgspec import to_builtins
from PIL import Image
from tiny_models import disturbed, make_requests, make_runner, random_prompts, tiny_llama
from trace_builders import made_requests, write_trace

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.decoding.clock import ModelledClock
from specbench_kit.decoding.loop import DecodingSetup, Loop
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.timeline import Span, Timeline
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.deployments.base import Deployment
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.setting import method_label
from specbench_kit.models.runner import Runner
from specbench_kit.reports.timeline.timeline import chrome_trace, write_pictures
from specbench_kit.runs.deployment import Link
from specbench_kit.runs.document import RunDescription

SPECEDGE = "specedge:depth=3,budget=8,beams=4,branch=4,proactive_depth=8"
SHARED = replace(DEPLOYMENT, placement="server")


@pytest.fixture(scope="module")
def runners() -> tuple[Runner, Runner]:
    target = tiny_llama(0)
    return make_runner(target, 4, 128), make_runner(disturbed(target, 0.002), 4, 128)


def start(
    spec: str, runners: tuple[Runner, Runner], deployment: Deployment | None, batch_size: int
) -> Loop:
    engine = local_loop(
        parse_method(spec),
        *runners,
        setup=DecodingSetup(batch_size=batch_size),
        deployment=deployment,
    )
    for request in make_requests(random_prompts([5, 1, 30, 12], 64), 16):
        engine.submit(request)
    return engine


def finish(engine: Loop) -> list[RequestRecord]:
    records = []
    while not engine.idle:
        records += engine.step()
    return records


def recorded(
    spec: str,
    runners: tuple[Runner, Runner],
    deployment: Deployment | None = DEPLOYMENT,
    batch_size: int = 1,
) -> tuple[Timeline, list[RequestRecord]]:
    engine = start(spec, runners, deployment, batch_size)
    engine.clock.timeline = timeline = Timeline()
    return timeline, finish(engine)


def by_resource(timeline: Timeline) -> dict[str, list[Span]]:
    by_resource = defaultdict(list)
    for span in sorted(timeline.spans, key=lambda span: span.start_s):
        by_resource[span.resource].append(span)
    return by_resource


def seconds(spans: Iterable[Span], *labels: str) -> float:
    return sum(span.end_s - span.start_s for span in spans if span.label in labels)


def charged(records: Iterable[RequestRecord], phase: str) -> float:
    return sum(getattr(step, f"{phase}_s") for record in records for step in record.rounds)


@pytest.mark.parametrize("deployment", [DEPLOYMENT, SHARED, None], ids=["edge", "server", "local"])
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("spec", ["autoregressive", "fixed-k:k=3", SPECEDGE])
def test_no_resource_does_two_things_at_once(
    spec: str, batch_size: int, deployment: Deployment | None, runners: tuple[Runner, Runner]
) -> None:
    timeline, _ = recorded(spec, runners, deployment, batch_size)
    for spans in by_resource(timeline).values():
        assert all(span.start_s < span.end_s for span in spans)
        assert all(span.end_s <= following.start_s + 1e-12 for span, following in pairwise(spans))


@pytest.mark.parametrize("deployment", [DEPLOYMENT, SHARED, None], ids=["edge", "server", "local"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_spans_come_to_the_seconds_that_the_records_hold(
    batch_size: int, deployment: Deployment | None, runners: tuple[Runner, Runner]
) -> None:
    timeline, records = recorded(SPECEDGE, runners, deployment, batch_size)
    assert seconds(timeline.spans, "draft", "proactive") == pytest.approx(charged(records, "draft"))
    for name, phase in (
        ("verify", "verify"),
        ("prefill", "prefill"),
        ("transfer", "link"),
        ("queue", "queue"),
    ):
        assert seconds(timeline.spans, name) == pytest.approx(charged(records, phase), abs=1e-12)


@pytest.mark.parametrize("deployment", [DEPLOYMENT, None], ids=["modelled", "measured"])
def test_rounds_follow_each_other_from_arrival_to_end(
    deployment: Deployment | None, runners: tuple[Runner, Runner]
) -> None:
    timeline, records = recorded(SPECEDGE, runners, deployment, batch_size=2)
    resources = by_resource(timeline)
    for record in records:
        rounds = resources[f"requests/{record.request_id}"]
        assert [span.label for span in rounds] == [
            f"round {number} (+{step.committed})" for number, step in enumerate(record.rounds, 1)
        ]
        assert all(
            span.end_s == pytest.approx(following.start_s) for span, following in pairwise(rounds)
        )
        waited_s = record.e2e_s - (
            rounds[-1].end_s - rounds[0].start_s
        )  # for the step in which a place was free
        assert waited_s >= -1e-9
        assert deployment is None or waited_s == pytest.approx(0)


def test_the_edge_drafts_ahead_while_the_server_verifies(runners: tuple[Runner, Runner]) -> None:
    near = replace(DEPLOYMENT, link=Link(rtt_s=0.001))
    resources = by_resource(recorded(SPECEDGE, runners, near)[0])
    server = resources["server"]
    proactive = [span for span in resources["edge/002"] if span.label == "proactive"]
    assert proactive
    assert any(s.start_s < p.start_s < s.end_s for p in proactive for s in server)
    drafts = [span for span in resources["edge/002"] if span.label == "draft"]
    assert not any(s.start_s < d.end_s and d.start_s < s.end_s for d in drafts for s in server)
    waits = [span for span in resources["edge/002"] if span.label == "stall"]
    assert {wait.end_s for wait in waits} <= {span.end_s for span in resources["requests/002"]}


def test_on_one_device_drafting_ahead_takes_its_turn(runners: tuple[Runner, Runner]) -> None:
    timeline, _ = recorded(SPECEDGE, runners, None)
    assert {
        span.resource for span in timeline.spans if not span.resource.startswith("requests/")
    } == {"cpu"}
    assert {span.label for span in timeline.spans} >= {
        "prefill",
        "draft",
        "proactive",
        "verify",
        "commit",
        "policy",
    }


def test_recording_changes_no_record(runners: tuple[Runner, Runner]) -> None:
    unrecorded = start(SPECEDGE, runners, DEPLOYMENT, 2)
    assert unrecorded.clock.timeline is None
    assert finish(unrecorded) == recorded(SPECEDGE, runners, batch_size=2)[1]


def test_the_trace_names_every_process_and_thread(runners: tuple[Runner, Runner]) -> None:
    timeline, _ = recorded(SPECEDGE, runners, batch_size=3)
    trace = json.loads(
        json.dumps(to_builtins(chrome_trace(timeline, {"method": SPECEDGE})), allow_nan=False)
    )
    events = trace["traceEvents"]
    processes = names(events, "process_name", "pid")
    threads = names(events, "thread_name", "tid")
    assert list(processes.values()) == ["requests", "edge", "link", "server queue", "server"]
    work = [event for event in events if event["ph"] == "X"]
    assert len(work) == len(timeline.spans)
    for event, span in zip(work, timeline.spans, strict=True):
        assert threads[event["tid"]] == span.resource
        assert processes[event["pid"]] == span.resource.partition("/")[0]
        assert event["ts"] == pytest.approx(span.start_s * 1e6, abs=1e-3)
        assert event["dur"] == pytest.approx((span.end_s - span.start_s) * 1e6, abs=2e-3)
        assert event["args"]["requests"] == list(span.request_ids)
    assert trace["otherData"] == {"method": SPECEDGE}


def names(events: list[JsonObject], kind: str, key: str) -> dict[int, str]:
    return {
        event[key]: event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == kind
    }


def test_neighbours_do_not_overlap_in_the_trace(runners: tuple[Runner, Runner]) -> None:
    timeline, _ = recorded(SPECEDGE, runners, None)
    threads = defaultdict(list)
    for event in to_builtins(chrome_trace(timeline, {}).traceEvents):
        if event["ph"] == "X":
            threads[event["tid"]].append((round(event["ts"] * 1000), round(event["dur"] * 1000)))
    for spans in threads.values():
        assert all(ts + dur <= after for (ts, dur), (after, _) in pairwise(sorted(spans)))


def test_any_loop_can_mark_its_resources() -> None:
    clock = ModelledClock()
    clock.mark("stage/1", "verify", 0.0, 1.0, "q")
    clock.timeline = timeline = Timeline()
    clock.mark("stage/1", "verify", 0.0, 1.0, "q")
    clock.mark("stage/2", "prune", 1.0, 1.0, "q")
    assert timeline.spans == [Span("stage/1", "verify", 0.0, 1.0, ("q",))]


def test_what_comes_after_the_most_spans_is_counted() -> None:
    timeline = Timeline(most=2)
    for start_s in range(5):
        timeline.add(Span("server", "verify", start_s, start_s + 0.5))
    assert len(timeline.spans) == 2
    assert chrome_trace(timeline, {}).otherData == {"spans_left_out": 3}


def test_the_picture_shows_the_first_rounds_of_the_first_request(
    runners: tuple[Runner, Runner], tmp_path: Path
) -> None:
    timeline, _ = recorded(SPECEDGE, runners, batch_size=2)
    assert write_pictures(tmp_path / "plots", timeline, "a $deployment$")
    with Image.open(tmp_path / "plots/timeline.png") as picture:
        assert picture.width > 1000
        assert len(picture.convert("RGB").getcolors(maxcolors=1 << 20) or []) > 50
    assert (tmp_path / "plots/timeline.svg").read_text().rstrip().endswith("</svg>")
    assert not write_pictures(tmp_path / "none", Timeline(), "nothing")
    assert not (tmp_path / "none").exists()


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write_rows(
        tmp_path / "prompts.jsonl", {"id": "a/1", "prompt": "How many?"}, {"prompt": "Who?"}
    )


def bench(prompts: Path, tiny: TinyPair, out: Path, *options: object) -> list[Path]:
    shared = ["--max-new-tokens", 8, "--no-baseline", "--out", out, *tiny.options, *options]
    done = skit_here(
        "bench",
        "--method",
        "specedge:depth=2",
        "--method",
        "fixed-k",
        "--dataset",
        prompts,
        *shared,
    )
    assert done.returncode == 0, done.stderr
    # By what follows the time: that of the second run may be a second later, or not.
    return sorted(
        (file.parent for file in out.glob("*/run.json")), key=lambda run: run.name.partition("-")[2]
    )


def test_a_run_has_a_timeline_if_it_is_asked_for(
    prompts: Path, tiny: TinyPair, tmp_path: Path
) -> None:
    for run in bench(prompts, tiny, tmp_path / "with", "--timeline"):
        trace, about = read_object(run / "timeline.json"), read_object(run / "run.json")
        assert trace["otherData"] == {
            "method": method_label(RunDescription.read(about)),
            "dataset": "prompts",
            "time": "measured time",
        }
        assert {path.name for path in (run / "plots").iterdir()} == {"timeline.png", "timeline.svg"}
        report = (run / "report.md").read_text()
        assert "](plots/timeline.png)" in report
        assert "](timeline.json)" in report
    for run in bench(prompts, tiny, tmp_path / "without"):
        assert not (run / "timeline.json").exists()
        assert "timeline" not in (run / "report.md").read_text()


@pytest.mark.nightly  # the test below writes one, and modelled time is compared to the bit where reports are
def test_a_modelled_run_has_the_same_timeline_every_time(
    prompts: Path, tiny: TinyPair, tmp_path: Path
) -> None:
    options = ("--timeline", "--deployment", "specedge")
    first, second = (bench(prompts, tiny, tmp_path / name, *options) for name in ("a", "b"))
    for run, repeated in zip(first, second, strict=True):
        assert (run / "timeline.json").read_bytes() == (repeated / "timeline.json").read_bytes()
    assert (
        read_object(first[0] / "timeline.json")["otherData"]["time"] == "modelled time (specedge)"
    )


def test_a_replay_has_a_timeline_and_no_tokens(tmp_path: Path) -> None:
    trace = tmp_path / "trace.parquet"
    write_trace(trace, made_requests(2))
    options = ["--method", "fixed-k", "--replay", trace, "--out", tmp_path / "out"]
    assert skit_here("bench", *options, "--timeline").returncode == 0
    (run,) = (tmp_path / "out").iterdir()
    trace = read_object(run / "timeline.json")
    assert set(names(trace["traceEvents"], "thread_name", "tid").values()) >= {"server", "drafter"}
    assert (run / "plots/timeline.png").exists()
    line = error_line(skit_here("bench", *options, "--token-view"))
    assert line == (
        "--token-view cannot go with --replay: it shows the trees of a live run, which a trace does not contain; "
        "leave out one of them"
    )
