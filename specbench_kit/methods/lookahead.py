"""The method `lookahead`: n-grams from the target's own parallel guesses, verified beside the next
guesses.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specbench_kit.methods.base import Capability, Environment, Method, Policy, methods

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict


@methods.register("lookahead")
@dataclass(frozen=True)
class Lookahead(Method):
    """Verify n-grams that the target itself guessed in parallel in earlier rounds, and let it guess
    on.

    In each round a `window` of positions ahead is refined by Jacobi iteration: the target reads its
    guesses of earlier rounds at these positions and answers with the next ones. Every position
    yields an n-gram of `ngram` tokens per round for a pool. Of the pool's n-grams that begin with
    the newest token, up to `guesses`, the most recent ones, are verified in the same forward. All
    tokens of both branches count as submitted, so that the acceptance rate is low by design. The
    pool belongs to one request. Under a grammar an n-gram ends before a forbidden token; the window
    does not, since its tokens are there to be read.
    """

    window: int = 7
    ngram: int = 5
    guesses: int = 7
    drafter: str = field(default="none", init=False)
    source = "Lookahead decoding, Fu et al. 2024, arXiv 2402.02057"
    reported_result = "up to 1.8 times autoregressive decoding (MT-Bench), more with several GPUs"
    group = "draft-free"
    required_capability = Capability.TREES
    draft_limit = "ngram"

    def __post_init__(self) -> None:
        self.require_at_least(1, "window", "guesses")
        self.require_at_least(2, "ngram")

    @property
    def reads_candidates(self) -> int:
        return 1

    def prepare(self, environment: Environment) -> Method:
        environment.require_local_target(self.display_name)
        return self

    def policy(self) -> Policy:
        return _LookaheadPolicy(self.window, self.ngram, self.guesses)


class NgramPool:
    """For every token, the newest `size` continuations of an n-gram that begins with it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._after: defaultdict[int, OrderedDict[tuple[int, ...], None]] = defaultdict(OrderedDict)

    def add(self, ngram: Sequence[int]) -> None:
        """Add an n-gram as the newest of those with its first token."""
        newest = self._after[ngram[0]]
        newest[tuple(ngram[1:])] = None
        newest.move_to_end(tuple(ngram[1:]))
        if len(newest) > self._size:
            newest.popitem(last=False)

    def after(self, token: int) -> list[tuple[int, ...]]:
        """Return what followed a token in n-grams, the newest first."""
        return list(reversed(self._after.get(token, OrderedDict())))


class _Guesses:
    """One request's window: `rows[0]` is a chain of guesses, and column i of the rows below it
    continues at node i.
    """

    def __init__(self, first: list[int], pool: NgramPool) -> None:
        self.rows = [first]
        self.pool = pool
        self.nodes: list[list[int]] = []
        """The nodes of the rows in this round's tree; empty if there was no room for them."""


class _LookaheadPolicy(Policy):
    def __init__(self, window: int, ngram: int, guesses: int) -> None:
        self._window = window
        self._ngram = ngram
        self._guesses = guesses
        self._requests: dict[str, _Guesses] = {}

    def draft(self, drafter: "Drafter") -> None:
        for draft in drafter.drafts:
            if draft.request_id not in self._requests:
                # The first guesses are tokens of the prompt, spread over it.
                text = draft.session.tokens
                first = [text[place * len(text) // self._window] for place in range(self._window)]
                self._requests[draft.request_id] = _Guesses(first, NgramPool(self._guesses))
            self._grow(draft, self._requests[draft.request_id], drafter.room(draft))

    def _grow(self, draft: "Draft", guesses: _Guesses, room: int) -> None:
        """Add the n-grams to verify and, where there is room for it, the window."""
        from specbench_kit.decoding.drafting.look_up import LookUpDistribution

        tree = draft.tree
        source = LookUpDistribution("lookahead", 1.0)
        guesses.nodes = []
        above = list[int]()
        for row in guesses.rows if room >= self._window * len(guesses.rows) else ():
            nodes: list[int] = []
            for column, token in enumerate(row):
                parent = above[column] if above else nodes[-1] if nodes else 0
                nodes.append(tree.add(token, parent, source, 0))
            guesses.nodes.append(nodes)
            above = nodes
        children: dict[tuple[int, int], int] = {}
        for path in guesses.pool.after(tree.tokens[0]):
            node = 0
            for token in path:
                if (node, token) not in children:
                    if tree.last >= room:
                        return
                    if not draft.allows(token, node):
                        break
                    children[node, token] = tree.add(token, node, source, 0)
                node = children[node, token]

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        for verdict in verdicts:
            guesses = self._requests[verdict.draft.request_id]
            if not guesses.nodes:
                continue
            after = dict(zip(verdict.submitted, verdict.candidates[1:], strict=True))
            answered = [after[node][0] for node in guesses.nodes[-1]]
            if len(guesses.rows) < self._ngram - 1:
                guesses.rows.append(answered)
                continue
            for column, token in enumerate(answered):
                guesses.pool.add([*(row[column] for row in guesses.rows), token])
            guesses.rows = [*guesses.rows[1:], answered]

    def forget(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
