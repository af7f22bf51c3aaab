"""Stop a benchmark once its comparison is decided, by a sequential rule whose verdicts hold their
level.

The table is looked at after 10, 20, 40 and so many more requests of every method, and at the end.
Each look has its share of the 5% of tables of equal methods that may contain a false verdict.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.rounds import NO_REQUESTS, RequestGroup
from specbench_kit.metrics.rows import TableEntry, choose_reference, rows_of
from specbench_kit.metrics.run_summary import MethodRow
from specbench_kit.metrics.statistics import units_of
from specbench_kit.metrics.verdicts import FASTER, SLOWER
from specbench_kit.metrics.vocabulary import BASELINE

FIRST_LOOK = 10


def count_looks(requests: int) -> int:
    """Return how often the table of so many requests of each method is looked at, the end
    included.
    """
    looks = 1
    number = FIRST_LOOK
    while number < requests:
        looks = looks + 1
        number = 2 * number
    return looks


@dataclass
class EarlyDecision:
    """Collects the records of all methods, and says when their comparison is decided.

    That is when every method is shown to differ from the fastest, or is shown to lie within `share` of its speed.
    `requests` are those of each method, `bounds` the methods that cannot be deployed, which no other has to reach.
    So many requests vary `together`, as `units_of` has it.
    """

    share: float
    requests: int
    bounds: Collection[str] = ()
    together: int = 1
    _records: dict[str, list[RequestRecord]] = field(default_factory=lambda: defaultdict(list))
    _next_look: int = FIRST_LOOK
    was_made: bool = False

    def keep(self, method: str, record: RequestRecord) -> None:
        """Add a finished request."""
        self._records[method].append(record)

    def resume(self, finished: Mapping[str, Iterable[RequestRecord]]) -> None:
        """Add the requests that an interrupted run has finished, which it has looked at as often as
        they allow.
        """
        for method, records in finished.items():
            self._records[method] += records
        self._pass_looks(self._done)

    @property
    def _done(self) -> int:
        return min(map(len, self._records.values()), default=0)

    def _pass_looks(self, done: int) -> None:
        while self._next_look <= done:
            self._next_look *= 2

    def is_made(self) -> bool:
        """Return whether the comparison is decided; it is looked at only after certain numbers of
        requests.
        """
        done = self._done
        if done < self._next_look or done >= self.requests:
            return False
        self._pass_looks(done)
        self.was_made = self._is_decided()
        return self.was_made

    def _is_decided(self) -> bool:
        baseline = RequestGroup(self._records.get(BASELINE, []))
        units = units_of(max(self._records.values(), key=len), self.together)
        looks = count_looks(self.requests)
        entries = [
            TableEntry(
                RequestGroup(records),
                NO_REQUESTS if name == BASELINE else baseline,
                units,
                label=name,
                is_bound=name in self.bounds,
                is_baseline=name == BASELINE,
                may_win=None,
                looks=looks,
            )
            for name, records in self._records.items()
        ]
        reference = choose_reference(entries)
        rows = rows_of(entries, reference)
        judged = [
            row
            for name, row in rows.items()
            if name not in (reference.label, BASELINE, *self.bounds)
        ]
        return all(map(self._is_settled, judged))

    def _is_settled(self, row: MethodRow) -> bool:
        bounds = row.bounds("typical_relative_speed")
        if row.verdict in (FASTER, SLOWER):
            return True
        return bounds is not None and bool(
            1 / (1 + self.share) < bounds[0] and bounds[1] < 1 + self.share
        )
