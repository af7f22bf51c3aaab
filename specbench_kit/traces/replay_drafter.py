"""Drafters that return what a trace holds."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from specbench_kit.decoding.distributions import NodeStats, TokenScorer
from specbench_kit.decoding.drafter import Draft, Forwarded, LocalDrafter
from specbench_kit.decoding.drafting.base import Drafting
from specbench_kit.decoding.latency import Row
from specbench_kit.decoding.session import Session
from specbench_kit.traces.candidate_trees import CandidateSource, StoredCandidates
from specbench_kit.traces.chain_replay import correct_tokens, draft_too_long
from specbench_kit.traces.recorded_forward import RecordedForward
from specbench_kit.traces.trace import NO_TOKEN, RequestTrace, TraceHeader


class _RecordedDraft:
    """The recorded draft of one request at one offset; row i belongs to the i-th drafted token."""

    sampled = False

    def __init__(self, trace: RequestTrace, offset: int) -> None:
        self.tokens: list[int] = [
            token for token in trace.drafted[offset].tolist() if token != NO_TOKEN
        ]
        self.drafter = trace.sources[offset] if trace.sources else ""
        self._table = trace.statistics[offset]
        self._scores: list[float] = []

    def stats(self, row: int, token: int) -> NodeStats:
        return NodeStats(*self._table[row].tolist())

    def probability(self, row: int, token: int) -> float:
        return float(self._table[row, -1])

    def score(self, row: int, token: int, place: int, judge: TokenScorer) -> float:
        # Scoring all tokens at once costs little more than one, and a run has a single scorer.
        if not self._scores:
            self._scores = judge.score_chain(self._table)
        return self._scores[row]


class ReplayDrafter(LocalDrafter):
    """A drafter that returns what was drafted when the trace was recorded."""

    def __init__(self, header: TraceHeader, traces: dict[str, RequestTrace]) -> None:
        super().__init__()
        self._header = header
        self._traces = traces
        self._recorded: dict[str, _RecordedDraft] = {}
        self._sources: dict[str, CandidateSource] = {}
        """By request, the candidates that its trees are made of."""

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round with empty trees, or with what the last round's trees left to continue
        from.
        """
        self._recorded.clear()
        return super().begin(sessions)

    def room(self, draft: Draft) -> int:
        """Return how many tokens the chain can take until the context is full, as it was at the
        recording.
        """
        return (
            self._header.token_limit(self._traces[draft.request_id])
            - draft.context_length
            - len(draft.tree)
        )

    def foresee(self, draft: Draft, longest: int) -> Sequence[int] | None:
        """Return how many recorded tokens at each offset of the answer's rest are right, up to
        `longest`.
        """
        trace = self._traces[draft.request_id]
        offsets = np.arange(draft.session.produced, len(trace.output_ids))
        leading = correct_tokens(trace)[offsets].cumprod(axis=1).sum(axis=1)
        counts: list[int] = np.minimum(
            leading, np.minimum(longest, len(trace.output_ids) - offsets)
        ).tolist()
        return counts

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append the recorded next token to each chain; return the drafts that had one and had room
        for it.
        """
        grown = []
        for draft in drafts:
            if self.room(draft) <= 0:
                continue
            position = draft.tree.last
            if position >= self._header.max_draft:
                raise draft_too_long(self._header.max_draft)
            source = self._recorded.get(draft.request_id)
            if source is None:
                source = _RecordedDraft(self._traces[draft.request_id], draft.session.produced)
                self._recorded[draft.request_id] = source
            if position < len(source.tokens):
                draft.tree.add(source.tokens[position], position, source, position)
                draft.tree.drafter = source.drafter
                grown.append(draft)
        return grown

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> RecordedForward:
        """Return the recorded distributions after tree nodes; row i is the one after the i-th node,
        in order.
        """
        nodes = [
            (self._source(draft), self._recorded_node(draft, node))
            for draft, nodes in frontier
            for node in nodes
        ]
        return RecordedForward(nodes)

    def commit(
        self,
        draft: Draft,
        path: Sequence[int],
        root: int | None = None,
        states: Tensor | None = None,
    ) -> None:
        """Keep what lies below the next `root`."""
        if root is not None:
            self._continue(draft, root)

    def release(self, session: Session) -> None:
        """Forget a finished request."""
        super().release(session)
        self._sources.pop(session.request.id, None)

    def _source(self, draft: Draft) -> CandidateSource:
        if draft.request_id not in self._sources:
            trace = self._traces[draft.request_id]
            text = [*trace.output_ids, *trace.continuation]
            self._sources[draft.request_id] = StoredCandidates(
                trace.candidates, text, self._header.trees
            )
        return self._sources[draft.request_id]

    def _recorded_node(self, draft: Draft, node: int) -> int:
        """Return the recorded node with the text of a tree's node; the draft keeps it where live
        drafts have KV.
        """
        if node not in draft.kv_nodes:
            recorded = draft.session.produced
            if node:
                above = self._recorded_node(draft, draft.tree.parents[node])
                recorded = self._source(draft).child(above, draft.tree.tokens[node])
            draft.kv_nodes[node] = recorded
        return draft.kv_nodes[node]


class BlockReplayDrafter(ReplayDrafter):
    """Returns what a drafter of one forward drafted, and reports the one forward of a round, as a
    live run does.
    """

    def __init__(
        self, drafting: Drafting, header: TraceHeader, traces: dict[str, RequestTrace]
    ) -> None:
        super().__init__(header, traces)
        self._drafting = drafting
        self._forwards: list[Forwarded] = []

    def forwards(self) -> Sequence[Forwarded]:
        """Return the forwards since the last call."""
        forwards = self._forwards
        self._forwards = []
        return forwards

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append the recorded next token to each chain; return the drafts that had one and had room
        for it.
        """
        grown = super().extend(drafts)
        block = (self._drafting.tokens_per_forward, 0)
        if rows := {draft.request_id: block for draft in grown if draft.tree.last == 1}:
            self._forwards.append(Forwarded(self._drafting.display_name, "draft", rows))
        return grown


