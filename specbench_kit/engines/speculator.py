"""The core of a drafter inside an engine: settle what was verified, then draft for the requests of the batch.

Also here: what puts a method, its draft models and the recording together for an engine, or says in one line why it
cannot; from new tokens of a request to the rounds that made them: an engine does not say what it verified; the
clock of a drafter inside an engine, which also counts the steps that the engine does between two calls.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.util import Finalize
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer

from specbench_kit.core.errors import SkitError, require
from specbench_kit.decoding.boundary import CheckedPolicy
from specbench_kit.decoding.clock import MeasuringClock
from specbench_kit.decoding.drafter import Draft, Drafter
from specbench_kit.decoding.drafting.base import DRAFT, Capability
from specbench_kit.decoding.engine import RoundOutcome, record_rounds
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.records import FinishReason, RequestRecord
from specbench_kit.decoding.sampling import RequestRandom
from specbench_kit.decoding.session import Request, Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.decoding.verification import Verdict
from specbench_kit.deployments import loading
from specbench_kit.deployments.assembly import round_drafter, round_policy
from specbench_kit.deployments.placing import environment
from specbench_kit.engines.options import EngineFacts, EngineOptions
from specbench_kit.engines.recorder import Overhead, RunRecorder
from specbench_kit.engines.rows import EngineRow, FollowedRequest, Proposal, RequestFollower
from specbench_kit.methods.base import Environment, Latencies, Method
from specbench_kit.methods.spec import describe_method, parse_method
from specbench_kit.models.catalogue import ModelSource, from_pretrained, locate
from specbench_kit.models.draft_library import HEAD, find_draft
from specbench_kit.models.executors.base import make_executor, name_of
from specbench_kit.models.pair import SLACK, LoadedModel, load_apart, load_draft_tokenizer
from specbench_kit.models.runner import Runner
from specbench_kit.models.vocabulary_map import unshared
from specbench_kit.predictors.library import PairHashes
from specbench_kit.runs import provenance


class EngineClock(MeasuringClock):
    """This machine's time, which always passes: between two calls of the drafter the engine works."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._forever = self.running()
        self._forever.__enter__()

    def charge_step(self, seconds: float, *, typical: bool) -> None:
        """Charge a step of the engine as a verification; it is not `typical` if a prompt was part of it."""
        self._phases["verify"] += seconds
        if typical:
            self._recent["verify"].append(seconds)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of drafting: tokens per draft, and requests that may hold something in the drafter at a time.

    A drafter that is `eager` forgets a request as soon as it is not in the batch; another keeps its KV for its return.
    """

    longest_draft: int
    slots: int
    eager: bool
    eos_ids: frozenset[int]
    max_new_tokens: int


class Speculator:
    """Lets one policy draft inside an engine that shows its batch after every step.

    `on_finish` is called with the record of every request that has left the engine.
    """

    def __init__(
        self,
        policy: CheckedPolicy,
        drafter: Drafter,
        clock: EngineClock,
        limits: Limits,
        on_finish: Callable[[RequestRecord], None],
    ) -> None:
        self.overhead = Overhead()
        self._policy = policy
        self._drafter = drafter
        self._clock = clock
        self._limits = limits
        self._on_finish = on_finish
        self._follower = RequestFollower(self._open)
        self._left_s = 0.0
        """When the last call ended: from there on the engine works, or waits for requests."""
        self._step_began_s: float | None = None
        self._opened = 0

    def step_begins(self) -> None:
        """Note the beginning of a step, for an engine that had nothing to do before."""
        if self._step_began_s is None:
            self._step_began_s = self._clock.now_s()

    def propose(self, rows: Sequence[EngineRow]) -> list[list[int]]:
        """Learn from the new tokens of every row, and return the draft tokens that are to be verified next."""
        entered_s = self._clock.now_s()
        with torch.inference_mode():
            requests = self._follower.match(rows)
            self._charge_step(entered_s, requests, rows)
            outcomes = self._settle(requests, rows)
            self._let_go()
            self._record(outcomes)
            drafts = self._draft(requests, rows)
        self._left_s = self._clock.now_s()
        self._step_began_s = None
        self.overhead.calls += 1
        self.overhead.total_s += self._left_s - entered_s
        return drafts

    def close(self) -> None:
        """Finish all requests, since the engine ends."""
        for request in list(self._follower.requests):
            self._finish(request)

    def _open(self, row: EngineRow, number: int, call: int) -> FollowedRequest:
        """Return a request that the engine has admitted; its text up to the new tokens is its prompt."""
        prompt = np.array(row.text[: len(row.text) - row.new], dtype=np.int32)
        self._opened += 1
        name = str(self._opened)
        tokens = prompt.tolist()
        request = Request(name, "", tuple(tokens), self._limits.max_new_tokens)
        record = RequestRecord(name, "", tokens)
        arrival_s = self._left_s if self._step_began_s is None else self._step_began_s
        session = Session(request, RequestRandom(0, name), self._limits.eos_ids, arrival_s, record)
        return FollowedRequest(session, prompt, number, call)

    def _charge_step(self, now_s: float, requests: Sequence[FollowedRequest], rows: Sequence[EngineRow]) -> None:
        """Charge the engine's step; before it the engine was idle if no request was in its batch."""
        goes_on = any(request.session.produced for request in requests)
        began_s = self._left_s if goes_on or self._step_began_s is None else self._step_began_s
        typical = all(row.new and request.session.produced for request, row in zip(requests, rows, strict=True))
        self._clock.charge_step(now_s - began_s, typical=typical)

    def _settle(self, requests: Sequence[FollowedRequest], rows: Sequence[EngineRow]) -> list[RoundOutcome]:
        """Return the rounds that the new tokens tell of, and let the policy learn from those with a draft."""
        outcomes = []
        verdicts = []
        with self._clock.phase("commit"):
            for request, row in zip(requests, rows, strict=True):
                if not row.new:
                    self._abandon(request)  # the engine computes its text again, and has thrown the draft away
                new = row.text[len(request.text) :].tolist()
                if not new:
                    continue
                if request.ended:
                    goes_on(request.session)
                proposal = request.proposal
                rounds = settle(request, new)
                request.text = np.array(row.text, dtype=np.int32)
                request.ended = end_of_output(request.session) is not None
                if proposal is not None:
                    verdict = rounds[0].verdict
                    if not proposal.settled:
                        self._drafter.commit(verdict.draft, verdict.path)
                    verdicts.append(verdict)
                outcomes += rounds
        if verdicts:
            self._policy.observe(verdicts)
        return outcomes

    def _let_go(self) -> None:
        """Finish the requests that have ended, and as many of those that are away as there is no room for."""
        for request in self._follower.away:
            if request.ended:
                self._finish(request)
            else:
                self._close_draft(
                    request
                )  # whoever comes back may bring the verdict, but the drafter's round ends here
        for request in self._follower.away[: -self._limits.slots]:
            self._finish(request)

    def _abandon(self, request: FollowedRequest) -> None:
        """Note that a request's draft was never verified."""
        if request.proposal is not None:
            self._close_draft(request)
            request.proposal.dropped = True

    def _close_draft(self, request: FollowedRequest) -> None:
        """Let the drafter drop what it holds for a draft whose verdict is not known yet."""
        proposal = request.proposal
        if proposal is not None and not proposal.settled:
            self._drafter.commit(proposal.draft, ())
            proposal.settled = True

    def _record(self, outcomes: Sequence[RoundOutcome]) -> None:
        """Add a line per round; each is charged a part of the step by the tokens computed for it."""
        if not outcomes:
            return
        seconds = self._clock.take()
        self.overhead.add_phases(seconds)
        lines = record_rounds(outcomes, seconds, self._clock.now_s())
        for outcome, line in zip(outcomes, lines, strict=True):
            verdict = outcome.verdict
            line.expected = self._policy.expects(verdict)
            self.overhead.rounds += 1
            self.overhead.drafted += verdict.draft.tree.drafted
            self.overhead.submitted += len(verdict.submitted)
            self.overhead.accepted += len(verdict.path)

    def _draft(self, requests: Sequence[FollowedRequest], rows: Sequence[EngineRow]) -> list[list[int]]:
        """Let the policy draft for every request that goes on, as far as the drafter has room."""
        proposed: list[list[int]] = [[] for _ in rows]
        waiting = [request for request, row in zip(requests, rows, strict=True) if row.new and not request.ended]
        # Requests that the drafter knows come first: the others would have to wait for their slots anyway.
        waiting.sort(key=lambda request: not request.has_state)
        drafting = waiting[: self._limits.slots]
        if not drafting:
            return proposed
        self._make_room(drafting)
        drafts = self._drafter.begin([request.session for request in drafting])
        for request, draft, nodes in zip(drafting, drafts, self._policy.plan(self._drafter), strict=True):
            _require_chain(draft, nodes)
            draft.tree.mark_sent()
            request.proposal = Proposal(draft, nodes[: self._limits.longest_draft])
            request.has_state = True
            proposed[request.row] = request.proposal.tokens
        return proposed

    def _make_room(self, drafting: Sequence[FollowedRequest]) -> None:
        """Let the drafter forget requests that are not in the batch, those first that were away for the longest."""
        busy = set(drafting)
        others = [request for request in self._follower.requests if request.has_state and request not in busy]
        kept = 0 if self._limits.eager else self._limits.slots - len(drafting)
        for request in others[: max(0, len(others) - kept)]:
            self._release(request)

    def _release(self, request: FollowedRequest) -> None:
        if request.has_state:
            self._drafter.release(request.session)
            request.has_state = False

    def _finish(self, request: FollowedRequest) -> None:
        self._release(request)
        self._policy.forget(request.session.request.id)
        self._follower.forget(request)
        if request.session.record.rounds:
            self._on_finish(finish_record(request.session, self._clock.now_s()))


