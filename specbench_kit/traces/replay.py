"""Replays greedy methods on a trace: without models, with the same rounds as a live run."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from specbench_kit.core.errors import SkitError, require
from specbench_kit.decoding.clock import Clock, ModelledClock
from specbench_kit.decoding.drafter import Draft, DraftSource
from specbench_kit.decoding.drafting.base import Capability, DrafterParts, parse_drafter
from specbench_kit.decoding.engine import Engine
from specbench_kit.decoding.latency import TableModel
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.records import UNLIMITED, RequestRecord
from specbench_kit.decoding.rules import walk
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request, Session
from specbench_kit.decoding.timeline import Timeline
from specbench_kit.decoding.verification import PendingVerdicts, Verdict
from specbench_kit.deployments.assembly import round_policy
from specbench_kit.deployments.base import RECORDED, Deployment, Endpoint
from specbench_kit.deployments.drafting_work import WorkLog
from specbench_kit.deployments.placing import (
    add_modelled_time,
    colocated_request_clock,
    deployment_key,
    environment,
    single_request_clock,
    states_on_the_way,
)
from specbench_kit.methods.base import LONGEST_DRAFT, Method
from specbench_kit.models.catalogue import ModelSource, locate
from specbench_kit.models.draft_library import find_draft
from specbench_kit.predictors.library import NO_DRAFT_MODEL, PairHashes
from specbench_kit.runs.document import RunFields
from specbench_kit.runs.provenance import hash_model
from specbench_kit.traces.chain_replay import UNKNOWN, BeyondTrace, beyond_answer, replay_chains
from specbench_kit.traces.draft_limits import shorter_drafts
from specbench_kit.traces.replay_drafter import (
    BlockReplayDrafter,
    HybridReplayDrafter,
    ReplayDrafter,
)
from specbench_kit.traces.trace import (
    DRAFT_STATISTICS,
    STEP_TIMES,
    TOKEN_IDS,
    RequestTrace,
    TraceFile,
    TraceHeader,
)

CHAINS = "a trace holds chains, so a method that {} cannot be replayed: run it live"
DISTRIBUTIONS = "a trace holds no whole distributions, so a method that changes them cannot be replayed: run it live"
CANDIDATES = (
    "a trace holds no candidates of the target for tokens that it rejects, so a method that learns from them cannot be "
    "replayed: run it live"
)
DIVERGENCES = (
    "a trace holds no distributions of the target, so a method that learns how far the draft model's lie from them "
    "cannot be replayed: run it live"
)
MODEL = "model"
"""The drafter that most methods have by default."""


class ReplayVerifier:
    """A verifier that answers what the target answered when the trace was recorded.

    A looked-up draft may be longer than the recorded ones, and right to the end of what is known of
    the answer. It is then cut there: the output ended before, so that only the count of accepted
    tokens is lower than in a live run.
    """

    asynchronous = False

    def __init__(self, header: TraceHeader, traces: dict[str, RequestTrace]) -> None:
        self._header = header
        self._traces = traces

    def admit(self, session: Session) -> None:
        """Do nothing: no KV is kept."""

    def release(self, session: Session) -> None:
        """Do nothing: no KV is kept."""

    def commit(self, verdict: Verdict) -> None:
        """Do nothing: no KV is kept."""

    def send(self, drafts: Sequence[Draft], chosen: Sequence[list[int]]) -> PendingVerdicts:
        """Return the verdicts of walking every chain or tree along the recorded answer."""
        verdicts = [self._judge(draft, nodes) for draft, nodes in zip(drafts, chosen, strict=True)]
        return lambda: verdicts

    def _judge(self, draft: Draft, nodes: list[int]) -> Verdict:
        trace = self._traces[draft.request_id]
        start = draft.session.produced
        tree = draft.tree
        answer = trace.output_ids[start : start + tree.deepest(nodes) + 1]
        answer += trace.continuation[: tree.deepest(nodes) + 1 - len(answer)]

        def target_token(column: int) -> int:
            depth = tree.depth(nodes[column - 1]) if column else 0
            if depth < len(answer):
                return answer[depth]
            if depth > self._header.max_draft and not self._header.trees:
                return UNKNOWN
            raise beyond_answer(depth)

        path, bonus = walk(draft.tree, nodes, target_token)
        return Verdict(draft, nodes, path, bonus, 1 + len(nodes))


def recording_deployment(header: TraceHeader) -> Deployment:
    """Return the machine that a trace was recorded on; prompts take no time, since a trace does not
    tell it.
    """
    header.require(STEP_TIMES, "a replay takes the time of the recording machine")
    device = "the recording machine"
    origin = "as measured for the trace, whatever the context"
    return Deployment(
        RECORDED,
        drafter=Endpoint(device, TableModel((header.draft_s,)), origin=origin),
        verifier=Endpoint(device, TableModel(header.verify_s), origin=origin),
        placement="server",
        predictor_s=header.statistics_s,
        predictor_origin=header.recording.statistics,
        cached_prompts=True,
        description="The machine that recorded the trace; prompts take no time.",
    )


def prepare_for_replay(
    method: Method,
    trace: TraceFile,
    deployment: Deployment,
    batch_size: int = 1,
    tuned_for: Deployment | None = None,
    *,
    server_decodes: bool = True,
    longest_draft: int = LONGEST_DRAFT,
) -> Method:
    """Return the method prepared for a replay; raise SkitError if it reads what the trace lacks.

    It has the thresholds that were tuned for another deployment where `tuned_for` names one.
    Without `server_decodes` it may not leave rounds to the server's own decoding. The methods
    beside it draft up to `longest_draft` tokens.
    """
    header = trace.header
    method = _with_recorded_drafter(method, trace.header)
    drafting = method.drafting
    require_replayable(method, header)
    if drafting.models and method.required_capability > Capability.TOKENS:
        header.require(
            DRAFT_STATISTICS,
            f"{method.display_name} reads {method.required_capability.words} of drafted tokens",
        )
    if method.uses_drafter and not drafting.models and drafting != parse_drafter(header.drafter):
        header.require(TOKEN_IDS, f"{method.display_name} looks tokens up")
    key = deployment_key(tuned_for or deployment)
    placed = environment(recorded_pair(trace), deployment)
    allowed = server_decodes and placed.server_decodes
    longest = min(longest_draft, header.max_draft)
    return method.prepare(
        replace(
            placed,
            batch_size=batch_size,
            deployment=key,
            server_decodes=allowed,
            longest_draft=longest,
        )
    )


def describe_replayed(method: Method, trace: TraceFile) -> RunFields:
    """Return what `run.json` says of a method prepared for a replay: what it uses, and how many
    prompts it has seen.

    Those are the prompts of the whole trace that its predictor was trained on; a trace may not name
    its prompts.
    """
    uses = method.uses()
    seen = len(method.trained_on.intersection(trace.recording.prompts or ()))
    return {**({"uses": uses} if uses else {}), **({"seen_prompts": seen} if seen else {})}


def recorded_pair(trace: TraceFile) -> PairHashes:
    """Return the target and the first model that the trace's drafter forwards."""
    models = parse_drafter(trace.header.drafter).models

    def hash_of(role: str) -> str:
        """Return a model's hash, or nothing of a trace of another tool, which knows names alone."""
        return "" if trace.recording.imported else trace.model_hash(role)

    return PairHashes(hash_of("target"), hash_of(models[0]) if models else NO_DRAFT_MODEL)


