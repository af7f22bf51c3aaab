"""Two drafters in a row: the guesses of a cheaper second one save forwards of the first."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.drafter import Draft, Drafter, Forwarded
from specbench_kit.decoding.drafting.base import DRAFT, Capability, DrafterParts, Drafting, drafters
from specbench_kit.decoding.drafting.chains import ReportingChainDrafter
from specbench_kit.decoding.drafting.model import ModelDrafter
from specbench_kit.decoding.latency import LatencyModel, TableModel
from specbench_kit.decoding.rules import rule_for, walk
from specbench_kit.decoding.sampling import RequestRandom
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.tree import TokenTree


@drafters.register("cascade")
@dataclass(frozen=True)
class CascadeDrafting(Drafting):
    """The second drafter guesses `k2` tokens, the first verifies them as a target does and adds one
    of its own.

    This repeats until the draft is long enough. `first` is the draft model, or a folder or hub id; `second` is a folder
    or hub id of a smaller model, or a drafter that needs no model. The target sees the first's distributions. Under a
    deployment, a forward of the first takes what the deployment says of its drafter, and a forward of the second
    `second_s` seconds; looking up is free. Every token comes out of this vertical cascade; a horizontal one, which
    leaves the end of a draft to the second drafter, is left out.
    """

    first: str = DRAFT
    second: str = "prompt-lookup"
    k2: int = 3
    second_s: float = 0.0
    capability = Capability.STATISTICS

    def __post_init__(self) -> None:
        if self.k2 < 1:
            raise SkitError(f"cascade: k2 must be at least 1, not {self.k2}")
        if not self.second_s >= 0:
            raise SkitError(f"cascade: second_s must be at least 0, not {self.second_s}")
        if self._second_is_drafter and drafters.get(self.second)().models:
            raise SkitError(
                f"cascade: second must be a model or a drafter that needs none, not {self.second}"
            )

    @property
    def models(self) -> tuple[str, ...]:
        return (self.first,) if self._second_is_drafter else (self.first, self.second)

    def source(self, parts: DrafterParts) -> "CascadeDrafter":
        forwards = list[Forwarded]()

        def model(name: str) -> ModelDrafter:
            drafter = ModelDrafter(
                parts.models[name], parts.sampler, parts.clock, parts.sampled, parts.capacity
            )
            drafter.on_forward = lambda phase, rows: forwards.append(Forwarded(name, phase, rows))
            return drafter

        first = model(self.first)
        second = (
            drafters.get(self.second)().source(parts)
            if self._second_is_drafter
            else model(self.second)
        )
        return CascadeDrafter(first, second, parts, self.k2, forwards)

    def latencies(self, draft: LatencyModel) -> Mapping[str, LatencyModel]:
        if not self._second_is_drafter and not self.second_s:
            raise SkitError(
                f"cascade: nothing is known of the time that a forward of {self.second} takes under a deployment: "
                "give it in seconds with second_s"
            )
        return {self.first: draft, self.second: TableModel((self.second_s,))}

    @property
    def _second_is_drafter(self) -> bool:
        return self.second in drafters.all()


class _ReadyToken(NamedTuple):
    """A token that the first has verified or added, from distribution `row` of `source`."""

    token: int
    source: DraftForward
    row: int


@dataclass(slots=True)
class _Chain:
    """One request's round, as it lies in the trees of both drafters.

    A tree only grows, so rejected guesses stay in it beside the chain; the paths say which nodes
    are the chain's.
    """

    first: Draft
    second: Draft
    first_path: list[int] = field(default_factory=list)
    second_path: list[int] = field(default_factory=list)
    ready: deque[_ReadyToken] = field(default_factory=deque)
    """Tokens of the chain that the policy has not asked for yet."""

    @property
    def guesses(self) -> list[int]:
        """The second's nodes that the first has not verified: those behind the end of the chain."""
        return list(range((self.second_path or [0])[-1] + 1, len(self.second.tree)))

    def guessed_tree(self) -> TokenTree:
        """Return the guesses alone, as a tree below the end of the chain."""
        tree = TokenTree(self.second.tree.tokens[(self.second_path or [0])[-1]])
        for node in self.guesses:
            tree.add(self.second.tree.tokens[node], tree.last, *self.second.tree.source(node))
        return tree

    def add_guesses(self) -> list[int]:
        """Put the guesses into the first's tree, and return its nodes to forward, from the end of
        the chain on.
        """
        nodes = [(self.first_path or [0])[-1]]
        for node in self.guesses:
            source = self.second.tree.source(node)
            nodes.append(self.first.tree.add(self.second.tree.tokens[node], nodes[-1], *source))
        return nodes

    def take(
        self, nodes: Sequence[int], accepted: int, bonus: int, source: DraftForward, row: int
    ) -> None:
        """Append the first `accepted` guesses and the first drafter's own next token to the
        chain.
        """
        tokens = [*(self.first.tree.tokens[node] for node in nodes[1 : accepted + 1]), bonus]
        self.ready += (
            _ReadyToken(token, source, row + index) for index, token in enumerate(tokens)
        )
        self.second_path += self.guesses[:accepted]
        self.first_path += nodes[1 : accepted + 1]
        for draft, path in ((self.first, self.first_path), (self.second, self.second_path)):
            path.append(draft.tree.add(bonus, (path or [0])[-1], source, row + accepted))