def _require_chain(draft: Draft, nodes: Sequence[int]) -> None:
    if [draft.tree.parents[node] for node in nodes] != [0, *nodes][: len(nodes)]:
        raise SkitError(
            "an engine verifies chains alone, and the policy chose a tree: name a method that drafts chains"
        )


ENDLESS = 1 << 30
"""The largest number of output tokens of a request whose limit is not known."""


def settle(request: FollowedRequest, new: Sequence[int]) -> list[RoundOutcome]:
    """Append the new tokens to a request, and return its rounds: the verdict on its draft first, if it has one.

    Tokens beyond the draft and the target's own were decoded while the engine did not call its drafter; each of them
    counts as a round without a draft.
    """
    session = request.session
    rounds = list[RoundOutcome]()
    if request.proposal is not None:
        verdict = judge(request.proposal, new)
        request.proposal = None
        rounds.append(RoundOutcome(verdict, len(verdict.path) + 1, aligned=False))
    first = not session.produced
    for token in new[sum(outcome.committed for outcome in rounds) :]:
        draft = Draft(session, TokenTree(session.tokens[-1]))
        computed = len(session.tokens) if first and not rounds else 1
        rounds.append(RoundOutcome(Verdict(draft, [], [], token, computed), 1, aligned=False))
    session.tokens += new
    return rounds


