"""Recognises which requests of a trace are turns of one conversation."""

from collections.abc import Sequence

from specbench_kit.traces.trace import RequestTrace


class Conversations:
    """Numbers conversations, whose turns must not be split between training and test.

    Turn n of conversation D is called D/n, and its prompt begins as that of turn n - 1 does. Both must hold, since a
    single prompt may be called D/n too.
    """

    def __init__(self) -> None:
        self._turns: dict[str, tuple[int, Sequence[int]]] = {}
        self._count = 0

    def index(self, trace: RequestTrace) -> int:
        """Return the number of a request's conversation, from 0 on; turns come in order."""
        conversation, _, turn = trace.request_id.rpartition("/")
        previous = self._turns.get(f"{conversation}/{int(turn) - 1}") if turn.isdecimal() else None
        if previous is not None and _same_start(previous[1], trace.prompt_ids):
            number = previous[0]
        else:
            number, self._count = self._count, self._count + 1
        self._turns[trace.request_id] = number, trace.prompt_ids
        return number


def _same_start(before: Sequence[int], after: Sequence[int]) -> bool:
    """Return True if at least half of the earlier prompt opens the later one; templates may end the two differently."""
    shared = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
    return 2 * shared >= len(before) and len(after) > len(before)
