"""The report on a sweep: how each method's speedup changes, and where it is used up."""

import re
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from specbench_kit.deployments.fields import Value
from specbench_kit.metrics.verdicts import TOO_FEW
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.reports import render_terminal
from specbench_kit.reports.document import (
    Block,
    Blocks,
    BulletList,
    Cell,
    Column,
    Document,
    Estimate,
    Figure,
    Heading,
    Note,
    Paragraph,
    Table,
    caution,
    code,
    facts,
    paragraphs,
)
from specbench_kit.reports.sections import colocation, deployment
from specbench_kit.reports.sections.cautions import (
    other_deployments,
    predictor_cautions,
    setting_cautions,
)
from specbench_kit.reports.sections.columns import estimate_of
from specbench_kit.reports.sections.machine import provenance
from specbench_kit.reports.sections.wording import (
    dataset_sentence,
    model_sentence,
    time_kind,
    time_sentence,
    trace_sentence,
)
from specbench_kit.reports.writing.formatting import (
    ABSENT,
    count,
    interval,
    seconds,
    significant,
    times,
)
from specbench_kit.studies.sweep.summary import (
    BreakEven,
    Crossing,
    FastestMethod,
    SweepDescription,
    SweepRow,
    SweepSummary,
    own_values,
)

if TYPE_CHECKING:
    from rich.console import Console

THROUGHPUT = Column("throughput", "rate")
FASTEST = "*"
MOST_METHODS = 4
"""Methods that the terminal shows side by side, with a row per point."""
FILES = "This folder also holds the plots as SVG and the table as `sweep.csv`."
DEFINITIONS = (
    "Speedup is autoregressive time / method time, end to end, as a ratio of sums over the same requests, with a 95% "
    "interval over prompts; the intervals of one point hold together. Every point replays the same trace, so that "
    "differences between points come only from the deployment or the options, not from the prompts. A method has one "
    "row for all points that differ in another method's options alone, with the interval of the first of them; "
    "`sweep.csv` has a row for each. The deployment shown above is that of the first point."
)


def build(run: SweepDescription, summary: SweepSummary, figures: Sequence[Figure]) -> Document:
    """Return the report, the figure of speedups first."""
    varied = ", ".join(
        axis_in_words(key) for key, values in summary.axes.items() if len(values) > 1
    )
    return Document.of(
        f"Sweep over {varied} on {run.dataset.name or 'a trace'}",
        paragraphs(f"**{winner_sentence(summary)}**"),
        break_even_tables(summary),
        caution(cautions(run, summary)),
        figures[:1],
        _comparisons(summary),
        [Heading("More figures"), *figures[1:], Paragraph(FILES)],
        _results(summary),
        _setting(run, summary),
        deployment.section(run),
        [Heading("Reading the numbers"), Paragraph(DEFINITIONS)],
        provenance(run),
    )


def print_sweep(console: "Console", run: SweepDescription, summary: SweepSummary) -> None:
    """Print the speedups by point and method, then where each method breaks even."""
    setting = [dataset_sentence(run.dataset), f"batch size {run.config.batch_size}", time_kind(run)]
    # What is slower than autoregressive decoding is no recommendation, even where nothing is
    # faster.
    fastest = [winner for winner in summary.fastest if winner.speedup >= 1]
    blocks: list[Block] = [
        *paragraphs(f"**{winner_sentence(summary)}**"),
        Note(" · ".join(setting)),
        *break_even_tables(summary),
        _speedups_by_point(summary, fastest) or _rows_by_method(summary, fastest),
        Note(f"{FASTEST} the highest speedup over {RIVAL} at this point; below 1x is slower"),
        *paragraphs(*headlines(summary)),
        *caution(cautions(run, summary)),
    ]
    render_terminal.show(console, blocks)


def _speedups_by_point(summary: SweepSummary, fastest: Sequence[FastestMethod]) -> Table | None:
    """Return a table with a row per point and a column per method; None if they are many or differ
    between points.
    """
    specs = list(dict.fromkeys(row.spec for row in summary.rows if row.spec != BASELINE))
    points: dict[tuple[str, ...], dict[str, Estimate]] = {}
    for row in summary.rows:
        mark = f" {FASTEST}" if any(winner.has(row) for winner in fastest) else ""
        point = tuple(_point(row.values, summary))
        points.setdefault(point, {})[row.spec] = Estimate(row.overall.speedup, mark=mark)
    rows: list[list[Cell]] = []
    for point, found in points.items():
        if list(found) not in (specs, [BASELINE, *specs]):
            return None
        rows.append([*point, *map(found.__getitem__, specs)])
    if len(specs) > MOST_METHODS:
        return None
    axes = (Column(_axis_title(key), "count") for key in summary.axes)
    titles = (Column(re.sub("[:,]", "\n", spec), "times") for spec in specs)
    return Table((*axes, *titles), rows)


