"""What varies by itself, and is counted as one: a prompt with its repeats, or requests that shared a batch."""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench_kit.decoding.records import RequestRecord

Units = Mapping[str, int]
"""The number of each request's unit, by the request's id."""


def units_of(records: Sequence[RequestRecord], batch_size: int = 1, first: int = 0) -> dict[str, int]:
    """Units of `batch_size` requests, adjacent in the order of admission; numbers count from `first`.

    Requests side by side share the time of every forward, so that a slow moment is in all of them.
    """
    return {name: first + place // max(1, batch_size) for place, name in enumerate(_in_order_of_admission(records))}


def batch_size(run: Mapping[str, Any]) -> int:
    """How many requests really ran side by side, by run.json; 1 where it does not say."""
    config = run.get("config") or {}
    return int(config.get("effective_batch_size") or config.get("batch_size") or 1)


def _in_order_of_admission(records: Sequence[RequestRecord]) -> list[str]:
    """Ids by when they were first admitted; by their first record where a tool does not say when."""
    starts: dict[str, float] = {}
    for record in records:
        start_s = (record.finished_s or 0.0) - (record.e2e_s or 0.0)
        starts[record.request_id] = min(start_s, starts.get(record.request_id, start_s))
    known = all(record.finished_s is not None for record in records if record.finish_reason != "error")
    return sorted(starts, key=starts.__getitem__) if known else list(starts)
