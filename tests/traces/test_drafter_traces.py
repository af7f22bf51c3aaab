"""Traces of heads, look-ups and hybrid drafters: a replay has the rounds and the seconds of the live run."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from environments import DEPLOYMENT
from msgspec import structs
from nightly import nightly_except
from tiny_heads import heads_beside, put_beside, trained
from tiny_models import (
    AUTOREGRESSIVE,
    decode,
    disturbed,
    make_requests,
    make_runner,
    plain_greedy,
    random_prompts,
    tiny_llama,
    with_references,
)

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.base import DRAFT, parse_drafter
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.session import Request
from specbench_kit.deployments.base import Deployment
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.heads.model import HeadModel
from specbench_kit.models.runner import Runner
from specbench_kit.runs.deployment import Link
from specbench_kit.traces.recording import DrafterTraceRecorder, Redactor
from specbench_kit.traces.replay import replay
from specbench_kit.traces.trace import NO_TOKEN, RequestTrace, TraceFile, TraceHeader
from specbench_kit.traces.writing import TraceWriter

VOCABULARY, LENGTH, MAX_DRAFT, CAPACITY = 12, 40, 6, 120
TARGET = tiny_llama(0, vocab_size=VOCABULARY)
FIRST = random_prompts([9, 4, 25], VOCABULARY, seed=5)
PROMPTS = [*FIRST, FIRST[0][:7], [*FIRST[1], *FIRST[2][:5]], [3]]
HYBRID = "first-of.first=suffix.shared=false+second=head+third=model"
DRAFTERS = {
    "head": [
        "fixed-k:k=4",
        "threshold:threshold=0.3,max_draft=6",
        "svip:max_draft=5",
    ],
    "suffix": [
        "fixed-k:k=6",
        "threshold:threshold=0.5,max_draft=6",
        "sglang-ema:up=1000",
    ],
    "suffix.shared=false+min=2": ["fixed-k:k=3", "threshold:threshold=0.6,max_draft=5"],
    "prompt-lookup": ["fixed-k:k=5"],
    HYBRID: ["fixed-k:k=5", "threshold:threshold=0.4,max_draft=6", "sglang-ema:up=1000"],
    "first-of.second=head": ["fixed-k:k=5", "oracle:max_draft=6"],
    "first-of.first=prompt-lookup+second=model": ["fixed-k:k=4"],
}
CASES = [(drafter, spec) for drafter, specs in DRAFTERS.items() for spec in specs]
ONE_PER_DRAFTER = [(drafter, specs[-1]) for drafter, specs in DRAFTERS.items()]
EDGE = replace(DEPLOYMENT, link=Link(rtt_s=0.05, state_bytes=20, down_bytes_per_s=1e5))
SERVER = replace(DEPLOYMENT, placement="server")


@cache
def head() -> HeadModel:
    """A head that was trained on the beginnings of the target's answers."""
    answers = [plain_greedy(TARGET, prompt, LENGTH)[0] for prompt in PROMPTS]
    return trained(TARGET, PROMPTS, [answer[:20] for answer in answers])


def runners_of(slots: int = 4) -> tuple[Runner, Runner]:
    pair = (
        make_runner(TARGET, slots, CAPACITY),
        make_runner(disturbed(TARGET, 0.02), slots, CAPACITY),
    )
    put_beside(pair[0], head())
    return pair


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    without_references = make_requests(PROMPTS, LENGTH)
    return with_references(
        without_references, decode(AUTOREGRESSIVE, runners_of(), without_references)
    )


