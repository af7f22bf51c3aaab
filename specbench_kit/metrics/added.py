"""Metrics that other packages bring: a number of a method's requests each, by an entry point of the
group `specbench_kit.metrics`.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from msgspec import structs

from specbench_kit.core.registry import Registry
from specbench_kit.metrics.vocabulary import Better, MetricValues, Unit

if TYPE_CHECKING:
    from specbench_kit.decoding.records import RequestRecord

NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


class AddedMetric(ABC):
    """A number of the requests of one method, such as how often a draft was right to its end.

    Its name is that of its entry point, as in `whole_drafts`. It stands in `summary.json`, `result.json` and the CSV
    files under that name, and in tables under its `title`.
    """

    title: ClassVar[str]
    """The title of its column."""
    definition: ClassVar[str]
    """What it is, in a few words."""
    unit: ClassVar[Unit] = "number"
    better: ClassVar[Better] = "neither"
    """Which of two values is better."""

    @abstractmethod
    def of(self, records: "Sequence[RequestRecord]") -> float | None:
        """Return its value over finished requests, of which there is one at least; None if it has
        none.

        It is asked for all requests, for those of each category and, for the interval, for all but those of some
        prompts.
        """


class AddedMetrics(Registry[type[AddedMetric]]):
    """The metrics of other packages; one that cannot be used is left out."""

    def all(self) -> dict[str, type[AddedMetric]]:
        """Return all metrics that can be used, by name."""
        found = super().all()
        for name in [name for name in found if name not in self._broken]:
            if fault := _fault_of_name(name):
                self.leave_out(
                    name, f"the installed metric '{name}' {fault}: rename its entry point"
                )
        return {name: entry for name, entry in found.items() if name not in self._broken}


def _fault_of_name(name: str) -> str:
    if name in {field.name for field in structs.fields(MetricValues)}:
        return "is called like one of the kit"
    if not NAME.fullmatch(name):
        return "has a name that cannot be a column's (small letters, digits, and single - or _)"
    return ""


added_metrics = AddedMetrics("metric", __name__, group="specbench_kit.metrics")


def definitions() -> Iterator[tuple[str, str]]:
    """Yield the name and the meaning of every metric that other packages bring."""
    for name, kind in added_metrics.all().items():
        yield name, kind.definition
