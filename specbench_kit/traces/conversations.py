"""Which requests of a trace are turns of one dialogue."""

from collections.abc import Sequence

from specbench_kit.traces.trace import RequestTrace


class Conversations:
    """Tells which requests are turns of one dialogue, which must not be torn apart.

    Turn n of dialogue D is called D/n and its prompt begins as that of turn n - 1 does; both must hold, since a
    prompt of its own may be called D/n too.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, Sequence[int]]] = {}
        self._count = 0

    def index(self, trace: RequestTrace) -> int:
        """The conversation's number, counted from 0; turns come in order."""
        before = self._seen.get(_turn_before(trace.request_id))
        if before is not None and _same_start(before[1], trace.prompt_ids):
            number = before[0]
        else:
            number, self._count = self._count, self._count + 1
        self._seen[trace.request_id] = number, trace.prompt_ids
        return number


def _turn_before(request_id: str) -> str:
    dialogue, _, turn = request_id.rpartition("/")
    return f"{dialogue}/{int(turn) - 1}" if turn.isdecimal() else ""


def _same_start(before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether at least half of the earlier prompt opens the later one; templates may end the two differently."""
    shared = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
    return 2 * shared >= len(before) and len(after) > len(before)
