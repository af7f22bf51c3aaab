"""The round loop: draft, choose, verify, commit, over a batch that refills as requests finish."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from specbench_kit.decoding.boundary import CheckedPolicy
from specbench_kit.decoding.clock import Clock, Phase
from specbench_kit.decoding.detail import RoundDetail
from specbench_kit.decoding.drafter import Draft, Drafter
from specbench_kit.decoding.loop import Loop, mark_round
from specbench_kit.decoding.policy import Policy
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.verification import PendingVerdicts, Verdict, Verifier


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """One request's round: its verdict, and what came of it."""

    verdict: Verdict
    committed: int
    aligned: bool

    @property
    def request_id(self) -> str:
        return self.verdict.draft.request_id

    def detail(self) -> RoundDetail:
        """The round as those see it who want to know what was drafted."""
        verdict, tree = self.verdict, self.verdict.draft.tree
        return RoundDetail(
            tokens=list(tree.tokens),
            parents=list(tree.parents),
            probabilities=[1.0, *(round(tree.probability(node), 4) for node in range(1, len(tree)))],
            submitted=list(verdict.submitted),
            path=list(verdict.path),
            bonus=verdict.bonus,
            committed=self.committed,
            inherited=tree.inherited,
            proactive=tree.proactive,
        )


class Engine(Loop):
    """Decodes requests round by round with one policy, that of the method `name`."""

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
        name: str,
    ) -> None:
        super().__init__(clock, seed=seed, eos_ids=eos_ids, batch_size=batch_size, capacity=capacity)
        self.policy = CheckedPolicy(policy, name, clock)
        self.drafter, self.verifier = drafter, verifier
        self._warm = False
        """Whether no prompt is verified in this round."""
        self._outcomes: Sequence[RoundOutcome] = ()

    def _round(self) -> Sequence[RoundOutcome]:
        drafts = self.drafter.begin(self.sessions)
        chosen = self.policy.plan(self.drafter)
        answer = self._send(drafts, chosen)
        self.policy.overlap(self.drafter)
        verdicts = self._wait(answer)
        outcomes = self._commit(verdicts)
        self.policy.observe(verdicts)
        self._record(outcomes)
        self._outcomes = outcomes
        return outcomes

    def _collect(self) -> list[RequestRecord]:
        for outcome in self._outcomes:  # not in the round: nobody waits for it
            outcome.verdict.draft.session.record.rounds[-1].expected = self.policy.expects(outcome.verdict)
        self._outcomes = ()
        return super()._collect()

    def _send(self, drafts: Sequence[Draft], chosen: Sequence[list[int]]) -> PendingVerdicts:
        for draft in drafts:
            draft.tree.sent = len(draft.tree.tokens)
        with self.clock.phase("verify", typical=self._warm):
            return self.verifier.send(drafts, chosen)

    def _wait(self, answer: PendingVerdicts) -> list[Verdict]:
        with self.clock.resume("verify", asynchronous=self.verifier.asynchronous, typical=self._warm):
            return answer()

    def _commit(self, verdicts: Sequence[Verdict]) -> list[RoundOutcome]:
        with self.clock.phase("commit"):
            return [self._commit_one(verdict) for verdict in verdicts]

    def _commit_one(self, verdict: Verdict) -> RoundOutcome:
        draft, kept = verdict.draft, self.policy.next_root(verdict)
        committed = draft.session.commit(verdict.tokens)
        self.verifier.commit(verdict)
        self.drafter.commit(draft, verdict.path, kept, verdict.states)
        return RoundOutcome(verdict, committed, aligned=kept is not None)

    def _record(self, outcomes: Sequence[RoundOutcome]) -> None:
        """One line per request; a phase of the batch is shared out by the tokens that each request computed."""
        seconds, now_s = self.clock.take(), self.clock.now_s()
        self._warm, computed, drafted = True, 0, 0
        for outcome in outcomes:
            computed += outcome.verdict.weight
            drafted += outcome.verdict.draft.tree.drafted
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
        self._warm = False
        self.verifier.admit(session)

    def _release(self, session: Session) -> None:
        self.verifier.release(session)
        self.drafter.release(session)
        self.policy.forget(session.request.id)


def _round_record(outcome: RoundOutcome, seconds: dict[Phase, float], draft_share: float, share: float) -> RoundRecord:
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
        proactive=tree.proactive,
        aligned=outcome.aligned,
        reused=bisect_right(verdict.path, tree.inherited),
        deepest=tree.deepest(verdict.submitted),
        parents=parents,
        path=path,
        padded=list(verdict.padded),
    )
