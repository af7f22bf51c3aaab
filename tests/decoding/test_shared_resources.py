"""What the requests of a batch share under a deployment, and what each pays for alone, in milliseconds by hand."""

from dataclasses import replace

import pytest
from test_shares_of_a_batch import HEADER, SCENE, trace

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.base import Deployment
from specbench_kit.methods.fixed_k import FixedK
from specbench_kit.methods.spec import parse_method
from specbench_kit.traces.replay import replay
from specbench_kit.traces.trace import RequestTrace

ON_SERVER = replace(SCENE, placement="server", predictor_s=None)
WITH_BYTES = replace(SCENE, link=replace(SCENE.link, draft_bytes=16.0))
"""A drafted token takes 4 + 16 bytes on the way up, which is 50 ms at 400 bytes per second."""


def rounds(
    deployment: Deployment, *traces: RequestTrace, method: str = "fixed-k:k=3", size: int = 1
) -> list[RequestRecord]:
    records = replay(parse_method(method), HEADER, traces, deployment=deployment, batch_size=size)
    return sorted(records, key=lambda record: record.request_id)


def total_ms(records: list[RequestRecord], phase: str, number: int = 0) -> float:
    return 1000 * sum(getattr(record.rounds[number], f"{phase}_s") for record in records)


@pytest.mark.parametrize("right", [0, 1, 3])
@pytest.mark.parametrize("size", [1, 2])
def test_bytes_beside_a_draft_token_are_sent_for_all_that_is_submitted(right: int, size: int) -> None:
    """Three drafted tokens take 3 x 40 ms more, accepted or not, alone and in a batch; none are sent from a server."""
    pair = [trace(name, 4, [right, 0, 0, 0, 0, 0], [3] * 6) for name in "ab"]
    plain, heavy = (rounds(deployment, *pair, size=size) for deployment in (SCENE, WITH_BYTES))
    assert [record.rounds[0].accepted for record in heavy] == [right] * 2
    assert total_ms(heavy, "link") - total_ms(plain, "link") == pytest.approx(2 * 3 * 40)
    assert 1000 * (heavy[0].rounds[0].end_s - plain[0].rounds[0].end_s) == pytest.approx(3 * 40)
    near, near_heavy = (rounds(replace(where, placement="server"), *pair, size=size) for where in (SCENE, WITH_BYTES))
    assert near_heavy == near


def test_a_batch_queues_for_as_long_as_all_its_requests_wait() -> None:
    """Prompts of 4, 9 and 14 tokens are there at 12 + 30 + 50 + 70 ms and so on: 65 and 130 ms before the last one."""
    traces = [trace(name, length, [0], [3]) for name, length in (("a", 4), ("b", 9), ("c", 14))]
    # Each 5 tokens more take 5 ms of prefill and 50 ms on the way up.
    records = rounds(SCENE, *traces, size=3)
    assert total_ms(records, "queue") == pytest.approx(110 + 55)


def test_a_prompt_on_a_shared_drafter_holds_the_others_up() -> None:
    """b joins as a second request: a has nothing to compute but a step, and waits for b's prompt before it."""
    traces = [trace("a", 4, [0, 0], [3, 3]), trace("b", 9, [0], [3])]
    one = FixedK(1)
    alone = list(replay(one, HEADER, traces[:1], deployment=ON_SERVER, batch_size=2))
    # a alone: prompt 9 + 3 and one step 9 + 1, up 4 tokens 90, verification 100 + 10 x 5, down one token 70.
    assert 1000 * alone[0].rounds[0].end_s == pytest.approx(12 + 10 + 90 + 150 + 70)
    both = sorted(replay(one, HEADER, traces, deployment=ON_SERVER, batch_size=2), key=lambda record: record.request_id)
    # Both: prompts 12 and 17, a step over two tokens 9 + 2, up 9 tokens 140, verification 100 + 10 x (5 + 10), down 70.
    assert [1000 * record.rounds[0].end_s for record in both] == pytest.approx([12 + 17 + 11 + 140 + 250 + 70] * 2)
