"""The time that rounds take at the ends of what a deployment's derived times may be."""

from collections.abc import Sequence

from specbench_kit.decoding.clock import ModelledClock
from specbench_kit.decoding.latency import Row
from specbench_kit.decoding.pipeline.stream import RequestStream
from specbench_kit.decoding.session import Session
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.pipeline_time import PipelineTime
from specbench_kit.deployments.timelines import Timelines
from specbench_kit.runs.document import HiddenStates


class ResponseTimes:
    """How long requests take on a clock of their own, which their records gain when they end."""

    def __init__(self, clock: ModelledClock) -> None:
        self._clock = clock
        self._arrivals_s: dict[str, float] = {}

    def begin(self, session: Session) -> None:
        """Note that a request arrives now."""
        self._arrivals_s[session.request.id] = self._clock.now_s()

    def backdate(self, session: Session, seconds: float) -> None:
        """Move the arrival of a request on this clock back by so many seconds; the session's own
        arrival stays.
        """
        self._arrivals_s[session.request.id] -= seconds

    def end(self, session: Session) -> None:
        """Add to the record of a request how long it took."""
        session.record.ends_s.append(self._clock.now_s() - self._arrivals_s.pop(session.request.id))


class TimelinesAtEnd(Timelines):
    """The timelines of a deployment at one end of its range, which charge rounds that were decided
    on other timelines.

    When a request ends, its record gains how long it took here.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        on_edge: bool,
        learned: bool,
        states: HiddenStates | None = None,
    ) -> None:
        super().__init__(
            deployment, ModelledClock(), on_edge=on_edge, learned=learned, states=states
        )
        self._responses = ResponseTimes(self.clock)

    def admit(self, session: Session) -> None:
        """Add a request."""
        super().admit(session)
        self._responses.begin(session)

    def release(self, session: Session) -> None:
        """Remove a request, and add to its record how long it took."""
        super().release(session)
        self._responses.end(session)

    def backdate_arrival(self, session: Session, seconds: float) -> None:
        """Move the arrival of a request here back by so many seconds; the session's own arrival
        stays.
        """
        self._responses.backdate(session, seconds)


class PipelineTimeAtEnd(PipelineTime):
    """The clock of a pipeline at one end of its deployment's range, beside the one that the run
    goes by.
    """

    def __init__(
        self, deployment: Deployment, *, drafts: bool = True, states: HiddenStates | None = None
    ) -> None:
        clock = ModelledClock()
        super().__init__(deployment, clock, drafts=drafts, states=states)
        self._responses = ResponseTimes(clock)

    def admit(self, session: Session) -> None:
        """Add a new request."""
        super().admit(session)
        self._responses.begin(session)

    def release(self, session: Session) -> None:
        """Remove a request, and add to its record how long it took."""
        super().release(session)
        self._responses.end(session)

    def backdate_arrival(self, session: Session, seconds: float) -> None:
        """Move the arrival of a request here back by so many seconds; the session's own arrival
        stays.
        """
        self._responses.backdate(session, seconds)


class PipelineTimes:
    """The clocks of a pipeline for one run: the one that it goes by, and those at the ends of its
    range.
    """

    def __init__(self, time: PipelineTime, ends: Sequence[PipelineTimeAtEnd]) -> None:
        self._times = [time, *ends]

    def admit(self, session: Session) -> None:
        """Add a new request."""
        for time in self._times:
            time.admit(session)

    def release(self, session: Session) -> None:
        """Remove a request."""
        for time in self._times:
            time.release(session)

    def step(
        self, streams: Sequence[RequestStream], forwards: Sequence[Sequence[Row]] | None = None
    ) -> None:
        """Let the time of one step pass."""
        for time in self._times:
            time.step(streams, forwards)