def record_traces(
    drafter: str, requests: Sequence[Request]
) -> tuple[TraceHeader, list[RequestTrace]]:
    target, draft = runners_of()
    drafting = parse_drafter(drafter)
    models = {**heads_beside(parse_method(f"fixed-k:drafter={drafter}"), target), DRAFT: draft}
    recorder = DrafterTraceRecorder(target, drafting, models, MAX_DRAFT)
    traces = [
        recorder.trace(
            RequestRecord(
                request.id,
                "test",
                list(request.prompt_ids),
                list(request.reference),
                finish_reason="length",
            )
        )
        for request in requests
    ]
    layers = tuple(drafting.layers(models))
    header = TraceHeader(
        MAX_DRAFT,
        1e-3,
        (0.01,) * (MAX_DRAFT + 1),
        {},
        capacity=CAPACITY,
        drafter=drafter,
        state_layers=layers,
        state_bytes=target.executor.state_bytes if layers else 0,
    )
    return header, traces


RecordedTraces = dict[str, tuple[TraceHeader, list[RequestTrace]]]


@pytest.fixture(scope="module")
def recorded(requests: list[Request]) -> RecordedTraces:
    return {drafter: record_traces(drafter, requests) for drafter in DRAFTERS}


def live(
    spec: str, requests: Sequence[Request], deployment: Deployment, batch_size: int = 1
) -> list[RequestRecord]:
    records = decode(
        parse_method(spec), runners_of(), requests, deployment=deployment, batch_size=batch_size
    )
    for record in records.values():
        record.rounds = [
            structs.replace(step, padded=[]) for step in record.rounds
        ]  # a replay has no batches
    return sorted(records.values(), key=lambda record: record.request_id)


def replayed(
    spec: str,
    header: TraceHeader,
    traces: Sequence[RequestTrace],
    deployment: Deployment,
    batch_size: int = 1,
) -> list[RequestRecord]:
    method = parse_method(spec)
    records = replay(method, header, traces, deployment=deployment, batch_size=batch_size)
    return sorted(records, key=lambda record: record.request_id)


@pytest.mark.parametrize(("drafter", "spec"), nightly_except(ONE_PER_DRAFTER, CASES))
@pytest.mark.parametrize(
    "deployment",
    [pytest.param(EDGE, id="edge"), pytest.param(SERVER, id="server", marks=pytest.mark.nightly)],
)
def test_a_replay_equals_the_live_run_request_by_request(
    drafter: str,
    spec: str,
    deployment: Deployment,
    recorded: RecordedTraces,
    requests: list[Request],
) -> None:
    """A replay and the live run are equal in every decision and in every second."""
    spec = f"{spec},drafter={drafter}"
    decoded = live(spec, requests, deployment)
    for record, original in zip(
        replayed(spec, *recorded[drafter], deployment), decoded, strict=True
    ):
        assert record == original
    assert sum(step.accepted for record in decoded for step in record.rounds) > 20


BLOCKS = ["fixed-k:k=5", "threshold:threshold=0.05,max_draft=6", "oracle:max_draft=6"]


@pytest.mark.parametrize(
    ("spec", "batch_size"),
    nightly_except([(BLOCKS[0], 3), (BLOCKS[1], 1), (BLOCKS[2], 3)], product(BLOCKS, [1, 3])),
)
def test_a_replay_of_blocks_takes_one_forward_for_each(
    spec: str, batch_size: int, requests: list[Request]
) -> None:
    """A block ends a draft early, and has no token at the first offset."""
    drafter = "medusa.size=3"
    header, traces = record_traces(drafter, requests)
    assert {length for trace in traces for length in trace.draft_lengths()[1:]} == {3}
    decoded = live(f"{spec},drafter={drafter}", requests, EDGE, batch_size)
    assert replayed(f"{spec},drafter={drafter}", header, traces, EDGE, batch_size) == decoded
    assert sum(step.drafted for record in decoded for step in record.rounds) > 100


@pytest.mark.parametrize("drafter", ["head", "suffix.shared=false+min=2", HYBRID, "suffix"])
def test_a_replay_in_batches_equals_the_live_run_in_batches(
    drafter: str, recorded: RecordedTraces, requests: list[Request]
) -> None:
    """A look-up in earlier answers is done again, since batches end in another order."""
    spec = f"fixed-k:k=5,drafter={drafter}"
    assert replayed(spec, *recorded[drafter], EDGE, 3) == live(spec, requests, EDGE, 3)


