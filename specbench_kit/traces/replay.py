"""Run a greedy chain method on a trace: no model, the same rounds as live."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

from torch import Tensor

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import Clock, ModelledClock
from specbench_kit.decoding.distributions import DraftForward, NodeStats, TokenScorer
from specbench_kit.decoding.drafter import Draft, DraftSource
from specbench_kit.decoding.drafting.base import Capability, DrafterParts
from specbench_kit.decoding.engine import Engine
from specbench_kit.decoding.latency import TableModel
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.rules import walk
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request, Session
from specbench_kit.decoding.timeline import Timeline
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.decoding.verification import PendingVerdicts, Verdict
from specbench_kit.deployments.assembly import round_policy
from specbench_kit.deployments.base import RECORDED, Deployment, Endpoint
from specbench_kit.deployments.placing import (
    add_modelled_time,
    colocated_request_clock,
    environment,
    single_request_clock,
)
from specbench_kit.methods.base import Method
from specbench_kit.predictors.library import PairHashes
from specbench_kit.traces.chain_replay import beyond_answer, replay_chains, too_short
from specbench_kit.traces.trace import DRAFT_STATISTICS, STEP_TIMES, TOKEN_IDS, RequestTrace, TraceFile, TraceHeader

UNLIMITED = 1 << 40
CHAINS = "a trace holds chains, so a method that {} cannot be replayed: run it live"


class _Recorded:
    """The recorded draft of one request at one offset; row i belongs to the i-th drafted token."""

    sampled = False

    def __init__(self, trace: RequestTrace, offset: int) -> None:
        self.tokens: list[int] = trace.drafted[offset].tolist()
        self._table = trace.statistics[offset]
        self._scores: list[float] = []

    def stats(self, row: int, token: int) -> NodeStats:
        return NodeStats(*self._table[row].tolist())

    def probability(self, row: int, token: int) -> float:
        return float(self._table[row, -1])

    def score(self, row: int, token: int, place: int, judge: TokenScorer) -> float:
        """All tokens are scored at once, which costs little more than one; a run has one judge."""
        if not self._scores:
            self._scores = judge.score_chain(self._table)
        return self._scores[row]


class ReplayDrafter:
    """Drafts what the draft model drafted when the trace was recorded."""

    def __init__(self, header: TraceHeader, traces: dict[str, RequestTrace]) -> None:
        self.drafts: list[Draft] = []
        self._header, self._traces = header, traces
        self._recorded: dict[str, _Recorded] = {}

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round with empty trees."""
        self.drafts = [Draft(session, TokenTree(session.tokens[-1])) for session in sessions]
        self._recorded.clear()
        return self.drafts

    def room(self, draft: Draft) -> int:
        """Tokens that the chain can still take before the context is full, as it was when the trace was recorded."""
        return self._header.holds(self._traces[draft.request_id]) - draft.context_length - len(draft.tree)

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append the recorded next token to each chain; returns the drafts that had room for it."""
        grown = [draft for draft in drafts if self.room(draft) > 0]
        for draft in grown:
            place = draft.tree.last
            if place >= self._header.max_draft:
                raise too_short(self._header.max_draft)
            source = self._recorded.get(draft.request_id) or self._look_up(draft)
            draft.tree.add(source.tokens[place], place, source, place)
        return grown

    def _look_up(self, draft: Draft) -> _Recorded:
        found = _Recorded(self._traces[draft.request_id], draft.session.produced)
        self._recorded[draft.request_id] = found
        return found

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        """A trace holds one chain per offset."""
        raise SkitError(CHAINS.format("drafts trees"))

    def commit(self, draft: Draft, path: Sequence[int], root: int | None = None, states: Tensor | None = None) -> None:
        """Nothing is cached."""

    def release(self, session: Session) -> None:
        """Nothing is cached."""


class ReplayVerifier:
    """Answers what the target answered when the trace was recorded."""

    asynchronous = False

    def __init__(self, traces: dict[str, RequestTrace]) -> None:
        self._traces = traces

    def admit(self, session: Session) -> None:
        """Nothing is cached."""

    def release(self, session: Session) -> None:
        """Nothing is cached."""

    def commit(self, verdict: Verdict) -> None:
        """Nothing is cached."""

    def send(self, drafts: Sequence[Draft], chosen: Sequence[list[int]]) -> PendingVerdicts:
        """Walk every chain along the recorded answer."""
        verdicts = [self._judge(draft, nodes) for draft, nodes in zip(drafts, chosen, strict=True)]
        return lambda: verdicts

    def _judge(self, draft: Draft, nodes: list[int]) -> Verdict:
        trace, start = self._traces[draft.request_id], draft.session.produced
        answer = trace.output_ids[start : start + len(nodes) + 1]
        answer += trace.continuation[: len(nodes) + 1 - len(answer)]
        path, extra = walk(draft.tree, nodes, partial(_nth, answer))
        return Verdict(draft, nodes, path, extra, 1 + len(nodes))


def _nth(answer: Sequence[int], column: int) -> int:
    if column >= len(answer):
        raise beyond_answer(column)
    return answer[column]


def recorded(header: TraceHeader) -> Deployment:
    """The machine that a trace was recorded on; a trace says nothing about the time that prompts take."""
    header.require(STEP_TIMES, "a replay takes the time of the recording machine")
    device, origin = "the recording machine", "as measured for the trace, whatever the context"
    return Deployment(
        RECORDED,
        drafter=Endpoint(device, TableModel((header.draft_s,)), origin=origin),
        verifier=Endpoint(device, TableModel(header.verify_s), origin=origin),
        placement="server",
        predictor_s=header.statistics_s,
        predictor_origin=str(header.run.get("statistics", "timed alone")),
        cached_prompts=True,
        description="The machine that recorded the trace; prompts take no time.",
    )


def ready(method: Method, trace: TraceFile, deployment: Deployment) -> Method:
    """The method made ready for a replay; one that reads what is not on record is refused before."""
    drafting, header = method.drafting, trace.header
    require_chains(method)
    if drafting.models and method.required_capability > Capability.TOKENS:
        header.require(
            DRAFT_STATISTICS, f"{method.display_name} reads {method.required_capability.words} of drafted tokens"
        )
    if method.uses_drafter and not drafting.models:
        header.require(TOKEN_IDS, f"{method.display_name} looks tokens up")
    pair = PairHashes(*(trace.said("models", role, "hash") for role in ("target", "draft")))
    return method.prepare(environment(pair, deployment))


def replay(
    method: Method,
    header: TraceHeader,
    traces: Iterable[RequestTrace],
    *,
    deployment: Deployment | None = None,
    batch_size: int = 1,
    seed: int = 0,
    timeline: Timeline | None = None,
) -> Iterator[RequestRecord]:
    """The records of decoding the traces' requests with a method, as they finish; holds a batch of traces at most.

    Time is modelled: that of the deployment, or of the recording machine.
    """
    require_chains(method)
    place, policy = deployment or recorded(header), round_policy(method)
    rule = policy.stop_rule if batch_size == 1 and timeline is None else None
    if rule is not None and (rule.most == 0 or method.drafting.on_record):
        return replay_chains(
            rule, header, traces, single_request_clock(method, place), colocated_request_clock(method, place)
        )
    active: dict[str, RequestTrace] = {}
    clock = ModelledClock()
    drafter, verifier = _source(method, header, active, clock), ReplayVerifier(active)
    engine = Engine(
        policy,
        *add_modelled_time(method, drafter, verifier, place, clock),
        seed=seed,
        eos_ids=frozenset(),
        batch_size=batch_size,
        capacity=UNLIMITED,
        name=method.display_name,
    )
    clock.timeline = timeline
    return _replay_rounds(engine, active, traces, batch_size)


def require_chains(method: Method) -> None:
    """A method that a trace holds no rounds for is an error."""
    if method.pipeline is not None:
        raise SkitError(CHAINS.format("fills a pipeline"))
    if method.required_capability >= Capability.TREES:
        raise SkitError(CHAINS.format("drafts trees"))


def _replay_rounds(
    engine: Engine, active: dict[str, RequestTrace], traces: Iterable[RequestTrace], batch_size: int
) -> Iterator[RequestRecord]:
    """The general way: the loop of a live run, over recorded drafts and answers."""
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


def _source(method: Method, header: TraceHeader, traces: dict[str, RequestTrace], clock: Clock) -> DraftSource:
    """What the trace holds of the draft model, or a drafter that needs no model: text is there to look things up in."""
    drafting = method.drafting
    if not drafting.models:
        longest = header.capacity or UNLIMITED
        return drafting.source(DrafterParts({}, Sampler(), clock, sampled=False, capacity=longest))
    if not drafting.on_record:
        reason = f"a trace holds drafts of the draft model, so drafter '{drafting.display_name}' cannot be replayed"
        raise SkitError(f"{method.display_name}: {reason}: run it live")
    return ReplayDrafter(header, traces)


def _request(trace: RequestTrace) -> Request:
    """The output's length is the recorded one, so that neither the end token nor the limit has to be known."""
    answer = tuple(trace.output_ids)
    return Request(trace.request_id, trace.category, tuple(trace.prompt_ids), len(answer), answer)
