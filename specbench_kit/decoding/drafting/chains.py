"""What drafters of chains share, which have no distributions by which a tree could grow."""

from collections.abc import Sequence

from specbench_kit.core.errors import PolicyError
from specbench_kit.decoding.clock import Clock
from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.drafter import Draft, Forwarded
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.tree import TokenTree


class ChainDrafter:
    """Drafts every round from empty trees to its end, before a verdict arrives; subclasses append the tokens."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.drafts: list[Draft] = []
        self.clock = clock
        self._name = name

    def awaits_answer(self, draft: Draft) -> bool:
        """Return true: no verdict arrives before all is drafted."""
        return True

    def has_reached_server(self, draft: Draft, node: int) -> bool:
        """Return true: nothing is sent before all is drafted."""
        return True

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        """Raise PolicyError: there are no distributions by which a tree could grow."""
        raise PolicyError(f"drafter '{self._name}' gives chains, and this method grows trees: choose another drafter")

    def _empty_trees(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round: return its drafts, whose trees hold the newest token alone."""
        self.drafts = [Draft(session, TokenTree(session.tokens[-1])) for session in sessions]
        return self.drafts


class ReportingChainDrafter(ChainDrafter):
    """A drafter of chains that reports its forwards, since these cannot be derived from its trees."""

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(name, clock)
        self._forwards: list[Forwarded] = []

    def forwards(self) -> Sequence[Forwarded]:
        """Return the forwards since the last call, in order."""
        forwards = list(self._forwards)
        self._forwards.clear()
        return forwards
