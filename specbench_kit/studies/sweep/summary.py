"""What a sweep was asked for and what it finds, as its two files hold it."""

from collections.abc import Container, Iterator, Mapping, Sequence

from msgspec import Struct, field

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.deployments.fields import Value
from specbench_kit.metrics.vocabulary import MetricValues
from specbench_kit.runs.document import RunDescription
from specbench_kit.studies.sweep.axes import with_options


class SweepRow(Struct):
    """The metrics of one method at one grid point; `series` is its spec as given, `spec` its spec
    at this point.
    """

    values: Mapping[str, Value]
    series: str
    spec: str
    overall: MetricValues


def own_values(row: SweepRow, methods: Container[str]) -> dict[str, Value]:
    """Return the values of a row on the axes that change its method: fields of the deployment and
    of the draft model, and its own options, but not those of the other `methods`.
    """
    own = row.series.partition(":")[0]
    return {
        key: value
        for key, value in row.values.items()
        if (name := key.partition(".")[0]) == own or name not in methods
    }


class SweepLine(Struct):
    """One method along the first axis, with the other axes held constant; `points` are its rows by
    the first value.
    """

    label: str
    series: str
    points: dict[Value, SweepRow]


class Crossing(Struct, frozen=True):
    """The speedup passes 1 between two neighbours on the grid, at `at` if times are straight lines
    between them.

    `stops` is True if the method is faster below and slower above the crossing.
    """

    low: float
    high: float
    at: float
    stops: bool


class BreakEven(Struct):
    """Where a ratio of a method's line is above 1 on an axis; only an axis of numbers has
    crossings.
    """

    method: str
    axis: str
    faster_at: list[Value]
    verdict: str
    crossings: list[Crossing]


class FastestMethod(Struct):
    """The method with the highest speedup at a grid point, the next one, and the ratio of both
    speedups.
    """

    place: Mapping[str, Value]
    method: str
    speedup: float
    next: str
    lead: float

    def has(self, row: SweepRow) -> bool:
        """Return whether a row is that of this method at this point."""
        return row.spec == self.method and row.values == self.place


class SweepSummary(Struct):
    """What a sweep finds; `edge` compares drafting beyond a link with drafting on the server."""

    axes: dict[str, list[Value]]
    break_even: list[BreakEven]
    edge: list[BreakEven]
    fastest: list[FastestMethod]
    rows: list[SweepRow]

    @property
    def methods(self) -> set[str]:
        """The names of the methods, which begin the keys of axes that are their options."""
        return {row.series.partition(":")[0] for row in self.rows}

    def rows_once(self) -> Iterator[tuple[dict[str, Value], SweepRow]]:
        """Yield each method once with its own values: at the first of the points that differ in
        another method's options alone.
        """
        methods = self.methods
        seen: list[tuple[str, dict[str, Value]]] = []
        for row in self.rows:
            values = own_values(row, methods)
            if (row.spec, values) not in seen:
                seen.append((row.spec, values))
                yield values, row

    def row_of(self, winner: FastestMethod) -> SweepRow:
        """Return the row of the fastest method at a point."""
        return next(row for row in self.rows if winner.has(row))


class SweptMethod(Struct, omit_defaults=True):
    """A method of a sweep: what it uses of its pair, and how many prompts of the trace it was
    trained on.
    """

    method: str
    uses: JsonObject = field(default_factory=dict)
    seen_prompts: int | None = None


class SweepDescription(RunDescription, kw_only=True):
    """What `run.json` says of a sweep; `methods` are those that use something of their pair."""

    requests: int = 0
    methods: list[SweptMethod] = field(default_factory=list)


def lines(rows: Sequence[SweepRow], axes: Mapping[str, Sequence[Value]]) -> list[SweepLine]:
    """Return the lines in the order of the rows; the first axis runs along each of them."""
    first, *constant = axes
    names = {row.series.partition(":")[0] for row in rows}
    points: dict[tuple[str, str], dict[Value, SweepRow]] = {}
    for row in rows:
        # The label names the constant values that distinguish a method's lines: those of its own
        # options in its spec, and those of the deployment behind it.
        values = {key: row.values[key] for key in constant if len(axes[key]) > 1}
        fields = [
            f"{key}={value}" for key, value in values.items() if key.partition(".")[0] not in names
        ]
        label = ", ".join([with_options(row.series, values), *fields])
        points.setdefault((label, row.series), {})[row.values[first]] = row
    return [SweepLine(label, series, by_value) for (label, series), by_value in points.items()]
