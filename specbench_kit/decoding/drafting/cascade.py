"""Two drafters in a row: what a second, cheaper one guesses saves forwards of the first."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from specbench_kit.core.errors import PolicyError, SkitError
from specbench_kit.decoding.clock import Clock
from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.drafter import Draft, Drafter, Forwarded
from specbench_kit.decoding.drafting.base import DRAFT, Capability, DrafterParts, Drafting, drafters
from specbench_kit.decoding.drafting.model import ModelDrafter
from specbench_kit.decoding.latency import LatencyModel, TableModel
from specbench_kit.decoding.rules import rule_for, walk
from specbench_kit.decoding.sampling import RequestRandom
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.tree import TokenTree


@drafters.register("cascade")
@dataclass(frozen=True)
class CascadeDrafting(Drafting):
    """The second drafts `k2` tokens, the first verifies them as a target does and adds its own, until there are enough.

    `first` is the draft model, unless a folder or hub id says otherwise; `second` is a folder or hub id of a smaller
    model, or a drafter that needs none. The target sees the first's distributions. Under a deployment a forward of the
    first takes what the deployment says of its drafter, and one of the second `second_s` seconds; looking up is free.
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
        if self.second in drafters.all() and self._second().models:
            raise SkitError(f"cascade: second must be a model or a drafter that needs none, not {self.second}")

    @property
    def models(self) -> tuple[str, ...]:
        return (self.first,) if self.second in drafters.all() else (self.first, self.second)

    def source(self, parts: DrafterParts) -> "CascadeDrafter":
        forwards = list[Forwarded]()
        guesses = self._second().source(parts) if self.second in drafters.all() else None
        second = guesses or self._model(self.second, parts, forwards)
        return CascadeDrafter(self._model(self.first, parts, forwards), second, parts, self.k2, forwards)

    def latencies(self, draft: LatencyModel) -> Mapping[str, LatencyModel]:
        if self.second not in drafters.all() and not self.second_s:
            raise SkitError(
                f"cascade: nothing is known of the time that a forward of {self.second} takes under a deployment: "
                "give it in seconds with second_s"
            )
        return {self.first: draft, self.second: TableModel((self.second_s,))}

    def _second(self) -> Drafting:
        return drafters.get(self.second)()

    @staticmethod
    def _model(name: str, parts: DrafterParts, forwards: list[Forwarded]) -> ModelDrafter:
        drafter = ModelDrafter(parts.models[name], parts.sampler, parts.clock, parts.sampled, parts.capacity)
        drafter.on_forward = lambda phase, rows: forwards.append(Forwarded(name, phase, rows))
        return drafter


class _Ready(NamedTuple):
    """A token that the first has drafted, from distribution `row` of `source`."""

    token: int
    source: DraftForward
    row: int


@dataclass(slots=True)
class _Chain:
    """One request's round: its chain as it lies in the trees of both, among guesses that were rejected."""

    first: Draft
    second: Draft
    first_path: list[int] = field(default_factory=list)
    second_path: list[int] = field(default_factory=list)
    ready: deque[_Ready] = field(default_factory=deque)

    @property
    def guesses(self) -> list[int]:
        """Nodes of the second's tree that the first has not seen; it grows at its newest node only."""
        return list(range((self.second_path or [0])[-1] + 1, len(self.second.tree)))

    def guessed(self) -> TokenTree:
        """They alone, below the end of the chain."""
        tree = TokenTree(self.second.tree.tokens[(self.second_path or [0])[-1]])
        for node in self.guesses:
            tree.add(self.second.tree.tokens[node], tree.last, *self.second.tree.source(node))
        return tree

    def offer(self) -> list[int]:
        """Put the guesses into the first's tree; returns its nodes to forward, the end of the chain before them."""
        nodes = [(self.first_path or [0])[-1]]
        for node in self.guesses:
            source = self.second.tree.source(node)
            nodes.append(self.first.tree.add(self.second.tree.tokens[node], nodes[-1], *source))
        return nodes

    def take(self, nodes: Sequence[int], accepted: int, extra: int, source: DraftForward, row: int) -> None:
        """The first accepted so many of the guesses and goes on with a token of its own."""
        tokens = [*(self.first.tree.tokens[node] for node in nodes[1 : accepted + 1]), extra]
        self.ready += (_Ready(token, source, row + place) for place, token in enumerate(tokens))
        self.second_path += self.guesses[:accepted]
        self.first_path += nodes[1 : accepted + 1]
        for draft, path in ((self.first, self.first_path), (self.second, self.second_path)):
            path.append(draft.tree.add(extra, (path or [0])[-1], source, row + accepted))


