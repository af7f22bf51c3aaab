"""The work of drafting in every round of a replay: which forwards a drafter needed, before and
after it sent.

Simulations of many devices charge it anew, where other devices or other lengths are simulated.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from specbench_kit.decoding.latency import Row

if TYPE_CHECKING:  # simulations with stated rates are spared the library that a clock loads
    from specbench_kit.decoding.clock import Phase

DRAFTER = ""
"""Names the deployment's drafter, of a drafter that does not report its forwards by model."""
DECISION = "decision"
"""Stands in the place of a model for a predictor's decision about one drafted token."""


class Work(NamedTuple):
    """One piece of work: a forward of a model over a row, or a decision, which has no row.

    `new` and `cached` are as in a `Row`; those that grow with the text are counted from the round's context.
    """

    model: str
    new: int = 0
    cached: int = 0
    reads_prompt: bool = False
    """True if `new` is counted from the context: the forward reads the text before it."""
    has_text: bool = False
    """True if `cached` is counted from the context: the text is in KV."""

    def row(self, context: int) -> Row:
        """Return the row of the forward in a round that begins after so many tokens."""
        return self.new + self.reads_prompt * context, self.cached + self.has_text * context


class RoundWork(NamedTuple):
    """The work of one round before its draft was sent, and `ahead` of the verdict.

    `crosses` is False in a round that was left to the server: no message crosses the link.
    """

    before: tuple[Work, ...] = ()
    ahead: tuple[Work, ...] = ()
    crosses: bool = True


@dataclass(slots=True)
class _OpenRound:
    """The round under way of one request: its context and its work so far."""

    context: int = 0
    before: list[Work] = field(default_factory=list)
    ahead: list[Work] = field(default_factory=list)
    is_sent: bool = False
    crosses: bool = True

    def add(self, work: Work) -> None:
        (self.ahead if self.is_sent else self.before).append(work)


class WorkLog:
    """Collects the work of all rounds of a replay, by request; clocks that charge the work fill
    it.
    """

    def __init__(self) -> None:
        self.rounds: defaultdict[str, list[RoundWork]] = defaultdict(list)
        self._open: dict[str, _OpenRound] = {}
        self._known: dict[RoundWork, RoundWork] = {}

    def begin(self, request_id: str, context: int) -> None:
        """Begin a round of a request after so many committed tokens."""
        self._open[request_id] = _OpenRound(context)

    def forward(self, model: str, phase: "Phase", rows: Mapping[str, Row]) -> None:
        """Add one forward of a model to the rounds of the requests that have a row in it."""
        for name, (new, cached) in rows.items():
            round_ = self._open[name]
            if phase == "prefill":
                round_.add(Work(model, new - round_.context, cached, reads_prompt=True))
            elif cached:
                round_.add(Work(model, new, cached - round_.context, has_text=True))
            else:
                round_.add(Work(model, new))

    def decide(self, request_id: str) -> None:
        """Add a decision about one token."""
        self._open[request_id].add(Work(DECISION))

    def send(self, request_id: str, *, crosses: bool = True) -> None:
        """Note that the draft is sent: what follows is work ahead."""
        self._open[request_id].is_sent = True
        self._open[request_id].crosses = crosses

    def end(self, request_id: str) -> None:
        """End the round."""
        round_ = self._open.pop(request_id)
        work = RoundWork(tuple(round_.before), tuple(round_.ahead), round_.crosses)
        # Rounds repeat a few patterns, which a long trace holds once.
        self.rounds[request_id].append(self._known.setdefault(work, work))
