"""Units of the statistics: what varies independently, a prompt with its repeats or the requests of a batch."""

from collections.abc import Mapping, Sequence

from specbench_kit.decoding.records import RequestRecord

Units = Mapping[str, int]
"""The number of each request's unit, by the request's id."""


def units_of(records: Sequence[RequestRecord], batch_size: int = 1, first: int = 0) -> dict[str, int]:
    """Return units of `batch_size` requests that were admitted one after the other, numbered from `first`.

    Requests of one batch share the time of every forward, so that a slow moment affects all of them.
    """
    admitted_s: dict[str, float] = {}
    for record in records:
        start_s = (record.finished_s or 0.0) - (record.e2e_s or 0.0)
        admitted_s[record.request_id] = min(start_s, admitted_s.get(record.request_id, start_s))
    names = list(admitted_s)
    # Another tool may not record times: then its requests are taken in the order of their records.
    if all(record.finished_s is not None for record in records if record.finish_reason != "error"):
        names.sort(key=admitted_s.__getitem__)
    return {name: first + position // max(1, batch_size) for position, name in enumerate(names)}