def judge(proposal: Proposal, new: Sequence[int]) -> Verdict:
    """Return the verdict that the new tokens are on a draft.

    An engine may verify a part of a draft only, because its step was full. This shows where the last new token is the
    next drafted one: had the engine verified it too, a token of the target would follow.
    """
    nodes = proposal.nodes
    accepted = proposal.accepted(new)
    submitted = nodes
    tokens = proposal.tokens
    if proposal.dropped or (accepted + 1 == len(new) and accepted < len(nodes) and tokens[accepted] == new[accepted]):
        submitted = nodes[:accepted]
    return Verdict(proposal.draft, submitted, nodes[:accepted], new[accepted], len(submitted) + 1)


def end_of_output(session: Session) -> tuple[int, FinishReason] | None:
    """Return the number of output tokens up to the end of the output, and why it ends; None if it goes on."""
    prompt = len(session.request.prompt_ids)
    length = min(session.produced, session.request.max_new_tokens)
    for position, token in enumerate(session.tokens[prompt : prompt + length], start=1):
        if token in session.eos_ids:
            return position, "eos"
    return (length, "length") if session.produced >= session.request.max_new_tokens else None


def goes_on(session: Session) -> None:
    """Take back what looked like the end of the output, since the engine was asked to go on after it."""
    session.eos_ids = frozenset()
    session.request = replace(session.request, max_new_tokens=ENDLESS)


