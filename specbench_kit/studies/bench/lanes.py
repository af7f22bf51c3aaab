"""Methods that take turns on the same models, so that a drift of the machine hits all of them alike."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from specbench_kit.decoding.loop import Loop
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.studies.bench.choice import BASELINE as BASELINE
from specbench_kit.studies.bench.conversations import ConversationScript

Sink = Callable[[RequestRecord], None]


@dataclass(frozen=True, slots=True)
class Progress:
    """Reported after each finished request; `tokens_per_s` is that method's own speed so far."""

    method: str
    done: int
    planned: int
    tokens_per_s: float


@dataclass
class MethodLane:
    """One method at work: its engine, what it is asked, where its records go.

    `references` are the baseline's records by request id; a lane that needs them asks a request only once its
    reference is there. `others` tells the processor seconds of the processes that work for it, which `others_s` sums
    up over its turns; None where nobody can tell.
    """

    name: str
    engine: Loop
    script: ConversationScript
    decode: Callable[[list[int]], str]
    sinks: Sequence[Sink]
    references: Mapping[str, RequestRecord] | None = None
    repeat: int = 0
    others: Callable[[], float] | None = lambda: 0.0

    def __post_init__(self) -> None:
        self._held = list(self.script.take())
        self._tokens = 0
        self.others_s = None if self.others is None else 0.0
        self._started_s = self.engine.clock.now_s()

    @property
    def done(self) -> bool:
        """Whether every request was answered."""
        return self.engine.idle and not self._held

    @property
    def tokens_per_s(self) -> float:
        """Speed of this method since it was started or resumed."""
        elapsed_s = self.engine.clock.now_s() - self._started_s
        return self._tokens / elapsed_s if elapsed_s else 0.0

    def turn(self, requests: int) -> Iterator[RequestRecord]:
        """Decode until that many requests have finished, or none is left that can be asked."""
        self._feed()
        finished = 0
        while finished < requests and not self.engine.idle:
            for record in self._step():
                finished += 1
                self._deliver(record)
                yield record

    def _step(self) -> list[RequestRecord]:
        if self.others is None or self.others_s is None:
            return self.engine.step()
        before_s = self.others()
        done = self.engine.step()
        self.others_s += self.others() - before_s
        return done

    def _deliver(self, record: RequestRecord) -> None:
        self._tokens += len(record.output_ids)
        record.text, record.repeat = self.decode(record.output_ids), self.repeat
        for sink in self.sinks:
            sink(record)
        self.script.finish(record)
        self._feed(first=True)

    def _feed(self, *, first: bool = False) -> None:
        self._held.extend(self.script.take())
        waiting, self._held = self._held, []
        for request in waiting:
            if self.references is None:
                self.engine.submit(request, first=first)
            elif request.id in self.references:
                answer = tuple(self.references[request.id].output_ids)
                self.engine.submit(replace(request, reference=answer), first=first)
            else:
                self._held.append(request)


def run_in_turns(lanes: Sequence[MethodLane], requests_per_turn: int) -> Iterator[tuple[MethodLane, RequestRecord]]:
    """Every lane's records as they finish, in the order of the lanes within each turn."""
    while not all(lane.done for lane in lanes):
        for lane in lanes:
            for record in lane.turn(requests_per_turn):
                yield lane, record
