"""Records the candidates that methods which draft trees ask for, at every place of an answer."""

from collections.abc import Sequence

import numpy as np
import torch

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import ModelledClock
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.policy import Policy
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import RequestRandom
from specbench_kit.decoding.session import Request, Session
from specbench_kit.deployments.assembly import round_policy
from specbench_kit.methods.base import Method
from specbench_kit.models.runner import Runner
from specbench_kit.traces.candidate_trees import CandidateColumns, CandidateSource
from specbench_kit.traces.growing_candidates import KEPT, GrowingCandidates
from specbench_kit.traces.recorded_forward import RecordedForward
from specbench_kit.traces.replay import ReplayVerifier
from specbench_kit.traces.replay_drafter import ReplayDrafter
from specbench_kit.traces.trace import RequestTrace, TraceHeader

NO_DRAFTS = np.zeros((0, 1), np.int32)
NO_STATISTICS = np.zeros((0, 1, 5), np.float32)
LIKELY = -8.0
"""Nodes of this log-probability, from the root on, are computed before anybody asks, for all places in one forward."""
ROWS_AT_ONCE = 32
"""Less likely nodes that are computed at once where an answer may depend on them."""
PROVISIONAL = 6144
"""The tokens beside the prompt for which the recorder's slot has room. One that is full begins anew."""
TREE_TOKENS = 24
"""The target's tokens behind an answer that are recorded, for trees that are right beyond its end."""


class TreeRecorder:
    """Lets methods draft from every place of an answer, and keeps what they were told of the draft model.

    A place begins a round in an empty tree; rounds that continue from its tree, because the method has drafted ahead
    of the verdict, belong to it. All places are drafted from together. Policies live as long as the recorder and begin,
    as those of a run do, with the `first_prompt` of the trace, whose length some go by from then on. They decide
    without time: where a tree depends on it, as by `specedge:depth=auto`, name one method for each depth.

    `draft` has one slot, with room for a text and `PROVISIONAL` further tokens.
    """

    def __init__(
        self, draft: Runner, methods: Sequence[Method], header: TraceHeader, first_prompt: Sequence[int]
    ) -> None:
        self._draft = draft
        self._header = header
        self._policies = list(map(round_policy, methods))
        self._begin(RequestTrace("first", "", [*first_prompt], [], "length", [], NO_DRAFTS, NO_STATISTICS))

    @torch.inference_mode()
    def columns(self, trace: RequestTrace) -> CandidateColumns:
        """Return the candidates of one request."""
        model = GrowingCandidates(self._draft, trace)
        for policy in self._policies:
            self._decode(policy, model, trace, [_session(trace, place) for place in range(len(trace.output_ids))])
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
        self, policy: Policy, model: GrowingCandidates, trace: RequestTrace, sessions: Sequence[Session]
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
    request = Request(name, trace.category, tuple(trace.prompt_ids), len(trace.output_ids), tuple(trace.output_ids))
    record = RequestRecord(name, trace.category, trace.prompt_ids)
    session = Session(request, RequestRandom(0, name), frozenset(), 0.0, record)
    session.tokens += trace.output_ids[:place]
    return session


class _RecordingDrafter(ReplayDrafter):
    """Drafts trees as a replay does, from candidates that the draft model computes when they are asked for."""

    def __init__(self, header: TraceHeader, traces: dict[str, RequestTrace], model: GrowingCandidates) -> None:
        super().__init__(header, traces)
        self.clock = ModelledClock()
        self._model = model

    def awaits_answer(self, draft: Draft) -> bool:
        """Return true: what is drafted ahead goes as far as it may, however soon an answer comes."""
        return True

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> RecordedForward:
        """Return the distributions of tree nodes; the draft model computes those that a policy asks about."""
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
    """The distributions after some nodes, which are computed when a policy's question depends on them."""

    def __init__(self, nodes: Sequence[tuple[CandidateSource, int]], model: GrowingCandidates) -> None:
        super().__init__(nodes)
        self._model = model

    def top_tokens(self, count: int) -> list[list[int]]:
        self._model.compute([node for _, node in self.nodes])
        return super().top_tokens(count)

    def need(self, rows: Sequence[int]) -> None:
        new = [node for row in rows if self._model.is_new(node := self.nodes[row][1])]
        if not new:
            raise SkitError(f"a method of --trees asks for more than {KEPT} tokens after a node: give it fewer")
        # What the likeliest rows hold may make the others irrelevant.
        self._model.compute(new[:ROWS_AT_ONCE])
