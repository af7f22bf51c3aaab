"""The round loop: draft, choose, verify, commit, over a batch that refills as requests finish."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from specbench_kit.decoding.clock import Clock, MeasuringClock, Phase
from specbench_kit.decoding.detail import RoundDetail
from specbench_kit.decoding.drafter import Drafter, ModelDrafter
from specbench_kit.decoding.loop import Loop, mark_round
from specbench_kit.decoding.modelled import timed
from specbench_kit.decoding.pipeline import pipeline_engine
from specbench_kit.decoding.processes.passes import Passes
from specbench_kit.decoding.records import RoundRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.stages import VirtualStages
from specbench_kit.decoding.verification import Answer, ModelVerifier, Verdict, Verifier
from specbench_kit.deployments.base import Deployment
from specbench_kit.methods.base import Method, Policy
from specbench_kit.models.runner import Runner

if TYPE_CHECKING:
    from specbench_kit.decoding.processes.stages import ProcessStages


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request's round: its verdict, and what came of it.

    The newest `proactive` nodes of its tree were drafted after the others had been sent.
    """

    verdict: Verdict
    committed: int
    proactive: int
    aligned: bool

    @property
    def request_id(self) -> str:
        return self.verdict.draft.request_id

    def detail(self) -> RoundDetail:
        return RoundDetail.of(self)


class Engine(Loop):
    """Decodes requests round by round with one policy."""

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
        super().__init__(clock, seed=seed, eos_ids=eos_ids, batch_size=batch_size, capacity=capacity)
        self.policy, self.drafter, self.verifier = policy, drafter, verifier

    def _round(self) -> Sequence[Outcome]:
        drafts = self.drafter.begin(self.sessions)
        with self.clock.phase("policy"):
            self.policy.draft(self.drafter)
            chosen = self.policy.choose(drafts)
        warm = all(session.produced for session in self.sessions)
        with self.clock.phase("verify", typical=warm):
            answer = self.verifier.send(drafts, chosen)
        sent = [len(draft.tree) for draft in drafts]
        self.clock.submitted = True
        with self.clock.phase("policy"):
            self.policy.overlap(self.drafter)
        self.clock.submitted = False
        verdicts = self._wait_for(answer, warm) if self.verifier.apart else answer()
        with self.clock.phase("commit"):
            outcomes = [self._commit(verdict, count) for verdict, count in zip(verdicts, sent, strict=True)]
        with self.clock.phase("policy"):
            self.policy.observe(verdicts)
        self._record(outcomes)
        return outcomes

    def _wait_for(self, answer: Answer, warm: bool) -> list[Verdict]:
        with self.clock.phase("verify", resumed=True, typical=warm):
            return answer()

    def _commit(self, verdict: Verdict, sent: int) -> Outcome:
        draft, kept = verdict.draft, self.policy.keep(verdict)
        committed = draft.session.commit(verdict.tokens)
        self.verifier.commit(verdict)
        self.drafter.commit(draft, verdict.path, kept)
        return Outcome(verdict, committed, proactive=len(draft.tree) - sent, aligned=kept is not None)

    def _record(self, outcomes: Sequence[Outcome]) -> None:
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
            if self.clock.timeline is not None:
                mark_round(self.clock, session)

    def _admit(self, session: Session) -> None:
        self.verifier.admit(session)

    def _release(self, session: Session) -> None:
        self.verifier.release(session)
        self.drafter.release(session)


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
    stages: "ProcessStages | None" = None,
) -> Loop:
    """The method's loop over two models, on this machine's clock or on a deployment's.

    `stages` are processes that hold the target in slices and then do its work.
    """
    capacity = min(target.capacity, draft.capacity)
    if method.pipeline is not None:
        return pipeline_engine(
            method,
            stages or VirtualStages(target),
            draft,
            sampler=sampler,
            seed=seed,
            eos_ids=eos_ids,
            batch_size=batch_size,
            capacity=capacity,
            started_s=started_s,
            deployment=deployment,
        )
    measured = MeasuringClock(target.device, started_s)
    sampled_drafts = method.proposal == "sample" and not sampler.greedy
    drafter = ModelDrafter(draft, sampler, measured, sampled_drafts, capacity)
    verifier = ModelVerifier(Passes(stages) if stages else target, sampler, sampled_drafts)
    make = partial(Engine, seed=seed, eos_ids=eos_ids, batch_size=batch_size, capacity=capacity)
    if deployment is None:
        return make(method.policy(), drafter, verifier, measured)
    return make(method.policy(), *timed(method, drafter, verifier, deployment, started_s))


def _round_record(outcome: Outcome, seconds: dict[Phase, float], draft_share: float, share: float) -> RoundRecord:
    verdict, tree = outcome.verdict, outcome.verdict.draft.tree
    parents, path = verdict.places()
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
        deepest=max((tree.depth(node) for node in verdict.submitted), default=0),
        parents=parents,
        path=path,
    )