class CascadeDrafter(ReportingChainDrafter):
    """Drafts chains of the first drafter, which forwards only once for all tokens that the second
    guessed.
    """

    def __init__(
        self,
        first: Drafter,
        second: Drafter,
        parts: DrafterParts,
        k2: int,
        forwards: list[Forwarded],
    ) -> None:
        super().__init__("cascade", parts.clock)
        self._first = first
        self._second = second
        self._parts = parts
        self._k2 = k2
        self._forwards = forwards
        self._chains: dict[str, _Chain] = {}
        self._random: dict[str, RequestRandom] = {}

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round with empty trees."""
        self._forwards.clear()
        pairs = zip(self._first.begin(sessions), self._second.begin(sessions), strict=True)
        self._chains = {first.request_id: _Chain(first, second) for first, second in pairs}
        return super().begin(sessions)

    def room(self, draft: Draft) -> int:
        """Return how many tokens the chain can take before the context is full.

        Rejected guesses take room too, since they stay in the first's slot until the round ends.
        """
        chain = self._chains[draft.request_id]
        room = self._first.room(chain.first)
        return room + len(chain.first.tree) - len(draft.tree) if chain.ready else room

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append the first drafter's next token to each chain, and return the drafts that had room
        for it.
        """
        grown = [draft for draft in drafts if self.room(draft) > 0]
        chains = [self._chains[draft.request_id] for draft in grown]
        if empty := [chain for chain in chains if not chain.ready]:
            self._refill(empty)
        for draft, chain in zip(grown, chains, strict=True):
            ready = chain.ready.popleft()
            draft.tree.add(ready.token, draft.tree.last, ready.source, ready.row)
        return grown

    def commit(
        self,
        draft: Draft,
        path: Sequence[int],
        root: int | None = None,
        states: Tensor | None = None,
    ) -> None:
        """Commit the accepted nodes in both drafters."""
        chain = self._chains[draft.request_id]
        self._first.commit(chain.first, chain.first_path[: len(path)])
        self._second.commit(chain.second, chain.second_path[: len(path)])

    def release(self, session: Session) -> None:
        """Free what a finished request held in both drafters."""
        self._first.release(session)
        self._second.release(session)
        self._random.pop(session.request.id, None)

    def _refill(self, chains: Sequence[_Chain]) -> None:
        """Let the second guess, let the first verify all guesses in one forward, and make the
        result ready.
        """
        growing = [chain.second for chain in chains]
        for _ in range(self._k2):
            growing = self._second.extend(growing)
        nodes_of = [chain.add_guesses() for chain in chains]
        verified = self._first.expand(
            [(chain.first, nodes) for chain, nodes in zip(chains, nodes_of, strict=True)]
        )
        forward = DraftForward(verified.forward, self._parts.sampler, sampled=self._parts.sampled)
        best = [] if self._parts.sampled else verified.forward.argmax()
        row = 0
        with self.clock.phase("draft"):
            for number, (chain, nodes) in enumerate(zip(chains, nodes_of, strict=True)):
                tree = chain.guessed_tree()
                guesses = range(1, len(tree))
                if best:
                    path, bonus = walk(tree, guesses, best[number].__getitem__)
                else:
                    # Streams of its own: the target's rule must not see the numbers that made the
                    # draft.
                    name = chain.first.request_id
                    request_random = chain.first.session.random
                    random = self._random.setdefault(name, request_random.substream("cascade"))
                    rows = forward.probabilities[row : row + len(tree)]
                    path, bonus = rule_for(tree, guesses)(tree, guesses, rows, random)
                chain.take(nodes, len(path), bonus, forward, row)
                row += len(nodes)
