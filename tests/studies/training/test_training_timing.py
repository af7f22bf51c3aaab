"""The modelled time that thresholds are chosen by is the time of a replay."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from environments import DEPLOYMENT
from msgspec import structs
from trace_builders import DRAFT_S, MAX_DRAFT, VERIFY_S, made_requests, write_trace

from specbench_kit.deployments.base import Deployment
from specbench_kit.methods.spec import parse_method
from specbench_kit.studies.training.contenders import Contender
from specbench_kit.studies.training.offsets import Offsets, read_offsets
from specbench_kit.studies.training.rounds import fixed_length, play
from specbench_kit.studies.training.timing import Timing
from specbench_kit.traces.replay import replay
from specbench_kit.traces.trace import TraceFile

CACHED = replace(DEPLOYMENT, cached_prompts=True)
NARROW = replace(CACHED, link=replace(CACHED.link, up_bytes_per_s=1e5, down_bytes_per_s=2e5))
DEPLOYMENTS = [None, CACHED, NARROW, replace(NARROW, placement="server")]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> TraceFile:
    return write_trace(tmp_path_factory.mktemp("trace") / "t.parquet", made_requests(12))


@pytest.fixture(scope="module")
def offsets(trace: TraceFile) -> Offsets:
    return read_offsets(trace)


def timing(trace: TraceFile, offsets: Offsets, deployment: Deployment | None) -> Timing:
    return Timing.of(trace.header, deployment, round(float(offsets.context.mean())))


def test_without_a_deployment_it_is_the_recorded_time(trace: TraceFile) -> None:
    header = structs.replace(trace.header, statistics_s=1e-5)
    assert Timing.of(header, None, 100) == Timing(DRAFT_S, VERIFY_S, 1e-5, origin="timed alone")


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
@pytest.mark.parametrize("count", [0, 1, 4, MAX_DRAFT])
def test_rounds_take_as_long_as_in_a_replay(
    count: int, deployment: Deployment | None, trace: TraceFile, offsets: Offsets
) -> None:
    """Up to what is left out: how contexts spread about their mean, answers to partly accepted drafts, prompts."""
    kind = "fixed" if count else "plain"
    contender = Contender("any", kind, 0.0, partial(fixed_length, count=count))
    rounds = play(offsets, contender.plan(offsets))
    seconds = contender.seconds(rounds, timing(trace, offsets, deployment))
    method = parse_method(f"fixed-k:k={count}" if count else "autoregressive")
    records = list(replay(method, trace.header, trace, deployment=deployment))
    expected = sum(record.e2e_s or 0.0 for record in records)
    assert float(np.sum(seconds)) == pytest.approx(expected, rel=0.05 if deployment else 1e-9)


def test_judging_takes_what_the_deployment_says_score_included(
    trace: TraceFile, offsets: Offsets
) -> None:
    cached = timing(trace, offsets, replace(CACHED, predictor_s=3e-4))
    assert (cached.statistics_s, cached.adds_scores) == (3e-4, False)
