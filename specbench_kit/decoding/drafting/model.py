"""Drafts of the draft model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from specbench_kit.core.errors import PolicyError
from specbench_kit.decoding.clock import Clock, Phase
from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.drafting.base import DRAFT, Capability, DrafterParts, Drafting, drafters
from specbench_kit.decoding.latency import Row
from specbench_kit.decoding.pipeline.drafter import LevelDrafter
from specbench_kit.decoding.sampling import Sampler, draw
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.models.executors.base import Forward
from specbench_kit.models.runner import Append, Runner, refuse_nan, refuse_nan_in


@drafters.register("model")
@dataclass(frozen=True)
class ModelDrafting(Drafting):
    """The draft model of the pair."""

    capability = Capability.LEVELS
    on_record = True

    def levels(self, parts: DrafterParts) -> LevelDrafter:
        return LevelDrafter(parts.models[DRAFT], parts.sampler, parts.clock)

    def source(self, parts: DrafterParts) -> "ModelDrafter":
        return ModelDrafter(parts.models[DRAFT], parts.sampler, parts.clock, parts.sampled, parts.capacity)


class ModelDrafter:
    """Draft-model forwards over the requests of a batch; slots are taken at a request's first draft."""

    skips: ClassVar[int] = 0
    """Tokens at the beginning of a text that it does not forward."""

    def __init__(self, runner: Runner, sampler: Sampler, clock: Clock, sample: bool, capacity: int) -> None:
        self.drafts: list[Draft] = []
        self.clock = clock
        self._runner, self._sampler = runner, sampler
        self._capacity = capacity
        self._sample = sample
        self.on_forward: Callable[[Phase, Mapping[str, Row]], None] | None = None
        """Is shown new tokens and those in KV of every forward, by request."""
        self._slots: dict[str, int] = {}
        self._kept: dict[str, Draft] = {}

    def awaits_answer(self, draft: Draft) -> bool:
        """Both models share this machine, so nothing arrives before all is drafted."""
        return True

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round with empty trees, or with what was kept of the last."""
        kept, self._kept = self._kept, {}
        self.drafts = [
            kept.get(session.request.id) or Draft(session, TokenTree(session.tokens[-1])) for session in sessions
        ]
        return self.drafts

    def room(self, draft: Draft) -> int:
        """Nodes that the tree can still take before a slot or the context is full."""
        return self._capacity - len(draft.session.tokens) - len(draft.tree.tokens)

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append one token to each chain by one batched forward; returns the drafts that had room for it."""
        grown = [draft for draft in drafts if self.room(draft) > 0]
        if not grown:
            return []
        for draft in grown:
            if draft.request_id not in self._slots:
                self._prefill(draft)
        with self.clock.phase("draft"):
            found = self._forward(grown, [self._append(draft, _unforwarded(draft), keep=1) for draft in grown])
            best = None if self._sample else [token for (token,) in found.argmax()]
            forward = DraftForward(found, self._sampler, self._sample, best)
            tokens = best or self._draw(grown, forward)
        for row, (draft, token) in enumerate(zip(grown, tokens, strict=True)):
            draft.tree.add(token, len(draft.tree.tokens) - 1, forward, row)
        return grown

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        """Forward tree nodes whose parents were forwarded; row i is the distribution after the i-th node, in order.

        Each node is forwarded once; `room` says how many children may be added.
        """
        for draft, _ in frontier:
            if draft.request_id not in self._slots:
                self._prefill(draft)
        with self.clock.phase("draft"):
            rows = [self._append(draft, nodes, keep=len(nodes)) for draft, nodes in frontier]
            found = self._forward([draft for draft, _ in frontier], rows)
            refuse_nan(found)
        return DraftForward(found, self._sampler)

    def commit(self, draft: Draft, path: Sequence[int], kept: int | None = None, states: Tensor | None = None) -> None:
        """Keep the KV of the root, of the accepted nodes that were forwarded and of all below `kept`; drop the rest."""
        slot = self._slots.get(draft.request_id)
        if slot is None or not draft.kv_nodes:
            return
        forwarded = [draft.kv_nodes[node] for node in path if node in draft.kv_nodes]
        below = [] if kept is None else draft.tree.below(kept)
        kv_kept = sorted(draft.kv_nodes[node] for node in below if node in draft.kv_nodes)
        self._runner.commit(slot, [*range(draft.kv_nodes[0] + 1), *forwarded], kv_kept)
        if kept is not None:
            kv_place = {node: place for place, node in enumerate(kv_kept)}
            kv_nodes = {new: kv_place[draft.kv_nodes[node]] for new, node in enumerate(below) if node in draft.kv_nodes}
            self._kept[draft.request_id] = Draft(draft.session, draft.tree.rooted_at(kept), kv_nodes)

    def release(self, session: Session) -> None:
        """Free a finished request's slot."""
        self._kept.pop(session.request.id, None)
        slot = self._slots.pop(session.request.id, None)
        if slot is not None:
            self._runner.release(slot)

    def _prefill(self, draft: Draft) -> None:
        """Bring a new request's prompt into KV, so that a draft step is a draft step."""
        with self.clock.phase("prefill"):
            slot = self._take_slot(draft)
            prefix = draft.session.tokens[self.skips : -1]
            if prefix:
                refuse_nan(self._forward([draft], [Append(slot, prefix)], "prefill"))
                self._runner.commit(slot, range(len(prefix)))

    def _forward(self, drafts: Sequence[Draft], rows: Sequence[Append], phase: Phase = "draft") -> Forward:
        if self.on_forward is not None:
            held = (self._runner.length(row.slot) + self._runner.provisional(row.slot) for row in rows)
            new = [(len(row.tokens), cached) for row, cached in zip(rows, held, strict=True)]
            self.on_forward(phase, dict(zip((draft.request_id for draft in drafts), new, strict=True)))
        return self._runner.forward(rows)

    def _take_slot(self, draft: Draft) -> int:
        self._slots[draft.request_id] = slot = self._runner.acquire()
        return slot

    def _append(self, draft: Draft, nodes: Sequence[int], keep: int) -> Append:
        """The nodes' tokens, after whatever committed tokens the slot still lacks."""
        slot, tree, kv_nodes = self._slots[draft.request_id], draft.tree, draft.kv_nodes
        tokens: list[int] = []
        parents: list[int] = []
        base = self._runner.provisional(slot)
        if not kv_nodes:
            tokens = draft.session.tokens[self.skips + self._runner.length(slot) :]
            parents = list(range(-1, len(tokens) - 1))
            kv_nodes[0] = base + len(tokens) - 1
            if tokens:
                nodes = [node for node in nodes if node]  # the root is the last of the committed tokens
        above, size = tree.parents, len(tree.tokens)
        for kv_node, node in enumerate(nodes, base + len(tokens)):
            if node in kv_nodes or node >= size or above[node] not in kv_nodes:
                raise _misplaced(draft, node)
            parents.append(kv_nodes[above[node]])
            kv_nodes[node] = kv_node
        return Append(slot, tokens + [tree.tokens[node] for node in nodes], parents, keep)

    def _draw(self, drafts: Sequence[Draft], forward: DraftForward) -> list[int]:
        refuse_nan_in(forward.probabilities)
        return draw(forward.probabilities, [draft.session.random.uniform("draft") for draft in drafts])


def _unforwarded(draft: Draft) -> list[int]:
    """The newest node; where nodes were added that this model did not draft, those above it before it."""
    nodes = [draft.tree.last]
    while nodes[-1] and draft.kv_nodes and draft.tree.parents[nodes[-1]] not in draft.kv_nodes:
        nodes.append(draft.tree.parents[nodes[-1]])
    return nodes[::-1]


def _misplaced(draft: Draft, node: int) -> PolicyError:
    """What is wrong with a node that cannot be forwarded now."""
    if node > draft.tree.last:
        return PolicyError(f"node {node} was expanded in a tree whose nodes are 0 to {draft.tree.last}")
    if node in draft.kv_nodes:
        return PolicyError(f"node {node} was expanded twice")
    return PolicyError(f"node {node} was expanded before its parent, node {draft.tree.parents[node]}")