def _rows_by_method(summary: SweepSummary, fastest: Sequence[FastestMethod]) -> Table:
    columns = (Column("speedup", "times"), THROUGHPUT, Column("acceptance\nlength", "number"))
    rows: list[list[Cell]] = []
    won = [summary.row_of(winner) for winner in fastest]
    methods = summary.methods
    ahead = [(row.spec, own_values(row, methods)) for row in won]
    for values, row in summary.rows_once():
        mark = f" {FASTEST}" if (row.spec, values) in ahead else ""
        numbers = (row.overall.speedup, row.overall.throughput, row.overall.acceptance_length)
        rows.append([*_point(values, summary), f"{row.spec}{mark}", *numbers])
    return Table(
        (*(Column(_axis_title(key), "count") for key in summary.axes), "method", *columns), rows
    )


def _point(values: Mapping[str, Value], summary: SweepSummary) -> list[str]:
    """Return the cells of a point; a dash where an axis does not change the row's method."""
    return [axis_value(values[key]) if key in values else ABSENT for key in summary.axes]


def _axis_columns(summary: SweepSummary) -> list[Column]:
    return [Column(_axis_title(key)) for key in summary.axes]


def _axis_title(key: str) -> str:
    """Return the heading of an axis's column: words with the unit, or the key of a method's
    option.
    """
    name, unit = axis_name(key)
    return f"{name} ({unit.strip()})" if unit else name if key in AXES else code(key)


def _comparisons(summary: SweepSummary) -> Blocks:
    """Return the fastest methods, break-even points, and where the edge beats a draft model on the
    server.
    """
    columns = (*("highest speedup", Column("", "times"), "next"), Column("lead over it", "times"))
    winners: list[list[Cell]] = []
    for winner in summary.fastest:
        speeds = (code(winner.method), winner.speedup, code(winner.next), winner.lead)
        winners.append([*_point(winner.place, summary), *speeds])
    note = (
        f"A method's speedup is over {RIVAL} of the same prompts on the same deployment: the "
        "server decodes by itself and streams, so that a request crosses the link once. Between two points of the "
        "grid, both times are taken as straight lines, as they are in the round trip; break-even is where they cross."
    )
    blocks: list[Block] = [
        Heading("Which method is the fastest where"),
        Table((*_axis_columns(summary), *columns), winners),
        Heading("Break-even"),
        BulletList(headlines(summary)),
        _crossings_table("faster", summary.break_even, summary),
        Paragraph(note),
    ]
    if not summary.edge:
        return blocks
    rows: list[list[Cell]] = []
    for values, row in summary.rows_once():
        overall = row.overall
        if overall.colocated_ratio is not None:
            speedups = (code(row.spec), overall.speedup, overall.colocated_speedup)
            windows = colocation.windows(row.spec, overall)
            rows.append([*_point(values, summary), *speedups, *windows, overall.capacity_factor])
    numbers = (Column("edge", "times"), Column("server-only", "times"), *colocation.COLUMNS[3:])
    return [
        *blocks,
        Heading("Edge or server-only"),
        _crossings_table("edge faster than server-only", summary.edge, summary),
        Table((*_axis_columns(summary), "method", *numbers), rows).without_empty_columns(),
        Paragraph(f"{colocation.NOTE} {colocation.CAPACITY_NOTE}"),
    ]


def break_even_tables(summary: SweepSummary) -> list[Table]:
    """Return where each method pays off along the first axis, a row per method; nothing where too
    few prompts were decoded to tell it of any.
    """
    if all(found.verdict == TOO_FEW for found in (*summary.break_even, *summary.edge)):
        return []
    at_server = {found.method: found for found in summary.edge}
    rows = [
        (
            code(found.method),
            _where(found),
            _where(at_server[found.method]) if found.method in at_server else ABSENT,
        )
        for found in summary.break_even
    ]
    axis, _ = axis_name(next(iter(summary.axes)))
    columns = ("method", f"pays off, by {axis}", "edge beats server-only")
    table = Table(columns, rows)
    return [table if summary.edge else table.columns_of(columns[:2])]


def _where(found: BreakEven) -> str:
    """Return where a method is faster than its rival: below 13.0 ms, everywhere, only at a, b."""
    if found.crossings:
        _, unit = axis_name(found.axis)
        show = seconds if unit.strip() == "s" else significant
        return ", ".join(
            f"{'below' if crossing.stops else 'above'} {show(crossing.at)}"
            for crossing in found.crossings
        )
    return (
        f"only at {', '.join(map(str, found.faster_at))}"
        if found.verdict == "in part"
        else found.verdict
    )


