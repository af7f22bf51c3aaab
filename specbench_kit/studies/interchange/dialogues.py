"""Grouping requests that are turns of one dialogue."""

from collections.abc import Sequence

from specbench_kit.decoding.records import RequestRecord

SLACK = 4
"""Tokens at the end of a prompt that may be cut differently once an answer follows."""


def dialogues(records: Sequence[RequestRecord]) -> dict[str, list[RequestRecord]]:
    """Return the records of one repeat by prompt id, turns in order.

    The turns of dialogue `d` are named `d/1`, `d/2`, and so on; an id of a single turn may look the same, so a second
    turn must continue the first turn's prompt.
    """
    by_id = {record.request_id: record for record in records}
    by_prompt: dict[str, list[RequestRecord]] = {}
    for record in records:
        name, _, turn = record.request_id.rpartition("/")
        first, second = by_id.get(f"{name}/1"), by_id.get(f"{name}/2")
        is_turn = False
        if name and turn.isdigit() and first and second:
            # An id may contain a slash of its own, so that the prompts decide.
            start = first.prompt_ids[: max(0, len(first.prompt_ids) - SLACK)]
            is_turn = second.prompt_ids[: len(start)] == start
        if is_turn:
            by_prompt.setdefault(name, []).append(record)
        else:
            by_prompt[record.request_id] = [record]
    for turns in by_prompt.values():
        if len(turns) > 1:
            turns.sort(key=lambda record: int(record.request_id.rpartition("/")[2]))
    return by_prompt
