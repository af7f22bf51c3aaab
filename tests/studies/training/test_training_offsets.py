"""Traces as flat arrays."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from trace_builders import MAX_DRAFT, made_request, made_requests, write_trace

from specbench_kit.core.errors import SkitError
from specbench_kit.studies.training.offsets import Offsets, read_offsets
from specbench_kit.traces.trace import RequestTrace


@pytest.fixture
def by_hand(tmp_path: Path) -> Offsets:
    """The target says 5 6 7 8 9; it is not known to say more."""
    drafted = np.array([[5, 6, 0], [6, 7, 8], [0, 8, 9]], np.int32)
    table = np.arange(45, dtype=np.float32).reshape(3, 3, 5)
    trace = RequestTrace("one", "test", [1], [5, 6, 7], "eos", [8], drafted, table)
    return read_offsets(write_trace(tmp_path / "t.parquet", [trace]))


def test_drafts_match_up_to_their_first_wrong_token(by_hand: Offsets) -> None:
    assert by_hand.matched.tolist() == [2, 3, 0]
    assert by_hand.remaining.tolist() == [3, 2, 1]
    assert by_hand.judged.tolist() == [3, 3, 2]
    assert by_hand.first.tolist() == [0]


def test_a_shorter_longest_draft_is_as_if_recorded_so(by_hand: Offsets) -> None:
    cut = by_hand.cut(2)
    assert cut.max_draft == 2
    assert (cut.matched.tolist(), cut.judged.tolist()) == ([2, 2, 0], [2, 2, 2])
    np.testing.assert_array_equal(cut.statistics, by_hand.statistics[:, :2])


def test_features_are_the_recorded_statistics_and_the_place_in_the_draft(by_hand: Offsets) -> None:
    features = by_hand.features(("margin", "draft_position"))
    np.testing.assert_array_equal(features[..., 0], by_hand.statistics[..., 2])
    assert features[..., 1].tolist() == [[1, 2, 3]] * 3


def test_requests_keep_their_order_and_lengths(tmp_path: Path) -> None:
    traces = [made_request(str(length), length) for length in (5, 1, 9)]
    offsets = read_offsets(write_trace(tmp_path / "t.parquet", traces))
    assert offsets.first.tolist() == [0, 5, 6]
    assert offsets.request.tolist() == [0] * 5 + [1] + [2] * 9
    assert offsets.conversation.tolist() == offsets.request.tolist()
    assert (len(offsets), offsets.max_draft) == (15, MAX_DRAFT)


def test_turns_of_a_dialogue_are_one_conversation(tmp_path: Path) -> None:
    first = (7, 8, 9, 10)
    turns = [made_request("a/1", prompt=first)]
    turns.append(made_request("a/2", prompt=(7, 8, 9, 11, *turns[0].output_ids, 14)))
    turns.append(made_request("a/3", prompt=(*turns[1].prompt_ids, *turns[1].output_ids, 20, 21)))
    others = [made_request("b/1", prompt=(5, 5, 5, 5)), made_request("a", prompt=first)]
    traces = [turns[0], others[0], *turns[1:], others[1]]
    offsets = read_offsets(write_trace(tmp_path / "t.parquet", traces))
    assert offsets.conversation[offsets.first].tolist() == [0, 1, 0, 0, 2]


def test_prompts_that_are_only_named_like_turns_stay_apart(tmp_path: Path) -> None:
    traces = [
        made_request(f"HumanEval/{n}", prompt=(1, 2, n, n, n, n, *[n] * n)) for n in range(3, 8)
    ]
    offsets = read_offsets(write_trace(tmp_path / "t.parquet", traces))
    assert offsets.conversation[offsets.first].tolist() == [0, 1, 2, 3, 4]


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    empty = write_trace(tmp_path / "empty.parquet", [])
    with pytest.raises(
        SkitError, match=r"empty.parquet is empty: record prompts with 'skit record'"
    ):
        read_offsets(empty)


def test_a_damaged_statistic_is_not_learned_from(tmp_path: Path) -> None:
    (trace,) = made_requests(1)
    table = trace.statistics.copy()
    table[:, 0, 1] = np.nan
    path = write_trace(tmp_path / "t.parquet", [replace(trace, statistics=table)])
    with pytest.raises(SkitError, match="draft statistics that are no numbers; record it again"):
        read_offsets(path)
