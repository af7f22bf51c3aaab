"""What drafters of chains share, which have no distributions by which a tree could grow."""

from collections.abc import Sequence

from specbench_kit.core.errors import PolicyError
from specbench_kit.decoding.clock import Clock
from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.drafter import Draft, Forwarded, LocalDrafter


class ChainDrafter(LocalDrafter):
    """Drafts chains, to their end before a verdict arrives; subclasses append the tokens."""

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self._name = name

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        """Raise PolicyError: there are no distributions by which a tree could grow."""
        raise PolicyError(
            f"drafter '{self._name}' gives chains, and this method grows trees: choose another drafter"
        )


class ReportingChainDrafter(ChainDrafter):
    """A drafter of chains that reports its forwards, since these cannot be derived from its
    trees.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(name, clock)
        self._forwards: list[Forwarded] = []

    def forwards(self) -> Sequence[Forwarded]:
        """Return the forwards since the last call, in order."""
        forwards = list(self._forwards)
        self._forwards.clear()
        return forwards