def finish_record(session: Session, now_s: float) -> RequestRecord:
    """Return the record of a request that has left the engine, cut where its output ends."""
    length, reason = end_of_output(session) or (session.produced, "length")
    record = session.record
    excess = session.produced - length
    while excess:
        last = record.rounds[-1]
        cut = min(excess, last.committed)
        last.committed -= cut
        excess -= cut
        if not last.committed:
            record.rounds.pop()
    prompt = len(session.request.prompt_ids)
    record.finish(session.tokens[prompt : prompt + length], reason, now_s)
    return record


GIB = 1 << 30
REMEMBERED = 1 << 18
"""Tokens of finished outputs that a look-up drafter keeps: a server runs for long, and a look-up reads them all."""
CLOSING = 10
"""The priority of closing among what a process does at its end."""


@dataclass(frozen=True, slots=True)
class _Models:
    """The draft models by name, the tokens that they must not produce, and the hashes of target and draft."""

    loaded: Mapping[str, LoadedModel]
    masked: tuple[int, ...]
    hashes: PairHashes

    def runners(self, facts: EngineFacts, kv_bytes: float) -> dict[str, Runner]:
        """Return a runner per model with as many slots as the engine has rows, or as many as the memory allows."""
        runners = {}
        for name, model in self.loaded.items():
            capacity = min(facts.context + SLACK, model.context)
            vocabulary = min(facts.vocabulary, int(model.text_config.vocab_size))
            executor = make_executor(model.shell, 1, capacity, vocabulary)
            fitting = int(kv_bytes / len(self.loaded) / max(1, executor.kv_bytes(1, capacity)))
            slots = max(1, min(facts.batch_size, fitting))
            runners[name] = Runner(executor.with_slots(slots, capacity))
            runners[name].masked = self.masked
        return runners


class EngineDrafter:
    """A method inside an engine: its speculator, and the run that it leaves when the process ends."""

    def __init__(self, facts: EngineFacts, options: EngineOptions) -> None:
        method = checked_method(options.method, facts)
        models = _load_models(method, facts, options)
        runners = models.runners(facts, options.kv_gib * GIB)
        method = method.prepare(_environment(options, facts, models.hashes))
        clock = EngineClock(next((runner.device for runner in runners.values()), torch.device("cpu")))
        # Sampled drafts would need the engine to know the draft model's probabilities: it takes the tokens alone.
        drafter = round_drafter(method, runners, clock, DecodingSetup(capacity=facts.context), REMEMBERED)
        slots = min([facts.batch_size, *(runner.executor.slots for runner in runners.values())])
        limits = Limits(
            facts.longest_draft,
            slots,
            eager=not runners,
            eos_ids=frozenset() if options.ignore_eos else facts.eos_ids,
            max_new_tokens=options.max_new_tokens or ENDLESS,
        )
        policy = CheckedPolicy(round_policy(method), method.display_name, clock)
        description = _describe(facts, options, method, models, runners)
        self._facts = facts
        self.speculator = Speculator(policy, drafter, clock, limits, lambda record: self.recorder.add(record))
        out = options.out if facts.recorded else None
        self.recorder = RunRecorder(out, description, options.records, self.speculator.overhead)
        for line in _remarks(method, facts, slots):
            _say(line)
        # Runs at the end of this process even where the engine has made it by multiprocessing, which skips atexit.
        self._finalizer = Finalize(self, self.close, exitpriority=CLOSING)

    def close(self) -> Path | None:
        """Finish all requests, complete the run and return its folder; say what drafting took."""
        self._finalizer.cancel()
        self.speculator.close()
        folder = self.recorder.close()
        if self._facts.recorded:
            _say(self.speculator.overhead.line(self._facts.engine))
        if folder is not None:
            _say(f"run: {folder}")
        return folder


