"""The comparison for a method that drafts at the edge: the same rounds with its draft model on the server."""

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
    """Return the deployment with the draft model on the server, so that only prompt and answer cross the link.

    Draft steps take the time of the deployment's `colocated` endpoint, or as long as at the edge if there is none.
    """
    return replace(deployment, drafter=deployment.colocated or deployment.drafter, placement="server")


@dataclass(slots=True)
class _ColocatedRequest:
    arrived_s: float
    drafting_s: float = 0.0
    """The draft model's seconds for this request."""
    ahead_s: float = 0.0
    """The seconds of what was drafted ahead in this round, which has to wait for the answer here."""


class Colocated(Timelines):
    """The timelines of a co-located deployment, which charge rounds that were decided on other timelines.

    Drafting ahead, while the target verifies, happens here after the answer, and only if the answer was guessed. When
    a request ends, its record stores how long it took here.
    """

    def __init__(self, deployment: Deployment, *, learned: bool, states: HiddenStates | None = None) -> None:
        server_states = states._replace(bytes_per_token=0.0) if states else None
        super().__init__(colocate(deployment), ModelledClock(), on_edge=False, learned=learned, states=server_states)
        self._colocated: dict[str, _ColocatedRequest] = {}
        self._sent = False

    def admit(self, session: Session) -> None:
        """Add a request."""
        super().admit(session)
        self._colocated[session.request.id] = _ColocatedRequest(self.clock.now_s())

    def release(self, session: Session) -> None:
        """Remove a request, and store in its record how long it took."""
        super().release(session)
        request = self._colocated.pop(session.request.id)
        session.record.colocated_s = self.clock.now_s() - request.arrived_s
        session.record.colocated_draft_s = request.drafting_s

    def begin(self, drafts: Sequence[Draft]) -> None:
        """Start a round with the work that was drafted ahead for it, if that is of use."""
        super().begin(drafts)
        self._sent = False
        waiting = [draft for draft in drafts if self._colocated[draft.request_id].ahead_s]
        if waiting:
            seconds = [self._colocated[draft.request_id].ahead_s for draft in waiting]
            for draft in waiting:
                self._colocated[draft.request_id].ahead_s = 0.0
            self._work("draft", [self._requests[draft.request_id] for draft in waiting], seconds)

    def draft(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> None:
        """Charge one batched draft forward, at once, or in the next round if the drafts were sent already."""
        if not self._sent:
            super().draft(frontier)
            return
        rows = [self._draft_row(draft, nodes) for draft, nodes in frontier]
        step_s = self._drafter.latency.seconds(rows) + self._decision_s * len(frontier)
        for draft, _ in frontier:
            self._colocated[draft.request_id].ahead_s += step_s

    def verify(self, verdicts: Sequence[Verdict]) -> list[Row]:
        """Charge one verification, and the link if the prompt has not crossed it."""
        self._sent = True
        return super().verify(verdicts)

    def drafted(self, draft: Draft, path: Sequence[int], kept: int | None) -> None:
        """Forget what was drafted ahead unless the answer was guessed."""
        super().drafted(draft, path, kept)
        if kept is None:
            self._colocated[draft.request_id].ahead_s = 0.0

    def _work(self, label: str, requests: Sequence[RequestTimeline], seconds: Sequence[float]) -> None:
        super()._work(label, requests, seconds)
        for request in requests:
            self._colocated[request.name].drafting_s += max(seconds) / len(requests)

    def backdate_arrival(self, session: Session, seconds: float) -> None:
        """Move the arrival of a request here back by so many seconds; the session's own arrival stays."""
        self._colocated[session.request.id].arrived_s -= seconds
