"""Traces: written, read, and replayed to exactly the rounds of a live run."""

import json
import resource
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from environments import DEPLOYMENT, ENVIRONMENT
from method_specs import filled_in
from msgspec import structs
from nightly import nightly_except
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

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.base import parse_drafter
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.methods.base import Capability, Method, methods
from specbench_kit.methods.spec import parse_method
from specbench_kit.profilers.steps import measure_statistics, measure_steps
from specbench_kit.studies.bench.replay import bench_replay
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.traces.recording import TraceRecorder, slot_length
from specbench_kit.traces.replay import recording_deployment, replay
from specbench_kit.traces.trace import ROWS_PER_GROUP, RequestTrace, TraceFile, TraceHeader, columns
from specbench_kit.traces.writing import TraceWriter

MAX_DRAFT, NEW_TOKENS = 6, 24
EOS = frozenset({3})
VARIANTS = {
    "fixed-k": [
        "fixed-k",
        "fixed-k:k=6",
        "fixed-k:drafter=prompt-lookup",
        "fixed-k:drafter=suffix",
    ],
    "threshold": [
        "threshold:max_draft=6",
        "threshold:threshold=0.1,max_draft=6",
        "threshold:max_draft=4,schedule=heuristic-transient",
        "threshold:max_draft=5,adaptive=true",
        "threshold:drafter=suffix",
    ],
    "block-verification": ["block-verification:k=6"],
    "rest": ["rest:corpus={corpus}"],
    "adaspec": ["adaspec:max_draft=6", "adaspec:max_draft=6,elimination=false,slo_tpot=0.02"],
    "pearl": ["pearl:k=3", "pearl:k=3,pre_verify=false"],
    "decoupled": ["decoupled:k=3,in_flight=2", "decoupled:k=2"],
}
"""Specs to try besides the methods as they come; no draft goes deeper than the trace's, where the method can say so."""


def specs(*, chains: bool) -> list[str]:
    """Return specs of every registered method that drafts chains, or of those that draft trees."""
    return [
        spec
        for name, kind in methods.all().items()
        if _chains(kind) is chains
        for spec in _specs_of(name, kind)
    ]


def _chains(kind: type[Method]) -> bool:
    return kind.required_capability < Capability.TREES and kind.pipeline is Method.pipeline


def _specs_of(name: str, kind: type[Method]) -> list[str]:
    field_names = {field.name for field in fields(kind)}
    values = {
        "max_draft": MAX_DRAFT,
        "k_max": MAX_DRAFT,
        "predictor": "{predictor}",
        "ranks": "{ranks}",
    }
    options = ",".join(f"{key}={value}" for key, value in values.items() if key in field_names)
    return VARIANTS.get(name, [f"{name}:{options}" if options else name])