def test_a_hybrid_that_depends_on_the_order_is_not_replayed_in_batches(
    recorded: RecordedTraces,
) -> None:
    with pytest.raises(
        SkitError, match="replay them with --batch-size 1, or record a look-up with shared=false"
    ):
        replayed(
            "fixed-k:k=5,drafter=first-of.second=head", *recorded["first-of.second=head"], EDGE, 3
        )


def test_what_a_trace_holds(recorded: RecordedTraces) -> None:
    """A head has no draft at the first offset; a look-up where nothing matches; a hybrid says who drafted."""
    _, heads = recorded["head"]
    assert all(
        trace.draft_lengths()[0] == 0 and (trace.draft_lengths()[1:] == MAX_DRAFT).all()
        for trace in heads
    )
    _, suffixes = recorded["suffix.shared=false+min=2"]
    lengths = np.concatenate([trace.draft_lengths() for trace in suffixes])
    assert 0 < (lengths == 0).mean() < 1 < lengths.max()
    assert all(trace.sources == [] for trace in [*heads, *suffixes])
    _, hybrids = recorded[HYBRID]
    assert {source for trace in hybrids for source in trace.sources} == {"suffix", "head", "model"}


def test_the_first_answers_help_the_later_ones_only_where_they_are_shared(
    recorded: RecordedTraces,
) -> None:
    (_, shared), (_, own) = recorded["suffix"], recorded["suffix.shared=false+min=2"]
    assert shared[3].draft_lengths()[3:].mean() > own[3].draft_lengths()[3:].mean()


def test_a_file_keeps_short_drafts_and_their_sources(
    recorded: RecordedTraces, tmp_path: Path
) -> None:
    header, traces = recorded[HYBRID]
    with TraceWriter(tmp_path / "trace.parquet", header) as writer:
        for trace in traces:
            writer.append(trace)
    file = TraceFile(tmp_path / "trace.parquet")
    assert file.header == header
    for trace, original in zip(file, traces, strict=True):
        np.testing.assert_array_equal(trace.drafted, original.drafted)
        np.testing.assert_array_equal(trace.statistics, original.statistics)
        assert trace.sources == original.sources


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda trace: replace(trace, sources=trace.sources[1:]),
            "does not say who drafted at every offset",
        ),
        (
            lambda trace: replace(trace, drafted=trace.drafted[:, ::-1]),
            "has a draft that goes on after its end",
        ),
        (lambda trace: replace(trace, drafted=trace.drafted - 1), "holds a negative token"),
    ],
)
def test_a_damaged_trace_is_refused(
    change: Any, problem: str, recorded: RecordedTraces, tmp_path: Path
) -> None:
    header, traces = recorded["first-of.second=head"]
    with TraceWriter(tmp_path / "trace.parquet", header) as writer:
        writer.append(change(traces[0]))
    with pytest.raises(SkitError, match=problem):
        list(TraceFile(tmp_path / "trace.parquet"))


@pytest.mark.parametrize("drafter", ["suffix", "head", HYBRID])
def test_a_trace_without_text_has_the_same_rounds(drafter: str, recorded: RecordedTraces) -> None:
    header, traces = recorded[drafter]
    redactor, spec = Redactor(), f"fixed-k:k=5,drafter={drafter}"
    hidden = [redactor.redact(trace) for trace in traces]
    assert all(
        ((a.drafted == NO_TOKEN) == (b.drafted == NO_TOKEN)).all()
        for a, b in zip(hidden, traces, strict=True)
    )
    with_text, without = replayed(spec, header, traces, EDGE), replayed(spec, header, hidden, EDGE)
    assert [record.rounds for record in without] == [record.rounds for record in with_text]


def test_other_drafters_with_a_model_are_refused(recorded: RecordedTraces) -> None:
    with pytest.raises(
        SkitError, match="a trace holds drafts of 'head', so drafter 'model' cannot be replayed"
    ):
        replayed("threshold:max_draft=6", *recorded["head"], EDGE)
