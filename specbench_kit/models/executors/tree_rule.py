"""A rule by which trees of drafts grow: arithmetic on probabilities, which a card does without the
host.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class TreeRule:
    """Grow a tree from its root in `levels` levels, of which each forwards at most `beams` nodes
    and gives each of them at most `branch` children, its most probable tokens.

    A node's score is its parent's plus the logarithms of `decay` and of its draft probability. The
    `budget` nodes with the highest scores so far are selected, the older one among equals. Each
    level forwards the selected nodes with the highest scores that were not forwarded yet; with
    `newest_only` only those that the level before has added.
    """

    levels: int
    beams: int
    branch: int
    budget: int
    decay: float = 1.0
    newest_only: bool = False

    @property
    def widths(self) -> list[int]:
        """Return the most nodes that each level forwards."""
        widths = []
        waiting = 1
        for _ in range(self.levels):
            width = min(self.beams, self.budget, waiting)
            widths.append(width)
            waiting = width * self.branch + (0 if self.newest_only else waiting - width)
        return widths
