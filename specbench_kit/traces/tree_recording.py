"""Records the draft model's candidates that methods which draft trees ask for, at every place of an
answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
import torch

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import ModelledClock
from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.policy import Policy
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import RequestRandom, Sampler
from specbench_kit.decoding.session import Request, Session
from specbench_kit.deployments.assembly import round_policy
from specbench_kit.methods.base import Method
from specbench_kit.models.runner import Append, Runner
from specbench_kit.traces.candidate_trees import (
    NO_CANDIDATES,
    CandidateColumns,
    Candidates,
    CandidateSource,
    follows_trunk,
)
from specbench_kit.traces.recorded_forward import RecordedForward
from specbench_kit.traces.replay import ReplayVerifier
from specbench_kit.traces.replay_drafter import ReplayDrafter
from specbench_kit.traces.trace import RequestTrace, TraceHeader

KEPT = 160
"""The candidates of a node that are kept while a request is recorded: as many as any bundled tree
may ask for.
"""
NODES_AT_ONCE = 128
"""Nodes of one forward, which bounds the memory for their logits."""


@dataclass(slots=True)
class _Node:
    parent: int
    token: int
    children: dict[int, int] = field(default_factory=dict)
    logprob: float = 0.0
    """The log-probability of the text from the prompt down to the node."""
    known: Candidates | None = None
    told: int = 0
    """The candidates that a method was told of."""
    kv_node: int = -1
    """The provisional node in the draft model's slot."""


