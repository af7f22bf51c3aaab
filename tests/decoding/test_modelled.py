"""Modelled time: what each round of a hand-made trace takes under simple latencies, in closed form."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from specbench_kit.decoding.latency import InteractionModel
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.methods.base import Method
from specbench_kit.methods.fixed_k import FixedK
from specbench_kit.methods.spec import parse_method
from specbench_kit.runs.deployment import TOKEN_BYTES, Link
from specbench_kit.traces.replay import replay
from specbench_kit.traces.trace import RequestTrace, TraceHeader

MAX_DRAFT = 3
HEADER = TraceHeader(MAX_DRAFT, 0.001, (0.01,) * (MAX_DRAFT + 1), {})
DRAFT = InteractionModel(a_s=1e-3, b_compute_s=1e-7, b_read_s=2e-5, c_s=1e-2)
VERIFY = InteractionModel(a_s=5e-3, b_compute_s=3e-7, b_read_s=4e-5, c_s=1e-1)
LINK = Link(rtt_s=0.1, up_bytes_per_s=1000, down_bytes_per_s=400)
EDGE = Deployment("edge", Endpoint("board", DRAFT), Endpoint("server", VERIFY), LINK)
SERVER = replace(EDGE, placement="server")
AUTOREGRESSIVE, PAIRS = parse_method("autoregressive"), parse_method("fixed-k:k=2")


@dataclass(frozen=True)
class JudgedFixedK(FixedK):
    """Drafts as fixed-k does, with a predictor that looks at every token."""

    learned = True


def trace(name: str, right: Sequence[int], prompt: int = 4) -> RequestTrace:
    """A request with `prompt` tokens in which the draft at offset t is right for `right[t]` tokens."""
    answer = list(range(100, 100 + len(right) + MAX_DRAFT + 1))
    drafted = np.zeros((len(right), MAX_DRAFT), np.int32)
    for offset, count in enumerate(right):
        drafted[offset, :count] = answer[offset : offset + count]
    statistics = np.full((*drafted.shape, 5), 0.5, np.float32)
    output, continuation = answer[: len(right)], answer[len(right) :]
    return RequestTrace(
        name, "test", list(range(prompt)), output, "length", continuation, drafted, statistics
    )


def run(
    method: Method, deployment: Deployment, *traces: RequestTrace, batch_size: int = 1
) -> dict[str, RequestRecord]:
    records = replay(method, HEADER, traces, deployment=deployment, batch_size=batch_size)
    return {record.request_id: record for record in records}


def draft(*rows: tuple[int, int]) -> float:
    return DRAFT.seconds(rows)


def verify(*rows: tuple[int, int]) -> float:
    return VERIFY.seconds(rows)


def up(tokens: int) -> float:
    return LINK.rtt_s / 2 + tokens * TOKEN_BYTES / LINK.up_bytes_per_s


def down(tokens: int) -> float:
    return LINK.rtt_s / 2 + tokens * TOKEN_BYTES / LINK.down_bytes_per_s


def ends(record: RequestRecord) -> list[float]:
    return [step.end_s for step in record.rounds]


def steps(*seconds: float) -> list[float]:
    return [sum(seconds[: i + 1]) for i in range(len(seconds))]


def total(records: dict[str, RequestRecord], phase: str) -> float:
    return sum(getattr(step, f"{phase}_s") for record in records.values() for step in record.rounds)


def test_an_edge_device_prefills_once_and_forwards_what_its_model_lacks() -> None:
    """All of the first draft is accepted, so that the draft model lacks a token; then none, then one."""
    record = run(PAIRS, EDGE, trace("a", [2, 0, 0, 0, 1, 0]))["a"]
    assert [step.accepted for step in record.rounds] == [2, 0, 1]
    first = draft((3, 0)) + draft((1, 3)) + draft((1, 4)) + up(4 + 2) + verify((6, 0)) + down(3)
    second = draft((2, 5)) + draft((1, 7)) + up(2) + verify((3, 6)) + down(1)
    third = draft((1, 7)) + draft((1, 8)) + up(2) + verify((3, 7)) + down(2)
    assert ends(record) == pytest.approx(steps(first, second, third))
    assert record.rounds[0].prefill_s == pytest.approx(draft((3, 0)))
    assert record.rounds[1].draft_s == pytest.approx(draft((2, 5)) + draft((1, 7)))
    assert record.rounds[1].link_s == pytest.approx(up(2) + down(1))
    assert record.rounds[1].verify_s == pytest.approx(verify((3, 6)))


def test_phases_of_one_request_add_up_to_its_time() -> None:
    record = run(
        JudgedFixedK(3), replace(EDGE, predictor_s=0.004), trace("a", [2, 0, 3, 1, 0, 2, 0, 1, 1])
    )["a"]
    phases = ("prefill", "draft", "policy", "link", "queue", "verify", "commit")
    parts = sum(getattr(step, f"{phase}_s") for step in record.rounds for phase in phases)
    assert record.e2e_s == pytest.approx(parts)
    assert record.finished_s == record.e2e_s
    assert record.time_kind == "modelled"


def test_edge_devices_draft_side_by_side_and_the_batch_waits_for_its_slowest() -> None:
    records = run(
        PAIRS,
        EDGE,
        trace("short", [2, 0, 0], prompt=4),
        trace("long", [1, 0], prompt=9),
        batch_size=2,
    )
    arrivals = {
        "short": draft((3, 0)) + draft((1, 3)) + draft((1, 4)) + up(4 + 2),
        "long": draft((8, 0)) + draft((1, 8)) + draft((1, 9)) + up(9 + 2),
    }
    end = arrivals["long"] + verify((6, 0), (11, 0)) + max(down(3), down(2))
    assert ends(records["short"]) == pytest.approx([end])
    assert ends(records["long"]) == pytest.approx([end])
    assert total(records, "queue") == pytest.approx(arrivals["long"] - arrivals["short"])
    assert total(records, "verify") == pytest.approx(verify((6, 0), (11, 0)))
    apart = [draft((1, 3)), draft((1, 4)), draft((1, 8)), draft((1, 9))]
    assert total(records, "draft") == pytest.approx(sum(apart))
    assert total(records, "link") == pytest.approx(up(6) + up(11) + down(3) + down(2))


def test_on_the_server_a_batch_shares_the_drafter_and_the_link_is_crossed_once() -> None:
    pair = trace("short", [2, 0, 0, 0, 0, 0], prompt=4), trace("long", [2, 0, 0, 0, 0, 0], prompt=9)
    records = run(PAIRS, SERVER, *pair, batch_size=2)
    drafted = draft((1, 3), (1, 8)) + draft((1, 4), (1, 9))
    prefilled = draft((3, 0)) + draft((8, 0))
    first = prefilled + drafted + up(9) + verify((6, 0), (11, 0)) + down(3)
    second = draft((2, 5), (2, 10)) + draft((1, 7), (1, 12)) + verify((3, 6), (3, 11))
    assert ends(records["short"])[:2] == pytest.approx(steps(first, second))
    assert ends(records["long"]) == pytest.approx(ends(records["short"]))
    assert total(records, "prefill") == pytest.approx(prefilled)
    assert sum(record.rounds[0].draft_s for record in records.values()) == pytest.approx(drafted)
    assert total(records, "link") == pytest.approx(up(4) + up(9) + 2 * down(3))


@pytest.mark.parametrize("deployment", [EDGE, SERVER])
def test_autoregressive_serving_crosses_the_link_once(deployment: Deployment) -> None:
    record = run(AUTOREGRESSIVE, deployment, trace("a", [0] * 4))["a"]
    tokens = [verify((1, 4)), verify((1, 5)), verify((1, 6))]
    assert ends(record) == pytest.approx(steps(up(4) + verify((4, 0)) + down(1), *tokens))
    assert record.ttft_s == pytest.approx(up(4) + verify((4, 0)) + down(1))
    assert total({"a": record}, "draft") == total({"a": record}, "prefill") == 0


def test_a_request_that_joins_a_batch_on_the_server_holds_nobody_up() -> None:
    """Its prompt comes up while the others are served: the link adds to its own latency alone."""
    far = replace(EDGE, link=Link(rtt_s=100.0))
    records = run(
        AUTOREGRESSIVE, far, trace("a", [0]), trace("b", [0] * 3), trace("c", [0]), batch_size=2
    )
    served = [verify((4, 0), (4, 0)), verify((4, 0), (1, 4)), verify((1, 5))]
    assert ends(records["b"]) == pytest.approx([100 + seconds for seconds in steps(*served)])
    assert ends(records["c"]) == pytest.approx([100 + served[1]])
    assert records["b"].finished_s == pytest.approx(100 + sum(served))
    assert total(records, "link") == pytest.approx(3 * 100)


@pytest.mark.parametrize("method", [PAIRS, AUTOREGRESSIVE])
def test_requests_of_one_client_follow_each_other(method: Method) -> None:
    records = run(method, EDGE, trace("a", [0, 0]), trace("b", [0, 0]))
    assert records["b"].e2e_s == pytest.approx(records["a"].e2e_s)
    assert records["b"].finished_s == pytest.approx(2 * (records["a"].e2e_s or 0.0))


def test_cached_prompts_take_no_time_but_cross_the_link() -> None:
    record = run(PAIRS, replace(SERVER, cached_prompts=True), trace("a", [0, 0]))["a"]
    first = up(4) + draft((1, 3)) + draft((1, 4)) + verify((3, 3)) + down(1)
    second = draft((1, 4)) + draft((1, 5)) + verify((3, 4))
    assert ends(record) == pytest.approx(steps(first, second))


def test_a_predictor_takes_the_drafting_device_time_for_every_token() -> None:
    """Devices on the edge judge side by side; a shared one judges its batch's tokens one after the other."""
    pair = trace("a", [0]), trace("b", [0])
    for deployment, in_a_row in ((EDGE, 1), (SERVER, 2)):
        judging = replace(deployment, predictor_s=0.004)
        plain, judged = (
            run(JudgedFixedK(3), where, *pair, batch_size=2) for where in (deployment, judging)
        )
        assert total(judged, "policy") == pytest.approx(2 * 3 * 0.004)
        assert judged["a"].e2e_s == pytest.approx((plain["a"].e2e_s or 0.0) + in_a_row * 3 * 0.004)


