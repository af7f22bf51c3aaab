"""Every method that drafts chains runs on a trace, under a deployment; every other says why it does not."""

from pathlib import Path

import pytest
from environments import DEPLOYMENT, ENVIRONMENT
from method_specs import filled_in, specs
from trace_builders import DRAFT_S, VERIFY_S, made_requests

from specbench_kit.drafting.base import Offer
from specbench_kit.errors import SkitError
from specbench_kit.methods.spec import parse_method
from specbench_kit.traces.replay import replay
from specbench_kit.traces.trace import TraceHeader

LONGEST = 40
HEADER = TraceHeader(LONGEST, DRAFT_S, VERIFY_S, {})


def is_chain(spec: str) -> bool:
    method = parse_method(spec)
    return method.pipeline is None and method.asks < Offer.TREES


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return filled_in(tmp_path_factory.mktemp("places"))


@pytest.mark.parametrize("spec", [spec for spec in specs() if is_chain(spec)])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_chain_method_is_replayed(spec: str, batch_size: int, places: dict[str, Path]) -> None:
    method = parse_method(spec.format(**places)).prepare(ENVIRONMENT)
    traces = made_requests(4, max_draft=LONGEST)
    records = list(replay(method, HEADER, traces, deployment=DEPLOYMENT, batch_size=batch_size))
    assert {one.request_id: one.output_ids for one in records} == {one.request_id: one.output_ids for one in traces}
    assert {one.time_kind for one in records} == {"modelled"}
    if method.uses_drafter and method.drafting.models:
        assert sum(step.accepted for one in records for step in one.rounds) > 20


@pytest.mark.parametrize("spec", [spec for spec in specs() if not is_chain(spec)])
def test_another_is_refused_in_one_line(spec: str, places: dict[str, Path]) -> None:
    method = parse_method(spec.format(**places)).prepare(ENVIRONMENT)
    with pytest.raises(SkitError, match="cannot be replayed: run it live"):
        list(replay(method, HEADER, made_requests(1), deployment=DEPLOYMENT))
