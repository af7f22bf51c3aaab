"""Traces: written, read, and replayed to exactly the rounds of a live run."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pyarrow.parquet
import pytest
from environments import ENVIRONMENT
from tiny_models import (
    AUTOREGRESSIVE,
    clear_prompts,
    decode,
    disturbed,
    make_requests,
    make_runner,
    plain_logits,
    tiny_llama,
    with_references,
)
from tiny_predictors import confidence_predictor

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.errors import SkitError
from specbench_kit.methods.base import methods
from specbench_kit.methods.spec import parse_method
from specbench_kit.traces.recording import Recorder, measure_steps, slot_length
from specbench_kit.traces.replay import replay
from specbench_kit.traces.trace import RequestTrace, TraceFile, TraceHeader, TraceWriter

MAX_DRAFT, NEW_TOKENS = 6, 24
EOS = frozenset({3})
PREDICTOR = confidence_predictor(Path(mkdtemp(prefix="predictor-")))
CHAIN_METHODS = [
    "autoregressive",
    "fixed-k",
    "fixed-k:k=6",
    "threshold:max_draft=6",
    "threshold:threshold=0.1,max_draft=6",
    "threshold:max_draft=4,schedule=heuristic-transient",
    "threshold:max_draft=5,adaptive=true",
    "oracle:max_draft=6",
    f"wisp:predictor={PREDICTOR},max_draft=6",
    "adaspec:max_draft=6",
    "adaspec:max_draft=6,elimination=false,slo_tpot=0.02",
]


@pytest.fixture(scope="module")
def models():
    target = tiny_llama()
    return target, disturbed(target, 0.03)


@pytest.fixture(scope="module")
def requests(models):
    return make_requests(clear_prompts(models[0], (3, 7, 12, 1, 20), NEW_TOKENS), NEW_TOKENS)


@pytest.fixture(scope="module")
def answers(models, requests) -> dict[str, RequestRecord]:
    runners = tuple(make_runner(model, 3, 96) for model in models)
    return decode(AUTOREGRESSIVE, runners, requests, eos_ids=EOS)


@pytest.fixture(scope="module")
def header(models) -> TraceHeader:
    runners = (make_runner(models[0], 1, 96), make_runner(models[1], 1, 96))
    draft_s, verify_s = measure_steps(*runners, [1, 2, 3, 4], MAX_DRAFT)
    return TraceHeader(MAX_DRAFT, draft_s, verify_s, {"models": {}})


@pytest.fixture(scope="module")
def traces(models, answers) -> list[RequestTrace]:
    draft = make_runner(models[1], 1, slot_length(20, NEW_TOKENS, MAX_DRAFT))
    recorder = Recorder(make_runner(models[0], 1, 96), draft, MAX_DRAFT)
    return [recorder.trace(record) for record in answers.values()]


def rounds(records) -> dict[str, list[tuple[int, int, int, int]]]:
    return {
        record.request_id: [(r.drafted, r.submitted, r.accepted, r.committed) for r in record.rounds]
        for record in records
    }


def test_the_trace_is_not_trivial(traces):
    drafted = np.concatenate([trace.drafted[:, 0] for trace in traces])
    said = np.concatenate([trace.output_ids for trace in traces])
    assert 0.2 < (drafted == said).mean() < 0.95
    assert any(trace.finish_reason == "eos" for trace in traces)
    assert any(trace.finish_reason == "length" for trace in traces)


@pytest.mark.parametrize("spec", CHAIN_METHODS)
def test_replayed_rounds_equal_live_rounds(spec, models, requests, answers, header, traces):
    method = parse_method(spec).prepare(ENVIRONMENT)
    runners = tuple(make_runner(model, 1, 96) for model in models)
    live = decode(method, runners, with_references(requests, answers), eos_ids=EOS)
    replayed = list(replay(method, header, traces))
    assert rounds(replayed) == rounds(live.values())
    assert {r.request_id: r.output_ids for r in replayed} == {r.request_id: r.output_ids for r in live.values()}
    assert {r.request_id: r.finish_reason for r in replayed} == {r.request_id: r.finish_reason for r in live.values()}


def test_every_registered_chain_method_is_replayed_here():
    assert {spec.partition(":")[0] for spec in CHAIN_METHODS} >= set(methods.all())


def test_replay_of_a_batch_has_the_same_rounds(header, traces):
    method = parse_method("fixed-k")
    assert rounds(replay(method, header, traces, batch_size=3)) == rounds(replay(method, header, traces))


def test_replayed_time_is_steps_times_their_recorded_seconds(header, traces):
    (record,) = replay(parse_method("fixed-k:k=2"), header, traces[:1])
    count = len(record.rounds)
    assert record.time_kind == "modelled"
    assert record.e2e_s == pytest.approx(count * (2 * header.draft_s + header.verify_s[2]))
    assert sum(r.draft_s for r in record.rounds) == pytest.approx(count * 2 * header.draft_s)


def test_file_round_trip(tmp_path: Path, header, traces):
    path = tmp_path / "a" / "trace.parquet"
    many = [replace(trace, request_id=f"{i}-{trace.request_id}") for i in range(40) for trace in traces]
    with TraceWriter(path, header) as writer:
        for trace in many:
            writer.append(trace)
    file = TraceFile(path)
    assert (len(file), file.header) == (200, header)
    for wrote, read in zip(many, file, strict=True):
        assert replace(read, drafted=wrote.drafted, statistics=wrote.statistics) == wrote
        assert np.array_equal(read.drafted, wrote.drafted)
        assert np.array_equal(read.statistics, wrote.statistics)
    assert pyarrow.parquet.ParquetFile(path).num_row_groups == 4


def test_an_error_while_recording_leaves_no_file(tmp_path: Path, header, traces):
    def interrupted() -> Iterator[RequestTrace]:
        yield traces[0]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(tmp_path / "t.parquet", header, interrupted())
    assert list(tmp_path.iterdir()) == []


def write(path: Path, header: TraceHeader, traces: Iterable[RequestTrace]) -> Path:
    with TraceWriter(path, header) as writer:
        for trace in traces:
            writer.append(trace)
    return path


def test_foreign_truncated_and_missing_files(tmp_path: Path, header, traces):
    whole = write(tmp_path / "whole.parquet", header, traces).read_bytes()
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(whole[: len(whole) // 2])
    foreign = tmp_path / "foreign.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), foreign)
    for path, reason in ((cut, "cannot read"), (foreign, "not a trace"), (tmp_path / "no.parquet", "cannot read")):
        with pytest.raises(SkitError, match=reason) as error:
            TraceFile(path)
        assert "\n" not in str(error.value)


def test_a_newer_schema_is_refused(tmp_path: Path, header, traces):
    table = pyarrow.parquet.read_table(write(tmp_path / "t.parquet", header, traces))
    content = json.loads(table.schema.metadata[b"specbench_kit"])
    metadata = {b"specbench_kit": json.dumps(content | {"schema_version": 99}).encode()}
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), tmp_path / "newer.parquet")
    with pytest.raises(SkitError, match="newer"):
        TraceFile(tmp_path / "newer.parquet")


def test_a_method_that_wants_longer_drafts_than_recorded_is_refused(header, traces):
    with pytest.raises(SkitError, match="--max-draft"):
        list(replay(parse_method("fixed-k:k=7"), header, traces))


def test_recorded_statistics_are_those_of_the_draft_model(models, traces):
    trace = traces[0]
    for offset in (0, 5, len(trace.output_ids) - 1):
        prefix = trace.prompt_ids + trace.output_ids[:offset]
        for place in range(MAX_DRAFT):
            logits = plain_logits(models[1], prefix)[-1]
            probabilities = logits.softmax(-1)
            top = probabilities.topk(2).values
            assert int(logits.argmax()) == trace.drafted[offset, place]
            expected = [
                top[0],
                -(probabilities * probabilities.log()).sum(),
                top[0] - top[1],
                logits.std(correction=0),
                top[0],
            ]
            assert trace.statistics[offset, place].tolist() == pytest.approx([float(x) for x in expected], abs=1e-4)
            prefix = [*prefix, int(trace.drafted[offset, place])]