def takes_recorded_drafter(method: Method, header: TraceHeader) -> bool:
    """Return whether a replay drafts as the trace does, and not as the method's default, which is
    the draft model.
    """
    return header.drafter != MODEL and method.uses_drafter and method.drafter == MODEL


def _with_recorded_drafter(method: Method, header: TraceHeader) -> Method:
    """Return the method with the trace's drafter, unless it has another one than the draft
    model.
    """
    if not takes_recorded_drafter(method, header):
        return method
    method = replace(method, drafter=header.drafter)
    method.require_drafter()
    return method


def replay(
    method: Method,
    header: TraceHeader,
    traces: Iterable[RequestTrace],
    *,
    deployment: Deployment | None = None,
    batch_size: int = 1,
    seed: int = 0,
    timeline: Timeline | None = None,
    ends: Sequence[Deployment] = (),
    log: WorkLog | None = None,
) -> Iterator[RequestRecord]:
    """Yield the records of decoding the traces' requests with a method, as they finish.

    Time is that of the deployment, or of the recording machine. Records say what the same rounds
    take at the `ends` of the deployment's range as well, and `log` collects the work of drafting.
    At most one batch of traces is held in memory.
    """
    require_replayable(method, header)
    modelled = deployment or recording_deployment(header)
    policy = round_policy(method)
    # A stop rule allows a fast path with the same records, unless a batch or a timeline needs the
    # engine.
    rule = policy.stop_rule if batch_size == 1 and timeline is None else None
    recorded = _takes_recorded_drafts(method, header, batch_size)
    states = None
    if recorded:
        states = states_on_the_way(method, modelled, header.state_layers, header.state_bytes)
    # The time of a hybrid drafter depends on which members drafted before, and a block takes one
    # forward in all.
    takes_steps = not method.drafting.members and method.drafting.tokens_per_forward == 1
    if rule is not None and (rule.most == 0 or (recorded and takes_steps)):
        alone = single_request_clock(method, modelled, states, log)
        at_ends = [single_request_clock(method, end, states) for end in ends]
        colocated = colocated_request_clock(method, modelled, states)
        return _with_advice(
            method, header, replay_chains(rule, header, traces, alone, colocated, at_ends)
        )
    active: dict[str, RequestTrace] = {}
    clock = ModelledClock()
    drafter = _source(method, header, active, clock, batch_size)
    verifier = ReplayVerifier(header, active)
    engine = Engine(
        policy,
        *add_modelled_time(method, drafter, verifier, modelled, clock, states, ends, log),
        setup=DecodingSetup(seed=seed, batch_size=batch_size),
        name=method.display_name,
    )
    clock.timeline = timeline
    return _with_advice(method, header, _replay_rounds(engine, active, traces, batch_size))


