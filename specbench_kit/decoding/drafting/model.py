"""Drafts of the draft model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor

from specbench_kit.core.errors import PolicyError
from specbench_kit.decoding.clock import Clock, Phase
from specbench_kit.decoding.constraint import Allowed
from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.drafter import Draft, LocalDrafter
from specbench_kit.decoding.drafting.base import DRAFT, Capability, DrafterParts, Drafting, drafters
from specbench_kit.decoding.latency import Row
from specbench_kit.decoding.masking import masked
from specbench_kit.decoding.pipeline.drafter import LevelDrafter
from specbench_kit.decoding.sampling import Sampler, draw
from specbench_kit.decoding.session import Session
from specbench_kit.models.executors.base import Forward
from specbench_kit.models.executors.pending import PendingTokens
from specbench_kit.models.runner import Append, GrownBy, Runner, refuse_nan, refuse_nan_in

READ_AT_ONCE = 64
"""Tokens of a known text in one forward, whose logits have to be held."""


@drafters.register("model")
@dataclass(frozen=True)
class ModelDrafting(Drafting):
    """The draft model of the pair."""

    capability = Capability.LEVELS
    recordable = True

    def levels(self, parts: DrafterParts) -> LevelDrafter:
        return LevelDrafter(parts.models[DRAFT], parts.sampler, parts.clock)

    def source(self, parts: DrafterParts) -> "ModelDrafter":
        return ModelDrafter(
            parts.models[DRAFT], parts.sampler, parts.clock, parts.sampled, parts.capacity
        )


class ModelDrafter(LocalDrafter):
    """Drafts by batched forwards of a draft model; a request gets its slot with its first draft."""

    skips: ClassVar[int] = 0
    """The number of tokens at the beginning of a text that the model does not forward."""

    def __init__(
        self, runner: Runner, sampler: Sampler, clock: Clock, sample: bool, capacity: int
    ) -> None:
        super().__init__()
        self.clock = clock
        self._runner = runner
        self._sampler = sampler
        self._capacity = capacity
        self._sample = sample
        self.on_forward: Callable[[Phase, Mapping[str, Row]], None] | None = None
        """Called with each forward's numbers of new tokens and of tokens in KV, by request."""
        self.on_trees: Callable[[Forward, Sequence[Draft]], None] | None = None
        """Called when trees have begun to grow by a rule on a card, before their first level is
        waited for.
        """
        self._drafting = partial(clock.phase, "draft")
        self._slots: dict[str, int] = {}

    def room(self, draft: Draft) -> int:
        """Return how many nodes the tree can still take before a slot or the context is full."""
        return self._capacity - len(draft.session.tokens) - len(draft.tree)

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append one token to each chain by one batched forward, and return the drafts that had
        room for it.
        """
        grown = [draft for draft in drafts if self.room(draft) > 0]
        if not grown:
            return []
        for draft in grown:
            if draft.request_id not in self._slots:
                self._prefill(draft)
        with self.clock.phase("draft"):
            logits = self._forward(
                grown, [self._append(draft, _unforwarded(draft), keep=1) for draft in grown]
            )
            logits.launching = (
                self._drafting
            )  # if it was put off, it is charged to this phase nevertheless
            logits = masked(logits, [draft.allowed_after([draft.tree.last]) for draft in grown])
            best = None if self._sample else logits.next_tokens()
            forward = DraftForward(logits, self._sampler, self._sample, best)
            if best is None:
                refuse_nan_in(forward.probabilities)
                best = draw(
                    forward.probabilities,
                    [draft.session.random.uniform("draft") for draft in grown],
                )
        for row, (draft, token) in enumerate(zip(grown, best, strict=True)):
            draft.tree.add(token, draft.tree.last, forward, row)
        return grown

    def foresee(self, draft: Draft, longest: int) -> Sequence[int] | None:
        """Return how many tokens of a draft at each offset of the answer would be right, up to
        `longest`.

        The model reads the prompt and the answer once, in a slot of its own. None for drafts that
        are drawn at random, and for a request that has a slot already.
        """
        if self._sample or draft.request_id in self._slots:
            return None
        text = [*draft.session.tokens, *draft.reference]
        known = len(draft.session.tokens) - 1
        allowed: list[Allowed] = [None] * (len(text) - 1)
        if (grammar := draft.session.grammar) is not None:
            allowed[known:] = [
                grammar.allowed(draft.reference[:place]) for place in range(len(draft.reference))
            ]
        slot = self._runner.acquire()
        guesses: list[int] = []
        for start in range(0, len(text) - 1, READ_AT_ONCE):
            tokens = text[start : min(start + READ_AT_ONCE, len(text) - 1)]
            forward = self._runner.forward([Append(slot, tokens, keep=len(tokens))])
            (best,) = masked(forward, [allowed[start : start + len(tokens)]]).argmax()
            self._runner.commit(slot, range(len(tokens)))
            guesses += map(int, best)
        self._runner.release(slot)
        counts: list[int] = []
        for guess, token in zip(reversed(guesses[known:]), reversed(draft.reference), strict=True):
            counts.append(min(1 + (counts[-1] if counts else 0), longest) if guess == token else 0)
        return counts[::-1]

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        """Forward tree nodes whose parents were forwarded; row i is the distribution after the i-th
        node, in order.

        Each node is forwarded once; `room` says how many children may be added.
        """
        for draft, _ in frontier:
            if draft.request_id not in self._slots:
                self._prefill(draft)
        trees = self._trees(frontier)
        with self.clock.phase("draft"):
            rows = [self._append(draft, nodes, keep=len(nodes)) for draft, nodes in frontier]
            drafts = [draft for draft, _ in frontier]
            logits = self._forward(drafts, rows, trees=trees)
            if trees is not None and self.on_trees is not None:
                with self.clock.phase("verify", typical=False):
                    self.on_trees(logits, drafts)
            refuse_nan(logits)
            logits = masked(logits, [draft.allowed_after(nodes) for draft, nodes in frontier])
        return DraftForward(logits, self._sampler)

    def commit(
        self,
        draft: Draft,
        path: Sequence[int],
        root: int | None = None,
        states: Tensor | None = None,
    ) -> None:
        """Keep the KV of the old root, of the accepted nodes that were forwarded and of all below
        the next `root`.

        The rest is dropped. Accepted nodes that were never forwarded, such as a chain's last token,
        are appended with the next forward: `_append` begins with whatever committed tokens the slot
        lacks.
        """
        slot = self._slots.get(draft.request_id)
        if slot is None or not draft.kv_nodes:
            return
        accepted = [draft.kv_nodes[node] for node in path if node in draft.kv_nodes]
        below = [] if root is None else draft.tree.below(root)
        proactive = sorted(draft.kv_nodes[node] for node in below if node in draft.kv_nodes)
        self._runner.commit(slot, [*range(draft.kv_nodes[0] + 1), *accepted], proactive)
        if root is not None:
            # The runner renumbers provisional nodes from 0 in their order; the next tree numbers
            # its nodes anew too.
            index = {node: new for new, node in enumerate(proactive)}
            kv_nodes = {
                new: index[draft.kv_nodes[node]]
                for new, node in enumerate(below)
                if node in draft.kv_nodes
            }
            self._continue(draft, root, kv_nodes)

    def release(self, session: Session) -> None:
        """Free a finished request's slot."""
        super().release(session)
        slot = self._slots.pop(session.request.id, None)
        if slot is not None:
            self._runner.release(slot)

    def take_slot(self, draft: Draft) -> int:
        """Acquire a slot for a request's first draft, and return it."""
        self._slots[draft.request_id] = slot = self._runner.acquire()
        return slot

    def _prefill(self, draft: Draft) -> None:
        """Bring a new request's prompt into KV.

        This is a forward and a phase of its own, since otherwise a request's first draft step would
        be as slow as its prompt is long, and policies that compare draft times would learn from it.
        """
        with self.clock.phase("prefill"):
            slot = self.take_slot(draft)
            prefix = draft.session.tokens[self.skips : -1]
            if prefix:
                refuse_nan(self._forward([draft], [Append(slot, prefix)], "prefill"))
                self._runner.commit(slot, range(len(prefix)))

    def _trees(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> GrownBy | None:
        """Return the rule by which all trees grow from these nodes, which are their roots; None if
        there is none, or if the host changes the distributions that it reads.
        """
        if not self._runner.grows_trees:
            return None
        rules = {draft.tree.rule for draft, _ in frontier}
        rule = next(iter(rules), None)
        if rule is None or len(rules) > 1:
            return None
        is_changed = (
            self._sampler.cuts
            or self._runner.masked
            or any(draft.session.grammar is not None for draft, _ in frontier)
        )
        if is_changed or any(draft.kv_nodes or list(nodes) != [0] for draft, nodes in frontier):
            return None
        return GrownBy(rule, self._sampler.temperature or 1.0)

    def _forward(
        self,
        drafts: Sequence[Draft],
        rows: Sequence[Append],
        phase: Phase = "draft",
        trees: GrownBy | None = None,
    ) -> Forward:
        if self.on_forward is not None:
            cached = (
                self._runner.length(row.slot) + self._runner.provisional(row.slot) for row in rows
            )
            work = [(len(row.tokens), before) for row, before in zip(rows, cached, strict=True)]
            self.on_forward(
                phase, dict(zip((draft.request_id for draft in drafts), work, strict=True))
            )
        if trees is not None:
            return self._runner.forward(rows, trees=trees)
        return self._runner.forward(rows)

    def _append(self, draft: Draft, nodes: Sequence[int], keep: int) -> Append:
        """Return the nodes' tokens, after whatever committed tokens the slot still lacks."""
        slot = self._slots[draft.request_id]
        tree = draft.tree
        kv_nodes = draft.kv_nodes
        tokens: list[int] = []
        parents: list[int] = []
        base = self._runner.provisional(slot)
        if not kv_nodes:
            # The round's first forward: the committed tokens since the last one come before the
            # nodes.
            tokens = draft.session.tokens[self.skips + self._runner.length(slot) :]
            parents = list(range(-1, len(tokens) - 1))
            kv_nodes[0] = base + len(tokens) - 1
            if tokens:
                nodes = [
                    node for node in nodes if node
                ]  # the root is the last of the committed tokens
        above = tree.parents
        size = len(tree)
        # A node is entered before its children are looked at, so that one append may hold a node
        # and its children.
        for kv_node, node in enumerate(nodes, base + len(tokens)):
            if node in kv_nodes or node >= size or above[node] not in kv_nodes:
                raise _misplaced(draft, node)
            parents.append(kv_nodes[above[node]])
            kv_nodes[node] = kv_node
        drafted = tree.tokens_of(nodes)
        if self._runner.takes_pending and isinstance(drafted, PendingTokens):
            return Append(slot, PendingTokens([*tokens, *drafted.parts]), parents, keep)
        return Append(slot, [*tokens, *drafted], parents, keep)


def _unforwarded(draft: Draft) -> list[int]:
    """Return the newest node and, before it, those above it that were never forwarded.

    There are such nodes where a cascade added tokens that this model did not draft.
    """
    nodes = [draft.tree.last]
    while nodes[-1] and draft.kv_nodes and draft.tree.parents[nodes[-1]] not in draft.kv_nodes:
        nodes.append(draft.tree.parents[nodes[-1]])
    return nodes[::-1]


def _misplaced(draft: Draft, node: int) -> PolicyError:
    """Return the error for a node that cannot be forwarded now."""
    if node > draft.tree.last:
        return PolicyError(
            f"node {node} was expanded in a tree whose nodes are 0 to {draft.tree.last}"
        )
    if node in draft.kv_nodes:
        return PolicyError(f"node {node} was expanded twice")
    return PolicyError(
        f"node {node} was expanded before its parent, node {draft.tree.parents[node]}"
    )