class HybridReplayDrafter(ReplayDrafter):
    """Returns what a hybrid drafter drafted, and reports the forwards that its members need for it
    in a live run.
    """

    def __init__(
        self, members: Sequence[Drafting], header: TraceHeader, traces: dict[str, RequestTrace]
    ) -> None:
        super().__init__(header, traces)
        self._members = {member.display_name: member for member in members}
        self._cached: defaultdict[str, dict[str, int]] = defaultdict(dict)
        """By request and member: the tokens that the member's KV holds."""
        self._contexts: dict[str, int] = {}
        """The committed tokens of each request at the beginning of this round."""
        self._forwards: list[Forwarded] = []

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round with empty trees."""
        self._contexts = {session.request.id: len(session.tokens) for session in sessions}
        return super().begin(sessions)

    def forwards(self) -> Sequence[Forwarded]:
        """Return the forwards and look-ups of all members since the last call."""
        forwards = self._forwards
        self._forwards = []
        return forwards

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append the recorded next token to each chain; return the drafts that had one and had room
        for it.
        """
        grown = super().extend(drafts)
        for name, member in self._members.items():
            if own := [draft for draft in grown if draft.tree.drafter == name]:
                rows = {
                    draft.request_id: self._row(member, draft) if member.models else (1, 0)
                    for draft in own
                }
                self._forwards.append(Forwarded(name, "draft", rows))
        return grown

    def commit(
        self,
        draft: Draft,
        path: Sequence[int],
        root: int | None = None,
        states: Tensor | None = None,
    ) -> None:
        """Note what stays in the KV of the member that drafted: a head forwards accepted tokens
        again.
        """
        member = self._members.get(draft.tree.drafter)
        if member is not None and member.models:
            kept = 0 if member.reads_states else min(draft.tree.last - 1, len(path))
            self._cached[draft.request_id][member.display_name] = (
                self._contexts[draft.request_id] + kept
            )

    def release(self, session: Session) -> None:
        """Forget a finished request."""
        super().release(session)
        self._cached.pop(session.request.id, None)

    def _row(self, member: Drafting, draft: Draft) -> Row:
        """Return the new tokens and the tokens in KV of the forward that drafted a chain's newest
        token.
        """
        name = draft.request_id
        context = self._contexts[draft.request_id]
        if draft.tree.last > 1:
            return 1, context + draft.tree.last - 2
        cached = self._cached[name].get(member.display_name)
        if cached is None:
            cached = context - 1
            if cached > member.reads_states:  # a head does not forward the first token of a text
                self._forwards.append(
                    Forwarded(member.display_name, "prefill", {name: (cached, 0)})
                )
        return context - cached, cached