def test_a_method_without_a_predictor_does_not_pay_for_one() -> None:
    request = trace("a", [1, 0, 2, 0, 0])
    assert run(PAIRS, replace(EDGE, predictor_s=9.0), request) == run(PAIRS, EDGE, request)


def test_jitter_is_the_same_for_one_seed_whatever_else_runs() -> None:
    def with_jitter(seed: int) -> Deployment:
        return replace(EDGE, link=Link(rtt_s=0.1, jitter_s=0.03, seed=seed))

    request, neighbour = trace("a", [1, 0] * 10), trace("b", [0] * 20)
    alone = run(PAIRS, with_jitter(1), request)["a"]
    assert run(PAIRS, with_jitter(1), request)["a"] == alone
    after_another = run(PAIRS, with_jitter(1), neighbour, request)["a"]
    assert [r.link_s for r in after_another.rounds] == pytest.approx(
        [r.link_s for r in alone.rounds]
    )
    assert run(PAIRS, with_jitter(2), request)["a"].e2e_s != alone.e2e_s
    crossings = [r.link_s for r in alone.rounds]
    assert all(0.1 - 0.06 <= seconds <= 0.1 + 0.06 for seconds in crossings)
    assert len(set(crossings)) == len(crossings)


def test_no_message_arrives_before_it_was_sent() -> None:
    restless = replace(EDGE, link=Link(rtt_s=0.01, jitter_s=0.5))
    record = run(PAIRS, restless, trace("a", [0] * 40))["a"]
    assert min(step.link_s for step in record.rounds) >= 0
    assert ends(record) == sorted(ends(record))
