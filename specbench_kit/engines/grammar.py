"""The grammar that a request of an engine is expected to follow, as far as its output does so.

An engine masks its target by itself, and does not tell its drafter by what.
"""

from collections.abc import Sequence

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.constraint import Allowed, GrammarState


class ExpectedGrammar(GrammarState):
    """Where an output stands in a grammar that nobody has promised it follows.

    From the first token on that the grammar does not allow, nothing is forbidden and nothing
    forced. A drafter must not end the engine that it serves, so that this raises no SkitError.
    """

    is_left: bool = False
    """True once the output has left the grammar."""

    def allowed(self, path: Sequence[int]) -> Allowed:
        """Return what may follow the path; None where the output or the path has left the grammar,
        or the grammar has ended.
        """
        if self.is_left:
            return None
        try:
            return super().allowed(path)
        except SkitError:
            self.is_left = True
            return None

    def advance(self, tokens: Sequence[int]) -> None:
        """Go on by tokens of the engine."""
        if self.is_left:
            return
        try:
            super().advance(tokens)
        except SkitError:
            self.is_left = True