def _crossings_table(title: str, methods: Sequence[BreakEven], summary: SweepSummary) -> Table:
    rows: list[tuple[str, ...]] = []
    for found in methods:
        method = code(found.method)
        if not found.crossings:
            where = (
                f"at {', '.join(map(str, found.faster_at))}"
                if found.verdict == "in part"
                else found.verdict
            )
            rows.append((method, where, ABSENT, ABSENT))
        for crossing in found.crossings:
            side = "below" if crossing.stops else "above"
            rows.append((method, side, significant(crossing.at), bracket(crossing)))
    return Table(
        ("method", title, f"break-even {_axis_columns(summary)[0].title}", "between"), rows
    )


def _results(summary: SweepSummary) -> Blocks:
    priced = any(row.overall.cost_efficiency is not None for row in summary.rows)
    rows: list[list[Cell]] = []
    for values, row in summary.rows_once():
        overall = row.overall
        speedup = estimate_of(overall, "speedup")
        acceptance = (overall.acceptance_length, overall.acceptance_rate)
        cells = (
            code(row.spec),
            speedup,
            overall.throughput,
            *acceptance,
            overall.ttft.mean,
            overall.tpot.mean,
        )
        rows.append(
            [*_point(values, summary), *cells, *([overall.cost_efficiency] if priced else [])]
        )
    columns = [
        *_axis_columns(summary),
        Column("method"),
        Column("speedup (95%)", "times"),
        THROUGHPUT,
    ]
    columns += [Column("acceptance length", "number"), Column("acceptance rate", "share")]
    columns += [Column("TTFT mean", "seconds"), Column("TPOT mean", "seconds")]
    columns += [Column("tokens per $", "count")] if priced else []
    return [Heading("Results (modelled)"), Table(columns, rows)]


def _setting(run: SweepDescription, summary: SweepSummary) -> Blocks:
    rows = [
        ("dataset", dataset_sentence(run.dataset)),
        *((f"{role} model", model_sentence(model)) for role, model in run.models.items() if model),
        *(
            [("trace", f"{trace_sentence(run.trace)}, {count(run.requests)} requests")]
            if run.trace
            else []
        ),
        *(
            (f"sweep over {code(key)}", ", ".join(map(axis_value, values)))
            for key, values in summary.axes.items()
        ),
        ("batch size", str(run.config.batch_size)),
        ("time", time_sentence(run)),
    ]
    return [Heading("What was run"), facts(rows)]


RIVAL = "autoregressive decoding at the server"
COLOCATED = "itself server-only"
AXES = {
    "link.rtt_s": ("round trip", " of the link", "s"),
    "link.jitter_s": ("jitter", " of the link", "s"),
    "link.loss": ("share of messages that the link loses", "", ""),
    "link.up_bytes_per_s": ("bandwidth of the uplink", "", "bytes/s"),
    "link.down_bytes_per_s": ("bandwidth of the downlink", "", "bytes/s"),
    "drafter.placement": ("place of the drafter", "", ""),
    "verifier.price_per_hour": ("price of the verifier", "", "per hour"),
}
"""Deployment fields: their short names, what makes them full ones, and their units."""


def break_even_sentence(found: BreakEven, values: Sequence[Value], rival: str = RIVAL) -> str:
    """Return where on the axis, whose values are `values`, one method beats its rival."""
    axis, unit = axis_name(found.axis)
    numbers = numbers_of(values)
    span = f"{axis} from {min(numbers):g} to {max(numbers):g}{unit}" if numbers else axis
    if found.verdict in ("everywhere", "nowhere"):
        return f"beats {rival} {found.verdict} in the range ({span})."
    if found.verdict == TOO_FEW:
        return f"was replayed on too few prompts to tell whether it beats {rival} ({span})."
    if not found.crossings:
        return f"beats {rival} only at {axis} = {', '.join(map(str, found.faster_at))}{unit}."
    changes = [
        f"{'stops' if crossing.stops else 'starts'} beating {rival} at {axis} = {significant(crossing.at)}{unit} "
        f"(between {bracket(crossing)})"
        for crossing in found.crossings
    ]
    return f"{', '.join(changes)}."