class GrowingCandidates:
    """The candidates of one request while it is recorded; every node is computed once."""

    recorded_for: Sequence[str] = ("no method",)

    def __init__(self, draft: Runner, trace: RequestTrace) -> None:
        self._draft = draft
        self._prompt = trace.prompt_ids
        self._text = [*trace.output_ids, *trace.continuation]
        self._nodes = [
            _Node(place - 1, token)
            for place, token in enumerate([self._prompt[-1], *self._text[:-1]])
        ]
        self._slot = draft.acquire()
        self._read_prompt()
        self.compute(range(len(self._text)))
        for place, token in enumerate(self._text[:-1]):
            self._nodes[place + 1].logprob = self._nodes[place].logprob + self._step(place, token)

    def release(self) -> None:
        """Free the draft model's slot."""
        self._draft.release(self._slot)

    def candidates(self, node: int) -> Candidates:
        """Return the likeliest next tokens of a node; none if it was not computed."""
        return self._nodes[node].known or NO_CANDIDATES

    def is_new(self, node: int) -> bool:
        """Return whether a node was not computed yet."""
        return self._nodes[node].known is None

    def child(self, node: int, token: int) -> int:
        """Return the node for a token after another node."""
        if follows_trunk(node, token, self._text):
            return node + 1
        children = self._nodes[node].children
        if token not in children:
            children[token] = len(self._nodes)
            self._nodes.append(
                _Node(node, token, logprob=self.logprob(node) + self._step(node, token))
            )
        return children[token]

    def logprob(self, node: int) -> float:
        """Return the log-probability of the text from the prompt down to a node."""
        return self._nodes[node].logprob

    def _step(self, node: int, token: int) -> float:
        """Return the log-probability of a token after a node."""
        known = self.candidates(node)
        return (
            float(known.logprobs[known.tokens == token].sum())
            if token in known.tokens
            else known.rest
        )

    def told(self, node: int, count: int) -> None:
        """Note that a method was told of the first `count` candidates of a node."""
        self._nodes[node].told = max(self._nodes[node].told, count)

    def compute(self, nodes: Sequence[int]) -> None:
        """Let the draft model compute those nodes that are new."""
        new = list(filter(self.is_new, dict.fromkeys(nodes)))
        rows = self._not_in_slot(new)
        if self._room < len(rows):
            self._read_prompt()
            rows = self._not_in_slot(new)
        if self._room < len(rows) and len(new) > 1:
            self.compute(new[: len(new) // 2])
            self.compute(new[len(new) // 2 :])
            return
        for first in range(0, len(rows), NODES_AT_ONCE):
            self._forward(rows[first : first + NODES_AT_ONCE])

    def columns(self) -> CandidateColumns:
        """Return what methods were told, with nodes in the order of their candidates."""
        order = list(range(len(self._text)))
        expanded = list[bool]()
        for node in order:  # grows meanwhile
            for token in self.candidates(node).tokens[: self._nodes[node].told].tolist():
                child = self._nodes[node].children.get(token)
                expanded.append(child is not None and not self.is_new(child))
                if child is not None and not self.is_new(child):
                    order.append(child)
        kept = [(self.candidates(node), self._nodes[node].told) for node in order]
        return CandidateColumns(
            counts=np.array([len(known.tokens[:told]) for known, told in kept], np.int32),
            rest=np.array([_rest(known, told) for known, told in kept], np.float32),
            tokens=np.concatenate([known.tokens[:told] for known, told in kept]),
            logprobs=np.concatenate([known.logprobs[:told] for known, told in kept]),
            expanded=np.array(expanded, np.bool_),
        )

    def _forward(self, rows: Sequence[int]) -> None:
        """Forward nodes whose parents are in the slot or come before them."""
        base = self._draft.provisional(self._slot)
        for kv_node, node in enumerate(rows, base):
            self._nodes[node].kv_node = kv_node
        tokens = [self._nodes[node].token for node in rows]
        parents = [
            -1 if not node else self._nodes[self._nodes[node].parent].kv_node for node in rows
        ]
        forward = DraftForward(
            self._draft.forward([Append(self._slot, tokens, parents, keep=len(rows))]), Sampler()
        )
        for row, node in enumerate(rows):
            if self._nodes[node].known is None:
                self._nodes[node].known = _best_of(forward, row)

    @property
    def _room(self) -> int:
        return (
            self._draft.capacity
            - self._draft.length(self._slot)
            - self._draft.provisional(self._slot)
        )

    def _not_in_slot(self, nodes: Sequence[int]) -> list[int]:
        """Return nodes and those above them that the slot does not hold, parents before
        children.
        """
        missing = set[int]()
        for node in nodes:
            while node >= 0 and node not in missing and self._nodes[node].kv_node < 0:
                missing.add(node)
                node = self._nodes[node].parent
        return sorted(missing)

    def _read_prompt(self) -> None:
        """Begin with an empty slot, which then holds the prompt without its last token."""
        self._draft.release(self._slot)
        self._slot = self._draft.acquire()
        for node in self._nodes:
            node.kv_node = -1
        if len(self._prompt) > 1:
            self._draft.forward([Append(self._slot, self._prompt[:-1])])
            self._draft.commit(self._slot, range(len(self._prompt) - 1))


def _best_of(forward: DraftForward, row: int) -> Candidates:
    """Return the likeliest tokens of one row."""
    best = forward.likeliest([row], [0.0], KEPT + 1, KEPT + 1)
    tokens = np.array([token for _, _, token in best], np.int32)
    logprobs = np.array([score for score, _, _ in best], np.float32)
    return Candidates(
        tokens[:KEPT], logprobs[:KEPT], float(logprobs[KEPT]) if len(best) > KEPT else -inf
    )


def _rest(known: Candidates, told: int) -> float:
    """Return the log-probability of the best token behind the first `told` ones."""
    return float(known.logprobs[told]) if told < len(known.logprobs) else known.rest


NO_DRAFTS = np.zeros((0, 1), np.int32)
NO_STATISTICS = np.zeros((0, 1, 5), np.float32)
LIKELY = -8.0
"""Nodes of this log-probability, from the root on, are computed before anybody asks, for all places
in one forward.
"""
ROWS_AT_ONCE = 32
"""Less likely nodes that are computed at once where an answer may depend on them."""
PROVISIONAL = 6144
"""The tokens beside the prompt for which the recorder's slot has room. One that is full begins
anew.
"""
TREE_TOKENS = 24
"""The target's tokens behind an answer that are recorded, for trees that are right beyond its
end.
"""


class TreeRecorder:
    """Lets methods draft from every place of an answer, and keeps what they were told of the draft
    model.

    A place begins a round in an empty tree; rounds that continue from its tree, because the method
    has drafted ahead of the verdict, belong to it. All places are drafted from together. Policies
    live as long as the recorder and begin, as those of a run do, with the `first_prompt` of the
    trace, whose length some go by from then on. They decide without time: where a tree depends on
    it, as by `specedge:depth=auto`, name one method for each depth.

    `draft` has one slot, with room for a text and `PROVISIONAL` further tokens.
    """

    def __init__(
        self,
        draft: Runner,
        methods: Sequence[Method],
        header: TraceHeader,
        first_prompt: Sequence[int],
    ) -> None:
        self._draft = draft
        self._header = header
        self._policies = list(map(round_policy, methods))
        self._begin(
            RequestTrace("first", "", [*first_prompt], [], "length", [], NO_DRAFTS, NO_STATISTICS)
        )

    @torch.inference_mode()
    def columns(self, trace: RequestTrace) -> CandidateColumns:
        """Return the candidates of one request."""
        model = GrowingCandidates(self._draft, trace)
        for policy in self._policies:
            self._decode(
                policy,
                model,
                trace,
                [_session(trace, place) for place in range(len(trace.output_ids))],
            )
        model.release()
        return model.columns()

    @torch.inference_mode()
    def _begin(self, first: RequestTrace) -> None:
        """Let every policy draft for a prompt."""
        model = GrowingCandidates(self._draft, first)
        for policy in self._policies:
            drafter = _RecordingDrafter(self._header, {f"{first.request_id}@0": first}, model)
            drafter.begin([_session(first, 0)])
            policy.draft(drafter)
        model.release()

    def _decode(
        self,
        policy: Policy,
        model: GrowingCandidates,
        trace: RequestTrace,
        sessions: Sequence[Session],
    ) -> None:
        """Decode from some places on, each until a round begins in an empty tree."""
        traces = {session.request.id: trace for session in sessions}
        drafter = _RecordingDrafter(self._header, traces, model)
        verifier = ReplayVerifier(self._header, traces)
        while sessions:
            drafts = drafter.begin(sessions)
            policy.draft(drafter)
            chosen = policy.choose(drafts)
            policy.overlap(drafter)
            verdicts = verifier.send(drafts, chosen)()
            going_on = list[Session]()
            for verdict in verdicts:
                session = verdict.draft.session
                root = policy.next_root(verdict)
                session.commit(verdict.tokens)
                drafter.commit(verdict.draft, verdict.path, root)
                if root is not None and session.finish_reason is None:
                    going_on.append(session)
                else:
                    policy.forget(session.request.id)
            policy.observe(verdicts)
            sessions = going_on


def _session(trace: RequestTrace, place: int) -> Session:
    name = f"{trace.request_id}@{place}"
    request = Request(
        name,
        trace.category,
        tuple(trace.prompt_ids),
        len(trace.output_ids),
        tuple(trace.output_ids),
    )
    record = RequestRecord(name, trace.category, trace.prompt_ids)
    session = Session(request, RequestRandom(0, name), frozenset(), 0.0, record)
    session.tokens += trace.output_ids[:place]
    return session


class _RecordingDrafter(ReplayDrafter):
    """Drafts trees as a replay does, from candidates that the draft model computes when they are
    asked for.
    """

    def __init__(
        self, header: TraceHeader, traces: dict[str, RequestTrace], model: GrowingCandidates
    ) -> None:
        super().__init__(header, traces)
        self.clock = ModelledClock()
        self._model = model

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> RecordedForward:
        """Return the distributions of tree nodes; the draft model computes those that a policy asks
        about.
        """
        forward = _ComputedForward(super().expand(frontier).nodes, self._model)
        roots = [draft.session.produced for draft, nodes in frontier for _ in nodes]
        likely = [
            node
            for (_, node), root in zip(forward.nodes, roots, strict=True)
            if self._model.logprob(node) - self._model.logprob(root) >= LIKELY
        ]
        self._model.compute(likely)
        return forward

    def _source(self, draft: Draft) -> CandidateSource:
        return self._model


class _ComputedForward(RecordedForward):
    """The distributions after some nodes, which are computed when a policy's question depends on
    them.
    """

    def __init__(
        self, nodes: Sequence[tuple[CandidateSource, int]], model: GrowingCandidates
    ) -> None:
        super().__init__(nodes)
        self._model = model

    def top_tokens(self, count: int) -> list[list[int]]:
        self._model.compute([node for _, node in self.nodes])
        return super().top_tokens(count)

    def need(self, rows: Sequence[int]) -> None:
        new = [node for row in rows if self._model.is_new(node := self.nodes[row][1])]
        if not new:
            raise SkitError(
                f"a method of --trees asks for more than {KEPT} tokens after a node: give it fewer"
            )
        # What the likeliest rows hold may make the others irrelevant.
        self._model.compute(new[:ROWS_AT_ONCE])
