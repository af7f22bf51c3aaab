"""Where a request ends."""

import pytest

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import RequestRandom
from specbench_kit.decoding.session import Request, Session

END, OTHER_END = 1, 2


def make_session(limit: int) -> Session:
    request = Request("r", "test", (5, END, 6), limit)
    record = RequestRecord("r", "test", [5, END, 6])
    return Session(request, RequestRandom(0, "r"), frozenset({END, OTHER_END}), 0.0, record)


@pytest.mark.parametrize(
    ("blocks", "output", "reason"),
    [
        ([[7, 8, 9]], [7, 8, 9], None),
        ([[7, 8], [9, 7]], [7, 8, 9, 7], None),
        ([[7, 8, 9, 7, 8]], [7, 8, 9, 7, 8], "length"),
        ([[7, 8, 9], [7, 8, 9]], [7, 8, 9, 7, 8], "length"),
        ([[END]], [END], "eos"),
        ([[7, END, 8, 9]], [7, END], "eos"),
        ([[7, OTHER_END, END]], [7, OTHER_END], "eos"),
        ([[7, 8, 9], [7, END, 8]], [7, 8, 9, 7, END], "eos"),
        ([[7, 8, 9], [7, 8, END]], [7, 8, 9, 7, 8], "length"),
        (
            [
                [7, 8, 9],
                [7, 8],
            ],
            [7, 8, 9, 7, 8],
            "length",
        ),
    ],
)
def test_the_one_rule_for_the_end(
    blocks: list[list[int]], output: list[int], reason: str | None
) -> None:
    """An end in the prompt does not count; one that lies beyond the limit does not either."""
    session = make_session(5)
    committed = [session.commit(block) for block in blocks]
    assert session.tokens == [5, END, 6, *output]
    assert session.produced == sum(committed) == len(output)
    assert session.finish_reason == reason
