"""Drafters and verifiers that charge the time of a deployment, whatever time they really take."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from specbench_kit.decoding.clock import ModelledClock
from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.drafter import Draft, DraftSource, ReportsForwards
from specbench_kit.decoding.latency import LatencyModel
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.verification import PendingVerdicts, Verdict, Verifier
from specbench_kit.deployments.colocated import Colocated
from specbench_kit.deployments.timelines import Timelines


class TimedDrafter:
    """Any drafter, charged with the time that it would take under a deployment.

    `charged` are its timelines, the first of which it goes by, each with the latencies of the models that a drafter
    which reports its forwards names. `colocated` charges the same rounds with the draft model on the server.
    """

    def __init__(
        self,
        drafter: DraftSource,
        charged: Sequence[tuple[Timelines, Mapping[str, LatencyModel]]],
        colocated: Colocated | None = None,
    ) -> None:
        self._drafter, self._charged, self._timelines = drafter, charged, charged[0][0]
        self._all = [*(timelines for timelines, _ in charged), *([colocated] if colocated else [])]
        self._reporting = drafter if isinstance(drafter, ReportsForwards) else None

    @property
    def drafts(self) -> list[Draft]:
        return self._drafter.drafts

    @property
    def clock(self) -> ModelledClock:
        return self._timelines.clock

    def awaits_answer(self, draft: Draft) -> bool:
        """Return whether the drafting device is free before the answer arrives."""
        return self._timelines.awaits_answer(draft)

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round with empty trees."""
        drafts = self._drafter.begin(sessions)
        for timelines in self._all:
            timelines.begin(drafts)
        return drafts

    def room(self, draft: Draft) -> int:
        """Return the number of nodes that the tree can still take."""
        return self._drafter.room(draft)

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append one token to each chain, and return the drafts that had room for it."""
        grown = self._drafter.extend(drafts)
        if self._reporting is not None:
            forwards = self._reporting.forwards()
            for timelines, latencies in self._charged:
                for model, phase, rows in forwards:
                    timelines.forward(phase, rows, latencies[model])
                timelines.decide(grown)
        elif grown:
            self._draft([(draft, (draft.tree.last - 1,)) for draft in grown])
        return grown

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        """Forward tree nodes, and return their distributions."""
        self._draft(frontier)
        return self._drafter.expand(frontier)

    def commit(self, draft: Draft, path: Sequence[int], root: int | None = None, states: Tensor | None = None) -> None:
        """Keep the accepted nodes."""
        for timelines in self._all:
            timelines.drafted(draft, path, root)
        self._drafter.commit(draft, path, root, states)

    def release(self, session: Session) -> None:
        """Remove a finished request."""
        self._drafter.release(session)

    def _draft(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> None:
        for timelines in self._all:
            timelines.draft(frontier)


class TimedVerifier:
    """Any verifier, charged with the time that a deployment's link and verifier would take.

    `others` charge the same rounds beside the timelines that the run goes by.
    """

    def __init__(self, verifier: Verifier, timelines: Timelines, others: Sequence[Timelines] = ()) -> None:
        self._verifier, self._timelines, self._others = verifier, timelines, others
        self.asynchronous = verifier.asynchronous

    def admit(self, session: Session) -> None:
        """Add a new request."""
        self._timelines.admit(session)
        for timelines in self._others:
            timelines.admit(session)
        self._verifier.admit(session)

    def send(self, drafts: Sequence[Draft], chosen: Sequence[list[int]]) -> PendingVerdicts:
        """Verify the chosen nodes of every draft at once; the timelines model when the answer arrives."""
        verdicts = self._verifier.send(drafts, chosen)()
        rows = self._timelines.verify(verdicts)
        for timelines in self._others:
            timelines.verify(verdicts)
        timed = [replace(verdict, computed=new) for verdict, (new, _) in zip(verdicts, rows, strict=True)]
        return lambda: timed

    def commit(self, verdict: Verdict) -> None:
        """Keep the accepted nodes."""
        self._timelines.verified(verdict)
        for timelines in self._others:
            timelines.verified(verdict)
        self._verifier.commit(verdict)

    def release(self, session: Session) -> None:
        """Remove a finished request."""
        self._timelines.release(session)
        for timelines in self._others:
            timelines.release(session)
        self._verifier.release(session)
