"""Rounds as columns: requests without rounds, rounds that know each token's moment."""

import numpy as np
import pytest
from metric_records import record, round_of

from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.metrics.acceptance import RATIOS, acceptance_by_position, counts, ratios
from specbench_kit.metrics.latency import inter_token_gaps
from specbench_kit.metrics.rounds import RequestGroup, RoundColumns


def piped(*commits_s: float, **fields: float) -> RoundRecord:
    """Return a pipeline's round that committed a token at each of these moments."""
    round_record = round_of(9, accepted=len(commits_s) - 1, end_s=commits_s[-1], **fields)
    round_record.commits_s, round_record.steps = list(commits_s), len(commits_s)
    return round_record


def test_gaps_lie_between_the_tokens_of_one_request() -> None:
    first = record("a", piped(1.0, 1.5), piped(3.0))
    second = record("b", piped(7.0), piped(7.25, 8.0))
    assert inter_token_gaps(RoundColumns([first, second])).tolist() == [0.5, 1.5, 0.25, 0.75]


def test_gaps_of_rounds_that_end_at_once() -> None:
    chains = [
        record(
            name,
            round_of(1, end_s=start_s),
            round_of(1, accepted=1, end_s=start_s + 1),
            round_of(0, end_s=9.0),
        )
        for name, start_s in (("a", 1.0), ("b", 4.0))
    ]
    assert inter_token_gaps(RoundColumns(chains)).tolist() == [0.5, 0.5, 7.0, 0.5, 0.5, 4.0]


def test_a_burst_among_single_tokens_is_shared_out_and_an_empty_one_is_none() -> None:
    empty = round_of(0, end_s=2.5)
    empty.committed = 0
    request = record("a", piped(1.0), empty, round_of(1, accepted=1, end_s=4.0))
    assert inter_token_gaps(RoundColumns([request])).tolist() == [1.5, 1.5]


def test_no_rounds_have_no_gaps() -> None:
    assert inter_token_gaps(RoundColumns([])).tolist() == []
    assert RequestGroup([]).makespan_s == 0.0


def test_a_request_without_rounds_counts_as_one_of_nothing() -> None:
    bare = RequestRecord("b", "test", [1], [], finish_reason="eos")
    rounds = RoundColumns([record("a", round_of(3, accepted=2), round_of(1)), bare])
    assert rounds.per_request("submitted").tolist() == [4.0, 0.0]
    assert rounds.per_unit("submitted", {"a": 0, "b": 1}).tolist() == [4.0, 0.0]
    assert (
        counts(RequestGroup([record("a", round_of(3, accepted=2), round_of(1)), bare]))["finished"]
        == 2
    )


def test_a_pipelines_round_that_does_not_say_its_depth_reached_what_it_accepted() -> None:
    deep = piped(1.0, 1.5, 2.0)  # nine nodes in flight, of which two were accepted
    chain = round_of(4, accepted=1)
    acceptance = acceptance_by_position(RoundColumns([record("a", deep), record("b", chain)]))
    assert acceptance["acceptance_at"] == [1.0, 1 / 2, 0.0, 0.0]
    assert acceptance["acceptance_at_conditional"] == [1.0, 1 / 2, None, None]


def test_ratios_and_their_intervals_are_over_prompts() -> None:
    requests = [record(f"{n}", round_of(4, accepted=n % 5)) for n in range(12)]
    pooled_ratios = ratios(RoundColumns(requests))
    accepted = np.arange(12) % 5
    assert pooled_ratios["acceptance_rate"] == accepted.sum() / 48
    low, high = pooled_ratios["intervals"]["acceptance_rate"]
    assert low < pooled_ratios["acceptance_rate"] < high
    assert pooled_ratios["intervals"].keys() == RATIOS.keys()
    assert {"acceptance_length", "acceptance_rate", "draft_efficiency"} <= RATIOS.keys()


def test_categories_in_order_of_their_first_request() -> None:
    requests = [record(name, round_of(1)) for name in "abc"]
    for request, category in zip(requests, ("maths", "chat", "maths"), strict=True):
        request.category = category
    parts = RequestGroup(requests).categories
    assert {
        name: [request.request_id for request in part.records] for name, part in parts.items()
    } == {
        "maths": ["a", "c"],
        "chat": ["b"],
    }
    assert list(parts) == ["maths", "chat"]
    assert RequestGroup(requests[1:2]).categories == {"chat": RequestGroup(requests[1:2])}


@pytest.mark.parametrize("name", ["commits_s", "count", "requests", "names"])
def test_columns_hold_every_round_of_every_request(name: str) -> None:
    rounds = RoundColumns([record("a", piped(1.0, 2.0), round_of(2)), record("b", round_of(1))])
    expected = {"commits_s": [[1.0, 2.0], [], []], "count": 3, "requests": 2, "names": ["a", "b"]}
    assert getattr(rounds, name) == expected[name]
    assert rounds.request.tolist() == [0, 0, 1]