def _with_advice(
    method: Method, header: TraceHeader, records: Iterator[RequestRecord]
) -> Iterator[RequestRecord]:
    """Yield the records; the error of a draft that is longer than recorded names the option that is
    too large.
    """
    try:
        yield from records
    except BeyondTrace as error:
        advice = shorter_drafts(method, header.max_draft)
        raise SkitError(
            f"{error}: record the trace with a larger --max-draft, or {advice}"
        ) from error


def require_replayable(method: Method, header: TraceHeader) -> None:
    """Raise SkitError for a method whose rounds no trace can hold, or not this one."""
    if method.own_distributions:
        raise SkitError(DISTRIBUTIONS)
    require(not method.reads_candidates, f"{method.display_name}: {CANDIDATES}")
    require(not method.reads_divergences, f"{method.display_name}: {DIVERGENCES}")
    if method.required_capability == Capability.TREES and method.pipeline is None:
        require(
            bool(header.trees),
            f"{CHAINS.format('drafts trees')}, or take a trace of skit record --trees",
        )
    else:
        require_chain_method(method)


def require_chain_method(method: Method) -> None:
    """Raise SkitError for a method that does not draft chains."""
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
            # The output's length is the recorded one, so that neither end token nor limit has to be
            # known.
            answer = tuple(trace.output_ids)
            prompt = tuple(trace.prompt_ids)
            request = Request(
                trace.request_id, trace.category, prompt, len(answer), answer, trace.dialogue
            )
            engine.submit(request)
        if engine.idle:
            return
        for record in engine.step():
            record.finish_reason = active.pop(record.request_id).finish_reason
            yield record


def _takes_recorded_drafts(method: Method, header: TraceHeader, batch_size: int) -> bool:
    """Return whether a replay takes the trace's drafts, and does not look tokens up anew in the
    recorded text.
    """
    drafting = method.drafting
    longest = method.longest_draft
    if drafting != parse_drafter(header.drafter):
        return False
    if drafting.models:
        return True
    # Looking up again is as good where there is text, and necessary for longer drafts and for
    # another order.
    serves = longest is not None and longest <= header.max_draft
    in_order = batch_size == 1 or not drafting.depends_on_order
    return (serves and in_order) or TOKEN_IDS in header.lacks


def _source(
    method: Method,
    header: TraceHeader,
    traces: dict[str, RequestTrace],
    clock: Clock,
    batch_size: int,
) -> DraftSource:
    """Return a drafter of recorded drafts, or the method's own if it needs no model, only text to
    look up.
    """
    drafting = method.drafting
    if _takes_recorded_drafts(method, header, batch_size):
        if batch_size > 1 and drafting.depends_on_order:
            raise SkitError(
                f"{method.display_name}: the drafts depend on the order of the requests, which were recorded one after "
                "the other: replay them with --batch-size 1, or record a look-up with shared=false"
            )
        if drafting.members:
            return HybridReplayDrafter(drafting.members, header, traces)
        if drafting.tokens_per_forward > 1:
            return BlockReplayDrafter(drafting, header, traces)
        return ReplayDrafter(header, traces)
    if not drafting.models:
        longest = header.capacity or UNLIMITED
        return drafting.source(DrafterParts({}, Sampler(), clock, sampled=False, capacity=longest))
    if (
        header.drafter == MODEL
        and (derived := drafting.over(ReplayDrafter(header, traces), clock)) is not None
    ):
        return derived
    reason = f"a trace holds drafts of '{header.drafter}', so drafter '{drafting.spec}' cannot be replayed"
    raise SkitError(f"{method.display_name}: {reason}: run it live")


def identify_pair(target: str, draft: str) -> PairHashes:
    """Return the content hashes of two models by name; for models of the hub, their commits."""
    source = locate(target, "target")
    return PairHashes(_hash(source), _hash(find_draft(draft, source)))


def require_same_pair(trace: TraceFile, pair: PairHashes) -> None:
    """Raise SkitError if the trace was recorded with another pair."""
    recorded = [trace.recording.model_hash(role) for role in ("target", "draft")]
    if recorded != [pair.target, pair.draft]:
        names = " and ".join(trace.model_name(role) for role in ("target", "draft"))
        raise SkitError(
            f"the trace {trace.path} was recorded with other models ({names}): "
            "name them with --target and --draft, or record a trace with these"
        )


def _hash(source: ModelSource) -> str:
    if source.synthetic:
        return source.location
    return hash_model(source.folder)
