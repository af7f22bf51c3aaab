"""Methods that take turns on the same models, so that a drift of the machine affects all of them
alike.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count

from specbench_kit.core.errors import MethodError, SkitError
from specbench_kit.core.registry import plug_in_fault, plug_in_problem
from specbench_kit.decoding.loop import Loop
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.time_limit import NO_LIMIT, TimeLimit
from specbench_kit.studies.conversations import ConversationScript

Sink = Callable[[RequestRecord], None]
"""Stores a finished record."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a benchmark after a finished request; `tokens_per_s` is the speed of `method` so
    far.
    """

    method: str
    done: int
    planned: int
    tokens_per_s: float


@dataclass
class MethodLane:
    """One method at work: its decoding loop, the requests that it still has to answer, and the
    sinks of its records.

    `references` are the baseline's records by request id; a lane with references submits a request only after its
    reference has arrived. It also waits for the request's record in `after`, if that is given. `worker_clock` reads the
    processor seconds of the processes that work for all lanes; it is None if these processes cannot be observed.
    """

    name: str
    loop: Loop
    script: ConversationScript
    decode: Callable[[list[int]], str]
    sinks: Sequence[Sink]
    references: Mapping[str, RequestRecord] | None = None
    repeat: int = 0
    after: Mapping[str, RequestRecord] | None = None
    worker_clock: Callable[[], float] | None = lambda: 0.0

    def __post_init__(self) -> None:
        self._waiting = list(self.script.take())
        self._tokens = 0
        self._worker_s = 0.0
        self._started_s = self.loop.clock.now_s()

    @property
    def done(self) -> bool:
        """Return True after every request was answered."""
        return self.loop.idle and not self._waiting

    @property
    def worker_s(self) -> float | None:
        """Return the processor seconds of the lane's worker processes, or None if they cannot be
        observed.
        """
        return None if self.worker_clock is None else self._worker_s

    @property
    def tokens_per_s(self) -> float:
        """Return the speed of this method since it was started or resumed."""
        elapsed_s = self.loop.clock.now_s() - self._started_s
        return self._tokens / elapsed_s if elapsed_s else 0.0

    def turn(self, requests: int) -> Iterator[RequestRecord]:
        """Decode until `requests` more requests have finished, or no request can be submitted
        yet.
        """
        self._submit_ready()
        finished = 0
        if self.loop.runs_on:
            self.loop.admissions = requests
        read_worker_s = self.worker_clock or (lambda: 0.0)
        while finished < requests and not self.loop.idle:
            before_s = read_worker_s()
            records = self.loop.step()
            self._worker_s += read_worker_s() - before_s
            for record in records:
                finished += 1
                self._tokens += len(record.output_ids)
                record.text, record.repeat = self.decode(record.output_ids), self.repeat
                for sink in self.sinks:
                    sink(record)
                self.script.finish(record)
                # A dialogue's next turn goes before new dialogues, so that few are open at a time.
                self._submit_ready(first=True)
                yield record

    def _submit_ready(self, *, first: bool = False) -> None:
        taken = self.script.take()
        # What goes first stays first where its reference is not there yet.
        waiting = [*taken, *self._waiting] if first else [*self._waiting, *taken]
        self._waiting = []
        for request in waiting:
            if self.after is not None and request.id not in self.after:
                self._waiting.append(request)
            elif self.references is None:
                self.loop.submit(request, first=first)
            elif request.id in self.references:
                answer = tuple(self.references[request.id].output_ids)
                self.loop.submit(replace(request, reference=answer), first=first)
            else:
                self._waiting.append(request)


MEASURED = "measured requests"


@contextmanager
def ends_alone(phase: str = "") -> Iterator[None]:
    """Raise MethodError, which ends one method, where the code of another package fails in a phase
    of the work.

    A fault of the kit ends the benchmark as before.
    """
    try:
        yield
    except MethodError as error:
        cause = error.__cause__ or error
        found = plug_in_fault(cause)
        where = f", in {found.function} ({found.file}, line {found.line})" if found else ""
        raise MethodError(f"{error}{where}{f', during {phase}' if phase else ''}") from cause
    except SkitError:
        raise
    except Exception as error:
        problem = plug_in_problem(error, phase)
        if problem is None:
            raise
        raise MethodError(problem) from error


def run_in_turns(
    lanes: Sequence[MethodLane],
    requests_per_turn: int,
    limit: TimeLimit = NO_LIMIT,
    is_decided: Callable[[], bool] = lambda: False,
    *,
    broken: dict[str, MethodError],
) -> Iterator[tuple[MethodLane, RequestRecord]]:
    """Yield every lane's records as they finish; within each turn the lanes decode in the order of
    `turn_order`.

    Every lane has one turn before the `limit` ends them, and ends the turn in which the limit
    started, so that a run which is resumed gets on with all methods. Before each turn it is asked
    whether more is to be decoded. A lane whose policy fails ends, and its name is added to
    `broken`, if it is not there, with the error.
    """
    ended: set[str] = set()
    for turn in count():
        left = [lane for lane in lanes if not lane.done and lane.name not in ended]
        if not left or is_decided():
            return
        may_end = turn > 0 and limit.has_started
        gets_on = False
        for lane in map(lanes.__getitem__, turn_order(len(lanes), turn)):
            if may_end and limit.is_over:
                return
            if lane.name in ended:
                continue
            try:
                with ends_alone(MEASURED):
                    for record in lane.turn(requests_per_turn):
                        gets_on = True
                        yield lane, record
            except MethodError as error:
                ended.add(lane.name)
                broken.setdefault(lane.name, error)
        if ended and not gets_on:
            return  # what is left waits for answers of a broken lane


def turn_order(lanes: int, turn: int) -> list[int]:
    """Return the places of lanes in the order in which they decode in a turn: rotated, every second
    time reversed.

    A machine that gets steadily slower would otherwise always be fastest for the first lane. Over
    twice as many turns as there are lanes, each lane has had every place twice, and of any two each
    has gone first equally often.
    """
    order = [(turn // 2 + place) % lanes for place in range(lanes)]
    return order[::-1] if turn % 2 else order
