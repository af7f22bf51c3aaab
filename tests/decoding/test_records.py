"""Lines of `requests.jsonl`: what is written is what is read, and what is wrong is said."""

import json

import pytest
from msgspec.structs import replace

from specbench_kit.decoding.records import MAY_BE_UNKNOWN, RequestRecord, RoundRecord

ROUND = RoundRecord(
    4, 3, 2, 3, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 2.8, 1, True, 1, 2, [2.6, 2.7, 2.8]
)
RECORD = RequestRecord(
    "q1", "chat", [1, 2], [3, 4, 5], "für", "eos", None, 2.6, 2.8, 0.1, 9.5, "modelled", 2, [ROUND]
)


def test_a_record_survives_its_line() -> None:
    line = RECORD.to_json()
    assert "\n" not in line
    assert "für" in line
    assert RequestRecord.from_json(line) == RECORD
    assert RequestRecord.from_json(line.encode()) == RECORD
    assert RequestRecord.from_document(json.loads(line)) == RECORD


def test_a_line_says_what_was_expected_only_where_something_was() -> None:
    expecting = replace(RECORD, rounds=[replace(ROUND, expected=1.25)])
    assert "expected" not in RECORD.to_json()
    assert json.loads(expecting.to_json())["rounds"][0]["expected"] == 1.25
    mixed = replace(RECORD, rounds=[ROUND, *expecting.rounds])
    assert [RequestRecord.from_json(record.to_json()) for record in (expecting, mixed)] == [
        expecting,
        mixed,
    ]


def test_what_a_newer_kit_adds_is_passed_over() -> None:
    fields = json.loads(RECORD.to_json())
    fields["mood"], fields["rounds"][0]["mood"] = "good", "good"
    assert RequestRecord.from_document(fields) == RECORD


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": None}, "^rounds must be a list, not null"),
        ({"rounds": {"drafted": 1}}, '^rounds must be a list, not {"drafted": 1}$'),
        (
            {"rounds": [{**json.loads(RECORD.to_json())["rounds"][0]}, 7]},
            r"^rounds\[1\] must be an object, not 7$",
        ),
        ({"rounds": [{"drafted": 1}]}, r"^rounds\[0\]\.submitted is missing"),
        ({"prompt_ids": None}, "^prompt_ids must be a list, not null"),
        (
            {"finish_reason": "bored"},
            '^finish_reason must be "eos" or "error" or "length", not "bored"$',
        ),
        ({"request_id": 7}, "^request_id must be text, not 7$"),
        ({"e2e_s": float("nan")}, "^e2e_s must be a number"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RequestRecord.from_document(json.loads(RECORD.to_json()) | change)


STRANGE = [
    True,
    -1,
    1.5,
    1e16,
    float("inf"),
    float("nan"),
    2**63,
    "x",
    [],
    [1.5],
    [None],
    [-1],
    [2**63],
    {},
]
COUNTS = (
    "drafted",
    "submitted",
    "accepted",
    "committed",
    "proactive",
    "reused",
    "steps",
    "deepest",
)
SECONDS = (
    "prefill_s",
    "draft_s",
    "policy_s",
    "link_s",
    "queue_s",
    "verify_s",
    "commit_s",
    "end_s",
    "expected",
)


@pytest.mark.parametrize("value", STRANGE, ids=repr)
@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        (COUNTS, []),
        (SECONDS, [-1, 1.5]),
        (("parents", "path", "padded"), [[]]),
        (("commits_s",), [[], [1.5], [-1]]),
        (("aligned",), [True]),
    ],
)
def test_no_wrong_value_of_a_round_gets_in(
    names: tuple[str, ...], allowed: list[object], value: object
) -> None:
    for name in names:
        fields = json.loads(RECORD.to_json())
        fields["rounds"][0][name] = value
        if any(value is good or (value == good and type(value) is type(good)) for good in allowed):
            assert getattr(RequestRecord.from_document(fields).rounds[0], name) == value
        else:
            with pytest.raises(ValueError, match=rf"^rounds\[0\]\.{name}"):
                RequestRecord.from_document(fields)


def test_a_record_without_rounds_is_incomplete() -> None:
    fields = json.loads(RECORD.to_json())
    del fields["rounds"]
    with pytest.raises(ValueError, match=r"^rounds is missing$"):
        RequestRecord.from_document(fields)
    with pytest.raises(ValueError, match=r"^rounds is missing$"):
        RequestRecord.from_json(json.dumps(fields))
    assert RequestRecord.from_json(json.dumps({**fields, "rounds": []})).rounds == []


@pytest.mark.parametrize("fields", [None, [], "text", {}])
def test_other_values_hold_no_record(fields: object) -> None:
    with pytest.raises(ValueError, match=r"must|missing|not"):
        RequestRecord.from_document(fields)


def test_tokens_and_seconds_of_another_tool_may_be_unknown() -> None:
    fields = json.loads(RECORD.to_json()) | {"output_ids": [None, 4, 5]}
    fields["rounds"][0] |= dict.fromkeys(MAY_BE_UNKNOWN)
    record = RequestRecord.from_document(fields)
    assert not record.has_token_ids
    assert RECORD.has_token_ids
    fields["rounds"][0]["accepted"] = None
    with pytest.raises(
        ValueError, match=r"^rounds\[0\]\.accepted must be a whole number, not null"
    ):
        RequestRecord.from_document(fields)


def test_no_number_that_is_not_finite_is_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        RequestRecord("q1", "chat", [1], ttft_s=float("inf")).to_json()


def test_keys_and_first_tokens() -> None:
    assert RECORD.key == ("q1", 2)
    assert ROUND.first_s == 2.6
    assert RoundRecord(0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1.5).first_s == 1.5