def checked_method(spec: str, facts: EngineFacts) -> Method:
    """Return the method of a spec; SkitError if it needs what the engine does not give to a drafter."""
    method = parse_method(spec)
    name = method.display_name
    engine = facts.engine
    require(method.pipeline is None, f"{name} fills a pipeline, and {engine} decodes in rounds: name another method")
    require(
        method.required_capability < Capability.TREES,
        f"{name} drafts trees, and {engine} verifies chains alone: name a method such as fixed-k, threshold or suffix",
    )
    require(
        not method.overlaps, f"{name} drafts while the target verifies, and {engine} calls its drafter only afterwards"
    )
    require(not method.needs_reference, f"{name} reads the target's answer, which only a benchmark has")
    if any(model.startswith(HEAD) for model in method.drafting.models):
        raise SkitError(
            f"{name} drafts with a head, which reads the target's hidden states, and {engine} does not hand these to "
            "a drafter of one's own: choose a draft model, suffix or prompt-lookup"
        )
    return method


def _load_models(method: Method, facts: EngineFacts, options: EngineOptions) -> _Models:
    target = locate(facts.target, "target")
    sources = {
        name: find_draft(options.draft, target) if name == DRAFT else locate(name, "draft")
        for name in method.drafting.models
    }
    masked = set[int]()
    if sources:
        tokenizer = from_pretrained(AutoTokenizer, target)
        for source in sources.values():
            own = load_draft_tokenizer(source, target)
            masked |= set(unshared(tokenizer, own, (target.label, source.label)))
    loaded = {
        name: load_apart(source, target, device=options.device, dtype=options.dtype) for name, source in sources.items()
    }
    draft = _hash(sources[DRAFT]) if DRAFT in sources else ""
    return _Models(loaded, tuple(sorted(masked)), PairHashes(_hash(target), draft))


def _hash(source: ModelSource) -> str:
    folder = Path(source.location)
    return provenance.hash_model(folder) if folder.is_dir() else source.label


def _environment(options: EngineOptions, facts: EngineFacts, hashes: PairHashes) -> Environment:
    """Return what a method may plan with: latencies come from a deployment alone, as no profile knows the engine."""
    deployment = loading.load(options.deployment)
    known = environment(hashes, deployment)

    def latencies() -> Latencies:
        if deployment is None:
            raise SkitError(
                f"{options.method} plans with the latencies of {facts.engine}: describe them in a deployment file, "
                "and name it in SKIT_DEPLOYMENT"
            )
        return known.latencies()._replace(link=None)  # the drafter runs inside the engine

    return replace(known, latencies=latencies, modelled=False, server_decodes=False)


def _describe(
    facts: EngineFacts,
    options: EngineOptions,
    method: Method,
    models: _Models,
    runners: Mapping[str, Runner],
) -> dict[str, object]:
    """Return the content of `run.json`; null stands for what an engine does not tell its drafter."""
    target = locate(facts.target, "target")
    return {
        **describe_method(options.method, method),
        "dataset": {"name": options.dataset, "source": "engine"},
        "models": {
            "target": {"name": target.label, "hash": models.hashes.target, "parameters": None},
            **{name: model.describe(provenance.hash_model) for name, model in models.loaded.items()},
        },
        "config": {
            "max_new_tokens": options.max_new_tokens,
            "batch_size": facts.batch_size,
            "temperature": None,
            "device": facts.device,
            "dtype": facts.dtype,
            "executors": {name: name_of(runner.executor) for name, runner in runners.items()},
            "longest_draft": facts.longest_draft,
            "baseline": False,
        },
        "engine": {"name": facts.engine, "version": facts.version},
        "time_kind": "measured",
        **provenance.collect(sys.argv),
    }


def _remarks(method: Method, facts: EngineFacts, slots: int) -> list[str]:
    lines = [f"{method.display_name} drafts in {facts.engine} {facts.version}"]
    if (longest := method.longest_draft or 0) > facts.longest_draft:
        lines.append(f"drafts have up to {longest} tokens, and {facts.engine} takes {facts.longest_draft} of them")
    if slots < facts.batch_size:
        lines.append(
            f"there is draft KV for {slots} of {facts.batch_size} requests, and the others are decoded without drafts: "
            "raise SKIT_KV_GIB, or lower the engine's context length"
        )
    return lines


def _say(line: str) -> None:
    print(f"skit: {line}", file=sys.stderr, flush=True)
