"""Acceptance along a text: the rounds of a run by how long the answer, or the whole context, already was."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.rounds import Array, RoundColumns
from specbench_kit.metrics.statistics import Units, interval_of_ratio, ratio_of_sums

Place = Literal["output", "context"]
"""What a token's place counts: the tokens of its own answer before it, or all before it."""
BEGINS: dict[Place, tuple[int, ...]] = {
    "output": (0, 64, 128, 256, 512, 1024, 2048, 4096),
    "context": (0, 512, 2048, 8192, 32_768, 131_072),
}
"""Where the parts of a text begin, each at least twice as long as the one before."""


class PartAcceptance(Struct, frozen=True):
    """How many tokens the rounds of one part of the texts had accepted."""

    by: Annotated[Place, Meta(description="what the part counts: tokens of the answer, or all")]
    begins: Annotated[int, Meta(description="tokens before the part's first round, at least")]
    ends: Annotated[
        int | None, Meta(description="tokens before its last round, below; null for the last part")
    ]
    requests: Annotated[int, Meta(description="requests with a round in the part")]
    rounds: Annotated[int, Meta(description="rounds that began in the part")]
    acceptance_length: Annotated[
        float, Meta(description="committed tokens per round, the bonus token included")
    ]
    interval: Annotated[
        list[float] | None,
        Meta(description="95% interval of the length over prompts; null for too few"),
    ]
    acceptance_rate: Annotated[
        float | None,
        Meta(
            description="share of the submitted tokens that was accepted; null if none was submitted"
        ),
    ]


def acceptance_along(
    rounds: RoundColumns, finished: Sequence[RequestRecord], units: Units
) -> list[PartAcceptance]:
    """Return the acceptance by place in the answer and in the context, where the rounds of a run
    lie in more than one part.
    """
    joined = rounds["joined"]
    # A pipeline commits in steps, which are no rounds.
    if not rounds.count or not np.isfinite(joined).all():
        return []
    before = np.concatenate(([0.0], np.cumsum(joined)))[:-1]
    # What was committed before a request's own first round belongs to other requests.
    first = np.searchsorted(rounds.request, np.arange(rounds.requests))
    written = before - before[np.minimum(first, rounds.count - 1)][rounds.request]
    prompts = np.array([len(record.prompt_ids) for record in finished], dtype=np.float64)
    places: dict[Place, Array] = {"output": written, "context": written + prompts[rounds.request]}
    return [
        part
        for by, place in places.items()
        for parts in [list(_parts(by, place, rounds, units))]
        if len(parts) > 1
        for part in parts
    ]


def _parts(by: Place, place: Array, rounds: RoundColumns, units: Units) -> Iterator[PartAcceptance]:
    begins = BEGINS[by]
    numbers = np.array([units[name] for name in rounds.names], dtype=np.int64)[rounds.request]
    for begin, end in zip(begins, [*begins[1:], None], strict=True):
        inside = (place >= begin) & (place < (np.inf if end is None else end))
        if not inside.any():
            continue

        units_here, index = np.unique(numbers[inside], return_inverse=True)
        of_unit, committed = (
            np.bincount(index, weights=rounds[column][inside], minlength=len(units_here))
            for column in ("rounds", "committed")
        )
        submitted, accepted = (
            float(rounds[column][inside].sum()) for column in ("submitted", "accepted")
        )
        yield PartAcceptance(
            by=by,
            begins=begin,
            ends=end,
            requests=len(np.unique(rounds.request[inside])),
            rounds=int(inside.sum()),
            acceptance_length=float(committed.sum() / of_unit.sum()),
            interval=interval_of_ratio(committed, of_unit),
            acceptance_rate=ratio_of_sums(accepted, submitted),
        )
