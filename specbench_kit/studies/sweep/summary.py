"""What a sweep was asked for and what it finds, as its two files hold it."""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct, field

from specbench_kit.deployments.fields import Value
from specbench_kit.methods.spec import with_options
from specbench_kit.metrics.vocabulary import MetricValues
from specbench_kit.runs.document import MethodInputs, RunDescription


class SweepRow(Struct):
    """The metrics of one method at one grid point."""

    values: Annotated[Mapping[str, Value], Meta(description="the grid point: value by axis")]
    series: Annotated[str, Meta(description="spec of the method as it was given")]
    spec: Annotated[str, Meta(description="spec of the method at this point")]
    overall: Annotated[MetricValues, Meta(description="metrics of all requests")]


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
    """A place on an axis at which the speedup passes 1."""

    low: Annotated[float, Meta(description="value of the grid below it")]
    high: Annotated[float, Meta(description="value of the grid above it")]
    at: Annotated[
        float, Meta(description="the place itself, if times are straight lines between the two")
    ]
    stops: Annotated[
        bool,
        Meta(description="whether the method is faster below the crossing and slower above it"),
    ]


class BreakEven(Struct):
    """Where a ratio of a method's line is above 1 on an axis; only an axis of numbers has
    crossings.
    """

    method: Annotated[
        str, Meta(description="label of the line: the method, with the values of other axes")
    ]
    axis: Annotated[str, Meta(description="axis that the line is over")]
    faster_at: Annotated[list[Value], Meta(description="values at which the ratio is above 1")]
    verdict: Annotated[
        str,
        Meta(
            description="where that is: everywhere, in part or nowhere; or that there are too few prompts to "
            "tell"
        ),
    ]
    crossings: Annotated[
        list[Crossing],
        Meta(description="places at which the ratio passes 1; empty unless the axis has numbers"),
    ]


class FastestMethod(Struct):
    """The method with the highest speedup at a grid point."""

    place: Annotated[Mapping[str, Value], Meta(description="the grid point: value by axis")]
    method: Annotated[str, Meta(description="spec of the fastest method")]
    speedup: Annotated[
        float, Meta(description="its speedup over autoregressive decoding, a factor")
    ]
    next: Annotated[str, Meta(description="spec of the next fastest method")]
    lead: Annotated[float, Meta(description="speedup of the fastest / that of the next")]

    def has(self, row: SweepRow) -> bool:
        """Return whether a row is that of this method at this point."""
        return row.spec == self.method and row.values == self.place


class SweepSummary(Struct):
    """The content of a sweep's `summary.json`."""

    axes: Annotated[dict[str, list[Value]], Meta(description="values of each axis")]
    break_even: Annotated[
        list[BreakEven],
        Meta(
            description="where each method is faster than autoregressive decoding, along the first axis"
        ),
    ]
    edge: Annotated[
        list[BreakEven],
        Meta(
            description="where drafting beyond a link is faster than drafting on the server, along the first "
            "axis"
        ),
    ]
    fastest: Annotated[
        list[FastestMethod], Meta(description="the fastest method at each grid point")
    ]
    rows: Annotated[list[SweepRow], Meta(description="metrics of every method at every grid point")]

    @property
    def methods(self) -> set[str]:
        """The names of the methods, which begin the keys of axes that are their options."""
        return {row.series.partition(":")[0] for row in self.rows}

    def rows_once(self) -> Iterator[tuple[dict[str, Value], SweepRow]]:
        """Yield each method once with its own values: at the first of the points that differ in
        another method's options alone.
        """
        methods = self.methods
        seen = set[tuple[str, tuple[tuple[str, Value], ...]]]()
        for row in self.rows:
            values = own_values(row, methods)
            place = row.spec, tuple(values.items())
            if place not in seen:
                seen.add(place)
                yield values, row

    def row_of(self, winner: FastestMethod) -> SweepRow:
        """Return the row of the fastest method at a point."""
        return next(row for row in self.rows if winner.has(row))


class SweptMethod(Struct, omit_defaults=True):
    """A method of a sweep that uses something of its pair."""

    method: Annotated[str, Meta(description="spec of the method")]
    uses: Annotated[
        MethodInputs,
        Meta(description="predictor, thresholds and profiles that it was prepared with"),
    ] = field(default_factory=dict)
    seen_prompts: Annotated[
        int | None,
        Meta(
            description="prompts of the trace that its predictor was trained on; null if it has seen none"
        ),
    ] = None


class SweepDescription(RunDescription, kw_only=True):
    """What `run.json` says of a sweep."""

    requests: Annotated[int, Meta(description="requests of the trace that were replayed")] = 0
    methods: Annotated[
        list[SweptMethod], Meta(description="the methods that use something of their pair")
    ] = field(default_factory=list)


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
