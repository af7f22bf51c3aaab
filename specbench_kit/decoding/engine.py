"""The round loop: draft, choose, verify, commit, over a batch that refills as requests finish."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from specbench_kit.decoding.clock import Clock, MeasuringClock, Phase
from specbench_kit.decoding.drafter import Drafter, ModelDrafter
from specbench_kit.decoding.modelled import timed
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.decoding.sampling import RequestRandom, Sampler
from specbench_kit.decoding.session import Request, Session
from specbench_kit.decoding.verification import ModelVerifier, Verdict, Verifier
from specbench_kit.deployments.base import Deployment
from specbench_kit.methods.base import Method, Policy
from specbench_kit.models.runner import Runner


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One request's round: its verdict, and what came of it."""

    verdict: Verdict
    committed: int
    proactive: int
    aligned: bool


class Engine:
    """Decodes requests with one policy. Its clock stands still between steps, so engines can take turns.

    `capacity` is the most tokens, prompt and output, that a request can come to.
    """

    def __init__(
        self,
        policy: Policy,
        drafter: Drafter,
        verifier: Verifier,
        clock: Clock,
        *,
        seed: int,
        eos_ids: frozenset[int],
        batch_size: int,
        capacity: int,
    ) -> None:
        self.policy, self.drafter, self.verifier, self.clock = policy, drafter, verifier, clock
        self.sessions: list[Session] = []
        self.waiting: deque[Request] = deque()
        self._seed, self._eos_ids = seed, eos_ids
        self._batch_size, self._capacity = batch_size, capacity
        self._refused: list[RequestRecord] = []

    def submit(self, request: Request, *, first: bool = False) -> None:
        """Queue a request; `first` puts it at the head, as the next turn of a dialogue goes."""
        (self.waiting.appendleft if first else self.waiting.append)(request)

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do."""
        return not (self.sessions or self.waiting)

    def step(self) -> list[RequestRecord]:
        """One round for every request of the batch; returns those that finished."""
        with self.clock.running():
            self._refill()
            if self.sessions:
                self._round()
        return self._collect()

    def _round(self) -> None:
        drafts = self.drafter.begin(self.sessions)
        with self.clock.phase("policy"):
            self.policy.draft(self.drafter)
            chosen = self.policy.choose(drafts)
        with self.clock.phase("verify"):
            verdicts = self.verifier.verify(drafts, chosen)
        sent = [len(draft.tree) for draft in drafts]
        with self.clock.phase("policy"):
            self.policy.overlap(self.drafter)
        with self.clock.phase("commit"):
            outcomes = [self._commit(verdict, count) for verdict, count in zip(verdicts, sent, strict=True)]
        with self.clock.phase("policy"):
            self.policy.observe(verdicts)
        self._record(outcomes)

    def _commit(self, verdict: Verdict, sent: int) -> _Outcome:
        draft, kept = verdict.draft, self.policy.keep(verdict)
        committed = draft.session.commit(verdict.tokens)
        self.verifier.commit(verdict)
        self.drafter.commit(draft, verdict.path, kept)
        return _Outcome(verdict, committed, proactive=len(draft.tree) - sent, aligned=kept is not None)

    def _record(self, outcomes: Sequence[_Outcome]) -> None:
        """One line per request; a phase of the batch is shared out by the tokens that each request computed."""
        seconds, now_s = self.clock.take(), self.clock.now_s()
        computed = sum(outcome.verdict.weight for outcome in outcomes)
        drafted = sum(outcome.verdict.draft.tree.drafted for outcome in outcomes)
        for outcome in outcomes:
            verdict = outcome.verdict
            draft_share = verdict.draft.tree.drafted / drafted if drafted else 0.0
            record = _round_record(outcome, seconds, draft_share, verdict.weight / computed)
            session = verdict.draft.session
            record.end_s = now_s - session.arrival_s
            session.record.rounds.append(record)

    def _refill(self) -> None:
        while self.waiting and len(self.sessions) < self._batch_size:
            request = self.waiting.popleft()
            record = RequestRecord(
                request.id, request.category, list(request.prompt_ids), time_kind=self.clock.time_kind
            )
            room = self._capacity - len(request.prompt_ids)
            if not request.prompt_ids or room < 1:
                record.finish_reason = "error"
                record.error = (
                    f"the prompt has {len(request.prompt_ids)} tokens; the context holds 1 to {self._capacity - 1}"
                )
                self._refused.append(record)
                continue
            request = replace(request, max_new_tokens=min(request.max_new_tokens, room))
            random = RequestRandom(self._seed, request.id)
            session = Session(request, random, self._eos_ids, self.clock.now_s(), record)
            self.verifier.admit(session)
            self.sessions.append(session)

    def _collect(self) -> list[RequestRecord]:
        done, self._refused = self._refused, []
        for session in [session for session in self.sessions if session.finish_reason]:
            self.sessions.remove(session)
            self.verifier.release(session)
            self.drafter.release(session)
            done.append(_close(session, self.clock.now_s()))
        return done


def live_engine(
    method: Method,
    target: Runner,
    draft: Runner,
    *,
    sampler: Sampler,
    seed: int,
    eos_ids: frozenset[int],
    batch_size: int,
    started_s: float = 0.0,
    deployment: Deployment | None = None,
) -> Engine:
    """An engine over two models, on this machine's clock or on a deployment's."""
    measured = MeasuringClock(target.device, started_s)
    capacity = min(target.capacity, draft.capacity)
    sampled_drafts = method.proposal == "sample" and not sampler.greedy
    drafter = ModelDrafter(draft, sampler, measured, sampled_drafts, capacity)
    verifier = ModelVerifier(target, sampler, sampled_drafts)
    make = partial(Engine, seed=seed, eos_ids=eos_ids, batch_size=batch_size, capacity=capacity)
    if deployment is None:
        return make(method.policy(), drafter, verifier, measured)
    return make(method.policy(), *timed(method, drafter, verifier, deployment, started_s))


def _round_record(outcome: _Outcome, seconds: dict[Phase, float], draft_share: float, share: float) -> RoundRecord:
    verdict, tree = outcome.verdict, outcome.verdict.draft.tree
    return RoundRecord(
        drafted=tree.drafted,
        submitted=len(verdict.submitted),
        accepted=len(verdict.path),
        committed=outcome.committed,
        prefill_s=seconds["prefill"] * share,
        draft_s=seconds["draft"] * draft_share,
        policy_s=seconds["policy"] * share,
        link_s=seconds["link"] * share,
        queue_s=seconds["queue"] * share,
        verify_s=seconds["verify"] * share,
        commit_s=seconds["commit"] * share,
        end_s=0.0,
        proactive=outcome.proactive,
        aligned=outcome.aligned,
        reused=sum(node <= tree.inherited for node in verdict.path),
    )


def _close(session: Session, now_s: float) -> RequestRecord:
    record = session.record
    assert session.finish_reason is not None
    record.finish_reason = session.finish_reason
    record.output_ids = session.tokens[len(session.request.prompt_ids) :]
    record.finished_s = now_s
    record.ttft_s, record.e2e_s = record.rounds[0].end_s, record.rounds[-1].end_s
    if len(record.output_ids) > 1:
        record.tpot_s = (record.e2e_s - record.ttft_s) / (len(record.output_ids) - 1)
    return record
