"""A drafter that can tell whether a remote verifier has answered, so that drafting stops when it has."""

from collections.abc import Callable, Sequence

from torch import Tensor

from specbench_kit.decoding.clock import Clock
from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.drafter import Draft, Drafter
from specbench_kit.decoding.session import Session


class AnswerPollingDrafter:
    """Wraps a drafter for methods that draft while they wait; `answered` polls whether an answer has arrived."""

    def __init__(self, drafter: Drafter, answered: Callable[[], bool]) -> None:
        self._drafter, self._answered = drafter, answered

    @property
    def clock(self) -> Clock:
        return self._drafter.clock

    @property
    def drafts(self) -> list[Draft]:
        return self._drafter.drafts

    def awaits_answer(self, draft: Draft) -> bool:
        return not self._answered()

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        return self._drafter.begin(sessions)

    def room(self, draft: Draft) -> int:
        return self._drafter.room(draft)

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        return self._drafter.extend(drafts)

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        return self._drafter.expand(frontier)

    def commit(self, draft: Draft, path: Sequence[int], root: int | None = None, states: Tensor | None = None) -> None:
        self._drafter.commit(draft, path, root, states)

    def release(self, session: Session) -> None:
        self._drafter.release(session)