class CascadeDrafter:
    """Chains of the first, which forwards only once for all tokens that the second guessed."""

    def __init__(
        self, first: Drafter, second: Drafter, parts: DrafterParts, k2: int, forwards: list[Forwarded]
    ) -> None:
        self.drafts: list[Draft] = []
        self.clock: Clock = parts.clock
        self._first, self._second, self._parts, self._k2 = first, second, parts, k2
        self._forwards = forwards
        self._chains: dict[str, _Chain] = {}
        self._random: dict[str, RequestRandom] = {}

    def awaits_answer(self, draft: Draft) -> bool:
        """Nothing arrives before all is drafted."""
        return True

    def forwards(self) -> Sequence[Forwarded]:
        """Of both models, one after the other."""
        taken = list(self._forwards)
        self._forwards.clear()
        return taken

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round with empty trees."""
        self._forwards.clear()
        pairs = zip(self._first.begin(sessions), self._second.begin(sessions), strict=True)
        self._chains = {first.request_id: _Chain(first, second) for first, second in pairs}
        self.drafts = [Draft(session, TokenTree(session.tokens[-1])) for session in sessions]
        return self.drafts

    def room(self, draft: Draft) -> int:
        """Tokens that the chain can still take before the context is full, or rejected guesses have filled a slot."""
        chain = self._chains[draft.request_id]
        left = self._first.room(chain.first)
        return left + len(chain.first.tree) - len(draft.tree) if chain.ready else left

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append the first's next token to each chain; returns the drafts that had room for it."""
        grown = [draft for draft in drafts if self.room(draft) > 0]
        chains = [self._chains[draft.request_id] for draft in grown]
        if empty := [chain for chain in chains if not chain.ready]:
            self._refill(empty)
        for draft, chain in zip(grown, chains, strict=True):
            ready = chain.ready.popleft()
            draft.tree.add(ready.token, draft.tree.last, ready.source, ready.row)
        return grown

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        """Nobody guesses the nodes of a tree."""
        raise PolicyError("drafter 'cascade' gives chains, and this method grows trees: choose another drafter")

    def commit(self, draft: Draft, path: Sequence[int], kept: int | None = None, states: Tensor | None = None) -> None:
        """Take note of the accepted nodes in both."""
        chain = self._chains[draft.request_id]
        self._first.commit(chain.first, chain.first_path[: len(path)])
        self._second.commit(chain.second, chain.second_path[: len(path)])

    def release(self, session: Session) -> None:
        """Forget a finished request."""
        self._first.release(session)
        self._second.release(session)
        self._random.pop(session.request.id, None)

    def _refill(self, chains: Sequence[_Chain]) -> None:
        live = [chain.second for chain in chains]
        for _ in range(self._k2):
            live = self._second.extend(live)
        offered = [chain.offer() for chain in chains]
        found = self._first.expand([(chain.first, nodes) for chain, nodes in zip(chains, offered, strict=True)])
        forward = DraftForward(found.forward, self._parts.sampler, sampled=self._parts.sampled)
        best = [] if self._parts.sampled else found.forward.argmax()
        row = 0
        with self.clock.phase("draft"):
            for number, (chain, nodes) in enumerate(zip(chains, offered, strict=True)):
                rows = best[number] if best else None
                chain.take(nodes, *self._judge(chain, forward, row, rows), forward, row)
                row += len(nodes)

    def _judge(self, chain: _Chain, forward: DraftForward, row: int, best: Sequence[int] | None) -> tuple[int, int]:
        """How many of the guesses the first accepts, and its own next token."""
        tree = chain.guessed()
        nodes = range(1, len(tree))
        if best is not None:
            path, extra = walk(tree, nodes, best.__getitem__)
        else:
            rows, name = forward.probabilities[row : row + len(tree)], chain.first.request_id
            random = self._random.setdefault(name, chain.first.session.random.apart("cascade"))
            path, extra = rule_for(tree, nodes)(tree, nodes, rows, random)
        return len(path), extra
