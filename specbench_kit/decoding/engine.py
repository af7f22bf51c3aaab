"""The round loop: draft, choose, verify, commit, over a batch that refills as requests finish."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from specbench_kit.decoding.boundary import CheckedPolicy
from specbench_kit.decoding.clock import Clock, Phase
from specbench_kit.decoding.detail import RoundDetail
from specbench_kit.decoding.drafter import Drafter
from specbench_kit.decoding.loop import DecodingSetup, Loop, mark_round
from specbench_kit.decoding.policy import Policy
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.verification import Verdict, Verifier


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """One request's round: its verdict, the tokens committed, and whether the next round continues
    from its draft.
    """

    verdict: Verdict
    committed: int
    aligned: bool
    forced: int = 0
    """The number of tokens that joined the output behind these without being verified."""

    @property
    def request_id(self) -> str:
        """The id of the request."""
        return self.verdict.draft.request_id

    def record(
        self, seconds: dict[Phase, float], draft_share: float, share: float, end_s: float
    ) -> RoundRecord:
        """Return the round's line, charged with its shares of the batch's seconds per phase."""
        verdict = self.verdict
        tree = self.verdict.draft.tree
        parents, path = verdict.positions()
        return RoundRecord(
            drafted=tree.drafted,
            submitted=len(verdict.submitted),
            accepted=len(verdict.path),
            committed=self.committed,
            prefill_s=seconds["prefill"] * share,
            draft_s=seconds["draft"] * draft_share,
            policy_s=seconds["policy"] * share,
            link_s=seconds["link"] * share,
            queue_s=seconds["queue"] * share,
            verify_s=seconds["verify"] * share,
            commit_s=seconds["commit"] * share,
            end_s=end_s,
            proactive=tree.proactive,
            aligned=self.aligned,
            # A path goes down the tree, so its nodes rise: the inherited ones stand at its
            # beginning.
            reused=bisect_right(verdict.path, tree.inherited),
            deepest=tree.deepest(verdict.submitted),
            parents=parents,
            path=path,
            padded=list(verdict.padded),
            drafter=tree.drafter,
            sent_bytes=verdict.sent_bytes,
            stale_bytes=verdict.stale_bytes,
            forbidden=verdict.forbidden,
            forced=self.forced,
            forced_submitted=verdict.forced_submitted,
            forced_accepted=verdict.forced_accepted,
        )

    def detail(self) -> RoundDetail:
        """Return the round's whole tree, for views that show what was drafted."""
        verdict = self.verdict
        tree = self.verdict.draft.tree
        return RoundDetail(
            tokens=list(tree.tokens),
            parents=list(tree.parents),
            probabilities=[
                1.0,
                *(round(tree.probability(node), 4) for node in range(1, len(tree))),
            ],
            submitted=list(verdict.submitted),
            path=list(verdict.path),
            bonus=verdict.bonus,
            committed=self.committed,
            inherited=tree.inherited,
            proactive=tree.proactive,
            drafter=tree.drafter,
        )


def record_rounds(
    outcomes: Sequence[RoundOutcome], seconds: dict[Phase, float], now_s: float
) -> list[RoundRecord]:
    """Add a line per round to the record of its request, and return the lines.

    Each is charged a part of the seconds per phase by the tokens computed for it, of drafting by
    those drafted for it.
    """
    computed = sum(outcome.verdict.computed for outcome in outcomes)
    drafted = sum(outcome.verdict.draft.tree.drafted for outcome in outcomes)
    lines = []
    for outcome in outcomes:
        verdict = outcome.verdict
        session = verdict.draft.session
        draft_share = verdict.draft.tree.drafted / drafted if drafted else 0.0
        line = outcome.record(
            seconds, draft_share, verdict.computed / computed, now_s - session.arrival_s
        )
        session.record.rounds.append(line)
        lines.append(line)
    return lines


class Engine(Loop):
    """Decodes requests round by round with one policy, that of the method `name`."""

    def __init__(
        self,
        policy: Policy,
        drafter: Drafter,
        verifier: Verifier,
        clock: Clock,
        *,
        setup: DecodingSetup,
        name: str,
    ) -> None:
        super().__init__(clock, setup)
        self.policy = CheckedPolicy(policy, name, clock)
        self.drafter = drafter
        self.verifier = verifier
        self._typical = False
        """False in a round that verifies a prompt: its time is no guide to the time of later
        rounds.
        """
        self._outcomes: Sequence[RoundOutcome] = ()

    def run_round(self) -> Sequence[RoundOutcome]:
        """Draft, choose, verify and commit for every session, and return the outcome of each."""
        drafts = self.drafter.begin(self.sessions)
        chosen = self.policy.plan(self.drafter)
        for draft in drafts:
            draft.tree.mark_sent()  # what is drafted from here on is proactive
        with self.clock.phase("verify", typical=self._typical):
            pending = self.verifier.send(drafts, chosen)
        self.policy.overlap(self.drafter)
        with self.clock.resume(
            "verify", asynchronous=self.verifier.asynchronous, typical=self._typical
        ):
            verdicts = pending()
        with self.clock.phase("commit"):
            outcomes = [self._commit(verdict) for verdict in verdicts]
        self.policy.observe(verdicts)
        self._record(outcomes)
        return outcomes

    def collect(self) -> list[RequestRecord]:
        """Return the records of finished requests, once the policy has said what it expected of
        their last rounds.
        """
        # Outside the round, since this question costs time that no decoding request would have to
        # wait for.
        for outcome in self._outcomes:
            outcome.verdict.draft.session.record.rounds[-1].expected = self.policy.expects(
                outcome.verdict
            )
        self._outcomes = ()
        return super().collect()

    def admit(self, session: Session) -> None:
        """Give a new request its slot in the target's KV."""
        self._typical = False
        self.verifier.admit(session)

    def release(self, session: Session) -> None:
        """Free a finished request's slots, and let the policy forget it."""
        self.verifier.release(session)
        self.drafter.release(session)
        self.policy.forget(session.request.id)

    def _commit(self, verdict: Verdict) -> RoundOutcome:
        # The policy is asked first: it looks at the tree as it was drafted, which the drafter's
        # commit cuts back.
        draft = verdict.draft
        session = draft.session
        forced = session.skipped_after(verdict.tokens)
        root = self.policy.next_root(verdict.before(forced))
        committed = session.commit(verdict.tokens)
        self.verifier.commit(verdict)
        self.drafter.commit(draft, verdict.path, root, verdict.states)
        # They join behind the verifier's and the drafter's commits, since neither has them in KV:
        # the next forward of each begins with what it lacks.
        if forced:
            session.commit(forced)
        return RoundOutcome(verdict, committed, aligned=root is not None, forced=len(forced))

    def _record(self, outcomes: Sequence[RoundOutcome]) -> None:
        """Add one line per request; each is charged a part of the batch's phases by the tokens
        computed for it.
        """
        record_rounds(outcomes, self.clock.take(), self.clock.now_s())
        if self.clock.timeline is not None:
            for outcome in outcomes:
                mark_round(self.clock, outcome.verdict.draft.session)
        self._typical = True
        self._outcomes = outcomes