CHAIN_METHODS = [
    spec
    for spec in specs(chains=True)
    for drafting in [parse_method(spec).drafting]
    if drafting == parse_drafter("model") or not drafting.models
]
"""A trace holds the drafts of the draft model, and text to look things up in."""
ONE_OF_EACH = list({spec.partition(":")[0]: spec for spec in CHAIN_METHODS}.values())
TREE_METHODS = specs(chains=False)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the values of the placeholders in specs."""
    return filled_in(tmp_path_factory.mktemp("places"))


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
    draft_s, verify_s, _ = measure_steps(*runners, [1, 2, 3, 4], MAX_DRAFT)
    return TraceHeader(MAX_DRAFT, draft_s, verify_s, {"models": {}}, measure_statistics(64, "cpu"))


@pytest.fixture(scope="module")
def traces(models, answers) -> list[RequestTrace]:
    draft = make_runner(models[1], 1, slot_length(20, NEW_TOKENS, MAX_DRAFT))
    recorder = TraceRecorder(make_runner(models[0], 1, 96), draft, MAX_DRAFT)
    return [recorder.trace(record) for record in answers.values()]


def rounds(records) -> dict[str, list[tuple[int, int, int, int]]]:
    return {
        record.request_id: [
            (r.drafted, r.submitted, r.accepted, r.committed) for r in record.rounds
        ]
        for record in records
    }


def test_the_names_of_drafters_came_with_the_fifth_version() -> None:
    assert ["sources" in columns(version).names for version in (4, 5)] == [False, True]


def test_the_candidates_of_trees_came_with_the_sixth_version() -> None:
    assert ["candidate_tokens" in columns(version).names for version in (5, 6)] == [False, True]


def test_the_trace_is_not_trivial(traces):
    drafted = np.concatenate([trace.drafted[:, 0] for trace in traces])
    output_ids = np.concatenate([trace.output_ids for trace in traces])
    assert 0.2 < (drafted == output_ids).mean() < 0.95
    assert any(trace.finish_reason == "eos" for trace in traces)
    assert any(trace.finish_reason == "length" for trace in traces)


@pytest.mark.parametrize("spec", nightly_except(ONE_OF_EACH, CHAIN_METHODS))
def test_replayed_rounds_equal_live_rounds(spec, places, models, requests, answers, header, traces):
    """A deployment models time, since policies that learn from measured time would decide differently."""
    method = parse_method(spec.format(**places)).prepare(ENVIRONMENT)
    runners = tuple(make_runner(model, 1, 96) for model in models)
    live = decode(
        method, runners, with_references(requests, answers), eos_ids=EOS, deployment=DEPLOYMENT
    )
    replayed = list(replay(method, header, traces, deployment=DEPLOYMENT))
    assert rounds(replayed) == rounds(live.values())
    assert {r.request_id: r.output_ids for r in replayed} == {
        r.request_id: r.output_ids for r in live.values()
    }
    assert {r.request_id: r.finish_reason for r in replayed} == {
        r.request_id: r.finish_reason for r in live.values()
    }


SHORT = 40
"""Tokens of a context that three of the five requests fill."""


@pytest.mark.parametrize(
    "states_it", [True, False], ids=["capacity in the header", "a trace of version 2"]
)
@pytest.mark.parametrize("spec", ["fixed-k:k=6", "threshold:threshold=0.1,max_draft=6"])
def test_at_the_contexts_end_a_replay_drafts_what_live_drafting_does(
    spec, states_it, models, header
):
    runners = tuple(make_runner(model, 1, SHORT) for model in models)
    requests = make_requests(clear_prompts(models[0], (3, 22, 30, 37, 39), 1), NEW_TOKENS)
    plain_records = decode(AUTOREGRESSIVE, runners, requests)
    recorder = TraceRecorder(
        runners[0], make_runner(models[1], 1, slot_length(SHORT, NEW_TOKENS, MAX_DRAFT)), MAX_DRAFT
    )
    traces = [recorder.trace(record) for record in plain_records.values()]
    live = decode(parse_method(spec), runners, with_references(requests, plain_records))
    assert [len(record.output_ids) for record in live.values()] == [24, 18, 10, 3, 1]
    replayed = list(
        replay(
            parse_method(spec),
            structs.replace(header, capacity=SHORT if states_it else None),
            traces,
        )
    )
    assert rounds(replayed) == rounds(live.values())
    assert {r.request_id: r.output_ids for r in replayed} == {
        r.request_id: r.output_ids for r in live.values()
    }


@pytest.mark.parametrize("spec", TREE_METHODS)
def test_a_method_that_drafts_trees_is_refused(spec, places, header, traces):
    with pytest.raises(SkitError, match="cannot be replayed"):
        list(replay(parse_method(spec.format(**places)).prepare(ENVIRONMENT), header, traces))


def test_replay_of_a_batch_has_the_same_rounds(header, traces):
    method = parse_method("fixed-k")
    assert rounds(replay(method, header, traces, batch_size=3)) == rounds(
        replay(method, header, traces)
    )


def test_replayed_time_is_steps_times_their_recorded_seconds(header, traces):
    (record,) = replay(parse_method("fixed-k:k=2"), header, traces[:1])
    count = len(record.rounds)
    assert record.time_kind == "modelled"
    assert record.e2e_s == pytest.approx(count * (2 * header.draft_s + header.verify_s[2]))
    assert sum(r.draft_s for r in record.rounds) == pytest.approx(count * 2 * header.draft_s)


def test_a_replayed_predictor_is_charged_for_its_decisions(places, header, traces):
    method = parse_method(f"wisp:predictor={places['predictor']},max_draft=6").prepare(ENVIRONMENT)
    records = list(replay(method, header, traces))
    for step in (step for record in records for step in record.rounds):
        assert step.policy_s == pytest.approx(step.drafted * header.statistics_s)
        assert step.draft_s == pytest.approx(step.drafted * header.draft_s)
    seconds = sum(r.draft_s + r.policy_s + r.verify_s for r in records[0].rounds)
    assert records[0].e2e_s == pytest.approx(seconds)
    assert recording_deployment(header).predictor_s == header.statistics_s > 0


def test_file_round_trip(tmp_path: Path, header, traces):
    path = tmp_path / "a" / "trace.parquet"
    many = [
        replace(trace, request_id=f"{i}-{trace.request_id}") for i in range(40) for trace in traces
    ]
    with TraceWriter(path, header) as writer:
        for trace in many:
            writer.append(trace)
    file = TraceFile(path)
    assert (len(file), file.header) == (200, header)
    same_traces(file, many)
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


def test_a_limit_reads_the_first_requests_and_no_more(tmp_path: Path, header, traces):
    trace_path = write(tmp_path / "whole.parquet", header, traces)
    for limit, count in ((1, 1), (len(traces), len(traces)), (len(traces) + 5, len(traces))):
        file = TraceFile(trace_path, limit)
        assert len(file) == count
        assert [trace.request_id for trace in file] == [
            trace.request_id for trace in traces[:count]
        ]
        assert file.recorded == len(traces)


def test_foreign_truncated_and_missing_files(tmp_path: Path, header, traces):
    content = write(tmp_path / "whole.parquet", header, traces).read_bytes()
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(content[: len(content) // 2])
    foreign = tmp_path / "foreign.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), foreign)
    for path, reason in (
        (cut, "cannot read"),
        (foreign, "not a trace"),
        (tmp_path / "no.parquet", "cannot read"),
    ):
        with pytest.raises(SkitError, match=reason) as error:
            TraceFile(path)
        assert "\n" not in str(error.value)


def with_header(path: Path, **changes: object) -> Path:
    """Return the trace at `path` with other fields in its header."""
    table = pyarrow.parquet.read_table(path)
    content = json.loads(table.schema.metadata[b"specbench_kit"]) | changes
    changed = table.replace_schema_metadata({b"specbench_kit": json.dumps(content).encode()})
    pyarrow.parquet.write_table(changed, path)
    return path


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"schema_version": 99}, "written by a newer specbench-kit .version 99 of the format"),
        ({"schema_version": 7}, "written by a newer specbench-kit .version 7 of the format"),
        ({"schema_version": 1}, "written by an older specbench-kit: record it again"),
        ({"schema_version": None}, "written by an older specbench-kit: record it again"),
        (
            {"verify_s": None},
            r"damaged: its header cannot be read \(verify_s must be a list, not null\)",
        ),
        ({"verify_s": [0.1, "0.2"]}, r"verify_s\[1\] must be a number, not \"0.2\""),
        ({"verify_s": [0.1]}, "1 verification times do not go with drafts of 6"),
        ({"verify_s": [float("nan")] * 7}, "NaN is no number"),
        ({"draft_s": -1e-3}, "draft_s must be a number >= 0.0, not -0.001"),
        ({"statistics_s": float("inf")}, "Infinity is no number"),
        ({"draft_s": "fast"}, 'draft_s must be a number, not "fast"'),
        ({"max_draft": 6.0}, "max_draft must be a whole number, not 6.0"),
        ({"max_draft": 0}, "7 verification times do not go with drafts of 0"),
        ({"capacity": -5}, "capacity must be a whole number >= 0, not -5"),
        ({"capacity": "long"}, "capacity must be a whole number or null"),
        ({"run": []}, "run must be an object"),
        ({"run": {"dataset": 5}}, "dataset must be an object, not 5"),
        (
            {"run": {"models": {"target": "big"}}},
            r"models\[...\] must be an object or null, not text",
        ),
        ({"run": {"prompts": "all"}}, "prompts must be a list or null"),
        ({"lacks": ["colour"]}, "it lacks colour, which is unknown"),
        ({"licence": 3}, "licence must be text or null"),
        ({"colour": "blue"}, "damaged: its header cannot be read"),
    ],
)
def test_a_header_of_another_form_is_refused(changes, reason, tmp_path: Path, header, traces):
    with pytest.raises(SkitError, match=reason):
        TraceFile(with_header(write(tmp_path / "t.parquet", header, traces), **changes))


def test_other_columns_are_refused(tmp_path: Path, header, traces):
    path = write(tmp_path / "t.parquet", header, traces)
    table = pyarrow.parquet.read_table(path)
    pyarrow.parquet.write_table(table.drop_columns(["margin"]), path)
    with pytest.raises(SkitError, match="damaged: its columns are not those of a trace"):
        TraceFile(path)


def test_rows_that_do_not_fit_the_header_are_refused(tmp_path: Path, header, traces):
    path = with_header(write(tmp_path / "t.parquet", header, traces), max_draft=MAX_DRAFT - 1)
    with pytest.raises(SkitError, match="is damaged: cannot reshape"):
        list(TraceFile(path))


def with_column(path: Path, name: str, change: Callable[[list[object]], None]) -> Path:
    """Return the trace at `path` with other values in one of its columns."""
    table = pyarrow.parquet.read_table(path)
    values = table[name].to_pylist()
    change(values)
    column = table.schema.get_field_index(name)
    changed = table.set_column(
        column, table.schema.field(column), pyarrow.array(values, table.schema.field(column).type)
    )
    pyarrow.parquet.write_table(changed, path)
    return path


def set_first(value: object) -> Callable[[list[object]], None]:
    return lambda values: values.__setitem__(0, value)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("request_id", set_first(None), "column request_id holds null"),
        ("output_ids", set_first(None), "column output_ids holds null"),
        ("drafted", lambda values: values[0].__setitem__(3, None), "column drafted holds null"),
        ("entropy", lambda values: values[0].__setitem__(3, None), "column entropy holds null"),
        (
            "entropy",
            lambda values: values[0].__setitem__(3, float("nan")),
            "statistics that are no numbers",
        ),
        ("prompt_ids", set_first([]), "has no prompt or no output"),
        ("prompt_ids", set_first([5, -2]), "holds a negative token"),
        ("finish_reason", set_first("tired"), "finished for the reason 'tired', not eos or length"),
        ("continuation", lambda values: values[0].clear(), "ends before the capacity of 96 tokens"),
    ],
)
def test_columns_that_hold_no_trace_are_one_line(
    name, change, reason, tmp_path: Path, header, traces
):
    path = write(tmp_path / "t.parquet", structs.replace(header, capacity=96), traces)
    with pytest.raises(
        SkitError, match=rf"^the trace .* is damaged: .*{reason}.*; record it again$"
    ):
        list(TraceFile(with_column(path, name, change)))


@pytest.mark.parametrize("run", [{}, {"models": None}, {"models": {"target": {"hash": "a"}}}])
def test_a_trace_that_does_not_say_its_models_is_one_line(run, tmp_path: Path, header, traces):
    path = write(
        tmp_path / "t.parquet",
        structs.replace(header, run={"dataset": {"name": "d"}, **run}),
        traces,
    )
    with pytest.raises(
        SkitError,
        match=r"^the trace .* does not say its models (target|draft) hash: record it again$",
    ):
        bench_replay(BenchSettings(("fixed-k",), out=tmp_path / "out"), path, print)


def test_no_changed_byte_goes_unnoticed(tmp_path: Path, header, traces):
    """Each page has a checksum: a flipped bit anywhere in the data is a one-line error, never a wrong number."""
    path = write(tmp_path / "t.parquet", header, traces)
    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    damaged = 0
    for offset in np.random.default_rng(0).integers(4, footer, 60):
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 16]) + content[offset + 1 :])
        try:
            same_traces(TraceFile(path), traces)
        except SkitError as error:
            damaged += "is damaged: " in str(error) and "\n" not in str(error)
    assert damaged > 40


def same_traces(read: Iterable[RequestTrace], wrote: Iterable[RequestTrace]) -> None:
    for read_trace, written_trace in zip(read, wrote, strict=True):
        for field in fields(RequestTrace):
            read_value, written_value = (
                getattr(read_trace, field.name),
                getattr(written_trace, field.name),
            )
            if isinstance(written_value, np.ndarray):
                assert np.array_equal(read_value, written_value)
            else:
                assert read_value == written_value


def test_a_full_disk_is_one_line_and_leaves_no_file(tmp_path: Path, header, traces):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(SkitError, match=r"cannot write .*File too large"):
            write(tmp_path / "t.parquet", header, traces)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_writing_holds_one_group_of_requests(tmp_path: Path, header, traces):
    """Memory does not grow with the number of row groups."""

    def peak(count: int) -> int:
        tracemalloc.start()
        write(
            tmp_path / "t.parquet",
            header,
            (replace(traces[0], request_id=str(i)) for i in range(count)),
        )
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak_bytes

    peak(ROWS_PER_GROUP)
    assert peak(10 * ROWS_PER_GROUP) < 1.5 * peak(ROWS_PER_GROUP)


def test_steps_are_timed_for_every_length_and_leave_the_runners_as_they_were(models):
    runners = make_runner(models[0], 1, 96), make_runner(models[1], 1, 96)
    for prefix in ([5], list(range(1, 60))):
        draft_s, verify_s, timed = measure_steps(*runners, prefix, MAX_DRAFT)
        assert len(verify_s) == MAX_DRAFT + 1
        assert min(draft_s, *verify_s) > 0
        assert [
            min(timings) <= step_s <= max(timings)
            for timings, step_s in zip(timed, (draft_s, *verify_s), strict=True)
        ]
    assert [runner.length(runner.acquire()) for runner in runners] == [0, 0]


def test_a_method_that_wants_longer_drafts_than_recorded_is_refused(header, traces):
    with pytest.raises(SkitError, match="--max-draft"):
        list(replay(parse_method("fixed-k:k=7"), header, traces))


def test_recorded_statistics_are_those_of_the_draft_model(models, traces):
    trace = traces[0]
    for offset in (0, 5, len(trace.output_ids) - 1):
        prefix = trace.prompt_ids + trace.output_ids[:offset]
        for position in range(MAX_DRAFT):
            logits = plain_logits(models[1], prefix)[-1]
            probabilities = logits.softmax(-1)
            top = probabilities.topk(2).values
            assert int(logits.argmax()) == trace.drafted[offset, position]
            expected = [
                top[0],
                -(probabilities * probabilities.log()).sum(),
                top[0] - top[1],
                logits.std(correction=0),
                top[0],
            ]
            assert trace.statistics[offset, position].tolist() == pytest.approx(
                [float(x) for x in expected], abs=1e-4
            )
            prefix = [*prefix, int(trace.drafted[offset, position])]
