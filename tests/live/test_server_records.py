"""What a server counts, logs and scores for its devices, and what its start leaves behind."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from live_server import CAPACITY, TARGET
from offline_server import device, offline, open_session, read, send_draft, verify
from tiny_models import make_runner

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.scoring import read_rounds
from specbench_kit.live.server import run, scoring
from specbench_kit.live.server.metrics import EventLog
from specbench_kit.live.server.scoring import (
    KEPT_S,
    MOST_OF_ACCOUNT,
    MOST_WAITING,
    OutputScorer,
    ScoringTask,
)
from specbench_kit.live.server.service import LOGGED_REFUSALS, DeviceStream
from specbench_kit.live.wire import Refusal, Status, Up
from specbench_kit.metrics.evidence import choice_of
from specbench_kit.models.executors.base import Forward
from specbench_kit.models.runner import Append


def test_refusals_of_a_stream_are_all_counted_and_some_are_logged(tmp_path: Path) -> None:
    handler = offline()
    handler.log = EventLog(tmp_path / "log.jsonl")
    stream = device(handler)
    for number in range(LOGGED_REFUSALS + 5):
        stream.receive(Up(draft={"session": "none", "round": number}))
        assert read(stream).round == number
    logged = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line.get("further") for line in logged] == [None] * (LOGGED_REFUSALS - 1) + [
        "not logged"
    ]
    counted = handler.metrics.registry.get_sample_value(
        "skit_refused_frames_total", {"status": "UNKNOWN_SESSION"}
    )
    assert counted == LOGGED_REFUSALS + 5


def test_metrics_of_a_batch_are_those_of_its_rounds() -> None:
    handler = offline()
    stream, metrics = device(handler), handler.metrics
    for name in "abc":
        open_session(stream, name)
        send_draft(stream, name)
    verified = verify(handler)
    metrics.count([verified[0]._replace(verdict=None, error="it broke", tokens=()), *verified[1:]])
    names = (
        "rounds",
        "failed_rounds",
        "drafted_tokens",
        "accepted_tokens",
        "committed_tokens",
        "computed_tokens",
    )
    counted = {name: metrics.registry.get_sample_value(f"skit_{name}_total") for name in names}
    # A prompt of six tokens and a draft of two each.
    assert counted == dict(zip(names, (3, 1, 4, 4, 6, 16), strict=True))
    assert metrics.rates(2.0) == (3.0, 3.0)
    assert metrics.rates(2.0) == (0.0, 0.0)


def test_evictions_are_counted_once() -> None:
    metrics = offline().metrics
    for total in (2, 2, 5):
        metrics.evicted(total)
    assert metrics.registry.get_sample_value("skit_evictions_total") == 5


def task(stream: DeviceStream) -> ScoringTask:
    """Return an output that waits to be scored."""
    record = RequestRecord("r", "", [1], [2])
    return ScoringTask("r", record, record, 0, choice_of(Sampler(), 0, "r"), stream, lambda _: None)


@pytest.fixture
def scorer() -> OutputScorer:
    return OutputScorer(make_runner(TARGET, 2, CAPACITY), TARGET)


def test_a_device_has_one_output_in_the_queue_and_a_token_some(scorer: OutputScorer) -> None:
    handler = offline(tokens=tuple("abcdef"))
    first = device(handler, "a")
    scorer.add(task(first))
    with pytest.raises(Refusal, match="IN_FLIGHT"):
        scorer.add(task(first))
    for _ in range(MOST_OF_ACCOUNT - 1):
        scorer.add(task(device(handler, "a")))
    with pytest.raises(Refusal, match=f"OVERLOADED: {MOST_OF_ACCOUNT} outputs wait"):
        scorer.add(task(device(handler, "a")))
    for number in range(MOST_WAITING - MOST_OF_ACCOUNT):
        scorer.add(task(device(handler, "bcdef"[number // MOST_OF_ACCOUNT])))
    with pytest.raises(Refusal, match=f"OVERLOADED: {MOST_WAITING} outputs wait"):
        scorer.add(task(device(handler, "f")))


def test_a_device_that_leaves_ends_its_own_scoring_alone(scorer: OutputScorer) -> None:
    handler = offline()
    stays, leaves, never_scored = (device(handler) for _ in range(3))
    for stream in (stays, leaves):
        scorer.add(task(stream))
    assert [scorer.serves(stream) for stream in (stays, leaves, never_scored)] == [
        True,
        True,
        False,
    ]
    scorer.forget(leaves)
    assert [waiting.cancelled for waiting in scorer.waiting] == [False, True]


def test_what_scoring_holds_is_freed_after_a_while(
    scorer: OutputScorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(scoring, "monotonic_s", lambda: time.seconds)
    scorer._shapes, scorer._used_s = object(), 100.0  # type: ignore[assignment]
    assert scorer.release_idle() == 100.0 + KEPT_S
    assert scorer._shapes is not None
    time.seconds += KEPT_S
    assert scorer.release_idle() == float("inf")
    assert scorer._shapes is None


@pytest.mark.parametrize(
    "shape",
    [
        {"submitted": 2, "accepted": 2, "committed": 3, "parents": [0, 0], "path": [1, 2]},
        {"submitted": 3, "accepted": 2, "committed": 3, "parents": [0, 1, 1], "path": [1, 1]},
        {"submitted": 3, "accepted": 2, "committed": 3, "parents": [0, 1, 1], "path": [2, 3]},
        {"submitted": 1, "accepted": 1, "committed": 3},
        {"submitted": 2, "accepted": 3, "committed": 3},
        {"submitted": 2, "accepted": 1, "committed": 3, "parents": [0, 1], "path": [1]},
    ],
)
def test_rounds_that_cannot_have_committed_their_tokens_are_refused(shape: dict[str, Any]) -> None:
    limits = offline().limits
    good = {"submitted": 3, "accepted": 2, "committed": 3, "parents": [0, 1, 1], "path": [1, 3]}
    scoring._require_rounds(read_rounds([messages.RoundShape(**good)]), 5, 3, limits)
    with pytest.raises(Refusal) as refused:
        scoring._require_rounds(read_rounds([messages.RoundShape(**shape)]), 5, 3, limits)
    assert refused.value.status is Status.BROKEN_TREE


def test_the_times_at_a_start_are_those_of_a_forward_and_of_a_token_and_no_slot_stays_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock says that a forward takes 20 ms, and 3 ms for each of its tokens."""
    runner, time = make_runner(TARGET, 4, CAPACITY), SimpleNamespace(seconds=0.0)
    forward = runner.forward

    def timed(rows: list[Append], *more: object) -> Forward:
        time.seconds += 0.020 + 0.003 * sum(len(row.tokens) for row in rows)
        return forward(rows, *more)

    monkeypatch.setattr(runner, "forward", timed)
    monkeypatch.setattr(run, "monotonic_s", lambda: time.seconds)
    latency = run._time_forwards(runner)
    for new in (1, 10, 30):
        assert latency.seconds([(new, 100)]) == pytest.approx(0.020 + 0.003 * new)
    assert sorted(runner.acquire() for _ in range(4)) == [0, 1, 2, 3]
