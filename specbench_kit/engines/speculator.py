"""The core of a drafter inside an engine: settle what was verified, then draft for the requests of
the batch.

An engine shows its batch after every step and does not say what it verified: the rounds follow from
the new tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.boundary import CheckedPolicy
from specbench_kit.decoding.clock import MeasuringClock, Phase
from specbench_kit.decoding.constraint import Constraint
from specbench_kit.decoding.drafter import Draft, Drafter
from specbench_kit.decoding.engine import RoundOutcome, record_rounds
from specbench_kit.decoding.records import FinishReason, RequestRecord
from specbench_kit.decoding.sampling import RequestRandom
from specbench_kit.decoding.session import Request, Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.decoding.verification import Verdict
from specbench_kit.engines.grammar import ExpectedGrammar
from specbench_kit.engines.rows import EngineRow, FollowedRequest, Proposal, RequestFollower

MS = 1e3


class EngineClock(MeasuringClock):
    """This machine's time, which always passes: between two calls of the drafter the engine
    works.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._forever = self.running()
        self._forever.__enter__()

    def charge_step(self, seconds: float, *, typical: bool) -> None:
        """Charge a step of the engine as a verification; it is not `typical` if a prompt was part
        of it.
        """
        self._phases["verify"] += seconds
        if typical:
            self._recent["verify"].append(seconds)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of drafting: tokens per draft, and requests that may hold something in the drafter
    at a time.

    A drafter that is `eager` forgets a request as soon as it is not in the batch; another keeps its
    KV for its return. All requests are expected to follow the `constraint`.
    """

    longest_draft: int
    slots: int
    eager: bool
    eos_ids: frozenset[int]
    max_new_tokens: int
    constraint: Constraint | None = None


@dataclass(slots=True)
class Overhead:
    """Sums over all calls; `total_s` is the time inside of the drafter, `engine_s` that of the
    engine's steps.
    """

    calls: int = 0
    rounds: int = 0
    drafted: int = 0
    submitted: int = 0
    accepted: int = 0
    policy_s: float = 0.0
    draft_s: float = 0.0
    total_s: float = 0.0
    engine_s: float = 0.0

    def add_phases(self, seconds: Mapping[Phase, float]) -> None:
        """Add the seconds of one call by phase; the prefill of the draft model counts as
        drafting.
        """
        self.policy_s += seconds.get("policy", 0.0)
        self.draft_s += seconds.get("draft", 0.0) + seconds.get("prefill", 0.0)
        self.engine_s += seconds.get("verify", 0.0)

    def document(self) -> dict[str, float]:
        """Return the sums as `run.json` holds them."""
        return asdict(self)

    def line(self, engine: str) -> str:
        """Return the sums in one line for people."""
        if not self.calls:
            return f"skit in {engine}: nothing was drafted"
        policy, draft, total, step = (
            seconds / self.calls * MS
            for seconds in (self.policy_s, self.draft_s, self.total_s, self.engine_s)
        )
        share = total / (total + step) if total + step else 0.0
        return (
            f"skit in {engine}: {self.calls} calls, {self.accepted} of {self.submitted} draft tokens accepted in "
            f"{self.rounds} rounds; per call {policy:.2f} ms policy, {draft:.2f} ms drafting and "
            f"{max(0.0, total - policy - draft):.2f} ms bookkeeping beside {step:.2f} ms of {engine} "
            f"({share:.1%} of the time)"
        )


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
        """Learn from the new tokens of every row, and return the draft tokens that are to be
        verified next.
        """
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
        """Return a request that the engine has admitted; its text up to the new tokens is its
        prompt.
        """
        prompt = np.array(row.text[: len(row.text) - row.new], dtype=np.int32)
        self._opened += 1
        name = str(self._opened)
        tokens = prompt.tolist()
        constraint = self._limits.constraint
        request = Request(
            name, "", tuple(tokens), self._limits.max_new_tokens, constraint=constraint
        )
        record = RequestRecord(name, "", tokens)
        arrival_s = self._left_s if self._step_began_s is None else self._step_began_s
        session = Session(request, RequestRandom(0, name), self._limits.eos_ids, arrival_s, record)
        if constraint is not None:
            session.grammar = ExpectedGrammar(constraint)
        return FollowedRequest(session, prompt, number, call)

    def _charge_step(
        self, now_s: float, requests: Sequence[FollowedRequest], rows: Sequence[EngineRow]
    ) -> None:
        """Charge the engine's step; before it the engine was idle if no request was in its
        batch.
        """
        goes_on = any(request.session.produced for request in requests)
        began_s = self._left_s if goes_on or self._step_began_s is None else self._step_began_s
        typical = all(
            row.new and request.session.produced
            for request, row in zip(requests, rows, strict=True)
        )
        self._clock.charge_step(now_s - began_s, typical=typical)

    def _settle(
        self, requests: Sequence[FollowedRequest], rows: Sequence[EngineRow]
    ) -> list[RoundOutcome]:
        """Return the rounds that the new tokens tell of, and let the policy learn from those with a
        draft.
        """
        outcomes = []
        verdicts = []
        with self._clock.phase("commit"):
            for request, row in zip(requests, rows, strict=True):
                if not row.new:
                    self._abandon(
                        request
                    )  # the engine computes its text again, and has thrown the draft away
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
        """Finish the requests that have ended, and as many of those that are away as there is no
        room for.
        """
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
        """Add a line per round; each is charged a part of the step by the tokens computed for
        it.
        """
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

    def _draft(
        self, requests: Sequence[FollowedRequest], rows: Sequence[EngineRow]
    ) -> list[list[int]]:
        """Let the policy draft for every request that goes on, as far as the drafter has room."""
        proposed: list[list[int]] = [[] for _ in rows]
        waiting = [
            request
            for request, row in zip(requests, rows, strict=True)
            if row.new and not request.ended
        ]
        # Requests that the drafter knows come first: the others would have to wait for their slots
        # anyway.
        waiting.sort(key=lambda request: not request.has_state)
        drafting = waiting[: self._limits.slots]
        if not drafting:
            return proposed
        self._make_room(drafting)
        drafts = self._drafter.begin([request.session for request in drafting])
        for request, draft, nodes in zip(
            drafting, drafts, self._policy.plan(self._drafter), strict=True
        ):
            _require_chain(draft, nodes)
            draft.tree.mark_sent()
            request.proposal = Proposal(draft, nodes[: self._limits.longest_draft])
            request.has_state = True
            proposed[request.row] = request.proposal.tokens
        return proposed

    def _make_room(self, drafting: Sequence[FollowedRequest]) -> None:
        """Let the drafter forget requests that are not in the batch, those first that were away for
        the longest.
        """
        busy = set(drafting)
        others = [
            request
            for request in self._follower.requests
            if request.has_state and request not in busy
        ]
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
    """Append the new tokens to a request, and return its rounds: the verdict on its draft first, if
    it has one.

    Tokens beyond the draft and the target's own were decoded while the engine did not call its
    drafter; each of them counts as a round without a draft.
    """
    session = request.session
    rounds = list[RoundOutcome]()
    if request.proposal is not None:
        verdict = judge(request.proposal, new).with_counts()
        request.proposal = None
        rounds.append(RoundOutcome(verdict, len(verdict.path) + 1, aligned=False))
    first = not session.produced
    for token in new[sum(outcome.committed for outcome in rounds) :]:
        draft = Draft(session, TokenTree(session.tokens[-1]))
        computed = len(session.tokens) if first and not rounds else 1
        rounds.append(RoundOutcome(Verdict(draft, [], [], token, computed), 1, aligned=False))
    session.tokens += new
    if session.grammar is not None:
        session.grammar.advance(new)
    return rounds


def judge(proposal: Proposal, new: Sequence[int]) -> Verdict:
    """Return the verdict that the new tokens are on a draft.

    An engine may verify a part of a draft only, because its step was full. This shows where the
    last new token is the next drafted one: had the engine verified it too, a token of the target
    would follow.
    """
    nodes = proposal.nodes
    accepted = proposal.accepted(new)
    submitted = nodes
    tokens = proposal.tokens
    if proposal.dropped or (
        accepted + 1 == len(new) and accepted < len(nodes) and tokens[accepted] == new[accepted]
    ):
        submitted = nodes[:accepted]
    return Verdict(proposal.draft, submitted, nodes[:accepted], new[accepted], len(submitted) + 1)


def end_of_output(session: Session) -> tuple[int, FinishReason] | None:
    """Return the number of output tokens up to the end of the output, and why it ends; None if it
    goes on.
    """
    prompt = len(session.request.prompt_ids)
    length = min(session.produced, session.request.max_new_tokens)
    for position, token in enumerate(session.tokens[prompt : prompt + length], start=1):
        if token in session.eos_ids:
            return position, "eos"
    return (length, "length") if session.produced >= session.request.max_new_tokens else None


def goes_on(session: Session) -> None:
    """Take back what looked like the end of the output, since the engine was asked to go on after
    it.
    """
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
    output_ids = session.tokens[prompt : prompt + length]
    record.finish(output_ids, reason, now_s)
    if session.request.constraint is not None:
        record.grammar = session.request.constraint.outcome(output_ids)
    return record
