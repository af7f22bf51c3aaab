"""Lines of `requests.jsonl`: what is written is what is read, and what is wrong is said."""

import json
from dataclasses import replace
from typing import Any

import pytest

from specbench_kit.decoding.json_fields import all_checked, checked
from specbench_kit.decoding.records import MAY_BE_UNKNOWN, RequestRecord, RoundRecord

ROUND = RoundRecord(4, 3, 2, 3, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 2.8, 1, True, 1, 2, [2.6, 2.7, 2.8])
RECORD = RequestRecord("q1", "chat", [1, 2], [3, 4, 5], "für", "eos", None, 2.6, 2.8, 0.1, 9.5, "modelled", 2, [ROUND])


def test_a_record_survives_its_line() -> None:
    line = RECORD.to_json()
    assert "\n" not in line
    assert "für" in line
    assert RequestRecord.from_json(line) == RECORD
    assert RequestRecord.from_json(line.encode()) == RECORD
    assert RequestRecord.from_dict(json.loads(line)) == RECORD


def test_a_line_says_what_was_expected_only_where_something_was() -> None:
    told = replace(RECORD, rounds=[replace(ROUND, expected=1.25)])
    assert "expected" not in RECORD.to_json()
    assert json.loads(told.to_json())["rounds"][0]["expected"] == 1.25
    both = replace(RECORD, rounds=[ROUND, *told.rounds])
    assert [RequestRecord.from_json(one.to_json()) for one in (told, both)] == [told, both]


def test_what_a_newer_kit_adds_is_passed_over() -> None:
    fields = json.loads(RECORD.to_json())
    fields["mood"], fields["rounds"][0]["mood"] = "good", "good"
    assert RequestRecord.from_dict(fields) == RECORD


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": None}, "^rounds must be a list"),
        ({"rounds": {"drafted": 1}}, "^rounds must be a list, not "),
        ({"rounds": [{**json.loads(RECORD.to_json())["rounds"][0]}, 7]}, "^round 2: "),
        ({"rounds": [{"drafted": 1}]}, "^round 1: .*is missing"),
        ({"prompt_ids": None}, "prompt_ids"),
        ({"finish_reason": "bored"}, "finish_reason must be one of eos, length, error"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RequestRecord.from_dict(json.loads(RECORD.to_json()) | change)


STRANGE = [None, True, -1, 0, 1.5, 1e16, float("inf"), float("nan"), 2**63, "x", [], [1], [1.0], [None], [1e999], {}]


def test_the_quick_look_at_many_rounds_lets_nothing_through() -> None:
    """It may send one to the close look in vain, but not for what a run writes."""
    written = json.loads(RECORD.to_json())["rounds"] * 3
    assert all_checked(RoundRecord, written, MAY_BE_UNKNOWN)
    quick = []
    for name, value in ((name, value) for name in written[0] for value in STRANGE):
        changed = [written[0], written[1] | {name: value}, written[2]]
        if all_checked(RoundRecord, changed, MAY_BE_UNKNOWN):
            quick.append((name, value))
            assert [checked(RoundRecord, one, MAY_BE_UNKNOWN) for one in changed] == changed
    assert ("drafted", None) in quick
    assert ("path", []) in quick
    assert not all_checked(RoundRecord, [*written, {}, 7], MAY_BE_UNKNOWN)


def test_a_record_without_rounds_is_incomplete() -> None:
    fields = json.loads(RECORD.to_json())
    del fields["rounds"]
    with pytest.raises(ValueError, match="rounds is missing"):
        RequestRecord.from_dict(fields)


@pytest.mark.parametrize("fields", [None, [], "text", {}])
def test_other_values_hold_no_record(fields: Any) -> None:
    with pytest.raises(ValueError, match=r"must|missing|not"):
        RequestRecord.from_dict(fields)


def test_tokens_and_seconds_of_another_tool_may_be_unknown() -> None:
    fields = json.loads(RECORD.to_json()) | {"output_ids": [None, 4, 5]}
    fields["rounds"][0] |= {"drafted": None, "draft_s": None, "end_s": None}
    record = RequestRecord.from_dict(fields)
    assert not record.has_token_ids
    assert RECORD.has_token_ids
    fields["rounds"][0]["accepted"] = None
    with pytest.raises(ValueError, match="round 1: accepted"):
        RequestRecord.from_dict(fields)


def test_no_number_that_is_not_finite_is_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        RequestRecord("q1", "chat", [1], ttft_s=float("inf")).to_json()


def test_keys_and_first_tokens() -> None:
    assert RECORD.key == ("q1", 2)
    assert ROUND.first_s == 2.6
    assert RoundRecord(0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1.5).first_s == 1.5
