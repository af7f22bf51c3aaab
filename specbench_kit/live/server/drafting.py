"""Drafting at the server, beside the target: for generations that name one of the methods that the
server offers.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from specbench_kit.core.errors import require
from specbench_kit.decoding.boundary import CheckedPolicy
from specbench_kit.decoding.clock import MeasuringClock, monotonic_s
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.verification import Verdict
from specbench_kit.deployments.assembly import round_drafter, round_policy
from specbench_kit.live.server.rounds import PendingRound
from specbench_kit.live.server.sessions import ServerSession
from specbench_kit.live.server.verifiers import fault_of
from specbench_kit.methods.base import Method
from specbench_kit.models.runner import Runner

MAX_DRAFTERS = 16
"""Drafters, one for each method and sampler, beyond which unused ones are dropped."""
REMEMBERED = 1 << 18
"""The most tokens of finished outputs that a drafter searches."""


@dataclass(frozen=True, slots=True)
class DraftingOffer:
    """The prepared methods that a server drafts with, by spec, and the runners of their draft
    models by name.
    """

    methods: Mapping[str, Method] = field(default_factory=dict)
    models: Mapping[str, Runner] = field(default_factory=dict)
    draft_hash: str = ""

    def __post_init__(self) -> None:
        for spec, method in self.methods.items():
            drafts = method.uses_drafter and method.pipeline is None and not method.needs_reference
            require(
                drafts,
                f"--method {spec}: the server cannot draft with it; name a method that drafts in rounds",
            )
            require(
                not method.reads_candidates,
                f"--method {spec}: it reads the target's candidates, which the server does not keep",
            )
            require(
                not method.reads_divergences,
                f"--method {spec}: it reads the target's distributions, which the server does not keep",
            )
            require(
                not method.drafting.layers(self.models),
                f"--method {spec}: it reads the target's hidden states, which the server does not keep",
            )


class ServerDrafter:
    """The drafter and the policy of one method, for the generations of one sampler.

    Nothing is drafted while the target verifies: both work on the same machine.
    """

    def __init__(
        self, method: Method, models: Mapping[str, Runner], sampler: Sampler, capacity: int
    ) -> None:
        device = next((runner.device for runner in models.values()), torch.device("cpu"))
        self.clock = MeasuringClock(device)
        setup = DecodingSetup(sampler=sampler, capacity=capacity)
        self._drafter = round_drafter(method, models, self.clock, setup, REMEMBERED)
        self._policy = CheckedPolicy(round_policy(method), method.display_name, self.clock)
        self.sessions: set[ServerSession] = set()

    def draft(self, rounds: Sequence[PendingRound]) -> None:
        """Draft for these rounds, and choose the nodes that are verified."""
        began_s = monotonic_s()
        with self.clock.running():
            drafts = self._drafter.begin([pending.session.text for pending in rounds])
            chosen = self._policy.plan(self._drafter)
        drafting_s = (monotonic_s() - began_s) / len(rounds)
        for pending, draft, nodes in zip(rounds, drafts, chosen, strict=True):
            draft.tree.mark_sent()
            pending.draft = draft
            pending.chosen = nodes
            pending.draft_s = drafting_s
            self.sessions.add(pending.session)

    def next_root(self, verdict: Verdict) -> int | None:
        """Return the drafted node at which the next round's tree begins; asked before the verdict
        is committed.
        """
        return self._policy.next_root(verdict)

    def commit(self, verdict: Verdict, root: int | None) -> None:
        """Keep the accepted nodes, and let the policy learn from the verdict."""
        with self.clock.running():
            self._drafter.commit(verdict.draft, verdict.path, root, verdict.states)
            self._policy.observe([verdict])

    def release(self, session: ServerSession) -> None:
        """Free what a session held here."""
        self.sessions.discard(session)
        self._drafter.release(session.text)
        self._policy.forget(session.text.request.id)


class ServerDrafters:
    """All drafters of a server; they belong to the verification thread.

    A drafter that searches finished outputs searches those of one device: nobody's text may be
    guessed from the speed of another's answers, and a benchmark must not find the answers of the
    one before it.
    """

    def __init__(self, offer: DraftingOffer, capacity: int) -> None:
        self._offer = offer
        self._capacity = capacity
        self._drafters: dict[tuple[str, Sampler, str], ServerDrafter] = {}
        self._of_session: dict[ServerSession, ServerDrafter] = {}

    def draft(self, rounds: Sequence[PendingRound]) -> dict[PendingRound, str]:
        """Draft for the rounds whose generation names a method; return the error of each round that
        fails.
        """
        groups: dict[ServerDrafter, list[PendingRound]] = {}
        for pending in rounds:
            if pending.generation is not None and pending.generation.method:
                drafter = self._drafter(pending.generation.method, pending.session)
                if self._of_session.get(pending.session) is not drafter:
                    self.release(pending.session)
                    self._of_session[pending.session] = drafter
                groups.setdefault(drafter, []).append(pending)
        errors: dict[PendingRound, str] = {}
        for drafter, group in groups.items():
            try:
                drafter.draft(group)
            except Exception as error:  # drafters run models, and methods that others have written
                self._draft_alone(drafter, group, fault_of(error), errors)
        return errors

    def _draft_alone(
        self,
        drafter: ServerDrafter,
        rounds: Sequence[PendingRound],
        fault: str,
        errors: dict[PendingRound, str],
    ) -> None:
        """Draft for each round of a group that failed by itself, from its text alone, and note who
        fails again.
        """
        for pending in rounds:
            self.release(pending.session)
        for pending in rounds:
            if len(rounds) == 1:
                errors[pending] = fault
                continue
            try:
                self._of_session[pending.session] = drafter
                drafter.draft([pending])
            except Exception as error:
                self.release(pending.session)
                errors[pending] = fault_of(error)

    @contextmanager
    def verifying(self, rounds: Sequence[PendingRound]) -> Iterator[None]:
        """Charge the enclosed time to the verification of the drafters, whose policies may decide
        by it.
        """
        clocks = {
            id(drafter): drafter.clock
            for pending in rounds
            if (drafter := self._of_session.get(pending.session))
        }.values()
        for clock in clocks:
            clock.enter("verify")
        try:
            yield
        finally:
            for clock in clocks:
                clock.leave(resumed=False, typical=True)
                clock.take()

    def next_root(self, session: ServerSession, verdict: Verdict) -> int | None:
        """Return the node at which the session's next tree begins, if it drafts here."""
        drafter = self._of_session.get(session)
        return None if drafter is None else drafter.next_root(verdict)

    def commit(self, session: ServerSession, verdict: Verdict, root: int | None) -> None:
        """Commit a verdict to the session's drafter, if it drafts here."""
        if (drafter := self._of_session.get(session)) is not None:
            drafter.commit(verdict, root)

    def release(self, session: ServerSession) -> None:
        """Free what a session holds in its drafter, if it drafts here."""
        if (drafter := self._of_session.pop(session, None)) is not None:
            drafter.release(session)

    def _drafter(self, spec: str, session: ServerSession) -> ServerDrafter:
        method = self._offer.methods[spec]
        key = (
            spec,
            session.sampler,
            session.caller.owner if method.drafting.depends_on_order else "",
        )
        if key not in self._drafters:
            if len(self._drafters) >= MAX_DRAFTERS:
                self._drafters = {
                    known: drafter for known, drafter in self._drafters.items() if drafter.sessions
                }
            self._drafters[key] = ServerDrafter(
                method, self._offer.models, session.sampler, self._capacity
            )
        return self._drafters[key]
