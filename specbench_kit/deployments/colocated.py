"""What a method that drafts beyond a link is held against: the same rounds with its draft model beside the target."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specbench_kit.decoding.clock import ModelledClock
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.latency import Row
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.verification import Verdict
from specbench_kit.deployments.base import Deployment, HiddenStates
from specbench_kit.deployments.timelines import RequestTimeline, Timelines


def colocate(deployment: Deployment) -> Deployment:
    """The same deployment with the draft model beside the target, where only prompt and answer cross the link.

    Its steps take what the deployment says of them there, else as long as at the edge.
    """
    return replace(deployment, drafter=deployment.colocated or deployment.drafter, placement="server")


@dataclass(slots=True)
class _Request:
    arrived_s: float
    drafting_s: float = 0.0
    """Of the draft model, for this request."""
    ahead_s: float = 0.0
    """Of what was drafted ahead in this round, which here has to wait for the answer."""


class Colocated(Timelines):
    """The timelines of a co-located deployment, which rounds go through that were decided elsewhere.

    What a method drafts while the target verifies is drafted here after the answer, and only if that was guessed.
    When a request ends, its record is told how long it took here.
    """

    def __init__(self, deployment: Deployment, *, learned: bool, states: HiddenStates | None = None) -> None:
        beside = states._replace(bytes_per_token=0.0) if states else None
        super().__init__(colocate(deployment), ModelledClock(), on_edge=False, learned=learned, states=beside)
        self._requests: dict[str, _Request] = {}
        self._sent = False

    def admit(self, session: Session) -> None:
        """Take in a request."""
        super().admit(session)
        self._requests[session.request.id] = _Request(self.clock.now_s())

    def release(self, session: Session) -> None:
        """Forget a request, whose record keeps what it took."""
        super().release(session)
        done = self._requests.pop(session.request.id)
        session.record.colocated_s = self.clock.now_s() - done.arrived_s
        session.record.colocated_draft_s = done.drafting_s

    def begin(self, drafts: Sequence[Draft]) -> None:
        """Start a round with what was drafted ahead for it, where that is of use."""
        super().begin(drafts)
        self._sent = False
        waiting = [draft for draft in drafts if self._requests[draft.request_id].ahead_s]
        if waiting:
            seconds = [self._requests[draft.request_id].ahead_s for draft in waiting]
            for draft in waiting:
                self._requests[draft.request_id].ahead_s = 0.0
            self._work("draft", [self._clients[draft.request_id] for draft in waiting], seconds)

    def draft(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> None:
        """One batched draft forward, at once or in the next round."""
        if not self._sent:
            super().draft(frontier)
            return
        rows = [self._draft_row(draft, nodes) for draft, nodes in frontier]
        step_s = self._drafter.latency.seconds(rows) + self._decision_s * len(frontier)
        for draft, _ in frontier:
            self._requests[draft.request_id].ahead_s += step_s

    def verify(self, verdicts: Sequence[Verdict]) -> list[Row]:
        """One verification, and the link where the prompt has not crossed it."""
        self._sent = True
        return super().verify(verdicts)

    def drafted(self, draft: Draft, path: Sequence[int], kept: int | None) -> None:
        """Of what was drafted ahead, nothing is needed unless the answer was guessed."""
        super().drafted(draft, path, kept)
        if kept is None:
            self._requests[draft.request_id].ahead_s = 0.0

    def _work(self, label: str, clients: Sequence[RequestTimeline], seconds: Sequence[float]) -> None:
        super()._work(label, clients, seconds)
        for client in clients:
            self._requests[client.name].drafting_s += max(seconds) / len(clients)

    def _came_before(self, session: Session, seconds: float) -> None:
        self._requests[session.request.id].arrived_s -= seconds
