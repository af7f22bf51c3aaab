"""Run a greedy chain method on a trace: no model, the same rounds as live."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.engine import Engine
from specbench_kit.decoding.latency import TableModel
from specbench_kit.decoding.modelled import timed
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.session import Request, Session
from specbench_kit.decoding.tree import DraftForward, NodeStats, TokenTree
from specbench_kit.decoding.verification import Verdict, walk
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.errors import SkitError
from specbench_kit.methods.base import Method
from specbench_kit.traces.trace import RequestTrace, TraceHeader


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The recorded draft statistics of one request at one offset; row i belongs to the i-th drafted token."""

    trace: RequestTrace
    offset: int

    def stats(self, row: int, token: int) -> NodeStats:
        return NodeStats(*self.trace.statistics[self.offset, row].tolist())

    def probability(self, row: int, token: int) -> float:
        return float(self.trace.statistics[self.offset, row, -1])


class ReplayDrafter:
    """Drafts what the draft model drafted when the trace was recorded."""

    def __init__(self, header: TraceHeader, traces: dict[str, RequestTrace]) -> None:
        self.drafts: list[Draft] = []
        self._header, self._traces = header, traces

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round with empty trees."""
        self.drafts = [Draft(session, TokenTree(session.tokens[-1])) for session in sessions]
        return self.drafts

    def room(self, draft: Draft) -> int:
        """Tokens that the recorded chain still has."""
        return self._header.max_draft - draft.tree.last

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append the recorded next token to each chain."""
        for draft in drafts:
            place, offset = draft.tree.last, draft.session.produced
            if self.room(draft) < 1:
                raise SkitError(
                    f"the trace holds drafts of {self._header.max_draft} tokens and the method wants more: "
                    "record it with a larger --max-draft, or lower the method's"
                )
            trace = self._traces[draft.request_id]
            draft.tree.add(int(trace.drafted[offset, place]), place, _Recorded(trace, offset), place)
        return list(drafts)

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        """A trace holds one chain per offset."""
        raise SkitError("a trace holds chains, so a method that drafts trees cannot be replayed: run it live")

    def commit(self, draft: Draft, path: Sequence[int], kept: int | None = None) -> None:
        """Nothing is cached."""

    def release(self, session: Session) -> None:
        """Nothing is cached."""


class ReplayVerifier:
    """Answers what the target answered when the trace was recorded."""

    def __init__(self, traces: dict[str, RequestTrace]) -> None:
        self._traces = traces

    def admit(self, session: Session) -> None:
        """Nothing is cached."""

    def release(self, session: Session) -> None:
        """Nothing is cached."""

    def commit(self, verdict: Verdict) -> None:
        """Nothing is cached."""

    def verify(self, drafts: Sequence[Draft], chosen: Sequence[list[int]]) -> list[Verdict]:
        """Walk every chain along the recorded answer."""
        return [self._judge(draft, nodes) for draft, nodes in zip(drafts, chosen, strict=True)]

    def _judge(self, draft: Draft, nodes: list[int]) -> Verdict:
        trace, start = self._traces[draft.request_id], draft.session.produced
        answer = trace.output_ids[start : start + len(nodes) + 1]
        answer += trace.continuation[: len(nodes) + 1 - len(answer)]
        path, extra = walk(draft.tree, nodes, answer.__getitem__)
        return Verdict(draft, nodes, path, extra, 1 + len(nodes))


def recorded(header: TraceHeader) -> Deployment:
    """The machine that a trace was recorded on: drafts and verifications at their medians, whatever the context.

    Prompts count as cached, since a trace says nothing about the time they take.
    """
    device = "the recording machine"
    drafter = Endpoint(device, TableModel((header.draft_s,)))
    verifier = Endpoint(device, TableModel(header.verify_s))
    return Deployment("recorded", drafter, verifier, placement="server", cached_prompts=True)


def replay(
    method: Method,
    header: TraceHeader,
    traces: Iterable[RequestTrace],
    *,
    deployment: Deployment | None = None,
    batch_size: int = 1,
    seed: int = 0,
) -> Iterator[RequestRecord]:
    """The records of decoding the traces' requests with a method, as they finish; holds a batch of traces at most.

    Time is modelled: that of the deployment, or of the recording machine.
    """
    active: dict[str, RequestTrace] = {}
    drafter, verifier = ReplayDrafter(header, active), ReplayVerifier(active)
    engine = Engine(
        method.policy(),
        *timed(method, drafter, verifier, deployment or recorded(header)),
        seed=seed,
        eos_ids=frozenset(),
        batch_size=batch_size,
        capacity=1 << 40,
    )
    waiting = iter(traces)
    while True:
        for trace in islice(waiting, batch_size - len(active)):
            active[trace.request_id] = trace
            engine.submit(_request(trace))
        if engine.idle:
            return
        for record in engine.step():
            record.finish_reason = active.pop(record.request_id).finish_reason
            yield record


def _request(trace: RequestTrace) -> Request:
    """The output's length is the recorded one, so that neither the end token nor the limit has to be known."""
    answer = tuple(trace.output_ids)
    return Request(trace.request_id, trace.category, tuple(trace.prompt_ids), len(answer), answer)