def numbers_of(values: Sequence[Value]) -> list[float]:
    """Return the values of an axis as numbers, or an empty list if any of them is not a number."""
    numbers = [
        float(value)
        for value in values
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return numbers if len(numbers) == len(values) else []


def axis_in_words(key: str) -> str:
    """Return what varies along an axis, with its unit."""
    if key in AXES:
        name, owner, unit = AXES[key]
        return f"{name}{owner} ({unit})" if unit else name + owner
    owner, _, name = key.rpartition(".")
    return f"{name} of {owner}"


def axis_name(key: str) -> tuple[str, str]:
    """Return the short name of an axis, and its unit as it follows a number; a key without words is
    its own name.
    """
    name, _, unit = AXES.get(key, (key, "", ""))
    return name, f" {unit}" if unit else ""


def axis_value(value: object) -> str:
    """Return a value of an axis as text."""
    return (
        f"{value:g}"
        if isinstance(value, int | float) and not isinstance(value, bool)
        else str(value)
    )


def bracket(crossing: Crossing) -> str:
    """Return the neighbours on the grid between which a break-even point lies."""
    return f"{axis_value(crossing.low)} and {axis_value(crossing.high)}"


def winner_sentence(summary: SweepSummary) -> str:
    """Return which method pays off at most points, with its speedup at the first and the last of
    them.
    """
    if not summary.fastest:
        return "No method finished at any point."
    points = len(summary.fastest)
    winners: dict[str, list[SweepRow]] = {}
    for winner in summary.fastest:
        if winner.method != BASELINE and winner.speedup > 1:
            winners.setdefault(winner.method, []).append(summary.row_of(winner))
    if winners:
        name, won = max(winners.items(), key=lambda item: len(item[1]))
        methods = summary.methods
        ends = [won[0], won[-1]]
        at_ends = ", ".join(dict.fromkeys(_speedup_at(row, methods) for row in ends))
        # A recommendation says what it compares: with the draft model on the server another way may
        # be faster.
        where = ", drafting at the edge," if won[0].overall.colocated_ratio is not None else ""
        fastest = f"{code(name)}{where} is the fastest at {len(won)} of {points} points"
        # A benchmark's headline goes by the typical prompt, and gives another number.
        ratio = f"in all requests together, as a multiple of {RIVAL}"
        return f"{fastest}, {ratio}: {at_ends}{_beaten_by_server(summary)}."
    compared = [
        row for row in summary.rows if row.spec != BASELINE and row.overall.speedup is not None
    ]
    where = " that drafts at the edge" if summary.edge else ""
    nothing = f"Nothing{where} is faster than {RIVAL} at any of the {points} points"
    if not compared:
        return f"{nothing}."
    closest = max(compared, key=lambda row: row.overall.speedup or 0.0)
    speed = _speedup_at(closest, summary.methods)
    return f"{nothing}; {code(closest.spec)} comes closest, {speed}{_beaten_by_server(summary)}."


def faster_at_server(summary: SweepSummary) -> list[colocation.AtServer]:
    """Return what is the fastest with draft models on the server, for every point where it is
    faster than what is fastest with them at the edge.
    """
    found = []
    for winner in summary.fastest:
        rows = ((row.spec, row.overall) for row in summary.rows if row.values == winner.place)
        if best := colocation.best_at_server(rows):
            found.append(best)
    return found


def _beaten_by_server(summary: SweepSummary) -> str:
    """Return, as the end of a headline, at how many points draft models on the server are faster;
    empty at none.
    """
    found = faster_at_server(summary)
    if not found:
        return ""
    return f"; drafting on the server is faster at {len(found)} of {len(summary.fastest)} points"


def _speedup_at(row: SweepRow, methods: Container[str]) -> str:
    """Return a row's speedup with its interval, and its point on the axes that change its
    method.
    """
    bounds = row.overall.bounds("speedup")
    within = f" ({interval(bounds)})" if bounds else ""
    values = []
    for key, value in own_values(row, methods).items():
        axis, unit = axis_name(key)
        values.append(f"{axis} = {axis_value(value)}{unit}")
    where = f" at {', '.join(values)}" if values else ""
    return f"{times(row.overall.speedup)}{within}{where}"


def cautions(run: SweepDescription, summary: SweepSummary) -> list[str]:
    """Return what limits the numbers, and where a draft model on the server would be faster than
    any at the edge.
    """
    lines = setting_cautions(run)
    for used in run.methods:
        of_one = replace(run, method=used.method, uses=used.uses, seen_prompts=used.seen_prompts)
        lines += (
            line
            for line in (*predictor_cautions(of_one), *other_deployments([of_one]))
            if line not in lines
        )
    lines += colocation.server_only(faster_at_server(summary), len(summary.fastest), run.deployment)
    return lines


def headlines(summary: SweepSummary) -> list[str]:
    """Return where every method stops to pay off, and where drafting at the edge does."""
    values = next(iter(summary.axes.values()))
    lines = [f"{found.method} {break_even_sentence(found, values)}" for found in summary.break_even]
    return lines + [
        f"{found.method} at the edge {break_even_sentence(found, values, COLOCATED)}"
        for found in summary.edge
    ]
