"""A live run and a replay of its trace agree under a deployment: in every decision, and in every second."""

import pytest
from msgspec import structs
from tiny_models import (
    AUTOREGRESSIVE,
    clear_prompts,
    decode,
    disturbed,
    make_requests,
    make_runner,
    tiny_llama,
    with_references,
)

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.loading import load
from specbench_kit.methods.spec import parse_method
from specbench_kit.traces.recording import TraceRecorder, slot_length
from specbench_kit.traces.replay import replay
from specbench_kit.traces.trace import RequestTrace, TraceHeader

MAX_DRAFT, NEW_TOKENS, BATCH = 5, 16, 3
HEADER = TraceHeader(MAX_DRAFT, 0.001, (0.01,) * (MAX_DRAFT + 1), {})
METHODS = ["autoregressive", "fixed-k:k=5", "threshold:max_draft=5", "oracle:max_draft=5"]
Decisions = dict[str, list[tuple[int, int, int, int]]]


@pytest.fixture(scope="module")
def models():
    target = tiny_llama()
    return target, disturbed(target, 0.03)


@pytest.fixture(scope="module")
def answers(models) -> dict[str, RequestRecord]:
    requests = make_requests(clear_prompts(models[0], (3, 7, 12, 1, 20), NEW_TOKENS), NEW_TOKENS)
    return decode(
        AUTOREGRESSIVE, (make_runner(models[0], 3, 64), make_runner(models[1], 3, 64)), requests
    )


@pytest.fixture(scope="module")
def traces(models, answers) -> list[RequestTrace]:
    draft = make_runner(models[1], 1, slot_length(20, NEW_TOKENS, MAX_DRAFT))
    recorder = TraceRecorder(make_runner(models[0], 1, 64), draft, MAX_DRAFT)
    return [recorder.trace(answers[name]) for name in sorted(answers)]


def live(spec: str, models, answers, deployment_name: str) -> dict[str, RequestRecord]:
    prompts = [answers[name].prompt_ids for name in sorted(answers)]
    requests = with_references(make_requests(prompts, NEW_TOKENS), answers)
    runners = (make_runner(models[0], BATCH, 64), make_runner(models[1], BATCH, 64))
    return decode(
        parse_method(spec), runners, requests, batch_size=BATCH, deployment=load(deployment_name)
    )


def decisions(records: dict[str, RequestRecord]) -> Decisions:
    return {
        name: [
            (step.drafted, step.submitted, step.accepted, step.committed) for step in record.rounds
        ]
        for name, record in records.items()
    }


@pytest.mark.parametrize("spec", METHODS)
@pytest.mark.parametrize("name", ["raspberry-pi", "adaspec-l40"])
def test_a_replay_takes_the_time_of_the_live_run(
    spec: str, name: str, models, answers, traces
) -> None:
    decoded = live(spec, models, answers, name)
    shared = {"deployment": load(name), "batch_size": BATCH}
    replayed = {
        record.request_id: record for record in replay(parse_method(spec), HEADER, traces, **shared)
    }
    for record in decoded.values():
        record.rounds = [
            structs.replace(step, padded=[]) for step in record.rounds
        ]  # a replay has no batches
    assert replayed == decoded


@pytest.mark.parametrize("spec", [spec for spec in METHODS if not parse_method(spec).is_bound])
def test_decisions_that_do_not_read_the_clock_are_those_of_a_measured_run(
    spec: str, models, answers
) -> None:
    measured, modelled = (live(spec, models, answers, name) for name in ("local", "raspberry-pi"))
    assert decisions(measured) == decisions(modelled)
    assert {name: record.output_ids for name, record in measured.items()} == {
        name: record.output_ids for name, record in modelled.items()
    }
    assert {record.time_kind for record in measured.values()} == {"measured"}
    assert {record.time_kind for record in modelled.values()} == {"modelled"}
