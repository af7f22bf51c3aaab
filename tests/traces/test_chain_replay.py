"""The fast replay of chains equals the replay by the engine, to the last bit."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from environments import ENVIRONMENT
from msgspec import structs
from tiny_predictors import confidence_predictor
from trace_builders import DRAFT_S, MAX_DRAFT, VERIFY_S, made_request, made_requests

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.policy import Policy
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.timeline import Timeline
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.loading import load
from specbench_kit.methods.base import Method
from specbench_kit.methods.spec import parse_method
from specbench_kit.traces.replay import recording_deployment, replay
from specbench_kit.traces.trace import RequestTrace, TraceHeader

HEADER = TraceHeader(MAX_DRAFT, DRAFT_S, VERIFY_S, {}, statistics_s=1e-5)
SPECS = [
    "autoregressive",
    "fixed-k:k=1",
    "fixed-k:k=6",
    "threshold:threshold=0.6,max_draft=6",
    "threshold:threshold=0.6,max_draft=3",
    "margin:threshold=0.5,max_draft=6",
    "entropy-change:threshold=0.3,max_draft=6",
    "wisp:predictor=PREDICTOR,max_draft=6",
    "wisp:predictor=PREDICTOR,max_draft=2,send_last=true",
    "wisp:predictor=PREDICTOR,max_draft=6,operating_point=0.2,score=cumulative",
]


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return confidence_predictor(tmp_path_factory.mktemp("predictor"))


@pytest.fixture(scope="module")
def traces() -> list[RequestTrace]:
    """Return traces with a prompt of one token, an answer of one token, and answers up to the context's end."""
    shortest = made_request("one", 1, prompt=(7,), seed=8)
    return [
        *made_requests(3),
        shortest,
        made_request("full", 30, spare=1, seed=9),
        made_request("more", 30, seed=10),
    ]


def places() -> Iterator[Deployment]:
    yield recording_deployment(HEADER)
    for name in ("raspberry-pi", "adaspec-l40", "wisp"):
        deployment = load(name)
        assert deployment is not None
        yield deployment
        yield replace(deployment, link=replace(deployment.link, jitter_s=0.01), predictor_s=1e-4)


def through_the_loop(
    method: Method, traces: list[RequestTrace], place: Deployment, monkeypatch: pytest.MonkeyPatch
) -> list[RequestRecord]:
    with monkeypatch.context() as patch:
        for kind in type(method.policy()).__mro__:
            if issubclass(kind, Policy) and "stop_rule" in vars(kind):
                patch.setattr(kind, "stop_rule", None)
        return list(replay(method, HEADER, traces, deployment=place))


@pytest.mark.parametrize("spec", SPECS)
def test_both_ways_agree_in_every_round_and_second(spec, predictor, traces, monkeypatch) -> None:
    method = parse_method(spec.replace("PREDICTOR", str(predictor))).prepare(ENVIRONMENT)
    assert method.policy().stop_rule is not None
    for deployment in places():
        looped = through_the_loop(method, traces, deployment, monkeypatch)
        assert list(replay(method, HEADER, traces, deployment=deployment)) == looped


@pytest.mark.parametrize(
    "spec",
    [
        "oracle",
        "threshold:schedule=heuristic,max_draft=3",
        "threshold:adaptive=true,max_draft=6",
        "threshold:unit=batch",
    ],
)
def test_a_policy_with_a_memory_takes_the_loop(spec: str) -> None:
    assert parse_method(spec).policy().stop_rule is None


def test_a_timeline_is_kept_where_it_is_asked_for(traces) -> None:
    timeline = Timeline()
    method = parse_method("fixed-k")
    assert list(replay(method, HEADER, traces, timeline=timeline)) == list(
        replay(method, HEADER, traces)
    )
    assert timeline.spans


@pytest.mark.parametrize("spec", ["fixed-k:k=7", "threshold:threshold=0,max_draft=7"])
def test_drafts_beyond_the_record_are_refused(spec: str, traces, monkeypatch) -> None:
    method = parse_method(spec)
    option = type(method).draft_limit
    with pytest.raises(SkitError, match="drafts of 6 tokens and the method wants more") as quick:
        list(replay(method, HEADER, traces))
    assert str(quick.value).endswith(
        f": record the trace with a larger --max-draft, or set {option} to 6 or less"
    )
    with pytest.raises(SkitError) as looped:
        through_the_loop(method, traces, recording_deployment(HEADER), monkeypatch)
    assert str(quick.value) == str(looped.value)


def test_a_draft_that_is_right_beyond_the_answer_is_refused() -> None:
    """If the header says that there was room, the recorded answer must continue."""
    trace = made_request("short", 12, spare=0, seed=3)
    trace.drafted[-1, 0] = trace.output_ids[-1]
    with pytest.raises(
        SkitError,
        match=r"tokens beyond the recorded answer: record .* --max-draft, or take another method",
    ):
        list(replay(parse_method("fixed-k:k=1"), structs.replace(HEADER, capacity=64), [trace]))
