"""Replays greedy chain methods on a trace: without models, with the same rounds as a live run."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
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
from specbench_kit.traces.chain_replay import UNKNOWN, beyond_answer, draft_too_long, replay_chains
from specbench_kit.traces.trace import DRAFT_STATISTICS, STEP_TIMES, TOKEN_IDS, RequestTrace, TraceFile, TraceHeader

UNLIMITED = 1 << 40
CHAINS = "a trace holds chains, so a method that {} cannot be replayed: run it live"


class _RecordedDraft:
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
        # Scoring all tokens at once costs little more than one, and a run has a single scorer.
        if not self._scores:
            self._scores = judge.score_chain(self._table)
        return self._scores[row]


class ReplayDrafter:
    """A drafter that returns what the draft model drafted when the trace was recorded."""

    def __init__(self, header: TraceHeader, traces: dict[str, RequestTrace]) -> None:
        self.drafts: list[Draft] = []
        self._header, self._traces = header, traces
        self._recorded: dict[str, _RecordedDraft] = {}

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round with empty trees."""
        self.drafts = [Draft(session, TokenTree(session.tokens[-1])) for session in sessions]
        self._recorded.clear()
        return self.drafts

    def room(self, draft: Draft) -> int:
        """Return how many tokens the chain can take until the context is full, as it was at the recording."""
        return self._header.token_limit(self._traces[draft.request_id]) - draft.context_length - len(draft.tree)

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append the recorded next token to each chain; return the drafts that had room for it."""
        grown = [draft for draft in drafts if self.room(draft) > 0]
        for draft in grown:
            position = draft.tree.last
            if position >= self._header.max_draft:
                raise draft_too_long(self._header.max_draft)
            source = self._recorded.get(draft.request_id)
            if source is None:
                source = _RecordedDraft(self._traces[draft.request_id], draft.session.produced)
                self._recorded[draft.request_id] = source
            draft.tree.add(source.tokens[position], position, source, position)
        return grown

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        """Refuse to draft trees: a trace holds one chain per offset."""
        raise SkitError(CHAINS.format("drafts trees"))

    def commit(self, draft: Draft, path: Sequence[int], root: int | None = None, states: Tensor | None = None) -> None:
        """Do nothing: no KV is kept."""

    def release(self, session: Session) -> None:
        """Do nothing: no KV is kept."""


class ReplayVerifier:
    """A verifier that answers what the target answered when the trace was recorded.

    A looked-up draft may be longer than the recorded ones, and right to the end of what is known of the answer. It is
    then cut there: the output ended before, so that only the count of accepted tokens is lower than in a live run.
    """

    asynchronous = False

    def __init__(self, header: TraceHeader, traces: dict[str, RequestTrace]) -> None:
        self._header, self._traces = header, traces

    def admit(self, session: Session) -> None:
        """Do nothing: no KV is kept."""

    def release(self, session: Session) -> None:
        """Do nothing: no KV is kept."""

    def commit(self, verdict: Verdict) -> None:
        """Do nothing: no KV is kept."""

    def send(self, drafts: Sequence[Draft], chosen: Sequence[list[int]]) -> PendingVerdicts:
        """Return the verdicts of walking every chain along the recorded answer."""
        verdicts = [self._judge(draft, nodes) for draft, nodes in zip(drafts, chosen, strict=True)]
        return lambda: verdicts

    def _judge(self, draft: Draft, nodes: list[int]) -> Verdict:
        trace, start = self._traces[draft.request_id], draft.session.produced
        answer = trace.output_ids[start : start + len(nodes) + 1]
        answer += trace.continuation[: len(nodes) + 1 - len(answer)]

        def target_token(column: int) -> int:
            if column < len(answer):
                return answer[column]
            if column > self._header.max_draft:
                return UNKNOWN
            raise beyond_answer(column)

        path, bonus = walk(draft.tree, nodes, target_token)
        return Verdict(draft, nodes, path, bonus, 1 + len(nodes))


def recording_deployment(header: TraceHeader) -> Deployment:
    """Return the machine that a trace was recorded on; prompts take no time, since a trace does not tell it."""
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


def prepare_for_replay(method: Method, trace: TraceFile, deployment: Deployment, batch_size: int = 1) -> Method:
    """Return the method prepared for a replay; raise SkitError if it reads what the trace lacks."""
    drafting, header = method.drafting, trace.header
    require_chain_method(method)
    if drafting.models and method.required_capability > Capability.TOKENS:
        header.require(
            DRAFT_STATISTICS, f"{method.display_name} reads {method.required_capability.words} of drafted tokens"
        )
    if method.uses_drafter and not drafting.models:
        header.require(TOKEN_IDS, f"{method.display_name} looks tokens up")
    pair = PairHashes(*(trace.provenance("models", role, "hash") for role in ("target", "draft")))
    return method.prepare(replace(environment(pair, deployment), batch_size=batch_size))


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
    """Yield the records of decoding the traces' requests with a method, as they finish.

    Time is that of the deployment, or of the recording machine. At most one batch of traces is held in memory.
    """
    require_chain_method(method)
    modelled, policy = deployment or recording_deployment(header), round_policy(method)
    # A stop rule allows a fast path with the same records, unless a batch or a timeline needs the engine.
    rule = policy.stop_rule if batch_size == 1 and timeline is None else None
    if rule is not None and (rule.most == 0 or method.drafting.on_record):
        return replay_chains(
            rule, header, traces, single_request_clock(method, modelled), colocated_request_clock(method, modelled)
        )
    active: dict[str, RequestTrace] = {}
    clock = ModelledClock()
    drafter, verifier = _source(method, header, active, clock), ReplayVerifier(header, active)
    engine = Engine(
        policy,
        *add_modelled_time(method, drafter, verifier, modelled, clock),
        seed=seed,
        eos_ids=frozenset(),
        batch_size=batch_size,
        capacity=UNLIMITED,
        name=method.display_name,
    )
    clock.timeline = timeline
    return _replay_rounds(engine, active, traces, batch_size)


def require_chain_method(method: Method) -> None:
    """Raise SkitError for a method that does not draft chains: a trace holds nothing else."""
    if method.pipeline is not None:
        raise SkitError(CHAINS.format("fills a pipeline"))
    if method.required_capability >= Capability.TREES:
        raise SkitError(CHAINS.format("drafts trees"))


def _replay_rounds(
    engine: Engine, active: dict[str, RequestTrace], traces: Iterable[RequestTrace], batch_size: int
) -> Iterator[RequestRecord]:
    """Yield records from the loop of a live run, over recorded drafts and answers."""
    waiting = iter(traces)
    while True:
        for trace in islice(waiting, batch_size - len(active)):
            active[trace.request_id] = trace
            # The output's length is the recorded one, so that neither end token nor limit has to be known.
            answer = tuple(trace.output_ids)
            prompt = tuple(trace.prompt_ids)
            engine.submit(Request(trace.request_id, trace.category, prompt, len(answer), answer))
        if engine.idle:
            return
        for record in engine.step():
            record.finish_reason = active.pop(record.request_id).finish_reason
            yield record


def _source(method: Method, header: TraceHeader, traces: dict[str, RequestTrace], clock: Clock) -> DraftSource:
    """Return a drafter of recorded drafts, or the method's own if it needs no model, only text to look up."""
    drafting = method.drafting
    if not drafting.models:
        longest = header.capacity or UNLIMITED
        return drafting.source(DrafterParts({}, Sampler(), clock, sampled=False, capacity=longest))
    if not drafting.on_record:
        reason = f"a trace holds drafts of the draft model, so drafter '{drafting.display_name}' cannot be replayed"
        raise SkitError(f"{method.display_name}: {reason}: run it live")
    return ReplayDrafter(header, traces)
