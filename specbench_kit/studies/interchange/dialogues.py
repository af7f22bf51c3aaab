"""Which requests are turns of one dialogue."""

from collections.abc import Sequence

from specbench_kit.decoding.records import RequestRecord

SLACK = 4
"""Tokens at the end of a prompt that may be cut differently once an answer follows."""


def dialogues(records: Sequence[RequestRecord]) -> dict[str, list[RequestRecord]]:
    """Records of one repeat by prompt id, turns in order.

    The turns of dialogue `d` are called `d/1`, `d/2`, and so on; an id of a single turn may look the same, so a second
    turn must go on from the first one's prompt.
    """
    by_id = {record.request_id: record for record in records}
    found: dict[str, list[RequestRecord]] = {}
    for record in records:
        name, _, turn = record.request_id.rpartition("/")
        first, second = by_id.get(f"{name}/1"), by_id.get(f"{name}/2")
        if name and turn.isdigit() and first and second and _goes_on(first, second):
            found.setdefault(name, []).append(record)
        else:
            found[record.request_id] = [record]
    return {name: sorted(turns, key=_turn) for name, turns in found.items()}


def _goes_on(first: RequestRecord, second: RequestRecord) -> bool:
    start = first.prompt_ids[: max(0, len(first.prompt_ids) - SLACK)]
    return second.prompt_ids[: len(start)] == start


def _turn(record: RequestRecord) -> int:
    turn = record.request_id.rpartition("/")[2]
    return int(turn) if turn.isdigit() else 1
