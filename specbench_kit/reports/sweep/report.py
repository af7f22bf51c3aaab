"""The report of a sweep: how each method's speedup changes, and where it is used up.

Also here: sentences on break-even points, which a sweep's report shares with the terminal.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from specbench_kit.core.typed_json import JsonObject
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
    Row,
    Summary,
    Table,
    caution,
    code,
    facts,
    paragraphs,
)
from specbench_kit.reports.sections import colocation, deployment
from specbench_kit.reports.sections.cautions import predictor_cautions, setting_cautions
from specbench_kit.reports.sections.machine import provenance
from specbench_kit.reports.sections.wording import (
    dataset_sentence,
    model_sentence,
    time_kind,
    time_sentence,
    trace_sentence,
)
from specbench_kit.reports.writing.formatting import ABSENT, count, interval, significant, times
from specbench_kit.runs.document import RunDescription

if TYPE_CHECKING:
    from rich.console import Console

METRICS = {
    "throughput": Column("throughput", "rate"),
    "acceptance_length": Column("acceptance length", "number"),
    "acceptance_rate": Column("acceptance rate", "share"),
    "ttft_mean_s": Column("TTFT mean", "seconds"),
    "tpot_mean_s": Column("TPOT mean", "seconds"),
    "cost_efficiency": Column("tokens per $", "count"),
}
FASTEST = "*"
MOST_METHODS = 4
"""Methods that the terminal shows side by side, with a row per point."""
FILES = "This folder also holds the plots as SVG and the table as `sweep.csv`."
DEFINITIONS = (
    "Speedup is autoregressive time / method time, end to end, as a ratio of sums over the same requests, with a 95% "
    "interval over prompts. Every point replays the same trace, so that differences between points come only from the "
    "deployment or the options, not from the prompts. The deployment shown above is that of the first point."
)


class SweptMethod(Struct):
    """A method of a sweep: what it uses of its pair, and how many prompts of the trace it was trained on."""

    method: str
    uses: JsonObject = field(default_factory=dict)
    seen_prompts: int | None = None


class SweepDescription(RunDescription, kw_only=True):
    """What `run.json` says of a sweep; `methods` are those that use something of their pair."""

    requests: int = 0
    methods: list[SweptMethod] = field(default_factory=list)


def build(run: SweepDescription, summary: Summary) -> Document:
    """Return the report, the figure of speedups first."""
    first, *more = _figures(summary)
    varied = ", ".join(axis_in_words(key) for key, values in summary["axes"].items() if len(values) > 1)
    return Document.of(
        f"Sweep over {varied} on {run.dataset.name or 'a trace'}",
        paragraphs(f"**{winner_sentence(summary)}**"),
        caution(cautions(run, summary)),
        [first],
        _comparisons(summary),
        [Heading("More figures"), *more, Paragraph(FILES)],
        _results(summary),
        _setting(run, summary),
        deployment.section(run),
        [Heading("Reading the numbers"), Paragraph(DEFINITIONS)],
        provenance(run),
    )


def print_sweep(console: "Console", run: SweepDescription, summary: Summary) -> None:
    """Print the speedups by point and method, then where each method breaks even."""
    setting = [dataset_sentence(run.dataset), f"batch size {run.config.batch_size}", time_kind(run)]
    # What is slower than autoregressive decoding is no recommendation, even where nothing is faster.
    fastest = [
        {**winner["place"], "method": winner["method"]} for winner in summary["fastest"] if winner["speedup"] >= 1
    ]
    blocks: list[Block] = [
        Note(" · ".join(setting)),
        _speedups_by_point(summary, fastest) or _rows_by_method(summary, fastest),
        Note(f"{FASTEST} the highest speedup over {RIVAL} at this point; below 1x is slower"),
        *paragraphs(*(f"**{line}**" for line in (winner_sentence(summary), *headlines(summary)))),
        *caution(cautions(run, summary)),
    ]
    render_terminal.show(console, blocks)


def _speedups_by_point(summary: Summary, fastest: Sequence[Row]) -> Table | None:
    """Return a table with a row per point and a column per method; None if they are many or differ between points."""
    specs = list(dict.fromkeys(row["method"] for row in summary["rows"] if row["method"] != BASELINE))
    points: dict[tuple[str, ...], dict[str, Estimate]] = {}
    for row in summary["rows"]:
        mark = f" {FASTEST}" if any(winner.items() <= row.items() for winner in fastest) else ""
        points.setdefault(tuple(_point(row, summary)), {})[row["method"]] = Estimate(row["speedup"], mark=mark)
    if len(specs) > MOST_METHODS or any(
        specs != [spec for spec in found if spec != BASELINE] for found in points.values()
    ):
        return None
    axes = (Column(_axis_title(key), "count") for key in summary["axes"])
    titles = (Column(re.sub("[:,]", "\n", spec), "times") for spec in specs)
    rows: list[list[Cell]] = [[*point, *(found[spec] for spec in specs)] for point, found in points.items()]
    return Table((*axes, *titles), rows)


def _rows_by_method(summary: Summary, fastest: Sequence[Row]) -> Table:
    columns = (Column("speedup", "times"), METRICS["throughput"], Column("acceptance\nlength", "number"))
    rows = []
    for row in summary["rows"]:
        mark = f" {FASTEST}" if any(winner.items() <= row.items() for winner in fastest) else ""
        numbers = (row["speedup"], row["throughput"], row["acceptance_length"])
        rows.append((*_point(row, summary), f"{row['method']}{mark}", *numbers))
    return Table((*(Column(_axis_title(key), "count") for key in summary["axes"]), "method", *columns), rows)


def _point(row: Row, summary: Summary) -> list[str]:
    return [axis_value(row[key]) for key in summary["axes"]]


def _axis_columns(summary: Summary) -> list[Column]:
    return [Column(_axis_title(key)) for key in summary["axes"]]


def _axis_title(key: str) -> str:
    """Return the heading of an axis's column: words with the unit, or the key of a method's option."""
    name, unit = axis_name(key)
    return f"{name} ({unit.strip()})" if unit else name if key in AXES else code(key)


def _comparisons(summary: Summary) -> Blocks:
    """Return the fastest methods, break-even points, and where the edge beats a draft model on the server."""
    columns = (*("highest speedup", Column("", "times"), "next"), Column("lead over it", "times"))
    winners = []
    for winner in summary["fastest"]:
        speeds = (code(winner["method"]), winner["speedup"], code(winner["next"]), winner["lead"])
        winners.append((*_point(winner["place"], summary), *speeds))
    note = (
        f"A method's speedup is over {RIVAL} of the same prompts on the same deployment: the "
        "server decodes by itself and streams, so that a request crosses the link once. Between two points of the "
        "grid, the speedup is interpolated linearly."
    )
    blocks: list[Block] = [
        Heading("Which method is the fastest where"),
        Table((*_axis_columns(summary), *columns), winners),
        Heading("Break-even"),
        BulletList(headlines(summary)),
        _crossings_table("faster", summary["break_even"], summary),
        Paragraph(note),
    ]
    if not summary["edge"]:
        return blocks
    rows: list[list[Cell]] = []
    for row in summary["rows"]:
        if row.get("colocated_ratio") is not None:
            speedups = (code(row["method"]), row["speedup"], row["colocated_speedup"])
            windows = [row.get(name) for name in colocation.WINDOWS]
            rows.append([*_point(row, summary), *speedups, *windows, row.get("capacity_factor")])
    numbers = (Column("edge", "times"), Column("server-only", "times"), *colocation.COLUMNS[3:])
    return [
        *blocks,
        Heading("Edge or server-only"),
        _crossings_table("edge faster than server-only", summary["edge"], summary),
        Table((*_axis_columns(summary), "method", *numbers), rows),
        Paragraph(colocation.NOTE),
    ]


def _crossings_table(title: str, methods: Sequence[Row], summary: Summary) -> Table:
    rows: list[tuple[str, ...]] = []
    for row in methods:
        method = code(row["method"])
        if not row["crossings"]:
            where = f"at {', '.join(map(str, row['faster_at']))}" if row["verdict"] == "in part" else row["verdict"]
            rows.append((method, where, ABSENT, ABSENT))
        for crossing in row["crossings"]:
            side = "below" if crossing["stops"] else "above"
            rows.append((method, side, significant(crossing["at"]), bracket(crossing)))
    return Table(("method", title, f"break-even {_axis_columns(summary)[0].title}", "between"), rows)


def _figures(summary: Summary) -> list[Figure]:
    axis = axis_in_words(next(iter(summary["axes"])))
    figures = [Figure(f"{name} against {axis}", f"plots/{name}.png") for name in ("speedup", "throughput")]
    if sum(len(values) > 1 for values in summary["axes"].values()) == 2:
        figures.append(Figure("the fastest method", "plots/fastest.png"))
    return figures


def _results(summary: Summary) -> Blocks:
    priced = any(row["cost_efficiency"] is not None for row in summary["rows"])
    metrics = {key: column for key, column in METRICS.items() if priced or key != "cost_efficiency"}
    rows = []
    for row in summary["rows"]:
        bounds = row["speedup_low"], row["speedup_high"]
        speedup = Estimate(row["speedup"], None if None in bounds else bounds)
        rows.append((*_point(row, summary), code(row["method"]), speedup, *(row[key] for key in metrics)))
    columns = (*_axis_columns(summary), Column("method"), Column("speedup (95%)", "times"), *metrics.values())
    return [Heading("Results (modelled)"), Table(columns, rows)]


def _setting(run: SweepDescription, summary: Summary) -> Blocks:
    rows = [
        ("dataset", dataset_sentence(run.dataset)),
        *((f"{role} model", model_sentence(model)) for role, model in run.models.items() if model),
        *([("trace", f"{trace_sentence(run.trace)}, {count(run.requests)} requests")] if run.trace else []),
        *((f"sweep over {code(key)}", ", ".join(map(axis_value, values))) for key, values in summary["axes"].items()),
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


def break_even_sentence(row: Row, values: Sequence[object], rival: str = RIVAL) -> str:
    """Return where on the axis, whose values are `values`, one method beats its rival."""
    axis, unit = axis_name(row["axis"])
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    span = f"{axis} from {min(numbers):g} to {max(numbers):g}{unit}" if len(numbers) == len(values) else axis
    if row["verdict"] in ("everywhere", "nowhere"):
        return f"beats {rival} {row['verdict']} in the range ({span})."
    if row["verdict"] == TOO_FEW:
        return f"was replayed on too few prompts to tell whether it beats {rival} ({span})."
    if not row["crossings"]:
        return f"beats {rival} only at {axis} = {', '.join(map(str, row['faster_at']))}{unit}."
    changes = [
        f"{'stops' if crossing['stops'] else 'starts'} beating {rival} at {axis} = {significant(crossing['at'])}{unit} "
        f"(between {bracket(crossing)})"
        for crossing in row["crossings"]
    ]
    return f"{', '.join(changes)}."


def axis_in_words(key: str) -> str:
    """Return what varies along an axis, with its unit."""
    if key in AXES:
        name, owner, unit = AXES[key]
        return f"{name}{owner} ({unit})" if unit else name + owner
    owner, _, name = key.rpartition(".")
    return f"{name} of {owner}"


def axis_name(key: str) -> tuple[str, str]:
    """Return the short name of an axis, and its unit as it follows a number; a key without words is its own name."""
    name, _, unit = AXES.get(key, (key, "", ""))
    return name, f" {unit}" if unit else ""


def axis_value(value: object) -> str:
    """Return a value of an axis as text."""
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def bracket(crossing: Row) -> str:
    """Return the neighbours on the grid between which a break-even point lies."""
    return f"{axis_value(crossing['low'])} and {axis_value(crossing['high'])}"


def winner_sentence(summary: Summary) -> str:
    """Return which method is the fastest at most points, with its speedup at the first and the last of them."""
    places: dict[str, list[Row]] = {}
    for winner in summary["fastest"]:
        places.setdefault(winner["method"], []).append(winner["place"])
    if not places:
        return "No method finished at any point."
    name, won = max(places.items(), key=lambda item: len(item[1]))
    ends = [won[0], won[-1]] if len(won) > 1 else won
    parts = []
    for place in ends:
        row = next(row for row in summary["rows"] if row["method"] == name and place.items() <= row.items())
        low, high = row["speedup_low"], row["speedup_high"]
        within = f" ({interval((low, high))})" if low is not None and high is not None else ""
        names = ((*axis_name(key), axis_value(value)) for key, value in place.items())
        where = ", ".join(f"{axis} = {value}{unit}" for axis, unit, value in names)
        parts.append(f"{times(row['speedup'])}{within} at {where}")
    return (
        f"{code(name)} is the fastest at {len(won)} of {len(summary['fastest'])} points, as a multiple of {RIVAL}: "
        f"{', '.join(parts)}."
    )


def cautions(run: SweepDescription, summary: Summary) -> list[str]:
    """Return what limits the numbers, and where the fastest method would gain from a draft model on the server."""
    beaten = []
    for winner in summary["fastest"]:
        point = {**winner["place"], "method": winner["method"]}
        row = next(row for row in summary["rows"] if point.items() <= row.items())
        if (ratio := row.get("colocated_ratio")) is not None and ratio < 1:
            beaten.append(ratio)
    lines = setting_cautions(run)
    for used in run.methods:
        of_one = replace(run, method=used.method, uses=used.uses, seen_prompts=used.seen_prompts)
        lines += (line for line in predictor_cautions(of_one) if line not in lines)
    if beaten:
        lines.append(
            f"SERVER-ONLY IS FASTER at {len(beaten)} of {len(summary['fastest'])} points: with its draft model on the "
            f"server, the fastest method there would be up to {times(1 / min(beaten))} as fast."
        )
    return lines


def headlines(summary: Summary) -> list[str]:
    """Return where every method stops to pay off, and where drafting at the edge does."""
    values = next(iter(summary["axes"].values()))
    lines = [f"{row['method']} {break_even_sentence(row, values)}" for row in summary["break_even"]]
    return lines + [
        f"{row['method']} at the edge {break_even_sentence(row, values, COLOCATED)}" for row in summary["edge"]
    ]
