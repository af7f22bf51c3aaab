"""Spans on the run's clock that show which resource did what and when; collected only on
request.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

REQUESTS = "requests"
"""Stands where a resource is named, and holds the rounds of every request."""
MOST_SPANS = 200_000
"""Later spans are only counted: trace viewers get slow, and the first rounds show the pattern."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the run's clock in which a resource worked or waited.

    `edge/q1` is request q1's part of the resource `edge`.
    """

    resource: str
    label: str
    start_s: float
    end_s: float
    request_ids: tuple[str, ...] = ()


class Timeline:
    """The spans of one run, in the order in which they became known."""

    def __init__(self, most: int = MOST_SPANS) -> None:
        self.spans: list[Span] = []
        self.left_out = 0
        self._most = most

    def add(self, span: Span) -> None:
        """Add a span; one without any length is ignored."""
        if span.end_s <= span.start_s:
            return
        if len(self.spans) < self._most:
            self.spans.append(span)
        else:
            self.left_out += 1


class TimelineMarker:
    """The part of a clock that adds spans to a timeline, if it was given one."""

    timeline: Timeline | None = None
    drafting = "draft"
    """The label of drafting at this point of the round."""

    def mark(
        self, resource: str, label: str, start_s: float, end_s: float, *request_ids: str
    ) -> None:
        """Add what a resource did from one moment of the run's clock to another."""
        if self.timeline is not None:
            self.timeline.add(Span(resource, label, start_s, end_s, request_ids))

    @contextmanager
    def overlap(self) -> Iterator[None]:
        """Label the drafting inside as proactive."""
        self.drafting = "proactive"
        try:
            yield
        finally:
            self.drafting = "draft"
